// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// slowVCRC is the definition, bit by bit.
func slowVCRC(p []byte) uint16 {
	r := uint16(0xffff)
	for _, b := range p {
		r ^= uint16(b)
		for range 8 {
			r = r>>1 ^ 0xd008&-(r&1)
		}
	}
	return bits.ReverseBytes16(^r)
}

// TestVCRCOfEveryLength compares all ways to compute it with its definition.
func TestVCRCOfEveryLength(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	p := make([]byte, 4200)
	for i := range p {
		p[i] = byte(rnd.Uint32())
	}
	for n := 0; n < 700; n++ {
		for _, at := range []int{0, 1, 7} {
			if got, want := VCRC(p[at:at+n]), slowVCRC(p[at:at+n]); got != want {
				t.Fatalf("%d bytes: %#04x, want %#04x", n, got, want)
			}
		}
	}
	for _, n := range []int{1023, 2048, 4096 + 66, 4200} {
		if got, want := VCRC(p[:n]), slowVCRC(p[:n]); got != want {
			t.Errorf("%d bytes: %#04x, want %#04x", n, got, want)
		}
	}
}
