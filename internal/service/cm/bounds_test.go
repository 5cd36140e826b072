// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"net/netip"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

func TestBacklog(t *testing.T) {
	a, b := newHost(t, "10.0.0.1", 1, Limits{}), newHost(t, "10.0.0.2", 2, Limits{})
	l, err := b.Listen(&ListenParams{ServiceID: service, Backlog: 2}, b.hear)
	if err != nil {
		t.Fatal(err)
	}
	var reqs []mad.Datagram
	for i := range 3 {
		_, d := a.connect(b, ib.QPN(i+16))
		reqs = append(reqs, d)
	}
	b.take(reqs...)
	b.sent()
	if len(b.events) != 2 || b.Stats.DropBacklog != 1 {
		t.Fatalf("%d requests, %d dropped", len(b.events), b.Stats.DropBacklog)
	}
	first := b.events[0].Conn
	b.events = nil
	first.Close(b.now)
	b.sent()
	b.take(reqs[2]) // comes again
	b.event(ConnectRequest)
	// Requests that users have received outlive the listener.
	l.Close(b.now)
	l.Close(b.now)
	b.quiet()
	if len(b.conns) != 2 {
		t.Errorf("%d connections", len(b.conns))
	}
	over(a, b)
}

// TestShares: listeners with users that do not reply leave room for other listeners, and for connections
// that the node requests.
func TestShares(t *testing.T) {
	const conns = 64
	a, b := newHost(t, "10.0.0.1", 1, Limits{}), newHost(t, "10.0.0.2", 2, Limits{Conns: conns, Lookups: conns})
	var heard [8]int
	for i := range heard {
		if _, err := b.Listen(&ListenParams{ServiceID: service + ServiceID(i), Backlog: 1024},
			func(_ mono.Time, e *Event) { heard[i]++ }); err != nil {
			t.Fatal(err)
		}
	}
	dropped := uint64(0)
	for i := range heard {
		for k := range conns {
			for _, lookup := range []bool{false, true} {
				if lookup {
					if _, err := a.Lookup(a.now, &LookupParams{ServiceID: service + ServiceID(i), Path: a.path(b)},
						a.hear); err != nil {
						t.Fatal(err)
					}
				} else if _, err := a.Connect(a.now, &ConnectParams{ServiceID: service + ServiceID(i),
					Path: a.path(b), QPN: ib.QPN(16 + i*conns + k), QPType: ib.RC}, a.hear); err != nil {
					t.Fatal(err)
				}
				b.take(a.sent()...)
				b.sent()
			}
		}
		if heard[i] < 2 {
			t.Errorf("listener %d heard of %d", i, heard[i])
		}
		dropped += 2 * conns
	}
	total := 0
	for _, n := range heard {
		total += n
	}
	if b.asked > conns/2 || b.inquired > conns/2 || b.asked+b.inquired != total ||
		b.Stats.DropShare != dropped-uint64(total) || b.Stats.DropFull != 0 {
		t.Errorf("heard %v, %d and %d wait, %d dropped", heard, b.asked, b.inquired, b.Stats.DropShare)
	}
	if _, err := b.Connect(b.now, &ConnectParams{ServiceID: service, Path: b.path(a), QPN: 99, QPType: ib.RC},
		b.hear); err != nil {
		t.Errorf("a connection of one's own: %v", err)
	}
}

// TestListenerClosesBeforeDelivery: a request that no user has received is rejected when its listener
// closes.
func TestListenerClosesBeforeDelivery(t *testing.T) {
	a, b := newHost(t, "10.0.0.1", 1, Limits{}), newHost(t, "10.0.0.2", 2, Limits{})
	l, err := b.Listen(&ListenParams{ServiceID: service}, b.hear)
	if err != nil {
		t.Fatal(err)
	}
	_, req := a.connect(b, 0x10)
	if _, err := a.Lookup(a.now, &LookupParams{ServiceID: service, Path: a.path(b)}, a.hear); err != nil {
		t.Fatal(err)
	}
	sidr := a.one(mad.AttrCMSIDRReq)
	b.handle(b.now, 0, &req) // not delivered yet
	b.handle(b.now, 0, &sidr)
	l.Close(b.now)
	list := b.sent()
	if k := kindsOf(list); len(b.events) != 0 || len(k) != 2 || k[0] != mad.AttrCMREJ || k[1] != mad.AttrCMSIDRRep {
		t.Fatalf("%#x, %d events", k, len(b.events))
	}
	a.take(list...)
	if len(a.events) != 2 || a.events[0].Kind != Rejected || a.events[1].Kind != LookupResponse ||
		a.events[1].Status != LookupNoService {
		t.Errorf("%+v", a.events)
	}
	over(a, b)
}

// TestPrecedence: of several listeners the one with the most specific match gets a request.
func TestPrecedence(t *testing.T) {
	b := newHost(t, "10.0.0.2", 2, Limits{})
	names := map[*Listener]string{}
	add := func(name string, p ListenParams) {
		t.Helper()
		l, err := b.Listen(&p, nil)
		if err != nil {
			t.Fatal(err)
		}
		names[l] = name
	}
	from := func(a string) func(*Request) bool {
		return func(q *Request) bool { return q.IP.Src == netip.MustParseAddr(a) }
	}
	add("all of TCP", ListenParams{ServiceID: IPService(SpaceTCP, 0), Mask: ^ServiceID(0xffff)})
	add("port", ListenParams{ServiceID: service})
	add("port, from 9", ListenParams{ServiceID: service, Match: from("10.0.0.9")})
	add("port, from 9 too", ListenParams{ServiceID: service, Match: from("10.0.0.9")})
	for _, c := range []struct {
		service ServiceID
		src     string
		want    string
	}{
		{service, "10.0.0.9", "port, from 9"},
		{service, "10.0.0.8", "port"},
		{service + 1, "10.0.0.9", "all of TCP"},
		{IPService(SpaceUDP, 7174), "10.0.0.9", ""},
	} {
		l := b.listener(&Request{ServiceID: c.service, IP: IPHeader{Src: netip.MustParseAddr(c.src)}})
		if names[l] != c.want {
			t.Errorf("%#x from %s is for %q, not %q", c.service, c.src, names[l], c.want)
		}
	}
}

// TestFull: beyond its bounds a Manager refuses, but TIMEWAIT gives way.
func TestFull(t *testing.T) {
	a := newHost(t, "10.0.0.1", 1, Limits{})
	b := newHost(t, "10.0.0.2", 2, Limits{Conns: 2, Lookups: 1, Listeners: 1, Out: 8})
	if _, err := b.Listen(&ListenParams{ServiceID: service}, b.hear); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Listen(&ListenParams{ServiceID: service + 1}, nil); err != ErrFull {
		t.Errorf("%v", err)
	}
	var list []mad.Datagram
	for i := range 2 {
		_, d := a.connect(b, ib.QPN(i+16))
		list = append(list, d)
	}
	b.take(list[0])
	b.sent()
	c := b.event(ConnectRequest).Conn
	b.accept(c, 0x20)
	if _, err := b.Connect(b.now, &ConnectParams{ServiceID: service, Path: b.path(a), QPType: ib.RC}, nil); err != nil {
		t.Fatal(err)
	}
	b.sent()
	b.take(list[1])
	out := b.sent()
	if len(out) != 1 {
		t.Fatalf("%d answers", len(out))
	}
	if r := rej(t, &out[0]); Reason(r.Reason) != ReasonNoResources || b.Stats.RejectFull != 1 {
		t.Errorf("%+v", r)
	}
	if _, err := b.Connect(b.now, &ConnectParams{ServiceID: service, Path: b.path(a), QPType: ib.RC},
		nil); err != ErrFull {
		t.Errorf("%v", err)
	}
	if err := c.Disconnect(b.now, nil); err != nil { // no RTU yet: TIMEWAIT at once
		t.Fatal(err)
	}
	b.sent()
	b.event(Disconnected)
	if _, err := b.Connect(b.now, &ConnectParams{ServiceID: service, Path: b.path(a), QPType: ib.RC}, nil); err != nil {
		t.Errorf("TIMEWAIT does not give way: %v", err)
	}
	b.sent()
	b.event(TimewaitExit)
	if b.Stats.EarlyTimewait != 1 {
		t.Error("not counted")
	}
	if _, err := b.Lookup(b.now, &LookupParams{ServiceID: service, Path: b.path(a)}, nil); err != nil {
		t.Error(err)
	}
	if _, err := b.Lookup(b.now, &LookupParams{ServiceID: service, Path: b.path(a)}, nil); err != ErrFull {
		t.Errorf("%v", err)
	}
	for i := range 20 {
		b.respondTo(t, a, uint32(i))
	}
	if b.Stats.LostOut == 0 {
		t.Error("what waits to be sent is not bounded")
	}
}

// respondTo has a host answer a DREQ of no connection.
func (h *host) respondTo(t *testing.T, from *host, id uint32) {
	p := from.path(h)
	d := datagram(&p)
	put(&d, mad.AttrCMDREQ, 1, &mad.CMDREQ{CMIDs: mad.CMIDs{LocalCommID: id, RemoteCommID: id}})
	h.Handle(h.now, 0, &d)
}

func TestLookups(t *testing.T) {
	a, b := two(t)
	ask := func() (*Lookup, mad.Datagram) {
		l, err := a.Lookup(a.now, &LookupParams{ServiceID: service, Path: a.path(b), PrivateData: []byte("who")},
			a.hear)
		if err != nil {
			t.Fatal(err)
		}
		return l, a.one(mad.AttrCMSIDRReq)
	}
	_, d := ask()
	b.take(d, d)
	e := b.event(LookupRequest)
	if string(e.Request.PrivateData[:4]) != "who\x00" || b.Stats.Duplicates != 1 ||
		e.Request.Path.DGID != ib.GIDFromAddr(a.eth.addr) || e.Request.Path.SGIDIndex != 1 {
		t.Errorf("%+v", e.Request)
	}
	if err := e.Inquiry.Accept(b.now, 0x31, 0x1234567, []byte("me")); err != nil {
		t.Fatal(err)
	}
	rep := b.one(mad.AttrCMSIDRRep)
	b.take(d)
	if again := b.one(mad.AttrCMSIDRRep); again.Data != rep.Data {
		t.Error("another answer")
	}
	if e.Inquiry.Accept(b.now, 1, 1, nil) != ErrState {
		t.Error("answered twice")
	}
	stranger := rep
	stranger.SGID[15]++
	a.take(stranger)
	a.quiet()
	a.take(rep, rep)
	if e := a.event(LookupResponse); e.Status != LookupOK || e.QPN != 0x31 || e.QKey != 0x1234567 ||
		string(e.PrivateData[:3]) != "me\x00" {
		t.Errorf("%+v", e)
	}
	a.empty()
	b.expire()
	b.quiet()
	b.empty()

	// Refused by the user.
	_, d = ask()
	b.take(d)
	if err := b.event(LookupRequest).Inquiry.Reject(b.now, LookupNoQP, []byte{1}, []byte("no")); err != nil {
		t.Fatal(err)
	}
	a.take(b.one(mad.AttrCMSIDRRep))
	if e := a.event(LookupResponse); e.Status != LookupNoQP || e.QPN != 0 || len(e.Info) != 1 {
		t.Errorf("%+v", e)
	}

	// The user received it and does not reply; it expires.
	_, d = ask()
	b.take(d)
	i := b.event(LookupRequest).Inquiry
	for range DefaultRetries {
		a.expire()
		a.one(mad.AttrCMSIDRReq)
	}
	a.expire()
	a.quietBut(LookupUnreachable)
	a.empty()
	b.now = b.now.Add(5 * time.Minute)
	b.quiet()
	b.empty()
	if i.Accept(b.now, 1, 1, nil) != ErrState {
		t.Error("answered though it was forgotten")
	}

	l, _ := ask()
	l.Close(a.now)
	l.Close(a.now)
	a.quiet()
	a.empty()
}

// TestCloseAll: a Manager that closes notifies every peer once.
func TestCloseAll(t *testing.T) {
	a, b, _, _ := connected(t)
	_, req := b.connect(a, 0x50)
	_ = req
	b.Close(b.now)
	list := b.sent()
	if k := kindsOf(list); len(k) != 2 || k[0]+k[1] != mad.AttrCMDREQ+mad.AttrCMREJ {
		t.Fatalf("%#x", k)
	}
	a.take(list...)
	a.sent()
	a.event(Disconnected)
	over(a, b)
}

// FuzzHandle passes arbitrary messages, which may contain valid identifiers, to a listening host with
// connections in several states. The host never holds more than its bounds, and nothing at the end.
func FuzzHandle(f *testing.F) {
	for i := range uint8(11) {
		f.Add(i, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9})
	}
	f.Fuzz(func(t *testing.T, first uint8, in []byte) {
		a := newHost(t, "10.0.0.1", 1, Limits{})
		b := newHost(t, "10.0.0.2", 2, Limits{Conns: 8, Lookups: 4, Out: 16})
		if _, err := b.Listen(&ListenParams{ServiceID: service}, b.hear); err != nil {
			t.Fatal(err)
		}
		b.connect(a, 0x60)
		for i := range 3 {
			_, d := a.connect(b, ib.QPN(i+16))
			b.take(d)
			if c := b.event(ConnectRequest).Conn; i > 0 {
				rep := b.accept(c, ib.QPN(i+32))
				if i > 1 {
					a.take(rep)
					b.take(a.establish(a.event(Response).Conn))
					b.event(Established)
				}
			}
		}
		p := a.path(b)
		for step := 0; len(in) > 0; step++ {
			d := datagram(&p)
			m := mad.NewCM(mad.AttrCMREQ+mad.AttributeID(int(first)+step)%11, 7)
			n := copy(m.Data[:], in[:min(len(in), 40)])
			if in[0]&1 != 0 {
				for id, c := range b.conns { // a valid one
					m.Data[4], m.Data[5], m.Data[6], m.Data[7] = byte(id>>24), byte(id>>16), byte(id>>8), byte(id)
					if in[0]&2 != 0 {
						r := c.remote.id
						m.Data[0], m.Data[1], m.Data[2], m.Data[3] = byte(r>>24), byte(r>>16), byte(r>>8), byte(r)
					}
					break
				}
			}
			in = in[n:]
			m.Append(d.Data[:0])
			b.take(d)
			if len(b.conns) > 8 || len(b.inquiries) > 4 || len(b.out)-b.head > 16 {
				t.Fatalf("%d connections, %d inquiries, %d to send", len(b.conns), len(b.inquiries), len(b.out)-b.head)
			}
		}
		b.Close(b.now)
		b.events = nil
		for b.sent(); b.Deadline() != 0; b.sent() {
			b.expire()
		}
		if len(b.events) > 0 {
			t.Errorf("%v after all was closed", b.events[0].Kind)
		}
		b.empty()
	})
}
