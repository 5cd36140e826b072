// SPDX-License-Identifier: Apache-2.0

package em

import (
	"maps"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// agentState is the known state of the management agent of a port.
type agentState uint8

const (
	agentUnknown agentState = iota
	agentThere
	agentNone   // the port answers and has no such agent
	agentSilent // the port does not answer
)

var agentNames = [...]string{"asked", "present", "none", "silent"}

type capabilities struct {
	mask  mad.Capability
	mask2 mad.Capability2
}

// port is a port of an adapter.
type port struct {
	guid  ib.GUID
	lid   ib.LID
	name  string
	pkeys []ib.PKey
	mtu   int // of its link, bytes
	caps  capabilities
	gone  bool // not in the subnet any more

	state   agentState
	everSet bool      // the agent has had the LID of this manager for its traps
	trapSet bool      // the agent has it
	trapAt  mono.Time // earliest time of the next Set
	cpiAt   mono.Time // time of the next Get of ClassPortInfo; 0: now, if it is unknown
	max     int       // vports
	vports  map[uint8]*vport
	scanned bool // every vport that may exist was read once
	scanAt  int  // the next
	empty   int  // consecutive vports that do not exist
	later   int  // number of unlikely vports that may be read now
	laterAt mono.Time
	turn    uint8 // vport of the last request

	paid     mono.Time // runs ahead of the clock by recent requests
	tries    int       // consecutive requests without an answer
	backoffs int       // consecutive times that it fell silent
	restAt   mono.Time // earliest time of the next request
	req      *request  // outstanding

	queued bool
	timer  mono.Timer[*port]
}

// answers reports whether the agent answered the last request.
func (p *port) answers() bool { return p.state == agentThere && p.tries == 0 }

// Bounds of the requests to an agent: burst consecutive ones, then one per pace.
const (
	burst = 2000
	pace  = 20 * time.Millisecond
)

// scanGap is the number of vports that do not exist read behind the last one that does, before the scan of the port is
// complete. Vports further out are read later.
const scanGap = 3

// scanLater is the number of further vports read with each poll.
const scanLater = 16

// step returns the next request to a port. If there is none, at is the time of the next step.
func (m *Manager) step(now mono.Time, p *port) (q *request, at mono.Time) {
	if p.restAt > now {
		return nil, p.restAt
	}
	if at := p.paid.Add(-burst * pace); at > now {
		return nil, at
	}
	if p.state != agentThere || p.cpiAt.Due(now) {
		if p.state == agentNone && p.cpiAt > now {
			return nil, p.cpiAt
		}
		return &request{method: mad.MethodGet, attr: mad.AttrClassPortInfo}, 0
	}
	at = p.cpiAt
	if !p.trapSet {
		if p.trapAt <= now {
			q = &request{method: mad.MethodSet, attr: mad.AttrClassPortInfo}
			q.trap.Trap = mad.VEMATarget{GID: m.gid, LID: uint32(m.lid), QPN: ib.QPNGSI, QKey: ib.GSIQKey,
				PKey: ib.DefaultPKey}
			return q, 0
		}
		at = mono.Min(at, p.trapAt)
	}
	q, when := m.scan(now, p)
	if q != nil {
		return q, 0
	}
	at = mono.Min(at, when)
	// In turn, so that one vport cannot starve another.
	list := slices.Sorted(maps.Keys(p.vports))
	first, _ := slices.BinarySearch(list, p.turn+1)
	for i := range list {
		index := list[(first+i)%len(list)]
		q, when := m.stepVPort(now, p.vports[index])
		if q != nil {
			q.vport, p.turn = index, index
			return q, 0
		}
		at = mono.Min(at, when)
	}
	return nil, at
}

// troubled reports whether a vport refuses its settings.
func (p *port) troubled() bool {
	for _, v := range p.vports {
		if v.troubles > 0 {
			return true
		}
	}
	return false
}

// vport returns a vport of p, which may be new.
func (p *port) vport(index uint8) *vport {
	v := p.vports[index]
	if v == nil {
		v = &vport{p: p, index: index}
		p.vports[index] = v
	}
	return v
}

// scan reads vports of earlier managers. If it is complete for now, at is the time to continue.
func (m *Manager) scan(now mono.Time, p *port) (q *request, at mono.Time) {
	for p.scanAt < p.max {
		if p.empty >= scanGap {
			if !p.scanned {
				p.scanned, p.laterAt = true, now.Add(m.cfg.Poll)
			}
			if p.later == 0 && p.laterAt > now {
				return nil, p.laterAt
			}
			if p.later == 0 {
				p.later, p.laterAt = scanLater, now.Add(m.cfg.Poll)
			}
		}
		v := p.vport(uint8(p.scanAt))
		if !v.known && v.restAt > now {
			return nil, v.restAt
		}
		if !v.known && v.troubles <= m.cfg.Retries {
			return &request{method: mad.MethodGet, attr: mad.AttrVESWPortInfo, vport: v.index}, 0
		}
		p.scanAt++
		p.later = max(0, p.later-1)
		if p.empty++; v.exists() {
			p.empty = 0
		} else if v.member == nil {
			delete(p.vports, v.index)
		}
	}
	p.scanned = true
	return nil, 0
}

// unanswered handles a request that timed out.
func (m *Manager) unanswered(now mono.Time, q *request) {
	p := q.p
	if p.tries++; p.tries <= m.cfg.Retries {
		return
	}
	p.restAt = now.Add(double(m.cfg.Backoff, p.backoffs, m.cfg.Probe))
	p.tries = m.cfg.Retries // one more try per rest
	p.backoffs++
	if p.state != agentSilent {
		p.state = agentSilent
		m.affected(now, p)
	}
}

// answered handles the answer to a request.
func (m *Manager) answered(now mono.Time, q *request, a *mad.VEMA) {
	p := q.p
	p.tries, p.backoffs, p.restAt = 0, 0, 0
	if p.state == agentSilent { // it may have been restarted
		p.state = agentUnknown
		p.cpiAt = now
	}
	if q.attr == mad.AttrClassPortInfo {
		m.gotClassPortInfo(now, q, a)
		return
	}
	v := p.vports[q.vport]
	if v == nil {
		return
	}
	if a.Status != mad.StatusOK {
		m.Counters.Refused++
		m.refused(now, v, q, a.Status)
		return
	}
	switch q.attr {
	case mad.AttrVESWPortInfo, mad.AttrVESWDelete, mad.AttrVESWRemove:
		m.gotInfo(now, v, q, a)
	case mad.AttrVESWMACEntries:
		m.gotEntries(now, v, q, a)
	case mad.AttrVESWUnicastMACs:
		m.gotList(now, v, &v.uc, q, a)
	case mad.AttrVESWMcastMACs:
		m.gotList(now, v, &v.mc, q, a)
	}
}

// gotClassPortInfo handles the answer to a Get or a Set of ClassPortInfo.
func (m *Manager) gotClassPortInfo(now mono.Time, q *request, a *mad.VEMA) {
	p := q.p
	var c mad.VEMAClassPortInfo
	c.Parse(a.Data[:]) // long enough
	if a.Status != mad.StatusOK || c.ClassVersion != mad.VEMAClassVersion {
		if q.method == mad.MethodSet {
			p.trapAt = now.Add(m.cfg.Probe) // it polls
			return
		}
		p.cpiAt = now.Add(m.cfg.Probe)
		if p.state != agentNone {
			m.drop(p)
			p.state = agentNone
			m.affected(now, p)
		}
		return
	}
	ours := c.Trap.LID == uint32(m.lid) && c.Trap.SL == 0
	if q.method == mad.MethodSet {
		if p.trapSet = ours; !ours {
			m.Counters.Mismatches++
			p.trapAt = now.Add(m.cfg.Probe)
		}
		p.everSet = p.everSet || ours
		return
	}
	if p.everSet && c.Trap.LID == 0 { // it has lost its state
		m.drop(p)
	}
	p.trapSet = ours
	p.everSet = ours
	p.trapAt = 0
	p.max = min(c.MaxVPorts(), MaxIndex+1)
	p.cpiAt = now.Add(m.cfg.Probe)
	if p.state != agentThere {
		p.state = agentThere
		for _, v := range p.vports { // its vports may be lost
			v.lookAt = now
		}
		m.affected(now, p)
	}
}

// drop removes the state of the vports of a port.
func (m *Manager) drop(p *port) {
	for _, v := range p.vports {
		v.renew()
	}
	p.scanned, p.scanAt, p.empty, p.everSet, p.trapSet = false, 0, 0, false, false
}

// affected replans the VESWs of a port.
func (m *Manager) affected(now mono.Time, p *port) {
	for _, v := range p.vports {
		if v.member != nil {
			m.changed(now, v.member.v)
		}
	}
}

// changed replans a VESW and wakes the ports with a new required state.
func (m *Manager) changed(now mono.Time, v *vesw) {
	v.plan(now)
}
