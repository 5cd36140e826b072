// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/wire"
)

// udpPacket is an IPv4 packet with a payload of n octets.
func udpPacket(from, to string, n int) []byte {
	a, z := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	h := wire.IPUDP{Src: ib.GIDFromAddr(a.Addr()), Dst: ib.GIDFromAddr(z.Addr()), IPv4: true, HopLimit: 9, DF: true,
		SrcPort: a.Port(), DstPort: z.Port()}
	b := make([]byte, h.Len()+n)
	for i := range n {
		b[h.Len()+i] = byte(i)
	}
	h.Put(b, n)
	return b
}

// ports are source and destination of a packet, "" where its IP header is damaged.
func ports(t *testing.T, b []byte) (from, to string) {
	t.Helper()
	if onesSum(0, b[:20]) != 0xffff {
		t.Error("wrong checksum of the IP header")
	}
	if onesSum(int(onesSum(17+len(b)-20, b[12:20])), b[20:]) != 0xffff {
		t.Error("wrong checksum of UDP")
	}
	port := func(at int) uint16 { return uint16(b[at])<<8 | uint16(b[at+1]) }
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[12:])), port(20)).String(),
		netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:])), port(22)).String()
}

// TestNAT: what begins inside passes, and its answers; nothing else does, and forgotten flows get other ports.
func TestNAT(t *testing.T) {
	n := NewNAT(netip.MustParsePrefix("192.168.7.0/24"), netip.MustParseAddr("10.0.0.9"))
	const inside, a, b = "192.168.7.2:4792", "10.0.0.1:4792", "10.0.0.2:4792"
	outward := func(to string) string {
		t.Helper()
		p := udpPacket(inside, to, 33)
		if !n.Translate(p) {
			t.Fatalf("to %s: dropped", to)
		}
		from, at := ports(t, p)
		if at != to {
			t.Errorf("to %s became to %s", to, at)
		}
		return from
	}
	inward := func(from, to string) string {
		t.Helper()
		p := udpPacket(from, to, 40)
		if !n.Translate(p) {
			return ""
		}
		source, at := ports(t, p)
		if source != from {
			t.Errorf("from %s became from %s", from, source)
		}
		return at
	}
	if inward(a, "10.0.0.9:30000") != "" || n.Unsolicited != 1 {
		t.Error("a datagram passes inwards before any went out")
	}
	x, y := outward(a), outward(b)
	if x == y || x != outward(a) || x == inside {
		t.Errorf("ports %s and %s of two flows", x, y)
	}
	for _, c := range []struct{ from, to, want string }{
		{a, x, inside}, {b, y, inside}, {b, x, ""}, {"10.0.0.1:9", x, ""}, {a, "10.0.0.9:4792", ""}, {a, inside, ""},
	} {
		if got := inward(c.from, c.to); got != c.want {
			t.Errorf("from %s to %s: %q, want %q", c.from, c.to, got, c.want)
		}
	}
	n.Forget()
	if inward(a, x) != "" {
		t.Error("a forgotten flow passes")
	}
	if z := outward(a); z == x || inward(a, z) != inside {
		t.Errorf("the port of the new flow: %s, before %s", z, x)
	}
	for cut := range len(udpPacket(a, x, 0)) {
		if n.Translate(udpPacket(inside, a, 0)[:cut]) {
			t.Errorf("a packet of %d octets passes", cut)
		}
	}
}
