// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"encoding/binary"
	"errors"
)

// ErrShort is the error of a Parse with fewer bytes than its structure has. Parsers ignore bytes after the structure,
// and reserved bits; they never allocate and never keep b.
var ErrShort = errors.New("mad: too short")

var be = binary.BigEndian

// blank is what extend appends; the longest structure is a whole MAD of Omni-Path.
var blank [OPALen]byte

// extend appends n zero bytes to b, at most OPALen, and returns b and the new part. Bytes that the caller does not
// write are zero, whatever the spare capacity of b contained.
func extend(b []byte, n int) (whole, part []byte) {
	whole = append(b, blank[:n]...)
	return whole, whole[len(b):]
}

// flag returns a byte with bit n set if v.
func flag(v bool, n uint) uint8 {
	if v {
		return 1 << n
	}
	return 0
}

func put24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }

// putUint writes the low bytes of v, as many as b has.
func putUint(b []byte, v uint64) {
	for i := range b {
		b[i] = byte(v >> (8 * (len(b) - 1 - i)))
	}
}

// getUint returns the at most 8 bytes of b as one number.
func getUint(b []byte) (v uint64) {
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	return v
}

func get24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }
