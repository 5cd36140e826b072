// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// eventIdx gives the rings of a queue pair and of its completion queue other memory, with or without EVENT_IDX.
func (e *end) eventIdx(on bool) {
	for _, r := range []*ring{e.send, e.recv, e.cq.ring} {
		e.d.dev.StopRing(r.index)
		r.Ring = virtiotest.NewRing(e.d.mem, ringNum, on)
		e.d.attach(r)
	}
	e.cq.give(ringNum)
	e.cq.NeedsKick()
}

// send posts a SEND without a kick, and reports whether the device needs one.
func (e *end) sendQuietly(id uint64) bool {
	e.post(abi.Send{WRID: id, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}, []ib.SGE{e.sge(0, 8)}, nil)
	return e.send.NeedsKick()
}

// rests reports whether the device sleeps at the second time at the latest, without work in between.
func (d *driver) rests() bool { return d.dev.Sleep() || !d.dev.Poll() && d.dev.Sleep() }

// TestKicks: the device needs one kick of a ring that was at rest. Then it polls the ring, without kicks, until it
// sleeps; no element is lost on the way. Rings of receives and completions need none.
func TestKicks(t *testing.T) {
	for _, events := range []bool{false, true} {
		t.Run(fmt.Sprintf("EVENT_IDX %v", events), func(t *testing.T) {
			f, a, b := pair(t, false, ib.RC)
			d := a.d
			a.eventIdx(events)
			b.eventIdx(events)
			next := uint64(0)
			receive := func() {
				t.Helper()
				b.recv.post(b.d, recvElement(next, []ib.SGE{b.sge(0, 100)}))
				if next++; b.recv.NeedsKick() && !(events && next == 1) { // an event index of 0 is passed once
					t.Error("a receive ring needs kicks")
				}
			}
			arrived := func() {
				t.Helper()
				a.cq.expect(ok(next)...)
				b.cq.expect(ok(next - 1)...)
				if a.cq.NeedsKick() || b.cq.NeedsKick() {
					t.Error("a completion ring needs kicks")
				}
			}
			for round := range 3 {
				receive()
				if !a.sendQuietly(next) {
					t.Fatalf("round %d: a ring at rest needs no kick", round)
				}
				if d.dev.Poll() {
					t.Errorf("round %d: a ring at rest is polled", round)
				}
				a.kick()
				arrived()
				for i := range 200 { // it is in use
					receive()
					if a.sendQuietly(next) {
						t.Fatalf("round %d: request %d needs a kick", round, i)
					}
					if !d.dev.Poll() {
						t.Fatalf("round %d: request %d is not noticed", round, i)
					}
					arrived()
				}
				if round == 0 { // it comes to rest by itself
					for range 1000 {
						if d.dev.Poll() {
							t.Fatal("work where there is none")
						}
					}
					continue
				}
				receive()
				if a.sendQuietly(next) {
					t.Fatal("a ring in use needs a kick")
				}
				if d.dev.Sleep() {
					t.Fatal("the device sleeps over a request")
				}
				if !d.dev.Poll() {
					t.Fatal("the request is not noticed")
				}
				arrived()
				if !d.rests() {
					t.Fatal("the device does not sleep")
				}
			}
			f.run()
		})
	}
}

// TestKicksWhileStopped: requests that the device leaves in the ring, since the queue pair is in SQD, neither keep it
// awake nor keep it from the kick for the next one.
func TestKicksWhileStopped(t *testing.T) {
	for _, events := range []bool{false, true} {
		f, a, b := pair(t, false, ib.RC)
		a.eventIdx(events)
		b.postRecv(1, b.sge(0, 100))
		b.postRecv(2, b.sge(0, 100))
		b.postRecv(3, b.sge(0, 100))
		a.to(ib.SQD)
		for id := range uint64(3) {
			if !a.sendQuietly(id + 1) {
				t.Errorf("request %d needs no kick", id+1)
			}
			a.kick()
			f.run()
			for range 3 {
				if a.d.dev.Poll() {
					t.Error("busy with a queue pair in SQD")
				}
			}
			if !a.d.rests() {
				t.Error("a queue pair in SQD keeps the device awake")
			}
		}
		a.to(ib.RTS)
		a.cq.expect(ok(1, 2, 3)...)
		b.cq.expect(ok(1, 2, 3)...)
	}
}

// TestKicksInERR: what is posted to a receive ring of a queue pair in ERR is flushed at once: it needs a kick. So do
// rings that are used again.
func TestKicksInERR(t *testing.T) {
	for _, events := range []bool{false, true} {
		f, a, b := pair(t, false, ib.RC)
		a.eventIdx(events)
		a.recv.post(a.d, recvElement(1, []ib.SGE{a.sge(0, 100)}))
		a.recv.NeedsKick()
		a.to(ib.Err)
		a.cq.expect(done{1, ib.WRFlushErr})
		for id := uint64(2); id < 200; id++ {
			a.recv.post(a.d, recvElement(id, []ib.SGE{a.sge(0, 100)}))
			if a.recv.NeedsKick() {
				a.d.dev.Kick(a.recv.index)
			} else if !a.d.dev.Poll() {
				t.Fatalf("request %d is not noticed", id)
			}
			a.cq.expect(done{id, ib.WRFlushErr})
			if id%3 == 0 && !a.d.rests() {
				t.Fatal("the device does not sleep")
			}
		}
		a.d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: a.num}.Append(nil), 0)
		if !a.d.rests() || a.d.dev.Poll() {
			t.Error("a ring without an object is polled")
		}
		_, _ = f, b
	}
}

// TestLongDescriptors: a driver with slots of a fixed length describes more octets than an element has. The device
// reads the element only: the rest of the slot cannot be read here.
func TestLongDescriptors(t *testing.T) {
	const slot = 1 << 20
	_, a, b := pair(t, false, ib.RC)
	place := func(e *end) (at uint64) {
		at = e.d.mem.Alloc(slot, 4096)
		off := at - e.d.mem.Base
		page := (uint64(unix.Getpagesize()) - off%uint64(unix.Getpagesize())) % uint64(unix.Getpagesize())
		tail := e.d.mem.Bytes[off+page+uint64(unix.Getpagesize()) : off+slot-uint64(unix.Getpagesize())]
		tail = tail[:len(tail)&^(unix.Getpagesize()-1)]
		if err := unix.Mprotect(tail, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Mprotect(tail, unix.PROT_READ|unix.PROT_WRITE); err != nil {
				t.Error(err)
			}
		})
		return at
	}
	post := func(e *end, r *ring, element []byte) {
		at := place(e)
		copy(e.d.mem.At(at, len(element)), element)
		r.Add([]virtiotest.Buf{{GPA: at, Len: slot}}, nil)
		r.Publish()
		e.d.dev.Kick(r.index)
	}
	post(b, b.recv, recvElement(1, []ib.SGE{b.sge(0, 100)}))
	post(a, a.send, a.element(abi.Send{WRID: 1, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}, []ib.SGE{a.sge(0, 8)},
		nil))
	a.cq.expect(ok(1)...)
	b.cq.expect(ok(1)...)
}

// TestKickDecidedEarly: a driver may decide against a kick before its index can be seen, in an emulator that makes no
// barrier. The device looks once more before it sleeps.
func TestKickDecidedEarly(t *testing.T) {
	for _, events := range []bool{false, true} {
		_, a, b := pair(t, false, ib.RC)
		a.eventIdx(events)
		b.postRecv(1, b.sge(0, 100))
		b.postRecv(2, b.sge(0, 100))
		a.sendQuietly(1)
		a.kick()
		a.cq.expect(ok(1)...)
		if a.d.dev.Sleep() {
			t.Fatal("the device sleeps as soon as it has enabled kicks")
		}
		a.sendQuietly(2) // there is no kick
		if a.d.dev.Sleep() || !a.d.dev.Poll() {
			t.Fatal("the request is lost")
		}
		a.cq.expect(ok(2)...)
		b.cq.expect(ok(1, 2)...)
		if !a.d.rests() {
			t.Error("the device does not sleep")
		}
	}
}
