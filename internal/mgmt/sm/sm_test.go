// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/mgmt/agent"
	"weft/internal/mgmt/sm"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/test/simfab/subnet"
)

const (
	hop   = 2 * time.Microsecond
	start = mono.Time(time.Second)
)

var rewrite = flag.Bool("rewrite", false, "write the transcripts anew")

// small is two switches in a row with three adapters: two at the first.
type small struct {
	*subnet.Fabric
	s1, s2, c1, c2, c3 *subnet.Node
}

func newSmall(seed uint64) *small {
	f := subnet.New(seed, hop)
	s := &small{f, f.Switch("sw1", 8), f.Switch("sw2", 8), f.CA("host1"), f.CA("host2"), f.CA("host3")}
	f.Link(s.s1, 8, s.s2, 7)
	f.Link(s.c1, 1, s.s1, 1)
	f.Link(s.c2, 1, s.s1, 2)
	f.Link(s.c3, 1, s.s2, 1)
	return s
}

func (s *small) ends() []*subnet.Node { return s.Nodes() }

// lids are the LIDs of all nodes by name.
func lids(f *subnet.Fabric) map[string]ib.LID {
	m := map[string]ib.LID{}
	for _, n := range f.Nodes() {
		m[n.Name] = n.Agent.LID()
	}
	return m
}

// settle runs until the manager's model is new and the fabric is up.
func settle(t *testing.T, f *subnet.Fabric, m *sm.Manager, within time.Duration) {
	t.Helper()
	was := m.Topo()
	if !f.Until(within, func() bool { return m.Topo() != was && m.Topo() != nil && f.Active() }) {
		for _, n := range f.Nodes() {
			for p := range n.Agent.Config().NumPorts {
				if s := n.Agent.Port(p + 1).PortState; s != ib.PortDown {
					t.Logf("%s port %d: %v, LID %d", n.Name, p+1, s, n.Agent.LID())
				}
			}
		}
		t.Fatalf("not up after %v: %+v", within, m.Status())
	}
}

// TestBringUp compares every packet that the manager sends in its first sweep,
// and in a light one, with a transcript. Its steps are those of IBA volume 1,
// 14.4.4: discovery by directed routes breadth first, LIDs, forwarding tables, and two
// rounds of port states on both ends of every link.
func TestBringUp(t *testing.T) {
	for _, c := range []struct {
		name string
		at   func(*small) *subnet.Node
	}{{"adapter", func(s *small) *subnet.Node { return s.c1 }}, {"switch",
		func(s *small) *subnet.Node { return s.s1 }}} {
		t.Run(c.name, func(t *testing.T) {
			s := newSmall(1)
			var text strings.Builder
			root := c.at(s)
			s.Trace = func(from *subnet.Node, _ uint8, d *mad.Datagram) {
				var p mad.SMP
				p.Parse(d.Data[:])
				// Requests on their first cable: what comes from elsewhere is on
				// its way.
				if from != root || p.D || p.Method != mad.MethodGet && p.Method != mad.MethodSet || p.HopPointer > 1 {
					return
				}
				fmt.Fprintf(&text, "%v %v %#x to %v", p.Method, attrName(p.AttributeID), p.AttributeModifier,
					p.InitialPath[1:p.HopCount+1])
				if p.Method == mad.MethodSet {
					switch p.AttributeID {
					case mad.AttrPortInfo:
						var i mad.PortInfo
						i.Parse(p.Data[:])
						fmt.Fprintf(&text, ": LID %d manager %d MTU %d VLs %d reregister %v state %v", i.LID,
							i.MasterSMLID, i.NeighborMTU,
							i.OperationalVLs, i.ClientReregister, i.PortState)
					case mad.AttrSwitchInfo:
						var i mad.SwitchInfo
						i.Parse(p.Data[:])
						fmt.Fprintf(&text, ": top %d clear %v", i.LinearFDBTop, i.PortStateChange)
					case mad.AttrLFT:
						fmt.Fprintf(&text, ": % x", p.Data[:7])
					}
				}
				text.WriteByte('\n')
			}
			m := s.Attach(root, sm.Config{}, sm.Intent{}, sm.Observations{})
			settle(t, s.Fabric, m, time.Second)
			text.WriteString("-- light sweep\n")
			s.Run(11 * time.Second)
			name := filepath.Join("testdata", "bringup-"+c.name+".txt")
			if *rewrite {
				if err := os.WriteFile(name, []byte(text.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), text.String()); diff != "" {
				t.Error(diff)
			}
			st := m.Status()
			if st.State != "master" || len(st.Problems) != 0 || st.Counters["resent"] != 0 || len(st.Sweeps) != 2 {
				t.Errorf("%+v", st)
			}
			if r := st.Sweeps[0]; r.Kind != "heavy" || r.Nodes != 5 || r.Switches != 2 || r.Links != 4 ||
				r.Failed != 0 {
				t.Errorf("%+v", r)
			}
			walkAll(t, m.Topo(), s.ends())
		})
	}
}

func attrName(a mad.AttributeID) string {
	return map[mad.AttributeID]string{mad.AttrNodeInfo: "NodeInfo", mad.AttrNodeDescription: "NodeDescription",
		mad.AttrSwitchInfo: "SwitchInfo",
		mad.AttrPortInfo:   "PortInfo", mad.AttrPKeyTable: "P_KeyTable", mad.AttrLFT: "LFT", mad.AttrMFT: "MFT", mad.AttrSMInfo: "SMInfo"}[a]
}

// TestPorts reads what the manager set.
func TestPorts(t *testing.T) {
	s := newSmall(1)
	reregistered := 0
	s.c3.Changes = func(_ uint8, what agent.Change) {
		if what&agent.ClientReregister != 0 {
			reregistered++
		}
	}
	m := s.Attach(s.c2, sm.Config{}, sm.Intent{Prefix: 0xfec0000000000001, SubnetTimeout: 15, MaxMTU: ib.MTU2048},
		sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	seen := map[ib.LID]bool{}
	for _, n := range s.Nodes() {
		i := n.Agent.Port(n.End())
		if i.LID == 0 || seen[i.LID] || i.MasterSMLID != s.c2.Agent.LID() || i.GIDPrefix != 0xfec0000000000001 ||
			i.SubnetTimeOut != 15 {
			t.Errorf("%s: %+v", n.Name, i)
		}
		seen[i.LID] = true
		if n.End() == 1 && (i.NeighborMTU != ib.MTU2048 || i.OperationalVLs != mad.VL0) {
			t.Errorf("%s: MTU %d, VLs %d", n.Name, i.NeighborMTU, i.OperationalVLs)
		}
		if n.Agent.PKeys(n.End())[0] != ib.DefaultPKey {
			t.Errorf("%s: %x", n.Name, n.Agent.PKeys(n.End()))
		}
		if fw := n.Agent.Forwarding(); fw != nil && n.Agent.SwitchInfo().PortStateChange {
			t.Errorf("%s: PortStateChange", n.Name)
		}
	}
	if s.s2.Agent.Port(7).NeighborMTU != ib.MTU2048 {
		t.Error("MTU between switches")
	}
	if reregistered != 1 {
		t.Errorf("%d reregistrations", reregistered)
	}
	// Nothing to do later.
	sets := s.s1.Agent.Stats.Sets
	s.Run(time.Minute)
	if s.s1.Agent.Stats.Sets != sets || len(m.Status().Sweeps) < 6 || m.Status().Counters["unanswered"] != 0 {
		t.Errorf("%+v", m.Status())
	}
	// A heavy sweep of a subnet in order writes nothing.
	was := s.c3.Agent.Stats.Sets
	m.Sweep(s.Now)
	s.Poke(s.c2)
	settle(t, s.Fabric, m, time.Second)
	if s.s1.Agent.Stats.Sets != sets || s.c3.Agent.Stats.Sets != was || reregistered != 1 {
		t.Errorf("%d sets, had %d", s.s1.Agent.Stats.Sets, sets)
	}
}

// TestCable pulls cables and plugs them elsewhere: traps make the manager look
// at once, LIDs stay, and routes follow.
func TestCable(t *testing.T) {
	s := newSmall(1)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	before := lids(s.Fabric)
	s.Run(5 * time.Second)

	at := s.Now
	s.Cut(s.c3, 1)
	settle(t, s.Fabric, m, time.Second)
	if took := s.Now.Sub(at); took > 25*time.Millisecond {
		t.Errorf("noticed after %v", took)
	}
	if m.Topo().NodeByGUID(s.c3.Agent.Config().NodeGUID) >= 0 || len(m.Topo().Nodes) != 4 {
		t.Error("the adapter without a cable is still there")
	}
	if p := s.s2.Agent.Forwarding().Entry(before["host3"]); p != 0xff {
		t.Errorf("its LID still has a route: port %d", p)
	}
	// The switch's trap is not repeated: it was repressed.
	if n := s.s2.Agent.Stats.Traps; n != 1 {
		t.Errorf("%d traps", n)
	}
	s.Run(5 * time.Second)
	s.Link(s.c3, 1, s.s1, 5)
	settle(t, s.Fabric, m, time.Second)
	if diff := cmp.Diff(before, lids(s.Fabric)); diff != "" {
		t.Error(diff)
	}
	walkAll(t, m.Topo(), s.ends())
	if w, _ := m.Topo().Walk(m.Topo().Self, before["host3"], false); w.Hops != 2 {
		t.Errorf("%+v", w)
	}

	// The subnet falls apart, and comes together again. A switch sends no two
	// traps within the subnet's timeout, 1.07 s.
	s.Run(2 * time.Second)
	s.Cut(s.s1, 8)
	settle(t, s.Fabric, m, time.Second)
	if len(m.Topo().Nodes) != 4 {
		t.Errorf("%d nodes", len(m.Topo().Nodes))
	}
	s.Run(2 * time.Second)
	s.Link(s.s1, 7, s.s2, 3)
	settle(t, s.Fabric, m, time.Second)
	if diff := cmp.Diff(before, lids(s.Fabric)); diff != "" {
		t.Error(diff)
	}
	walkAll(t, m.Topo(), s.ends())
	if p := m.Status().Problems; len(p) != 0 {
		t.Errorf("%+v", p)
	}
}

// TestUnnoticed checks that a light sweep detects a change without a trap.
func TestUnnoticed(t *testing.T) {
	s := newSmall(1)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	s.s2.Agent.Port(0).MasterSMLID = 0 // it has no LID of a manager
	s.Cut(s.c3, 1)
	at := s.Now
	settle(t, s.Fabric, m, 20*time.Second)
	if took := s.Now.Sub(at); took < time.Second || took > 11*time.Second {
		t.Errorf("noticed after %v", took)
	}
	if s.s2.Agent.Port(0).MasterSMLID != s.c1.Agent.LID() {
		t.Error("it still does not know")
	}
}

// TestLinkOrders sees that a port a manager takes down comes up again.
func TestLinkOrders(t *testing.T) {
	s := newSmall(1)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	set := func(phys ib.PhysState, state ib.PortState) {
		i := *s.s1.Agent.Port(2)
		i.PortState, i.PortPhysicalState = state, phys
		p := mad.SMP{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSubnDR, ClassVersion: 1,
			Method: mad.MethodSet, AttributeID: mad.AttrPortInfo,
			AttributeModifier: 2}, DrSLID: ib.LIDPermissive, DrDLID: ib.LIDPermissive, HopCount: 1}
		p.InitialPath[1] = 1
		i.Append(p.Data[:0])
		d := mad.Datagram{SLID: ib.LIDPermissive, DLID: ib.LIDPermissive}
		p.Append(d.Data[:0])
		s.c1.Send(&d)
	}
	set(0, ib.PortDown)
	if !s.Until(time.Second, func() bool { return s.c2.Agent.Port(1).PortState == ib.PortDown }) {
		t.Fatal("the link did not go down at the other end")
	}
	settle(t, s.Fabric, m, 3*time.Second)
	set(ib.PhysDisabled, 0)
	s.Run(2 * time.Second)
	if s.c2.Agent.Port(1).PortState != ib.PortDown || len(m.Topo().Nodes) != 4 {
		t.Errorf("a port that was switched off has a link: %d nodes", len(m.Topo().Nodes))
	}
	set(ib.PhysPolling, 0)
	settle(t, s.Fabric, m, 15*time.Second)
}

// TestRestart starts a manager anew: with what the former one observed, with
// nothing, and with observations but everything else new.
func TestRestart(t *testing.T) {
	s := newSmall(1)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	before := lids(s.Fabric)
	o, version := m.Observations()
	if len(o.LIDs) != 5 || version == 0 {
		t.Fatalf("%+v %d", o, version)
	}
	s.Run(time.Second)
	s.Detach(s.c1)
	s.Cut(s.c2, 1)
	s.Run(time.Second)
	s.Link(s.c2, 1, s.s2, 2)
	for _, o := range []sm.Observations{o, {}} {
		m = s.Attach(s.c1, sm.Config{}, sm.Intent{}, o)
		settle(t, s.Fabric, m, time.Second)
		if diff := cmp.Diff(before, lids(s.Fabric)); diff != "" {
			t.Error(diff)
		}
		walkAll(t, m.Topo(), s.ends())
		s.Run(time.Second)
		s.Detach(s.c1)
	}
	// Another subnet of the same ports: LIDs come from what was observed.
	s = newSmall(2)
	for i, r := range o.LIDs {
		o.LIDs[i].LID = 100 + 2*r.LID
	}
	m = s.Attach(s.c1, sm.Config{}, sm.Intent{}, o)
	settle(t, s.Fabric, m, time.Second)
	for name, l := range lids(s.Fabric) {
		if l != 100+2*before[name] {
			t.Errorf("%s: LID %d", name, l)
		}
	}
	// A restarted switch has no tables, and gets them again.
	walkAll(t, m.Topo(), s.ends())
}

// TestSwitchReboots replaces a switch by one of the same GUID with empty
// tables.
func TestSwitchReboots(t *testing.T) {
	s := newSmall(1)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	lid := s.s2.Agent.LID()
	c := s.s2.Agent.Config()
	s.Cut(s.s1, 8)
	s.Cut(s.s2, 1)
	s.s2.Agent = agent.New(c, s.s2, nil)
	s.Link(s.s1, 8, s.s2, 7)
	s.Link(s.c3, 1, s.s2, 1)
	settle(t, s.Fabric, m, time.Second)
	if s.s2.Agent.LID() != lid {
		t.Errorf("LID %d, was %d", s.s2.Agent.LID(), lid)
	}
	for l := range ib.LID(6) {
		if got, want := s.s2.Agent.Forwarding().Entry(l), m.Topo().Nodes[m.Topo().NodeByGUID(c.NodeGUID)].Switch.LFT[l]; got != want {
			t.Errorf("LID %d: port %d, want %d", l, got, want)
		}
	}
}

// TestLoss brings a subnet up, changes it and keeps it up, while every cable drops packets.
func TestLoss(t *testing.T) {
	for _, loss := range []int{10, 50} {
		for seed := range uint64(5) {
			f := subnet.New(seed, hop)
			f.Loss = loss
			cas := subnet.FatTree(f, 4, 4, 2, 2)
			m := f.Attach(cas[0], sm.Config{}, sm.Intent{}, sm.Observations{})
			settle(t, f, m, time.Minute)
			walkAll(t, m.Topo(), cas)
			if m.Status().Counters["resent"] == 0 {
				t.Error("nothing was lost")
			}
			n, p := f.Cut(cas[5], 1)
			if !f.Until(30*time.Second, func() bool { return len(m.Topo().Nodes) == len(f.Nodes())-1 }) {
				t.Fatalf("loss %d seed %d: %+v", loss, seed, m.Status())
			}
			f.Run(time.Second)
			f.Link(cas[5], 1, n, p)
			if !f.Until(time.Minute, func() bool { return len(m.Topo().Nodes) == len(f.Nodes()) && f.Active() }) {
				t.Fatalf("loss %d seed %d: %+v", loss, seed, m.Status())
			}
			walkAll(t, m.Topo(), cas)
		}
	}
}
