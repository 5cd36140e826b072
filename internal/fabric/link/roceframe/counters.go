// SPDX-License-Identifier: Apache-2.0

package roceframe

import "weft/internal/proto/wire"

// Counters count what a Link did. Every refusal has its own counter, in packets.
type Counters struct {
	SentPackets, SentFrames, SentBytes uint64 // of whole frames, before they are cut
	SentRuns                           uint64
	RcvdPackets, RcvdBytes             uint64 // accepted; octets of BTH through ICRC
	RcvdRuns                           uint64
	Asked                              uint64 // for neighbours

	// Refused on the way in, by wire.Refusal.
	DropRefusal [wire.NumRefusals]uint64
	DropVLAN    uint64 // with a VLAN tag: the port is in none
	// DropUDPChecksum are packets whose UDP checksum is there and wrong.
	DropUDPChecksum uint64
	// DropNotLocal are for an address that is not the port's, or a group that nobody here is in.
	DropNotLocal uint64
	// DropBadSource claim to come from an address that nobody has.
	DropBadSource uint64
	// RcvBufOverflow are packets that found no room.
	RcvBufOverflow uint64

	// Lost on the way out; the reliable service recovers or reports.
	DropPath        uint64 // the path has no usable pair of addresses
	DropRun         uint64 // the run breaks the contract of pkt.Burst or a limit of this package
	DropBlocked     uint64 // more waits than there is room for
	DropSourceFault uint64 // the payload could not be read
	DropUnresolved  uint64 // the neighbour's MAC is not known yet, and enough is held for it
	DropUnreachable uint64 // nobody answers for the neighbour
	DropReset       uint64 // waited when the segment went away
}

// Each calls f with the snake-case name and the value of every counter, in a
// fixed order.
func (c *Counters) Each(f func(name string, v uint64)) {
	for _, e := range [...]struct {
		name string
		v    uint64
	}{
		{"sent_packets", c.SentPackets}, {"sent_frames", c.SentFrames}, {"sent_bytes", c.SentBytes}, {"sent_runs", c.SentRuns},
		{"rcvd_packets", c.RcvdPackets}, {"rcvd_bytes", c.RcvdBytes}, {"rcvd_runs", c.RcvdRuns}, {"asked", c.Asked},
		{"drop_vlan", c.DropVLAN}, {"drop_udp_checksum", c.DropUDPChecksum}, {"drop_not_local", c.DropNotLocal},
		{"drop_bad_source", c.DropBadSource}, {"rcvbuf_overflow", c.RcvBufOverflow},
		{"drop_path", c.DropPath}, {"drop_run", c.DropRun}, {"drop_blocked", c.DropBlocked}, {"drop_source_fault", c.DropSourceFault},
		{"drop_unresolved", c.DropUnresolved}, {"drop_unreachable", c.DropUnreachable}, {"drop_reset", c.DropReset},
	} {
		f(e.name, e.v)
	}
	for i := wire.OK + 1; i < wire.NumRefusals; i++ {
		f("drop_"+i.String(), c.DropRefusal[i])
	}
}
