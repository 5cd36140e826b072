// SPDX-License-Identifier: Apache-2.0

package replicate

import (
	"sync/atomic"

	"weft/internal/ib"
	"weft/internal/wire"
)

// MaxPayload is the largest payload of a packet.
const MaxPayload = 4096

// Packet is a multicast packet in the payload store, with what is replicated
// for each of its copies. All but the reference count is constant until the
// count returns to zero.
type Packet struct {
	Headers wire.Headers // P_Key, Q_Key, source queue pair, immediate data, opcode
	Path    ib.Path      // how it came: LIDs and GIDs of the sender
	IPv4    bool
	Class   Class

	// refs is the payload reference count: 1 when the payload is stored, one
	// more per copy injected (but for a marked last one), one less per copy read
	// out.
	refs  atomic.Int32
	store *store
	next  *Packet // in the free list
	n     int
	buf   [MaxPayload]byte
}

// Payload returns the payload; it is valid until the Release of the copy.
func (p *Packet) Payload() []byte { return p.buf[:p.n] }

// Release tells that one copy has been read out, on whatever lane; at zero the
// payload's place is free.
func (p *Packet) Release() {
	switch n := p.refs.Add(-1); {
	case n == 0:
		p.store.put(p)
	case n < 0:
		panic("replicate: a payload was released more often than it was held")
	}
}

// store is the payload store. One lane takes from it, all give back.
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
	ring       []T
	head, tail int // free-running
}

func newFIFO[T any](n int) fifo[T] { return fifo[T]{ring: make([]T, n)} }

func (f *fifo[T]) len() int  { return f.tail - f.head }
func (f *fifo[T]) room() int { return len(f.ring) - f.len() }

func (f *fifo[T]) push(v T) {
	if f.room() == 0 {
		panic("replicate: a queue with credits overran")
	}
	f.ring[f.tail%len(f.ring)] = v
	f.tail++
}

func (f *fifo[T]) front() *T { return &f.ring[f.head%len(f.ring)] }

func (f *fifo[T]) pop() {
	var zero T
	*f.front() = zero
	f.head++
}
