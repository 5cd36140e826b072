// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/node/loop"
)

// ErrStuck is the error of Query: the lane has not run a function for a long time (see Check).
var ErrStuck error = &api.Error{Code: api.CodeNotReady, Why: "a lane waits for the memory of a program",
	Fix: "weft status"}

// Post lets the lane run f soon; false where the lane has ended. It never waits, and any goroutine may call it.
func (l *Lane) Post(f func()) bool { return l.queue.Post(f) }

// Do runs f on the lane and waits for it. It fails with loop.ErrStopped where the lane ended before f ran. No lane may
// call it.
func (l *Lane) Do(f func()) error { return l.queue.Do(f) }

// Query is Do for requests of people: it gives up with ErrStuck while the lane is stuck, and f may then run later. The
// caller must not read what f writes after an error.
func (l *Lane) Query(f func()) error {
	err := l.queue.Query(f, WatchPeriod, l.Stuck)
	if errors.Is(err, loop.ErrStuck) {
		return ErrStuck
	}
	return err
}

// bell is the eventfd that wakes a sleeping lane.
type bell struct {
	mu sync.Mutex // guards fd; nothing else is locked with mu held
	fd int        // -1: the lane has ended
}

// ring wakes the lane.
func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd >= 0 {
		unix.Write(b.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (b *bell) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd >= 0 {
		unix.Close(b.fd)
		b.fd = -1
	}
}

// Wake wakes the lane where it sleeps. Any goroutine may call it.
func (l *Lane) Wake() {
	if l.asleep.Load() {
		l.bell.ring()
	}
}

// Stop ends the lane and waits for its end. No lane may call it.
func (l *Lane) Stop() {
	l.Post(func() { l.stop = true })
	<-l.Done()
}

// Done is closed when the lane has ended.
func (l *Lane) Done() <-chan struct{} { return l.queue.Stopped() }

// Ended reports whether the lane has ended. Any goroutine may call it.
func (l *Lane) Ended() bool {
	select {
	case <-l.Done():
		return true
	default:
		return false
	}
}
