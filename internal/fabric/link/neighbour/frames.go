// SPDX-License-Identifier: Apache-2.0

package neighbour

import (
	"net/netip"

	"weft/internal/proto/ether"
	"weft/internal/proto/mono"
)

// ARP, behind the Ethernet header (RFC 826).
const (
	arpLen     = 28
	arpRequest = 1
	arpReply   = 2
)

// arpHead is hardware type, protocol, and the lengths of both addresses.
var arpHead = [6]byte{0, 1, 8, 0, 6, 4}

// Neighbour discovery (RFC 4861).
const (
	ipv6Len       = 40
	icmpv6        = 58
	solicitation  = 135
	advertisement = 136
	ndLen         = 24 // of both messages, without options
	hopLimit      = 255

	optSource = 1
	optTarget = 2

	flagSolicited = 0x40
)

var broadcast = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// question writes a frame with the question for an entry.
func (r *Resolver) question(b []byte, e *entry) []byte {
	if e.ip.Is4() {
		b = b[:ether.MinFrame]
		clear(b)
		copy(b, broadcast[:])
		copy(b[6:], r.mac[:])
		be.PutUint16(b[12:], ether.TypeARP)
		a := b[ether.HeaderLen:]
		copy(a, arpHead[:])
		be.PutUint16(a[6:], arpRequest)
		copy(a[8:], r.mac[:])
		src, dst := e.src.As4(), e.ip.As4()
		copy(a[14:], src[:])
		copy(a[24:], dst[:])
		return b
	}
	b = b[:MaxFrame]
	clear(b)
	src, dst := e.src.As16(), e.ip.As16()
	group := solicited(dst)
	copy(b, []byte{0x33, 0x33, 0xff, dst[13], dst[14], dst[15]})
	copy(b[6:], r.mac[:])
	be.PutUint16(b[12:], ether.TypeIPv6)
	h := b[ether.HeaderLen:]
	h[0] = 6 << 4
	be.PutUint16(h[4:], ndLen+8)
	h[6], h[7] = icmpv6, hopLimit
	copy(h[8:], src[:])
	copy(h[24:], group[:])
	m := h[ipv6Len:]
	m[0] = solicitation
	copy(m[8:], dst[:])
	m[24], m[25] = optSource, 1
	copy(m[26:], r.mac[:])
	be.PutUint16(m[2:], checksum(h, m))
	return b
}

// solicited is the group of the stations with addresses that end like a (RFC 4291, 2.7.1).
func solicited(a [16]byte) [16]byte {
	return [16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]}
}

// checksum is that of an ICMPv6 message m in a packet with the header h: zero if the checksum in m is right.
func checksum(h, m []byte) uint16 {
	s := uint32(len(m)) + icmpv6
	for _, b := range [][]byte{h[8:ipv6Len], m} {
		for i := 0; i+1 < len(b); i += 2 {
			s += uint32(be.Uint16(b[i:]))
		}
		if len(b)%2 != 0 {
			s += uint32(b[len(b)-1]) << 8
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// arp takes a request or reply of ARP.
func (r *Resolver) arp(now mono.Time, frame []byte) {
	a := frame[ether.HeaderLen:]
	if len(a) < arpLen || [6]byte(a) != arpHead {
		r.c.Malformed++
		return
	}
	op := be.Uint16(a[6:])
	from, ip := [6]byte(a[8:]), netip.AddrFrom4([4]byte(a[14:18]))
	target, to := [6]byte(a[18:]), netip.AddrFrom4([4]byte(a[24:28]))
	if from == r.mac {
		return // the guest's own, come back
	}
	if op != arpRequest && op != arpReply || from != [6]byte(frame[6:]) || !r.station(from) {
		r.c.Malformed++
		return
	}
	if !unicast(ip) {
		return // a probe of a station without an address (RFC 5227)
	}
	r.take(now, ip, from, op == arpReply && target == r.mac && [6]byte(frame) == r.mac, to)
}

// discovery takes a solicitation or advertisement of a neighbour.
func (r *Resolver) discovery(now mono.Time, frame []byte) {
	h := frame[ether.HeaderLen:]
	if len(h) < ipv6Len+ndLen || h[0]>>4 != 6 || h[6] != icmpv6 {
		return
	}
	kind := h[ipv6Len]
	if kind != solicitation && kind != advertisement {
		return
	}
	n := int(be.Uint16(h[4:]))
	from := [6]byte(frame[6:])
	if from == r.mac {
		return
	}
	if n < ndLen || ipv6Len+n > len(h) || h[7] != hopLimit || h[ipv6Len+1] != 0 || !r.station(from) {
		r.c.Malformed++
		return
	}
	m := h[ipv6Len : ipv6Len+n]
	src, to := netip.AddrFrom16([16]byte(h[8:24])), netip.AddrFrom16([16]byte(h[24:40]))
	target := netip.AddrFrom16([16]byte(m[8:24]))
	if checksum(h, m) != 0 || target.IsMulticast() {
		r.c.Malformed++
		return
	}
	solicited := kind == advertisement && m[4]&flagSolicited != 0
	if solicited && to.IsMulticast() {
		r.c.Malformed++
		return
	}
	want, about := byte(optTarget), target
	if kind == solicitation {
		want, about = optSource, src
	}
	link, found, ok := linkAddress(m[ndLen:], want)
	if !ok || found && link != from {
		r.c.Malformed++
		return
	}
	if !found || !unicast(about) {
		return // it names no MAC of a station
	}
	r.take(now, about, from, solicited && [6]byte(frame) == r.mac, to)
}

// linkAddress finds the link-layer address of a kind among options. ok is false if the options are malformed.
func linkAddress(b []byte, kind byte) (mac [6]byte, found, ok bool) {
	for len(b) > 0 {
		if len(b) < 8 || b[1] == 0 || len(b) < 8*int(b[1]) {
			return mac, false, false
		}
		if b[0] == kind {
			if b[1] != 1 {
				return mac, false, false
			}
			if !found {
				mac, found = [6]byte(b[2:8]), true
			}
		}
		b = b[8*int(b[1]):]
	}
	return mac, found, true
}
