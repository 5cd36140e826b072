// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"bytes"
	"encoding/binary"
	"testing"
)

const headroom = 44

// datagram builds a UDP packet without checksums, with headroom in front.
func datagram(src, dst string, sport, dport uint16, payload int) []byte {
	s, d := addr(src), addr(dst)
	var b []byte
	if s.Is4() {
		b = make([]byte, headroom+28+payload)
		p := b[headroom:]
		p[0], p[8], p[9] = 0x45, 64, 17
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
		copy(p[12:], s.AsSlice())
		copy(p[16:], d.AsSlice())
		udp(p[20:], sport, dport)
		binary.BigEndian.PutUint16(p[10:], ^sum(p[:20]))
		return b
	}
	b = make([]byte, headroom+48+payload)
	p := b[headroom:]
	p[0], p[6], p[7] = 0x60, 17, 64
	binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40))
	copy(p[8:], s.AsSlice())
	copy(p[24:], d.AsSlice())
	udp(p[40:], sport, dport)
	var pseudo [8]byte
	binary.BigEndian.PutUint32(pseudo[:], uint32(len(p)-40))
	pseudo[7] = 17
	binary.BigEndian.PutUint16(p[46:], ^sum(p[8:], pseudo[:]))
	return b
}

func udp(p []byte, sport, dport uint16) {
	binary.BigEndian.PutUint16(p, sport)
	binary.BigEndian.PutUint16(p[2:], dport)
	binary.BigEndian.PutUint16(p[4:], uint16(len(p)))
	for i := range p[8:] {
		p[8+i] = byte(i * 7)
	}
}

// sum is the Internet checksum's sum of parts, each of even length but for
// the first.
func sum(parts ...[]byte) uint16 {
	var s uint32
	for _, p := range parts {
		for i := 0; i+1 < len(p); i += 2 {
			s += uint32(binary.BigEndian.Uint16(p[i:]))
		}
		if len(p)%2 == 1 {
			s += uint32(p[len(p)-1]) << 8
		}
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

func TestMergerMovesHeadsOfFlows(t *testing.T) {
	a := func() []byte { return datagram("192.0.2.1", "192.0.2.2", 1, 2, 100) }
	b := func() []byte { return datagram("2001:db8::1", "2001:db8::2", 1, 2, 100) }
	lone := datagram("192.0.2.1", "192.0.2.2", 3, 4, 100)
	bufs := [][]byte{a(), b(), lone, b(), a(), make([]byte, headroom+1), make([]byte, headroom)}
	// The buffers lie in front of somebody's memory.
	for i, p := range bufs {
		wide := bytes.Repeat([]byte{0xa5}, len(p)+64)
		copy(wide, p)
		bufs[i] = wide[:len(p)]
	}
	var m merger
	for range 2 { // the second time with used heads
		got := m.prepare(bufs, headroom)
		if len(got) != len(bufs) {
			t.Fatalf("%d buffers became %d", len(bufs), len(got))
		}
		for i, p := range got {
			if !bytes.Equal(p[headroom:], bufs[i][headroom:]) {
				t.Errorf("packet %d changed", i)
			}
			room := cap(p) - len(p)
			if head := i == 0 || i == 1; head && cap(p) < headroom+maxMerged || !head && room != 0 {
				t.Errorf("packet %d has room for %d more octets", i, room)
			}
		}
		if len(m.heads) != 2 {
			t.Errorf("%d heads for two flows", len(m.heads))
		}
	}
	// A buffer with room is its own head.
	roomy := make([]byte, headroom+maxMerged)
	copy(roomy, bufs[0])
	if got := m.prepare([][]byte{roomy[:len(bufs[0])], bufs[4]}, headroom); &got[0][0] != &roomy[0] || cap(got[0]) != len(roomy) || cap(got[1]) != len(got[1]) {
		t.Error("a buffer with room was exchanged, or one without was not")
	}
	if n := testing.AllocsPerRun(100, func() { m.prepare(bufs, headroom) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMergerIsBounded(t *testing.T) {
	var bufs [][]byte
	for i := range uint16(100) {
		bufs = append(bufs, datagram("192.0.2.1", "192.0.2.2", i, 2, 10), datagram("192.0.2.1", "192.0.2.2", i, 2, 10))
	}
	var m merger
	m.prepare(bufs, headroom)
	if len(m.heads) != maxHeads {
		t.Errorf("%d heads, want %d", len(m.heads), maxHeads)
	}
}

func FuzzMerger(f *testing.F) {
	f.Add(datagram("192.0.2.1", "192.0.2.2", 1, 2, 9)[headroom:], datagram("2001:db8::1", "2001:db8::2", 1, 2, 9)[headroom:])
	f.Fuzz(func(t *testing.T, a, b []byte) {
		pad := make([]byte, headroom)
		bufs := [][]byte{append(pad[:headroom:headroom], a...), append(pad[:headroom:headroom], b...), append(pad[:headroom:headroom], a...)}
		var m merger
		for i, p := range m.prepare(bufs, headroom) {
			if !bytes.Equal(p[headroom:], bufs[i][headroom:]) {
				t.Errorf("packet %d changed", i)
			}
		}
	})
}
