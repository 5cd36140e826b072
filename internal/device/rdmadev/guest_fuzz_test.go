// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"weft/internal/device/rdmadev"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// FuzzExecute executes any command in a card's device, with any memory behind it and any extensions enabled. A refusal
// is one octet, is remembered and counted once, and changes nothing.
func FuzzExecute(f *testing.F) {
	for _, v := range vectors(f, "ctrl", "ctrl-error") {
		f.Add(uint64(0), uint16(200), unhex(f, v.ToDevice), []byte(nil))
	}
	short := append([]byte{6, 7}, abi.RegUserMR{PDN: 1, AccessFlags: 7, VirtAddr: 100, Length: 4096,
		NPages: 2}.Append(nil)...)
	f.Add(uint64(0), uint16(13), short, le64(le64(nil, lowBase), lowBase+4096))
	f.Add(uint64(0), uint16(13), short, le64(nil, lowBase))
	f.Add(^uint64(0), uint16(20), append([]byte{6, 9}, abi.CreateQP{PDN: 1, QPType: ib.GSI}.Append(nil)...),
		[]byte(nil))
	f.Add(^uint64(0), uint16(20), append([]byte{6, 15}, abi.AddGID{Index: 4, GID: gid}.Append(nil)...), []byte(nil))
	f.Add(^uint64(0), uint16(20), append([]byte{6, 10}, abi.ModifyQP{QPN: 2, AttrMask: 0x1ffff,
		RateLimit: 9}.Append(nil)...),
		[]byte(nil))
	f.Fuzz(func(t *testing.T, mask uint64, room uint16, in, behind []byte) {
		if len(in) > bufSize {
			return
		}
		fab := newCard(t)
		d := fab.newDriver(false, 1<<20)
		pd := d.pd()
		c := d.cq(16)
		d.must(abi.CmdAddGID, abi.AddGID{Index: 1, GID: gid}.Append(nil), 0)
		d.ah(pd)
		_, at := d.buffer(4096)
		d.mr(pd, at, 4096, allAccess)
		d.qp(qpOpt{typ: ib.RC, pd: pd, scq: c, rcq: c})
		if mask != 0 {
			d.must(abi.CmdExtEnable, abi.ExtEnable{Mask: mask}.Append(nil), abi.ExtEnableSize)
		}
		before, stats, refusals := d.dev.Session().Objects(), d.dev.Stats, len(d.dev.Refusals())
		out := d.dev.Execute(bytes.Clone(in), int(room), func(n int) []byte {
			if n <= 0 || n > len(behind) {
				return nil
			}
			return behind[:n]
		})
		if len(out) > int(room) || room > 0 && len(out) == 0 || len(out) > 1 && out[0] != 0 {
			t.Fatalf("an answer of %d octets %x in room for %d", len(out), out, room)
		}
		want := before
		switch {
		case room == 0:
		case out[0] == 0:
			want += effect[abi.Cmd(in[1])]
			if d.dev.Stats.CtrlErrors != stats.CtrlErrors {
				t.Fatal("success was counted as a refusal")
			}
		default:
			l := d.dev.Refusals()
			if sum(&d.dev.Stats) != sum(&stats)+1 || d.dev.Stats.CtrlErrors != stats.CtrlErrors+1 ||
				len(l) != refusals+1 || l[len(l)-1].Reason == "" {
				t.Fatalf("a refusal was counted as %+v and remembered as %+v", d.dev.Stats, l)
			}
		}
		if got := d.dev.Session().Objects(); got != want {
			t.Fatalf("%d objects became %d, want %d", before, got, want)
		}
		if err := d.consistent(); err != nil || d.fault != nil {
			t.Fatal(err, d.fault)
		}
		fab.run()
		d.close()
	})
}

// sum adds the counters of refused commands.
func sum(s *rdmadev.Stats) uint64 {
	return s.RefusedFraming + s.RefusedCommand + s.RefusedHandle + s.RefusedInUse + s.RefusedQuota + s.RefusedAddress +
		s.RefusedRight + s.RefusedValue
}

// FuzzRegUserMR registers memory by both forms of the command, with any list: they agree, and what they accept is the
// memory of the list.
func FuzzRegUserMR(f *testing.F) {
	f.Add(uint64(0x1000), uint64(4096), uint32(1), le64(nil, lowBase))
	f.Add(uint64(0x1001), uint64(4096), uint32(2), le64(le64(nil, lowBase), lowBase+8192))
	f.Add(uint64(0x1001), uint64(4096), uint32(2), le64(le64(nil, lowBase+1<<20-4096), lowBase+1<<20))
	f.Add(^uint64(0), uint64(2), uint32(1), le64(nil, lowBase))
	f.Add(uint64(0), uint64(1<<20), uint32(1), le64(nil, lowBase))
	f.Fuzz(func(t *testing.T, va, length uint64, n uint32, list []byte) {
		if len(list) > 2048 {
			return
		}
		fab := newFabric(t)
		d := fab.newDriver(false, 1<<20)
		pd := d.pd()
		req := append([]byte{6, 7}, abi.RegUserMR{PDN: pd, AccessFlags: allAccess, VirtAddr: va, Length: length,
			NPages: n}.Append(nil)...)
		behind := func(n int) []byte {
			if n > len(list) {
				return nil
			}
			return list[:n]
		}
		short := bytes.Clone(d.dev.Execute(req, 13, behind))
		if len(list) == 0 {
			return
		}
		long := d.dev.Execute(append(bytes.Clone(req), list...), 13, nil)
		if len(short) != len(long) || short[0] != long[0] {
			t.Fatalf("the short form %x, the long form %x", short, long)
		}
		if short[0] != 0 {
			return
		}
		for _, r := range d.dev.Session().Inspect().MRs {
			if r.Start != va || r.Len != length || n == 0 || length == 0 {
				t.Fatalf("%+v of %d octets at %#x", r, length, va)
			}
		}
		for i := range n {
			if p := binary.LittleEndian.Uint64(list[8*i:]); p < lowBase || p >= lowBase+1<<20 {
				t.Fatalf("page %d at %#x was accepted", i, p)
			}
		}
	})
}

// FuzzElements gives a queue pair of any type a send and a receive element made of any octets. Each completes, or
// waits; neither ends the session or writes outside announced memory.
func FuzzElements(f *testing.F) {
	types := []ib.QPType{ib.RC, ib.UC, ib.UD, ib.GSI}
	wr := make([]byte, 576+16)
	wr[8], wr[9] = 2, 2
	for i := range types {
		f.Add(byte(i), byte(0), wr, make([]byte, 24))
		f.Add(byte(i), byte(1), wr[:80], make([]byte, 24+16))
		f.Add(byte(i), byte(2), wr[:100], make([]byte, 3))
	}
	f.Fuzz(func(t *testing.T, typ, ext byte, send, recv []byte) {
		if len(send) > slotSize || len(recv) > slotSize {
			return
		}
		fab := newCard(t)
		d := fab.newDriver(false, 1<<20)
		d.must(abi.CmdAddGID, abi.AddGID{Index: 1, GID: gid}.Append(nil), 0)
		if ext&1 != 0 {
			d.enable()
		}
		pd, c := d.pd(), d.cq(64)
		d.ah(pd)
		_, at := d.buffer(4096)
		d.mr(pd, at, 4096, allAccess)
		var q *qp
		if k := types[typ%4]; k == ib.GSI {
			q = d.gsi(pd, c)
		} else {
			q = d.qp(qpOpt{typ: k, pd: pd, scq: c, rcq: c})
			q.connect(q) // its own peer
		}
		for range 3 {
			q.recv.post(d, recv)
			q.send.post(d, send)
		}
		d.dev.Kick(q.recv.index)
		d.dev.Kick(q.send.index)
		fab.pass(10 * time.Second)
		if d.fault != nil {
			t.Fatalf("an element ended the session: %v", d.fault)
		}
		if n, _ := q.outstanding(); n != 0 {
			t.Fatalf("%d send elements are not used", n)
		}
		for _, e := range c.poll() {
			if e.QPN != q.wire {
				t.Fatalf("%+v of queue pair %d", e, q.wire)
			}
		}
		if err := d.consistent(); err != nil {
			t.Fatal(err)
		}
		d.close()
	})
}
