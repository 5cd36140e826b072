// SPDX-License-Identifier: Apache-2.0

package ipif

import (
	"net/netip"
	"testing"

	"weft/internal/proto/mono"
	"weft/internal/service/ipoib"
	"weft/internal/service/ipoib/connected"
)

// endless is a back end with endless packets.
type endless struct {
	ipoib.Backend
	reads int
}

func (e *endless) TryReadBatch(bufs [][]byte, sizes []int, hops []netip.Addr, offset int) (int, bool, error) {
	e.reads++
	for i := range bufs {
		sizes[i] = 20
	}
	return len(bufs), true, nil
}

func (e *endless) Control(func(fd int) error) error { return nil }

// taker is a link that takes everything and sends nothing, as to neighbours that do not answer,
// for so many batches.
type taker struct {
	t     *testing.T
	limit int
}

func (k *taker) SendBatch(_ mono.Time, frames [][]byte, _ []netip.Addr) int {
	if k.limit--; k.limit < 0 {
		k.t.Fatal("a turn of the lane does not end while packets come")
	}
	return len(frames)
}

// TestFeedSharesTheLane: a back end that always has packets, of which the link keeps none, leaves
// the lane to others after a bounded number of them, and has more in the next turn.
func TestFeedSharesTheLane(t *testing.T) {
	f, from := newFeed(make([]byte, feedMem(feedMTU)), feedMTU), &endless{}
	f.reset(func() {})
	f.from, f.readable = from, true
	for range 3 {
		before := from.reads
		if !f.send(1, &taker{t, 100}) {
			t.Error("idle while packets wait")
		}
		if n := from.reads - before; n == 0 || n > feedBatches {
			t.Errorf("%d batches in a turn", n)
		}
		if !f.readable {
			t.Error("does not know that more waits")
		}
	}
}

// TestFramesComeBackLate: a link that ends although its sends do not complete gives
// frames back after their memory.
func TestFramesComeBackLate(t *testing.T) {
	a := &access{feed: newFeed(make([]byte, feedMem(feedMTU)), feedMTU)}
	a.feed.reset(func() {})
	b := <-a.feed.free
	b.sizes[0] = 1000
	b.fill(1)
	a.feed.current = b
	ref, ok := a.Map(b.frames[0])
	if !ok {
		t.Fatal("a frame of the feed is not lent")
	}
	a.feed = nil // as Deregister leaves it
	a.Unmap(ref)
}

// sink is a link that has frames lent, as ipoib.Link has, up to so many.
type sink struct {
	al   *access
	refs []uint64
	room int
}

func (k *sink) SendBatch(_ mono.Time, frames [][]byte, _ []netip.Addr) int {
	for i, f := range frames {
		if len(k.refs) == k.room {
			return i
		}
		if ref, ok := k.al.Map(f); ok {
			k.refs = append(k.refs, ref)
		}
	}
	return len(frames)
}

// pollStack is a device that a lane polls: it has the packet next, once.
type pollStack struct {
	ipoib.Backend
	next []byte
}

func (s *pollStack) TryReadBatch(bufs [][]byte, sizes []int, hops []netip.Addr, offset int) (int, bool, error) {
	if s.next == nil {
		return 0, false, nil
	}
	sizes[0] = copy(bufs[0][offset:], s.next)
	s.next = nil
	return 1, false, nil
}

func (s *pollStack) Control(f func(fd int) error) error { return f(-1) }

// idle is the number of free batches.
func (f *feed) idle() int {
	if f.warm != nil {
		return len(f.free) + 1
	}
	return len(f.free)
}

// TestFeedStaysWarm: of a back end that the lane reads by itself, one batch after the other goes through the same
// memory, which is in the processor's cache.
func TestFeedStaysWarm(t *testing.T) {
	a := &access{feed: newFeed(make([]byte, feedMem(feedMTU)), feedMTU)}
	f, from := a.feed, &pollStack{}
	f.reset(func() {})
	f.from = from
	var first uint64
	for i := range 3 * feedBatches {
		from.next = make([]byte, 1000)
		link := &sink{al: a, room: 1}
		f.readable = true
		f.send(1, link)
		if len(link.refs) != 1 || f.idle() != feedBatches-1 {
			t.Fatalf("%d frames lent, %d batches idle", len(link.refs), f.idle())
		}
		if i == 0 {
			first = link.refs[0]
		} else if link.refs[0] != first {
			t.Fatalf("frame %d is at %d, the first was at %d", i, link.refs[0], first)
		}
		a.Unmap(link.refs[0])
	}
}

// TestLentFramesStay: what is lent is read over by nothing, another back end included, until it
// comes back, and then is room again.
func TestLentFramesStay(t *testing.T) {
	a := &access{feed: newFeed(make([]byte, feedMem(feedMTU)), feedMTU)}
	f, from, link := a.feed, &endless{}, &sink{al: a, room: 3*feedPackets + 7}
	f.reset(func() {})
	f.from, f.readable = from, true
	for range feedBatches {
		f.send(1, link)
	}
	if len(link.refs) != link.room || !f.held || from.reads != feedBatches {
		t.Fatalf("%d frames lent of %d, %d reads, held: %v", len(link.refs), link.room, from.reads, f.held)
	}
	seen := map[uint64]bool{}
	for _, r := range link.refs {
		if seen[r] || r%uint64(feedBuffer(feedMTU)) != 0 || r >= uint64(feedMem(feedMTU)) {
			t.Fatalf("frame %d is lent twice, or none", r)
		}
		seen[r] = true
	}
	f.reset(func() {})
	if f.idle() != 0 {
		t.Fatalf("%d batches are free while all have frames lent", f.idle())
	}
	f.from, f.readable = from, true
	if f.send(1, link); from.reads != feedBatches {
		t.Fatal("read into frames that are lent")
	}
	for i, r := range link.refs {
		a.Unmap(r)
		if want := (i + 1) / feedPackets; i < 3*feedPackets && f.idle() != want {
			t.Fatalf("%d batches free after %d frames came back", f.idle(), i+1)
		}
	}
	if f.idle() != feedBatches {
		t.Fatalf("%d batches free", f.idle())
	}
	link.refs = nil
	if f.send(1, link); !f.held || len(link.refs) != link.room {
		t.Fatalf("%d frames lent by the next back end", len(link.refs))
	}
}

// TestFeedKeepsSome: frames of connections that are not acknowledged keep some batches, not all: of the others nothing
// is lent, so that packets go on.
func TestFeedKeepsSome(t *testing.T) {
	f := newFeed(make([]byte, feedMem(connected.MTU)), connected.MTU)
	f.reset(func() {})
	var lent []uint64
	a := &access{feed: f}
	one := func() {
		t.Helper()
		select {
		case f.current = <-f.free:
		default:
			t.Fatal("no batch is free")
		}
		b := f.current
		b.sizes[0], b.sizes[1] = 3000, 3000
		b.fill(2)
		f.lending = 0
		for _, frame := range b.frames[:2] {
			if ref, ok := a.Map(frame); ok {
				lent = append(lent, ref)
			}
		}
		f.current, b.sent = nil, true
		f.recycle(b)
	}
	for range 20 {
		one()
	}
	if len(lent) != 2*longLent || f.kept != longLent || len(f.free) != longBatches-longLent {
		t.Errorf("%d frames of %d batches are lent, %d are free", len(lent), f.kept, len(f.free))
	}
	f.reset(func() {}) // another device: what is lent stays so
	for _, ref := range lent {
		a.Unmap(ref)
	}
	if lent = nil; f.kept != 0 || len(f.free) != longBatches {
		t.Errorf("%d batches are kept, %d free", f.kept, len(f.free))
	}
	if one(); len(lent) != 2 {
		t.Errorf("%d frames are lent", len(lent))
	}
}
