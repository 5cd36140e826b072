// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"weft/internal/device/virtio"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// reset gives a stopped ring new memory of another size, as a driver does that resets a
// virtqueue.
func (d *driver) reset(r *ring, num int) {
	d.t.Helper()
	r.Ring = virtiotest.NewRing(d.mem, num, false)
	r.slots = d.mem.Alloc(num*slotSize, 64)
	d.attach(r)
}

// resume starts a stopped ring as a front-end does that has read its state.
func (d *driver) resume(r *ring, base uint32) {
	d.t.Helper()
	c := r.Config()
	c.Base, c.Resume = base, true
	q, err := virtio.New(d.guest, c)
	if err != nil {
		d.t.Fatal(err)
	}
	d.dev.StartRing(r.index, q, r.bell)
}

// TestPause: a ring that is disabled, or stopped and resumed, keeps the popped elements: none is
// executed twice, and those that complete in between are returned when the ring continues. Completions
// wait for their ring.
func TestPause(t *testing.T) {
	for _, asked := range []bool{false, true} { // stopped with its state read, or only disabled
		modes(t, func(t *testing.T, verbs bool) {
			f, a, b := pair(t, verbs, ib.RC)
			copy(a.mem, fill(make([]byte, 100), 7))
			send := func(id uint64) {
				a.post(abi.Send{WRID: id, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}, []ib.SGE{a.sge(0, 100)}, nil)
				a.kick()
			}
			pause := func(d *driver, r *ring) (goOn func()) {
				q := d.dev.StopRing(r.index)
				if q == nil {
					t.Fatal("nothing to stop")
				}
				if !asked {
					return func() { d.dev.StartRing(r.index, q, r.bell) }
				}
				state := q.State()
				return func() { d.resume(r, state) }
			}
			// Two are taken and wait for a buffer of the peer's; a third comes when
			// the ring has stopped.
			send(1)
			send(2)
			f.run()
			goOn := pause(a.d, a.send)
			send(3)
			f.run()
			if s, _ := a.outstanding(); s != 3 {
				t.Fatalf("%d elements with the device", s)
			}
			b.postRecv(1, b.sge(0, 100))
			b.postRecv(2, b.sge(200, 100))
			b.postRecv(3, b.sge(400, 100))
			f.pass(time.Second)
			a.cq.expect(ok(1, 2)...)
			b.cq.expect(ok(1, 2)...)
			if s, _ := a.outstanding(); s != 3 {
				t.Errorf("a stopped ring was written: %d elements with the device", s)
			}
			goOn()
			f.pass(time.Second)
			a.cq.expect(ok(3)...)
			b.cq.expect(ok(3)...)
			if s, _ := a.outstanding(); s != 0 {
				t.Errorf("%d elements kept", s)
			}
			for _, off := range []int{0, 200, 400} {
				if !bytes.Equal(b.mem[off:off+100], a.mem[:100]) {
					t.Errorf("what arrived at %d differs", off)
				}
			}

			// A receive ring that has stopped is an empty one; one buffer was taken before.
			b.postRecv(4, b.sge(0, 100))
			send(4)
			f.pass(time.Second)
			a.cq.expect(ok(4)...)
			b.cq.expect(ok(4)...)
			goOn = pause(b.d, b.recv)
			b.recv.post(b.d, recvElement(5, []ib.SGE{b.sge(0, 100)}))
			send(5)
			a.cq.expect()
			goOn()
			f.pass(time.Second)
			a.cq.expect(ok(5)...)
			b.cq.expect(ok(5)...)

			// Completions wait while their ring has stopped.
			goOn = pause(a.d, a.cq.ring)
			b.postRecv(6, b.sge(0, 100))
			send(6)
			f.pass(time.Second)
			a.cq.expect()
			b.cq.expect(ok(6)...)
			goOn()
			f.pass(time.Second)
			a.cq.expect(ok(6)...)
		})
	}
}

// move has the device go on in a new ring of num entries where r runs, in which
// the elements of list wait; the first of them has this index.
func (d *driver) move(r *ring, num int, from uint16, list ...[]byte) error {
	d.t.Helper()
	n := &ring{Ring: virtiotest.NewRing(d.mem, num, false), index: r.index, bell: r.bell}
	n.slots = d.mem.Alloc(num*slotSize, 64)
	n.Begin(from)
	for _, e := range list {
		n.post(d, e)
	}
	c := n.Config()
	c.Resume = true
	q, err := virtio.New(d.guest, c)
	if err != nil {
		d.t.Fatal(err)
	}
	if err := d.dev.MoveRing(r.index, q); err != nil {
		return err
	}
	*r = *n
	return nil
}

// TestMoveRing: the ring of a shared receive queue gets another size while a
// message is being received into a request of it and others wait there. There is
// no moment without a request: peers that never try again see nothing.
func TestMoveRing(t *testing.T) {
	const size = 1 << 20 // takes several runs, and time by the peer's limit
	f := newFabric(t)
	d := f.newDriver(true, 16<<20)
	e := d.end(ib.RC, size)
	srq := parse(d, d.must(abi.CmdCreateSRQ, abi.CreateSRQ{PDN: e.pd, MaxWR: 8, MaxSGE: 1, Limit: 2}.Append(nil),
		abi.CreateSRQResultSize), abi.ParseCreateSRQResult)
	r := d.start(srq.RingIndex)
	query := func() abi.QuerySRQResult {
		return parse(d, d.must(abi.CmdQuerySRQ, abi.QuerySRQ{SRQN: srq.SRQN}.Append(nil), abi.QuerySRQResultSize),
			abi.ParseQuerySRQResult)
	}
	peer := f.newDriver(true, 8<<20).end(ib.RC, size)
	e.qp = d.qp(qpOpt{typ: ib.RC, pd: e.pd, scq: e.cq, rcq: e.cq, srq1: srq.SRQN + 1})
	peer.connect(e.qp)
	e.connect(peer.qp)
	request := func(id uint64) []byte { return recvElement(id, []ib.SGE{e.sge(0, size)}) }
	send := func(n int) {
		peer.post(abi.Send{Opcode: uint8(ib.WRSend)}, []ib.SGE{peer.sge(0, n)}, nil)
		peer.kick()
	}
	for i := range uint64(5) {
		r.post(d, request(i))
	}
	send(8)
	e.cq.expect(ok(0)...) // used, visible to the driver
	fill(peer.mem, 3)
	peer.d.must(abi.CmdModifyQPEx, abi.QPAttrEx{QPN: peer.num, AttrMask: ib.AttrRateLimit,
		RateLimit: 1_000_000}.Append(nil), 0)
	send(size)
	f.run()
	if got := e.cq.poll(); len(got) != 0 {
		t.Fatalf("the message is there already: %+v", got)
	}
	if n := query().Outstanding; n != 3 {
		t.Fatalf("%d requests wait, want 3", n)
	}
	// Request 1 is being filled, 2 to 4 wait.
	for name, refused := range map[string]error{
		"less than waits":    d.move(r, 16, 3, request(3), request(4)),
		"another end":        d.move(r, 16, 1, request(1), request(2), request(3)),
		"a completion queue": d.move(e.cq.ring, 64, 0),
		"a send queue":       d.move(e.send, 64, 0),
		"a ring that rests":  d.move(&ring{index: srq.RingIndex + 2}, 64, 0),
		"no ring":            d.move(&ring{index: 5000}, 64, 0),
	} {
		if refused != syscall.EINVAL {
			t.Errorf("%s: %v", name, refused)
		}
	}
	if err := d.move(r, 4, 1, request(1), request(2), request(3), request(4)); err != nil {
		t.Fatal(err)
	}
	if r.post(d, request(5)); r.Outstanding() != 4 {
		t.Errorf("%d elements with the device: the one that is being filled is not used", r.Outstanding())
	}
	if err := d.move(r, 32, 2, request(2), request(3), request(4), request(5)); err != nil {
		t.Fatal(err)
	}
	if got := query(); got.Outstanding != 4 || got.Limit != 2 {
		t.Errorf("%+v", got)
	}
	f.pass(time.Second)
	e.cq.expect(ok(1)...)
	if !bytes.Equal(e.mem[:size], peer.mem[:size]) {
		t.Error("the message arrived wrong")
	}
	for i := uint64(2); i < 6; i++ {
		send(8)
		e.cq.expect(ok(i)...)
	}
	if r.post(d, request(6)); r.Outstanding() != 1 {
		t.Errorf("%d elements with the device, want 1", r.Outstanding())
	}
	send(8)
	e.cq.expect(ok(6)...)

	d.must(abi.CmdExtEnable, abi.ExtEnable{Mask: ^uint64(1 << abi.CapSRQResize)}.Append(nil), abi.ExtEnableSize)
	if err := d.move(r, 64, 7); err != syscall.EOPNOTSUPP {
		t.Errorf("without the extension: %v", err)
	}
	d.must(abi.CmdExtEnable, abi.ExtEnable{Mask: ^uint64(0)}.Append(nil), abi.ExtEnableSize)
	// A ring that is broken ends the session.
	r.PublishIndex(1000)
	if err := d.move(r, 64, 7); err == nil || d.fault == nil {
		t.Errorf("broken ring: %v, %v", err, d.fault)
	}
}

// TestRingReset: rings restart with another size and other memory (VIRTIO_F_RING_RESET): requests in
// flight complete, and their elements are not returned.
func TestRingReset(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		f, a, b := pair(t, verbs, ib.RC)
		send := func(id uint64) {
			a.post(abi.Send{WRID: id, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}, []ib.SGE{a.sge(0, 100)}, nil)
			a.kick()
		}
		for round, num := range []int{16, 128, 64} {
			base := uint64(100 * round)
			send(base)
			f.run() // taken, and waits for a buffer
			a.d.dev.StopRing(a.send.index)
			b.d.dev.StopRing(b.recv.index)
			a.d.reset(a.send, num)
			b.d.reset(b.recv, num)
			for i := range uint64(12) {
				b.postRecv(base+i, b.sge(0, 100))
			}
			for i := range uint64(11) {
				send(base + 1 + i)
			}
			f.pass(time.Second)
			var want []done
			for i := range uint64(12) {
				want = append(want, ok(base+i)...)
			}
			a.cq.expect(want...)
			b.cq.expect(want...)
			// virtiotest's ring would panic at an element it did not give.
			if s, _ := a.outstanding(); s != 0 {
				t.Errorf("round %d: %d send elements kept", round, s)
			}
			if _, r := b.outstanding(); r != 0 {
				t.Errorf("round %d: %d receive elements kept", round, r)
			}
		}

		// A larger completion ring contains the completions of the time without a ring.
		a.d.dev.StopRing(a.cq.index)
		for i := range uint64(5) {
			b.postRecv(i, b.sge(0, 100))
			send(i)
		}
		f.pass(time.Second)
		a.cq.expect()
		a.d.reset(a.cq.ring, 128)
		a.cq.give(128)
		f.pass(time.Second)
		a.cq.expect(ok(0, 1, 2, 3, 4)...)
	})
}
