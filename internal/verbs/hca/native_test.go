// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/verbs/transport"
)

// lidPort is an active InfiniBand port.
func lidPort(lid ib.LID, guid ib.GUID) *Port {
	p := &Port{Link: ib.LinkInfiniBand, State: ib.PortActive, Phys: ib.PhysLinkUp, MTU: ib.MTU2048,
		MaxMTU: ib.MTU4096, LID: lid, SMLID: 1,
		PKeys: []ib.PKey{ib.DefaultPKey, 0x8001, 0, 0x0002}, GIDPrefix: ib.DefaultGIDPrefix, GUIDs: []ib.GUID{guid, 0},
		MaxRun: 60 << 10, MaxLocalRun: 256 << 10}
	p.SetGIDs()
	return p
}

// subnet is a lane with an Ethernet function and two InfiniBand ones, and a
// client on each of those.
type subnet struct {
	l      *Lane
	fn     [2]*Adapter
	client [2]*client
}

const lidA, lidB ib.LID = 0x10, 0x20

func newSubnet(t testing.TB) *subnet {
	l := newNode(t)
	s := &subnet{l: l}
	for i, lid := range []ib.LID{lidA, lidB} {
		s.fn[i] = NewAdapter(lidPort(lid, ib.GUID(0x101+i)), DefaultLimits)
		if err := l.all.Add(s.fn[i]); err != nil {
			t.Fatal(err)
		}
		s.client[i] = newClientOf(t, l, s.fn[i], 1<<16)
	}
	return s
}

// edit changes the port of a function.
func (s *subnet) edit(i int, f func(p *Port)) {
	p := *s.fn[i].Port()
	f(&p)
	s.fn[i].SetPort(&p)
}

// up moves a queue pair to RTS; av is for connected ones.
func (e *endpoint) up(av *AHAttr, dest ib.QPN, pkeyIndex uint16) error {
	typ := e.q.cfg.Type
	initMask, a := ib.AttrAccessFlags, transport.Attr{Port: 1, Access: ib.RemoteWrite | ib.RemoteRead, QKey: 0x11,
		PKeyIndex: pkeyIndex,
		PathMTU:   ib.MTU2048, DestQPN: dest, RQPSN: 7, SQPSN: 7, MaxDestRdAtomic: 4, MaxRdAtomic: 4, MinRNRTimer: 1, Timeout: 14, RetryCnt: 1, RNRRetry: 7}
	var rtr, rts ib.AttrMask
	switch typ {
	case ib.UD:
		initMask = ib.AttrQKey
	case ib.RC:
		rtr, rts = ib.AttrMaxDestRdAtomic|ib.AttrMinRNRTimer, ib.AttrTimeout|ib.AttrRetryCnt|ib.AttrRNRRetry|ib.AttrMaxQPRdAtomic
		fallthrough
	case ib.UC:
		rtr |= ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN
	}
	for _, step := range []struct {
		to   ib.QPState
		mask ib.AttrMask
	}{{ib.Init, initMask | ib.AttrPKeyIndex | ib.AttrPort}, {ib.RTR, rtr}, {ib.RTS, rts | ib.AttrSQPSN}} {
		a.State = step.to
		if err := e.q.Modify(1, &a, av, ib.AttrState|step.mask); err != nil {
			return err
		}
	}
	return nil
}

// lidPair connects a queue pair of each client by LIDs alone.
func (s *subnet) lidPair(t testing.TB, typ ib.QPType) (a, b *endpoint) {
	a, b = s.client[0].qp(QPConfig{Type: typ}), s.client[1].qp(QPConfig{Type: typ})
	a.must(a.up(&AHAttr{DLID: lidB}, b.q.Num(), 0))
	b.must(b.up(&AHAttr{DLID: lidA}, a.q.Num(), 0))
	return a, b
}

// settleUntil runs the lane through its timers until it has completions.
func (s *subnet) settleUntil(t testing.TB, e *endpoint, n int) {
	t.Helper()
	now := mono.Time(2)
	for range 1000 {
		s.l.Run(now)
		if len(e.cqes) >= n {
			return
		}
		if d := s.l.Deadline(); d != 0 {
			now = max(now, d)
		}
		now++
	}
	t.Fatalf("%d completions of %d", len(e.cqes), n)
}

// TestLIDsAlone connects by LIDs, without a GRH, across two functions with
// sessions and queue pairs of equal numbers.
func TestLIDsAlone(t *testing.T) {
	for _, typ := range []ib.QPType{ib.RC, ib.UC} {
		t.Run(typ.String(), func(t *testing.T) {
			s := newSubnet(t)
			a, b := s.lidPair(t, typ)
			if a.q.Num() != b.q.Num() {
				t.Errorf("numbers %#x and %#x: each function has its own", a.q.Num(), b.q.Num())
			}
			for i := range a.mem {
				a.mem[i] = byte(i * 3)
			}
			b.postRecv(1, 0x8000, 6000)
			a.post(transport.SendWR{ID: 1, Op: ib.WRSend, Flags: ib.Signaled, SGE: a.sge(0, 5000)})
			a.post(transport.SendWR{ID: 2, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
				SGE: a.sge(0, 100)})
			drive(t, s.l)
			a.expect(ib.Success, ib.Success)
			b.expect(ib.Success)
			if !bytes.Equal(b.mem[0x8000:0x8000+5000], a.mem[:5000]) || !bytes.Equal(b.mem[:100], a.mem[:100]) {
				t.Error("other bytes arrived")
			}
		})
	}
}

// TestPortCounters counts the packets of a SEND of three packets, a READ and
// their answers, in words from the LRH through the ICRC.
func TestPortCounters(t *testing.T) {
	s := newSubnet(t)
	a, b := s.lidPair(t, ib.RC)
	b.postRecv(1, 0, 8192)
	a.post(transport.SendWR{ID: 1, Op: ib.WRSendImm, SGE: a.sge(0, 2*2048+5)})
	a.post(transport.SendWR{ID: 2, Op: ib.WRRead, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
		SGE: a.sge(0, 10)})
	drive(t, s.l)
	a.expect(ib.Success)
	const frame = 8 + 12 + 4 // LRH, BTH, ICRC
	out := (3*frame + 4 + 2*2048 + 8) + (frame + 16)
	back := frame + 4 + 12
	want := PortCounters{XmitData: uint64(out / 4), XmitPkts: 4, UnicastXmitPkts: 4, RcvData: uint64(back / 4),
		RcvPkts: 1, UnicastRcvPkts: 1}
	got := s.l.PortCounters(1)
	// The SEND may have been acknowledged by itself before the READ was.
	if acks := got.RcvPkts - 1; acks <= 1 {
		want.RcvPkts, want.UnicastRcvPkts, want.RcvData = want.RcvPkts+acks, want.UnicastRcvPkts+acks, want.RcvData+
			acks*(frame+4)/4
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	want.XmitData, want.RcvData = want.RcvData, want.XmitData
	want.XmitPkts, want.RcvPkts = want.RcvPkts, want.XmitPkts
	want.UnicastXmitPkts, want.UnicastRcvPkts = want.UnicastRcvPkts, want.UnicastXmitPkts
	if d := cmp.Diff(want, s.l.PortCounters(2)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(PortCounters{}, s.l.PortCounters(0)); d != "" {
		t.Error(d)
	}
	var sum PortCounters
	sum.Add(&want)
	if sum.Add(&want); sum.XmitData != 2*want.XmitData || sum.RcvPkts != 2*want.RcvPkts {
		t.Errorf("sum %+v", sum)
	}
	ud := pkt.Burst{Count: 1, Path: &ib.Path{DLID: 1, Global: true}, Data: mem.BytesPayload(make([]byte, 9))}
	ud.Opcode = ib.ServiceUD | ib.SendOnlyImm
	if n := words(&ud); n != (8+40+12+8+4+12+4)/4 {
		t.Errorf("%d words of a datagram with a GRH", n)
	}
}

// datagrams is a subnet with a UD queue pair on each function.
func datagrams(t testing.TB) (s *subnet, a, b *endpoint) {
	s = newSubnet(t)
	a, b = s.client[0].qp(QPConfig{Type: ib.UD}), s.client[1].qp(QPConfig{Type: ib.UD})
	a.must(a.up(nil, 0, 1))
	b.must(b.up(nil, 0, 1))
	return s, a, b
}

// sendDatagram sends n bytes by way of an address vector.
func (e *endpoint) sendDatagram(av *AHAttr, to *endpoint, n int) {
	e.t.Helper()
	h, err := e.s.CreateAH(e.pd, av)
	e.must(err)
	e.sendBy(h, to.q.Num(), n)
}

func (e *endpoint) sendBy(h uint32, to ib.QPN, n int) {
	e.post(transport.SendWR{ID: 5, Op: ib.WRSend, Flags: ib.Signaled, Path: e.q.Path(h), DestQPN: to, QKey: 0x11,
		SGE: e.sge(0, n)})
}

// TestDatagramCompletion checks what a receiver learns, with and without GRH.
func TestDatagramCompletion(t *testing.T) {
	s, a, b := datagrams(t)
	s.edit(0, func(p *Port) { p.LMC = 3 })
	s.edit(1, func(p *Port) { p.LMC = 2 })
	copy(a.mem, "hello")
	for i := range b.mem {
		b.mem[i] = 0xa5
	}
	b.postRecv(1, 0, 100)
	a.sendDatagram(&AHAttr{DLID: lidB + 2, SrcPathBits: 5, SL: 3}, b, 5)
	drive(t, s.l)
	a.expect(ib.Success)
	got := b.expect(ib.Success)[0].Completion
	want := transport.Completion{Op: ib.WCRecv, ByteLen: 45, SrcQPN: a.q.Num(), SL: 3, SLID: lidA + 5, PathBits: 2,
		PKeyIndex: 1}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if !bytes.Equal(b.mem[:46], append(bytes.Repeat([]byte{0xa5}, 40), "hello\xa5"...)) {
		t.Errorf("% x", b.mem[:46])
	}

	dgid := s.fn[1].Port().GIDs[0].GID
	b.postRecv(2, 0, 100)
	a.sendDatagram(&AHAttr{DLID: lidB, Global: true, DGID: dgid, FlowLabel: 0xabcde, TrafficClass: 0x12,
		HopLimit: 0x40}, b, 5)
	drive(t, s.l)
	a.expect(ib.Success)
	want.Flags, want.SL, want.SLID, want.PathBits = ib.WCGRH, 0, lidA, 0
	if d := cmp.Diff(want, b.expect(ib.Success)[0].Completion); d != "" {
		t.Error(d)
	}
	grh := make([]byte, wire.GRHLen)
	(&wire.GRH{IPVer: 6, TClass: 0x12, FlowLabel: 0xabcde, PayLen: 12 + 8 + 8 + 4, NxtHdr: 0x1b, HopLimit: 0x40,
		SGID: s.fn[0].Port().GIDs[0].GID, DGID: dgid}).Put(grh)
	if !bytes.Equal(b.mem[:45], append(grh, "hello"...)) {
		t.Errorf("% x", b.mem[:45])
	}
}

// TestSkippedHeadIsChecked: also a head that nothing is written to needs
// memory that may be written.
func TestSkippedHeadIsChecked(t *testing.T) {
	s, a, b := datagrams(t)
	b.rq.wrs = append(b.rq.wrs, transport.RecvWR{ID: 1,
		SGE: append([]ib.SGE{{Addr: base, Len: 40, LKey: b.mr.LKey ^ 1}}, b.sge(100, 100)...)})
	a.sendDatagram(&AHAttr{DLID: lidB}, b, 5)
	drive(t, s.l)
	b.expect(ib.LocProtErr)
}

// TestAddressVectors checks what verbs refuses on an InfiniBand port.
func TestAddressVectors(t *testing.T) {
	s := newSubnet(t)
	s.edit(0, func(p *Port) { p.LMC = 2; p.LID = lidA })
	gid, group := s.fn[1].Port().GIDs[0].GID, ib.GID{0: 0xff, 1: 0x12, 15: 1}
	c := s.client[0]
	for _, v := range []struct {
		name string
		av   AHAttr
		ok   bool
	}{
		{"unicast", AHAttr{DLID: lidB}, true},
		{"somewhere else", AHAttr{DLID: 0xbfff, SL: 15}, true},
		{"no LID", AHAttr{}, false},
		{"RoCE's way", AHAttr{Global: true, DGID: gid}, false},
		{"permissive", AHAttr{DLID: 0xffff}, false},
		{"path bits", AHAttr{DLID: lidB, SrcPathBits: 3}, true},
		{"too many path bits", AHAttr{DLID: lidB, SrcPathBits: 4}, false},
		{"service level", AHAttr{DLID: lidB, SL: 16}, false},
		{"GRH", AHAttr{DLID: lidB, Global: true, DGID: gid}, true},
		{"GRH without a destination", AHAttr{DLID: lidB, Global: true}, false},
		{"GRH from an unset GID", AHAttr{DLID: lidB, Global: true, DGID: gid, SGIDIndex: 1}, false},
		{"GRH from beyond the table", AHAttr{DLID: lidB, Global: true, DGID: gid, SGIDIndex: 9}, false},
		{"group", AHAttr{DLID: 0xc001, Global: true, DGID: group}, true},
		{"group without GRH", AHAttr{DLID: 0xc001}, false},
		{"group with a unicast GID", AHAttr{DLID: 0xc001, Global: true, DGID: gid}, false},
		{"unicast with a group's GID", AHAttr{DLID: lidB, Global: true, DGID: group}, false},
	} {
		h, err := c.s.CreateAH(c.pd, &v.av)
		if (err == nil) != v.ok || err != nil && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", v.name, err)
		}
		if err == nil {
			c.must(c.s.DestroyAH(c.pd, h))
		}
	}
	e := c.qp(QPConfig{Type: ib.RC})
	if err := e.up(&AHAttr{DLID: lidB}, 1, 2); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("the index of an unused P_Key: %v", err)
	}
	if err := e.up(&AHAttr{DLID: lidB}, 1, 9); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an index beyond the table: %v", err)
	}
}

// TestHandlesFollowThePort: a handle made before the ports had their LIDs works
// when they do, and follows the sender's.
func TestHandlesFollowThePort(t *testing.T) {
	s, a, b := datagrams(t)
	s.edit(0, func(p *Port) { p.LID, p.State = 0, ib.PortInit })
	s.edit(1, func(p *Port) { p.LID, p.State = 0, ib.PortInit })
	h, err := a.s.CreateAH(a.pd, &AHAttr{DLID: 0x33, SrcPathBits: 0})
	a.must(err)
	a.sendBy(h, b.q.Num(), 8)
	drive(t, s.l)
	a.expect(ib.Success) // a datagram that goes nowhere has gone
	if c := s.l.PortCounters(1); c.XmitDiscards != 1 || c.XmitPkts != 0 {
		t.Errorf("%+v", c)
	}
	s.edit(0, func(p *Port) { p.LID, p.State = 0x32, ib.PortActive })
	s.edit(1, func(p *Port) { p.LID, p.State = 0x33, ib.PortActive })
	drive(t, s.l)
	b.postRecv(1, 0, 100)
	a.sendBy(h, b.q.Num(), 8)
	drive(t, s.l)
	a.expect(ib.Success)
	if c := b.expect(ib.Success)[0]; c.SLID != 0x32 {
		t.Errorf("from %#x", c.SLID)
	}
}

// TestPortsDecidePerRun: packets move only between active ports, and only to
// the one that has the DLID now.
func TestPortsDecidePerRun(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(s *subnet)
		rcv  bool // the receiving port refuses it, else the sending one
	}{
		{"sender down", func(s *subnet) { s.edit(0, func(p *Port) { p.State = ib.PortDown }) }, false},
		{"receiver down", func(s *subnet) { s.edit(1, func(p *Port) { p.State = ib.PortDown }) }, true},
		{"sender armed", func(s *subnet) { s.edit(0, func(p *Port) { p.State = ib.PortArmed }) }, false},
		{"other LID", func(s *subnet) { s.edit(1, func(p *Port) { p.LID = 0x99 }) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSubnet(t)
			a, b := s.lidPair(t, ib.RC)
			was := [2]*Port{s.fn[0].Port(), s.fn[1].Port()}
			c.edit(s)
			a.post(transport.SendWR{ID: 1, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
				SGE: a.sge(0, 8)})
			drive(t, s.l)
			a.expect()
			from, to := s.l.PortCounters(1), s.l.PortCounters(2)
			if c.rcv != (to.RcvErrors == 1) || c.rcv == (from.XmitDiscards == 1) || s.l.Stats.DropPort != 1 {
				t.Errorf("%+v, %+v", from, to)
			}
			for i := range was {
				s.fn[i].SetPort(was[i])
			}
			s.settleUntil(t, a, 1) // queue pairs stay: the retry gets through
			a.expect(ib.Success)
		})
	}
	t.Run("for good", func(t *testing.T) {
		s := newSubnet(t)
		a, b := s.lidPair(t, ib.RC)
		s.edit(1, func(p *Port) { p.State = ib.PortDown })
		a.post(transport.SendWR{ID: 1, Op: ib.WRWrite, RemoteVA: base, RKey: b.mr.RKey, SGE: a.sge(0, 8)})
		s.settleUntil(t, a, 1)
		a.expect(ib.RetryExcErr)
	})
}

// TestViolationsAreReported checks that the first is reported at once, and a flood of them
// once in a second, each counted.
func TestViolationsAreReported(t *testing.T) {
	s, a, b := datagrams(t)
	type report struct {
		function     uint16
		pkeys, qkeys Violations
	}
	var got []report
	s.l.SetViolations(func(f uint16, p, q Violations) { got = append(got, report{f, p, q}) })
	h, err := a.s.CreateAH(a.pd, &AHAttr{DLID: lidB})
	a.must(err)
	send := func(q ib.QKey) {
		a.post(transport.SendWR{ID: 5, Op: ib.WRSend, Path: a.q.Path(h), DestQPN: b.q.Num(), QKey: q, SGE: a.sge(0, 1)})
	}
	send(0x12)
	now := mono.Time(2)
	s.l.Run(now)
	k := mad.BadKey{LID1: lidA, LID2: lidB, Key: 0x12, QP1: a.q.Num(), QP2: b.q.Num()}
	if want := (report{2, Violations{}, Violations{1, k}}); len(got) != 1 || got[0] != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
	got = nil
	s.edit(1, func(p *Port) { p.PKeys = []ib.PKey{ib.DefaultPKey, 0x8005} })
	for i := range 3 {
		send(ib.QKey(i))
		s.l.Run(now.Add(time.Millisecond))
	}
	s.edit(1, func(p *Port) { p.PKeys = []ib.PKey{ib.DefaultPKey} })
	at := s.l.Deadline()
	s.l.Run(at - 1)
	if len(got) != 0 || at != now.Add(time.Second) {
		t.Errorf("%+v before %v", got, at)
	}
	s.l.Run(at)
	if len(got) != 1 || got[0].pkeys.Count+got[0].qkeys.Count != 3 || s.l.Deadline() != 0 {
		t.Errorf("%+v, %v", got, s.l.Deadline())
	}
	if n := testing.AllocsPerRun(10, func() {
		s.l.countViolation(at, b.q, &pkt.Burst{Path: &ib.Path{}}, 1,
			1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestKeyTableChanges: what the subnet manager writes into the table counts
// from then on, and a key of zero leaves the port with nothing.
func TestKeyTableChanges(t *testing.T) {
	s, a, b := datagrams(t)
	send := func() []CQE {
		a.sendDatagram(&AHAttr{DLID: lidB}, b, 1)
		drive(t, s.l)
		a.expect(ib.Success)
		got := b.cqes
		b.cqes = nil
		return got
	}
	for range 2 {
		b.postRecv(1, 0, 100)
	}
	s.edit(1, func(p *Port) { p.PKeys = []ib.PKey{ib.DefaultPKey, 0x8005} })
	if got, c := send(), s.l.PortCounters(2); len(got) != 0 || c.PKeyViolations != 1 || c.QKeyViolations != 0 {
		t.Errorf("%v, %+v", got, c)
	}
	s.edit(0, func(p *Port) { p.PKeys = []ib.PKey{ib.DefaultPKey, 0x0005} }) // limited to full
	if got := send(); len(got) != 1 {
		t.Errorf("%v", got)
	}
	s.edit(0, func(p *Port) { p.PKeys = []ib.PKey{ib.DefaultPKey, 0} })
	if got, c := send(), s.l.PortCounters(1); len(got) != 0 || c.XmitConstraintErrors != 1 {
		t.Errorf("%v, %+v", got, c)
	}
	s.edit(0, func(p *Port) { p.PKeys = []ib.PKey{ib.DefaultPKey, 0x8005} })
	h, err := a.s.CreateAH(a.pd, &AHAttr{DLID: lidB})
	a.must(err)
	a.post(transport.SendWR{ID: 5, Op: ib.WRSend, Path: a.q.Path(h), DestQPN: b.q.Num(), QKey: 0x12, SGE: a.sge(0, 1)})
	drive(t, s.l)
	if c := s.l.PortCounters(2); c.QKeyViolations != 1 || len(b.cqes) != 0 {
		t.Errorf("%+v", c)
	}
}

// TestGRHMustMatch: a GRH names the port it is for.
func TestGRHMustMatch(t *testing.T) {
	s, a, b := datagrams(t)
	b.postRecv(1, 0, 100)
	a.sendDatagram(&AHAttr{DLID: lidB, Global: true, DGID: ib.MakeGID(ib.DefaultGIDPrefix, 0x999)}, b, 1)
	drive(t, s.l)
	if b.expect(); s.l.PortCounters(2).RcvErrors != 1 {
		t.Errorf("%+v", s.l.PortCounters(2))
	}
	x, y := s.client[0].qp(QPConfig{Type: ib.RC}), s.client[1].qp(QPConfig{Type: ib.RC})
	x.must(x.up(&AHAttr{DLID: lidB}, y.q.Num(), 0))
	y.must(y.up(&AHAttr{DLID: lidA, Global: true, DGID: s.fn[0].Port().GIDs[0].GID}, x.q.Num(), 0))
	x.post(transport.SendWR{ID: 1, Op: ib.WRWrite, RemoteVA: base, RKey: y.mr.RKey, SGE: x.sge(0, 8)})
	drive(t, s.l)
	if n := y.q.t.Counters().DropPath; n != 1 {
		t.Errorf("%d packets without GRH refused by a connection with one", n)
	}
}

// TestQP1OfANeighbour: what a program sends to the general services of a port
// of the node goes to the management function.
func TestQP1OfANeighbour(t *testing.T) {
	s, a, _ := datagrams(t)
	var got []byte
	var fn uint16
	s.l.SetManagement(func(_ mono.Time, r *pkt.Burst) {
		got, fn = make([]byte, r.Data.Len), r.Path.Function
		if s.l.Batch().Gather([][]byte{got}, &r.Data, 0) != mem.OK {
			r.Fault = true
		}
	})
	h, err := a.s.CreateAH(a.pd, &AHAttr{DLID: lidB})
	a.must(err)
	copy(a.mem, "MAD")
	a.post(transport.SendWR{ID: 5, Op: ib.WRSend, Flags: ib.Signaled, Path: a.q.Path(h), DestQPN: ib.QPNGSI,
		QKey: ib.GSIQKey, SGE: a.sge(0, 3)})
	drive(t, s.l)
	if a.expect(ib.Success); string(got) != "MAD" || fn != s.fn[1].Number() {
		t.Errorf("%q for function %d", got, fn)
	}
	a.sendBy(h, ib.QPNSMI, 3)
	drive(t, s.l)
	if a.expect(ib.Success); s.l.Stats.DropNoQP != 1 {
		t.Error("an ordinary queue pair reached queue pair 0")
	}
}

// fabric is a link that keeps what it is given.
type fabric struct {
	runs    []pkt.Burst
	blocked bool
}

func (f *fabric) Send(_ mono.Time, r *pkt.Burst, _ *mem.Batch) mem.Result {
	f.runs = append(f.runs, *r)
	return mem.OK
}
func (f *fabric) Blocked() bool   { return f.blocked }
func (f *fabric) Flush(mono.Time) {}

// TestWhatLeavesTheNode: other LIDs, groups, and with WireLocal everything, go
// to the fabric, which can hold native queue pairs back and no others.
func TestWhatLeavesTheNode(t *testing.T) {
	s, a, b := datagrams(t)
	away := &AHAttr{DLID: 0x777}
	a.sendDatagram(away, b, 1)
	drive(t, s.l)
	if a.expect(ib.Success); s.l.PortCounters(1).XmitDiscards != 1 {
		t.Error("sent where there is no way out")
	}
	f := &fabric{blocked: true}
	s.l.SetFabric(f)
	a.sendDatagram(away, b, 1)
	if s.l.Run(2) || len(f.runs) != 0 || len(a.cqes) != 0 {
		t.Error("a blocked fabric was given something, or the lane does not rest")
	}
	f.blocked = false
	group := ib.GID{0: 0xff, 1: 0x12, 15: 1}
	a.sendDatagram(&AHAttr{DLID: 0xc005, Global: true, DGID: group}, b, 1)
	drive(t, s.l)
	s.edit(0, func(p *Port) { p.WireLocal = true })
	a.sendDatagram(&AHAttr{DLID: lidB}, b, 1)
	drive(t, s.l)
	a.expect(ib.Success, ib.Success, ib.Success)
	var to []ib.LID
	for _, r := range f.runs {
		to = append(to, r.Path.DLID)
		if r.Path.Local || r.Path.SLID != lidA {
			t.Errorf("%+v", r.Path)
		}
	}
	if d := cmp.Diff([]ib.LID{0x777, 0xc005, lidB}, to); d != "" {
		t.Error(d)
	}
	if c := s.l.PortCounters(1); c.MulticastXmitPkts != 1 || c.UnicastXmitPkts != 2 {
		t.Errorf("%+v", c)
	}
	// What comes back from the wire.
	b.postRecv(1, 0, 100)
	r := f.runs[2]
	path := *r.Path
	path.Function = s.fn[1].Number()
	r.Path, r.Data = &path, mem.BytesPayload([]byte{1})
	s.l.Receive(2, &r)
	drive(t, s.l)
	if c := b.expect(ib.Success)[0]; c.SLID != lidA || c.ByteLen != 41 {
		t.Errorf("%+v", c)
	}
	path.Function = 77
	if s.l.Receive(2, &r); s.l.Stats.DropNoFunction != 1 {
		t.Error("a function that does not exist received something")
	}
}

// TestEthernetPortDown: also packets of an Ethernet port move only while it is
// active.
func TestEthernetPortDown(t *testing.T) {
	l, a, b := pair(t, 1<<16)
	p := *l.all.At(0).Port()
	p.State = ib.PortDown
	l.all.At(0).SetPort(&p)
	a.post(transport.SendWR{ID: 1, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
		SGE: a.sge(0, 8)})
	drive(t, l)
	if a.expect(); l.Stats.DropPort != 1 {
		t.Errorf("%+v", l.Stats)
	}
}

// TestFunctions checks numbers, removal and lookup by LID.
func TestFunctions(t *testing.T) {
	s := newSubnet(t)
	all := s.l.all
	if all.Owner(lidA) != s.fn[0] || all.Owner(lidB) != s.fn[1] || all.Owner(0x99) != nil || all.Owner(0) != nil {
		t.Error("LIDs name other functions")
	}
	if err := all.Remove(s.fn[0]); !errors.Is(err, ErrInUse) {
		t.Errorf("removing a function in use: %v", err)
	}
	s.client[0].s.Close()
	s.fn[0].Detach(s.client[0].s)
	if err := all.Remove(s.fn[0]); err != nil || all.At(1) != nil || all.Owner(lidA) != nil {
		t.Errorf("removed: %v", err)
	}
	n := NewAdapter(lidPort(lidA, 9), DefaultLimits)
	if err := all.Add(n); err != nil || n.Number() != 3 || all.At(3) != n {
		t.Errorf("number %d: %v", n.Number(), err)
	}
	var err error
	for i := 0; err == nil && i < maxFunctions; i++ {
		err = all.Add(NewAdapter(lidPort(0, 1), DefaultLimits))
	}
	if !errors.Is(err, ErrNoFunction) || len(all.All()) != maxFunctions {
		t.Errorf("%d functions, %v", len(all.All()), err)
	}
}

// TestPortChanges lists the events of each change.
func TestPortChanges(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(p *Port)
		want []ib.Event
	}{
		{"nothing", func(p *Port) {}, nil},
		{"down", func(p *Port) { p.State = ib.PortDown }, []ib.Event{ib.EventPortDown}},
		{"LID", func(p *Port) { p.LID++ }, []ib.Event{ib.EventLIDChange}},
		{"LMC", func(p *Port) { p.LMC++ }, []ib.Event{ib.EventLIDChange}},
		{"keys", func(p *Port) { p.PKeys = p.PKeys[:1] }, []ib.Event{ib.EventPKeyChange}},
		{"prefix", func(p *Port) { p.GIDPrefix++; p.SetGIDs() }, []ib.Event{ib.EventGIDChange}},
		{"manager", func(p *Port) { p.SMLID++ }, []ib.Event{ib.EventSMChange}},
		{"manager's SL", func(p *Port) { p.SMSL++ }, []ib.Event{ib.EventSMChange}},
	} {
		old := lidPort(4, 1)
		p := *old
		c.edit(&p)
		if d := cmp.Diff(c.want, p.Changes(old)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
	down := *lidPort(4, 1)
	down.State = ib.PortInit
	if d := cmp.Diff([]ib.Event{ib.EventPortActive}, lidPort(4, 1).Changes(&down)); d != "" {
		t.Error(d)
	}
}

func TestNativeRoundAllocatesNothing(t *testing.T) {
	s := newSubnet(t)
	a, b := s.lidPair(t, ib.RC)
	wr := []transport.SendWR{{ID: 1, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
		SGE: a.sge(0, 8)}}
	a.cqes = make([]CQE, 0, 1024)
	if n := testing.AllocsPerRun(200, func() {
		a.sq.wrs, a.cqes = wr, a.cqes[:0]
		a.q.SendPosted()
		for s.l.Run(2) {
		}
	}); n != 0 {
		t.Errorf("%v allocations per WRITE", n)
	}
}

// TestFunctionNumbers: numbers are given once, by the table or by choice.
func TestFunctionNumbers(t *testing.T) {
	f := NewFunctions()
	add := func() *Adapter { return NewAdapter(&Port{}, DefaultLimits) }
	f.Reserve(1)
	f.Reserve(maxFunctions)
	a, b, c := add(), add(), add()
	if f.Add(a) != nil || f.Add(b) != nil || f.AddAt(c, 5) != nil || a.Number() != 0 || b.Number() != 2 ||
		c.Number() != 5 {
		t.Errorf("%d, %d, %d", a.Number(), b.Number(), c.Number())
	}
	if f.At(5) != c || f.At(4) != nil || len(f.All()) != 6 {
		t.Errorf("%v", f.All())
	}
	for _, n := range []uint16{5, maxFunctions, 0xffff} {
		if err := f.AddAt(add(), n); !errors.Is(err, ErrNoFunction) {
			t.Errorf("at %d: %v", n, err)
		}
	}
	if err := f.Remove(b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []uint16{3, 4, 6} { // not 1, not 2 again
		if d := add(); f.Add(d) != nil || d.Number() != want {
			t.Errorf("%d, want %d", d.Number(), want)
		}
	}
	if d := add(); f.AddAt(d, 1) != nil || f.At(1) != d {
		t.Error("a reserved number was not to be had")
	}
	for f.Add(add()) == nil {
	}
	if n := len(f.All()); n != maxFunctions {
		t.Errorf("%d functions", n)
	}
}
