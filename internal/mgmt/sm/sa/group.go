// SPDX-License-Identifier: Apache-2.0

package sa

import (
	"encoding/binary"
	"slices"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Member is a port in a multicast group.
type Member struct {
	PortGUID  ib.GUID
	JoinState uint8 // mad.JoinFull …
	ProxyJoin bool
}

// Group is a multicast group (IBA volume 1, 15.2.5.17).
type Group struct {
	MGID      ib.GID
	MLID      ib.LID
	QKey      ib.QKey
	MTU       ib.MTU
	TClass    uint8
	PKey      ib.PKey
	Rate      ib.Rate
	Life      uint8
	SL        uint8
	FlowLabel uint32
	HopLimit  uint8
	Scope     uint8
	Members   []Member // in the order in which they joined
	// Permanent groups are configured: they exist without members.
	Permanent bool
	// Closed groups accept only the members in the configuration.
	Closed bool `json:",omitempty"`
}

func (g *Group) member(guid ib.GUID) int {
	return slices.IndexFunc(g.Members, func(m Member) bool { return m.PortGUID == guid })
}

// lives reports whether the group has a reason to exist.
func (g *Group) lives() bool {
	return g.Permanent || slices.ContainsFunc(g.Members,
		func(m Member) bool { return m.JoinState&(mad.JoinFull|mad.JoinSendOnlyFull) != 0 })
}

// record describes the group, and its member where there is one.
func (g *Group) record(prefix uint64, m *Member) mad.MCMemberRecord {
	r := mad.MCMemberRecord{MGID: g.MGID, QKey: g.QKey, MLID: g.MLID, MTUSelector: mad.SelectExactly, MTU: g.MTU,
		TClass: g.TClass, PKey: g.PKey,
		RateSelector: mad.SelectExactly, Rate: g.Rate, LifeSelector: mad.SelectExactly, Life: g.Life, SL: g.SL, FlowLabel: g.FlowLabel,
		HopLimit: g.HopLimit, Scope: g.Scope}
	if m != nil {
		r.PortGID, r.JoinState, r.ProxyJoin = ib.MakeGID(prefix, m.PortGUID), m.JoinState, m.ProxyJoin
	}
	return r
}

// Components that a request to create a group must have, and every join.
const (
	compJoin   = mad.CompMCMGID | mad.CompMCPortGID | mad.CompMCJoinState
	compCreate = compJoin | mad.CompMCQKey | mad.CompMCTClass | mad.CompMCPKey | mad.CompMCFlowLabel | mad.CompMCSL
)

const (
	sigIPv4, sigIPv6 = 0x401b, 0x601b // RFC 4391
	sigAssigned      = 0xa01b         // of MGIDs that an SA makes up
	scopeLinkLocal   = 2
)

// validMGID reports whether a group may have this MGID (IBA volume 1,
// 15.2.5.17.2).
func validMGID(g ib.GID) bool {
	sig := binary.BigEndian.Uint16(g[2:])
	switch {
	case g[0] != 0xff || g[1]&0xe0 != 0:
		return false
	case sig == sigIPv4 || sig == sigIPv6:
		return true
	case sig == sigAssigned && g[1]&0xf == scopeLinkLocal:
		return false
	}
	return true
}

// memberPort returns the port that a request joins or leaves for, or the status that refuses it.
func (a *SA) memberPort(m *mad.MCMemberRecord) (topo.Ref, mad.Status) {
	prefix, guid := m.PortGID.Prefix(), m.PortGID.GUID()
	if prefix != a.net.Prefix {
		return topo.None, mad.StatusSAInvalidGID
	}
	r := a.net.PortByGUID(guid)
	if r.IsNone() {
		return r, mad.StatusSARequest
	}
	// A port acts for itself, and by proxy for each port that it may see.
	if r != a.requester && !a.trusted() && !(a.req.ComponentMask&mad.CompMCProxyJoin != 0 && m.ProxyJoin && a.sees(r)) {
		return r, mad.StatusSARequest
	}
	return r, mad.StatusOK
}

// join adds a member to a group, which it may create.
func (a *SA) join(now mono.Time, d *mad.Datagram) {
	var m mad.MCMemberRecord
	m.Parse(a.req.Data[:]) // long enough
	mask := a.req.ComponentMask
	if mask&compJoin != compJoin {
		a.refuse(d, mad.StatusSAInsufficient)
		return
	}
	port, status := a.memberPort(&m)
	if status != mad.StatusOK {
		a.refuse(d, status)
		return
	}
	g := a.groups[m.MGID]
	created := g == nil
	if created {
		g, status = a.create(&m, mask, port)
	} else if g.Closed && !a.trusted() && g.member(a.net.Port(port).GUID) < 0 {
		status = mad.StatusSADenied
	} else {
		status = a.fits(g, &m, mask, port)
	}
	if status == mad.StatusOK && m.JoinState == 0 {
		status = mad.StatusSARequest
	}
	if status != mad.StatusOK {
		a.refuse(d, status)
		return
	}
	guid := a.net.Port(port).GUID
	i := g.member(guid)
	switch {
	case i >= 0:
		if g.Members[i].ProxyJoin != m.ProxyJoin && port != a.requester && !a.trusted() {
			a.refuse(d, mad.StatusSARequest)
			return
		}
	case len(g.Members) >= a.cfg.Limits.Members:
		a.refuse(d, mad.StatusSANoResources)
		return
	default:
		i = len(g.Members)
		g.Members = append(g.Members, Member{PortGUID: guid, ProxyJoin: m.ProxyJoin && mask&mad.CompMCProxyJoin != 0})
	}
	before := g.Members[i].JoinState
	g.Members[i].JoinState |= m.JoinState
	if created {
		a.groups[g.MGID], a.mlids[g.MLID] = g, g
		a.Notify(now, mad.GIDNotice(mad.TrapGroupCreated, a.selfLID(), g.MGID), a.selfGID())
	}
	if created || g.Members[i].JoinState != before {
		a.changes[g.MGID] = a.owner.GroupsChanged()
		a.owner.Kept()
	}
	rec := g.record(a.net.Prefix, &g.Members[i])
	a.joined(now, a.answerTo(d, mad.StatusOK, rec.Append(nil)), a.changes[g.MGID])
}

// waitingJoin is the answer to a join, the number of the tables that it waits for, and the end of the wait.
type waitingJoin struct {
	tables uint64
	until  mono.Time
	d      mad.Datagram
}

// joined answers a join when switches have the tables of a number: packets that the client sends to the group at
// once must be routed, because their loss is repaired after a second or never. A repeated request does not extend
// the wait.
func (a *SA) joined(now mono.Time, d mad.Datagram, tables uint64) {
	tid := func(d *mad.Datagram) uint64 { return binary.BigEndian.Uint64(d.Data[8:]) }
	i := slices.IndexFunc(a.joins, func(j waitingJoin) bool {
		return j.d.DLID == d.DLID && j.d.DstQPN == d.DstQPN &&
			tid(&j.d) == tid(&d)
	})
	switch {
	case tables <= a.written:
		a.out = append(a.out, d)
	case i >= 0:
		a.joins[i].tables, a.joins[i].d = tables, d
	case len(a.joins) >= a.cfg.Limits.Joins:
		a.Counters.JoinsEarly++
		a.out = append(a.out, d)
	default:
		a.joins = append(a.joins, waitingJoin{tables, now.Add(a.cfg.TableWait), d})
	}
}

// Written reports the number of Owner.GroupsChanged up to which switches have the tables. The SA answers the joins
// that waited for them.
func (a *SA) Written(tables uint64) {
	if tables <= a.written {
		return
	}
	a.written = tables
	for g, n := range a.changes {
		if n <= tables {
			delete(a.changes, g)
		}
	}
	a.joins = slices.DeleteFunc(a.joins, func(j waitingJoin) bool {
		if j.tables <= tables {
			a.out = append(a.out, j.d)
		}
		return j.tables <= tables
	})
}

// expireJoins answers joins that have waited for Config.TableWait.
func (a *SA) expireJoins(now mono.Time) {
	n := 0
	for n < len(a.joins) && a.joins[n].until.Due(now) {
		a.out = append(a.out, a.joins[n].d)
		n++
	}
	a.Counters.JoinsEarly += uint64(n)
	a.joins = slices.Delete(a.joins, 0, n)
}

// fits reports whether a port may join a group that exists.
func (a *SA) fits(g *Group, m *mad.MCMemberRecord, mask mad.ComponentMask, port topo.Ref) mad.Status {
	p := a.net.Port(port)
	has := func(c mad.ComponentMask) bool { return mask&c != 0 }
	switch {
	case has(mad.CompMCPKey) && (m.PKey^g.PKey)&0x7fff != 0, has(mad.CompMCQKey) && m.QKey != g.QKey,
		has(mad.CompMCTClass) && m.TClass != g.TClass,
		has(mad.CompMCSL) && m.SL != g.SL, has(mad.CompMCFlowLabel) &&
			m.FlowLabel != g.FlowLabel, has(mad.CompMCHopLimit) && m.HopLimit != g.HopLimit,
		has(mad.CompMCMLID) && m.MLID != g.MLID, has(mad.CompMCScope) && m.Scope != g.Scope,
		has(mad.CompMCMTU) && has(mad.CompMCMTUSelector) && !m.MTUSelector.Accepts(int(g.MTU), int(m.MTU)),
		has(mad.CompMCRate) && has(mad.CompMCRateSelector) && !m.RateSelector.Accepts(g.Rate.Tenths(), m.Rate.Tenths()),
		has(mad.CompMCLife) && has(mad.CompMCLifeSelector) && !m.LifeSelector.Accepts(int(g.Life), int(m.Life)),
		portMTU(p) < g.MTU, portRate(p).Tenths() < g.Rate.Tenths(), !inPartition(p, g.PKey):
		return mad.StatusSARequest
	}
	return mad.StatusOK
}

// portMTU is the largest packet that a port accepts.
func portMTU(p *topo.Port) ib.MTU {
	if p.Info.NeighborMTU.Valid() {
		return p.Info.NeighborMTU
	}
	return p.Info.MTUCap
}

// portRate is the rate of a port. A port without a link, such as port 0 of a switch, limits no path.
func portRate(p *topo.Port) ib.Rate {
	if r := p.Rate(); r != 0 {
		return r
	}
	return ib.Rate1200
}

func inPartition(p *topo.Port, k ib.PKey) bool {
	return slices.ContainsFunc(p.PKeys, func(have ib.PKey) bool { return have != 0 && (have^k)&0x7fff == 0 })
}

// create makes the group that a request describes; it is not entered yet.
func (a *SA) create(m *mad.MCMemberRecord, mask mad.ComponentMask, port topo.Ref) (*Group, mad.Status) {
	switch {
	case m.JoinState&(mad.JoinFull|mad.JoinSendOnlyFull) == 0:
		return nil, mad.StatusSARequest
	case mask&compCreate != compCreate:
		return nil, mad.StatusSAInsufficient
	case len(a.groups) >= a.cfg.Limits.Groups:
		return nil, mad.StatusSANoResources
	}
	p := a.net.Port(port)
	g := &Group{MGID: m.MGID, QKey: m.QKey, TClass: m.TClass, PKey: m.PKey | 0x8000, SL: m.SL, FlowLabel: m.FlowLabel,
		HopLimit: m.HopLimit, Life: a.cfg.Life}
	has := func(c mad.ComponentMask) bool { return mask&c == c }
	if g.MGID.IsZero() {
		scope := uint8(scopeLinkLocal + 3) // site-local, as OpenSM does
		if has(mad.CompMCScope) {
			scope = m.Scope
		}
		if g.MGID = a.makeMGID(scope); !validMGID(g.MGID) {
			return nil, mad.StatusSARequest
		}
	} else if !validMGID(g.MGID) {
		return nil, mad.StatusSARequest
	}
	g.Scope = g.MGID[1] & 0xf
	var ok bool
	if g.MTU, ok = portMTU(p), true; has(mad.CompMCMTU | mad.CompMCMTUSelector) {
		g.MTU, ok = limitMTU(m.MTUSelector, m.MTU, g.MTU)
	}
	if !ok {
		return nil, mad.StatusSARequest
	}
	if g.Rate = portRate(p); has(mad.CompMCRate | mad.CompMCRateSelector) {
		g.Rate, ok = limitRate(m.RateSelector, m.Rate, g.Rate)
	}
	if has(mad.CompMCLife | mad.CompMCLifeSelector) {
		switch {
		case m.LifeSelector == mad.SelectExactly:
			g.Life = m.Life
		case !m.LifeSelector.Accepts(int(g.Life), int(m.Life)):
			ok = false
		}
	}
	if !ok || !inPartition(p, g.PKey) || m.PKey&0x7fff == 0 {
		return nil, mad.StatusSARequest
	}
	if g.MLID = a.freeMLID(); has(mad.CompMCMLID) && m.MLID != 0 {
		if !m.MLID.IsMulticast() || a.mlids[m.MLID] != nil {
			return nil, mad.StatusSARequest
		}
		g.MLID = m.MLID
	}
	if g.MLID == 0 {
		return nil, mad.StatusSANoResources
	}
	return g, mad.StatusOK
}

// makeMGID returns an MGID for a request to create a group that has none.
func (a *SA) makeMGID(scope uint8) (g ib.GID) {
	for {
		a.assigned++
		g = ib.GID{0xff, 0x10 | scope&0xf}
		binary.BigEndian.PutUint16(g[2:], sigAssigned)
		binary.BigEndian.PutUint64(g[4:], a.net.Prefix)
		binary.BigEndian.PutUint32(g[12:], uint32(a.assigned))
		if a.groups[g] == nil {
			return g
		}
	}
}

func (a *SA) freeMLID() ib.LID {
	top := a.topMLID()
	for l := ib.LIDMulticastFirst; l <= top; l++ {
		if a.mlids[l] == nil {
			return l
		}
	}
	return 0
}

// topMLID is the highest MLID that every switch has an entry for.
func (a *SA) topMLID() ib.LID {
	top := ib.LIDPermissive - 1
	for _, i := range a.net.Switches() {
		if c := a.net.Nodes[i].Switch.Info.MulticastFDBCap; c > 0 && c < uint16(top-ib.LIDMulticastFirst)+1 {
			top = ib.LIDMulticastFirst + ib.LID(c) - 1
		}
	}
	return top
}

// leave removes a member of a group, or a part of its membership.
func (a *SA) leave(now mono.Time, d *mad.Datagram) {
	var m mad.MCMemberRecord
	m.Parse(a.req.Data[:])
	if a.req.ComponentMask&compJoin != compJoin {
		a.refuse(d, mad.StatusSAInsufficient)
		return
	}
	port, status := a.memberPort(&m)
	g := a.groups[m.MGID]
	i := -1
	if status == mad.StatusOK && g != nil {
		i = g.member(a.net.Port(port).GUID)
	}
	if i < 0 || m.JoinState == 0 || m.JoinState&^g.Members[i].JoinState != 0 {
		if status == mad.StatusOK {
			status = mad.StatusSARequest
		}
		a.refuse(d, status)
		return
	}
	was := g.Members[i]
	was.JoinState = m.JoinState
	rec := g.record(a.net.Prefix, &was)
	a.reply(d, mad.StatusOK, rec.Append(nil))
	if g.Members[i].JoinState &^= m.JoinState; g.Members[i].JoinState == 0 {
		g.Members = slices.Delete(g.Members, i, i+1)
	}
	a.retire(now, g)
	a.owner.GroupsChanged()
	a.owner.Kept()
}

// retire removes a group without a reason to exist.
func (a *SA) retire(now mono.Time, g *Group) {
	if g.lives() {
		return
	}
	delete(a.groups, g.MGID)
	delete(a.mlids, g.MLID)
	a.Notify(now, mad.GIDNotice(mad.TrapGroupDeleted, a.selfLID(), g.MGID), a.selfGID())
}

// members adds the MCMemberRecords of a query. A requester that is not trusted gets the groups that it may join,
// without their members.
func (a *SA) members(t *table) {
	req := &a.req
	mask := req.ComponentMask
	var want mad.MCMemberRecord
	want.Parse(req.Data[:])
	// Selectors and their values are not compared bit by bit.
	req.ComponentMask &^= mad.CompMCMTUSelector | mad.CompMCMTU | mad.CompMCRateSelector | mad.CompMCRate | mad.CompMCLifeSelector | mad.CompMCLife
	defer func() { req.ComponentMask = mask }()
	has := func(c mad.ComponentMask) bool { return mask&c == c }
	for _, g := range a.Groups() {
		if has(mad.CompMCMTU|mad.CompMCMTUSelector) && !want.MTUSelector.Accepts(int(g.MTU), int(want.MTU)) ||
			has(mad.CompMCRate|mad.CompMCRateSelector) && !want.RateSelector.Accepts(g.Rate.Tenths(),
				want.Rate.Tenths()) ||
			has(mad.CompMCLife|mad.CompMCLifeSelector) && !want.LifeSelector.Accepts(int(g.Life), int(want.Life)) {
			continue
		}
		if a.trusted() {
			for i := range g.Members {
				rec := g.record(a.net.Prefix, &g.Members[i])
				t.add(rec.Append(nil))
			}
			continue
		}
		if !inPartition(a.net.Port(a.requester), g.PKey) {
			continue
		}
		var all Member
		for _, m := range g.Members {
			all.JoinState |= m.JoinState
			if has(mad.CompMCPortGID) && ib.MakeGID(a.net.Prefix, m.PortGUID) == want.PortGID &&
				a.net.PortByGUID(m.PortGUID) == a.requester {
				all.PortGUID = m.PortGUID // a port may ask for its own membership
				all.JoinState = m.JoinState
				break
			}
		}
		rec := g.record(a.net.Prefix, &all)
		if all.PortGUID == 0 {
			rec.PortGID = ib.GID{}
		}
		t.add(rec.Append(nil))
	}
}

// Groups lists the groups by MLID; they are the SA's and must not be changed.
func (a *SA) Groups() []*Group {
	list := make([]*Group, 0, len(a.groups))
	for _, g := range a.groups {
		list = append(list, g)
	}
	slices.SortFunc(list, func(x, y *Group) int { return int(x.MLID) - int(y.MLID) })
	return list
}

// Ensure creates a group of the configuration, or changes one to match it. It adds want.Members as far as they are
// in the subnet, and removes others from a closed group. It chooses an MLID if that is zero. It reports whether
// there was room.
func (a *SA) Ensure(now mono.Time, want Group) bool {
	g := a.groups[want.MGID]
	if g == nil {
		if want.MLID == 0 || a.mlids[want.MLID] != nil {
			want.MLID = a.freeMLID()
		}
		if want.MLID == 0 || len(a.groups) >= a.cfg.Limits.Groups {
			return false
		}
		members := want.Members
		want.Members, want.Permanent, want.Scope = nil, true, want.MGID[1]&0xf
		if want.Life == 0 {
			want.Life = a.cfg.Life
		}
		a.groups[want.MGID], a.mlids[want.MLID] = &want, &want
		a.Notify(now, mad.GIDNotice(mad.TrapGroupCreated, a.selfLID(), want.MGID), a.selfGID())
		a.owner.Kept()
		return a.enlist(&want, members)
	}
	if !g.Permanent || g.Closed != want.Closed {
		g.Permanent, g.Closed = true, want.Closed
		a.owner.Kept()
	}
	if n := len(g.Members); want.Closed {
		g.Members = slices.DeleteFunc(g.Members, func(m Member) bool {
			return !slices.ContainsFunc(want.Members, func(w Member) bool { return w.PortGUID == m.PortGUID })
		})
		if len(g.Members) != n {
			a.owner.GroupsChanged()
			a.owner.Kept()
		}
	}
	return a.enlist(g, want.Members)
}

// Group returns a group, nil for none; it is the SA's and must not be changed.
func (a *SA) Group(mgid ib.GID) *Group { return a.groups[mgid] }

// End removes a group with all its members.
func (a *SA) End(now mono.Time, mgid ib.GID) {
	g := a.groups[mgid]
	if g == nil {
		return
	}
	g.Permanent, g.Members = false, nil
	a.retire(now, g)
	a.owner.GroupsChanged()
	a.owner.Kept()
}

// enlist puts ports into a group, as far as they are in the subnet and the
// group's partition; false where there is no room.
func (a *SA) enlist(g *Group, members []Member) bool {
	changed := false
	for _, m := range members {
		r := a.net.PortByGUID(m.PortGUID)
		if r.IsNone() || !inPartition(a.net.Port(r), g.PKey) {
			continue // it comes with a later SetSubnet
		}
		i := g.member(m.PortGUID)
		switch {
		case i < 0 && len(g.Members) >= a.cfg.Limits.Members:
			return false
		case i < 0:
			g.Members = append(g.Members, m)
		case g.Members[i].JoinState|m.JoinState == g.Members[i].JoinState:
			continue
		default:
			g.Members[i].JoinState |= m.JoinState
		}
		changed = true
	}
	if changed {
		a.owner.GroupsChanged()
		a.owner.Kept()
	}
	return true
}

// Remove removes a port from a group, however it joined.
func (a *SA) Remove(now mono.Time, mgid ib.GID, port ib.GUID) {
	g := a.groups[mgid]
	if g == nil {
		return
	}
	if i := g.member(port); i >= 0 {
		g.Members = slices.Delete(g.Members, i, i+1)
		a.retire(now, g)
		a.owner.GroupsChanged()
		a.owner.Kept()
	}
}

// Release ends the permanence of a group: it exists until its last member leaves.
func (a *SA) Release(now mono.Time, mgid ib.GID) {
	if g := a.groups[mgid]; g != nil && g.Permanent {
		g.Permanent = false
		a.retire(now, g)
		a.owner.GroupsChanged()
		a.owner.Kept()
	}
}

// prune removes the memberships, reports and subscriptions of ports that are not in the subnet any more, or not in
// the partition of the group.
func (a *SA) prune(now mono.Time) {
	changed := false
	for _, g := range a.Groups() {
		n := len(g.Members)
		g.Members = slices.DeleteFunc(g.Members, func(m Member) bool {
			r := a.net.PortByGUID(m.PortGUID)
			return r.IsNone() || !inPartition(a.net.Port(r), g.PKey)
		})
		if len(g.Members) != n {
			changed = true
			a.retire(now, g)
		}
	}
	n := len(a.subs)
	a.subs = slices.DeleteFunc(a.subs, func(s *subscription) bool { return a.byGID(s.GID).IsNone() })
	a.reports = slices.DeleteFunc(a.reports, func(r *report) bool { return a.byGID(r.to.GID).IsNone() })
	if changed {
		a.owner.GroupsChanged()
	}
	if changed || len(a.subs) != n {
		a.owner.Kept()
	}
}
