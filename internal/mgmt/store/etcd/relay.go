// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
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

// with calls f with the client.
func with[T any](r *relay, f func(*Client) (T, error)) (T, error) {
	c, _ := r.client()
	if c == nil {
		var none T
		return none, r.away()
	}
	return f(c)
}

// Get implements store.Store.
func (r *relay) Get(ctx context.Context, key string) (store.Entry, error) {
	return with(r, func(c *Client) (store.Entry, error) { return c.Get(ctx, key) })
}

// List implements store.Store.
func (r *relay) List(ctx context.Context, tree string) (store.Listing, error) {
	return with(r, func(c *Client) (store.Listing, error) { return c.List(ctx, tree) })
}

// Txn implements store.Store.
func (r *relay) Txn(ctx context.Context, t store.Txn) (store.Rev, error) {
	return with(r, func(c *Client) (store.Rev, error) { return c.Txn(ctx, t) })
}

// Lease implements store.Store.
func (r *relay) Lease(ctx context.Context, ttl time.Duration) (store.Lease, error) {
	return with(r, func(c *Client) (store.Lease, error) { return c.Lease(ctx, ttl) })
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
