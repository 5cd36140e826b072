// SPDX-License-Identifier: Apache-2.0

package abi

// Rings is the numbering of the rings of a device (virtio RoCE RFC v2, virtqueues): Pairs of Ethernet rings, the
// control queue, one ring per completion queue, two per queue pair. Pairs is 1 unless multiqueue is negotiated.
type Rings struct{ Pairs, CQs, QPs int }

// MaxVhostRings is how many rings a front-end of vhost-user can name: messages with a descriptor have eight bits for a
// ring.
const MaxVhostRings = 256

// Control returns the ring of the control queue.
func (r Rings) Control() int { return 2 * r.Pairs }

// CQ returns the ring of completion queue c.
func (r Rings) CQ(c uint32) int { return 2*r.Pairs + 1 + int(c) }

// SQ returns the send ring of queue pair q.
func (r Rings) SQ(q uint32) int { return 2*r.Pairs + 1 + r.CQs + 2*int(q) }

// RQ returns the receive ring of queue pair, or of shared receive queue, q.
func (r Rings) RQ(q uint32) int { return r.SQ(q) + 1 }

// Total returns the number of rings.
func (r Rings) Total() int { return 2*r.Pairs + 1 + r.CQs + 2*r.QPs }

// RingKind is the kind of a ring.
type RingKind uint8

// Kinds of rings.
const (
	RingNone RingKind = iota
	RingEthRX
	RingEthTX
	RingControl
	RingCQ
	RingSQ
	RingRQ
)

// Kind returns the kind of ring i, and the number of its pair, completion queue or queue pair.
func (r Rings) Kind(i int) (RingKind, uint32) {
	cq, qp := r.CQ(0), r.SQ(0)
	switch {
	case i < 0 || i >= r.Total():
		return RingNone, 0
	case i < r.Control():
		return RingEthRX + RingKind(i&1), uint32(i / 2)
	case i == r.Control():
		return RingControl, 0
	case i < qp:
		return RingCQ, uint32(i - cq)
	}
	return RingSQ + RingKind((i-qp)&1), uint32((i - qp) / 2)
}
