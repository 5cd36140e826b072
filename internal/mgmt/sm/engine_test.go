// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/route"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/test/simfab/subnet"
)

// TestEngine checks which engine routes a ring and a fat tree, and that a failure is reported.
func TestEngine(t *testing.T) {
	ring := func(f *subnet.Fabric) (cas []*subnet.Node) {
		for range 5 {
			f.Switch("sw", 4)
		}
		for i, s := range f.Nodes()[:5] {
			f.Link(s, 1, f.Nodes()[(i+1)%5], 2)
			cas = append(cas, f.CA("host"))
			f.Link(cas[i], 1, s, 3)
		}
		return cas
	}
	tree := func(f *subnet.Fabric) []*subnet.Node { return subnet.FatTree(f, 4, 3, 2, 1) }
	for _, c := range []struct {
		name, engine string
		roots        []ib.GUID
		build        func(*subnet.Fabric) []*subnet.Node
		routed       string
		problems     []string // how each begins
	}{
		{"tree", "ftree,updn", nil, tree, "ftree", nil},
		{"tree", "updn", nil, tree, "updn", nil},
		{"tree", "", nil, tree, "minhop", nil},
		{"ring", "ftree,updn", nil, ring, "updn", []string{"ftree: no fat tree: "}},
		{"ring", "ftree", nil, ring, "minhop", []string{"ftree: no fat tree: "}},
		{"ring", "updn", []ib.GUID{7}, ring, "minhop", []string{"updn: none of its roots is a switch"}},
	} {
		f := subnet.New(1, hop)
		cas := c.build(f)
		m := f.Attach(cas[0], sm.Config{}, sm.Intent{Engine: c.engine, Roots: c.roots}, sm.Observations{})
		settle(t, f, m, time.Second)
		walkAll(t, m.Topo(), cas)
		s := m.Status()
		if s.Routed != c.routed || len(s.Problems) != len(c.problems) || s.Sweeps[0].Failed != 0 {
			t.Errorf("%s by %q: by %q, %+v", c.name, c.engine, s.Routed, s.Problems)
			continue
		}
		for i, p := range c.problems {
			if s.Problems[i].Where != "routing" || !strings.HasPrefix(s.Problems[i].What, p) {
				t.Errorf("%s by %q: %+v", c.name, c.engine, s.Problems)
			}
		}
	}
	i := sm.Intent{Engine: "updn,fastest"}
	if err := i.Validate(); err == nil || !strings.Contains(err.Error(), `engine "fastest": there is no such one`) {
		t.Error(err)
	}
}

// TestSenders lets a port send to a group without being sent to.
func TestSenders(t *testing.T) {
	f := newSmall(1)
	m := f.Attach(f.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, f.Fabric, m, time.Second)
	m.SetGroups(f.Now, []sm.Group{{MLID: 0xc003, Members: []ib.GUID{f.c1.PortGUID(), f.s2.PortGUID()},
		Senders: []ib.GUID{f.c2.PortGUID(), f.c3.PortGUID()}}})
	f.Poke(f.c1)
	f.Run(time.Millisecond)
	for _, from := range []*subnet.Node{f.c1, f.c2, f.c3, f.s2} {
		want := map[string]int{f.c1.Name: 1, f.s2.Name: 1}
		delete(want, from.Name)
		if diff := cmp.Diff(want, copies(from, f.Fabric, m, 0xc003)); diff != "" {
			t.Errorf("from %s: %s", from.Name, diff)
		}
	}
}

// TestCarries: a group is carried to a port after all switches have confirmed their tables, until the manager stops
// trusting them.
func TestCarries(t *testing.T) {
	f := newSmall(1)
	m := f.Attach(f.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, f.Fabric, m, time.Second)
	if raised := m.Raised(); len(raised) != 3 || len(m.Raised()) != 0 {
		t.Errorf("%v were in INIT", raised)
	}
	m.SetGroups(f.Now, []sm.Group{{MLID: 0xc003, Members: []ib.GUID{f.c1.PortGUID(), f.c3.PortGUID()}}})
	if m.Carries(0xc003, f.c1.PortGUID()) {
		t.Error("before it was written")
	}
	f.Poke(f.c1)
	f.Run(time.Millisecond)
	for _, c := range []struct {
		mlid ib.LID
		port ib.GUID
		want bool
	}{{0xc003, f.c1.PortGUID(), true}, {0xc003, f.c3.PortGUID(), true}, {0xc003, f.c2.PortGUID(), false}, {0xc004,
		f.c1.PortGUID(), false}, {0xc003, 99, false}} {
		if got := m.Carries(c.mlid, c.port); got != c.want {
			t.Errorf("%#x to %v: %v", uint16(c.mlid), c.port, got)
		}
	}
	// A switch that does not answer when it shall write is not believed to have.
	f.Stop(f.s2)
	m.SetGroups(f.Now, []sm.Group{{MLID: 0xc005, Members: []ib.GUID{f.c1.PortGUID(), f.c3.PortGUID()}}})
	f.Poke(f.c1)
	f.Run(1500 * time.Millisecond)
	if m.Carries(0xc005, f.c1.PortGUID()) || m.Carries(0xc005, f.c3.PortGUID()) {
		t.Error("a table that nobody acknowledged")
	}
	f.Resume(f.s2)
	if !f.Until(20*time.Second, func() bool {
		return m.Carries(0xc005, f.c1.PortGUID()) &&
			m.Carries(0xc005, f.c3.PortGUID())
	}) {
		t.Error("never written")
	}
}

// TestApart: a partition that is Apart leaves the members of the default partition unchanged.
func TestApart(t *testing.T) {
	f := newSmall(1)
	m := f.Attach(f.c1, sm.Config{}, sm.Intent{Partitions: []sm.Partition{{Name: "p", PKey: 0xc001, Apart: true,
		Members: []sm.Member{{PortGUID: f.c2.PortGUID(), As: sm.Full}}}}}, sm.Observations{})
	settle(t, f.Fabric, m, time.Second)
	if a, b := f.c2.Agent.PKeys(1), f.c3.Agent.PKeys(1); a[0] != 0xffff || a[1] != 0xc001 || b[0] != 0xffff ||
		b[1] != 0 {
		t.Errorf("%#x %#x", a[:2], b[:2])
	}
}

// counting is an engine that counts the trees it computes.
type counting struct {
	route.MinHop
	trees *int
}

func (c counting) Multicast(s *topo.Subnet, t *route.Tables, g route.Group) (route.Tree, error) {
	*c.trees++
	return c.MinHop.Multicast(s, t, g)
}

// TestTreesAreKept: a group that changes costs its own tree; routes that change cost all.
func TestTreesAreKept(t *testing.T) {
	s := newSmall(1)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	n := 0
	m.SetEngine(s.Now, counting{trees: &n})
	settle(t, s.Fabric, m, time.Second)
	var groups []sm.Group
	for i := range ib.LID(20) {
		groups = append(groups, sm.Group{MLID: 0xc000 + i, Members: []ib.GUID{s.c1.PortGUID(), s.c2.PortGUID()}})
	}
	set := func(want int) {
		t.Helper()
		n = 0
		m.SetGroups(s.Now, slices.Clone(groups))
		s.Poke(s.c1)
		s.Run(10 * time.Millisecond)
		if n != want {
			t.Errorf("%d trees, want %d", n, want)
		}
		for _, g := range groups {
			to := map[string]int{s.c2.Name: 1}
			if len(g.Members) == 3 {
				to[s.c3.Name] = 1
			}
			if diff := cmp.Diff(to, copies(s.c1, s.Fabric, m, g.MLID)); diff != "" {
				t.Errorf("%#x: %s", g.MLID, diff)
			}
		}
	}
	set(20)
	groups[3].Members = append(slices.Clone(groups[3].Members), s.c3.PortGUID())
	set(1)
	set(0)
	groups = groups[1:]
	set(0)
	n = 0
	m.Sweep(s.Now)
	s.Poke(s.c1)
	settle(t, s.Fabric, m, time.Second)
	if n != 19 {
		t.Errorf("%d trees after a sweep", n)
	}
}
