// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// model has the invariants of an engine under any sequence of calls: packets are sent once and in order, or
// counted as dropped; they go to the hardware address that the neighbour announced last; only such a frame
// changes it; each Resolve ends once; each group is joined once.
type model struct {
	t   *rapid.T
	e   *Engine
	now mono.Time
	up  bool

	packets int                        // given to Output
	next    map[netip.Addr]int         // by next hop: all below were sent or dropped
	sent    int                        // of them
	at      map[netip.Addr]wire.HWAddr // as Learned
	heard   map[netip.Addr]wire.HWAddr // sender in the frame of this step
	waiting map[netip.Addr]bool
	within  bool // Resolve

	addrs  map[netip.Addr]bool
	hands  map[netip.Addr]int
	report map[netip.Addr]bool
	joined map[ib.GID]netip.Addr
}

func (m *model) Xmit(now mono.Time, f []byte) {
	typ, p, why := wire.ParseFrame(f[40:])
	if why != wire.FrameOK || now != m.now || !m.up {
		m.t.Fatalf("sends %x: %v, up %v", f, why, m.up)
	}
	if typ == wire.EtherARP {
		var a wire.ARP
		if why := a.Parse(p); why != wire.FrameOK || a.SenderHW != hwA || !m.addrs[a.SenderIP] &&
			!a.SenderIP.IsUnspecified() {
			m.t.Fatalf("sends ARP %+v: %v", a, why)
		}
		return
	}
	if off, ok := wire.ICMPv6(p); typ == wire.EtherIPv6 && ok && wire.IsND(p[off]) {
		var n wire.ND
		if why := n.Parse(p, off); why != wire.FrameOK || !m.addrs[n.Src] && !n.Src.IsUnspecified() {
			m.t.Fatalf("sends %+v: %v", n, why)
		}
		return
	}
	hop, word := netip.AddrFrom4([4]byte(p[16:])), p[20:]
	if typ == wire.EtherIPv6 {
		hop, word = netip.AddrFrom16([16]byte(p[24:])), p[40:]
	}
	id, err := strconv.Atoi(string(word))
	if err != nil || id < m.next[hop] {
		m.t.Fatalf("sends %q to %v after %d", word, hop, m.next[hop]-1)
	}
	m.next[hop] = id + 1
	m.sent++
	if hw, ok := m.at[hop]; !ok || hw != wire.HardHeader(f).Dst() {
		m.t.Fatalf("sends to %v at %v, which is at %v", hop, wire.HardHeader(f).Dst(), hw)
	}
}

func (m *model) Deliver(mono.Time, []byte) {}

func (m *model) Learned(_ mono.Time, ip netip.Addr, hw wire.HWAddr) {
	old, known := m.at[ip]
	said, ok := m.heard[ip]
	if (!ok || said != hw) && (!known || old != hw) {
		m.t.Fatalf("learned %v at %v, heard %v, known %v", ip, hw, said, old)
	}
	if m.addrs[ip] {
		m.t.Fatalf("learned our own %v", ip)
	}
	m.at[ip] = hw
}

func (m *model) end(ip netip.Addr) {
	if m.within || !m.waiting[ip] {
		m.t.Fatalf("told of %v: within %v, waiting %v", ip, m.within, m.waiting[ip])
	}
	delete(m.waiting, ip)
}

func (m *model) Resolved(_ mono.Time, ip netip.Addr, hw wire.HWAddr) {
	m.end(ip)
	if m.at[ip] != hw {
		m.t.Fatalf("%v resolved to %v", ip, hw)
	}
}

func (m *model) Unresolved(_ mono.Time, ip netip.Addr) { m.end(ip) }

func gidOf(g netip.Addr) ib.GID { return wire.GroupGID(g, pkey, scope) }

func (m *model) Join(_ mono.Time, g netip.Addr) {
	if j, ok := m.joined[gidOf(g)]; ok {
		m.t.Fatalf("joins %v, is in %v", g, j)
	}
	m.joined[gidOf(g)] = g
}

func (m *model) Leave(_ mono.Time, g netip.Addr) {
	if m.joined[gidOf(g)] != g {
		m.t.Fatalf("leaves %v", g)
	}
	delete(m.joined, gidOf(g))
}

func (m *model) Conflict(_ mono.Time, ip netip.Addr, _ wire.HWAddr) {
	if !m.addrs[ip] {
		m.t.Fatalf("conflict about %v", ip)
	}
}

// check looks at the whole engine after each step.
func (m *model) check(t *rapid.T) {
	e := m.e
	// Each timer that is set belongs to a neighbour in the table, an own address or the engine; its deadline is
	// not before that of the engine.
	e.timers.All(func(x subject) {
		of := &e.query
		switch {
		case x.entry != nil:
			if of = &x.entry.timer; e.table.byIP[x.entry.ip] != x.entry {
				t.Fatalf("a timer of %v, which is not in the table", x.entry.ip)
			}
		case x.addr != nil:
			of = &x.addr.timer
		}
		if !of.IsSet() || of.At() < e.Deadline() {
			t.Fatalf("timer at %v, deadline %v", of.At(), e.Deadline())
		}
	})
	listed, queued := 0, 0
	for n := range e.table.all() {
		listed++
		queued += n.queue.n
		if e.table.byIP[n.ip] != n || n.timer.IsSet() == (n.state == Permanent) || n.queue.n > 0 &&
			n.state != Incomplete {
			t.Fatalf("%+v", n)
		}
	}
	if listed != len(e.table.byIP) || listed > e.cfg.MaxNeighbours || queued != e.pool.used ||
		queued > e.cfg.PoolFrames {
		t.Fatalf("%d listed, %d known, %d queued, %d used", listed, len(e.table.byIP), queued, e.pool.used)
	}
	// No packet is lost uncounted.
	c := e.c
	dropped := int(c.DropDown + c.DropTooBig + c.DropVersion + c.DropNoRoute + c.DropQueueFull + c.DropUnresolved)
	if m.sent+dropped+queued != m.packets {
		t.Fatalf("%d packets: %d sent, %d dropped, %d wait", m.packets, m.sent, dropped, queued)
	}
	// Groups.
	want := map[ib.GID]bool{}
	if _, ok := m.joined[gidOf(allHosts)]; ok {
		want[gidOf(allHosts)], want[gidOf(allNodes)] = true, true
	}
	for ip := range m.addrs {
		if ip.Is6() {
			want[gidOf(wire.SolicitedNode(ip))] = true
		}
	}
	for g, n := range m.hands {
		if n > 0 {
			want[gidOf(g)] = true
		}
	}
	for g, in := range m.report {
		if in {
			want[gidOf(g)] = true
		}
	}
	for g := range want {
		if _, ok := m.joined[g]; !ok {
			t.Fatalf("not in %v", g)
		}
	}
	if len(want) != len(m.joined) {
		t.Fatalf("in %v, want %v", m.joined, want)
	}
}

func TestModel(t *testing.T) {
	hosts := []netip.Addr{ipB, ipC, llB, netip.MustParseAddr("fe80::c"), netip.MustParseAddr("10.20.0.4"),
		netip.MustParseAddr("10.20.0.5")}
	hws := []wire.HWAddr{hwB, hwC, hwB.Key(), wire.MakeHWAddr(0, 7, hwB.GID())}
	owns := []netip.Prefix{netip.PrefixFrom(ipA, 24), netip.PrefixFrom(llA, 64), netip.MustParsePrefix("10.20.0.5/24"),
		netip.MustParsePrefix("fd00::ff0a:1b2d/64")}
	groups := []netip.Addr{netip.MustParseAddr("239.1.2.3"), ipv6("ff02::1:3"), ipv6("ff05::1:3"),
		wire.SolicitedNode(llA), netip.MustParseAddr("239.9.9.9")}
	rapid.Check(t, func(t *rapid.T) {
		m := &model{t: t, now: 1, next: map[netip.Addr]int{}, at: map[netip.Addr]wire.HWAddr{},
			heard: map[netip.Addr]wire.HWAddr{}, waiting: map[netip.Addr]bool{}, addrs: map[netip.Addr]bool{},
			hands: map[netip.Addr]int{}, report: map[netip.Addr]bool{}, joined: map[ib.GID]netip.Addr{}}
		m.e = New(Config{MaxNeighbours: rapid.IntRange(1, 5).Draw(t, "max"),
			PoolFrames: rapid.IntRange(0, 20).Draw(t, "pool"), QueueFrames: 6,
			Rand: rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))}, outOf(m))
		m.e.SetLink(m.now, LinkInfo{HW: hwA, PKey: pkey, Scope: scope, MTU: 100})
		host := rapid.SampledFrom(hosts)
		hw := rapid.SampledFrom(hws)
		hear := func(ip netip.Addr, hw wire.HWAddr) func() {
			m.heard[ip] = hw
			return func() { clear(m.heard) }
		}
		t.Repeat(map[string]func(*rapid.T){
			"": m.check,
			"send": func(t *rapid.T) {
				ip, n := host.Draw(t, "to"), rapid.IntRange(1, 8).Draw(t, "n")
				for range n {
					m.e.Output(m.now, packet(ipA, ip, strconv.Itoa(m.packets)), ip)
					m.packets++
				}
			},
			"send badly": func(t *rapid.T) {
				p := packet(ipA, ipB, fmt.Sprintf("%090d", 0))
				m.packets++
				m.e.Output(m.now, p[:headroom+rapid.IntRange(0, 1).Draw(t, "long")*110], ipB)
			},
			"arp": func(t *rapid.T) {
				a := wire.ARP{Op: rapid.SampledFrom([]uint16{1, 2, 2, 3}).Draw(t, "op"), SenderHW: hw.Draw(t, "hw"),
					SenderIP: ipB,
					TargetIP: rapid.SampledFrom([]netip.Addr{ipA, ipC}).Draw(t, "target")}
				if ip := host.Draw(t, "sender"); ip.Is4() {
					a.SenderIP = ip
				}
				defer hear(a.SenderIP, a.SenderHW)()
				b := make([]byte, headroom+wire.ARPLen)
				wire.PutEncap(b[40:], wire.EtherARP)
				a.Put(b[headroom:])
				m.e.Input(m.now, Kind(rapid.IntRange(0, 2).Draw(t, "kind")), b)
			},
			"nd": func(t *rapid.T) {
				n := wire.ND{Type: rapid.SampledFrom([]uint8{wire.NDNeighborSolicit, wire.NDNeighborAdvert,
					wire.NDNeighborAdvert}).Draw(t, "type"), Src: llB, Dst: llA, Target: llB, Link: hw.Draw(t, "hw"),
					HasLink: rapid.Bool().Draw(t, "option"), Solicited: rapid.Bool().Draw(t,
						"S"), Override: rapid.Bool().Draw(t, "O")}
				if ip := host.Draw(t, "sender"); ip.Is6() {
					n.Src, n.Target = ip, ip
				}
				if n.Type == wire.NDNeighborSolicit {
					n.Target = llA
				}
				defer hear(n.Src, n.Link)()
				b := make([]byte, headroom+wire.MaxNDLen)
				// The GRH has the address of the sender, so that no answer has to wait.
				wire.PutHardHeader(b, &wire.HWAddr{}, &n.Link, wire.EtherIPv6)
				m.e.Input(m.now, Host, b[:headroom+n.Put(b[headroom:])])
			},
			"resolve": func(t *rapid.T) {
				ip := host.Draw(t, "ip")
				// Another one may be evicted for it, and its removal is reported.
				m.within = m.e.table.find(ip) != nil
				hw, ok := m.e.Resolve(m.now, ip)
				m.within = false
				if ok && hw != m.at[ip] {
					t.Fatalf("%v at %v, not %v", ip, hw, m.at[ip])
				}
				if !ok {
					m.waiting[ip] = true
				}
			},
			"wait": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.SampledFrom([]int64{1, 1e6, 1e9, 5e9, 40e9, 100e9}).Draw(t,
					"for")))
				for i := 0; m.e.Deadline().Due(m.now); i++ {
					if i > 10000 {
						t.Fatal("deadlines without end")
					}
					m.e.Tick(m.now)
				}
			},
			"carrier": func(t *rapid.T) {
				up := rapid.IntRange(0, 4).Draw(t, "down") > 0
				m.up = up || m.up // what goes with it is sent while up
				m.e.SetUp(m.now, up)
				m.up = up
				if !up && len(m.waiting) > 0 {
					for ip := range m.waiting {
						if m.e.table.find(ip) == nil {
							t.Fatalf("%v is waited for", ip)
						}
					}
				}
			},
			"addrs": func(t *rapid.T) {
				var p []netip.Prefix
				old := maps.Clone(m.addrs)
				clear(m.addrs)
				for _, o := range owns {
					if rapid.Bool().Draw(t, o.String()) {
						p = append(p, o)
						m.addrs[o.Addr()] = true
					}
				}
				now := m.addrs
				m.addrs = maps.Clone(now)
				maps.Copy(m.addrs, old) // either is right until the call returns
				m.e.SetAddrs(m.now, p)
				m.addrs = now
			},
			"static": func(t *rapid.T) {
				ip, hw := host.Draw(t, "ip"), hw.Draw(t, "hw")
				defer hear(ip, hw)()
				m.e.AddStatic(m.now, ip, hw)
			},
			"delete": func(t *rapid.T) { m.e.Delete(m.now, host.Draw(t, "ip")) },
			"probe":  func(t *rapid.T) { m.e.Probe(m.now, host.Draw(t, "ip")) },
			"forget": func(t *rapid.T) { m.e.Forget(m.now, hw.Draw(t, "hw").GID()) },
			"group by hand": func(t *rapid.T) {
				g := rapid.SampledFrom(groups).Draw(t, "group")
				if rapid.Bool().Draw(t, "join") {
					if !m.e.JoinGroup(m.now, g) {
						t.Fatal("refused")
					}
					m.hands[g]++
				} else if m.e.LeaveGroup(m.now, g) != (m.hands[g] > 0) {
					t.Fatal("wrongly left")
				} else {
					m.hands[g] = max(m.hands[g]-1, 0)
				}
			},
			"report": func(t *rapid.T) {
				g, join := rapid.SampledFrom(groups).Draw(t, "group"), rapid.Bool().Draw(t, "join")
				m.e.groups.report(m.e, m.now, wire.GroupReport{Group: g, Join: join})
				m.report[g] = join
			},
		})
		// In the end nothing waits for ever.
		for range 100 {
			m.now = m.now.Add(time.Second)
			m.e.Tick(m.now)
		}
		m.check(t)
		if len(m.waiting) > 0 || m.e.pool.used > 0 {
			t.Fatalf("%v wait, and %d frames", slices.Collect(maps.Keys(m.waiting)), m.e.pool.used)
		}
	})
}

// FuzzEngine brings frames of a peer, as they are, between packets of the IP stack,
// and checks that the engine stays whole.
func FuzzEngine(f *testing.F) {
	for _, id := range []string{"ARP-1", "ARP-2", "ARP-3", "ARP-4", "ARP-5", "ND-1", "ND-2", "ND-3", "ND-4", "ND-5",
		"ND-6", "NEG-1", "NEG-9", "SN-3", "SN-4"} {
		v := vector(f, id)
		f.Add(append([]byte{byte(len(v))}, v...), uint8(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		out := &silent{}
		e := New(Config{MaxNeighbours: 4, PoolFrames: 8, Rand: rand.New(rand.NewPCG(1, 2))}, outOf(out))
		now := mono.Time(1)
		e.SetLink(now, LinkInfo{HW: hwA, PKey: pkey, Scope: scope, MTU: mtu})
		e.SetUp(now, true)
		e.SetAddrs(now, []netip.Prefix{netip.PrefixFrom(ipA, 24), netip.PrefixFrom(llA, 64)})
		for i := 0; len(b) > 0 && i < 64; i++ {
			n := min(int(b[0]), len(b)-1)
			frame := append(make([]byte, 40, 40+n+wire.SourceLinkRoom), b[1:1+n]...)
			b = b[1+n:]
			if n >= wire.EncapLen {
				size := len(frame)
				if up := e.Input(now, Kind(i%3), frame); len(up) > size || up != nil && len(up) <= headroom {
					t.Errorf("%d bytes of %d go up", len(up), size)
				}
				e.Output(now, frame, netip.Addr{})
			}
			e.Output(now, packet(ipA, ipB, "x"), ipB)
			now = now.Add(time.Duration(step) * 100 * time.Millisecond)
			e.Tick(now)
		}
		queued := 0
		for n := range e.table.all() {
			queued += n.queue.n
			if !oneHost(n.ip) || n.state != Incomplete && !n.hw.Unicast() || e.addrs[n.ip] != nil {
				t.Errorf("learned %v at %v", n.ip, n.hw)
			}
		}
		if len(e.table.byIP) > 4 || queued != e.pool.used {
			t.Errorf("%d neighbours, %d wait, %d buffers", len(e.table.byIP), queued, e.pool.used)
		}
	})
}
