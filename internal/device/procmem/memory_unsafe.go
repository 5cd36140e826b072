// SPDX-License-Identifier: Apache-2.0

package procmem

import (
	"sync/atomic"
	"unsafe"

	"weft/internal/proto/mem"
)

// word returns the 8 bytes of v as a word for the processor's atomics, or nil if they are not aligned:
// a client's address may be aligned while its mapping here is not.
func word(v []byte) *uint64 {
	// Safe: v is a live slice, its length is checked, and alignment is checked
	// on the pointer itself. The result lives no longer than v.
	p := unsafe.Pointer(unsafe.SliceData(v))
	if len(v) != 8 || uintptr(p)&7 != 0 {
		return nil
	}
	return (*uint64)(p)
}

func compareSwap(v []byte, compare, swap uint64) (uint64, error) {
	p := word(v)
	if p == nil {
		return 0, mem.ErrFault
	}
	for {
		old := atomic.LoadUint64(p)
		if old != compare || atomic.CompareAndSwapUint64(p, compare, swap) {
			return old, nil
		}
	}
}

func fetchAdd(v []byte, add uint64) (uint64, error) {
	p := word(v)
	if p == nil {
		return 0, mem.ErrFault
	}
	return atomic.AddUint64(p, add) - add, nil
}

// address returns where mapped memory lies.
func address(b []byte) uint64 {
	// Safe: the pointer is only looked at as a number, of memory that the
	// collector does not move.
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
