// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"slices"
	"time"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// remote is another manager.
type remote struct {
	info mad.SMInfo
	port ib.GUID
	path []uint8
	lid  ib.LID
}

// election is the state of other managers (IBA volume 1, 14.4).
type election struct {
	master   remote // that a standby manager polls
	others   []remote
	starting []remote // managers that gave no answer, or were not active, in the last heavy sweep
	polls    int      // consecutive polls without an answer of the master
	pollAt   mono.Time
	handover handover
}

// handover is a handover that is not acknowledged yet.
type handover struct {
	to    ib.GUID
	until mono.Time
}

// better reports whether a manager of priority p and GUID g precedes another as master.
func better(p uint8, g ib.GUID, op uint8, og ib.GUID) bool { return p > op || p == op && g < og }

// yields reports whether o precedes m as master.
func (m *Manager) yields(o *remote) bool {
	i := m.smInfo()
	return better(o.info.Priority, o.info.GUID, i.Priority, i.GUID)
}

// caretakes is a bit of the activity counter, which only shows that a manager is alive: a manager that is not active
// and has it is a caretaker.
const caretakes = 1 << 31

// smInfo is what other managers see. A caretaker is not active for them, so that a manager that was elected becomes
// master beside it. Among caretakers the GUID decides.
func (m *Manager) smInfo() mad.SMInfo {
	i := mad.SMInfo{GUID: m.cfg.PortGUID, SMKey: m.cfg.SMKey, ActCount: m.actCount &^ caretakes, Priority: m.cfg.Priority,
		State: m.state}
	if m.caretaker {
		i.ActCount |= caretakes
		i.Priority, i.State = 0, mad.SMNotActive
	}
	return i
}

func isCaretaker(i *mad.SMInfo) bool { return i.State == mad.SMNotActive && i.ActCount&caretakes != 0 }

// queryManager requests the state of the manager at a port, unless it is the port of this manager. A manager at a
// confined switch has no part in the election: other switches drop its requests.
func (s *sweep) queryManager(r topo.Ref) {
	at := r
	if !s.t.Nodes[r.Node].IsSwitch() {
		at = s.t.Port(r).Peer
	}
	switch {
	case s.t.Port(r).GUID == s.base.cfg.PortGUID:
	case !at.IsNone() && s.t.Nodes[at.Node].Confined:
		s.problem(s.nameOf(r), "a subnet manager is at this port, and its member lacks the role manager: it is ignored")
	default:
		s.request(mad.MethodGet, mad.AttrSMInfo, 0, pathTo(s.t, r), r, s.gotOther)
	}
}

// gotOther records another manager.
func (s *sweep) gotOther(_ mono.Time, r *request, a *mad.SMP) {
	o := remote{port: s.t.Port(r.ref).GUID, path: slices.Clone(r.path), lid: s.t.Port(r.ref).Info.LID}
	if a == nil || a.Status != mad.StatusOK {
		s.mute = true
		s.starting = append(s.starting, o) // its port has the capability, but no manager answers yet
		return
	}
	o.info.Parse(a.Data[:])
	switch {
	case o.info.GUID == s.base.cfg.PortGUID:
	case s.base.caretaker && isCaretaker(&o.info):
		o.info.State = mad.SMStandby
		s.others = append(s.others, o)
	case o.info.State == mad.SMNotActive:
		s.starting = append(s.starting, o)
	default:
		s.others = append(s.others, o)
	}
}

// elect decides after the discovery whether this manager is the master. A master remains so until it hands over.
func (m *Manager) elect(now mono.Time) {
	s := m.sweep
	m.others, m.starting = s.others, s.starting
	m.selfLID = s.t.Port(s.t.Self).Info.LID
	if m.caretaker && s.mute {
		// A master that cannot prove its term at the moment gives no answer. What this node's copy has may be older.
		m.endFailed(now, "a manager gives no answer and may be the master: the caretaker waits")
		return
	}
	if m.state == mad.SMMaster && m.caretaker {
		i := slices.IndexFunc(s.others, func(o remote) bool { return o.info.State == mad.SMMaster || m.yields(&o) })
		if i >= 0 {
			m.master = s.others[i]
			m.logSweep(now, s)
			m.become(now, mad.SMStandby, "the manager "+m.master.info.GUID.String()+" precedes this caretaker")
			return
		}
	}
	if m.state == mad.SMMaster {
		if slices.ContainsFunc(s.others, func(o remote) bool { return o.info.State == mad.SMMaster && m.yields(&o) }) {
			// Two subnets have become one: the preceding master gets it.
			m.logSweep(now, s)
			m.handOver(now)
			m.sweep = nil
			m.heavyAt, m.heavyWhy = now.Add(m.cfg.PollInterval), "there is another master"
		}
		return
	}
	var ahead *remote
	for i := range s.others {
		o := &s.others[i]
		isMaster := o.info.State == mad.SMMaster
		switch {
		case ahead != nil && ahead.info.State == mad.SMMaster && !isMaster:
		case !isMaster && !m.yields(o):
		case ahead == nil || isMaster && ahead.info.State != mad.SMMaster,
			better(o.info.Priority, o.info.GUID, ahead.info.Priority, ahead.info.GUID):
			ahead = o
		}
	}
	if ahead != nil {
		m.master = *ahead
		m.logSweep(now, s)
		m.become(now, mad.SMStandby, "the manager "+ahead.info.GUID.String()+" precedes it")
		return
	}
	m.note(now, "%s, was %s: no other precedes it", stateName(mad.SMMaster), stateName(m.state))
	m.state = mad.SMMaster
}

// handOver sends a handover to another manager: to a master that precedes this one, or to a standby manager of higher
// priority. Among managers of equal priority the master remains, whatever its GUID: each change of master costs a
// sweep, and clients their registrations.
func (m *Manager) handOver(now mono.Time) {
	if m.handover.to != 0 {
		return
	}
	var best *remote
	for i := range m.others {
		o := &m.others[i]
		if (o.info.State == mad.SMMaster && m.yields(o) || o.info.State == mad.SMStandby &&
			o.info.Priority > m.cfg.Priority) &&
			(best == nil || better(o.info.Priority, o.info.GUID, best.info.Priority, best.info.GUID)) {
			best = o
		}
	}
	if best == nil {
		return
	}
	m.note(now, "hands over to the manager %v", best.info.GUID)
	m.handover = handover{to: best.info.GUID, until: now.Add(m.cfg.Timeout*time.Duration(m.cfg.Retries+1) +
		m.cfg.PollInterval)}
	m.requestSM(mad.MethodSet, mad.SMHandover, best, ignored)
}

// maxOrders bounds the outstanding requests to other managers, so that a host that provokes them cannot delay a sweep.
const maxOrders = 4

// requestSM sends a Get or Set of SMInfo to another manager. A Get is routed by LID if both ports have one, because
// that route is maintained when the subnet changes; a Set takes the directed route of the last discovery.
func (m *Manager) requestSM(method mad.Method, mod uint32, o *remote, done answer) {
	if m.requests.orders >= maxOrders {
		return
	}
	m.requests.orders++
	r := m.requests.add(method, mad.AttrSMInfo, mod, o.path, done)
	r.mkey = m.intent.MKey.Of(o.port)
	if o.lid != 0 && m.selfLID != 0 && (method == mad.MethodGet || o.path == nil) {
		r.lid = o.lid
	}
	i := m.smInfo()
	i.Append(r.data[:0])
}

// queryOthers requests the state of managers that may get a handover and could not at the last heavy sweep: of higher
// priority and not standby, or without an answer. No notice reports that such a manager has become standby.
func (m *Manager) queryOthers() {
	for i := range m.others {
		if o := &m.others[i]; o.info.State != mad.SMStandby && o.info.Priority > m.cfg.Priority {
			m.requestSM(mad.MethodGet, 0, o, m.gotState)
		}
	}
	for i := range m.starting { // another first each time: the number of requests is bounded
		m.requestSM(mad.MethodGet, 0, &m.starting[(i+int(m.actCount))%len(m.starting)], m.gotState)
	}
}

// gotState records the state of another manager, and hands over to it if that is due.
func (m *Manager) gotState(now mono.Time, _ *request, a *mad.SMP) {
	if m.state != mad.SMMaster || a == nil || a.Status != mad.StatusOK {
		return
	}
	var info mad.SMInfo
	info.Parse(a.Data[:])
	if info.GUID == m.cfg.PortGUID || info.State == mad.SMNotActive {
		return
	}
	i := slices.IndexFunc(m.others, func(o remote) bool { return o.info.GUID == info.GUID })
	if i < 0 {
		m.sweepSoon(now, "the manager "+info.GUID.String()+" has started")
		return
	}
	m.others[i].info = info
	if m.sweep == nil || m.sweep.kind != heavy { // which hands over at its end
		m.handOver(now)
	}
}

// ignored handles an answer that has no effect.
func ignored(mono.Time, *request, *mad.SMP) {}

// pollMaster polls the master of a standby manager.
func (m *Manager) pollMaster(now mono.Time) {
	if m.state != mad.SMStandby || !m.pollAt.Due(now) {
		return
	}
	m.pollAt = now.Add(m.cfg.PollInterval)
	m.actCount++
	m.requestSM(mad.MethodGet, 0, &m.master, m.gotPoll)
}

func (m *Manager) gotPoll(now mono.Time, r *request, a *mad.SMP) {
	if m.state != mad.SMStandby {
		return
	}
	var i mad.SMInfo
	if a != nil && a.Status == mad.StatusOK {
		i.Parse(a.Data[:])
	}
	// The master of a caretaker may be another caretaker.
	manages := i.State == mad.SMMaster || m.caretaker && isCaretaker(&i)
	if manages && i.GUID == m.master.info.GUID {
		m.master.info, m.polls = i, 0
		return
	}
	if m.polls++; m.polls >= m.cfg.PollRetries {
		m.become(now, mad.SMDiscovering, "the manager "+m.master.info.GUID.String()+
			" is not master any more, or does not answer")
	}
}

// serveSMInfo answers a Get or Set of SMInfo of another manager.
func (m *Manager) serveSMInfo(now mono.Time, d *mad.Datagram, s *mad.SMP) {
	var from mad.SMInfo
	from.Parse(s.Data[:])
	back := remote{info: from, port: from.GUID, lid: d.SLID}
	if s.Directed() {
		back.lid = 0
		for h := int(s.HopCount); h > 0; h-- {
			back.path = append(back.path, s.ReturnPath[h])
		}
	}
	status := mad.StatusOK
	// A Set must bear the M_Key of the subnet, if it has one. The acknowledgement of a handover need not.
	if key := m.intent.MKey.Of(m.cfg.PortGUID); s.Method == mad.MethodSet && key != 0 && s.MKey != key &&
		!(s.AttributeModifier == mad.SMAcknowledge && m.handover.to == from.GUID && from.GUID != 0) {
		m.DropMKey++
		return
	}
	if s.Method == mad.MethodSet {
		status = m.control(now, s.AttributeModifier, &back)
	}
	s.Data = [mad.SMPDataLen]byte{}
	i := m.smInfo()
	i.Append(s.Data[:0])
	m.reply(d, s, status, 0)
}

// control executes a Set of SMInfo (IBA volume 1, 14.4.3).
func (m *Manager) control(now mono.Time, mod uint32, from *remote) mad.Status {
	if !m.permitted || m.cfg.SMKey != 0 && from.info.SMKey != m.cfg.SMKey {
		return mad.StatusInvalidValue
	}
	switch {
	case mod == mad.SMHandover && m.caretaker:
		m.sweepSoon(now, "a master would hand over to a caretaker") // it yields after the sweep
		return mad.StatusInvalidValue
	case mod == mad.SMHandover && m.state == mad.SMStandby:
		m.become(now, mad.SMMaster, "the manager "+from.info.GUID.String()+" handed over")
		m.heavyAt, m.heavyWhy, m.everSwept = now, "it was handed over", false
		m.requestSM(mad.MethodSet, mad.SMAcknowledge, from, ignored)
	case mod == mad.SMHandover && m.state == mad.SMMaster:
		m.note(now, "the manager %v handed its part over", from.info.GUID)
		m.requestSM(mad.MethodSet, mad.SMAcknowledge, from, ignored)
		m.sweepSoon(now, "it was handed over")
	case mod == mad.SMAcknowledge && m.state == mad.SMMaster && m.handover.to == from.info.GUID:
		m.master = *from
		m.master.info.State = mad.SMMaster
		m.become(now, mad.SMStandby, "the manager "+from.info.GUID.String()+" took over")
	case mod == mad.SMDisable && m.state == mad.SMStandby:
		m.become(now, mad.SMNotActive, "the master disabled it")
	case mod == mad.SMStandbyReq && m.state == mad.SMNotActive:
		m.master = *from
		m.become(now, mad.SMStandby, "the master enabled it")
	case mod == mad.SMDiscover && m.state == mad.SMStandby:
		m.become(now, mad.SMDiscovering, "the master requests a discovery")
	default:
		return mad.StatusInvalidValue
	}
	return mad.StatusOK
}

// maxReplies bounds the queued answers.
const maxReplies = 256

func (m *Manager) reply(d *mad.Datagram, s *mad.SMP, status mad.Status, mkey uint64) {
	if len(m.replies) >= maxReplies {
		m.requests.Drops++
		return
	}
	s.Reply(status)
	s.MKey = mkey
	r := d.Reply()
	r.Port = 0
	s.Append(r.Data[:0])
	m.replies = append(m.replies, r)
}

// trapCount is the number of traps of a LID since a time.
type trapCount struct {
	since mono.Time
	n     int
}

// A LID that sends more than trapMost traps in trapWindow, as that of a flapping link does, causes at most one sweep
// in trapPause.
const (
	trapWindow = time.Minute
	trapMost   = 10
	trapPause  = time.Second
)

// An agent that has sent a trap sends no other for a second. During that time the manager makes `watches` light
// sweeps of its own, the first after watchFirst, each other after twice the time.
const (
	watches    = 5
	watchFirst = 50 * time.Millisecond
)

// trap answers a trap, and schedules a sweep if it reports a change.
func (m *Manager) trap(now mono.Time, d *mad.Datagram, s *mad.SMP) {
	if m.state != mad.SMMaster {
		return
	}
	var n mad.Notice
	n.Parse(s.Data[:])
	s.Data = [mad.SMPDataLen]byte{}
	n.Append(s.Data[:0])
	m.reply(d, s, mad.StatusOK, m.keyOf(d.SLID))
	m.Traps++
	if n.Generic && n.TrapNumber == mad.TrapBadMKey {
		m.BadMKeys++
	}
	if len(m.traps) > 4096 {
		clear(m.traps)
	}
	c := m.traps[d.SLID]
	if c.n == 0 || now.Sub(c.since) > trapWindow {
		c = trapCount{since: now}
	}
	c.n++
	m.traps[d.SLID] = c
	switch {
	case !n.Generic:
	case n.TrapNumber == mad.TrapLinkState || n.TrapNumber == mad.TrapLocalChange ||
		n.TrapNumber == mad.TrapSystemImageGUID:
		if c.n <= trapMost {
			m.watch = watches
			m.sweepSoon(now, n.TrapNumber.String())
			break
		}
		if c.n == trapMost+1 {
			m.note(now, "LID %d sends many traps: they cause at most one sweep in %v", d.SLID, trapPause)
		}
		m.sweepAt(max(now.Add(m.cfg.Debounce), m.heavyWas.Add(trapPause)), n.TrapNumber.String())
	default:
		if c.n <= trapMost {
			m.note(now, "LID %d: %v", d.SLID, n.TrapNumber)
		}
	}
}
