// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
)

// slots is how many packets the buffer of these tests has room for.
const slots = bufferBytes / 4096

// oooSides makes n responders with memory that is reached by calls only, with one buffer and
// one batch for all of them, as on a lane.
func oooSides(t *testing.T, n int) []*side {
	t.Helper()
	buffers, batch := NewBuffers(1), mem.NewBatch(4096)
	list := make([]*side, n)
	for i := range list {
		cfg := testConfig(ib.RC, 17)
		cfg.Buffers = buffers
		s := newSide("B", cfg, 2*bufferBytes, t.Logf)
		s.batch, s.quiet = batch, true
		s.opaque()
		if err := up(s, 2, 1, 18, ib.MTU4096, 1<<16, false); err != nil {
			t.Fatal(err)
		}
		list[i] = s
	}
	return list
}

// write hands the side packets of one WRITE of twice a buffer, from packet at on.
func (s *side) write(at, count uint32, fill byte) {
	r := pkt.Burst{Count: count, MTU: 4096, Path: &ib.Path{SGID: gid(1), DGID: gid(2)},
		Data: mem.BytesPayload(bytes.Repeat([]byte{fill}, int(count)*4096))}
	r.Opcode, r.PSN, r.PKey, r.AckReq = ib.WriteMiddle, (ib.PSN(1) << 8).Add(at), ib.DefaultPKey, true
	if at == 0 {
		r.Opcode, r.VA, r.RKey, r.DMALen = ib.WriteFirst, base, testKey, 2*bufferBytes
	}
	s.q.Handle(1, &r, s.batch)
}

func (s *side) commit() {
	s.batch.Flush()
	s.q.Commit(1)
}

// TestOutOfOrderBufferReturns: a buffer from which copies are still to be made is not given to another queue pair,
// and its slots are not used again, before Commit.
func TestOutOfOrderBufferReturns(t *testing.T) {
	list := oooSides(t, 2)
	a, b := list[0], list[1]
	a.write(1, 1, 1)
	a.write(0, 1, 2)
	// The copy of packet 1 is pending; this one would have its slot.
	a.write(1+slots, 1, 3)
	b.write(1, 1, 4)
	if a.q.ctr.OOOBuffered != 1 || a.q.ctr.OOORefused != 1 || b.q.ctr.OOOBuffered != 0 || b.q.ctr.OOORefused != 1 {
		t.Fatalf("%+v\n%+v", a.q.ctr, b.q.ctr)
	}
	a.commit()
	if a.buf[0] != 2 || a.buf[4096] != 1 || a.buf[8191] != 1 || a.buf[8192] != 0 {
		t.Fatal("memory is wrong")
	}
	b.write(2, 1, 4)
	if b.q.ctr.OOOBuffered != 1 {
		t.Fatalf("%+v", b.q.ctr)
	}
	b.q.Destroy()
	a.write(3, 1, 5)
	if a.q.ctr.OOOBuffered != 2 {
		t.Fatalf("destruction kept the buffer: %+v", a.q.ctr)
	}
}

// TestOutOfOrderBufferReleasedAtEnd: an orphaned or failed queue pair returns its buffer to the lane.
func TestOutOfOrderBufferReleasedAtEnd(t *testing.T) {
	for name, end := range map[string]func(*QP) bool{
		"orphan": func(q *QP) bool { return q.Orphan(1) },
		"error":  func(q *QP) bool { return q.Modify(1, &Attr{State: ib.Err}, ib.AttrState) == nil },
	} {
		t.Run(name, func(t *testing.T) {
			list := oooSides(t, 2)
			a, b := list[0], list[1]
			a.write(1, 1, 1)
			a.commit()
			if !end(a.q) || a.q.ctr.OOOBuffered != 1 {
				t.Fatalf("%+v", a.q.ctr)
			}
			b.write(1, 1, 2)
			if b.q.ctr.OOOBuffered != 1 {
				t.Fatalf("the buffer is lost: %+v", b.q.ctr)
			}
		})
	}
}

// TestOutOfOrderBufferWraps: bursts of all lengths at every place of the buffer arrive whole, and
// what does not fit is refused.
func TestOutOfOrderBufferWraps(t *testing.T) {
	s := oooSides(t, 1)[0]
	want := make([]byte, 0, 2*bufferBytes)
	at := uint32(0)
	for k := uint32(1); at+k+1 < 2*slots; k = k*3/2 + 1 {
		// The packet at is missing, then k follow.
		for i := range k {
			s.write(at+1+i, 1, byte(at+1+i))
		}
		s.write(at, 1, byte(at))
		s.commit()
		for i := range k + 1 {
			want = append(want, bytes.Repeat([]byte{byte(at + i)}, 4096)...)
		}
		at += k + 1
		if !bytes.Equal(s.buf[:len(want)], want) {
			t.Fatalf("%d packets behind packet %d are wrong", k, at)
		}
	}
	if at < slots || s.q.ctr.OOORefused != 0 {
		t.Fatalf("%d packets, %+v", at, s.q.ctr)
	}
	s.write(at+slots, 1, 0xee)
	s.write(at+1, slots, 0xee)
	if s.q.ctr.OOORefused != slots+1 {
		t.Fatalf("%+v", s.q.ctr)
	}
	s.write(at+1, slots-1, 0xee)
	if s.q.ctr.OOORefused != slots+1 {
		t.Fatalf("%+v", s.q.ctr)
	}
}

// TestOutOfOrderBufferAllocs: once there is a buffer, a gap allocates nothing.
func TestOutOfOrderBufferAllocs(t *testing.T) {
	s := oooSides(t, 1)[0]
	body := mem.BytesPayload(make([]byte, 4096))
	psn := ib.PSN(1) << 8
	r := pkt.Burst{Count: 1, MTU: 4096, Path: &ib.Path{SGID: gid(1), DGID: gid(2)}}
	one := func(at uint32) {
		r.Opcode, r.PSN, r.PKey, r.Data = ib.WriteOnly, psn.Add(at), ib.DefaultPKey, body
		r.VA, r.RKey, r.DMALen = base, testKey, 4096
		s.q.Handle(1, &r, s.batch)
	}
	n := testing.AllocsPerRun(100, func() {
		for _, at := range []uint32{3, 1, 2, 0} {
			one(at)
		}
		psn = psn.Add(4)
		s.commit()
	})
	if n != 0 || s.q.ctr.OOOBuffered != 303 || s.q.rsp.ooo != nil {
		t.Fatalf("%v allocations, %+v", n, s.q.ctr)
	}
}
