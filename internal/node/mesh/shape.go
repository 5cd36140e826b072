// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"weft/internal/control/api"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/shape"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// shaped is the plan in force and how far this node is with it.
type shaped struct {
	roster *member.Roster // of plan; nil: there is no plan yet
	plan   *shape.Plan
	step   shape.Step
	up     map[ib.GUID]bool   // by the other end, the trunks of this node
	why    map[ib.GUID]string // why there is none
}

// mono is the time of steps, which are intervals.
func (m *Mesh) mono() mono.Time { return mono.Time(m.cfg.Now().UnixNano()) }

// see notes whether the trunk is up.
func (e *end) see(up bool, now mono.Time) {
	if up != e.up {
		e.up, e.began = up, now
	}
}

// plannedTrunk describes a trunk of the plan. Its end A is the first of both by name, as in a list of members.
func (s *shaped) plannedTrunk(a, b ib.GUID, state string) api.PlannedTrunk {
	t := api.PlannedTrunk{A: s.plan.Name(a), B: s.plan.Name(b), State: state}
	if api.CompareText(t.A, t.B) > 0 {
		t.A, t.B = t.B, t.A
	}
	return t
}

// shape returns the members to which the node has trunks now: those of the plan, and those of a plan before for which
// it is too early.
func (m *Mesh) shape() (list []ib.GUID) {
	m.mu.Lock()
	s := m.shaped
	m.mu.Unlock()
	if s.roster != m.roster {
		s.roster, s.plan = m.roster, m.roster.Shape()
	}
	v := shape.View{Self: m.cfg.Self, Ports: shape.MaxPorts, Settled: m.roster.Settled(s.plan), Now: m.mono()}
	if m.cfg.Ports != nil {
		v.Ports = m.cfg.Ports()
	}
	s.up, s.why = map[ib.GUID]bool{}, map[ib.GUID]string{}
	for g, e := range m.ends {
		if e.why != nil {
			s.why[g] = e.why.Error()
			continue // the step adds it again
		}
		s.up[g] = e.up
		v.Have = append(v.Have, shape.Trunk{Peer: g, Up: e.up, Since: e.began})
	}
	s.step = s.plan.Step(v)
	m.mu.Lock()
	m.shaped = s
	m.mu.Unlock()
	for _, t := range v.Have {
		if !slices.Contains(s.step.Remove, t.Peer) {
			list = append(list, t.Peer)
		}
	}
	return append(list, s.step.Add...)
}

// Settled is shape.Plan.Mark of this node while all its planned trunks are up, 0 otherwise.
func (m *Mesh) Settled() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.shaped.step.Settled {
		return 0
	}
	return m.shaped.plan.Mark(m.cfg.Self)
}

// Planned reports whether two nodes shall have a trunk, for all that is known: it is not known of nodes that are in no
// plan.
func (m *Mesh) Planned(a, b ib.GUID) bool {
	m.mu.Lock()
	p := m.shaped.plan
	m.mu.Unlock()
	return p == nil || !p.Has(a) || !p.Has(b) || p.Wants(a, b)
}

// limits lists what the ports of switches leave out of the plan, and the trunks of this node for which none is free.
func (m *Mesh) limits() (list []api.Degraded) {
	m.mu.Lock()
	s := m.shaped
	m.mu.Unlock()
	if s.plan == nil {
		return nil
	}
	for _, l := range s.plan.Limits {
		if !l.Kind.Note() {
			list = append(list, api.Degraded{What: "trunk_" + l.Kind.String(),
				Why: names(s.plan, l.Members) + ": " + l.Why, Fix: l.Fix})
		}
	}
	if len(s.step.Blocked) > 0 {
		list = append(list, api.Degraded{What: "trunk_blocked",
			Why: "no port of the switch is free for trunks to " + names(s.plan, s.step.Blocked),
			Fix: "weft up --switch-ports N, with more of them"})
	}
	return list
}

// names lists members for people: a few by name.
func names(p *shape.Plan, of []ib.GUID) string {
	const few = 4
	var s []string
	for _, g := range of[:min(few, len(of))] {
		s = append(s, p.Name(g))
	}
	if more := len(of) - few; more > 0 {
		s = append(s, fmt.Sprintf("%d more", more))
	}
	return strings.Join(s, ", ")
}

// Plan describes the plan of all trunks and how far members are with it: of this node's trunks as they are, of others'
// as the members reported.
func (m *Mesh) Plan() (p api.TrunkPlan) {
	m.mu.Lock()
	s := m.shaped
	m.mu.Unlock()
	if s.plan == nil {
		return p
	}
	self := m.cfg.Self
	settled := s.roster.Settled(s.plan)
	p.Form = s.plan.Form.String()
	for _, x := range s.plan.Trunks {
		t := s.plannedTrunk(x.A, x.B, api.TrunkMissing)
		up, own := s.up[other(x, self)]
		switch {
		case x.A == self || x.B == self:
			t.Why = cmp.Or(s.why[other(x, self)], "it is being added")
			if slices.Contains(s.step.Blocked, other(x, self)) {
				t.Why = "no port of the switch is free"
			}
			if own {
				t.State, t.Why = api.TrunkDown, "nothing is received: weft trunk"
			}
			if up {
				t.State, t.Why = api.TrunkUp, ""
			}
		case settled(x.A) || settled(x.B):
			t.State = api.TrunkUp
		default:
			t.Why = "neither has reported that its trunks are up"
		}
		p.Trunks = append(p.Trunks, t)
	}
	for _, g := range s.step.Surplus {
		t := s.plannedTrunk(self, g, api.TrunkSurplus)
		t.Why = "of the plan before: it goes when all have their trunks"
		p.Trunks = append(p.Trunks, t)
	}
	for i := range s.roster.Members {
		x := &s.roster.Members[i]
		place := s.plan.Place(x.GUID)
		v := api.PlannedMember{Name: x.Name, Level: place.Level.String(), Trunks: len(s.plan.Peers(x.GUID)),
			Settled: settled(x.GUID), Ports: x.Switch.Ports}
		if place.Level != shape.NoLevel {
			pod := int(place.Pod)
			v.Pod = &pod
		}
		p.Members = append(p.Members, v)
	}
	for _, l := range s.plan.Limits {
		x := api.PlanLimit{What: l.Kind.String(), Note: l.Kind.Note(), Why: l.Why, Fix: l.Fix}
		for _, g := range l.Members {
			x.Members = append(x.Members, s.plan.Name(g))
		}
		p.Limits = append(p.Limits, x)
	}
	return p
}

func other(x shape.Pair, self ib.GUID) ib.GUID {
	if x.A == self {
		return x.B
	}
	return x.A
}
