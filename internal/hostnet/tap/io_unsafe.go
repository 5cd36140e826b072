// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls below do not tell the scheduler: the descriptor does not block, and a lane has
// a thread to itself while it polls.

// rawRead reads once into b, which is not empty.
func rawRead(fd uintptr, b []byte) (int, syscall.Errno) {
	// b is alive during the call, as an argument whose address the expression takes, and the
	// kernel writes no more than len(b) octets.
	n, _, err := syscall.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), err
}

// rawWritev writes the pieces of iov, which are not empty, once.
func rawWritev(fd uintptr, iov []unix.Iovec) syscall.Errno {
	// iov is alive during the call for the same reason, and so is what it refers to: Iovec.Base is a pointer.
	_, _, err := syscall.RawSyscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
	return err
}

// iovec is a piece that is not empty.
func iovec(p []byte) (v unix.Iovec) {
	v.Base = unsafe.SliceData(p) // as long as v is alive, p's memory is
	v.SetLen(len(p))
	return v
}
