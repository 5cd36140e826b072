// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/counters"
	"weft/internal/proto/ib"
	"weft/internal/proto/wire"
)

// H-36: the header of a neighbour is prepared once, and used by every packet.
func TestH36_HeaderCache(t *testing.T) {
	h := upHost(t, Config{})
	h.send(ipB, "f1")
	if c := h.e.Counters(); c.HeaderHits != 0 {
		t.Errorf("%+v", c)
	}
	h.arriveVector(Host, "ARP-2")
	before := h.e.Counters().HeaderHits
	h.log, h.frames = nil, nil
	h.send(ipB, "f2")
	if c := h.e.Counters(); c.HeaderHits != before+1 {
		t.Errorf("%+v", c)
	}
	want := make([]byte, headroom)
	wire.PutHardHeader(want, &hwB, &hwA, wire.EtherIPv4)
	if got := h.frames[0][:headroom]; !bytes.Equal(got, want) {
		t.Errorf("want %x\n got %x", want, got)
	}
}

// H-37: the prepared header follows the neighbour's address, and ours.
func TestH37_HeaderCacheUpdate(t *testing.T) {
	h := upHost(t, Config{})
	h.send(ipB, "f1")
	h.arp(Host, replyOf(ipB, hwB))
	h.wait(time.Second)
	h.log = nil
	// The peer restarted with another queue pair and announces itself.
	again := wire.MakeHWAddr(0, 0x300, hwB.GID())
	h.arp(Broadcast, wire.ARP{Op: wire.ARPRequest, SenderHW: again, SenderIP: ipB, TargetIP: ipB})
	h.send(ipB, "f2")
	h.want("learned 10.20.0.2 at qp768", "f2 > qp768")
	moved := wire.MakeHWAddr(0, 0x49, hwA.GID())
	h.e.SetLink(h.now, LinkInfo{HW: moved, PKey: pkey, Scope: scope, MTU: mtu})
	h.log, h.frames = nil, nil
	h.send(ipB, "f3")
	if len(h.frames) != 1 || wire.HardHeader(h.frames[0]).Src() != moved ||
		wire.HardHeader(h.frames[0]).Dst() != again {
		t.Errorf("%x", h.frames)
	}
}

// The same interface that turns connected mode on is no other.
func TestFlagsOfHardwareAddress(t *testing.T) {
	h := upHost(t, Config{})
	h.send(ipB, "f")
	plain := hwB.Key()
	h.arp(Host, replyOf(ipB, plain))
	h.wait(2 * time.Second)
	h.arp(Broadcast, wire.ARP{Op: wire.ARPRequest, SenderHW: hwB, SenderIP: ipB, TargetIP: ipB})
	if n := h.e.Neighbours(h.now); n[0].HW != hwB || !n[0].HW.Same(plain) {
		t.Errorf("%+v", n)
	}
}

// Resolve ends once, for any number of calls, and never within the call.
func TestResolve(t *testing.T) {
	h := upHost(t, Config{})
	ask := "arp who-has 10.20.0.2 (-) tell 10.20.0.1 (A) > all"
	for range 3 {
		if hw, ok := h.e.Resolve(h.now, ipB); ok {
			t.Fatalf("%v", hw)
		}
	}
	h.want(ask)
	h.arp(Host, replyOf(ipB, hwB))
	h.want("learned 10.20.0.2 at B", "resolved 10.20.0.2 at B")
	if hw, ok := h.e.Resolve(h.now, ipB); !ok || hw != hwB {
		t.Errorf("%v, %v", hw, ok)
	}
	h.wait(45 * time.Second)
	if _, ok := h.e.Resolve(h.now, ipB); !ok {
		t.Error("not known any more")
	}
	h.wantState(ipB, "DELAY")
	h.want()
	// TR-3: an address without a node.
	nobody := netip.MustParseAddr("10.20.0.99")
	h.e.Resolve(h.now, nobody)
	h.send(nobody, "f")
	h.wait(3*time.Second - 1)
	h.log = nil
	h.wait(1)
	h.want("up icmp 1 from 10.20.0.99 to 10.20.0.1 about f", "unresolved 10.20.0.99")
	// What cannot be found ends too.
	for _, a := range []string{"10.20.0.255", "255.255.255.255", "0.0.0.0", "224.0.0.1", "::1", ipA.String()} {
		ip := netip.MustParseAddr(a)
		if _, ok := h.e.Resolve(h.now, ip); ok {
			t.Errorf("%v found", ip)
		}
		h.want()
		h.e.Tick(h.now)
		h.want("unresolved " + a)
	}
	h.e.Resolve(h.now, ipC)
	h.log = nil
	h.e.SetUp(h.now, false)
	h.want("unresolved 10.20.0.3")
	h.e.Resolve(h.now, ipC)
	h.want()
	h.wait(0)
	h.want("unresolved 10.20.0.3")
}

// A GID out of service takes its neighbours along.
func TestForget(t *testing.T) {
	h := upHost(t, Config{})
	for ip, hw := range map[netip.Addr]wire.HWAddr{ipB: hwB, llB: hwB, ipC: hwC} {
		h.send(ip, "f")
		if ip.Is4() {
			h.arp(Host, replyOf(ip, hw))
		} else {
			h.nd(Host, advertOf(ip, hw))
		}
	}
	h.e.AddStatic(h.now, netip.MustParseAddr("10.20.0.9"), hwB)
	h.e.Forget(h.now, hwB.GID())
	h.wantState(ipB, "absent")
	h.wantState(llB, "absent")
	h.wantState(ipC, "REACHABLE")
	h.wantState(netip.MustParseAddr("10.20.0.9"), "PERMANENT")
}

// No solicited-node group, no such neighbour.
func TestUndeliverable(t *testing.T) {
	h := upHost(t, Config{})
	h.send(llB, "f")
	h.e.Resolve(h.now, llB)
	sent := h.frames[0]
	h.log = nil
	h.e.Undeliverable(h.now, sent)
	h.want()
	h.wait(0)
	h.want("up icmp6 1/3 from fe80::f652:1403:7b:cba1 about f", "unresolved fe80::f652:1403:7b:cba1")
	h.e.Undeliverable(h.now, sent) // of an unknown neighbour
	h.send(llB, "f")
	h.nd(Host, advertOf(llB, hwB))
	h.log = nil
	h.e.Undeliverable(h.now, sent) // too late
	h.e.Undeliverable(h.now, packet(ipA, netip.MustParseAddr("239.1.1.1"), "other"))
	h.e.Undeliverable(h.now, make([]byte, headroom))
	h.want()
	h.wantState(llB, "REACHABLE")
}

func TestStatic(t *testing.T) {
	h := upHost(t, Config{MaxNeighbours: 8})
	h.send(ipB, "f")
	h.log = nil
	if !h.e.AddStatic(h.now, ipB, hwB) {
		t.Fatal("refused")
	}
	h.want("learned 10.20.0.2 at B", "f > B")
	h.arp(Host, replyOf(ipB, hwC))
	h.wait(time.Hour)
	h.send(ipB, "g")
	h.want("g > B")
	h.e.SetUp(h.now, false)
	h.e.SetUp(h.now, true)
	h.wantState(ipB, "PERMANENT")
	for ip, hw := range map[netip.Addr]wire.HWAddr{ipA: hwB, allHosts: hwB, ipC: wire.PseudoBroadcast} {
		if h.e.AddStatic(h.now, ip, hw) {
			t.Errorf("%v at %v accepted", ip, hw)
		}
	}
	for i := range 3 {
		if !h.e.AddStatic(h.now, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), hwC) {
			t.Errorf("%d refused", i)
		}
	}
	if h.e.AddStatic(h.now, ipC, hwC) {
		t.Error("more than half of the table")
	}
	if !h.e.AddStatic(h.now, ipB, hwC) || !h.e.Delete(h.now, ipB) || h.e.Delete(h.now, ipB) {
		t.Error("changing and deleting")
	}
	h.log = nil
	if h.e.Probe(h.now, ipA) || h.e.Probe(h.now, allHosts) || h.e.Probe(h.now, netip.AddrFrom4([4]byte{10, 0, 0, 0})) ||
		!h.e.Probe(h.now, ipC) {
		t.Error("probing")
	}
	h.arp(Host, replyOf(ipC, hwC))
	h.log = nil
	h.e.Probe(h.now, ipC)
	h.want("arp who-has 10.20.0.3 (C) tell 10.20.0.1 (A) > C")
}

// The table is bounded. Nodes that only send requests are removed before those that packets are sent to.
func TestTableBound(t *testing.T) {
	h := upHost(t, Config{MaxNeighbours: 100})
	h.e.out = outOf(&silent{})
	ip := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 20, 1, byte(i)}) }
	for i := range 60 {
		h.send(ip(i), "x")
		h.arp(Host, replyOf(ip(i), wire.MakeHWAddr(0, ib.QPN(i+1), hwB.GID())))
	}
	for i := range 10000 {
		stranger := netip.AddrFrom4([4]byte{10, 21, byte(i >> 8), byte(i)})
		h.arp(Broadcast, wire.ARP{Op: wire.ARPRequest, SenderHW: hwC, SenderIP: stranger, TargetIP: ipA})
	}
	if len(h.e.table.byIP) != 100 {
		t.Errorf("%d neighbours", len(h.e.table.byIP))
	}
	for i := range 60 {
		h.wantState(ip(i), "REACHABLE")
	}
	h.send(ip(0), "x") // used again: 1 is the oldest now
	for i := 60; i < 101; i++ {
		h.send(ip(i), "x")
	}
	h.wantState(ip(1), "absent")
	h.wantState(ip(0), "REACHABLE")
	h.wantState(ip(2), "REACHABLE")
	if c := h.e.Counters(); c.Evicted != 10000-40+41 {
		t.Errorf("%+v", c)
	}
}

// H-33: reports of the IP stack, own addresses and commands add groups; the link is notified of the
// first and of the last.
func TestH33_Groups(t *testing.T) {
	h := newHost(t, Config{MaxGroups: 8})
	h.e.SetUp(h.now, true)
	h.want("join 224.0.0.1", "join ff02::1", "up igmp query", "up mld query")
	report := func(id string) { h.e.Output(h.now, append(make([]byte, headroom), vector(t, id)...), netip.Addr{}) }
	forward := func() { // the packet itself
		h.t.Helper()
		if len(h.frames) != 1 {
			t.Errorf("%d frames", len(h.frames))
		}
		h.log = h.log[:len(h.log)-1]
	}
	report("SN-1")
	forward()
	h.want("join 239.1.2.3")
	report("SN-1")
	forward()
	h.want()
	report("SN-3")
	forward()
	h.want("join 239.9.9.9", "leave 239.1.2.3")
	report("SN-2")
	forward()
	h.want()
	report("SN-4")
	forward()
	h.want("join ff02::1:ff0a:1b2d")
	h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(llA, 64), netip.PrefixFrom(ipv6("fd00::ff0a:1b2d"), 64)})
	for _, line := range h.log {
		if strings.Contains(line, "join") {
			t.Error(line)
		}
	}
	h.log, h.frames = nil, nil
	report("SN-5")
	forward()
	h.want()

	g := netip.MustParseAddr("239.9.9.9")
	for range 2 {
		if !h.e.JoinGroup(h.now, g) {
			t.Error("refused")
		}
	}
	if h.e.JoinGroup(h.now, ipB) || h.e.LeaveGroup(h.now, ipB) || h.e.LeaveGroup(h.now, allNodes) {
		t.Error("by hand")
	}
	h.e.groups.report(h.e, h.now, wire.GroupReport{Group: g})
	h.want()
	h.e.LeaveGroup(h.now, g)
	h.want()
	h.e.LeaveGroup(h.now, g)
	h.want("leave 239.9.9.9")
	if h.e.LeaveGroup(h.now, g) {
		t.Error("left once too often")
	}

	// One InfiniBand group for two of IP.
	h.e.JoinGroup(h.now, ipv6("ff02::1:3"))
	h.e.JoinGroup(h.now, ipv6("ff05::1:3"))
	h.e.LeaveGroup(h.now, ipv6("ff02::1:3"))
	h.want("join ff02::1:3")
	h.e.LeaveGroup(h.now, ipv6("ff05::1:3"))
	h.want("leave ff02::1:3")

	// Permanent ones stay, for any report of the stack, until the address is removed.
	h.e.groups.report(h.e, h.now, wire.GroupReport{Group: allHosts, Join: true})
	h.e.groups.report(h.e, h.now, wire.GroupReport{Group: allHosts})
	h.e.groups.report(h.e, h.now, wire.GroupReport{Group: wire.SolicitedNode(llA)})
	h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(llA, 64)})
	h.want()
	h.e.SetAddrs(h.now, nil)
	h.want("leave ff02::1:ff0a:1b2d")

	// Bounded.
	for i := range 20 {
		h.e.JoinGroup(h.now, netip.AddrFrom4([4]byte{239, 0, 0, byte(i)}))
	}
	if c := h.e.Counters(); len(h.e.Groups()) != 8 || c.GroupsRefused != 14 {
		t.Errorf("%d groups, %+v", len(h.e.Groups()), c)
	}
	bad := append(make([]byte, headroom), vector(t, "SN-1")...)
	bad[len(bad)-1] ^= 1
	h.e.Output(h.now, bad, netip.Addr{})
	if c := h.e.Counters(); c.BadReports != 1 {
		t.Errorf("%+v", c)
	}
	// The carrier does not matter to them.
	h.log = nil
	h.e.SetUp(h.now, false)
	h.want()
	h.e.SetUp(h.now, true)
	h.want("up igmp query", "up mld query")
}

func TestConfig(t *testing.T) {
	bad := Config{MaxNeighbours: -1, QueueFrames: 1 << 25}
	err := bad.Validate()
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("%v", err)
	}
	h := newHost(t, Config{})
	if c := h.e.cfg; c.MaxNeighbours != 16384 || c.QueueFrames != 64 || c.QueueBytes != 128<<10 {
		t.Errorf("%+v", c)
	}
	c := h.e.Counters()
	seen := map[string]bool{}
	counters.Each("", &c, func(name string, _ uint64) {
		if name == "" || seen[name] || strings.ToLower(name) != name {
			t.Errorf("counter %q", name)
		}
		seen[name] = true
	})
	// Five have no name here, since the link has counters of that name; FrameOK has none.
	if n, want := len(seen), 24+wire.NumFrameRefusals-1; n != want || binary.Size(c)/8 != want+5+1 {
		t.Errorf("%d counters of %d, want %d", n, binary.Size(c)/8, want)
	}
}

// A lane is not held up by a thousand timers at once.
func TestTickIsBounded(t *testing.T) {
	h := upHost(t, Config{})
	h.e.out = outOf(&silent{})
	for i := range 1000 {
		h.send(netip.AddrFrom4([4]byte{10, 20, byte(i >> 8), byte(i)}), "x")
	}
	out := &silent{}
	h.e.out = outOf(out)
	h.now = h.now.Add(time.Second)
	for _, want := range []int{256, 512, 768, 998, 998} { // one is our own, one to all
		h.e.Tick(h.now)
		if out.sent != want {
			t.Errorf("%d sent, want %d", out.sent, want)
		}
	}
	if h.e.Deadline().Due(h.now) {
		t.Error("still due")
	}
}
