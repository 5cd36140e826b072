// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"container/heap"
	"math"

	"weft/internal/ib"
	"weft/internal/mem"
	"weft/internal/mono"
	"weft/internal/pkt"
)

// held is a packet that waits: a run of one packet with its own copies.
type held struct {
	run     pkt.Run
	path    ib.Path
	data    [4096]byte
	due     mono.Time
	seq     uint64
	pass    uint64 // goes when Stage.sent has reached this; 0: no matter
	corrupt bool
	bit     uint32
}

// hold takes a copy of a packet.
func (s *Stage) hold(now mono.Time, r *pkt.Run, v *verdict, b *mem.Batch) mem.Result {
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
func (s *Stage) spare(r *pkt.Run) *held {
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
		// Others may have come before i.
		i = 0
	}
}

// heldHeap orders packets by the time they go.
type heldHeap []*held

func (h heldHeap) Len() int { return len(h) }
func (h heldHeap) Less(i, j int) bool {
	return h[i].due < h[j].due || h[i].due == h[j].due && h[i].seq < h[j].seq
}
func (h heldHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *heldHeap) Push(x any) { *h = append(*h, x.(*held)) }

// Pop implements heap.Interface.
func (h *heldHeap) Pop() any {
	old := *h
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return p
}
