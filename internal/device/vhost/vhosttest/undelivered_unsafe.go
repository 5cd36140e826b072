// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft/internal/proto/condtest"
)

// Undelivered returns memory with pages that are not delivered until the returned function is called: a
// file system in user space, or a handler of page faults, can do that to any reader.
func Undelivered(t testing.TB, size int) (addr uint64, deliver func()) {
	t.Helper()
	fd, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if e != 0 {
		condtest.Lacks(t, "needs userfaultfd: %v", e)
	}
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	at := uint64(uintptr(unsafe.Pointer(&m[0])))
	const (
		uffdAPI      = 0xc018aa3f // UFFDIO_API
		uffdRegister = 0xc020aa00 // UFFDIO_REGISTER
	)
	// Safe: the kernel reads and writes the words of the request it is given.
	hello := [3]uint64{0xaa, 0, 0}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, fd, uffdAPI, uintptr(unsafe.Pointer(&hello))); e != 0 {
		t.Fatal(e)
	}
	reg := [4]uint64{at, uint64(size), 1, 0} // missing pages
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, fd, uffdRegister, uintptr(unsafe.Pointer(&reg))); e != 0 {
		t.Fatal(e)
	}
	open := true
	deliver = func() {
		if open {
			open = false
			unix.Close(int(fd)) // its end delivers empty pages
		}
	}
	t.Cleanup(func() { deliver(); unix.Munmap(m) })
	return at, deliver
}
