// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"fmt"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// SA implements AL: the request is answered when the delay is over.
func (n *node) SA(r *SARequest) {
	s := n.s
	word := ""
	rep := reply{at: s.now.Add(s.delay), to: n, id: r.ID}
	switch r.Attr {
	case mad.AttrPathRecord:
		var p mad.PathRecord
		p.Parse(r.Record)
		word = "path " + p.DGID.String()
		rep.status, rep.record = s.path(&p)
	case mad.AttrMCMemberRecord:
		var m mad.MCMemberRecord
		m.Parse(r.Record)
		word = fmt.Sprintf("%s %v %d", map[mad.Method]string{mad.MethodSet: "join", mad.MethodDelete: "leave",
			mad.MethodGet: "get"}[r.Method], m.MGID, m.JoinState)
		if !s.silent && (s.refuse == 0 || r.Method == mad.MethodDelete) && n.port.State == ib.PortActive {
			rep.status, rep.record = s.member(r, &m)
		}
	}
	s.asked = append(s.asked, n.name+" "+word)
	s.askedTimes = append(s.askedTimes, s.now)
	if len(s.requests) < 1000 {
		kept := *r
		kept.Record = slices.Clone(r.Record)
		s.requests = append(s.requests, kept)
	}
	if s.holdPaths && r.Attr == mad.AttrPathRecord {
		if !slices.Contains(s.heldPaths, r.ID) {
			s.heldPaths = append(s.heldPaths, r.ID)
		}
		return
	}
	if s.silent || n.port.State != ib.PortActive {
		return
	}
	if s.refuse != 0 && r.Method != mad.MethodDelete {
		rep.status, rep.record = s.refuse, nil
	}
	s.replies = append(s.replies, rep)
}

func (s *subnet) path(p *mad.PathRecord) (mad.Status, []byte) {
	p.Reversible, p.MTUSelector, p.MTU, p.RateSelector, p.Rate, p.LifeSelector, p.Life, p.SL = true, mad.SelectExactly,
		ib.MTU2048, mad.SelectExactly, ib.Rate40, mad.SelectExactly, 18, 3
	for _, n := range s.nodes {
		if n.port.GID == p.SGID {
			p.SLID = n.port.LID
		}
		if n.port.GID == p.DGID && n.port.State == ib.PortActive {
			p.DLID = n.port.LID
		}
	}
	if s.paths != nil {
		if st := s.paths(p); st != 0 {
			return st, nil
		}
	}
	if p.DLID == 0 {
		return mad.StatusSANoRecords, nil
	}
	return 0, p.Append(nil)
}

// member is the part of a subnet administration that keeps groups.
func (s *subnet) member(r *SARequest, m *mad.MCMemberRecord) (mad.Status, []byte) {
	g := s.groups[m.MGID]
	switch r.Method {
	case mad.MethodGet:
		if g == nil {
			return mad.StatusSANoRecords, nil
		}
		return 0, g.rec.Append(nil)
	case mad.MethodDelete:
		if g == nil || m.JoinState == 0 || g.members[m.PortGID]&m.JoinState != m.JoinState {
			return mad.StatusSARequest, nil
		}
		if g.members[m.PortGID] &^= m.JoinState; g.members[m.PortGID] == 0 {
			delete(g.members, m.PortGID)
		}
		s.retire(g)
		return 0, m.Append(nil)
	}
	if g == nil {
		const need = mad.CompMCQKey | mad.CompMCTClass | mad.CompMCPKey | mad.CompMCSL | mad.CompMCFlowLabel
		switch {
		case m.JoinState&9 == 0:
			return mad.StatusSARequest, nil
		case r.Mask&need != need:
			return mad.StatusSAInsufficient, nil
		}
		g = &saGroup{rec: *m, members: map[ib.GID]uint8{}}
		g.rec.MLID, g.rec.MTUSelector, g.rec.RateSelector = s.newMLID(), mad.SelectExactly, mad.SelectExactly
		if !g.rec.MTU.Valid() {
			g.rec.MTU = s.mtu
		}
		s.groups[m.MGID] = g
	}
	for _, n := range s.nodes {
		if n.port.GID == m.PortGID && (n.port.MTU < g.rec.MTU || n.port.Rate.Tenths() < g.rec.Rate.Tenths()) {
			return mad.StatusSARequest, nil
		}
	}
	g.members[m.PortGID] |= m.JoinState
	rec := g.rec
	rec.PortGID, rec.JoinState = m.PortGID, g.members[m.PortGID]
	return 0, rec.Append(nil)
}

// retire ends a group without members.
func (s *subnet) retire(g *saGroup) {
	for _, j := range g.members {
		if j&(mad.JoinFull|mad.JoinSendOnlyFull) != 0 {
			return
		}
	}
	if !g.permanent {
		delete(s.groups, g.rec.MGID)
	}
}

// forget has the subnet administration lose all members and give groups other
// LIDs, as one that was started anew.
func (s *subnet) forget() {
	for gid, g := range s.groups {
		clear(g.members)
		g.rec.MLID = s.newMLID()
		if !g.permanent {
			delete(s.groups, gid)
		}
	}
}

// step does everything that can be done without time passing.
func (s *subnet) step() {
	for more := true; more; {
		more = false
		for i := 0; i < len(s.replies); i++ {
			if r := s.replies[i]; r.at <= s.now {
				s.replies = slices.Delete(s.replies, i, i+1)
				r.to.l.SAResponse(s.now, r.id, r.status, r.record)
				i, more = i-1, true
			}
		}
		for _, n := range s.nodes {
			n.complete()
			for len(n.cq) > 0 && !n.stall && len(n.made) > 0 {
				n.l.Interrupt(s.now)
				more = true
			}
			if n.l.Deadline().Due(s.now) {
				n.l.Tick(s.now)
				more = true
			}
		}
		for i := 0; i < len(s.cm); i++ {
			if e := s.cm[i]; e.at <= s.now {
				s.cm = slices.Delete(s.cm, i, i+1)
				e.f()
				i, more = -1, true
			}
		}
		for len(s.queue) > 0 {
			f := s.queue[0]
			s.queue = s.queue[1:]
			f()
			more = true
		}
	}
	for _, n := range s.nodes {
		n.check()
	}
}

// run lets time pass.
func (s *subnet) run(d time.Duration) {
	end := s.now.Add(d)
	for n := 0; ; n++ {
		s.step()
		var next mono.Time
		for _, r := range s.replies {
			next = mono.Min(next, r.at)
		}
		for _, e := range s.cm {
			next = mono.Min(next, e.at)
		}
		for _, n := range s.nodes {
			next = mono.Min(next, n.l.Deadline())
		}
		if next == 0 || next > end {
			break
		}
		if s.now = max(s.now, next); n > 1_000_000 {
			s.t.Fatal("time stands still")
		}
	}
	s.now = end
	s.step()
}

// event passes the present state of its port to a link.
func (n *node) event(change func(p *Port), events ...ib.Event) {
	if change != nil {
		n.port.PKeys = slices.Clone(n.port.PKeys)
		change(&n.port)
	}
	n.l.SetPort(n.s.now, n.port, events...)
}

// check proves what is always so.
func (n *node) check() {
	l := n.l
	if l.steps < len(creating) {
		return
	}
	posted := 0
	for i := range l.sender.slots {
		if l.sender.slots[i].posted {
			posted++
		}
	}
	if posted+len(l.sender.free) != l.p.SQDepth || posted != l.sender.inFlight {
		n.s.t.Fatalf("%s: %d send slots posted (%d counted), %d free, of %d", n.name, posted, l.sender.inFlight,
			len(l.sender.free), l.p.SQDepth)
	}
	received := 0
	for i := range l.receiver.slots {
		if l.receiver.slots[i] {
			received++
		}
	}
	if received != l.receiver.posted || n.registered && l.state != Destroyed && !l.sender.broken &&
		received != l.p.RQDepth {
		n.s.t.Fatalf("%s: %d receive slots posted (%d counted), of %d", n.name, received, l.receiver.posted,
			l.p.RQDepth)
	}
	waits, joins := 0, 0
	for _, e := range l.shadow.entries {
		if waits += e.queued; len(e.queue) > entryFrames {
			n.s.t.Fatalf("%s: %d frames wait for %v", n.name, len(e.queue), e.hw)
		}
	}
	for _, g := range l.groups.table {
		for _, f := range g.queue {
			waits += len(f)
		}
		if len(g.queue) > groupFrames {
			n.s.t.Fatalf("%s: %d frames wait for %v", n.name, len(g.queue), g.mgid)
		}
		if g.state == groupJoining {
			joins++
		}
	}
	waits += n.checkConns()
	for _, h := range l.sender.backlog[l.sender.head:] {
		waits += len(h.frame)
	}
	if waits != l.budget.octets {
		n.s.t.Fatalf("%s: %d octets wait, %d are counted", n.name, waits, l.budget.octets)
	}
	if joins != l.groups.joins || joins > maxJoins+1 {
		n.s.t.Fatalf("%s: %d joins, %d counted", n.name, joins, l.groups.joins)
	}
	asking := 0
	for gid, p := range l.shadow.paths {
		if p.q != nil {
			asking++
		}
		if p.gid != gid || len(p.entries) == 0 {
			n.s.t.Fatalf("%s: path to %v has no entry", n.name, gid)
		}
	}
	if asking != l.shadow.queries || asking > maxPathQueries {
		n.s.t.Fatalf("%s: %d path queries, %d counted", n.name, asking, l.shadow.queries)
	}
	n.checkShares()
	if len(n.ahs) != l.vectors.n {
		n.s.t.Fatalf("%s: %d address vectors, %d counted", n.name, len(n.ahs), l.vectors.n)
	}
	if len(l.shadow.byIP) > len(l.shadow.entries)*maxEntryIPs || len(l.shadow.entries) > l.p.MaxNeigh {
		n.s.t.Fatalf("%s: %d entries, %d addresses", n.name, len(l.shadow.entries), len(l.shadow.byIP))
	}
}

// checkShares proves that what is counted for sources is what they have, and that none is
// kept that has nothing.
func (n *node) checkShares() {
	l := n.l
	queries, entries := map[*account]int{}, map[*account]int{}
	for _, p := range l.shadow.paths {
		if p.q != nil {
			queries[p.account]++
		}
	}
	for _, e := range l.shadow.entries {
		entries[e.account]++
	}
	if l.shadow.requester != 0 || queries[&l.shadow.own] != l.shadow.own.queries {
		n.s.t.Fatalf("%s: %d own path queries, %d counted; at work for %d", n.name, queries[&l.shadow.own],
			l.shadow.own.queries, l.shadow.requester)
	}
	for lid, x := range l.shadow.ports {
		if x.queries != queries[x] || x.queries > maxPortQueries || x.entries != entries[x] ||
			x.entries > maxPortEntries ||
			x.inTurn != slices.Contains(l.shadow.turns, x) ||
			x.queries+x.entries == 0 && !x.inTurn {
			n.s.t.Fatalf("%s: LID %d has %d queries and %d entries, %+v is counted", n.name, lid, queries[x],
				entries[x], x)
		}
	}
}

// gone proves that nothing is left of a link that ended.
func (n *node) gone() {
	n.s.t.Helper()
	for what, left := range map[string]int{"objects": len(n.made), "address vectors": len(n.ahs),
		"attached groups": len(n.attached), "mapped frames": len(n.maps), "pending octets": n.l.budget.octets,
		"groups": len(n.l.groups.table), "entries": len(n.l.shadow.entries),
		"connections": len(n.listConns()) + len(n.conns), "paths": len(n.l.shadow.paths), "sources": len(n.l.shadow.ports),
		"queries": len(n.l.sa.open), "timers": n.l.timers.Len(), "waiters": n.l.waiters.n,
		"callbacks": len(n.l.waiters.calls)} {
		if left != 0 {
			n.s.t.Errorf("%s: %d %s are left", n.name, left, what)
		}
	}
	if n.registered || n.closed != 1 {
		n.s.t.Errorf("%s: registered %v, closed %d times", n.name, n.registered, n.closed)
	}
}
