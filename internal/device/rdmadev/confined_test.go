// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"fmt"
	"strings"
	"testing"

	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// ringFaults are what a program in a guest, which maps the available ring of its own queues, can write there; and what
// a driver can write into the descriptors. Each begins at element at of a ring.
var ringFaults = map[string]func(d *driver, r *ring, at uint16, writable bool){
	"head beyond the table": func(_ *driver, r *ring, at uint16, _ bool) {
		r.SetAvail(at, ringNum)
		r.PublishIndex(at + 1)
	},
	"index jumps": func(_ *driver, r *ring, at uint16, _ bool) { r.PublishIndex(at + ringNum + 1) },
	"not announced": func(_ *driver, r *ring, at uint16, writable bool) {
		r.spoil(at, 8, 100, direction(writable))
	},
	"wrong direction": func(_ *driver, r *ring, at uint16, writable bool) {
		r.spoil(at, r.slots, 100, direction(!writable))
	},
	"loop": func(_ *driver, r *ring, at uint16, writable bool) {
		r.spoil(at, r.slots, 1, direction(writable)|abi.DescFlagNext)
	},
}

func direction(writable bool) uint16 {
	if writable {
		return abi.DescFlagWrite
	}
	return 0
}

// spoil makes element at of a ring a single descriptor, number 0.
func (r *ring) spoil(at uint16, addr uint64, length uint32, flags uint16) {
	r.SetDesc(0, addr, length, flags, 0)
	r.SetAvail(at, 0)
	r.PublishIndex(at + 1)
}

func (q *qp) state() ib.QPState {
	q.d.t.Helper()
	return parse(q.d, q.d.must(abi.CmdQueryQP, abi.QueryQP{QPN: q.num}.Append(nil), abi.QueryQPResultSize),
		abi.ParseQueryQPResult).QPState
}

// confined is a driver with two connected queue pairs and their peers: rings of the first become broken, the second
// must go on.
type confined struct {
	*end // its rings become broken
	f    *fabric
	// peer is connected to end, other to far. other belongs to the driver of end.
	peer, other, far *end
	ev               *evq
}

func newConfined(t *testing.T) *confined {
	f := newFabric(t)
	d := f.newDriver(false, 8<<20)
	d.enable()
	c := &confined{f: f, ev: d.evq(), end: d.end(ib.RC, 4096), other: d.end(ib.RC, 4096),
		peer: f.newDriver(false, 4<<20).end(ib.RC, 4096), far: f.newDriver(false, 4<<20).end(ib.RC, 4096)}
	c.end.connect(c.peer.qp)
	c.peer.connect(c.end.qp)
	c.other.connect(c.far.qp)
	c.far.connect(c.other.qp)
	return c
}

// goesOn checks that only the ring of one object is given up.
func (c *confined) goesOn(t *testing.T, object string) {
	t.Helper()
	d := c.end.d
	if d.fault != nil {
		t.Fatalf("the whole device stands still: %v", d.fault)
	}
	if l := d.dev.Broken(); len(l) != 1 || l[0].Queue != object || l[0].Reason == "" ||
		strings.Contains(l[0].Reason, "ring_") {
		t.Errorf("broken: %+v, want %s in words", l, object)
	}
	if n := d.dev.Stats.BrokenRings; n != 1 {
		t.Errorf("%d broken rings counted", n)
	}
	for _, way := range [][2]*end{{c.other, c.far}, {c.far, c.other}} {
		way[1].postRecv(31, way[1].sge(0, 100))
		way[0].post(abi.Send{WRID: 30, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}, []ib.SGE{way[0].sge(0, 100)}, nil)
		way[0].kick()
		way[0].cq.expect(ok(30)...)
		way[1].cq.expect(ok(31)...)
	}
	if err := d.consistent(); err != nil {
		t.Error(err)
	}
}

// TestBrokenRingOfQueuePair: a fault in the ring of a queue pair puts it into ERR, with the event QP_FATAL. Its other
// ring is flushed; the broken one is not looked at before the queue pair is destroyed. Other queue pairs of the driver
// go on.
func TestBrokenRingOfQueuePair(t *testing.T) {
	for name, spoil := range ringFaults {
		for _, sends := range []bool{true, false} {
			side := map[bool]string{true: "send", false: "receive"}[sends]
			t.Run(side+", "+name, func(t *testing.T) {
				c := newConfined(t)
				d := c.end.d
				r, intact := c.send, c.recv
				if !sends {
					r, intact = intact, r
				}
				// One element of the ring is out when the fault comes.
				if sends {
					c.postRecv(1, c.sge(0, 64))
					c.post(abi.Send{WRID: 2, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}, []ib.SGE{c.sge(0, 8)}, nil)
					c.kick()
					c.f.run()
				} else {
					c.postRecv(1, c.sge(0, 64))
					c.peer.post(abi.Send{WRID: 1, Opcode: uint8(ib.WRSend)}, []ib.SGE{c.peer.sge(0, 8)}, nil)
					c.peer.kick()
					c.cq.expect(ok(1)...)
				}
				spoil(d, r, 1, false)
				d.dev.Kick(r.index)
				if !sends { // the ring is looked at when a message comes
					c.peer.post(abi.Send{WRID: 2, Opcode: uint8(ib.WRSend)}, []ib.SGE{c.peer.sge(0, 8)}, nil)
					c.peer.kick()
				}
				c.f.run()
				if s := c.state(); s != ib.Err {
					t.Errorf("the queue pair is in %v", s)
				}
				c.ev.expect(abi.Event{Type: uint32(ib.EventQPFatal), Object: uint32(c.wire)})
				if sends {
					c.cq.expect(done{2, ib.WRFlushErr}, done{1, ib.WRFlushErr})
				}
				c.goesOn(t, fmt.Sprint(side, " queue of queue pair ", c.num))

				// What the intact ring gets is flushed; the broken one is not looked at, whatever is in it.
				if sends {
					c.postRecv(9, c.sge(0, 64))
				} else {
					c.post(abi.Send{WRID: 9, Opcode: uint8(ib.WRSend)}, []ib.SGE{c.sge(0, 8)}, nil)
				}
				d.dev.Kick(intact.index)
				c.cq.expect(done{9, ib.WRFlushErr})
				before := r.Outstanding()
				r.SetDesc(0, r.slots, 600, 0, 0)
				r.SetAvail(1, 0)
				r.PublishIndex(2)
				d.dev.Kick(r.index)
				q := d.dev.StopRing(r.index) // an emulator stops and starts rings for a pause
				d.resume(r, q.State())
				c.cq.expect()
				if n := r.Outstanding(); n != before {
					t.Errorf("%d elements out, before %d", n, before)
				}
				c.to(ib.Reset)
				if c.tryModify(abi.ModifyQP{QPState: ib.Init, QPAccessFlags: allAccess}, 0x5) == nil {
					t.Error("a queue pair with a broken ring left RESET")
				}
				d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: c.num}.Append(nil), 0)
				if l := d.dev.Broken(); len(l) != 0 {
					t.Errorf("after DESTROY_QP: %+v", l)
				}
				c.reborn(t)
			})
		}
	}
}

// reborn makes queue pairs until one has the rings of the destroyed one, which then works.
func (c *confined) reborn(t *testing.T) {
	t.Helper()
	d := c.end.d
	for range 2 * maxQP {
		n := parse(d, d.must(abi.CmdCreateQP, abi.CreateQP{PDN: c.pd, QPType: ib.RC, SendCQN: c.other.cq.num,
			RecvCQN: c.other.cq.num, Cap: defaultCap}.Append(nil), abi.CreateQPResultSize), abi.ParseCreateQPResult).QPN
		if n != c.num {
			d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: n}.Append(nil), 0)
			continue
		}
		// The device began the rings at index 0 by itself: an emulator does not start them again.
		for _, r := range []*ring{c.send, c.recv} {
			r.Ring = again(d, r)
		}
		c.peer.to(ib.Reset)
		c.f.run()
		c.peer.cq.give(len(c.peer.cq.poll()))
		c.connect(c.peer.qp)
		c.peer.connect(c.qp)
		c.peer.postRecv(41, c.peer.sge(0, 100))
		c.post(abi.Send{WRID: 40, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}, []ib.SGE{c.sge(0, 100)}, nil)
		c.kick()
		c.other.cq.expect(ok(40)...)
		c.peer.cq.expect(ok(41)...)
		return
	}
	t.Fatal("the number of the queue pair does not come back")
}

// again returns the ring r as its driver has it after it reset the ring: in the same memory, with all elements free.
func again(d *driver, r *ring) *virtiotest.Ring {
	n := virtiotest.NewRing(d.mem, ringNum, false)
	n.Desc, n.Avail, n.Used = r.Desc, r.Avail, r.Used
	n.PublishIndex(0)
	return n
}

// TestBrokenRingOfCompletionQueue: a fault in the ring of a completion queue puts it in error, with the event CQ_ERR,
// and its queue pairs into ERR. The ring is not looked at before the queue is destroyed.
func TestBrokenRingOfCompletionQueue(t *testing.T) {
	faults := map[string]func(d *driver, r *ring, at uint16, writable bool){
		"short buffer": func(_ *driver, r *ring, at uint16, _ bool) {
			r.spoil(at, r.slots, abi.CQESize-1, abi.DescFlagWrite)
		},
	}
	for name, f := range ringFaults {
		faults[name] = f
	}
	for name, spoil := range faults {
		t.Run(name, func(t *testing.T) {
			c := newConfined(t)
			d := c.end.d
			// The buffers that the ring has are used up: the fault is in the next one.
			r := c.cq.ring
			for i := range uint64(ringNum) {
				c.write(i)
			}
			c.f.run()
			spoil(d, r, ringNum, true)
			c.write(ringNum)
			c.f.run()
			c.f.lane.RetryCQs()
			c.f.run()
			if s := c.state(); s != ib.Err {
				t.Errorf("the queue pair is in %v", s)
			}
			c.ev.expect(abi.Event{Type: uint32(ib.EventCQErr), Object: c.cq.num},
				abi.Event{Type: uint32(ib.EventQPFatal), Object: uint32(c.wire)})
			c.goesOn(t, fmt.Sprint("completion queue ", c.cq.num))
			if c.f.lane.RetryCQs() {
				t.Error("the lane waits for buffers of a broken ring")
			}
			d.dev.Kick(r.index)
			c.to(ib.Reset)
			if c.tryModify(abi.ModifyQP{QPState: ib.Init, QPAccessFlags: allAccess}, 0x5) == nil {
				t.Error("a queue pair of a broken completion queue left RESET")
			}
			d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: c.num}.Append(nil), 0)
			d.must(abi.CmdDestroyCQ, abi.DestroyCQ{CQN: c.cq.num}.Append(nil), 0)
			if l := d.dev.Broken(); len(l) != 0 {
				t.Errorf("after DESTROY_CQ: %+v", l)
			}
		})
	}
}

// write posts a WRITE of a few octets to the peer.
func (c *confined) write(id uint64) {
	s := abi.Send{WRID: id, Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
	s.SetRDMA(c.peer.at, c.peer.mr.RKey)
	c.post(s, []ib.SGE{c.sge(0, 8)}, nil)
	c.kick()
	c.f.run()
}

// TestBrokenRingOfSharedReceiveQueue: a fault in the ring of a shared receive queue is SRQ_ERR, and all queue pairs of
// it are in ERR.
func TestBrokenRingOfSharedReceiveQueue(t *testing.T) {
	for name, spoil := range ringFaults {
		t.Run(name, func(t *testing.T) {
			c := newConfined(t)
			d := c.end.d
			srq := parse(d, d.must(abi.CmdCreateSRQ, abi.CreateSRQ{PDN: c.pd, MaxWR: ringNum, MaxSGE: 2}.Append(nil),
				abi.CreateSRQResultSize), abi.ParseCreateSRQResult)
			r := d.start(srq.RingIndex)
			var users [2]*qp
			for i := range users {
				users[i] = d.qp(qpOpt{typ: ib.RC, pd: c.pd, scq: c.cq, rcq: c.cq, srq1: srq.SRQN + 1})
			}
			c.peer.to(ib.Reset)
			c.f.run()
			users[0].connect(c.peer.qp)
			users[1].connect(c.peer.qp)
			c.peer.connect(users[0])
			spoil(d, r, 0, false)
			d.dev.Kick(r.index)
			c.peer.post(abi.Send{WRID: 2, Opcode: uint8(ib.WRSend)}, []ib.SGE{c.peer.sge(0, 8)}, nil)
			c.peer.kick()
			c.f.run()
			for _, q := range users {
				if s := q.state(); s != ib.Err {
					t.Errorf("a queue pair is in %v", s)
				}
			}
			want := []abi.Event{{Type: uint32(ib.EventSRQErr), Object: srq.SRQN}}
			for _, q := range users {
				want = append(want, abi.Event{Type: uint32(ib.EventLastWQEReached), Object: uint32(q.wire)},
					abi.Event{Type: uint32(ib.EventQPFatal), Object: uint32(q.wire)})
			}
			c.ev.expect(want...)
			c.goesOn(t, fmt.Sprint("shared receive queue ", srq.SRQN))
			if q := parse(d, d.must(abi.CmdQuerySRQ, abi.QuerySRQ{SRQN: srq.SRQN}.Append(nil),
				abi.QuerySRQResultSize), abi.ParseQuerySRQResult); q.Outstanding != 0 {
				t.Errorf("%+v", q)
			}
			late := d.qp(qpOpt{typ: ib.RC, pd: c.pd, scq: c.cq, rcq: c.cq, srq1: srq.SRQN + 1})
			if late.tryModify(abi.ModifyQP{QPState: ib.Init, QPAccessFlags: allAccess}, 0x5) == nil {
				t.Error("a queue pair of a broken shared receive queue left RESET")
			}
			for _, q := range append(users[:], late) {
				d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: q.num}.Append(nil), 0)
			}
			d.must(abi.CmdDestroySRQ, abi.DestroySRQ{SRQN: srq.SRQN}.Append(nil), 0)
			if l := d.dev.Broken(); len(l) != 0 {
				t.Errorf("after DESTROY_SRQ: %+v", l)
			}
		})
	}
}

// TestBrokenRingByQuery: QUERY_SRQ finds the fault, and the queue pairs fail although no message comes.
func TestBrokenRingByQuery(t *testing.T) {
	c := newConfined(t)
	d := c.end.d
	srq := parse(d, d.must(abi.CmdCreateSRQ, abi.CreateSRQ{PDN: c.pd, MaxWR: ringNum, MaxSGE: 2}.Append(nil),
		abi.CreateSRQResultSize), abi.ParseCreateSRQResult)
	r := d.start(srq.RingIndex)
	q := d.qp(qpOpt{typ: ib.RC, pd: c.pd, scq: c.cq, rcq: c.cq, srq1: srq.SRQN + 1})
	q.connect(c.peer.qp)
	r.PublishIndex(ringNum + 1)
	d.must(abi.CmdQuerySRQ, abi.QuerySRQ{SRQN: srq.SRQN}.Append(nil), abi.QuerySRQResultSize)
	c.f.run()
	if s := q.state(); s != ib.Err {
		t.Errorf("the queue pair is in %v", s)
	}
	c.ev.expect(abi.Event{Type: uint32(ib.EventSRQErr), Object: srq.SRQN},
		abi.Event{Type: uint32(ib.EventLastWQEReached), Object: uint32(q.wire)},
		abi.Event{Type: uint32(ib.EventQPFatal), Object: uint32(q.wire)})
	c.goesOn(t, fmt.Sprint("shared receive queue ", srq.SRQN))
}

// TestBrokenRingOfEvents: the ring of events is the driver's own, as the control queue is: its fault ends the service
// of the device.
func TestBrokenRingOfEvents(t *testing.T) {
	c := newConfined(t)
	c.ev.PublishIndex(3 * ringNum)
	c.end.d.dev.Kick(c.ev.index)
	c.end.d.dev.Event(ib.EventGIDChange, 1)
	if c.end.d.fault == nil {
		t.Error("the driver does not learn that it gets no events")
	}
}
