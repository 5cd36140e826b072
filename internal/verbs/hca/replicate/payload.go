// SPDX-License-Identifier: Apache-2.0

package replicate

import (
	"sync/atomic"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// MaxPayload is the largest payload of a packet.
const MaxPayload = 4096

// Packet is a multicast packet in the payload store, with what is replicated
// for each of its copies. All but the reference count is constant until the
// count returns to zero.
type Packet struct {
	// Run is the packet as each of its queue pairs handles it, but for the
	// destination, which the descriptor names: P_Key, Q_Key, source queue pair,
	// immediate data, opcode, how it came, and the payload: its bytes stand
	// behind the 40 that precede it in every receive buffer. It is read-only.
	Run   pkt.Burst
	Class Class

	// refs is the payload reference count: 1 when the payload is stored, one
	// more per copy injected (but for a marked last one), one less per copy read
	// out.
	refs  atomic.Int32
	store *store
	next  *Packet // in the free list
	path  ib.Path
	buf   [wire.GRHLen + MaxPayload]byte
}

// Payload returns the payload; it is valid until the Release of the copy.
func (p *Packet) Payload() []byte { return p.Run.Data.Bytes }

// fill makes the packet that of r; its payload is in place.
func (p *Packet) fill(r *pkt.Burst) {
	n := r.Data.Len
	p.path = *r.Path
	p.Run = pkt.Burst{Headers: r.Headers, Count: 1, MTU: uint32(n), Path: &p.path, IPv4: r.IPv4,
		Data: mem.BytesPayload(p.buf[wire.GRHLen : wire.GRHLen+n]), Whole: p.buf[:wire.GRHLen+n]}
	p.Run.PutArea(p.buf[:wire.GRHLen])
	p.Class = Classify(p.Payload())
}

// Release counts one copy as read, on any lane; at zero the
// payload's place is free.
func (p *Packet) Release() {
	switch n := p.refs.Add(-1); {
	case n == 0:
		p.store.put(p)
	case n < 0:
		panic("replicate: a payload was released more often than it was held")
	}
}

// store is the payload store. One lane allocates from it, all release.
type store struct {
	limit int
	made  int
	out   atomic.Int64
	taken *Packet // free ones only the owner sees
	given atomic.Pointer[Packet]
}

// get returns a free packet with a count of 1, nil at the limit.
func (s *store) get() *Packet {
	if s.taken == nil {
		// Taking the whole list at once leaves no room for the ABA problem.
		s.taken = s.given.Swap(nil)
	}
	p := s.taken
	switch {
	case p != nil:
		s.taken = p.next
	case s.made < s.limit:
		p = &Packet{store: s}
		s.made++
	default:
		return nil
	}
	p.next = nil
	p.refs.Store(1)
	s.out.Add(1)
	return p
}

func (s *store) put(p *Packet) {
	for {
		head := s.given.Load()
		p.next = head
		if s.given.CompareAndSwap(head, p) {
			break
		}
	}
	s.out.Add(-1) // last: what is not counted can be taken
}

func (s *store) used() int { return int(s.out.Load()) }

// fifo is a bounded first-in first-out queue.
type fifo[T any] struct {
	ring       []T // its length a power of two
	limit      uint32
	head, tail uint32 // free-running
}

func newFIFO[T any](n int) fifo[T] {
	size := 1
	for size < n {
		size *= 2
	}
	return fifo[T]{ring: make([]T, size), limit: uint32(n)}
}

func (f *fifo[T]) len() int  { return int(f.tail - f.head) }
func (f *fifo[T]) room() int { return int(f.limit) - f.len() }

// at returns a place in the ring.
func (f *fifo[T]) at(i uint32) *T { return &f.ring[int(i)&(len(f.ring)-1)] }

// push appends an entry, which the caller fills in.
func (f *fifo[T]) push() *T {
	if f.tail-f.head >= f.limit {
		panic("replicate: a queue with credits overran")
	}
	f.tail++
	return f.at(f.tail - 1)
}

// peek returns entry number i, the oldest being 0.
func (f *fifo[T]) peek(i int) *T { return f.at(f.head + uint32(i)) }

func (f *fifo[T]) front() *T { return f.at(f.head) }

func (f *fifo[T]) pop() { f.head++ }
