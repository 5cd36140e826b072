// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// writev is writev(2) of parts, none of which is empty. It keeps its vector between
// calls, unlike that of package unix.
func (q *queue) writev() error {
	q.iov = q.iov[:0]
	for _, p := range q.parts {
		v := unix.Iovec{Base: &p[0]}
		v.SetLen(len(p))
		q.iov = append(q.iov, v)
	}
	for {
		// Safe: the vector is not empty (the header is always there), it and, by the typed
		// pointers in it, the parts are kept alive by q during the call, and the kernel
		// only reads what the lengths say.
		_, _, e := unix.Syscall(unix.SYS_WRITEV, uintptr(q.fd), uintptr(unsafe.Pointer(&q.iov[0])), uintptr(len(q.iov)))
		switch e {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return e
		}
	}
}
