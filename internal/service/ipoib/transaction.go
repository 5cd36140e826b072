// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"time"

	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// query is a transaction with the subnet administration: a request that is repeated until an answer arrives or no try
// is left.
type query struct {
	id     uint32
	method mad.Method
	attr   mad.AttributeID
	mask   mad.ComponentMask
	record []byte
	tries  int // left
	sent   int // requests
	wait   time.Duration
	limit  time.Duration // wait doubles up to it
	timer  timer
	noSA   bool // a port without an administration answered
	done   func(now mono.Time, a answer)
}

// answer ends a query: a status with, where it is StatusOK, a record; or silence.
type answer struct {
	silent bool
	noSA   bool // silent, and the answering port has no administration
	status mad.Status
	record []byte
}

func (a *answer) ok() bool { return !a.silent && a.status == mad.StatusOK }

func (a *answer) String() string {
	switch {
	case a.noSA:
		return "no SA at the manager's port"
	case a.silent:
		return "SA timeout"
	}
	return a.status.String()
}

// transactions are the queries of a link that are not answered.
type transactions struct {
	sa     Administration
	timers *timers
	open   map[uint32]*query
	lastID uint32
}

// begin sends the first request of a query. q.done is called once, later, unless the query is cancelled before.
func (t *transactions) begin(now mono.Time, q *query) {
	t.lastID++
	if t.lastID == 0 {
		t.lastID++
	}
	q.id = t.lastID
	q.timer.Value = func(now mono.Time) { t.timeout(now, q) }
	t.open[q.id] = q
	t.request(now, q)
}

func (t *transactions) request(now mono.Time, q *query) {
	q.tries--
	q.sent++
	t.timers.Set(&q.timer, now.Add(q.wait))
	q.wait = min(2*q.wait, max(q.limit, q.wait))
	t.sa.SA(&SARequest{ID: q.id, Method: q.method, Attr: q.attr, Mask: q.mask, Record: q.record})
}

// timeout repeats a request, or ends the query in silence.
func (t *transactions) timeout(now mono.Time, q *query) {
	if q.tries > 0 {
		t.request(now, q)
		return
	}
	t.end(now, q, answer{silent: true, noSA: q.noSA})
}

func (t *transactions) end(now mono.Time, q *query, a answer) {
	t.cancel(q)
	q.done(now, a)
}

// cancel ends a query without calling its done; nil is none.
func (t *transactions) cancel(q *query) {
	if q == nil {
		return
	}
	t.timers.Stop(&q.timer)
	delete(t.open, q.id)
}

// cancelIf cancels the queries for which f returns true.
func (t *transactions) cancelIf(f func(q *query) bool) {
	for _, q := range t.open {
		if f(q) {
			t.cancel(q)
		}
	}
}

// response handles the answer to the request with an ID; the record is read during the call. An answer that belongs to
// no query is ignored. BUSY leaves the query open, and so does an answer of a port that does not support such requests:
// its administration has ended, and the next one may soon run there or elsewhere.
func (t *transactions) response(now mono.Time, id uint32, status mad.Status, record []byte) {
	q := t.open[id]
	if q == nil || status&^mad.StatusClassSpecific == mad.StatusBusy {
		return
	}
	switch status {
	case mad.StatusBadVersion, mad.StatusBadMethod, mad.StatusBadMethodAttr:
		q.noSA = true
		return
	}
	t.end(now, q, answer{status: status, record: record})
}
