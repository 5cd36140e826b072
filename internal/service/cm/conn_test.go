// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

const service = ServiceID(0x1061c06) // of TCP port 7174

// two are hosts of which the second listens.
func two(t testing.TB) (a, b *host) {
	a, b = newHost(t, "10.0.0.1", 1, Limits{}), newHost(t, "10.0.0.2", 2, Limits{})
	if _, err := b.Listen(&ListenParams{ServiceID: service}, b.hear); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// connect sends a REQ and returns it.
func (h *host) connect(to *host, qpn ib.QPN) (*Conn, mad.Datagram) {
	h.t.Helper()
	c, err := h.Connect(h.now, &ConnectParams{ServiceID: service, Path: h.path(to), QPType: ib.RC, QPN: qpn,
		ResponderResources: 3, InitiatorDepth: 5,
		RetryCount: 7, RNRRetry: 7}, h.hear)
	if err != nil {
		h.t.Fatal(err)
	}
	return c, h.one(mad.AttrCMREQ)
}

// take hands datagrams over.
func (h *host) take(list ...mad.Datagram) {
	for i := range list {
		h.Handle(h.now, 0, &list[i])
	}
}

func (h *host) accept(c *Conn, qpn ib.QPN) mad.Datagram {
	h.t.Helper()
	if err := c.Accept(h.now, &AcceptParams{QPN: qpn, ResponderResources: 16, InitiatorDepth: 16, RNRRetry: 7,
		AckDelay: 15}); err != nil {
		h.t.Fatal(err)
	}
	return h.one(mad.AttrCMREP)
}

func (h *host) establish(c *Conn) mad.Datagram {
	h.t.Helper()
	if err := c.Establish(h.now, nil); err != nil {
		h.t.Fatal(err)
	}
	return h.one(mad.AttrCMRTU)
}

// connected is an established connection, seen from both sides.
func connected(t testing.TB) (a, b *host, x, y *Conn) {
	t.Helper()
	a, b = two(t)
	x, req := a.connect(b, 0x10)
	b.take(req)
	y = b.event(ConnectRequest).Conn
	a.take(b.accept(y, 0x20))
	a.event(Response)
	b.take(a.establish(x))
	b.event(Established)
	return a, b, x, y
}

// TestRNRTimer checks the RNR timer that a side announces: the one of Linux where the peer's RNR retry count is finite,
// a short one where the peer repeats without end.
func TestRNRTimer(t *testing.T) {
	for _, x := range []struct {
		connect, accept            uint8 // the RNR retry counts that the messages ask for
		active, accepting, passive uint8 // timers: of the active side, of the passive one before Accept and after
	}{{5, 5, 0, 0, 0}, {7, 7, 12, 12, 12}, {7, 5, 12, 12, 0}, {0, 7, 0, 0, 12}} {
		a, b := two(t)
		timer := func(c *Conn) uint8 {
			t.Helper()
			attr, mask, err := c.QPAttr(ib.RTR)
			if err != nil || mask&ib.AttrMinRNRTimer == 0 {
				t.Fatalf("mask %#x, %v", mask, err)
			}
			return attr.MinRNRTimer
		}
		c, err := a.Connect(a.now, &ConnectParams{ServiceID: service, Path: a.path(b), QPType: ib.RC, QPN: 0x10,
			RetryCount: 5, RNRRetry: x.connect}, a.hear)
		if err != nil {
			t.Fatal(err)
		}
		b.take(a.one(mad.AttrCMREQ))
		s := b.event(ConnectRequest).Conn
		accepting := timer(s)
		if err := s.Accept(b.now, &AcceptParams{QPN: 0x20, RNRRetry: x.accept}); err != nil {
			t.Fatal(err)
		}
		a.take(b.one(mad.AttrCMREP))
		a.event(Response)
		if active, passive := timer(c), timer(s); active != x.active || accepting != x.accepting || passive != x.passive {
			t.Errorf("%+v: timers %d, %d, %d", x, active, accepting, passive)
		}
		if r, _, err := s.QPAttr(ib.RTS); err != nil || r.RNRRetry != x.connect {
			t.Errorf("%+v: the passive side repeats %d times, %v", x, r.RNRRetry, err)
		}
		if r, _, err := c.QPAttr(ib.RTS); err != nil || r.RNRRetry != x.accept {
			t.Errorf("%+v: the active side repeats %d times, %v", x, r.RNRRetry, err)
		}
	}
}

// rej parses a REJ.
func rej(t testing.TB, d *mad.Datagram) (r mad.CMREJ) {
	t.Helper()
	if k := kindOf(d); k != mad.AttrCMREJ {
		t.Fatalf("message %#x is no REJ", k)
	}
	if err := r.Parse(d.Data[mad.HeaderLen:]); err != nil {
		t.Fatal(err)
	}
	return r
}

// over lets both sides end and proves that nothing is left.
func over(hosts ...*host) {
	for _, h := range hosts {
		for _, c := range h.conns {
			c.Close(h.now)
		}
	}
	for range 200 {
		busy := false
		for i, h := range hosts {
			for _, d := range h.sent() {
				busy = true
				hosts[1-i].take(d)
			}
			if h.Deadline() != 0 {
				busy = true
				h.expire()
			}
		}
		if !busy {
			break
		}
	}
	for _, h := range hosts {
		h.empty()
	}
}

func TestReqSentToUnreachableWhenNobodyAnswers(t *testing.T) {
	a, b := two(t)
	c, first := a.connect(b, 0x10)
	start := a.now
	for range DefaultRetries {
		a.expire()
		if again := a.one(mad.AttrCMREQ); !bytes.Equal(again.Data[:], first.Data[:]) {
			t.Fatal("the REQ changes from one time to the next")
		}
	}
	a.expire()
	d := a.sent()
	a.event(Unreachable)
	if len(d) != 1 {
		t.Fatalf("%d messages", len(d))
	}
	if r := rej(t, &d[0]); Reason(r.Reason) != ReasonTimeout || r.LocalCommID != c.id || r.RemoteCommID != 0 ||
		r.InfoLen != 8 || !bytes.Equal(r.Info[:8], guidInfo(a.eth.guid)) {
		t.Errorf("%+v", r)
	}
	// 16 times 4.3 s and twice 1.07 s.
	if took := a.now.Sub(start); took < 100*time.Second || took > 105*time.Second {
		t.Errorf("it took %v", took)
	}
	a.empty()
	// The peer that received the REQ, and lost its reply, drops the connection.
	b.take(first)
	b.event(ConnectRequest)
	b.take(d[0])
	if e := b.event(Rejected); e.Reason != ReasonTimeout {
		t.Errorf("%v", e.Reason)
	}
	b.quiet()
	b.empty()
}

func TestReqRcvdAnswersAgainWithMRA(t *testing.T) {
	a, b := two(t)
	c, req := a.connect(b, 0x10)
	b.take(req, req)
	b.event(ConnectRequest)
	d := b.one(mad.AttrCMMRA)
	var r mad.CMMRA
	r.Parse(d.Data[mad.HeaderLen:])
	if r.RemoteCommID != c.id || r.Message != mad.CMOfREQ || r.ServiceTimeout != 24 {
		t.Errorf("%+v", r)
	}
	before := a.Deadline()
	a.take(d)
	if more := a.Deadline().Sub(before); more < time.Minute || more > 2*time.Minute {
		t.Errorf("an MRA gives the peer %v more", more)
	}
	a.quiet()
	over(a, b)
}

func TestRepSentRepeatsForREQ(t *testing.T) {
	a, b := two(t)
	_, req := a.connect(b, 0x10)
	b.take(req)
	rep := b.accept(b.event(ConnectRequest).Conn, 0x20)
	b.take(req)
	if again := b.one(mad.AttrCMREP); again.Data != rep.Data {
		t.Error("another REP")
	}
	over(a, b)
}

func TestRepSentToUnreachable(t *testing.T) {
	a, b := two(t)
	x, req := a.connect(b, 0x10)
	b.take(req)
	rep := b.accept(b.event(ConnectRequest).Conn, 0x20)
	a.take(rep)
	a.event(Response)
	a.establish(x) // the RTU is lost, every time
	for range DefaultRetries {
		b.expire()
		b.one(mad.AttrCMREP)
	}
	b.expire()
	d := b.one(mad.AttrCMREJ)
	b.event(Unreachable)
	b.empty()
	// The active side, which is established, is notified that the peer is not.
	a.take(d)
	a.event(Disconnected)
	a.expire()
	a.quietBut(TimewaitExit)
	a.empty()
}

func TestRepRcvdAnswersAgainWithMRA(t *testing.T) {
	a, b := two(t)
	x, req := a.connect(b, 0x10)
	b.take(req)
	rep := b.accept(b.event(ConnectRequest).Conn, 0x20)
	a.take(rep, rep)
	a.event(Response)
	d := a.one(mad.AttrCMMRA)
	b.take(d)
	b.quiet()
	rtu := a.establish(x)
	a.take(rep)
	if again := a.one(mad.AttrCMRTU); again.Data != rtu.Data {
		t.Error("another RTU")
	}
	over(a, b)
}

func TestREPOfNoConnection(t *testing.T) {
	a, b := two(t)
	x, req := a.connect(b, 0x10)
	b.take(req)
	rep := b.accept(b.event(ConnectRequest).Conn, 0x20)
	x.Close(a.now)
	a.one(mad.AttrCMREJ) // is lost
	a.take(rep)
	d := a.one(mad.AttrCMREJ)
	if r := rej(t, &d); Reason(r.Reason) != ReasonInvalidCommID || r.Message != mad.CMOfREP {
		t.Errorf("%+v", r)
	}
	b.take(d)
	b.event(Rejected)
	a.empty()
	b.empty()
}

func TestNotifyEstablishes(t *testing.T) {
	a, b := two(t)
	x, req := a.connect(b, 0x10)
	b.take(req)
	y := b.event(ConnectRequest).Conn
	if err := y.Notify(b.now); !errors.Is(err, ErrState) {
		t.Errorf("before the REP: %v", err)
	}
	a.take(b.accept(y, 0x20))
	a.event(Response)
	rtu := a.establish(x)
	if err := y.Notify(b.now); err != nil {
		t.Fatal(err)
	}
	b.quietBut(Established)
	b.take(rtu)
	if err := y.Notify(b.now); err != nil {
		t.Error(err)
	}
	b.quiet()
	over(a, b)
}

func TestCrossingDREQs(t *testing.T) {
	a, b, x, y := connected(t)
	if err := errors.Join(x.Disconnect(a.now, nil), y.Disconnect(b.now, nil)); err != nil {
		t.Fatal(err)
	}
	p, q := a.one(mad.AttrCMDREQ), b.one(mad.AttrCMDREQ)
	a.take(q)
	b.take(p)
	a.event(Disconnected)
	b.event(Disconnected)
	p, q = a.one(mad.AttrCMDREP), b.one(mad.AttrCMDREP)
	a.take(q)
	b.take(p)
	a.quiet()
	b.quiet()
	over(a, b)
}

func TestDREQWithoutAnswer(t *testing.T) {
	a, _, x, _ := connected(t)
	start := a.now
	if err := x.Disconnect(a.now, nil); err != nil {
		t.Fatal(err)
	}
	a.one(mad.AttrCMDREQ)
	for i := range DefaultRetries {
		a.expire()
		a.one(mad.AttrCMDREQ)
		if told := len(a.events) == 1; told != (i >= disconnectPatience-1) {
			t.Errorf("after %d: told %v", i+1, told)
		}
	}
	a.event(Disconnected)
	if took := a.now.Sub(start); took > 2*time.Minute {
		t.Errorf("it took %v", took)
	}
	a.expire()
	a.quiet()
	a.expire()
	a.quietBut(TimewaitExit)
	a.empty()
	if x.Disconnect(a.now, nil) != nil {
		t.Error("to disconnect once more is an error")
	}
}

func TestDREQOfNoConnection(t *testing.T) {
	a, b, x, y := connected(t)
	if err := x.Disconnect(a.now, nil); err != nil {
		t.Fatal(err)
	}
	dreq := a.one(mad.AttrCMDREQ)
	wrong := dreq
	patch(&wrong, 8, 0, 0, 0x21)
	b.take(wrong)
	b.quiet()
	if b.Stats.DropForeign != 1 {
		t.Error("a DREQ for another queue pair is not counted")
	}
	b.take(dreq)
	b.event(Disconnected)
	drep := b.one(mad.AttrCMDREP)
	b.take(dreq)
	if again := b.one(mad.AttrCMDREP); again.Data != drep.Data {
		t.Error("another DREP")
	}
	y.Close(b.now)
	b.expire()
	b.quiet()
	b.empty()
	b.take(dreq)
	if again := b.one(mad.AttrCMDREP); again.Data != drep.Data {
		t.Errorf("another DREP of the forgotten connection\n got %x\nwant %x", again.Data, drep.Data)
	}
	a.take(drep)
	a.event(Disconnected)
	over(a, b)
}

func TestStaleConnection(t *testing.T) {
	a, b, _, y := connected(t)
	a2 := newHost(t, "10.0.0.1", 77, Limits{}) // has begun anew
	_, req := a2.connect(b, 0x10)
	b.take(req)
	list := b.sent()
	if k := kindsOf(list); len(k) != 2 || k[0] != mad.AttrCMDREQ {
		t.Fatalf("%#x", k)
	}
	if r := rej(t, &list[1]); Reason(r.Reason) != ReasonStale {
		t.Errorf("%+v", r)
	}
	a2.take(list...)
	if e := a2.event(Rejected); e.Reason != ReasonStale {
		t.Errorf("%v", e.Reason)
	}
	b.take(a2.one(mad.AttrCMDREP))
	if e := b.event(Disconnected); e.Conn != y {
		t.Error("another connection is over")
	}
	// The old one is in TIMEWAIT: the queue pair is free for a new one.
	_, req = a2.connect(b, 0x10)
	b.take(req)
	b.event(ConnectRequest)
	over(a2, b)
	over(a, newHost(t, "10.0.0.2", 3, Limits{}))
}

func TestREQInTimewait(t *testing.T) {
	a, b := two(t)
	_, req := a.connect(b, 0x10)
	b.take(req)
	y := b.event(ConnectRequest).Conn
	b.accept(y, 0x20)
	y.Close(b.now)
	b.one(mad.AttrCMREJ)
	b.take(req)
	d := b.one(mad.AttrCMREJ)
	if r := rej(t, &d); Reason(r.Reason) != ReasonStale {
		t.Errorf("%+v", r)
	}
	other := req
	patch(&other, 32, 0, 0, 0x99)
	b.take(other)
	d = b.one(mad.AttrCMREJ)
	if r := rej(t, &d); Reason(r.Reason) != ReasonDuplicateCommID {
		t.Errorf("%+v", r)
	}
	over(a, b)
}

func TestRequestsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*mad.CMREQ)
		why    Reason
		info   []byte
	}{
		{"service", func(r *mad.CMREQ) { r.ServiceID++ }, ReasonInvalidServiceID, nil},
		{"RD", func(r *mad.CMREQ) { r.Transport = mad.CMTransportRD }, ReasonInvalidTransport, nil},
		{"XRC", func(r *mad.CMREQ) { r.Transport, r.ExtTransport = mad.CMTransportExt, 1 }, ReasonInvalidTransport,
			nil},
		{"GID", func(r *mad.CMREQ) { r.Primary.RemoteGID[15]++ }, ReasonInvalidGID, nil},
		{"partition", func(r *mad.CMREQ) { r.PKey = 0x8001 }, ReasonInvalidGID, nil},
		{"MTU", func(r *mad.CMREQ) { r.PathMTU = ib.MTU2048 }, ReasonInvalidMTU, []byte{byte(ib.MTU1024)}},
		{"no MTU", func(r *mad.CMREQ) { r.PathMTU = 0 }, ReasonInvalidMTU, []byte{byte(ib.MTU1024)}},
	} {
		a, b := two(t)
		_, d := a.connect(b, 0x10)
		var r mad.CMREQ
		r.Parse(d.Data[mad.HeaderLen:])
		c.change(&r)
		r.Append(d.Data[:mad.HeaderLen])
		b.take(d)
		out := b.one(mad.AttrCMREJ)
		j := rej(t, &out)
		if c.why == ReasonInvalidGID {
			good := ib.GIDFromAddr(b.eth.addr)
			c.info = good[:]
		}
		if Reason(j.Reason) != c.why || j.Message != mad.CMOfREQ || j.LocalCommID != 0 ||
			!bytes.Equal(j.Info[:j.InfoLen], c.info) {
			t.Errorf("%s: %+v", c.name, j)
		}
		b.empty()
		a.take(out)
		if e := a.event(Rejected); e.Reason != c.why || !bytes.Equal(e.Info, c.info) {
			t.Errorf("%s: %v, %x", c.name, e.Reason, e.Info)
		}
		a.empty()
	}
}

func TestOthersCannotSpeakForThePeer(t *testing.T) {
	a, b, x, y := connected(t)
	x.Disconnect(a.now, nil)
	dreq := a.one(mad.AttrCMDREQ)
	dreq.SGID = ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: 9}
	b.take(dreq)
	j := mad.CMREJ{CMIDs: mad.CMIDs{LocalCommID: x.id, RemoteCommID: y.id}, Message: mad.CMOther,
		Reason: uint16(ReasonConsumer)}
	put(&dreq, mad.AttrCMREJ, 1, &j)
	b.take(dreq)
	b.quiet()
	if b.Stats.DropForeign != 2 || y.state != established {
		t.Errorf("%d counted, state %d", b.Stats.DropForeign, y.state)
	}
	over(a, b)
}

// TestOthersCannotPoseAsThePeer proves that the GUID, identifier and queue pair of a peer, which any
// host can state, neither end its connections nor block new ones.
func TestOthersCannotPoseAsThePeer(t *testing.T) {
	a, b, _, y := connected(t)
	pose := newHost(t, "10.0.0.9", 5, Limits{})
	pose.eth.guid = a.eth.guid
	c, req := pose.connect(b, 0x10) // the queue pair that y's peer has
	b.take(req)
	if y.state != established {
		t.Fatalf("ended by another host: state %d", y.state)
	}
	b.event(ConnectRequest)
	b.quiet()
	c.Close(pose.now)
	b.take(pose.sent()...)
	b.event(Rejected)

	// Of a queue pair and identifier that the peer is about to use.
	x2, req := a.connect(b, 0x11)
	forged := req
	forged.SGID = ib.GIDFromAddr(pose.eth.addr)
	var r mad.CMREQ
	r.Parse(forged.Data[mad.HeaderLen:])
	r.Primary.LocalGID = forged.SGID
	r.Append(forged.Data[:mad.HeaderLen])
	b.take(forged)
	b.event(ConnectRequest)
	b.take(req)
	b.event(ConnectRequest)

	// And in a REP.
	if _, err := pose.Listen(&ListenParams{ServiceID: service}, pose.hear); err != nil {
		t.Fatal(err)
	}
	x3, req := a.connect(pose, 0x12)
	pose.eth.guid = b.eth.guid
	pose.take(req)
	a.take(pose.accept(pose.event(ConnectRequest).Conn, 0x20)) // which x's peer has
	a.event(Response)
	a.quiet()
	if x2.state != reqSent || x3.state != repRcvd {
		t.Errorf("states %d, %d", x2.state, x3.state)
	}
}

// TestREQStatesItsSource: a connection goes to the address in the REQ, so that must be the sender's,
// also on an Ethernet port: no host can connect two others with each other.
func TestREQStatesItsSource(t *testing.T) {
	for _, g := range []ib.GID{{}, {0: 0xff}, ib.GIDFromAddr(netip.MustParseAddr("10.0.0.9"))} {
		a, b := two(t)
		_, d := a.connect(b, 0x10)
		var r mad.CMREQ
		r.Parse(d.Data[mad.HeaderLen:])
		r.Primary.LocalGID = g
		r.Append(d.Data[:mad.HeaderLen])
		b.take(d)
		b.quiet()
		b.empty()
		if n := counter(b, "drop_req_gid"); n != 1 {
			t.Errorf("%v: %d dropped", g, n)
		}
	}
}

func TestLAPIsAnswered(t *testing.T) {
	a, b, x, y := connected(t)
	d := x.to
	put(&d, mad.AttrCMLAP, 5, &mad.CMLAP{CMIDs: mad.CMIDs{LocalCommID: x.id, RemoteCommID: y.id}, RemoteQPN: 0x20})
	b.take(d)
	out := b.one(mad.AttrCMAPR)
	var r mad.CMAPR
	if r.Parse(out.Data[mad.HeaderLen:]); r.Status != mad.CMAPUnsupported || r.LocalCommID != y.id ||
		r.RemoteCommID != x.id {
		t.Errorf("%+v", r)
	}
	over(a, b)
}

func TestClassPortInfo(t *testing.T) {
	_, b := two(t)
	m := mad.NewCM(mad.AttrClassPortInfo, 9)
	m.Method = mad.MethodGet
	p := newHost(t, "10.0.0.1", 1, Limits{}).path(b)
	d := datagram(&p)
	m.Append(d.Data[:0])
	b.take(d)
	list := b.sent()
	if len(list) != 1 {
		t.Fatalf("%d answers", len(list))
	}
	var i mad.ClassPortInfo
	m.Parse(list[0].Data[:])
	if i.Parse(list[0].Data[64:]); m.Method != mad.MethodGetResp || m.Status != mad.StatusOK ||
		m.TransactionID != 9 || i.ClassVersion != 2 || i.RespTimeValue != DefaultTimeout {
		t.Errorf("%+v %+v", m.Header, i)
	}
	m.Method, m.AttributeID = mad.MethodSet, mad.AttrNotice
	m.Append(d.Data[:0])
	b.take(d)
	list = b.sent()
	if len(list) != 1 || m.Parse(list[0].Data[:]) != nil || m.Status != mad.StatusBadMethodAttr {
		t.Errorf("%+v", m.Header)
	}
}

func TestCloseInEveryState(t *testing.T) {
	for state := range 7 {
		a, b := two(t)
		x, req := a.connect(b, 0x10)
		var y *Conn
		steps := []func(){
			func() {},
			func() { b.take(req); y = b.event(ConnectRequest).Conn },
			func() { a.take(b.accept(y, 0x20)); a.event(Response) },
			func() { b.take(a.establish(x)); b.event(Established) },
			func() { x.Disconnect(a.now, nil); b.take(a.one(mad.AttrCMDREQ)); b.event(Disconnected) },
			func() { a.take(b.one(mad.AttrCMDREP)); a.event(Disconnected) },
			func() { a.expire(); a.quietBut(TimewaitExit) },
		}
		for _, f := range steps[:state+1] {
			f()
		}
		for side := range 2 {
			c := []*Conn{x, y}[side]
			if c != nil {
				c.Close(a.now)
				c.Close(a.now) // twice does no harm
			}
		}
		over(a, b)
		if len(a.events)+len(b.events) > 0 {
			t.Errorf("state %d: events after both have let go", state)
		}
	}
}

func TestErrorsOfCalls(t *testing.T) {
	a, b, x, y := connected(t)
	long := make([]byte, 300)
	for name, err := range map[string]error{
		"accept":    y.Accept(b.now, &AcceptParams{}),
		"establish": x.Establish(a.now, nil),
		"reject":    y.Reject(b.now, ReasonConsumer, nil, nil),
		"QPAttr dead": func() error {
			c, _ := a.connect(b, 0x11)
			c.Close(a.now)
			a.sent()
			_, _, err := c.QPAttr(ib.RTR)
			return err
		}(),
		"QPAttr early": func() error { c, _ := a.connect(b, 0x12); _, _, err := c.QPAttr(ib.RTS); return err }(),
	} {
		if !errors.Is(err, ErrState) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := a.path(b)
	noMTU := p
	noMTU.MTU = 0
	for name, err := range map[string]error{
		"disconnect": x.Disconnect(a.now, long),
		"data":       second(a.Connect(a.now, &ConnectParams{Path: p, QPType: ib.RC, PrivateData: long}, nil)),
		"type":       second(a.Connect(a.now, &ConnectParams{Path: p, QPType: ib.UD}, nil)),
		"MTU":        second(a.Connect(a.now, &ConnectParams{Path: noMTU, QPType: ib.RC}, nil)),
		"lookup":     second(a.Lookup(a.now, &LookupParams{Path: p, PrivateData: long}, nil)),
		"SQD":        func() error { _, _, err := x.QPAttr(ib.SQD); return err }(),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.Function = 3
	if err := second(a.Connect(a.now, &ConnectParams{Path: p, QPType: ib.RC}, nil)); !errors.Is(err, ErrNoPort) {
		t.Errorf("no port: %v", err)
	}
	if _, err := b.Listen(&ListenParams{ServiceID: service}, nil); !errors.Is(err, ErrInUse) {
		t.Errorf("listen twice: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestPortGoesAway(t *testing.T) {
	a, b, _, _ := connected(t)
	a.connect(b, 0x11)
	p := a.path(b)
	if _, err := a.Lookup(a.now, &LookupParams{ServiceID: service, Path: p}, a.hear); err != nil {
		t.Fatal(err)
	}
	a.eth.gone = true
	a.Remove(a.now, 0)
	a.sent()
	seen := map[EventKind]int{}
	for _, e := range a.events {
		seen[e.Kind]++
	}
	if seen[Disconnected] != 1 || seen[TimewaitExit] != 1 || seen[Unreachable] != 1 || seen[LookupUnreachable] != 1 ||
		len(a.events) != 4 {
		t.Errorf("%v", seen)
	}
	a.empty()
}

// TestUCHasNoReads: the attributes of a UC queue pair are those that it has.
func TestUCHasNoReads(t *testing.T) {
	a, b := two(t)
	x, err := a.Connect(a.now, &ConnectParams{ServiceID: service, Path: a.path(b), QPType: ib.UC, QPN: 5}, a.hear)
	if err != nil {
		t.Fatal(err)
	}
	b.take(a.one(mad.AttrCMREQ))
	e := b.event(ConnectRequest)
	if e.Request.QPType != ib.UC {
		t.Errorf("%v", e.Request.QPType)
	}
	a.take(b.accept(e.Conn, 6))
	a.event(Response)
	for _, c := range []*Conn{x, e.Conn} {
		_, rtr, err := c.QPAttr(ib.RTR)
		_, rts, err2 := c.QPAttr(ib.RTS)
		if err != nil || err2 != nil || rtr != ib.AttrState|ib.AttrAV|ib.AttrPathMTU|ib.AttrDestQPN|ib.AttrRQPSN ||
			rts != ib.AttrState|ib.AttrSQPSN {
			t.Errorf("%v %v %x %x", err, err2, rtr, rts)
		}
	}
	over(a, b)
}

func TestAckTimeout(t *testing.T) {
	for _, c := range []struct{ delay, life, want uint8 }{{15, 18, 19}, {0, 18, 19}, {18, 18, 20}, {19, 18, 20},
		{20, 18, 21}, {25, 18, 25}, {31, 18, 31}, {15, 31, 31}} {
		if got := ackTimeout(c.delay, c.life); got != c.want {
			t.Errorf("delay %d, life time %d: %d, want %d", c.delay, c.life, got, c.want)
		}
	}
}
