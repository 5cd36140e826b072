// SPDX-License-Identifier: Apache-2.0

package transport

import "weft/internal/proto/ib"

// window is the congestion window of a requester on a path that can lose packets: how many bytes may be
// unacknowledged. It grows as in slow start up to the threshold and linearly beyond, and a loss takes a part of it
// (docs/adr/0007-loss-recovery.md and 0011). On a path that cannot, it is off and limits nothing.
//
// Invariant, unless off: mtu ≤ size, and size ≤ max where it did not fall to a larger floor, or was opened while more
// was unacknowledged.
type window struct {
	mode      windowMode // the other fields count unless it is windowOff
	size      uint32     // bytes that may be unacknowledged
	threshold uint32     // bytes; above it the window grows linearly
	max       uint32     // bytes; the configured bound
	floor     uint32     // bytes that losses leave: several packets, since with one each lost packet would cost a timeout
	mtu       uint32     // bytes of a packet's payload
	// The window is not cut again before everything below recoveryEnd is acknowledged: one loss episode, one cut.
	// recoveryEnd counts while recovering is set.
	recovering  bool
	recoveryEnd ib.PSN
	// closeAt is the end of what was sent while packets could get lost; it counts while mode is windowClosing.
	closeAt ib.PSN
}

// windowMode is whether packets can get lost.
type windowMode uint8

const (
	// windowOff: no packet gets lost.
	windowOff windowMode = iota
	// windowOn: packets can get lost.
	windowOn
	// windowClosing: no packet gets lost any more, but some of those sent before may be. Once they are acknowledged the
	// window is off.
	windowClosing
)

// initialWindow is the window of a fresh connection in bytes.
const initialWindow = 64 << 10

// Parts of a window that a loss takes. Where the peer discards what follows a gap, most of a larger window is sent
// again in vain; where the peer keeps that, nothing is.
const (
	cutPeerDiscards = 4
	cutPeerKeeps    = 16
)

// newWindow returns the window of a fresh connection; minimum is the configured lower bound in bytes.
func newWindow(mtu, minimum, maximum uint32) window {
	return window{mode: windowOn, size: max(min(initialWindow, maximum), mtu), threshold: maximum, max: maximum,
		floor: max(minimum, 4*mtu), mtu: mtu}
}

// grow enlarges the window after n packets were acknowledged: by as much until it was first cut, by four packets per
// window afterwards. Where every hundredth packet is lost at random, cuts of a quarter leave 37 packets under way
// (docs/adr/0011-loss-windows.md), cuts of a sixteenth 80.
func (w *window) grow(n uint32) {
	if w.mode == windowOff || w.size >= w.max {
		return
	}
	bytes := uint64(n) * uint64(w.mtu)
	if w.size >= w.threshold {
		bytes = bytes * 4 * uint64(w.mtu) / uint64(w.size)
	}
	w.size = uint32(min(uint64(w.size)+bytes, uint64(w.max)))
}

// cut takes one part-th of the window for a loss among the packets below end. It does nothing while an earlier cut
// covers the loss.
func (w *window) cut(end ib.PSN, part uint32) {
	if w.mode == windowOff || w.recovering {
		return
	}
	w.recovering, w.recoveryEnd = true, end
	w.size = max(w.size-w.size/part, w.floor)
	w.threshold = w.size
}

// collapse is cut where nothing came back at all: the window falls to its floor.
func (w *window) collapse(end ib.PSN, part uint32) {
	if w.mode == windowOff {
		return
	}
	w.cut(end, part)
	w.size = w.floor
}

// acknowledged ends the recovery when una has reached its end.
func (w *window) acknowledged(una ib.PSN) {
	if w.recovering && dist(una, w.recoveryEnd) < maxOutstanding {
		w.recovering = false
	}
}

// open turns the window on while inFlight bytes are unacknowledged. The next packet fits, so that it can request the
// acknowledgement that the earlier ones may not have requested.
func (w *window) open(inFlight uint64, mtu, minimum, maximum uint32) {
	if w.mode == windowOff {
		*w = newWindow(mtu, minimum, maximum)
		w.size = max(w.size, uint32(min(inFlight, 1<<30))+mtu)
	}
	w.mode = windowOn
}

// closed reports whether the window, which is closing, is off now that everything before una is acknowledged.
func (w *window) closed(una ib.PSN) bool {
	return w.mode == windowClosing && w.closeAt.Diff(una) <= 0
}

// allows returns how many payload bytes may follow the inFlight unacknowledged ones, in whole packets; 0 where the
// window is full. A burst is half a window at most, so that acknowledgements keep it moving, and at least a packet.
func (w *window) allows(inFlight uint64) uint64 {
	packets := ^(uint64(w.mtu) - 1)
	half := max(uint64(w.size/2)&packets, uint64(w.mtu))
	switch {
	case inFlight == 0:
		return half
	case inFlight >= uint64(w.size):
		return 0
	}
	return min(half, (uint64(w.size)-inFlight)&packets)
}
