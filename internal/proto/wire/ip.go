// SPDX-License-Identifier: Apache-2.0

package wire

import "weft/internal/proto/ib"

// UDPPort is the destination port of RoCEv2.
const UDPPort = 4791

// Header lengths in bytes. RoCEv2 has neither IPv4 options nor IPv6 extension
// headers: the ICRC's masks assume it (IBA volume 1, annex A17).
const (
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8
	// MaxIPUDPLen bounds what IPUDP.Put writes.
	MaxIPUDPLen = ipv6Len + udpLen
)

// IPUDP are the decoded IP and UDP headers of a RoCEv2 packet.
type IPUDP struct {
	Src, Dst  ib.GID
	IPv4      bool
	TClass    uint8  // IPv4 TOS
	HopLimit  uint8  // IPv4 TTL
	DF        bool   // IPv4 only
	ID        uint16 // IPv4 identification
	FlowLabel uint32 // IPv6 only, 20 bits
	SrcPort   uint16
	DstPort   uint16
	Checksum  uint16 // of UDP; 0 is none
}

// Len returns the length of the headers that Put writes: 28 or 48.
func (h *IPUDP) Len() int {
	if h.IPv4 {
		return ipv4Len + udpLen
	}
	return ipv6Len + udpLen
}

// Put writes IP and UDP headers for a UDP payload (BTH … ICRC) of n bytes to
// the start of b and returns their length. The IPv4 header checksum is
// computed, the UDP checksum taken from h.
//
// Preconditions: b has h.Len() bytes (MaxIPUDPLen always suffices), and n is
// at most 65535-28.
func (h *IPUDP) Put(b []byte, n int) int {
	l := putIP(b, h, n)
	u := b[l : l+udpLen]
	be.PutUint16(u, h.SrcPort)
	be.PutUint16(u[2:], h.DstPort)
	be.PutUint16(u[4:], uint16(n+udpLen))
	be.PutUint16(u[6:], h.Checksum)
	return l + udpLen
}

// putIP writes the IP header in front of a UDP payload of n bytes.
func putIP(b []byte, h *IPUDP, n int) int {
	if !h.IPv4 {
		b = b[:ipv6Len]
		be.PutUint32(b, 6<<28|uint32(h.TClass)<<20|h.FlowLabel&0xfffff)
		be.PutUint16(b[4:], uint16(n+udpLen))
		b[6], b[7] = protoUDP, h.HopLimit
		copy(b[8:24], h.Src[:])
		copy(b[24:40], h.Dst[:])
		return ipv6Len
	}
	b = b[:ipv4Len]
	b[0], b[1] = 0x45, h.TClass
	be.PutUint16(b[2:], uint16(n+ipv4Len+udpLen))
	be.PutUint16(b[4:], h.ID)
	b[6], b[7] = bit(h.DF, 6), 0
	b[8], b[9] = h.HopLimit, protoUDP
	b[10], b[11] = 0, 0
	copy(b[12:16], h.Src[12:])
	copy(b[16:20], h.Dst[12:])
	be.PutUint16(b[10:], ^sum16(b))
	return ipv4Len
}

const protoUDP = 17

// sum16 is the ones' complement sum of an IPv4 header (RFC 1071). Over a
// header with a right checksum it is 0xffff.
func sum16(b []byte) uint16 {
	b = b[:ipv4Len]
	var s uint32
	for i := 0; i < ipv4Len; i += 2 {
		s += uint32(be.Uint16(b[i:]))
	}
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}

// Parse decodes the headers of a frame that starts with an IP header and
// returns what UDP carries, BTH … ICRC, aliasing frame. Bytes behind the
// length that IP states, such as Ethernet padding, are cut. The IPv4 header
// checksum is checked; a UDP checksum is not, as the ICRC covers more. On a
// refusal payload is nil and h is undefined.
//
// Fragments, options and extension headers are refused, and so is a UDP
// length that leaves bytes of the IP payload over.
func (h *IPUDP) Parse(frame []byte) (payload []byte, why Refusal) {
	if len(frame) == 0 {
		return nil, Short
	}
	var n int // IP header
	switch v := frame[0]; {
	case v == 0x45:
		if len(frame) < ipv4Len+udpLen {
			return nil, Short
		}
		total := int(be.Uint16(frame[2:]))
		if total < ipv4Len+udpLen || total > len(frame) {
			return nil, IPLength
		}
		frag := be.Uint16(frame[6:])
		if frag&0x3fff != 0 {
			return nil, IPFragment
		}
		if sum16(frame) != 0xffff {
			return nil, IPChecksum
		}
		if frame[9] != protoUDP {
			return nil, NotRoCE
		}
		*h = IPUDP{IPv4: true, TClass: frame[1], HopLimit: frame[8], DF: frag&0x4000 != 0, ID: be.Uint16(frame[4:])}
		h.Src = mapped([4]byte(frame[12:16]))
		h.Dst = mapped([4]byte(frame[16:20]))
		n, frame = ipv4Len, frame[:total]
	case v>>4 == 6:
		if len(frame) < ipv6Len+udpLen {
			return nil, Short
		}
		total := ipv6Len + int(be.Uint16(frame[4:]))
		if total < ipv6Len+udpLen || total > len(frame) {
			return nil, IPLength
		}
		switch frame[6] {
		case protoUDP:
		case 44:
			return nil, IPFragment
		default:
			return nil, NotRoCE
		}
		first := be.Uint32(frame)
		*h = IPUDP{TClass: uint8(first >> 20), FlowLabel: first & 0xfffff, HopLimit: frame[7]}
		h.Src, h.Dst = ib.GID(frame[8:24]), ib.GID(frame[24:40])
		n, frame = ipv6Len, frame[:total]
	default:
		return nil, IPVersion
	}
	u := frame[n:]
	h.SrcPort, h.DstPort, h.Checksum = be.Uint16(u), be.Uint16(u[2:]), be.Uint16(u[6:])
	if h.DstPort != UDPPort {
		return nil, NotRoCE
	}
	if int(be.Uint16(u[4:])) != len(u) {
		return nil, IPLength
	}
	return u[udpLen:], OK
}

func mapped(a [4]byte) ib.GID {
	return ib.GID{10: 0xff, 11: 0xff, 12: a[0], 13: a[1], 14: a[2], 15: a[3]}
}

// GRHLen is the length of a GRH, and of the area that a datagram queue pair
// reserves for one in front of every received message.
const GRHLen = 40

// PutGRHArea fills the first GRHLen bytes of b with what a UD receive buffer
// starts with: for IPv4 20 zero bytes and the IP header, for IPv6 the IP
// header (IBA volume 1, annex A17). path is the inbound path: SGID the peer,
// DGID this port. n is the length of the UDP payload, BTH … ICRC. The IPv4
// identification is not part of a path and is 0, with DF set and the checksum
// right.
func PutGRHArea(b []byte, path *ib.Path, ipv4 bool, n int) {
	h := IPUDP{Src: path.SGID, Dst: path.DGID, IPv4: ipv4, TClass: path.TClass, HopLimit: path.HopLimit,
		DF: true, FlowLabel: path.FlowLabel}
	b = b[:GRHLen]
	if ipv4 {
		clear(b[:GRHLen-ipv4Len])
		b = b[GRHLen-ipv4Len:]
	}
	putIP(b, &h, n)
}

// SrcPort returns the UDP source port that a flow label stands for (IBA volume
// 1, annex A17): 0xC000 … 0xFFFF. Flow label 0 means that the two queue pair
// numbers of a connection are hashed, alike from both ends. All packets of a
// queue pair keep one port, so that networks keep their order.
func SrcPort(flowLabel uint32, local, remote ib.QPN) uint16 {
	if flowLabel == 0 {
		v := uint64(local) * uint64(remote)
		v ^= v >> 20
		v ^= v >> 40
		flowLabel = uint32(v)
	}
	flowLabel &= 0xfffff
	return uint16(flowLabel&0x3fff^flowLabel>>14) | 0xc000
}
