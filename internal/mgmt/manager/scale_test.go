// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/sm/sa"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/test/simfab/subnet"
)

// large is a simulated fat tree with the manager and its administration at the first adapter. It is
// elected; nothing is written to a store.
type large struct {
	*subnet.Fabric
	m   *Manager
	at  *subnet.Node
	cas []*subnet.Node
	tid uint64
	ok  int // answers without an error
	// joined, if set, is called for each response when it arrives, with the receiving node.
	joined func(c *subnet.Node, group ib.LID)
}

func newLarge(tb testing.TB, leaves, hosts, spines int) *large {
	f := subnet.New(1, time.Microsecond)
	l := &large{Fabric: f, cas: subnet.FatTree(f, leaves, hosts, spines, 1)}
	l.at = l.cas[0]
	core := f.Attach(l.at, sm.Config{}, sm.Intent{}, sm.Observations{})
	if !f.Until(time.Minute, f.Active) || !f.Until(time.Second, func() bool { return core.Topo() != nil }) {
		tb.Fatalf("not up: %+v", core.Status())
	}
	l.m = &Manager{cfg: Config{Log: slog.New(slog.DiscardHandler), Now: func() mono.Time { return f.Now }}, sm: core,
		keep: make(chan keeping, 1), elected: true}
	l.m.sa = sa.New(sa.Config{}, owner{l.m})
	l.m.vesw = vesw{em: em.New(em.Config{}, ethernet{l.m})}
	l.at.GSI = func(now mono.Time, d *mad.Datagram) { l.m.Handle(now, d) }
	for _, c := range l.cas[1:] {
		c.GSI = func(_ mono.Time, d *mad.Datagram) {
			var r mad.SA
			var g mad.MCMemberRecord
			if r.Parse(d.Data[:]) != nil || r.Status != mad.StatusOK {
				return
			}
			l.ok++
			if g.Parse(r.Data[:]); l.joined != nil {
				l.joined(c, g.MLID)
			}
		}
	}
	l.pump()
	return l
}

// pump lets the administration answer and the manager act, as the management goroutine does.
func (l *large) pump() {
	l.m.settle(l.Now)
	var d mad.Datagram
	for l.m.sa.Next(l.Now, &d) {
		l.at.Send(&d)
	}
	l.Poke(l.at)
}

// join has an adapter join a group, which it creates if there is none.
func (l *large) join(c *subnet.Node, group uint32) {
	m := mad.MCMemberRecord{MGID: ib.GID{0xff, 0x15, 0x40, 0x1b, 0xff, 0xff, 12: byte(group >> 24),
		13: byte(group >> 16), 14: byte(group >> 8), 15: byte(group)},
		PortGID: ib.MakeGID(ib.DefaultGIDPrefix, c.PortGUID()), JoinState: mad.JoinFull, QKey: 5, PKey: 0xffff}
	l.tid++
	var r mad.SA
	r.Header = mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSA, ClassVersion: mad.ClassVersionSA,
		Method: mad.MethodSet, TransactionID: l.tid, AttributeID: mad.AttrMCMemberRecord}
	r.ComponentMask = mad.CompMCMGID | mad.CompMCPortGID | mad.CompMCJoinState | mad.CompMCQKey | mad.CompMCTClass |
		mad.CompMCPKey | mad.CompMCFlowLabel | mad.CompMCSL
	m.Append(r.Data[:0])
	d := mad.Datagram{SLID: c.Agent.LID(), DLID: l.at.Agent.LID(), SrcQPN: 1, DstQPN: 1, QKey: ib.GSIQKey,
		PKey: ib.DefaultPKey}
	r.Append(d.Data[:0])
	c.Send(&d)
}

func BenchmarkJoins(b *testing.B) {
	for name, group := range map[string]func(i int) uint32{"one group": func(int) uint32 { return 1 },
		"1000 groups": func(i int) uint32 { return uint32(1 + i) }} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				l := newLarge(b, 72, 18, 18)
				b.StartTimer()
				began := l.Now
				for i := range 1000 {
					l.join(l.cas[1+i], group(i))
					l.Run(200 * time.Microsecond)
					l.pump()
				}
				for l.ok < 1000 && l.Now.Sub(began) < 2*time.Second {
					l.Run(time.Millisecond)
					l.pump()
				}
				if l.ok != 1000 {
					b.Fatalf("%d answers: %+v", l.ok, l.m.sa.Counters)
				}
				b.ReportMetric(l.Now.Sub(began).Seconds(), "virtual-s/op")
			}
		})
	}
}

// TestManyJoins: groups that change after another are written down a few times, and the
// last time as they are.
func TestManyJoins(t *testing.T) {
	l := newLarge(t, 4, 18, 2)
	kept, n := keeping{}, 0
	take := func() {
		select {
		case k := <-l.m.keep:
			kept, n = k.over(kept), n+1
		default:
		}
	}
	const joins = 500
	began := l.Now
	for i := range joins {
		l.join(l.cas[1+i%70], uint32(1+i%50))
		l.Run(time.Millisecond)
		l.pump()
		take()
	}
	most := int(l.Now.Sub(began)/keepEvery) + 1
	for d := l.m.Deadline(); l.m.keepAt != 0; d = l.m.Deadline() {
		l.Run(d.Sub(l.Now))
		l.pump()
		take()
	}
	l.Run(time.Millisecond)
	if l.ok != joins || n < 2 || n > most+1 {
		t.Errorf("%d joins answered, %d times handed over, at most %d", l.ok, n, most+1)
	}
	want, err := json.Marshal(l.m.sa.State(l.Now))
	if err != nil || string(want) != string(kept.clients) || kept.observed == nil {
		t.Errorf("%v, kept\n%s\nwant\n%s", err, kept.clients, want)
	}
}

// TestLIDsDoNotWait: what clients registered may wait to be written down, LIDs that ports
// have from now on do not.
func TestLIDsDoNotWait(t *testing.T) {
	l := newLarge(t, 2, 2, 1)
	<-l.m.keep
	l.m.dirty = true
	l.pump()
	if len(l.m.keep) != 0 || l.m.keepAt == 0 {
		t.Errorf("registrations do not wait: %d, %v", len(l.m.keep), l.m.keepAt)
	}
	l.m.kept-- // LIDs are others than those handed over
	l.pump()
	if len(l.m.keep) != 1 || l.m.keepAt != 0 {
		t.Fatalf("LIDs wait until %v, it is %v", l.m.keepAt, l.Now)
	}
	if k := <-l.m.keep; k.observed == nil || k.clients == nil {
		t.Errorf("%+v", k)
	}
}

// reached are the adapters that get what one of them sends to a group, by the tables that
// switches have.
func (l *large) reached(from *subnet.Node, group ib.LID) map[ib.GUID]bool {
	t := l.m.sm.Topo() // for cables, which do not change
	agents := map[ib.GUID]*subnet.Node{}
	for _, n := range l.Nodes() {
		agents[n.Agent.Config().NodeGUID] = n
	}
	got := map[ib.GUID]bool{}
	var pass func(in topo.Ref, hops int)
	pass = func(in topo.Ref, hops int) { // what comes in by a port
		n := &t.Nodes[in.Node]
		if !n.IsSwitch() {
			got[n.Ports[in.Port].GUID] = true
			return
		}
		set := agents[n.Info.NodeGUID].Agent.Forwarding().Members(group)
		for p, ok := set.Next(); ok && hops > 0; p, ok = set.Next() {
			if p != in.Port {
				pass(n.Ports[p].Peer, hops-1)
			}
		}
	}
	pass(t.Port(t.PortByGUID(from.PortGUID())).Peer, 8)
	return got
}

// TestJoinsAreAnsweredInPlace: a member with an answered join reaches every member with a join
// answered before, and is reached by them, by the tables at that time. No join costs more than a few
// exchanges with switches.
func TestJoinsAreAnsweredInPlace(t *testing.T) {
	l := newLarge(t, 4, 18, 2)
	members := map[ib.LID][]*subnet.Node{}
	asked, worst := map[*subnet.Node]mono.Time{}, time.Duration(0)
	l.at.GSI = func(now mono.Time, d *mad.Datagram) { // answers go before tables where nothing holds them
		l.m.Handle(now, d)
		l.pump()
	}
	l.joined = func(c *subnet.Node, group ib.LID) {
		worst = max(worst, l.Now.Sub(asked[c]))
		for _, m := range members[group] {
			if !l.reached(c, group)[m.PortGUID()] || !l.reached(m, group)[c.PortGUID()] {
				t.Errorf("group %#x: %s and %s do not reach each other", group, c.Name, m.Name)
			}
		}
		members[group] = append(members[group], c)
	}
	const joins = 70
	for i := range joins {
		c := l.cas[1+i]
		asked[c] = l.Now
		l.join(c, uint32(1+i%5))
		if i%7 == 6 { // several come while tables are being written
			l.Run(20 * time.Microsecond)
			l.pump()
		}
	}
	for range 1000 {
		l.Run(100 * time.Microsecond)
		l.pump()
	}
	if l.ok != joins || l.m.sa.Counters.JoinsEarly != 0 {
		t.Errorf("%d joins answered, %d before their time", l.ok, l.m.sa.Counters.JoinsEarly)
	}
	if worst > 20*time.Millisecond {
		t.Errorf("one was answered after %v", worst)
	}
	t.Logf("at most %v", worst)
}
