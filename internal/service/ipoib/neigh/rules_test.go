// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/wire"
)

// What is received by ARP, and what comes of it.
func TestARPRules(t *testing.T) {
	ask := func(hw wire.HWAddr, from, target netip.Addr) wire.ARP {
		return wire.ARP{Op: wire.ARPRequest, SenderHW: hw, SenderIP: from, TargetIP: target}
	}
	answerB := "arp is-at 10.20.0.2 (B) tell 10.20.0.1 (A) > B"
	other := netip.MustParseAddr("10.20.0.77")
	t.Run("a request for us is answered and its sender learned", func(t *testing.T) {
		h := upHost(t, Config{})
		h.arp(Broadcast, ask(hwB, ipB, ipA))
		h.want("learned 10.20.0.2 at B", answerB)
		h.wantState(ipB, "STALE")
		h.send(ipB, "f")
		h.want("f > B")
		h.wantState(ipB, "DELAY")
	})
	t.Run("the answer is that of the vectors", func(t *testing.T) {
		h := newHost(t, Config{}) // as B
		h.e.SetLink(h.now, LinkInfo{HW: hwB, PKey: pkey, Scope: scope, MTU: mtu})
		h.e.SetUp(h.now, true)
		h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(ipB, 24)})
		h.wait(10 * time.Second)
		h.frames = nil
		h.arriveVector(Broadcast, "ARP-1")
		h.wantFrame(0, "ARP-2", hwA)
	})
	t.Run("a request for another teaches nothing new", func(t *testing.T) {
		h := upHost(t, Config{})
		h.arp(Broadcast, ask(hwB, ipB, other))
		h.want()
		h.wantState(ipB, "absent")
	})
	t.Run("nor is it answered", func(t *testing.T) { // an address of another link of this port
		h := upHost(t, Config{})
		h.arp(Broadcast, ask(hwB, ipB, netip.MustParseAddr("10.30.0.1")))
		h.want()
	})
	t.Run("a probe is answered and not learned", func(t *testing.T) {
		h := upHost(t, Config{})
		h.arp(Broadcast, ask(hwB, netip.IPv4Unspecified(), ipA))
		h.want("arp is-at 0.0.0.0 (B) tell 10.20.0.1 (A) > B")
		if n := h.e.Neighbours(h.now); len(n) != 0 {
			t.Errorf("%v", n)
		}
	})
	t.Run("our own probe come back is nothing", func(t *testing.T) {
		h := upHost(t, Config{})
		for _, id := range []string{"ARP-5", "ARP-3", "ARP-1"} {
			h.arriveVector(Broadcast, id)
			h.want()
		}
	})
	t.Run("a known sender is updated, whatever the target", func(t *testing.T) {
		h := upHost(t, Config{})
		h.send(ipB, "f")
		h.arp(Host, replyOf(ipB, hwB))
		h.log = nil
		h.wait(2 * time.Second)
		h.arp(Broadcast, ask(hwC, ipB, other))
		h.want("learned 10.20.0.2 at C")
		h.wantState(ipB, "STALE")
		h.send(ipB, "g")
		h.want("g > C")
	})
	t.Run("but not within a second", func(t *testing.T) {
		h := upHost(t, Config{})
		h.send(ipB, "f")
		h.arp(Host, replyOf(ipB, hwB))
		h.log = nil
		h.wait(time.Second - 1)
		h.arp(Broadcast, ask(hwC, ipB, other))
		h.want()
		h.arp(Broadcast, replyOf(ipB, hwC)) // a reply to all is none to us
		h.want()
		h.wantState(ipB, "REACHABLE")
		if c := h.e.Counters(); c.IgnoredLocked != 2 {
			t.Errorf("%+v", c)
		}
		h.arp(Host, replyOf(ipB, hwC)) // the answer to our question counts
		h.want("learned 10.20.0.2 at C")
		h.wantState(ipB, "REACHABLE")
	})
	t.Run("an unsolicited reply to us makes an entry", func(t *testing.T) {
		h := upHost(t, Config{})
		h.arriveVector(Host, "ARP-2")
		h.want("learned 10.20.0.2 at B")
	})
	t.Run("a reply for another does not", func(t *testing.T) {
		h := upHost(t, Config{})
		a := replyOf(ipB, hwB)
		a.TargetIP = other
		h.arp(Host, a)
		h.want()
	})
	t.Run("a request resolves what we ask for ourselves", func(t *testing.T) {
		h := upHost(t, Config{})
		h.send(ipB, "f")
		h.arp(Broadcast, ask(hwB, ipB, other))
		h.want("arp who-has 10.20.0.2 (-) tell 10.20.0.1 (A) > all", "learned 10.20.0.2 at B", "f > B")
		h.wantState(ipB, "DELAY")
	})
	t.Run("made-up senders", func(t *testing.T) {
		h := upHost(t, Config{})
		for i, s := range []string{"255.255.255.255", "10.20.0.255", "224.0.0.1", "127.0.0.1"} {
			h.arp(Broadcast, ask(hwB, netip.MustParseAddr(s), ipA))
			if c := h.e.Counters(); c.IgnoredSender != uint64(i+1) {
				t.Errorf("%s: %+v", s, c)
			}
		}
		if n := h.e.Neighbours(h.now); len(n) != 0 {
			t.Errorf("%v", n)
		}
	})
	t.Run("hardware addresses that are no node's", func(t *testing.T) {
		h := upHost(t, Config{})
		for _, hw := range []wire.HWAddr{wire.PseudoBroadcast, groupHW("224.0.0.1"),
			wire.MakeHWAddr(0, ib.QPNMulticast, hwB.GID()), {}} {
			h.arp(Broadcast, ask(hw, ipB, ipA))
		}
		h.want()
		if c := h.e.Counters(); c.Refused[wire.ARPSenderHW] != 4 {
			t.Errorf("%+v", c)
		}
	})
	t.Run("an unknown operation", func(t *testing.T) {
		h := upHost(t, Config{})
		for _, op := range []uint16{0, 3, 4, 8, 0xffff} {
			a := ask(hwB, ipB, ipA)
			a.Op = op
			h.arp(Broadcast, a)
		}
		h.want()
		if c := h.e.Counters(); c.IgnoredOp != 5 {
			t.Errorf("%+v", c)
		}
	})
	t.Run("nothing while down", func(t *testing.T) {
		h := upHost(t, Config{})
		h.e.SetUp(h.now, false)
		h.log = nil
		h.arp(Broadcast, ask(hwB, ipB, ipA))
		h.want()
	})
}

func TestRefusedInput(t *testing.T) {
	h := upHost(t, Config{})
	for i := 1; i <= 12; i++ {
		id := fmt.Sprintf("NEG-%d", i)
		v := vector(t, id)
		f := append(make([]byte, 40), v...)
		if len(v) < wire.EncapLen {
			continue // the link's to refuse: there is no whole header
		}
		if up := h.e.Input(h.now, Broadcast, f); up != nil {
			t.Errorf("%s goes up", id)
		}
	}
	want := map[wire.FrameRefusal]uint64{wire.ARPHardwareLen: 1, wire.ARPHardwareType: 1, wire.FrameShort: 1,
		wire.FrameEtherType: 1, wire.FrameVersion: 1, wire.NDHopLimit: 1, wire.NDOption: 1, wire.NDLinkAddrLen: 1,
		wire.ARPSenderHW: 1}
	c := h.e.Counters()
	for r := range wire.FrameRefusal(wire.NumFrameRefusals) {
		if c.Refused[r] != want[r] {
			t.Errorf("%v: %d, want %d", r, c.Refused[r], want[r])
		}
	}
	h.want() // NEG-4 and NEG-11 ask for B, which we are not
	if f := append(make([]byte, 40), 0x80, 0x35, 0, 0); h.e.Input(h.now, Broadcast, f) != nil {
		t.Error("RARP goes up")
	}
}

// IP packets go up as they came.
func TestIPGoesUp(t *testing.T) {
	h := upHost(t, Config{})
	for _, p := range [][]byte{packet(ipB, ipA, "four")[headroom:], packet(llB, llA, "six")[headroom:],
		vector(t, "SN-1"),
		vector(t, "SN-4"), {0x45}} {
		typ := wire.EtherIPv4
		if p[0]>>4 == 6 {
			typ = wire.EtherIPv6
		}
		up := h.arrive(Multicast, hwB, typ, p)
		if up == nil || !bytes.Equal(up[headroom:], p) {
			t.Errorf("%x became %x", p, up)
		}
	}
	h.want()
	if len(h.e.Neighbours(h.now)) != 0 {
		t.Error("learned from data")
	}
}

// What is received by Neighbor Discovery (RFC 4861, 7.2.3 to 7.2.5): questions and answers end here
// (S-12).
func TestNDRules(t *testing.T) {
	solicit := func(src netip.Addr, hw *wire.HWAddr) wire.ND {
		n := wire.ND{Type: wire.NDNeighborSolicit, Src: src, Dst: wire.SolicitedNode(llA), Target: llA}
		if hw != nil {
			n.Link, n.HasLink = *hw, true
		}
		return n
	}
	answer := "naSO fe80::202:c903:a:1b2d (A) from fe80::202:c903:a:1b2d to fe80::f652:1403:7b:cba1 > B"
	t.Run("a solicitation is answered and its sender learned", func(t *testing.T) {
		h := upHost(t, Config{})
		h.nd(Multicast, solicit(llB, &hwB))
		h.want("learned fe80::f652:1403:7b:cba1 at B", answer)
		h.wantState(llB, "STALE")
	})
	t.Run("the answer is that of the vectors", func(t *testing.T) {
		h := newHost(t, Config{})
		h.e.SetLink(h.now, LinkInfo{HW: hwB, PKey: pkey, Scope: scope, MTU: mtu})
		h.e.SetUp(h.now, true)
		h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(llB, 64)})
		h.wait(10 * time.Second)
		h.frames = nil
		h.arriveVector(Multicast, "ND-1")
		h.wantFrame(0, "ND-2", hwA)
		h.frames = nil
		h.arriveVector(Multicast, "NEG-11") // with a dirty pad
		h.wantFrame(0, "ND-2", hwA)
	})
	t.Run("for another's address", func(t *testing.T) {
		h := upHost(t, Config{})
		n := solicit(llB, &hwB)
		n.Target = netip.MustParseAddr("fe80::77")
		h.nd(Multicast, n)
		h.want()
		if c := h.e.Counters(); c.IgnoredTarget != 1 {
			t.Errorf("%+v", c)
		}
	})
	t.Run("without option from a known neighbour", func(t *testing.T) {
		h := upHost(t, Config{})
		h.e.AddStatic(h.now, llB, hwB)
		h.log = nil
		h.nd(Host, solicit(llB, nil))
		h.want(answer)
	})
	t.Run("without option, but with a GRH", func(t *testing.T) {
		h := upHost(t, Config{})
		b, n := make([]byte, wire.MaxNDLen), solicit(llB, nil)
		h.arrive(Host, hwB, wire.EtherIPv6, b[:n.Put(b)])
		h.want(answer)
	})
	t.Run("without any hint the sender is asked for", func(t *testing.T) {
		h := upHost(t, Config{})
		h.nd(Host, solicit(llB, nil))
		h.want("ns fe80::f652:1403:7b:cba1 (A) from fe80::202:c903:a:1b2d to ff02::1:ff7b:cba1 > ff12:601b:8014::1:ff7b:cba1")
		h.nd(Host, advertOf(llB, hwB))
		h.want("learned fe80::f652:1403:7b:cba1 at B", answer)
		h.wait(time.Hour)
		h.nd(Host, solicit(llB, nil)) // no answer, and no error for what the stack did not send
		h.wait(5 * time.Second)
		for _, line := range h.log {
			if strings.HasPrefix(line, "up ") {
				t.Error(line)
			}
		}
	})
	t.Run("another checks for duplicates of ours", func(t *testing.T) {
		h := upHost(t, Config{})
		n := solicit(netip.IPv6Unspecified(), nil)
		h.nd(Multicast, n)
		h.wantFrame(0, "ND-4", groupHW("ff02::1"))
		h.want("naO fe80::202:c903:a:1b2d (A) from fe80::202:c903:a:1b2d to ff02::1 > ff12:601b:8014::1")
	})
	t.Run("advertisements of strangers", func(t *testing.T) {
		h := upHost(t, Config{})
		h.nd(Host, advertOf(llB, hwB))
		h.want()
		h.wantState(llB, "absent")
		h.send(llB, "f")
		n := advertOf(llB, hwB)
		n.HasLink, n.Link = false, wire.HWAddr{}
		h.log = nil
		h.nd(Host, n)
		h.want()
		h.wantState(llB, "INCOMPLETE")
		if c := h.e.Counters(); c.IgnoredAdvert != 2 {
			t.Errorf("%+v", c)
		}
	})
	known := func(t *testing.T) *host {
		h := upHost(t, Config{})
		h.send(llB, "f")
		h.nd(Host, advertOf(llB, hwB))
		h.wait(2 * time.Second)
		h.log = nil
		return h
	}
	t.Run("unsolicited, of a new address", func(t *testing.T) {
		h := known(t)
		n := advertOf(llB, hwC)
		n.Solicited, n.Dst = false, allNodes
		h.nd(Multicast, n)
		h.want("learned fe80::f652:1403:7b:cba1 at C")
		h.wantState(llB, "STALE")
		n.Link = hwB
		h.nd(Multicast, n) // at once again
		h.want()
		h.send(llB, "g")
		h.want("g > C")
	})
	t.Run("without override, of a new address", func(t *testing.T) {
		h := known(t)
		n := advertOf(llB, hwC)
		n.Override = false
		h.nd(Host, n)
		h.want()
		h.wantState(llB, "STALE")
		h.nd(Host, n)
		h.wantState(llB, "STALE")
		h.send(llB, "g")
		h.want("g > B")
	})
	t.Run("solicited, of the same address", func(t *testing.T) {
		h := known(t)
		h.wait(45 * time.Second)
		h.wantState(llB, "STALE")
		n := advertOf(llB, hwB)
		n.HasLink, n.Link, n.Override, n.Router = false, wire.HWAddr{}, false, true
		h.nd(Host, n)
		h.want("learned fe80::f652:1403:7b:cba1 at B")
		h.wantState(llB, "REACHABLE")
		if !h.e.Neighbours(h.now)[0].Router {
			t.Error("not marked as a router")
		}
	})
	t.Run("unsolicited, of the same address", func(t *testing.T) {
		h := known(t)
		h.wait(45 * time.Second)
		n := advertOf(llB, hwB)
		n.Solicited = false
		h.nd(Host, n)
		h.want()
		h.wantState(llB, "STALE")
	})
	t.Run("unsolicited, while we ask", func(t *testing.T) {
		h := upHost(t, Config{})
		h.send(llB, "f")
		h.log = nil
		n := advertOf(llB, hwB)
		n.Solicited = false
		h.nd(Host, n)
		h.want("learned fe80::f652:1403:7b:cba1 at B", "f > B")
		h.wantState(llB, "DELAY")
	})
	t.Run("redirects end here", func(t *testing.T) {
		h := upHost(t, Config{})
		h.nd(Host, wire.ND{Type: wire.NDRedirect, Src: llB, Dst: llA, Target: llB,
			Dest: netip.MustParseAddr("2001:db8::1"),
			Link: hwB, HasLink: true})
		h.want()
		if c := h.e.Counters(); c.IgnoredRedirect != 1 {
			t.Errorf("%+v", c)
		}
	})
	t.Run("from one of our addresses", func(t *testing.T) {
		h := upHost(t, Config{})
		h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(llA, 64), netip.PrefixFrom(llB, 64)})
		h.wait(10 * time.Second)
		h.log = nil
		h.nd(Multicast, solicit(llB, &hwC))
		h.want("conflict fe80::f652:1403:7b:cba1 with C")
	})
	t.Run("our own come back", func(t *testing.T) {
		h := upHost(t, Config{})
		for _, id := range []string{"ND-1", "ND-4", "ND-5"} {
			if h.arriveVector(Multicast, id) != nil {
				t.Errorf("%s goes up", id)
			}
		}
		// Without an address in it the GRH is used.
		b, n := make([]byte, wire.MaxNDLen), solicit(netip.IPv6Unspecified(), nil)
		h.arrive(Multicast, hwA, wire.EtherIPv6, b[:n.Put(b)])
		h.want()
	})
}

// Routers' messages pass between IP stack and link, with the option on the
// link only (S-12).
func TestRouterMessages(t *testing.T) {
	h := upHost(t, Config{})
	frame := append(make([]byte, headroom), vector(t, "ND-5")[wire.EncapLen:]...)
	bare := frame[:headroom+wire.PutSourceLink(frame[headroom:], frame[headroom:], 40, nil)]
	h.e.Output(h.now, bytes.Clone(bare), netip.Addr{})
	h.wantFrame(0, "ND-5", groupHW("ff02::2"))
	h.want("rs invalid IP (A) from fe80::202:c903:a:1b2d to ff02::2 > ff12:601b:8014::2")
	// With a stack's own idea of the option.
	odd := wire.ND{Type: wire.NDRouterSolicit, Src: llA, Dst: netip.MustParseAddr("ff02::2"), Link: hwC, HasLink: true}
	b := make([]byte, headroom+wire.MaxNDLen)
	h.e.Output(h.now, b[:headroom+odd.Put(b[headroom:])], netip.Addr{})
	h.wantFrame(0, "ND-5", groupHW("ff02::2"))
	h.log, h.frames = nil, nil
	// From no address it has none.
	nobody := wire.ND{Type: wire.NDRouterSolicit, Src: netip.IPv6Unspecified(), Dst: netip.MustParseAddr("ff02::2")}
	h.e.Output(h.now, b[:headroom+nobody.Put(b[headroom:])], netip.Addr{})
	h.want("rs invalid IP (-) from :: to ff02::2 > ff12:601b:8014::2")
	bad := bytes.Clone(bare)
	bad[len(bad)-1] ^= 1
	h.e.Output(h.now, bad, netip.Addr{})
	for _, n := range []wire.ND{
		{Type: wire.NDNeighborSolicit, Src: llA, Dst: llB, Target: llB},
		{Type: wire.NDNeighborAdvert, Src: llA, Dst: llB, Target: llA},
		{Type: wire.NDRedirect, Src: llA, Dst: llB, Target: llA, Dest: ipv6("2001:db8::1")},
	} {
		h.e.Output(h.now, b[:headroom+n.Put(b[headroom:])], llB)
	}
	h.want()
	if c := h.e.Counters(); c.DropStackND != 3 || c.DropStackRS != 1 {
		t.Errorf("%+v", c)
	}

	up := h.arriveVector(Multicast, "ND-6")
	var nd wire.ND
	if why := nd.Parse(up[headroom:], 40); why != wire.FrameOK || nd.HasLink || nd.MTU != 2044 ||
		len(up) != headroom+124-4-24 {
		t.Errorf("%d bytes: %v, %+v", len(up), why, nd)
	}
	h.want("learned fe80::f652:1403:7b:cba1 at B")
	if n := h.e.Neighbours(h.now); len(n) != 1 || !n[0].Router || n[0].State != Stale {
		t.Errorf("%+v", n)
	}
	h.send(llB, "f") // the router is known already
	h.want("f > B")

	other := wire.ND{Type: wire.NDRouterSolicit, Src: ipv6("fe80::c"), Dst: netip.MustParseAddr("ff02::2"), Link: hwC,
		HasLink: true}
	n := other.Put(b)
	up = h.arrive(Multicast, wire.HWAddr{}, wire.EtherIPv6, b[:n])
	if why := nd.Parse(up[headroom:], 40); why != wire.FrameOK || nd.HasLink || nd.Type != wire.NDRouterSolicit {
		t.Errorf("%v, %+v", why, nd)
	}
	h.want()
	h.wantState(ipv6("fe80::c"), "absent")
}

func ipv6(s string) netip.Addr { return netip.MustParseAddr(s) }

// Addresses: checked for duplicates, then announced three times.
func TestAnnouncements(t *testing.T) {
	h := newHost(t, Config{})
	prefixes := []netip.Prefix{netip.PrefixFrom(ipA, 24), netip.PrefixFrom(llA, 64)}
	h.e.SetAddrs(h.now, prefixes)
	h.want("join ff02::1:ff0a:1b2d")
	arp := "arp who-has 10.20.0.1 (-) tell 10.20.0.1 (A) > all"
	dad := "ns fe80::202:c903:a:1b2d (-) from :: to ff02::1:ff0a:1b2d > ff12:601b:8014::1:ff0a:1b2d"
	na := "naO fe80::202:c903:a:1b2d (A) from fe80::202:c903:a:1b2d to ff02::1 > ff12:601b:8014::1"
	h.e.SetUp(h.now, true)
	h.wantFrame(0, "ARP-3", wire.PseudoBroadcast)
	h.wantFrame(1, "ND-3", groupHW("ff02::1:ff0a:1b2d"))
	h.want("join 224.0.0.1", "join ff02::1", arp, dad, "up igmp query", "up mld query")
	h.wait(time.Second - 1)
	h.want()
	if a := h.e.Addresses(); len(a) != 2 || a[0].State != Valid || a[1].State != Tentative {
		t.Errorf("%v", a)
	}
	h.wait(1)
	h.wantFrameAny("ND-4", groupHW("ff02::1"))
	h.wantSet(arp, na, "up igmp query", "up mld query")
	h.wait(time.Second)
	h.wantSet(arp, na)
	h.wait(time.Second)
	h.want(na)
	h.wait(time.Hour)
	h.want()
	if h.e.Deadline() != 0 {
		t.Error("a deadline is left")
	}
	// The same again changes nothing; a new prefix length neither.
	h.e.SetAddrs(h.now, prefixes)
	h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(ipA, 16), netip.PrefixFrom(llA, 64)})
	h.want()
	// A new queue pair number, or GID, is announced.
	hw := wire.MakeHWAddr(0, 0x99, hwA.GID())
	h.e.SetLink(h.now, LinkInfo{HW: hw, PKey: pkey, Scope: scope, MTU: mtu})
	h.wait(10 * time.Second)
	if len(h.log) != 6 {
		t.Errorf("%q", h.log)
	}
	for i, line := range h.log {
		h.log[i] = strings.ReplaceAll(line, "qp153", "A")
	}
	h.wantSet(arp, na, arp, na, arp, na)
	// Nothing is announced by an MTU.
	h.e.SetLink(h.now, LinkInfo{HW: hw, PKey: pkey, Scope: scope, MTU: 1020})
	h.want()
	// Down and up: again, with IPv4 only, as the MTU has become small.
	h.e.SetUp(h.now, false)
	h.e.SetAddrs(h.now, prefixes[:1])
	h.e.SetUp(h.now, true)
	h.log[1] = strings.ReplaceAll(h.log[1], "qp153", "A")
	h.want("leave ff02::1:ff0a:1b2d", arp, "up igmp query")
	h.e.SetUp(h.now, true)
	h.want()
}

// wantSet is want in any order.
func (h *host) wantSet(lines ...string) {
	h.t.Helper()
	left := map[string]int{}
	for _, l := range lines {
		left[l]++
	}
	for _, l := range h.log {
		left[l]--
	}
	for l, n := range left {
		if n != 0 {
			h.t.Errorf("%q: %d missing", l, n)
		}
	}
	h.log, h.frames = nil, nil
}

func (h *host) wantFrameAny(id string, dst wire.HWAddr) {
	h.t.Helper()
	for i := range h.frames {
		if bytes.Equal(h.frames[i][40:], vector(h.t, id)) {
			h.wantFrame(i, id, dst)
			return
		}
	}
	h.t.Errorf("%s was not sent", id)
}

func TestDuplicateAddress(t *testing.T) {
	for name, bring := range map[string]func(h *host){
		"advertised": func(h *host) {
			h.nd(Multicast, wire.ND{Type: wire.NDNeighborAdvert, Src: llA, Dst: allNodes, Target: llA, Override: true,
				Link: hwB, HasLink: true})
		},
		"checked by another at the same time": func(h *host) {
			n, b := wire.ND{Type: wire.NDNeighborSolicit, Src: netip.IPv6Unspecified(), Dst: wire.SolicitedNode(llA),
				Target: llA}, make([]byte, wire.MaxNDLen)
			h.arrive(Multicast, hwB, wire.EtherIPv6, b[:n.Put(b)])
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, Config{})
			h.e.SetUp(h.now, true)
			h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(llA, 64)})
			h.log = nil
			h.wait(999 * time.Millisecond)
			bring(h)
			h.want("conflict fe80::202:c903:a:1b2d with B")
			h.wait(10 * time.Second)
			h.want("up igmp query", "up mld query")
			if a := h.e.Addresses(); a[0].State != Duplicate {
				t.Errorf("%v", a)
			}
			// It is not ours: no reply, and no request from it.
			h.nd(Multicast, wire.ND{Type: wire.NDNeighborSolicit, Src: llB, Dst: wire.SolicitedNode(llA), Target: llA,
				Link: hwB, HasLink: true})
			h.want()
			h.send(llB, "f")
			h.want()
			// With the next carrier it is tried again.
			h.e.SetUp(h.now, false)
			h.e.SetUp(h.now, true)
			h.wait(time.Second)
			if a := h.e.Addresses(); a[0].State != Valid {
				t.Errorf("%v", a)
			}
		})
	}
}

// While the first address is being checked, packets wait for it.
func TestTentativeAddress(t *testing.T) {
	h := newHost(t, Config{})
	h.e.SetUp(h.now, true)
	h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(llA, 64)})
	h.log = nil
	h.send(llB, "f")
	h.nd(Multicast, wire.ND{Type: wire.NDNeighborSolicit, Src: llB, Dst: wire.SolicitedNode(llA), Target: llA,
		Link:    hwB,
		HasLink: true})
	h.want() // no request, and no reply for it
	h.wait(time.Second)
	ns := "ns fe80::f652:1403:7b:cba1 (A) from fe80::202:c903:a:1b2d to ff02::1:ff7b:cba1 > ff12:601b:8014::1:ff7b:cba1"
	found := 0
	for _, line := range h.log {
		if line == ns {
			found++
		}
	}
	if found != 1 {
		t.Errorf("%q", h.log)
	}
	h.log = nil
	h.nd(Host, advertOf(llB, hwB))
	h.want("learned fe80::f652:1403:7b:cba1 at B", "f > B")
	// Without any address the stack gets an error in the end.
	h = newHost(t, Config{})
	h.e.SetUp(h.now, true)
	h.send(llB, "f")
	h.send(ipB, "g")
	h.log = nil
	h.wait(3*time.Second - 1)
	ask := "arp who-has 10.20.0.2 (-) tell 0.0.0.0 (A) > all"
	h.wantSet("up igmp query", "up mld query", ask, ask)
	h.wait(1)
	h.wantSet("up icmp6 1/3 from fe80::f652:1403:7b:cba1 about f", "up icmp 1 from 10.20.0.2 to 10.20.0.1 about g")
	if c := h.e.Counters(); c.NoSource != 6 {
		t.Errorf("%+v", c)
	}
}

// An address of ours that another uses.
func TestConflicts(t *testing.T) {
	h := upHost(t, Config{})
	theirs := wire.ARP{Op: wire.ARPRequest, SenderHW: hwB, SenderIP: ipA, TargetIP: ipC}
	defence := "arp who-has 10.20.0.1 (-) tell 10.20.0.1 (A) > all"
	h.arp(Broadcast, theirs)
	h.want(defence, "conflict 10.20.0.1 with B")
	for range 100 {
		h.wait(99 * time.Millisecond)
		h.arp(Broadcast, theirs)
	}
	h.want() // reported, and defended, at most once in ten seconds
	h.wait(100 * time.Millisecond)
	h.arp(Broadcast, theirs)
	h.want(defence, "conflict 10.20.0.1 with B")
	theirs.TargetIP = ipA // a gratuitous one: answered, never learned
	h.arp(Broadcast, theirs)
	h.want("arp is-at 10.20.0.1 (B) tell 10.20.0.1 (A) > B")
	h.wantState(ipA, "absent")
	h.nd(Multicast, wire.ND{Type: wire.NDNeighborAdvert, Src: llA, Dst: allNodes, Target: llA, Link: hwC,
		HasLink: true})
	h.want("conflict fe80::202:c903:a:1b2d with C")
	if a := h.e.Addresses(); a[1].State != Valid {
		t.Errorf("%v", a)
	}
	ra := vector(t, "ND-6")[wire.EncapLen:]
	h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(llB, 64)})
	h.wait(10 * time.Second)
	h.log = nil
	if h.arrive(Multicast, wire.HWAddr{}, wire.EtherIPv6, ra) != nil {
		t.Error("a router with our address goes up")
	}
	h.want("conflict fe80::f652:1403:7b:cba1 with B")
	if c := h.e.Counters(); c.Conflicts != 105 {
		t.Errorf("%+v", c)
	}
}

// A neighbour that becomes our own address is forgotten.
func TestAddressIsOurs(t *testing.T) {
	h := upHost(t, Config{})
	h.send(ipB, "f")
	h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(ipA, 24), netip.PrefixFrom(ipB, 24)})
	h.wantState(ipB, "absent")
	if h.e.pool.used != 0 {
		t.Error("its packets still wait")
	}
	for _, p := range []netip.Prefix{{}, netip.PrefixFrom(netip.MustParseAddr("127.0.0.1"), 8),
		netip.PrefixFrom(allNodes, 128), netip.PrefixFrom(netip.MustParseAddr("::ffff:10.0.0.1"), 120)} {
		h.e.SetAddrs(h.now, []netip.Prefix{p})
		if a := h.e.Addresses(); len(a) != 0 {
			t.Errorf("%v is an address: %v", p, a)
		}
	}
	var many []netip.Prefix
	for i := range 300 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 16))
	}
	h.e.SetAddrs(h.now, many)
	if c := h.e.Counters(); len(h.e.Addresses()) != 256 || c.AddrsRefused != 44 {
		t.Errorf("%d addresses, %d refused", len(h.e.Addresses()), c.AddrsRefused)
	}
	h.e.SetAddrs(h.now, nil)
	if len(h.e.Addresses()) != 0 || h.e.Deadline() != 0 {
		t.Error("addresses are left")
	}
}

// The source address of a request, of several addresses.
func TestSourceOfQuestions(t *testing.T) {
	h := upHost(t, Config{})
	h.e.SetAddrs(h.now, []netip.Prefix{netip.MustParsePrefix("10.20.0.1/16"), netip.MustParsePrefix("10.20.5.1/24"),
		netip.MustParsePrefix("192.0.2.9/24"), netip.PrefixFrom(llA, 64), netip.MustParsePrefix("2001:db8::1/64"),
		netip.MustParsePrefix("2001:db8::9/64")})
	h.wait(10 * time.Second)
	h.log = nil
	for target, src := range map[string]string{"10.20.5.7": "10.20.5.1", "10.20.6.7": "10.20.0.1",
		"192.0.2.1": "192.0.2.9", "203.0.113.1": "10.20.0.1", "fe80::9": llA.String(), "2001:db8::7": "2001:db8::1",
		"2001:db8:1::7": llA.String()} {
		got, ok := h.e.source(netip.MustParseAddr(target))
		if !ok || got.String() != src {
			t.Errorf("for %s: %v, want %s", target, got, src)
		}
	}
}

// TestTooBig: the IP stack gets ICMP errors for packets above the MTU of their destination: from that
// address or, for an IPv6 group, from an address next to ours.
func TestTooBig(t *testing.T) {
	h := upHost(t, Config{})
	var frames [][]byte
	for _, dst := range []netip.Addr{ipB, llB, netip.MustParseAddr("ff02::99"), netip.MustParseAddr("239.1.1.1"),
		netip.MustParseAddr("10.20.0.255")} {
		src := ipA
		if dst.Is6() {
			src = llA
		}
		f := packet(src, dst, "x")
		frames = append(frames, bytes.Clone(f))
		h.e.TooBig(h.now, f, 1500)
		if !bytes.Equal(f, frames[len(frames)-1]) {
			t.Errorf("to %v: the packet was changed", dst)
		}
	}
	h.want("up icmp 4 from 10.20.0.2 to 10.20.0.1 about x", fmt.Sprintf("up icmp6 2/0 from %v about x", llB),
		fmt.Sprintf("up icmp6 2/0 from %v about x", llA.Next()))
	for _, p := range [][]byte{{}, {0x45}, {0x60}, bytes.Repeat([]byte{0x45}, 19), bytes.Repeat([]byte{0x60}, 39),
		bytes.Repeat([]byte{0x50}, 60)} {
		h.e.TooBig(h.now, append(make([]byte, headroom), p...), 1500)
	}
	h.e.TooBig(h.now, h.e.scratch[:], 1500)
	h.want()
	// Without an address of the family there is no source for the error.
	h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(ipA, 31)})
	h.wait(10 * time.Second)
	h.log = nil
	h.e.TooBig(h.now, packet(llA, netip.MustParseAddr("ff02::99"), "x"), 1500)
	h.want()
}
