// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func via(s ...string) (out []netip.Addr) {
	for _, a := range s {
		if a == "" {
			out = append(out, netip.Addr{})
		} else {
			out = append(out, addr(a))
		}
	}
	return out
}

var someRoutes = []Route{
	{Dst: prefix("10.20.0.0/24")},
	{Dst: prefix("10.20.0.255/32")}, // directed broadcast
	{Dst: prefix("0.0.0.0/0"), Via: via("10.20.0.1"), Metric: 100, Main: true},
	{Dst: prefix("0.0.0.0/0"), Via: via("10.20.0.9"), Metric: 50},
	{Dst: prefix("10.30.0.0/16"), Via: via("10.20.0.3"), Main: false},
	{Dst: prefix("10.30.0.0/16"), Via: via("10.20.0.2"), Main: true},
	{Dst: prefix("10.30.7.0/24"), Via: via("fe80::7")},
	{Dst: prefix("fe80::/64")},
	{Dst: prefix("2001:db8::/32"), Via: via("fe80::1")},
	{Dst: prefix("2001:db8:1::/48")},
	{Dst: prefix("2001:db8:2::/48"), Via: via("fe80::2", "fe80::3", "")},
}

func TestNextHop(t *testing.T) {
	r := NewRoutes(someRoutes)
	for _, c := range []struct{ dst, want string }{
		{"10.20.0.77", "10.20.0.77"},
		{"10.20.0.255", "10.20.0.255"},
		{"192.0.2.1", "10.20.0.9"},     // default route of the lower metric
		{"10.30.1.1", "10.20.0.2"},     // of equal metric the main table's
		{"10.30.7.7", "fe80::7"},       // gateway of the other family
		{"224.0.0.251", "224.0.0.251"}, // groups have no gateway
		{"255.255.255.255", "10.20.0.9"},
		{"fe80::99", "fe80::99"},
		{"ff02::1", "ff02::1"},
		{"2001:db8:9::1", "fe80::1"},
		{"2001:db8:1::1", "2001:db8:1::1"},
		{"2001:dead::1", "2001:dead::1"}, // no route: on the link
	} {
		if got := r.NextHop(addr(c.dst)); got != addr(c.want) {
			t.Errorf("to %s: %s, want %s", c.dst, got, c.want)
		}
	}
	if got := (*Routes)(nil).NextHop(addr("192.0.2.1")); got != addr("192.0.2.1") {
		t.Errorf("no table: %s", got)
	}
	if r.Len() != 9 {
		t.Errorf("%d prefixes, want 9", r.Len())
	}
	// Several paths: each is used, and always the same for a destination.
	used := map[netip.Addr]bool{}
	dst := addr("2001:db8:2::1")
	for range 64 {
		hop := r.NextHop(dst)
		if hop != r.NextHop(dst) {
			t.Fatalf("two next hops for %s", dst)
		}
		if hop == dst {
			hop = netip.Addr{}
		}
		used[hop] = true
		dst = dst.Next()
	}
	if len(used) != 3 {
		t.Errorf("64 destinations used %v of 3 paths", used)
	}
}

func TestNextHopAllocatesNothing(t *testing.T) {
	r := NewRoutes(someRoutes)
	dsts := via("10.30.1.1", "192.0.2.1", "2001:db8:9::1", "2001:db8:2::5", "ff02::1")
	if n := testing.AllocsPerRun(100, func() {
		for _, d := range dsts {
			r.NextHop(d)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The model looks at every route.
func TestNextHopAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.SliceOfN(rapid.ByteRange(0, 3), 4, 4) // few values, so that prefixes nest
		var routes []Route
		for range rapid.IntRange(0, 12).Draw(t, "routes") {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte(bytes.Draw(t, "prefix"))), rapid.IntRange(0, 32).Draw(t,
				"bits")).Masked()
			r := Route{Dst: p, Metric: rapid.IntRange(0, 2).Draw(t, "metric"), Main: rapid.Bool().Draw(t, "main")}
			if rapid.Bool().Draw(t, "gateway") {
				r.Via = []netip.Addr{netip.AddrFrom4([4]byte(bytes.Draw(t, "via")))}
			}
			routes = append(routes, r)
		}
		dst := netip.AddrFrom4([4]byte(bytes.Draw(t, "dst")))
		var best *Route
		for i, r := range routes {
			if r.Dst.Contains(dst) && (best == nil || r.Dst.Bits() > best.Dst.Bits() ||
				r.Dst.Bits() == best.Dst.Bits() &&
					(r.Metric < best.Metric || r.Metric == best.Metric && r.Main && !best.Main)) {
				best = &routes[i]
			}
		}
		want := dst
		if best != nil && len(best.Via) == 1 {
			want = best.Via[0]
		}
		if got := NewRoutes(routes).NextHop(dst); got != want {
			t.Fatalf("to %s by %v: %s, want %s", dst, routes, got, want)
		}
	})
}

func TestRoutesEqual(t *testing.T) {
	a := NewRoutes(someRoutes)
	if !a.equal(NewRoutes(someRoutes)) || a.equal(nil) || (*Routes)(nil).equal(a) ||
		!(*Routes)(nil).equal(NewRoutes(nil)) {
		t.Error("equality of whole tables")
	}
	for i := range someRoutes {
		changed := append([]Route(nil), someRoutes...)
		changed[i].Via = via("10.99.9.9")
		want := i == 2 || i == 4 // hidden by a better route
		if got := a.equal(NewRoutes(changed)); got != want {
			t.Errorf("route %d changed: equal is %v", i, got)
		}
	}
}

func TestDestination(t *testing.T) {
	v4, v6 := make([]byte, 20), make([]byte, 40)
	v4[0], v6[0] = 0x45, 0x60
	copy(v4[16:], addr("192.0.2.7").AsSlice())
	copy(v6[24:], addr("2001:db8::7").AsSlice())
	for _, c := range []struct {
		p    []byte
		want netip.Addr
	}{{v4, addr("192.0.2.7")}, {v6, addr("2001:db8::7")}} {
		if got, ok := destination(c.p); !ok || got != c.want {
			t.Errorf("%s, %v, want %s", got, ok, c.want)
		}
		for n := range c.p {
			if _, ok := destination(c.p[:n]); ok {
				t.Errorf("%d of %d octets have a destination", n, len(c.p))
			}
		}
	}
	if _, ok := destination([]byte{0: 0x55, 59: 0}); ok {
		t.Error("IP version 5 has a destination")
	}
}
