// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"time"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// M_Keys (IBA volume 1, 14.2.4). Every request bears the key of the port it is
// for: the one that the port shows, which it does to who knows it and to
// everybody once its protection has lapsed; else the one that is wanted. A
// port that is protected and shows none has one that nobody here knows.

// knownKey is the nth key that a port may have, the wanted one first.
func (m *Manager) knownKey(nth int) uint64 {
	if nth == 0 {
		return m.intent.MKey
	}
	return m.intent.MKeysBefore[nth-1]
}

// isClosed reports whether a port is protected by a key that its answer does not
// show. A port without a key that has protection bits looks the same, and takes
// every key.
func isClosed(i *mad.PortInfo) bool { return i.MKey == 0 && i.MKeyProtectBits != 0 }

// keyFor is the M_Key for requests to the node of r.
func (m *Manager) keyFor(r topo.Ref) uint64 {
	if m.sweep == nil || m.sweep.t == nil || r.IsNone() {
		return m.intent.MKey
	}
	if n := &m.sweep.t.Nodes[r.Node]; n.IsSwitch() {
		r.Port = 0
	}
	if p := m.sweep.t.Port(r); p != nil && p.Info.MKey != 0 {
		return p.Info.MKey
	}
	if k, ok := m.sweep.keys[r.Node]; ok {
		return k
	}
	return m.intent.MKey
}

// tryKey asks for the PortInfo of a closed port with the next key it may have;
// false where there is no need, or none is left.
func (m *Manager) tryKey(r *request, i *mad.PortInfo) bool {
	if !isClosed(i) || r.nth >= len(m.intent.MKeysBefore) || r.method != mad.MethodGet {
		return false
	}
	q := m.ask(mad.MethodGet, mad.AttrPortInfo, r.mod, r.path, r.ref, (*Manager).gotPortInfo)
	q.nth = r.nth + 1
	q.mkey = m.knownKey(q.nth)
	return true
}

// claim gives the wanted key to ports that have another one, before anything else
// is set: what follows bears the new key. Closed ports are asked once; that they
// refuse starts the lease of their key, after which they show it.
func (m *Manager) claim(s *sweep) {
	for r := range s.t.EndPorts() {
		i := &s.t.Port(r).Info
		closed := isClosed(i)
		if i.PortState == 0 || !closed && (i.MKey == 0 || i.MKey == m.intent.MKey) {
			continue
		}
		w := *i
		w.MKey, w.MKeyProtectBits, w.MKeyLeasePeriod, w.ClientReregister = m.intent.MKey, m.intent.MKeyProtect, m.intent.MKeyLease, false
		q := m.setPort(s, r, w, ib.PortNoChange)
		q.done, q.stern = (*Manager).gotClaimed, closed
	}
}

func (m *Manager) gotClaimed(now mono.Time, r *request, a *mad.SMP) {
	switch {
	case a != nil:
		m.gotPortSet(now, r, a)
	case r.stern:
		m.guard(r.ref)
	default: // the port may have changed its key and the answer been lost
		q := m.ask(mad.MethodGet, mad.AttrPortInfo, r.mod, r.path, r.ref, (*Manager).gotClaim)
		q.mkey = m.intent.MKey
	}
}

func (m *Manager) gotClaim(_ mono.Time, r *request, a *mad.SMP) {
	if m.gaveUp(r, a) {
		return
	}
	i := &m.sweep.t.Port(r.ref).Info
	i.Parse(a.Data[:])
	if isClosed(i) {
		m.guard(r.ref)
	}
}

// guard notes a node that takes no orders from here.
func (m *Manager) guard(r topo.Ref) {
	s := m.sweep
	i := &s.t.Port(r).Info
	s.guarded[r.Node] = true
	s.failed++
	why := "it never lapses: restart the node, or"
	if i.MKeyLeasePeriod != 0 {
		why = "it lapses " + (time.Duration(i.MKeyLeasePeriod) * time.Second).String() + " after that manager is gone; or"
	}
	m.problem(m.nameOf(r), "the port is guarded by another M_Key, of another manager (protection %d). fix: %s give this manager that key (weft sm set --m-key)",
		i.MKeyProtectBits, why)
}

// barred reports whether a request is a Set that its node would refuse.
func (m *Manager) barred(r *request) bool {
	return m.sweep != nil && r.method == mad.MethodSet && !r.poll && !r.ref.IsNone() && m.sweep.guarded[r.ref.Node]
}

// shownBy is the M_Key of the port with a LID, as far as this manager may use it: it
// goes to nobody but the port that has it.
func (m *Manager) shownBy(lid ib.LID) uint64 {
	if m.topo == nil {
		return 0
	}
	if p := m.topo.Port(m.topo.PortByLID(lid)); p != nil {
		return p.Info.MKey
	}
	return 0
}

// renewed sets when ports are to hear of the manager again: a third of the lease
// is left for two that get lost.
func (m *Manager) renewed(now mono.Time) {
	m.renewAt = 0
	if m.intent.MKey != 0 && m.intent.MKeyLease != 0 {
		m.renewAt = now.Add(time.Duration(m.intent.MKeyLease) * time.Second / 3)
	}
}

// renew asks adapters for something with their key, as a light sweep does with
// switches anyway, if it is time: who provokes a port with wrong keys must not
// see the lease of the right one end.
func (m *Manager) renew(now mono.Time) {
	if m.renewAt == 0 || !m.renewAt.Due(now.Add(m.cfg.Debounce)) {
		return
	}
	m.renewed(now)
	for r := range m.topo.EndPorts() {
		if p := m.topo.Port(r); !m.topo.Nodes[r.Node].IsSwitch() && p.Info.MKey != 0 {
			m.ask(mad.MethodGet, mad.AttrPortInfo, uint32(r.Port), pathTo(m.topo, r), r, (*Manager).gotRenewed).stern = true
		}
	}
}

// gotRenewed looks whether a port still has its key. One that is silent is told of
// by its switch when its link goes.
func (m *Manager) gotRenewed(_ mono.Time, r *request, a *mad.SMP) {
	if a == nil || a.Status != mad.StatusOK {
		return
	}
	var i mad.PortInfo
	i.Parse(a.Data[:])
	if i.MKey != m.topo.Port(r.ref).Info.MKey || i.MKeyProtectBits != m.topo.Port(r.ref).Info.MKeyProtectBits {
		m.sweep.changes, m.sweep.why = true, "the M_Key of a port changed"
	}
}
