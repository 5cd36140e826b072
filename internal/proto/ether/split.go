// SPDX-License-Identifier: Apache-2.0

package ether

// Splitter cuts one frame with an Offload into frames of the network, each
// written to a place of the caller's choice: into the place of a packet, in one copy. A frame
// that is no segment is one, with its checksum completed. The zero value has none.
//
//	n, why := s.Start(frame, off, &info, mtu)
//	for range n {
//		s.Next(reserve(s.Len()))
//	}
type Splitter struct {
	off    Offload
	hdrLen int
	rest   []byte // payload to come
	size   int    // of payload in a frame
	first  bool
	left   int
	whole  []byte // the frame, where it is not cut

	l3, l4 int
	v6     bool
	tcp    bool
	id     uint16 // of IPv4
	seq    uint32
	flags  byte
	ipSum  uint64 // of the IPv4 header without what changes
	l4Sum  uint64 // of pseudo header and transport header without what changes

	hdr [MaxHeaders]byte
}

// Start begins with a frame, which must not change until the last Next, and returns the number of
// frames it becomes. None is longer than its link header and mtu octets: TCP segments are cut smaller
// than requested if necessary; other frames that do not fit are refused as Long. mtu 0 is no bound.
//
// As hardware does (RFC 9293, 3168 §6.1.2): sequence numbers are consecutive, FIN and PSH are on the
// last frame only, CWR on the first only, IPv4 identifications are consecutive. The checksum fields of
// a segment are not read.
//
// Preconditions: Check accepted off and frame; in is what Classify or ClassifyIP found in it.
func (s *Splitter) Start(frame []byte, off Offload, in *Info, mtu int) (int, Refusal) {
	s.left, s.rest = 0, nil
	if off.Kind() == GSONone {
		if mtu > 0 && int(in.End)-int(in.L3) > mtu {
			return 0, Long
		}
		s.whole, s.off, s.left = frame, off, 1
		return 1, OK
	}
	s.whole, s.off, s.first = nil, off, true
	s.hdrLen, s.l3, s.l4 = int(in.Payload), int(in.L3), int(in.L4)
	s.v6, s.tcp = in.Kind >= IPv6, in.Proto == protoTCP
	s.size = int(off.GSOSize)
	s.rest = frame[s.hdrLen:]
	if room := mtu - (s.hdrLen - s.l3); mtu > 0 && min(s.size, len(s.rest)) > room {
		if room < 8 || !s.tcp || len(s.rest) > MaxSegments*room {
			return 0, Long
		}
		s.size = room
	}
	h := s.hdr[:s.hdrLen]
	copy(h, frame)
	s.headers(h)
	s.left = (len(s.rest) + s.size - 1) / s.size
	return s.left, OK
}

// headers clears in h what changes from frame to frame, and sums up the rest.
func (s *Splitter) headers(h []byte) {
	ip, t := h[s.l3:s.l4], h[s.l4:]
	addrs := ip[8:40]
	if s.v6 {
		ip[4], ip[5] = 0, 0
	} else {
		addrs = ip[12:20]
		s.id = be.Uint16(ip[4:])
		le.PutUint32(ip[2:], 0) // total length, identification
		ip[10], ip[11] = 0, 0
		s.ipSum = sum(ip, 0)
	}
	if s.tcp {
		s.seq, s.flags = be.Uint32(t[4:]), t[13]
		le.PutUint32(t[4:], 0)
		t[13] = 0
		t[16], t[17] = 0, 0
		s.l4Sum = sum(addrs, word(protoTCP))
	} else {
		le.PutUint32(t[4:], 0) // length, checksum
		s.l4Sum = sum(addrs, word(protoUDP))
	}
	s.l4Sum = sum(t, s.l4Sum)
}

// Left is how many frames are to come.
func (s *Splitter) Left() int { return s.left }

// Len is the length of the next frame.
//
// Preconditions: Left is not 0.
func (s *Splitter) Len() int {
	if s.whole != nil {
		return len(s.whole)
	}
	return s.hdrLen + min(s.size, len(s.rest))
}

// Next writes the next frame to the first Len octets of dst.
//
// Preconditions: Left is not 0.
func (s *Splitter) Next(dst []byte) {
	dst = dst[:s.Len()]
	s.left--
	if s.whole != nil {
		copy(dst, s.whole)
		s.off.Complete(dst)
		s.whole = nil
		return
	}
	payload := dst[s.hdrLen:]
	copy(dst, s.hdr[:s.hdrLen])
	copy(payload, s.rest)
	s.rest = s.rest[len(payload):]

	ip, t := dst[s.l3:s.l4], dst[s.l4:]
	if s.v6 {
		be.PutUint16(ip[4:], uint16(len(dst)-s.l3-40))
	} else {
		n := uint16(len(dst) - s.l3)
		be.PutUint16(ip[2:], n)
		be.PutUint16(ip[4:], s.id)
		le.PutUint16(ip[10:], ^fold(add(s.ipSum, word(n)+word(s.id))))
		s.id++
	}
	length := uint16(len(t))
	if !s.tcp {
		be.PutUint16(t[4:], length)
		c := ^fold(add(sum(payload, s.l4Sum), 2*word(length))) // in the pseudo header, too
		if c == 0 {
			c = 0xffff // RFC 768: 0 is none
		}
		le.PutUint16(t[6:], c)
		return
	}
	flags := s.flags
	if !s.first {
		flags &^= tcpCWR
	}
	if s.left > 0 {
		flags &^= tcpFIN | tcpPSH
	}
	s.first = false
	be.PutUint32(t[4:], s.seq)
	t[13] = flags
	seq := word(uint16(s.seq>>16)) + word(uint16(s.seq))
	le.PutUint16(t[16:], ^fold(add(sum(payload, s.l4Sum), seq+word(uint16(flags))+word(length))))
	s.seq += uint32(len(payload))
}

// Bits of a TCP header's octet 13.
const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpPSH = 0x08
	tcpACK = 0x10
	tcpURG = 0x20
	tcpCWR = 0x80
)
