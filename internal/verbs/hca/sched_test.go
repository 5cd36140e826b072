// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"math"
	"syscall"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/transport"
)

// busy is a send ring that never runs dry.
type busy struct{ wr transport.SendWR }

func (b *busy) Fetch(wr *transport.SendWR) bool {
	wr.ID, wr.Op, wr.Flags, wr.RemoteVA, wr.RKey = b.wr.ID, b.wr.Op, b.wr.Flags, b.wr.RemoteVA, b.wr.RKey
	wr.Path, wr.DestQPN, wr.QKey = b.wr.Path, b.wr.DestQPN, b.wr.QKey
	wr.SGE = append(wr.SGE[:0], b.wr.SGE...)
	return true
}
func (b *busy) Done(uint32) {}
func (b *busy) Publish()    {}

func sentBytes(e *endpoint) float64 { return float64(e.q.t.Counters().SentBytes) }

// near fails where got is more than some percent away from want.
func near(t *testing.T, what string, got, want, percent float64) {
	t.Helper()
	if math.Abs(got-want) > want*percent/100 {
		t.Errorf("%s: %.4g, want %.4g", what, got, want)
	}
}

// flood connects a queue pair of function i with one of the other by service
// level sl and keeps it busy.
func (s *subnet) flood(t *testing.T, i int, sl uint8, op ib.WROp, n int) *endpoint {
	t.Helper()
	lids := [2]ib.LID{lidA, lidB}
	a, b := s.client[i].qp(QPConfig{Type: ib.RC}), s.client[1-i].qp(QPConfig{Type: ib.RC})
	a.must(a.up(&AHAttr{DLID: lids[1-i], SL: sl}, b.q.Num(), 0))
	b.must(b.up(&AHAttr{DLID: lids[i], SL: sl}, a.q.Num(), 0))
	a.q.SetSendRing(&busy{transport.SendWR{Op: op, RemoteVA: base, RKey: b.mr.RKey, SGE: a.sge(0, n)}})
	return a
}

// TestShares: what is backlogged is served by weight of function and level,
// whatever the number of queue pairs and the size of messages.
func TestShares(t *testing.T) {
	s := newSubnet(t)
	w := EqualShares
	w.Weight, w.Level[2], w.Level[5] = 300, 10, 40
	s.fn[0].SetShares(w)
	low := []*endpoint{s.flood(t, 0, 2, ib.WRWrite, 64<<10)}
	high := []*endpoint{s.flood(t, 0, 5, ib.WRWrite, 4096), s.flood(t, 0, 5, ib.WRWrite, 30000),
		s.flood(t, 0, 5, ib.WRWrite, 64<<10)}
	other := []*endpoint{s.flood(t, 1, 2, ib.WRWrite, 48<<10), s.flood(t, 1, 2, ib.WRWrite, 48<<10)}
	measure := func(looks int) (sum [3]float64) {
		for k, list := range [][]*endpoint{low, high, other} {
			for _, e := range list {
				sum[k] -= sentBytes(e)
			}
		}
		for range looks {
			s.l.Run(2)
		}
		for k, list := range [][]*endpoint{low, high, other} {
			for _, e := range list {
				sum[k] += sentBytes(e)
			}
		}
		return sum
	}
	measure(5)
	got := measure(100)
	all := got[0] + got[1] + got[2]
	near(t, "function with weight 300 of 400", (got[0]+got[1])/all, 0.75, 3)
	near(t, "level with weight 10 of 50", got[0]/(got[0]+got[1]), 0.2, 3)
	a, b := sentBytes(other[0]), sentBytes(other[1])
	near(t, "queue pairs of one class", a/b, 1, 3)

	// Weights change while traffic flows.
	w.Weight = 100
	w.Level[5] = 10
	s.fn[0].SetShares(w)
	measure(5)
	got = measure(100)
	all = got[0] + got[1] + got[2]
	near(t, "equal functions", got[2]/all, 0.5, 3)
	near(t, "equal levels", got[0]/got[1], 1, 3)

	// A queue pair with nothing to send leaves its share to the others.
	for _, e := range append(other, high...) {
		e.q.SetSendRing(nil)
	}
	measure(50)
	if got = measure(20); got[0] < 100<<20 || got[1]+got[2] != 0 {
		t.Errorf("alone it sends %v", got)
	}
}

// TestOneClass: with one class nothing is weighed.
func TestOneClass(t *testing.T) {
	s := newSubnet(t)
	l, a, b := pair(t, 1<<16)
	for range 20 {
		a.post(transport.SendWR{Op: ib.WRWrite, RemoteVA: base, RKey: b.mr.RKey, SGE: a.sge(0, 60000)})
	}
	drive(t, l)
	if u := l.sched.users; len(u) != 1 || len(u[0].classes) != 1 || u[0].pass != 0 || l.sched.busy != 0 {
		t.Errorf("%+v", l.sched)
	}
	// Queue pairs that go while they wait for a turn are not counted any more.
	s.flood(t, 0, 1, ib.WRWrite, 100)
	s.flood(t, 1, 2, ib.WRWrite, 100)
	s.client[0].s.Close()
	if s.l.sched.busy > 2 || s.l.sched.busy < 1 {
		t.Errorf("%d busy classes", s.l.sched.busy)
	}
	s.client[1].s.Close()
	s.l.Run(2)
	s.l.Recover()
	s.l.Run(2)
	if s.l.sched.busy != 0 {
		t.Errorf("%d busy classes without a queue pair", s.l.sched.busy)
	}
	for i, f := range s.fn {
		f.Detach(s.client[i].s)
		if err := s.l.all.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	s.l.Run(2)
	if len(s.l.sched.users) != 0 {
		t.Errorf("%d functions that are gone", len(s.l.sched.users))
	}
}

// pipe is a link of a rate: it takes what fits into a buffer and empties it as
// time passes.
type pipe struct {
	rate float64 // bytes per second
	full float64
	at   mono.Time
	sent map[ib.LID]float64
}

func (p *pipe) Send(now mono.Time, r *pkt.Burst, _ *mem.Batch) mem.Result {
	p.full += float64(r.Data.Len)
	p.sent[r.Path.SLID] += float64(r.Data.Len)
	return mem.OK
}
func (p *pipe) Blocked() bool   { return p.full > 256<<10 }
func (p *pipe) Flush(mono.Time) {}

func (p *pipe) pass(now mono.Time) {
	p.full = max(0, p.full-p.rate*now.Sub(p.at).Seconds())
	p.at = now
}

// TestSharesOfALink: behind a link that is the bottleneck each function gets
// its part of the link, in virtual time.
func TestSharesOfALink(t *testing.T) {
	s := newSubnet(t)
	link := &pipe{rate: 1.25e9, at: mono.Time(time.Second), sent: map[ib.LID]float64{}}
	s.l.SetFabric(link)
	for i, weight := range []uint16{70, 30} {
		w := EqualShares
		w.Weight = weight
		s.fn[i].SetShares(w)
		for range 1 + 3*i { // the lighter one has more queue pairs
			e := s.client[i].qp(QPConfig{Type: ib.UC})
			e.must(e.up(&AHAttr{DLID: 0x700, SL: uint8(i)}, 9, 0))
			e.q.SetSendRing(&busy{transport.SendWR{Op: ib.WRWrite, RemoteVA: base, RKey: 1, SGE: e.sge(0, 40000)}})
		}
	}
	const spell = 500 * time.Millisecond
	now := link.at
	for end := now.Add(spell); now < end; now = now.Add(50 * time.Microsecond) {
		link.pass(now)
		s.l.Run(now)
	}
	a, b := link.sent[lidA], link.sent[lidB]
	near(t, "what the link carried", a+b, link.rate*spell.Seconds(), 2)
	near(t, "function with weight 70 of 100", a/(a+b), 0.7, 3)
}

// live runs a lane in virtual time for a while, waking as its deadlines say, and
// returns how often it woke.
func live(t *testing.T, l *Lane, from mono.Time, d time.Duration) (wakes int) {
	t.Helper()
	for now := from; now < from.Add(d); wakes++ {
		if wakes > 1e6 {
			t.Fatal("the lane never sleeps")
		}
		if l.Run(now) {
			now = now.Add(10 * time.Microsecond)
			continue
		}
		if next := l.Deadline(); next > now {
			now = next
		} else {
			now = now.Add(10 * time.Microsecond)
		}
	}
	return wakes
}

// TestRateLimit: a queue pair keeps its rate, and the lane sleeps meanwhile.
func TestRateLimit(t *testing.T) {
	start := mono.Time(time.Second)
	for _, c := range []struct {
		name string
		op   ib.WROp
		size int
		kbps uint32
	}{
		{"writes", ib.WRWrite, 50000, 80_000},
		{"small writes", ib.WRWrite, 64, 8000},
		{"slow", ib.WRWrite, 60000, 1000},
		{"fast", ib.WRWrite, 64 << 10, 8_000_000},
		{"reads", ib.WRRead, 20000, 80_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSubnet(t)
			e := s.flood(t, 0, 0, c.op, c.size)
			if err := e.q.ModifyRate(c.kbps); err != nil {
				t.Fatal(err)
			}
			wakes := live(t, s.l, start, time.Second)
			got := sentBytes(e)
			if c.op == ib.WRRead {
				got = float64(e.q.t.Counters().RcvdBytes)
			}
			packets := float64(e.q.t.Counters().SentPackets)
			if c.op == ib.WRRead {
				packets = 0 // requests are few
			}
			near(t, "bytes with headers in a second", got+packets*packetOverhead, float64(c.kbps)*125, 3)
			if wakes > 3000 && c.size > 1000 && c.kbps < 1e6 {
				t.Errorf("the lane woke %d times", wakes)
			}
			if e.q.RateLimit() != c.kbps {
				t.Errorf("limit %d", e.q.RateLimit())
			}
			// Without the limit it is as fast as before.
			before := sentBytes(e)
			if err := e.q.ModifyRate(0); err != nil {
				t.Fatal(err)
			}
			for range 5 {
				s.l.Run(start.Add(2 * time.Second))
			}
			if c.op == ib.WRWrite && sentBytes(e)-before < 10*float64(c.size) {
				t.Errorf("%v bytes after the limit was lifted", sentBytes(e)-before)
			}
		})
	}
	s := newSubnet(t)
	e := s.client[0].qp(QPConfig{Type: ib.RC})
	if err := e.q.ModifyRate(5); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a limit in RESET: %v", err)
	}
}

// TestStaticRate: so does the static rate of the address vector, of a connection and of
// a datagram's handle, and it holds back no other queue pair.
func TestStaticRate(t *testing.T) {
	start := mono.Time(time.Second)
	s := newSubnet(t)
	a, b := s.client[0].qp(QPConfig{Type: ib.UC}), s.client[1].qp(QPConfig{Type: ib.UC})
	a.must(a.up(&AHAttr{DLID: lidB, StaticRate: ib.Rate2_5}, b.q.Num(), 0))
	b.must(b.up(&AHAttr{DLID: lidA}, a.q.Num(), 0))
	a.q.SetSendRing(&busy{transport.SendWR{Op: ib.WRWrite, RemoteVA: base, RKey: b.mr.RKey, SGE: a.sge(0, 60000)}})
	u, v := s.client[0].qp(QPConfig{Type: ib.UD}), s.client[1].qp(QPConfig{Type: ib.UD})
	u.must(u.up(nil, 0, 0))
	v.must(v.up(nil, 0, 0))
	h, err := u.s.CreateAH(u.pd, &AHAttr{DLID: lidB, StaticRate: ib.Rate5, SL: 4})
	u.must(err)
	u.q.SetSendRing(&busy{transport.SendWR{Op: ib.WRSend, Path: u.q.Path(h), DestQPN: v.q.Num(), QKey: 0x11,
		SGE: u.sge(0, 2048)}})
	const spell = 100 * time.Millisecond
	live(t, s.l, start, spell)
	for _, c := range []struct {
		e    *endpoint
		gbps float64
	}{{a, 2.5}, {u, 5}} {
		n := sentBytes(c.e) + float64(c.e.q.t.Counters().SentPackets)*packetOverhead
		near(t, c.e.q.cfg.Type.String(), n, c.gbps/8*1e9*spell.Seconds(), 3)
	}
	if u.q.class.level != 4 || a.q.class.level != 0 {
		t.Errorf("levels %d and %d", u.q.class.level, a.q.class.level)
	}
}

// TestAnswersAreNotPaced: a limit is for what a queue pair requests, not for what
// it answers.
func TestAnswersAreNotPaced(t *testing.T) {
	s := newSubnet(t)
	a, b := s.lidPair(t, ib.RC)
	b.must(b.q.ModifyRate(1))
	b.post(transport.SendWR{ID: 1, Op: ib.WRWrite, RemoteVA: base, RKey: a.mr.RKey, SGE: b.sge(0, 60000)})
	drive(t, s.l)
	a.post(transport.SendWR{ID: 2, Op: ib.WRRead, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
		SGE: a.sge(0, 60000)})
	drive(t, s.l)
	a.expect(ib.Success)
	// RESET forgets the limit.
	b.must(b.q.Modify(2, &transport.Attr{State: ib.Reset}, nil, ib.AttrState))
	if b.q.RateLimit() != 0 || b.q.pace.waiting {
		t.Errorf("%+v", b.q.pace)
	}
}

func TestSharedRoundAllocatesNothing(t *testing.T) {
	s := newSubnet(t)
	s.flood(t, 0, 1, ib.WRWrite, 4096)
	s.flood(t, 1, 2, ib.WRWrite, 4096)
	for range 10 {
		s.l.Run(2)
	}
	if n := testing.AllocsPerRun(50, func() { s.l.Run(2) }); n != 0 {
		t.Errorf("%v allocations per look", n)
	}
}
