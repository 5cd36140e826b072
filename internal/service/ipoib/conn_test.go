// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/connected"
)

// mixed makes two links with addresses that are up, each with a mode of its own.
func mixed(t testing.TB, modes ...string) (s *subnet, a, b *node) {
	s = newSubnet(t)
	a, b = s.add("ib0_1_14", 5, gidA, 0x48, "mode="+modes[0], "conn_idle=600"),
		s.add("ib1_1_14", 17, gidB, 0x208, "mode="+modes[1], "conn_idle=600")
	s.cmDelay = time.Millisecond
	for i, n := range s.nodes {
		n.begin(i)
	}
	s.run(10 * time.Second)
	for _, n := range s.nodes {
		if !n.carrier {
			t.Fatalf("%s has no carrier: %s", n.name, n.reason)
		}
		n.got = nil
	}
	return s, a, b
}

// begin starts a link with the address of node i.
func (n *node) begin(i int) {
	n.start()
	n.l.SetAddrs(n.s.now, []netip.Prefix{netip.PrefixFrom([]netip.Addr{ipA, ipB}[i], 24)}, nil)
}

// text is a packet's text of n octets, IPv4 header not counted.
func text(what string, n int) string { return what + strings.Repeat(".", n-len(what)) }

// delivered returns the first letters of the packets of the IP stack that are no ICMP errors, in order,
// and the MTUs of those that are.
func (n *node) delivered() (words []string, mtus []int) {
	for _, p := range n.got {
		switch {
		case p[0]>>4 == 4 && p[9] == 1 && len(p) >= 28 && p[20] == 3 && p[21] == 4:
			mtus = append(mtus, int(p[26])<<8|int(p[27]))
		case p[0]>>4 == 6 && p[6] == 58 && len(p) >= 48 && p[40] == 2:
			mtus = append(mtus, int(p[46])<<8|int(p[47]))
		case p[0]>>4 == 4:
			words = append(words, strings.TrimRight(string(p[20:]), "."))
		default:
			words = append(words, strings.TrimRight(string(p[40:]), "."))
		}
	}
	n.got = nil
	return words, mtus
}

func (n *node) expect(words []string, mtus ...int) {
	n.s.t.Helper()
	w, m := n.delivered()
	if !slices.Equal(w, words) || !slices.Equal(m, mtus) {
		n.s.t.Errorf("%s got %q and was told MTUs %d, want %q and %d", n.name, w, m, words, mtus)
	}
}

func (n *node) expectCount(name string, want uint64) {
	n.s.t.Helper()
	if got := n.counter(name); got != want {
		n.s.t.Errorf("%s: %s is %d, want %d", n.name, name, got, want)
	}
}

// ends stops both links, of which nothing is left.
func (s *subnet) ends() {
	s.t.Helper()
	for _, n := range s.nodes {
		n.l.Stop(s.now)
	}
	s.run(10 * time.Second)
	for _, n := range s.nodes {
		n.gone()
	}
}

// TestConnected: two links in connected mode make one connection, by which packets of up to 65520 octets go both
// ways, in their order; what the requests say is of RFC 4755.
func TestConnected(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	if a.info.MTU != 65520 || a.info.Address[0] != 0x80 || a.l.Info().DatagramMTU != 2044 {
		t.Errorf("the device: %+v, datagrams of %d", a.info, a.l.Info().DatagramMTU)
	}
	a.send(ipA, ipB, text("one", 65500), "two", text("three", 3000))
	s.run(time.Second)
	b.expect([]string{"one", "two", "three"})
	b.send(ipB, ipA, text("four", 65500))
	s.run(time.Second)
	a.expect([]string{"four"})
	if len(s.cmAsked) != 1 {
		t.Fatalf("%d requests for connections, want 1", len(s.cmAsked))
	}
	if r := s.cmAsked[0]; r.ServiceID != 0x0100000000000208 || hex.EncodeToString(r.Private) != "000000480000fff4" ||
		r.Path.DLID != 17 {
		t.Errorf("asked for %#x with %x by %#x", r.ServiceID, r.Private, r.Path.DLID)
	}
	for _, n := range s.nodes {
		n.expectCount("conns", 1)
		n.expectCount("conn_opened", 1)
	}
	for _, e := range a.l.Shadow(s.now) {
		if e.Mode != "connected" || e.HW.Flags() != wire.HWFlagRC {
			t.Errorf("B is %v, %s", e.HW, e.Mode)
		}
	}
	a.expectCount("conn_tx_packets", 3)
	s.ends()
}

// TestConnectedMixed: a peer without connected mode gets datagrams, and the IP stack gets ICMP errors
// for longer packets; the same for groups.
func TestConnectedMixed(t *testing.T) {
	s, a, b := mixed(t, "connected", "datagram")
	a.send(ipA, ipB, "one", text("long", 4000))
	s.run(time.Second)
	b.expect([]string{"one"})
	a.expect(nil, 2044)
	b.send(ipB, ipA, "two")
	s.run(time.Second)
	a.expect([]string{"two"})
	if len(s.cmAsked) != 0 || a.l.ModeOf(b.l.attr.hw) != "datagram" {
		t.Errorf("%d requests, mode %s", len(s.cmAsked), a.l.ModeOf(b.l.attr.hw))
	}
	ll := wire.LinkLocal(gidA.GUID())
	a.l.SetAddrs(s.now, append(a.l.addrs.own, netip.PrefixFrom(ll, 64)), nil)
	s.run(10 * time.Second)
	group := netip.MustParseAddr("ff02::1")
	a.got = nil
	a.l.SendBatch(s.now, [][]byte{ipv6(ll, group, text("long", 4000)), ipv6(ll, group, "short")},
		[]netip.Addr{group, group})
	s.run(time.Second)
	b.expect([]string{"short"})
	a.expect(nil, 2044)
	a.expectCount("drop_too_big", 2)
	s.ends()
}

// TestConnectedCrossing: both ask at the same time; the request of the larger address stays.
func TestConnectedCrossing(t *testing.T) {
	for _, small := range []bool{false, true} {
		s, a, b := mixed(t, "connected", "connected")
		a.send(ipA, ipB, text("x", 4000))
		s.run(time.Second)
		for _, n := range s.nodes { // known to each other, not connected
			n.l.conns.EndAll(s.now)
		}
		s.run(time.Second)
		a.got, b.got, s.cmAsked = nil, nil, nil
		if small {
			s.cmDelay = 300 * time.Millisecond
		}
		a.send(ipA, ipB, text("one", 4000))
		b.send(ipB, ipA, text("two", 4000))
		s.run(5 * time.Second)
		b.expect([]string{"one"})
		a.expect([]string{"two"})
		if len(s.cmAsked) != 2 {
			t.Errorf("%d requests, want 2", len(s.cmAsked))
		}
		for _, n := range s.nodes {
			n.expectCount("conns", 1)
			n.expectCount("conn_crossed", 1)
		}
		// 0x48 of A is smaller than 0x208 of B, so that B's is the one.
		for _, c := range a.listConns() {
			if c.ID < connected.FirstPassive {
				t.Errorf("A's own request stayed")
			}
		}
		s.ends()
	}
}

// TestConnectedOldService: a peer that listens at the other service ID gets its REQ there, and a peer
// that sends its REQ there has a connection for each direction.
func TestConnectedOldService(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	a.noRFC, b.noRFC = true, true
	a.send(ipA, ipB, text("one", 4000))
	s.run(time.Second)
	a.send(ipA, ipB, text("two", 4000))
	s.run(time.Second)
	b.expect([]string{"one", "two"})
	var ids []uint64
	for _, r := range s.cmAsked {
		ids = append(ids, r.ServiceID)
	}
	if !slices.Equal(ids, []uint64{0x0100000000000208, 0x1000000000000208}) {
		t.Errorf("asked for %#x", ids)
	}
	b.send(ipB, ipA, text("three", 4000))
	s.run(time.Second)
	a.expect([]string{"three"})
	for _, n := range s.nodes {
		n.expectCount("conns", 2)
	}
	s.ends()
}

// TestConnectedUnreachable: a peer that does not reply gets datagrams, and the IP stack gets ICMP
// errors for longer packets; later the peer gets another REQ.
func TestConnectedUnreachable(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	s.cmLost = func(_, _ *node, what string) bool { return what == "REQ" }
	a.send(ipA, ipB, "one", text("long", 4000))
	s.run(time.Second)
	b.expect([]string{"one"})
	s.run(20 * time.Second)
	a.expect(nil, 2044)
	a.expectCount("conn_failed", 1)
	a.send(ipA, ipB, text("long", 4000))
	a.expect(nil, 2044)
	s.cmLost = nil
	s.run(11 * time.Second)
	a.send(ipA, ipB, text("two", 4000))
	s.run(time.Second)
	b.expect([]string{"two"})
	s.ends()
}

// TestConnectedLostReady: the RTU is lost; the first message of the peer replaces it.
func TestConnectedLostReady(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	s.cmLost = func(_, _ *node, what string) bool { return what == "RTU" }
	a.send(ipA, ipB, text("one", 4000))
	s.run(time.Second)
	b.send(ipB, ipA, text("two", 4000))
	s.run(time.Second)
	b.expect([]string{"one"})
	a.expect([]string{"two"})
	s.ends()
}

// TestConnectedPeerRestarts: a peer that vanished without a word comes back, with another number; what it is sent
// arrives again soon, and by a connection.
func TestConnectedPeerRestarts(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	a.send(ipA, ipB, text("one", 4000))
	s.run(time.Second)
	b.expect([]string{"one"})
	b.kill()
	b = s.add("ib1_1_14", 17, gidB, 0x20a, "mode=connected")
	b.begin(1)
	s.run(5 * time.Second)
	b.got = nil
	for range 5 {
		a.send(ipA, ipB, text("two", 4000))
		s.run(time.Second)
	}
	w, _ := b.delivered()
	if len(w) < 3 || a.l.ModeOf(b.l.attr.hw) != "connected" {
		t.Errorf("B got %q, mode %s", w, a.l.ModeOf(b.l.attr.hw))
	}
	s.ends()
}

// TestConnectedSameNumber: it comes back with the number that it had: the old connection breaks with the first message,
// the next one is made at once.
func TestConnectedSameNumber(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	a.send(ipA, ipB, text("one", 4000))
	s.run(time.Second)
	b.kill()
	b = s.add("ib1_1_14", 17, gidB, 0x208, "mode=connected")
	b.begin(1)
	s.run(5 * time.Second)
	b.got = nil
	// It sends its REQ first: A replaces its connection.
	b.send(ipB, ipA, text("two", 4000))
	s.run(time.Second)
	a.expect([]string{"two"})
	a.send(ipA, ipB, text("three", 4000))
	s.run(time.Second)
	b.expect([]string{"three"})
	a.expectCount("conns", 1)
	s.ends()
}

// TestConnectedLost: after an error of the connection a new one is requested.
func TestConnectedLost(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	a.send(ipA, ipB, text("one", 4000))
	s.run(time.Second)
	for _, c := range b.conns {
		c.broken = true
	}
	s.asked = nil
	a.send(ipA, ipB, text("lost", 4000))
	s.run(time.Second)
	a.expectCount("conn_lost", 1)
	a.send(ipA, ipB, text("two", 4000))
	s.run(time.Second)
	b.expect([]string{"one", "two"})
	if !slices.ContainsFunc(s.asked, func(q string) bool { return strings.Contains(q, a.name+" path") }) {
		t.Errorf("the path was not asked for again: %q", s.asked)
	}
	s.ends()
}

// TestConnectedStalePath: after an event that made the path invalid, a connection is requested only by
// a path that was queried later; packets wait for it.
func TestConnectedStalePath(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	a.send(ipA, ipB, text("one", 4000))
	s.run(time.Second)
	a.l.conns.EndAll(s.now)
	s.asked, s.cmAsked = nil, nil
	a.l.shadow.invalidatePaths()
	a.send(ipA, ipB, text("two", 4000))
	s.run(time.Second)
	b.expect([]string{"one", "two"})
	if !slices.ContainsFunc(s.asked, func(q string) bool { return strings.Contains(q, a.name+" path") }) {
		t.Errorf("the path was not asked for: %q", s.asked)
	}
	if len(s.cmAsked) == 0 {
		t.Error("no connection was asked for")
	}
	for _, r := range s.cmAsked {
		if r.Path.DLID != 17 {
			t.Errorf("asked by LID %d", r.Path.DLID)
		}
	}
	s.ends()
}

// TestConnectedIdle: an unused connection ends, at both sides.
func TestConnectedIdle(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	a.send(ipA, ipB, text("one", 4000))
	s.run(590 * time.Second)
	a.expectCount("conns", 1)
	s.run(30 * time.Second)
	a.expectCount("conns", 0)
	b.expectCount("conns", 0)
	if a.counter("conn_idle")+b.counter("conn_idle") == 0 {
		t.Error("no idle connection is counted")
	}
	a.send(ipA, ipB, text("two", 4000))
	s.run(time.Second)
	b.expect([]string{"one", "two"})
	s.ends()
}

// TestConnectedRoom: there are no more connections than there may be; one that is not used makes room, and where all
// are used datagrams do.
func TestConnectedRoom(t *testing.T) {
	s := newSubnet(t)
	s.cmDelay = time.Millisecond
	const peers = 4
	a := s.add("ib0_1_14", 5, gidA, 0x48, "mode=connected", "max_conns=2")
	a.begin(0)
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 20, 0, byte(100 + i)}) }
	var others []*node
	for i := range peers {
		n := s.add(fmt.Sprintf("ib%d_1_14", i+1), ib.LID(20+i), ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(0x100+i)),
			ib.QPN(0x300+i), "mode=connected")
		n.start()
		n.l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom(addr(i), 24)}, nil)
		others = append(others, n)
	}
	s.run(10 * time.Second)
	for i := range others {
		others[i].got = nil
		a.send(ipA, addr(i), text("x", 4000), "short")
	}
	s.run(500 * time.Millisecond)
	a.expectCount("conns", 2)
	if n := a.counter("conn_no_room"); n != 2 {
		t.Errorf("%d times there was no room, want 2", n)
	}
	for i, n := range others {
		w, _ := n.delivered()
		want := []string{"short"}
		if i < 2 {
			want = []string{"x", "short"}
		}
		if !slices.Equal(w, want) {
			t.Errorf("%s got %q, want %q", n.name, w, want)
		}
	}
	s.run(2 * time.Second)
	others[3].send(addr(3), ipA, text("y", 4000)) // requests a connection, for which another one is evicted
	s.run(time.Second)
	a.expectCount("conns", 2)
	a.expectCount("conn_evicted", 1)
	if w, _ := a.delivered(); !slices.Contains(w, "y") {
		t.Errorf("A got %q", w)
	}
	s.ends()
}

// TestConnectedHostile: requests and answers that say nonsense are refused and counted, messages that are none are
// dropped.
func TestConnectedHostile(t *testing.T) {
	good := make([]byte, 92)
	wire.PutCMPrivate(good, 0x208, 65524)
	for name, private := range map[string][]byte{"nothing": nil, "short": good[:7], "no length": wire4(0x208, 4),
		"group": wire4(0xffffff, 65524), "no port": good, "ourselves": wire4(0x48, 65524)} {
		s, a, _ := mixed(t, "connected", "connected")
		gid := gidB
		if name == "ourselves" {
			gid = gidA
		}
		lid := ib.LID(17)
		if name == "no port" {
			lid = ib.LIDPermissive
		}
		c := a.newConn(connected.FirstPassive + 77)
		c.peer = &fakeConn{n: s.nodes[1], stopped: true}
		a.l.ConnEvent(s.now, connected.Event{ID: c.id, Kind: connected.Requested, Service: 0x0100000000000048, GID: gid,
			LID: lid, Private: private})
		if !c.answered || len(a.listConns()) != 0 {
			t.Errorf("%s: not refused", name)
		}
		a.expectCount("conn_bad_data", 1)
		s.ends()
	}
	for name, private := range map[string][]byte{"short": good[:3], "another": wire4(0x209, 65524),
		"no length": wire4(0x208, 0)} {
		s, a, b := mixed(t, "connected", "connected")
		b.badReply = private
		a.send(ipA, ipB, text("x", 4000))
		s.run(time.Second)
		a.expect(nil, 2044)
		a.expectCount("conn_bad_data", 1)
		a.expectCount("conns", 0)
		if t.Failed() {
			t.Fatal(name)
		}
		s.ends()
	}
	s, a, b := mixed(t, "connected", "connected")
	a.send(ipA, ipB, text("one", 4000))
	s.run(time.Second)
	b.delivered()
	// Announcements of a peer about others, by its connection, count for its port, too.
	ll := wire.LinkLocal(gidB.GUID())
	b.l.SetAddrs(s.now, append(b.l.addrs.own, netip.PrefixFrom(ll, 64)), nil)
	s.run(10 * time.Second)
	b.delivered()
	var from *fakeConn
	for _, from = range a.conns {
	}
	for i := range 2 * maxPortEntries {
		made := wire.MakeHWAddr(0, ib.QPN(1000+i), gidA)
		nd := wire.ND{Type: wire.NDNeighborSolicit, Src: netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: 1,
			14: byte(i >> 8),
			15: byte(i)}), Dst: ll, Target: ll, Link: made, HasLink: true}
		m := make([]byte, 256)
		n := nd.Put(m[wire.EncapLen:])
		wire.PutEncap(m, wire.EtherIPv6)
		from.carry(1<<62, m[:wire.EncapLen+n])
		s.run(0)
	}
	if n := b.counter("shadow_refused_share"); n == 0 || len(b.l.shadow.ports) > 1 {
		t.Errorf("%d entries were refused, %d sources", n, len(b.l.shadow.ports))
	}
	s.run(5 * time.Minute)
	b.delivered()
	conns := b.counter("conn_rx_packets")
	var c *fakeConn
	for _, c = range a.conns {
	}
	arp := make([]byte, 60)
	copy(arp, []byte{0x08, 0x06})
	for _, m := range [][]byte{nil, {8}, {8, 0, 0, 0}, {8, 0, 0, 0, 0x60}, {0x86, 0xdd, 0, 0, 0x45, 1},
		{0x88, 0xca, 0, 0, 1}, arp} {
		c.carry(1<<62, m)
	}
	s.run(time.Second)
	b.expect(nil)
	b.expectCount("conn_rx_packets", conns)
	b.expectCount("rx_nohandler", 2)
	// Events of connections that there are not, or that do not fit, do nothing.
	for k := connected.Accepted; k <= connected.Disconnected; k++ {
		a.l.ConnEvent(s.now, connected.Event{ID: 4711, Kind: k})
		b.l.ConnEvent(s.now, connected.Event{ID: 4711, Kind: k, Private: good})
	}
	for _, c := range a.listConns() {
		id := c.ID
		a.l.ConnEvent(s.now, connected.Event{ID: id, Kind: connected.Accepted, Private: good})
		a.l.ConnEvent(s.now, connected.Event{ID: id, Kind: connected.Ready})
	}
	a.send(ipA, ipB, text("two", 4000))
	s.run(time.Second)
	b.expect([]string{"two"})
	s.ends()
}

func wire4(qpn ib.QPN, most uint32) []byte {
	b := make([]byte, 92)
	wire.PutCMPrivate(b, qpn, most)
	return b
}

// TestConnectedShortPeer: the IP stack gets an ICMP error for a peer with a smaller receive MTU;
// packets that fit a datagram are sent as one.
func TestConnectedShortPeer(t *testing.T) {
	for most, mtu := range map[uint32]int{9004: 9000, 1004: 2044} {
		s, a, b := mixed(t, "connected", "connected")
		b.badReply = wire4(0x208, most)
		a.send(ipA, ipB, text("long", 20000), text("fits", 1024), text("one", 900))
		s.run(time.Second)
		w, m := b.delivered()
		slices.Sort(w)
		if !slices.Equal(w, []string{"fits", "one"}) || m != nil {
			t.Errorf("%d: B got %q", most, w)
		}
		a.expect(nil, mtu)
		a.send(ipA, ipB, text("long", 20000))
		a.expect(nil, mtu)
		s.ends()
	}
}

// TestConnectedSlots: more packets than there are slots wait, or are refused until there are some; all that were taken
// arrive in their order.
func TestConnectedSlots(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	a.send(ipA, ipB, text("x", 4000))
	s.run(time.Second)
	b.delivered()
	var want []string
	for i, wakes := 0, 0; i < 1000; {
		if a.send(ipA, ipB, text(fmt.Sprint(i), 3000)) == 1 {
			want = append(want, fmt.Sprint(i))
			i++
			continue
		}
		if wakes = a.wakes; !a.l.conns.Backpressured(s.now) {
			t.Fatalf("refused with %d free slots", a.freeConnSlots())
		}
		s.run(time.Millisecond)
		if a.wakes != wakes+1 {
			t.Fatal("Wake was not called")
		}
	}
	s.run(time.Second)
	b.expect(want)
	s.ends()
}

// TestConnectedPortDown: the connections go with the port, and come back with it.
func TestConnectedPortDown(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	a.send(ipA, ipB, text("one", 4000))
	s.run(time.Second)
	a.event(func(p *Port) { p.State = ib.PortDown })
	s.run(time.Second)
	a.expectCount("conns", 0)
	b.expectCount("conns", 0)
	a.event(func(p *Port) { p.State = ib.PortActive })
	s.run(10 * time.Second)
	a.send(ipA, ipB, text("two", 4000))
	s.run(2 * time.Second)
	b.expect([]string{"one", "two"})
	s.ends()
}

// TestConnectedFails: what the adapter cannot give makes datagrams of packets, and leaves nothing.
func TestConnectedFails(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	a.connFail = errFake
	a.send(ipA, ipB, "one", text("long", 4000))
	s.run(time.Second)
	b.expect([]string{"one"})
	a.expect(nil) // it is tried once more
	a.send(ipA, ipB, text("long", 4000))
	s.run(time.Second)
	a.expect(nil, 2044)
	a.expectCount("conn_failed", 2)
	a.connFail, b.connFail = nil, errFake
	s.run(12 * time.Second)
	for _, mtus := range [][]int{nil, {2044}} {
		a.send(ipA, ipB, text("long", 4000))
		s.run(1100 * time.Millisecond)
		a.expect(nil, mtus...)
	}
	b.expectCount("conn_failed", 2)
	s.ends()
}

// TestConnectedRandom: whatever happens in whatever order, what is always so stays so, and in the end packets
// go both ways and nothing is left.
func TestConnectedRandom(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 4755))
		modes := []string{"connected", []string{"connected", "connected", "datagram"}[rnd.IntN(3)]}
		s, a, b := mixed(t, modes...)
		s.cmLost = func(_, _ *node, _ string) bool { return rnd.IntN(6) == 0 }
		nodes := []*node{a, b}
		ips := []netip.Addr{ipA, ipB}
		for range 150 {
			i := rnd.IntN(2)
			n := nodes[i]
			switch rnd.IntN(12) {
			case 0:
				s.cmDelay = time.Duration(rnd.IntN(2000)) * time.Millisecond
			case 1:
				for _, c := range n.conns {
					c.broken = true
				}
			case 2:
				n.event(func(p *Port) { p.State = ib.PortDown })
				s.run(time.Duration(rnd.IntN(1000)) * time.Millisecond)
				n.event(func(p *Port) { p.State = ib.PortActive })
			case 3:
				s.forget()
				a.event(nil, ib.EventReregister)
				b.event(nil, ib.EventReregister)
			case 4:
				n.l.PurgeShadow(s.now, wire.HWAddr{})
			case 5:
				n.stall = !n.stall
			default:
				n.send(ips[i], ips[1-i], text("x", 1+rnd.IntN(20000)), "y")
			}
			s.run(time.Duration(rnd.IntN(1500)) * time.Millisecond)
			a.got, b.got = nil, nil
		}
		a.stall, b.stall, s.cmLost, s.cmDelay = false, false, nil, time.Millisecond
		s.run(60 * time.Second)
		a.got, b.got = nil, nil
		for i, n := range nodes {
			var w []string
			both := modes[1] == "connected"
			last := "last"
			if both {
				last = text(last, 40000)
			}
			for range 3 { // the first may find that the connection is dead
				n.send(ips[i], ips[1-i], last)
				s.run(10 * time.Second)
				got, _ := nodes[1-i].delivered()
				w = append(w, got...)
			}
			if m := n.l.ModeOf(nodes[1-i].l.attr.hw); both && m != "connected" {
				t.Errorf("%s sends by %s", n.name, m)
			}
			if !slices.Contains(w, "last") {
				t.Fatalf("seed %d, %v: %s got %q; %v %q %v %q\n%+v\n%+v\n%+v", seed, modes, nodes[1-i].name, w,
					a.carrier,
					a.reason, b.carrier, b.reason, n.l.Shadow(s.now), n.l.Engine().Neighbours(s.now), nodes[1-i].l.Info())
			}
		}
		s.ends()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestConnectedAllocates: packets by a connection take no memory.
func TestConnectedAllocates(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	a.send(ipA, ipB, text("x", 4000))
	s.run(time.Second)
	b.discard = true
	frame, hops := [][]byte{ipv4(ipA, ipB, text("y", 4000))}, []netip.Addr{ipB}
	c := a.connTo(b)
	var wcs [1]WC
	n := testing.AllocsPerRun(100, func() {
		a.l.SendBatch(s.now, frame, hops)
		wcs[0] = WC{ID: c.last, QPN: c.qpn}
		a.l.qp.complete(s.now, wcs[:])
		a.s.queue = a.s.queue[:0]
	})
	// The fake copies what it is given to post, and notes it.
	if n > 2 {
		t.Errorf("%v allocations for a packet", n)
	}
}
