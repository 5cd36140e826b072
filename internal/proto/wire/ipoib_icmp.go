// SPDX-License-Identifier: Apache-2.0

package wire

import "net/netip"

// ICMPErrorLen bounds what PutICMPError writes: the smallest MTU of IPv6.
const ICMPErrorLen = IPv6MinMTU

// icmpv4ErrorLen bounds it for IPv4 (RFC 1812, 4.3.2.3).
const icmpv4ErrorLen = 576

// Types and codes of the errors that a link reports.
const (
	icmpv4Unreachable = 3
	icmpv4Host        = 1
	icmpv4FragNeeded  = 4
	icmpv6Unreachable = 1
	icmpv6Address     = 3
	icmpv6TooBig      = 2
	protoICMPv4       = 1
	icmpHopLimit      = 64
)

// PutICMPError writes to b the ICMP error in reply to the IP packet p, with source address from, and
// returns its length: with mtu 0 for an unreachable next hop (RFC 792, RFC 4443, 3.1), otherwise for a
// packet longer than mtu (RFC 1191, RFC 4443, 3.2). It returns 0, and nothing must be sent, if no
// error may reply to p: a fragment behind the first, an ICMP error, Neighbor Discovery, a packet from
// or to a group or the unspecified address (except to an IPv6 group, for mtu), a malformed one, or
// addresses of two families.
//
// from must not be an address of the host itself, which would drop the error as forged. b has
// ICMPErrorLen bytes; it must not overlap p.
func PutICMPError(b, p []byte, from netip.Addr, mtu int) int {
	switch {
	case len(p) >= ipv4Len && p[0]>>4 == 4 && from.Is4():
		return putICMPv4Error(b, p, from, mtu)
	case len(p) >= ipv6Len && p[0]>>4 == 6 && from.Is6():
		return putICMPv6Error(b, p, from, mtu)
	}
	return 0
}

func putICMPv4Error(b, p []byte, from netip.Addr, mtu int) int {
	hl := int(p[0]&0xf) * 4
	src, dst := netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:]))
	if hl < ipv4Len || len(p) < hl || be.Uint16(p[6:])&0x1fff != 0 || !answerable(src) || !answerable(dst) {
		return 0
	}
	if p[9] == protoICMPv4 && (len(p) <= hl || p[hl] != 8 && p[hl] != 0) {
		return 0 // only echoes surely are no errors
	}
	n := min(len(p), icmpv4ErrorLen-ipv4Len-8)
	b = b[:ipv4Len+8+n]
	clear(b[:ipv4Len+8])
	b[0], b[1] = 0x45, 0xc0 // internetwork control
	be.PutUint16(b[2:], uint16(len(b)))
	b[8], b[9] = icmpHopLimit, protoICMPv4
	put4(b[12:], from)
	put4(b[16:], src)
	be.PutUint16(b[10:], ^sum16(b))
	m := b[ipv4Len:]
	m[0], m[1] = icmpv4Unreachable, icmpv4Host
	if mtu != 0 {
		m[1] = icmpv4FragNeeded
		be.PutUint16(m[6:], uint16(min(mtu, 0xffff)))
	}
	copy(m[8:], p[:n])
	be.PutUint16(m[2:], fold(sum(0, m)))
	return len(b)
}

func putICMPv6Error(b, p []byte, from netip.Addr, mtu int) int {
	src, dst := netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:]))
	if !answerable(src) || !answerable(dst) && (mtu == 0 || !dst.IsMulticast()) {
		return 0
	}
	if off, ok := ICMPv6(p); ok && (p[off] < 128 || IsND(p[off])) {
		return 0
	}
	if p[6] == 44 && (len(p) < ipv6Len+8 || be.Uint16(p[ipv6Len+2:])&^7 != 0) {
		return 0
	}
	n := min(len(p), ICMPErrorLen-ipv6Len-8)
	b = b[:ipv6Len+8+n]
	putIPv6(b, from, src, icmpHopLimit, 8+n)
	m := b[ipv6Len:]
	clear(m[:8])
	m[0], m[1] = icmpv6Unreachable, icmpv6Address
	if mtu != 0 {
		m[0], m[1] = icmpv6TooBig, 0
		be.PutUint32(m[4:], uint32(mtu))
	}
	copy(m[8:], p[:n])
	sealICMPv6(b, ipv6Len)
	return len(b)
}

// answerable reports whether a is one host's address.
func answerable(a netip.Addr) bool {
	return !a.IsMulticast() && !a.IsUnspecified() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
