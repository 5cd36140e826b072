// SPDX-License-Identifier: Apache-2.0

// Package ethertest makes frames for tests of what carries them, and checks what arrives: a TCP segment with offloads
// goes in, the octets of the stream come out. Only tests import it.
package ethertest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"weft/internal/proto/ether"
)

// TCPSegment returns a TCP segment over IPv4 with size octets of payload, to be cut every mss octets, or a
// frame with a checksum to be completed where it fits. Its sequence number is 77.
func TCPSegment(to, from [6]byte, size, mss int) ([]byte, ether.Offload) {
	b := make([]byte, 54+size)
	copy(b, to[:])
	copy(b[6:], from[:])
	be := binary.BigEndian
	be.PutUint16(b[12:], 0x0800)
	ip, tcp := b[14:34], b[34:]
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, 6
	be.PutUint16(ip[2:], uint16(40+size))
	copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	be.PutUint16(ip[10:], ether.Checksum(ip))
	be.PutUint16(tcp, 1000)
	be.PutUint16(tcp[2:], 2000)
	be.PutUint32(tcp[4:], 77)
	tcp[12], tcp[13] = 0x50, 0x10
	be.PutUint16(tcp[14:], 500)
	for i := range b[54:] {
		b[54+i] = byte(i ^ i>>8)
	}
	pseudo := append(bytes.Clone(ip[12:20]), 0, 6, byte((20+size)>>8), byte(20+size))
	be.PutUint16(tcp[16:], ^ether.Checksum(pseudo))
	o := ether.Offload{Flags: ether.NeedsCsum, CsumStart: 34, CsumOffset: 16}
	if size > mss {
		o.GSO, o.GSOSize, o.HdrLen = ether.GSOTCPv4, uint16(mss), 54
	}
	return b, o
}

// Payloads joins what the segments of a stream carry, and checks that they follow each other.
func Payloads(t *testing.T, frames [][]byte) (b []byte) {
	t.Helper()
	for _, f := range frames {
		if seq := binary.BigEndian.Uint32(f[38:]); seq != uint32(77+len(b)) {
			t.Fatalf("sequence number %d behind %d octets", seq, len(b))
		}
		b = append(b, f[54:]...)
	}
	return b
}
