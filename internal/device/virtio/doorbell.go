// SPDX-License-Identifier: Apache-2.0

package virtio

import (
	"math/bits"

	"weft/internal/proto/abi"
)

// Doorbell is the node's side of a session's doorbell area (docs/notes/abi.md,
// section 3): one bit per ring instead of one eventfd per ring. The lane of
// the session owns it.
type Doorbell struct {
	area  []byte
	words uint32
	block uint32 // bitmap words per summary bit
}

// DoorbellSize returns the bytes of a doorbell area for nbits rings.
func DoorbellSize(nbits uint32) uint64 { return abi.DoorbellSize + uint64(nbits)/64*8 }

// NewDoorbell finds the doorbell area at gpa. nbits must be a multiple of 64.
// An error is a Fault.
func NewDoorbell(m Memory, gpa uint64, nbits uint32) (*Doorbell, error) {
	if nbits == 0 || nbits%64 != 0 || nbits > maxDoorbell {
		return nil, FaultSize
	}
	if gpa%64 != 0 {
		return nil, FaultAlign
	}
	area := m.Prefix(gpa, DoorbellSize(nbits))
	if uint64(len(area)) != DoorbellSize(nbits) {
		return nil, FaultRingMemory
	}
	if !aligned(area, 8) {
		return nil, FaultAlign
	}
	words := nbits / 64
	return &Doorbell{area: area[:len(area):len(area)], words: words, block: (words + 63) / 64}, nil
}

// maxDoorbell bounds nbits: three kinds of rings and the Ethernet ones.
const maxDoorbell = 1 << 16

// Rings appends the numbers of all rings with a pending bell to dst and clears the bells. Any number
// below nbits may be returned, each once, also for a ring without elements. It allocates only to grow
// dst.
func (d *Doorbell) Rings(dst []uint32) []uint32 {
	if load64(d.area, abi.DoorbellSummary) == 0 {
		return dst
	}
	for sum := swap64(d.area, abi.DoorbellSummary, 0); sum != 0; sum &= sum - 1 {
		first := uint32(bits.TrailingZeros64(sum)) * d.block
		for w := first; w < min(first+d.block, d.words); w++ {
			off := abi.DoorbellBits + 8*w
			if load64(d.area, off) == 0 {
				continue
			}
			for m := swap64(d.area, off, 0); m != 0; m &= m - 1 {
				dst = append(dst, 64*w+uint32(bits.TrailingZeros64(m)))
			}
		}
	}
	return dst
}

// Sleep makes the program write the kick eventfd from now on, and reports whether a bell is pending
// already: then the lane must not sleep.
func (d *Doorbell) Sleep() (pending bool) {
	store32(d.area, abi.DoorbellSleeping, 1)
	return load64(d.area, abi.DoorbellSummary) != 0
}

// Wake suppresses kicks.
func (d *Doorbell) Wake() { store32(d.area, abi.DoorbellSleeping, 0) }

// Word is a 32-bit word of shared memory, such as the arm word of a completion
// queue.
type Word struct{ b []byte }

// NewWord finds the word at gpa, a multiple of 4. An error is a Fault.
func NewWord(m Memory, gpa uint64) (Word, error) {
	b := m.Prefix(gpa, 4)
	if len(b) != 4 {
		return Word{}, FaultAddress
	}
	if gpa%4 != 0 || !aligned(b, 4) {
		return Word{}, FaultAlign
	}
	return Word{b[:4:4]}, nil
}

// Load reads the word; a full barrier against earlier atomic stores.
func (w Word) Load() uint32 { return load32(w.b, 0) }

// Swap exchanges the word.
func (w Word) Swap(v uint32) uint32 { return swap32(w.b, 0, v) }
