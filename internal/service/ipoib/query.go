// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"time"

	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// query is a transaction with the subnet administration: a request that is
// repeated until an answer comes or the tries are used up.
type query struct {
	id     uint32
	method mad.Method
	attr   mad.AttributeID
	mask   mad.ComponentMask
	record []byte
	tries  int // left
	asked  int // so far
	wait   time.Duration
	limit  time.Duration // wait doubles up to it
	timer  timer
	nobody bool // is there: a port without an administration answered
	done   func(now mono.Time, a answer)
}

// answer ends a query: a status with, where it is StatusOK, a record; or silence.
type answer struct {
	silent bool
	nobody bool // silent: whoever answered is no administration
	status mad.Status
	record []byte
}

func (a *answer) ok() bool { return !a.silent && a.status == mad.StatusOK }

func (a *answer) String() string {
	switch {
	case a.nobody:
		return "no SA at the manager's port"
	case a.silent:
		return "SA timeout"
	}
	return a.status.String()
}

// ask begins a query. done is called once, never from within, unless the
// query is dropped with forget before.
func (l *Link) ask(now mono.Time, q *query) {
	l.lastQuery++
	if l.lastQuery == 0 {
		l.lastQuery++
	}
	q.id = l.lastQuery
	q.timer.fire = func(now mono.Time) { l.repeat(now, q) }
	l.queries[q.id] = q
	l.request(now, q)
}

func (l *Link) request(now mono.Time, q *query) {
	q.tries--
	q.asked++
	l.timers.set(&q.timer, now.Add(q.wait))
	q.wait = min(2*q.wait, max(q.limit, q.wait))
	l.al.SA(&SARequest{ID: q.id, Method: q.method, Attr: q.attr, Mask: q.mask, Record: q.record})
}

func (l *Link) repeat(now mono.Time, q *query) {
	if q.tries > 0 {
		l.request(now, q)
		return
	}
	l.end(now, q, answer{silent: true, nobody: q.nobody})
}

func (l *Link) end(now mono.Time, q *query, a answer) {
	l.forget(q)
	q.done(now, a)
}

// forget drops a query without an end; nil is none.
func (l *Link) forget(q *query) {
	if q == nil {
		return
	}
	l.timers.stop(&q.timer)
	delete(l.queries, q.id)
}

// SAResponse is the answer to the request with that ID; record is only read during
// the call. An answer to what is not asked any more is ignored. A busy
// administration is asked again at the usual time, as is a port that says to know no such requests: its
// administration has ended, and the next may be there, or elsewhere, soon.
func (l *Link) SAResponse(now mono.Time, id uint32, status mad.Status, record []byte) {
	l.at = now
	q := l.queries[id]
	if q == nil || status&^mad.StatusClassSpecific == mad.StatusBusy {
		return
	}
	switch status {
	case mad.StatusBadVersion, mad.StatusBadMethod, mad.StatusBadMethodAttr:
		q.nobody = true
		return
	}
	l.end(now, q, answer{status: status, record: record})
	l.flush(now)
}
