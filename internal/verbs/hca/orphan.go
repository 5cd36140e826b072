// SPDX-License-Identifier: Apache-2.0

package hca

import "weft/internal/proto/mono"

// Orphan is Close for a session after its program died: connected queue pairs make their peers' queue pairs fail before
// they end (docs/adr/0012-orphans.md). It reports whether there are any: then the session keeps its number for a few
// seconds, in which it has no object, no memory and no client, and the function that SetOrphanEnded set is called at
// the end. Else it is closed, and the caller detaches it.
func (s *Session) Orphan(now mono.Time) bool {
	if s.closed {
		return false
	}
	s.lane.quiesce() // no lane copies through the session's memory any more
	var orphans []*QP
	for h, q := range s.qps.m {
		if !q.becomeOrphan(now) {
			continue
		}
		orphans = append(orphans, q)
		s.qps.del(h)
	}
	s.Close() // the others, and all memory
	if len(orphans) == 0 {
		return false
	}
	s.pds, s.mrs, s.mws, s.ahs, s.cqs, s.keys = table[*pd]{}, table[*mr]{}, table[*mr]{}, table[*ah]{}, table[*CQ]{}, nil
	s.orphaned.Store(true)
	l := s.lane
	l.orphans = append(l.orphans, s)
	l.Stats.OrphanedQPs += uint64(len(orphans))
	for _, q := range orphans {
		s.qps.m[q.slot] = q
		q.active, q.handled, q.dirty, q.orphaned = false, false, false, true
		l.arm(q)
	}
	return true
}

// becomeOrphan releases all that the queue pair has of its program; false, and nothing is done, where there is no
// peer.
func (q *QP) becomeOrphan(now mono.Time) bool {
	if q.t == nil || !q.t.Orphan(now) {
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

// SetOrphanEnded sets the function that is called when an orphaned session has ended: it must be detached. f runs on
// the lane. It is called before the lane runs.
func (l *Lane) SetOrphanEnded(f func(*Session)) { l.orphanEnded = f }

// endOrphan ends an orphaned queue pair, and its session with the last one.
func (l *Lane) endOrphan(q *QP) {
	s := q.s
	l.counted.keepCounters(q)
	q.dead = true
	l.timers.remove(q)
	s.slots[q.slot] = nil
	delete(s.qps.m, q.slot)
	if len(s.qps.m) == 0 {
		l.endOrphans(s)
	}
}

// endOrphans ends an orphaned session.
func (l *Lane) endOrphans(s *Session) {
	for i, o := range l.orphans {
		if o == s {
			l.orphans = append(l.orphans[:i], l.orphans[i+1:]...)
			break
		}
	}
	for _, q := range s.qps.m {
		l.counted.keepCounters(q)
		q.dead = true
		s.slots[q.slot] = nil
		l.timers.remove(q)
	}
	s.qps = table[*QP]{}
	if l.orphanEnded != nil {
		l.orphanEnded(s)
	}
}

// refreshOrphans makes orphaned sessions follow their ports, and ends those of functions that are gone.
func (l *Lane) refreshOrphans() {
	for i := len(l.orphans) - 1; i >= 0; i-- {
		if s := l.orphans[i]; l.all.At(s.a.num) == s.a {
			s.follow()
		} else {
			l.endOrphans(s)
			l.forget(s)
		}
	}
}
