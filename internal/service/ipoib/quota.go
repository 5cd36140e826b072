// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Bounds of what one port causes by the frames that it sends, so that a port that invents nodes takes neither queries
// nor places in the shadow table from others.
const (
	maxPathQueries = 256 // at a time
	ownQueries     = 64  // of them, reserved for the link itself
	maxPortQueries = 8   // of one port at a time; others wait their turn
	maxPortEntries = 256 // of one port, at most a quarter of the table
)

// account counts what a port causes, or the link itself. A port is known by the LID in the local route header of its
// frames, which the fabric guarantees whatever the frame contains.
type account struct {
	lid     ib.LID // 0: the link itself
	queries int    // under way
	entries int    // of the shadow table to which the link itself sends nothing
	line    []*path
	inTurn  bool // in quotas.turns
}

// quotas are the accounts that count something, and the order in which queries that wait are sent.
type quotas struct {
	own       account
	ports     map[ib.LID]*account
	turns     []*account // with a line, without own
	queries   int        // under way
	requester ib.LID     // sender of the frame that is being handled; 0: the link acts for itself
}

// account is the account for which the link is at work.
func (q *quotas) account() *account {
	if q.requester == 0 {
		return &q.own
	}
	a := q.ports[q.requester]
	if a == nil {
		a = &account{lid: q.requester}
		q.ports[q.requester] = a
	}
	return a
}

// retire forgets an account that counts nothing.
func (q *quotas) retire(a *account) {
	if a != &q.own && a.queries == 0 && a.entries == 0 && !a.inTurn {
		delete(q.ports, a.lid)
	}
}

// mayQuery reports whether a may have one query more.
func (q *quotas) mayQuery(a *account) bool {
	if a == &q.own {
		return q.queries < maxPathQueries
	}
	return q.queries < maxPathQueries-ownQueries && a.queries < maxPortQueries
}

// enqueue has the query of a path wait until a may have one more.
func (t *shadow) enqueue(a *account, p *path) {
	if len(a.line) > 64+2*len(t.paths) { // most do not wait any more
		a.line = slices.DeleteFunc(a.line, func(p *path) bool { return p.request != requestQueued })
	}
	p.transition(pathQueued)
	p.account = a
	a.line = append(a.line, p)
	if a != &t.own {
		t.stats.Driver.PathWaitsShare++
		if !a.inTurn {
			a.inTurn = true
			t.turns = append(t.turns, a)
		}
	}
}

// queryFirst sends the first query in the line of an account.
func (t *shadow) queryFirst(now mono.Time, a *account) {
	for len(a.line) > 0 {
		p := a.line[0]
		a.line = a.line[1:]
		if p.request == requestQueued {
			t.sendQuery(now, a, p)
			return
		}
	}
}

// nextQueries sends queries that waited: those of the link itself, then one of each port by turns.
func (t *shadow) nextQueries(now mono.Time) {
	for len(t.own.line) > 0 && t.mayQuery(&t.own) {
		t.queryFirst(now, &t.own)
	}
	for busy := 0; len(t.turns) > busy && t.queries < maxPathQueries-ownQueries; {
		a := t.turns[0]
		t.turns = t.turns[1:]
		if t.mayQuery(a) {
			t.queryFirst(now, a)
		} else {
			busy++
		}
		if a.inTurn = len(a.line) > 0; a.inTurn {
			t.turns = append(t.turns, a)
		} else {
			t.retire(a)
		}
	}
}

// dropLines removes all queries that wait. Precondition: their paths are removed next.
func (t *shadow) dropLines() {
	t.own.line = nil
	for _, a := range t.turns {
		a.line, a.inTurn = nil, false
		t.retire(a)
	}
	t.turns = nil
}

// admit counts a new entry for the port that causes it; false where that has too many.
func (t *shadow) admit(e *entry) bool {
	if t.requester == 0 {
		return true
	}
	a := t.account()
	if a.entries >= min(maxPortEntries, max(1, t.p.MaxNeigh/4)) {
		t.stats.Driver.ShadowRefusedShare++
		return false
	}
	a.entries++
	e.account = a
	return true
}

// disown ends that an entry counts for a port.
func (t *shadow) disown(e *entry) {
	if a := e.account; a != nil {
		e.account = nil
		a.entries--
		t.retire(a)
	}
}

// adopt makes an entry the link's own, which sends to it; its query does not wait behind those of a port.
func (t *shadow) adopt(now mono.Time, e *entry) {
	t.disown(e)
	if p := e.path; p.request == requestQueued && p.account != &t.own {
		p.transition(pathCancelled)
		t.queryPath(now, p)
	}
}
