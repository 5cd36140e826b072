// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A write to a full eventfd waits, unless the descriptor is non-blocking, and
// that is a flag which the client shares and may change at any moment. What
// never waits is the signal that the kernel itself gives an eventfd. Native
// asynchronous I/O gives one for each request that completes, so that a read of
// nothing from an empty file, which completes at once, is a notification: one
// system call, as the write is.

// iocb is struct iocb of linux/aio_abi.h.
type iocb struct {
	_      [2]uint64 // data, key, flags of the transfer
	opcode uint16
	_      uint16 // priority
	fd     uint32
	_      [4]uint64 // buffer, length, offset: none
	flags  uint32
	resfd  uint32
}

const (
	iocbPread     = 0      // IOCB_CMD_PREAD
	iocbFlagResFD = 1      // IOCB_FLAG_RESFD: signal resfd at the end
	aioDepth      = 128    // completions kept until they are collected
	ioEventSize   = 4      // of struct io_event, in words
	aioEmptyFile  = "weft" // name of the file, visible in /proc
)

// aio is the process's context for such requests. It lives as long as the
// process does.
var aio = sync.OnceValues(func() (c aioContext, err error) {
	// Safe: io_setup fills in the word it is given, which outlives the call.
	if _, _, e := unix.Syscall(unix.SYS_IO_SETUP, aioDepth, uintptr(unsafe.Pointer(&c.ctx)), 0); e != 0 {
		return c, fmt.Errorf("io_setup: %w", e)
	}
	c.empty, err = unix.MemfdCreate(aioEmptyFile, unix.MFD_CLOEXEC)
	return c, err
})

type aioContext struct {
	ctx   uintptr
	empty int // a file without bytes
}

// signaller notifies by an eventfd, without ever waiting.
type signaller struct {
	aio aioContext
	cb  iocb
}

// newSignaller returns nil and why where the kernel has no such thing.
func newSignaller(fd int) (*signaller, error) {
	a, err := aio()
	if err != nil {
		return nil, err
	}
	return &signaller{a, iocb{opcode: iocbPread, fd: uint32(a.empty), flags: iocbFlagResFD, resfd: uint32(fd)}}, nil
}

// signal adds one to the eventfd, up to its highest value. It may be called
// from several goroutines.
func (s *signaller) signal() Outcome {
	list := [1]*iocb{&s.cb}
	for range 4 {
		// Safe: the kernel reads the list and the request before it returns;
		// the request has no buffer.
		_, _, e := unix.Syscall(unix.SYS_IO_SUBMIT, s.aio.ctx, 1, uintptr(unsafe.Pointer(&list)))
		switch e {
		case 0:
			return Sent
		case unix.EAGAIN:
			s.aio.collect()
		case unix.EINTR:
		default:
			return Lost
		}
	}
	return Again // other goroutines filled the freed places
}

// collect frees the places of completions; their content is not used.
func (a aioContext) collect() {
	var events [aioDepth * ioEventSize]uint64
	// Safe: at most aioDepth events are written, for which there is room.
	unix.Syscall6(unix.SYS_IO_GETEVENTS, a.ctx, 0, aioDepth, uintptr(unsafe.Pointer(&events)), 0, 0)
}

// SharedCalls returns why notifications by eventfd may block a lane for a hostile client; nil if they
// cannot.
func SharedCalls() error {
	_, err := aio()
	return err
}
