// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"testing"
)

var ipHeaders = []struct {
	hex string
	h   IPHeader
}{
	// Of the capture of two Linux hosts.
	{"004083c0" + strings.Repeat("00", 12) + "0a630002" + strings.Repeat("00", 12) + "0a630001",
		IPHeader{0x83c0, netip.MustParseAddr("10.99.0.2"), netip.MustParseAddr("10.99.0.1")}},
	// IBA volume 1, annex A11, by hand.
	{"00601234" + "20010db8000000000000000000000001" + "20010db8000000000000000000000002",
		IPHeader{0x1234, netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")}},
}

func TestIPHeader(t *testing.T) {
	for _, c := range ipHeaders {
		b, err := hex.DecodeString(c.hex)
		if err != nil {
			t.Fatal(err)
		}
		var h IPHeader
		if err := h.Parse(b); err != nil || h != c.h {
			t.Errorf("%x: %+v, %v", b, h, err)
		}
		if got := c.h.Append([]byte{0xa5})[1:]; !bytes.Equal(got, b) {
			t.Errorf("%+v\n got %x\nwant %x", c.h, got, b)
		}
		for n := range len(b) {
			if err := h.Parse(b[:n]); !errors.Is(err, ErrIPShort) {
				t.Errorf("%d bytes: %v", n, err)
			}
		}
		dirty := bytes.Clone(b)
		dirty[1] |= 0xf
		if b[1] == 0x40 {
			for i := range 12 {
				dirty[4+i], dirty[20+i] = 0xa5, 0xa5
			}
		}
		if err := h.Parse(dirty); err != nil || h != c.h {
			t.Errorf("reserved bits: %+v, %v", h, err)
		}
		for _, v := range []struct{ at, to byte }{{0, 0x10}, {0, 1}, {1, 0x50}, {1, 0}} {
			bad := bytes.Clone(b)
			bad[v.at] = v.to
			if err := h.Parse(bad); !errors.Is(err, ErrIPVersion) {
				t.Errorf("byte %d is %#x: %v", v.at, v.to, err)
			}
		}
	}
}

func FuzzIPHeader(f *testing.F) {
	for _, c := range ipHeaders {
		b, _ := hex.DecodeString(c.hex)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again IPHeader
		if h.Parse(b) != nil {
			return
		}
		// An IPv4 address in its IPv6 form is one of IPv4 when it is written.
		if h.Src.Is4In6() || h.Dst.Is4In6() {
			return
		}
		if err := again.Parse(h.Append(nil)); err != nil || again != h {
			t.Errorf("%+v comes back as %+v, %v", h, again, err)
		}
	})
}

func TestServices(t *testing.T) {
	for _, c := range []struct {
		id    ServiceID
		space PortSpace
		port  uint16
		ok    bool
	}{
		{0x0000000001061c06, SpaceTCP, 0x1c06, true},
		{0x0000000001110fa0, SpaceUDP, 0x0fa0, true},
		{0x00000000013f0001, SpaceIB, 1, true},
		{0x0000000000020007, SpaceIPoIB, 7, true},
		{0x0000000000030007, 3, 7, false},
		{0x0000000101061c06, SpaceTCP, 0x1c06, false},
		{0x1000000001061c06, SpaceTCP, 0x1c06, false},
		{0x0000000002061c06, 0x0206, 0x1c06, false},
	} {
		space, port, ok := c.id.Space()
		if space != c.space || port != c.port || ok != c.ok {
			t.Errorf("%#x: %#x, %d, %v", c.id, space, port, ok)
		}
		if c.ok && IPService(c.space, c.port) != c.id {
			t.Errorf("%#x is not %#x", IPService(c.space, c.port), c.id)
		}
	}
}
