// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
)

// ipv6 is a UDP packet behind its headroom.
func ipv6(src, dst netip.Addr, payload string) []byte {
	f := make([]byte, Headroom+40, Headroom+40+len(payload)+64)
	p := f[Headroom:]
	p[0], p[6], p[7] = 0x60, 17, 64
	binary.BigEndian.PutUint16(p[4:], uint16(len(payload)))
	s, d := src.As16(), dst.As16()
	copy(p[8:], s[:])
	copy(p[24:], d[:])
	return append(f, payload...)
}

// TestH01_TwoLinksTalk: IPv4 and IPv6 packets travel both ways, and both links
// end without leaving anything (H-70).
func TestH01_TwoLinksTalk(t *testing.T) {
	s, a, b := two(t)
	a.send(ipA, ipB, "one", "two")
	s.run(time.Second)
	b.send(ipB, ipA, "three")
	s.run(time.Second)
	if d := cmp.Diff([]string{"one", "two"}, b.texts()); d != "" {
		t.Errorf("B got, -want +got:\n%s", d)
	}
	if d := cmp.Diff([]string{"three"}, a.texts()); d != "" {
		t.Errorf("A got, -want +got:\n%s", d)
	}
	ll := [2]netip.Addr{wire.LinkLocal(gidA.GUID()), wire.LinkLocal(gidB.GUID())}
	for i, n := range s.nodes {
		n.l.SetAddrs(s.now, append(n.l.addrs.own, netip.PrefixFrom(ll[i], 64)), nil)
	}
	s.run(10 * time.Second)
	a.got, b.got = nil, nil
	a.l.SendBatch(s.now, [][]byte{ipv6(ll[0], ll[1], "v6")}, ll[1:])
	s.run(time.Second)
	b.l.SendBatch(s.now, [][]byte{ipv6(ll[1], ll[0], "6v")}, ll[:1])
	s.run(time.Second)
	if len(b.got) != 1 || string(b.got[0][40:]) != "v6" || len(a.got) != 1 || string(a.got[0][40:]) != "6v" {
		t.Errorf("over IPv6 A got %q, B %q", a.got, b.got)
	}
	if !slices.ContainsFunc(b.l.Shadow(s.now), func(e ShadowInfo) bool { return slices.Contains(e.IPs, ll[0]) }) {
		t.Errorf("H-43: Neighbor Discovery makes no entry: %+v", b.l.Shadow(s.now))
	}
	s.ends()
}

// TestH08_TwoSteps: the first packet to a neighbour takes a question by broadcast, an
// answer, and one request for a path by the GIDs; then all is cached.
func TestH08_TwoSteps(t *testing.T) {
	s, a, b := two(t)
	a.keep, b.keep = true, true
	s.asked = nil
	a.send(ipA, ipB, "one")
	s.run(time.Second)
	a.send(ipA, ipB, "two", "three")
	s.run(time.Second)
	if d := cmp.Diff([]string{"arp", "one", "two", "three"}, a.sentTexts(nil)); d != "" {
		t.Errorf("A sent, -want +got:\n%s", d)
	}
	if !a.sent[0].ah.DLID.IsMulticast() || a.sent[1].ah.DLID != b.port.LID || len(b.sent) != 1 ||
		b.sent[0].ah.DLID != a.port.LID {
		t.Errorf("A sent to %+v, B %+v", a.sent, b.sent)
	}
	if d := cmp.Diff([]string{b.name + " path " + gidA.String(), a.name + " path " + gidB.String()}, s.asked); d != "" {
		t.Errorf("asked, -want +got:\n%s", d)
	}
}

// TestOnePort: links of one port, and one node to itself, reach each other
// although no packet leaves the port.
func TestOnePort(t *testing.T) {
	s := newSubnet(t)
	var n [2]*node
	for i := range n {
		n[i] = s.add(fmt.Sprint("ib0_1_1", i), 5, gidA, ib.QPN(0x48+i))
		n[i].start()
		n[i].l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom([]netip.Addr{ipA, ipB}[i], 24)}, nil)
	}
	s.run(10 * time.Second)
	s.asked = nil
	n[0].send(ipA, ipB, "neighbour")
	s.run(time.Second)
	n[1].send(ipB, netip.MustParseAddr("224.0.0.1"), "group")
	s.run(time.Second)
	if d := cmp.Diff([][]string{{"group"}, {"neighbour"}}, [][]string{n[0].texts(), n[1].texts()}); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if len(s.asked) != 0 {
		t.Errorf("asked %v about the own port", s.asked)
	}
}

// TestPeerRestarts: a peer that comes back with another queue pair number is
// reached again with its announcement (S-03).
func TestPeerRestarts(t *testing.T) {
	s, a, b := two(t)
	a.send(ipA, ipB, "before")
	s.run(time.Second)
	b.l.Stop(s.now)
	s.run(time.Second)
	b.gone()
	s.nodes = s.nodes[:1]
	c := s.add("ib1_1_14", 17, gidB, 0x209)
	c.start()
	c.l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom(ipB, 24)}, nil)
	s.run(time.Second)
	a.send(ipA, ipB, "after")
	s.run(time.Second)
	if d := cmp.Diff([]string{"after"}, c.texts()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestPeerRestartsUnheard: the same where the announcements are lost: within one
// cycle of unreachability detection (S-03).
func TestPeerRestartsUnheard(t *testing.T) {
	s, a, b := two(t)
	a.send(ipA, ipB, "before")
	s.run(time.Second)
	b.l.Stop(s.now)
	s.run(time.Second)
	s.nodes = s.nodes[:1]
	c := s.add("ib1_1_14", 17, gidB, 0x209)
	c.lost = func(f *sentFrame) bool { return true }
	c.start()
	c.l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom(ipB, 24)}, nil)
	s.run(10 * time.Second)
	c.lost = nil
	for range 60 {
		a.send(ipA, ipB, "x")
		s.run(time.Second)
	}
	if n := len(c.texts()); n < 5 {
		t.Errorf("%d packets arrived", n)
	}
}

// TestQueryFailsOnce: a lookup that fails does not leave a dead neighbour: the
// next packet is sent (S-02).
func TestQueryFailsOnce(t *testing.T) {
	s, a, b := two(t)
	fails := 1
	s.paths = func(r *mad.PathRecord) mad.Status {
		if r.DGID == gidB && fails > 0 {
			fails--
			return mad.StatusSANoResources
		}
		return 0
	}
	a.send(ipA, ipB, "lost")
	s.run(time.Second)
	a.send(ipA, ipB, "sent")
	s.run(time.Second)
	if d := cmp.Diff([]string{"sent"}, b.texts()); d != "" || a.counter("path_failures") != 1 ||
		a.counter("logged_errors") != 1 {
		t.Errorf("%d failures, -want +got:\n%s", a.counter("path_failures"), d)
	}
}

// TestAddressVectorFails: an entry without an address vector is deleted (H-48).
func TestAddressVectorFails(t *testing.T) {
	s, a := alone(t)
	a.fail["create ah"] = 1
	a.xmitText(hwB, "x")
	s.answerPath(a, pathSA6(t), 0)
	if len(a.l.shadow.entries) != 0 || a.counter("drop_no_path") != 1 || a.counter("logged_errors") != 1 {
		t.Errorf("entries %v", a.l.Shadow(s.now))
	}
	a.xmitText(hwB, "y")
	s.answerPath(a, pathSA6(t), 0)
	if d := cmp.Diff([]string{"y"}, a.sentTexts(nil)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestShadowTable: the transitions of an entry that no trace shows.
func TestShadowTable(t *testing.T) {
	resolved := func(t *testing.T) (*subnet, *node, *entry) {
		s, a := alone(t)
		a.l.shadow.learn(s.now, ipB, hwB)
		s.answerPath(a, pathSA6(t), 0)
		return s, a, a.l.shadow.entries[hwB.Key()]
	}
	arp := func(target netip.Addr) []byte {
		b := make([]byte, wire.ARPLen)
		(&wire.ARP{Op: wire.ARPRequest, SenderHW: hwA, SenderIP: ipA, TargetIP: target}).Put(b)
		return b
	}
	t.Run("a pending entry is not purged", func(t *testing.T) {
		s, a := alone(t)
		a.l.shadow.learn(s.now, ipB, hwB)
		a.xmitText(hwB, "waits")
		a.xmit(wire.PseudoBroadcast, wire.EtherARP, arp(ipB))
		a.xmit(hwB, wire.EtherARP, arp(ipB))
		if st, q := a.shadowState(); st != "PATHRECORD_PENDING" || len(q) != 2 || a.counter("path_queries") != 1 {
			t.Errorf("%s %v", st, q)
		}
	})
	t.Run("a question for somebody else purges nothing", func(t *testing.T) {
		_, a, e := resolved(t)
		a.xmit(wire.PseudoBroadcast, wire.EtherARP, arp(ipA))
		if a.l.shadow.entries[hwB.Key()] != e {
			t.Error("purged")
		}
	})
	t.Run("a multicast solicitation purges", func(t *testing.T) {
		s, a, _ := resolved(t)
		v6 := netip.MustParseAddr("fe80::f652:1403:7b:cba1")
		a.l.shadow.learn(s.now, v6, hwB)
		nd := payloadOf(t, "ND-1")
		a.xmit(wire.GroupHWAddr(wire.GroupGID(wire.SolicitedNode(v6), testPKey, 2)), wire.EtherIPv6, nd[wire.EncapLen:])
		if st, _ := a.shadowState(); st != "absent" {
			t.Error(st)
		}
		if len(a.l.shadow.byIP) != 0 {
			t.Errorf("addresses %v", a.l.shadow.byIP)
		}
	})
	t.Run("a refresh that fails deletes", func(t *testing.T) {
		s, a, _ := resolved(t)
		a.xmit(hwB, wire.EtherARP, arp(ipB))
		if st, _ := a.shadowState(); st != "RESOLVED" || a.counter("shadow_refreshed") != 1 {
			t.Error(st)
		}
		s.answerPath(a, &mad.PathRecord{}, mad.StatusSANoRecords)
		if st, _ := a.shadowState(); st != "absent" {
			t.Error(st)
		}
	})
	for what, say := range map[string]func(*subnet){
		"without an answer": func(s *subnet) { s.silent = true },
		"answered by what is no administration": func(s *subnet) {
			s.refuse, s.holdPaths = mad.StatusBadMethodAttr,
				false
		},
	} {
		t.Run("a refresh "+what+" leaves all as it is", func(t *testing.T) {
			s, a, e := resolved(t)
			h := e.ah.h
			say(s)
			a.xmit(hwB, wire.EtherARP, arp(ipB))
			waits := wire.MakeHWAddr(0, 0x300, gidB)
			a.l.shadow.invalidatePath(gidB) // so that another entry of the GID is pending meanwhile
			a.l.shadow.learn(s.now, netip.MustParseAddr("10.20.0.9"), waits)
			s.run(5 * time.Second)
			if st, _ := a.shadowState(); st != "RESOLVED" || a.counter("path_failures") != 1 ||
				a.l.shadow.entries[hwB.Key()].ah.h != h {
				t.Errorf("%s, %d queries failed", st, a.counter("path_failures"))
			}
			if a.l.shadow.entries[waits] != nil {
				t.Error("an entry waits for what was not answered")
			}
		})
	}
	t.Run("others of the GID keep their address vector until the answer", func(t *testing.T) {
		s, a, _ := resolved(t)
		other := wire.MakeHWAddr(0, 0x300, gidB)
		a.l.shadow.learn(s.now, netip.MustParseAddr("10.20.0.9"), other)
		if a.counter("path_queries") != 1 {
			t.Error("a valid path is asked for again")
		}
		o := a.l.shadow.entries[other]
		h := o.ah
		a.xmit(wire.PseudoBroadcast, wire.EtherARP, arp(ipB))
		a.l.shadow.learn(s.now, ipB, hwB)
		if o.state != entryResolved || o.ah != h || a.counter("path_queries") != 2 {
			t.Errorf("resolved %v, %d queries", o.state == entryResolved, a.counter("path_queries"))
		}
		p2 := *pathSA6(t)
		p2.DLID = 0x99
		s.answerPath(a, &p2, 0)
		if a.ahs[o.ah.h].DLID != 0x99 || a.l.shadow.entries[hwB.Key()].state != entryResolved {
			t.Error("the answer is not for all")
		}
	})
	t.Run("flags do not make another entry", func(t *testing.T) {
		s, a, e := resolved(t)
		if a.l.shadow.learn(s.now, ipB, wire.MakeHWAddr(0, 0x208, gidB)) != e || len(a.l.shadow.entries) != 1 {
			t.Error("two entries")
		}
	})
	t.Run("an address moves", func(t *testing.T) {
		s, a, e := resolved(t)
		moved := wire.MakeHWAddr(0, 0x333, gidB)
		n := a.l.shadow.learn(s.now, ipB, moved)
		if n == e || a.l.shadow.byIP[ipB] != n || len(e.ips) != 0 {
			t.Error("the address is at the old place")
		}
	})
	t.Run("nobody's address", func(t *testing.T) {
		s, a := alone(t)
		for _, hw := range []wire.HWAddr{{}, wire.PseudoBroadcast, wire.MakeHWAddr(0, 0xffffff, gidB),
			wire.GroupHWAddr(a.l.groups.broadcast.mgid)} {
			if a.l.shadow.entryOf(s.now, hw) != nil {
				t.Errorf("%v has an entry", hw)
			}
		}
	})
	t.Run("a posted frame keeps its address vector", func(t *testing.T) {
		s, a, e := resolved(t)
		a.stall = true
		a.xmitText(hwB, "posted")
		h := e.ah.h
		a.xmit(wire.PseudoBroadcast, wire.EtherARP, arp(ipB))
		if _, ok := a.ahs[h]; !ok || len(a.l.shadow.entries) != 0 {
			t.Error("the address vector went with the entry")
		}
		a.stall = false
		s.step()
		if _, ok := a.ahs[h]; ok {
			t.Error("the address vector is left")
		}
	})
	t.Run("address vector", func(t *testing.T) {
		for _, tc := range []struct {
			hops   uint8
			prefix uint64
			want   bool
			rate   ib.Rate // held to
		}{{0, ib.DefaultGIDPrefix, false, 0}, {1, ib.DefaultGIDPrefix, true, ib.Rate20}, {0, 0xfec0000000000007, true,
			0}} {
			s, a := alone(t)
			gid := ib.MakeGID(tc.prefix, gidB.GUID())
			a.xmitText(wire.MakeHWAddr(0, 0x208, gid), "x")
			p := *pathSA6(t)
			p.HopLimit, p.FlowLabel, p.TClass, p.SLID = tc.hops, 0x12345, 7, 6
			a.l.attr.port.LMC = 1
			if tc.rate != 0 {
				p.Rate = tc.rate
			}
			s.answerPath(a, &p, 0)
			want := AH{DLID: 17, SL: 3, Rate: tc.rate, SrcPathBits: 0, Global: tc.want, DGID: gid, FlowLabel: 0x12345,
				HopLimit: tc.hops, TClass: 7}
			if d := cmp.Diff(want, a.sent[0].ah); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		}
	})
	t.Run("bound", func(t *testing.T) {
		s, a := alone(t, "max_neigh=16")
		s.holdPaths = false
		first := ib.MakeGID(ib.DefaultGIDPrefix, 1000)
		for i := range 40 {
			a.l.shadow.entryOf(s.now, wire.MakeHWAddr(0, 5, ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(1000+i))))
			if e := a.l.shadow.entries[wire.MakeHWAddr(0, 5, first)]; e != nil && i < 16 {
				s.now = s.now.Add(2 * time.Second)
				a.l.shadow.touch(e, s.now) // in use
			}
		}
		if len(a.l.shadow.entries) != 16 || len(a.l.shadow.paths) != 16 || a.l.shadow.queries != 16 {
			t.Errorf("%d entries, %d paths", len(a.l.shadow.entries), len(a.l.shadow.paths))
		}
	})
}

// TestConflict: a duplicate address is reported.
func TestConflict(t *testing.T) {
	s, a := alone(t)
	b := make([]byte, wire.EncapLen+wire.ARPLen)
	wire.PutEncap(b, wire.EtherARP)
	(&wire.ARP{Op: wire.ARPReply, SenderHW: hwB, SenderIP: ipA, TargetHW: hwA, TargetIP: ipA}).Put(b[wire.EncapLen:])
	a.injectUnicast(b)
	i := slices.IndexFunc(a.events, func(e Event) bool { return e.Kind == EventConflict })
	if i < 0 || a.events[i].Addr != ipA || !strings.Contains(a.events[i].Text, hwB.String()) ||
		a.events[i].Kind.String() != "conflict" {
		t.Errorf("events %v", a.events)
	}
	s.step()
}
