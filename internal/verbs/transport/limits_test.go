// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"strings"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// huge makes a side with a region that pretends to be 16 GiB long; nothing may touch
// what is beyond its bytes.
func huge(t *testing.T, log func(string, ...any)) *side {
	t.Helper()
	s := newSide("A", testConfig(ib.RC, 17), 4096, log)
	s.region.Len = 16 << 30
	if err := up(s, 1, 2, 18, ib.MTU256, 1<<30, true); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestOutstandingLimit: a READ of 2^31 bytes at an MTU of 256 takes all 2^23
// sequence numbers that may be outstanding; the next request waits for it.
func TestOutstandingLimit(t *testing.T) {
	s := huge(t, t.Logf)
	for range 2 {
		wr := s.q.SendSlot()
		wr.Op, wr.RemoteVA, wr.RKey = ib.WRRead, base, testKey
		wr.SGE = append(wr.SGE, ib.SGE{Addr: base, Len: 1 << 31, LKey: testKey})
		s.q.Post(1)
	}
	var r pkt.Burst
	if !s.q.Next(1, &r) || r.DMALen != 1<<31 || s.q.Next(1, &r) {
		t.Fatalf("%+v", r)
	}
	if got := dist(s.q.req.maxPSN, s.q.req.una); got != maxOutstanding {
		t.Fatalf("%d outstanding", got)
	}
	if err := s.q.check(); err != nil {
		t.Fatal(err)
	}
	// The newest PSN is still distinct from one that was never sent.
	last := r.PSN.Add(maxOutstanding - 1)
	s.q.req.onAck(1, &pkt.Burst{})
	if s.q.ctr.DropPSN != 1 {
		t.Fatal("a ghost was taken for an answer")
	}
	if dist(last, s.q.req.una) >= dist(s.q.req.maxPSN, s.q.req.una) {
		t.Fatal("the newest PSN is outside the window")
	}
}

// TestWriteOutstandingLimit: the same bound cuts what a WRITE may send.
func TestWriteOutstandingLimit(t *testing.T) {
	s := huge(t, t.Logf)
	for range 2 {
		wr := s.q.SendSlot()
		wr.Op, wr.RemoteVA, wr.RKey = ib.WRWrite, base, testKey
		wr.SGE = append(wr.SGE, ib.SGE{Addr: base, Len: 3 << 29, LKey: testKey})
		s.q.Post(1)
	}
	var r pkt.Burst
	packets := uint32(0)
	for s.q.Next(1, &r) {
		packets += r.Count
	}
	if packets != maxOutstanding {
		t.Fatalf("%d packets left", packets)
	}
}

// TestMessageLength: 2^31 bytes are a message, one more is not; lengths are
// summed without wrapping at 2^32.
func TestMessageLength(t *testing.T) {
	for _, c := range []struct {
		sges []uint32
		want string
	}{
		{[]uint32{1 << 31}, ""},
		{[]uint32{1 << 30, 1 << 30}, ""},
		{[]uint32{1<<31 + 1}, "LOC_LEN_ERR"},
		{[]uint32{1 << 31, 1}, "LOC_LEN_ERR"},
		{[]uint32{1 << 31, 1 << 31, 8}, "LOC_LEN_ERR"},
	} {
		var log []string
		s := huge(t, func(f string, a ...any) { log = append(log, fmt.Sprintf(f, a...)) })
		wr := s.q.SendSlot()
		wr.Op, wr.RemoteVA, wr.RKey = ib.WRWrite, base, testKey
		for _, n := range c.sges {
			wr.SGE = append(wr.SGE, ib.SGE{Addr: base, Len: n, LKey: testKey})
		}
		s.q.Post(1)
		var r pkt.Burst
		sent := s.q.Next(1, &r)
		if sent != (c.want == "") || !strings.Contains(strings.Join(log, " "), c.want) {
			t.Errorf("%v: sent %v, %v", c.sges, sent, log)
		}
	}
}

// TestPathChangeInSQD: an address vector that SQD replaces gets a window.
func TestPathChangeInSQD(t *testing.T) {
	a, b := pair(t, ib.RC, ib.MTU256, 1024, true)
	for _, to := range []ib.QPState{ib.SQD, ib.SQD, ib.RTS} {
		at := Attr{State: to, Path: &ib.Path{SGID: gid(1), DGID: gid(2), MaxRun: 1024}}
		mask := ib.AttrState
		if to == a.q.State() {
			mask |= ib.AttrAV
		}
		if err := a.q.Modify(1, &at, mask); err != nil {
			t.Fatal(err)
		}
	}
	a.post(1, ib.WRWrite, ib.Signaled, 0, 9000, 0)
	a.q.Post(1)
	pump(1, a, b)
	if err := a.q.check(); err != nil || a.sends != 1 {
		t.Fatalf("%d completions, %v", a.sends, err)
	}
}

// TestStageFills: more messages in one round than completions can be staged
// for; none is lost, none is visible before its data.
func TestStageFills(t *testing.T) {
	var log []string
	s := newSide("B", testConfig(ib.RC, 17), 4096, func(f string, a ...any) { log = append(log, fmt.Sprintf(f, a...)) })
	if err := up(s, 2, 1, 18, ib.MTU256, 256, true); err != nil {
		t.Fatal(err)
	}
	const n = 3*stageDepth + 5
	for i := range uint64(n) {
		s.recv(i, 0, 8)
	}
	psn := ib.PSN(1) << 8
	for i := range uint32(n) {
		r := &pkt.Burst{Count: 1, Path: &ib.Path{SGID: gid(1), DGID: gid(2)}}
		r.Opcode, r.PSN, r.PKey, r.AckReq = ib.SendOnly, psn.Add(i), ib.DefaultPKey, true
		s.q.Handle(1, r, s.batch)
	}
	s.batch.Flush()
	s.q.Commit(1)
	if len(log) != n {
		t.Fatalf("%d completions", len(log))
	}
	for i, l := range log {
		if l != fmt.Sprintf("B recv id=%d SUCCESS op=128 len=0", i) {
			t.Fatalf("completion %d: %s", i, l)
		}
	}
	var r pkt.Burst
	if !s.q.Next(mono.Time(1), &r) || r.PSN != psn.Add(n-1) || s.q.Next(1, &r) {
		t.Fatalf("%+v", r)
	}
}

// TestNextWaitsForCommit: an answer never overtakes the data it answers for.
func TestNextWaitsForCommit(t *testing.T) {
	a, b := pair(t, ib.RC, ib.MTU256, 1024, true)
	a.quiet, b.quiet = true, true
	a.post(1, ib.WRWrite, ib.Signaled, 0, 9, 0)
	a.q.Post(1)
	var r pkt.Burst
	if !a.q.Next(1, &r) {
		t.Fatal("nothing sent")
	}
	b.q.Handle(1, &r, b.batch)
	if b.q.Next(1, &r) {
		t.Fatal("answered before the flush")
	}
	b.batch.Flush()
	b.q.Commit(1)
	if !b.q.Next(1, &r) || r.Opcode != ib.Acknowledge {
		t.Fatalf("%+v", r)
	}
}

// TestPlacementFails: memory that vanishes between check and copy is found at
// the flush, through the batch.
func TestPlacementFails(t *testing.T) {
	for _, c := range []struct {
		op   ib.WROp
		want []string
	}{
		{ib.WRSend, []string{"B recv id=1 SUCCESS op=128 len=64", "A send id=1 signal=true SUCCESS op=0 len=64",
			"B recv id=2 LOC_PROT_ERR", "B recv id=3 WR_FLUSH_ERR",
			"A send id=2 signal=true REM_OP_ERR", "A send id=3 signal=true WR_FLUSH_ERR"}},
		{ib.WRWrite, []string{"A send id=1 signal=true SUCCESS op=1 len=64", "B event QP_FATAL",
			"B recv id=1 WR_FLUSH_ERR", "B recv id=2 WR_FLUSH_ERR", "B recv id=3 WR_FLUSH_ERR",
			"A send id=2 signal=true REM_OP_ERR", "A send id=3 signal=true WR_FLUSH_ERR"}},
		{ib.WRRead, []string{"A send id=1 signal=true SUCCESS op=2 len=64", "A send id=2 signal=true LOC_PROT_ERR",
			"A send id=3 signal=true WR_FLUSH_ERR"}},
	} {
		t.Run(c.op.String(), func(t *testing.T) {
			var log []string
			a, b := pair(t, ib.RC, ib.MTU256, 1024, true)
			a.log = func(f string, args ...any) { log = append(log, fmt.Sprintf(f, args...)) }
			b.log = a.log
			a.opaque().bad, b.opaque().bad = base+64, base+64
			for i := range uint64(3) {
				off := uint64(0)
				if i == 1 {
					off = 64
				}
				b.recv(i+1, off, 64)
				a.post(i+1, c.op, ib.Signaled, off, 64, off)
				a.q.Post(1)
				if i == 0 {
					pump(1, a, b)
				}
			}
			pump(1, a, b)
			a.q.Next(1, &pkt.Burst{})
			if got, want := strings.Join(log, "\n"), strings.Join(c.want, "\n"); got != want {
				t.Fatalf("want\n%s\ngot\n%s", want, got)
			}
		})
	}
}

// TestRecordsOutliveTheirNumbers: 2^24 packets after a READ its record bears
// the numbers of a newer one, and a duplicate of the newer one must be
// answered from the newer one.
func TestRecordsOutliveTheirNumbers(t *testing.T) {
	s := newSide("B", testConfig(ib.RC, 17), 4096, t.Logf)
	if err := up(s, 2, 1, 18, ib.MTU256, 256, true); err != nil {
		t.Fatal(err)
	}
	psn := ib.PSN(1) << 8
	read := func(off uint64) pkt.Burst {
		r := pkt.Burst{Count: 1, Path: &ib.Path{SGID: gid(1), DGID: gid(2)}}
		r.Opcode, r.PSN, r.PKey, r.VA, r.RKey, r.DMALen = ib.ReadRequest, psn, ib.DefaultPKey, base+off, testKey, 8
		s.q.Handle(1, &r, s.batch)
		s.q.Commit(1)
		var got pkt.Burst
		s.q.Next(1, &got)
		return got
	}
	read(0)
	s.q.rsp.ePSN = psn // 2^24 packets later
	for _, try := range []string{"first", "duplicate"} {
		if r := read(512); r.Opcode != ib.ReadRespOnly || r.PSN != psn || r.Data.Off != 0 ||
			r.Data.Segs[0].Addr != base+512 {
			t.Errorf("%s: %+v", try, r)
		}
	}
}

// TestReceiveLength: a message has at most 2^31 bytes, whatever the request
// that receives it has room for: its length is reported in 32 bits.
func TestReceiveLength(t *testing.T) {
	var log []string
	s := huge(t, func(f string, a ...any) { log = append(log, fmt.Sprintf(f, a...)) })
	wr := &RecvWR{ID: 1}
	for range 3 {
		wr.SGE = append(wr.SGE, ib.SGE{Addr: base, Len: 1 << 31, LKey: testKey})
	}
	s.recvs = append(s.recvs, wr)
	s.q.rsp.recvs.wr, s.recvs = wr, nil
	s.q.rsp.recvs.open()
	s.q.rsp.open, s.q.rsp.recvs.placed = true, 1<<31
	r := pkt.Burst{Count: 1, Path: &ib.Path{SGID: gid(2), DGID: gid(1)}, Data: mem.BytesPayload(make([]byte, 8))}
	r.Opcode, r.PSN, r.PKey = ib.SendLast, ib.PSN(2)<<8, ib.DefaultPKey
	s.q.Handle(1, &r, mem.NewBatch(64))
	s.q.Commit(1)
	if got := strings.Join(log, " "); !strings.Contains(got, "LOC_LEN_ERR") {
		t.Error(got)
	}
}
