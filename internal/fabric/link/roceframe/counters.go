// SPDX-License-Identifier: Apache-2.0

package roceframe

import (
	"weft/internal/proto/counters"
	"weft/internal/proto/wire"
)

// Counters count what a Link did. Every refusal has its own counter, in packets.
type Counters struct {
	SentPackets, SentFrames, SentBytes uint64 // of whole frames, before they are cut
	SentBursts                         uint64
	SentDirect                         uint64 // packets to ports of this node, without frames; of SentPackets
	RcvdPackets, RcvdBytes             uint64 // accepted; octets of BTH through ICRC
	RcvdBursts                         uint64
	NeighbourRequests                  uint64 // requests to the IP stack to resolve a neighbour

	DropVLAN        uint64 // with a VLAN tag: the port is in no VLAN
	DropUDPChecksum uint64 // with a UDP checksum that is wrong
	DropNotLocal    uint64 // to an address that is not the port's, or to a group without a member here
	DropBadSource   uint64 // from an address that no station can have
	RcvBufOverflow  uint64 `counter:"rcvbuf_overflow"` // packets without room in the receive buffer

	// Dropped by the sender; the reliable service recovers or reports.
	DropPath        uint64 // the path has no usable pair of addresses
	DropBurst       uint64 // the burst breaks the contract of pkt.Burst or a limit of this package
	DropBlocked     uint64 // sent although the link was Blocked
	DropSourceFault uint64 // the payload could not be read
	DropUnresolved  uint64 // the neighbour's MAC is not resolved yet, and its queue is full
	DropUnreachable uint64 // the neighbour does not reply
	DropReset       uint64 // was enqueued when the segment ended

	DropRefusal wire.Refusals // refused by the receiver
}

// Each calls f with the name and the value of every counter, in a fixed order.
func (c *Counters) Each(f func(name string, v uint64)) { counters.Each("", c, f) }
