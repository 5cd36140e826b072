// SPDX-License-Identifier: Apache-2.0

package wire

import "net/netip"

// IPv6 next header values that are looked at here.
const (
	protoHopByHop = 0
	protoRouting  = 43
	protoICMPv6   = 58
	protoDestOpts = 60
)

// maxExtHeaders bounds the walk over extension headers.
const maxExtHeaders = 8

// ICMPv6 finds the ICMPv6 header of an IPv6 packet, behind extension headers
// if need be. A fragment has none: neighbor discovery does not accept them
// (RFC 6980, 5). ok promises four bytes at p[off:], inside the payload that
// the IPv6 header states.
func ICMPv6(p []byte) (off int, ok bool) {
	if len(p) < ipv6Len {
		return 0, false
	}
	p = p[:min(len(p), ipv6Len+int(be.Uint16(p[4:])))]
	next, off := p[6], ipv6Len
	for range maxExtHeaders {
		switch next {
		case protoICMPv6:
			return off, off+4 <= len(p)
		case protoHopByHop, protoRouting, protoDestOpts:
			if off+8 > len(p) {
				return 0, false
			}
			next, off = p[off], off+8*(1+int(p[off+1]))
		default:
			return 0, false
		}
	}
	return 0, false
}

// Types of neighbor discovery messages (RFC 4861, 4).
const (
	NDRouterSolicit   uint8 = 133
	NDRouterAdvert    uint8 = 134
	NDNeighborSolicit uint8 = 135
	NDNeighborAdvert  uint8 = 136
	NDRedirect        uint8 = 137
	ndOptSource       uint8 = 1
	ndOptTarget       uint8 = 2
	ndOptMTU          uint8 = 5
	ndLinkOptLen            = 24 // type, length, two bytes of padding, address
	ndHopLimit              = 255
	ndFlagRouter            = 0x80
	ndFlagSolicited         = 0x40
	ndFlagOverride          = 0x20
	ndUnit                  = 8 // lengths of options count these
	minNDLen                = 8
	ndTargetOff             = 8
	ndRedirectDestOff       = 24
)

// MaxNDLen bounds what ND.Put writes.
const MaxNDLen = ipv6Len + 40 + ndLinkOptLen

// IsND reports whether an ICMPv6 type is one of neighbor discovery's.
func IsND(typ uint8) bool { return typ >= NDRouterSolicit && typ <= NDRedirect }

// ND is a neighbor discovery message with the IPv6 header around it.
type ND struct {
	Type     uint8
	Src, Dst netip.Addr
	Target   netip.Addr // of solicitations, advertisements and redirects of neighbours
	Dest     netip.Addr // of redirects
	// Flags of a neighbour's advertisement.
	Router, Solicited, Override bool
	// Link is the address in the Source or Target link-layer address option, whichever
	// the type has (RFC 4391, 9.3), and HasLink that there is one.
	Link    HWAddr
	HasLink bool
	MTU     uint32 // of a router's advertisement; 0 where it states none
}

// fixedLen is the length of the part in front of the options.
func (n *ND) fixedLen() int {
	switch n.Type {
	case NDRouterSolicit:
		return 8
	case NDRouterAdvert:
		return 16
	case NDRedirect:
		return 40
	}
	return 24
}

// linkOpt is the type of the option with Link.
func (n *ND) linkOpt() uint8 {
	if n.Type == NDNeighborAdvert || n.Type == NDRedirect {
		return ndOptTarget
	}
	return ndOptSource
}

// Put writes the message as an IPv6 packet to the start of b and returns its
// length; MaxNDLen bytes always suffice.
//
// Preconditions: Type is not NDRouterAdvert, which nothing here originates.
func (n *ND) Put(b []byte) int {
	l := n.fixedLen()
	if n.HasLink {
		l += ndLinkOptLen
	}
	b = b[:ipv6Len+l]
	putIPv6(b, n.Src, n.Dst, ndHopLimit, l)
	m := b[ipv6Len:]
	clear(m)
	m[0] = n.Type
	switch n.Type {
	case NDNeighborAdvert:
		m[4] = bit(n.Router, 7) | bit(n.Solicited, 6) | bit(n.Override, 5)
		fallthrough
	case NDNeighborSolicit, NDRedirect:
		put16(m[ndTargetOff:], n.Target)
		if n.Type == NDRedirect {
			put16(m[ndRedirectDestOff:], n.Dest)
		}
	}
	if n.HasLink {
		putLinkOpt(m[n.fixedLen():], n.linkOpt(), &n.Link)
	}
	sealICMPv6(b, ipv6Len)
	return len(b)
}

func putLinkOpt(b []byte, typ uint8, hw *HWAddr) {
	b = b[:ndLinkOptLen]
	b[0], b[1], b[2], b[3] = typ, ndLinkOptLen/ndUnit, 0, 0
	copy(b[4:], hw[:])
}

// putIPv6 writes the IPv6 header of an ICMPv6 message of n bytes.
func putIPv6(b []byte, src, dst netip.Addr, hops uint8, n int) {
	be.PutUint32(b, 6<<28)
	be.PutUint16(b[4:], uint16(n))
	b[6], b[7] = protoICMPv6, hops
	put16(b[8:], src)
	put16(b[24:], dst)
}

func put16(b []byte, a netip.Addr) {
	v := a.As16()
	copy(b, v[:])
}

// Parse decodes the neighbor discovery message in the IPv6 packet p; its ICMPv6 header is at off. It
// makes the checks of RFC 4861, 6.1, 7.1 and 8.1. The link-layer address option of a router's message
// is optional and counts as absent if its length is wrong; that of a neighbour's is then a refusal. On
// a refusal n is undefined.
//
// Preconditions: IsND(p[off]).
func (n *ND) Parse(p []byte, off int) FrameRefusal {
	total := ipv6Len + int(be.Uint16(p[4:]))
	if total > len(p) || total < off+minNDLen {
		return FrameShort
	}
	p = p[:total]
	m := p[off:]
	*n = ND{Type: m[0], Src: netip.AddrFrom16([16]byte(p[8:24])), Dst: netip.AddrFrom16([16]byte(p[24:40]))}
	switch {
	case len(m) < n.fixedLen():
		return FrameShort
	case p[7] != ndHopLimit:
		return NDHopLimit
	case m[1] != 0:
		return NDCode
	case checksumICMPv6(p, off) != 0:
		return NDChecksum
	}
	if why := n.options(m[n.fixedLen():]); why != FrameOK {
		return why
	}
	if n.Type >= NDNeighborSolicit {
		n.Target = netip.AddrFrom16([16]byte(m[ndTargetOff:]))
	}
	switch n.Type {
	case NDNeighborAdvert:
		n.Router, n.Solicited, n.Override = m[4]&ndFlagRouter != 0, m[4]&ndFlagSolicited != 0, m[4]&ndFlagOverride != 0
	case NDRedirect:
		n.Dest = netip.AddrFrom16([16]byte(m[ndRedirectDestOff:]))
	}
	return n.check()
}

func (n *ND) options(b []byte) FrameRefusal {
	for len(b) > 0 {
		if len(b) < ndUnit || b[1] == 0 || int(b[1])*ndUnit > len(b) {
			return NDOption
		}
		opt := b[:int(b[1])*ndUnit]
		b = b[len(opt):]
		switch {
		case opt[0] == n.linkOpt() && len(opt) == ndLinkOptLen:
			if n.HasLink {
				continue // the first counts
			}
			n.Link, n.HasLink = HWAddr(opt[4:]), true
			if !n.Link.Unicast() {
				return NDLinkAddr
			}
		case opt[0] == n.linkOpt() && (n.Type == NDNeighborSolicit || n.Type == NDNeighborAdvert):
			return NDLinkAddrLen
		case opt[0] == ndOptMTU && n.Type == NDRouterAdvert && len(opt) == ndUnit:
			n.MTU = be.Uint32(opt[4:])
		}
	}
	return FrameOK
}

// check is about addresses.
func (n *ND) check() FrameRefusal {
	if n.Src.IsMulticast() {
		return NDSource
	}
	switch n.Type {
	case NDRouterSolicit:
		if n.Src.IsUnspecified() && n.HasLink {
			return NDSource
		}
	case NDRouterAdvert:
		if !n.Src.IsLinkLocalUnicast() {
			return NDSource
		}
	case NDNeighborSolicit:
		switch {
		case n.Target.IsMulticast() || n.Target.IsUnspecified():
			return NDTarget
		case n.Src.IsUnspecified() && n.HasLink:
			return NDSource
		case n.Src.IsUnspecified() && n.Dst != SolicitedNode(n.Target):
			return NDTarget
		}
	case NDNeighborAdvert:
		switch {
		case n.Target.IsMulticast() || n.Target.IsUnspecified() || n.Solicited && n.Dst.IsMulticast():
			return NDTarget
		case n.Src.IsUnspecified():
			return NDSource
		}
	case NDRedirect:
		switch {
		case !n.Src.IsLinkLocalUnicast():
			return NDSource
		case n.Dest.IsMulticast() || !n.Target.IsLinkLocalUnicast() && n.Target != n.Dest:
			return NDTarget
		}
	}
	return FrameOK
}

// PutSourceLink copies the router's message p, with its ICMPv6 header at off, to dst with hw as its
// Source link-layer address option, or with none if hw is nil, replacing any it had. It returns the
// new length: at most SourceLinkRoom more than p's. It corrects payload length and checksum. An IP
// stack above a link without addresses accepts no such option, and sends none, while neighbours
// require it.
//
// Preconditions: ND.Parse accepted p; its type is NDRouterSolicit or NDRouterAdvert. dst may be p
// itself if hw is nil.
func PutSourceLink(dst, p []byte, off int, hw *HWAddr) int {
	p = p[:ipv6Len+int(be.Uint16(p[4:]))]
	fixed := (&ND{Type: p[off]}).fixedLen()
	n := copy(dst, p[:off+fixed])
	if hw != nil {
		putLinkOpt(dst[n:], ndOptSource, hw)
		n += ndLinkOptLen
	}
	for opts := p[off+fixed:]; len(opts) > 0; {
		l := int(opts[1]) * ndUnit
		if opts[0] != ndOptSource {
			n += copy(dst[n:], opts[:l])
		}
		opts = opts[l:]
	}
	be.PutUint16(dst[4:], uint16(n-ipv6Len))
	sealICMPv6(dst[:n], off)
	return n
}

// SourceLinkRoom is how much longer PutSourceLink can make a packet.
const SourceLinkRoom = ndLinkOptLen

// sealICMPv6 sets the checksum of the ICMPv6 message at off, the rest of p.
func sealICMPv6(p []byte, off int) {
	p[off+2], p[off+3] = 0, 0
	be.PutUint16(p[off+2:], checksumICMPv6(p, off))
}

// checksumICMPv6 is the checksum over the message at off, the rest of p, and
// its pseudo header (RFC 4443, 2.3): 0 where the message holds its right one.
func checksumICMPv6(p []byte, off int) uint16 {
	s := sum(0, p[8:40])
	s += uint64(len(p)-off) + protoICMPv6
	return fold(sum(s, p[off:]))
}

// sum adds b, as big-endian words of 16 bits, to s (RFC 1071); fold makes the
// checksum of it.
func sum(s uint64, b []byte) uint64 {
	for ; len(b) >= 4; b = b[4:] {
		s += uint64(be.Uint32(b))
	}
	if len(b) >= 2 {
		s += uint64(be.Uint16(b))
		b = b[2:]
	}
	if len(b) > 0 {
		s += uint64(b[0]) << 8
	}
	return s
}

func fold(s uint64) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}
