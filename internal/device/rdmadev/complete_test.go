// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"testing"
	"time"

	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// writes posts n signalled writes of one byte each, numbered from id on.
func (e *end) writes(peer *end, id uint64, n int) {
	e.d.t.Helper()
	for i := range n {
		s := abi.Send{WRID: id + uint64(i), Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
		s.SetRDMA(peer.at, peer.mr.RKey)
		e.post(s, []ib.SGE{e.sge(0, 1)}, nil)
	}
	e.kick()
}

// empty takes all buffers of a queue's ring by using them up.
func (e *end) empty(peer *end) {
	e.d.t.Helper()
	e.writes(peer, 1000, ringNum)
	e.d.f.run()
	if got := e.cq.poll(); len(got) != ringNum {
		e.d.t.Fatalf("%d completions, want %d", len(got), ringNum)
	}
}

// TestBacklog: a plain driver gives buffers back without a kick, so completions
// wait for them, up to the queue's depth, and none is lost or overtaken.
func TestBacklog(t *testing.T) {
	f, a, b := pair(t, false, ib.RC)
	a.empty(b)
	a.writes(b, 1, 40)
	f.run()
	if got := a.cq.poll(); len(got) != 0 {
		t.Fatalf("%d completions without buffers", len(got))
	}
	if n, _ := a.outstanding(); n != 0 {
		t.Errorf("%d elements wait with their completions", n)
	}
	next := uint64(1)
	for i, n := range []int{1, 2, 7, 30} {
		a.cq.give(n)
		if i%2 == 0 {
			f.lane.RetryCQs() // the lane looks by itself
		} else {
			f.run() // and whenever the lane takes a turn
		}
		for _, e := range a.cq.poll() {
			if e.WRID != next {
				t.Fatalf("completion %d, want %d", e.WRID, next)
			}
			next++
		}
	}
	if next != 41 {
		t.Fatalf("%d completions came, want 40", next-1)
	}
	if f.lane.RetryCQs() {
		t.Error("the lane still waits")
	}
}

// TestBacklogIsDeliveredWhileOthersWork: completions that wait for buffers must
// not wait for the lane to be idle, and the list of them must not grow.
func TestBacklogIsDeliveredWhileOthersWork(t *testing.T) {
	f, a, b := pair(t, false, ib.RC)
	a.empty(b)
	a.writes(b, 1, 3)
	f.run()
	a.cq.give(8)
	b.writes(a, 50, 1) // something else keeps the lane busy
	f.run()
	if got := a.cq.poll(); len(got) != 3 {
		t.Errorf("%d completions, want 3", len(got))
	}
}

// TestOverflow: beyond the depth the queue fails, its pairs go to ERR and an event is raised; earlier
// completions are delivered.
func TestOverflow(t *testing.T) {
	f := newFabric(t)
	a, b := f.newDriver(false, 8<<20).end(ib.RC, 4096), f.newDriver(false, 4<<20).end(ib.RC, 4096)
	small := a.d.cq(4)
	q := a.d.qp(qpOpt{typ: ib.RC, pd: a.pd, scq: small, rcq: small})
	a.qp, a.cq = q, small
	a.connect(b.qp)
	b.connect(a.qp)
	a.empty(b)
	a.writes(b, 1, 5)
	f.run()
	small.give(ringNum)
	f.lane.RetryCQs()
	if got := small.poll(); len(got) != 4 || got[0].WRID != 1 || got[3].WRID != 4 {
		t.Errorf("%+v", got)
	}
	if f.lane.Stats.CQOverrun == 0 {
		t.Error("not counted")
	}
	r := parse(a.d, a.d.must(abi.CmdQueryQP, abi.QueryQP{QPN: q.num}.Append(nil), abi.QueryQPResultSize),
		abi.ParseQueryQPResult)
	if r.QPState != ib.Err {
		t.Errorf("state %v", r.QPState)
	}
}

// TestOverflowOfProgram: a program's queue is as deep as its ring, and CQ_ERR is raised.
func TestOverflowOfProgram(t *testing.T) {
	f, a, b := pair(t, true, ib.RC)
	ev := a.d.evq()
	a.empty(b)
	a.writes(b, 1, 1)
	f.run()
	a.cq.give(ringNum)
	f.run()
	if got := a.cq.poll(); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	want := []abi.Event{{Type: uint32(ib.EventCQErr), Object: a.cq.num}, {Type: uint32(ib.EventQPFatal),
		Object: uint32(a.wire)}}
	ev.expect(want...)
	if f.lane.Stats.CQOverrun == 0 {
		t.Error("not counted")
	}
}

// evq is a queue of events.
type evq struct{ *cq }

func (d *driver) evq() *evq {
	d.t.Helper()
	c := d.cq(ringNum)
	d.must(abi.CmdSetEVQ, abi.SetEVQ{CQN: c.num}.Append(nil), 0)
	return &evq{c}
}

func (e *evq) expect(want ...abi.Event) {
	e.d.t.Helper()
	var got []abi.Event
	for {
		head, n, ok := e.Reap()
		if !ok {
			break
		}
		if n != abi.EventSize {
			e.d.t.Fatalf("event of %d bytes", n)
		}
		got = append(got, parse(e.d, append([]byte(nil), e.d.mem.At(e.slots+uint64(head)*slotSize, abi.EventSize)...),
			abi.ParseEvent))
	}
	if len(got) != len(want) {
		e.d.t.Fatalf("events %+v, want %+v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			e.d.t.Fatalf("events %+v, want %+v", got, want)
		}
	}
}

// TestEventsWait: events find a buffer later, each kind of each object once,
// each with its own call.
func TestEventsWait(t *testing.T) {
	f := newFabric(t)
	d := f.newDriver(true, 4<<20)
	ev := d.evq()
	for i := range uint32(ringNum) {
		d.dev.Event(ib.EventGIDChange, i)
	}
	if ev.bell.calls != ringNum {
		t.Errorf("%d calls for %d events", ev.bell.calls, ringNum)
	}
	for range 100 {
		d.dev.Event(ib.EventPortDown, 1)
		d.dev.Event(ib.EventGIDChange, 1)
	}
	var want []abi.Event
	for i := range uint32(ringNum) {
		want = append(want, abi.Event{Type: uint32(ib.EventGIDChange), Object: i})
	}
	ev.expect(want...)
	ev.give(ringNum)
	d.dev.Kick(ev.index)
	ev.expect(abi.Event{Type: uint32(ib.EventPortDown), Object: 1}, abi.Event{Type: uint32(ib.EventGIDChange),
		Object: 1})
	if ev.bell.calls != ringNum+2 {
		t.Errorf("%d calls for %d events", ev.bell.calls, ringNum+2)
	}
	d.dev.Event(ib.EventPortDown, 1) // a second change is reported again
	ev.expect(abi.Event{Type: uint32(ib.EventPortDown), Object: 1})
	if d.dev.Stats.Events != ringNum+200+1 {
		t.Errorf("%d events counted", d.dev.Stats.Events)
	}
}

// TestRingBackAfterStop: completions that came while a program replaced the ring
// are delivered first, then those that come at once with the new ring.
func TestRingBackAfterStop(t *testing.T) {
	f, a, b := pair(t, true, ib.RC)
	a.d.dev.StopRing(a.cq.index)
	a.writes(b, 1, 10)
	f.run()
	a.cq.ring = a.d.start(a.cq.index)
	a.cq.give(ringNum)
	a.writes(b, 11, 5) // before the lane has had a turn
	var ids []uint64
	for i := range uint64(15) {
		ids = append(ids, i+1)
	}
	a.cq.expect(ok(ids...)...)
	if f.lane.Stats.CQOverrun != 0 {
		t.Error("the queue overflowed although its new ring had room")
	}
}

// TestArm: one notification per arm, of what comes after it; NEXT and
// SOLICITED as IBA 11.4.2.2 has them.
func TestArm(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		f, a, b := pair(t, verbs, ib.RC)
		word := uint64(0)
		arm := func(flags uint32) {
			t.Helper()
			if verbs {
				a.d.mem.StoreWord(word, flags)
				return
			}
			a.d.must(abi.CmdReqNotifyCQ, abi.ReqNotifyCQ{CQN: a.cq.num, Flags: flags}.Append(nil), 0)
		}
		if verbs {
			word = a.d.mem.Alloc(4, 4)
			a.d.must(abi.CmdSetArmArea, abi.SetArmArea{CQN: a.cq.num, GPA: word}.Append(nil), 0)
		}
		calls := func(want int, when string) {
			t.Helper()
			f.run()
			if got := a.cq.bell.calls; got != want {
				t.Errorf("%s: %d calls, want %d", when, got, want)
			}
			a.cq.bell.calls = 0
			a.cq.give(len(a.cq.poll()))
		}
		id := uint64(0)
		recv := func(flags ib.SendFlags) {
			id++
			a.postRecv(id, a.sge(0, 10))
			b.post(abi.Send{WRID: id, Opcode: uint8(ib.WRSend), Flags: flags}, []ib.SGE{b.sge(0, 1)}, nil)
			b.kick()
		}
		a.writes(b, 1, 3)
		calls(0, "unarmed")
		arm(abi.ArmNext)
		calls(0, "armed, for what was there before")
		a.writes(b, 1, 3)
		calls(1, "armed")
		a.writes(b, 1, 3)
		calls(0, "the arm is used up")
		arm(abi.ArmSolicited)
		a.writes(b, 1, 1)
		recv(0)
		calls(0, "armed for solicited, none was")
		recv(ib.Solicited)
		calls(1, "solicited")
		recv(ib.Solicited)
		calls(0, "used up")
		arm(abi.ArmNext)
		recv(ib.Solicited)
		calls(1, "armed for any, a solicited came")
		if !verbs {
			// The word is the client's to order; commands are ordered here.
			arm(abi.ArmSolicited)
			arm(abi.ArmNext)
			a.writes(b, 1, 1)
			calls(1, "upgraded")
			arm(abi.ArmNext)
			arm(abi.ArmSolicited)
			a.writes(b, 1, 1)
			calls(1, "never downgraded")
			arm(3)
			a.writes(b, 1, 1)
			calls(1, "both")
			arm(abi.ArmNext)
			arm(abi.ArmNone)
			a.writes(b, 1, 1)
			calls(0, "disarmed")
		} else if got := a.d.mem.LoadWord(word); got != abi.ArmNone {
			t.Errorf("the word is %d after its notification", got)
		}
		arm(abi.ArmSolicited)
		a.raw(make([]byte, 3)) // an error counts as solicited
		a.kick()
		calls(1, "error")
	})
}

// TestSolicitedInTheBacklog: a completion that qualifies and finds no buffer
// notifies when it is delivered, not before and not never.
func TestSolicitedInTheBacklog(t *testing.T) {
	f, a, b := pair(t, false, ib.RC)
	a.empty(b)
	a.d.must(abi.CmdReqNotifyCQ, abi.ReqNotifyCQ{CQN: a.cq.num, Flags: abi.ArmSolicited}.Append(nil), 0)
	a.postRecv(1, a.sge(0, 10))
	b.post(abi.Send{WRID: 1, Opcode: uint8(ib.WRSend), Flags: ib.Solicited}, []ib.SGE{b.sge(0, 1)}, nil)
	b.kick()
	f.run()
	if a.cq.bell.calls != 0 {
		t.Error("notified of a completion that is not there")
	}
	a.cq.give(ringNum)
	f.lane.RetryCQs()
	if got := a.cq.poll(); len(got) != 1 || a.cq.bell.calls != 1 {
		t.Errorf("%d completions, %d calls", len(got), a.cq.bell.calls)
	}
}

// TestCallsAreOwed: a notification that finds no room is made later, none is
// dropped, and none goes to a descriptor that was taken away.
func TestCallsAreOwed(t *testing.T) {
	f, a, b := pair(t, true, ib.RC)
	word := a.d.mem.Alloc(4, 4)
	a.d.must(abi.CmdSetArmArea, abi.SetArmArea{CQN: a.cq.num, GPA: word}.Append(nil), 0)
	old := a.cq.bell
	old.full = true
	for i := range 3 {
		a.d.mem.StoreWord(word, abi.ArmNext)
		a.writes(b, uint64(i), 1)
		f.run()
	}
	a.d.dev.Poll()
	if !a.d.dev.Owing() || old.calls != 0 {
		t.Fatalf("owing %v, %d calls", a.d.dev.Owing(), old.calls)
	}
	// The ring is replaced, with its descriptor.
	a.d.dev.StopRing(a.cq.index)
	old.full = false
	a.d.dev.Poll()
	if old.calls != 0 {
		t.Fatalf("%d calls on a descriptor that the session has closed", old.calls)
	}
	a.cq.ring = a.d.start(a.cq.index)
	a.d.dev.Poll()
	if a.cq.bell.calls != 3 || a.d.dev.Owing() {
		t.Errorf("%d calls, want 3; owing %v", a.cq.bell.calls, a.d.dev.Owing())
	}
}

// TestOwedToNobody: a ring that comes back without a descriptor ends what was
// owed to the one before.
func TestOwedToNobody(t *testing.T) {
	f, a, b := pair(t, true, ib.RC)
	word := a.d.mem.Alloc(4, 4)
	a.d.must(abi.CmdSetArmArea, abi.SetArmArea{CQN: a.cq.num, GPA: word}.Append(nil), 0)
	a.cq.bell.full = true
	a.d.mem.StoreWord(word, abi.ArmNext)
	a.writes(b, 1, 1)
	f.run()
	q := a.d.dev.StopRing(a.cq.index)
	a.d.dev.StartRing(a.cq.index, q, nil)
	a.d.dev.Poll()
	if a.d.dev.Owing() {
		t.Error("a notification is owed to nobody")
	}
	a.d.dev.StopRing(a.cq.index)
	a.cq.bell.full = false
	a.d.dev.StartRing(a.cq.index, q, a.cq.bell)
	a.d.dev.Poll()
	if a.cq.bell.calls != 0 {
		t.Errorf("%d calls for what happened before", a.cq.bell.calls)
	}
}

// TestSRQ: two pairs share a queue; the limit event comes once, when fewer wait
// than the limit.
func TestSRQ(t *testing.T) {
	f := newFabric(t)
	d := f.newDriver(true, 8<<20)
	ev := d.evq()
	e1 := d.end(ib.RC, 4096)
	srq := parse(d, d.must(abi.CmdCreateSRQ, abi.CreateSRQ{PDN: e1.pd, MaxWR: ringNum, MaxSGE: 2,
		Limit: 3}.Append(nil), abi.CreateSRQResultSize), abi.ParseCreateSRQResult)
	r := d.start(srq.RingIndex)
	var ends []*end
	for range 2 {
		e := &end{pd: e1.pd, cq: e1.cq, mem: e1.mem, at: e1.at, mr: e1.mr}
		e.qp = d.qp(qpOpt{typ: ib.RC, pd: e1.pd, scq: e1.cq, rcq: e1.cq, srq1: srq.SRQN + 1})
		ends = append(ends, e)
	}
	var peers []*end
	for _, e := range ends {
		p := f.newDriver(true, 4<<20).end(ib.RC, 4096)
		p.connect(e.qp)
		e.connect(p.qp)
		peers = append(peers, p)
	}
	for i := range uint64(5) {
		r.post(d, recvElement(i, []ib.SGE{e1.sge(int(i)*16, 16)}))
	}
	d.dev.Kick(r.index)
	send := func(i int) {
		p := peers[i%2]
		p.post(abi.Send{WRID: 1, Opcode: uint8(ib.WRSend), Flags: ib.Inline}, nil, []byte{byte(i)})
		p.kick()
		f.run()
	}
	for i := range 5 {
		send(i)
		got := e1.cq.poll()
		if len(got) != 1 || got[0].WRID != uint64(i) || got[0].QPN != ends[i%2].wire || e1.mem[i*16] != byte(i) {
			t.Fatalf("%d: %+v", i, got)
		}
		if i == 1 {
			ev.expect()
		}
		if i == 2 { // 2 are left of 5, below 3
			ev.expect(abi.Event{Type: uint32(ib.EventSRQLimit), Object: srq.SRQN})
		}
	}
	ev.expect() // once
	e1.cq.give(5)
	q := parse(d, d.must(abi.CmdQuerySRQ, abi.QuerySRQ{SRQN: srq.SRQN}.Append(nil), abi.QuerySRQResultSize),
		abi.ParseQuerySRQResult)
	if q.Limit != 0 || q.Outstanding != 0 {
		t.Errorf("%+v", q)
	}
	send(0) // nothing waits: RNR, until something does
	if got := e1.cq.poll(); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
	r.post(d, recvElement(77, []ib.SGE{e1.sge(0, 16)}))
	d.dev.Kick(r.index)
	f.pass(time.Second)
	e1.cq.expect(ok(77)...)
}

// TestDoorbell rings the shared bell instead of kicking rings.
func TestDoorbell(t *testing.T) {
	f, a, b := pair(t, true, ib.RC)
	bell := virtiotest.NewDoorbell(a.d.mem, a.d.dev.Rings())
	a.d.dev.SetDoorbell(a.d.newBell(bell))
	if a.d.dev.Poll() {
		t.Error("a bell that nobody rang")
	}
	if !a.d.dev.Sleep() || !bell.Sleeping() {
		t.Error("cannot sleep")
	}
	s := abi.Send{WRID: 1, Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
	s.SetRDMA(b.at, b.mr.RKey)
	a.post(s, []ib.SGE{a.sge(0, 1)}, nil)
	if !bell.Ring(a.send.index) {
		t.Error("the bell does not want the kick of a sleeping device")
	}
	a.d.dev.Wake()
	if bell.Ring(a.send.index) {
		t.Error("kick wanted of a device that is awake")
	}
	if a.d.dev.Sleep() {
		t.Error("sleeps over a bell that was rung")
	}
	a.d.dev.Wake()
	bell.Ring(bell.NBits - 1) // no such ring
	if !a.d.dev.Poll() {
		t.Error("did not hear the bell")
	}
	a.cq.expect(ok(1)...)
	f.run()
}

// TestShortBuffers: a buffer too small for a completion or an event ends the
// session; nothing is written beyond it.
func TestShortBuffers(t *testing.T) {
	f, a, b := pair(t, true, ib.RC)
	c := a.d.start(a.cq.index)
	c.Add(nil, []virtiotest.Buf{{GPA: c.slots, Len: abi.CQESize - 1}})
	c.Publish()
	a.writes(b, 1, 1)
	f.run()
	if a.d.fault == nil {
		t.Error("a completion found no place and nobody noticed")
	}
	for i, v := range a.d.mem.At(c.slots, 2*abi.CQESize) {
		if v != 0 {
			t.Fatalf("byte %d was written", i)
		}
	}
	d := f.newDriver(true, 4<<20)
	ev := d.evq()
	e := d.start(ev.index)
	e.Add(nil, []virtiotest.Buf{{GPA: e.slots, Len: abi.EventSize - 1}})
	e.Publish()
	d.dev.Event(ib.EventGIDChange, 1)
	if d.fault == nil {
		t.Error("an event found no place and nobody noticed")
	}
	if b.d.fault != nil {
		t.Error(b.d.fault)
	}
}
