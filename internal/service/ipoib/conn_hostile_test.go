// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/connected"
)

var (
	gidC = ib.MakeGID(ib.DefaultGIDPrefix, 0x0002c903000a1b99)
	ipC  = netip.MustParseAddr("10.20.0.3")
)

// three makes three links in connected mode, of which A has parameters besides.
func three(t *testing.T, params ...string) (s *subnet, a, b, c *node) {
	t.Helper()
	s = newSubnet(t)
	s.cmDelay = time.Millisecond
	a = s.add("ib0_1_14", 5, gidA, 0x48, append([]string{"mode=connected"}, params...)...)
	b = s.add("ib1_1_14", 17, gidB, 0x208, "mode=connected")
	c = s.add("ib2_1_14", 19, gidC, 0x308, "mode=connected")
	for i, n := range s.nodes {
		n.start()
		n.l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom([]netip.Addr{ipA, ipB, ipC}[i], 24)}, nil)
	}
	s.run(10 * time.Second)
	for _, n := range s.nodes {
		if !n.carrier {
			t.Fatalf("%s has no carrier: %s", n.name, n.reason)
		}
		n.got = nil
	}
	return s, a, b, c
}

// connTo is the access layer's side of the connection by which a node sends to another.
func (n *node) connTo(to *node) *fakeConn {
	n.s.t.Helper()
	for _, i := range n.listConns() {
		if i.Peer.HW == to.l.attr.hw.Key() && i.State != "closing" && !i.OneWay {
			return n.conns[i.ID]
		}
	}
	n.s.t.Fatalf("%s has no connection to %s", n.name, to.name)
	return nil
}

// TestConnectedDeaf: a peer that acknowledges nothing holds neither the slots nor the link: what is for others goes on,
// and its connection ends.
func TestConnectedDeaf(t *testing.T) {
	s, a, b, c := three(t)
	a.mappable = true
	a.send(ipA, ipB, text("x", 4000))
	a.send(ipA, ipC, text("x", 4000))
	s.run(time.Second)
	b.delivered()
	c.delivered()
	deaf := a.connTo(b)
	deaf.deaf = true
	began, held := s.now, false
	for i := 0; ; i++ {
		if c, ok := a.connInfo(deaf.id); !ok || c.State != "connected" {
			break
		}
		if s.now.Sub(began) > 10*time.Second {
			t.Fatal("the connection does not end")
		}
		for range connected.Window + connected.QueueFrames {
			held = a.send(ipA, ipB, text("void", 3000)) == 0 || held
		}
		if w := text(fmt.Sprint("to C ", i), 3000); s.now.Sub(began) > connected.Patience {
			if a.send(ipA, ipC, w) != 1 {
				t.Fatalf("%v after the peer fell silent nothing is taken for others", s.now.Sub(began))
			}
			s.run(time.Millisecond)
			c.expect([]string{fmt.Sprint("to C ", i)})
		}
		if c, _ := a.connInfo(deaf.id); c.InFlight > connected.Window {
			t.Fatalf("%d messages in flight", c.InFlight)
		}
		s.run(100 * time.Millisecond)
	}
	if !held {
		t.Error("the queue never held SendBatch")
	}
	if d := s.now.Sub(began); d < connected.StuckAfter {
		t.Errorf("ended after %v", d)
	}
	a.expectCount("conn_lost", 1)
	s.run(time.Second)
	if u := a.l.conns.Usage(); u.Waiting != 0 || u.FreeSlots != connected.TxSlots || len(a.maps) != 0 {
		t.Errorf("%d queues, %d free slots, %d frames mapped", u.Waiting, u.FreeSlots, len(a.maps))
	}
	a.send(ipA, ipB, text("again", 4000))
	s.run(time.Second)
	if w, _ := b.delivered(); !slices.Contains(w, "again") {
		t.Errorf("B got %q", w)
	}
	s.ends()
}

// TestConnectedManyDeaf: peers that accept and then acknowledge nothing, however many, leave slots to those that do,
// and to new ones; datagrams have theirs anyhow.
func TestConnectedManyDeaf(t *testing.T) {
	s := newSubnet(t)
	s.cmDelay = time.Millisecond
	const count = 30
	ip := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 20, 0, byte(i + 1)}) }
	for i := range count + 4 { // the sender, those that are well, one that has no connections, the deaf ones
		mode := "mode=connected"
		if i == 3 {
			mode = "mode=datagram"
		}
		s.add(fmt.Sprintf("ib%d_1_14", i), ib.LID(5+i), ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(0x0002c903000a1b00+i)),
			ib.QPN(0x48+i), mode)
	}
	for i, n := range s.nodes {
		n.start()
		n.l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom(ip(i), 24)}, nil)
	}
	s.run(10 * time.Second)
	a, well, fresh, plain := s.nodes[0], s.nodes[1], s.nodes[2], s.nodes[3]
	a.send(ip(0), ip(1), text("x", 3000))
	a.send(ip(0), ip(3), text("x", 500))
	s.run(time.Second)
	well.delivered()
	plain.delivered()
	silence := func(from, to int) {
		for i := from; i < to; i++ {
			a.send(ip(0), ip(i), text("void", 3000))
		}
		s.run(20 * time.Millisecond) // the neighbours are found
		for i := from; i < to; i++ {
			if c := a.connTo(s.nodes[i]); !c.deaf {
				c.deaf = true
			}
		}
	}
	// Connections with all of them, none of which has carried more than a message.
	silence(4, count+4)
	s.run(2 * time.Second)
	for range 3 {
		for i := 4; i < count+4; i++ {
			for range connected.Window {
				a.send(ip(0), ip(i), text("void", 3000))
			}
		}
	}
	if n := a.freeConnSlots(); n < connected.TxSlots/4 || n == connected.TxSlots {
		t.Fatalf("%d of %d slots are left", n, connected.TxSlots)
	}
	began := s.now
	s.run(2 * connected.Patience)
	for _, n := range s.nodes[1:4] {
		n.delivered()
	}
	for i := 0; s.now.Sub(began) < connected.StuckAfter-3*time.Second; i++ {
		a.send(ip(0), ip(1), text(fmt.Sprint("long ", i), 3000))
		a.send(ip(0), ip(2), text(fmt.Sprint("long ", i), 3000))
		a.send(ip(0), ip(3), text(fmt.Sprint("short ", i), 500))
		s.run(200 * time.Millisecond)
		well.expect([]string{fmt.Sprint("long ", i)})
		fresh.expect([]string{fmt.Sprint("long ", i)})
		plain.expect([]string{fmt.Sprint("short ", i)})
	}
	a.expectCount("conn_lost", 0)
	s.run(10 * time.Second)
	a.expectCount("conn_lost", count)
	if a.freeConnSlots() != connected.TxSlots {
		t.Errorf("%d free slots", a.freeConnSlots())
	}
	s.ends()
}

// TestConnectedManyBusy: peers that acknowledge and are sent to without pause, however many, leave slots to one that
// was quiet for a while.
func TestConnectedManyBusy(t *testing.T) {
	s := newSubnet(t)
	s.cmDelay = time.Millisecond
	const busy = 8
	ip := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 20, 0, byte(i + 1)}) }
	for i := range busy + 2 { // the sender, the one that is quiet, the busy ones
		s.add(fmt.Sprintf("ib%d_1_14", i), ib.LID(5+i), ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(0x0002c903000a1b00+i)),
			ib.QPN(0x48+i), "mode=connected")
	}
	for i, n := range s.nodes {
		n.start()
		n.l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom(ip(i), 24)}, nil)
	}
	s.run(10 * time.Second)
	a, quiet := s.nodes[0], s.nodes[1]
	var conns []*fakeConn
	for i := 1; i < len(s.nodes); i++ {
		a.send(ip(0), ip(i), text("x", 3000))
		s.run(100 * time.Millisecond)
		if i > 1 {
			conns = append(conns, a.connTo(s.nodes[i]))
			conns[i-2].deaf = true // the loop below completes its messages
		}
	}
	quiet.delivered()
	rng := rand.New(rand.NewPCG(1, 2))
	most := 0
	for ms := range 3000 {
		for i := range busy {
			a.send(ip(0), ip(2+i), text("load", 3000))
		}
		if c := conns[rng.IntN(busy)]; len(c.kept) > 0 {
			id := c.kept[0]
			c.kept = c.kept[1:]
			s.queue = append(s.queue, func() {
				c.deaf = false
				c.carry(id, nil)
				c.deaf = true
			})
		}
		s.run(time.Millisecond)
		most = max(most, connected.TxSlots-a.freeConnSlots())
		if ms == 2500 {
			a.send(ip(0), ip(1), text("late", 3000))
		}
	}
	if most < connected.TxSlots*3/4 {
		t.Fatalf("%d slots were in use at most", most)
	}
	quiet.expect([]string{"late"})
	a.expectCount("conn_lost", 0)
}

// TestConnectedSlow: a peer that acknowledges late, but does, keeps its connection.
func TestConnectedSlow(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	a.send(ipA, ipB, text("x", 4000))
	s.run(time.Second)
	b.delivered()
	slow := a.connTo(b)
	slow.deaf = true
	a.send(ipA, ipB, text("one", 3000), text("two", 3000))
	s.run(4 * time.Second)
	slow.deaf = false
	for _, id := range slow.kept {
		s.queue = append(s.queue, func() { slow.carry(id, nil) })
	}
	slow.kept = nil
	s.run(10 * time.Second)
	a.expectCount("conn_lost", 0)
	a.expectCount("conns", 1)
	s.ends()
}

// asker has a port ask a node for connections.
type asker struct {
	n    *node
	lid  ib.LID
	next uint32
}

// ask sends a REQ in the name of a node with its own GID, and reports whether it was accepted.
func (k *asker) ask(gid ib.GID, qpn ib.QPN) bool {
	k.next++
	c := k.n.newConn(connected.FirstPassive + uint32(k.lid)<<16 + k.next)
	c.peer = &fakeConn{n: k.n, stopped: true}
	k.n.l.ConnEvent(k.n.s.now, connected.Event{ID: c.id, Kind: connected.Requested, Service: 0x0100000000000048,
		GID: gid,
		LID: k.lid, Private: wire4(qpn, 65524)})
	return k.n.conns[c.id] != nil
}

// TestConnectedShare: no port gets more than its share of connections, whatever nodes it makes up; others get theirs,
// and so does the link.
func TestConnectedShare(t *testing.T) {
	s, a, b, c := three(t, "max_conns=16")
	made := func(i int) ib.GID { return ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(0xbad000+i)) }
	b.send(ipB, ipA, text("x", 4000))
	s.run(3 * time.Second) // by now this connection could make room
	bad := &asker{n: a, lid: 99}
	for i := range 100 {
		if ok := bad.ask(made(i), 0x777); ok != (i < 4) {
			t.Fatalf("request %d: %v", i, ok)
		}
	}
	a.expectCount("conns", 5)
	a.expectCount("conn_evicted", 0)
	// Those of its own that were not made in time make room, as far as those that ended are gone.
	s.run(3 * time.Second)
	n := 0
	for i := range 100 {
		if bad.ask(made(1000+i), 0x777) {
			n++
		}
		if all, live := a.passiveConns(99); all > 8 || live > 4 {
			t.Fatalf("%d connections, %d of them live", all, live)
		}
	}
	if n != 4 {
		t.Errorf("%d got a connection in place of others, want 4", n)
	}
	// Many ports leave some for the link.
	for lid := range ib.LID(10) {
		for i := range 4 {
			(&asker{n: a, lid: 200 + lid, next: uint32(i)}).ask(made(int(lid)*10+5000+i), 0x777)
		}
	}
	a.expectCount("conns", 14)
	a.send(ipA, ipB, text("one", 4000))
	a.send(ipA, ipC, text("two", 4000))
	s.run(500 * time.Millisecond)
	b.expect([]string{"one"})
	c.expect([]string{"two"})
	a.expectCount("conns", 16)
	s.ends()
}

// TestConnectedAgainAndAgain: a REQ of a connected peer ends its previous connection; the number of
// these is bounded by its share.
func TestConnectedAgainAndAgain(t *testing.T) {
	s, a, _, _ := three(t, "max_conns=16")
	k, taken := &asker{n: a, lid: 99}, 0
	for range 100 {
		if k.ask(ib.MakeGID(ib.DefaultGIDPrefix, 0xbad), 0x777) {
			taken++
		}
	}
	if taken != 8 || len(a.listConns()) != 8 || a.l.conns.Live() != 1 {
		t.Errorf("%d were accepted; %d are left, %d of them live", taken, len(a.listConns()), a.l.conns.Live())
	}
	s.run(time.Second)
	if len(a.listConns()) != 1 {
		t.Errorf("%d are left", len(a.listConns()))
	}
	s.ends()
}

// TestConnectedClaim: a REQ in the name of a neighbour at another port does not end the connection
// with it, and the path is queried; a neighbour that moved gets its connection when the path is
// resolved.
func TestConnectedClaim(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	a.send(ipA, ipB, text("one", 4000))
	s.run(time.Second)
	b.expect([]string{"one"})
	id := a.connTo(b).id
	for _, known := range []bool{true, false} {
		if !known {
			a.l.PurgeShadow(s.now, wire.HWAddr{})
		}
		s.asked = nil
		if (&asker{n: a, lid: 99, next: 7}).ask(gidB, 0x208) {
			t.Error("accepted")
		}
		s.run(time.Second)
		if !slices.ContainsFunc(s.asked, func(q string) bool { return len(q) > 0 }) {
			t.Errorf("known %v: the path was not asked for", known)
		}
		a.expectCount("conns", 1)
		if a.connTo(b).id != id {
			t.Error("the connection is another")
		}
		a.send(ipA, ipB, text("two", 4000))
		s.run(time.Second)
		b.expect([]string{"two"})
	}
	a.expectCount("conn_bad_data", 2)
	b.event(func(p *Port) { p.LID = 99 })
	(&asker{n: a, lid: 99, next: 20}).ask(gidB, 0x208)
	s.run(2 * time.Second)
	if !(&asker{n: a, lid: 99, next: 30}).ask(gidB, 0x208) {
		t.Error("not accepted from where it is")
	}
	s.ends()
}

// TestConnectedRefusedOnce: after one rejection the peer gets another REQ soon: the IP stack gets no
// MTU error before the rejection is final.
func TestConnectedRefusedOnce(t *testing.T) {
	s, a, b := mixed(t, "connected", "connected")
	b.connFail = errFake
	a.send(ipA, ipB, text("lost", 4000))
	s.run(500 * time.Millisecond)
	a.expect(nil)
	a.send(ipA, ipB, text("lost", 4000))
	a.expect(nil)
	b.connFail = nil
	s.run(time.Second)
	a.send(ipA, ipB, text("one", 4000))
	s.run(time.Second)
	b.expect([]string{"one"})
	a.expect(nil)
	s.ends()
}
