// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"testing"
	"time"

	"weft/internal/mgmt/agent"
	"weft/internal/mgmt/sm"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/test/simfab/subnet"
)

// transitOf is the set of the node GUIDs of switches.
func transitOf(list ...*subnet.Node) map[ib.GUID]bool {
	set := map[ib.GUID]bool{}
	for _, n := range list {
		set[n.Agent.Config().NodeGUID] = true
	}
	return set
}

// confined lists the names of the switches that are confined.
func confined(m *sm.Manager) (names string) {
	for i := range m.Topo().Nodes {
		if n := &m.Topo().Nodes[i]; n.Confined {
			names += " " + n.Description
		}
	}
	return names
}

// TestSetTransit: which switches are confined follows the set, by a sweep for each change.
func TestSetTransit(t *testing.T) {
	s := newSmall(1)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	if got := confined(m); got != "" {
		t.Errorf("without a set, %s are confined", got)
	}
	for _, c := range []struct {
		set  map[ib.GUID]bool
		want string
	}{{transitOf(s.s1), " sw2"}, {transitOf(s.s1, s.s2), ""}, {transitOf(s.s1), " sw2"}, {nil, ""}} {
		m.SetTransit(s.Now, c.set)
		s.Poke(s.c1)
		settle(t, s.Fabric, m, time.Second)
		if got := confined(m); got != c.want {
			t.Errorf("with %v, %q are confined, want %q", c.set, got, c.want)
		}
	}
	was := m.Topo()
	m.SetTransit(s.Now, nil)
	s.Poke(s.c1)
	if s.Run(5 * time.Second); m.Topo() != was {
		t.Error("a sweep without a change")
	}
}

// TestManagerAtConfined: a manager of higher priority at a confined switch neither becomes master nor is handed the
// subnet, and is a problem with a name; once the switch is not confined any more it is master.
func TestManagerAtConfined(t *testing.T) {
	for _, at := range []string{"adapter", "switch"} {
		s := newSmall(1)
		m := s.Attach(s.c1, sm.Config{Priority: 1}, sm.Intent{}, sm.Observations{})
		m.SetTransit(s.Now, transitOf(s.s1))
		settle(t, s.Fabric, m, time.Second)
		rogue := map[string]*subnet.Node{"adapter": s.c3, "switch": s.s2}[at]
		s.Attach(rogue, sm.Config{Priority: 15}, sm.Intent{}, sm.Observations{})
		if !s.Until(5*time.Second, func() bool { return hasProblem(m, "", "lacks the role manager") }) {
			t.Errorf("%s: %+v", at, m.Status().Problems)
		}
		s.Run(30 * time.Second)
		if m.State() != mad.SMMaster || len(m.Status().Others) != 0 {
			t.Errorf("%s: the manager is %v, others %+v", at, m.State(), m.Status().Others)
		}
		m.SetTransit(s.Now, transitOf(s.s1, s.s2))
		s.Poke(s.c1)
		if !s.Until(30*time.Second, func() bool { return m.State() == mad.SMStandby }) {
			t.Errorf("%s: with transit the manager is %v", at, m.State())
		}
	}
}

// TestClaimedGUIDs: an adapter at a confined switch with the GUIDs of another member is ignored, also while that member
// is down, and named; with those of its own member it gets a LID. A confined switch with the port GUID of another is
// ignored, too.
func TestClaimedGUIDs(t *testing.T) {
	for _, c := range []struct {
		name       string
		node, port ib.GUID // of the adapter, relative to those of its switch
		confined   bool
		want       bool
	}{
		{"own", 2, 3, true, true},
		{"of another", 0x700000, 0x700001, true, false},
		{"port of another", 2, 0x700001, true, false},
		{"of another, and the switch may carry packets of others", 0x700000, 0x700001, false, true},
	} {
		s := newSmall(1)
		s.Cut(s.s2, 1)
		a := s.c3.Agent.Config()
		a.NodeGUID = s.s2.Agent.Config().NodeGUID + c.node
		a.PortGUID = s.s2.Agent.Config().NodeGUID + c.port
		s.c3.Agent = agent.New(a, s.c3, nil)
		s.Link(s.c3, 1, s.s2, 1)
		m := s.Attach(s.c1, sm.Config{MemberBits: 16}, sm.Intent{}, sm.Observations{})
		if c.confined {
			m.SetTransit(s.Now, transitOf(s.s1))
		}
		s.Run(5 * time.Second)
		if got := s.c3.Agent.LID() != 0; got != c.want || hasProblem(m, "", "which is none of that member") == c.want {
			t.Errorf("%s: LID %d, %+v", c.name, s.c3.Agent.LID(), m.Status().Problems)
		}
	}
	s := newSmall(1)
	s.Cut(s.s1, 8)
	a := s.s2.Agent.Config()
	a.PortGUID = a.NodeGUID + 0x700001
	s.s2.Agent = agent.New(a, s.s2, nil)
	s.Link(s.s1, 8, s.s2, 7)
	m := s.Attach(s.c1, sm.Config{MemberBits: 16}, sm.Intent{}, sm.Observations{})
	m.SetTransit(s.Now, transitOf(s.s1))
	s.Run(5 * time.Second)
	if s.s2.Agent.LID() != 0 || !hasProblem(m, "", "which is none of that member") {
		t.Errorf("LID %d, %+v", s.s2.Agent.LID(), m.Status().Problems)
	}
}
