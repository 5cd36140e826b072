// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"math/bits"
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

func BenchmarkVCRC(b *testing.B) {
	p := make([]byte, 4096+40)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		VCRC(p)
	}
}
