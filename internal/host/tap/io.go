// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"weft/internal/host/ifdev"
	"weft/internal/host/rawio"
	"weft/internal/proto/ether"
)

// frameIO belongs to the goroutine that reads and writes.
type frameIO struct {
	io   ifdev.FrameIO
	bufs [ifdev.BatchFrames][]byte // header and frame; allocated at first use, since few hosts have as many waiting
	hdr  [ether.OffloadLen]byte
	iov  rawio.Vector
}

// TryReadBatch implements vnic.Segment. An error is os.ErrClosed, ifdev.ErrRemoved, or the kernel's.
func (d *Device) TryReadBatch(frames [][]byte, off []ether.Offload) (int, error) {
	n, err := d.io.Read(frames, off)
	switch {
	case d.Closed():
		return 0, os.ErrClosed
	case err == unix.EBADFD:
		return 0, ifdev.ErrRemoved
	}
	return n, err
}

func (f *frameIO) receive(fd uintptr, i int, off *ether.Offload) ([]byte, syscall.Errno) {
	b := f.bufs[i]
	if b == nil {
		b = make([]byte, ether.OffloadLen+ether.MaxFrame)
		f.bufs[i] = b
	}
	n, err := rawio.Read(fd, b)
	if err != 0 || n <= ether.OffloadLen { // the kernel sends no header without a frame
		return nil, err
	}
	off.Parse(b)
	return b[ether.OffloadLen:n:n], 0
}

// WriteBatch implements vnic.Segment. Frames that the kernel refuses are dropped and counted, too.
func (d *Device) WriteBatch(frames [][]byte, off []ether.Offload) (dropped int) {
	return d.count(d.io.Write(frames, off))
}

// WriteFrames is WriteBatch for frames in pieces, up to ifdev.MaxPieces each.
func (d *Device) WriteFrames(frames []ether.Frame) (dropped int) {
	return d.count(d.io.WritePieces(frames))
}

func (d *Device) count(dropped int) int {
	if dropped > 0 {
		d.Counters.NotDelivered.Add(uint64(dropped))
	}
	return dropped
}

func (f *frameIO) send(fd uintptr, off *ether.Offload, parts [][]byte) bool {
	off.Put(f.hdr[:])
	return f.iov.WriteFrame(fd, f.hdr[:], parts) == 0
}
