// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
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

// Owns reports whether p, the address of a memory fault, lies in memory that is mapped for this table,
// removed regions included.
func (t *MemTable) Owns(p uintptr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.mapped {
		// Safe: the address is only compared.
		if at := uintptr(unsafe.Pointer(&r.mapping[0])); p >= at && p-at < uintptr(len(r.mapping)) {
			return true
		}
	}
	for _, l := range t.logs {
		if at := uintptr(unsafe.Pointer(&l.mapping[0])); p >= at && p-at < uintptr(len(l.mapping)) {
			return true
		}
	}
	return false
}

// overlay puts empty private pages over a mapping. If the kernel refuses, the mapping stays.
//
// Safe: the range is a mapping of this process made by mapRegion, whole pages, and still ours;
// MAP_FIXED replaces it in one step, so that no other mapping can be placed between.
func overlay(m []byte) {
	unix.MmapPtr(-1, 0, unsafe.Pointer(&m[0]), uintptr(len(m)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED|unix.MAP_NORESERVE)
}

// setBit sets a bit of shared memory that the front-end changes too. Bits of a byte are numbered from
// the lowest.
//
// Safe: the index proves that the byte is inside. The word around it is aligned and in the same page,
// so it is mapped; its other bytes keep their values. Little-endian, as package virtio requires.
func setBit(b []byte, bit uint64) {
	p := unsafe.Pointer(&b[bit/8])
	at := uintptr(p) & 3
	w := (*uint32)(unsafe.Add(p, -int(at)))
	mask := uint32(1) << (8*at + uintptr(bit%8))
	if atomic.LoadUint32(w)&mask == 0 {
		atomic.OrUint32(w, mask)
	}
}
