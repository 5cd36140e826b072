// SPDX-License-Identifier: Apache-2.0

// Package virtiotest is the driver's side of virtqueues, for tests: memory that can be announced to a
// device, and rings in it.
//
// What comes in: elements of a test for a device; what goes out: the used elements. Tests of virtio,
// vhost and rdmadev call it. It must never be imported except by tests.
package virtiotest

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Memory is a sealed memfd, mapped, of which pieces are handed out. Like the
// shim's, its guest physical addresses are the addresses of the mapping, unless
// the test moves Base.
type Memory struct {
	FD    int
	Base  uint64 // GPA of the first byte
	Bytes []byte

	mu   sync.Mutex
	next uint64
}

// NewMemory returns size bytes that live until the end of the test.
func NewMemory(t testing.TB, size int) *Memory {
	t.Helper()
	fd, err := unix.MemfdCreate("virtiotest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatalf("memfd: %v", err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatalf("ftruncate: %v", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		t.Fatalf("seal: %v", err)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatalf("mmap: %v", err)
	}
	m := &Memory{FD: fd, Base: uint64(address(b)), Bytes: b}
	t.Cleanup(func() {
		unix.Munmap(b)
		unix.Close(fd)
	})
	return m
}

// Alloc returns the GPA of n fresh zero bytes; it panics where the memory is
// used up, which is a mistake of the test.
func (m *Memory) Alloc(n, align int) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := (m.next + uint64(align) - 1) &^ (uint64(align) - 1)
	if a+uint64(n) > uint64(len(m.Bytes)) {
		panic("virtiotest: memory used up")
	}
	m.next = a + uint64(n)
	return m.Base + a
}

// At returns the n bytes at gpa, which must be inside.
func (m *Memory) At(gpa uint64, n int) []byte { return m.Bytes[gpa-m.Base:][:n:n] }

// Prefix makes Memory a virtio.Memory.
func (m *Memory) Prefix(gpa, n uint64) []byte {
	size := uint64(len(m.Bytes))
	if gpa < m.Base || gpa-m.Base >= size {
		return nil
	}
	off := gpa - m.Base
	return m.Bytes[off:][:min(n, size-off)]
}

// StoreWord stores an aligned 32-bit word atomically.
func (m *Memory) StoreWord(gpa uint64, v uint32) { word(m.At(gpa, 4), 0).Store(v) }

// LoadWord loads an aligned 32-bit word atomically.
func (m *Memory) LoadWord(gpa uint64) uint32 { return word(m.At(gpa, 4), 0).Load() }
