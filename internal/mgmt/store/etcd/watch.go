// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weft/internal/mgmt/store"
)

// listAgain is the delay before a watch retries an etcd that did not answer.
const listAgain = 200 * time.Millisecond

// Watch implements store.Store: a list, then etcd's watch from there. Whenever
// that breaks off (compacted history, a cluster without a leader, a consumer
// that lags), it begins with a list again.
func (c *Client) Watch(ctx context.Context, tree string) (<-chan store.Change, error) {
	if err := store.CheckTree(tree); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	unhook := context.AfterFunc(c.ctx, stop)
	out := make(chan store.Change)
	go func() {
		defer c.calls.Done()
		defer close(out)
		defer unhook()
		defer stop()
		for ctx.Err() == nil {
			err := c.follow(ctx, tree, out)
			if ctx.Err() == nil {
				c.watched(tree, err)
			}
			if err != nil {
				select {
				case <-ctx.Done():
				case <-time.After(listAgain):
				}
			}
		}
		c.watched(tree, nil)
	}()
	return out, nil
}

// watched notes why the watch of a tree was refused; any other error is the store's own, which Status finds.
func (c *Client) watched(tree string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isRefused(err) {
		c.refused[tree] = err
	} else {
		delete(c.refused, tree)
	}
}

// unwatched is why a watch gets nothing because it is refused, nil where none is.
func (c *Client) unwatched() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, tree := range slices.Sorted(maps.Keys(c.refused)) {
		return c.refused[tree]
	}
	return nil
}

// follow sends a Reset and then changes, until ctx ends or the watch breaks: with an error where it did not begin.
func (c *Client) follow(ctx context.Context, tree string, out chan<- store.Change) error {
	l, err := c.list(ctx, tree)
	if err != nil {
		return err
	}
	// etcd's watch begins when the Reset has been taken, so that a consumer
	// that is busy for long costs one list: etcd keeps what happens meanwhile.
	select {
	case out <- store.ResetTo(l):
	case <-ctx.Done():
		return nil
	}
	watching, stop := context.WithCancel(clientv3.WithRequireLeader(ctx))
	in := c.cli.Watch(watching, c.prefix(tree), clientv3.WithPrefix(), clientv3.WithRev(int64(l.Rev)+1))
	c.watched(tree, nil)
	err = c.relay(watching, in, out)
	stop()
	for range in { // closed by etcd's client once it has let go of the watch
	}
	if isRefused(err) {
		return c.failed(ctx, "watch "+tree, err)
	}
	return nil
}

// list is List without a time limit except that of each attempt.
func (c *Client) list(ctx context.Context, tree string) (store.Listing, error) {
	l, err := c.List(ctx, tree)
	if errors.Is(err, store.ErrInvalid) {
		panic("store: tree was checked: " + err.Error())
	}
	return l, err
}

// relay passes changes on and keeps up to store.WatchBuffer of them waiting. It returns why etcd ended the watch.
func (c *Client) relay(ctx context.Context, in clientv3.WatchChan, out chan<- store.Change) error {
	var queue []store.Change
	for {
		var send chan<- store.Change
		var head store.Change
		if len(queue) > 0 {
			send, head = out, queue[0]
		}
		select {
		case r, ok := <-in:
			if !ok || r.Err() != nil {
				return r.Err()
			}
			if queue = c.changes(queue, r.Events); len(queue) > store.WatchBuffer {
				return nil
			}
		case send <- head:
			queue = append(queue[:0], queue[1:]...)
		case <-ctx.Done():
			return nil
		}
	}
}

// changes appends events as one change for each revision. etcd never splits
// the events of one revision over two answers.
func (c *Client) changes(queue []store.Change, events []*clientv3.Event) []store.Change {
	var last store.Rev
	for _, ev := range events {
		e := store.Event{Entry: c.entry(ev.Kv)}
		if ev.Type == clientv3.EventTypeDelete {
			e = store.Event{Entry: store.Entry{Key: e.Key, Rev: e.Rev}, Deleted: true}
		}
		if e.Rev != last {
			queue = append(queue, store.Change{Rev: e.Rev})
			last = e.Rev
		}
		at := &queue[len(queue)-1]
		at.Events = append(at.Events, e)
	}
	return queue
}
