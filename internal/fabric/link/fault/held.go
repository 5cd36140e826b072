// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"container/heap"
	"math"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// held is a delayed packet: a burst of one packet with its own copy of path and payload.
type held struct {
	wait
	run     pkt.Burst
	path    ib.Path
	data    [4096]byte
	corrupt bool
	bit     uint32
}

// hold copies a packet into the queue of held packets.
func (s *Stage) hold(now mono.Time, r *pkt.Burst, v *verdict, b *mem.Batch) mem.Result {
	h := s.spare(r)
	if h == nil {
		v.by.Overflow++
		return mem.OK
	}
	data := h.data[:r.Data.Len]
	s.one[0] = data
	if len(data) > 0 && b.Gather(s.one[:], &r.Data, 0) != mem.OK {
		return mem.SourceFault
	}
	s.free = s.free[:len(s.free)-1] // not before Gather, which may raise a memory fault
	h.run, h.path = *r, *r.Path
	h.run.Path = &h.path
	h.run.Data = mem.BytesPayload(data)
	h.due, h.corrupt, h.bit, h.pass = now.Add(v.hold), v.corrupt, v.bit, 0
	if v.pass > 0 {
		h.pass = s.sent + v.pass
		s.next = min(s.next, h.pass)
	}
	s.seq++
	h.seq = s.seq
	heap.Push(&s.held, h)
	return mem.OK
}

// spare returns the packet at the end of the free list, which it stays in; nil
// where there is none, or r is too large.
func (s *Stage) spare(r *pkt.Burst) *held {
	if r.Data.Len > len(held{}.data) {
		return nil
	}
	if len(s.free) == 0 {
		if s.count == MaxHeld {
			return nil
		}
		s.count++
		s.free = append(s.free, new(held))
	}
	return s.free[len(s.free)-1]
}

func (s *Stage) release(now mono.Time, h *held) {
	if h.corrupt {
		s.link.SendCorrupt(now, &h.run, s.batch, h.bit)
	} else {
		s.link.Send(now, &h.run, s.batch)
	}
	s.free = append(s.free, h)
}

// passed counts n packets that went without delay and releases those that
// have been overtaken by enough of them.
func (s *Stage) passed(now mono.Time, n uint64) {
	if s.sent += n; s.sent < s.next {
		return
	}
	s.next = math.MaxUint64
	for i := 0; i < len(s.held); {
		h := s.held[i]
		if h.pass == 0 || h.pass > s.sent {
			if h.pass != 0 {
				s.next = min(s.next, h.pass)
			}
			i++
			continue
		}
		heap.Remove(&s.held, i)
		s.release(now, h)
		// The packets before i may have changed.
		i = 0
	}
}

// wait is how long something is held.
type wait struct {
	due  mono.Time
	seq  uint64 // for a stable order
	pass uint64 // released once this many others were sent; 0: no bound
}

func (w *wait) waits() *wait { return w }

// waitHeap orders held packets by release time.
type waitHeap[T interface{ waits() *wait }] []T

func (h waitHeap[T]) Len() int { return len(h) }
func (h waitHeap[T]) Less(i, j int) bool {
	a, b := h[i].waits(), h[j].waits()
	return a.due < b.due || a.due == b.due && a.seq < b.seq
}
func (h waitHeap[T]) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *waitHeap[T]) Push(x any) { *h = append(*h, x.(T)) }

// Pop implements heap.Interface.
func (h *waitHeap[T]) Pop() any {
	old := *h
	p := old[len(old)-1]
	var none T
	old[len(old)-1] = none
	*h = old[:len(old)-1]
	return p
}
