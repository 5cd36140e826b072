// SPDX-License-Identifier: Apache-2.0

package vnic

import "weft/internal/proto/ether"

// Segment is what a port carries frames for: a TAP device, a stack in the process, the rings of a guest, a
// gateway. One lane calls its methods. SegmentControl is the same segment for the management goroutine.
type Segment interface {
	// TryReadBatch returns frames to send: frames[i], up to ether.MaxFrame octets, with the remaining
	// offload off[i]. They are private, and valid until the next TryReadBatch. 0, nil: there are none.
	// After SegmentControl.Close it returns os.ErrClosed.
	TryReadBatch(frames [][]byte, off []ether.Offload) (n int, err error)
	// WriteBatch takes frames, which it neither keeps nor changes, with Offloads that Takes allows. It takes
	// them in order; dropped is how many at the end found no room.
	WriteBatch(frames [][]byte, off []ether.Offload) (dropped int)
	// Takes returns the offloads that WriteBatch takes. They may be others with the next batch.
	Takes() ether.Features
	// FD returns a descriptor that becomes readable when frames wait; -1: the segment calls the function that it was
	// made with, from any goroutine.
	FD() int
	// Arm requests a wake-up for the next frame, and reports whether there are frames already: then
	// the lane must not sleep.
	Arm() (waiting bool)
}

// SegmentControl is the interface behind a Segment. The management goroutine calls its methods, except where an
// implementation allows others.
type SegmentControl interface {
	// Configure applies d to the interface. It may return before that is complete.
	Configure(d Device)
	Close() error
}

// OpenSegment is a segment that was opened: its side for the lane, and its side for the management goroutine.
type OpenSegment struct {
	Segment Segment
	Control SegmentControl
}

// FrameWriter is what a Segment can implement besides: it takes frames in the parts that an ether.Joiner leaves them
// in, which saves the copy that puts them together. What holds for WriteBatch holds for WriteFrames.
type FrameWriter interface {
	WriteFrames(frames []ether.Frame) (dropped int)
}

// SegmentEvent is the state of an interface as its owner set it. A Segment reports it through the
// function that it was made with, from any goroutine: always the complete present state, and never one
// older than the Device it was made with.
type SegmentEvent struct {
	Up  bool // administratively
	MTU int
	MAC [6]byte
	// What the interface takes besides MAC.
	Unicast, Multicast [][6]byte
}
