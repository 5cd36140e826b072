// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"math"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// held is a delayed packet: a burst of one packet with its own copy of path and payload.
type held struct {
	timer   mono.Timer[*held]
	pass    uint64 // released once this many others were sent; 0: no bound
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
	h.corrupt, h.bit, h.pass = v.corrupt, v.bit, 0
	if v.pass > 0 {
		h.pass = s.sent + v.pass
		s.next = min(s.next, h.pass)
	}
	s.held.Set(&h.timer, now.Add(v.hold))
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
		h := new(held)
		h.timer.Value = h
		s.free = append(s.free, h)
	}
	return s.free[len(s.free)-1]
}

func (s *Stage) release(now mono.Time, h *held) {
	s.free = append(s.free, h) // also where a memory fault unwinds what follows, which takes nothing from the list
	if h.corrupt {
		s.link.SendCorrupt(now, &h.run, s.batch, h.bit)
	} else {
		s.link.Send(now, &h.run, s.batch)
	}
}

// Release sends all packets that are held, in the order of their times.
func (s *Stage) Release(now mono.Time) {
	for {
		h, ok := s.held.PopDue(s.held.Next())
		if !ok {
			return
		}
		s.release(now, h)
	}
}

// passed counts n packets that went without delay and releases those that
// have been overtaken by enough of them.
func (s *Stage) passed(now mono.Time, n uint64) {
	if s.sent += n; s.sent < s.next {
		return
	}
	for {
		var h *held
		h, s.next = overtaken(&s.held, s.sent, func(h *held) uint64 { return h.pass })
		if h == nil {
			return
		}
		s.held.Stop(&h.timer)
		s.release(now, h)
	}
}

// overtaken returns a held packet that enough of the sent packets have overtaken, or nil and the number of sent
// packets at which one will be. pass returns that number of a packet, 0 if it has none.
func overtaken[T any](held *mono.Heap[*T], sent uint64, pass func(*T) uint64) (found *T, next uint64) {
	next = math.MaxUint64
	held.All(func(h *T) {
		switch p := pass(h); {
		case p == 0:
		case p > sent:
			next = min(next, p)
		case found == nil:
			found = h
		}
	})
	return found, next
}
