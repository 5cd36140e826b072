// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"testing"
	"time"

	"weft/internal/simfab/subnet"
	"weft/internal/sm"
)

const hop = 2 * time.Microsecond

// small is two switches in a row with three adapters: two at the first.
func small(seed uint64) (f *subnet.Fabric, s1, s2, c1, c2, c3 *subnet.Node) {
	f = subnet.New(seed, hop)
	s1, s2 = f.Switch("sw1", 8), f.Switch("sw2", 8)
	c1, c2, c3 = f.CA("host1"), f.CA("host2"), f.CA("host3")
	f.Link(s1, 8, s2, 7)
	f.Link(c1, 1, s1, 1)
	f.Link(c2, 1, s1, 2)
	f.Link(c3, 1, s2, 1)
	return
}

func TestBringUp(t *testing.T) {
	f, _, _, c1, _, _ := small(1)
	m := f.Attach(c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	if !f.Until(time.Second, func() bool { return m.Topo() != nil }) || !f.Active() {
		t.Errorf("%+v", m.Status())
		for _, n := range f.Nodes() {
			t.Log(n.Name, n.Agent.LID(), n.Agent.Stats)
			for p := range n.Agent.Config().NumPorts {
				t.Log(p+1, n.Agent.Port(p+1).PortState)
			}
		}
	}
	t.Logf("%+v", m.Status())
}
