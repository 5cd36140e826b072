// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Bounds of what one port has the link do by what it sends, so that a stranger that makes up nodes
// takes nothing from others: neither queries nor places in the shadow table.
const (
	maxPathQueries   = 256 // at a time
	ownQueries       = 64  // of them, that no port gets
	maxSourceQueries = 8   // of one port at a time; more wait their turn
	maxSourceEntries = 256 // of one port, at most a quarter of the table
)

// source is who has a path be asked for or an entry be made: the link itself, or the port that a question or an
// answer came from, by the LID in its frames' local route header. That is the port's, whatever the frame says.
type source struct {
	lid     ib.LID // 0: the link itself
	asking  int    // queries under way
	entries int    // of the shadow table, as long as the link itself sends nothing to them
	line    []*path
	inTurn  bool // in shares.turns
}

// shares are the sources that have something, and which of them is next.
type shares struct {
	own     source
	sources map[ib.LID]*source
	turns   []*source // those with a line, without own
	from    ib.LID    // who sent the frame that the engine is at; 0: none
}

// source is the one on whose behalf the link is at work.
func (s *shares) source() *source {
	if s.from == 0 {
		return &s.own
	}
	x := s.sources[s.from]
	if x == nil {
		x = &source{lid: s.from}
		s.sources[s.from] = x
	}
	return x
}

// retire forgets a source that has nothing any more.
func (s *shares) retire(x *source) {
	if x != &s.own && x.asking == 0 && x.entries == 0 && !x.inTurn {
		delete(s.sources, x.lid)
	}
}

// mayAskFor reports whether one query more may be under way for x.
func (l *Link) mayAskFor(x *source) bool {
	if x == &l.own {
		return l.asking < maxPathQueries
	}
	return l.asking < maxPathQueries-ownQueries && x.asking < maxSourceQueries
}

// enqueue has a path wait until a query more may be under way for x.
func (l *Link) enqueue(x *source, p *path) {
	if len(x.line) > 64+2*len(l.paths) { // most are not waited for any more
		x.line = slices.DeleteFunc(x.line, func(p *path) bool { return !p.waits })
	}
	p.waits, p.src = true, x
	x.line = append(x.line, p)
	if x != &l.own {
		l.c.Driver.PathWaitsShare++
		if !x.inTurn {
			x.inTurn = true
			l.turns = append(l.turns, x)
		}
	}
}

// askFirst asks for the first path in the line of x, if there is one.
func (l *Link) askFirst(now mono.Time, x *source) {
	for len(x.line) > 0 {
		p := x.line[0]
		x.line = x.line[1:]
		if p.waits {
			p.waits = false
			l.query(now, x, p)
			return
		}
	}
}

// askNext asks for paths that waited: for those of the link itself, then for one of each port by turns.
func (l *Link) askNext(now mono.Time) {
	for len(l.own.line) > 0 && l.mayAskFor(&l.own) {
		l.askFirst(now, &l.own)
	}
	for busy := 0; len(l.turns) > busy && l.asking < maxPathQueries-ownQueries; {
		x := l.turns[0]
		l.turns = l.turns[1:]
		if l.mayAskFor(x) {
			l.askFirst(now, x)
		} else {
			busy++
		}
		if x.inTurn = len(x.line) > 0; x.inTurn {
			l.turns = append(l.turns, x)
		} else {
			l.retire(x)
		}
	}
}

// dropLines has no path wait.
func (l *Link) dropLines() {
	l.own.line = nil
	for _, x := range l.turns {
		x.line, x.inTurn = nil, false
		l.retire(x)
	}
	l.turns = nil
}

// admit has a new entry count for who has it be made; false where that has too many.
func (l *Link) admit(e *entry) bool {
	if l.from == 0 {
		return true
	}
	x := l.source()
	if x.entries >= min(maxSourceEntries, max(1, l.p.MaxNeigh/4)) {
		l.c.Driver.ShadowRefusedShare++
		return false
	}
	x.entries++
	e.src = x
	return true
}

// disown has an entry count for nobody.
func (l *Link) disown(e *entry) {
	if x := e.src; x != nil {
		e.src = nil
		x.entries--
		l.retire(x)
	}
}

// adopt makes an entry the link's own, which sends to it; its path does not wait behind what others want.
func (l *Link) adopt(now mono.Time, e *entry) {
	l.disown(e)
	if p := e.path; p.waits && p.src != &l.own {
		p.waits = false
		l.askPath(now, p)
	}
}
