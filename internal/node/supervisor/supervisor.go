// SPDX-License-Identifier: Apache-2.0

// Package supervisor keeps resources that take time to make and to close, such as network interfaces, for goroutines
// that must not block.
//
// What comes in: functions that make, change and close a resource. What goes out: their calls, in order, on a
// loop.Worker; and calls of the owner with the results that are still current. The users are the IP links and the
// VESW ports of a node. A Supervisor never decides when to try again: its owner does.
package supervisor

import (
	"context"
	"sync"
	"time"

	"weft/internal/node/loop"
)

// Supervisor keeps at most one resource of type R for its owner, a goroutine with state of its own. Only the owner
// calls its methods; only the worker touches the resource.
type Supervisor[R any] struct {
	worker  *loop.Worker
	post    func(f func()) // has the owner call f
	release func(R)

	term uint64 // the owner's: counts Open and Discard

	current R // the worker's, if made is set
	made    bool
}

// New returns a Supervisor without a resource. post has the owner call a function soon; release closes a resource, on
// the worker.
func New[R any](worker *loop.Worker, post func(f func()), release func(R)) *Supervisor[R] {
	return &Supervisor[R]{worker: worker, post: post, release: release}
}

// Term is the time from one Open or Discard to the next one. What belongs to an earlier term has no effect any more.
type Term struct {
	post    func(f func())
	current func() bool
}

// Term is the present one.
func (s *Supervisor[R]) Term() Term {
	at := s.term
	return Term{s.post, func() bool { return s.term == at }}
}

// Post has the owner call f, unless the term has ended by then. Any goroutine may call it.
func (t Term) Post(f func()) {
	t.post(func() {
		if t.current() {
			f()
		}
	})
}

// After is Post, later.
func (t Term) After(d time.Duration, f func()) { time.AfterFunc(d, func() { t.Post(f) }) }

// Open begins a term and has the worker call open, after the resource of the term before was released. The owner then
// gets the result, unless the term has ended.
func (s *Supervisor[R]) Open(open func(Term) (R, error), opened func(R, error)) {
	s.Discard()
	term := s.Term()
	s.worker.Post(func() {
		r, err := open(term)
		if err == nil {
			s.current, s.made = r, true
		}
		term.Post(func() { opened(r, err) })
	})
}

// Change has the worker call f with the resource, if there is one then, and afterwards, in any case, the owner call
// done, which may be nil, unless the term has ended.
func (s *Supervisor[R]) Change(f func(R), done func()) {
	term := s.Term()
	s.worker.Post(func() {
		if s.made {
			f(s.current)
		}
		if done != nil {
			term.Post(done)
		}
	})
}

// Discard ends the term and has the worker release the resource, also one that is still being made.
func (s *Supervisor[R]) Discard() {
	s.term++
	s.worker.Post(func() {
		if s.made {
			s.release(s.current)
			var none R
			s.current, s.made = none, false
		}
	})
}

// Changes lets goroutines wait for changes of a state that has a lock of its own. The zero Changes is ready for use.
type Changes struct {
	mu   sync.Mutex // guards next; may be locked while the state's lock is held
	next chan struct{}
}

// Announce wakes the callers of Await.
func (c *Changes) Announce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next != nil {
		close(c.next)
		c.next = nil
	}
}

func (c *Changes) wait() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = make(chan struct{})
	}
	return c.next
}

// Await calls done, and again after each Announce, until it reports true or ctx ends; it returns what done reported
// last. No change between two calls of done is missed.
func (c *Changes) Await(ctx context.Context, done func() bool) bool {
	for {
		next := c.wait()
		if done() {
			return true
		}
		select {
		case <-next:
		case <-ctx.Done():
			return false
		}
	}
}
