// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	"weft/internal/proto/ib"
)

// HWAddrLen is the length of an IPoIB hardware address.
const HWAddrLen = 20

// HWAddr is the link-layer address of an IPoIB interface (RFC 4391, 9.1.1):
// a byte of flags, the number of its datagram queue pair, its port's GID.
type HWAddr [HWAddrLen]byte

// Flags of a hardware address (RFC 4755, 3.1): the interface takes reliable,
// or unreliable, connections. A sender without connected mode sets none.
const (
	HWFlagRC uint8 = 0x80
	HWFlagUC uint8 = 0x40
)

// PseudoBroadcast is the address, all ones, that stands for a link's
// broadcast group inside a node. It never travels.
var PseudoBroadcast = HWAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
	0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// MakeHWAddr returns the hardware address of a queue pair behind a GID.
func MakeHWAddr(flags uint8, qpn ib.QPN, gid ib.GID) (h HWAddr) {
	be.PutUint32(h[:], uint32(qpn&ib.QPNMask)|uint32(flags)<<24)
	copy(h[4:], gid[:])
	return h
}

// GroupHWAddr returns the hardware address of a multicast group.
func GroupHWAddr(mgid ib.GID) HWAddr { return MakeHWAddr(0, ib.QPNMulticast, mgid) }

// Flags returns the flags byte.
func (h HWAddr) Flags() uint8 { return h[0] }

// QPN returns the queue pair number.
func (h HWAddr) QPN() ib.QPN { return ib.QPN(be.Uint32(h[:])) & ib.QPNMask }

// GID returns the port's, or the group's, GID.
func (h HWAddr) GID() ib.GID { return ib.GID(h[4:]) }

// Key returns h without its flags: what to compare and to hash by, as a peer
// that turns connected mode on or off is still the same.
func (h HWAddr) Key() HWAddr { h[0] = 0; return h }

// Same reports whether h and o are one interface, whatever their flags.
func (h HWAddr) Same(o HWAddr) bool { return h.Key() == o.Key() }

// IsGroup reports whether h is a multicast group's address, or the pseudo
// broadcast address.
func (h HWAddr) IsGroup() bool { return h[4] == 0xff }

// IsZero reports whether h is all zeros, as in a request's target.
func (h HWAddr) IsZero() bool { return h == HWAddr{} }

// Unicast reports whether h can be one interface's address: neither its GID
// is a group or unset nor its queue pair number that of multicast. Nothing
// else may be learned.
func (h HWAddr) Unicast() bool {
	return !h.IsGroup() && h.QPN() != ib.QPNMulticast && !h.GID().IsZero()
}

// String prints all 20 bytes in hexadecimal, separated by colons.
func (h HWAddr) String() string {
	b := make([]byte, 0, 3*HWAddrLen)
	for i, c := range h {
		if i > 0 {
			b = append(b, ':')
		}
		b = hex.AppendEncode(b, []byte{c})
	}
	return string(b)
}

// ParseHWAddr is the reverse of String; upper case is accepted.
func ParseHWAddr(s string) (h HWAddr, err error) {
	parts := strings.Split(s, ":")
	if len(parts) != HWAddrLen {
		return HWAddr{}, fmt.Errorf("hardware address %q: %d of %d pairs of hexadecimal digits", s, len(parts),
			HWAddrLen)
	}
	for i, p := range parts {
		if len(p) != 2 {
			return HWAddr{}, fmt.Errorf("hardware address %q: %q is not a pair of hexadecimal digits", s, p)
		}
		if _, err := hex.Decode(h[i:i+1], []byte(p)); err != nil {
			return HWAddr{}, fmt.Errorf("hardware address %q: %q is not a pair of hexadecimal digits", s, p)
		}
	}
	return h, nil
}

// MarshalText is String, for JSON.
func (h HWAddr) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText is ParseHWAddr.
func (h *HWAddr) UnmarshalText(b []byte) (err error) {
	*h, err = ParseHWAddr(string(b))
	return err
}

// Signatures of the two kinds of IP groups in a multicast GID (RFC 4391, 4).
const (
	sigIPv4 = 0x401b
	sigIPv6 = 0x601b
)

// groupPrefix writes flags, scope, signature and P_Key. The P_Key is always
// the full member's form.
func groupPrefix(pkey ib.PKey, scope uint8, signature uint16) (g ib.GID) {
	g[0], g[1] = 0xff, 0x10|scope&0xf
	be.PutUint16(g[2:], signature)
	be.PutUint16(g[4:], uint16(pkey|0x8000))
	return g
}

// BroadcastGID returns the group that is the boundary of an IPoIB link, used
// for ARP and for every IPv4 broadcast address (RFC 4391, 4). scope is that
// of the link, 2 unless the partition was set up otherwise.
func BroadcastGID(pkey ib.PKey, scope uint8) ib.GID {
	g := groupPrefix(pkey, scope, sigIPv4)
	be.PutUint32(g[12:], 0xffffffff)
	return g
}

// GroupGID returns the multicast GID of an IP multicast group on the link of
// pkey with a broadcast group of the given scope: the scope is never the IP
// group's. Only the low 28 bits of an IPv4 group and 80 of an IPv6 group
// survive, so several groups share a GID and the IP layer filters.
//
// Preconditions: group is a multicast address.
func GroupGID(group netip.Addr, pkey ib.PKey, scope uint8) ib.GID {
	if group.Is4() {
		g := groupPrefix(pkey, scope, sigIPv4)
		a := group.As4()
		copy(g[12:], a[:])
		g[12] &= 0x0f
		return g
	}
	g := groupPrefix(pkey, scope, sigIPv6)
	a := group.As16()
	copy(g[6:], a[6:])
	return g
}

// IID returns the IPv6 interface identifier of a port: its GUID with the
// universal bit set (RFC 4391, 8).
func IID(guid ib.GUID) (id [8]byte) {
	be.PutUint64(id[:], uint64(guid)|0x02<<56)
	return id
}

// LinkLocal returns the IPv6 link-local address of a port.
func LinkLocal(guid ib.GUID) netip.Addr {
	a := [16]byte{0: 0xfe, 1: 0x80}
	id := IID(guid)
	copy(a[8:], id[:])
	return netip.AddrFrom16(a)
}

// SolicitedNode returns the multicast group for the resolution of the IPv6 address a (RFC 4291,
// 2.7.1).
func SolicitedNode(a netip.Addr) netip.Addr {
	g, b := [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff}, a.As16()
	copy(g[13:], b[13:])
	return netip.AddrFrom16(g)
}
