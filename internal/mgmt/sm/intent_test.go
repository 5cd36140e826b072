// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/fabric/vswitch"
	"weft/internal/mgmt/agent"
	"weft/internal/mgmt/sm"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/test/simfab/subnet"
)

func keys(n *subnet.Node) (k []ib.PKey) {
	k = slices.Clone(n.Agent.PKeys(n.End()))
	for len(k) > 0 && k[len(k)-1] == 0 {
		k = k[:len(k)-1]
	}
	return k
}

// TestPartitions configures partitions, changes them, and reads P_Key tables:
// what stays keeps its index.
func TestPartitions(t *testing.T) {
	s := newSmall(1)
	in := sm.Intent{Partitions: []sm.Partition{
		{Name: "red", PKey: 1, Members: []sm.Member{{s.c1.PortGUID(), sm.Full}, {s.c2.PortGUID(), sm.Limited}}},
		{Name: "blue", PKey: 0x8002, All: sm.Limited, Members: []sm.Member{{s.c3.PortGUID(), sm.Full},
			{s.s1.PortGUID(), sm.NotMember}}},
	}}
	m := s.Attach(s.c1, sm.Config{}, in, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	check := func(want map[*subnet.Node][]ib.PKey) {
		t.Helper()
		for n, k := range want {
			if diff := cmp.Diff(k, keys(n)); diff != "" {
				t.Errorf("%s: %s", n.Name, diff)
			}
		}
	}
	check(map[*subnet.Node][]ib.PKey{
		s.c1: {0xffff, 0x8001, 0x0002}, s.c2: {0x7fff, 0x0001, 0x0002}, s.c3: {0x7fff,
			0x8002}, s.s1: {0x7fff}, s.s2: {0x7fff, 0x0002}})
	// Red goes, green comes, and c2 becomes a full member of blue.
	change := func(i sm.Intent) {
		t.Helper()
		if err := m.SetIntent(s.Now, i); err != nil {
			t.Fatal(err)
		}
		s.Poke(s.c1)
		settle(t, s.Fabric, m, time.Second)
	}
	in.Partitions[1].Members = append(in.Partitions[1].Members, sm.Member{PortGUID: s.c2.PortGUID(), As: sm.Full})
	in.Partitions[0] = sm.Partition{Name: "green", PKey: 3, All: sm.Full}
	change(in)
	check(map[*subnet.Node][]ib.PKey{
		s.c1: {0xffff, 0x8003, 0x0002}, s.c2: {0x7fff, 0x8003, 0x8002}, s.c3: {0x7fff, 0x8002, 0x8003}, s.s1: {0x7fff,
			0x8003}})
	// The default partition may be configured too. Every port is a member of it.
	change(sm.Intent{Partitions: []sm.Partition{{Name: "default", PKey: 0x7fff, All: sm.Full,
		Members: []sm.Member{{s.c2.PortGUID(), sm.NotMember}}}}})
	check(map[*subnet.Node][]ib.PKey{s.c1: {0xffff}, s.c2: {0x7fff}, s.c3: {0xffff}, s.s1: {0xffff}})
	change(sm.Intent{})
	check(map[*subnet.Node][]ib.PKey{s.c1: {0xffff}, s.c2: {0xffff}, s.c3: {0xffff}, s.s1: {0xffff}})
	// More partitions than a table has entries.
	var many sm.Intent
	for k := range 40 {
		many.Partitions = append(many.Partitions, sm.Partition{Name: string(rune('a' + k)), PKey: ib.PKey(k + 1),
			All: sm.Full})
	}
	change(many)
	if !hasProblem(m, "host2", "its P_Key table has 32 entries, 41 are needed") || len(keys(s.c2)) != 32 {
		t.Errorf("%+v", m.Status().Problems)
	}
}

// TestEnforcement makes switches drop packets that their adapters may not send or receive, and checks their tables.
func TestEnforcement(t *testing.T) {
	s := newSmall(1)
	in := sm.Intent{Enforce: true, Partitions: []sm.Partition{
		{Name: "red", PKey: 1, Members: []sm.Member{{s.c2.PortGUID(), sm.Limited}, {s.c3.PortGUID(), sm.Full}}}}}
	m := s.Attach(s.c1, sm.Config{}, in, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	l1, l2, l3 := s.c1.Agent.LID(), s.c2.Agent.LID(), s.c3.Agent.LID()
	try := func(sw *subnet.Node, in uint8, to ib.LID, key ib.PKey, want vswitch.Refusal) {
		t.Helper()
		if _, why := sw.Agent.Forwarding().Unicast(in, to, key); why != want {
			t.Errorf("%s from port %d to LID %d with %#04x: %v, want %v", sw.Name, in, to, key, why, want)
		}
	}
	try(s.s1, 2, l3, 0x0001, vswitch.OK)
	try(s.s1, 2, l3, 0x8001, vswitch.PKeyIn) // only a limited member
	try(s.s1, 2, l3, 0x8002, vswitch.PKeyIn)
	try(s.s2, 7, l3, 0x0001, vswitch.OK)
	try(s.s2, 1, l2, 0x8001, vswitch.OK)
	try(s.s1, 8, l2, 0x8001, vswitch.OK)
	try(s.s1, 8, l2, 0x8002, vswitch.PKeyOut)
	try(s.s1, 2, l1, 0x7fff, vswitch.OK)      // limited members reach the manager
	try(s.s1, 8, l2, 0x7fff, vswitch.PKeyOut) // … and not each other
	try(s.s1, 8, l1, 0x0001, vswitch.PKeyOut)
	try(s.s2, 7, s.s2.Agent.LID(), 0x8055, vswitch.OK) // switches compare nothing between them
	// Without enforcement everything passes.
	if err := m.SetIntent(s.Now, sm.Intent{}); err != nil {
		t.Fatal(err)
	}
	s.Poke(s.c1)
	settle(t, s.Fabric, m, time.Second)
	try(s.s1, 2, l3, 0x8055, vswitch.OK)
	try(s.s1, 8, l2, 0x8055, vswitch.OK)
}

// TestLMC gives adapters several LIDs, and one again.
func TestLMC(t *testing.T) {
	f := subnet.New(1, hop)
	cas := subnet.FatTree(f, 2, 2, 2, 1)
	m := f.Attach(cas[0], sm.Config{}, sm.Intent{LMC: 1}, sm.Observations{})
	settle(t, f, m, time.Second)
	s := m.Topo()
	for _, c := range cas {
		i := c.Agent.Port(1)
		if i.LMC != 1 || i.LID%2 != 0 {
			t.Errorf("%s: LID %d, LMC %d", c.Name, i.LID, i.LMC)
		}
		for k := range ib.LID(2) {
			for _, from := range cas {
				w, ok := s.Walk(s.PortByGUID(from.PortGUID()), i.LID+k, false)
				if !ok || s.Port(w.To).GUID != c.PortGUID() {
					t.Errorf("%s to LID %d: %+v", from.Name, i.LID+k, w)
				}
			}
		}
	}
	// Both LIDs of an adapter elsewhere take different spines.
	leaf := s.Nodes[s.Attached(s.PortByGUID(cas[0].PortGUID())).Node].Switch
	if l := cas[3].Agent.LID(); leaf.LFT[l] == leaf.LFT[l+1] {
		t.Errorf("both by port %d", leaf.LFT[l])
	}
	if err := m.SetIntent(f.Now, sm.Intent{}); err != nil {
		t.Fatal(err)
	}
	f.Poke(cas[0])
	settle(t, f, m, time.Second)
	for _, c := range cas {
		if c.Agent.Port(1).LMC != 0 {
			t.Errorf("%s: LMC %d", c.Name, c.Agent.Port(1).LMC)
		}
	}
	walkAll(t, m.Topo(), f.Nodes())
}

// copies counts where a multicast packet of n arrives, by the switches'
// tables.
func copies(n *subnet.Node, f *subnet.Fabric, m *sm.Manager, mlid ib.LID) map[string]int {
	got := map[string]int{}
	s := m.Topo()
	byGUID := map[ib.GUID]*subnet.Node{}
	for _, n := range f.Nodes() {
		byGUID[n.Agent.Config().NodeGUID] = n
	}
	var visit func(node int32, in uint8, depth int)
	visit = func(node int32, in uint8, depth int) {
		sw := byGUID[s.Nodes[node].Info.NodeGUID]
		out, _ := sw.Agent.Forwarding().Multicast(in, mlid, ib.DefaultPKey)
		for p, ok := out.Next(); ok && depth < 10; p, ok = out.Next() {
			if p == 0 {
				got[sw.Name]++
				continue
			}
			peer := s.Nodes[node].Ports[p].Peer
			if s.Nodes[peer.Node].IsSwitch() {
				visit(peer.Node, peer.Port, depth+1)
			} else {
				got[s.Nodes[peer.Node].Description]++
			}
		}
	}
	at := s.Attached(s.PortByGUID(n.PortGUID()))
	visit(at.Node, at.Port, 0)
	return got
}

// TestGroups writes multicast tables as members come and go, without sweeps.
func TestGroups(t *testing.T) {
	f := subnet.New(1, hop)
	cas := subnet.FatTree(f, 3, 3, 2, 1)
	m := f.Attach(cas[0], sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, f, m, time.Second)
	guids := func(ns ...*subnet.Node) (g []ib.GUID) {
		for _, n := range ns {
			g = append(g, n.PortGUID())
		}
		return g
	}
	set := func(g ...sm.Group) {
		t.Helper()
		m.SetGroups(f.Now, g)
		f.Poke(cas[0])
		f.Run(time.Millisecond)
	}
	all := func(mlid ib.LID, ns ...*subnet.Node) {
		t.Helper()
		for _, from := range ns {
			want := map[string]int{}
			for _, to := range ns {
				if to != from {
					want[to.Name] = 1
				}
			}
			if diff := cmp.Diff(want, copies(from, f, m, mlid)); diff != "" {
				t.Errorf("%#x from %s: %s", uint16(mlid), from.Name, diff)
			}
		}
	}
	leaf := f.Nodes()[2]
	set(sm.Group{MLID: 0xc000, Members: guids(cas[0], cas[1], cas[4], cas[8])}, sm.Group{MLID: 0xc021,
		Members: guids(cas[2], leaf)})
	all(0xc000, cas[0], cas[1], cas[4], cas[8])
	all(0xc021, cas[2], leaf)
	if n := m.Status().Sweeps; n[len(n)-1].Kind != "groups" || len(n) != 2 {
		t.Errorf("%+v", n)
	}
	set(sm.Group{MLID: 0xc000, Members: guids(cas[0], cas[5], cas[8])})
	all(0xc000, cas[0], cas[5], cas[8])
	for _, n := range f.Nodes() {
		if fw := n.Agent.Forwarding(); fw != nil && !fw.Members(0xc021).Empty() {
			t.Errorf("%s still has a tree of a group that is gone", n.Name)
		}
	}
	was := m.Status().Counters["sent"]
	set(sm.Group{MLID: 0xc000, Members: guids(cas[8], cas[5], cas[0])})
	if n := m.Status().Counters["sent"]; n != was {
		t.Errorf("%d requests for the same group", n-was)
	}
	// A member that goes and comes back, by a sweep.
	f.Run(2 * time.Second)
	b, p := f.Cut(cas[5], 1)
	settle(t, f, m, 2*time.Second)
	all(0xc000, cas[0], cas[8])
	f.Run(2 * time.Second)
	f.Link(cas[5], 1, b, p)
	settle(t, f, m, 2*time.Second)
	all(0xc000, cas[0], cas[5], cas[8])
	// A new manager has no copy of the tables, and clears the rest.
	o, _ := m.Observations()
	f.Detach(cas[0])
	m = f.Attach(cas[0], sm.Config{}, sm.Intent{}, o)
	m.SetGroups(f.Now, []sm.Group{{MLID: 0xc001, Members: guids(cas[3], cas[6])},
		{MLID: 0x1234, Members: guids(cas[3])}, {MLID: 0xc002, Members: []ib.GUID{99}}})
	settle(t, f, m, time.Second)
	all(0xc001, cas[3], cas[6])
	for _, n := range f.Nodes() {
		if fw := n.Agent.Forwarding(); fw != nil && !fw.Members(0xc000).Empty() {
			t.Errorf("%s still has a tree of the former manager", n.Name)
		}
	}
}

// TestLanes programs service levels and arbitration of ports that have several
// lanes.
func TestLanes(t *testing.T) {
	f := subnet.New(1, hop)
	caps := agent.DefaultCaps
	caps.VL = mad.VL0to3
	add := func(name string, typ mad.NodeType, ports uint8, g ib.GUID) *subnet.Node {
		return f.Add(name, agent.Config{Type: typ, NumPorts: ports, NodeGUID: g, PortGUID: g, Description: name,
			Caps: caps})
	}
	sw, a, b := add("sw", mad.NodeSwitch, 4, 1), add("a", mad.NodeCA, 1, 2), add("b", mad.NodeCA, 1, 3)
	f.Link(a, 1, sw, 1)
	f.Link(b, 1, sw, 2)
	l := &sm.Lanes{SLtoVL: mad.SLtoVL{0, 1, 2, 3, 0, 1, 2, 3, 15}, High: []mad.VLArbEntry{{VL: 1, Weight: 9}},
		HighLimit: 5}
	for k := range uint8(40) {
		l.Low = append(l.Low, mad.VLArbEntry{VL: k % 4, Weight: k})
	}
	m := f.Attach(a, sm.Config{}, sm.Intent{Lanes: l}, sm.Observations{})
	settle(t, f, m, time.Second)
	if p := m.Status().Problems; len(p) != 0 {
		t.Fatalf("%+v", p)
	}
	for in := range uint8(5) {
		for out := range uint8(3) {
			if sw.Agent.SLtoVL(in, out) != l.SLtoVL {
				t.Errorf("%d to %d: %v", in, out, sw.Agent.SLtoVL(in, out))
			}
		}
	}
	if b.Agent.SLtoVL(0, 0) != l.SLtoVL || b.Agent.Port(1).VLHighLimit != 5 ||
		b.Agent.Port(1).OperationalVLs != mad.VL0to3 {
		t.Errorf("%+v", b.Agent.Port(1))
	}
	sets := sw.Agent.Stats.Sets
	m.Sweep(f.Now)
	f.Poke(a)
	settle(t, f, m, time.Second)
	if sw.Agent.Stats.Sets != sets {
		t.Errorf("%d sets for lanes that are set", sw.Agent.Stats.Sets-sets)
	}
}

// TestMKey protects ports with a key: a manager with another key changes nothing and reports the problem; the manager
// with the right key continues.
func TestMKey(t *testing.T) {
	s := newSmall(1)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{MKey: sm.MKey{All: 5}, MKeyProtect: 2}, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	if p := s.c3.Agent.Port(1); p.MKey != 5 || p.MKeyProtectBits != 2 {
		t.Errorf("%+v", p)
	}
	o, _ := m.Observations()
	s.Detach(s.c1)
	m = s.Attach(s.c1, sm.Config{}, sm.Intent{}, o)
	s.Run(10 * time.Second)
	if m.Topo() != nil || !hasProblem(m, "manager", "no answer") || s.c1.Agent.Port(1).MKeyViolations == 0 {
		t.Errorf("%+v", m.Status())
	}
	s.Detach(s.c1)
	m = s.Attach(s.c1, sm.Config{}, sm.Intent{MKey: sm.MKey{All: 5}}, o)
	settle(t, s.Fabric, m, time.Second)
	if p := s.c3.Agent.Port(1); p.MKey != 5 || p.MKeyProtectBits != 0 {
		t.Errorf("%+v", p)
	}
}

func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		in   sm.Intent
		want []string
	}{
		"nothing": {sm.Intent{}, nil},
		"numbers": {sm.Intent{LMC: 8, SubnetTimeout: 32, MKeyProtect: 4, MaxMTU: 6, Prefix: 0xff00000000000000,
			Engine: "x"},
			[]string{"LMC 8", "subnet timeout 32", "M_Key protection 4", "MTU 6", "GID prefix 0xff", `engine "x"`}},
		"partitions": {sm.Intent{Partitions: []sm.Partition{{Name: "a", PKey: 1}, {Name: "b", PKey: 0x8001},
			{Name: "c", PKey: 0x8000},
			{Name: "d", PKey: 2, Members: []sm.Member{{1, 1}, {1, 2}}}}}, []string{`partitions "a" and "b"`,
			`partition "c"`, `partition "d"`}},
		"lanes": {sm.Intent{Lanes: &sm.Lanes{High: make([]mad.VLArbEntry, 65)}}, []string{"lanes"}},
	} {
		err := c.in.Validate()
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v: does not say %q", name, err, w)
			}
		}
		if _, e := sm.New(sm.Config{}, c.in, sm.Observations{}); (e == nil) != (err == nil) {
			t.Errorf("%s: New: %v", name, e)
		}
	}
}

// TestPlainData writes intent, observations and status down and reads them
// back.
func TestPlainData(t *testing.T) {
	s := newSmall(1)
	in := sm.Intent{LMC: 2, Enforce: true, MaxMTU: ib.MTU2048, Partitions: []sm.Partition{{Name: "red", PKey: 1,
		All:     sm.Limited,
		Members: []sm.Member{{5, sm.Full}}}}, Lanes: &sm.Lanes{HighLimit: 3}}
	m := s.Attach(s.c1, sm.Config{}, in, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	o, _ := m.Observations()
	st := m.Status()
	for _, v := range []struct{ in, out any }{{in, &sm.Intent{}}, {o, &sm.Observations{}}, {st, &sm.Status{}}} {
		b, err := json.Marshal(v.in)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, v.out); err != nil {
			t.Fatal(err)
		}
		back, _ := json.Marshal(v.out)
		if diff := cmp.Diff(string(b), string(back)); diff != "" {
			t.Error(diff)
		}
	}
}
