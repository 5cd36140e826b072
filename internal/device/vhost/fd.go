// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Kick is the descriptor by which a driver wakes the device: an eventfd or the
// read end of a pipe, non-blocking. The session owns it.
type Kick struct{ fd int }

// FD returns the descriptor, to wait on.
func (k *Kick) FD() int { return k.fd }

// Clear reads the descriptor until it is not readable. It never blocks, whatever flags the client sets
// on an eventfd that it shares.
func (k *Kick) Clear() {
	var b [512]byte // one read empties an eventfd, a few empty a pipe
	iov := [][]byte{b[:]}
	for range 16 {
		n, err := unix.Preadv2(k.fd, iov, -1, unix.RWF_NOWAIT)
		if err == unix.EINTR {
			continue
		}
		if err == unix.EOPNOTSUPP || err == unix.ENOSYS { // an older kernel: not for this kind of file
			n, err = unix.Read(k.fd, b[:])
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
	Lost          // the other end is closed
)

// Call is the descriptor by which the device notifies a driver: an eventfd or
// the write end of a pipe, non-blocking. The session owns it.
type Call struct {
	fd     int
	event  bool
	shared bool       // a pipe with flags that the client shares
	signal *signaller // of an eventfd; nil where the kernel has none
	value  [8]byte
	iov    [1][]byte // of value
}

// Write notifies the driver, without blocking. A full eventfd is a
// notification that has not been read yet, so Sent.
func (c *Call) Write() Outcome {
	if c.signal != nil {
		return c.signal.signal()
	}
	if c.event && !c.room() {
		return Sent
	}
	for {
		var err error
		if c.shared {
			_, err = unix.Pwritev2(c.fd, c.iov[:], -1, unix.RWF_NOWAIT)
		} else {
			_, err = unix.Write(c.fd, c.value[:])
		}
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

// room polls an eventfd before a write: the client shares its flags and may have made it blocking. The
// client can still do so between the poll and the write, so this is only for kernels without a
// signaller (SharedCalls).
func (c *Call) room() bool {
	p := [1]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(p[:], 0)
	return n == 1 && err == nil && p[0].Revents&unix.POLLOUT != 0
}

// FD returns the descriptor, to wait for room.
func (c *Call) FD() int { return c.fd }

var (
	errKind   = errors.New("descriptor is neither eventfd nor pipe")
	errShared = errors.New("the node may not open this user's pipe anew, and this kernel has no write to a pipe that surely does not wait")
)

// pipesNowait reports whether the kernel (Linux 6.4 and later) supports reads and writes of pipes that
// do not block, independent of the flags of the open file.
var pipesNowait = sync.OnceValue(func() bool {
	var p [2]int
	if unix.Pipe2(p[:], unix.O_CLOEXEC) != nil {
		return false
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	n, err := unix.Pwritev2(p[1], [][]byte{{0}}, -1, unix.RWF_NOWAIT)
	return n == 1 && err == nil
})

// kind is what a descriptor for notifications is.
type kind uint8

const (
	ownPipe    kind = iota // opened by the node: its flags are the node's own
	sharedPipe             // another user's: only calls with RWF_NOWAIT do not wait
	eventfd
)

// notifier checks that fd is an eventfd or a pipe and makes it non-blocking: other files may block a
// lane. It takes ownership of fd, also on error, and returns the descriptor to use: a pipe is opened
// again with the given mode, because the client can change the flags of its own open file.
func notifier(fd, mode int) (own int, k kind, err error) {
	var st unix.Stat_t
	name := "/proc/self/fd/" + strconv.Itoa(fd)
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
		own, err = unix.Open(name, mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
			return own, ownPipe, nil
		}
		// Another user's pipe may not be opened.
		if err = errShared; pipesNowait() {
			return fd, sharedPipe, nil
		}
	} else if err == nil {
		var link string
		if link, err = os.Readlink(name); err == nil && link != "anon_inode:[eventfd]" {
			err = errKind
		}
		if err == nil {
			if err = unix.SetNonblock(fd, true); err == nil {
				return fd, eventfd, nil
			}
		}
	}
	unix.Close(fd)
	return -1, 0, err
}

// newCall takes over fd, also on error. value is what one notification writes
// to a pipe; an eventfd counts them.
func newCall(fd int, value uint64) (*Call, error) {
	fd, k, err := notifier(fd, unix.O_WRONLY)
	if err != nil {
		return nil, err
	}
	c := &Call{fd: fd, event: k == eventfd, shared: k == sharedPipe}
	if c.event {
		c.signal, _ = newSignaller(fd) // SharedCalls returns the reason of a failure
	}
	binary.NativeEndian.PutUint64(c.value[:], value)
	c.iov[0] = c.value[:]
	return c, nil
}

// newKick takes over fd, also on error.
func newKick(fd int) (*Kick, error) {
	fd, _, err := notifier(fd, unix.O_RDONLY)
	if err != nil {
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
	if fs.Type != unix.PROC_SUPER_MAGIC || !strings.HasSuffix(name, "/mem") || st.Mode&unix.S_IFMT != unix.S_IFREG ||
		flags&unix.O_ACCMODE != unix.O_RDWR {
		return fail(unix.EPERM)
	}
	var word [8]byte
	if n, err := unix.Pread(fd, word[:], int64(addr)); n != 8 || err != nil ||
		binary.NativeEndian.Uint64(word[:]) != value {
		return fail(unix.EPERM)
	}
	return f, nil
}
