// SPDX-License-Identifier: Apache-2.0

// Package ib is the vocabulary of InfiniBand and RoCE: identifiers, numbers and tables that every
// other package shares.
//
// What comes in and goes out: values. It contains no packet layout (package wire), no protocol
// (package transport) and does no I/O. Names and numbers are those of the InfiniBand Architecture
// Specification volume 1 and of the verbs headers; comments state the differences between the two.
package ib

import (
	"fmt"
	"net/netip"
)

// GID is a 128-bit global identifier in network byte order. For RoCEv2 it is
// the IPv6 address, or the IPv4 address in its ::ffff:a.b.c.d form.
type GID [16]byte

// GIDFromAddr returns the RoCEv2 GID of an IP address; a zone is dropped.
func GIDFromAddr(a netip.Addr) GID { return GID(a.As16()) }

// Addr returns the IP address a RoCEv2 GID stands for, IPv4 unmapped.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsIPv4 reports whether g is an IPv4-mapped GID.
func (g GID) IsIPv4() bool { return netip.AddrFrom16(g).Is4In6() }

// IsZero reports whether g is the unset GID.
func (g GID) IsZero() bool { return g == GID{} }

// IsMulticast reports whether g is an IPv6 or IPv4-mapped multicast address.
func (g GID) IsMulticast() bool { return g.Addr().IsMulticast() }

// String prints the eight groups in full, as InfiniBand tools do.
func (g GID) String() string {
	return fmt.Sprintf("%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x",
		g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8], g[9], g[10], g[11], g[12], g[13], g[14], g[15])
}

// GUID is an EUI-64 in host order.
type GUID uint64

// NodeBits is the number of low bits in which the GUIDs of one node of this project differ: the GUIDs of its switch,
// its functions and their ports. The bits above them are the identity of the node.
const NodeBits = 16

// String prints four groups, as ibv_devinfo does.
func (g GUID) String() string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
}

// LID is a 16-bit local identifier.
type LID uint16

// Owns reports whether a port with base LID l and mask count lmc answers to
// dlid. A port without a LID answers to none.
func (l LID) Owns(lmc uint8, dlid LID) bool { return l != 0 && (l^dlid)>>lmc == 0 }

// PKey is a partition key; bit 15 is full membership.
type PKey uint16

// DefaultPKey is the full-member default partition.
const DefaultPKey PKey = 0xffff

// Match reports whether two partition keys may talk: equal non-zero low 15
// bits and at least one full member (IBA volume 1, 10.9.3).
func (p PKey) Match(q PKey) bool {
	return (p^q)&0x7fff == 0 && p&0x7fff != 0 && (p|q)&0x8000 != 0
}

// QKey is a queue key of datagram service.
type QKey uint32

// GSIQKey is the well-known queue key of queue pair 1.
const GSIQKey QKey = 0x80010000

// QKeyControlled is the bit that marks a privileged queue key. A send request
// with it set in the remote key transmits the queue pair's own key instead.
const QKeyControlled QKey = 1 << 31

// QPN is a 24-bit queue pair number.
type QPN uint32

// Well-known queue pair numbers.
const (
	QPNSMI       QPN = 0
	QPNGSI       QPN = 1
	QPNMulticast QPN = 0xffffff
	QPNMask      QPN = 0xffffff
)

// Key is a 32-bit memory key: an L_Key or an R_Key by its use.
type Key uint32

// PSN is a 24-bit packet sequence number.
type PSN uint32

// PSNMask keeps the 24 bits of a sequence number.
const PSNMask = 0xffffff

// Add returns p+n modulo 2^24.
func (p PSN) Add(n uint32) PSN { return PSN((uint32(p) + n) & PSNMask) }

// Diff returns the signed distance p-q in -2^23 … 2^23-1: positive when p is
// ahead of q.
func (p PSN) Diff(q PSN) int32 { return int32((uint32(p)-uint32(q))<<8) >> 8 }

// MTU is a path MTU code, 1 … 5.
type MTU uint8

// Path MTU codes.
const (
	MTU256 MTU = 1 + iota
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Valid reports whether m is a known code.
func (m MTU) Valid() bool { return m >= MTU256 && m <= MTU4096 }

// Bytes returns the payload size of code m. m must be valid.
func (m MTU) Bytes() int { return 128 << m }

// MTUForLink returns the largest path MTU that RoCEv2 can use on a network
// interface with the given MTU, leaving 80 bytes for headers as soft-RoCE
// does; MTU256 at least.
func MTUForLink(linkMTU int) MTU {
	for m := MTU4096; m > MTU256; m-- {
		if m.Bytes()+80 <= linkMTU {
			return m
		}
	}
	return MTU256
}

// MaxMessage is the largest message, in bytes (IBA volume 1, 9.4.1).
const MaxMessage = 1 << 31

// QPType is a queue pair's service, with the numbers verbs and the virtio
// RoCE ABI share.
type QPType uint8

// Queue pair types.
const (
	SMI QPType = 0
	GSI QPType = 1
	RC  QPType = 2
	UC  QPType = 3
	UD  QPType = 4
)

func (t QPType) String() string {
	switch t {
	case SMI:
		return "SMI"
	case GSI:
		return "GSI"
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	}
	return fmt.Sprintf("QPType(%d)", uint8(t))
}

// QPState is a queue pair state, with verbs numbers.
type QPState uint8

// Queue pair states.
const (
	Reset QPState = iota
	Init
	RTR
	RTS
	SQD
	SQE
	Err
)

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func (s QPState) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("QPState(%d)", uint8(s))
}

// Access is a set of memory or queue pair access rights (verbs numbers).
// Local read is always allowed.
type Access uint32

// Access flags.
const (
	LocalWrite   Access = 1 << 0
	RemoteWrite  Access = 1 << 1
	RemoteRead   Access = 1 << 2
	RemoteAtomic Access = 1 << 3
	MWBind       Access = 1 << 4
	ZeroBased    Access = 1 << 5
)

// LinkLayer is what a port is plugged into, with verbs numbers.
type LinkLayer uint8

// Link layers.
const (
	LinkInfiniBand LinkLayer = 1
	LinkEthernet   LinkLayer = 2
)

func (l LinkLayer) String() string {
	switch l {
	case LinkInfiniBand:
		return "InfiniBand"
	case LinkEthernet:
		return "Ethernet"
	}
	return "Unspecified"
}
