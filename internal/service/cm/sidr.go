// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"container/list"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Lookup is a question for the queue pair of a service of datagrams (SIDR, IBA
// volume 1, 12.11).
type Lookup struct {
	m        *Manager
	h        Handler
	gone     bool // the user has let go of it, or it is answered
	t        timer
	id       uint32
	function uint16
	to       mad.Datagram
	wait     time.Duration
	tries    uint8
}

func (l *Lookup) timer() *timer { return &l.t }

// Lookup looks up a service at the peer; h gets the reply, once.
func (m *Manager) Lookup(now mono.Time, p *LookupParams, h Handler) (*Lookup, error) {
	if _, ok := m.ports.Port(p.Path.Function); !ok {
		return nil, ErrNoPort
	}
	if len(p.PrivateData) > MaxLookupData || p.ResponseTimeout > 31 || p.MaxRetries > 15 || p.Path.DGID.IsZero() ||
		p.Path.LifeTime > 63 {
		return nil, ErrInvalid
	}
	if len(m.lookups) >= m.max.Lookups {
		return nil, ErrFull
	}
	l := &Lookup{m: m, h: h, id: newID(m, m.lookups), function: p.Path.Function, to: datagram(&p.Path)}
	code, tries := defaults(p.ResponseTimeout, p.MaxRetries)
	l.tries, l.wait = tries, wait(code, maxTimeoutCode)+2*wait(p.Path.LifeTime, maxTimeoutCode)
	m.lookups[l.id] = l
	r := mad.CMSIDRReq{RequestID: l.id, PKey: uint16(p.Path.PKey), ServiceID: uint64(p.ServiceID)}
	copy(r.PrivateData[:], p.PrivateData)
	put(&l.to, mad.AttrCMSIDRReq, m.newTID(), &r)
	m.send(l.function, &l.to)
	m.start(l, now.Add(l.wait))
	return l, nil
}

// Close cancels the lookup: the handler gets no event.
func (l *Lookup) Close(now mono.Time) {
	l.end()
	l.gone, l.h = true, nil
}

func (l *Lookup) end() {
	l.m.stop(l)
	delete(l.m.lookups, l.id)
}

func (l *Lookup) event(e Event) {
	e.Lookup = l
	l.m.events = append(l.m.events, event{l.h, &l.gone, e})
}

// fail reports that the peer did not reply.
func (l *Lookup) fail() {
	l.m.Stats.Unreachable++
	l.event(Event{Kind: LookupUnreachable})
	l.end()
}

// expire implements timed.
func (l *Lookup) expire(m *Manager, now mono.Time) {
	if l.tries == 0 {
		l.fail()
		return
	}
	l.tries--
	m.Stats.Resent++
	m.send(l.function, &l.to)
	m.start(l, now.Add(l.wait))
}

// answer handles a SIDR_REP.
func (in *arrival) answer() {
	var r mad.CMSIDRRep
	r.Parse(in.data)
	l := in.m.lookups[r.RequestID]
	switch {
	case l == nil:
		in.m.Stats.DropUnknown++
		return
	case l.function != in.function || in.port.Link == ib.LinkEthernet && in.d.SGID != l.to.DGID:
		in.m.Stats.DropForeign++
		return
	}
	e := Event{Kind: LookupResponse, Status: LookupStatus(r.Status),
		Info:        slices.Clone(r.Info[:min(int(r.InfoLen), len(r.Info))]),
		PrivateData: slices.Clone(r.PrivateData[:])}
	if e.Status == LookupOK {
		e.QPN, e.QKey = ib.QPN(r.QPN), ib.QKey(r.QKey)
	}
	l.event(e)
	l.end()
}

// inquiryID is a Lookup of a peer.
type inquiryID struct {
	function uint16
	gid      ib.GID
	lid      ib.LID
	id       uint32
}

// Inquiry is a Lookup at the node that receives it.
type Inquiry struct {
	m        *Manager
	gone     bool // no events are delivered
	t        timer
	id       inquiryID
	service  ServiceID
	listener *Listener // nil: answered
	place    *list.Element
	tid      uint64
	to       mad.Datagram // where the answer goes; once it is given, the answer
}

func (i *Inquiry) timer() *timer { return &i.t }

const (
	// An inquiry without a reply expires when its peer has given up; one with a reply, when its peer
	// has probably received it.
	unansweredTime = 2 * time.Minute
	answeredTime   = 20 * time.Second
)

// inquiry handles a SIDR_REQ.
func (in *arrival) inquiry() {
	var r mad.CMSIDRReq
	r.Parse(in.data)
	m := in.m
	id := inquiryID{in.function, ib.GID{}, in.d.SLID, r.RequestID}
	if in.d.Global {
		id.gid = in.d.SGID
	}
	if i := m.inquiries[id]; i != nil {
		m.Stats.Duplicates++
		if i.listener == nil {
			m.Stats.Repeated++
			m.send(id.function, &i.to)
		}
		return
	}
	to := in.reply()
	q := &Request{ServiceID: ServiceID(r.ServiceID), Function: in.function,
		PrivateData: slices.Clone(r.PrivateData[:]), Path: in.back(&to)}
	q.header()
	l := m.listener(q)
	switch {
	case l == nil:
		m.Stats.RejectService++
		in.respond(mad.AttrCMSIDRRep, &mad.CMSIDRRep{RequestID: r.RequestID, ServiceID: r.ServiceID,
			Status: uint8(LookupNoService)})
		return
	case l.waiting >= l.backlog:
		m.Stats.DropBacklog++
		return
	case !l.fair(m.inquired, m.max.Lookups):
		m.Stats.DropShare++
		return
	}
	if len(m.inquiries) >= m.max.Lookups {
		e := m.answered.Front()
		if e == nil {
			m.Stats.DropFull++
			return
		}
		e.Value.(*Inquiry).end()
	}
	i := &Inquiry{m: m, id: id, service: q.ServiceID, listener: l, tid: in.tid, to: to}
	l.waiting++
	m.inquired++
	m.inquiries[id] = i
	m.start(i, in.now.Add(unansweredTime))
	m.Stats.Lookups++
	m.events = append(m.events, event{l.h, &i.gone, Event{Kind: LookupRequest, Inquiry: i, Request: q}})
}

// back is the path of an answer.
func (in *arrival) back(to *mad.Datagram) Path {
	p := Path{Function: in.function, Link: in.port.Link, SGID: to.SGID, DGID: to.DGID, SLID: to.SLID, DLID: to.DLID,
		Global: to.Global, PKey: to.PKey,
		FlowLabel: to.FlowLabel, TClass: to.TClass, HopLimit: to.HopLimit, SL: to.SL, MTU: in.port.MTU}
	p.SGIDIndex = uint8(max(slices.Index(in.port.GIDs, to.SGID), 0))
	p.PKeyIndex = uint16(max(pkeyIndex(in.port.PKeys, to.PKey), 0))
	return p
}

// expire implements timed.
func (i *Inquiry) expire(*Manager, mono.Time) { i.end() }

func (i *Inquiry) end() {
	i.m.stop(i)
	i.unlist()
	delete(i.m.inquiries, i.id)
	if i.place != nil {
		i.m.answered.Remove(i.place)
		i.place = nil
	}
}

func (i *Inquiry) unlist() {
	if i.listener != nil {
		i.listener.waiting--
		i.m.inquired--
		i.listener = nil
	}
}

// Accept replies with the queue pair of the service. It is ErrState if there was a reply, or the peer
// has given up by now.
func (i *Inquiry) Accept(now mono.Time, qpn ib.QPN, qkey ib.QKey, data []byte) error {
	return i.reply(now, &mad.CMSIDRRep{QPN: uint32(qpn), QKey: uint32(qkey)}, nil, data)
}

// Reject replies with the reason of a refusal.
func (i *Inquiry) Reject(now mono.Time, s LookupStatus, info, data []byte) error {
	return i.reply(now, &mad.CMSIDRRep{Status: uint8(s)}, info, data)
}

func (i *Inquiry) reply(now mono.Time, r *mad.CMSIDRRep, info, data []byte) error {
	if i.listener == nil {
		return ErrState
	}
	if len(data) > MaxLookupAnswerData || len(info) > MaxRejectInformation {
		return ErrInvalid
	}
	i.unlist()
	r.RequestID, r.ServiceID, r.InfoLen = i.id.id, uint64(i.service), uint8(len(info))
	copy(r.Info[:], info)
	copy(r.PrivateData[:], data)
	put(&i.to, mad.AttrCMSIDRRep, i.tid, r)
	i.m.send(i.id.function, &i.to)
	i.place = i.m.answered.PushBack(i)
	i.m.start(i, now.Add(answeredTime))
	return nil
}
