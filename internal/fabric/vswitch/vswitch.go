// SPDX-License-Identifier: Apache-2.0

// Package vswitch is the forwarding of a node's switch.
//
// What comes in: edits of forwarding tables, port states and partition
// enforcement, made by the switch's subnet management agent; then, per packet,
// the ingress port, the destination LID and the partition key. What goes out:
// egress ports, or the name of the rule that drops the packet. The links of a
// node call it for each packet, on any lane, through one shared snapshot. That
// path never allocates, locks or writes, and it never reads a packet's bytes.
// The rules are those of IBA volume 1, 18.2.4.
package vswitch

import (
	"math/bits"

	"weft/internal/proto/ib"
)

// Numbers of a switch.
const (
	// MaxPorts is the highest port number. 255 means "no port" in tables.
	MaxPorts = 254
	// NoPort is the value of a forwarding table's entry, or of a default port,
	// without an egress port.
	NoPort uint8 = 0xff
	// BlockLIDs and BlockMLIDs are the entries that one management datagram
	// carries of the unicast and of the multicast table.
	BlockLIDs  = 64
	BlockMLIDs = 32
	// LinearCap and MulticastCap are the entries of both tables, as SwitchInfo
	// states them: every LID has one.
	LinearCap    = int(ib.LIDMulticastFirst)
	MulticastCap = 0x10000 - int(ib.LIDMulticastFirst) - 1
	// Positions is how many 16-port parts a multicast entry has.
	Positions = 16
)

const (
	lftBlocks = LinearCap / BlockLIDs
	mftBlocks = (MulticastCap + 1) / BlockMLIDs
)

// Refusal names the rule that drops a packet. It is an index for the caller's
// counters.
type Refusal uint8

// Refusals. OK is none.
const (
	OK           Refusal = iota
	BadPort              // the ingress port does not exist
	BadLID               // DLID 0, or permissive on a data packet; 16B: a DLID or SLID outside this fabric's ranges
	IngressState         // the ingress port is not ARMED or ACTIVE (a management packet: its link is down)
	// the egress port, or each port of a multicast packet, is not ACTIVE (a management packet: its link is down)
	EgressState
	AboveTop    // the DLID is above LinearFDBTop
	Unreachable // the forwarding entry is no port of the switch
	Loopback    // the egress port is the ingress port
	PKeyIn      // the ingress port's partition table does not allow the key
	PKeyOut     // that of the egress port, or of each port of a multicast packet, does not
	NoMembers   // the multicast entry, without the ingress port, is empty
	NumRefusals = iota
)

var refusalNames = [NumRefusals]string{"ok", "bad_port", "bad_lid", "ingress_state", "egress_state", "above_top",
	"unreachable",
	"loopback", "pkey_in", "pkey_out", "no_members"}

// String returns the counter name of r.
func (r Refusal) String() string {
	if int(r) < len(refusalNames) {
		return refusalNames[r]
	}
	return "unknown"
}

// Refusals counts packets by Refusal.
type Refusals [NumRefusals]uint64

// CounterName implements counters.Namer.
func (Refusals) CounterName(i int) string {
	if Refusal(i) == OK {
		return ""
	}
	return "drop_route_" + Refusal(i).String()
}

// PortSet is a set of port numbers 0 … 255, as a value. Ports 16p … 16p+15
// are position p of a multicast forwarding table.
type PortSet [4]uint64

// Add puts port p into the set.
func (s *PortSet) Add(p uint8) { s[p>>6] |= 1 << (p & 63) }

// Remove removes port p from the set.
func (s *PortSet) Remove(p uint8) { s[p>>6] &^= 1 << (p & 63) }

// Has reports whether port p is in the set.
func (s PortSet) Has(p uint8) bool { return s[p>>6]>>(p&63)&1 != 0 }

// Empty reports whether no port is in the set.
func (s PortSet) Empty() bool { return s[0]|s[1]|s[2]|s[3] == 0 }

// Len returns the number of ports in the set.
func (s PortSet) Len() int {
	return bits.OnesCount64(s[0]) + bits.OnesCount64(s[1]) + bits.OnesCount64(s[2]) + bits.OnesCount64(s[3])
}

// And returns the ports that are in both sets.
func (s PortSet) And(o PortSet) PortSet {
	return PortSet{s[0] & o[0], s[1] & o[1], s[2] & o[2], s[3] & o[3]}
}

// Next removes the lowest port from the set and returns it; ok is false if the
// set is empty. A loop over a copy of a set is
// for p, ok := s.Next(); ok; p, ok = s.Next().
func (s *PortSet) Next() (p uint8, ok bool) {
	for i := range s {
		if s[i] != 0 {
			p = uint8(i<<6 + bits.TrailingZeros64(s[i]))
			s[i] &= s[i] - 1
			return p, true
		}
	}
	return 0, false
}

// Part returns position pos, 0 … 15, of the set: ports 16pos … 16pos+15.
func (s PortSet) Part(pos uint8) uint16 { return uint16(s[pos>>2&3] >> (pos & 3 * 16)) }

// SetPart replaces position pos, 0 … 15.
func (s *PortSet) SetPart(pos uint8, mask uint16) {
	w, shift := &s[pos>>2&3], pos&3*16
	*w = *w&^(0xffff<<shift) | uint64(mask)<<shift
}

// LIDOf24 maps the 24-bit LID of a 16B packet to the 16-bit LID of the tables:
// unicast LIDs are the same, multicast LID m is 0xf00000 + (m-0xc000), all ones
// is permissive. ok is false for every other number: no port of this fabric
// can have it.
func LIDOf24(lid uint32) (l ib.LID, ok bool) {
	switch {
	case lid < uint32(ib.LIDMulticastFirst):
		return ib.LID(lid), true
	case lid >= 0xf00000 && lid < 0xf00000+uint32(MulticastCap):
		return ib.LIDMulticastFirst + ib.LID(lid-0xf00000), true
	case lid == 0xffffff:
		return ib.LIDPermissive, true
	}
	return 0, false
}

// LIDTo24 is the inverse of LIDOf24.
func LIDTo24(l ib.LID) uint32 {
	switch {
	case l < ib.LIDMulticastFirst:
		return uint32(l)
	case l == ib.LIDPermissive:
		return 0xffffff
	}
	return 0xf00000 + uint32(l-ib.LIDMulticastFirst)
}
