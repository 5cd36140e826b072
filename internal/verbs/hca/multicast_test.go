// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/verbs/hca/replicate"
	"weft/internal/verbs/transport"
)

// TestMulticast sends to every member, own copies included, and by way of a
// trunk. Members without a buffer, with another Q_Key, another P_Key or in a
// group of the same name elsewhere cost the others nothing.
func TestMulticast(t *testing.T) {
	for _, lanes := range []int{1, 3} {
		for _, functions := range []int{1, 4, 16, 64} {
			for per := 1; per <= 4; per++ {
				t.Run(fmt.Sprintf("%d_lanes_%d_functions_%d_each", lanes, functions, per), func(t *testing.T) {
					p := newGroupNode(t, lanes, functions, per, smallConfig)
					last := p.members[len(p.members)-1]
					good := p.members
					slow, other, qkey, gone := p.join(last.s.a, p.lanes[0], 0), p.join(last.s.a, p.lanes[lanes-1],
						3), p.join(last.s.a, p.lanes[0], 0), p.join(last.s.a, p.lanes[0], 0)
					qkey.must(qkey.q.Modify(1, &transport.Attr{QKey: 0x12}, nil, ib.AttrQKey))
					gone.space.gone = true
					elsewhere := p.join(last.s.a, p.lanes[0], 0)
					elsewhere.must(elsewhere.q.DetachMulticast(mgid(1), groupMLID))
					elsewhere.must(elsewhere.q.AttachMulticast(mgid(1), groupMLID+1))
					for _, m := range p.members {
						if m != slow {
							m.give(4)
						}
						m.space.writing = func() {
							if p.m.Payloads() == 0 {
								t.Error("a payload was released before it was read out")
							}
						}
					}
					before := last.lane.PortCounters(last.s.a.num)
					p.send(last, 100)
					p.drive()
					p.arriveByTrunk(0)
					p.arriveByTrunk(333)
					p.drive()
					p.empty()
					for i, m := range good {
						if got := p.got(m); fmt.Sprint(got) != "[0 1 2]" {
							t.Fatalf("member %d got %v", i, got)
						}
					}
					for name, m := range map[string]*member{"slow": slow, "of another partition": other,
						"with another Q_Key": qkey, "elsewhere": elsewhere} {
						if len(m.cqes) != 0 {
							t.Errorf("the member %s got %d completions", name, len(m.cqes))
						}
					}
					if c := slow.q.t.Counters(); c.DropNoRecv != 3 {
						t.Errorf("the slow member dropped %d", c.DropNoRecv)
					}
					if gone.cqes[0].Status != ib.LocProtErr {
						t.Errorf("without memory: %+v", gone.cqes)
					}
					if p.trunks.runs != 1 {
						t.Errorf("%d packets went to the trunks", p.trunks.runs)
					}
					// The port counts a packet once, however many copies are made.
					var rcvd, xmit uint64
					for _, l := range p.lanes {
						c := l.PortCounters(last.s.a.num)
						rcvd, xmit = rcvd+c.MulticastRcvPkts, xmit+c.MulticastXmitPkts
					}
					if rcvd != 3 || xmit != 1 || before.MulticastRcvPkts != 0 {
						t.Errorf("the port counted %d in, %d out", rcvd, xmit)
					}
					c := p.m.Counters()
					if n := uint64(3 * (len(p.members) - 1)); c.Injected != n || c.Requested != n || c.Popped != 3 ||
						c.HighQueue == 0 || lanes > 1 && len(p.members) > 2 && p.woken == 0 {
						t.Errorf("counters %+v", c)
					}
				})
			}
		}
	}
}

// TestMulticastOverEthernet: groups of an Ethernet port have no LID; the host's
// own packets that come back over the network are not taken twice.
func TestMulticastOverEthernet(t *testing.T) {
	l := newNode(t)
	out := &sink{}
	l.link = out
	m := NewMulticast(l.all, 1, smallConfig, nil)
	l.SetMulticast(m)
	c := newClient(t, l, 1<<16)
	a, b := c.qp(QPConfig{Type: ib.UD}), newClient(t, l, 1<<16).qp(QPConfig{Type: ib.UD})
	g4 := ib.GID{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: 2, 15: 3}
	for _, e := range []*endpoint{a, b} {
		e.must(e.up(nil, 0, 0))
		e.must(e.q.AttachMulticast(g4, 0))
		for i := range 4 {
			e.postRecv(uint64(i), 1000*i, 200)
		}
	}
	copy(a.mem[5000:], "to all of you")
	h, err := a.s.CreateAH(a.pd, &AHAttr{DGID: g4, SGIDIndex: 1, HopLimit: 2, Global: true})
	a.must(err)
	a.post(transport.SendWR{ID: 5, Op: ib.WRSend, Path: a.q.Path(h), DestQPN: ib.QPNMulticast, QKey: 0x11,
		SGE: a.sge(5000, 13)})
	drive(t, l)
	run := func(sgid ib.GID, dgid ib.GID, qpn ib.QPN) {
		l.Receive(2, &pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: 0xffff, QKey: 0x11,
			SrcQPN: 5, DestQPN: qpn},
			Count: 1, IPv4: true, Path: &ib.Path{SGID: sgid, DGID: dgid}, Data: mem.BytesPayload([]byte("from afar"))})
		drive(t, l)
	}
	peer := ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: 77}
	run(testGIDs[1].GID, g4, ib.QPNMulticast) // forged, or come back
	run(peer, testGIDs[1].GID, ib.QPNMulticast)
	run(peer, g4, a.q.Num()) // to a queue pair by way of a group: as hardware takes it, by its number
	run(peer, g4, ib.QPNMulticast)
	if out.runs != 1 || m.Payloads() != 0 || l.Stats.DropOwnSource != 1 || l.Stats.DropMulticast != 1 {
		t.Errorf("%d sent, %d payloads remain, %+v", out.runs, m.Payloads(), l.Stats)
	}
	if got := b.expect(ib.Success, ib.Success); got[0].ByteLen != 53 || got[0].SL != 2 || got[1].SrcQPN != 5 {
		t.Errorf("completions %+v", got)
	}
	if !bytes.Equal(b.mem[40:53], []byte("to all of you")) || !bytes.Equal(b.mem[1040:1049], []byte("from afar")) {
		t.Error("other bytes arrived")
	}
	a.expect(ib.Success, ib.Success, ib.Success)
}

// TestMulticastRefusals: what is not properly addressed to a group is counted
// and goes nowhere.
func TestMulticastRefusals(t *testing.T) {
	p := newGroupNode(t, 1, 1, 1, smallConfig)
	m, l := p.members[0], p.lanes[0]
	m.give(4)
	good := ib.Path{DLID: groupMLID, SLID: 0x99, Global: true, SGID: ib.MakeGID(ib.DefaultGIDPrefix, 0x99),
		DGID: mgid(1), Function: 0xffff}
	for _, x := range []struct {
		name string
		edit func(r *pkt.Burst, path *ib.Path)
	}{
		{"no GRH", func(r *pkt.Burst, path *ib.Path) { path.Global = false }},
		{"unicast LID", func(r *pkt.Burst, path *ib.Path) { path.DLID = 0x10 }},
		{"permissive LID", func(r *pkt.Burst, path *ib.Path) { path.DLID = 0xffff }},
		{"unicast GID", func(r *pkt.Burst, path *ib.Path) { path.DGID = ib.MakeGID(ib.DefaultGIDPrefix, 0x101) }},
		{"from a group", func(r *pkt.Burst, path *ib.Path) { path.SLID = groupMLID }},
		{"without a source", func(r *pkt.Burst, path *ib.Path) { path.SLID = 0 }},
		{"reliable", func(r *pkt.Burst, path *ib.Path) { r.Opcode = ib.ServiceRC | ib.SendOnly }},
		{"no opcode of datagrams", func(r *pkt.Burst, path *ib.Path) { r.Opcode = ib.ServiceUD | 7 }},
	} {
		path := good
		r := pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: 0xffff, QKey: 0x11, SrcQPN: 5,
			DestQPN: ib.QPNMulticast}, Count: 1, Path: &path,
			Data: mem.BytesPayload([]byte("abcd"))}
		x.edit(&r, &path)
		before := l.Stats.DropMulticast
		l.Receive(2, &r)
		p.drive()
		if l.Stats.DropMulticast != before+1 || len(m.cqes) != 0 {
			t.Errorf("%s: %d completions, %+v", x.name, len(m.cqes), l.Stats)
		}
	}
	// A port that is down takes nothing, and what has no fabric stays here.
	a := m.s.a
	down := *a.Port()
	down.State = ib.PortInit
	a.SetPort(&down)
	p.arriveByTrunk(10)
	p.drive()
	if c := l.PortCounters(1); len(m.cqes) != 0 || c.RcvErrors != 1 {
		t.Errorf("a port that is down: %+v", c)
	}
	up := down
	up.State = ib.PortActive
	a.SetPort(&up)
	l.fabric = nil
	p.send(m, 10)
	p.drive()
	if got := p.got(m); fmt.Sprint(got) != "[1]" {
		t.Errorf("without trunks: got %v", got)
	}
	p.empty()
}

// TestMulticastSchedules drives random mixes of sending, slow lanes, members
// that leave, die or lose their memory, and faults: members that stay get exact
// copies in order, each count returns to zero, the store keeps its bound.
func TestMulticastSchedules(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 3))
		lanes := 1 + rng.IntN(4)
		cfg := replicate.Config{Payloads: 1 + rng.IntN(20), Threshold: rng.IntN(12), Requests: 1 + rng.IntN(16),
			Dummy: rng.IntN(2) == 0}
		p := newGroupNode(t, lanes, 1+rng.IntN(5), 1+rng.IntN(4), cfg)
		alive := map[*member]bool{}
		for _, m := range p.members {
			alive[m] = true
			m.give(20)
		}
		lost := map[*member]bool{} // had its memory taken away
		for range 200 {
			m := p.members[rng.IntN(len(p.members))]
			switch k := rng.IntN(40); {
			case k < 10 && alive[m] && !lost[m]:
				p.send(m, rng.IntN(300))
			case k < 16:
				p.arriveByTrunk(rng.IntN(300))
			case k == 17 && alive[m]:
				m.s.Close()
				m.s.a.Detach(m.s)
				delete(alive, m)
			case k == 18 && alive[m] && len(m.q.groups) > 0:
				m.must(m.q.DetachMulticast(mgid(1), groupMLID))
				if rng.IntN(2) == 0 {
					m.must(m.s.DestroyQP(2, m.q.Slot()))
					m.s.Close()
					delete(alive, m)
				}
			case k == 19 && alive[m] && !lost[m]:
				lost[m], m.space.gone = true, true
			case k == 20 && alive[m] && !lost[m]:
				// The fault ends the session, as the owner of a lane does.
				lost[m], m.space.faulty = true, true
				p.drive()
				m.s.Close()
				m.s.a.Detach(m.s)
				delete(alive, m)
			default:
				p.turn(rng.IntN(lanes))
			}
			if n := p.m.Payloads(); n > cfg.Payloads {
				t.Fatalf("seed %d: %d payloads in a store for %d", seed, n, cfg.Payloads)
			}
		}
		if rng.IntN(2) == 0 {
			p.m.Close() // the lanes end with whatever is on its way
			p.empty()
			continue
		}
		p.drive()
		p.empty()
		for m := range alive {
			if lost[m] {
				continue
			}
			newest := map[*member]int{} // by sender; nil is the trunk
			for _, n := range p.got(m) {
				if last, ok := newest[p.from[n]]; ok && n <= last {
					t.Fatalf("seed %d: packet %d came after %d of the same sender", seed, n, last)
				}
				newest[p.from[n]] = n
			}
		}
	}
}

// copiesAt notes how many copies had been made when its completions were shown.
type copiesAt struct {
	*client
	l  *Lane
	at uint64
}

func (c *copiesAt) Publish(bool) { c.at = c.l.Stats.Copies }

// TestUnicastDoesNotWait: with thousands of copies to be made a unicast message
// is sent, placed and completed within one turn and before any copy of that
// turn, and a turn makes few.
func TestUnicastDoesNotWait(t *testing.T) {
	p := newGroupNode(t, 1, 16, 4, replicate.Config{Payloads: 100, Requests: 64})
	for _, m := range p.members {
		m.give(100)
	}
	l := p.lanes[0]
	a, b := p.join(p.members[0].s.a, l, 0), p.join(p.members[9].s.a, l, 0)
	for _, m := range []*member{a, b} {
		m.must(m.q.DetachMulticast(mgid(1), groupMLID))
	}
	cq, err := b.s.CQ(b.cq)
	b.must(err)
	seen := &copiesAt{client: b.client, l: l}
	cq.SetRing(seen)
	h, err := a.s.CreateAH(a.pd, &AHAttr{DLID: b.s.a.Port().LID})
	a.must(err)
	for range 50 {
		p.arriveByTrunk(100)
	}
	for i := range 200 {
		b.give(1)
		a.post(transport.SendWR{ID: 99, Op: ib.WRSend, Path: a.q.Path(h), DestQPN: b.q.Num(), QKey: 0x11,
			SGE: a.sge(0, 64)})
		before := l.Stats.Copies
		l.Run(2)
		b.expect(ib.Success)
		if !l.Replicating() || l.Stats.Copies == before {
			t.Fatalf("message %d: no copies were to be made", i)
		}
		if seen.at != before || l.Stats.Copies > before+copyTurn {
			t.Fatalf("message %d: %d copies were made before it, %d in its turn", i, seen.at-before,
				l.Stats.Copies-before)
		}
		b.slots %= 64
	}
	p.drive()
	p.empty()
}

// TestFaultWhileCopying: a fault while a copy is put in place, or while a
// payload is read, leaves no count behind.
func TestFaultWhileCopying(t *testing.T) {
	p := newGroupNode(t, 2, 2, 2, smallConfig)
	for _, m := range p.members {
		m.give(4)
	}
	bad := p.members[2]
	bad.space.faulty = true
	p.arriveByTrunk(50)
	p.drive()
	p.empty()
	// The same while the payload of what it sends is read.
	src := p.members[0]
	src.space.faulty = true
	h, err := src.s.CreateAH(src.pd, &AHAttr{DLID: groupMLID, Global: true, DGID: mgid(1)})
	src.must(err)
	src.post(transport.SendWR{ID: 99, Op: ib.WRSend, Path: src.q.Path(h), DestQPN: ib.QPNMulticast, QKey: 0x11,
		SGE: src.sge(0, 64)})
	for range 20 {
		p.turn(0)
		p.turn(1)
	}
	src.space.faulty = false
	src.s.Close()
	bad.s.Close()
	p.drive()
	p.empty()
	if c := p.m.Counters(); c.DropFault == 0 || c.HighPayloads > 4 {
		t.Errorf("counters %+v", c)
	}
	for _, m := range []*member{p.members[1], p.members[3]} {
		if got := p.got(m); fmt.Sprint(got) != "[0]" {
			t.Errorf("got %v", got)
		}
	}
}

// TestFaultAmongCopies: copies that a lane took from its receive queue together
// with one that raises a fault are made all the same.
func TestFaultAmongCopies(t *testing.T) {
	for bad := range 4 {
		p := newGroupNode(t, 1, 1, 4, smallConfig)
		for i, m := range p.members {
			m.give(4)
			m.space.faulty = i == bad
		}
		for range 3 {
			p.arriveByTrunk(50)
		}
		among := false
		for range 20 {
			p.turn(0)
			among = among || p.lanes[0].copied < len(p.lanes[0].copying)
		}
		if !among && bad < 3 {
			t.Fatal("no fault among copies")
		}
		p.members[bad].s.Close()
		p.drive()
		p.empty()
		for i, m := range p.members {
			if got := fmt.Sprint(p.got(m)); i != bad && got != "[0 1 2]" {
				t.Errorf("member %d got %s beside member %d", i, got, bad)
			}
		}
	}
}

// TestEndWhileCopying: lanes that end right after a fault leave no count behind.
func TestEndWhileCopying(t *testing.T) {
	p := newGroupNode(t, 2, 2, 2, smallConfig)
	for _, m := range p.members {
		m.give(4)
		m.space.faulty = true
	}
	p.arriveByTrunk(50)
	p.turn(0)
	p.turn(1)
	if len(p.lanes[0].copying) == 0 || len(p.lanes[1].copying) == 0 {
		t.Fatal("no copy was being read out")
	}
	p.m.Close()
	p.empty()
}

// TestLateCopies: no copy comes to a queue pair that left its group after the
// descriptor was injected, nor to another that has its number now.
func TestLateCopies(t *testing.T) {
	p := newGroupNode(t, 2, 1, 4, smallConfig)
	left, replaced := p.members[1], p.members[3]
	for _, m := range []*member{left, replaced} {
		if m.lane != p.lanes[1] {
			t.Fatal("not of the other lane")
		}
		m.give(2)
	}
	p.arriveByTrunk(50)
	p.turn(0)
	if !p.lanes[1].Replicating() {
		t.Fatal("no copies wait")
	}
	left.must(left.q.DetachMulticast(mgid(1), groupMLID))
	num := replaced.q.Num()
	replaced.must(replaced.q.DetachMulticast(mgid(1), groupMLID))
	replaced.must(replaced.s.DestroyQP(2, replaced.q.Slot()))
	var next *endpoint
	for range 100 {
		if next = replaced.client.qp(QPConfig{Type: ib.UD}); next.q.Num() == num {
			break
		}
		next.must(next.s.DestroyQP(2, next.q.Slot()))
	}
	if next.q.Num() != num {
		t.Fatal("the number does not come again")
	}
	next.must(next.up(nil, 0, 0))
	next.postRecv(1, 0, 200)
	p.drive()
	p.empty()
	if len(left.cqes)+len(next.cqes) != 0 || p.lanes[1].Stats.DropNotMember != 2 {
		t.Errorf("%d and %d completions, %+v", len(left.cqes), len(next.cqes), p.lanes[1].Stats)
	}
}

// TestUnreadablePayload: a send from memory that is gone fails, and reaches no member.
func TestUnreadablePayload(t *testing.T) {
	for _, i := range []int{0, 1} { // on the engine's lane, and on another
		p := newGroupNode(t, 2, 1, 2, smallConfig)
		m := p.members[i]
		p.members[1-i].give(1)
		m.space.gone = true
		h, err := m.s.CreateAH(m.pd, &AHAttr{DLID: groupMLID, Global: true, DGID: mgid(1)})
		m.must(err)
		m.post(transport.SendWR{ID: 99, Op: ib.WRSend, Path: m.q.Path(h), DestQPN: ib.QPNMulticast, QKey: 0x11,
			SGE: m.sge(0, 64)})
		p.drive()
		p.empty()
		if len(m.cqes) != 1 || m.cqes[0].Status != ib.LocProtErr || len(p.members[1-i].cqes) != 0 {
			t.Errorf("lane %d: completions %+v and %+v", i, m.cqes, p.members[1-i].cqes)
		}
	}
}

// TestMulticastLanes lets each lane run in a goroutine of its own.
func TestMulticastLanes(t *testing.T) {
	const lanes, packets = 3, 500
	p := newGroupNode(t, lanes, 4, 3, replicate.Config{Payloads: 32, Requests: 64})
	var wg sync.WaitGroup
	var done atomic.Bool
	for i := 1; i < lanes; i++ {
		wg.Go(func() {
			for !done.Load() || p.lanes[i].Replicating() {
				if !p.lanes[i].Run(2) {
					runtime.Gosched()
				}
				for _, m := range p.members {
					if m.lane == p.lanes[i] {
						m.recycle()
					}
				}
			}
		})
	}
	for range packets {
		for p.m.Payloads() == 32 {
			p.lanes[0].Run(2)
			runtime.Gosched()
		}
		p.arriveByTrunk(64)
		p.lanes[0].Run(2)
		for _, m := range p.members {
			if m.lane == p.lanes[0] {
				m.recycle()
			}
		}
	}
	for p.lanes[0].Run(2) {
		runtime.Gosched()
	}
	done.Store(true)
	wg.Wait()
	p.empty()
	var copies uint64
	for _, l := range p.lanes {
		copies += l.Stats.Copies
	}
	if copies != packets*12 {
		t.Errorf("%d copies", copies)
	}
}

// recycle gives a member its buffers back.
func (m *member) recycle() {
	m.cqes = m.cqes[:0]
	for len(m.rq.wrs) < 8 {
		m.slots %= 8
		m.give(1)
	}
}

func TestMulticastDoesNotAllocate(t *testing.T) {
	p := newGroupNode(t, 1, 4, 4, smallConfig)
	// Rings of a fixed size, used again and again.
	rings := make([][]transport.RecvWR, len(p.members))
	for i, m := range p.members {
		m.cqes = make([]CQE, 0, 16)
		for s := range 4 {
			rings[i] = append(rings[i], transport.RecvWR{ID: uint64(s), SGE: m.sge(s*groupSlot, groupSlot)})
		}
	}
	b := p.packet(nil, 200)
	r := pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: 0xffff, QKey: 0x11, SrcQPN: 5,
		DestQPN: ib.QPNMulticast}, Count: 1,
		Path: &ib.Path{DLID: groupMLID, SLID: 0x99, Global: true, SGID: ib.MakeGID(ib.DefaultGIDPrefix, 0x99),
			DGID: mgid(1), Function: 0xffff}, Data: mem.BytesPayload(b)}
	turn := func() {
		for i, m := range p.members {
			m.rq.wrs, m.cqes = rings[i], m.cqes[:0]
		}
		for range 4 {
			p.lanes[0].Receive(2, &r)
		}
		for p.lanes[0].Run(2) {
		}
	}
	turn()
	if n := testing.AllocsPerRun(100, turn); n != 0 {
		t.Errorf("%v allocations for 64 copies", n)
	}
	for _, m := range p.members {
		if len(m.cqes) != 4 {
			t.Fatalf("%d completions", len(m.cqes))
		}
	}
	p.empty()
}

// TestBlockSelf: a queue pair created to block its own packets gets
// everything else, also from its number on other functions.
func TestBlockSelf(t *testing.T) {
	for _, lanes := range []int{1, 2} {
		p := newGroupNode(t, lanes, 2, 2, smallConfig)
		deaf := p.members[0]
		deaf.q.cfg.BlockSelf = true
		p.members[3].q.cfg.BlockSelf = true
		for _, m := range p.members {
			m.give(8)
		}
		for _, m := range p.members {
			p.send(m, 100)
		}
		p.arriveByTrunk(50)
		p.drive()
		for i, m := range p.members {
			want := []int{}
			for n, from := range p.from {
				if from != m || !m.q.cfg.BlockSelf {
					want = append(want, n)
				}
			}
			got := p.got(m)
			slices.Sort(got)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("member %d: %s", i, d)
			}
		}
		var blocked uint64
		for _, l := range p.lanes {
			blocked += l.Stats.BlockedSelf
		}
		if blocked != 2 {
			t.Errorf("%d copies blocked", blocked)
		}
		p.empty()
	}
	c := newGroupNode(t, 1, 1, 1, smallConfig).members[0]
	if _, err := c.s.CreateQP(&QPConfig{Type: ib.RC, PD: c.pd, BlockSelf: true}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("RC: %v", err)
	}
}
