// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"fmt"
	"testing"
	"time"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/test/simfab/subnet"
)

// tree brings a fat tree up, with the manager at the first host.
func tree(tb testing.TB, leaves, hosts, spines, trunks int) (*subnet.Fabric, []*subnet.Node, *sm.Manager) {
	tb.Helper()
	f := subnet.New(1, hop)
	cas := subnet.FatTree(f, leaves, hosts, spines, trunks)
	m := f.Attach(cas[0], sm.Config{}, sm.Intent{}, sm.Observations{})
	if !f.Until(time.Minute, func() bool { return m.Topo() != nil }) || !f.Active() {
		tb.Fatalf("did not come up: %+v", m.Status())
	}
	if s := m.Status(); len(s.Problems) > 0 || s.Sweeps[0].Failed != 0 {
		tb.Fatalf("%+v", s)
	}
	return f, cas, m
}

// walkAll follows the tables between all pairs of the ports given and returns
// how many links the longest way has.
func walkAll(tb testing.TB, s *topo.Subnet, ports []*subnet.Node) (longest int) {
	tb.Helper()
	for _, a := range ports {
		from := s.PortByGUID(a.PortGUID())
		for _, b := range ports {
			w, ok := s.Walk(from, b.Agent.LID(), false)
			if !ok || s.Port(w.To).GUID != b.PortGUID() {
				tb.Fatalf("no way from %s to %s: %+v", a.Name, b.Name, w)
			}
			longest = max(longest, w.Hops)
		}
	}
	return longest
}

func TestFatTree144(t *testing.T) {
	f, cas, m := tree(t, 12, 12, 6, 2)
	if n := walkAll(t, m.Topo(), cas); n != 4 {
		t.Errorf("the longest way has %d links, want 4", n)
	}
	// Every up-link of a leaf carries as many destinations as the others.
	s := m.Topo()
	for _, i := range s.Switches() {
		n := &s.Nodes[i]
		if n.Info.NumPorts != 24 || len(n.Description) < 4 || n.Description[:4] != "leaf" {
			continue
		}
		load := map[uint8]int{}
		for _, c := range cas {
			if port := n.Switch.LFT[c.Agent.LID()]; port > 12 {
				load[port]++
			}
		}
		for port := uint8(13); port <= 24; port++ {
			if load[port] != 11 {
				t.Errorf("%s port %d: %d destinations, want 11 of the 132 elsewhere", n.Description, port, load[port])
			}
		}
	}
	// The tables in the switches are those of the model.
	for _, n := range f.Nodes() {
		if fw := n.Agent.Forwarding(); fw != nil {
			lft := s.Nodes[s.NodeByGUID(n.Agent.Config().NodeGUID)].Switch.LFT
			for l := range lft {
				if got := fw.Entry(ib.LID(l)); l > 0 && got != lft[l] {
					t.Fatalf("%s, LID %d: port %d, the model has %d", n.Name, l, got, lft[l])
				}
			}
		}
	}
}

func BenchmarkBringUp(b *testing.B) {
	for _, c := range []struct{ leaves, hosts, spines, trunks int }{{8, 18, 4, 4}, {36, 18, 18, 1}, {72, 18, 18, 1}} {
		b.Run(fmt.Sprint(c.leaves*c.hosts), func(b *testing.B) {
			b.ReportAllocs()
			var smps uint64
			for b.Loop() {
				b.StopTimer()
				f := subnet.New(1, hop)
				cas := subnet.FatTree(f, c.leaves, c.hosts, c.spines, c.trunks)
				b.StartTimer()
				m := f.Attach(cas[0], sm.Config{}, sm.Intent{}, sm.Observations{})
				if !f.Until(time.Minute, func() bool { return m.Topo() != nil }) {
					b.Fatal("did not come up")
				}
				b.StopTimer()
				if !f.Active() {
					b.Fatal("not all of it came up")
				}
				b.StartTimer()
				smps = m.Status().Counters["sent"]
			}
			b.ReportMetric(float64(smps), "SMPs")
		})
	}
}
