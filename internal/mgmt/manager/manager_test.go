// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft/internal/mgmt/agent"
	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/sa"
	"weft/internal/mgmt/store"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a switch with a manager behind port 0 and an adapter at port 1. Its goroutine is the caller
// of pump.
type node struct {
	t      *testing.T
	m      *Manager
	sw, ca *agent.Agent
	more   map[uint8]*agent.Agent // adapters at further ports
	start  time.Time
	sent   int // datagrams of the manager
	// ethernet is the agents of virtual Ethernet by port; an entry that is nil is an adapter without one.
	ethernet map[uint8]*ports

	mu    sync.Mutex
	posts []func()
}

func (n *node) now() mono.Time { return mono.Time(time.Since(n.start)) + 1 }

func (n *node) post(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.posts = append(n.posts, f)
}

const base = ib.GUID(0x0200000000010000)

// begin starts the manager of one switch; several nodes stand for managers
// that manage the same subnet after each other.
func begin(t *testing.T, name string, s store.Store, change ...func(*Config)) *node {
	t.Helper()
	n := &node{t: t, start: time.Now()}
	n.sw = agent.New(agent.Config{Type: mad.NodeSwitch, NumPorts: 4, NodeGUID: base, Caps: agent.DefaultCaps,
		EnhancedPort0: true}, nil, nil)
	n.ca = agent.New(agent.Config{Type: mad.NodeCA, NumPorts: 1, NodeGUID: base + 2, PortGUID: base + 3,
		Caps: agent.DefaultCaps}, nil, nil)
	up := agent.Link{Width: ib.Width4x, Speed: ib.SpeedQDR, SpeedExt: ib.SpeedEDR}
	n.sw.LinkUp(n.now(), 1, up)
	n.ca.LinkUp(n.now(), 1, up)
	n.sw.SetCapability(n.now(), mad.CapIsSM, true)
	c := Config{Node: name, PortGUID: base, Priority: 5, TIDs: 1, Store: s, Log: slog.New(slog.DiscardHandler),
		Now: n.now, Post: n.post}
	for _, f := range change {
		f(&c)
	}
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	n.m = m
	return n
}

// pump is the management goroutine: it runs what was posted and carries
// datagrams until there are none.
func (n *node) pump() {
	n.mu.Lock()
	posts := n.posts
	n.posts = nil
	n.mu.Unlock()
	for _, f := range posts {
		f()
	}
	var d mad.Datagram
	for n.m.Next(n.now(), &d) {
		n.sent++
		n.carry(n.sw, n.sw.Originate(n.now(), &d), d)
	}
}

// carry moves a datagram on after the verdict of at.
func (n *node) carry(at *agent.Agent, v agent.Verdict, d mad.Datagram) {
	for {
		switch {
		case v == agent.Deliver && at == n.sw:
			n.m.Handle(n.now(), &d)
			return
		case v == agent.Deliver:
			r, ok := n.ethernet[n.portOf(at)].answer(&d)
			if !ok {
				return
			}
			d, v = r, at.Originate(n.now(), &r)
			continue
		case v != agent.Send || at == n.sw && n.adapter(d.Port) == nil:
			return
		case at == n.sw:
			at, d.Port = n.adapter(d.Port), 1
		default:
			at, d.Port = n.sw, n.portOf(at)
		}
		v = at.Handle(n.now(), &d)
	}
}

// adapter is what is at a port of the switch, nil for nothing.
func (n *node) adapter(port uint8) *agent.Agent {
	if port == 1 {
		return n.ca
	}
	return n.more[port]
}

// portOf is the port of the switch that an adapter is at.
func (n *node) portOf(a *agent.Agent) uint8 {
	for p, x := range n.more {
		if x == a {
			return p
		}
	}
	return 1
}

// until pumps until ok, or fails.
func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	condtest.Until(n.t, what, func() bool {
		if ok() {
			return true
		}
		n.pump()
		return false
	}, func() any { return n.m.Status() })
}

func (n *node) active() bool { return n.ca.Port(1).PortState == ib.PortActive }

func load[T any](t *testing.T, s store.Store, key string) (v T) {
	t.Helper()
	e, err := s.Get(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(e.Value, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestTakeover: the elected manager brings the subnet up and stores what it observes; the next one
// assigns the same LIDs; a deposed one can no longer write.
func TestTakeover(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	first := mem.Open()
	a := begin(t, "a", first)
	a.until("the first brings the port up", a.active)
	a.until("what was observed is kept", func() bool {
		_, err := mem.Get(context.Background(), KeyObservations)
		return err == nil
	})
	lid := a.ca.LID()
	if o := load[sm.Observations](t, mem, KeyObservations); len(o.LIDs) != 2 || o.Token == 0 {
		t.Errorf("kept %+v", o)
	}
	leader, err := store.LeaderOf(context.Background(), mem, Election)
	if err != nil || leader.Name != "a" {
		t.Errorf("leader %+v, %v", leader, err)
	}

	second := mem.Open()
	defer second.Close()
	b := begin(t, "b", second)
	defer b.m.Close()
	for range 20 {
		b.pump()
		time.Sleep(time.Millisecond)
	}
	if b.m.Status().Elected || b.ca.LID() != 0 {
		t.Fatal("two managers at a time")
	}
	first.Kill() // a's process dies without a word
	b.until("the second takes over", b.active)
	if got := b.ca.LID(); got != lid {
		t.Errorf("LID %d, it was %d", got, lid)
	}
	a.until("the first notices", func() bool { return !a.m.Status().Elected })
	if s := a.m.Status(); s.Permitted {
		t.Errorf("the deposed manager goes on: %+v", s)
	}
	a.m.Close()
}

// TestDamagedObservations: what a manager cannot read of the one before keeps it
// from nothing: ports keep the LIDs they have, and the damage is set aside.
func TestDamagedObservations(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	ctx := context.Background()
	for _, key := range []string{KeyObservations, KeyClients, veswKey(3)} {
		if _, err := store.Put(ctx, mem, key, []byte("{\"LIDs\": \"none\"")); err != nil {
			t.Fatal(err)
		}
	}
	n := begin(t, "a", mem)
	defer n.m.Close()
	n.until("the port comes up", n.active)
	n.until("what is observed is kept", func() bool {
		e, err := mem.Get(ctx, KeyObservations)
		return err == nil && json.Valid(e.Value)
	})
	for _, key := range []string{KeyObservations, KeyClients} {
		if e, err := mem.Get(ctx, key+Damaged); err != nil || json.Valid(e.Value) {
			t.Errorf("%s: %q, %v", key, e.Value, err)
		}
	}
}

// TestIntent: an edit reaches the tables of the subnet; a wrong one is refused
// where it is made, or, if it got into the store, changes nothing.
func TestIntent(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	n := begin(t, "a", mem)
	defer n.m.Close()
	n.until("the port comes up", n.active)
	ctx := context.Background()
	add := func(k ib.PKey) func(*Intent) error {
		return func(i *Intent) error {
			i.Subnet.Partitions = append(i.Subnet.Partitions, sm.Partition{Name: "p", PKey: k,
				Members: []sm.Member{{PortGUID: base + 3, As: sm.Limited}}})
			return nil
		}
	}
	has := func(k ib.PKey) func() bool {
		return func() bool {
			for _, x := range n.ca.PKeys(1) {
				if x == k {
					return true
				}
			}
			return false
		}
	}
	if err := EditIntent(ctx, mem, add(0x8005)); err != nil {
		t.Fatal(err)
	}
	n.until("the partition reaches the port", has(0x0005))
	n.until("its broadcast group exists", func() bool {
		for _, g := range n.m.Status().Groups {
			if g.MGID == BroadcastGroup(5) {
				return true
			}
		}
		return false
	})
	if err := EditIntent(ctx, mem, add(0x8005)); err == nil {
		t.Error("the same P_Key twice was taken")
	}
	refused := errors.New("no")
	if err := EditIntent(ctx, mem, func(*Intent) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{`{`, `{"version":9}`, `{"version":1,"Surprise":1}`} {
		if _, err := store.Put(ctx, mem, KeyIntent, []byte(bad)); err != nil {
			t.Fatal(err)
		}
		if err := EditIntent(ctx, mem, add(0x8006)); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
	for range 20 {
		n.pump()
		time.Sleep(time.Millisecond)
	}
	if !has(0x0005)() {
		t.Error("a wrong intent took the partition away")
	}
	if _, err := store.Delete(ctx, mem, KeyIntent); err != nil {
		t.Fatal(err)
	}
	n.until("without an intent the partition ends", func() bool { return !has(0x0005)() })
}

// TestBroadcastGroup checks an example of RFC 4391.
func TestBroadcastGroup(t *testing.T) {
	if g := BroadcastGroup(0x7fff).String(); g != "ff12:401b:ffff:0000:0000:0000:ffff:ffff" {
		t.Error(g)
	}
}

// TestQKeys: the Q_Key of broadcast groups is a controlled one, unless it is given; groups of IP
// links have that of their partition's, others the common one.
func TestQKeys(t *testing.T) {
	for given, want := range map[ib.QKey]ib.QKey{0: 0x80000b1b, 0x0b1b: 0x0b1b, 0x80001234: 0x80001234} {
		l := newLarge(t, 2, 2, 1)
		l.m.cfg.BroadcastQKey = given
		ip6, other := ib.GID{0xff, 0x12, 0x60, 0x1b, 0xff, 0xff, 15: 9}, ib.GID{0xff, 0x12, 0xa0, 0x1c, 15: 9}
		own := ib.GID{0xff, 0x12, 0x60, 0x1b, 0xff, 0xff, 15: 10}
		l.m.sa.End(l.Now, BroadcastGroup(0x7fff))
		l.m.intent.Groups = []sa.Group{{MGID: ip6, PKey: 0xffff, MTU: ib.MTU2048, Rate: ib.Rate10},
			{MGID: other, PKey: 0xffff, MTU: ib.MTU2048, Rate: ib.Rate10},
			{MGID: own, QKey: 7, PKey: 0xffff, MTU: ib.MTU2048, Rate: ib.Rate10}}
		l.m.ensureGroups(l.Now)
		for g, want := range map[ib.GID]ib.QKey{BroadcastGroup(0x7fff): want, ip6: want, other: 0x0b1b, own: 7} {
			if got := l.m.sa.Group(g); got == nil || got.QKey != want {
				t.Errorf("given %#x: %v is %+v, want %#x", uint32(given), g, got, uint32(want))
			}
		}
	}
}
