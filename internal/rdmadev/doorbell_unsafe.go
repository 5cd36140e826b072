// SPDX-License-Identifier: Apache-2.0

package rdmadev

import (
	"math/bits"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Offsets in the doorbell area (docs/notes/abi.md, section 3).
const (
	bellSleeping = 0
	bellSummary  = 64
	bellBits     = 128
	maxBells     = 1 << 17
)

// doorbell is the shared area in which a client marks the rings it has posted
// to. The client may write anything at any time: a bit is a hint that a ring
// is worth looking at, no more.
type doorbell struct {
	sleeping *uint32
	summary  *uint64
	words    []uint64
	block    int // words that one bit of the summary stands for
}

// bellSize returns how long the area for n rings is.
func bellSize(n uint32) uint64 { return bellBits + uint64(n)/8 }

// newDoorbell lays a doorbell over b, which must be bellSize(n) bytes of
// shared memory that stays mapped as long as the doorbell is used.
func newDoorbell(b []byte, n uint32) (*doorbell, error) {
	if n == 0 || n%64 != 0 || n > maxBells || uint64(len(b)) < bellSize(n) || uintptr(unsafe.Pointer(&b[0]))%64 != 0 {
		return nil, syscall.EINVAL
	}
	words := int(n / 64)
	return &doorbell{
		// Safe: the length and the 64-byte alignment were checked above, and
		// every field lies at a multiple of its size within b.
		sleeping: (*uint32)(unsafe.Pointer(&b[bellSleeping])),
		summary:  (*uint64)(unsafe.Pointer(&b[bellSummary])),
		words:    unsafe.Slice((*uint64)(unsafe.Pointer(&b[bellBits])), words),
		block:    (words + 63) / 64,
	}, nil
}

// rung reports whether any ring is marked.
func (d *doorbell) rung() bool { return atomic.LoadUint64(d.summary) != 0 }

// take calls ring for every marked ring, whose mark is taken away first.
func (d *doorbell) take(ring func(i uint32)) {
	for s := atomic.SwapUint64(d.summary, 0); s != 0; s &= s - 1 {
		first := bits.TrailingZeros64(s) * d.block
		for w := first; w < first+d.block && w < len(d.words); w++ {
			if atomic.LoadUint64(&d.words[w]) == 0 {
				continue
			}
			for v := atomic.SwapUint64(&d.words[w], 0); v != 0; v &= v - 1 {
				ring(uint32(w*64 + bits.TrailingZeros64(v)))
			}
		}
	}
}

// sleep asks for a kick. It reports false, and takes the request back, where a
// ring was marked meanwhile: the store, the load behind it and the client's
// mark and load are all sequentially consistent, so one of the two sees the
// other.
func (d *doorbell) sleep() bool {
	atomic.StoreUint32(d.sleeping, 1)
	if d.rung() {
		d.wake()
		return false
	}
	return true
}

func (d *doorbell) wake() { atomic.StoreUint32(d.sleeping, 0) }

// armWord is the word in which a client says which completion it wants to be
// told about.
type armWord struct{ w *uint32 }

// newArmWord lays an arm word over b, four bytes of shared memory.
func newArmWord(b []byte) (armWord, error) {
	if len(b) != 4 || uintptr(unsafe.Pointer(&b[0]))%4 != 0 {
		return armWord{}, syscall.EINVAL
	}
	// Safe: length and alignment were checked.
	return armWord{(*uint32)(unsafe.Pointer(&b[0]))}, nil
}

func (a armWord) load() uint32 { return atomic.LoadUint32(a.w) }

// take disarms and returns what was armed.
func (a armWord) take() uint32 { return atomic.SwapUint32(a.w, 0) }
