// SPDX-License-Identifier: Apache-2.0

package ipif

import (
	"weft/internal/proto/mem"
	"weft/internal/proto/wire"
)

// slotSpace is memory with receive slots for a user that reads datagrams where the network link left them: a
// slot then has the GRH, and refers to the rest. The queue pair places payload as in any memory, after its
// checks; its Batch calls Keep (mem.Keeper). A datagram that was not popped by the end of the turn is copied
// into its slot.
//
// It belongs to the lane of the queue pair that receives into the slots.
type slotSpace struct {
	*mem.Slice
	b      []byte
	first  int      // offset of the slots
	length int      // of each
	refs   [][]byte // by slot: the datagram, nil: it is in the slot
	held   []int    // slots that had a reference in this turn
}

var _ mem.Keeper = (*slotSpace)(nil)

// newSlotSpace returns the space of b with so many slots.
func newSlotSpace(b []byte, first, length, slots int) *slotSpace {
	return &slotSpace{Slice: mem.NewSlice(0, b), b: b, first: first, length: length, refs: make([][]byte, slots),
		held: make([]int, 0, slots)}
}

// keepFrom is the length from which a reference is cheaper than a copy.
const keepFrom = 256

// Keep implements mem.Keeper, for datagrams that begin behind the GRH of a slot and end in it.
func (s *slotSpace) Keep(addr uint64, p []byte) bool {
	if addr < uint64(s.first) || len(p) < keepFrom {
		return false
	}
	at := addr - uint64(s.first)
	i, in := at/uint64(s.length), at%uint64(s.length)
	if i >= uint64(len(s.refs)) || in != wire.GRHLen || wire.GRHLen+len(p) > s.length || len(s.held) == cap(s.held) {
		return false
	}
	s.refs[i] = p
	s.held = append(s.held, int(i))
	return true
}

// pop returns the datagram that the slot at off, in the slots' memory, refers to, and clears the reference; nil
// where there is none.
func (s *slotSpace) pop(off uint32) []byte {
	i := int(off) / s.length
	if i >= len(s.refs) {
		return nil
	}
	p := s.refs[i]
	s.refs[i] = nil
	return p
}

// commit copies datagrams that were not popped into their slots.
func (s *slotSpace) commit() {
	for _, i := range s.held {
		if p := s.pop(uint32(i * s.length)); p != nil {
			copy(s.b[s.first+i*s.length+wire.GRHLen:], p)
		}
	}
	s.held = s.held[:0]
}
