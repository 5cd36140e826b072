// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"hash/crc32"
	"math/bits"
)

// The ICRC is CRC-32 of Ethernet over a masked copy of the packet (IBA volume
// 1, 7.8.1; annex A17 for RoCEv2). No copy is made here. A CRC register is
// linear in everything fed to it: what one byte contributes, seen n bytes
// later, is a table entry, and the entries of all bytes add up by exclusive
// or. So the masked headers are a handful of look-ups, and feedLong takes
// over behind the BTH, where nothing is masked.
//
// "Register" below is the bare CRC register. hash/crc32 complements it at
// entry and exit, so a register r is its argument or result ^r.

const poly = 0xedb88320 // x^32+x^26+…+1, reflected

// ones8 is the register behind the eight bytes of ones that stand for a
// masked LRH.
const ones8 = 0xdebb20e3

// after[n][b] is the register that byte b leaves n bytes later, the register
// being zero before it. It reaches from the payload length of an IPv6 header
// to the end of the UDP header.
var after = buildAfter()

func buildAfter() *[44][256]uint32 {
	t := new([44][256]uint32)
	for b := range t[0] {
		r := uint32(b)
		for range 8 {
			r = r>>1 ^ poly&-(r&1)
		}
		t[0][b] = r
	}
	for n := 1; n < len(t); n++ {
		for b, r := range t[n-1] {
			t[n][b] = r>>8 ^ t[0][byte(r)]
		}
	}
	return t
}

// feedLong returns the register behind p: by a kernel where there is one, else
// by hash/crc32, through which an array on the stack would escape to the heap.
func feedLong(reg uint32, p []byte) uint32 {
	if len(p) < 16 {
		return feed(reg, p)
	}
	if r, ok := foldICRC(reg, p); ok {
		return r
	}
	return ^crc32.Update(^reg, crc32.IEEETable, p)
}

// feed returns the register behind p, byte by byte: for few bytes, and for a
// header that is built on the stack.
func feed(reg uint32, p []byte) uint32 {
	t := &after[0]
	for _, b := range p {
		reg = reg>>8 ^ t[byte(reg)^b]
	}
	return reg
}

// feedBTH returns the register behind the 12 bytes of a BTH, byte 4 (FECN,
// BECN and reserved bits) counting as ones.
func feedBTH(reg uint32, p []byte) uint32 {
	p = p[:BTHLen]
	t := (*[BTHLen][256]uint32)(after[:BTHLen])
	return t[11][p[0]^byte(reg)] ^ t[10][p[1]^byte(reg>>8)] ^ t[9][p[2]^byte(reg>>16)] ^ t[8][p[3]^byte(reg>>24)] ^
		t[7][0xff] ^ t[6][p[5]] ^ t[5][p[6]] ^ t[4][p[7]] ^
		t[3][p[8]] ^ t[2][p[9]] ^ t[1][p[10]] ^ t[0][p[11]]
}

// A register is also a polynomial, bit 31 the constant term; feeding one zero
// byte multiplies it by x^8 modulo the CRC polynomial, which is invertible.
// back[0][i] is x^(-8i) and back[1][i] is x^(-8·256·i), so that any 16-bit
// number of bytes, and the header in front, is two multiplications away.
var back = buildBack()

func buildBack() *[2][257]uint32 {
	t := new([2][257]uint32)
	t[0][0], t[1][0] = 1<<31, 1<<31
	for i := 1; i < len(t[0]); i++ {
		r := t[0][i-1]
		for range 8 {
			// The inverse of r>>1 ^ poly&-(r&1): poly has bit 31 set.
			top := r >> 31
			r = (r^poly&-top)<<1 | top
		}
		t[0][i] = r
	}
	for i := 1; i < len(t[1]); i++ {
		t[1][i] = mul(t[1][i-1], t[0][256])
	}
	return t
}

// mul multiplies two polynomials modulo the CRC polynomial.
func mul(a, b uint32) uint32 {
	var r uint32
	for range 32 {
		r ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ poly&-(b&1)
	}
	return r
}

// rewind returns the register that n zero bytes turn into reg, 0 ≤ n < 2^16+256.
func rewind(reg uint32, n int) uint32 {
	if hi := n >> 8; hi != 0 {
		reg = mul(reg, back[1][hi])
	}
	return mul(reg, back[0][n&0xff])
}

// vcrcPoly is x^16+x^12+x^3+x+1, reflected.
const vcrcPoly = 0xd008

// vcrcTab[n][b] is the register of the variant CRC that byte b leaves n bytes
// later. Sixteen at once take one dependent look-up.
var vcrcTab = func() *[16][256]uint16 {
	t := new([16][256]uint16)
	for b := range t[0] {
		r := uint16(b)
		for range 8 {
			r = r>>1 ^ vcrcPoly&-(r&1)
		}
		t[0][b] = r
	}
	for n := 1; n < len(t); n++ {
		for b, r := range t[n-1] {
			t[n][b] = r>>8 ^ t[0][byte(r)]
		}
	}
	return t
}()

// VCRC returns the variant CRC of a native packet, p being LRH … ICRC (IBA
// volume 1, 7.8.2), as the big-endian number its two bytes read as.
func VCRC(p []byte) uint16 {
	reg, ok := foldVCRC(0xffff, p)
	if !ok {
		reg = feedVCRC(reg, p)
	}
	return bits.ReverseBytes16(^reg)
}

// feedVCRC returns the register of the variant CRC behind p, by tables.
func feedVCRC(reg uint16, p []byte) uint16 {
	t := vcrcTab
	for len(p) >= 16 {
		q := (*[16]byte)(p)
		reg = t[15][q[0]^byte(reg)] ^ t[14][q[1]^byte(reg>>8)] ^
			t[13][q[2]] ^ t[12][q[3]] ^ t[11][q[4]] ^ t[10][q[5]] ^ t[9][q[6]] ^ t[8][q[7]] ^
			t[7][q[8]] ^ t[6][q[9]] ^ t[5][q[10]] ^ t[4][q[11]] ^ t[3][q[12]] ^ t[2][q[13]] ^ t[1][q[14]] ^ t[0][q[15]]
		p = p[16:]
	}
	for _, b := range p {
		reg = reg>>8 ^ t[0][byte(reg)^b]
	}
	return reg
}
