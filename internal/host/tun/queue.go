// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"weft/internal/host/rawio"
	"weft/internal/proto/ether"
)

// queue is the descriptor of a TUN interface, and the splitter and joiner of the packets that go through it. The
// descriptor does not block. The runtime's poller leaves it alone: each packet would wake that.
type queue struct {
	// mu is held for reading while the descriptor is in use, one batch at a time: it must not be closed then, and its
	// number reused.
	mu   sync.RWMutex
	fd   int // -1: closed
	stop int // eventfd: closing

	in    []byte // one read: header, packet
	info  ether.Info
	off   ether.Offload
	split ether.Splitter

	join    *ether.Joiner
	joins   ether.Features // segments that the kernel accepts joined
	packets [][]byte
	hdr     [ether.OffloadLen]byte
	out     rawio.Vector
}

// init takes fd over, also where it fails. features are the offloads that the kernel accepts.
func (q *queue) init(fd int, features ether.Features) (err error) {
	q.fd, q.joins = fd, features
	if err = unix.SetNonblock(fd, true); err == nil {
		q.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err != nil {
		unix.Close(fd)
		q.fd = -1
		return err
	}
	var seed [8]byte
	rand.Read(seed[:])
	q.in = make([]byte, ether.OffloadLen+ether.MaxIP)
	q.join = ether.NewJoiner(BatchSize, true, binary.NativeEndian.Uint64(seed[:]))
	q.packets = make([][]byte, 0, BatchSize)
	return nil
}

// close closes the descriptor once no call uses it.
func (q *queue) close() error {
	if q.in == nil { // never opened
		return nil
	}
	unix.Write(q.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fd < 0 {
		return nil
	}
	err := errors.Join(unix.Close(q.fd), unix.Close(q.stop))
	q.fd, q.stop = -1, -1
	return err
}

// control calls f with the descriptor.
func (q *queue) control(f func(fd int) error) error {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.fd < 0 {
		return os.ErrClosed
	}
	return f(q.fd)
}

// await waits until there is something to read, or an error to be had.
func (q *queue) await() {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.fd >= 0 {
		unix.Poll([]unix.PollFd{{Fd: int32(q.fd), Events: unix.POLLIN}, {Fd: int32(q.stop), Events: unix.POLLIN}}, -1)
	}
}

// read returns one packet of the kernel, valid until the next read; nil where none waits. mu is held for reading.
func (q *queue) read() ([]byte, error) {
	for {
		if q.fd < 0 {
			return nil, os.ErrClosed
		}
		n, err := rawio.Read(uintptr(q.fd), q.in)
		switch err {
		case 0:
		case unix.EAGAIN:
			return nil, nil
		case unix.EINTR:
			continue
		default:
			return nil, err
		}
		if n > ether.OffloadLen {
			return q.in[ether.OffloadLen:n], nil
		}
	}
}

// begin starts to split the packet that was read last, and returns the number of packets of at most room octets that
// split makes of it; false where it cannot be split so.
func (q *queue) begin(p []byte, room int) (n int, ok bool) {
	q.off.Parse(q.in)
	q.info = ether.ClassifyIP(p)
	if q.off.Check(p, &q.info) != ether.OK {
		return 0, false
	}
	n, why := q.split.Start(p, q.off, &q.info, room)
	return n, why == ether.OK
}

// write writes at most BatchSize packets, and returns how many the kernel refused.
func (q *queue) write(bufs [][]byte, offset int) (refused int, err error) {
	q.packets = q.packets[:0]
	for _, b := range bufs {
		if len(b) > offset {
			q.packets = append(q.packets, b[offset:])
		}
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	for _, f := range q.join.Join(q.packets, q.joins) {
		if q.fd < 0 {
			return refused, os.ErrClosed
		}
		f.Off.Put(q.hdr[:])
		err := q.out.WriteFrame(uintptr(q.fd), q.hdr[:], f.Parts)
		// A packet that the kernel refuses, as while the interface is down, is no reason to stop.
		if err == unix.EBADFD {
			return refused, err
		} else if err != 0 {
			refused += max(1, len(f.Parts)-1)
		}
	}
	return refused, nil
}
