// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math/bits"

	"weft/internal/proto/ib"
)

// Seed is the part of a RoCEv2 ICRC that packets of one flow share: addresses
// and ports. It is an immutable value, made once per flow; all its methods may
// be called concurrently and none allocates.
//
// An IPv4 seed assumes a 20-byte header with DF set and fragment offset 0.
// TOS, TTL, checksums, traffic class, flow label and hop limit are masked and
// so do not matter.
type Seed struct {
	reg  uint32 // behind the pseudo LRH, IP and UDP headers with zero lengths and zero identification
	ipv4 bool
}

// NewSeed returns the seed of packets from src to dst, IPv4 where both are
// IPv4-mapped, else IPv6.
func NewSeed(src, dst ib.GID, sport, dport uint16) Seed {
	s := Seed{ipv4: src.IsIPv4() && dst.IsIPv4()}
	var b [48]byte
	n := 48
	if s.ipv4 {
		n = 28
		be.PutUint64(b[:], 0x45ff0000_00004000)
		be.PutUint32(b[8:], 0xff11ffff)
		copy(b[12:], src[12:])
		copy(b[16:], dst[12:])
	} else {
		be.PutUint64(b[:], 0x6fffffff_000011ff)
		copy(b[8:], src[:])
		copy(b[24:], dst[:])
	}
	be.PutUint16(b[n-8:], sport)
	be.PutUint16(b[n-6:], dport)
	be.PutUint16(b[n-2:], 0xffff)
	s.reg = feed(ones8, b[:n])
	return s
}

// IPv4 reports whether s is the seed of an IPv4 flow.
func (s Seed) IPv4() bool { return s.ipv4 }

// Begin returns the CRC, in the convention of hash/crc32, of everything
// through the BTH, which bth starts with, of a packet with n bytes from the
// BTH to the last pad byte. Feeding it the bytes behind the BTH with
// crc32.Update yields what Sum returns; a sender does so piece by piece where
// payload lies elsewhere. ipID is the IPv4 identification and is ignored for
// IPv6.
//
// Preconditions: bth has BTHLen bytes, n ≤ 65535-12.
func (s Seed) Begin(ipID uint16, bth []byte, n int) uint32 {
	l := uint16(n + udpLen + ICRCLen)
	reg := s.reg ^ after[3][l>>8] ^ after[2][byte(l)]
	if s.ipv4 {
		l += ipv4Len
		reg ^= after[25][l>>8] ^ after[24][byte(l)] ^ after[23][ipID>>8] ^ after[22][byte(ipID)]
	} else {
		reg ^= after[43][l>>8] ^ after[42][byte(l)]
	}
	return ^feedBTH(reg, bth)
}

// Sum returns the ICRC of a packet, pkt holding BTH … pad. PutICRC stores it.
// A slice into a local array would escape to the heap; hand in pooled memory.
//
// Preconditions: BTHLen ≤ len(pkt) ≤ 65535-12.
func (s Seed) Sum(ipID uint16, pkt []byte) uint32 {
	return ^feedLong(^s.Begin(ipID, pkt, len(pkt)), pkt[BTHLen:])
}

// PutICRC stores sum in the four bytes behind pad. The ICRC is the one field
// that travels least significant byte first (IBA volume 1, 7.8.1).
func PutICRC(b []byte, sum uint32) { binary.LittleEndian.PutUint32(b, sum) }

// ICRC returns the stored ICRC at the end of p, BTH … ICRC.
//
// Preconditions: len(p) ≥ ICRCLen.
func ICRC(p []byte) uint32 { return binary.LittleEndian.Uint32(p[len(p)-ICRCLen:]) }

// Verify reports whether p, BTH … ICRC, bears the right ICRC.
func (s Seed) Verify(ipID uint16, p []byte) bool {
	if len(p) < BTHLen+ICRCLen || len(p) > 0xffff-udpLen {
		return false
	}
	return s.Sum(ipID, p[:len(p)-ICRCLen]) == ICRC(p)
}

// VerifyAnyID is Verify for a receiver that cannot see the IPv4
// identification, such as one that reads a UDP socket. It reports whether
// there is an identification with which the ICRC of p, BTH … ICRC, is right,
// and which. hint, tried first, is the cheap case: 0, the index of a segment
// in a coalesced read, or one more than the flow's last.
//
// It rejects all but one in 65,536 of the packets that Verify would, and no
// packet that Verify would accept. Over IPv6, which has no identification, it
// is Verify.
func (s Seed) VerifyAnyID(hint uint16, p []byte) (ipID uint16, ok bool) {
	if len(p) < BTHLen+ICRCLen || len(p) > 0xffff-udpLen {
		return 0, false
	}
	n := len(p) - ICRCLen
	diff := s.Sum(hint, p[:n]) ^ ICRC(p)
	if diff == 0 {
		return hint, true
	}
	if !s.ipv4 {
		return 0, false
	}
	// By linearity diff must be what the two bytes by which the identification
	// differs from hint leave behind the 22 header bytes and n packet bytes
	// that follow them. Taken back to before those two bytes it is they.
	v := rewind(diff, 2+22+n)
	if v > 0xffff {
		return 0, false
	}
	return hint ^ bits.ReverseBytes16(uint16(v)), true
}

// SumIP returns the ICRC of an RoCEv2 frame that starts with its IP header, as
// received from a TAP device or a capture, taking every covered field from
// the frame. pkt holds IP … pad, without ICRC.
//
// Preconditions: ParseIP accepted the frame.
func SumIP(pkt []byte) uint32 {
	n := ipv4Len
	var b [8]byte
	reg := uint32(ones8)
	if pkt[0]>>4 == 4 {
		copy(b[:], pkt[:8])
		b[1] = 0xff
		reg = feed(reg, b[:])
		copy(b[:4], pkt[8:12])
		b[0], b[2], b[3] = 0xff, 0xff, 0xff
		reg = feed(reg, b[:4])
		reg = feed(reg, pkt[12:20])
	} else {
		n = ipv6Len
		copy(b[:], pkt[:8])
		b[0], b[1], b[2], b[3], b[7] = b[0]|0x0f, 0xff, 0xff, 0xff, 0xff
		reg = feed(reg, b[:])
		reg = feed(reg, pkt[8:40])
	}
	copy(b[:], pkt[n:n+udpLen])
	b[6], b[7] = 0xff, 0xff
	reg = feedBTH(feed(reg, b[:]), pkt[n+udpLen:])
	return ^feedLong(reg, pkt[n+udpLen+BTHLen:])
}

// SumIB returns the ICRC of a native packet, pkt holding LRH … pad. Without a
// GRH only the VL is masked in the LRH; with one, all of the LRH and the GRH's
// traffic class, flow label and hop limit (IBA volume 1, 7.8.1).
//
// Preconditions: ParseIB accepted the packet.
func SumIB(pkt []byte) uint32 {
	reg := uint32(0xffffffff)
	bth := pkt[LRHLen:]
	if pkt[1]&3 == LNHGlobal {
		var b [8]byte
		copy(b[:], bth)
		b[0], b[1], b[2], b[3], b[7] = b[0]|0x0f, 0xff, 0xff, 0xff, 0xff
		reg = feedLong(feed(ones8, b[:]), bth[8:GRHLen])
		bth = bth[GRHLen:]
	} else {
		reg = reg>>8 ^ after[0][byte(reg)^(pkt[0]|0xf0)]
		reg = feed(reg, pkt[1:LRHLen])
	}
	return ^feedLong(feedBTH(reg, bth), bth[BTHLen:])
}
