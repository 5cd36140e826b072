// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of sendmmsg(2) and recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32 // bytes sent or received
}

// sendmmsg sends messages and returns how many went out; the error is that of
// the first message and means that none did. It does not block.
func sendmmsg(fd int, m []mmsghdr) (int, unix.Errno) {
	// Safe: m is not empty (callers check), is kept alive by the argument for
	// the length of the call, and the kernel reads len(m) headers. The pointers
	// in them are typed Go pointers to memory that the Link keeps alive and the
	// collector does not move.
	n, _, e := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

// recvmmsg receives up to len(m) messages. It does not block.
func recvmmsg(fd int, m []mmsghdr) (int, unix.Errno) {
	// Safe: as in sendmmsg; the kernel writes to the headers and, within the
	// lengths they state, to the Link's receive, name and control buffers.
	n, _, e := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)),
		unix.MSG_DONTWAIT, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}
