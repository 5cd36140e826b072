// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/stats"
)

// TestS01_LateAdministration: an administration that replies after five seconds is too late for
// pending packets (1.1 s), and one that does not reply for five seconds delays nothing: sending
// returns at once, and pending packets are bounded and in order.
func TestS01_LateAdministration(t *testing.T) {
	s, a, b := two(t)
	number := 0
	second := func() {
		t.Helper()
		for range 200 {
			if a.send(ipA, ipB, fmt.Sprint(number)) != 1 {
				t.Fatal("sending waits")
			}
			number++
		}
		if a.l.budget.octets > entryFrames*(Headroom+30) {
			t.Fatalf("%d octets wait", a.l.budget.octets)
		}
		s.run(time.Second)
	}
	ordered := func() {
		t.Helper()
		last := -1
		for _, text := range b.texts() {
			var v int
			if _, err := fmt.Sscan(text, &v); err != nil || v <= last {
				t.Fatalf("%q after %d", text, last)
			}
			last = v
		}
	}
	second()
	a.l.FlushPaths()
	a.l.PurgeShadow(s.now, wire.HWAddr{})
	s.delay = 5 * time.Second
	for range 12 {
		second()
	}
	s.run(4 * time.Second) // the engine sends three requests, then the resolution fails
	if n := a.counter("path_failures"); n < 2 || a.l.budget.octets != 0 {
		t.Errorf("%d lookups failed, %d octets wait for nobody", n, a.l.budget.octets)
	}
	ordered()
	s.replies, s.delay, s.silent = nil, 0, true
	for range 5 {
		second()
	}
	s.silent = false
	b.got = nil
	const rest = 6
	for range rest {
		second()
	}
	if got := len(b.texts()); got < 200*(rest-2) {
		t.Errorf("%d packets arrived once it answers", got)
	}
	ordered()
}

// TestS06_JoinWhilePortGoesDown: the port goes down at every moment of joining, and for every
// length of time: nothing is stuck, neither the broadcast group nor others nor frames that
// wait for one, and nothing is left when the link ends.
func TestS06_JoinWhilePortGoesDown(t *testing.T) {
	const delay = 100 * time.Millisecond
	member, talker, left := netip.MustParseAddr("239.1.1.1"), "239.1.1.2", netip.MustParseAddr("239.1.1.3")
	for at := time.Duration(0); at <= 5*delay; at += delay / 4 {
		for _, down := range []time.Duration{0, delay / 2, 3 * delay, 3 * time.Second} {
			what := fmt.Sprintf("down after %v for %v", at, down)
			s := newSubnet(t)
			a, b := s.add("ib0_1_14", 5, gidA, 0x48), s.add("ib1_1_14", 17, gidB, 0x208)
			for i, n := range s.nodes {
				n.start()
				n.l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom([]netip.Addr{ipA, ipB}[i], 24)}, nil)
				if n == b {
					s.run(time.Second)
				}
			}
			b.l.JoinGroup(s.now, netip.MustParseAddr(talker))
			s.run(time.Second)
			a.event(func(p *Port) { p.State = ib.PortDown })
			s.delay = delay
			a.event(func(p *Port) { p.State = ib.PortActive })
			a.l.JoinGroup(s.now, member)
			a.l.JoinGroup(s.now, left)
			a.groupText(talker, "before")
			s.run(at / 2)
			a.l.LeaveGroup(s.now, left)
			a.groupText(talker, "before")
			s.run(at - at/2)

			a.event(func(p *Port) { p.State = ib.PortDown })
			a.groupText(talker, "nowhere")
			if a.carrier {
				t.Fatalf("%s: a carrier without a port", what)
			}
			s.run(down)
			a.event(func(p *Port) { p.State = ib.PortActive })
			s.run(3 * time.Second)
			if !a.carrier || a.l.groups.joins != 0 || a.l.budget.octets != 0 {
				t.Fatalf("%s: carrier %v (%s), %d joins under way, %d octets wait", what, a.carrier, a.reason,
					a.l.groups.joins,
					a.l.budget.octets)
			}
			for _, g := range []netip.Addr{member, netip.MustParseAddr("224.0.0.1")} {
				mgid := a.l.groups.mgidOf(g)
				if s.groups[mgid] == nil || s.groups[mgid].members[gidA] != mad.JoinFull ||
					a.attached[mgid] != s.groups[mgid].rec.MLID {
					t.Fatalf("%s: %v is not joined: %+v", what, g, s.groups[mgid])
				}
			}
			if a.attached[a.l.groups.mgidOf(left)] != 0 {
				t.Fatalf("%s: what was left is attached", what)
			}
			b.got = nil
			a.groupText(talker, "group")
			s.run(time.Second)
			a.send(ipA, ipB, "node")
			s.run(time.Second)
			if d := cmp.Diff([]string{"group", "node"}, b.texts()); d != "" {
				t.Fatalf("%s: -want +got:\n%s", what, d)
			}
			a.l.Stop(s.now)
			s.run(time.Minute)
			a.gone()
			for gid, g := range s.groups {
				if g.members[gidA] != 0 {
					t.Errorf("%s: %v has it as a member", what, gid)
				}
			}
		}
	}
}

// TestS08_Echo: the fabric gives a group's packets back to their sender; the IP stack does
// not see them, and nothing counts as received.
func TestS08_Echo(t *testing.T) {
	s, a, b := two(t)
	before := a.l.Counters()
	for _, g := range []string{"224.0.0.1", "10.20.0.255", "255.255.255.255"} {
		a.groupText(g, "to "+g)
	}
	s.run(time.Second)
	if d := cmp.Diff([]string{"to 224.0.0.1", "to 10.20.0.255", "to 255.255.255.255"}, b.texts()); d != "" {
		t.Errorf("B got, -want +got:\n%s", d)
	}
	c := a.l.Counters()
	if n := c.Drops[stats.DropOwnEcho] - before.Drops[stats.DropOwnEcho]; n != 3 {
		t.Errorf("%d echoes came", n)
	}
	if len(a.got) != 0 || c.Net.RxPackets != before.Net.RxPackets || c.Net.RxDropped != before.Net.RxDropped ||
		c.Net.Multicast != before.Net.Multicast {
		t.Errorf("A got %q, counts %+v", a.got, c.Net)
	}
}

// TestS09_LimitedMembers: limited members and a full one reach each other, by broadcast and
// by packets to one; limited members do not reach each other in either way.
func TestS09_LimitedMembers(t *testing.T) {
	s := newSubnet(t)
	ips := []netip.Addr{ipA, ipB, netip.MustParseAddr("10.20.0.3")}
	full := s.add("ib0_1_14", 5, gidA, 0x48)
	x, y := s.add("ib1_1_14", 17, gidB, 0x208), s.add("ib2_1_14", 18, ib.MakeGID(ib.DefaultGIDPrefix, 77), 0x209)
	for _, n := range []*node{x, y} {
		n.port.PKeys = []ib.PKey{0xffff, testPKey &^ 0x8000}
	}
	for i, n := range s.nodes {
		n.start()
		n.l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom(ips[i], 24)}, nil)
	}
	s.run(10 * time.Second)
	clear := func() {
		for _, n := range s.nodes {
			if !n.carrier {
				t.Fatalf("%s has no carrier: %s", n.name, n.reason)
			}
			n.got, n.drops = nil, map[string]int{}
		}
	}
	got := func(what string, want ...[]string) {
		t.Helper()
		var all [][]string
		for _, n := range s.nodes {
			all = append(all, n.texts())
		}
		if d := cmp.Diff(want, all); d != "" {
			t.Errorf("%s, -want +got:\n%s", what, d)
		}
		clear()
	}
	clear()
	full.groupText("10.20.0.255", "hello")
	s.run(time.Second)
	got("broadcast of the full member", nil, []string{"hello"}, []string{"hello"})
	x.groupText("10.20.0.255", "hi")
	s.run(time.Second)
	if y.drops["pkey"] != 1 {
		t.Errorf("the other limited member refused %v", y.drops)
	}
	got("broadcast of a limited member", []string{"hi"}, nil, nil)
	full.send(ipA, ipB, "you")
	s.run(time.Second)
	x.send(ipB, ipA, "and you")
	s.run(time.Second)
	got("to one node", []string{"and you"}, []string{"you"}, nil)
	// Also where hardware address and path are known all the same.
	x.l.shadow.learn(s.now, ips[2], y.l.Info().HW)
	x.xmitText(y.l.Info().HW, "psst")
	s.run(time.Second)
	if y.drops["pkey"] != 1 {
		t.Errorf("the other limited member refused %v", y.drops)
	}
	got("between limited members", nil, nil, nil)
	x.send(ipB, ips[2], "anybody?")
	s.run(5 * time.Second)
	if len(y.texts()) != 0 || y.drops["pkey"] == 0 {
		t.Errorf("asked and got %q, refused %v", y.texts(), y.drops)
	}
}
