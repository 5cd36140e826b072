// SPDX-License-Identifier: Apache-2.0

package store

import "context"

// memWatch is one watch of a memory store. The tree appends to queue under
// its lock; the watch's goroutine takes from it.
type memWatch struct {
	of    *Memory
	below string
	out   chan Change
	more  chan struct{} // one token: queue or stale changed

	// Guarded by of.tree.mu.
	queue []Change
	stale bool // changes were dropped: the next is a Reset
}

// Watch implements Store.
func (m *Memory) Watch(ctx context.Context, tree string) (<-chan Change, error) {
	if err := CheckTree(tree); err != nil {
		return nil, err
	}
	if err := m.usable(ctx); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, Closed()
	}
	w := &memWatch{of: m, below: tree, out: make(chan Change), more: make(chan struct{}, 1), stale: true}
	m.watches.Add(1)
	m.tree.mu.Lock()
	m.tree.watches[w] = struct{}{}
	m.tree.mu.Unlock()
	go w.run(ctx)
	return w.out, nil
}

// notify enqueues the events of the watched tree. The caller holds the tree's lock.
func (w *memWatch) notify(rev Rev, events []Event) {
	if w.stale {
		return
	}
	c := Change{Rev: rev}
	for _, e := range events {
		if Below(w.below, e.Key) {
			c.Events = append(c.Events, Event{Entry: e.clone(), Deleted: e.Deleted})
		}
	}
	if len(c.Events) == 0 {
		return
	}
	if len(w.queue) == WatchBuffer {
		w.queue, w.stale = nil, true
	} else {
		w.queue = append(w.queue, c)
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// next takes the oldest change, or makes the Reset that is due.
func (w *memWatch) next() (Change, bool) {
	t := w.of.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.stale {
		w.stale = false
		return ResetTo(t.list(w.below)), true
	}
	if len(w.queue) == 0 {
		return Change{}, false
	}
	c := w.queue[0]
	w.queue = append(w.queue[:0], w.queue[1:]...)
	return c, true
}

func (w *memWatch) run(ctx context.Context) {
	defer func() {
		w.of.tree.mu.Lock()
		delete(w.of.tree.watches, w)
		w.of.tree.mu.Unlock()
		close(w.out)
		w.of.watches.Done()
	}()
	for {
		c, ok := w.next()
		if !ok {
			select {
			case <-w.more:
			case <-ctx.Done():
				return
			case <-w.of.stop:
				return
			}
			continue
		}
		select {
		case w.out <- c:
		case <-ctx.Done():
			return
		case <-w.of.stop:
			return
		}
	}
}
