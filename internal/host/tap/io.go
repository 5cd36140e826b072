// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"os"

	"golang.org/x/sys/unix"

	"weft/internal/host/rawio"
	"weft/internal/proto/ether"
)

const (
	// BatchSize is the number of frames that TryReadBatch gives at most.
	BatchSize = 32
	// batchOctets is after how many it gives no more: what is read is used while it
	// is in the cache.
	batchOctets = 128 << 10
	// MaxPieces is the number of pieces that a frame of WriteFrames may have.
	MaxPieces = 1000 // of the kernel's 1024
)

// lane is what belongs to the goroutine that reads and writes. Its closures are made once, so
// that nothing is allocated per call.
type lane struct {
	bufs   [][]byte // header and frame
	read   func(fd uintptr)
	write  func(fd uintptr)
	frames [][]byte // of the read or write under way, as the rest
	off    []ether.Offload
	out    []ether.Frame
	n      int
	err    error
	hdr    [ether.OffloadLen]byte
	iov    rawio.Vector
	one    [1][]byte
}

func (l *lane) init() {
	l.bufs = make([][]byte, BatchSize)
	l.read, l.write = l.readAll, l.writeAll
}

// buffer is the i-th, made when it is needed first: few hosts ever have as many frames waiting.
func (l *lane) buffer(i int) []byte {
	if l.bufs[i] == nil {
		l.bufs[i] = make([]byte, ether.OffloadLen+ether.MaxFrame)
	}
	return l.bufs[i]
}

// TryReadBatch is of vnic.Segment. An error is os.ErrClosed, ErrGone, or the kernel's.
func (d *Device) TryReadBatch(frames [][]byte, off []ether.Offload) (int, error) {
	d.frames, d.off, d.n, d.err = frames, off, 0, nil
	err := d.conn.Control(d.read)
	d.frames, d.off = nil, nil
	switch {
	case err != nil || d.closed.Load():
		return 0, os.ErrClosed
	case d.n > 0:
		return d.n, nil // an error comes again
	case d.err == unix.EBADFD:
		return 0, ErrGone
	}
	return 0, d.err
}

func (l *lane) readAll(fd uintptr) {
	octets := 0
	for l.n < min(len(l.frames), len(l.off), BatchSize) && octets < batchOctets {
		b := l.buffer(l.n)
		n, err := rawio.Read(fd, b)
		switch err {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return
		default:
			l.err = err
			return
		}
		if n <= ether.OffloadLen {
			continue // nothing but a header: the kernel makes no such frame
		}
		l.off[l.n].Parse(b)
		l.frames[l.n] = b[ether.OffloadLen:n:n]
		octets += n
		l.n++
	}
}

// WriteBatch is of vnic.Segment. What the kernel refuses is dropped and counted, too.
func (d *Device) WriteBatch(frames [][]byte, off []ether.Offload) (dropped int) {
	d.frames, d.off = frames, off
	dropped = d.deliver(len(frames))
	d.frames, d.off = nil, nil
	return dropped
}

// WriteFrames is WriteBatch for frames in pieces, up to MaxPieces each, as an ether.Joiner makes them: they
// are put together by the kernel only.
func (d *Device) WriteFrames(frames []ether.Frame) (dropped int) {
	d.out = frames
	dropped = d.deliver(len(frames))
	d.out = nil
	return dropped
}

func (d *Device) deliver(frames int) (dropped int) {
	d.n = 0
	_ = d.conn.Control(d.write) // a closed one delivers nothing
	dropped = frames - d.n
	if dropped > 0 {
		d.Counters.NotDelivered.Add(uint64(dropped))
	}
	return dropped
}

func (l *lane) writeAll(fd uintptr) {
	for i := range l.frames {
		l.one[0] = l.frames[i]
		l.writeOne(fd, &l.off[i], l.one[:])
	}
	l.one[0] = nil
	for i := range l.out {
		l.writeOne(fd, &l.out[i].Off, l.out[i].Parts)
	}
}

// writeOne writes a frame, and counts it if the kernel takes it.
func (l *lane) writeOne(fd uintptr, off *ether.Offload, parts [][]byte) {
	if len(parts) > MaxPieces {
		return
	}
	off.Put(l.hdr[:])
	if l.iov.WriteFrame(fd, l.hdr[:], parts) == 0 {
		l.n++
	}
}
