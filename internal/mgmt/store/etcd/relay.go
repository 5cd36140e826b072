// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"weft/internal/mgmt/store"
)

// relay is a store with a client that changes: the one in this process while this node votes, one over the network
// otherwise. A change ends leases, as the loss of the store does, and gives watches a Reset.
type relay struct {
	mu     sync.Mutex
	now    *Client       // nil: none at present
	change chan struct{} // closed when now is replaced
	why    error         // why now is nil; nil: no voter is known
	closed bool
	stop   context.CancelFunc
	ctx    context.Context
	work   sync.WaitGroup // watches; nothing is added once closed
}

var _ store.Store = (*relay)(nil)

func newRelay() *relay {
	r := &relay{change: make(chan struct{})}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// use replaces the client, and closes the one before.
func (r *relay) use(c *Client) {
	r.mu.Lock()
	old, late := r.now, (*Client)(nil)
	if r.closed {
		c, late = nil, c
	}
	r.now = c
	close(r.change)
	r.change = make(chan struct{})
	r.mu.Unlock()
	for _, c := range []*Client{old, late} {
		if c != nil {
			c.Close()
		}
	}
}

func (r *relay) client() (*Client, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now, r.change
}

// because sets why there is no client; nil: no voter is known.
func (r *relay) because(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = why
}

// away is the error while there is no client.
func (r *relay) away() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return store.Closed()
	}
	if r.why != nil {
		return r.why
	}
	return &store.Error{Kind: store.ErrUnavailable, What: "cannot use the store",
		Why: "this node knows no voter that answers", Fix: "weft store status lists the voters"}
}

// replacePatience is how long a call waits for the next client: longer than a replica takes to start, or a node that
// lost its replica to find the voters.
const replacePatience = 3 * time.Second

// with calls f with the client, and waits for one at most replacePatience. Where the client is replaced during the call
// and again is set, f is called anew with the next one.
func with[T any](ctx context.Context, r *relay, again bool, f func(*Client) (T, error)) (v T, err error) {
	late := time.NewTimer(replacePatience)
	defer late.Stop()
	for {
		c, change := r.client()
		if c == nil {
			err = r.away()
		} else {
			if v, err = f(c); err == nil || ctx.Err() != nil || !c.over() {
				return v, err
			}
			if !again {
				return v, replaced()
			}
		}
		if r.ended() {
			return v, r.away()
		}
		select {
		case <-change:
		case <-late.C:
			return v, err
		case <-ctx.Done():
			return v, err
		}
	}
}

// ended reports whether no client follows the present one, as far as is known.
func (r *relay) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed || r.why != nil
}

// replaced is the error of a write: its client was replaced before it answered.
func replaced() error {
	return &store.Error{Kind: store.ErrUnavailable, What: "cannot tell whether the store was written",
		Why: "this node's replica of it was replaced meanwhile", Fix: "the same again"}
}

// Get implements store.Store.
func (r *relay) Get(ctx context.Context, key string) (store.Entry, error) {
	return with(ctx, r, true, func(c *Client) (store.Entry, error) { return c.Get(ctx, key) })
}

// List implements store.Store.
func (r *relay) List(ctx context.Context, tree string) (store.Listing, error) {
	return with(ctx, r, true, func(c *Client) (store.Listing, error) { return c.List(ctx, tree) })
}

// Txn implements store.Store. A transaction that makes one of its own conditions false is done at most once, however
// often it is tried.
func (r *relay) Txn(ctx context.Context, t store.Txn) (store.Rev, error) {
	once, tries := doneOnce(t), 0
	return with(ctx, r, once, func(c *Client) (store.Rev, error) {
		tries++
		rev, err := c.Txn(ctx, t)
		if tries > 1 && errors.Is(err, store.ErrConflict) {
			err = replaced() // by the first try, or by another
		}
		return rev, err
	})
}

// doneOnce reports whether t makes one of its conditions false.
func doneOnce(t store.Txn) bool {
	return slices.ContainsFunc(t.If, func(c store.Cond) bool {
		return slices.ContainsFunc(t.Do, func(op store.Op) bool {
			return op.Key == c.Key && (c.Test == store.IsAt || op.Delete == (c.Test == store.IsPresent))
		})
	})
}

// Lease implements store.Store.
func (r *relay) Lease(ctx context.Context, ttl time.Duration) (store.Lease, error) {
	return with(ctx, r, true, func(c *Client) (store.Lease, error) { return c.Lease(ctx, ttl) })
}

// Status implements store.Store.
func (r *relay) Status(ctx context.Context) store.Status {
	if c, _ := r.client(); c != nil {
		return c.Status(ctx)
	}
	return store.Status{Kind: "embedded", Down: r.away()}
}

// Watch implements store.Store.
func (r *relay) Watch(ctx context.Context, tree string) (<-chan store.Change, error) {
	if err := store.CheckTree(tree); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, store.Closed()
	}
	out := make(chan store.Change)
	ctx, stop := context.WithCancel(ctx)
	unhook := context.AfterFunc(r.ctx, stop)
	r.work.Go(func() {
		defer close(out)
		defer unhook()
		defer stop()
		for ctx.Err() == nil {
			c, change := r.client()
			if c == nil {
				select {
				case <-change:
				case <-ctx.Done():
				}
				continue
			}
			watching, end := context.WithCancel(ctx)
			if in, err := c.Watch(watching, tree); err == nil {
				pass(ctx, in, out, change)
			} else {
				select { // it was closed: another follows
				case <-change:
				case <-ctx.Done():
				}
			}
			end()
		}
	})
	return out, nil
}

// pass hands changes on until the watch, its client or ctx ends.
func pass(ctx context.Context, in <-chan store.Change, out chan<- store.Change, change <-chan struct{}) {
	for {
		select {
		case c, ok := <-in:
			if !ok {
				return
			}
			select {
			case out <- c:
			case <-change:
				return
			case <-ctx.Done():
				return
			}
		case <-change:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Close implements store.Store.
func (r *relay) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
	r.use(nil)
	r.work.Wait()
	return nil
}
