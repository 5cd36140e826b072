// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// FuzzHandle drives one queue pair by the bytes of its input: requests,
// inbound runs of every shape, time, changes of state, failing memory. No
// sequence may panic or break an invariant, every request taken must come back
// exactly once, and after RESET nothing is left.
func FuzzHandle(f *testing.F) {
	for typ := range byte(5) {
		f.Add([]byte{typ, 3, 2, 1, 4, 0, 0, 8, 3, 0, 1, 0, 0, 0, 8, 3, 0x11, 1, 0, 0, 0, 0})
		f.Add([]byte{typ, 2, 1, 1, 3, 0x00, 1, 0, 1, 0, 0, 3, 0x02, 1, 1, 0, 8, 0, 3, 0x0c, 1, 2, 3, 0, 0, 5, 4, 6, 0})
		f.Add([]byte{typ, 3, 0, 4, 1, 2, 0, 4, 1, 2, 0, 5, 7, 3, 0x0d, 1, 0, 1, 0, 0, 8, 2, 9, 6})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		z := &fuzzer{t: t, in: data, now: mono.Time(time.Second)}
		z.run()
	})
}

// fuzzBatch is reused: a new one clears hundreds of kilobytes.
var fuzzBatch = mem.NewBatch(4096)

// fuzzBuffers is one buffer, which every run returns.
var fuzzBuffers = NewBuffers(1)

type fuzzer struct {
	t     *testing.T
	in    []byte
	now   mono.Time
	s     *side
	posts int
	taken int
}

func (z *fuzzer) byte() byte {
	if len(z.in) == 0 {
		return 0
	}
	b := z.in[0]
	z.in = z.in[1:]
	return b
}

func (z *fuzzer) run() {
	typ := ib.QPType(z.byte() % 5)
	cfg := testConfig(typ, 17)
	cfg.Cap.MaxSendWR, cfg.SRQ, cfg.Buffers = 4, z.byte()&0x80 != 0, fuzzBuffers
	z.s = newSide("X", cfg, 4096, nil)
	z.s.quiet, z.s.batch = true, fuzzBatch
	state := ib.QPState(z.byte() % 7)
	for st := ib.Init; st <= state && st <= ib.RTS; st++ {
		z.modify(st)
	}
	if state > ib.RTS {
		z.modify(state)
	}
	for steps := 0; len(z.in) > 0 && steps < 500; steps++ {
		z.step()
		if err := z.s.q.check(); err != nil {
			z.t.Fatal(err)
		}
	}
	z.s.batch.Flush()
	z.s.q.Commit(z.now)
	z.s.q.Destroy()
	if err := z.s.q.check(); err != nil {
		z.t.Fatal(err)
	}
	if z.s.sends != z.posts {
		z.t.Fatalf("%d requests posted, %d came back", z.posts, z.s.sends)
	}
	if len(z.s.free)+len(z.s.recvs) != z.taken {
		z.t.Fatalf("%d receive requests posted, %d came back, %d left", z.taken, len(z.s.free), len(z.s.recvs))
	}
}

func (z *fuzzer) modify(to ib.QPState) {
	q := z.s.q
	a := validAttr(q.State(), to)
	a.Path = &ib.Path{SGID: gid(1), DGID: gid(2), MaxRun: 1024, Local: z.byte()&1 != 0}
	a.PathMTU, a.SQPSN, a.RQPSN, a.RetryCnt, a.RNRRetry = ib.MTU256, 0xfffffe, 0xfffffe, 1, 1
	a.Access = ib.RemoteRead | ib.RemoteWrite | ib.RemoteAtomic
	mask := transitions[q.State()][to][q.Type()].required | ib.AttrState
	if q.State() == ib.Init && to == ib.RTR && q.svc != ib.ServiceUD {
		mask |= ib.AttrAccessFlags
	}
	_ = q.Modify(z.now, &a, mask)
}

func (z *fuzzer) step() {
	q, s := z.s.q, z.s
	switch z.byte() % 12 {
	case 0, 1, 2, 3:
		z.handle()
	case 4:
		wr := q.SendSlot()
		if wr == nil {
			return
		}
		wr.Op, wr.Flags = ib.WROp(z.byte()%13), ib.SendFlags(z.byte()&0x1f)
		n := uint32(z.byte()) * 8
		if wr.Flags&ib.Inline != 0 {
			wr.InlineData = s.buf[:n&0x7f]
		} else if n > 0 {
			wr.SGE = append(wr.SGE, ib.SGE{Addr: base, Len: n, LKey: ib.Key(testKey + uint32(z.byte()&0x80))})
		}
		wr.RemoteVA, wr.RKey = base, testKey
		if z.byte()&1 != 0 {
			wr.Path = &ib.Path{SGID: gid(1), DGID: gid(2)}
		}
		q.Post(z.now)
		z.posts++
	case 5:
		s.recv(1, uint64(z.byte()), uint64(z.byte())*4)
		z.taken++
	case 6, 7:
		z.settle()
		var r pkt.Burst
		for i := 0; i < 20 && q.Next(z.now, &r); i++ {
			if r.Count == 0 || r.Data.Len < 0 {
				z.t.Fatalf("run %+v", r)
			}
			if z.byte() == 0xfe {
				q.SourceFault(z.now, &r)
			}
		}
		q.Commit(z.now)
	case 8:
		z.settle()
		z.modify(ib.QPState(z.byte() % 7))
	case 9:
		z.now = z.now.Add(time.Duration(z.byte()) * time.Millisecond)
	case 10:
		z.settle()
	case 11:
		// Only a queue pair that requested copies is notified of one that failed.
		b, st := z.byte(), q.State()
		switch {
		case b > 240 && st >= ib.RTR && st <= ib.SQE:
			q.rsp.received.PlacementFailed()
		case b > 220 && q.Type() == ib.RC && (st == ib.RTS || st == ib.SQD):
			q.req.PlacementFailed()
		}
		z.settle()
	}
}

func (z *fuzzer) settle() {
	z.s.batch.Flush()
	z.s.q.Commit(z.now)
}

// handle makes a run of the next bytes: mostly near what is expected.
func (z *fuzzer) handle() {
	q := z.s.q
	var r pkt.Burst
	r.Opcode = ib.Opcode(z.byte())
	if b := z.byte(); b&0x80 == 0 {
		r.Opcode = q.svc | r.Opcode.Op()
		r.Count = uint32(b & 3)
	} else {
		r.Count = uint32(b)
	}
	psn := q.rsp.ePSN
	if r.Opcode.Info().Response {
		psn = q.req.una
	}
	r.PSN = psn.Add(uint32(int32(int8(z.byte()))) & ib.PSNMask)
	n := int(z.byte()&7)*256 + int(z.byte()&3)
	r.Path = &ib.Path{SGID: gid(2), DGID: gid(1)}
	r.PKey, r.MTU, r.QKey = ib.DefaultPKey, 256, 5
	r.VA, r.RKey, r.DMALen = base, testKey, uint32(n)
	switch b := z.byte(); b & 7 {
	case 1:
		r.RKey = 1
	case 2:
		r.VA += uint64(b)
	case 3:
		r.DMALen += 256
	case 4:
		r.MTU = 512
	case 5:
		r.Syndrome = ib.Syndrome(b)
	case 6:
		r.AckReq = true
	}
	if r.Opcode.Info().Payload || r.Opcode == 0xff {
		r.Data = mem.BytesPayload(make([]byte, n))
		if z.byte() == 0xfd {
			// A source that went away.
			gone := &mem.Region{Space: mem.NewSlice(base, nil), Start: base, Base: base, Len: 1 << 20}
			r.Data = mem.ListPayload([]mem.Seg{{Region: gone, Addr: base, Len: uint64(n)}}, 0, n)
		}
	}
	q.Handle(z.now, &r, z.s.batch)
}
