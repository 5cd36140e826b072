// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

const (
	base    = 0x10000
	testKey = 0x1234
)

// side is one end of a test connection: a queue pair and the adapter around
// it. Memory is one region of size bytes at address base with key testKey.
type side struct {
	name   string
	q      *QP
	buf    []byte
	region *mem.Region
	batch  *mem.Batch
	recvs  []*RecvWR // posted, oldest first
	free   []*RecvWR
	log    func(format string, args ...any)
	sends  int // SendDone calls
	quiet  bool
}

// opaque is memory that only calls reach, as that of another process; writes
// at or above bad fail.
type opaque struct {
	*mem.Slice
	bad uint64
}

func (o *opaque) View(addr, n uint64) []byte { return nil }

func (o *opaque) WriteV(w []mem.Write) (int, error) {
	for i := range w {
		if o.bad != 0 && w[i].Addr+uint64(len(w[i].Data)) > o.bad {
			n, _ := o.Slice.WriteV(w[:i])
			return n, mem.ErrFault
		}
	}
	return o.Slice.WriteV(w)
}

// opaque makes the side's memory reachable by calls only.
func (s *side) opaque() *opaque {
	o := &opaque{Slice: mem.NewSlice(base, s.buf)}
	s.region.Space = o
	return o
}

func (s *side) LocalRegion(lkey ib.Key, addr, n uint64, need ib.Access) *mem.Region {
	if lkey != testKey || !s.region.Allows(addr, n, need) {
		return nil
	}
	return s.region
}

func (s *side) RemoteRegion(rkey ib.Key, addr, n uint64, need ib.Access) *mem.Region {
	return s.LocalRegion(rkey, addr, n, need)
}

// Local succeeds for the test's key alone.
func (s *side) Local(wr *SendWR) (ib.Status, uint32) {
	if r := &s.q.req; r.ack != r.tx || r.una != r.maxPSN || r.owed {
		panic("a local operation while requests before it are under way")
	}
	if wr.RKey != testKey {
		return ib.MWBindErr, ReasonObject
	}
	if !s.quiet {
		s.log("%s %v of key %#x", s.name, wr.Op, uint32(wr.RKey))
	}
	return ib.Success, ReasonNone
}

// Invalidate succeeds for the test's key alone, which goes on being good here.
func (s *side) Invalidate(rkey ib.Key) bool {
	if !s.quiet {
		s.log("%s invalidate key %#x", s.name, uint32(rkey))
	}
	return rkey == testKey
}

func (s *side) TakeRecv() *RecvWR {
	if len(s.recvs) == 0 {
		return nil
	}
	wr := s.recvs[0]
	s.recvs = s.recvs[:copy(s.recvs, s.recvs[1:])]
	return wr
}

func (s *side) SendDone(wr *SendWR, signal bool, c *Completion) {
	s.sends++
	if !s.quiet {
		s.log("%s send id=%d signal=%v %s", s.name, wr.ID, signal, describe(c))
	}
}

func (s *side) RecvDone(wr *RecvWR, c *Completion) {
	if !s.quiet {
		s.log("%s recv id=%d %s", s.name, wr.ID, describe(c))
	}
	s.free = append(s.free, wr)
}

func (s *side) Event(e ib.Event) {
	if !s.quiet {
		s.log("%s event %v", s.name, e)
	}
}

func describe(c *Completion) string {
	if c.Discard {
		return "discarded"
	}
	if c.Status != ib.Success {
		return c.Status.String()
	}
	t := fmt.Sprintf("SUCCESS op=%d len=%d", c.Op, c.ByteLen)
	if c.Flags&ib.WCWithImm != 0 {
		t += fmt.Sprintf(" imm=%#x", c.Imm)
	}
	if c.Flags&ib.WCWithInv != 0 {
		t += fmt.Sprintf(" inv=%#x", c.Imm)
	}
	if c.Flags&ib.WCGRH != 0 {
		t += fmt.Sprintf(" grh src=%d sl=%d", c.SrcQPN, c.SL)
	}
	if c.Solicited {
		t += " solicited"
	}
	return t
}

func newSide(name string, cfg Config, size int, log func(string, ...any)) *side {
	s := &side{name: name, buf: make([]byte, size), log: log}
	s.region = &mem.Region{Space: mem.NewSlice(base, s.buf), Start: base, Base: base, Len: uint64(size),
		LKey: testKey, RKey: testKey,
		Access: ib.LocalWrite | ib.RemoteRead | ib.RemoteWrite | ib.RemoteAtomic}
	s.q = New(&cfg, s, s)
	if log != nil {
		s.batch = mem.NewBatch(64 << 10)
	}
	return s
}

func testConfig(t ib.QPType, qpn ib.QPN) Config {
	return Config{Type: t, QPN: qpn, Cap: Cap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4,
		MaxInline: 64},
		PortMTU: ib.MTU4096, PKeys: []ib.PKey{ib.DefaultPKey}, MaxRdAtomic: 4, Window: 256 << 10, MinWindow: 4096}
}

func gid(n byte) ib.GID { return ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: n} }

// up brings s to RTS towards a peer.
func up(s *side, self, peer byte, dest ib.QPN, mtu ib.MTU, maxRun uint32, local bool) error {
	const access = ib.RemoteRead | ib.RemoteWrite | ib.RemoteAtomic
	a := Attr{State: ib.Init, Port: 1, Access: access, QKey: 0x11}
	var m1, m2, m3 ib.AttrMask
	a.Path = &ib.Path{SGID: gid(self), DGID: gid(peer), MaxRun: maxRun, Local: local, HopLimit: 64}
	a.PathMTU, a.DestQPN, a.RQPSN, a.SQPSN = mtu, dest, ib.PSN(peer)<<8, ib.PSN(self)<<8
	a.MaxDestRdAtomic, a.MaxRdAtomic, a.MinRNRTimer, a.Timeout, a.RetryCnt, a.RNRRetry = 4, 4, 12, 14, 7, 6
	switch s.q.Type() {
	case ib.RC:
		m1 = ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccessFlags
		m2 = ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN | ib.AttrMaxDestRdAtomic | ib.AttrMinRNRTimer
		m3 = ib.AttrTimeout | ib.AttrRetryCnt | ib.AttrRNRRetry | ib.AttrSQPSN | ib.AttrMaxQPRdAtomic
	case ib.UC:
		m1 = ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccessFlags
		m2 = ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN
		m3 = ib.AttrSQPSN
	default:
		m1 = ib.AttrPKeyIndex | ib.AttrPort | ib.AttrQKey
		m3 = ib.AttrSQPSN
	}
	for _, step := range []struct {
		to   ib.QPState
		mask ib.AttrMask
	}{{ib.Init, m1}, {ib.RTR, m2}, {ib.RTS, m3}} {
		a.State = step.to
		if err := s.q.Modify(1, &a, step.mask|ib.AttrState); err != nil {
			return err
		}
	}
	return nil
}

// pump moves runs between two sides until both are idle.
func pump(now mono.Time, a, b *side) {
	var r pkt.Burst
	for moved := true; moved; {
		moved = false
		for _, d := range [2][2]*side{{a, b}, {b, a}} {
			from, to := d[0], d[1]
			n := 0
			for from.q.Next(now, &r) {
				n++
				to.q.Handle(now, &r, to.batch)
				if r.Fault {
					from.q.SourceFault(now, &r)
				}
			}
			if n > 0 {
				to.batch.Flush()
				to.q.Commit(now)
				from.q.Commit(now)
				moved = true
			}
		}
	}
}

func pair(t testing.TB, typ ib.QPType, mtu ib.MTU, maxRun uint32, local bool) (a, b *side) {
	t.Helper()
	log := func(f string, args ...any) { t.Logf(f, args...) }
	a, b = newSide("A", testConfig(typ, 17), 300000, log), newSide("B", testConfig(typ, 18), 300000, log)
	if err := up(a, 1, 2, 18, mtu, maxRun, local); err != nil {
		t.Fatal(err)
	}
	if err := up(b, 2, 1, 17, mtu, maxRun, local); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// post posts a request that gathers n bytes at offset off.
func (s *side) post(id uint64, op ib.WROp, flags ib.SendFlags, off, n, remote uint64) *SendWR {
	wr := s.q.SendSlot()
	wr.ID, wr.Op, wr.Flags = id, op, flags
	if n > 0 {
		wr.SGE = append(wr.SGE, ib.SGE{Addr: base + off, Len: uint32(n), LKey: testKey})
	}
	wr.RemoteVA, wr.RKey, wr.Imm = base+remote, testKey, 0xabcd
	return wr
}

func (s *side) recv(id, off, n uint64) {
	s.recvs = append(s.recvs, &RecvWR{ID: id, SGE: []ib.SGE{{Addr: base + off, Len: uint32(n), LKey: testKey}}})
	s.q.RecvPosted(1)
}
