// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// Bounds and times of groups.
const (
	maxGroups    = 4096
	groupFrames  = 64
	maxJoins     = 16 // requests under way at a time
	maxBackoff   = 16 * time.Second
	sendOnlyIdle = 5 * time.Minute
	absentFor    = 10 * time.Second // a group to send to that does not exist
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

// createQKey is that of a broadcast group that the link creates: controlled, so that
// only privileged programs can send with it.
const createQKey = 0x80000b1b

// group is a multicast group that the link receives from or sends to.
type group struct {
	mgid     ib.GID
	ips      []netip.Addr // IP groups to receive
	sendOnly bool         // a frame was to be sent to it
	have     uint8        // JoinState that works
	told     uint8        // JoinState that the subnet administration may have
	fresh    uint8        // what of it the last request would have added
	rec      mad.MCMemberRecord
	ah       *address // while frames can be sent
	attached ib.LID   // the MLID by which the queue pair is attached; 0: it is not
	up       bool     // of broadcast: the link works with it
	q        *query
	leaving  bool // q is a leave
	apart    bool // what is left is left state by state
	queue    [][]byte
	failures int
	backoff  time.Duration
	timer    timer
	created  bool // of broadcast: the last request could create it
	waits    bool // in multicast.queue
	absent   mono.Time
	reason   string // why it is not joined
	used     mono.Time
}

type multicast struct {
	groups    map[ib.GID]*group
	broadcast *group
	line      []*group // that wait to be joined
	joins     int      // under way
	wanted    map[netip.Addr]int
	suspended bool // the device is down: nothing but broadcast
}

func (m *multicast) init() {
	m.groups, m.wanted = map[ib.GID]*group{}, map[netip.Addr]int{}
	m.broadcast = &group{}
	m.suspended = true
}

// scope is that of the link's groups: its broadcast group's.
func (l *Link) scope() uint8 { return l.p.Scope }

// mgidOf maps an IP group.
func (l *Link) mgidOf(a netip.Addr) ib.GID { return wire.GroupGID(a, l.cfg.PKey, l.scope()) }

// groupOf returns the group of an MGID and makes it if need be; nil where there are
// too many.
func (l *Link) groupOf(mgid ib.GID) *group {
	if g := l.groups[mgid]; g != nil {
		return g
	}
	if len(l.groups) >= maxGroups {
		return nil
	}
	g := &group{mgid: mgid}
	g.timer.fire = func(now mono.Time) { l.advance(now, g) }
	l.groups[mgid] = g
	return g
}

// startBroadcast begins with the group that the link stands on.
func (l *Link) startBroadcast(now mono.Time) {
	l.broadcast = l.groupOf(wire.BroadcastGID(l.cfg.PKey, l.scope()))
	for a := range l.wanted {
		l.want(a)
	}
	l.advance(now, l.broadcast)
}

// wants is the JoinState that a group should have.
func (l *Link) wants(g *group) uint8 {
	switch {
	case l.state == Destroyed:
		return 0
	case g == l.broadcast:
		return mad.JoinFull
	case l.suspended:
		return 0
	case len(g.ips) > 0:
		return mad.JoinFull
	case g.sendOnly && l.p.SendOnly == SendOnlyCreate:
		return mad.JoinSendOnlyFull
	case g.sendOnly:
		return mad.JoinSendOnlyNon
	}
	return 0
}

// mayAsk reports whether requests about a group make sense now.
func (l *Link) mayAsk(g *group) bool {
	return l.port.State == ib.PortActive && l.index >= 0 && (g == l.broadcast || l.broadcast.up && l.broadcast.have != 0)
}

// advance brings a group nearer to what is wanted of it, by one request: what is
// under way is waited for, a leave for a join as well.
func (l *Link) advance(now mono.Time, g *group) {
	if g.q != nil || g.timer.i != 0 {
		return
	}
	want := l.wants(g)
	switch {
	case want&^g.have != 0:
		if !l.mayAsk(g) {
			return // broadcast, or the port, comes back to it
		}
		if g.waits {
			return
		}
		if g != l.broadcast && l.joins >= maxJoins {
			if len(l.line) > 64+2*len(l.groups) { // most are gone
				l.line = slices.DeleteFunc(l.line, func(g *group) bool { return l.groups[g.mgid] != g })
			}
			g.waits = true
			l.line = append(l.line, g)
			return
		}
		l.join(now, g, want)
	case g.told&^want != 0:
		if l.port.State == ib.PortActive { // else when it is again
			l.leave(now, g, g.told&^want)
		}
	case want == 0:
		l.drop(g)
	}
}

// pump joins groups that wait their turn.
func (l *Link) pump(now mono.Time) {
	for len(l.line) > 0 && l.joins < maxJoins {
		g := l.line[0]
		l.line = l.line[1:]
		g.waits = false
		if l.groups[g.mgid] == g {
			l.advance(now, g)
		}
	}
}

// advanceAll does so with all groups, broadcast first.
func (l *Link) advanceAll(now mono.Time) {
	l.advance(now, l.broadcast)
	for _, g := range l.sortedGroups() {
		l.advance(now, g)
	}
}

// sortedGroups are all groups in the order of their MGIDs.
func (l *Link) sortedGroups() []*group {
	all := make([]*group, 0, len(l.groups))
	for _, g := range l.groups {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *group) int { return slices.Compare(a.mgid[:], b.mgid[:]) })
	return all
}

// join requests a membership.
func (l *Link) join(now mono.Time, g *group, state uint8) {
	b := &l.broadcast.rec
	rec := mad.MCMemberRecord{MGID: g.mgid, PortGID: l.port.GID, PKey: l.cfg.PKey | 0x8000, JoinState: state}
	mask := maskCreate
	switch {
	case g == l.broadcast && g.created:
		mask = maskCreateBroadcast
		rec.QKey = createQKey
	case g == l.broadcast:
		mask = maskJoinBroadcast
	case state == mad.JoinSendOnlyNon:
		rec.PKey, mask = 0, maskJoin
	default:
		rec.QKey, rec.TClass, rec.SL, rec.FlowLabel, rec.HopLimit = b.QKey, b.TClass, b.SL, b.FlowLabel, b.HopLimit
		rec.MTUSelector, rec.MTU, rec.RateSelector, rec.Rate = mad.SelectExactly, b.MTU, mad.SelectExactly, b.Rate
	}
	tries := 1 + l.p.McastRetry
	g.fresh = state &^ g.told
	g.told |= state
	g.leaving, g.apart = false, false
	q := &query{method: mad.MethodSet, attr: mad.AttrMCMemberRecord, mask: mask, record: rec.Append(nil), tries: tries, wait: l.p.McastWait,
		limit: l.p.McastWait}
	q.done = func(now mono.Time, a answer) { l.joinAnswer(now, g, state, &a, q.asked == 1) }
	g.q = q
	l.joins++
	l.c.Driver.McastJoins++
	if state != mad.JoinFull {
		l.c.Driver.McastSendOnly++
	}
	l.debug(now, DebugMulticast, "group %v: joining, state %d", g.mgid, state)
	l.ask(now, g.q)
}

// joinAnswer ends the request for a membership. Where it was asked for more than once, a
// refusal may be of a repetition, and the answer that was lost was that of a join.
func (l *Link) joinAnswer(now mono.Time, g *group, state uint8, a *answer, once bool) {
	g.q = nil
	l.joins--
	var rec mad.MCMemberRecord
	why := ""
	switch {
	case !a.ok():
		why = a.String()
	case rec.Parse(a.record) != nil:
		why = "a short record"
	case rec.MGID != g.mgid || !rec.MLID.IsMulticast() || !rec.MTU.Valid() || rec.SL > 15:
		why = "a record that is none"
	}
	if why == "" {
		g.have |= state
		if err := l.joined(now, g, &rec); err != nil {
			g.have &^= state
			l.joinFailed(now, g, state, &answer{silent: true}, err.Error())
		} else {
			g.reason, g.failures, g.backoff, g.created = "", 0, 0, false
			l.advance(now, g)
		}
	} else {
		if !a.silent && once {
			g.told &^= g.fresh
		}
		l.joinFailed(now, g, state, a, why)
	}
	l.pump(now)
	l.follow(now)
	l.flush(now)
}

// joined takes over what the subnet administration says about a group.
func (l *Link) joined(now mono.Time, g *group, rec *mad.MCMemberRecord) error {
	if g == l.broadcast {
		g.rec = *rec
		return l.broadcastJoined(now)
	}
	g.rec = *rec
	return l.activate(g)
}

// activate makes a group that was joined ready to send to, and to receive from
// where that is wanted.
func (l *Link) activate(g *group) error {
	r := &g.rec
	ah, err := l.newAddress(&AH{DLID: r.MLID, SL: r.SL, Rate: l.staticRate(r.Rate), Global: true, DGID: g.mgid, FlowLabel: r.FlowLabel,
		HopLimit: r.HopLimit, TClass: r.TClass})
	if err != nil {
		return fmt.Errorf("address vector: %w", err)
	}
	if g.have&mad.JoinFull != 0 && g.attached != r.MLID {
		l.detach(g)
		if err := l.al.Attach(g.mgid, r.MLID); err != nil {
			l.release(ah)
			return fmt.Errorf("attaching the queue pair: %w", err)
		}
		g.attached = r.MLID
	}
	l.release(g.ah)
	g.ah = ah
	for _, f := range g.queue {
		l.pending -= len(f)
		l.transmit(f, g.dest())
	}
	g.queue = nil
	return nil
}

func (g *group) dest() dest { return dest{ah: g.ah, qpn: ib.QPNMulticast} }

func (l *Link) detach(g *group) {
	if g.attached != 0 {
		l.al.Detach(g.mgid, g.attached)
		g.attached = 0
	}
}

// broadcastJoined goes on when the broadcast group is joined: the queue pair gets
// its Q_Key, the device its MTU. The first time the device is registered before
// the group is attached.
func (l *Link) broadcastJoined(now mono.Time) error {
	r := &l.broadcast.rec
	if err := l.al.SetQKey(r.QKey); err != nil {
		return fmt.Errorf("Q_Key: %w", err)
	}
	mtu := r.MTU
	if l.port.MTU.Valid() && l.port.MTU < mtu {
		mtu = l.port.MTU
	}
	was, length := l.mtu, l.dgramMTU
	l.dgramMTU = wire.IPMTU(mtu)
	l.mtu = l.deviceMTU()
	l.setLink(now)
	switch {
	case l.registered:
		if l.mtu != was {
			l.dev.SetMTU(l.mtu)
		}
		if l.dgramMTU != length {
			l.recover(now) // receive buffers have another length now
		}
		return l.broadcastReady(now)
	case !l.registering:
		l.registering = true
		d := DeviceInfo{Name: l.cfg.Name, MTU: l.mtu, Address: l.hw, QueueLen: l.p.SQDepth}
		if l.mtu >= wire.IPv6MinMTU {
			d.LinkLocal = wire.LinkLocal(l.port.GID.GUID())
		}
		l.dev.Register(d)
	}
	return nil
}

// broadcastReady attaches the broadcast group; then the link can work, and the other
// groups follow.
func (l *Link) broadcastReady(now mono.Time) error {
	g := l.broadcast
	if g.have == 0 {
		return nil // lost while the device was registered: it is joined again
	}
	if err := l.activate(g); err != nil {
		return err
	}
	g.up = true
	l.why = ""
	l.follow(now)
	l.advanceAll(now)
	return nil
}

// joinFailed notes why a group is not joined, and when to try again.
func (l *Link) joinFailed(now mono.Time, g *group, state uint8, a *answer, why string) {
	l.c.Driver.McastJoinFailures++
	g.failures++
	if state&(mad.JoinSendOnlyNon|mad.JoinSendOnlyFull) != 0 && len(g.ips) == 0 {
		l.sendOnlyFailed(now, g, a, why)
		return
	}
	switch {
	case g != l.broadcast || a.silent:
		g.reason = why
	case a.status == mad.StatusSAInsufficient || a.status == mad.StatusSANoRecords:
		g.reason = "absent, and none is made without create=1"
		if l.p.Create {
			g.reason = "absent"
		}
	case a.status == mad.StatusSADenied:
		g.reason = "not in partition"
	default:
		g.reason = why
	}
	if g == l.broadcast {
		if !a.silent && l.p.Create && len(l.p.PKeys) > 0 && !g.created {
			// It is not there: the next request may create it.
			g.created = true
			l.advance(now, g)
			return
		}
		g.created = false
		g.up = false
		if a.status == mad.StatusSARequest && !a.silent {
			l.explain(now, g)
		}
	}
	l.log(now, "group "+g.mgid.String(), "group %v: %s", g.mgid, g.reason)
	l.wait(now, g)
}

// wait puts off what is next for a group, longer each time.
func (l *Link) wait(now mono.Time, g *group) {
	g.backoff = min(max(2*g.backoff, time.Second), maxBackoff)
	l.timers.set(&g.timer, now.Add(g.backoff+time.Duration(l.rnd.Int64N(int64(time.Second)/4))))
}

// explain asks for a group that refused the link, to tell what does not fit.
func (l *Link) explain(now mono.Time, g *group) {
	rec := mad.MCMemberRecord{MGID: g.mgid}
	l.ask(now, &query{method: mad.MethodGet, attr: mad.AttrMCMemberRecord, mask: mad.CompMCMGID, record: rec.Append(nil), tries: 1,
		wait: l.p.McastWait, done: func(now mono.Time, a answer) {
			var r mad.MCMemberRecord
			if !a.ok() || r.Parse(a.record) != nil || g.have != 0 {
				return
			}
			switch {
			case r.MTU > l.port.MTU && r.MTU.Valid() && l.port.MTU.Valid():
				g.reason = fmt.Sprintf("MTU too large: group %d, port %d", r.MTU.Bytes(), l.port.MTU.Bytes())
			case r.Rate.Tenths() > l.port.Rate.Tenths():
				g.reason = fmt.Sprintf("rate too low: group %v, port %v", r.Rate, l.port.Rate)
			case (r.PKey^l.cfg.PKey)&0x7fff != 0:
				g.reason = fmt.Sprintf("P_Key differs: group %#04x, link %#04x", uint16(r.PKey), uint16(l.cfg.PKey))
			default:
				return
			}
			l.log(now, "why "+g.mgid.String(), "group %v: %s", g.mgid, g.reason)
			l.follow(now)
		}})
}

// leave ends part of a membership, or all. What it was good for ends now. The administration refuses to end several
// states of which it does not have one, as it may where a join's answer was lost: then each is left by itself.
func (l *Link) leave(now mono.Time, g *group, state uint8) {
	if g.have &^= state; g.have == 0 {
		l.release(g.ah)
		g.ah = nil
	}
	if state&mad.JoinFull != 0 {
		l.detach(g)
	}
	if g.apart {
		state &= -state
	}
	rec := mad.MCMemberRecord{MGID: g.mgid, PortGID: l.port.GID, JoinState: state}
	g.leaving = true
	g.q = &query{method: mad.MethodDelete, attr: mad.AttrMCMemberRecord, mask: maskLeave, record: rec.Append(nil), tries: leaveTries,
		wait: leaveWait / leaveTries, done: func(now mono.Time, a answer) {
			g.q = nil
			g.leaving = false
			switch {
			case a.silent:
			case !a.ok() && state&(state-1) != 0:
				g.apart = true
			default:
				g.told &^= state
			}
			switch {
			case l.state == Destroyed:
				if l.leaves--; g.apart && !a.silent && g.told != 0 {
					l.leave(now, g, g.told)
					return
				}
				l.finish(now, false)
				return
			case a.silent: // it may still be in effect: once more, later
				l.wait(now, g)
			default:
				g.backoff = 0
			}
			l.advance(now, g)
			l.flush(now)
		}}
	l.c.Driver.McastLeaves++
	if l.state == Destroyed {
		l.leaves++
	}
	l.ask(now, g.q)
}

// drop forgets a group that nothing is wanted of.
func (l *Link) drop(g *group) {
	l.forgetQuery(g)
	l.timers.stop(&g.timer)
	l.detach(g)
	l.release(g.ah)
	g.ah = nil
	l.dropQueue(g)
	delete(l.groups, g.mgid)
}

func (l *Link) forgetQuery(g *group) {
	if g.q == nil {
		return
	}
	if !g.leaving {
		l.joins--
	}
	l.forget(g.q)
	g.q = nil
}

func (l *Link) dropQueue(g *group) {
	for _, f := range g.queue {
		l.pending -= len(f)
		l.txDrop(DropMcastNotJoined)
	}
	g.queue = nil
}

// dropMemberships forgets that groups are joined, without telling anybody. With keep,
// when the subnet manager may have forgotten, too, the queue pair stays
// attached and frames that wait go on waiting.
func (l *Link) dropMemberships(now mono.Time, keep bool) {
	for _, g := range l.groups {
		if g.have != 0 || g.q != nil {
			l.c.Driver.Rejoins++
		}
		l.forgetQuery(g)
		l.timers.stop(&g.timer)
		g.have, g.backoff, g.absent = 0, 0, 0
		l.release(g.ah)
		g.ah = nil
		if !keep {
			l.detach(g)
			l.dropQueue(g)
		}
	}
	l.joins = 0
}

// hurry tries at once what would be tried again later.
func (l *Link) hurry(now mono.Time) {
	for _, g := range l.groups {
		if g.timer.i != 0 {
			l.timers.stop(&g.timer)
			g.backoff = 0
		}
	}
	l.advanceAll(now)
}

// suspend leaves all groups but broadcast, resume joins them again.
func (l *Link) suspend(now mono.Time) {
	l.suspended = true
	for _, g := range l.sortedGroups() {
		if g != l.broadcast {
			g.sendOnly = false
			l.timers.stop(&g.timer)
			l.dropQueue(g)
			l.advance(now, g)
		}
	}
}

func (l *Link) resume(now mono.Time) {
	l.suspended = false
	for a := range l.wanted {
		l.want(a)
	}
	if l.state >= Joining && l.state != Destroyed {
		l.advanceAll(now)
	}
}

// want makes sure that an IP group to receive is in the table.
func (l *Link) want(a netip.Addr) *group {
	g := l.groupOf(l.mgidOf(a))
	if g != nil && !slices.Contains(g.ips, a) {
		g.ips = append(g.ips, a)
	}
	return g
}

// JoinGroup has the link receive an IP group, until as many calls of LeaveGroup.
func (l *Link) JoinGroup(now mono.Time, a netip.Addr) error {
	switch {
	case !a.IsMulticast():
		return ErrInvalid
	case l.state == Destroyed:
		return ErrLinkDown
	}
	a = a.WithZone("")
	if l.wanted[a]++; l.wanted[a] > 1 || l.suspended || l.state < Joining {
		return nil
	}
	g := l.want(a)
	if g == nil {
		l.log(now, "groups", "group %v: more than %d", a, maxGroups)
		delete(l.wanted, a)
		return ErrBusy
	}
	l.advance(now, g)
	l.flush(now)
	return nil
}

// LeaveGroup undoes a JoinGroup.
func (l *Link) LeaveGroup(now mono.Time, a netip.Addr) error {
	a = a.WithZone("")
	if l.wanted[a] == 0 {
		return ErrInvalid
	}
	if l.wanted[a]--; l.wanted[a] > 0 {
		return nil
	}
	delete(l.wanted, a)
	if !a.IsMulticast() {
		return nil
	}
	if g := l.groups[l.mgidOf(a)]; g != nil {
		g.ips = slices.DeleteFunc(g.ips, func(b netip.Addr) bool { return b == a })
		if len(g.ips) == 0 && g != l.broadcast {
			l.timers.stop(&g.timer)
			l.advance(now, g)
		}
	}
	l.flush(now)
	return nil
}

// leaveAll leaves all groups when the link ends: also those whose join is under
// way, which may have come through.
func (l *Link) leaveAll(now mono.Time) {
	for _, g := range l.sortedGroups() {
		if g.q != nil && !g.leaving {
			l.forgetQuery(g)
		}
		l.timers.stop(&g.timer)
		l.dropQueue(g)
		switch {
		case g.q != nil:
			l.leaves++
		case g.told != 0 && l.port.State == ib.PortActive:
			l.leave(now, g, g.told)
		}
	}
}

// dropGroups forgets all groups when the link ends.
func (l *Link) dropGroups() {
	for _, g := range l.groups {
		l.drop(g)
	}
	l.broadcast.up = false
}
