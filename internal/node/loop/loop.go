// SPDX-License-Identifier: Apache-2.0

// Package loop runs functions of other goroutines on the goroutine that owns some state.
//
// What comes in: functions from any goroutine; what goes out: their calls, in order, on the owner.
// The rooms of a node use a Queue for each goroutine with state of its own (lanes, management,
// connection manager), and a Worker for work that may block. A Queue starts no goroutine and holds
// its lock only to append and to swap.
package loop

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrStopped reports that the owner has ended, and that the function did not run and will not run.
var ErrStopped = errors.New("the node is shutting down")

// ErrStuck reports that the owner does not take functions at present. The function may still run
// later.
var ErrStuck = errors.New("the node is busy")

// Queue holds functions for its owner, the one goroutine that calls Drain and Stop.
type Queue struct {
	wake    func() // makes the owner call Drain soon
	pending atomic.Bool
	stopped chan struct{}

	mu     sync.Mutex // guards inbox and closed
	inbox  []func()
	closed bool

	taken []func() // by Drain, from inbox; those before next have been called
	next  int
}

// NewQueue returns an empty queue. wake is called after each Post, by the posting goroutine and
// without a lock held, to make the owner call Drain soon; it must not block.
func NewQueue(wake func()) *Queue { return &Queue{wake: wake, stopped: make(chan struct{})} }

// Post has the owner call f soon, after the functions posted before. It never blocks. It reports
// false, and f is never called, if the owner has ended.
func (q *Queue) Post(f func()) bool {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return false
	}
	q.inbox = append(q.inbox, f)
	q.pending.Store(true)
	q.mu.Unlock()
	q.wake()
	return true
}

// Do has the owner call f and waits until f has returned, or has panicked. The error is ErrStopped,
// and only if f was not called. The owner itself must not call Do.
func (q *Queue) Do(f func()) error {
	ran, ok := q.submit(f)
	if !ok {
		return ErrStopped
	}
	select {
	case <-ran:
		return nil
	case <-q.stopped:
		return q.verdict(ran)
	}
}

// Query is Do for calls that must not wait on an owner that is stuck: every period it calls stuck,
// and returns ErrStuck if that reports true. f may then run later: the caller must not read what f
// writes after an error.
func (q *Queue) Query(f func(), period time.Duration, stuck func() bool) error {
	if stuck() {
		return ErrStuck // repeated queries must not fill the inbox
	}
	ran, ok := q.submit(f)
	if !ok {
		return ErrStopped
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ran:
			return nil
		case <-q.stopped:
			return q.verdict(ran)
		case <-tick.C:
			if stuck() {
				return ErrStuck
			}
		}
	}
}

// submit posts f; ran is closed once f has returned or panicked.
func (q *Queue) submit(f func()) (ran chan struct{}, ok bool) {
	ran = make(chan struct{})
	return ran, q.Post(func() {
		defer close(ran)
		f()
	})
}

// verdict is the result of Do after the end of the owner, which calls nothing from then on: f was
// called if ran is closed by now. Both channels may have been ready when select chose one.
func (q *Queue) verdict(ran chan struct{}) error {
	select {
	case <-ran:
		return nil
	default:
		return ErrStopped
	}
}

// Pending reports whether Drain has something to call. Any goroutine may call it.
func (q *Queue) Pending() bool { return q.pending.Load() }

// Drain calls what was posted and reports whether there was anything. A function that panics is not
// called again; those behind it are, by the next Drain. Only the owner calls it.
func (q *Queue) Drain() bool {
	if q.next == len(q.taken) {
		if !q.pending.Load() {
			return false
		}
		q.mu.Lock()
		q.inbox, q.taken = q.taken[:0], q.inbox
		q.pending.Store(false)
		q.mu.Unlock()
		q.next = 0
	}
	for q.next < len(q.taken) {
		f := q.taken[q.next]
		q.taken[q.next] = nil
		q.next++
		f()
	}
	return true
}

// Stop ends the queue: later calls of Post and Do report it, and functions that were not called are
// dropped. The owner calls it once, after its last Drain.
func (q *Queue) Stop() {
	q.mu.Lock()
	q.closed, q.inbox = true, nil
	q.pending.Store(false)
	q.mu.Unlock()
	close(q.stopped)
}

// Stopped returns a channel that is closed by Stop.
func (q *Queue) Stopped() <-chan struct{} { return q.stopped }
