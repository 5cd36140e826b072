// SPDX-License-Identifier: Apache-2.0

package vmcard

import (
	"weft/internal/node/lane"
	"weft/internal/proto/ether"
	"weft/internal/proto/mono"
)

// unplugged polls the device of a card while the card is in no virtual Ethernet switch: the guest waits for the answers
// of its control queue all the same. Frames of the guest are dropped, as on a card without a cable. It belongs to
// lane 0.
type unplugged struct {
	m       *Card
	added   bool // the lane polls it
	frames  [8][]byte
	off     [8]ether.Offload
	dropped uint64 // frames
}

var _ lane.Poller = (*unplugged)(nil)

// plugged reports whether a port of a virtual Ethernet switch polls the device.
func (u *unplugged) plugged() bool { return u.m.notify.Load() != nil }

// Begin implements lane.Poller.
func (u *unplugged) Begin(mono.Time) (busy bool) {
	if u.plugged() {
		return false
	}
	n, _ := u.m.port.TryReadBatch(u.frames[:], u.off[:]) // it fails only after Port.Close
	clear(u.frames[:n])
	u.dropped += uint64(n)
	return n > 0
}

// Finish implements lane.Poller.
func (u *unplugged) Finish(mono.Time) bool { return false }

// Sleep implements lane.Poller.
func (u *unplugged) Sleep() bool { return u.plugged() || !u.m.port.Arm() }

// Deadline implements lane.Poller.
func (u *unplugged) Deadline() mono.Time { return 0 }

// begin has the lane poll the device, until end.
func (u *unplugged) begin() {
	if !u.added {
		u.added = true
		u.m.c.first().AddPoller(u)
	}
}

func (u *unplugged) end() {
	if u.added {
		u.added = false
		u.m.c.first().RemovePoller(u)
	}
}
