// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/proto/condtest"
	"weft/internal/proto/mono"
	"weft/internal/verbs/hca"
)

// fullLink is a link with a socket that has no room until its other end is read.
type fullLink struct {
	nowhere
	fd      int
	blocked atomic.Bool
	flushes atomic.Int32
}

func (n *fullLink) Blocked() bool { return n.blocked.Load() }

func (n *fullLink) Flush(mono.Time) {
	n.flushes.Add(1)
	if n.blocked.Load() {
		_, err := unix.Write(n.fd, make([]byte, 1024))
		n.blocked.Store(err != nil)
	}
}

// TestLaneAwaitsRoom: a lane that sleeps with something to send wakes when its socket has
// room, and one that has nothing to send is not woken by room.
func TestLaneAwaitsRoom(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	link := &fullLink{fd: pair[0]}
	link.blocked.Store(true)
	for {
		if _, err := unix.Write(pair[0], make([]byte, 1024)); err != nil {
			break
		}
	}
	base := time.Now()
	clock := func() mono.Time { return mono.Time(time.Since(base)) + 1e9 }
	l, err := newLane(hca.NewLane(hca.NewFunctions(hca.NewAdapter(&hca.Port{}, hca.DefaultLimits)), 0, link, nil), link,
		[2]sockets{{out: []int{pair[0]}}}, clock, 0, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l.holdsP = true
	go l.run()
	defer l.Stop()
	sleeps := func() (n uint64) {
		l.Do(func() { n = l.stats.Sleeps })
		return n
	}
	condtest.Until(t, "the lane sleeps", func() bool { return sleeps() > 0 && l.asleep.Load() })
	read := func() {
		b := make([]byte, 2048)
		for {
			if _, err := unix.Read(pair[1], b); err != nil {
				return
			}
		}
	}
	read()
	condtest.Until(t, "what waited is sent", func() bool { return !link.blocked.Load() })
	// Room without a waiter: only calls of this test wake the lane.
	condtest.Until(t, "the lane sleeps again", func() bool { return l.asleep.Load() })
	before := sleeps()
	for range 100 {
		unix.Write(pair[0], make([]byte, 1024))
		read()
	}
	if n := sleeps() - before; n > 20 {
		t.Errorf("woken %d times by room that nobody waits for", n)
	}
}
