// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/transport"
)

// noLink refuses to be used: these tests stay within the node.
type noLink struct{ t testing.TB }

func (l noLink) Send(mono.Time, *pkt.Burst, *mem.Batch) mem.Result {
	l.t.Error("a run left the node")
	return mem.OK
}
func (l noLink) Blocked() bool   { return false }
func (l noLink) Flush(mono.Time) {}

// client is a program: memory, a session, and rings made of slices.
type client struct {
	t      testing.TB
	s      *Session
	mem    []byte
	pd     uint32
	mr     MRResult
	cq     uint32
	cqes   []CQE
	room   int // completion buffers left
	events []ib.Event
	calls  int
}

func (c *client) Event(e ib.Event, object uint32) { c.events = append(c.events, e) }

func (c *client) Put(e *CQE) bool {
	if c.room == 0 {
		return false
	}
	c.room--
	c.cqes = append(c.cqes, *e)
	return true
}
func (c *client) Publish(bool) { c.calls++ }

const base = 0x10000

var testGIDs = []GIDEntry{{}, {GID: ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}},
	{GID: ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: 2}}}

func newNode(t testing.TB) *Lane {
	a := NewAdapter(&Port{Link: ib.LinkEthernet, State: ib.PortActive, MTU: ib.MTU1024, MaxMTU: ib.MTU4096,
		GIDs: testGIDs, PKeys: []ib.PKey{ib.DefaultPKey},
		MaxRun: 60 << 10, MaxLocalRun: 256 << 10}, DefaultLimits)
	return NewLane(NewFunctions(a), 0, noLink{t}, nil)
}

func newClient(t testing.TB, l *Lane, size int) *client {
	return newClientOf(t, l, l.all.At(0), size)
}

func newClientOf(t testing.TB, l *Lane, a *Adapter, size int) *client {
	return newClientAttached(t, l, a, size, a.Attach)
}

func newClientAttached(t testing.TB, l *Lane, a *Adapter, size int, attach func(*Session) error) *client {
	c := &client{t: t, mem: make([]byte, size), room: 1 << 30}
	c.s = l.NewSession(a, c, 64, 64, false)
	c.must(attach(c.s))
	var err error
	c.pd, err = c.s.CreatePD()
	c.must(err)
	c.mr, err = c.s.RegisterMR(c.pd, &mem.Region{Space: mem.NewSlice(base, c.mem), Start: base, Base: base,
		Len:    uint64(size),
		Access: ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic})
	c.must(err)
	c.cq, err = c.s.CreateCQ(1024)
	c.must(err)
	q, _ := c.s.CQ(c.cq)
	q.SetRing(c)
	return c
}

func (c *client) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// sendQ and recvQ are rings of one queue pair.
type sendQ struct {
	wrs  []transport.SendWR
	done int
}

func (s *sendQ) Fetch(wr *transport.SendWR) bool {
	if len(s.wrs) == 0 {
		return false
	}
	p := &s.wrs[0]
	wr.ID, wr.Op, wr.Flags, wr.Imm, wr.RemoteVA, wr.RKey = p.ID, p.Op, p.Flags, p.Imm, p.RemoteVA, p.RKey
	wr.Compare, wr.SwapAdd, wr.InlineData, wr.BadWQE = p.Compare, p.SwapAdd, p.InlineData, p.BadWQE
	wr.Path, wr.DestQPN, wr.QKey = p.Path, p.DestQPN, p.QKey
	wr.SGE = append(wr.SGE[:0], p.SGE...)
	s.wrs = s.wrs[1:]
	return true
}
func (s *sendQ) Done(uint32) { s.done++ }
func (s *sendQ) Publish()    {}

type recvQ struct {
	wrs  []transport.RecvWR
	done int
}

func (r *recvQ) Fetch(wr *transport.RecvWR) bool {
	if len(r.wrs) == 0 {
		return false
	}
	wr.ID, wr.SGE = r.wrs[0].ID, append(wr.SGE[:0], r.wrs[0].SGE...)
	r.wrs = r.wrs[1:]
	return true
}
func (r *recvQ) Done(uint32) { r.done++ }
func (r *recvQ) Publish()    {}
func (r *recvQ) Len() int    { return len(r.wrs) }

type endpoint struct {
	*client
	q  *QP
	sq *sendQ
	rq *recvQ
}

func (c *client) qp(cfg QPConfig) *endpoint {
	c.t.Helper()
	cfg.PD, cfg.SendCQ, cfg.RecvCQ = c.pd, c.cq, c.cq
	cfg.Cap = transport.Cap{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 256}
	q, err := c.s.CreateQP(&cfg)
	c.must(err)
	e := &endpoint{c, q, &sendQ{}, &recvQ{}}
	q.SetSendRing(e.sq)
	if cfg.SRQ == 0 {
		q.SetRecvRing(e.rq)
	}
	return e
}

// connect moves an RC queue pair to RTS towards peer.
func (e *endpoint) connect(peer *endpoint) {
	e.t.Helper()
	av := &AHAttr{DGID: testGIDs[1].GID, SGIDIndex: 1, HopLimit: 64, Global: true}
	e.must(e.q.Modify(1, &transport.Attr{State: ib.Init, Port: 1,
		Access: ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic}, nil,
		ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrAccessFlags))
	e.must(e.q.Modify(1, &transport.Attr{State: ib.RTR, PathMTU: ib.MTU1024, DestQPN: peer.q.Num(), RQPSN: 7,
		MaxDestRdAtomic: 4, MinRNRTimer: 1}, av,
		ib.AttrState|ib.AttrAV|ib.AttrPathMTU|ib.AttrDestQPN|ib.AttrRQPSN|ib.AttrMaxDestRdAtomic|ib.AttrMinRNRTimer))
	e.must(e.q.Modify(1, &transport.Attr{State: ib.RTS, SQPSN: 7, Timeout: 14, RetryCnt: 7, RNRRetry: 7,
		MaxRdAtomic: 4}, nil,
		ib.AttrState|ib.AttrSQPSN|ib.AttrTimeout|ib.AttrRetryCnt|ib.AttrRNRRetry|ib.AttrMaxQPRdAtomic))
}

func pair(t testing.TB, size int) (*Lane, *endpoint, *endpoint) {
	l := newNode(t)
	a, b := newClient(t, l, size).qp(QPConfig{Type: ib.RC}), newClient(t, l, size).qp(QPConfig{Type: ib.RC})
	a.connect(b)
	b.connect(a)
	return l, a, b
}

func (e *endpoint) post(wr transport.SendWR) {
	e.sq.wrs = append(e.sq.wrs, wr)
	e.q.SendPosted()
}

func (e *endpoint) postRecv(id uint64, off, n int) {
	e.rq.wrs = append(e.rq.wrs, transport.RecvWR{ID: id, SGE: e.sge(off, n)})
	e.q.RecvPosted(1)
}

func (e *endpoint) sge(off, n int) []ib.SGE {
	return []ib.SGE{{Addr: base + uint64(off), Len: uint32(n), LKey: e.mr.LKey}}
}

// drive runs the lane until it is idle.
func drive(t testing.TB, l *Lane) {
	t.Helper()
	for i := 0; l.Run(2); i++ {
		if i == 10000 {
			t.Fatal("the lane never comes to rest")
		}
	}
}

func (e *endpoint) expect(want ...ib.Status) []CQE {
	e.t.Helper()
	got := e.cqes
	e.cqes = nil
	if len(got) != len(want) {
		e.t.Fatalf("%d completions, want %d: %+v", len(got), len(want), got)
	}
	for i := range want {
		if got[i].Status != want[i] {
			e.t.Fatalf("completion %d is %v, want %v", i, got[i].Status, want[i])
		}
	}
	return got
}

// TestLocalOperations moves every operation between two clients of one lane.
func TestLocalOperations(t *testing.T) {
	l, a, b := pair(t, 1<<20)
	for i := range a.mem {
		a.mem[i] = byte(i * 7)
	}
	for _, n := range []int{0, 1, 1023, 1024, 1025, 5000, 300000} {
		clear(b.mem)
		a.post(transport.SendWR{ID: 1, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base + 11, RKey: b.mr.RKey,
			SGE: a.sge(3, n)})
		drive(t, l)
		a.expect(ib.Success)
		if !bytes.Equal(b.mem[11:11+n], a.mem[3:3+n]) || bytes.Count(b.mem[11+n:], []byte{0}) != len(b.mem)-11-n {
			t.Fatalf("WRITE of %d bytes: other bytes arrived", n)
		}
		b.postRecv(9, 500000, n)
		a.post(transport.SendWR{ID: 2, Op: ib.WRSendImm, Flags: ib.Signaled, Imm: 0xdecade, SGE: a.sge(5, n)})
		drive(t, l)
		a.expect(ib.Success)
		if c := b.expect(ib.Success)[0]; c.WRID != 9 || c.ByteLen != uint32(n) || c.Imm != 0xdecade ||
			c.Op != ib.WCRecv || c.QPN != b.q.Num() {
			t.Fatalf("receive completion %+v", c)
		}
		if !bytes.Equal(b.mem[500000:500000+n], a.mem[5:5+n]) {
			t.Fatalf("SEND of %d bytes: other bytes arrived", n)
		}
		clear(b.mem[:400000])
		b.post(transport.SendWR{ID: 3, Op: ib.WRRead, Flags: ib.Signaled, RemoteVA: base + 1, RKey: a.mr.RKey,
			SGE: b.sge(2, n)})
		drive(t, l)
		b.expect(ib.Success)
		if !bytes.Equal(b.mem[2:2+n], a.mem[1:1+n]) {
			t.Fatalf("READ of %d bytes: other bytes arrived", n)
		}
	}
	a.post(transport.SendWR{ID: 4, Op: ib.WRFetchAdd, Flags: ib.Signaled, RemoteVA: base + 64, RKey: b.mr.RKey,
		SwapAdd: 5, SGE: a.sge(0, 8)})
	clear(b.mem[64:72])
	drive(t, l)
	a.expect(ib.Success)
	if b.mem[64] != 5 {
		t.Error("FETCH_ADD did not add")
	}
}

// TestErrorsStayWhereTheyBelong checks keys and domains, and that the error of
// one queue pair leaves another one alone.
func TestErrorsStayWhereTheyBelong(t *testing.T) {
	l, a, b := pair(t, 1<<16)
	a2, b2 := a.qp(QPConfig{Type: ib.RC}), b.qp(QPConfig{Type: ib.RC})
	a2.connect(b2)
	b2.connect(a2)
	a.post(transport.SendWR{ID: 1, Op: ib.WRWrite, RemoteVA: base, RKey: b.mr.RKey ^ 1, SGE: a.sge(0, 8)})
	a.post(transport.SendWR{ID: 2, Op: ib.WRWrite, RemoteVA: base, RKey: b.mr.RKey, SGE: a.sge(0, 8)})
	a2.post(transport.SendWR{ID: 3, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
		SGE: a.sge(0, 8)})
	drive(t, l)
	got := map[uint64]ib.Status{}
	for _, c := range a.cqes {
		got[c.WRID] = c.Status
	}
	if got[1] != ib.RemAccessErr || got[2] != ib.WRFlushErr || got[3] != ib.Success {
		t.Errorf("statuses %v", got)
	}
	if err := a.s.DestroyPD(a.pd); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("destroying a domain in use: %v", err)
	}
	if err := a.s.DestroyCQ(a.cq); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("destroying a queue in use: %v", err)
	}
}

// TestCQOverflow fills a queue: the completions that fit arrive, then the
// queue, its queue pairs and nothing else are in error.
func TestCQOverflow(t *testing.T) {
	l, a, b := pair(t, 1<<16)
	a.room = 2
	for i := range 4 {
		a.post(transport.SendWR{ID: uint64(i), Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
			SGE: a.sge(0, 8)})
	}
	drive(t, l)
	a.expect(ib.Success, ib.Success)
	if a.q.Transport().State() != ib.Err || len(a.events) == 0 || a.events[0] != ib.EventCQErr {
		t.Errorf("state %v, events %v", a.q.Transport().State(), a.events)
	}
	if b.q.Transport().State() != ib.RTS {
		t.Errorf("the peer is in %v", b.q.Transport().State())
	}
}

// TestDeepCQ: what is deeper than a ring can be waits in the node.
func TestDeepCQ(t *testing.T) {
	l, a, b := pair(t, 1<<16)
	c, err := a.s.CQ(a.cq)
	if err == nil {
		err = c.Resize(maxRing + 3)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{5, 6} { // of which the ring takes two
		a.room = 2
		for range n {
			a.post(transport.SendWR{Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
				SGE: a.sge(0, 8)})
		}
		drive(t, l)
		if over := n == 6; c.Backlog() != 3 || c.Failed() != over {
			t.Fatalf("%d posted: %d wait, failed %v", n, c.Backlog(), c.Failed())
		}
		if n == 5 {
			a.room = 3
			l.RetryCQs()
			a.expect(ib.Success, ib.Success, ib.Success, ib.Success, ib.Success)
		}
	}
}

// TestOwnSourceOverTheNetwork: any program of the host can send UDP from the
// host's addresses; between queue pairs of the node it is not believed.
func TestOwnSourceOverTheNetwork(t *testing.T) {
	l, _, b := pair(t, 1<<16)
	b.postRecv(1, 0, 64)
	var at transport.Attr
	b.q.Transport().Query(&at)
	forge := func(src ib.GID) {
		r := pkt.Burst{Count: 1, MTU: 8, Path: &ib.Path{SGID: src, DGID: at.Path.SGID, HopLimit: 64},
			Data: mem.BytesPayload(make([]byte, 8))}
		r.Opcode, r.PKey, r.DestQPN, r.PSN = ib.SendOnly, ib.DefaultPKey, b.q.Num(), at.RQPSN
		l.Receive(1, &r)
		drive(t, l)
	}
	forge(at.Path.DGID)
	if b.expect(); l.Stats.DropOwnSource != 1 {
		t.Errorf("%+v", l.Stats)
	}
	forge(ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: 99})
	if b.expect(); l.Stats.DropOwnSource != 1 || b.q.Transport().Counters().DropPath != 1 {
		t.Errorf("%+v, %+v", l.Stats, b.q.Transport().Counters())
	}
}

// TestPathMTUByInterface has a port with a large active MTU, and a GID of an interface that carries less: connections
// and datagrams by that GID are limited, others are not, nor is traffic within the node.
func TestPathMTUByInterface(t *testing.T) {
	gids := []GIDEntry{{}, {GID: testGIDs[1].GID, MTU: ib.MTU4096}, {GID: testGIDs[2].GID, MTU: ib.MTU1024}}
	far := ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: 99}
	for _, c := range []struct {
		name      string
		wireLocal bool
		sgid      uint8
		dgid      ib.GID
		ask, want ib.MTU // 0: refused
	}{
		{"a large interface", false, 1, far, ib.MTU4096, ib.MTU4096},
		{"a small interface", false, 2, far, ib.MTU4096, ib.MTU1024},
		{"a small interface, a smaller MTU requested", false, 2, far, ib.MTU512, ib.MTU512},
		{"more than the port has", false, 2, far, ib.MTU4096 + 1, 0},
		{"within the node", false, 2, gids[1].GID, ib.MTU4096, ib.MTU4096},
		{"from another node of the host, there", true, 1, gids[2].GID, ib.MTU4096, ib.MTU1024},
		{"from another node of the host, back", true, 2, gids[1].GID, ib.MTU4096, ib.MTU1024},
	} {
		l := newNode(t)
		p := *l.all.At(0).Port()
		p.MTU, p.GIDs, p.WireLocal = ib.MTU4096, gids, c.wireLocal
		l.all.At(0).SetPort(&p)
		e := newClient(t, l, 1<<16).qp(QPConfig{Type: ib.RC})
		e.must(e.q.Modify(1, &transport.Attr{State: ib.Init, Port: 1}, nil,
			ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrAccessFlags))
		err := e.q.Modify(1, &transport.Attr{State: ib.RTR, PathMTU: c.ask, DestQPN: 9, MinRNRTimer: 1},
			&AHAttr{DGID: c.dgid, SGIDIndex: c.sgid, HopLimit: 64, Global: true},
			ib.AttrState|ib.AttrAV|ib.AttrPathMTU|ib.AttrDestQPN|ib.AttrRQPSN|ib.AttrMaxDestRdAtomic|ib.AttrMinRNRTimer)
		var got transport.Attr
		e.q.Transport().Query(&got)
		if got.PathMTU != c.want || (err == nil) != (c.want != 0) {
			t.Errorf("%s: path MTU %d, want %d (%v)", c.name, got.PathMTU, c.want, err)
		}
	}
	// Datagrams by the small interface.
	l := newNode(t)
	p := *l.all.At(0).Port()
	p.MTU, p.GIDs = ib.MTU4096, gids
	l.all.At(0).SetPort(&p)
	e := newClient(t, l, 1<<16).qp(QPConfig{Type: ib.UD})
	now := mono.Time(1)
	e.must(e.q.Modify(now, &transport.Attr{State: ib.Init, Port: 1, QKey: 5}, nil,
		ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrQKey))
	e.must(e.q.Modify(now, &transport.Attr{State: ib.RTR}, nil, ib.AttrState))
	e.must(e.q.Modify(now, &transport.Attr{State: ib.RTS}, nil, ib.AttrState|ib.AttrSQPSN))
	h, err := e.s.CreateAH(e.pd, &AHAttr{DGID: far, SGIDIndex: 2, HopLimit: 64, Global: true})
	e.must(err)
	e.post(transport.SendWR{ID: 1, Op: ib.WRSend, Flags: ib.Signaled, Path: e.q.Path(h), DestQPN: 9, QKey: 5,
		SGE: e.sge(0, 1025)})
	drive(t, l)
	e.expect(ib.LocLenErr)
}

// TestDestroyMeetsTraffic destroys one end while requests are queued: the
// other gets the error hardware would give, after its retries.
func TestDestroyMeetsTraffic(t *testing.T) {
	l, a, b := pair(t, 1<<16)
	a.post(transport.SendWR{ID: 1, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
		SGE: a.sge(0, 8)})
	b.s.Close()
	l.all.At(0).Detach(b.s)
	now := mono.Time(2)
	for range 40 {
		l.Run(now)
		if d := l.Deadline(); d != 0 {
			now = max(now, d)
		}
		now = now.Add(time.Microsecond)
	}
	a.expect(ib.RetryExcErr)
	if n := len(l.Sessions()); n != 1 {
		t.Errorf("%d sessions left", n)
	}
}

// TestAnswersGoBeforeCompletions: a program that has seen its last completion
// takes the queue pair down, and its peer has the acknowledgement all the same;
// also where the last byte came with the end of a turn.
func TestAnswersGoBeforeCompletions(t *testing.T) {
	const n = pollBytes
	l, a, b := pair(t, n)
	b.postRecv(2, 0, n)
	a.post(transport.SendWR{ID: 1, Op: ib.WRSend, Flags: ib.Signaled, SGE: a.sge(0, n)})
	now := mono.Time(2)
	for i := 0; len(b.cqes) == 0; i++ {
		if i == 100 {
			t.Fatal("the message does not arrive")
		}
		l.Run(now)
	}
	b.must(b.s.DestroyQP(now, b.q.Slot()))
	for range 40 {
		l.Run(now)
		if d := l.Deadline(); d != 0 {
			now = max(now, d)
		}
	}
	a.expect(ib.Success)
}

// TestLastWord: where a link is blocked completions become visible before their acknowledgements leave. A program that
// takes the queue pair down then leaves no peer waiting, and only the peer of one that still works has to wait.
func TestLastWord(t *testing.T) {
	for _, how := range []string{"destroyed", "to RESET", "to ERR", "at work"} {
		t.Run(how, func(t *testing.T) {
			f := &fabric{}
			port := Port{Link: ib.LinkEthernet, State: ib.PortActive, MTU: ib.MTU1024, MaxMTU: ib.MTU4096,
				GIDs: testGIDs, PKeys: []ib.PKey{ib.DefaultPKey},
				MaxRun: 60 << 10, MaxLocalRun: 256 << 10, WireLocal: true}
			l := NewLane(NewFunctions(NewAdapter(&port, DefaultLimits)), 0, f, nil)
			a, b := newClient(t, l, 64).qp(QPConfig{Type: ib.RC}), newClient(t, l, 64).qp(QPConfig{Type: ib.RC})
			a.connect(b)
			b.connect(a)
			b.postRecv(2, 0, 8)
			a.post(transport.SendWR{ID: 1, Op: ib.WRSend, Flags: ib.Signaled, SGE: a.sge(0, 8)})
			drive(t, l)
			if len(f.runs) != 1 {
				t.Fatalf("sent: %v", f.runs)
			}
			arrives := func() {
				r := f.runs[0]
				f.runs = f.runs[1:]
				path := *r.Path
				path.Function = l.all.At(0).Number()
				r.Path = &path
				if r.Data.Len != 0 {
					r.Data = mem.BytesPayload(make([]byte, r.Data.Len))
				}
				l.Receive(2, &r)
			}
			f.blocked = true
			arrives()
			if l.Run(2); len(f.runs) != 0 {
				t.Fatalf("given to a blocked link: %v", f.runs)
			}
			b.expect(ib.Success)
			switch how {
			case "destroyed":
				b.must(b.s.DestroyQP(2, b.q.Slot()))
			case "to RESET":
				b.must(b.q.Modify(2, &transport.Attr{State: ib.Reset}, nil, ib.AttrState))
			case "to ERR":
				b.must(b.q.Modify(2, &transport.Attr{State: ib.Err}, nil, ib.AttrState))
			default:
				if l.Run(2); len(f.runs) != 0 {
					t.Fatalf("given to a blocked link: %v", f.runs)
				}
			}
			f.blocked = false
			drive(t, l)
			if len(f.runs) != 1 || f.runs[0].Opcode.Op() != ib.Acknowledge {
				t.Fatalf("%d answers: %v", len(f.runs), f.runs)
			}
			arrives()
			drive(t, l)
			a.expect(ib.Success)
		})
	}
}

// endless is a ring with a client that posts as fast as requests are taken.
type endless struct {
	t     *testing.T
	taken int
}

func (e *endless) take() bool {
	if e.taken++; e.taken > 10*transport.MaxFlush {
		e.t.Fatal("the lane belongs to one client")
	}
	return true
}

type endlessSends struct{ endless }

func (e *endlessSends) Fetch(wr *transport.SendWR) bool {
	wr.BadWQE = true
	return e.take()
}
func (e *endlessSends) Done(uint32) {}
func (e *endlessSends) Publish()    {}

type endlessRecvs struct{ endless }

func (e *endlessRecvs) Fetch(wr *transport.RecvWR) bool { return e.take() }
func (e *endlessRecvs) Done(uint32)                     {}
func (e *endlessRecvs) Publish()                        {}
func (e *endlessRecvs) Len() int                        { return 1 }

// TestEndlessRings: a client that refills its rings while they are flushed gets no
// more than a ring's worth at a time.
func TestEndlessRings(t *testing.T) {
	for _, state := range []ib.QPState{ib.Err, ib.Reset} {
		t.Run(state.String(), func(t *testing.T) {
			l, a, _ := pair(t, 1<<16)
			a.q.SetSendRing(&endlessSends{endless{t: t}})
			a.q.SetRecvRing(&endlessRecvs{endless{t: t}})
			a.must(a.q.Modify(2, &transport.Attr{State: state}, nil, ib.AttrState))
			l.Run(2)
			a.q.RecvPosted(2)
			l.Run(2)
			a.must(a.s.DestroyQP(2, a.q.Slot()))
		})
	}
}

// TestLargeMessagesTakeTurns: pairs with much to move do not keep the lane from
// looking at the rings of others, and each gets its share.
func TestLargeMessagesTakeTurns(t *testing.T) {
	const size, pairs, messages = 1 << 20, 16, 4
	l := newNode(t)
	ca, cb := newClient(t, l, size), newClient(t, l, size)
	var from []*endpoint
	for range pairs {
		a, b := ca.qp(QPConfig{Type: ib.RC}), cb.qp(QPConfig{Type: ib.RC})
		a.connect(b)
		b.connect(a)
		for range messages {
			a.post(transport.SendWR{Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: cb.mr.RKey,
				SGE: a.sge(0, size)})
		}
		from = append(from, a)
	}
	sent := func(e *endpoint) uint64 { return e.q.Transport().Counters().SentBytes }
	for looks := 1; ; looks++ {
		if looks > 1000 {
			t.Fatal("the lane never comes to rest")
		}
		before := uint64(0)
		for _, e := range from {
			before += sent(e)
		}
		more := l.Run(2)
		after, least, most := uint64(0), ^uint64(0), uint64(0)
		for _, e := range from {
			n := sent(e)
			after, least, most = after+n, min(least, n), max(most, n)
		}
		if after-before > pollBytes+turnBytes {
			t.Fatalf("look %d: %d bytes at once", looks, after-before)
		}
		if most-least > 2*turnBytes {
			t.Fatalf("look %d: one pair sent %d bytes, another %d", looks, most, least)
		}
		if !more {
			break
		}
	}
	if n := len(ca.cqes); n != pairs*messages {
		t.Errorf("%d of %d messages", n, pairs*messages)
	}
}

// TestHandlesAreNotReusedSoon creates and destroys objects.
func TestHandlesAreNotReusedSoon(t *testing.T) {
	l := newNode(t)
	c := newClient(t, l, 4096)
	seen := map[uint32]bool{}
	for range 60 {
		e := c.qp(QPConfig{Type: ib.UD})
		if seen[e.q.Slot()] {
			t.Fatalf("slot %d came back", e.q.Slot())
		}
		seen[e.q.Slot()] = true
		c.must(c.s.DestroyQP(2, e.q.Slot()))
	}
}

// TestQuotas runs into the limits by name.
func TestQuotas(t *testing.T) {
	l := newNode(t)
	c := newClient(t, l, 4096)
	var err error
	n := 0
	for ; err == nil; n++ {
		_, err = c.s.CreateCQ(1)
	}
	if !errors.Is(err, syscall.ENOSPC) || n != 64 {
		t.Errorf("completion queue %d: %v", n, err)
	}
	if _, err := c.s.CreateCQ(0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a queue without entries: %v", err)
	}
	if _, err := c.s.RegisterMR(c.pd, &mem.Region{Access: ib.RemoteWrite}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("remote write without local write: %v", err)
	}
	if _, err := c.s.RegisterMR(77, &mem.Region{}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("registration in no domain: %v", err)
	}
}

// TestMemoryQuota creates queue pairs with deep queues until the session's
// quota is used up, and gets it back by destroying them.
func TestMemoryQuota(t *testing.T) {
	l := newNode(t)
	lim := DefaultLimits
	lim.Memory = 64 << 20
	l.all.At(0).SetLimits(lim)
	c := newClient(t, l, 4096)
	cfg := QPConfig{Type: ib.RC, PD: c.pd, SendCQ: c.cq, RecvCQ: c.cq, Cap: transport.Cap{MaxSendWR: 16384,
		MaxSendSGE: 8}}
	var made []*QP
	for len(made) < 64 {
		q, err := c.s.CreateQP(&cfg)
		if err != nil {
			if !errors.Is(err, syscall.ENOMEM) {
				t.Fatal(err)
			}
			break
		}
		made = append(made, q)
	}
	if len(made) == 0 || len(made) == 64 {
		t.Fatalf("%d queue pairs fit", len(made))
	}
	for _, q := range made {
		c.must(c.s.DestroyQP(2, q.Slot()))
	}
	if c.s.memory != 0 {
		t.Errorf("%d bytes still charged", c.s.memory)
	}
}

func TestRoundAllocatesNothing(t *testing.T) {
	l, a, b := pair(t, 1<<16)
	wr := []transport.SendWR{{ID: 1, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
		SGE: a.sge(0, 8)}}
	a.cqes = make([]CQE, 0, 1024)
	if n := testing.AllocsPerRun(200, func() {
		a.sq.wrs, a.cqes = wr, a.cqes[:0]
		a.q.SendPosted()
		for l.Run(2) {
		}
	}); n != 0 {
		t.Errorf("%v allocations per WRITE", n)
	}
}

func benchWrite(bb *testing.B, n, batch int) {
	l, a, b := pair(bb, 1<<20)
	wr := make([]transport.SendWR, batch)
	for i := range wr {
		wr[i] = transport.SendWR{ID: 1, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
			SGE: a.sge(0, n)}
	}
	bb.ReportAllocs()
	bb.SetBytes(int64(n * batch))
	for bb.Loop() {
		a.sq.wrs, a.cqes = wr, a.cqes[:0]
		a.q.SendPosted()
		for l.Run(2) {
		}
	}
}

func BenchmarkWrite8x64(b *testing.B)   { benchWrite(b, 8, 64) }
func BenchmarkWrite64K(b *testing.B)    { benchWrite(b, 64<<10, 1) }
func BenchmarkWrite64Kx16(b *testing.B) { benchWrite(b, 64<<10, 16) }
