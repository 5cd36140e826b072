// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

func addrs(s ...string) (out []netip.Addr) {
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func mac(s string) net.HardwareAddr {
	m, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

var (
	lo = link{name: "lo", index: 1, mtu: 65536, loopback: true, running: true, mac: mac("00:00:00:00:00:00"),
		addrs: addrs("127.0.0.1", "::1")}
	eth0 = link{name: "eth0", index: 4, mtu: 1500, running: true, mac: mac("02:fc:00:00:00:01"),
		addrs: addrs("192.0.2.2", "2001:db8::2", "fe80::fc:ff:fe00:1")}
	eth1 = link{name: "eth1", index: 3, mtu: 9000, mac: mac("02:fc:00:00:00:09"), addrs: addrs("198.51.100.7",
		"fe80::fc:ff:fe00:9")}
)

func (t *Table) dump() string {
	var s strings.Builder
	fmt.Fprintf(&s, "guid %v mtu %d left %d\n", t.NodeGUID, t.MTU.Bytes(), t.Left)
	for i, e := range t.Entries {
		if e.Free() {
			fmt.Fprintf(&s, "%d free\n", i)
			continue
		}
		fmt.Fprintf(&s, "%d %v %s/%d %d", i, e.GID.Addr(), e.Interface, e.IfIndex, e.MTU)
		if e.LocalOnly {
			s.WriteString(" local only")
		}
		s.WriteString("\n")
	}
	return s.String()
}

func TestBuild(t *testing.T) {
	v6only := eth0
	v6only.addrs = addrs("2001:db8::2")
	for _, c := range []struct {
		name  string
		links []link
		want  string
	}{
		{"two interfaces, the one without carrier after the other", []link{lo, eth1, eth0},
			`guid 00fc:00ff:fe00:0001 mtu 4096 left 0
0 fe80::fc:ff:fe00:1 eth0/4 1500
1 192.0.2.2 eth0/4 1500
2 2001:db8::2 eth0/4 1500
3 198.51.100.7 eth1/3 9000
4 fe80::fc:ff:fe00:9 eth1/3 9000
5 127.0.0.1 lo/1 65536
6 ::1 lo/1 65536
`},
		{"a large MTU", []link{lo, eth1}, `guid 00fc:00ff:fe00:0009 mtu 4096 left 0
0 fe80::fc:ff:fe00:9 eth1/3 9000
1 198.51.100.7 eth1/3 9000
2 127.0.0.1 lo/1 65536
3 ::1 lo/1 65536
`},
		{"loopback only", []link{lo}, `guid 6432:a217:f59b:4edb mtu 4096 left 0
0 fe80::6432:a217:f59b:4edb lo/1 65536 local only
1 127.0.0.1 lo/1 65536
2 ::1 lo/1 65536
`},
		{"neither IPv4 nor link-local", []link{v6only, lo}, `guid 00fc:00ff:fe00:0001 mtu 1024 left 0
0 fe80::fc:ff:fe00:1 eth0/4 1500 local only
1 127.0.0.1 lo/1 65536
2 2001:db8::2 eth0/4 1500
3 ::1 lo/1 65536
`},
		{"nothing", nil, `guid 6432:a217:f59b:4edb mtu 256 left 0
0 fe80::6432:a217:f59b:4edb /0 0 local only
`},
	} {
		if diff := cmp.Diff(c.want, build(nil, c.links, Choice{}, "seed").dump()); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.name, diff)
		}
	}
	if a, b := build(nil, nil, Choice{}, "a").NodeGUID, build(nil, nil, Choice{}, "b").NodeGUID; a == b ||
		a>>56&3 != 0 {
		t.Errorf("GUIDs of hosts without MAC: %v and %v", a, b)
	}
}

// Interfaces of a node's own fabric are no way for RoCE, and lower no MTU, unless they are chosen.
func TestChoice(t *testing.T) {
	ib0 := link{name: "ib0_1_7fff", index: 7, mtu: 2044, running: true, fabric: true, addrs: addrs("10.1.0.1")}
	opa := link{name: "opa1v0", index: 8, mtu: 1500, running: true, fabric: true, mac: mac("06:2c:00:05:00:00"),
		addrs: addrs("10.2.0.1")}
	every := []link{lo, eth0, eth1, ib0, opa}
	for _, c := range []struct {
		names []string
		mtu   ib.MTU
		want  string // interfaces in the table
		left  []string
	}{
		{nil, ib.MTU4096, "eth0 eth1 lo", nil},
		{[]string{"eth0"}, ib.MTU1024, "eth0 lo", nil},
		{[]string{"eth*", "eno1"}, ib.MTU4096, "eth0 eth1 lo", []string{"eno1"}},
		{[]string{"opa1v0"}, ib.MTU1024, "opa1v0 lo", nil},
		{[]string{"none"}, ib.MTU4096, "lo", []string{"none"}},
	} {
		got := build(nil, every, Choice{Names: c.names}, "seed")
		var names []string
		for _, e := range got.Entries {
			if !e.LocalOnly && !slices.Contains(names, e.Interface) {
				names = append(names, e.Interface)
			}
			if e.Interface == "eth0" && e.PathMTU() != ib.MTU1024 || e.Interface == "eth1" &&
				e.PathMTU() != ib.MTU4096 {
				t.Errorf("%v: path MTU %d by %s", c.names, e.PathMTU().Bytes(), e.Interface)
			}
		}
		if s := strings.Join(names, " "); s != c.want || got.MTU != c.mtu || !slices.Equal(got.Absent, c.left) {
			t.Errorf("%v: interfaces %q, MTU %d, absent %v", c.names, s, got.MTU.Bytes(), got.Absent)
		}
	}
	if (Choice{Names: []string{"eth["}}).Validate() == nil || (Choice{Names: []string{""}}).Validate() == nil {
		t.Error("a wrong pattern is valid")
	}
}

func TestEntriesKeepTheirIndex(t *testing.T) {
	steps := []struct {
		name  string
		links []link
		want  string
	}{
		{"start with loopback", []link{lo}, `guid 6432:a217:f59b:4edb mtu 4096 left 0
0 fe80::6432:a217:f59b:4edb lo/1 65536 local only
1 127.0.0.1 lo/1 65536
2 ::1 lo/1 65536
`},
		{"an interface comes: its link-local address replaces the made-up one", []link{lo, eth0},
			`guid 6432:a217:f59b:4edb mtu 1024 left 0
0 fe80::fc:ff:fe00:1 eth0/4 1500
1 127.0.0.1 lo/1 65536
2 ::1 lo/1 65536
3 192.0.2.2 eth0/4 1500
4 2001:db8::2 eth0/4 1500
`},
		{"another comes", []link{lo, eth0, eth1}, `guid 6432:a217:f59b:4edb mtu 4096 left 0
0 fe80::fc:ff:fe00:1 eth0/4 1500
1 127.0.0.1 lo/1 65536
2 ::1 lo/1 65536
3 192.0.2.2 eth0/4 1500
4 2001:db8::2 eth0/4 1500
5 198.51.100.7 eth1/3 9000
6 fe80::fc:ff:fe00:9 eth1/3 9000
`},
		{"the first goes", []link{lo, eth1}, `guid 6432:a217:f59b:4edb mtu 4096 left 0
0 fe80::6432:a217:f59b:4edb eth1/3 9000 local only
1 127.0.0.1 lo/1 65536
2 ::1 lo/1 65536
3 free
4 free
5 198.51.100.7 eth1/3 9000
6 fe80::fc:ff:fe00:9 eth1/3 9000
`},
		{"and returns, with another MTU", []link{lo, eth1, func() link { l := eth0; l.mtu = 4200; return l }()},
			`guid 6432:a217:f59b:4edb mtu 4096 left 0
0 fe80::fc:ff:fe00:1 eth0/4 4200
1 127.0.0.1 lo/1 65536
2 ::1 lo/1 65536
3 192.0.2.2 eth0/4 4200
4 2001:db8::2 eth0/4 4200
5 198.51.100.7 eth1/3 9000
6 fe80::fc:ff:fe00:9 eth1/3 9000
`},
	}
	var prev *Table
	for _, s := range steps {
		next := build(prev, s.links, Choice{}, "seed")
		if diff := cmp.Diff(s.want, next.dump()); diff != "" {
			t.Errorf("%s: -want +got\n%s", s.name, diff)
		}
		if again := build(next, s.links, Choice{}, "seed"); !again.Equal(next) {
			t.Errorf("%s: the same links make another table:\n%s", s.name, again.dump())
		}
		prev = next
	}
}

func TestBounded(t *testing.T) {
	l := link{name: "many", index: 7, mtu: 1500, running: true}
	for i := range 300 {
		l.addrs = append(l.addrs, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	got := build(nil, []link{l}, Choice{}, "")
	if len(got.Entries) != MaxEntries || got.Left != 300-(MaxEntries-1) {
		t.Errorf("%d entries, %d left", len(got.Entries), got.Left)
	}
}

func TestLookup(t *testing.T) {
	// Interfaces that share a MAC share a link-local address.
	vlan := eth0
	vlan.name, vlan.index = "eth0.5", 9
	got := build(nil, []link{lo, eth0, vlan}, Choice{}, "")
	ll, v4 := ib.GIDFromAddr(netip.MustParseAddr("fe80::fc:ff:fe00:1")), ib.GIDFromAddr(netip.MustParseAddr("192.0.2.2"))
	if i, ok := got.Lookup(v4); i != 1 || !ok {
		t.Errorf("Lookup = %d, %v", i, ok)
	}
	if _, ok := got.Lookup(ib.GID{}); ok {
		t.Error("the zero GID was found")
	}
	second := -1
	for i, e := range got.Entries {
		if e.GID == ll && e.IfIndex == 9 {
			second = i
		}
	}
	if second < 0 {
		t.Fatalf("the second interface is absent:\n%s", got.dump())
	}
	for _, c := range []struct {
		index int
		gid   ib.GID
		want  uint32
	}{{0, ll, 4}, {second, ll, 9}, {200, ll, 4}, {0, v4, 4}, {0, ib.GID{5: 1}, 0}} {
		if n := got.IfIndex(uint8(c.index), c.gid); n != c.want {
			t.Errorf("IfIndex(%d, %v) = %d, want %d", c.index, c.gid, n, c.want)
		}
	}
	// The first of them goes: the entry of the other stays where it is, and is
	// found before the one at index 0, which is made up of the same MAC.
	got = build(got, []link{lo, vlan}, Choice{}, "")
	if e := got.Entries[0]; !e.LocalOnly || e.GID != ll {
		t.Errorf("index 0 is %+v", e)
	}
	if i, ok := got.Lookup(ll); i != second || !ok || got.Entries[second].IfIndex != 9 {
		t.Errorf("Lookup = %d, %v, want %d:\n%s", i, ok, second, got.dump())
	}
}
