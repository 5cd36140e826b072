// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"encoding/binary"
	"errors"

	"weft/internal/proto/ether"
	"weft/internal/proto/wire"
)

// Sizes in octets. Frames are without FCS.
const (
	HeaderLen = wire.Header16Len + wire.Ethernet16Len // in front of a frame in its packet
	TailLen   = wire.ICRCLen + 1                      // behind its padding
	MinFrame  = ether.MinFrame                        // shorter frames get zeros
	MaxFrame  = wire.MaxPayload16 - wire.Ethernet16Len

	// An MTU is of what follows the Ethernet header; frameOverhead is that and one tag.
	MinEthMTU      = 68
	DefaultLinkMTU = 10240
	MaxEthMTU      = DefaultLinkMTU - frameOverhead
	frameOverhead  = ether.HeaderLen + ether.TagLen

	// fcsLen is what counters of octets add for each frame.
	fcsLen = 4
)

// Errors. What answers an Ethernet Manager with status 0x001C wraps ErrInvalid.
var (
	ErrInvalid    = errors.New("invalid")
	ErrNoResource = errors.New("no more of them")
	ErrVESWInUse  = errors.New("another port of the function is in this VESW")
)

var le = binary.LittleEndian

// PacketLen returns the length of the packet for a frame of n octets, of which at least
// MinFrame are sent.
//
// Preconditions: 0 ≤ n ≤ MaxFrame.
func PacketLen(n int) int { return wire.Len16(wire.Ethernet16Len + max(n, MinFrame)) }

// Cut is how many frames something is on the wire: Frames-1 of Len octets and one of Last.
type Cut struct{ Frames, Len, Last int }

// CutOf returns the Cut of a frame of n octets: one, or what an ether.Splitter without an MTU makes
// of it.
//
// Preconditions: o.Check accepted the frame, or an ether.Joiner made it.
func CutOf(n int, o *ether.Offload) Cut { return cut(n, int(o.HdrLen), int(o.GSOSize), o) }

// CutAt is CutOf for a Splitter with an MTU, which cuts TCP segments smaller than their offload
// requests if necessary.
//
// Preconditions: o.Check accepted the frame, in which ether.Classify found in; mtu > 0.
func CutAt(n int, o *ether.Offload, in *ether.Info, mtu int) Cut {
	size := int(o.GSOSize)
	if o.Kind() != ether.GSOUDP {
		size = min(size, max(mtu-(int(o.HdrLen)-int(in.L3)), 1))
	}
	return cut(n, int(o.HdrLen), size, o)
}

func cut(n, head, size int, o *ether.Offload) Cut {
	if o.Kind() == ether.GSONone || n-head <= size {
		return Cut{1, n, n}
	}
	frames := (n - head + size - 1) / size
	return Cut{frames, head + size, n - (frames-1)*size}
}

// Decision is all that was decided for a frame, and for those that it is cut into.
type Decision struct {
	// Header is that of every packet. Length is not set.
	Header wire.Header16
	VESW   uint16
	group  bool // the destination MAC is a group's
	tagged bool
	head   [HeaderLen]byte // Header and what follows it, without a length
}

// ready makes what all packets begin with.
func (d *Decision) ready() {
	d.Header.Put(d.head[:])
	wire.PutEthernet16(d.head[wire.Header16Len:], d.VESW)
}

// Seal makes the packet p of a frame of n octets that is at p[HeaderLen:]: zeros up to
// MinFrame, header, padding of zeros, CRC and tail.
//
// Preconditions: n ≤ MaxFrame, len(p) is PacketLen(n), and Decide accepted d.
func (d *Decision) Seal(p []byte, n int) {
	if n < MinFrame {
		clear(p[HeaderLen+n : HeaderLen+MinFrame])
		n = MinFrame
	}
	*(*[HeaderLen]byte)(p) = d.head
	le.PutUint32(p, le.Uint32(p)|uint32(len(p)/8)<<20)
	wire.Seal16(p, wire.Ethernet16Len+n)
}

// notifyLen is the length of a congestion notification: a packet without a frame.
const notifyLen = 32

// putNotify makes the congestion notification that answers a packet.
func putNotify(p *[notifyLen]byte, h *wire.Header16, vesw uint16) {
	back := wire.Header16{SLID: h.DLID, DLID: h.SLID, Length: notifyLen / 8, BECN: true, SC: h.SC,
		L4: wire.L4Ethernet, PKey: h.PKey}
	back.Put(p[:])
	wire.PutEthernet16(p[wire.Header16Len:], vesw)
	wire.Seal16(p[:], wire.Ethernet16Len)
}
