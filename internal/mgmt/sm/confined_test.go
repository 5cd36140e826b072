// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/fabric/vswitch"
	"weft/internal/mgmt/member/shape"
	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/test/simfab/subnet"
)

// edged is two switches that carry packets of others, s1 and s2 with a cable, and two confined ones, d and e, with an
// adapter at each. All have cables to each other, except that e has none to s2. The manager is at the adapter of s1.
type edged struct {
	*subnet.Fabric
	s1, s2, d, e, c1, c2, cd, ce *subnet.Node
	m                            *sm.Manager
}

func newEdged(in sm.Intent) *edged {
	f := subnet.New(1, hop)
	x := &edged{Fabric: f, s1: f.Switch("s1", 8), s2: f.Switch("s2", 8), d: f.Switch("d", 8), e: f.Switch("e", 8),
		c1: f.CA("c1"), c2: f.CA("c2"), cd: f.CA("cd"), ce: f.CA("ce")}
	f.Link(x.s1, 8, x.s2, 8)
	f.Link(x.s1, 7, x.d, 7)
	f.Link(x.s2, 6, x.d, 6)
	f.Link(x.s1, 5, x.e, 5)
	f.Link(x.d, 4, x.e, 4)
	for sw, ca := range map[*subnet.Node]*subnet.Node{x.s1: x.c1, x.s2: x.c2, x.d: x.cd, x.e: x.ce} {
		f.Link(sw, 1, ca, 1)
	}
	x.m = f.Attach(x.c1, sm.Config{}, in, sm.Observations{})
	x.m.SetTransit(f.Now, transitOf(x.s1, x.s2))
	return x
}

// hops lists the switches on the path between two adapters, by the model.
func (x *edged) hops(a, b *subnet.Node) (names string) {
	t := x.m.Topo()
	w, ok := t.Walk(t.PortByGUID(a.PortGUID()), b.Agent.LID(), true)
	if !ok {
		return "none"
	}
	for _, r := range w.Ports[1:] {
		names += " " + t.Nodes[r.Node].Description
	}
	return names
}

// linked reports whether the model has a link between two nodes.
func (x *edged) linked(a, b *subnet.Node) bool {
	t := x.m.Topo()
	i, j := t.NodeByGUID(a.Agent.Config().NodeGUID), t.NodeByGUID(b.Agent.Config().NodeGUID)
	return i >= 0 && j >= 0 && slices.ContainsFunc(t.Nodes[i].Ports, func(p topo.Port) bool { return p.Peer.Node == j })
}

// TestConfinedPaths: packets of others take the way around a confined switch, and without another way none. A direct
// cable of two confined switches is used. No directed route leads through a confined switch to another node than an
// adapter, except for the question of which switch is there.
func TestConfinedPaths(t *testing.T) {
	x := newEdged(sm.Intent{})
	var beyondEnds []string
	byPort := map[*subnet.Node]map[uint8]*subnet.Node{x.d: {7: x.s1, 6: x.s2, 4: x.e}, x.e: {5: x.s1, 4: x.d}}
	x.Trace = func(from *subnet.Node, port uint8, d *mad.Datagram) {
		var p mad.SMP
		if p.Parse(d.Data[:]); !p.Directed() || p.D || from != x.d && from != x.e {
			return
		}
		to := byPort[from][port]
		known := to == x.s1 || to == x.s2 // of which the manager finds the link at the other end
		if to != nil && (p.AttributeID != mad.AttrNodeInfo || p.HopPointer != p.HopCount || known) {
			beyondEnds = append(beyondEnds, fmt.Sprintf("%s to %s: %v %#x", from.Name, to.Name, p.Method,
				p.AttributeID))
		}
	}
	settle(t, x.Fabric, x.m, time.Second)
	if len(x.m.Status().Problems) > 0 {
		t.Errorf("%+v", x.m.Status().Problems)
	}
	for _, c := range []struct {
		a, b *subnet.Node
		want string
	}{{x.c1, x.c2, " s1 s2"}, {x.cd, x.ce, " d e"}, {x.ce, x.cd, " e d"}, {x.ce, x.c2, " e s1 s2"},
		{x.c2, x.ce, " s2 s1 e"}, {x.cd, x.c2, " d s2"}, {x.c2, x.cd, " s2 d"}} {
		if got := x.hops(c.a, c.b); got != c.want {
			t.Errorf("%s to %s:%s, want%s", c.a.Name, c.b.Name, got, c.want)
		}
	}
	x.Run(25 * time.Second) // light sweeps
	if len(beyondEnds) > 0 {
		t.Errorf("through confined switches: %q", beyondEnds)
	}
	// Without the cable of s1 and s2, s2 and its adapter are behind d.
	x.Cut(x.s1, 8)
	if !x.Until(time.Minute, func() bool {
		return hasProblem(x.m, `"d" port 6`, "is connected only through this one")
	}) || x.linked(x.d, x.s2) || x.m.Topo().NodeByGUID(x.s2.Agent.Config().NodeGUID) >= 0 {
		t.Fatalf("%+v", x.m.Status())
	}
	if x.Leads(x.s1, x.c2.Agent.LID()) || x.Leads(x.ce, x.c2.Agent.LID()) || !x.Leads(x.s1, x.cd.Agent.LID()) {
		t.Error("the tables lead through d")
	}
	if why := x.m.Status().Problems; !strings.Contains(why[0].What, "fix: weft trunk, on") ||
		!strings.Contains(why[0].What, x.s2.Agent.Config().NodeGUID.String()) {
		t.Errorf("the problem is %q", why)
	}
	// With transit by d there is a path, and with the cable the former ones.
	x.m.SetTransit(x.Now, transitOf(x.s1, x.s2, x.d))
	x.Poke(x.c1)
	if !x.Until(time.Minute, func() bool { return x.Active() && x.hops(x.c1, x.c2) == " s1 d s2" }) {
		t.Fatalf("%+v", x.m.Status())
	}
	x.m.SetTransit(x.Now, transitOf(x.s1, x.s2))
	x.Link(x.s1, 8, x.s2, 8)
	x.Poke(x.c1)
	if !x.Until(time.Minute, func() bool {
		return x.Active() && x.hops(x.c1, x.c2) == " s1 s2" && len(x.m.Status().Problems) == 0
	}) {
		t.Fatalf("%+v", x.m.Status())
	}
}

// checkEdges compares the tables of each switch next to a confined one with the model: what the ports behind send
// passes by its source LID and P_Key, and nothing else.
func checkEdges(t *testing.T, f *subnet.Fabric, m *sm.Manager) {
	t.Helper()
	top := m.Topo()
	agents := map[ib.GUID]*subnet.Node{}
	for _, n := range f.Nodes() {
		agents[n.Agent.Config().NodeGUID] = n
	}
	for _, l := range top.Links() {
		for _, at := range [][2]topo.Ref{{l.A, l.B}, {l.B, l.A}} {
			sw, edge := &top.Nodes[at[0].Node], &top.Nodes[at[1].Node]
			if !sw.IsSwitch() || !edge.IsSwitch() {
				continue
			}
			a := agents[sw.Info.NodeGUID].Agent
			if i := a.Port(at[0].Port); i.PartitionEnforceIn != edge.Confined || i.PartitionEnforceOut {
				t.Errorf("%s port %d to %s, confined %v: in %v, out %v", sw.Description, at[0].Port, edge.Description,
					edge.Confined, i.PartitionEnforceIn, i.PartitionEnforceOut)
			}
			if !edge.Confined {
				continue
			}
			_, forged := a.Forwarding().Unicast(at[0].Port, a.LID(), 0x8123)
			_, own := a.Forwarding().Unicast(at[0].Port, a.LID(), 0xffff)
			if own != vswitch.OK || forged != vswitch.PKeyIn {
				t.Errorf("%s from %s: %v, forged %v", sw.Description, edge.Description, own, forged)
			}
			for r := range top.EndPorts() {
				if lid := top.Port(r).Info.LID; top.Attached(r).Node == at[1].Node &&
					a.Forwarding().Entry(lid) != at[0].Port {
					t.Errorf("%s sends to LID %d at %s by port %d, and is linked by %d", sw.Description, lid,
						edge.Description, a.Forwarding().Entry(lid), at[0].Port)
				}
			}
		}
	}
}

// TestConfinedManager: the manager's own switch is confined. All that it reaches by one more switch is in the subnet.
func TestConfinedManager(t *testing.T) {
	for _, at := range []string{"adapter", "switch"} {
		x := newEdged(sm.Intent{})
		x.Detach(x.c1)
		x.m = x.Attach(map[string]*subnet.Node{"adapter": x.cd, "switch": x.d}[at], sm.Config{}, sm.Intent{},
			sm.Observations{})
		x.m.SetTransit(x.Now, transitOf(x.s1, x.s2))
		settle(t, x.Fabric, x.m, time.Second)
		if got := x.hops(x.c1, x.c2); got != " s1 s2" || len(x.m.Status().Problems) > 0 {
			t.Errorf("%s: c1 to c2:%s, %+v", at, got, x.m.Status().Problems)
		}
		x.Cut(x.s1, 8)
		if !x.Until(time.Minute, func() bool { return hasProblem(x.m, "", `are connected only through "d"`) }) {
			t.Errorf("%s: %+v", at, x.m.Status())
		}
		if x.hops(x.c1, x.c2) != "none" || x.hops(x.cd, x.c2) != " d s2" {
			t.Errorf("%s: c1 to c2:%s, cd to c2:%s", at, x.hops(x.c1, x.c2), x.hops(x.cd, x.c2))
		}
	}
}

// TestLiesBeyond: a confined switch that reports links to others, which these do not report, changes nothing.
func TestLiesBeyond(t *testing.T) {
	for _, victim := range []string{"s2", "e", "c2"} {
		x := newEdged(sm.Intent{})
		c := map[string]*subnet.Node{"s2": x.s2, "e": x.e, "c2": x.c2}[victim].Agent.Config()
		c.Description = "fake"
		fake := x.Add("fake", c)
		port := uint8(1)
		if c.NumPorts > 1 {
			port = 3
		}
		x.Link(fake, port, x.d, 3)
		if !x.Until(5*time.Second, func() bool { return x.m.Topo() != nil }) {
			t.Fatalf("%s: %+v", victim, x.m.Status())
		}
		if x.hops(x.c1, x.c2) != " s1 s2" || x.hops(x.c1, x.ce) != " s1 e" || !x.linked(x.d, x.e) ||
			x.c2.Agent.Port(1).PortState != ib.PortActive || x.d.Agent.Port(3).PortState == ib.PortActive {
			t.Errorf("%s: %+v", victim, x.m.Status())
		}
	}
}

// sets records the Sets of P_Key tables and of PortInfo that reach their node.
func (x *edged) sets(list *[]string) {
	x.Trace = func(from *subnet.Node, _ uint8, d *mad.Datagram) {
		var p mad.SMP
		if p.Parse(d.Data[:]); from != x.c1 || p.D || p.Method != mad.MethodSet {
			return
		}
		switch p.AttributeID {
		case mad.AttrPKeyTable:
			var k mad.PKeyTable
			k.Parse(p.Data[:])
			n := max(1, len(k)-slices.IndexFunc(reversed(k[:]), func(k ib.PKey) bool { return k != 0 }))
			*list = append(*list, fmt.Sprintf("%v keys %d.%d %04x", p.InitialPath[1:p.HopCount+1],
				p.AttributeModifier>>16, p.AttributeModifier&0xffff, k[:min(n, len(k))]))
		case mad.AttrPortInfo:
			var i mad.PortInfo
			i.Parse(p.Data[:])
			*list = append(*list, fmt.Sprintf("%v port %d %v in %v out %v", p.InitialPath[1:p.HopCount+1],
				p.AttributeModifier&0xff, i.PortState, i.PartitionEnforceIn, i.PartitionEnforceOut))
		}
	}
}

func reversed(k []ib.PKey) []ib.PKey {
	k = slices.Clone(k)
	slices.Reverse(k)
	return k
}

// indexOf returns where a text is in a list, -1 if it is not.
func indexOf(list []string, text string) int {
	return slices.IndexFunc(list, func(s string) bool { return strings.Contains(s, text) })
}

// TestConfinedKeys: the switch ports at the other ends of the cables of a confined switch let pass the P_Keys of its
// ports alone, before they are ARMED, and follow changes of partitions: a key is allowed before the port behind has it,
// and not later than it.
func TestConfinedKeys(t *testing.T) {
	partitions := func(x *edged, members ...sm.Member) sm.Intent {
		return sm.Intent{Partitions: []sm.Partition{{Name: "red", PKey: 1, Members: append(members,
			sm.Member{PortGUID: x.c2.PortGUID(), As: sm.Full})}}}
	}
	x := newEdged(sm.Intent{})
	var sets []string
	x.sets(&sets)
	if err := x.m.SetIntent(x.Now, partitions(x, sm.Member{PortGUID: x.cd.PortGUID(), As: sm.Limited})); err != nil {
		t.Fatal(err)
	}
	settle(t, x.Fabric, x.m, time.Second)
	try := func(sw *subnet.Node, in uint8, to *subnet.Node, key ib.PKey, want vswitch.Refusal) {
		t.Helper()
		if _, why := sw.Agent.Forwarding().Unicast(in, to.Agent.LID(), key); why != want {
			t.Errorf("%s from port %d to %s with %#04x: %v, want %v", sw.Name, in, to.Name, key, why, want)
		}
	}
	for _, at := range []struct {
		sw   *subnet.Node
		port uint8
		to   *subnet.Node
	}{{x.s1, 7, x.c2}, {x.s2, 6, x.c2}, {x.e, 4, x.ce}} { // the ends of the cables of d
		try(at.sw, at.port, at.to, 0x0001, vswitch.OK)
		try(at.sw, at.port, at.to, 0x7fff, vswitch.OK)
		try(at.sw, at.port, at.to, 0x8001, vswitch.PKeyIn) // forged: the adapter is a limited member
		try(at.sw, at.port, at.to, 0xffff, vswitch.PKeyIn)
		try(at.sw, at.port, at.to, 0x8002, vswitch.PKeyIn)
		if i := at.sw.Agent.Port(at.port); !i.PartitionEnforceIn || i.PartitionEnforceOut {
			t.Errorf("%s port %d: in %v, out %v", at.sw.Name, at.port, i.PartitionEnforceIn, i.PartitionEnforceOut)
		}
	}
	try(x.s1, 5, x.c2, 0x0001, vswitch.PKeyIn) // e has no member
	try(x.s1, 8, x.cd, 0x8002, vswitch.OK)     // s2 is trusted
	try(x.d, 7, x.cd, 0x8002, vswitch.OK)
	keysAt, armed := indexOf(sets, "keys 7.0 [7fff 0001]"), indexOf(sets, "[1] port 7 Armed in true out false")
	if keysAt < 0 || armed < keysAt {
		t.Errorf("keys at %d, ARMED at %d: %q", keysAt, armed, sets)
	}
	light := func() { // light sweeps change nothing
		t.Helper()
		was := x.m.Topo()
		if x.Run(25 * time.Second); x.m.Topo() != was {
			t.Errorf("a sweep without a change: %+v", x.m.Status().Sweeps)
		}
	}
	light()

	// The adapter of e becomes a member, and that of d is none any more.
	sets = nil
	if err := x.m.SetIntent(x.Now, partitions(x, sm.Member{PortGUID: x.ce.PortGUID(), As: sm.Full})); err != nil {
		t.Fatal(err)
	}
	x.Poke(x.c1)
	settle(t, x.Fabric, x.m, time.Second)
	try(x.s1, 7, x.c2, 0x0001, vswitch.PKeyIn)
	try(x.s1, 5, x.c2, 0x8001, vswitch.OK)
	first := slices.IndexFunc(sets, func(s string) bool { return strings.Contains(s, "keys 0.0") })
	for _, s := range []string{"[1] keys 7.0 [7fff]", "[1] keys 5.0 [7fff 8001]"} {
		if at := indexOf(sets, s); at < 0 || at > first {
			t.Errorf("%q at %d, the first table of an adapter at %d: %q", s, at, first, sets)
		}
	}
	if n := len(sets); n != 7 { // three ends of d, two of e, two adapters
		t.Errorf("%d Sets for a change of two members: %q", n, sets)
	}
	light()

	// Another adapter is plugged in behind e, with another partition.
	in := partitions(x, sm.Member{PortGUID: x.ce.PortGUID(), As: sm.Full})
	more := x.CA("more")
	in.Partitions = append(in.Partitions, sm.Partition{Name: "blue", PKey: 2,
		Members: []sm.Member{{PortGUID: more.PortGUID(), As: sm.Full}}})
	if err := x.m.SetIntent(x.Now, in); err != nil {
		t.Fatal(err)
	}
	x.Link(x.e, 2, more, 1)
	x.Poke(x.c1)
	settle(t, x.Fabric, x.m, time.Second)
	try(x.s1, 5, x.c2, 0x8002, vswitch.OK)
	try(x.s1, 7, x.c2, 0x8002, vswitch.PKeyIn)

	// A role for d, and none again.
	x.m.SetTransit(x.Now, transitOf(x.s1, x.s2, x.d))
	x.Poke(x.c1)
	settle(t, x.Fabric, x.m, time.Second)
	try(x.s1, 7, x.c2, 0x8002, vswitch.OK)
	x.m.SetTransit(x.Now, transitOf(x.s1, x.s2))
	x.Poke(x.c1)
	settle(t, x.Fabric, x.m, time.Second)
	try(x.s1, 7, x.c2, 0x8002, vswitch.PKeyIn)
	try(x.s1, 7, x.c2, 0x7fff, vswitch.OK)
	light()
}

// TestConfinedKeysAreVerified: a table that another changed is written anew, after the next light sweep.
func TestConfinedKeysAreVerified(t *testing.T) {
	x := newEdged(sm.Intent{})
	settle(t, x.Fabric, x.m, time.Second)
	s := &small{Fabric: x.Fabric, c1: x.c1}
	var k mad.PKeyTable
	k[0], k[1] = 0xffff, 0x8005
	if send(s, x.c2, mad.MethodSet, mad.AttrPKeyTable, mad.PKeyModifier(7, 0), 0, k.Append(nil), 1, 8) == nil ||
		x.s1.Agent.PKeys(7)[1] != 0x8005 {
		t.Fatalf("the port has %04x", x.s1.Agent.PKeys(7))
	}
	if !x.Until(30*time.Second, func() bool { return x.s1.Agent.PKeys(7)[1] == 0 }) {
		t.Errorf("the port has %04x: %+v", x.s1.Agent.PKeys(7)[:3], x.m.Status())
	}
}

// TestConfinedKeysDoNotFit: a table that is too small has the first keys, and a switch without tables none, and both
// are problems that name the confined switch.
func TestConfinedKeysDoNotFit(t *testing.T) {
	for _, c := range []struct {
		fit  uint16
		want string
	}{{3, `"d" port 2 have 5 P_Keys, and the table for packets from there has 3 entries`},
		{0, `the P_Keys of packets from "d" port 2 are not checked`}} {
		f := subnet.New(1, hop)
		small := f.CA("unused").Agent.Config()
		small.Type, small.NumPorts, small.EnforceCap, small.PortGUID = mad.NodeSwitch, 8, c.fit, small.NodeGUID
		small.NodeGUID, small.PortGUID, small.Description = small.NodeGUID+1<<32, small.NodeGUID+1<<32, "s1"
		x := &edged{Fabric: f, s1: f.Add("s1", small), d: f.Switch("d", 8), c1: f.CA("c1"), cd: f.CA("cd")}
		f.Link(x.s1, 2, x.d, 2)
		f.Link(x.s1, 1, x.c1, 1)
		f.Link(x.d, 1, x.cd, 1)
		var in sm.Intent
		for k := range ib.PKey(4) {
			in.Partitions = append(in.Partitions, sm.Partition{Name: fmt.Sprint("p", k), PKey: k + 1, Apart: true,
				All: sm.Full})
		}
		x.m = f.Attach(x.c1, sm.Config{}, in, sm.Observations{})
		x.m.SetTransit(f.Now, transitOf(x.s1))
		if !f.Until(time.Second, func() bool { return x.m.Topo() != nil }) || !hasProblem(x.m, `"s1" port 2`, c.want) {
			t.Fatalf("%d entries: %+v", c.fit, x.m.Status())
		}
		allowed := 0
		for k := range ib.PKey(6) {
			if _, why := x.s1.Agent.Forwarding().Unicast(2, x.c1.Agent.LID(), k|0x8000); why == vswitch.OK {
				allowed++
			}
		}
		if _, why := x.s1.Agent.Forwarding().Unicast(2, x.c1.Agent.LID(), 0xffff); why != vswitch.OK ||
			c.fit > 0 && allowed != 2 {
			t.Errorf("%d entries: %d other partitions pass, the default one: %v", c.fit, allowed, why)
		}
	}
}

// TestConfinedShapes has members join one after another, of which only the first carry packets of others, and some of
// these end: the manager routes between all of them after each.
func TestConfinedShapes(t *testing.T) {
	for _, open := range []int{1, 3, 8} {
		p := newPlanned(24)
		p.open = open
		p.join()
		m := p.attach()
		forms := map[shape.Form]bool{}
		for len(p.list) < min(16+6*open, 50) {
			p.join()
			p.permit(m)
			forms[p.plug(t).Form] = true
			if n := len(p.list); n < 18 || n%6 == 0 {
				p.routed(t, m, p.adapters())
			}
		}
		for range open - 1 {
			p.leave(1)
			p.permit(m)
			forms[p.plug(t).Form] = true
		}
		if plan := p.plug(t); len(plan.Limits) == 0 || plan.Limits[len(plan.Limits)-1].Kind != shape.SingleSpine {
			t.Errorf("one member carries packets of others: %+v", plan.Limits)
		}
		if !forms[shape.Mesh] || !forms[shape.Spines] {
			t.Errorf("%d: the forms were %v", open, forms)
		}
	}
}
