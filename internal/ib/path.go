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
	// Local marks a path within the node, which neither loses nor reorders.
	Local bool
}

// SGE is one entry of a scatter/gather list as a work request states it.
type SGE struct {
	Addr uint64
	Len  uint32
	LKey Key
}
