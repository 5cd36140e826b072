// SPDX-License-Identifier: Apache-2.0

package em

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// maxOutstanding bounds the outstanding requests: an octet of the transaction identifier is the index of their slot.
const maxOutstanding = 256

// Request is a MAD to send to queue pair 1 of a port.
type Request struct {
	LID ib.LID
	MAD mad.VEMA
}

// request is a request to a port. One without an answer is dropped, and made anew if it is still needed: every Set may
// be repeated.
type request struct {
	p      *port
	method mad.Method
	attr   mad.AttributeID
	vport  uint8
	// The values sent, for comparison with the answer.
	trap    mad.VEMAClassPortInfo
	info    mad.VESWPortInfo
	entries mad.VESWMACEntries
	list    mad.VESWMACList

	slot uint8
	gen  uint32
	due  mono.Time
	// doubtful: the port did not answer the request before.
	doubtful bool
}

// requests are the outstanding requests.
type requests struct {
	slots       [maxOutstanding]*request
	outstanding int // slots in use
	doubtful    int // of them
	gen         uint32
	next        uint8 // slot to try
}

func (r *request) tid(upper uint32) uint64 {
	return uint64(upper)<<32 | uint64(r.gen)<<8 | uint64(r.slot)
}

// send assigns a slot to q and writes it to r. There is a free slot.
func (m *Manager) send(now mono.Time, p *port, q *request, out *Request) {
	s := &m.requests
	for s.slots[s.next] != nil {
		s.next++
	}
	s.gen = (s.gen + 1) & 0xffffff
	q.slot, q.gen, q.p = s.next, s.gen, p
	q.due = now.Add(double(m.cfg.Timeout, p.tries, m.cfg.MaxTimeout))
	q.doubtful = !p.answers()
	s.slots[q.slot] = q
	s.next++
	s.outstanding++
	if q.doubtful {
		s.doubtful++
	}
	p.req = q
	p.paid = max(p.paid, now).Add(pace)
	m.Counters.Sent++
	*out = Request{LID: p.lid, MAD: mad.NewVEMA(q.method, q.attr, q.vport, q.tid(m.cfg.TIDs))}
	data := out.MAD.Data[:0]
	switch {
	case q.attr == mad.AttrVESWUnicastMACs || q.attr == mad.AttrVESWMcastMACs:
		q.list.Append(data)
	case q.attr == mad.AttrVESWMACEntries:
		q.entries.Append(data)
	case q.method == mad.MethodGet:
	case q.attr == mad.AttrClassPortInfo:
		q.trap.Append(data)
	case q.attr == mad.AttrVESWPortInfo:
		q.info.Append(data)
	}
	if q.method == mad.MethodSet {
		m.Counters.Sets++
	}
}

// remove removes a request from its slot.
func (s *requests) remove(q *request) {
	s.slots[q.slot] = nil
	s.outstanding--
	if q.doubtful {
		s.doubtful--
	}
	q.p.req = nil
}

// cancel drops the request to a port.
func (m *Manager) cancel(p *port) {
	if p.req != nil {
		p.req.doubt()
		m.remove(p.req)
	}
}

// doubt records that a Set may have been executed or not: the vport is read before the next Set.
func (r *request) doubt() {
	v := r.p.vports[r.vport]
	if r.method != mad.MethodSet || r.attr == mad.AttrClassPortInfo || v == nil {
		return
	}
	v.lookAt = 1
	if r.attr == mad.AttrVESWMACEntries {
		v.table.doubt(int(r.entries.Offset), int(r.entries.Num))
	}
}

// expire handles requests that timed out.
func (m *Manager) expire(now mono.Time) {
	s := &m.requests
	for i, seen := 0, 0; seen < s.outstanding && i < len(s.slots); i++ {
		q := s.slots[i]
		if q == nil {
			continue
		}
		seen++
		if !q.due.Due(now) {
			continue
		}
		q.doubt()
		m.remove(q)
		seen--
		m.Counters.Unanswered++
		m.unanswered(now, q)
		m.wake(q.p)
	}
}

// deadline returns when the next request times out.
func (s *requests) deadline() (t mono.Time) {
	for i, seen := 0, 0; seen < s.outstanding && i < len(s.slots); i++ {
		if q := s.slots[i]; q != nil {
			seen++
			t = mono.Min(t, q.due)
		}
	}
	return t
}

// Handle handles a response from a LID.
func (m *Manager) Handle(now mono.Time, from ib.LID, a *mad.VEMA) {
	s := &m.requests
	q := s.slots[uint8(a.TransactionID)]
	if q == nil || a.TransactionID != q.tid(m.cfg.TIDs) || a.Method != mad.MethodGetResp || from != q.p.lid ||
		a.AttributeID != q.attr ||
		mad.VEMAVPort(a.AttributeModifier) != q.vport {
		m.Counters.Stray++
		return
	}
	m.remove(q)
	m.Counters.Answered++
	m.answered(now, q, a)
	m.wake(q.p)
}

// Trap handles a trap from a LID. A trap is only a hint: the manager reads its subject.
func (m *Manager) Trap(now mono.Time, from ib.LID, n *mad.VEMANotice) {
	p := m.byLID[from]
	if p == nil || !n.Informational() || p.vports[n.VPort] == nil {
		m.Counters.TrapsDropped++
		return
	}
	vp := p.vports[n.VPort]
	if vp.member == nil {
		m.Counters.TrapsDropped++
		return
	}
	m.Counters.Traps++
	switch n.Opcode {
	case mad.VEMAUnicastMACs:
		vp.uc.wanted = true
	case mad.VEMAMcastMACs:
		vp.mc.wanted = true
	}
	if vp.lookAt == 0 || vp.lookAt > vp.readAt.Add(m.cfg.ListEvery) {
		vp.lookAt = max(now, vp.readAt.Add(m.cfg.ListEvery))
	}
	m.wake(p)
}
