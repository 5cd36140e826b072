// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"weft/internal/mgmt/member/shape"
	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
	"weft/test/simfab/subnet"
)

// planned is a subnet with the trunks of a plan: each member is a switch with an adapter at port 1, and trunks at the
// highest free ports, as in a node.
type planned struct {
	f     *subnet.Fabric
	ports int
	list  []shape.Member
	sw    map[ib.GUID]*subnet.Node
	ca    map[ib.GUID]*subnet.Node
	used  map[ib.GUID]map[uint8]ib.GUID
	have  map[shape.Pair][2]uint8
	next  int
	// open is the number of members that carry packets of others, 0 for all.
	open int
}

func newPlanned(ports int) *planned {
	return &planned{f: subnet.New(1, hop), ports: ports, sw: map[ib.GUID]*subnet.Node{}, ca: map[ib.GUID]*subnet.Node{},
		used: map[ib.GUID]map[uint8]ib.GUID{}, have: map[shape.Pair][2]uint8{}}
}

// join adds a member.
func (p *planned) join() {
	name := fmt.Sprintf("m%d", p.next)
	sw, ca := p.f.Switch(name, uint8(p.ports)), p.f.CA(name+"-mlx")
	p.f.Link(sw, 1, ca, 1)
	g := sw.Agent.Config().NodeGUID
	p.sw[g], p.ca[g], p.used[g] = sw, ca, map[uint8]ib.GUID{}
	p.list = append(p.list, shape.Member{GUID: g, Name: name, Joined: time.Unix(int64(p.next), 0),
		Ports: shape.TrunkPorts(p.ports, 1, 0), Confined: p.open > 0 && p.next >= p.open})
	p.next++
}

// attach starts a manager at the first member.
func (p *planned) attach() *sm.Manager {
	m := p.f.Attach(p.ca[p.list[0].GUID], sm.Config{}, sm.Intent{}, sm.Observations{})
	p.permit(m)
	return m
}

// permit has the manager route through the members that carry packets of others.
func (p *planned) permit(m *sm.Manager) {
	if p.open == 0 {
		return
	}
	set := map[ib.GUID]bool{}
	for i := range p.list {
		if !p.list[i].Confined {
			set[p.list[i].GUID] = true
		}
	}
	m.SetTransit(p.f.Now, set)
}

// leave ends a member.
func (p *planned) leave(i int) {
	g := p.list[i].GUID
	p.f.Kill(p.sw[g])
	p.f.Kill(p.ca[g])
	p.list = append(p.list[:i:i], p.list[i+1:]...)
}

// plug adds the trunks of the plan, and then cuts all others.
func (p *planned) plug(tb testing.TB) *shape.Plan {
	tb.Helper()
	plan := shape.New(p.list)
	want := map[shape.Pair]bool{}
	for i := range p.list {
		p.list[i].Place = plan.Place(p.list[i].GUID)
	}
	var gone []shape.Pair
	for _, x := range plan.Trunks {
		want[x] = true
	}
	for x := range p.have {
		if !want[x] {
			gone = append(gone, x)
		}
	}
	for _, x := range gone {
		at := p.have[x]
		p.f.Cut(p.sw[x.A], at[0])
		delete(p.used[x.A], at[0])
		delete(p.used[x.B], at[1])
		delete(p.have, x)
	}
	for _, x := range plan.Trunks {
		if _, there := p.have[x]; there {
			continue
		}
		at := [2]uint8{p.free(tb, x.A), p.free(tb, x.B)}
		p.used[x.A][at[0]], p.used[x.B][at[1]], p.have[x] = x.B, x.A, at
		p.f.Link(p.sw[x.A], at[0], p.sw[x.B], at[1])
	}
	return plan
}

func (p *planned) free(tb testing.TB, g ib.GUID) uint8 {
	for port := uint8(p.ports); port > 1; port-- {
		if _, used := p.used[g][port]; !used {
			return port
		}
	}
	tb.Fatal("the plan needs more ports than the switch has")
	return 0
}

// adapters are those of the members.
func (p *planned) adapters() (list []*subnet.Node) {
	for _, m := range p.list {
		list = append(list, p.ca[m.GUID])
	}
	return list
}

// routed runs until the manager's model has all members, and walks between some of them.
func (p *planned) routed(tb testing.TB, m *sm.Manager, some []*subnet.Node) int {
	tb.Helper()
	all := p.adapters()
	ok := p.f.Until(5*time.Minute, func() bool {
		s := m.Topo()
		if s == nil || len(s.Switches()) != len(p.list) {
			return false
		}
		for _, n := range all {
			if i := s.NodeByGUID(n.Agent.Config().NodeGUID); i < 0 || !n.Agent.LID().IsUnicast() {
				return false
			}
		}
		return reaches(s, some)
	})
	if !ok {
		tb.Fatalf("%d members: not all reach each other: %+v", len(p.list), m.Status())
	}
	return walkAll(tb, m.Topo(), some)
}

// reaches reports whether all tables lead from each adapter to each other.
func reaches(s *topo.Subnet, list []*subnet.Node) bool {
	for _, a := range list {
		from := s.PortByGUID(a.PortGUID())
		for _, b := range list {
			if w, ok := s.Walk(from, b.Agent.LID(), false); !ok || s.Port(w.To).GUID != b.PortGUID() {
				return false
			}
		}
	}
	return true
}

// TestShapeRoutes has members join one after another, over the changes of form, and then leave at random: the manager
// routes between all of them after each.
func TestShapeRoutes(t *testing.T) {
	p := newPlanned(12) // small switches: 24 members have three levels
	p.join()
	p.join()
	p.plug(t)
	m := p.attach()
	forms := map[shape.Form]bool{}
	for len(p.list) < 40 {
		p.join()
		plan := p.plug(t)
		forms[plan.Form] = true
		if n := len(p.list); n < 20 || n%4 == 0 {
			p.routed(t, m, p.adapters())
		}
	}
	if !forms[shape.Mesh] || !forms[shape.Spines] || !forms[shape.Cores] {
		t.Errorf("the forms were %v: want mesh, spines and cores", forms)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for len(p.list) > 10 {
		p.leave(1 + rng.IntN(len(p.list)-1))
		p.plug(t)
		if len(p.list)%3 == 0 {
			p.routed(t, m, p.adapters())
		}
	}
}

// TestManyMembersJoin has members join one after another, up to 1,000 in a soak, and looks now and then whether all
// reach each other. Then some leave at random.
func TestManyMembersJoin(t *testing.T) {
	upTo := 240
	if condtest.Soak() {
		upTo = 1000
	}
	p := newPlanned(36)
	p.join()
	m := p.attach()
	for len(p.list) < upTo {
		p.join()
		p.plug(t)
		if n := len(p.list); n%(upTo/5) == 0 {
			p.routed(t, m, p.adapters())
		}
	}
	rng := rand.New(rand.NewPCG(8, 9))
	for range upTo / 10 {
		p.leave(1 + rng.IntN(len(p.list)-1))
		p.plug(t)
	}
	p.routed(t, m, p.adapters())
}

// BenchmarkShape brings a fabric of many members up with the trunks of its plan, and has the manager discover and route
// it: all pairs reach each other at the end. Memory is what manager and simulated switches have on the heap.
func BenchmarkShape(b *testing.B) {
	for _, c := range []struct{ members, ports, open int }{{40, 36, 0}, {200, 36, 0}, {200, 200, 0}, {200, 200, 2},
		{200, 36, 16}, {1000, 36, 0}, {1000, 160, 0}} {
		b.Run(fmt.Sprint(c.members, "/ports=", c.ports, "/open=", c.open), func(b *testing.B) {
			var smps, longest, again, light float64
			var heap runtime.MemStats
			for b.Loop() {
				b.StopTimer()
				p := newPlanned(c.ports)
				p.open = c.open
				for range c.members {
					p.join()
				}
				p.plug(b)
				b.StartTimer()
				m := p.attach()
				if !p.f.Until(10*time.Minute, func() bool { return m.Topo() != nil }) {
					b.Fatal("did not come up")
				}
				b.StopTimer()
				longest = float64(p.routed(b, m, p.adapters())) - 2 // without the links of the adapters
				smps = float64(m.Status().Counters["sent"])
				was := m.Topo()
				m.Sweep(p.f.Now)
				p.f.Poke(p.ca[p.list[0].GUID])
				p.f.Until(time.Minute, func() bool { return m.Topo() != was })
				again = float64(m.Status().Counters["sent"]) - smps
				p.f.Run(11 * time.Second)
				light = float64(m.Status().Counters["sent"]) - smps - again
				runtime.GC()
				runtime.ReadMemStats(&heap)
				runtime.KeepAlive(p)
				runtime.KeepAlive(m)
				b.StartTimer()
			}
			b.ReportMetric(smps, "SMPs")
			b.ReportMetric(again, "SMPs/sweep")
			b.ReportMetric(light, "SMPs/light")
			b.ReportMetric(longest, "trunks")
			b.ReportMetric(float64(heap.HeapAlloc)/(1<<20), "MiB")
		})
	}
}
