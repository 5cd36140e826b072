// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// Areas of the model test's memory. Writes and sends overlap freely; READ
// sources do not change, for a READ that is resumed may see later writes.
const (
	areaWrite  = 0       // B: targets of WRITE
	areaAtomic = 0x20000 // B: eight counters
	areaRead   = 0x30000 // B: constant
	areaRecv   = 0x40000 // B: receive buffers
	areaSource = 0x50000 // A: constant
	areaResult = 0x80000 // A: results of READ and atomics
	bufSize    = 0x4000
)

// TestModel runs random operations over a path that drops, duplicates and
// reorders packets, and compares both memories with a model that executes the
// same operations one after the other.
func TestModel(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runModel(t, seed) })
	}
}

type modelRun struct {
	rng        *rand.Rand
	a, b       *side
	now        mono.Time
	wires      [2][]*pkt.Burst // in flight from A, from B
	loss       int             // per mille
	wantA      []byte
	wantB      []byte
	keys       []string // operations on keys, at either end: each once and in order
	wantKeys   []string
	sends, rcv []string // completions seen
	wantSends  []string
	wantRcv    []string
	posted     int
	recvs      uint64
}

func runModel(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	m := &modelRun{rng: rng, now: 1, loss: []int{0, 10, 50, 150}[rng.IntN(4)]}
	maxRun := []uint32{256, 1024, 8192}[rng.IntN(3)]
	log := func(name string, to *[]string) func(string, ...any) {
		return func(f string, args ...any) {
			line := fmt.Sprintf(f, args...)
			if strings.Contains(line, " key ") {
				m.keys = append(m.keys, line)
				return
			}
			*to = append(*to, line)
		}
	}
	cfg := testConfig(ib.RC, 17)
	cfg.Window = 16 << 10
	if seed&2 != 0 { // what arrives behind a gap is kept, or not
		cfg.Buffers = NewBuffers(1)
	}
	m.a = newSide("A", cfg, 1<<20, log("A", &m.sends))
	cfg.QPN = 18
	m.b = newSide("B", cfg, 1<<20, log("B", &m.rcv))
	for i := 0; i < len(m.a.buf); i += 8 {
		binary.NativeEndian.PutUint64(m.a.buf[i:], rng.Uint64())
		binary.NativeEndian.PutUint64(m.b.buf[i:], rng.Uint64())
	}
	if seed%2 == 1 {
		m.a.opaque()
		m.b.opaque()
	}
	if err := up(m.a, 1, 2, 18, ib.MTU256, maxRun, false); err != nil {
		t.Fatal(err)
	}
	if err := up(m.b, 2, 1, 17, ib.MTU256, maxRun, false); err != nil {
		t.Fatal(err)
	}
	// Retries are not the subject here.
	m.a.q.attr.RNRRetry = 7
	m.wantA, m.wantB = bytes.Clone(m.a.buf), bytes.Clone(m.b.buf)
	const ops = 60
	for step := 0; len(m.sends) < ops; step++ {
		if step > 200000 {
			t.Fatalf("seed %d: stuck after %d completions of %d: %+v", seed, len(m.sends), m.posted, m.a.q.req)
		}
		for m.posted < ops && rng.IntN(3) == 0 && m.post() {
		}
		m.step(t)
		if m.a.q.State() != ib.RTS {
			// A seed that loses a packet more often than it is repeated is of no use either.
			t.Fatalf("seed %d: in %v, %d times out of retries: %v", seed, m.a.q.State(), m.a.q.ctr.RetryExceeded,
				m.sends[max(0, len(m.sends)-2):])
		}
	}
	compare := func(what string, want, got []string) {
		for i := range max(len(want), len(got)) {
			if i >= len(want) || i >= len(got) || want[i] != got[i] {
				t.Fatalf("seed %d: %s %d: want %q\n got %q", seed, what, i, want[min(i, len(want)):],
					got[min(i, len(got)):])
			}
		}
	}
	compare("send completion", m.wantSends, m.sends)
	compare("receive completion", m.wantRcv, m.rcv)
	compare("operation on a key", m.wantKeys, m.keys)
	for _, c := range []struct {
		name      string
		want, got []byte
	}{{"A", m.wantA, m.a.buf}, {"B", m.wantB, m.b.buf}} {
		if !bytes.Equal(c.want, c.got) {
			i := 0
			for c.want[i] == c.got[i] {
				i++
			}
			t.Fatalf("seed %d: memory of %s differs first at %#x: want %x got %x", seed, c.name, i, c.want[i:i+8],
				c.got[i:i+8])
		}
	}
}

// post posts one random operation and executes it in the model.
func (m *modelRun) post() bool {
	slot := m.a.q.SendSlot()
	if slot == nil {
		return false
	}
	rng := m.rng
	id := uint64(m.posted)
	op := ib.WROp(rng.IntN(int(ib.WRAtomicWrite) + 1))
	n := []uint64{0, 1, 8, 255, 256, 257, 511, 513, 3000, bufSize}[rng.IntN(10)]
	src := areaSource + uint64(rng.IntN(0x1000))
	dst := areaWrite + uint64(rng.IntN(0x8000))
	result := areaResult + uint64(rng.IntN(8))*bufSize
	signal := rng.IntN(4) != 0
	slot.ID, slot.Op, slot.RKey, slot.Imm = id, op, testKey, uint32(id)
	if signal {
		slot.Flags |= ib.Signaled
	}
	if rng.IntN(8) == 0 {
		slot.Flags |= ib.Fence
	}
	recv := -1
	if op.IsSend() || op == ib.WRWriteImm {
		m.recv()
		recv = len(m.wantRcv)
	}
	switch {
	case op == ib.WRRead:
		from := areaRead + uint64(rng.IntN(0x1000))
		slot.RemoteVA, src = base+from, result
		copy(m.wantA[result:result+n], m.wantB[from:])
	case op == ib.WRAtomicWrite:
		n = 8
		at := areaAtomic + uint64(rng.IntN(8))*8
		slot.RemoteVA = base + at
		copy(m.wantB[at:at+n], m.wantA[src:])
	case op.IsAtomic():
		n = 8
		at := areaAtomic + uint64(rng.IntN(8))*8
		slot.RemoteVA, src = base+at, result
		slot.SwapAdd = rng.Uint64()
		old := binary.NativeEndian.Uint64(m.wantB[at:])
		slot.Compare = old + uint64(rng.IntN(2))
		binary.NativeEndian.PutUint64(m.wantA[result:], old)
		v := slot.SwapAdd
		if op == ib.WRFetchAdd {
			v += old
		} else if slot.Compare != old {
			v = old
		}
		binary.NativeEndian.PutUint64(m.wantB[at:], v)
	case op.IsLocal():
		n = 0
		m.wantKeys = append(m.wantKeys, fmt.Sprintf("A %v of key %#x", op, testKey))
	case op.IsSend():
		dst = areaRecv + m.recvs%8*bufSize - bufSize
		if m.recvs%8 == 0 {
			dst = areaRecv + 7*bufSize
		}
		copy(m.wantB[dst:dst+n], m.wantA[src:])
	default:
		slot.RemoteVA = base + dst
		copy(m.wantB[dst:dst+n], m.wantA[src:])
	}
	// One or two entries.
	for left, at := n, src; left > 0; {
		c := left
		if len(slot.SGE) == 0 && left > 1 && rng.IntN(2) == 0 {
			c = 1 + rng.Uint64N(left-1)
		}
		slot.SGE = append(slot.SGE, ib.SGE{Addr: base + at, Len: uint32(c), LKey: testKey})
		at, left = at+c, left-c
	}
	m.wantSends = append(m.wantSends, fmt.Sprintf("A send id=%d signal=%v SUCCESS op=%d len=%d", id, signal,
		op.WCOp(), n))
	if recv >= 0 {
		text := fmt.Sprintf("B recv id=%d SUCCESS op=%d len=%d", m.recvs, ib.WCRecv, n)
		if op == ib.WRWriteImm {
			text = fmt.Sprintf("B recv id=%d SUCCESS op=%d len=%d", m.recvs, ib.WCRecvWithImm, n)
		}
		if op.HasImm() {
			text += fmt.Sprintf(" imm=%#x", id)
		} else if op == ib.WRSendInv {
			text += fmt.Sprintf(" inv=%#x", testKey)
			m.wantKeys = append(m.wantKeys, fmt.Sprintf("B invalidate key %#x", testKey))
		}
		m.wantRcv = append(m.wantRcv, text)
	}
	m.a.q.Post(m.now)
	m.posted++
	return true
}

// recv posts the next receive request; half of them late, so that RNR happens.
func (m *modelRun) recv() {
	m.recvs++
	at := areaRecv + (m.recvs+7)%8*bufSize
	wr := &RecvWR{ID: m.recvs, SGE: []ib.SGE{{Addr: base + at, Len: 100, LKey: testKey}, {Addr: base + at + 100,
		Len: bufSize - 100, LKey: testKey}}}
	m.b.free = append(m.b.free, wr)
}

// step lets each side send, deliver something, or time pass.
func (m *modelRun) step(t *testing.T) {
	rng := m.rng
	for i, s := range []*side{m.a, m.b} {
		var r pkt.Burst
		for k := rng.IntN(4); k > 0 && s.q.Next(m.now, &r); k-- {
			c := r
			buf := make([]byte, r.Data.Len)
			if s.batch.Gather([][]byte{buf}, &r.Data, 0) != mem.OK {
				t.Fatal("unreadable")
			}
			c.Data = mem.BytesPayload(buf)
			m.wires[i] = append(m.wires[i], m.fault(&c)...)
		}
		s.q.Commit(m.now)
		if w := m.wires[i]; len(w) > 1 && rng.IntN(1000) < m.loss {
			k := rng.IntN(len(w) - 1)
			w[k], w[k+1] = w[k+1], w[k]
		}
	}
	if m.b.q.rsp.answers.nak.IsRNR() || rng.IntN(3) == 0 {
		if k := rng.IntN(len(m.b.free) + 1); k > 0 {
			m.b.recvs = append(m.b.recvs, m.pending(k)...)
		}
	}
	for i, to := range []*side{m.b, m.a} {
		n := rng.IntN(len(m.wires[i]) + 1)
		for _, r := range m.wires[i][:n] {
			c := *r
			to.q.Handle(m.now, &c, to.batch)
		}
		m.wires[i] = m.wires[i][n:]
		to.batch.Flush()
		to.q.Commit(m.now)
		if err := to.q.check(); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.wires[0])+len(m.wires[1]) == 0 && !m.a.q.Pending() && !m.b.q.Pending() {
		m.now = m.now.Add(10 * time.Millisecond)
	}
}

// pending takes k requests that were made but not posted; completed ones,
// which the side appends to the same list, are dropped.
func (m *modelRun) pending(k int) []*RecvWR {
	var out []*RecvWR
	posted := uint64(len(m.rcv) + len(m.b.recvs))
	if m.b.q.rsp.recvs.wr != nil {
		posted++
	}
	posted += uint64(m.b.q.rsp.recvs.count)
	for _, wr := range m.b.free {
		if wr.ID > posted && len(out) < k {
			out = append(out, wr)
		}
	}
	return out
}

// fault splits a run into packets at random, and loses or doubles some.
func (m *modelRun) fault(r *pkt.Burst) []*pkt.Burst {
	var out []*pkt.Burst
	for _, p := range splitRun(r, 1+m.rng.Uint32N(r.Count)) {
		switch x := m.rng.IntN(1000); {
		case x < m.loss:
		case x < 2*m.loss:
			out = append(out, p, p)
		default:
			out = append(out, p)
		}
	}
	return out
}

// splitRun cuts a run into runs of at most n packets, as a wire would.
func splitRun(r *pkt.Burst, n uint32) []*pkt.Burst {
	var out []*pkt.Burst
	i := r.Opcode.Info()
	for k := uint32(0); k < r.Count; k += n {
		c := *r
		c.Count = min(n, r.Count-k)
		c.PSN = r.PSN.Add(k)
		first, last := k == 0, k+c.Count == r.Count
		switch {
		case !first && last:
			c.Opcode = r.Opcode.Split(r.Count-1, r.Count)
		case first && !last:
			c.Opcode = r.Opcode.Split(0, r.Count)
		case !first:
			c.Opcode = r.Opcode.Split(1, r.Count+2)
			if i.Last && r.Count > 2 {
				c.Opcode = r.Opcode.Split(1, 3)
			}
		}
		if !last {
			c.AckReq, c.SE = false, false
		}
		from := int(k * r.MTU)
		to := len(r.Data.Bytes)
		if !last {
			to = from + int(c.Count*r.MTU)
		}
		if from <= to {
			c.Data = mem.BytesPayload(r.Data.Bytes[from:to])
		}
		out = append(out, &c)
	}
	return out
}
