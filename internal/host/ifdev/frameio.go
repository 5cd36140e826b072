// SPDX-License-Identifier: Apache-2.0

package ifdev

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"weft/internal/proto/ether"
)

const (
	// BatchFrames is the largest number of frames that TryReadBatch returns.
	BatchFrames = 32
	// batchOctets is the number of octets after which it returns: the caller uses frames while they are in the cache.
	batchOctets = 128 << 10
	// maxReads bounds the reads of one TryReadBatch, of frames that are skipped too.
	maxReads = 256
	// MaxPieces is the largest number of pieces of a frame that the kernel accepts in one write, less a margin for
	// the headers.
	MaxPieces = 1000
)

// FrameIO reads and writes batches of Ethernet frames by a Descriptor, as methods TryReadBatch, WriteBatch and
// WriteFrames of vnic.FrameWriter do. It belongs to one goroutine, a lane. Nothing is allocated per call.
type FrameIO struct {
	file *Descriptor
	// receive reads one frame into a buffer of its own for place i of the batch, which stays valid until the next
	// TryReadBatch. nil, 0: it was skipped.
	receive func(fd uintptr, i int, off *ether.Offload) (frame []byte, err syscall.Errno)
	// send writes a frame, and reports whether the kernel accepted it.
	send func(fd uintptr, off *ether.Offload, parts [][]byte) bool

	read, write func(fd uintptr) // methods, bound once
	frames      [][]byte         // of the read or write in progress, as the rest
	off         []ether.Offload
	out         []ether.Frame
	n           int
	err         syscall.Errno
	one         [1][]byte
}

// Init binds f to a descriptor and the functions for one frame.
func (f *FrameIO) Init(d *Descriptor, receive func(fd uintptr, i int, off *ether.Offload) ([]byte, syscall.Errno),
	send func(fd uintptr, off *ether.Offload, parts [][]byte) bool) {
	*f = FrameIO{file: d, receive: receive, send: send}
	f.read, f.write = f.readAll, f.writeAll
}

// Read returns frames that wait: their number, or an error, os.ErrClosed or the kernel's.
func (f *FrameIO) Read(frames [][]byte, off []ether.Offload) (int, error) {
	f.frames, f.off, f.n, f.err = frames, off, 0, 0
	err := f.file.Use(f.read)
	f.frames, f.off = nil, nil
	switch {
	case err != nil:
		return 0, os.ErrClosed
	case f.n > 0 || f.err == 0:
		return f.n, nil // the next read returns an error again
	}
	return 0, f.err
}

func (f *FrameIO) readAll(fd uintptr) {
	octets, most := 0, min(len(f.frames), len(f.off), BatchFrames)
	for range maxReads {
		if f.n == most || octets >= batchOctets {
			return
		}
		frame, err := f.receive(fd, f.n, &f.off[f.n])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return
		case err != 0:
			f.err = err
			return
		case frame != nil:
			f.frames[f.n] = frame
			octets += len(frame)
			f.n++
		}
	}
}

// Write writes frames, and returns how many were dropped.
func (f *FrameIO) Write(frames [][]byte, off []ether.Offload) (dropped int) {
	f.frames, f.off = frames, off
	dropped = len(frames) - f.deliver()
	f.frames, f.off = nil, nil
	return dropped
}

// WritePieces is Write for frames in pieces, up to MaxPieces each, as an ether.Joiner leaves them: only the kernel puts
// them together.
func (f *FrameIO) WritePieces(frames []ether.Frame) (dropped int) {
	f.out = frames
	dropped = len(frames) - f.deliver()
	f.out = nil
	return dropped
}

func (f *FrameIO) deliver() int {
	f.n = 0
	_ = f.file.Use(f.write) // nothing is written to a closed one
	return f.n
}

func (f *FrameIO) writeAll(fd uintptr) {
	for i := range f.frames {
		f.one[0] = f.frames[i]
		if f.send(fd, &f.off[i], f.one[:]) {
			f.n++
		}
	}
	f.one[0] = nil
	for i := range f.out {
		if o := &f.out[i]; len(o.Parts) <= MaxPieces && f.send(fd, &o.Off, o.Parts) {
			f.n++
		}
	}
}
