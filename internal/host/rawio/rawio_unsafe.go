// SPDX-License-Identifier: Apache-2.0

// Package rawio is the system calls that move frames: to and from a descriptor that does not block, without notifying
// the scheduler and without allocating. What comes in and goes out is the caller's memory, in pieces. Lanes call it
// through the devices of this storey. A descriptor that blocks, or that another goroutine may close meanwhile, must not
// be used.
package rawio

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Read reads once into b, which is not empty.
func Read(fd uintptr, b []byte) (int, syscall.Errno) {
	// b is alive during the call, as what the conversion in the call's arguments refers to, and the
	// kernel writes no more than len(b) octets.
	n, _, err := syscall.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), err
}

// Vector is pieces to be read into or written from.
type Vector struct{ iov []unix.Iovec }

// Reset empties v.
func (v *Vector) Reset() { v.iov = v.iov[:0] }

// Add adds a piece; an empty one is left out.
func (v *Vector) Add(p []byte) {
	if len(p) > 0 {
		i := unix.Iovec{Base: unsafe.SliceData(p)} // as long as v is alive, p's memory is
		i.SetLen(len(p))
		v.iov = append(v.iov, i)
	}
}

// Write writes the pieces once, as writev(2) does.
func (v *Vector) Write(fd uintptr) syscall.Errno {
	// v.iov is alive during the call, and what its pointers refer to with it.
	_, _, err := syscall.RawSyscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(v.iov))),
		uintptr(len(v.iov)))
	return err
}

// WriteFrame writes head and parts once, as one frame or packet, in place of what v held. A signal does not
// keep it from that.
func (v *Vector) WriteFrame(fd uintptr, head []byte, parts [][]byte) syscall.Errno {
	v.Reset()
	v.Add(head)
	for _, p := range parts {
		v.Add(p)
	}
	for {
		if err := v.Write(fd); err != unix.EINTR {
			return err
		}
	}
}

// Message is what Receive needs, kept from call to call.
type Message struct {
	Vector
	hdr unix.Msghdr
}

// Receive receives one message into the pieces, and what comes with it into control, which is not
// empty and of which oob octets were written. flags are those of recvmsg(2).
func (m *Message) Receive(fd uintptr, control []byte) (n, oob, flags int, err syscall.Errno) {
	m.hdr = unix.Msghdr{Iov: unsafe.SliceData(m.iov), Control: unsafe.SliceData(control)}
	m.hdr.SetIovlen(len(m.iov))
	m.hdr.SetControllen(len(control))
	// m is alive during the call, and with it the typed pointers in hdr and iov; the kernel keeps to their lengths.
	r, _, err := syscall.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&m.hdr)), 0)
	return int(r), int(m.hdr.Controllen), int(m.hdr.Flags), err
}

// EpollWait is epoll_wait(2) for at most ms milliseconds, which must be short: the scheduler does not
// know that the processor is free, except for its preemption signal. events is not empty.
func EpollWait(epfd int, events []unix.EpollEvent, ms int) (int, syscall.Errno) {
	// events is alive during the call; the kernel writes no more than len(events) of them.
	n, _, err := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epfd),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), uintptr(ms), 0, 0)
	return int(n), err
}
