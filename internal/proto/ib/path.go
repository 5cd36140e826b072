// SPDX-License-Identifier: Apache-2.0

package ib

// Path is how packets travel between two ports: what an address vector or an
// address handle resolves to on the sending side, and what a received packet
// carried on the receiving side (SGID is then the peer). A Path is immutable
// once shared.
type Path struct {
	SGID, DGID GID
	FlowLabel  uint32 // 20 bits; RoCEv2 derives the UDP source port from it
	TClass     uint8  // IPv4 TOS, IPv6 traffic class
	HopLimit   uint8  // IPv4 TTL, IPv6 hop limit
	SGIDIndex  uint8
	SrcPort    uint16 // UDP source port
	SL         uint8
	// MaxRun bounds the payload bytes of one run on this path: what the link
	// sends with one system call, or more on a path within the node.
	MaxRun uint32
	// DMAC is the MAC that frames of a RoCE path go to, as its address vector stated it; zero: the link resolves the
	// destination. Links through sockets of the host ignore it: the kernel resolves addresses itself.
	DMAC [6]byte
	// MTU is the path MTU of the interface that holds the source address of a RoCE path; 0: the limit
	// of the port only.
	MTU MTU
	// Local marks a path within the node, which neither loses nor reorders.
	Local bool

	// Global means that packets of an InfiniBand port's path have a GRH; GIDs, FlowLabel, TClass and
	// HopLimit are valid only then. RoCE paths always have addresses and leave it unset.
	Global bool
	// Function is the destination function of a local path, or the function at which a received packet
	// arrived; for a RoCE path to other nodes, the function with the port that sends the packets.
	Function uint16
	// DLID and SLID are those of an InfiniBand port's path, zero on RoCE paths.
	DLID, SLID LID
	StaticRate Rate // 0: that of the port
}

// Native reports whether p is a path of an InfiniBand port, by LIDs.
func (p *Path) Native() bool { return p.DLID != 0 }

// SGE is one entry of a scatter/gather list as a work request states it.
type SGE struct {
	Addr uint64
	Len  uint32
	LKey Key
}
