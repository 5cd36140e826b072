// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"weft/internal/mgmt/sm"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/test/simfab/subnet"
)

// hasProblem reports whether a manager's last sweep noted one with these
// words.
func hasProblem(m *sm.Manager, where, what string) bool {
	for _, p := range m.Status().Problems {
		if strings.Contains(p.Where, where) && strings.Contains(p.What, what) {
			return true
		}
	}
	return false
}

// TestSilentNode checks that a node that does not answer costs only itself, is
// looked after with patience, and is taken in when it answers.
func TestSilentNode(t *testing.T) {
	s := newSmall(1)
	s.Kill(s.c3)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, m, 10*time.Second)
	if !hasProblem(m, `"sw2" port 1`, "no node answers") || len(m.Topo().Nodes) != 4 ||
		s.s2.Agent.Port(1).PortState != ib.PortInit {
		t.Errorf("%+v", m.Status())
	}
	heavy := func() (n int) {
		for _, w := range m.Status().Sweeps {
			if w.Kind == "heavy" {
				n++
			}
		}
		return n
	}
	s.Run(time.Minute)
	if heavy() != 1 {
		t.Errorf("%d heavy sweeps for a silent node", heavy())
	}
	s.Revive(s.c3)
	at := s.Now
	settle(t, s.Fabric, m, 20*time.Second)
	if took := s.Now.Sub(at); took > 11*time.Second || len(m.Topo().Nodes) != 5 || len(m.Status().Problems) != 0 {
		t.Errorf("taken in after %v: %+v", took, m.Status())
	}
	// It falls silent while it belongs to the subnet.
	s.Kill(s.s2)
	if !s.Until(30*time.Second, func() bool { return len(m.Topo().Nodes) == 3 }) {
		t.Fatalf("%+v", m.Status())
	}
	if !hasProblem(m, `"sw1" port 8`, "no node answers") {
		t.Errorf("%+v", m.Status().Problems)
	}
	s.Revive(s.s2)
	settle(t, s.Fabric, m, 30*time.Second)
	walkAll(t, m.Topo(), s.ends())
}

// TestVanishesDuringSweep pulls cables at every moment of a bring-up.
func TestVanishesDuringSweep(t *testing.T) {
	for step := range 40 {
		s := newSmall(uint64(step))
		m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
		s.Run(time.Duration(step*3) * time.Microsecond)
		s.Cut(s.s1, 8)
		if !s.Until(10*time.Second, func() bool {
			return m.Topo() != nil && len(m.Topo().Nodes) == 3 && s.c2.Agent.Port(1).PortState == ib.PortActive
		}) {
			t.Fatalf("step %d: %+v", step, m.Status())
		}
		s.Run(2 * time.Second)
		s.Link(s.s1, 8, s.s2, 7)
		if !s.Until(20*time.Second, func() bool { return len(m.Topo().Nodes) == 5 && s.Active() }) {
			t.Fatalf("step %d: %+v", step, m.Status())
		}
		walkAll(t, m.Topo(), s.ends())
	}
}

// TestPlugsDuringSweep plugs a cable in at every moment of a bring-up: no change
// is missed, even before switches have the LID of the manager.
func TestPlugsDuringSweep(t *testing.T) {
	for step := range 40 {
		s := newSmall(uint64(step))
		s.Cut(s.s2, 1)
		m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
		s.Run(time.Duration(step*3) * time.Microsecond)
		s.Link(s.c3, 1, s.s2, 1)
		if !s.Until(12*time.Second, func() bool { return m.Topo() != nil && len(m.Topo().Nodes) == 5 && s.Active() }) {
			t.Fatalf("step %d: %+v", step, m.Status())
		}
		walkAll(t, m.Topo(), s.ends())
	}
}

// TestDuplicateGUID gives two adapters one GUID: one of both is taken in, and
// the mistake has a name.
func TestDuplicateGUID(t *testing.T) {
	s := newSmall(1)
	c := s.c3.Agent.Config()
	c.Description = "twin"
	twin := s.Add("twin", c)
	s.Link(twin, 1, s.s1, 5)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	if !s.Until(time.Second, func() bool { return m.Topo() != nil }) {
		t.Fatal("no sweep ended")
	}
	if !hasProblem(m, "", "two nodes of one GUID") || len(m.Topo().Nodes) != 5 {
		t.Errorf("%+v", m.Status())
	}
	if s.c2.Agent.Port(1).PortState != ib.PortActive {
		t.Error("the others suffer")
	}
	// A switch with the GUID of an adapter.
	s = newSmall(1)
	c = s.c2.Agent.Config()
	c.Type, c.NumPorts = mad.NodeSwitch, 4
	bad := s.Add("bad", c)
	s.Link(bad, 1, s.s2, 5)
	m = s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	if !s.Until(time.Second, func() bool { return m.Topo() != nil }) || !hasProblem(m, `"sw2" port 5`,
		"two nodes of one GUID") {
		t.Errorf("%+v", m.Status())
	}
}

// TestDuplicatePortGUID gives ports of different nodes one GUID: they would get
// the same LID.
func TestDuplicatePortGUID(t *testing.T) {
	for _, typ := range []mad.NodeType{mad.NodeCA, mad.NodeSwitch} {
		s := newSmall(1)
		c := s.c3.Agent.Config()
		c.Type, c.NumPorts, c.NodeGUID = typ, 2, 0x77
		thief := s.Add("thief", c)
		s.Link(thief, 1, s.s2, 5)
		m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
		if !s.Until(time.Second, func() bool { return m.Topo() != nil }) || !hasProblem(m, `"sw2" port 5`,
			"two ports of one GUID") {
			t.Errorf("%+v", m.Status())
		}
		if thief.Agent.LID() != 0 || s.c3.Agent.LID() == 0 {
			t.Errorf("the thief has LID %d, host3 %d", thief.Agent.LID(), s.c3.Agent.LID())
		}
	}
}

// TestTooManyNodes bounds what a subnet can make a manager believe.
func TestTooManyNodes(t *testing.T) {
	s := newSmall(1)
	m := s.Attach(s.c1, sm.Config{MaxNodes: 4}, sm.Intent{}, sm.Observations{})
	if !s.Until(time.Second, func() bool { return m.Topo() != nil }) || !hasProblem(m, "", "one too many") ||
		len(m.Topo().Nodes) != 4 {
		t.Errorf("%+v", m.Status())
	}
}

// TestOddCables plugs a cable from a switch to itself, and closes a circle of
// switches.
func TestOddCables(t *testing.T) {
	s := newSmall(1)
	s.Link(s.s1, 5, s.s1, 6)
	s.Link(s.s1, 7, s.s2, 8) // a second one beside the first
	s3 := s.Switch("sw3", 4)
	s.Link(s3, 1, s.s1, 4)
	s.Link(s3, 2, s.s2, 4)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	if len(m.Topo().Links()) != 8 || len(m.Status().Problems) != 0 {
		t.Errorf("%d links, %+v", len(m.Topo().Links()), m.Status())
	}
	walkAll(t, m.Topo(), s.Nodes())
}

// TestNoSwitch manages two adapters back to back.
func TestNoSwitch(t *testing.T) {
	f := subnet.New(1, hop)
	a, b := f.CA("a"), f.CA("b")
	m := f.Attach(a, sm.Config{}, sm.Intent{}, sm.Observations{})
	f.Run(time.Second)
	if m.Topo() == nil || len(m.Topo().Nodes) != 1 {
		t.Fatalf("%+v", m.Status())
	}
	f.Link(a, 1, b, 1)
	settle(t, f, m, 12*time.Second) // no trap arrives: the light sweep detects it
	f.Cut(a, 1)
	settle(t, f, m, 12*time.Second)
	if len(m.Topo().Nodes) != 1 {
		t.Errorf("%d nodes", len(m.Topo().Nodes))
	}
}

// TestManagerWithoutPort has a manager at a node that never answers.
func TestManagerWithoutPort(t *testing.T) {
	m, err := sm.New(sm.Config{}, sm.Intent{}, sm.Observations{})
	if err != nil {
		t.Fatal(err)
	}
	var d mad.Datagram
	now := start
	for range 100 {
		for m.Next(now, &d) {
		}
		if m.Deadline() <= now {
			t.Fatalf("deadline %v at %v", m.Deadline(), now)
		}
		now = m.Deadline()
	}
	if s := m.Status(); len(s.Sweeps) < 2 || !hasProblem(m, "manager", "no answer") &&
		!hasProblem(m, "manager", "does not answer") {
		t.Errorf("%+v", s)
	}
}

// TestChaos pulls and plugs cables and kills and revives nodes at random, then lets the
// subnet come to rest: everything that has a way to the manager is ACTIVE and
// reachable. With the higher seeds leaves become confined, and open again, all the time.
func TestChaos(t *testing.T) {
	for seed := range uint64(24) {
		edges := rand.New(rand.NewPCG(seed, 78))
		rng := rand.New(rand.NewPCG(seed, 77))
		f := subnet.New(seed, hop)
		f.Loss = int(seed%3) * 10
		cas := subnet.FatTree(f, 3, 3, 2, 1)
		m := f.Attach(cas[0], sm.Config{}, sm.Intent{}, sm.Observations{})
		type cable struct {
			a, b   *subnet.Node
			ap, bp uint8
		}
		var pulled []cable
		nodes := f.Nodes()
		for range 30 {
			f.Run(time.Duration(rng.IntN(400)) * time.Millisecond)
			if seed >= 12 && edges.IntN(3) == 0 {
				var open []*subnet.Node
				for _, n := range nodes { // the spines have paths to each other by the first leaf
					if !strings.HasPrefix(n.Name, "leaf") || n.Name == "leaf-1" || edges.IntN(2) == 0 {
						open = append(open, n)
					}
				}
				m.SetTransit(f.Now, transitOf(open...))
				f.Poke(cas[0])
			}
			n := nodes[1+rng.IntN(len(nodes)-1)]
			switch rng.IntN(4) {
			case 0, 1:
				p := uint8(1 + rng.IntN(int(n.Agent.Config().NumPorts)))
				if b, bp := f.Cut(n, p); b != nil {
					pulled = append(pulled, cable{n, b, p, bp})
				}
			case 2:
				if k := len(pulled); k > 0 {
					c := pulled[k-1]
					pulled = pulled[:k-1]
					f.Link(c.a, c.ap, c.b, c.bp)
				}
			case 3:
				if n != cas[0] {
					f.Kill(n)
					f.Run(time.Duration(rng.IntN(100)) * time.Millisecond)
					f.Revive(n)
				}
			}
		}
		for _, c := range pulled {
			f.Link(c.a, c.ap, c.b, c.bp)
		}
		if !f.Until(time.Minute, func() bool {
			return f.Active() && m.Topo() != nil && len(m.Topo().Nodes) == len(nodes) && len(m.Status().Problems) == 0
		}) {
			t.Fatalf("seed %d: %+v", seed, m.Status())
		}
		f.Loss = 0
		f.Run(30 * time.Second)
		walkAll(t, m.Topo(), nodes)
		checkEdges(t, f, m)
		// The tables of the switches equal those of the model.
		top := m.Topo()
		for _, n := range nodes {
			if fw := n.Agent.Forwarding(); fw != nil {
				lft := top.Nodes[top.NodeByGUID(n.Agent.Config().NodeGUID)].Switch.LFT
				for l := 1; l < len(lft); l++ {
					if fw.Entry(ib.LID(l)) != lft[l] {
						t.Fatalf("seed %d: %s, LID %d: port %d, the model has %d", seed, n.Name, l,
							fw.Entry(ib.LID(l)), lft[l])
					}
				}
			}
		}
	}
}

// FuzzHostile puts a node that answers anything into the subnet: it may spoil
// what is behind it, and nothing else.
func FuzzHostile(f *testing.F) {
	f.Add([]byte{0}, byte(0))
	f.Add([]byte{1, 4, 0xff, 2, 66, 7, 3, 64, 0xfe}, byte(1))
	f.Add([]byte{1, 64, 2}, byte(9))
	f.Add([]byte{20, 68, 2, 21, 80, 0xff, 22, 96, 0x54, 7, 97, 0x20}, byte(2))
	f.Fuzz(func(t *testing.T, edits []byte, what byte) {
		s := newSmall(1)
		var liar *subnet.Node
		if what&1 != 0 {
			liar = s.Switch("liar", 6)
		} else {
			liar = s.CA("liar")
		}
		s.Link(liar, 1, s.s2, 5)
		n := 0
		s.Trace = func(from *subnet.Node, _ uint8, d *mad.Datagram) {
			// Every answer of the faulty agent is changed at the same offsets, and some are dropped.
			if from != liar || d.Data[3]&0x80 == 0 {
				return
			}
			n++
			for i := 0; i+2 < len(edits); i += 3 {
				if edits[i] == 0 || n%int(edits[i]) == 0 {
					d.Data[edits[i+1]] = edits[i+2]
				}
			}
		}
		m := s.Attach(s.c1, sm.Config{}, sm.Intent{Enforce: what&2 != 0, LMC: what >> 2 & 1}, sm.Observations{})
		if what&8 != 0 { // the liar is confined, if it is a switch
			m.SetTransit(s.Now, transitOf(s.s1, s.s2))
		}
		if !s.Until(40*time.Second, func() bool { return m.Topo() != nil }) {
			t.Fatalf("%+v", m.Status())
		}
		s.Run(2 * time.Second)
		seen := map[ib.LID]string{}
		for _, n := range []*subnet.Node{s.s1, s.s2, s.c1, s.c2, s.c3} {
			l := n.Agent.LID()
			if l == 0 || seen[l] != "" {
				t.Fatalf("%s has LID %d, as %q: %+v", n.Name, l, seen[l], m.Status())
			}
			seen[l] = n.Name
			if p := n.Agent.Port(1); n.End() == 1 && p.PortState != ib.PortActive {
				t.Fatalf("%s is %v: %+v", n.Name, p.PortState, m.Status())
			}
		}
	})
}

// FuzzHandle gives a manager datagrams of any bytes while it works.
func FuzzHandle(f *testing.F) {
	for _, method := range []mad.Method{mad.MethodGetResp, mad.MethodTrap, mad.MethodSet, mad.MethodGet,
		mad.MethodTrapRepress} {
		for _, attr := range []mad.AttributeID{mad.AttrSMInfo, mad.AttrNotice, mad.AttrNodeInfo} {
			p := mad.SMP{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSubnDR, ClassVersion: 1,
				Method: method, AttributeID: attr,
				AttributeModifier: 1, TransactionID: 0x100}, D: method == mad.MethodGetResp, HopCount: 2}
			f.Add(p.Append(nil), byte(1), true)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, every byte, standby bool) {
		s := newSmall(1)
		if standby {
			s.Attach(s.c3, sm.Config{Priority: 3}, sm.Intent{}, sm.Observations{})
		}
		m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
		n := 0
		s.Trace = func(*subnet.Node, uint8, *mad.Datagram) {
			// Answers to it are sent too, so there is an end.
			if n++; n%(int(every)+1) == 0 && n < 500 {
				var d mad.Datagram
				copy(d.Data[:], data)
				m.Handle(s.Now, &d)
			}
		}
		s.Run(100 * time.Millisecond)
		s.Trace = nil
		if !s.Until(time.Minute, func() bool { return s.Active() && masterOf(s.c1, s.c3) != nil }) {
			t.Fatalf("%+v", m.Status())
		}
	})
}

// TestRefusedSets has an agent that refuses what it is set: the sweep ends, the
// problem has a name, and is looked after.
func TestRefusedSets(t *testing.T) {
	s := newSmall(1)
	refuse := true
	s.Trace = func(from *subnet.Node, _ uint8, d *mad.Datagram) {
		var p mad.SMP
		p.Parse(d.Data[:])
		if refuse && from == s.c3 && p.D && p.AttributeID == mad.AttrPortInfo && p.AttributeModifier&0xff == 1 &&
			p.Status == 0 {
			p.Status = mad.StatusInvalidValue
			p.Append(d.Data[:0])
		}
	}
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	if !s.Until(10*time.Second, func() bool { return m.Topo() != nil }) || !hasProblem(m, `"host3" port 1`,
		"PortInfo") {
		t.Fatalf("%+v", m.Status())
	}
	if s.c2.Agent.Port(1).PortState != ib.PortActive {
		t.Error("the others suffer")
	}
	refuse = false
	settle(t, s.Fabric, m, 20*time.Second)
	if len(m.Status().Problems) != 0 {
		t.Errorf("%+v", m.Status().Problems)
	}
}

// TestTrapStorm has a node that sends traps without end.
func TestTrapStorm(t *testing.T) {
	s := newSmall(1)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	for i := range 200 {
		n := mad.LinkStateNotice(s.s2.Agent.LID())
		p := mad.SMP{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSubnLID, ClassVersion: 1,
			Method: mad.MethodTrap, AttributeID: mad.AttrNotice,
			TransactionID: uint64(i)}}
		n.Append(p.Data[:0])
		d := mad.Datagram{SLID: s.s2.Agent.LID(), DLID: s.c1.Agent.LID()}
		p.Append(d.Data[:0])
		s.s2.Send(&d)
		s.Run(50 * time.Millisecond)
	}
	st := m.Status()
	// One, one for each of ten traps, and one a second.
	heavy := 0
	for _, w := range st.Sweeps {
		if w.Kind == "heavy" {
			heavy++
		}
	}
	if st.Counters["traps"] != 200 || heavy > 1+10+10 || len(st.Sweeps) > heavy+5 {
		t.Errorf("%d heavy sweeps, %d in all, %v", heavy, len(st.Sweeps), st.Counters)
	}
	told := false
	for _, n := range st.Notes {
		told = told || strings.Contains(n.Text, "sends many traps")
	}
	if !told {
		t.Errorf("%+v", st.Notes)
	}
	// The switch is listened to all the same.
	s.Run(10 * time.Second)
	b, p := s.Cut(s.c3, 1)
	at := s.Now
	settle(t, s.Fabric, m, 20*time.Second)
	if took := s.Now.Sub(at); took > time.Second {
		t.Errorf("noticed after %v", took)
	}
	s.Run(2 * time.Minute)
	s.Link(s.c3, 1, b, p)
	at = s.Now
	settle(t, s.Fabric, m, 20*time.Second)
	if took := s.Now.Sub(at); took > 100*time.Millisecond {
		t.Errorf("two minutes later noticed after %v", took)
	}
}
