// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/stats"
)

// golden is what a link does until it works.
var golden = []string{"create cq", "create qp", "init ud 1", "create mr", "qkey 0xb1b", "register ib0_1_14 mtu 2044",
	"post receives", "create ah 0xc001", "attach ff12:401b:8014:0000:0000:0000:ffff:ffff", "carrier true"}

func one(t testing.TB, params ...string) (*subnet, *node) {
	s := newSubnet(t)
	return s, s.add("ib0_1_14", 5, gidA, 0x48, params...)
}

// TestH60_Steps: the objects are made in the order of the design, and where one
// cannot be, those before it are undone, last first; later it is tried again.
func TestH60_Steps(t *testing.T) {
	s, a := one(t)
	a.start()
	s.step()
	if d := cmp.Diff(golden, a.log[:min(len(a.log), len(golden))]); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for _, tc := range []struct {
		fails  string
		undone []string
		reason string
	}{
		{"create cq", nil, "completion queue: no resources"},
		{"create qp", []string{"destroy cq"}, "queue pair: no resources"},
		{"init ud", []string{"destroy qp", "destroy cq"}, "datagram service: no resources"},
		{"create mr", []string{"destroy qp", "destroy cq"}, "buffers: no resources"},
	} {
		s, a := one(t)
		a.fail[tc.fails] = 2
		a.start()
		s.step()
		i := slices.IndexFunc(a.log, func(l string) bool { return strings.HasSuffix(l, "fails") })
		if d := cmp.Diff(tc.undone, append([]string(nil), a.log[i+1:]...)); d != "" {
			t.Errorf("%s: undone, -want +got:\n%s", tc.fails, d)
		}
		if len(a.made) != 0 || a.l.state != Creating || a.l.reason != tc.reason {
			t.Errorf("%s: %v exist, state %v, reason %q", tc.fails, a.made, a.l.state, a.l.reason)
		}
		s.run(retryAfter)
		if len(a.made) != 0 {
			t.Errorf("%s: it fails twice, but %v exist", tc.fails, a.made)
		}
		s.run(retryAfter)
		if !a.carrier {
			t.Errorf("%s: no carrier after the third try: %s", tc.fails, a.l.reason)
		}
		a.l.Stop(s.now)
		s.run(time.Second)
		a.gone()
	}
}

// TestH61_Registration: the device is registered when the group is joined, then
// receive buffers are posted, and then the group is attached, so that no early
// broadcast is lost. Failures undo and are tried again.
func TestH61_Registration(t *testing.T) {
	t.Run("order", func(t *testing.T) {
		s, a := one(t)
		s.delay = 50 * time.Millisecond
		a.start()
		s.run(49 * time.Millisecond)
		if a.registered || a.l.state != Joining || slices.Contains(a.log, "post receives") {
			t.Errorf("before the join is answered: state %v, log %v", a.l.state, a.log)
		}
		s.run(time.Millisecond)
		at := func(l string) int {
			return slices.IndexFunc(a.log, func(x string) bool { return strings.HasPrefix(x, l) })
		}
		if !(at("register") < at("post receives") && at("post receives") < at("attach") && a.l.state == Up) {
			t.Errorf("state %v, log %v", a.l.state, a.log)
		}
	})
	for _, fails := range []string{"qkey", "create ah", "attach"} {
		t.Run(fails, func(t *testing.T) {
			s, a := one(t)
			a.fail[fails] = 1
			a.start()
			s.step()
			if a.carrier || !strings.Contains(a.l.reason, "no resources") {
				t.Errorf("carrier %v, reason %q", a.carrier, a.l.reason)
			}
			s.run(2 * time.Second)
			if !a.carrier {
				t.Errorf("no carrier afterwards: %s", a.l.reason)
			}
			a.l.Stop(s.now)
			s.run(time.Second)
			a.gone()
		})
	}
	t.Run("device", func(t *testing.T) {
		s, a := one(t)
		a.regErr = errFake
		a.start()
		s.step()
		if a.l.state != Joining || a.l.reason != "network device: no resources" {
			t.Errorf("state %v, reason %q", a.l.state, a.l.reason)
		}
		a.regErr = nil
		s.run(retryAfter)
		if !a.carrier {
			t.Errorf("no carrier afterwards: %s", a.l.reason)
		}
	})
	t.Run("stopped while registering", func(t *testing.T) {
		s, a := one(t)
		a.regLater = true
		a.start()
		s.step()
		a.l.Stop(s.now)
		s.run(time.Second)
		a.gone()
		a.l.Registered(s.now, nil)
		s.step()
		if a.l.attr.registered {
			t.Error("registered after its end")
		}
	})
}

// TestH24_OpenClose: opening makes the device work, as often as it is closed and
// opened again; nothing is left behind.
func TestH24_OpenClose(t *testing.T) {
	s, a, b := two(t)
	for i := range 1000 {
		a.l.Close(s.now)
		s.run(time.Millisecond)
		if a.carrier || a.l.state != Down || a.l.reason != "device is down" {
			t.Fatalf("closed: carrier %v, state %v, reason %q", a.carrier, a.l.state, a.l.reason)
		}
		if len(a.l.groups.table) != 1 || len(a.l.shadow.entries) != 0 || a.l.vectors.n != 1 {
			t.Fatalf("closed: %d groups, %d entries, %d address vectors", len(a.l.groups.table),
				len(a.l.shadow.entries),
				a.l.vectors.n)
		}
		a.l.Open(s.now)
		if i%100 == 0 {
			a.send(ipA, ipB, fmt.Sprint(i))
		}
		s.run(time.Millisecond)
	}
	if got := len(b.texts()); got != 10 {
		t.Errorf("%d of 10 packets arrived", got)
	}
	a.l.Open(s.now)
	if a.l.Close(s.now); !a.carrier || a.l.Opened() != 1 {
		t.Error("opened twice and closed once, it is down")
	}
}

// TestH25_Stop: what open took is given back.
func TestH25_Stop(t *testing.T) {
	s, a, _ := two(t)
	a.send(ipA, ipB, "one")
	s.run(time.Second)
	a.l.Close(s.now)
	s.run(time.Second)
	i := a.l.Info()
	if i.SendFree != i.QueueLen || i.Pending != 0 || i.Addresses != 1 || i.RecvPosted != i.RQDepth {
		t.Errorf("closed: %+v", i)
	}
	a.l.Stop(s.now)
	s.run(time.Second)
	a.gone()
}

// TestH23_Init: a link that cannot be made leaves nothing, and no device.
func TestH23_Init(t *testing.T) {
	s, a := one(t)
	a.fail["create qp"] = 1000
	a.start()
	s.run(time.Minute)
	if len(a.made) != 0 || a.registered || a.counter("logged_errors") < 60 {
		t.Errorf("%v exist, registered %v, %d errors", a.made, a.registered, a.counter("logged_errors"))
	}
	logs := 0
	for _, e := range a.events {
		if e.Kind == EventLog {
			logs++
		}
	}
	if logs > 8 {
		t.Errorf("%d lines of log in a minute", logs)
	}
	a.l.Stop(s.now)
	s.run(time.Second)
	a.gone()
}

// TestH20_Address: the hardware address is made of queue pair and GID.
func TestH20_Address(t *testing.T) {
	_, a := alone(t)
	if i := a.l.Info(); i.HW != hwA || a.info.Address != hwA || i.AddrLen != 20 {
		t.Errorf("address %v", i.HW)
	}
}

// TestPortEvents: each event of the port, and what becomes of carrier, groups and
// paths.
func TestPortEvents(t *testing.T) {
	up := func(t *testing.T) (*subnet, *node, *node) {
		s, a, b := two(t)
		a.send(ipA, ipB, "before")
		s.run(time.Second)
		s.asked, a.log = nil, nil
		return s, a, b
	}
	talks := func(t *testing.T, s *subnet, a, b *node) {
		t.Helper()
		b.got = nil
		a.send(ipA, ipB, "after")
		s.run(2 * time.Second)
		if d := cmp.Diff([]string{"after"}, b.texts()); d != "" {
			t.Errorf("B got, -want +got:\n%s", d)
		}
	}
	t.Run("port down and up", func(t *testing.T) {
		s, a, b := up(t)
		a.event(func(p *Port) { p.State = ib.PortDown })
		s.step()
		if a.carrier || a.reason != "port is Down" || len(a.l.shadow.entries) != 0 || a.l.vectors.n != 0 ||
			len(a.attached) != 0 {
			t.Errorf("carrier %v, reason %q, %d entries, %d address vectors", a.carrier, a.reason,
				len(a.l.shadow.entries),
				a.l.vectors.n)
		}
		if len(s.asked) != 0 {
			t.Errorf("asked %v through a port that is down", s.asked)
		}
		a.event(func(p *Port) { p.State = ib.PortActive })
		s.step()
		if !a.carrier || !strings.Contains(s.asked[0], "ffff:ffff 1") {
			t.Errorf("carrier %v, asked %v", a.carrier, s.asked)
		}
		talks(t, s, a, b)
	})
	t.Run("LID change", func(t *testing.T) {
		s, a, b := up(t)
		a.event(func(p *Port) { p.LID = 9 })
		s.step()
		if !a.carrier || len(s.asked) < 3 || !strings.Contains(s.asked[0], "ffff:ffff 1") {
			t.Errorf("carrier %v, asked %v", a.carrier, s.asked)
		}
		talks(t, s, a, b)
		b.l.FlushPaths()
		a.got = nil
		b.send(ipB, ipA, "back")
		s.run(time.Second)
		if d := cmp.Diff([]string{"back"}, a.texts()); d != "" {
			t.Errorf("A got, -want +got:\n%s", d)
		}
	})
	t.Run("P_Key removed and added", func(t *testing.T) {
		s, a, b := up(t)
		a.event(func(p *Port) { p.PKeys[1] = 0 })
		s.step()
		if a.carrier || a.reason != "P_Key 0x8014 is not in the port's table" {
			t.Errorf("carrier %v, reason %q", a.carrier, a.reason)
		}
		a.event(func(p *Port) { p.PKeys = append(p.PKeys, testPKey) })
		s.step()
		if !a.carrier || a.index != 2 {
			t.Errorf("carrier %v, P_Key index %d", a.carrier, a.index)
		}
		talks(t, s, a, b)
	})
	t.Run("P_Key moves", func(t *testing.T) {
		s, a, b := up(t)
		a.event(func(p *Port) { p.PKeys = []ib.PKey{0xffff, 0x0014, 0, testPKey} })
		s.step()
		if !a.carrier || a.index != 3 || slices.Contains(a.log, "carrier false") {
			t.Errorf("carrier %v, P_Key index %d, log %v", a.carrier, a.index, a.log)
		}
		talks(t, s, a, b)
	})
	t.Run("GID change", func(t *testing.T) {
		s, a, b := up(t)
		gid := ib.MakeGID(0xfec0000000000007, gidA.GUID())
		a.event(func(p *Port) { p.GID = gid })
		s.run(time.Second)
		if a.l.Info().HW.GID() != gid || !a.carrier {
			t.Errorf("address %v, carrier %v", a.l.Info().HW, a.carrier)
		}
		talks(t, s, a, b)
	})
	t.Run("GID out of service and in", func(t *testing.T) {
		s, a, b := up(t)
		a.l.Notice(s.now, mad.TrapGIDOutOfService, gidB)
		if p := a.l.shadow.paths[gidB]; p == nil || p.state == pathValid {
			t.Errorf("path %+v", p)
		}
		talks(t, s, a, b)
		b.port.State = ib.PortDown
		a.l.FlushPaths()
		s.delay = 10 * time.Second
		a.xmitText(wire.MakeHWAddr(0, 0x208, gidB), "waits")
		s.replies, s.delay = nil, 0
		b.port.State = ib.PortActive
		b.got = nil
		a.l.Notice(s.now, mad.TrapGIDInService, gidB)
		s.step()
		if d := cmp.Diff([]string{"waits"}, b.texts()); d != "" {
			t.Errorf("B got, -want +got:\n%s", d)
		}
	})
	t.Run("queue pair fails", func(t *testing.T) {
		s, a, b := up(t)
		a.state = ib.Err
		a.l.QPError(s.now)
		s.step()
		talks(t, s, a, b)
		a.status = ib.LocQPOpErr
		a.send(ipA, ipB, "fails")
		s.step()
		a.status = 0
		if a.counter("drop_tx_status") != 1 {
			t.Errorf("%d failed sends", a.counter("drop_tx_status"))
		}
		talks(t, s, a, b)
		a.fail["init ud"] = 2
		a.l.QPError(s.now)
		s.step()
		if a.carrier || a.reason != "the queue pair is in error" {
			t.Errorf("carrier %v, reason %q", a.carrier, a.reason)
		}
		s.run(3 * time.Second)
		talks(t, s, a, b)
	})
	t.Run("join while the port goes down", func(t *testing.T) {
		s, a := one(t)
		s.delay = 100 * time.Millisecond
		a.start()
		for i := range 20 {
			s.run(30 * time.Millisecond)
			a.event(func(p *Port) { p.State = []ib.PortState{ib.PortDown, ib.PortActive}[i%2] })
		}
		s.run(time.Second)
		if !a.carrier {
			t.Errorf("no carrier: %s", a.reason)
		}
	})
}

// TestManagerRestart: while groups are joined anew nothing is sent with an old
// multicast LID, broadcast comes first, and the carrier stays (S-04).
func TestManagerRestart(t *testing.T) {
	s, a, b := two(t)
	a.keep = true
	s.delay = 200 * time.Millisecond
	s.forget()
	for _, n := range s.nodes {
		n.log = nil
		n.event(nil, ib.EventReregister)
	}
	s.asked = nil
	for range 10 {
		a.xmit(wire.PseudoBroadcast, wire.EtherIPv4, ipv4(ipA, ipB, "broadcast")[Headroom:])
		a.send(ipA, ipB, "x")
		s.run(50 * time.Millisecond)
	}
	s.run(3 * time.Second)
	if got := len(b.texts()); got != 20 {
		t.Errorf("%d of 20 packets arrived", got)
	}
	for _, f := range a.sent {
		if f.ah.DLID.IsMulticast() && f.ah.DLID <= 0xc003 {
			t.Errorf("a frame went to the old LID %#x", f.ah.DLID)
		}
	}
	for _, n := range s.nodes {
		if slices.Contains(n.log, "carrier false") {
			t.Errorf("%s lost its carrier", n.name)
		}
	}
	if n := a.drops["not a member"]; n != 0 {
		t.Errorf("%d frames to groups without being a member", n)
	}
}

// TestUnloadUnderLoad: links end in less than six seconds whatever is under way, and leave
// nothing (S-14).
func TestUnloadUnderLoad(t *testing.T) {
	s, a, b := two(t)
	for range 300 {
		a.send(ipA, ipB, "load")
	}
	a.stall = true
	for range 300 {
		a.send(ipA, ipB, "load")
	}
	begin := s.now
	a.l.Stop(s.now)
	b.l.Stop(s.now)
	var ended mono.Time
	for range 60 {
		s.run(100 * time.Millisecond)
		if a.closed == 1 && ended == 0 {
			ended = s.now
		}
	}
	if d := ended.Sub(begin); ended == 0 || d > 6*time.Second {
		t.Errorf("the end took %v", d)
	}
	a.gone()
	b.gone()
	for gid, g := range s.groups {
		if len(g.members) != 0 {
			t.Errorf("group %v has members", gid)
		}
	}
}

// TestCallsOutOfTurn: calls before the start and after the end do nothing.
func TestCallsOutOfTurn(t *testing.T) {
	all := func(s *subnet, a *node) {
		a.l.SetPort(s.now, a.port, ib.EventReregister)
		a.l.Registered(s.now, nil)
		a.l.Notice(s.now, mad.TrapGroupCreated, gidA)
		a.l.SAResponse(s.now, 1, 0, nil)
		a.l.Interrupt(s.now)
		a.l.Tick(s.now)
		a.l.QPError(s.now)
		a.l.MTUChanged(s.now, 5)
		a.l.Close(s.now)
		a.send(ipA, ipB, "x")
		a.l.FlushPaths()
		a.l.PurgeShadow(s.now, hwB)
		if _, err := a.l.TryGetPath(s.now, ipB); err != ErrLinkDown {
			t.Errorf("get-path: %v", err)
		}
		s.step()
	}
	s, a := one(t)
	all(s, a)
	if a.l.Info().State != Absent || len(a.log) != 0 || a.l.Info().Reason != "not started" {
		t.Errorf("before the start: %v, %v", a.l.Info().State, a.log)
	}
	a.start()
	a.l.Start(s.now, a.port)
	s.run(time.Second)
	a.l.Stop(s.now)
	a.l.Stop(s.now)
	s.run(time.Second)
	a.log = nil
	all(s, a)
	a.l.Start(s.now, a.port)
	if a.l.Open(s.now) != ErrLinkDown || a.l.JoinGroup(s.now, netip.MustParseAddr("224.0.0.9")) != ErrLinkDown ||
		len(a.log) != 0 {
		t.Errorf("after the end: %v", a.log)
	}
	a.gone()
	b := s.add("ib1_1_14", 17, gidB, 0x208)
	b.l.Stop(s.now) // never started
	s.step()
	b.gone()
	if a.l.Info().State.String() != "DESTROYED" || State(99).String() != "UNKNOWN" ||
		EventKind(99).String() != "unknown" || stats.Drop(99).String() != "drop_unknown" {
		t.Error("names")
	}
}
