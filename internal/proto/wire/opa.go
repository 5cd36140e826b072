// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"

	"weft/internal/proto/ib"
)

// Sizes of a 16B packet (Omni-Path) in bytes.
const (
	Header16Len = 16
	// Ethernet16Len is the length of the header between a Header16 and an
	// Ethernet frame.
	Ethernet16Len = 4
	// MaxPacket16 is the longest packet of the length field, and MaxPayload16 its payload behind the
	// Header16.
	MaxPacket16  = maxQwords * 8
	MaxPayload16 = MaxPacket16 - Header16Len - tail16Len

	maxQwords = 1<<11 - 1
	tail16Len = ICRCLen + 1
	min16Len  = 24
)

// Kinds of what follows a Header16 (its L4 field).
const (
	L4Management = 0x08
	L4IBLocal    = 0x09
	L4IBGlobal   = 0x0a
	L4Ethernet   = 0x78
)

// l2Type16 is the link type 16B in the type field of Omni-Path packets: 8B is 0, 10B 1, 9B 3.
const l2Type16 = 2

// Header16 is the link header of a 16B packet. Its numbers are little-endian,
// unlike all others here. The mark of a packet's first flit, LT, is sent as one
// and ignored, as receivers must; reserved bits are sent as zero and ignored.
type Header16 struct {
	SLID, DLID uint32 // 24 bits
	Length     uint16 // 11 bits: eight-byte words, of the whole packet
	BECN, FECN bool
	SC         uint8 // 5 bits, service channel
	RC         uint8 // 3 bits, routing control
	L4         uint8 // what follows
	PKey       ib.PKey
	Entropy    uint16
	Age        uint8
}

var le = binary.LittleEndian

// Put writes h to the first Header16Len bytes of b; numbers wider than their
// field are cut to it.
func (h *Header16) Put(b []byte) {
	b = b[:Header16Len]
	le.PutUint32(b, h.SLID&0xfffff|uint32(h.Length&maxQwords)<<20|uint32(bit(h.BECN, 7))<<24)
	le.PutUint32(b[4:], h.DLID&0xfffff|uint32(h.SC&0x1f)<<20|uint32(h.RC&7)<<25|uint32(bit(h.FECN,
		4))<<24|l2Type16<<29|1<<31)
	b[8] = h.L4
	b[9] = byte(h.SLID>>20)&0x0f | byte(h.DLID>>20)<<4
	le.PutUint16(b[10:], uint16(h.PKey))
	le.PutUint16(b[12:], h.Entropy)
	b[14], b[15] = h.Age, 0
}

// parse decodes the first Header16Len bytes of b.
func (h *Header16) parse(b []byte) {
	b = b[:Header16Len]
	w0, w1 := le.Uint32(b), le.Uint32(b[4:])
	*h = Header16{SLID: w0&0xfffff | uint32(b[9]&0x0f)<<20, DLID: w1&0xfffff | uint32(b[9]>>4)<<20,
		Length: uint16(w0>>20) & maxQwords,
		BECN:   w0>>31 != 0, FECN: w1>>28&1 != 0, SC: uint8(w1>>20) & 0x1f, RC: uint8(w1>>25) & 7, L4: b[8],
		PKey: ib.PKey(le.Uint16(b[10:])), Entropy: le.Uint16(b[12:]), Age: b[14]}
}

// Len16 returns the length of a 16B packet with n bytes between Header16 and
// padding: with that, CRC and tail a whole number of eight-byte words.
//
// Preconditions: 0 ≤ n ≤ MaxPayload16.
func Len16(n int) int { return (Header16Len + n + tail16Len + 7) &^ 7 }

// Seal16 writes what is behind the n bytes that follow the Header16 in p:
// padding of zeros, CRC (Sum16) and the tail byte. It does so last.
//
// Preconditions: len(p) is Len16(n), and p begins with a Header16.
func Seal16(p []byte, n int) {
	end := len(p) - tail16Len
	clear(p[Header16Len+n : end])
	PutICRC(p[end:], Sum16(p))
	p[len(p)-1] = 0x40 | byte(end-Header16Len-n) // the mark of the last flit
}

// Parse16 decodes the link header of the 16B packet p and returns what lies
// between it and the padding, aliasing p. It checks lengths and the link type,
// not the CRC (Verify16), nor LIDs. On a refusal payload is nil and h is
// undefined.
func Parse16(p []byte, h *Header16) (payload []byte, why Refusal) {
	if len(p) < min16Len {
		return nil, Short
	}
	if p[7]>>5&3 != l2Type16 {
		return nil, LinkVersion
	}
	h.parse(p)
	if int(h.Length)*8 != len(p) {
		return nil, LinkLength
	}
	end := len(p) - tail16Len
	pad := int(p[len(p)-1] & 0x3f) // above it the mark of the last flit
	if pad > 7 || end-pad < Header16Len {
		return nil, BadPad
	}
	return p[Header16Len : end-pad : end-pad], OK
}

// Sum16 returns the CRC of a 16B packet: the CRC-32 of Ethernet over all octets before it, with the
// fields that a switch may change counted as ones: BECN, FECN, SC, Age, and LT. The CRC of Omni-Path
// adapters is not public; this is a convention of Weft's own trunks.
//
// Preconditions: len(p) ≥ min16Len.
func Sum16(p []byte) uint32 {
	h := [Header16Len]byte(p)
	le.PutUint64(h[:], le.Uint64(h[:])|le.Uint64(mask16[:]))
	le.PutUint64(h[8:], le.Uint64(h[8:])|le.Uint64(mask16[8:]))
	reg, ok := foldICRC(0xffffffff, h[:])
	if !ok {
		reg = feed(reg, h[:])
	}
	return ^feedLong(reg, p[Header16Len:len(p)-tail16Len])
}

var mask16 = [Header16Len]byte{3: 0x80, 6: 0xf0, 7: 0x91, 14: 0xff}

// Verify16 checks the CRC of a 16B packet: OK or BadICRC.
//
// Preconditions: Parse16 accepted p.
func Verify16(p []byte) Refusal {
	if Sum16(p) != le.Uint32(p[len(p)-tail16Len:]) {
		return BadICRC
	}
	return OK
}

// SetAge16 replaces the age of a 16B packet, which its CRC does not cover.
//
// Preconditions: Parse16 accepted p.
func SetAge16(p []byte, age uint8) { p[14] = age }

// PutEthernet16 writes the header of an Ethernet frame in virtual switch vesw,
// 12 bits, to the first Ethernet16Len bytes of b.
func PutEthernet16(b []byte, vesw uint16) {
	b = b[:Ethernet16Len]
	le.PutUint32(b, uint32(vesw&0xfff)<<16)
}

// ParseEthernet16 decodes the payload that Parse16 returned of a packet of
// L4Ethernet: virtual switch and frame, which aliases it and is empty in a
// packet that only notifies of congestion. On a refusal frame is nil.
func ParseEthernet16(payload []byte) (vesw uint16, frame []byte, why Refusal) {
	if len(payload) < Ethernet16Len {
		return 0, nil, Short
	}
	return le.Uint16(payload[2:]) & 0xfff, payload[Ethernet16Len:], OK
}
