// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/ipoib/stats"
)

// Path queries: 100, 200, 400 and 400 ms, 1.1 s in all.
const (
	pathTries   = 4
	pathWait    = 100 * time.Millisecond
	pathWaitMax = 400 * time.Millisecond
)

// recheckEvery is how often a path is queried because of the LID in a frame, at most: ports may have several LIDs.
const recheckEvery = time.Second

// pathState is the permitted use of the record of a path.
type pathState uint8

const (
	// pathUnknown: there is no record, or events made it invalid. No frame may use it. An answer makes it valid.
	pathUnknown pathState = iota
	// pathOutdated: entries with an address vector may go on with it; a new entry must wait for a query. A purge, or a
	// query that was refused, led here; an answer makes it valid, an event unknown.
	pathOutdated
	// pathValid: the record may be used for every entry. A purge or a refused query makes it outdated, an event
	// unknown.
	pathValid
)

// requestState is how far a query of a path has come.
type requestState uint8

const (
	// requestNone: none is needed.
	requestNone requestState = iota
	// requestQueued: it waits for others, of all or of the same port, to end.
	requestQueued
	// requestSent: it is under way. An answer, a refusal or silence ends it.
	requestSent
)

// pathEvent changes the state of a path.
type pathEvent uint8

const (
	pathQueued      pathEvent = iota // a query was put into a line
	pathRequested                    // a query was sent
	pathAnswered                     // it was answered with a record
	pathRefused                      // it was answered without one
	pathTimedOut                     // it was not answered
	pathCancelled                    // it is not needed any more, or is to be sent anew
	pathPurged                       // an entry was purged: the neighbour may have moved
	pathInvalidated                  // an event of the subnet: any record may be wrong
	pathOwn                          // the path leads to the link's own port
)

// path is how packets travel to a GID. P_Key and traffic class are the link's.
type path struct {
	gid     ib.GID
	rec     mad.PathRecord // of the last answer; zero in pathUnknown
	state   pathState
	request requestState
	q       *query    // in requestSent
	account *account  // for which it is queried, or waits to be
	checked mono.Time // when it was queried because of the sender's LID
	entries []*entry
}

// transition changes the state of a path by an event.
func (p *path) transition(ev pathEvent) {
	switch ev {
	case pathQueued:
		p.request = requestQueued
	case pathRequested:
		p.request = requestSent
	case pathAnswered, pathRefused, pathTimedOut, pathCancelled:
		p.request, p.q = requestNone, nil
	}
	switch ev {
	case pathAnswered, pathOwn:
		p.state = pathValid
	case pathRefused, pathPurged:
		if p.state == pathValid {
			p.state = pathOutdated
		}
	case pathInvalidated:
		p.state, p.rec = pathUnknown, mad.PathRecord{}
	}
}

// usable reports whether entries with an address vector may go on with the path.
func (p *path) usable() bool { return p.state != pathUnknown }

// pathOf returns the path to a GID and makes it if need be.
func (t *shadow) pathOf(gid ib.GID) *path {
	p := t.paths[gid]
	if p == nil {
		p = &path{gid: gid}
		t.paths[gid] = p
	}
	if gid == t.attr.port.GID {
		p.rec = t.attr.localPath()
		p.transition(pathOwn)
	}
	return p
}

// isLocal reports whether a path leads to the link's own port.
func (t *shadow) isLocal(p *path) bool { return p.gid == t.attr.port.GID }

// queryPath queries the path to a GID, unless that is under way. Where too many queries are, of all or of the same
// port, it waits its turn.
func (t *shadow) queryPath(now mono.Time, p *path) {
	if p.request != requestNone {
		return
	}
	if a := t.account(); t.mayQuery(a) {
		t.sendQuery(now, a, p)
	} else {
		t.enqueue(a, p)
	}
}

// sendQuery sends the query of a path on account a.
func (t *shadow) sendQuery(now mono.Time, a *account, p *path) {
	p.account = a
	a.queries++
	t.queries++
	attr := t.attr
	rec := mad.PathRecord{DGID: p.gid, SGID: attr.port.GID, TClass: attr.broadcast.TClass, NumbPath: 1,
		PKey: attr.pkey | 0x8000}
	p.transition(pathRequested)
	p.q = &query{method: mad.MethodGet, attr: mad.AttrPathRecord, record: rec.Append(nil), tries: pathTries,
		wait: pathWait, limit: pathWaitMax,
		mask: mad.CompPathDGID | mad.CompPathSGID | mad.CompPathTClass | mad.CompPathNumbPath | mad.CompPathPKey,
		done: func(now mono.Time, a answer) { t.pathAnswer(now, p, &a) }}
	t.stats.Driver.PathQueries++
	t.report.debugf(now, DebugPath, "path to %v: query sent", p.gid)
	t.sa.begin(now, p.q)
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

// pathAnswer ends a query. With a record all entries of the GID get a new address vector. Without one they are removed,
// so that the next frame queries again. Silence is no evidence against the path: an entry that has an address vector
// keeps it, and streams go on while there is no manager.
func (t *shadow) pathAnswer(now mono.Time, p *path, a *answer) {
	rec, why := parsePath(a)
	switch {
	case why == "":
		t.endQuery(p, pathAnswered)
		p.rec = rec
		for _, e := range slices.Clone(p.entries) {
			t.resolve(now, e)
		}
		t.nextQueries(now)
		return
	case a.silent:
		t.endQuery(p, pathTimedOut)
	default:
		t.endQuery(p, pathRefused)
	}
	t.stats.Driver.PathFailures++
	if len(p.entries) > 0 {
		t.report.Logf(now, "path", "path to %v: %s", p.gid, why)
	}
	for _, e := range slices.Clone(p.entries) {
		if e.state != entryResolved || !a.silent {
			t.remove(now, e, stats.DropNoPath)
		}
	}
	t.nextQueries(now)
}

// parsePath returns the record of an answer, or why there is none.
func parsePath(a *answer) (rec mad.PathRecord, why string) {
	if !a.ok() {
		return rec, a.String()
	}
	if err := rec.Parse(a.record); err != nil {
		return rec, err.Error()
	}
	if !rec.DLID.IsUnicast() || rec.SL > 15 {
		return rec, "a path record without a unicast DLID or with an SL above 15"
	}
	return rec, ""
}

// endQuery ends the query of a path that was sent.
func (t *shadow) endQuery(p *path, ev pathEvent) {
	p.transition(ev)
	t.queries--
	p.account.queries--
	t.retire(p.account)
}

// cancelQuery ends the query of a path, if there is one, without an answer.
func (t *shadow) cancelQuery(p *path) {
	switch p.request {
	case requestSent:
		t.sa.cancel(p.q)
		t.endQuery(p, pathCancelled)
	case requestQueued:
		p.transition(pathCancelled)
	}
}

// dropPath removes a path.
func (t *shadow) dropPath(p *path) {
	t.cancelQuery(p)
	delete(t.paths, p.gid)
}

// invalidatePaths has every path queried again before its next use.
func (t *shadow) invalidatePaths() {
	for _, p := range t.paths {
		p.transition(pathInvalidated)
	}
}

// invalidatePath has the path to a GID queried again before its next use.
func (t *shadow) invalidatePath(gid ib.GID) {
	if p := t.paths[gid]; p != nil {
		p.transition(pathInvalidated)
	}
}

// retryPath sends the query of a path anew, if one is under way.
func (t *shadow) retryPath(now mono.Time, gid ib.GID) {
	if p := t.paths[gid]; p != nil && p.request == requestSent {
		t.cancelQuery(p)
		t.queryPath(now, p)
	}
}
