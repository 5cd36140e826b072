// SPDX-License-Identifier: Apache-2.0

package rmpp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// flight is a datagram on its way to one of two endpoints.
type flight struct {
	at mono.Time
	to int
	d  mad.Datagram
}

// duel is two endpoints under a virtual clock, with a network between them
// that loses, repeats and reorders.
type duel struct {
	now     mono.Time
	ends    [2]*Endpoint
	flying  []flight
	fate    func() (copies int, delay time.Duration)
	arrived func(end int, m *Message)
	frames  int
}

// run goes on until nothing is under way and no deadline is set.
func (u *duel) run() error {
	for range 1_000_000 {
		for end, e := range u.ends {
			var d mad.Datagram
			for e.Next(u.now, &d) {
				u.frames++
				n, delay := u.fate()
				for range n {
					u.flying = append(u.flying, flight{u.now.Add(delay), 1 - end, d})
					_, delay = u.fate()
				}
			}
		}
		at := mono.Min(u.ends[0].Deadline(), u.ends[1].Deadline())
		for _, f := range u.flying {
			at = mono.Min(at, f.at)
		}
		if at.IsZero() {
			return nil
		}
		u.now = max(u.now, at)
		for i := 0; i < len(u.flying); i++ {
			if f := u.flying[i]; f.at.Due(u.now) {
				u.flying = slices.Delete(u.flying, i, i+1)
				i--
				m, taken := u.ends[f.to].Handle(u.now, &f.d)
				if !taken {
					return fmt.Errorf("not taken: % x", f.d.Data[:mad.SAHeaderLen])
				}
				if m != nil {
					u.arrived(f.to, m)
				}
			}
		}
	}
	return fmt.Errorf("still busy at %v", u.now)
}

// idle reports what an endpoint still holds.
func (e *Endpoint) idle() bool {
	return len(e.all) == 0 && len(e.senders) == 0 && len(e.receivers) == 0
}

// datagram returns a message's datagram from end to the other.
func datagram(end int, tid uint64, method mad.Method) (d mad.Datagram) {
	d = mad.Datagram{SLID: ib.LID(1 + end), DLID: ib.LID(2 - end), SrcQPN: 1, DstQPN: 1, QKey: ib.GSIQKey,
		PKey: ib.DefaultPKey}
	copy(d.Data[:], saHead(tid, method))
	return d
}

// TestDelivery sends messages of many sizes at once through networks of all kinds: each
// arrives once and unchanged, its sender learns it, and in the end nothing is left over. The
// transfers have retries enough that only an error of the protocol can fail them.
func TestDelivery(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 5))
		loss, repeat, jitter := rng.IntN(40), rng.IntN(30), time.Duration(rng.IntN(100))*time.Millisecond
		cfg := Config{Window: 1 + rng.IntN(64), Retries: 1000, Stall: 24 * time.Hour, Linger: time.Hour}
		u := &duel{now: start, ends: [2]*Endpoint{NewEndpoint(cfg), NewEndpoint(cfg)},
			fate: func() (int, time.Duration) {
				n := 1
				switch r := rng.IntN(100); {
				case r < loss:
					n = 0
				case r < loss+repeat:
					n = 2
				}
				return n, time.Millisecond + time.Duration(rng.Int64N(int64(jitter+1)))
			}}
		want := map[uint64][]byte{}
		for tid := range uint64(5) {
			want[tid] = pattern(rng.IntN(20000) * rng.IntN(2))
		}
		got, done := map[uint64]int{}, 0
		u.arrived = func(end int, m *Message) {
			var sa mad.SA
			if sa.Parse(m.Datagram.Data[:]) != nil || end != 1 || m.Datagram.SLID != 1 || sa.ComponentMask != 5 ||
				sa.Method != mad.MethodGetTableResp {
				t.Fatalf("seed %d: %+v", seed, m.Datagram)
			}
			if !bytes.Equal(m.Data, want[sa.TransactionID]) {
				t.Fatalf("seed %d, message %d: %d octets, want %d", seed, sa.TransactionID, len(m.Data),
					len(want[sa.TransactionID]))
			}
			if n := min(len(m.Data), mad.SADataLen); !bytes.Equal(sa.Data[:n], m.Data[:n]) ||
				!bytes.Equal(sa.Data[n:], make([]byte, mad.SADataLen-n)) {
				t.Fatalf("seed %d: the datagram's own data % x", seed, sa.Data)
			}
			got[sa.TransactionID]++
		}
		for tid, data := range want {
			d := datagram(0, tid, mad.MethodGetTableResp)
			if err := u.ends[0].Send(&d, bytes.Clone(data), false, func(st State, why Status) {
				if st != Complete || got[tid] != 1 {
					t.Fatalf("seed %d, message %d: state %d, %v, arrived %d times", seed, tid, st, why, got[tid])
				}
				done++
			}); err != nil {
				t.Fatal(err)
			}
			if err := u.ends[0].Send(&d, nil, false, nil); err != ErrBusy {
				t.Fatalf("the same again: %v", err)
			}
		}
		if err := u.run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if done != len(want) || len(got) != len(want) || !u.ends[0].idle() || !u.ends[1].idle() {
			t.Fatalf("seed %d: %d done, %d arrived of %d, idle %v, %v", seed, done, len(got), len(want),
				u.ends[0].idle(), u.ends[1].idle())
		}
		for tid, n := range got {
			if n != 1 {
				t.Fatalf("seed %d: message %d arrived %d times", seed, tid, n)
			}
		}
	}
}

// TestCleanNetwork proves that without loss a message costs its segments, one
// acknowledgement per window and the last, and no timeout.
func TestCleanNetwork(t *testing.T) {
	u := &duel{now: start, fate: func() (int, time.Duration) { return 1, time.Millisecond }}
	u.ends = [2]*Endpoint{NewEndpoint(Config{}), NewEndpoint(Config{})}
	var took time.Duration
	u.arrived = func(_ int, m *Message) { took = u.now.Sub(start) }
	d := datagram(0, 1, mad.MethodGetTableResp)
	if err := u.ends[0].Send(&d, pattern(200*200), false, nil); err != nil {
		t.Fatal(err)
	}
	if err := u.run(); err != nil {
		t.Fatal(err)
	}
	// Acknowledged are segments 1, 65, 129, 193 and 200.
	if u.frames != 200+5 || took != 9*time.Millisecond {
		t.Errorf("%d frames, %v", u.frames, took)
	}
}

// TestDoubleSided sends a long message and answers it with another, as GetMulti does (IBA volume 1, 13.6.3.2).
func TestDoubleSided(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 6))
		loss := rng.IntN(30) * rng.IntN(2)
		cfg := Config{Retries: 1000, Stall: 24 * time.Hour}
		u := &duel{now: start, ends: [2]*Endpoint{NewEndpoint(cfg), NewEndpoint(cfg)},
			fate: func() (int, time.Duration) {
				if rng.IntN(100) < loss {
					return 0, 0
				}
				return 1, time.Millisecond + time.Duration(rng.Int64N(1+int64(loss)*int64(time.Millisecond)))
			}}
		question, answer := pattern(1+rng.IntN(3000)), pattern(rng.IntN(9000))
		asked, answered := 0, 0
		u.arrived = func(end int, m *Message) {
			if end == 1 {
				asked++
				if !bytes.Equal(m.Data, question) {
					t.Fatalf("seed %d: the question changed", seed)
				}
				d := m.Datagram.Reply()
				d.Data[3] = byte(mad.MethodGetMultiResp)
				if err := u.ends[1].Send(&d, bytes.Clone(answer), false, nil); err != nil {
					t.Fatal(err)
				}
				return
			}
			answered++
			if !bytes.Equal(m.Data, answer) || mad.Method(m.Datagram.Data[3]) != mad.MethodGetMultiResp {
				t.Fatalf("seed %d: the answer changed", seed)
			}
		}
		d := datagram(0, 7, mad.MethodGetMulti)
		if err := u.ends[0].Send(&d, bytes.Clone(question), true, nil); err != nil {
			t.Fatal(err)
		}
		if err := u.run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if asked != 1 || answered != 1 || !u.ends[0].idle() || !u.ends[1].idle() {
			t.Fatalf("seed %d: asked %d, answered %d times", seed, asked, answered)
		}
		if c := u.ends[0].Counters; loss == 0 && c != (Counters{}) {
			t.Errorf("seed %d: %+v", seed, c)
		}
	}
}

// hand passes what an endpoint sends now to another, which is at the other
// end, and returns the segment numbers of data and the message, if one came whole.
func hand(t *testing.T, from, to *Endpoint) (segments []uint32, m *Message) {
	t.Helper()
	for d := (mad.Datagram{}); from.Next(start, &d); {
		if r := rmppOf(t, d.Data[:]); r.Type == mad.RMPPData {
			segments = append(segments, r.Data1)
		}
		got, taken := to.Handle(start, &d)
		if !taken {
			t.Fatal("not taken")
		}
		if got != nil {
			m = got
		}
	}
	return segments, m
}

// TestGrantedWindow answers a double-sided question: the first segments of the answer take the
// window that the requester granted, and an ABORT then ends the answer, not the question.
func TestGrantedWindow(t *testing.T) {
	client, server := NewEndpoint(Config{}), NewEndpoint(Config{})
	d := datagram(0, 7, mad.MethodGetMulti)
	asked := Active
	if err := client.Send(&d, pattern(10), true, func(st State, _ Status) { asked = st }); err != nil {
		t.Fatal(err)
	}
	_, question := hand(t, client, server)
	hand(t, server, client)
	if question == nil || asked != Complete {
		t.Fatal("not asked")
	}
	// The client's own grant is one segment; this one is of another.
	var grant mad.Datagram
	if !client.Next(start, &grant) {
		t.Fatal("no grant")
	}
	r := rmppOf(t, grant.Data[:])
	r.Data2 = 3
	r.Append(grant.Data[rmppAt:rmppAt])
	server.Handle(start, &grant)
	answer := question.Datagram.Reply()
	answer.Data[3] = byte(mad.MethodGetMultiResp)
	if err := server.Send(&answer, pattern(2000), false, nil); err != nil {
		t.Fatal(err)
	}
	if segments, _ := hand(t, server, client); !slices.Equal(segments, []uint32{1, 2, 3}) {
		t.Errorf("the answer begins with segments %v", segments)
	}
	// An ABORT of the server as the sender of the answer.
	control(&answer.Data, bytes.Clone(answer.Data[:mad.SAHeaderLen]), false, mad.RMPPAbort, AbortRetries, 0, 0)
	client.Handle(start, &answer)
	if client.Counters != (Counters{ReceivesFailed: 1}) || len(client.receivers) != 0 {
		t.Errorf("%+v, %d answers under way", client.Counters, len(client.receivers))
	}
}

// TestPeersAreApart gives equal transactions of different peers, ports and
// directions transfers of their own.
func TestPeersAreApart(t *testing.T) {
	e := NewEndpoint(Config{})
	n := 0
	for _, edit := range []func(*mad.Datagram){
		func(*mad.Datagram) {},
		func(d *mad.Datagram) { d.Port = 2 },
		func(d *mad.Datagram) { d.SLID = 9 },
		func(d *mad.Datagram) { d.SrcQPN = 9 },
		func(d *mad.Datagram) { d.Global, d.SGID = true, ib.GID{15: 1} },
		func(d *mad.Datagram) { d.Global, d.SGID = true, ib.GID{15: 2} },
		func(d *mad.Datagram) { d.Data[3] = byte(mad.MethodGetMulti) },
		func(d *mad.Datagram) { d.Data[15] = 9 },
		func(d *mad.Datagram) { d.Data[1] = byte(mad.ClassPing) },
	} {
		d := datagram(1, 1, mad.MethodGetTableResp)
		r := mad.RMPP{Version: 1, Type: mad.RMPPData, Flags: mad.RMPPActive | mad.RMPPFirst, Data1: 1}
		r.Append(d.Data[rmppAt:rmppAt])
		edit(&d)
		for range 2 {
			e.Handle(start, &d)
		}
		if n++; len(e.receivers) != n {
			t.Errorf("%d transfers, want %d", len(e.receivers), n)
		}
		// The acknowledgement goes back to where the segment came from.
		var out mad.Datagram
		if !e.Next(start, &out) || out.DLID != d.SLID || out.SLID != d.DLID || out.DstQPN != d.SrcQPN ||
			out.Port != d.Port || out.DGID != d.SGID {
			t.Errorf("acknowledges to %+v", out)
		}
	}
}

// TestTurns lets transfers share the wire segment by segment, also when one ends.
func TestTurns(t *testing.T) {
	e := NewEndpoint(Config{})
	for tid := range uint64(4) {
		d := datagram(0, tid, mad.MethodGetTableResp)
		if err := e.Send(&d, pattern(2000), false, nil); err != nil {
			t.Fatal(err)
		}
	}
	send := func(want ...uint64) {
		t.Helper()
		for _, tid := range want {
			var d mad.Datagram
			var h mad.Header
			if !e.Next(start, &d) || h.Parse(d.Data[:]) != nil || h.TransactionID != tid {
				t.Fatalf("transaction %d has its turn, want %d", h.TransactionID, tid)
			}
		}
	}
	control := func(tid uint64, kind mad.RMPPType, seg, window uint32) {
		d := datagram(1, tid, mad.MethodGetTableResp)
		b := controlOf(kind, 0, seg, window)
		copy(d.Data[:], b)
		d.Data[15] = byte(tid)
		e.Handle(start, &d)
	}
	send(0, 1, 2, 3)
	for tid := range uint64(4) {
		control(tid, mad.RMPPAck, 1, 10)
	}
	send(0, 1)
	control(0, mad.RMPPStop, 0, 0)
	send(2, 3, 1, 2, 3, 1)
}

// TestSchedules drops, duplicates and reorders datagrams at random, with few retries. In all cases a message arrives at
// most once and unchanged, a sender that reports Complete has delivered, every transfer ends, and no state remains.
func TestSchedules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Window: rapid.IntRange(1, 64).Draw(t, "window"), Retries: rapid.IntRange(1, 3).Draw(t, "retries")}
		data := pattern(rapid.IntRange(0, 3000).Draw(t, "octets"))
		u := &duel{now: start, ends: [2]*Endpoint{NewEndpoint(cfg), NewEndpoint(cfg)},
			fate: func() (int, time.Duration) {
				return rapid.SampledFrom([]int{1, 1, 1, 0, 2}).Draw(t, "copies"),
					time.Duration(rapid.IntRange(1, 3000).Draw(t, "delay")) * time.Millisecond
			}}
		got, state := 0, Active
		u.arrived = func(end int, m *Message) {
			if end != 1 || !bytes.Equal(m.Data, data) {
				t.Fatalf("%d octets at %d", len(m.Data), end)
			}
			got++
		}
		d := datagram(0, 1, mad.MethodGetTableResp)
		if err := u.ends[0].Send(&d, bytes.Clone(data), false, func(st State, _ Status) { state = st }); err != nil {
			t.Fatal(err)
		}
		if err := u.run(); err != nil {
			t.Fatal(err)
		}
		// A first segment that is not acknowledged comes for at most 9 seconds,
		// and the receiver lingers for 10: the message is not taken twice.
		if state == Active || state == Complete && got == 0 || got > 1 {
			t.Fatalf("sender %d, arrived %d times", state, got)
		}
		if !u.ends[0].idle() || !u.ends[1].idle() {
			t.Fatal("something is left over")
		}
	})
}

// TestBounds fills an endpoint with as many transfers as it takes, in both
// directions.
func TestBounds(t *testing.T) {
	e := NewEndpoint(Config{Transfers: 3})
	for tid := range uint64(5) {
		d := datagram(0, tid, mad.MethodGetTableResp)
		if err := e.Send(&d, nil, false, nil); (err == ErrFull) != (tid >= 3) || tid < 3 && err != nil {
			t.Errorf("message %d: %v", tid, err)
		}
		d = datagram(1, tid, mad.MethodGetTableResp)
		r := mad.RMPP{Version: 1, Type: mad.RMPPData, Flags: mad.RMPPActive | mad.RMPPFirst, Data1: 1}
		r.Append(d.Data[rmppAt:rmppAt])
		if m, taken := e.Handle(start, &d); m != nil || !taken {
			t.Errorf("message %d: %v, %v", tid, m, taken)
		}
	}
	if e.Counters != (Counters{Full: 2}) || len(e.all) != 6 {
		t.Errorf("%+v, %d transfers", e.Counters, len(e.all))
	}
	d := datagram(1, 99, mad.MethodGetTableResp)
	if _, taken := e.Handle(start, &d); taken {
		t.Error("takes an ordinary MAD")
	}
	for i, kind := range []mad.RMPPType{mad.RMPPData, mad.RMPPAck, mad.RMPPStop, mad.RMPPAbort, 9} {
		r := mad.RMPP{Version: 1, Type: kind, Flags: mad.RMPPActive, Data1: 2}
		r.Append(d.Data[rmppAt:rmppAt])
		if m, taken := e.Handle(start, &d); m != nil || !taken || e.Counters.Stray != uint64(i+1) {
			t.Errorf("stray %d: %v, %v, %+v", kind, m, taken, e.Counters)
		}
	}
	d.Data[1] = byte(mad.ClassPerf)
	if _, taken := e.Handle(start, &d); taken {
		t.Error("takes a class without RMPP")
	}
	// Without answers all transfers end.
	var out mad.Datagram
	for now := start; !e.idle(); now = max(now, e.Deadline()) {
		for e.Next(now, &out) {
		}
	}
	if e.Counters.SendsFailed != 3 || e.Counters.ReceivesFailed != 3 {
		t.Errorf("%+v", e.Counters)
	}
}

// TestReentry lets the end of one message start the next.
func TestReentry(t *testing.T) {
	u := &duel{now: start, fate: func() (int, time.Duration) { return 1, time.Millisecond }}
	u.ends = [2]*Endpoint{NewEndpoint(Config{}), NewEndpoint(Config{})}
	arrived := 0
	u.arrived = func(int, *Message) { arrived++ }
	var send func(tid uint64)
	send = func(tid uint64) {
		d := datagram(0, tid, mad.MethodGetTableResp)
		if err := u.ends[0].Send(&d, pattern(500), false, func(State, Status) {
			if tid < 5 {
				send(tid + 1)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	send(1)
	if err := u.run(); err != nil || arrived != 5 || !u.ends[0].idle() {
		t.Errorf("%v, %d arrived", err, arrived)
	}
}

// FuzzEndpoint feeds an endpoint arbitrary MADs while time passes: what it holds stays
// bounded, it answers a MAD with at most one, and in the end all of it is gone.
func FuzzEndpoint(f *testing.F) {
	s, err := NewSender(Config{}, saHead(1, mad.MethodGetTableResp), pattern(900), 100, false)
	if err != nil {
		f.Fatal(err)
	}
	var all []byte
	for b := ([mad.Len]byte{}); s.Next(start, &b); {
		all = append(all, b[:mad.SAHeaderLen]...)
	}
	f.Add(all, uint16(10))
	f.Add(append(all, ackOf(1, 9)[:mad.SAHeaderLen]...), uint16(3000))
	f.Add(append(all[:mad.SAHeaderLen:mad.SAHeaderLen], controlOf(mad.RMPPAbort, AbortLast, 0,
		0)[:mad.SAHeaderLen]...), uint16(1))
	f.Fuzz(func(t *testing.T, in []byte, step uint16) {
		e := NewEndpoint(Config{Transfers: 4, MaxBytes: 2000})
		d := datagram(0, 1, mad.MethodGetTableResp)
		if err := e.Send(&d, pattern(700), true, nil); err != nil {
			t.Fatal(err)
		}
		now := start
		var out mad.Datagram
		for ; len(in) >= mad.SAHeaderLen; in = in[mad.SAHeaderLen:] {
			d := datagram(1, 1, mad.MethodGetTable)
			copy(d.Data[:], in[:mad.SAHeaderLen])
			e.Handle(now, &d)
			if now = now.Add(time.Duration(step) * time.Millisecond); in[0]&1 != 0 {
				e.Next(now, &out)
			}
			held := 0
			for _, t := range e.all {
				if t.r != nil {
					held += cap(t.r.data)
				}
			}
			// Slices grow by up to a factor of two, and to a size class.
			if len(e.senders) > 4 || len(e.receivers) > 4 || len(e.all) > 8 || held > 4*(2*2200+2048) {
				t.Fatalf("%d transfers with %d octets", len(e.all), held)
			}
		}
		for range 10000 {
			for range 10000 {
				if !e.Next(now, &out) {
					break
				}
			}
			if e.idle() {
				return
			}
			if e.Deadline().IsZero() {
				t.Fatal("holds something without a deadline")
			}
			now = max(now, e.Deadline())
		}
		t.Fatal("never ends")
	})
}
