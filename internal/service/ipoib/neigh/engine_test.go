// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// The hosts of the vectors. We are A.
var (
	hwA, hwB, hwC = mustHW("00:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:0a:1b:2d"),
		mustHW("80:00:02:08:fe:80:00:00:00:00:00:00:f4:52:14:03:00:7b:cb:a1"),
		mustHW("c0:ab:cd:ef:fe:c0:00:00:00:00:00:07:00:11:75:00:00:ff:6a:3c")
	ipA, ipB, ipC = netip.MustParseAddr("10.20.0.1"), netip.MustParseAddr("10.20.0.2"), netip.MustParseAddr("10.20.0.3")
	llA, llB      = netip.MustParseAddr("fe80::202:c903:a:1b2d"), netip.MustParseAddr("fe80::f652:1403:7b:cba1")
)

const (
	pkey  ib.PKey = 0x8014
	scope uint8   = 2
	mtu   int     = 2044
)

func mustHW(s string) wire.HWAddr {
	h, err := wire.ParseHWAddr(s)
	if err != nil {
		panic(err)
	}
	return h
}

// hwName names a hardware address.
func hwName(h wire.HWAddr) string {
	switch {
	case h.IsZero():
		return "-"
	case h == wire.PseudoBroadcast:
		return "all"
	case h.Same(hwA):
		return "A"
	case h.Same(hwB):
		return "B"
	case h.Same(hwC):
		return "C"
	case h.IsGroup():
		return netip.AddrFrom16(h.GID()).String()
	}
	return fmt.Sprintf("qp%d", h.QPN())
}

// tell puts a frame into words.
func tell(f []byte) string {
	h := wire.HardHeader(f)
	typ, p, why := wire.ParseFrame(f[40:])
	if why != wire.FrameOK {
		return why.String()
	}
	to := " > " + hwName(h.Dst())
	switch typ {
	case wire.EtherARP:
		var a wire.ARP
		if why := a.Parse(p); why != wire.FrameOK {
			return why.String()
		}
		op := map[uint16]string{1: "who-has", 2: "is-at"}[a.Op]
		return fmt.Sprintf("arp %s %v (%s) tell %v (%s)%s", op, a.TargetIP, hwName(a.TargetHW), a.SenderIP,
			hwName(a.SenderHW), to)
	case wire.EtherIPv4:
		if p[9] == 1 && p[20] == 3 {
			return fmt.Sprintf("icmp %d from %v to %v about %s", p[21], addr4(p[12:]), addr4(p[16:]), p[28+20:])
		}
		if p[9] == 2 && int(p[0]&0xf)*4 < len(p) && p[int(p[0]&0xf)*4] == 0x11 {
			return "igmp query"
		}
		return fmt.Sprintf("%s%s", p[20:], to)
	}
	off, ok := wire.ICMPv6(p)
	if !ok {
		return fmt.Sprintf("%s%s", p[40:], to)
	}
	if p[off] == 130 {
		return "mld query"
	}
	if p[off] >= 128 && !wire.IsND(p[off]) {
		return fmt.Sprintf("icmp6 %d%s", p[off], to)
	}
	if !wire.IsND(p[off]) {
		return fmt.Sprintf("icmp6 %d/%d from %v about %s", p[off], p[off+1], netip.AddrFrom16([16]byte(p[8:])),
			p[off+8+40:])
	}
	var n wire.ND
	if why := n.Parse(p, off); why != wire.FrameOK {
		return why.String()
	}
	link := "-"
	if n.HasLink {
		link = hwName(n.Link)
	}
	flags := ""
	if n.Solicited {
		flags += "S"
	}
	if n.Override {
		flags += "O"
	}
	if n.Router {
		flags += "R"
	}
	name := [...]string{"rs", "ra", "ns", "na", "redirect"}[n.Type-wire.NDRouterSolicit]
	return fmt.Sprintf("%s%s %v (%s) from %v to %v%s", name, flags, n.Target, link, n.Src, n.Dst, to)
}

func addr4(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b)) }

// host drives an engine and writes down what it does.
type host struct {
	t      testing.TB
	e      *Engine
	now    mono.Time
	log    []string
	frames [][]byte
}

func (h *host) say(now mono.Time, format string, a ...any) {
	if now != h.now {
		h.t.Errorf("told %v at %v", now, h.now)
	}
	h.log = append(h.log, fmt.Sprintf(format, a...))
}

func (h *host) Xmit(now mono.Time, f []byte) {
	if wire.HardHeader(f).Src() != h.e.link.HW {
		h.t.Errorf("source of %x", f)
	}
	h.frames = append(h.frames, bytes.Clone(f))
	h.say(now, "%s", tell(f))
	for i := range f[:headroom] { // it is valid only during the call
		f[i] = 0xa5
	}
}

func (h *host) Deliver(now mono.Time, f []byte) { h.say(now, "up %s", tell(f)) }
func (h *host) Learned(now mono.Time, ip netip.Addr, hw wire.HWAddr) {
	h.say(now, "learned %v at %s", ip, hwName(hw))
}
func (h *host) Resolved(now mono.Time, ip netip.Addr, hw wire.HWAddr) {
	h.say(now, "resolved %v at %s", ip, hwName(hw))
}
func (h *host) Unresolved(now mono.Time, ip netip.Addr) { h.say(now, "unresolved %v", ip) }
func (h *host) Join(now mono.Time, g netip.Addr)        { h.say(now, "join %v", g) }
func (h *host) Leave(now mono.Time, g netip.Addr)       { h.say(now, "leave %v", g) }
func (h *host) Conflict(now mono.Time, ip netip.Addr, hw wire.HWAddr) {
	h.say(now, "conflict %v with %s", ip, hwName(hw))
}

// newHost returns A, not yet up.
func newHost(t testing.TB, cfg Config) *host {
	h := &host{t: t, now: 1000}
	cfg.Rand = rand.New(rand.NewPCG(1, 2))
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	h.e = New(cfg, outOf(h))
	h.e.SetLink(h.now, LinkInfo{HW: hwA, PKey: pkey, Scope: scope, MTU: mtu})
	return h
}

// upHost returns A, up, with its addresses announced.
func upHost(t testing.TB, cfg Config) *host {
	h := newHost(t, cfg)
	h.e.SetUp(h.now, true)
	h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(ipA, 24), netip.PrefixFrom(llA, 64)})
	h.wait(10 * time.Second)
	h.log, h.frames = nil, nil
	return h
}

// wait lets d pass, with ticks when they are due.
func (h *host) wait(d time.Duration) {
	h.t.Helper()
	end := h.now.Add(d)
	for i := 0; h.e.Deadline().Due(end); i++ {
		h.now = max(h.now, h.e.Deadline())
		h.e.Tick(h.now)
		if i > 100000 {
			h.t.Fatal("deadlines without end")
		}
	}
	h.now = end
}

// want compares what was written down since the last time.
func (h *host) want(lines ...string) {
	h.t.Helper()
	if d := cmp.Diff(append([]string{}, lines...), append([]string{}, h.log...)); d != "" {
		h.t.Errorf("(-want +got):\n%s", d)
	}
	h.log, h.frames = nil, nil
}

// packet is an IP packet behind headroom; its payload is a word.
func packet(src, dst netip.Addr, word string) []byte {
	f := bytes.Repeat([]byte{0xa5}, headroom)
	if dst.Is4() {
		f = append(f, 0x45, 0, 0, byte(20+len(word)), 0, 0, 0, 0, 64, 17, 0, 0)
	} else {
		f = append(f, 0x60, 0, 0, 0, 0, byte(len(word)), 17, 64)
	}
	f = append(f, src.AsSlice()...)
	f = append(f, dst.AsSlice()...)
	return append(f, word...)
}

func (h *host) send(dst netip.Addr, word string) { h.sendVia(dst, dst, word) }

func (h *host) sendVia(dst, hop netip.Addr, word string) {
	src := ipA
	if dst.Is6() {
		src = llA
	}
	h.e.Output(h.now, packet(src, dst, word), hop)
}

// arrive brings a frame of type typ; from is what the link knows of its sender.
func (h *host) arrive(kind Kind, from wire.HWAddr, typ wire.EtherType, p []byte) []byte {
	f := make([]byte, headroom, headroom+len(p))
	wire.PutHardHeader(f, &wire.HWAddr{}, &from, typ)
	return h.e.Input(h.now, kind, append(f, p...))
}

func (h *host) arp(kind Kind, a wire.ARP) {
	b := make([]byte, wire.ARPLen)
	a.Put(b)
	if up := h.arrive(kind, wire.HWAddr{}, wire.EtherARP, b); up != nil {
		h.t.Error("ARP goes up")
	}
}

func (h *host) nd(kind Kind, n wire.ND) {
	b := make([]byte, wire.MaxNDLen)
	if up := h.arrive(kind, wire.HWAddr{}, wire.EtherIPv6, b[:n.Put(b)]); up != nil {
		h.t.Error("Neighbor Discovery goes up")
	}
}

// reply is B's answer to A.
func replyOf(ip netip.Addr, hw wire.HWAddr) wire.ARP {
	return wire.ARP{Op: wire.ARPReply, SenderHW: hw, SenderIP: ip, TargetHW: hwA, TargetIP: ipA}
}

func advertOf(ip netip.Addr, hw wire.HWAddr) wire.ND {
	return wire.ND{Type: wire.NDNeighborAdvert, Src: ip, Dst: llA, Target: ip, Solicited: true, Override: true,
		Link:    hw,
		HasLink: true}
}

func (h *host) state(ip netip.Addr) string {
	for _, n := range h.e.Neighbours(h.now) {
		if n.IP == ip {
			return n.State.String()
		}
	}
	return "absent"
}

func (h *host) wantState(ip netip.Addr, want string) {
	h.t.Helper()
	if got := h.state(ip); got != want {
		h.t.Errorf("%v is %s, want %s", ip, got, want)
	}
}

// vector returns the UD payload of a vector.
func vector(t testing.TB, id string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "test", "vectors", "ipoib.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Vectors []struct {
			ID            string
			Input, Output map[string]any
		}
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		t.Fatal(err)
	}
	for _, v := range f.Vectors {
		if v.ID != id {
			continue
		}
		for _, m := range []map[string]any{v.Output, v.Input} {
			for _, key := range []string{"ud_payload_hex", "ip_packet_hex"} {
				if s, ok := m[key].(string); ok {
					b, err := hex.DecodeString(s)
					if err != nil {
						t.Fatal(err)
					}
					return b
				}
			}
		}
	}
	t.Fatalf("no vector %s", id)
	return nil
}

// arriveVector brings a whole UD payload.
func (h *host) arriveVector(kind Kind, id string) []byte {
	v := vector(h.t, id)
	return h.arrive(kind, wire.HWAddr{}, wire.EtherType(binary.BigEndian.Uint16(v)), v[wire.EncapLen:])
}

// wantFrame compares a sent frame with a vector, and its destination.
func (h *host) wantFrame(i int, id string, dst wire.HWAddr) {
	h.t.Helper()
	if i >= len(h.frames) {
		h.t.Fatalf("%s was not sent", id)
	}
	if want, got := vector(h.t, id), h.frames[i][40:]; !bytes.Equal(want, got) {
		h.t.Errorf("%s:\nwant %x\n got %x", id, want, got)
	}
	if got := wire.HardHeader(h.frames[i]).Dst(); got != dst {
		h.t.Errorf("%s: to %v, want %v", id, got, dst)
	}
}

func groupHW(ip string) wire.HWAddr {
	return wire.GroupHWAddr(wire.GroupGID(netip.MustParseAddr(ip), pkey, scope))
}

// H-08, H-26: resolution by broadcast and unicast answer; what comes meanwhile
// waits and goes in order.
func TestH08_ResolveIPv4(t *testing.T) {
	h := upHost(t, Config{})
	h.send(ipB, "f1")
	h.wantFrame(0, "ARP-1", wire.PseudoBroadcast)
	h.want("arp who-has 10.20.0.2 (-) tell 10.20.0.1 (A) > all")
	h.send(ipB, "f2")
	h.want()
	h.wantState(ipB, "INCOMPLETE")
	h.arriveVector(Host, "ARP-2")
	h.want("learned 10.20.0.2 at B", "f1 > B", "f2 > B")
	h.wantState(ipB, "REACHABLE")
	h.send(ipB, "f3")
	h.want("f3 > B")
	if c := h.e.Counters(); c.Queued != 2 || c.HeaderHits != 3 || c.ARPTx != 4 || c.ARPRx != 1 {
		t.Errorf("%+v", c)
	}
}

func TestResolveIPv6(t *testing.T) {
	h := upHost(t, Config{})
	h.send(llB, "f1")
	h.wantFrame(0, "ND-1", groupHW("ff02::1:ff7b:cba1"))
	h.want("ns fe80::f652:1403:7b:cba1 (A) from fe80::202:c903:a:1b2d to ff02::1:ff7b:cba1 > ff12:601b:8014::1:ff7b:cba1")
	h.send(llB, "f2")
	h.arriveVector(Host, "ND-2")
	h.want("learned fe80::f652:1403:7b:cba1 at B", "f1 > B", "f2 > B")
	h.wantState(llB, "REACHABLE")
}

// The frame's own bytes are those that were given, behind a right hard header.
func TestFramesBehindHardHeader(t *testing.T) {
	h := upHost(t, Config{})
	want := packet(ipA, ipB, "word")
	h.e.Output(h.now, bytes.Clone(want), ipB)
	h.arriveVector(Host, "ARP-2")
	h.e.Output(h.now, bytes.Clone(want), ipB)
	wire.PutHardHeader(want, &hwB, &hwA, wire.EtherIPv4)
	for _, f := range h.frames[1:] {
		if !bytes.Equal(f, want) {
			t.Errorf("want %x\n got %x", want, f)
		}
	}
	if len(h.frames) != 3 {
		t.Errorf("%d frames", len(h.frames))
	}
}

// No answer: three solicitations, then an error to the IP stack for each packet that waited.
func TestUnreachable(t *testing.T) {
	h := upHost(t, Config{})
	h.send(ipC, "f1")
	h.send(netip.MustParseAddr("fe80::99"), "f2")
	h.wait(2999 * time.Millisecond)
	ask4 := "arp who-has 10.20.0.3 (-) tell 10.20.0.1 (A) > all"
	ask6 := "ns fe80::99 (A) from fe80::202:c903:a:1b2d to ff02::1:ff00:99 > ff12:601b:8014::1:ff00:99"
	h.want(ask4, ask6, ask4, ask6, ask4, ask6)
	h.wait(time.Millisecond)
	h.want("up icmp 1 from 10.20.0.3 to 10.20.0.1 about f1", "up icmp6 1/3 from fe80::99 about f2")
	h.wantState(ipC, "absent")
	if c := h.e.Counters(); c.DropUnresolved != 2 || c.Failed != 2 || c.Errors != 2 {
		t.Errorf("%+v", c)
	}
	if h.e.pool.used != 0 || !h.e.Deadline().IsZero() {
		t.Errorf("%d buffers in use, deadline %v", h.e.pool.used, h.e.Deadline())
	}
	h.send(ipC, "f3") // the next one tries again
	h.want(ask4)
}

// The life of a neighbour that stays where it is (RFC 4861, 7.3).
func TestStatesOfNeighbour(t *testing.T) {
	for _, c := range []struct {
		ip      netip.Addr
		answer  func(h *host)
		unicast string
	}{
		{ipB, func(h *host) { h.arp(Host, replyOf(ipB, hwB)) }, "arp who-has 10.20.0.2 (B) tell 10.20.0.1 (A) > B"},
		{llB, func(h *host) { h.nd(Host, advertOf(llB, hwB)) },
			"ns fe80::f652:1403:7b:cba1 (A) from fe80::202:c903:a:1b2d to fe80::f652:1403:7b:cba1 > B"},
	} {
		t.Run(c.ip.String(), func(t *testing.T) {
			h := upHost(t, Config{})
			h.send(c.ip, "f1")
			c.answer(h)
			h.wait(15*time.Second - 1)
			h.wantState(c.ip, "REACHABLE")
			h.wait(30*time.Second + 1)
			h.wantState(c.ip, "STALE")
			h.log = nil
			h.send(c.ip, "f2")
			h.want("f2 > B")
			h.wantState(c.ip, "DELAY")
			h.wait(5*time.Second - 1)
			h.want()
			h.wait(1)
			if c.ip == ipB {
				h.wantFrame(0, "ARP-4", hwB)
			}
			h.want(c.unicast)
			h.wantState(c.ip, "PROBE")
			h.send(c.ip, "f3") // goes where it went
			h.want("f3 > B")
			c.answer(h)
			h.want("learned " + c.ip.String() + " at B")
			h.wantState(c.ip, "REACHABLE")

			h.wait(45 * time.Second)
			h.send(c.ip, "f4")
			h.wait(5 * time.Second)
			h.want("f4 > B", c.unicast)
			h.wait(3*time.Second - 1)
			h.want(c.unicast, c.unicast)
			h.wait(1)
			h.want()
			h.wantState(c.ip, "absent")

			h.send(c.ip, "f5")
			c.answer(h)
			h.wait(15*time.Second + 59*time.Second)
			h.wantState(c.ip, "STALE")
			h.wait(31 * time.Second)
			h.wantState(c.ip, "absent") // unused
		})
	}
}

func TestReachableTimeIsSpread(t *testing.T) {
	h := upHost(t, Config{})
	var times []time.Duration
	for range 200 {
		h.e.Flush(h.now)
		h.send(ipB, "f")
		h.arp(Host, replyOf(ipB, hwB))
		d := h.e.Neighbours(h.now)[0].Expires
		if d < 15*time.Second || d >= 45*time.Second {
			t.Fatalf("%v", d)
		}
		times = append(times, d)
	}
	var low, high bool
	for _, d := range times {
		low, high = low || d < 20*time.Second, high || d > 40*time.Second
	}
	if !low || !high {
		t.Error("not spread over 30 s times 0.5 … 1.5")
	}
}

// H-26: what waits is bounded for each neighbour, and for all together.
func TestH26_QueueBounds(t *testing.T) {
	h := upHost(t, Config{})
	for i := range 70 {
		h.send(ipB, fmt.Sprint(i))
	}
	if c := h.e.Counters(); c.Queued != 64 || c.DropQueueFull != 6 {
		t.Errorf("%+v", c)
	}
	h.log = nil
	h.arp(Host, replyOf(ipB, hwB))
	if len(h.log) != 65 || h.log[1] != "0 > B" || h.log[64] != "63 > B" {
		t.Errorf("%q", h.log)
	}
	big := packet(ipA, ipC, strings.Repeat("x", mtu-20))
	for range 70 {
		h.e.Output(h.now, bytes.Clone(big), ipC)
	}
	if n := h.e.table.find(ipC); n.queue.n != (128<<10)/(headroom+mtu) || n.queue.bytes > 128<<10 {
		t.Errorf("%d frames, %d bytes", n.queue.n, n.queue.bytes)
	}

	h = upHost(t, Config{PoolFrames: 100, QueueFrames: 64})
	for i := range 64 {
		h.send(ipB, fmt.Sprint(i))
	}
	for i := range 40 {
		for range 9 {
			h.send(netip.AddrFrom4([4]byte{10, 20, 1, byte(i)}), "x")
		}
	}
	var queued int
	for _, n := range h.e.Neighbours(h.now) {
		queued += n.Queued
		if n.IP != ipB && n.Queued > 4 {
			t.Errorf("%v holds %d", n.IP, n.Queued)
		}
	}
	if queued != 100 || h.e.pool.used != 100 {
		t.Errorf("%d frames wait, %d buffers", queued, h.e.pool.used)
	}
	h.e.SetUp(h.now, false)
	if h.e.pool.used != 0 || len(h.e.table.byIP) != 0 {
		t.Errorf("%d buffers, %d neighbours", h.e.pool.used, len(h.e.table.byIP))
	}
}

// Where packets go that are for more than one.
func TestDestinations(t *testing.T) {
	h := upHost(t, Config{})
	gw := netip.MustParseAddr("10.20.0.254")
	h.sendVia(netip.MustParseAddr("8.8.8.8"), gw, "far")
	h.want("arp who-has 10.20.0.254 (-) tell 10.20.0.1 (A) > all")
	for _, c := range []struct{ dst, want string }{
		{"255.255.255.255", "x > all"},
		{"10.20.0.255", "x > all"},
		{"224.0.0.251", "x > ff12:401b:8014::fb"},
		{"239.255.255.250", "x > ff12:401b:8014::fff:fffa"},
		{"ff02::fb", "x > ff12:601b:8014::fb"},
		{"ff05::1:3", "x > ff12:601b:8014::1:3"},
	} {
		h.send(netip.MustParseAddr(c.dst), "x")
		h.want(c.want)
		h.sendVia(netip.MustParseAddr(c.dst), netip.Addr{}, "x")
		h.want(c.want)
	}
	h.sendVia(limitedBroadcast, gw, "x") // for any route
	h.want("x > all")
	for _, dst := range []string{"0.0.0.0", "127.0.0.1", "::", "::1", ipA.String(), llA.String()} {
		h.send(netip.MustParseAddr(dst), "x")
		h.want()
	}
	if c := h.e.Counters(); c.DropNoRoute != 6 {
		t.Errorf("%+v", c)
	}
	// With a zone, and as an IPv4 address in IPv6 form, it is the same neighbour.
	h.e.AddStatic(h.now, llB, hwB)
	h.e.AddStatic(h.now, ipB, hwB)
	h.log = nil
	h.sendVia(llB, llB.WithZone("ib0"), "x")
	h.sendVia(ipB, netip.AddrFrom16(ipB.As16()), "y")
	h.sendVia(ipB, netip.Addr{}, "z")
	h.sendVia(ipB, llB, "v4 by a v6 hop")
	h.want("x > B", "y > B", "z > B", "v4 by a v6 hop > B")
	// The broadcast address of a prefix that is no more.
	h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(ipA, 16)})
	h.log = nil
	h.send(netip.MustParseAddr("10.20.255.255"), "x")
	h.send(netip.MustParseAddr("10.20.0.255"), "y")
	h.want("x > all", "arp who-has 10.20.0.255 (-) tell 10.20.0.1 (A) > all")
	h.e.SetAddrs(h.now, []netip.Prefix{netip.PrefixFrom(ipA, 31)})
	h.wait(10 * time.Second)
	h.log = nil
	h.send(netip.MustParseAddr("10.20.0.0"), "x")
	h.want("arp who-has 10.20.0.0 (-) tell 10.20.0.1 (A) > all")
}

func TestRefusedOutput(t *testing.T) {
	h := upHost(t, Config{})
	four, six := packet(ipA, ipB, strings.Repeat("x", mtu-19)), packet(llA, llB, strings.Repeat("x", mtu-39))
	h.e.Output(h.now, four, ipB)
	h.e.Output(h.now, six, llB)
	h.e.Output(h.now, packet(ipA, netip.MustParseAddr("239.1.1.1"), strings.Repeat("x", mtu-19)), netip.Addr{})
	for i, line := range h.log {
		h.log[i], _, _ = strings.Cut(line, " about")
	}
	h.want("up icmp 4 from 10.20.0.2 to 10.20.0.1", "up icmp6 2/0 from fe80::f652:1403:7b:cba1")
	for _, p := range [][]byte{nil, {0x45}, {0x60}, {0}, bytes.Repeat([]byte{0x45}, 19), bytes.Repeat([]byte{0x60}, 39),
		bytes.Repeat([]byte{0x50}, 60)} {
		h.e.Output(h.now, append(make([]byte, headroom), p...), ipB)
	}
	h.want()
	h.e.SetUp(h.now, false)
	h.send(ipB, "x")
	h.want()
	if c := h.e.Counters(); c.DropTooBig != 3 || c.DropVersion != 7 || c.DropDown != 1 {
		t.Errorf("%+v", c)
	}
}

// Errors to the IP stack come at most a hundred times a second.
func TestErrorsAreLimited(t *testing.T) {
	h := upHost(t, Config{})
	big := func() { h.e.Output(h.now, packet(ipA, ipB, strings.Repeat("x", mtu)), ipB) }
	for range 1000 {
		big()
	}
	if len(h.log) != errorBurst {
		t.Errorf("%d errors at once", len(h.log))
	}
	h.log = nil
	for range 1000 {
		h.now = h.now.Add(time.Millisecond)
		big()
	}
	if len(h.log) != 100 {
		t.Errorf("%d errors in a second", len(h.log))
	}
	if c := h.e.Counters(); c.Errors+c.ErrorsLimited != 2000 {
		t.Errorf("%+v", c)
	}
}

func TestNoAllocation(t *testing.T) {
	h := upHost(t, Config{})
	quiet := &silent{}
	h.e.out = outOf(quiet)
	h.e.AddStatic(h.now, ipB, hwB)
	h.e.AddStatic(h.now, llB, hwB)
	reply, frame := make([]byte, wire.ARPLen), make([]byte, headroom, headroom+200)
	a := replyOf(ipC, hwC)
	a.Put(reply)
	wire.PutHardHeader(frame, &wire.HWAddr{}, &wire.HWAddr{}, wire.EtherARP)
	frame = append(frame, reply...)
	echo := packet(ipB, ipA, "received")
	wire.PutHardHeader(echo, &wire.HWAddr{}, &wire.HWAddr{}, wire.EtherIPv4)
	report := append(make([]byte, headroom), vector(t, "SN-1")...)
	ns := append(make([]byte, 40), vector(t, "ND-1")...)
	f4, f6, fm, fc := packet(ipA, ipB, "four"), packet(llA, llB, "six"),
		packet(ipA, netip.MustParseAddr("239.1.1.1"), "group"), packet(ipA, ipC, "c")
	h.e.Output(h.now, report, netip.Addr{})
	turn := func() {
		h.now = h.now.Add(time.Millisecond)
		h.e.Output(h.now, f4, ipB)
		h.e.Output(h.now, f6, llB)
		h.e.Output(h.now, fm, netip.Addr{})
		h.e.Output(h.now, report, netip.Addr{})
		if h.e.Input(h.now, Host, echo) == nil {
			t.Error("not delivered")
		}
		h.e.Input(h.now, Multicast, ns)
		// Resolution, with packets that wait, from the beginning.
		h.e.Delete(h.now, ipC)
		h.e.Output(h.now, fc, ipC)
		h.e.Output(h.now, fc, ipC)
		h.e.Input(h.now, Host, frame)
		h.e.Tick(h.now)
	}
	turn()
	if n := testing.AllocsPerRun(1000, turn); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if quiet.sent < 7000 {
		t.Errorf("%d frames sent", quiet.sent)
	}
}

// link is all that an Out has.
type link interface {
	Frames
	Resolution
	Membership
}

// outOf returns the Out of a fake that implements all of it.
func outOf(l link) Out { return Out{Frames: l, Resolution: l, Membership: l} }

// silent is a link that counts the frames that it sends.
type silent struct{ sent int }

func (s *silent) Xmit(mono.Time, []byte)                      { s.sent++ }
func (s *silent) Deliver(mono.Time, []byte)                   {}
func (s *silent) Learned(mono.Time, netip.Addr, wire.HWAddr)  {}
func (s *silent) Resolved(mono.Time, netip.Addr, wire.HWAddr) {}
func (s *silent) Unresolved(mono.Time, netip.Addr)            {}
func (s *silent) Join(mono.Time, netip.Addr)                  {}
func (s *silent) Leave(mono.Time, netip.Addr)                 {}
func (s *silent) Conflict(mono.Time, netip.Addr, wire.HWAddr) {}

// BenchmarkOutput is what a packet to a known neighbour costs.
func BenchmarkOutput(b *testing.B) {
	h := upHost(b, Config{})
	h.e.out = outOf(&silent{})
	h.e.AddStatic(h.now, ipB, hwB)
	f := packet(ipA, ipB, strings.Repeat("x", 1000))
	b.ReportAllocs()
	for b.Loop() {
		h.e.Output(h.now, f, ipB)
	}
}
