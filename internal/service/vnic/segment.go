// SPDX-License-Identifier: Apache-2.0

package vnic

import "weft/internal/proto/ether"

// Segment is what a port carries frames for: a TAP device, a stack in the process, the rings of a guest, a
// gateway. One lane calls TryReadBatch, WriteBatch, Takes, FD and Arm, the management goroutine Configure and Close.
type Segment interface {
	// TryReadBatch gives what waits to be sent: frames[i] with what off[i] says is still to be done with it,
	// up to ether.MaxFrame octets. Nobody else can change them, and they stay valid until the next TryReadBatch. 0, nil: nothing
	// waits. After Close it returns os.ErrClosed.
	TryReadBatch(frames [][]byte, off []ether.Offload) (n int, err error)
	// WriteBatch takes frames, which it neither keeps nor changes, with Offloads that Takes allows. It takes
	// them in order; dropped is how many at the end found no room.
	WriteBatch(frames [][]byte, off []ether.Offload) (dropped int)
	// Takes returns the offloads that WriteBatch takes. They may be others with the next batch.
	Takes() ether.Features
	// FD returns a descriptor that becomes readable when frames wait; -1: the segment calls the function that it was
	// made with, from any goroutine.
	FD() int
	// Arm asks to be woken for the next frame, and reports that some wait already: then the lane must
	// not sleep.
	Arm() (waiting bool)
	// Configure makes the interface what d says. It may return before that is so.
	Configure(d Device)
	Close() error
}

// FrameWriter is a Segment that takes frames in the parts that an ether.Joiner leaves them in, which saves the copy that
// puts them together. What holds for WriteBatch holds for WriteFrames.
type FrameWriter interface {
	Segment
	WriteFrames(frames []ether.Frame) (dropped int)
}

// SegmentEvent is what the owner of an interface made of it. A Segment tells it by the function that it was made with,
// from any goroutine: each time the whole of what is so now, and nothing that is older than the Device it was made with.
type SegmentEvent struct {
	Up  bool // administratively
	MTU int
	MAC [6]byte
	// What the interface takes besides MAC.
	Unicast, Multicast [][6]byte
}
