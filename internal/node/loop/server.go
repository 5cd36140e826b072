// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"time"

	"weft/internal/proto/mono"
)

// Server is the goroutine of an owner with work of three kinds: functions of others, by its Queue; values, by its
// inbox; and what is due at a time.
type Server[T any] struct {
	*Queue
	inbox     chan T
	wake, end chan struct{}
}

// NewServer returns a server with room for n values.
func NewServer[T any](n int) *Server[T] {
	s := &Server[T]{inbox: make(chan T, n), wake: make(chan struct{}, 1), end: make(chan struct{})}
	s.Queue = NewQueue(func() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	})
	return s
}

// Offer enqueues a value for handle; false where there is no room. It never waits, and any goroutine may call it.
func (s *Server[T]) Offer(v T) bool {
	select {
	case s.inbox <- v:
		return true
	default:
		return false
	}
}

// Serve is the goroutine, until Close is called; then it calls finish. turn does what is due, and returns when it must
// be called again if nothing else happens; 0: never. handle handles a value.
//
// Posted functions run before each value: a datagram that follows the notification of its link would be dropped by a
// port that is still down, and missed until it is sent again.
func (s *Server[T]) Serve(clock func() mono.Time, turn func(now mono.Time) mono.Time, handle func(mono.Time, *T),
	finish func(now mono.Time)) {
	defer s.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		if d := turn(clock()); d != 0 {
			wait = max(0, d.Sub(clock()))
		}
		timer.Reset(wait)
		select {
		case <-s.end:
			s.drain(clock, handle)
			finish(clock())
			return
		case v := <-s.inbox:
			s.Drain()
			handle(clock(), &v)
		case <-s.wake:
		case <-timer.C:
		}
		s.drain(clock, handle)
	}
}

// drain handles what has come in meanwhile.
func (s *Server[T]) drain(clock func() mono.Time, handle func(mono.Time, *T)) {
	now := clock()
	for range cap(s.inbox) {
		select {
		case v := <-s.inbox:
			s.Drain()
			handle(now, &v)
			continue
		default:
		}
		break
	}
	s.Drain()
}

// Close ends the goroutine and waits for its end. It is called once, on another goroutine.
func (s *Server[T]) Close() {
	close(s.end)
	<-s.Stopped()
}
