// SPDX-License-Identifier: Apache-2.0

package hca

import "weft/internal/proto/mono"

// Part is Close for a session whose program is gone: connected queue pairs tell
// their peers so before they end (docs/adr/0012-orphans.md). It reports whether
// there are any: then the session keeps its number for a few seconds, in which it
// has no object, no memory and no client, and the function that SetDeparted named
// is called at the end. Else it is closed, and the caller detaches it.
func (s *Session) Part(now mono.Time) bool {
	if s.closed {
		return false
	}
	// Nobody copies through the session's memory any more.
	s.lane.quiesce()
	var parting []*QP
	for h, q := range s.qps.m {
		if !q.farewell(now) {
			continue
		}
		parting = append(parting, q)
		s.qps.del(h)
	}
	s.Close() // the others, and all memory
	if len(parting) == 0 {
		return false
	}
	s.pds, s.mrs, s.mws, s.ahs, s.cqs, s.keys = table[*pd]{}, table[*mr]{}, table[*mr]{}, table[*ah]{}, table[*CQ]{}, nil
	s.departing.Store(true)
	l := s.lane
	l.parting = append(l.parting, s)
	l.Stats.Farewells += uint64(len(parting))
	for _, q := range parting {
		s.qps.m[q.slot] = q
		q.active, q.handled, q.dirty, q.parting = false, false, false, true
		l.arm(q)
	}
	return true
}

// farewell lets go of all that the queue pair has and begins to tell its peer;
// false, and nothing is done, where there is none.
func (q *QP) farewell(now mono.Time) bool {
	if q.t == nil || !q.t.Farewell(now) {
		return false
	}
	if q.send != nil {
		q.send.Publish()
	}
	if q.srq != nil {
		q.srq.touch()
	}
	q.send, q.recv, q.more = nil, nil, false
	q.srq, q.pd, q.sendCQ, q.recvCQ, q.free, q.lastLocal, q.lastRemote = nil, nil, nil, nil, nil, nil, nil
	q.pace = pace{}
	return true
}

// SetDeparted names who is told of sessions that parted and are over: they are
// to be detached. It is called on the lane. It is called before the lane runs.
func (l *Lane) SetDeparted(f func(*Session)) { l.departed = f }

// bury ends a queue pair that has told its peer, or has told it often enough, and
// its session with the last one.
func (l *Lane) bury(q *QP) {
	s := q.s
	q.dead = true
	l.unschedule(q)
	s.slots[q.slot] = nil
	delete(s.qps.m, q.slot)
	if len(s.qps.m) == 0 {
		l.depart(s)
	}
}

// depart ends a session that parted.
func (l *Lane) depart(s *Session) {
	for i, o := range l.parting {
		if o == s {
			l.parting = append(l.parting[:i], l.parting[i+1:]...)
			break
		}
	}
	for _, q := range s.qps.m {
		q.dead = true
		s.slots[q.slot] = nil
		l.unschedule(q)
	}
	s.qps = table[*QP]{}
	if l.departed != nil {
		l.departed(s)
	}
}

// followParting lets sessions that part follow their ports, and ends those whose
// function is gone.
func (l *Lane) followParting() {
	for i := len(l.parting) - 1; i >= 0; i-- {
		if s := l.parting[i]; l.all.At(s.a.num) == s.a {
			s.follow()
		} else {
			l.depart(s)
			l.forget(s)
		}
	}
}
