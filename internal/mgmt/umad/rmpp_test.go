// SPDX-License-Identifier: Apache-2.0

package umad

import (
	"bytes"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// rmppMAD is a message of subnet administration with n bytes of data, to be sent in segments.
func rmppMAD(m mad.Method, n int, tid uint64) []byte {
	b := request(mad.ClassSA, 2, m, tid)[:mad.SAHeaderLen]
	r := mad.RMPP{Version: 1, Type: mad.RMPPData, Flags: mad.RMPPActive}
	r.Append(b[mad.HeaderLen:mad.HeaderLen])
	for i := range n {
		b = append(b, byte(i*7+i>>8))
	}
	return b
}

func rmppRequest(n int, tid uint64) []byte { return rmppMAD(mad.MethodGetMulti, n, tid) }

// carry moves datagrams between the ports until there are none; lose selects dropped ones. It moves the clock to
// deadlines until the limit.
func (b *bench) carry(limit time.Duration, lose func(i int, d *mad.Datagram) bool) (n int) {
	end := b.now.Add(limit)
	for {
		var d mad.Datagram
		from, ok := b.hub.Next(b.now, &d)
		if !ok {
			at := b.hub.Deadline()
			if at == 0 || at > end {
				return n
			}
			b.now = max(b.now, at)
			continue
		}
		n++
		if lose != nil && lose(n, &d) {
			continue
		}
		to := uint16(1)
		if d.DLID == 0x20 {
			to = 2
		}
		_ = from
		b.hub.Receive(b.now, to, &d)
	}
}

// pair is a client of subnet administration at port 1 and a server at port 2.
func (b *bench) pair() (client, server *File, cr, sr *reader) {
	client, cr = b.open(1)
	server, sr = b.open(2)
	b.register(client, sa)
	s := sa
	s.Methods = methods(mad.MethodGetTable, mad.MethodGetMulti)
	b.register(server, s)
	return client, server, cr, sr
}

func TestTable(t *testing.T) {
	for name, lose := range map[string]func(i int, d *mad.Datagram) bool{
		"nothing lost":   nil,
		"some lost":      func(i int, d *mad.Datagram) bool { return i == 3 || i == 9 || i == 40 },
		"the last acked": func(i int, d *mad.Datagram) bool { return i == 77 },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			client, server, cr, sr := b.pair()
			h := Header{QPN: 1, QKey: ib.GSIQKey, LID: 0x20, TimeoutMS: 1000}
			if err := client.Write(b.now, record(h, request(mad.ClassSA, 2, mad.MethodGetTable, 5))); err != OK {
				t.Fatal(err)
			}
			b.carry(0, nil)
			qh, q := parse(t, sr.take(t))
			var m mad.Header
			m.Parse(q)
			answer := rmppMAD(mad.MethodGetTableResp, 200*70+13, m.TransactionID)
			if err := server.Write(b.now, record(Header{Agent: qh.Agent, QPN: qh.QPN, LID: qh.LID, QKey: ib.GSIQKey},
				answer)); err != OK {
				t.Fatal(err)
			}
			b.carry(60*time.Second, lose)
			gh, got := parse(t, cr.take(t))
			if gh.Status != OK || int(gh.Length) != HeaderLen+len(answer) || !bytes.Equal(got[mad.SAHeaderLen:],
				answer[mad.SAHeaderLen:]) {
				t.Errorf("%+v, %d bytes, want %d", gh, len(got), len(answer))
			}
			m.Parse(got)
			if m.Method != mad.MethodGetTableResp || uint32(m.TransactionID) != 5 {
				t.Errorf("%+v", m)
			}
			if len(cr.got)+len(sr.got) != 0 || b.hub.Deadline() != 0 {
				t.Errorf("left: %d, %d, %v", len(cr.got), len(sr.got), b.hub.Deadline())
			}
		})
	}
}

// A single segment of short data has the length in its header.
func TestShortTable(t *testing.T) {
	b := newBench(t)
	client, server, cr, sr := b.pair()
	client.Write(b.now, record(Header{QPN: 1, LID: 0x20, TimeoutMS: 1000}, request(mad.ClassSA, 2, mad.MethodGetTable,
		5)))
	b.carry(0, nil)
	qh, q := parse(t, sr.take(t))
	var m mad.Header
	m.Parse(q)
	for _, n := range []int{0} {
		server.Write(b.now, record(Header{Agent: qh.Agent, QPN: 1, LID: qh.LID}, rmppMAD(mad.MethodGetTableResp, n,
			m.TransactionID)))
		b.carry(0, nil)
		if h, got := parse(t, cr.take(t)); len(got) != mad.SAHeaderLen+n || int(h.Length) != HeaderLen+
			mad.SAHeaderLen+n {
			t.Errorf("%d bytes of data: %d, %+v", n, len(got), h)
		}
	}
}

// Both ways in segments: IBA volume 1, 13.6.6.3.
func TestDoubleSided(t *testing.T) {
	b := newBench(t)
	client, server, cr, sr := b.pair()
	q := rmppRequest(1000, 6)
	if err := client.Write(b.now, record(Header{QPN: 1, LID: 0x20, TimeoutMS: 500}, q)); err != OK {
		t.Fatal(err)
	}
	b.carry(0, nil)
	qh, got := parse(t, sr.take(t))
	if !bytes.Equal(got[mad.SAHeaderLen:], q[mad.SAHeaderLen:]) {
		t.Fatalf("%d bytes", len(got))
	}
	var m mad.Header
	m.Parse(got)
	a := rmppMAD(mad.MethodGetMultiResp, 5000, m.TransactionID)
	if err := server.Write(b.now, record(Header{Agent: qh.Agent, QPN: 1, LID: qh.LID}, a)); err != OK {
		t.Fatal(err)
	}
	b.carry(0, nil)
	if h, got := parse(t, cr.take(t)); h.Status != OK || !bytes.Equal(got[mad.SAHeaderLen:], a[mad.SAHeaderLen:]) {
		t.Errorf("%+v, %d bytes", h, len(got))
	}
}

// A request in segments that is acknowledged and not answered is returned
// after all its tries; one that is not acknowledged is returned too.
func TestUnansweredMessage(t *testing.T) {
	b := newBench(t)
	client, _, cr, sr := b.pair()
	h := Header{QPN: 1, LID: 0x20, TimeoutMS: 500, Retries: 1}
	client.Write(b.now, record(h, rmppRequest(1000, 6)))
	began, waited := b.now, time.Duration(0)
	for len(cr.got) == 0 && b.now.Sub(began) < time.Minute {
		b.carry(0, nil)
		waited = b.now.Sub(began)
		b.now = b.now.Add(10 * time.Millisecond)
	}
	if len(sr.got) != 1 {
		t.Errorf("the server read %d", len(sr.got))
	}
	if g, m := parse(t, cr.take(t)); g.Status != ETIMEDOUT || len(m) != mad.HeaderLen {
		t.Errorf("%+v, %d bytes", g, len(m))
	}
	if gave := b.hub.Stats.TimedOut; gave != 1 || waited < 2*500*time.Millisecond {
		t.Errorf("gave up %d, after %v", gave, waited)
	}
	client.Write(b.now, record(h, rmppRequest(1000, 7)))
	b.carry(time.Minute, func(int, *mad.Datagram) bool { return true })
	if g, m := parse(t, cr.take(t)); g.Status != ETIMEDOUT || len(m) != mad.HeaderLen {
		t.Errorf("%+v, %d bytes", g, len(m))
	}
	if len(cr.got) != 0 || b.hub.Deadline() != 0 {
		t.Errorf("%d more, deadline %v", len(cr.got), b.hub.Deadline())
	}
}

// While segments of an answer arrive, a request waits longer than its timeout.
func TestSlowTable(t *testing.T) {
	b := newBench(t)
	client, server, cr, sr := b.pair()
	client.Write(b.now, record(Header{QPN: 1, LID: 0x20, TimeoutMS: 100}, request(mad.ClassSA, 2, mad.MethodGetTable,
		5)))
	b.carry(0, nil)
	qh, q := parse(t, sr.take(t))
	var m mad.Header
	m.Parse(q)
	server.Write(b.now, record(Header{Agent: qh.Agent, QPN: 1, LID: qh.LID}, rmppMAD(mad.MethodGetTableResp, 200*20,
		m.TransactionID)))
	for range 1000 {
		var d mad.Datagram
		_, ok := b.hub.Next(b.now, &d)
		if !ok {
			break
		}
		to := uint16(1)
		if d.DLID == 0x20 {
			to = 2
		}
		b.now = b.now.Add(60 * time.Millisecond)
		b.hub.Receive(b.now, to, &d)
	}
	if h, _ := parse(t, cr.take(t)); h.Status != OK || len(cr.got) != 0 {
		t.Errorf("%+v and %d more", h, len(cr.got))
	}
}

// A program that does RMPP itself reads and writes segments.
func TestUserRMPP(t *testing.T) {
	b := newBench(t)
	f, r := b.open(1)
	u := sa
	u.UserRMPP = true
	id := b.register(f, u)
	if err := f.Write(b.now, record(Header{Agent: id, QPN: 1, LID: 0x20, TimeoutMS: 100}, request(mad.ClassSA, 2,
		mad.MethodGetTable, 5))); err != OK {
		t.Fatal(err)
	}
	d := b.next(1)
	for seg := range uint32(3) {
		a := d.Reply()
		a.Data[3] = byte(mad.MethodGetTableResp)
		x := mad.RMPP{Version: 1, Type: mad.RMPPData, Flags: mad.RMPPActive, Data1: seg + 1}
		x.Append(a.Data[24:24])
		if !b.hub.Receive(b.now, 1, &a) {
			t.Fatal("not taken")
		}
		if _, m := parse(t, r.take(t)); !bytes.Equal(m, a.Data[:]) {
			t.Errorf("segment %d: % x", seg, m)
		}
	}
	b.idle()
}
