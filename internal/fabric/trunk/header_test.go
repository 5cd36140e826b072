// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// golden are headers in octets written by hand from docs/notes/trunk.md.
var golden = []struct {
	h Header
	b string
}{
	{Header{Kind: Data, Stream: 5, Index: 0x01020304, Number: 0x05060708090a0b},
		"57 20 00 00 01020304 05 05060708090a0b"},
	{Header{Kind: Fragment, Stream: 63, Index: 1, Number: numberMask},
		"57 21 00 00 00000001 3f ffffffffffffff"},
	{Header{Kind: Control, Stream: 64, Index: 0xffffffff, Number: 1},
		"57 22 00 00 ffffffff 40 00000000000001"},
}

func TestHeader(t *testing.T) {
	for _, c := range golden {
		want := unhex(t, c.b)
		b := bytes.Repeat([]byte{0xa5}, HeaderLen+3)
		c.h.Put(b)
		if !bytes.Equal(b, append(want, 0xa5, 0xa5, 0xa5)) {
			t.Errorf("%+v:\ngot  % x\nwant % x", c.h, b, want)
		}
		want[3] = 0xff // reserved
		var h Header
		n, why := h.Parse(append(want, 1, 2, 3, 4))
		if length := HeaderLen + 4*int(c.h.Kind&1); why != OK || h != c.h || n != length {
			t.Errorf("got %+v, %d octets, %v; want %+v", h, n, why, c.h)
		}
		for n := range HeaderLen {
			if _, why := h.Parse(want[:n]); why != Short {
				t.Errorf("%d octets: %v, want %v", n, why, Short)
			}
		}
	}
}

func TestHeaderRefusals(t *testing.T) {
	for _, c := range []struct {
		at   int
		v    []byte
		want Refusal
	}{
		{0, []byte{0x58}, BadMagic}, {1, []byte{0x10}, BadMagic}, {1, []byte{0x00}, BadMagic},
		{1, []byte{0x23}, BadKind}, {1, []byte{0x2f}, BadKind},
		{8, []byte{64}, BadStream}, {8, []byte{255}, BadStream}, {1, []byte{0x22}, BadStream}, {1, []byte{0x21}, Short},
	} {
		b := unhex(t, golden[0].b)
		copy(b[c.at:], c.v)
		var h Header
		if _, why := h.Parse(b); why != c.want {
			t.Errorf("% x at %d: %v, want %v", c.v, c.at, why, c.want)
		}
	}
	for r := range NumRefusals + 1 {
		if s := r.String(); s == "" || strings.Contains(s, " ") || (s == "unknown") != (r == NumRefusals) {
			t.Errorf("refusal %d is called %q", r, s)
		}
	}
	for l := range NumDrops + 1 {
		if s := l.String(); s == "" || (s == "unknown") != (l == NumDrops) {
			t.Errorf("loss %d is called %q", l, s)
		}
	}
}

func TestBoundaries(t *testing.T) {
	big := append([]byte{0x40, 0x00}, make([]byte, MaxPacket)...)
	for _, c := range []struct {
		body []byte
		want bool
	}{
		{nil, false},
		{unhex(t, "00"), false},
		{unhex(t, "0000"), false},
		{unhex(t, "0001"), false},
		{unhex(t, "0001aa"), true},
		{unhex(t, "0001aabb"), false},
		{unhex(t, "0001aa 0002bbcc"), true},
		{unhex(t, "0001aa 0003bbcc"), false},
		{unhex(t, "0001aa 00"), false},
		{unhex(t, "0001aa 0000"), false},
		{unhex(t, "ffffaa"), false},
		{bytes.Repeat(unhex(t, "0001aa"), MaxPackets), true},
		{bytes.Repeat(unhex(t, "0001aa"), MaxPackets+1), false},
		{big, true},
		{append([]byte{0x40, 0x01}, make([]byte, MaxPacket+1)...), false},
	} {
		if got := boundaries(c.body); got != c.want {
			t.Errorf("% .20x, %d octets: %v", c.body, len(c.body), got)
		}
	}
}

func TestPiece(t *testing.T) {
	b := bytes.Repeat([]byte{0xa5}, 6)
	piece{index: 2, count: 3, length: 0x1052}.put(b)
	if !bytes.Equal(b, unhex(t, "02 03 1052 a5a5")) {
		t.Errorf("got % x", b)
	}
	for _, c := range []struct {
		head string
		n    int // octets behind it
		want bool
	}{
		{"00 03 1052", 1393, true}, {"02 03 1052", 1393, true}, // 4178 octets
		{"02 03 1052", 1394, false}, {"02 03 1052", 1392, false}, {"02 03 1052", 0, false},
		{"03 03 1052", 1393, false}, // index
		{"00 01 0010", 16, false},   // one fragment is none
		{"00 00 0010", 16, false},
		{"00 20 4000", 512, true},
		{"00 21 4000", 497, false},  // too many
		{"00 02 4001", 8193, false}, // too long
		{"00 02 0000", 0, false},
		{"00 02 0002", 1, true},
		{"00 04 0005", 2, false}, // the last would be empty
		{"00 02 0001", 1, false},
	} {
		p, ok := parsePiece(unhex(t, c.head), c.n)
		if ok != c.want || ok && c.n != p.size() {
			t.Errorf("%s and %d octets: %v", c.head, c.n, ok)
		}
	}
}
