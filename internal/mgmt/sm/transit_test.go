// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"testing"
	"time"

	"weft/internal/mgmt/sm"
	"weft/internal/proto/ib"
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
