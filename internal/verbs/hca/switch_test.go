// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"testing"

	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/transport"
)

// gate is a switch that refuses some keys, and counts lookups.
type gate struct {
	table   *vswitch.Table
	refuses map[ib.PKey]vswitch.Refusal
	lookups int
	dropped [vswitch.NumRefusals]uint64
}

func newGate() *gate { return &gate{table: new(vswitch.Table), refuses: map[ib.PKey]vswitch.Refusal{}} }

// change is a new state of the switch.
func (g *gate) change(key ib.PKey, why vswitch.Refusal) {
	g.table, g.refuses[key] = vswitch.NewBuilder(1).Snapshot(), why
}

func (g *gate) Table() *vswitch.Table { return g.table }
func (g *gate) Route(t *vswitch.Table, p *ib.Path, key ib.PKey) vswitch.Refusal {
	g.lookups++
	return g.refuses[key]
}
func (g *gate) Refused(why vswitch.Refusal, packets uint32) { g.dropped[why] += uint64(packets) }

// TestSwitchBetweenFunctions: what goes straight from memory to memory passes
// the switch all the same, which looks up once per path, key and state.
func TestSwitchBetweenFunctions(t *testing.T) {
	s := newSubnet(t)
	g := newGate()
	s.l.SetSwitch(g)
	a, b := s.lidPair(t, ib.RC)
	write := func(id uint64) {
		a.post(transport.SendWR{ID: id, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
			SGE: a.sge(0, 5000)})
	}
	for i := range uint64(5) {
		write(i)
		drive(t, s.l)
	}
	a.expect(ib.Success, ib.Success, ib.Success, ib.Success, ib.Success)
	if g.lookups != 2 { // of a, and of b for the answers
		t.Errorf("%d lookups", g.lookups)
	}
	// Refused from a new state on, whatever the verdict was before.
	a.cqes = nil
	copy(b.mem, make([]byte, 5000))
	a.mem[0] = 7
	g.change(ib.DefaultPKey, vswitch.PKeyOut)
	write(9)
	s.l.Run(2)
	if g.dropped[vswitch.PKeyOut] == 0 || b.mem[0] != 0 || len(a.cqes) != 0 {
		t.Errorf("dropped %v, %d completions", g.dropped, len(a.cqes))
	}
	sent := s.l.Stats.LocalBursts
	g.change(ib.DefaultPKey, vswitch.OK)
	s.settleUntil(t, a, 1) // the retry passes
	if a.cqes[0].Status != ib.Success || b.mem[0] != 7 || s.l.Stats.LocalBursts == sent {
		t.Errorf("%+v", a.cqes)
	}
	a.cqes = nil
	g.change(ib.DefaultPKey, vswitch.PKeyIn)
	write(10)
	s.settleUntil(t, a, 1)
	if a.cqes[0].Status != ib.RetryExcErr {
		t.Errorf("%+v", a.cqes)
	}
}

// TestVerdictDoesNotAllocate, whether the switch is consulted or not.
func TestVerdictDoesNotAllocate(t *testing.T) {
	s := newSubnet(t)
	g := newGate()
	s.l.SetSwitch(g)
	a, _ := s.lidPair(t, ib.RC)
	r := &pkt.Burst{Count: 1, Path: a.q.t.PathOf()}
	tables := [2]*vswitch.Table{g.table, vswitch.NewBuilder(1).Snapshot()}
	i := 0
	if n := testing.AllocsPerRun(100, func() {
		i++
		g.table = tables[i/2%2]
		if !s.l.switchAllows(a.q, r) {
			t.Error("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestSwitchJudgesDatagrams: each of several paths and keys of one queue pair, and
// what must not enter the switch reaches no member of a group.
func TestSwitchJudgesDatagrams(t *testing.T) {
	s, a, b := datagrams(t)
	g := newGate()
	s.l.SetSwitch(g)
	for i := range 4 {
		b.postRecv(uint64(i), i*256, 256)
	}
	av := &AHAttr{DLID: lidB}
	a.sendDatagram(av, b, 16)
	a.sendDatagram(av, b, 16) // by a handle of its own
	drive(t, s.l)
	g.change(0x8001, vswitch.PKeyIn)
	a.sendDatagram(av, b, 16)
	drive(t, s.l)
	if len(b.cqes) != 2 || g.dropped[vswitch.PKeyIn] != 1 || g.lookups != 3 {
		t.Errorf("%d arrived, %v, %d lookups", len(b.cqes), g.dropped, g.lookups)
	}

	p := newGroupNode(t, 1, 2, 1, smallConfig)
	g = newGate()
	p.lanes[0].SetSwitch(g)
	for _, m := range p.members {
		m.give(4)
	}
	g.change(ib.DefaultPKey, vswitch.NoMembers) // beyond the node, that is
	p.send(p.members[0], 10)
	p.drive()
	g.change(ib.DefaultPKey, vswitch.PKeyIn)
	p.send(p.members[0], 10)
	p.drive()
	for i, m := range p.members {
		if got := p.got(m); len(got) != 1 || got[0] != 0 {
			t.Errorf("member %d got %v", i, got)
		}
	}
	if g.dropped[vswitch.PKeyIn] != 1 || g.dropped[vswitch.NoMembers] != 0 {
		t.Errorf("%v", g.dropped)
	}
	p.empty()
}
