// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64 || riscv64 || loong64

package virtio

import (
	"sync/atomic"
	"unsafe"
)

// This file is the only one of the package that touches shared memory by
// pointer. The build constraint keeps big-endian hosts out: the 16-bit fields
// are cut out of little-endian words.
//
// Safety of all of it: indexing the slice proves the first and the last byte
// of the word to be inside; setup proved the alignment (aligned, below); the
// memory holds no Go pointers; the slice is used only while its mapping lives,
// which the lane's barrier guarantees (vhost.MemTable).

// aligned reports whether b starts at a multiple of n, in this process.
func aligned(b []byte, n uintptr) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%n == 0
}

// load32 loads the 4-byte aligned word at b[off].
func load32(b []byte, off uint32) uint32 {
	_ = b[off+3]
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[off])))
}

// store32 stores the 4-byte aligned word at b[off]; a full barrier before any
// later atomic load.
func store32(b []byte, off, v uint32) {
	_ = b[off+3]
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[off])), v)
}

// swap32 exchanges the 4-byte aligned word at b[off].
func swap32(b []byte, off, v uint32) uint32 {
	_ = b[off+3]
	return atomic.SwapUint32((*uint32)(unsafe.Pointer(&b[off])), v)
}

// load64 loads the 8-byte aligned word at b[off].
func load64(b []byte, off uint32) uint64 {
	_ = b[off+7]
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[off])))
}

// swap64 exchanges the 8-byte aligned word at b[off].
func swap64(b []byte, off uint32, v uint64) uint64 {
	_ = b[off+7]
	return atomic.SwapUint64((*uint64)(unsafe.Pointer(&b[off])), v)
}

// load16 loads the 2-byte aligned field at b[off] atomically, from the aligned
// word around it. The word may reach two bytes before or beyond the slice but
// never leaves its page, so it is mapped; the neighbours are not looked at.
func load16(b []byte, off uint32) uint16 {
	_ = b[off+1]
	p := unsafe.Pointer(&b[off])
	half := uintptr(p) & 2
	w := atomic.LoadUint32((*uint32)(unsafe.Add(p, -int(half))))
	return uint16(w >> (8 * half))
}
