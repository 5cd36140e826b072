// SPDX-License-Identifier: Apache-2.0

package em

import (
	"fmt"

	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// vport is the known and the required state of a vport of a port of the fabric.
type vport struct {
	p      *port
	index  uint8
	member *member // of its VESW, nil for none

	known  bool
	info   mad.VESWPortInfo // as last reported
	readAt mono.Time        // time of info
	lookAt mono.Time        // time of the next Get of info; 0: with the next poll

	table table
	uc    list
	mc    list

	// Trouble is the number of consecutive settings that were refused, or not applied as requested; nothing is set
	// before restAt. why is for people.
	troubles int
	restAt   mono.Time
	why      string
	noRemove bool // the agent cannot remove it
}

// exists reports whether the agent has the vport, configured or not.
func (v *vport) exists() bool { return v.info.Port.LinkStatus != 0 || v.configured() }

// configured reports whether the vport has any setting of a manager.
func (v *vport) configured() bool {
	i := &v.info
	return i.VESW.VESWID != 0 || i.Port.MACDigest != 0 || i.Port.ConfigState == mad.VESWForwarding
}

// forwards reports whether the vport is in a VESW and forwards frames, as far as the manager decides.
func (v *vport) forwards(id uint16) bool {
	return v.known && v.info.VESW.VESWID == id && v.info.Port.ConfigState == mad.VESWForwarding
}

// renew discards the known state of the vport.
func (v *vport) renew() {
	if v.member == nil {
		delete(v.p.vports, v.index)
		return
	}
	*v = vport{p: v.p, index: v.index, member: v.member, troubles: v.troubles}
}

// get returns a Get of an attribute of the vport.
func get(a mad.AttributeID) *request { return &request{method: mad.MethodGet, attr: a} }

// set returns a Set of a VESWPortInfo.
func set(i *mad.VESWPortInfo) *request {
	return &request{method: mad.MethodSet, attr: mad.AttrVESWPortInfo, info: *i}
}

// stepVPort returns the next request to a vport. If there is none, at is the time of the next step.
func (m *Manager) stepVPort(now mono.Time, v *vport) (q *request, at mono.Time) {
	if v.restAt > now {
		return nil, v.restAt
	}
	if !v.known || v.lookAt.Due(now) {
		return get(mad.AttrVESWPortInfo), 0
	}
	if v.member == nil {
		return m.clean(now, v)
	}
	mb := v.member
	id := mb.v.want.ID
	if have := v.info.VESW.VESWID; have != id && v.configured() { // left from another VESW, or another identifier
		return m.clean(now, v)
	}
	at = mono.Min(v.lookAt, v.readAt.Add(m.cfg.Poll))
	if at.Due(now) {
		return get(mad.AttrVESWPortInfo), 0
	}
	if !mb.ok {
		if mb.waitUntil > now {
			return nil, mono.Min(at, mb.waitUntil)
		}
		mb.v.check(now)
		return nil, at
	}
	if m.rival(v, id) {
		return nil, at
	}
	want := mb.want
	want.Port.ConfigState = mad.VESWDropAll
	if v.forwards(id) {
		want.Port.ConfigState = mad.VESWForwarding // do not interrupt, whatever else changes
	}
	if !same(&v.info, &want) {
		return set(&want), 0
	}
	if q := v.table.next(v.info.Port.MACDigest, mb); q != nil {
		if q.method == mad.MethodGet || v.table.fresh || !mb.v.unread(now) {
			return q, 0
		}
		at = mono.Min(at, now.Add(m.cfg.Timeout))
	}
	if !v.forwards(id) && mb.v.mayForward(mb) {
		want.Port.ConfigState = mad.VESWForwarding
		return set(&want), 0
	}
	if !mb.v.up {
		if mb.v.check(now); !mb.v.up {
			at = mono.Min(at, mb.v.upAt)
		}
	}
	for _, l := range []*list{&v.uc, &v.mc} {
		attr, gen := mad.AttrVESWUnicastMACs, v.info.Port.UcMACsGen
		if l == &v.mc {
			attr, gen = mad.AttrVESWMcastMACs, v.info.Port.McMACsGen
		}
		if !l.wanted && l.read && l.gen == gen {
			continue
		}
		if l.restAt > now {
			at = mono.Min(at, l.restAt)
			continue
		}
		q := get(attr)
		q.list.Start = uint16(len(l.part))
		return q, 0
	}
	return nil, at
}

// rival reports whether another vport of the port is in the VESW of v: a port has at most one. It is cleaned first.
func (m *Manager) rival(v *vport, id uint16) bool {
	for _, o := range v.p.vports {
		if o != v && o.known && o.info.VESW.VESWID == id {
			return true
		}
	}
	return false
}

// clean returns the next request that removes the settings of a vport: all vports of its VESW stop to forward before
// the first is deleted.
func (m *Manager) clean(now mono.Time, v *vport) (q *request, at mono.Time) {
	i := v.info
	id := i.VESW.VESWID
	switch {
	case i.Port.ConfigState == mad.VESWForwarding:
		i.Port.ConfigState = mad.VESWDropAll
		return set(&i), 0
	case v.configured():
		if m.byID[id] == nil && m.lingering(v, id) {
			return nil, now.Add(m.cfg.Timeout)
		}
		return &request{method: mad.MethodSet, attr: mad.AttrVESWDelete}, 0
	case v.member == nil && v.exists() && !v.noRemove:
		return &request{method: mad.MethodSet, attr: mad.AttrVESWRemove}, 0
	}
	return nil, 0
}

// lingering reports whether another vport of a removed VESW still forwards, and its agent answers.
func (m *Manager) lingering(v *vport, id uint16) bool {
	for _, p := range m.ports {
		if p.state == agentUnknown || p.state == agentThere && !p.scanned {
			return true // it may forward
		}
		if p.state != agentThere {
			continue
		}
		for _, o := range p.vports {
			if o != v && o.member == nil && o.forwards(id) && o.troubles == 0 {
				return true
			}
		}
	}
	return false
}

// same reports whether a vport has all required settings. Reserved octets are not compared.
func same(have, want *mad.VESWPortInfo) bool {
	h := *have
	w := *want
	hv, wv, hp, wp := &h.VESW, &w.VESW, &h.Port, &w.Port
	h.VESW.SetFlood(false) // the only reserved bit with a meaning
	w.VESW.SetFlood(false)
	if have.VESW.Flood() != want.VESW.Flood() {
		return false
	}
	hv.Reserved4, hv.Reserved12, hv.Reserved16, hv.Reserved92, hv.Reserved150 = wv.Reserved4, wv.Reserved12, wv.Reserved16, wv.Reserved92, wv.Reserved150
	hp.Reserved5, hp.Reserved24, hp.Reserved68, hp.Reserved120 = wp.Reserved5, wp.Reserved24, wp.Reserved68, wp.Reserved120
	hp.LinkStatus, hp.OperState, hp.MaxMACEntries, hp.MaxSMACEntries, hp.MACDigest = wp.LinkStatus, wp.OperState, wp.MaxMACEntries, wp.MaxSMACEntries, wp.MACDigest
	hp.UcMACsGen, hp.McMACsGen = wp.UcMACsGen, wp.McMACsGen
	return h == w
}

// gotInfo handles the state of a vport: the answer to a Get, to a Set, or to its removal.
func (m *Manager) gotInfo(now mono.Time, v *vport, q *request, a *mad.VEMA) {
	if q.attr == mad.AttrVESWRemove {
		m.Counters.Removed++
		v.renew()
		return
	}
	was, knew := v.info, v.known
	v.info.Parse(a.Data[:]) // long enough
	v.known, v.readAt = true, now
	if q.method == mad.MethodGet {
		v.lookAt = 0
		if v.member == nil && int(v.index) < v.p.scanAt && !v.exists() {
			delete(v.p.vports, v.index)
			return
		}
	}
	i := &v.info
	switch {
	case q.method == mad.MethodSet && q.attr == mad.AttrVESWDelete && v.configured(),
		q.method == mad.MethodSet && q.attr == mad.AttrVESWPortInfo && !same(i, &q.info):
		m.Counters.Mismatches++
		m.trouble(now, v, "its agent confirms a setting that it does not apply")
	case q.method == mad.MethodSet:
		v.troubles, v.restAt, v.why = 0, 0, ""
	}
	if !knew || i.VESW.VESWID == 0 || i.VESW.VESWID != was.VESW.VESWID || i.Port.MACDigest != was.Port.MACDigest {
		v.table = table{}
		if knew && was.VESW.VESWID == 0 && i.VESW.VESWID != 0 && i.Port.MACDigest == 0 {
			v.table = table{sure: mad.VESWMaxMACs, fresh: true} // empty
		}
	}
	if q.method == mad.MethodSet && knew && was.Port.ConfigState == mad.VESWForwarding &&
		i.Port.ConfigState != mad.VESWForwarding && v.member != nil {
		m.Counters.Bounced++
	}
	mb := v.member
	if mb == nil {
		if m.byID[i.VESW.VESWID] == nil {
			m.wakeLingering(i.VESW.VESWID)
			m.wakeLingering(was.VESW.VESWID)
		}
		return
	}
	if knew && q.method == mad.MethodGet && was.VESW.VESWID == mb.v.want.ID && i.VESW.VESWID == 0 { // the agent lost it
		v.p.cpiAt = now
		v.uc, v.mc = list{macs: v.uc.macs, read: v.uc.read, wanted: true}, list{}
	}
	if !knew && i.VESW.VESWID == mb.v.want.ID {
		mb.v.adopt(v)
		m.Counters.Adopted++
	}
	if mb.is.Gateway && (!knew || state(&was) != state(i)) {
		m.changed(now, mb.v)
	}
}

// state returns the state of a gateway that others of a VESW depend on.
func state(i *mad.VESWPortInfo) [4]uint16 {
	return [4]uint16{i.VESW.VESWID, uint16(i.Port.ConfigState), uint16(i.Port.OperState), uint16(i.Port.LinkStatus)}
}

// wakeLingering wakes ports that wait until the rest of a removed VESW has stopped to forward.
func (m *Manager) wakeLingering(id uint16) {
	if id == 0 {
		return
	}
	for _, p := range m.ports {
		for _, o := range p.vports {
			if o.member == nil && o.known && o.info.VESW.VESWID == id {
				m.wake(p)
			}
		}
	}
}

// refused handles an answer with a status.
func (m *Manager) refused(now mono.Time, v *vport, q *request, s mad.Status) {
	switch q.attr {
	case mad.AttrVESWRemove:
		if v.noRemove = s != mad.StatusInvalidValue; !v.noRemove { // removed
			v.renew()
		}
		return
	case mad.AttrVESWDelete:
		if s == mad.StatusInvalidValue { // removed, though it was reported to exist
			v.renew()
		}
	case mad.AttrVESWMACEntries, mad.AttrVESWUnicastMACs, mad.AttrVESWMcastMACs:
		v.lookAt = now // the vport may be removed
		if q.attr == mad.AttrVESWMACEntries {
			v.table = table{}
		}
	}
	m.trouble(now, v, fmt.Sprintf("its agent refuses %s: %v", orderName(q), s))
}

func orderName(q *request) string {
	switch q.attr {
	case mad.AttrVESWPortInfo:
		if q.method == mad.MethodGet {
			return "to tell its configuration"
		}
		return "its configuration"
	case mad.AttrVESWMACEntries:
		return "its table of MACs"
	case mad.AttrVESWDelete:
		return "to give it up"
	}
	return "to list its MACs"
}

// trouble suspends a vport that refused its settings; the VESW continues without it.
func (m *Manager) trouble(now mono.Time, v *vport, why string) {
	v.why = why
	v.restAt = now.Add(double(m.cfg.Backoff, v.troubles, m.cfg.Probe))
	v.troubles++
	if v.member != nil && v.troubles == 1 {
		m.changed(now, v.member.v)
	}
}
