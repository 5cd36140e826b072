// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"weft/internal/fabric/link/udpsock"
	"weft/internal/proto/counters"
	"weft/internal/proto/wire"
)

// Counters count what a Link did since Open. Bytes are those of UDP payload:
// BTH through ICRC. Every refusal has its own counter, in packets.
type Counters struct {
	SentPackets, SentBytes uint64
	SentCalls              uint64 // sendmmsg calls that sent something
	SentMessages           uint64 // datagrams or trains of datagrams handed to the kernel
	SentGSO                uint64 // of these, trains that the kernel cut
	SentBursts             uint64
	SendBlocked            uint64 // the socket was full; nothing was dropped
	RcvdPackets, RcvdBytes uint64 // accepted packets
	RcvdCalls              uint64 // recvmmsg calls that received something
	RcvdMessages           uint64 // datagrams or trains of datagrams from the kernel
	RcvdGRO                uint64 // of these, trains that the kernel joined
	RcvdBursts             uint64
	// Accepted IPv4 packets with an identification that the UDP socket hides. RcvdIDSeen: the raw socket saw it, so
	// all 32 bits of the ICRC were checked. RcvdIDSolved: it was computed from the ICRC, so 16 bits were checked.
	RcvdIDSeen, RcvdIDSolved uint64

	// from an address outside Config.Allow
	DropSourceNotAllowed uint64

	DropNotLocal  uint64 // broadcasts: neither an address of this host nor a group
	DropTruncated uint64 // did not fit the buffer, or arrived without its addresses
	// datagrams that the kernel dropped because the receive buffer was full
	RcvBufOverflow uint64 `counter:"rcvbuf_overflow"`
	RcvErrors      uint64 // failed receive calls

	// Dropped by the sender; the reliable service recovers or reports.
	DropDestinationNotAllowed uint64 // to an address outside Config.Allow

	DropPath        uint64 // the path has no usable pair of addresses or no socket
	DropBlocked     uint64 // sent although the link was Blocked
	DropBurst       uint64 // the burst breaks the contract of pkt.Burst or a limit of this package
	DropSourceFault uint64 // the payload could not be read
	udpsock.SendErrors

	DropRefusal wire.Refusals // refused by the receiver, BadICRC included
}

// Each calls f with the name and the value of every counter, in a fixed order.
func (c *Counters) Each(f func(name string, v uint64)) { counters.Each("", c, f) }
