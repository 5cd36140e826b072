// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"sync/atomic"
	"unsafe"
)

// atomicWord returns b, 8 bytes of mapped memory, as a word, or nil where they
// are missing or misaligned in this process.
//
// Safe: the length is checked, the alignment is checked, the memory holds no Go
// pointers, and it stays mapped as MemTable promises.
func atomicWord(b []byte) *atomic.Uint64 {
	if len(b) != 8 || uintptr(unsafe.Pointer(&b[0]))%8 != 0 {
		return nil
	}
	return (*atomic.Uint64)(unsafe.Pointer(&b[0]))
}

// Owns reports whether p, the address of a memory fault, lies in memory that
// is mapped for this table.
func (t *MemTable) Owns(p uintptr) bool {
	for _, r := range t.snap.Load().regions {
		// Safe: the address is only compared.
		if at := uintptr(unsafe.Pointer(&r.mapping[0])); p >= at && p-at < uintptr(len(r.mapping)) {
			return true
		}
	}
	return false
}
