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
func (i *Intent) knownKey(nth int) uint64 {
	if nth == 0 {
		return i.MKey
	}
	return i.MKeysBefore[nth-1]
}

// isClosed reports whether a port is protected by a key that its answer does not
// show. A port without a key that has protection bits looks the same, and takes
// every key.
func isClosed(i *mad.PortInfo) bool { return i.MKey == 0 && i.MKeyProtectBits != 0 }

// keyFor is the M_Key for requests to the node of r.
func (s *sweep) keyFor(r topo.Ref) uint64 {
	if s.t == nil || r.IsNone() {
		return s.base.intent.MKey
	}
	if n := &s.t.Nodes[r.Node]; n.IsSwitch() {
		r.Port = 0
	}
	if p := s.t.Port(r); p != nil && p.Info.MKey != 0 {
		return p.Info.MKey
	}
	if k, ok := s.keys[r.Node]; ok {
		return k
	}
	return s.base.intent.MKey
}

// tryKey asks for the PortInfo of a closed port with the next key it may have;
// false where there is no need, or none is left.
func (s *sweep) tryKey(r *request, i *mad.PortInfo) bool {
	if !isClosed(i) || r.nth >= len(s.base.intent.MKeysBefore) || r.method != mad.MethodGet {
		return false
	}
	q := s.ask(mad.MethodGet, mad.AttrPortInfo, r.mod, r.path, r.ref, s.gotPortInfo)
	q.nth = r.nth + 1
	q.mkey = s.base.intent.knownKey(q.nth)
	return true
}

// claim gives the wanted key to ports that have another one, before anything else
// is set: what follows bears the new key. Closed ports are asked once; that they
// refuse starts the lease of their key, after which they show it.
func (s *sweep) claim() {
	for r := range s.t.EndPorts() {
		i := &s.t.Port(r).Info
		closed := isClosed(i)
		if i.PortState == 0 || !closed && (i.MKey == 0 || i.MKey == s.base.intent.MKey) {
			continue
		}
		w := *i
		w.MKey, w.MKeyProtectBits, w.MKeyLeasePeriod, w.ClientReregister = s.base.intent.MKey, s.base.intent.MKeyProtect, s.base.intent.MKeyLease, false
		q := s.setPort(r, w, ib.PortNoChange)
		q.done, q.stern = s.gotClaimed, closed
	}
}

func (s *sweep) gotClaimed(now mono.Time, r *request, a *mad.SMP) {
	switch {
	case a != nil:
		s.gotPortSet(now, r, a)
	case r.stern:
		s.guard(r.ref)
	default: // the port may have changed its key and the answer been lost
		q := s.ask(mad.MethodGet, mad.AttrPortInfo, r.mod, r.path, r.ref, s.gotClaim)
		q.mkey = s.base.intent.MKey
	}
}

func (s *sweep) gotClaim(_ mono.Time, r *request, a *mad.SMP) {
	if s.gaveUp(r, a) {
		return
	}
	i := &s.t.Port(r.ref).Info
	i.Parse(a.Data[:])
	if isClosed(i) {
		s.guard(r.ref)
	}
}

// guard notes a node that takes no orders from here.
func (s *sweep) guard(r topo.Ref) {
	i := &s.t.Port(r).Info
	s.guarded[r.Node] = true
	s.failed++
	why := "it never lapses: restart the node, or"
	if i.MKeyLeasePeriod != 0 {
		why = "it lapses " + (time.Duration(i.MKeyLeasePeriod) * time.Second).String() + " after that manager is gone; or"
	}
	s.problem(s.nameOf(r), "the port is guarded by another M_Key, of another manager (protection %d). fix: %s give this manager that key (weft sm set --m-key)",
		i.MKeyProtectBits, why)
}

// barred reports whether a request is a Set that its node would refuse.
func (s *sweep) barred(r *request) bool {
	return r.method == mad.MethodSet && !r.ref.IsNone() && s.guarded[r.ref.Node]
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

// scheduleKeyRenewal sets when ports are to hear of the manager again: a third of the lease
// is left for two that get lost.
func (m *Manager) scheduleKeyRenewal(now mono.Time) {
	m.renewAt = 0
	if m.intent.MKey != 0 && m.intent.MKeyLease != 0 {
		m.renewAt = now.Add(time.Duration(m.intent.MKeyLease) * time.Second / 3)
	}
}

// renewKeys asks adapters for something with their key, as a light sweep does with
// switches anyway: who provokes a port with wrong keys must not
// see the lease of the right one end.
func (s *sweep) renewKeys() {
	for r := range s.t.EndPorts() {
		if p := s.t.Port(r); !s.t.Nodes[r.Node].IsSwitch() && p.Info.MKey != 0 {
			s.ask(mad.MethodGet, mad.AttrPortInfo, uint32(r.Port), pathTo(s.t, r), r, s.gotRenewed).stern = true
		}
	}
}

// gotRenewed looks whether a port still has its key. One that is silent is told of
// by its switch when its link goes.
func (s *sweep) gotRenewed(_ mono.Time, r *request, a *mad.SMP) {
	if a == nil || a.Status != mad.StatusOK {
		return
	}
	var i mad.PortInfo
	i.Parse(a.Data[:])
	if i.MKey != s.base.topo.Port(r.ref).Info.MKey || i.MKeyProtectBits != s.base.topo.Port(r.ref).Info.MKeyProtectBits {
		s.changes, s.why = true, "the M_Key of a port changed"
	}
}
