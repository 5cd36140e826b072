// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// segmenter returns one packet of the stack at a time, a long TCP packet in pieces that fit the MTU.
type segmenter struct {
	pkt   *stack.PacketBuffer // nil: nothing left
	hop   netip.Addr
	parts [][]byte // what is left of the payload, or of everything if !tcp

	tcp  bool      // the headers below are written before each piece
	head [128]byte // IP and TCP header, at most 60+60 octets
	ip   int       // length of the former
	hlen int       // and of both
	mss  int       // payload of a piece
	sent int       // payload given out
	left int       // payload not given out
}

// start begins with a packet and owns its reference. It reports whether the packet can be sent at that MTU; if not, it
// is released.
func (s *segmenter) start(p *stack.PacketBuffer, mtu int) bool {
	s.pkt, s.tcp, s.sent = p, false, 0
	// Both calls may move headers that are shared with others, and with them
	// what parts must refer to.
	ip := p.NetworkHeader().Slice()
	s.hop = nextHop(p, ip)
	s.ip = copy(s.head[:], ip)
	s.hlen = s.ip + copy(s.head[s.ip:], p.TransportHeader().Slice())
	s.parts = p.AsSlices()
	offloaded := p.GSOOptions.Type != stack.GSONone
	if !offloaded && p.Size() <= mtu {
		return true
	}
	// A piece follows the MTU as it is now, whatever the segment size of the
	// connection.
	s.mss = mtu - s.hlen
	if offloaded && p.GSOOptions.MSS > 0 {
		s.mss = min(s.mss, int(p.GSOOptions.MSS))
	}
	if p.TransportProtocolNumber != header.TCPProtocolNumber || s.ip < header.IPv4MinimumSize ||
		s.hlen < s.ip+header.TCPMinimumSize || s.mss <= 0 {
		s.release()
		return false
	}
	s.tcp = true
	s.left = p.Size() - s.hlen
	s.skip(s.hlen)
	return true
}

// nextHop is the address to resolve for a packet with that IP header.
func nextHop(p *stack.PacketBuffer, ip []byte) netip.Addr {
	r := &p.EgressRoute
	for _, a := range []tcpip.Address{r.NextHop, r.RemoteAddress} {
		switch a.Len() {
		case 4:
			return netip.AddrFrom4(a.As4())
		case 16:
			return netip.AddrFrom16(a.As16())
		}
	}
	switch {
	case len(ip) >= 20 && ip[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(ip[16:20]))
	case len(ip) >= 40 && ip[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(ip[24:40]))
	}
	return netip.Addr{}
}

// release ends the packet.
func (s *segmenter) release() {
	s.pkt.DecRef()
	s.pkt, s.parts = nil, nil
}

// skip passes over n octets of parts.
func (s *segmenter) skip(n int) {
	for n > 0 {
		if n < len(s.parts[0]) {
			s.parts[0] = s.parts[0][n:]
			return
		}
		n -= len(s.parts[0])
		s.parts = s.parts[1:]
	}
}

// move copies n octets of parts.
func (s *segmenter) move(to []byte, n int) {
	for n > 0 {
		k := copy(to[:n], s.parts[0])
		to, n = to[k:], n-k
		if s.parts[0] = s.parts[0][k:]; len(s.parts[0]) == 0 {
			s.parts = s.parts[1:]
		}
	}
}

// next writes the next piece, which is no longer than the MTU was at start, and
// returns its length. After the last, pkt is nil.
func (s *segmenter) next(to []byte) int {
	if !s.tcp {
		n := s.pkt.Size()
		s.move(to, n)
		s.release()
		return n
	}
	n := min(s.left, s.mss)
	p := to[:s.hlen+n]
	copy(p, s.head[:s.hlen])
	s.move(p[s.hlen:], n)
	s.left -= n
	s.finish(p, s.left == 0)
	s.sent += n
	if s.left == 0 {
		s.release()
	}
	return len(p)
}

// finish corrects the headers of a piece.
func (s *segmenter) finish(p []byte, last bool) {
	be := binary.BigEndian
	var pseudo uint16
	if p[0]>>4 == 4 {
		ip := header.IPv4(p)
		ip.SetTotalLength(uint16(len(p)))
		ip.SetID(ip.ID() + uint16(s.sent/s.mss))
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
		pseudo = header.PseudoHeaderChecksum(header.TCPProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(),
			uint16(len(p)-s.ip))
	} else {
		ip := header.IPv6(p)
		ip.SetPayloadLength(uint16(len(p) - header.IPv6MinimumSize))
		pseudo = header.PseudoHeaderChecksum(header.TCPProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(),
			uint16(len(p)-s.ip))
	}
	tcp := p[s.ip:]
	be.PutUint32(tcp[header.TCPSeqNumOffset:], be.Uint32(tcp[header.TCPSeqNumOffset:])+uint32(s.sent))
	if !last {
		tcp[header.TCPFlagsOffset] &^= uint8(header.TCPFlagFin | header.TCPFlagPsh)
	}
	if s.sent > 0 {
		tcp[header.TCPFlagsOffset] &^= uint8(header.TCPFlagCwr)
	}
	be.PutUint16(tcp[header.TCPChecksumOffset:], 0)
	be.PutUint16(tcp[header.TCPChecksumOffset:], ^checksum.Checksum(tcp, pseudo))
}
