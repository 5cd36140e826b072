// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// sizes cross what can be crossed: nothing, a byte, the path MTU, a page.
var sizes = []int{0, 1, 3, 1023, 1024, 1025, 4097, 30000}

// TestReliable moves bytes every way RC has, between two devices, and checks
// them, the completions of both ends and what was not to be touched.
func TestReliable(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) { testConnected(t, verbs, ib.RC) })
}

func TestUnreliable(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) { testConnected(t, verbs, ib.UC) })
}

func testConnected(t *testing.T, verbs bool, typ ib.QPType) {
	f, a, b := pair(t, verbs, typ)
	id := uint64(0)
	clean := func(n int) {
		t.Helper()
		for i := range b.mem[n:] {
			if b.mem[n+i] != 0xa5 {
				t.Fatalf("byte %d behind %d was touched", i, n)
			}
		}
	}
	for _, n := range sizes {
		src := fill(a.mem[:n], byte(n))
		half := n / 3
		list := []ib.SGE{a.sge(0, half), a.sge(half, n-half)}
		dirty := func() {
			for i := range b.mem {
				b.mem[i] = 0xa5
			}
		}

		dirty()
		id++
		b.postRecv(id, b.sge(0, half), b.sge(half, len(b.mem)-half))
		a.post(abi.Send{WRID: id, Opcode: uint8(ib.WRSendImm), Flags: ib.Signaled, Imm: [4]byte{1, 2, 3, 4}}, list, nil)
		a.kick()
		a.cq.expect(ok(id)...)
		e := b.cq.expect(ok(id)...)[0]
		if !bytes.Equal(b.mem[:n], src) || e.ByteLen != uint32(n) || e.Flags != ib.WCWithImm ||
			e.Imm != [4]byte{1, 2, 3, 4} || e.QPN != b.wire || e.Opcode != abi.WireWCOp(ib.WCRecv) {
			t.Fatalf("send of %d bytes: %+v", n, e)
		}
		clean(n)

		dirty()
		id++
		s := abi.Send{WRID: id, Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
		s.SetRDMA(b.at, b.mr.RKey)
		a.post(s, list, nil)
		a.kick()
		if e := a.cq.expect(ok(id)...)[0]; e.Opcode != abi.WireWCOp(ib.WCWrite) || e.QPN != a.wire {
			t.Fatalf("write: %+v", e)
		}
		if !bytes.Equal(b.mem[:n], src) {
			t.Fatalf("write of %d bytes: other bytes", n)
		}
		clean(n)
		b.cq.expect()

		dirty()
		id++
		b.postRecv(id) // its list is not used
		s = abi.Send{WRID: id, Opcode: uint8(ib.WRWriteImm), Flags: ib.Signaled, Imm: [4]byte{9, 8, 7, 6}}
		s.SetRDMA(b.at, b.mr.RKey)
		a.post(s, list, nil)
		a.kick()
		a.cq.expect(ok(id)...)
		if e := b.cq.expect(ok(id)...)[0]; e.Opcode != abi.WireWCOp(ib.WCRecvWithImm) || e.ByteLen != uint32(n) ||
			e.Imm != [4]byte{9, 8, 7, 6} || !bytes.Equal(b.mem[:n], src) {
			t.Fatalf("write of %d bytes with immediate: %+v", n, e)
		}
		clean(n)

		if typ == ib.UC {
			continue
		}
		id++
		fill(b.mem, byte(n)+1)
		s = abi.Send{WRID: id, Opcode: uint8(ib.WRRead), Flags: ib.Signaled}
		s.SetRDMA(b.at, b.mr.RKey)
		a.post(s, list, nil)
		a.kick()
		if e := a.cq.expect(ok(id)...)[0]; e.Opcode != abi.WireWCOp(ib.WCRead) || e.ByteLen != uint32(n) ||
			!bytes.Equal(a.mem[:n], b.mem[:n]) {
			t.Fatalf("read of %d bytes: %+v", n, e)
		}
	}
	if s, r := a.outstanding(); s != 0 || r != 0 {
		t.Errorf("%d send and %d receive elements not given back", s, r)
	}
	if _, r := b.outstanding(); r != 0 {
		t.Errorf("%d receive elements not given back", r)
	}
	if f.lane.Stats.CQOverrun != 0 || a.d.fault != nil || b.d.fault != nil {
		t.Error(f.lane.Stats, a.d.fault, b.d.fault)
	}
}

func TestDatagrams(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		_, a, b := pair(t, verbs, ib.UD)
		ah := a.d.ah(a.pd)
		send := func(id uint64, n int, key ib.QKey) {
			s := abi.Send{WRID: id, Opcode: uint8(ib.WRSendImm), Flags: ib.Signaled, Imm: [4]byte{5, 6, 7, 8}}
			s.SetUD(b.wire, key, ah)
			a.post(s, []ib.SGE{a.sge(0, n)}, nil)
			a.kick()
		}
		for i, n := range []int{0, 1, 1023, 1024} {
			fill(a.mem[:n], byte(i))
			b.postRecv(uint64(i), b.sge(0, 4096))
			send(uint64(i), n, qkey)
			a.cq.expect(ok(uint64(i))...)
			e := b.cq.expect(ok(uint64(i))...)[0]
			if e.ByteLen != uint32(n+40) || e.SrcQP != a.wire || e.Flags != ib.WCGRH|ib.WCWithImm ||
				e.Imm != [4]byte{5, 6, 7, 8} || !bytes.Equal(b.mem[40:40+n], a.mem[:n]) {
				t.Fatalf("%d bytes: %+v", n, e)
			}
			sl := uint8(0) // reserved in the RFC
			if verbs {
				sl = 2 // IPv4
			}
			if e.SL != sl {
				t.Errorf("sl %d, want %d", e.SL, sl)
			}
			// The last 20 bytes of the area are the IPv4 header.
			if b.mem[20] != 0x45 || !bytes.Equal(b.mem[36:40], gid[12:]) {
				t.Errorf("network header % x", b.mem[20:40])
			}
		}
		// Messages with a wrong key or for a buffer that is too small are dropped; the sender gets no
		// error.
		b.postRecv(50, b.sge(0, 4096))
		send(50, 10, qkey+1)
		a.cq.expect(ok(50)...)
		b.cq.expect()
		// A message longer than the MTU is the sender's mistake: SQE, while the receive queue
		// continues.
		send(51, 1025, qkey)
		a.cq.expect(done{51, ib.LocLenErr})
		send(52, 1, qkey)
		a.cq.expect(done{52, ib.WRFlushErr})
		a.modify(abi.ModifyQP{QPState: ib.RTS, CurQPState: ib.SQE}, abi.AttrState|abi.AttrCurState)
		send(53, 1, qkey)
		a.cq.expect(ok(53)...)
		b.cq.expect(ok(50)...)
		// A handle that is gone.
		a.d.must(abi.CmdDestroyAH, abi.DestroyAH{PDN: a.pd, AH: ah}.Append(nil), 0)
		send(54, 1, qkey)
		a.cq.expect(done{54, ib.LocQPOpErr})
	})
}

func TestAtomics(t *testing.T) {
	_, a, b := pair(t, true, ib.RC)
	le := binary.LittleEndian
	le.PutUint64(b.mem[8:], 100)
	post := func(id uint64, op uint8, at uint64, x, y uint64) {
		s := abi.Send{WRID: id, Opcode: op, Flags: ib.Signaled}
		s.SetAtomic(at, x, y, b.mr.RKey)
		a.post(s, []ib.SGE{a.sge(0, 8)}, nil)
		a.kick()
	}
	for i, c := range []struct {
		op             uint8
		x, y, old, new uint64
	}{
		{abi.OpFetchAdd, 11, 0, 100, 111},
		{abi.OpCmpSwap, 111, 7, 111, 7},
		{abi.OpCmpSwap, 111, 9, 7, 7},
		{abi.OpFetchAdd, ^uint64(0), 0, 7, 6},
	} {
		post(uint64(i), c.op, b.at+8, c.x, c.y)
		e := a.cq.expect(ok(uint64(i))...)[0]
		if got, now := le.Uint64(a.mem), le.Uint64(b.mem[8:]); got != c.old || now != c.new || e.Opcode != c.op ||
			e.ByteLen != 8 {
			t.Errorf("%d: was %d, is %d, want %d, %d; %+v", i, got, now, c.old, c.new, e)
		}
	}
	post(9, abi.OpFetchAdd, b.at+9, 1, 0)
	a.cq.expect(done{9, ib.RemInvReqErr})

	// A plain device has no atomics.
	_, a, _ = pair(t, false, ib.RC)
	post(1, abi.OpFetchAdd, a.at, 1, 0)
	a.cq.expect(done{1, ib.LocQPOpErr})
}

// TestMalformed posts send elements with every kind of error: each ends in LOC_QP_OP_ERR (or the
// status of its rule) and the pair in ERR, and the session continues.
func TestMalformed(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		write := func(e *end) abi.Send {
			s := abi.Send{WRID: 7, Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
			s.SetRDMA(e.at, e.mr.RKey)
			return s
		}
		max := 256
		for _, c := range []struct {
			name   string
			typ    ib.QPType
			status ib.Status
			make   func(a, b *end) []byte
		}{
			{"unknown opcode", ib.RC, ib.LocQPOpErr,
				func(a, b *end) []byte { s := write(b); s.Opcode = 5; return a.element(s, nil, nil) }},
			{"opcode of another service", ib.UC, ib.LocQPOpErr,
				func(a, b *end) []byte { s := write(b); s.Opcode = uint8(ib.WRRead); return a.element(s, nil, nil) }},
			{"write on a datagram pair", ib.UD, ib.LocQPOpErr, func(a, b *end) []byte {
				return a.element(write(b),
					nil, nil)
			}},
			{"datagram without a handle", ib.UD, ib.LocQPOpErr, func(a, b *end) []byte {
				return a.element(abi.Send{WRID: 7, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}, nil, nil)
			}},
			{"reserved flag", ib.RC, ib.LocQPOpErr,
				func(a, b *end) []byte { s := write(b); s.Flags |= 0x10; return a.element(s, nil, nil) }},
			{"top flag", ib.RC, ib.LocQPOpErr,
				func(a, b *end) []byte { s := write(b); s.Flags |= 0x80; return a.element(s, nil, nil) }},
			{"inline read", ib.RC, ib.LocQPOpErr, func(a, b *end) []byte {
				s := write(b)
				s.Opcode, s.Flags = uint8(ib.WRRead), s.Flags|ib.Inline
				return a.element(s, nil, make([]byte, 8))
			}},
			{"list longer than agreed", ib.RC, ib.LocQPOpErr, func(a, b *end) []byte {
				return a.element(write(b), make([]ib.SGE, 5), nil)
			}},
			{"list longer than the element", ib.RC, ib.LocQPOpErr, func(a, b *end) []byte {
				x := a.element(write(b), make([]ib.SGE, 4), nil)
				return x[:len(x)-1]
			}},
			{"endless list", ib.RC, ib.LocQPOpErr, func(a, b *end) []byte {
				x := a.element(write(b), nil, nil)
				at := 48
				if !a.d.verbs {
					at = 560
				}
				binary.LittleEndian.PutUint32(x[at:], ^uint32(0))
				return x
			}},
			{"too much inline", ib.RC, ib.LocQPOpErr, func(a, b *end) []byte {
				s := write(b)
				s.Flags |= ib.Inline
				return a.element(s, nil, make([]byte, max+1))
			}},
			{"more inline than element", ib.RC, ib.LocQPOpErr, func(a, b *end) []byte {
				s := write(b)
				s.Flags |= ib.Inline
				s.Num = 200
				x := a.element(s, nil, make([]byte, 200))
				return x[:a.form.Inline+199]
			}},
			{"unknown key", ib.RC, ib.LocProtErr, func(a, b *end) []byte {
				return a.element(write(b), []ib.SGE{{Addr: a.at, Len: 1, LKey: a.mr.LKey + 1}}, nil)
			}},
			{"beyond the region", ib.RC, ib.LocProtErr, func(a, b *end) []byte {
				return a.element(write(b), []ib.SGE{a.sge(len(a.mem)-1, 2)}, nil)
			}},
			{"address that wraps", ib.RC, ib.LocProtErr, func(a, b *end) []byte {
				return a.element(write(b), []ib.SGE{{Addr: ^uint64(0), Len: 2, LKey: a.mr.LKey}}, nil)
			}},
			{"wrong remote key", ib.RC, ib.RemAccessErr, func(a, b *end) []byte {
				s := write(b)
				s.SetRDMA(b.at, b.mr.RKey+1)
				return a.element(s, []ib.SGE{a.sge(0, 1)}, nil)
			}},
		} {
			if c.name == "more inline than element" && !verbs {
				continue // the RFC's element has all its inline bytes
			}
			t.Run(c.name, func(t *testing.T) {
				f, a, b := pair(t, verbs, c.typ)
				a.raw(c.make(a, b))
				a.post(abi.Send{WRID: 8, Opcode: uint8(ib.WRSend)}, nil, nil) // flushed, though unsignalled
				a.kick()
				f.run()
				for _, e := range a.cq.expect(done{7, c.status}, done{8, ib.WRFlushErr}) {
					if e.QPN != a.wire {
						t.Errorf("qp_num %d of a failed request, want %d", e.QPN, a.wire)
					}
				}
				if n, _ := a.outstanding(); n != 0 || a.d.fault != nil {
					t.Errorf("%d elements not given back, fault %v", n, a.d.fault)
				}
			})
		}
		// Every length below the fixed part, also nothing: the first eight octets are wr_id.
		for n := range abi.SQSize {
			f, a, _ := pair(t, verbs, ib.RC)
			a.post(abi.Send{WRID: 1, Opcode: uint8(ib.WRRead), Flags: ib.Signaled}, nil, nil)
			a.to(ib.Err) // the slot of a read is used again
			a.kick()
			f.run()
			a.cq.expect(done{1, ib.WRFlushErr})
			_, a, _ = pair(t, verbs, ib.RC)
			a.raw(bytes.Repeat([]byte{9}, n))
			a.kick()
			id := uint64(0)
			if n >= 8 {
				id = 0x0909090909090909
			}
			if e := a.cq.expect(done{id, ib.LocQPOpErr}); e[0].QPN != a.wire || e[0].Opcode != 0 {
				t.Fatalf("%d bytes: %+v", n, e)
			}
			if n > 3 && n < abi.SQSize-3 && testing.Short() {
				break
			}
		}
	})
}

func TestMalformedReceive(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		for _, c := range []struct {
			name string
			make func(b *end) []byte
			id   uint64
			want ib.Status
		}{
			{"short", func(b *end) []byte { return make([]byte, abi.RQSize-1) }, 0, ib.LocQPOpErr},
			{"empty", func(b *end) []byte { return nil }, 0, ib.LocQPOpErr},
			{"list beyond the element", func(b *end) []byte {
				return recvElement(5,
					[]ib.SGE{b.sge(0, 1)})[:abi.RQSize+15]
			}, 5, ib.LocQPOpErr},
			{"list longer than agreed", func(b *end) []byte { return recvElement(5, make([]ib.SGE, 5)) }, 5,
				ib.LocQPOpErr},
			{"unknown key", func(b *end) []byte { return recvElement(5, []ib.SGE{{Addr: b.at, Len: 100, LKey: 1}}) },
				5, ib.LocProtErr},
			{"too small", func(b *end) []byte { return recvElement(5, []ib.SGE{b.sge(0, 9)}) }, 5, ib.LocLenErr},
		} {
			t.Run(c.name, func(t *testing.T) {
				f, a, b := pair(t, verbs, ib.RC)
				b.recv.post(b.d, c.make(b))
				b.d.dev.Kick(b.recv.index)
				a.post(abi.Send{WRID: 1, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}, []ib.SGE{a.sge(0, 10)}, nil)
				a.kick()
				f.run()
				got := b.cq.poll()
				if len(got) != 1 || got[0].Status != abi.WireStatus(c.want) || got[0].WRID != c.id {
					t.Fatalf("%+v, want %d with %v", got, c.id, c.want)
				}
				if e := a.cq.poll(); len(e) != 1 || e[0].Status == 0 {
					t.Errorf("the sender: %+v", e)
				}
				if _, n := b.outstanding(); n != 0 {
					t.Errorf("%d elements kept", n)
				}
			})
		}
	})
}

// TestGathered posts elements in several descriptors and in indirect tables.
func TestGathered(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		_, a, b := pair(t, verbs, ib.RC)
		id := uint64(0)
		for _, indirect := range []bool{false, true} {
			for _, inline := range []bool{false, true} {
				id++
				s := abi.Send{WRID: id, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}
				src := fill(a.mem[:200], byte(id))
				x := a.element(s, []ib.SGE{a.sge(0, 120), a.sge(120, 80)}, nil)
				if inline {
					s.Flags |= ib.Inline
					x = a.element(s, nil, src)
				}
				var bufs []virtiotest.Buf
				for i := 0; i < len(x); i += 100 {
					n := min(100, len(x)-i)
					at := a.d.mem.Alloc(n, 1)
					copy(a.d.mem.At(at, n), x[i:])
					bufs = append(bufs, virtiotest.Buf{GPA: at, Len: n})
				}
				if indirect {
					a.send.AddIndirect(bufs, nil)
				} else {
					a.send.Add(bufs, nil)
				}
				// Two of them, so that a second fetch could spoil the first.
				a.send.Publish()
				y := make([]byte, 200)
				a.post(abi.Send{WRID: id + 100, Opcode: uint8(ib.WRSend), Flags: ib.Signaled | ib.Inline}, nil,
					fill(y, 99))

				rx := recvElement(id, []ib.SGE{b.sge(0, 64), b.sge(64, 200)})
				at := b.d.mem.Alloc(len(rx), 1)
				copy(b.d.mem.At(at, len(rx)), rx)
				b.recv.Add([]virtiotest.Buf{{GPA: at, Len: 11}, {GPA: at + 11, Len: 30},
					{GPA: at + 41, Len: len(rx) - 41}}, nil)
				b.recv.Publish()
				b.postRecv(id+100, b.sge(1000, 200))
				a.kick()
				a.cq.expect(ok(id, id+100)...)
				b.cq.expect(ok(id, id+100)...)
				if !bytes.Equal(b.mem[:200], src) || !bytes.Equal(b.mem[1000:1200], y) {
					t.Errorf("indirect %v inline %v: other bytes", indirect, inline)
				}
			}
		}
	})
}

// TestInlineLimits: what was agreed fits exactly, one more does not
// (TestMalformed); the content may lie anywhere a slot does.
func TestInlineLimits(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		_, a, b := pair(t, verbs, ib.RC)
		for id, n := range []int{0, 1, 255, 256} {
			data := fill(make([]byte, n), byte(n))
			b.postRecv(uint64(id), b.sge(0, 1024))
			a.post(abi.Send{WRID: uint64(id), Opcode: uint8(ib.WRSend), Flags: ib.Signaled | ib.Inline}, nil, data)
			a.kick()
			a.cq.expect(ok(uint64(id))...)
			if e := b.cq.expect(ok(uint64(id))...)[0]; e.ByteLen != uint32(n) || !bytes.Equal(b.mem[:n], data) {
				t.Errorf("%d bytes: %+v", n, e)
			}
		}
	})
}

// TestBrokenRings: errors that no driver makes end the session of a program, and only that.
func TestBrokenRings(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(a *end)
	}{
		{"head beyond the table", func(a *end) { a.send.SetAvail(0, ringNum); a.send.PublishIndex(1) }},
		{"index jumps", func(a *end) { a.send.PublishIndex(ringNum + 1) }},
		{"not announced", func(a *end) {
			a.send.SetDesc(0, 8, 100, 0, 0)
			a.send.SetAvail(0,
				0)
			a.send.PublishIndex(1)
		}},
		{"writable send element", func(a *end) {
			a.send.SetDesc(0, a.at, 100, abi.DescFlagWrite, 0)
			a.send.SetAvail(0, 0)
			a.send.PublishIndex(1)
		}},
		{"loop", func(a *end) {
			a.send.SetDesc(0, a.at, 1, abi.DescFlagNext, 0)
			a.send.SetAvail(0, 0)
			a.send.PublishIndex(1)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, a, b := pair(t, true, ib.RC)
			other, peer := f.newDriver(true, 4<<20).end(ib.RC, 4096), f.newDriver(true, 4<<20).end(ib.RC, 4096)
			other.connect(peer.qp)
			peer.connect(other.qp)
			c.spoil(a)
			a.kick()
			f.run()
			if a.d.fault == nil {
				t.Fatal("the session lives on")
			}
			a.kick() // nothing more is done for it
			a.d.dev.Kick(2)
			f.run()
			a.d.dev.Close()
			f.adapter.Detach(a.d.dev.Session())
			if b.d.fault != nil || other.d.fault != nil {
				t.Error("other sessions ended, too")
			}
			peer.postRecv(1, peer.sge(0, 10))
			other.post(abi.Send{WRID: 1, Opcode: uint8(ib.WRSend), Flags: ib.Signaled},
				[]ib.SGE{other.sge(0, 10)}, nil)
			other.kick()
			other.cq.expect(ok(1)...)
			peer.cq.expect(ok(1)...)
		})
	}
}

// TestDestroyDiscards: outstanding elements at DESTROY_QP are not returned and do not complete, and
// both rings are at index zero for the next owner (virtio RoCE RFC v2).
func TestDestroyDiscards(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		f, a, b := pair(t, verbs, ib.RC)
		for i := range uint64(5) {
			a.post(abi.Send{WRID: i, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}, []ib.SGE{a.sge(0, 10)}, nil)
			a.postRecv(i, a.sge(0, 10))
		}
		a.kick()
		f.run() // the peer has no buffer: nothing completes
		a.d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: a.num}.Append(nil), 0)
		f.pass(time.Second)
		a.cq.expect()
		if n := binary.LittleEndian.Uint16(a.d.mem.At(a.send.Used+2, 2)); n != 0 {
			t.Errorf("used index %d after the pair was destroyed", n)
		}
		b.postRecv(9, b.sge(0, 10))
		f.pass(time.Second)
		b.cq.expect()

		// The same rings serve the next queue pair of that number, from zero.
		a.send.Reset()
		a.recv.Reset()
		for {
			q := a.d.qp(qpOpt{typ: ib.RC, pd: a.pd, scq: a.cq, rcq: a.cq, unattached: true})
			if q.num != a.num {
				a.d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: q.num}.Append(nil), 0)
				continue
			}
			q.send, q.recv = a.send, a.recv
			a.qp = q
			break
		}
		n := b.d.qp(qpOpt{typ: ib.RC, pd: b.pd, scq: b.cq, rcq: b.cq})
		a.connect(n)
		n.connect(a.qp)
		n.postRecv(1, b.sge(0, 10))
		a.post(abi.Send{WRID: 1, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}, []ib.SGE{a.sge(0, 10)}, nil)
		a.kick()
		a.cq.expect(ok(1)...)
		b.cq.expect(ok(1)...)
	})
}

// TestReset: RESET drops everything without completions and the rings stay
// usable; ERR flushes in order.
func TestReset(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		f, a, b := pair(t, verbs, ib.RC)
		for i := range uint64(5) {
			a.post(abi.Send{WRID: i, Opcode: uint8(ib.WRSend)}, []ib.SGE{a.sge(0, 10)}, nil)
			a.postRecv(10+i, a.sge(0, 10))
		}
		a.kick()
		f.run()
		a.to(ib.Reset)
		a.cq.expect()
		if s, r := a.outstanding(); s != 0 || r != 0 {
			t.Fatalf("%d and %d elements kept", s, r)
		}
		b.to(ib.Reset)
		a.connect(b.qp)
		b.connect(a.qp)
		for i := range uint64(3) {
			a.post(abi.Send{WRID: i, Opcode: uint8(ib.WRSend)}, []ib.SGE{a.sge(0, 10)}, nil)
			a.postRecv(10+i, a.sge(0, 10))
		}
		a.kick()
		f.run()
		a.to(ib.Err)
		f.run()
		var sends, recvs []uint64
		for _, e := range a.cq.poll() {
			if e.Status != abi.WireStatus(ib.WRFlushErr) || e.QPN != a.wire {
				t.Errorf("%+v", e)
			}
			if e.WRID < 10 {
				sends = append(sends, e.WRID)
			} else {
				recvs = append(recvs, e.WRID)
			}
		}
		if fmt.Sprint(sends, recvs) != "[0 1 2] [10 11 12]" {
			t.Errorf("flushed %v %v", sends, recvs)
		}
		// What comes later is flushed as it comes.
		a.cq.give(6)
		a.postRecv(20, a.sge(0, 1))
		a.post(abi.Send{WRID: 21, Opcode: uint8(ib.WRSend)}, nil, nil)
		a.kick()
		f.run()
		if e := a.cq.poll(); len(e) != 2 {
			t.Errorf("%+v", e)
		}
	})
}

// TestStopRing: a ring that the client stops keeps its elements, and continues with them when it
// starts again.
func TestStopRing(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		f, a, b := pair(t, verbs, ib.RC)
		q := a.d.dev.StopRing(a.send.index)
		if q == nil || a.d.dev.StopRing(a.send.index) != nil || a.d.dev.StopRing(5000) != nil {
			t.Fatal("a ring stops once")
		}
		b.postRecv(1, b.sge(0, 10))
		a.post(abi.Send{WRID: 1, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}, []ib.SGE{a.sge(0, 10)}, nil)
		a.kick()
		a.cq.expect()
		a.d.dev.StartRing(a.send.index, q, a.send.bell)
		a.cq.expect(ok(1)...)
		b.cq.expect(ok(1)...)
		f.run()
	})
}
