// SPDX-License-Identifier: Apache-2.0

package topo

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// pair is two switches in a row with an adapter of two ports between them.
func pair() *Subnet {
	up := mad.PortInfo{LinkWidthActive: ib.Width4x, LinkSpeedActive: ib.SpeedQDR, NeighborMTU: ib.MTU4096}
	slow := up
	slow.LinkWidthActive, slow.NeighborMTU = ib.Width1x, ib.MTU2048
	s := &Subnet{Self: Ref{0, 0}, Prefix: ib.DefaultGIDPrefix}
	s.Nodes = []Node{
		{Info: mad.NodeInfo{NodeGUID: 10}, Switch: &Switch{LFT: []uint8{255, 0, 2, 255, 1, 1, 1, 1, 2}}, Ports: []Port{
			{GUID: 10, Info: mad.PortInfo{LID: 1, GIDPrefix: ib.DefaultGIDPrefix}, Peer: None}, {Info: up,
				Peer: Ref{2, 1}}, {Info: slow, Peer: Ref{1, 1}}}},
		{Info: mad.NodeInfo{NodeGUID: 11}, Switch: &Switch{LFT: []uint8{255, 1, 0, 255, 1, 1, 1, 1, 2}}, Ports: []Port{
			{GUID: 11, Info: mad.PortInfo{LID: 2}, Peer: None}, {Info: slow, Peer: Ref{0, 2}}, {Info: up,
				Peer: Ref{2, 2}}}},
		{Info: mad.NodeInfo{NodeGUID: 12}, Ports: []Port{{Peer: None}, {GUID: 13, Info: up, Peer: Ref{0, 1}},
			{GUID: 14, Info: up, Peer: Ref{1, 2}}}},
	}
	s.Nodes[2].Ports[1].Info.LID, s.Nodes[2].Ports[1].Info.LMC = 4, 2
	s.Nodes[2].Ports[2].Info.LID = 8
	s.Index()
	return s
}

func TestLookups(t *testing.T) {
	s := pair()
	if s.NodeByGUID(11) != 1 || s.NodeByGUID(99) != -1 || s.PortByGUID(14) != (Ref{2, 2}) || !s.PortByGUID(0).IsNone() {
		t.Error("by GUID")
	}
	want := []Ref{None, {0, 0}, {1, 0}, None, {2, 1}, {2, 1}, {2, 1}, {2, 1}, {2, 2}, None}
	for l, r := range want {
		if got := s.PortByLID(ib.LID(l)); got != r {
			t.Errorf("LID %d: %v, want %v", l, got, r)
		}
	}
	if s.TopLID() != 8 || !s.PortByLID(0xffff).IsNone() || s.Port(None) != nil || s.Port(Ref{5, 0}) != nil ||
		s.Port(Ref{0, 9}) != nil {
		t.Error("bounds")
	}
	if diff := cmp.Diff([]int32{0, 1}, s.Switches()); diff != "" || s.Nodes[1].Switch.Rank != 1 {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Link{{Ref{0, 1}, Ref{2, 1}}, {Ref{0, 2}, Ref{1, 1}}, {Ref{1, 2}, Ref{2, 2}}},
		s.Links()); diff != "" {
		t.Error(diff)
	}
	if s.Attached(Ref{2, 2}) != (Ref{1, 2}) || s.Attached(Ref{1, 0}) != (Ref{1, 0}) || !s.Attached(None).IsNone() {
		t.Error("attached")
	}
	if s.GID(Ref{0, 0}) != ib.MakeGID(ib.DefaultGIDPrefix, 10) || !s.GID(None).IsZero() {
		t.Error("GID")
	}
}

func TestWalk(t *testing.T) {
	s := pair()
	w, ok := s.Walk(Ref{2, 1}, 8, true)
	want := Route{To: Ref{2, 2}, Hops: 3, MTU: ib.MTU2048, Rate: ib.Rate10, Ports: []Ref{{2, 1}, {0, 2}, {1, 2}}}
	if diff := cmp.Diff(want, w); diff != "" || !ok {
		t.Error(diff, ok)
	}
	if w, ok = s.Walk(Ref{0, 0}, 6, false); !ok || w.Hops != 1 || w.Rate != ib.Rate40 || w.Ports != nil {
		t.Errorf("%+v %v", w, ok)
	}
	if w, ok = s.Walk(Ref{2, 1}, 1, false); !ok || w.Hops != 1 || w.To != (Ref{0, 0}) {
		t.Errorf("to a switch: %+v %v", w, ok)
	}
	if w, ok = s.Walk(Ref{2, 1}, 5, false); !ok || w.Hops != 0 {
		t.Errorf("to itself: %+v %v", w, ok)
	}
	for _, l := range []ib.LID{0, 3, 9, 0xffff} {
		if _, ok := s.Walk(Ref{2, 1}, l, false); ok {
			t.Errorf("a way to %d", l)
		}
	}
	s.Nodes[1].Switch.LFT[8] = 1 // back where it came from
	if _, ok := s.Walk(Ref{2, 1}, 8, false); ok {
		t.Error("a circle leads somewhere")
	}
}

func TestCloneIsApart(t *testing.T) {
	s := pair()
	c := s.Clone()
	c.Nodes[0].Ports[1].Info.LID = 99
	c.Nodes[0].Switch.LFT = nil
	c.Nodes = c.Nodes[:1]
	if s.Nodes[0].Ports[1].Info.LID == 99 || s.Nodes[0].Switch.LFT == nil || len(s.Nodes) != 3 || c.Self != s.Self {
		t.Error("the original changed")
	}
}

// TestJSON checks that a model survives being written down.
func TestJSON(t *testing.T) {
	s := pair()
	s.Nodes[0].Switch.MFT = map[ib.LID]PortMask{0xc001: {0: 6}}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	back := &Subnet{}
	if err := json.Unmarshal(b, back); err != nil {
		t.Fatal(err)
	}
	back.Index()
	if diff := cmp.Diff(s, back, cmp.AllowUnexported(Subnet{})); diff != "" {
		t.Error(diff)
	}
}

func TestPortMask(t *testing.T) {
	var m PortMask
	for _, n := range []uint8{0, 15, 16, 255} {
		m.Add(n)
	}
	m.Remove(16)
	if !m.Has(0) || !m.Has(15) || m.Has(16) || !m.Has(255) || m.IsEmpty() || m[0] != 0x8001 || m[15] != 0x8000 ||
		!new(PortMask).IsEmpty() {
		t.Errorf("%x", m)
	}
}
