// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"weft/internal/fabric/link/fault"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/verbs/transport"
)

var (
	_ FaultStage = (*fault.Stage)(nil)
	_ fault.Link = (*Within)(nil)
)

// faultNode is a node of one or two lanes with two connected queue pairs, and a stage of faults for each lane.
type faultNode struct {
	t      *testing.T
	now    mono.Time
	lanes  []*Lane
	stages []*fault.Stage
	pipes  *references
	a, b   *endpoint
}

func newFaultNode(t *testing.T, lanes int, typ ib.QPType) *faultNode {
	n := &faultNode{t: t, now: 1, pipes: &references{}}
	a := NewAdapter(&Port{Link: ib.LinkEthernet, State: ib.PortActive, MTU: ib.MTU1024, MaxMTU: ib.MTU4096,
		GIDs: testGIDs, PKeys: []ib.PKey{ib.DefaultPKey}, MaxRun: 60 << 10, MaxLocalRun: 256 << 10}, DefaultLimits)
	all := NewFunctions(a)
	for i := range lanes {
		var others Others
		if lanes > 1 {
			others = n.pipes
		}
		l := NewLane(all, i, noLink{t}, others)
		n.lanes, n.stages = append(n.lanes, l), append(n.stages, fault.New(&l.Within))
	}
	n.a = newClient(t, n.lanes[0], 1<<20).qp(QPConfig{Type: typ})
	n.b = newClient(t, n.lanes[lanes-1], 1<<20).qp(QPConfig{Type: typ})
	for _, e := range [][2]*endpoint{{n.a, n.b}, {n.b, n.a}} {
		if typ == ib.RC {
			e[0].connect(e[1])
			continue
		}
		const rtr = ib.AttrState | ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN
		av := &AHAttr{DGID: testGIDs[1].GID, SGIDIndex: 1, HopLimit: 64, Global: true}
		e[0].must(e[0].q.Modify(1, &transport.Attr{State: ib.Init, Port: 1, Access: ib.RemoteWrite}, nil,
			ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrAccessFlags))
		e[0].must(e[0].q.Modify(1, &transport.Attr{State: ib.RTR, PathMTU: ib.MTU1024, DestQPN: e[1].q.Num(), RQPSN: 7},
			av, rtr))
		e[0].must(e[0].q.Modify(1, &transport.Attr{State: ib.RTS, SQPSN: 7}, nil, ib.AttrState|ib.AttrSQPSN))
	}
	return n
}

// inject puts the stages in the way, and then a rule into each.
func (n *faultNode) inject(r fault.Rule) {
	for i, l := range n.lanes {
		l.Within.SetStage(n.now, n.stages[i])
	}
	for i := range n.lanes {
		r.ID, r.Seed = 1, uint64(i+1)
		n.stages[i].Add(r)
	}
}

func (n *faultNode) clear() {
	for _, s := range n.stages {
		s.Remove(1)
	}
	for _, l := range n.lanes {
		l.Within.SetStage(n.now, nil)
	}
}

// turn runs each lane once, and reports whether one had work.
func (n *faultNode) turn() (busy bool) {
	for i, l := range n.lanes {
		in := n.pipes.bursts[i]
		n.pipes.bursts[i] = nil
		for k := range in {
			l.Receive(n.now, &in[k])
		}
		busy = l.Run(n.now) || len(in) > 0 || busy
	}
	return busy || len(n.pipes.bursts[0])+len(n.pipes.bursts[1]) > 0
}

// settle lets time pass until there is nothing left to do, or until done.
func (n *faultNode) settle(done func() bool) {
	n.t.Helper()
	for i := 0; !done(); i++ {
		if i == 1<<20 {
			n.t.Fatal("it never comes to rest")
		}
		if n.turn() {
			continue
		}
		var next mono.Time
		for _, l := range n.lanes {
			next = mono.Min(next, l.Deadline())
		}
		if next == 0 {
			return
		}
		n.now = max(n.now, next)
	}
}

// TestFaultsWithinTheNode: a stage that comes and goes while queue pairs exchange messages changes nothing but
// what its rules say, on one lane and between two: RC delivers everything, in order, whatever gets lost; UC delivers
// everything, in order, where the rules lose nothing.
func TestFaultsWithinTheNode(t *testing.T) {
	for _, lanes := range []int{1, 2} {
		for _, c := range []struct {
			name string
			typ  ib.QPType
			rule fault.Rule
		}{
			{"RC, a rule without an effect", ib.RC, fault.Rule{}},
			{"RC, 3 % lost", ib.RC, fault.Rule{Drop: 3}},
			{"RC, everything at once", ib.RC, fault.Rule{Drop: 1, Duplicate: 2, Reorder: 3, Corrupt: 1}},
			{"RC, delayed", ib.RC, fault.Rule{Delay: time.Millisecond, Jitter: time.Millisecond}},
			{"UC, a rule without an effect", ib.UC, fault.Rule{}},
			{"UC, delayed", ib.UC, fault.Rule{Delay: time.Millisecond}},
		} {
			t.Run(fmt.Sprintf("%s, %d lanes", c.name, lanes), func(t *testing.T) {
				stream(t, newFaultNode(t, lanes, c.typ), c.rule, uint64(lanes)*7+1)
			})
		}
	}
}

// stream sends numbered messages, WRITEs and READs while the stage comes and goes.
func stream(t *testing.T, n *faultNode, rule fault.Rule, seed uint64) {
	const messages, size = 400, 9000
	rng := rand.New(rand.NewPCG(seed, 1))
	a, b := n.a, n.b
	reliable := a.q.Transport().Type() == ib.RC
	posted, got, sent, receives, changes, matched := 0, 0, 0, 0, 0, uint64(0)
	on := false
	slot := func(i int) int { return i % 41 * 10000 }
	copy(b.mem[900000:], bytes.Repeat([]byte("weft"), 5000))
	for got < messages {
		for ; receives < got+40; receives++ {
			b.postRecv(uint64(receives), slot(receives), size)
		}
		for k := rng.IntN(6); k > 0 && posted < messages && len(a.sq.wrs) < 30 && posted-got < 20; k-- {
			length := 4 + rng.IntN(size-4)
			msg := make([]byte, length)
			binary.LittleEndian.PutUint32(msg, uint32(posted))
			off := slot(posted)
			copy(a.mem[off:], msg)
			if reliable && posted%3 == 0 {
				a.post(transport.SendWR{ID: 1e6, Op: ib.WRRead, Flags: ib.Signaled, RemoteVA: base + 900000,
					RKey: b.mr.RKey, SGE: a.sge(700000, 20000)})
				a.post(transport.SendWR{ID: 1e6, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base + 600000,
					RKey: b.mr.RKey, SGE: a.sge(off, 4)})
			}
			a.post(transport.SendWR{ID: uint64(posted), Op: ib.WRSend, Flags: ib.Signaled, SGE: a.sge(off, length)})
			posted++
		}
		for range rng.IntN(3) {
			n.turn()
		}
		if rng.IntN(12) == 0 {
			if changes++; on {
				for _, s := range n.stages {
					matched += s.Rules()[0].Packets
				}
				n.clear()
			} else {
				n.inject(rule)
			}
			on = !on
		}
		if posted-got >= 20 || posted == messages {
			n.settle(func() bool { return len(b.cqes) > 0 })
		}
		for _, c := range b.cqes {
			if c.Status != ib.Success || c.WRID != uint64(got) ||
				binary.LittleEndian.Uint32(b.mem[slot(got):]) != uint32(got) {
				t.Fatalf("message %d: %+v, % x", got, c, b.mem[slot(got):slot(got)+4])
			}
			got++
		}
		b.cqes = b.cqes[:0]
		for _, c := range a.cqes {
			if c.Status != ib.Success {
				t.Fatalf("send completion: %+v", c)
			}
			if c.WRID == 1e6 {
				continue
			}
			if c.WRID != uint64(sent) {
				t.Fatalf("message %d completes, want %d", c.WRID, sent)
			}
			sent++
		}
		a.cqes = a.cqes[:0]
	}
	if reliable && !bytes.Equal(a.mem[700000:720000], bytes.Repeat([]byte("weft"), 5000)) {
		t.Error("READ returned other bytes")
	}
	if changes < 8 || matched == 0 {
		t.Errorf("%d packets passed the stages in %d changes", matched, changes)
	}
	n.clear()
	n.settle(func() bool { return false })
	for _, l := range n.lanes {
		if l.Within.Lossy() {
			t.Error("a stage without rules stays in the way")
		}
	}
	again := a.q.Transport().Counters().Retransmits
	harmless := rule.Drop == 0 && rule.Delay == 0
	if rule.Drop != 0 && again == 0 || harmless && again != 0 {
		t.Errorf("%d packets sent again", again)
	}
}

// TestPeerCutOffWithinTheNode: where every packet is dropped the queue pair ends as it does between nodes, and the
// next one works when the rule is gone.
func TestPeerCutOffWithinTheNode(t *testing.T) {
	n := newFaultNode(t, 2, ib.RC)
	n.inject(fault.Rule{Drop: 100})
	write := transport.SendWR{ID: 1, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: n.b.mr.RKey,
		SGE: n.a.sge(5, 5000)}
	n.a.post(write)
	n.settle(func() bool { return len(n.a.cqes) > 0 })
	n.a.expect(ib.RetryExcErr)
	if k := n.stages[0].Rules()[0]; k.Dropped == 0 || k.Dropped != k.Packets {
		t.Errorf("%+v", k)
	}
	c, d := n.a.client.qp(QPConfig{Type: ib.RC}), n.b.client.qp(QPConfig{Type: ib.RC})
	c.connect(d)
	d.connect(c)
	n.clear()
	c.post(write)
	n.settle(func() bool { return len(c.cqes) > 0 })
	c.expect(ib.Success)
}

// TestFaultStageReleasesDelayedPackets: a stage that is taken out of the way sends what it delays first.
func TestFaultStageReleasesDelayedPackets(t *testing.T) {
	n := newFaultNode(t, 1, ib.UC)
	n.inject(fault.Rule{Delay: time.Second})
	for i := range 2 {
		n.b.postRecv(uint64(i), 100*i, 100)
		n.a.post(transport.SendWR{ID: 1, Op: ib.WRSend, Flags: ib.Signaled, SGE: n.a.sge(0, 50+i)})
	}
	for n.turn() {
	}
	if d := n.lanes[0].Deadline(); d != mono.Time(time.Second)+1 || len(n.b.cqes) != 0 {
		t.Fatalf("deadline %v, %d messages", d, len(n.b.cqes))
	}
	n.clear()
	n.turn()
	if c := n.b.expect(ib.Success, ib.Success); c[0].ByteLen != 50 || c[1].ByteLen != 51 {
		t.Errorf("%+v", c)
	}
}
