// SPDX-License-Identifier: Apache-2.0

package udpsock

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Message is struct mmsghdr of sendmmsg(2) and recvmmsg(2).
type Message struct {
	Hdr unix.Msghdr
	N   uint32 // bytes sent or received
}

// Send is sendmmsg: it sends messages and returns how many were sent; the error is that of the first
// message and means that none was sent. It does not block. m must not be empty. The memory that its
// headers point to belongs to the caller and must have the stated lengths.
func Send(fd int, m []Message) (int, unix.Errno) {
	// Safe: m is not empty (callers check), is kept alive by the argument for
	// the length of the call, and the kernel reads len(m) headers. The pointers
	// in them are typed Go pointers to memory that they keep alive and the
	// collector does not move.
	n, _, e := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

// Recv is recvmmsg: it receives up to len(m) messages and does not block.
func Recv(fd int, m []Message) (int, unix.Errno) {
	// Safe: as in Send; the kernel writes to the headers and, within the
	// lengths they state, to the caller's receive, name and control buffers.
	n, _, e := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)),
		unix.MSG_DONTWAIT, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}
