// SPDX-License-Identifier: Apache-2.0

package replicate

import (
	"net/netip"
	"testing"
)

// ip builds an IPoIB payload: type, IP header, proto with n octets of data.
func ip(t *testing.T, src, dst string, proto uint8, sport, dport uint16, n int) []byte {
	t.Helper()
	s, d := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	l4 := make([]byte, 4, 64)
	be.PutUint16(l4, sport)
	be.PutUint16(l4[2:], dport)
	at := 16
	switch proto {
	case protoTCP:
		l4 = append(l4, make([]byte, 16+n)...)
		l4[12] = 5 << 4
	case protoUDP:
		l4 = append(l4, make([]byte, 4+n)...)
		be.PutUint16(l4[4:], uint16(len(l4)))
		at = 6
	default:
		l4 = append(l4, make([]byte, n)...)
	}
	for i := range n {
		l4[len(l4)-n+i] = byte(i * 37)
	}
	var h []byte
	pseudo := uint64(proto) + uint64(len(l4))
	if s.Is4() {
		h = make([]byte, 20)
		h[0], h[8], h[9] = 0x45, 64, proto
		be.PutUint16(h[2:], uint16(20+len(l4)))
		copy(h[12:], s.AsSlice())
		copy(h[16:], d.AsSlice())
		be.PutUint16(h[10:], ^fold(sum(0, h)))
		pseudo = sum(pseudo, h[12:20])
	} else {
		h = make([]byte, 40)
		h[0], h[6], h[7] = 0x60, proto, 64
		be.PutUint16(h[4:], uint16(len(l4)))
		copy(h[8:], s.AsSlice())
		copy(h[24:], d.AsSlice())
		pseudo = sum(pseudo, h[8:40])
	}
	if proto == protoTCP || proto == protoUDP {
		be.PutUint16(l4[at:], ^fold(sum(pseudo, l4)))
	}
	p := []byte{0x08, 0x00, 0, 0}
	if s.Is6() {
		p = []byte{0x86, 0xdd, 0, 0}
	}
	return append(append(p, h...), l4...)
}

// TestClassify uses the verification suite of receive-side scaling for the
// hashes: 66.9.149.187:2794 to 161.142.100.80:1766 and its IPv6 counterpart.
func TestClassify(t *testing.T) {
	const a4, b4, a6, b6 = "66.9.149.187", "161.142.100.80", "3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1"
	for _, x := range []struct {
		name string
		p    []byte
		want Class
	}{
		{"TCP over IPv4", ip(t, a4, b4, protoTCP, 2794, 1766, 33), Class{TCPv4, 0x51ccc178, true, true}},
		{"UDP over IPv4", ip(t, a4, b4, protoUDP, 2794, 1766, 8), Class{UDPv4, 0x51ccc178, true, true}},
		{"ICMP", ip(t, a4, b4, 1, 0, 0, 8), Class{IPv4, 0x323e8fc2, true, false}},
		{"TCP over IPv6", ip(t, a6, b6, protoTCP, 2794, 1766, 0), Class{TCPv6, 0x40207d3d, true, true}},
		{"UDP over IPv6", ip(t, a6, b6, protoUDP, 2794, 1766, 1), Class{UDPv6, 0x40207d3d, true, true}},
		{"ICMPv6", ip(t, a6, b6, 58, 0, 0, 8), Class{IPv6, 0x2cc18cd5, true, false}},
		{"ARP", []byte{0x08, 0x06, 0, 0, 1, 2, 3}, Class{}},
		{"nothing", nil, Class{}},
	} {
		if got := Classify(x.p); got != x.want {
			t.Errorf("%s: %+v, want %+v", x.name, got, x.want)
		}
		for n := range x.p { // cut short anywhere it is no such packet, and no crash
			if c := Classify(x.p[:n]); c.L4OK {
				t.Errorf("%s cut to %d bytes has a right checksum", x.name, n)
			}
		}
		// The checksums cover every octet behind the four of IPoIB, but what
		// defines how to read them: each bit shows, or changes the kind.
		for i := 4 * 8; x.want.L4OK && i < len(x.p)*8; i++ {
			x.p[i/8] ^= 1 << (i % 8)
			if c := Classify(x.p); c.Kind == x.want.Kind && c.IPOK && c.L4OK && !(x.want.Kind >= TCPv6 && i/8 < 12) {
				t.Errorf("%s: octet %d changed, unnoticed", x.name, i/8)
			}
			x.p[i/8] ^= 1 << (i % 8)
		}
	}
	frag := ip(t, a4, b4, protoUDP, 1, 2, 8)
	frag[4+6] |= 0x20 // more fragments
	if c := Classify(frag); c.Kind != IPv4 {
		t.Errorf("a fragment is %v", c.Kind)
	}
}

func FuzzClassify(f *testing.F) {
	t := &testing.T{} // fails only where an address here is none
	f.Add(ip(t, "10.0.0.1", "10.0.0.2", protoUDP, 1, 2, 3))
	f.Add(ip(t, "fe80::1", "ff02::1", protoTCP, 1, 2, 3))
	f.Fuzz(func(t *testing.T, p []byte) {
		c := Classify(p)
		if c.Kind == NotIP && c != (Class{}) {
			t.Errorf("no IP, yet %+v", c)
		}
	})
}
