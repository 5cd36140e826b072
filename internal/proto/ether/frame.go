// SPDX-License-Identifier: Apache-2.0

package ether

import "math/bits"

// Lengths in octets.
const (
	HeaderLen = 14 // of an Ethernet header without tags
	TagLen    = 4  // of a VLAN tag
	MinFrame  = 60 // of a frame on a network, without FCS
	// MaxTags is how many VLAN tags Classify looks behind.
	MaxTags = 4
	// MaxIP is the longest IP packet.
	MaxIP = 65535
	// MaxFrame is the longest frame that Check accepts.
	MaxFrame = HeaderLen + MaxTags*TagLen + MaxIP
	// MaxHeaders bounds the headers of a frame that is cut or joined: Ethernet with tags, IP with
	// options, and TCP with options.
	MaxHeaders = HeaderLen + MaxTags*TagLen + maxNetwork + 60
	maxNetwork = 256 // IPv6 with extension headers; Classify stops behind that
)

// EtherTypes.
const (
	TypeIPv4 = 0x0800
	TypeARP  = 0x0806
	TypeVLAN = 0x8100 // customer tag, IEEE 802.1Q
	TypeIPv6 = 0x86dd
	TypeQinQ = 0x88a8 // service tag, IEEE 802.1ad
)

// IP protocol numbers.
const (
	protoHopByHop = 0
	protoICMP     = 1
	protoTCP      = 6
	protoUDP      = 17
	protoFragment = 44
	protoICMPv6   = 58
)

// Kind is what a frame carries, in the order of the slots of an Omni-Path routing
// control word: 4*Kind is the shift.
type Kind uint8

// Kinds. What is behind IPv6 extension headers is IPv6.
const (
	Other Kind = iota
	IPv4
	IPv4UDP
	IPv4TCP
	IPv6
	IPv6TCP
	IPv6UDP
	NumKinds = iota
)

// Info is what Classify found in a frame. Offsets are from the frame's first octet.
type Info struct {
	Kind      Kind
	Tags      uint8  // VLAN tags
	Proto     uint8  // the IP protocol at L4; of a fragment, of what was cut
	Frag      bool   // an IP fragment: L4 is 0
	TCI       uint16 // of the outermost tag; its upper three bits are the priority
	EtherType uint16 // behind the tags; below 1536 it is a length
	L3        uint16 // where the network header begins
	L4        uint16 // offset of the complete TCP or UDP header, or 0
	Payload   uint16 // what is behind that header; else 0
	End       uint32 // where the IP packet ends: octets of padding may follow; without one, where the frame ends
}

// PCP is the priority of the outermost tag; 0 without one.
func (in *Info) PCP() uint8 { return uint8(in.TCI >> 13) }

// IsIP reports whether the frame has a valid IP header.
func (in *Info) IsIP() bool { return in.Kind != Other }

// Classify looks at the headers of an Ethernet frame of any octets. What has
// no sound IP header is Other.
func Classify(frame []byte) Info {
	if len(frame) < HeaderLen {
		return Info{L3: uint16(len(frame)), End: uint32(len(frame))}
	}
	in := Info{L3: HeaderLen, EtherType: be.Uint16(frame[12:]), End: uint32(len(frame))}
	for in.EtherType == TypeVLAN || in.EtherType == TypeQinQ {
		if in.Tags == MaxTags || len(frame) < int(in.L3)+TagLen {
			return in
		}
		if in.Tags == 0 {
			in.TCI = be.Uint16(frame[in.L3:])
		}
		in.EtherType = be.Uint16(frame[in.L3+2:])
		in.L3 += TagLen
		in.Tags++
	}
	in.network(frame)
	return in
}

// ClassifyIP is Classify for an IP packet without a link header.
func ClassifyIP(packet []byte) Info {
	in := Info{End: uint32(len(packet))}
	if len(packet) > 0 {
		switch packet[0] >> 4 {
		case 4:
			in.EtherType = TypeIPv4
		case 6:
			in.EtherType = TypeIPv6
		}
	}
	in.network(packet)
	return in
}

func (in *Info) network(frame []byte) {
	switch in.EtherType {
	case TypeIPv4:
		in.ipv4(frame, frame[in.L3:])
	case TypeIPv6:
		in.ipv6(frame, frame[in.L3:])
	}
}

// ipv4 reads a header of RFC 791.
func (in *Info) ipv4(frame, p []byte) {
	if len(p) < 20 || p[0]>>4 != 4 {
		return
	}
	ihl, total := int(p[0]&15)*4, int(be.Uint16(p[2:]))
	if ihl < 20 || total < ihl || total > len(p) {
		return
	}
	in.End = uint32(in.L3) + uint32(total)
	in.Proto = p[9]
	in.Frag = be.Uint16(p[6:])&0x3fff != 0 // more fragments, or not the first
	switch in.Kind = IPv4; in.Proto {
	case protoUDP:
		in.Kind = IPv4UDP
	case protoTCP:
		in.Kind = IPv4TCP
	}
	in.transport(frame, int(in.L3)+ihl)
}

// ipv6 reads a header of RFC 8200, and hop-by-hop options behind it. It goes no further at
// headers that may change what a checksum is over (routing, destination options).
func (in *Info) ipv6(frame, p []byte) {
	if len(p) < 40 || p[0]>>4 != 6 {
		return
	}
	total := 40 + int(be.Uint16(p[4:]))
	if total > len(p) {
		return
	}
	in.End = uint32(in.L3) + uint32(total)
	in.Proto = p[6]
	switch in.Kind = IPv6; in.Proto {
	case protoUDP:
		in.Kind = IPv6UDP
	case protoTCP:
		in.Kind = IPv6TCP
	}
	at := 40
	for {
		switch in.Proto {
		case protoHopByHop:
			if total < at+8 || at+8+int(p[at+1])*8 > min(total, maxNetwork) {
				return
			}
			in.Proto, at = p[at], at+8+int(p[at+1])*8
			continue
		case protoFragment:
			if total >= at+8 {
				in.Proto = p[at]
			}
			in.Frag = true
			return
		}
		in.transport(frame, int(in.L3)+at)
		return
	}
}

// transport notes where a whole TCP or UDP header is.
func (in *Info) transport(frame []byte, at int) {
	if in.Frag {
		return
	}
	n, t := 0, frame[at:in.End]
	switch in.Proto {
	case protoTCP:
		if len(t) < 20 {
			return
		}
		if n = int(t[12]>>4) * 4; n < 20 {
			return
		}
	case protoUDP:
		n = 8
	default:
		return
	}
	if len(t) >= n {
		in.L4, in.Payload = uint16(at), uint16(at+n)
	}
}

// Odd constants of a multiplicative hash: digits of the golden ratio, π and e.
const (
	hashA = 0x9e3779b97f4a7c15
	hashB = 0x243f6a8885a308d3
	hashC = 0xb7e151628aed2a6b
)

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// Hash returns the flow hash: over addresses, protocol and ports if there are ports; addresses and
// protocol for fragments and other protocols; addresses and type for other frames (0 for a bare
// packet). It is the same for all frames of a flow and all fragments of a packet. A secret seed makes
// it unpredictable.
//
// Preconditions: in is what Classify or ClassifyIP found in frame.
func (in *Info) Hash(frame []byte, seed uint64) uint32 {
	seed ^= hashA
	last := uint64(in.Proto)
	if in.L4 != 0 {
		last |= uint64(le.Uint32(frame[in.L4:])) << 8
	}
	var h uint64
	switch p := frame[in.L3:]; {
	case in.Kind == Other && len(frame) < HeaderLen || in.L3 == 0 && in.Kind == Other:
		return 0
	case in.Kind == Other:
		h = mix(le.Uint64(frame)^seed, uint64(le.Uint32(frame[8:]))<<16^uint64(in.EtherType)^hashB)
	case in.Kind >= IPv6:
		h = mix(le.Uint64(p[8:])^seed, le.Uint64(p[16:])^hashB)
		h ^= mix(le.Uint64(p[24:])^h^hashC, le.Uint64(p[32:])^hashA)
		h = mix(h^last, hashC)
	default:
		h = mix(le.Uint64(p[12:])^seed, last^hashB)
	}
	h = mix(h^hashB, hashA)
	return uint32(h>>32) ^ uint32(h)
}
