// SPDX-License-Identifier: Apache-2.0

package virtiotest

import (
	"sync/atomic"
	"unsafe"
)

// The words below lie in memory that Memory mapped and that the test keeps; the
// slice index proves them inside, Ring and Doorbell align them.

// address returns where b lies.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// word is the aligned 32-bit word of b[off:].
func word(b []byte, off int) *atomic.Uint32 {
	_ = b[off+3]
	return (*atomic.Uint32)(unsafe.Pointer(&b[off]))
}

// long is the aligned 64-bit word of b[off:].
func long(b []byte, off int) *atomic.Uint64 {
	_ = b[off+7]
	return (*atomic.Uint64)(unsafe.Pointer(&b[off]))
}
