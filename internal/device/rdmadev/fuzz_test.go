// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"weft/internal/device/virtio"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// effect is by how much a command changes the number of objects.
var effect = map[abi.Cmd]int{abi.CmdCreateCQ: 1, abi.CmdDestroyCQ: -1, abi.CmdCreatePD: 1, abi.CmdDestroyPD: -1,
	abi.CmdGetDMAMR:  1,
	abi.CmdRegUserMR: 1, abi.CmdDeregMR: -1, abi.CmdCreateQP: 1, abi.CmdDestroyQP: -1, abi.CmdCreateAH: 1, abi.CmdDestroyAH: -1,
	abi.CmdCreateSRQ: 1, abi.CmdDestroySRQ: -1, abi.CmdRegMRVA: 1, abi.CmdAllocMR: 1, abi.CmdAllocMW: 1, abi.CmdDeallocMW: -1}

// FuzzControl writes any bytes to a control queue of a device that has one of each object. A refusal
// is one byte and changes nothing; success changes the number of objects according to the command, and
// counts stay consistent.
func FuzzControl(f *testing.F) {
	for _, v := range vectors(f, "ctrl", "ctrl-error") {
		f.Add(false, byte(200), unhex(f, v.ToDevice))
		f.Add(true, byte(len(v.ToDriver)/2), unhex(f, v.ToDevice))
	}
	add := func(c abi.Cmd, b []byte) { f.Add(true, byte(200), append([]byte{6, byte(c)}, b...)) }
	add(abi.CmdRegMRVA, abi.RegMRVA{PDN: 1, Access: 7, VA: lowBase, Length: 4096, IOVA: lowBase}.Append(nil))
	add(abi.CmdReregMR, abi.ReregMR{MRN: 1, Flags: 7, PDN: 1, Access: 1, VA: lowBase, Length: 1}.Append(nil))
	add(abi.CmdCreateSRQ, abi.CreateSRQ{PDN: 1, MaxWR: 16, MaxSGE: 2, Limit: 3}.Append(nil))
	add(abi.CmdModifySRQ, abi.ModifySRQ{SRQN: 3, Mask: 2, Limit: 1}.Append(nil))
	add(abi.CmdQuerySRQ, abi.QuerySRQ{SRQN: 3}.Append(nil))
	add(abi.CmdDestroySRQ, abi.DestroySRQ{SRQN: 3}.Append(nil))
	add(abi.CmdAllocMR, abi.AllocMR{PDN: 1, MaxPages: 16}.Append(nil))
	add(abi.CmdAllocMW, abi.AllocMW{PDN: 1, Type: 2}.Append(nil))
	add(abi.CmdDeallocMW, abi.DeallocMW{MWN: 1}.Append(nil))
	add(abi.CmdDeregMR, abi.DeregMR{MRN: 2}.Append(nil))
	add(abi.CmdReregMR, abi.ReregMR{MRN: 2, Flags: 1, VA: lowBase, Length: 1}.Append(nil))
	add(abi.CmdResizeCQ, abi.ResizeCQ{CQN: 0, CQE: 5}.Append(nil))
	add(abi.CmdSetEVQ, abi.SetEVQ{CQN: 1}.Append(nil))
	add(abi.CmdSetArmArea, abi.SetArmArea{CQN: 0, GPA: lowBase + 4096}.Append(nil))
	add(abi.CmdExtEnable, abi.ExtEnable{Mask: 1 << 45}.Append(nil))
	add(abi.CmdQueryPortEx, abi.QueryPortEx{Port: 1}.Append(nil))
	add(abi.CmdQueryGID, abi.QueryGID{Index: 1}.Append(nil))
	add(abi.CmdQueryPKey, abi.QueryPKey{}.Append(nil))
	add(abi.CmdQueryQPEx, abi.QueryQPEx{QPN: 2}.Append(nil))
	add(abi.CmdModifyQPEx, abi.QPAttrEx{QPN: 2, AttrMask: 0x39, QPState: ib.Init, Port: 1}.Append(nil))
	f.Fuzz(func(t *testing.T, verbs bool, room byte, in []byte) {
		if len(in) > bufSize {
			return
		}
		fab := newFabric(t)
		d := fab.newDriver(verbs, 1<<20)
		pd := d.pd()
		c := d.cq(16)
		d.must(abi.CmdCreateCQ, abi.CreateCQ{CQE: 1}.Append(nil), abi.CreateCQResultSize)
		d.ah(pd)
		_, at := d.buffer(4096)
		d.mr(pd, at, 4096, allAccess)
		d.qp(qpOpt{typ: ib.RC, pd: pd, scq: c, rcq: c})
		if verbs {
			d.must(abi.CmdCreateSRQ, abi.CreateSRQ{PDN: pd, MaxWR: 16}.Append(nil), abi.CreateSRQResultSize)
			d.must(abi.CmdAllocMR, abi.AllocMR{PDN: pd, MaxPages: 4}.Append(nil), abi.MRResultSize)
			d.must(abi.CmdAllocMW, abi.AllocMW{PDN: pd, Type: 1}.Append(nil), abi.AllocMWResultSize)
		}
		before := d.dev.Session().Objects()
		out := d.exec(in, int(room))
		if len(out) > int(room) || room > 0 && len(out) == 0 || len(out) > 1 && out[0] != 0 {
			t.Fatalf("answer of %d bytes %x in room for %d", len(out), out, room)
		}
		want := before
		if len(out) > 0 && out[0] == 0 {
			want += effect[abi.Cmd(in[1])]
		}
		if got := d.dev.Session().Objects(); got != want {
			t.Fatalf("%d objects became %d, want %d", before, got, want)
		}
		if err := d.consistent(); err != nil {
			t.Fatal(err)
		}
		if d.fault != nil {
			t.Fatalf("a command ended the session: %v", d.fault)
		}
		fab.run()
		d.close()
	})
}

// script reads the numbers of a fuzzer's input; behind its end all are zero.
type script struct{ b []byte }

func (s *script) u8() byte {
	if len(s.b) == 0 {
		return 0
	}
	v := s.b[0]
	s.b = s.b[1:]
	return v
}

func (s *script) u32() uint32 { return uint32(s.u8()) | uint32(s.u8())<<8 | uint32(s.u8())<<16 }

func (s *script) bytes(n int) []byte {
	n = min(n, len(s.b))
	b := s.b[:n]
	s.b = s.b[n:]
	return b
}

// hostile is a client that follows the script, at a device with a connected queue pair and an honest
// client at its other end.
type hostile struct {
	*end
	s     *script
	rings []*ring
	spare [2]*ring        // for the ring of a shared receive queue, which may be in one of them
	qs    []*virtio.Queue // of stopped rings
	// Where the device has them: a region to be registered by request, and a
	// window of each type.
	fast    abi.MRResult
	windows [2]ib.Key
}

// step does one thing and returns false at the end of the script.
func (h *hostile) step() bool {
	if len(h.s.b) == 0 {
		return false
	}
	d := h.d
	pick := func() *ring { return h.rings[int(h.s.u8())%len(h.rings)] }
	switch h.s.u8() % 12 {
	case 0: // a command, of which the script overwrites some bytes
		c := abi.Cmd(h.s.u8())
		if c >= 18 {
			c = abi.CmdExtEnable + c%18
		}
		req := make([]byte, 200)
		binary.LittleEndian.PutUint32(req, uint32(h.s.u8()%8)) // most commands begin with a handle
		for range h.s.u8() % 8 {
			req[h.s.u8()%200] = h.s.u8()
		}
		h.control(append([]byte{abi.ClassRoCE, byte(c)}, req...))
	case 1: // a send element made of anything
		h.put(h.send, h.s.bytes(int(h.s.u8())))
	case 2: // a send element that is nearly right
		e := abi.Send{WRID: 1, Opcode: h.s.u8() % 8, Flags: ib.SendFlags(h.s.u8())}
		e.SetRDMA(h.at+uint64(h.s.u32()), h.mr.RKey+ib.Key(h.s.u8()%2))
		list := []ib.SGE{{Addr: h.at + uint64(h.s.u32()), Len: h.s.u32(), LKey: h.mr.LKey}}
		e.Num = uint32(h.s.u8())
		h.put(h.send, h.element(e, list, make([]byte, h.s.u8())))
	case 3: // a receive element
		if h.s.u8()%2 == 0 {
			h.put(h.recv, recvElement(2, []ib.SGE{{Addr: h.at + uint64(h.s.u32()), Len: h.s.u32(), LKey: h.mr.LKey}}))
		} else {
			h.put(h.recv, h.s.bytes(int(h.s.u8())))
		}
	case 4: // descriptors and indices that no driver writes
		r := pick()
		if h.s.u8()%4 != 0 {
			r.SetDesc(int(h.s.u8())%ringNum, lowBase+uint64(h.s.u32()), h.s.u32(), uint16(h.s.u8()), uint16(h.s.u8()))
		} else {
			r.SetAvail(uint16(h.s.u8()), uint16(h.s.u8()))
			r.PublishIndex(uint16(h.s.u8()))
		}
		d.dev.Kick(r.index)
	case 5: // a ring stops, maybe to start again
		r := pick()
		if mode := h.s.u8(); mode%4 == 3 && h.spare[0] != nil { // or the ring moves
			c := h.spare[mode>>2%2].Config()
			c.Resume = true
			if q, err := virtio.New(d.guest, c); err == nil {
				d.dev.MoveRing(r.index, q)
			}
		} else if q := d.dev.StopRing(r.index); q != nil {
			if h.s.u8()%2 == 0 {
				d.dev.StartRing(r.index, q, r.bell)
			} else {
				h.qs = append(h.qs, q)
			}
		} else if len(h.qs) > 0 {
			d.dev.StartRing(r.index, h.qs[0], r.bell) // of another ring, even
			h.qs = h.qs[1:]
		}
	case 6:
		h.d.f.pass(time.Duration(h.s.u8()) * time.Millisecond)
	case 7: // a state, by command
		a := abi.ModifyQP{QPN: h.num, AttrMask: abi.AttrState, QPState: ib.QPState(h.s.u8() % 8)}
		h.control(append([]byte{abi.ClassRoCE, byte(abi.CmdModifyQP)}, a.Append(nil)...))
	case 8:
		h.d.f.lane.RetryCQs()
		pick().bell.full = h.s.u8()%2 == 0
		d.dev.Poll()
	case 9: // buffers back
		h.cq.poll0()
	case 10:
		d.dev.Event(ib.Event(h.s.u8()), uint32(h.s.u8()))
	case 11: // an operation on keys that is nearly right
		e := abi.Send{WRID: 3, Opcode: abi.OpSendInv + h.s.u8()%4, Flags: ib.SendFlags(h.s.u8() & 0xf)}
		keys := []abi.MRResult{h.mr, h.fast, {MRN: 9, RKey: h.windows[0]}, {MRN: 9, RKey: h.windows[1]}}
		to := keys[h.s.u8()%4]
		to.RKey ^= ib.Key(h.s.u8())
		b := abi.Bind{Addr: h.at + uint64(h.s.u32()), Length: uint64(h.s.u32()), Key: to.RKey,
			Access: ib.Access(h.s.u8())}
		switch e.Opcode {
		case abi.OpBindMW:
			b.Object = uint32(keys[h.s.u8()%4].LKey) ^ uint32(h.s.u8())
			e.SetBind(b)
		case abi.OpRegMR:
			b.Object, b.Pages = to.MRN+uint32(h.s.u8()%2), uint32(h.s.u8())
			e.SetReg(b)
		default:
			e.SetInvKey(to.RKey)
		}
		h.put(h.send, h.element(e, []ib.SGE{{Addr: h.at + uint64(h.s.u8()), Len: h.s.u32(), LKey: h.mr.LKey}},
			h.s.bytes(int(h.s.u8()))))
	}
	if h.s.u8()%2 == 0 {
		h.d.f.run()
	}
	return true
}

// control executes a command without expectations, in its own ring slot.
func (h *hostile) control(in []byte) {
	d := h.d
	copy(d.mem.At(d.buf, bufSize), in)
	if d.ctrl.Free() < 2 {
		return
	}
	d.ctrl.Add([]virtiotest.Buf{{GPA: d.buf, Len: len(in)}}, []virtiotest.Buf{{GPA: d.ans, Len: 256}})
	d.ctrl.Publish()
	d.dev.Kick(d.ctrl.index)
	reap(d.ctrl)
}

// reap pops the used elements of a device. A device that a script confuses on purpose may return
// elements that the driver has not added.
func reap(r *ring) {
	defer func() { recover() }()
	for {
		if _, _, ok := r.Reap(); !ok {
			return
		}
	}
}

func (h *hostile) put(r *ring, b []byte) {
	reap(r)
	if r.Free() == 0 {
		return
	}
	slot := r.slots + uint64(r.Next())*slotSize
	copy(h.d.mem.At(slot, len(b)), b)
	r.Add([]virtiotest.Buf{{GPA: slot, Len: len(b)}}, nil)
	r.Publish()
	h.d.dev.Kick(r.index)
}

func (c *cq) poll0() {
	before := c.Free()
	reap(c.ring)
	if n := min(c.Free()-before, c.Free()); n > 0 {
		c.give(n)
	}
}

// FuzzDevice lets a script do anything to a device. The node lives, what was
// not announced stays untouched, counts stay consistent, and two honest clients
// as well as the peer of the hostile one keep what they have.
func FuzzDevice(f *testing.F) {
	const room = 640 << 10 // for the rings and buffers of a client: what is not used takes time all the same
	seed := func(verbs bool, b ...byte) { f.Add(verbs, b) }
	for _, verbs := range []bool{false, true} {
		seed(verbs, 2, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 1, 0, 0, 6, 50, 0)
		seed(verbs, 2, 2, 10, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 5, 9, 0, 9, 0, 8, 1, 0)
		seed(verbs, 3, 0, 0, 0, 0, 100, 0, 0, 0, 1, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,
			19, 20, 0)
		seed(verbs, 4, 0, 1, 3, 0, 1, 0, 0, 1, 0, 1, 0, 0, 4, 1, 0, 0, 0, 1, 0)
		seed(verbs, 4, 3, 0, 0, 77, 0, 0, 4, 3, 4, 0, 3, 200, 0)
		seed(verbs, 5, 3, 1, 0, 2, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 1, 0, 0, 5, 3, 0)
		seed(verbs, 5, 4, 7, 0, 4, 4, 0, 0, 0, 1, 5, 5, 7, 0, 4, 5, 0, 0, 0, 1, 5, 4, 3, 0)
		seed(verbs, 7, 6, 0, 7, 0, 0, 7, 1, 0, 0, 12, 2, 0, 0, 0, 3, 0, 0, 0)
		seed(verbs, 0, 9, 1, 7, 4, 2, 20, 64, 24, 64, 0, 0, 12, 2, 0, 0, 10, 1, 1, 0)
		seed(verbs, 0, 72, 1, 0, 0, 10, 3, 7, 0, 8, 0, 0)
		seed(verbs, 11, 3, 2, 2, 1, 0, 0, 0, 0, 16, 0, 2, 0, 0, 0, 0, 0, 0, 11, 1, 2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
			0, 0, 0)
		seed(verbs, 11, 2, 10, 1, 5, 0, 0, 0, 0, 16, 0, 7, 0, 1, 0, 8, 0, 0, 8, 0, 0, 240, 15, 0, 0, 0, 0, 0)
		seed(verbs, 11, 0, 2, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11, 3, 2, 3, 1, 0, 0, 0, 255, 255, 0, 31, 0,
			0, 0, 0, 0, 0)
	}
	f.Fuzz(func(t *testing.T, verbs bool, b []byte) {
		if len(b) > 2000 {
			return
		}
		fab := newFabric(t)
		x, y := fab.newDriver(verbs, room).end(ib.RC, 4096), fab.newDriver(!verbs, room).end(ib.RC, 4096)
		x.connect(y.qp)
		y.connect(x.qp)
		bad, peer := fab.newDriver(verbs, room).end(ib.RC, 64<<10), fab.newDriver(true, room).end(ib.RC, 4096)
		bad.connect(peer.qp)
		peer.connect(bad.qp)
		fill(y.mem, 1)
		fill(peer.mem, 2)
		ys, ps := bytes.Clone(y.mem), bytes.Clone(peer.mem)

		h := &hostile{end: bad, s: &script{b}, rings: []*ring{bad.d.ctrl, bad.send, bad.recv, bad.cq.ring}}
		if verbs {
			h.fast = bad.d.fastReg(bad.pd, 8)
			srq := parse(bad.d, bad.d.must(abi.CmdCreateSRQ, abi.CreateSRQ{PDN: bad.pd, MaxWR: ringNum,
				MaxSGE: 2}.Append(nil), abi.CreateSRQResultSize), abi.ParseCreateSRQResult)
			for i := range h.spare {
				h.spare[i] = &ring{Ring: virtiotest.NewRing(bad.d.mem, ringNum>>i, false), index: srq.RingIndex,
					slots: bad.recv.slots, bell: &bell{}}
			}
			bad.d.attach(h.spare[0])
			h.rings = append(h.rings, h.spare[0], h.spare[1])
			h.windows = [2]ib.Key{bad.d.window(bad.pd, 1).RKey, bad.d.window(bad.pd, 2).RKey}
		}
		for h.step() {
		}
		fab.run()
		if err := bad.d.consistent(); err != nil {
			t.Fatal(err)
		}
		if err := bad.d.fault; err != nil && !verbs && !strings.HasPrefix(err.Error(), "control queue") &&
			!strings.HasPrefix(err.Error(), "event queue") {
			t.Fatalf("a ring of an object ended the service of the device: %v", err)
		}
		// Its peer never posted a receive and never sent its key.
		if !bytes.Equal(peer.mem, ps) || !bytes.Equal(y.mem, ys) {
			t.Fatal("memory of others was written")
		}
		for _, d := range []*driver{x.d, y.d, peer.d} {
			if d.fault != nil {
				t.Fatalf("another session ended: %v", d.fault)
			}
		}
		bad.d.close()
		fab.pass(10 * time.Second) // what it left behind times out
		x.writes(y, 1, 3)
		x.cq.expect(ok(1, 2, 3)...)
		// The peer's pair may have failed; the peer has not.
		peer.to(ib.Reset)
		z := fab.newDriver(true, room).end(ib.RC, 4096)
		z.connect(peer.qp)
		peer.connect(z.qp)
		z.writes(peer, 1, 1)
		z.cq.expect(ok(1)...)
		if len(fab.lane.Sessions()) != 4 {
			t.Fatalf("%d sessions", len(fab.lane.Sessions()))
		}
	})
}

// TestResetDevice: a fresh device on the same memory starts from nothing.
func TestResetDevice(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		f, a, b := pair(t, verbs, ib.RC)
		a.writes(b, 1, 2)
		a.cq.expect(ok(1, 2)...)
		a.d.close()
		a.d.open()
		if n := a.d.dev.Session().Objects(); n != 0 {
			t.Errorf("%d objects after a reset", n)
		}
		c := a.d.end(ib.RC, 4096)
		d := f.newDriver(verbs, 2<<20).end(ib.RC, 4096)
		c.connect(d.qp)
		d.connect(c.qp)
		c.writes(d, 1, 2)
		c.cq.expect(ok(1, 2)...)
	})
}
