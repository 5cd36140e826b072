// SPDX-License-Identifier: Apache-2.0

package ib

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

func prefixes(text ...string) (list []netip.Prefix) {
	for _, s := range text {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

func TestAddrSet(t *testing.T) {
	for _, x := range []struct {
		prefixes []string
		in, out  []string
		ranges   int
	}{
		{nil, nil, []string{"0.0.0.0", "127.0.0.1", "::", "::1", "10.0.0.1"}, 0},
		{[]string{"10.0.0.0/24"}, []string{"10.0.0.0", "10.0.0.255", "::ffff:10.0.0.7"},
			[]string{"9.255.255.255", "10.0.1.0", "::a00:1", "fd00::a00:1", "::fffe:10.0.0.1"}, 1},
		{[]string{"0.0.0.0/0"}, []string{"0.0.0.0", "255.255.255.255"}, []string{"::", "::1", "fe80::1",
			"::1:0:0:0"}, 1},
		{[]string{"::/0"}, []string{"::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "10.0.0.1"}, nil, 1},
		{[]string{"::/0", "10.0.0.0/8", "ff00::/8"}, []string{"::", "ff02::1", "10.0.0.1"}, nil, 1},
		{[]string{"fd00::/64", "10.1.2.3/32", "fe80::/10"}, []string{"fd00::1", "10.1.2.3", "fe80::1",
			"febf::1"}, []string{"fd00:0:0:1::", "10.1.2.2", "10.1.2.4", "fec0::", "ff02::1"}, 3},
		// Adjoining, nested and repeated prefixes.
		{[]string{"10.0.1.0/24", "10.0.0.0/24", "10.0.0.0/24", "10.0.1.128/25"}, []string{"10.0.0.0", "10.0.1.255"},
			[]string{"10.0.2.0"}, 1},
		// A carry between the halves of the number.
		{[]string{"fd00::/64", "fd00:0:0:1::/64"}, []string{"fd00::", "fd00:0:0:1:ffff:ffff:ffff:ffff"},
			[]string{"fd00:0:0:2::"}, 1},
		{[]string{"ffff::/16", "::/16"}, []string{"ffff::", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
			[]string{"1::", "fffe::"}, 2},
	} {
		s := NewAddrSet(prefixes(x.prefixes...))
		if len(s.ranges) != x.ranges {
			t.Errorf("%v: %d ranges, want %d", x.prefixes, len(s.ranges), x.ranges)
		}
		for want, list := range map[bool][]string{true: x.in, false: x.out} {
			for _, a := range list {
				g := GIDFromAddr(netip.MustParseAddr(a))
				if got := s.Contains(&g); got != want {
					t.Errorf("%v contains %s: %v", x.prefixes, a, got)
				}
			}
		}
	}
	if s := NewAddrSet([]netip.Prefix{{}}); s.Contains(&GID{}) {
		t.Error("a prefix that is not valid adds an address")
	}
}

// TestAddrSetModel compares with netip.Prefix.Contains of each prefix, near the ends of the prefixes.
func TestAddrSetModel(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for range 200 {
		var list []netip.Prefix
		var probes []netip.Addr
		for range r.IntN(20) {
			var b [16]byte
			// Few values, so that prefixes meet.
			for i := range b {
				b[i] = []byte{0, 0xff, 1, 0x80}[r.IntN(4)]
			}
			a := netip.AddrFrom16(b)
			if r.IntN(2) == 0 {
				a = netip.AddrFrom4([4]byte(b[:4]))
			}
			if a.Is4In6() {
				continue // netip.Prefix.Contains compares no such address with IPv4
			}
			p, err := a.Prefix(r.IntN(a.BitLen() + 1))
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, p)
			probes = append(probes, a, p.Addr(), p.Addr().Prev(), a.Next())
		}
		s := NewAddrSet(list)
		for _, a := range probes {
			if !a.IsValid() || a.Is4In6() {
				continue
			}
			want := false
			for _, p := range list {
				want = want || p.Contains(a) || p.Contains(netip.AddrFrom16(a.As16()))
			}
			g := GIDFromAddr(a)
			if got := s.Contains(&g); got != want {
				t.Fatalf("seed %d: %v contains %v: %v", seed, list, a, got)
			}
		}
	}
}

func TestAddrSetNoAllocation(t *testing.T) {
	s, g := NewAddrSet(prefixes("10.0.0.0/8", "fd00::/8")), GIDFromAddr(netip.MustParseAddr("192.0.2.1"))
	if n := testing.AllocsPerRun(100, func() {
		if s.Contains(&g) {
			t.Fatal("it is outside")
		}
	}); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
}

func BenchmarkAddrSet(b *testing.B) {
	for _, n := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var list []netip.Prefix
			for i := range n {
				list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 24))
			}
			s, g := NewAddrSet(list), GIDFromAddr(netip.AddrFrom4([4]byte{10, byte(n / 2), 0, 9}))
			for b.Loop() {
				if !s.Contains(&g) {
					b.Fatal("it is inside")
				}
			}
		})
	}
}
