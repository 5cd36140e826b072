// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/stats"
)

// Bounds and times of groups.
const (
	maxGroups    = 4096
	groupFrames  = 64 // that wait for one group
	maxJoins     = 16 // requests under way at a time
	maxBackoff   = 16 * time.Second
	sendOnlyIdle = 5 * time.Minute
	absentFor    = 10 * time.Second // groupAbsent
	leaveWait    = time.Second      // for the answer to a leave
	leaveTries   = 3
)

// Masks of requests about groups (docs/notes/ipoib.md).
const (
	maskLeave         = mad.CompMCMGID | mad.CompMCPortGID | mad.CompMCJoinState
	maskJoin          = maskLeave
	maskJoinBroadcast = maskJoin | mad.CompMCPKey
	maskCreate        = maskJoinBroadcast | mad.CompMCQKey | mad.CompMCMTUSelector | mad.CompMCMTU | mad.CompMCTClass |
		mad.CompMCRateSelector | mad.CompMCRate | mad.CompMCSL | mad.CompMCFlowLabel | mad.CompMCHopLimit
	maskCreateBroadcast = maskJoinBroadcast | mad.CompMCQKey | mad.CompMCTClass | mad.CompMCSL | mad.CompMCFlowLabel
)

// createQKey is the Q_Key of a broadcast group that the link creates: controlled, so that only privileged programs can
// send with it.
const createQKey = 0x80000b1b

// group is a multicast group from which the link receives, or to which it sends.
type group struct {
	mgid  ib.GID
	state groupState
	q     *query // in groupJoining and groupLeaving
	timer timer  // set in groupBackoff and groupAbsent

	// Why a membership is needed: IP groups to receive, and whether a frame was to be sent without receiving.
	ips      []netip.Addr
	sendOnly bool

	granted   uint8 // JoinState that works: ah is set, and the queue pair is attached for mad.JoinFull
	requested uint8 // JoinState that the subnet administration may have: requested, and not left since
	// leaveSingly has the states of requested left one by one: the administration refused to end them together.
	leaveSingly bool
	rec         mad.MCMemberRecord // of the last grant
	ah          *address           // nil: no frame can be sent
	attached    ib.LID             // the MLID by which the queue pair is attached; 0: it is not

	queue    [][]byte // frames that wait for ah
	failures int      // in a row
	backoff  time.Duration
	reason   string // why it is not joined
	used     mono.Time
	ticket   uint64 // its place in groups.line, in groupQueued
}

func (g *group) dest() dest { return dest{ah: g.ah, qpn: ib.QPNMulticast} }

// groupsLink is what groups need of their link.
type groupsLink interface {
	// adoptBroadcast has queue pair and device follow the attributes of the broadcast group, which was joined.
	adoptBroadcast(now mono.Time) error
	// updateCarrier has the carrier follow the broadcast group.
	updateCarrier(now mono.Time)
	// undeliverable reports a frame to the IP stack that no group takes.
	undeliverable(now mono.Time, frame []byte)
	// left is called while the link ends, when a leave has ended.
	left(now mono.Time)
}

// place is a place in the line of joins. It is void when the group has another ticket.
type place struct {
	g      *group
	ticket uint64
}

// groups are the multicast groups of a link.
type groups struct {
	p       *Params
	rnd     *rand.Rand
	attr    *attributes
	stats   *stats.Recorder
	report  *reporter
	timers  *timers
	sa      *transactions
	vectors *vectorSet
	budget  *frameBudget
	port    GroupAttachment
	sender  *sender
	link    groupsLink

	table     map[ib.GID]*group
	broadcast *group
	up        bool // the broadcast group is attached: the link works with it
	creating  bool // the last request for the broadcast group could create it
	line      []place
	tickets   uint64
	joins     int                // under way
	wanted    map[netip.Addr]int // IP groups to receive, with their users
	started   bool               // the broadcast group was requested
	suspended bool               // the device is down: nothing but broadcast is joined
	ending    bool               // the link ends: nothing is joined
	leaves    int                // not answered, while the link ends
}

func (t *groups) init() {
	t.table, t.wanted = map[ib.GID]*group{}, map[netip.Addr]int{}
	t.broadcast = &group{}
	t.suspended = true
}

// mgidOf maps an IP group.
func (t *groups) mgidOf(a netip.Addr) ib.GID { return wire.GroupGID(a, t.attr.partition, t.p.Scope) }

// groupOf returns the group of an MGID and makes it if need be; nil where there are too many.
func (t *groups) groupOf(mgid ib.GID) *group {
	if g := t.table[mgid]; g != nil {
		return g
	}
	if len(t.table) >= maxGroups {
		return nil
	}
	g := &group{mgid: mgid}
	g.timer.Value = func(now mono.Time) {
		g.transition(groupTimer)
		t.advance(now, g)
	}
	t.table[mgid] = g
	return g
}

// start requests the broadcast group, on which the link depends.
func (t *groups) start(now mono.Time) {
	t.started = true
	t.broadcast = t.groupOf(t.attr.broadcastGID)
	for a := range t.wanted {
		t.want(a)
	}
	t.advance(now, t.broadcast)
}

// needed is the JoinState that a group should have.
func (t *groups) needed(g *group) uint8 {
	switch {
	case t.ending:
		return 0
	case g == t.broadcast:
		return mad.JoinFull
	case t.suspended:
		return 0
	case len(g.ips) > 0:
		return mad.JoinFull
	case g.sendOnly && t.p.SendOnly == SendOnlyCreate:
		return mad.JoinSendOnlyFull
	case g.sendOnly:
		return mad.JoinSendOnlyNon
	}
	return 0
}

// mayJoin reports whether the port, and for other groups the broadcast group, is ready for a join.
func (t *groups) mayJoin(g *group) bool {
	return t.attr.active() && t.attr.index >= 0 && (g == t.broadcast || t.up && t.broadcast.granted != 0)
}

// advance takes a group one request closer to what is needed. It has no effect while a request is under way or the
// timer runs.
func (t *groups) advance(now mono.Time, g *group) {
	if g.busy() {
		return
	}
	need := t.needed(g)
	switch {
	case need&^g.granted != 0:
		if g.state == groupQueued || !t.mayJoin(g) {
			return
		}
		if g != t.broadcast && t.joins >= maxJoins {
			t.enqueue(g)
			return
		}
		t.join(now, g, need)
	case g.requested&^need != 0:
		if t.attr.active() { // else when it is again
			t.leave(now, g, g.requested&^need)
		}
	case need == 0:
		t.remove(g)
	}
}

// enqueue has a join wait for its turn.
func (t *groups) enqueue(g *group) {
	if len(t.line) > 64+2*len(t.table) { // most places are void
		t.line = slices.DeleteFunc(t.line, func(p place) bool { return !p.valid() })
	}
	t.tickets++
	g.ticket = t.tickets
	g.transition(groupJoinQueued)
	t.line = append(t.line, place{g, g.ticket})
}

func (p *place) valid() bool { return p.g.state == groupQueued && p.g.ticket == p.ticket }

// joinNext joins the next groups in line.
func (t *groups) joinNext(now mono.Time) {
	for len(t.line) > 0 && t.joins < maxJoins {
		p := t.line[0]
		t.line = t.line[1:]
		if p.valid() && t.table[p.g.mgid] == p.g {
			p.g.transition(groupTurn)
			t.advance(now, p.g)
		}
	}
}

// advanceAll advances all groups, broadcast first.
func (t *groups) advanceAll(now mono.Time) {
	t.advance(now, t.broadcast)
	for _, g := range t.sorted() {
		t.advance(now, g)
	}
}

// sorted returns all groups in the order of their MGIDs.
func (t *groups) sorted() []*group {
	all := make([]*group, 0, len(t.table))
	for _, g := range t.table {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *group) int { return slices.Compare(a.mgid[:], b.mgid[:]) })
	return all
}

// join requests a membership.
func (t *groups) join(now mono.Time, g *group, state uint8) {
	b := &t.attr.broadcast
	rec := mad.MCMemberRecord{MGID: g.mgid, PortGID: t.attr.port.GID, PKey: t.attr.partition | 0x8000, JoinState: state}
	mask := maskCreate
	switch {
	case g == t.broadcast && t.creating:
		mask = maskCreateBroadcast
		rec.QKey = createQKey
	case g == t.broadcast:
		mask = maskJoinBroadcast
	case state == mad.JoinSendOnlyNon:
		rec.PKey, mask = 0, maskJoin
	default:
		rec.QKey, rec.TClass, rec.SL, rec.FlowLabel, rec.HopLimit = b.QKey, b.TClass, b.SL, b.FlowLabel, b.HopLimit
		rec.MTUSelector, rec.MTU, rec.RateSelector, rec.Rate = mad.SelectExactly, b.MTU, mad.SelectExactly, b.Rate
	}
	added := state &^ g.requested
	g.requested |= state
	g.leaveSingly = false
	q := &query{method: mad.MethodSet, attr: mad.AttrMCMemberRecord, mask: mask, record: rec.Append(nil),
		tries: 1 + t.p.McastRetry, wait: t.p.McastWait, limit: t.p.McastWait}
	q.done = func(now mono.Time, a answer) {
		if q.sent > 1 {
			// A refusal may be of a repetition; the answer that was lost may have been a grant.
			added = 0
		}
		t.joinAnswer(now, g, state, added, &a)
	}
	g.q = q
	g.transition(groupJoinSent)
	t.joins++
	t.stats.Driver.McastJoins++
	if state != mad.JoinFull {
		t.stats.Driver.McastSendOnly++
	}
	t.report.debugf(now, DebugMulticast, "group %v: joining, state %d", g.mgid, state)
	t.sa.begin(now, q)
}

// joinAnswer ends the request for a membership. A refusal proves that the administration does not have the states in
// added.
func (t *groups) joinAnswer(now mono.Time, g *group, state, added uint8, a *answer) {
	g.q = nil
	t.joins--
	if rec, why := parseMember(g.mgid, a); why != "" {
		if !a.silent {
			g.requested &^= added
		}
		t.joinFailed(now, g, state, a, why)
	} else if err := t.grant(now, g, state, rec); err != nil {
		g.granted &^= state
		t.joinFailed(now, g, state, &answer{silent: true}, err.Error())
	} else {
		g.reason, g.failures, g.backoff = "", 0, 0
		if g == t.broadcast {
			t.creating = false
		}
		g.transition(groupGranted)
		t.advance(now, g)
	}
	t.joinNext(now)
	t.link.updateCarrier(now)
}

// parseMember returns the record of an answer to a join, or why there is none.
func parseMember(mgid ib.GID, a *answer) (rec *mad.MCMemberRecord, why string) {
	rec = &mad.MCMemberRecord{}
	switch {
	case !a.ok():
		why = a.String()
	case rec.Parse(a.record) != nil:
		why = "a short record"
	case rec.MGID != mgid || !rec.MLID.IsMulticast() || !rec.MTU.Valid() || rec.SL > 15:
		why = "a record that is none"
	}
	return rec, why
}

// grant makes a membership work that the administration granted.
func (t *groups) grant(now mono.Time, g *group, state uint8, rec *mad.MCMemberRecord) error {
	g.granted |= state
	g.rec = *rec
	if g == t.broadcast {
		t.attr.broadcast = *rec
		return t.link.adoptBroadcast(now)
	}
	return t.activate(g)
}

// activate makes a group ready to send to and, with a full membership, to receive from; it sends the frames that wait.
func (t *groups) activate(g *group) error {
	r := &g.rec
	ah, err := t.vectors.make(&AH{DLID: r.MLID, SL: r.SL, Rate: t.attr.staticRate(r.Rate), Global: true, DGID: g.mgid,
		FlowLabel: r.FlowLabel, HopLimit: r.HopLimit, TClass: r.TClass})
	if err != nil {
		return fmt.Errorf("address vector: %w", err)
	}
	if g.granted&mad.JoinFull != 0 && g.attached != r.MLID {
		t.detach(g)
		if err := t.port.Attach(g.mgid, r.MLID); err != nil {
			t.vectors.release(ah)
			return fmt.Errorf("attaching the queue pair: %w", err)
		}
		g.attached = r.MLID
	}
	t.vectors.release(g.ah)
	g.ah = ah
	for _, f := range g.queue {
		t.budget.Release(len(f))
		t.sender.send(f, g.dest())
	}
	g.queue = nil
	return nil
}

// detach detaches the queue pair from a group, if it is attached.
func (t *groups) detach(g *group) {
	if g.attached != 0 {
		t.port.Detach(g.mgid, g.attached)
		g.attached = 0
	}
}

// releaseVector ends sending to a group.
func (t *groups) releaseVector(g *group) {
	t.vectors.release(g.ah)
	g.ah = nil
}

// attachBroadcast makes the broadcast group work, if it is joined; it reports whether it does.
func (t *groups) attachBroadcast() (bool, error) {
	if t.broadcast.granted == 0 {
		return false, nil // lost while the device was being registered: it is joined again
	}
	if err := t.activate(t.broadcast); err != nil {
		return false, err
	}
	t.up = true
	return true, nil
}

// broadcastFailed notes that the link cannot work with the broadcast group that it joined, and when to try again.
func (t *groups) broadcastFailed(now mono.Time, err error) {
	t.broadcast.granted = 0
	t.joinFailed(now, t.broadcast, mad.JoinFull, &answer{silent: true}, err.Error())
}

// joinFailed notes why a group is not joined, and when to try again.
func (t *groups) joinFailed(now mono.Time, g *group, state uint8, a *answer, why string) {
	t.stats.Driver.McastJoinFailures++
	g.failures++
	if state&(mad.JoinSendOnlyNon|mad.JoinSendOnlyFull) != 0 && len(g.ips) == 0 {
		t.sendOnlyFailed(now, g, a, why)
		return
	}
	switch {
	case g != t.broadcast || a.silent:
		g.reason = why
	case a.status == mad.StatusSAInsufficient || a.status == mad.StatusSANoRecords:
		g.reason = "absent, and none is made without create=1"
		if t.p.Create {
			g.reason = "absent"
		}
	case a.status == mad.StatusSADenied:
		g.reason = "not in partition"
	default:
		g.reason = why
	}
	if g == t.broadcast {
		if !a.silent && t.p.Create && len(t.p.PKeys) > 0 && !t.creating {
			// The group does not exist: the next request may create it.
			t.creating = true
			g.transition(groupJoinRetried)
			t.advance(now, g)
			return
		}
		t.creating, t.up = false, false
		if a.status == mad.StatusSARequest && !a.silent {
			t.explain(now, g)
		}
	}
	t.report.Logf(now, "group "+g.mgid.String(), "group %v: %s", g.mgid, g.reason)
	g.transition(groupJoinFailed)
	t.setBackoff(now, g)
}

// setBackoff sets the timer of a group after a failed request, later each time.
func (t *groups) setBackoff(now mono.Time, g *group) {
	g.backoff = min(max(2*g.backoff, time.Second), maxBackoff)
	t.timers.Set(&g.timer, now.Add(g.backoff+time.Duration(t.rnd.Int64N(int64(time.Second)/4))))
}

// stopTimer cuts the wait of a group short.
func (t *groups) stopTimer(g *group) {
	t.timers.Stop(&g.timer)
	g.transition(groupTimer)
}

// explain queries a group that refused the link, to report which attribute does not fit.
func (t *groups) explain(now mono.Time, g *group) {
	rec := mad.MCMemberRecord{MGID: g.mgid}
	t.sa.begin(now, &query{method: mad.MethodGet, attr: mad.AttrMCMemberRecord, mask: mad.CompMCMGID,
		record: rec.Append(nil), tries: 1, wait: t.p.McastWait, done: func(now mono.Time, a answer) {
			var r mad.MCMemberRecord
			if !a.ok() || r.Parse(a.record) != nil || g.granted != 0 {
				return
			}
			switch port := &t.attr.port; {
			case r.MTU > port.MTU && r.MTU.Valid() && port.MTU.Valid():
				g.reason = fmt.Sprintf("MTU too large: group %d, port %d", r.MTU.Bytes(), port.MTU.Bytes())
			case r.Rate.Tenths() > port.Rate.Tenths():
				g.reason = fmt.Sprintf("rate too low: group %v, port %v", r.Rate, port.Rate)
			case (r.PKey^t.attr.partition)&0x7fff != 0:
				g.reason = fmt.Sprintf("P_Key differs: group %#04x, link %#04x", uint16(r.PKey),
					uint16(t.attr.partition))
			default:
				return
			}
			t.report.Logf(now, "why "+g.mgid.String(), "group %v: %s", g.mgid, g.reason)
			t.link.updateCarrier(now)
		}})
}

// leave requests the end of a part of a membership, or of all. The link stops using it at once. The administration
// refuses to end several states of which it does not have one, as it may be where the answer to a join was lost: then
// each is left by itself.
func (t *groups) leave(now mono.Time, g *group, state uint8) {
	if g.granted &^= state; g.granted == 0 {
		t.releaseVector(g)
	}
	if state&mad.JoinFull != 0 {
		t.detach(g)
	}
	if g.leaveSingly {
		state &= -state
	}
	rec := mad.MCMemberRecord{MGID: g.mgid, PortGID: t.attr.port.GID, JoinState: state}
	g.q = &query{method: mad.MethodDelete, attr: mad.AttrMCMemberRecord, mask: maskLeave, record: rec.Append(nil),
		tries: leaveTries, wait: leaveWait / leaveTries,
		done: func(now mono.Time, a answer) { t.leaveAnswer(now, g, state, &a) }}
	g.transition(groupLeaveSent)
	t.stats.Driver.McastLeaves++
	if t.ending {
		t.leaves++
	}
	t.sa.begin(now, g.q)
}

// leaveAnswer ends the request to leave. After silence the membership may still be in effect: the leave is repeated
// later.
func (t *groups) leaveAnswer(now mono.Time, g *group, state uint8, a *answer) {
	g.q = nil
	switch {
	case a.silent:
		g.transition(groupLeaveLost)
	case !a.ok() && state&(state-1) != 0:
		g.leaveSingly = true
		g.transition(groupLeft)
	default:
		g.requested &^= state
		g.transition(groupLeft)
	}
	switch {
	case t.ending:
		if t.leaves--; g.leaveSingly && !a.silent && g.requested != 0 {
			t.leave(now, g, g.requested)
			return
		}
		t.link.left(now)
		return
	case a.silent:
		t.setBackoff(now, g)
	default:
		g.backoff = 0
	}
	t.advance(now, g)
}

// remove removes a group for which nothing is needed.
func (t *groups) remove(g *group) {
	t.cancelRequest(g)
	t.timers.Stop(&g.timer)
	t.detach(g)
	t.releaseVector(g)
	t.dropQueue(g)
	delete(t.table, g.mgid)
}

// cancelRequest cancels the request of a group, if one is under way. The caller changes the state.
func (t *groups) cancelRequest(g *group) {
	if g.q == nil {
		return
	}
	if g.state == groupJoining {
		t.joins--
	}
	t.sa.cancel(g.q)
	g.q = nil
}

// dropQueue drops the frames that wait for a group.
func (t *groups) dropQueue(g *group) {
	for _, f := range g.queue {
		t.budget.Release(len(f))
		t.stats.TxDrop(stats.DropMcastNotJoined)
	}
	g.queue = nil
}

// reset forgets all memberships, without a request. With keep, where the subnet manager may have forgotten them, too,
// the queue pair stays attached, and frames that wait stay.
func (t *groups) reset(keep bool) {
	for _, g := range t.table {
		if g.granted != 0 || g.q != nil {
			t.stats.Driver.Rejoins++
		}
		t.cancelRequest(g)
		t.timers.Stop(&g.timer)
		g.granted, g.backoff = 0, 0
		g.transition(groupReset)
		t.releaseVector(g)
		if !keep {
			t.detach(g)
			t.dropQueue(g)
		}
	}
	if !keep {
		t.up = false
	}
}

// retryAll sends requests at once that would follow later.
func (t *groups) retryAll(now mono.Time) {
	for _, g := range t.table {
		if g.timer.IsSet() {
			t.stopTimer(g)
			g.backoff = 0
		}
	}
	t.advanceAll(now)
}

// suspend leaves all groups but broadcast, resume joins them again.
func (t *groups) suspend(now mono.Time) {
	t.suspended = true
	for _, g := range t.sorted() {
		if g != t.broadcast {
			g.sendOnly = false
			t.stopTimer(g)
			t.dropQueue(g)
			t.advance(now, g)
		}
	}
}

func (t *groups) resume(now mono.Time) {
	t.suspended = false
	for a := range t.wanted {
		t.want(a)
	}
	if t.started && !t.ending {
		t.advanceAll(now)
	}
}

// want enters an IP group to receive into the table; nil where there are too many groups.
func (t *groups) want(a netip.Addr) *group {
	g := t.groupOf(t.mgidOf(a))
	if g != nil && !slices.Contains(g.ips, a) {
		g.ips = append(g.ips, a)
	}
	return g
}

// addUser has the link receive an IP group, until as many calls of removeUser.
func (t *groups) addUser(now mono.Time, a netip.Addr) error {
	switch {
	case !a.IsMulticast():
		return ErrInvalid
	case t.ending:
		return ErrLinkDown
	}
	a = a.WithZone("")
	if t.wanted[a]++; t.wanted[a] > 1 || t.suspended || !t.started {
		return nil
	}
	g := t.want(a)
	if g == nil {
		t.report.Logf(now, "groups", "group %v: more than %d", a, maxGroups)
		delete(t.wanted, a)
		return ErrBusy
	}
	t.advance(now, g)
	return nil
}

// removeUser undoes an addUser.
func (t *groups) removeUser(now mono.Time, a netip.Addr) error {
	a = a.WithZone("")
	if t.wanted[a] == 0 {
		return ErrInvalid
	}
	if t.wanted[a]--; t.wanted[a] > 0 {
		return nil
	}
	delete(t.wanted, a)
	if g := t.table[t.mgidOf(a)]; g != nil {
		g.ips = slices.DeleteFunc(g.ips, func(b netip.Addr) bool { return b == a })
		if len(g.ips) == 0 && g != t.broadcast {
			t.stopTimer(g)
			t.advance(now, g)
		}
	}
	return nil
}

// leaveAll leaves all groups, since the link ends: also those that are being joined, since the join may be granted.
func (t *groups) leaveAll(now mono.Time) {
	t.ending = true
	for _, g := range t.sorted() {
		if g.state == groupJoining {
			t.cancelRequest(g)
			g.transition(groupReset)
		}
		t.stopTimer(g)
		t.dropQueue(g)
		switch {
		case g.state == groupLeaving:
			t.leaves++
		case g.requested != 0 && t.attr.active():
			t.leave(now, g, g.requested)
		}
	}
}

// removeAll removes all groups, since the link has ended.
func (t *groups) removeAll() {
	for _, g := range t.table {
		t.remove(g)
	}
	t.up = false
}
