// SPDX-License-Identifier: Apache-2.0

package ipoib

import "weft/internal/proto/ib"

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
