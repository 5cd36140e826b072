// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"testing"
	"time"

	"weft/internal/mgmt/sm"
	"weft/internal/proto/ib"
)

// TestGroupsWritten: the number of a change of groups is reached when every switch has its trees, written alone or
// within a heavy sweep, with any loss. A silent switch delays it until its requests have failed.
func TestGroupsWritten(t *testing.T) {
	const mlid = ib.LIDMulticastFirst + 5
	for _, loss := range []int{0, 200} {
		f := newSmall(7)
		m := f.Attach(f.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
		settle(t, f.Fabric, m, 10*time.Second)
		f.Loss = loss
		members := []ib.GUID{f.c1.PortGUID(), f.c2.PortGUID(), f.c3.PortGUID()}
		has := func(n int) bool { // the trees of n members; without loss they contain no other port
			want1, want2 := []int{0, 0, 2, 3}[n], []int{0, 0, 0, 2}[n]
			s1, s2 := f.s1.Agent.Forwarding().Members(mlid), f.s2.Agent.Forwarding().Members(mlid)
			return s1.Len() == want1 && s2.Len() == want2
		}
		for i, n := range []int{3, 2, 3, 0, 3} {
			sweep := i%2 == 1
			if sweep { // it may be before its multicast tables or behind them
				m.Sweep(f.Now)
				f.Poke(f.c1)
				f.Run(time.Duration(15+5*i) * time.Millisecond)
			}
			set := m.SetGroups(f.Now, []sm.Group{{MLID: mlid, Members: members[:n]}})
			f.Poke(f.c1)
			if m.GroupsWritten() >= set {
				t.Fatalf("loss %d, change %d: written before anything is sent", loss, i)
			}
			if !f.Until(time.Minute, func() bool { return m.GroupsWritten() >= set }) {
				t.Fatalf("loss %d, change %d: never written: %+v", loss, i, m.Status())
			}
			if !has(n) {
				t.Errorf("loss %d, change %d: said to be written, %v and %v", loss, i,
					f.s1.Agent.Forwarding().Members(mlid), f.s2.Agent.Forwarding().Members(mlid))
			}
		}
	}
	f := newSmall(7)
	m := f.Attach(f.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, f.Fabric, m, 10*time.Second)
	f.Stop(f.s2)
	set := m.SetGroups(f.Now, []sm.Group{{MLID: mlid, Members: []ib.GUID{f.c1.PortGUID(), f.c3.PortGUID()}}})
	f.Poke(f.c1)
	was := f.Now
	if !f.Until(time.Minute, func() bool { return m.GroupsWritten() >= set }) {
		t.Fatal("a silent switch holds it up for ever")
	}
	if took := f.Now.Sub(was); took < 500*time.Millisecond || took > 5*time.Second {
		t.Errorf("a silent switch holds it up for %v", took)
	}
}
