// SPDX-License-Identifier: Apache-2.0

package rocefront

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// pageSize is the size of the pages of REG_USER_MR: the RFC has no field for it.
const pageSize = 4096

var le = binary.LittleEndian

// region is a range of guest memory. Guests have several: there is a hole below 4 GiB.
type region struct {
	guest uint64 // guest-physical address of the first octet
	user  uint64 // address in the front-end that vhost-user's SET_VRING_ADDR counts in
	size  uint64
	at    uint64 // offset in the memory file
	used  uint64 // octets that are allocated
}

// The low region has the rings, the high one has the buffers of work requests. User addresses are of no process: only
// the difference to the start of a region has a meaning.
const (
	lowGuest, lowUser, lowSize    = 1 << 20, 0x7100_0000_0000, 16 << 20
	highGuest, highUser, highSize = 4 << 30, 0x7200_0000_0000, 112 << 20
)

// Memory is the memory of a guest, shared with the device by a file. The contents are accessed by a mapping, the
// indices of rings by reads and writes of the file: a system call orders them after what was written before.
type Memory struct {
	file    *os.File
	mapping []byte
	regions []region
}

// newMemory makes the memory. A memory file that cannot shrink is what emulators share.
func newMemory() (*Memory, error) {
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make guest memory: %w", err)
	}
	m := &Memory{file: os.NewFile(uintptr(fd), "guest memory"), regions: []region{
		{guest: lowGuest, user: lowUser, size: lowSize},
		{guest: highGuest, user: highUser, size: highSize, at: lowSize},
	}}
	err = m.file.Truncate(lowSize + highSize)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	if err == nil {
		m.mapping, err = unix.Mmap(fd, 0, lowSize+highSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		m.file.Close()
		return nil, fmt.Errorf("map guest memory: %w", err)
	}
	return m, nil
}

func (m *Memory) close() error {
	err := unix.Munmap(m.mapping)
	if err2 := m.file.Close(); err == nil {
		err = err2
	}
	return err
}

// offset returns where a guest-physical range is in the file. A range outside the memory is a fault of the caller.
func (m *Memory) offset(guest, size uint64) uint64 {
	for _, r := range m.regions {
		if guest >= r.guest && guest-r.guest <= r.size && size <= r.size-(guest-r.guest) {
			return r.at + guest - r.guest
		}
	}
	panic(fmt.Sprintf("rocefront: %#x+%d is no guest memory", guest, size))
}

// Bytes returns the octets at a guest-physical address.
func (m *Memory) Bytes(guest uint64, size int) []byte {
	at := m.offset(guest, uint64(size))
	return m.mapping[at : at+uint64(size) : at+uint64(size)]
}

// user returns the front-end's address of a guest-physical one.
func (m *Memory) user(guest uint64) uint64 {
	for _, r := range m.regions {
		if guest >= r.guest && guest-r.guest < r.size {
			return r.user + guest - r.guest
		}
	}
	panic(fmt.Sprintf("rocefront: %#x is no guest memory", guest))
}

// alloc returns the address of zeroed memory. align is a power of two. Memory is not freed before the device is closed.
func (r *region) alloc(size int, align uint64) uint64 {
	at := (r.used + align - 1) &^ (align - 1)
	if at+uint64(size) > r.size {
		panic(fmt.Sprintf("rocefront: guest memory at %#x has no %d octets left", r.guest, size))
	}
	r.used = at + uint64(size)
	return r.guest + at
}

func (m *Memory) ringMemory(size int) uint64 { return m.regions[0].alloc(size, 64) }

// Alloc returns the guest-physical address of size zeroed octets at the start of a page.
func (m *Memory) Alloc(size int) uint64 { return m.regions[1].alloc(size, pageSize) }

// Pages returns n zeroed pages in descending order of their addresses, so that no two that follow each other in the
// list are adjacent upwards.
func (m *Memory) Pages(n int) []uint64 {
	base := m.Alloc(n * pageSize)
	list := make([]uint64, n)
	for i := range list {
		list[i] = base + uint64(n-1-i)*pageSize
	}
	return list
}

// load16 reads a 16-bit field that the device writes.
func (m *Memory) load16(guest uint64) (uint16, error) {
	var b [2]byte
	_, err := m.file.ReadAt(b[:], int64(m.offset(guest, 2)))
	return le.Uint16(b[:]), err
}

// store16 writes a 16-bit field that the device reads.
func (m *Memory) store16(guest uint64, v uint16) error {
	_, err := m.file.WriteAt(le.AppendUint16(nil, v), int64(m.offset(guest, 2)))
	return err
}
