// SPDX-License-Identifier: Apache-2.0

package ether

import "math/bits"

// Sums are of 16-bit words in little-endian order, with carries added back in
// at the end (RFC 1071): the order of octets changes nothing but the order of
// those of the sum, so that nothing is swapped where it is stored the same way.

// leastVector is the length from which vectors win, the rest that they leave included.
const leastVector = 256

// sum adds the words of b to s, an odd octet at the end as a word with a zero. Two
// sums may be added with add.
func sum(b []byte, s uint64) uint64 {
	if len(b) >= leastVector {
		s, b = sumVectors(b, s)
	}
	// One chain of carries per turn. In Go, more chains, or 32-bit halves without carries, are slower; so is
	// copying in the same loop, next to copy and a sum of what is then in the cache.
	var c uint64
	for len(b) >= 128 {
		p := (*[128]byte)(b)
		s, c = bits.Add64(s, le.Uint64(p[0:]), 0)
		s, c = bits.Add64(s, le.Uint64(p[8:]), c)
		s, c = bits.Add64(s, le.Uint64(p[16:]), c)
		s, c = bits.Add64(s, le.Uint64(p[24:]), c)
		s, c = bits.Add64(s, le.Uint64(p[32:]), c)
		s, c = bits.Add64(s, le.Uint64(p[40:]), c)
		s, c = bits.Add64(s, le.Uint64(p[48:]), c)
		s, c = bits.Add64(s, le.Uint64(p[56:]), c)
		s, c = bits.Add64(s, le.Uint64(p[64:]), c)
		s, c = bits.Add64(s, le.Uint64(p[72:]), c)
		s, c = bits.Add64(s, le.Uint64(p[80:]), c)
		s, c = bits.Add64(s, le.Uint64(p[88:]), c)
		s, c = bits.Add64(s, le.Uint64(p[96:]), c)
		s, c = bits.Add64(s, le.Uint64(p[104:]), c)
		s, c = bits.Add64(s, le.Uint64(p[112:]), c)
		s, c = bits.Add64(s, le.Uint64(p[120:]), c)
		s += c
		b = b[128:]
	}
	if len(b) >= 64 {
		p := (*[64]byte)(b)
		s, c = bits.Add64(s, le.Uint64(p[0:]), 0)
		s, c = bits.Add64(s, le.Uint64(p[8:]), c)
		s, c = bits.Add64(s, le.Uint64(p[16:]), c)
		s, c = bits.Add64(s, le.Uint64(p[24:]), c)
		s, c = bits.Add64(s, le.Uint64(p[32:]), c)
		s, c = bits.Add64(s, le.Uint64(p[40:]), c)
		s, c = bits.Add64(s, le.Uint64(p[48:]), c)
		s, c = bits.Add64(s, le.Uint64(p[56:]), c)
		s += c
		b = b[64:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, le.Uint64(b), 0)
		s += c
		b = b[8:]
	}
	var last uint64
	if len(b) >= 4 {
		last = uint64(le.Uint32(b))
		b = b[4:]
	}
	for i, v := range b { // up to three: two words
		last += uint64(v) << (8 * (i & 1))
	}
	return add(s, last)
}

// add adds two sums.
func add(a, b uint64) uint64 {
	s, c := bits.Add64(a, b, 0)
	return s + c
}

// word is a number of 16 bits as a sum has it.
func word(v uint16) uint64 { return uint64(bits.ReverseBytes16(v)) }

// fold makes 16 bits of a sum.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s)
}

// Checksum is the Internet checksum of b (RFC 1071): what its field, zero in b, is to hold, big-endian.
func Checksum(b []byte) uint16 { return bits.ReverseBytes16(^fold(sum(b, 0))) }
