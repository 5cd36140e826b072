// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Kick is the descriptor by which a driver wakes the device: an eventfd or the
// read end of a pipe, non-blocking. The session owns it.
type Kick struct{ fd int }

// FD returns the descriptor, to wait on.
func (k *Kick) FD() int { return k.fd }

// Clear reads what was written, so that the descriptor is quiet again.
func (k *Kick) Clear() {
	var b [512]byte // one read empties an eventfd, a few empty a pipe
	for range 16 {
		n, err := unix.Read(k.fd, b[:])
		if err == unix.EINTR {
			continue
		}
		if n < len(b) || err != nil {
			return
		}
	}
}

// Outcome is what became of a notification.
type Outcome uint8

// Outcomes of Call.Write.
const (
	Sent  Outcome = iota
	Again         // no room in the pipe: keep the notification and try again
	Lost          // the other end is gone
)

// Call is the descriptor by which the device notifies a driver: an eventfd or
// the write end of a pipe, non-blocking. The session owns it.
type Call struct {
	fd    int
	event bool
	value [8]byte
}

// Write notifies the driver, without blocking. A full eventfd is a
// notification that has not been read yet, so Sent.
func (c *Call) Write() Outcome {
	for {
		_, err := unix.Write(c.fd, c.value[:])
		switch {
		case err == nil || err == unix.EAGAIN && c.event:
			return Sent
		case err == unix.EAGAIN:
			return Again
		case err != unix.EINTR:
			return Lost
		}
	}
}

// FD returns the descriptor, to wait for room.
func (c *Call) FD() int { return c.fd }

var errKind = errors.New("descriptor is neither eventfd nor pipe")

// notifier checks that fd is an eventfd or a pipe and makes it non-blocking:
// nothing else is known to be writable or readable without blocking a lane.
func notifier(fd int) (event bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err != nil {
			return false, err
		}
		if name != "anon_inode:[eventfd]" {
			return false, errKind
		}
		event = true
	}
	return event, unix.SetNonblock(fd, true)
}

// newCall takes over fd, also on error. value is what one notification writes.
func newCall(fd int, value uint64) (*Call, error) {
	event, err := notifier(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	c := &Call{fd: fd, event: event}
	binary.NativeEndian.PutUint64(c.value[:], value)
	return c, nil
}

// newKick takes over fd, also on error.
func newKick(fd int) (*Kick, error) {
	if _, err := notifier(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &Kick{fd}, nil
}

func (k *Kick) close() {
	if k != nil {
		unix.Close(k.fd)
	}
}

func (c *Call) close() {
	if c != nil {
		unix.Close(c.fd)
	}
}

// processMemory checks that fd is the memory of a process, open for reading
// and writing, in which the word at addr reads as value. It takes over fd.
func processMemory(fd int, addr, value uint64) (*os.File, error) {
	f := os.NewFile(uintptr(fd), "process memory")
	fail := func(err error) (*os.File, error) {
		f.Close()
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fail(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail(err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return fail(err)
	}
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return fail(err)
	}
	if fs.Type != unix.PROC_SUPER_MAGIC || !strings.HasSuffix(name, "/mem") || st.Mode&unix.S_IFMT != unix.S_IFREG || flags&unix.O_ACCMODE != unix.O_RDWR {
		return fail(unix.EPERM)
	}
	var word [8]byte
	if n, err := unix.Pread(fd, word[:], int64(addr)); n != 8 || err != nil || binary.NativeEndian.Uint64(word[:]) != value {
		return fail(unix.EPERM)
	}
	return f, nil
}
