// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"
	"math/rand/v2"
	"testing"
)

// TestVCRC compares the sixteen-at-once VCRC with the definition, bit by bit,
// at every length around the step.
func TestVCRC(t *testing.T) {
	p := make([]byte, 300)
	for i := range p {
		p[i] = byte(i*i*7 + i>>3)
	}
	for n := range p {
		reg := uint16(0xffff)
		for _, b := range p[:n] {
			reg ^= uint16(b)
			for range 8 {
				reg = reg>>1 ^ 0xd008&-(reg&1)
			}
		}
		if got, want := VCRC(p[:n]), bits.ReverseBytes16(^reg); got != want {
			t.Fatalf("%d bytes: %#04x, want %#04x", n, got, want)
		}
	}
}

// slowCRC is the definition of a CRC, bit by bit: the register behind p.
func slowCRC(poly, reg uint32, p []byte) uint32 {
	for _, b := range p {
		reg ^= uint32(b)
		for range 8 {
			reg = reg>>1 ^ poly&-(reg&1)
		}
	}
	return reg
}

// noise returns n bytes that follow no pattern, always the same.
func noise(n int) []byte {
	rng := rand.New(rand.NewPCG(5, 6))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	return p
}

// TestFeeds compares both registers with their definition and with each
// other way to compute them, at every length through 600 and every place in a
// cache line, and at some lengths of large packets.
func TestFeeds(t *testing.T) {
	buf := noise(64 + 65535)
	check := func(at, n int, icrc, vcrc uint32, slow32, slow16 uint32) {
		t.Helper()
		p := buf[at:][:n:n]
		if got := feedLong(icrc, p); got != slow32 {
			t.Fatalf("%d bytes at %d: %08x, want %08x", n, at, got, slow32)
		}
		if got := ^crc32.Update(^icrc, crc32.IEEETable, p); got != slow32 {
			t.Fatalf("%d bytes at %d: hash/crc32 has %08x, want %08x", n, at, got, slow32)
		}
		if got, ok := foldVCRC(uint16(vcrc), p); ok && got != uint16(slow16) {
			t.Fatalf("%d bytes at %d: VCRC register %04x, want %04x", n, at, got, slow16)
		}
		if got := feedVCRC(uint16(vcrc), p); got != uint16(slow16) {
			t.Fatalf("%d bytes at %d: VCRC register of tables %04x, want %04x", n, at, got, slow16)
		}
		if vcrc == 0xffff && VCRC(p) != bits.ReverseBytes16(^uint16(slow16)) {
			t.Fatalf("%d bytes at %d: VCRC %04x", n, at, VCRC(p))
		}
	}
	for at := range 64 {
		// All registers, over time; every fourth that of the start.
		icrc, vcrc := binary.LittleEndian.Uint32(buf[at:]), uint32(buf[at])|uint32(buf[at+9])<<8
		if at%4 == 0 {
			icrc, vcrc = 0xffffffff, 0xffff
		}
		slow32, slow16 := icrc, vcrc
		for n := range 601 {
			check(at, n, icrc, vcrc, slow32, slow16)
			slow32, slow16 = slowCRC(poly, slow32, buf[at+n:][:1]), slowCRC(vcrcPoly, slow16, buf[at+n:][:1])
		}
	}
	for _, n := range []int{1023, 1024, 2048, 2060, 4095, 4096, 4096 + 66, 9000, 10240, 65535} {
		for _, at := range []int{0, 1, 20, 63} {
			check(at, n, ^uint32(0), 0xffff, slowCRC(poly, ^uint32(0), buf[at:][:n]), slowCRC(vcrcPoly, 0xffff,
				buf[at:][:n]))
		}
	}
}

// TestSumsAgainstMaskedCopy compares the CRCs of native and 16B packets of every
// length with the definition over a masked copy.
func TestSumsAgainstMaskedCopy(t *testing.T) {
	for n := LRHLen + GRHLen + BTHLen; n < 600; n++ {
		p := noise(n)
		m := bytes.Clone(p)
		p[1] = p[1]&^3 | LNHLocal
		m[0], m[1], m[LRHLen+4] = p[0]|0xf0, p[1], 0xff
		if got, want := SumIB(p), crc32.ChecksumIEEE(m); got != want {
			t.Fatalf("%d bytes: SumIB %08x, want %08x", n, got, want)
		}
		p[1] |= LNHGlobal
		copy(m, bytes.Repeat([]byte{0xff}, LRHLen))
		g := m[LRHLen:]
		g[4] = p[LRHLen+4]
		g[0], g[1], g[2], g[3], g[7], g[GRHLen+4] = g[0]|0x0f, 0xff, 0xff, 0xff, 0xff, 0xff
		if got, want := SumIB(p), crc32.ChecksumIEEE(m); got != want {
			t.Fatalf("%d bytes: SumIB %08x, want %08x with a GRH", n, got, want)
		}
		m = bytes.Clone(p[:n-tail16Len])
		for i, b := range mask16 {
			m[i] |= b
		}
		if got, want := Sum16(p), crc32.ChecksumIEEE(m); got != want {
			t.Fatalf("%d bytes: Sum16 %08x, want %08x", n, got, want)
		}
	}
}

func BenchmarkCRC(b *testing.B) {
	local, global := make([]byte, 9<<10), make([]byte, 9<<10)
	local[1], global[1] = LNHLocal, LNHGlobal
	seed := NewSeed(mapped([4]byte{192, 0, 2, 1}), mapped([4]byte{192, 0, 2, 2}), 0xc001, UDPPort)
	for _, c := range []struct {
		name string
		of   func(n int)
	}{
		{"VCRC", func(n int) { VCRC(local[:n]) }},
		{"SumIB", func(n int) { SumIB(local[:n]) }},
		{"SumIB-GRH", func(n int) { SumIB(global[:n]) }},
		{"Sum", func(n int) { seed.Sum(0, local[:n]) }},
		{"Sum16", func(n int) { Sum16(local[:n]) }},
	} {
		for _, n := range []int{64, 256, 1 << 10, 2 << 10, 4 << 10, 9 << 10} {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					c.of(n)
				}
			})
		}
	}
}
