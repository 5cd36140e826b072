// SPDX-License-Identifier: Apache-2.0

package ether

import "math/bits"

// Sums are of 16-bit words in little-endian order, with carries added back in
// at the end (RFC 1071): the order of octets changes nothing but the order of
// those of the sum, so that nothing is swapped where it is stored the same way.

// sum adds the words of b to s, an odd octet at the end as a word with a zero. Two
// sums may be added with add.
func sum(b []byte, s uint64) uint64 {
	var c uint64
	for len(b) >= 64 {
		s, c = bits.Add64(s, le.Uint64(b[0:8]), 0)
		s, c = bits.Add64(s, le.Uint64(b[8:16]), c)
		s, c = bits.Add64(s, le.Uint64(b[16:24]), c)
		s, c = bits.Add64(s, le.Uint64(b[24:32]), c)
		s, c = bits.Add64(s, le.Uint64(b[32:40]), c)
		s, c = bits.Add64(s, le.Uint64(b[40:48]), c)
		s, c = bits.Add64(s, le.Uint64(b[48:56]), c)
		s, c = bits.Add64(s, le.Uint64(b[56:64]), c)
		s += c
		b = b[64:]
	}
	return sumTail(b, s)
}

func sumTail(b []byte, s uint64) uint64 {
	var c uint64
	for len(b) >= 8 {
		s, c = bits.Add64(s, le.Uint64(b), 0)
		s += c
		b = b[8:]
	}
	var last uint64
	for i, v := range b {
		last |= uint64(v) << (8 * i)
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
