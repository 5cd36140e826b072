// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

const start = mono.Time(time.Second)

// log is an owner that records its calls.
type log struct{ lines []string }

func (l *log) Changed(port uint8, what Change) {
	l.lines = append(l.lines, fmt.Sprintf("port %d: changed %#x", port, uint16(what)))
}
func (l *log) Link(port uint8, o Order) {
	l.lines = append(l.lines, fmt.Sprintf("port %d: order %d", port, o))
}
func (l *log) take() []string { s := l.lines; l.lines = nil; return s }

func fastCaps() Caps {
	c := DefaultCaps
	c.VL = mad.VL0to3
	c.PKeys = 40
	c.GUIDs = 10
	return c
}

func newSwitch(ports uint8) (*Agent, *log) {
	l := &log{}
	return New(Config{Type: mad.NodeSwitch, NumPorts: ports, SystemImageGUID: 0x100, NodeGUID: 0x100,
		Description: "switch", Caps: fastCaps(),
		EnforceCap: 32, VendorID: 0x1405, DeviceID: 7, Revision: 3, TIDs: 0xabc}, l, nil), l
}

func newCA() (*Agent, *log) {
	l := &log{}
	a := New(Config{Type: mad.NodeCA, SystemImageGUID: 0x100, NodeGUID: 0x200, PortGUID: 0x201,
		Description: "host HCA-1", Caps: fastCaps()}, l, nil)
	a.LinkUp(start, 1, edr)
	l.take()
	return a, l
}

var edr = Link{Width: ib.Width4x, Speed: ib.SpeedQDR, SpeedExt: ib.SpeedEDR}

type attribute interface{ Append([]byte) []byte }

// smp returns a directed-route request for hop 0 … of path.
func request(method mad.Method, attr mad.AttributeID, mod uint32, data attribute, path ...uint8) mad.Datagram {
	s := mad.SMP{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSubnDR, ClassVersion: 1, Method: method,
		TransactionID: 0x1234,
		AttributeID:   attr, AttributeModifier: mod}, DrSLID: ib.LIDPermissive, DrDLID: ib.LIDPermissive,
		HopCount: uint8(len(path))}
	copy(s.InitialPath[1:], path)
	if data != nil {
		data.Append(s.Data[:0])
	}
	d := mad.Datagram{SLID: ib.LIDPermissive, DLID: ib.LIDPermissive}
	s.Append(d.Data[:0])
	return d
}

func smpOf(t *testing.T, d *mad.Datagram) (s mad.SMP) {
	t.Helper()
	if err := s.Parse(d.Data[:]); err != nil {
		t.Fatal(err)
	}
	return s
}

// ask sends a request to the node itself and returns the answer.
func ask(t *testing.T, a *Agent, method mad.Method, attr mad.AttributeID, mod uint32, data attribute) mad.SMP {
	t.Helper()
	d := request(method, attr, mod, data)
	if v := a.Originate(start, &d); v != Deliver {
		t.Fatalf("%v of %#x: verdict %d", method, attr, v)
	}
	s := smpOf(t, &d)
	if s.Method != mad.MethodGetResp || s.TransactionID != 0x1234 || s.AttributeID != attr ||
		s.AttributeModifier != mod || !s.D {
		t.Fatalf("%v of %#x: answer %+v", method, attr, s.Header)
	}
	return s
}

func portInfo(t *testing.T, a *Agent, n uint8) (i mad.PortInfo) {
	t.Helper()
	s := ask(t, a, mad.MethodGet, mad.AttrPortInfo, uint32(n), nil)
	if s.Status != 0 || i.Parse(s.Data[:]) != nil {
		t.Fatalf("port %d: %v", n, s.Status)
	}
	return i
}

// TestDirectedRouteWalk follows a request over two switches and its answer
// back (the walk of test/vectors/headers.json, dr_smp_walk).
func TestDirectedRouteWalk(t *testing.T) {
	ca, _ := newCA()
	s1, _ := newSwitch(4)
	s2, _ := newSwitch(4)
	for _, p := range []uint8{1, 3} {
		s1.LinkUp(start, p, edr)
	}
	s2.LinkUp(start, 1, edr)
	d := request(mad.MethodGet, mad.AttrNodeInfo, 0, nil, 1, 3)
	type step struct {
		v           Verdict
		port        uint8
		d           bool
		pointer     uint8
		ret1, ret2  uint8
		slid, dlid  ib.LID
		description string
	}
	var got []step
	note := func(where string, v Verdict) {
		s := smpOf(t, &d)
		got = append(got, step{v, d.Port, s.D, s.HopPointer, s.ReturnPath[1], s.ReturnPath[2], d.SLID, d.DLID, where})
	}
	note("CA out", ca.Originate(start, &d))
	d.Port = 1
	note("S1 forwards", s1.Handle(start, &d))
	d.Port = 1
	note("S2 answers", s2.Handle(start, &d))
	other := d
	other.Port = 4
	s1.LinkUp(start, 4, edr)
	if v := s1.Handle(start, &other); v != Done || s1.Stats.DropRoute != 1 {
		t.Errorf("an answer by another port than its request: verdict %d", v)
	}
	d.Port = 3
	note("S1 returns", s1.Handle(start, &d))
	d.Port = 1
	note("CA in", ca.Handle(start, &d))
	x := ib.LIDPermissive
	want := []step{
		{Send, 1, false, 1, 0, 0, x, x, "CA out"},
		{Send, 3, false, 2, 1, 0, x, x, "S1 forwards"},
		{Send, 1, true, 2, 1, 1, x, x, "S2 answers"},
		{Send, 1, true, 1, 1, 1, x, x, "S1 returns"},
		{Deliver, 1, true, 0, 1, 1, x, x, "CA in"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(step{})); diff != "" {
		t.Error(diff)
	}
	s := smpOf(t, &d)
	var n mad.NodeInfo
	n.Parse(s.Data[:])
	want2 := mad.NodeInfo{BaseVersion: 1, ClassVersion: 1, NodeType: mad.NodeSwitch, NumPorts: 4,
		SystemImageGUID: 0x100, NodeGUID: 0x100,
		PortGUID: 0x100, PartitionCap: 40, DeviceID: 7, Revision: 3, LocalPortNum: 1, VendorID: 0x1405}
	if diff := cmp.Diff(want2, n); diff != "" || s.Status != 0 {
		t.Errorf("%v %s", s.Status, diff)
	}
	// A port without a link, one that does not exist, and an adapter in the middle.
	for _, path := range [][]uint8{{1, 2}, {1, 5}, {1, 0}} {
		d := request(mad.MethodGet, mad.AttrNodeInfo, 0, nil, path...)
		ca.Originate(start, &d)
		d.Port = 1
		if v := s1.Handle(start, &d); v != Done {
			t.Errorf("path %v: verdict %d", path, v)
		}
	}
	d = request(mad.MethodGet, mad.AttrNodeInfo, 0, nil, 1, 1, 1)
	s2.Originate(start, &d)
	d.Port = 1
	if v := ca.Handle(start, &d); v != Done || ca.Stats.DropRoute != 1 {
		t.Errorf("through an adapter: verdict %d", v)
	}
	// An adapter leaves by its only port.
	d = request(mad.MethodGet, mad.AttrNodeInfo, 0, nil, 2)
	if v := ca.Originate(start, &d); v != Done {
		t.Errorf("by port 2 of an adapter: %d", v)
	}
}

// TestLIDRouted sends SMPs by LID through a switch that has a table.
func TestLIDRouted(t *testing.T) {
	sw, _ := newSwitch(4)
	ca, _ := newCA()
	for _, p := range []uint8{1, 2} {
		sw.LinkUp(start, p, edr)
	}
	sw.Port(0).LID = 1
	ca.Port(1).LID, ca.Port(1).LMC = 8, 2
	lid := func(slid, dlid ib.LID, port uint8) mad.Datagram {
		d := request(mad.MethodGet, mad.AttrNodeDescription, 0, nil)
		s := smpOf(t, &d)
		s.MgmtClass = mad.ClassSubnLID
		s.Append(d.Data[:0])
		d.SLID, d.DLID, d.Port = slid, dlid, port
		return d
	}
	tab := mad.LFT{0: 255, 1: 0, 2: 1, 8: 2, 9: 2, 10: 2, 11: 2}
	ask(t, sw, mad.MethodSet, mad.AttrLFT, 0, &tab)
	if d := lid(2, 8, 1); sw.Handle(start, &d) != Done {
		t.Error("routed above LinearFDBTop")
	}
	ask(t, sw, mad.MethodSet, mad.AttrSwitchInfo, 0, &mad.SwitchInfo{LinearFDBTop: 63})
	d := lid(2, 10, 1)
	if v := sw.Handle(start, &d); v != Send || d.Port != 2 {
		t.Fatalf("verdict %d, port %d", v, d.Port)
	}
	d.Port = 1
	if v := ca.Handle(start, &d); v != Send || d.Port != 1 || d.SLID != 10 || d.DLID != 2 {
		t.Fatalf("verdict %d: %+v", v, d)
	}
	s := smpOf(t, &d)
	if s.Method != mad.MethodGetResp || string(s.Data[:4]) != "host" {
		t.Errorf("%+v", s)
	}
	d.Port = 2
	if v := sw.Handle(start, &d); v != Send || d.Port != 1 {
		t.Errorf("back: verdict %d, port %d", v, d.Port)
	}
	d = lid(2, 1, 1) // the switch itself
	if v := sw.Handle(start, &d); v != Send || d.Port != 1 || d.DLID != 2 {
		t.Errorf("switch: verdict %d: %+v", v, d)
	}
	d = lid(2, 12, 1) // behind the adapter's range
	if v := ca.Handle(start, &d); v != Done || ca.Stats.DropLID != 1 {
		t.Errorf("foreign LID: verdict %d", v)
	}
	// From the switch's own manager.
	d = lid(1, 8, 0)
	if v := sw.Originate(start, &d); v != Send || d.Port != 2 {
		t.Errorf("verdict %d, port %d", v, d.Port)
	}
	d = lid(1, 1, 0)
	if v := sw.Originate(start, &d); v != Deliver || smpOf(t, &d).Method != mad.MethodGetResp {
		t.Errorf("to itself: verdict %d", v)
	}
	// The directed part of a route may end at a switch and go on by LID.
	d = request(mad.MethodGet, mad.AttrNodeDescription, 0, nil, 1)
	s = smpOf(t, &d)
	s.DrDLID, s.HopPointer, s.InitialPath[1] = 8, 1, 3
	s.Append(d.Data[:0])
	d.Port = 1
	if v := sw.Handle(start, &d); v != Send || d.Port != 2 || d.DLID != 8 || d.SLID != 1 {
		t.Errorf("verdict %d: %+v", v, d)
	}
	d.Port = 1
	if v := ca.Handle(start, &d); v != Send || d.Port != 1 || d.DLID != 1 {
		t.Errorf("answer: verdict %d: %+v", v, d)
	}
}

// TestStatuses requests each attribute with valid and invalid values.
func TestStatuses(t *testing.T) {
	sw, _ := newSwitch(20)
	ca, _ := newCA()
	var zero64 mad.LFT
	const ok, bad, val = mad.StatusOK, mad.StatusBadMethodAttr, mad.StatusInvalidValue
	for _, c := range []struct {
		attr   mad.AttributeID
		mod    uint32
		ca, sw mad.Status // of a Get
	}{
		{mad.AttrNodeDescription, 0, ok, ok},
		{mad.AttrNodeInfo, 0, ok, ok},
		{mad.AttrSwitchInfo, 0, bad, ok},
		{mad.AttrGUIDInfo, 0, ok, ok}, {mad.AttrGUIDInfo, 1, ok, ok}, {mad.AttrGUIDInfo, 2, val,
			val}, {mad.AttrGUIDInfo, 0x10000, val, val},
		{mad.AttrPortInfo, 0, ok, ok}, {mad.AttrPortInfo, 1, ok, ok}, {mad.AttrPortInfo, 2, val,
			ok}, {mad.AttrPortInfo, 20, val, ok},
		{mad.AttrPortInfo, 21, val, val}, {mad.AttrPortInfo, 255, val, val}, {mad.AttrPortInfo, 0x80000001, ok,
			ok}, {mad.AttrPortInfo, 0x101, val, val},
		{mad.AttrPKeyTable, 0, ok, ok}, {mad.AttrPKeyTable, 1, ok, ok}, {mad.AttrPKeyTable, 2, val, val},
		{mad.AttrPKeyTable, mad.PKeyModifier(1, 0), ok, ok}, {mad.AttrPKeyTable, mad.PKeyModifier(1, 1), ok, val},
		{mad.AttrPKeyTable, mad.PKeyModifier(2, 0), val, ok}, {mad.AttrPKeyTable, mad.PKeyModifier(21, 0), val,
			val}, {mad.AttrPKeyTable, 0x01000000, val, val},
		{mad.AttrSLtoVL, 0, ok, ok}, {mad.AttrSLtoVL, mad.SLtoVLModifier(20, 3), ok, ok}, {mad.AttrSLtoVL,
			mad.SLtoVLModifier(3, 21), ok, val},
		{mad.AttrSLtoVL, 0x10000, ok, val},
		{mad.AttrVLArb, mad.VLArbModifier(1, 0), ok, ok}, {mad.AttrVLArb, mad.VLArbModifier(4, 1), ok,
			ok}, {mad.AttrVLArb, mad.VLArbModifier(5, 1), val, val},
		{mad.AttrVLArb, mad.VLArbModifier(0, 1), val, val}, {mad.AttrVLArb, mad.VLArbModifier(1, 7), val, ok},
		{mad.AttrLFT, 0, bad, ok}, {mad.AttrLFT, 767, bad, ok}, {mad.AttrLFT, 768, bad, val}, {mad.AttrLFT, 0x10000,
			bad, val},
		{mad.AttrMFT, mad.MFTModifier(1, 511), bad, ok}, {mad.AttrMFT, mad.MFTModifier(2, 0), bad, val},
		{mad.AttrSMInfo, 0, bad, bad}, {mad.AttrNotice, 0, bad, bad}, {mad.AttrVendorDiag, 0, bad,
			bad}, {mad.AttrLedInfo, 0, bad, bad},
		{mad.AttrRFT, 0, bad, bad}, {mad.AttrMlxExtendedPortInfo, 1, bad, bad}, {0x7777, 0, bad, bad},
	} {
		for _, a := range []*Agent{ca, sw} {
			want := c.ca
			if a == sw {
				want = c.sw
			}
			if s := ask(t, a, mad.MethodGet, c.attr, c.mod, nil); s.Status != want {
				t.Errorf("%v Get(%#x, %#x): %#04x, want %#04x", a.cfg.Type, c.attr, c.mod, s.Status, want)
			}
			// A Set of what was got: the same status, but NodeInfo is read-only.
			if c.attr == mad.AttrNodeInfo {
				want = bad
			}
			got := ask(t, a, mad.MethodGet, c.attr, c.mod, nil)
			data := attribute(&zero64)
			if got.Status == ok {
				if c.attr == mad.AttrPortInfo { // states are not written back
					var i mad.PortInfo
					i.Parse(got.Data[:])
					i.PortState, i.PortPhysicalState = 0, 0
					i.Append(got.Data[:0])
				}
				l := mad.LFT(got.Data)
				data = &l
			}
			if s := ask(t, a, mad.MethodSet, c.attr, c.mod, data); s.Status != want {
				t.Errorf("%v Set(%#x, %#x): %#04x, want %#04x", a.cfg.Type, c.attr, c.mod, s.Status, want)
			}
		}
	}
	// What is wrong before the attribute.
	for name, c := range map[string]struct {
		edit func(*mad.SMP)
		want mad.Status
		drop bool
	}{
		"class version":      {func(s *mad.SMP) { s.ClassVersion = 2 }, mad.StatusBadVersion, false},
		"base version":       {func(s *mad.SMP) { s.BaseVersion = 2 }, 0, true},
		"method Send":        {func(s *mad.SMP) { s.Method = mad.MethodSend }, 0, true},
		"method Report":      {func(s *mad.SMP) { s.Method = mad.MethodReport }, 0, true},
		"trap, no manager":   {func(s *mad.SMP) { s.Method = mad.MethodTrap }, 0, true},
		"hop count 64":       {func(s *mad.SMP) { s.HopCount = 64 }, 0, true},
		"another hop behind": {func(s *mad.SMP) { s.HopPointer = 2 }, 0, true},
	} {
		d := request(mad.MethodGet, mad.AttrNodeInfo, 0, nil)
		s := smpOf(t, &d)
		c.edit(&s)
		s.Append(d.Data[:0])
		v := ca.Originate(start, &d)
		if c.drop != (v == Done) || !c.drop && smpOf(t, &d).Status != c.want {
			t.Errorf("%s: verdict %d, %#04x", name, v, smpOf(t, &d).Status)
		}
	}
}

// TestManagerAttached checks that SMInfo and traps go to the manager where
// there is one.
func TestManagerAttached(t *testing.T) {
	ca, _ := newCA()
	ca.SetCapability(start, mad.CapIsSM, true)
	for _, m := range []mad.Method{mad.MethodGet, mad.MethodSet} {
		d := request(m, mad.AttrSMInfo, 0, nil)
		if v := ca.Originate(start, &d); v != Deliver || smpOf(t, &d).Method != m {
			t.Errorf("%v: verdict %d, %v", m, v, smpOf(t, &d).Method)
		}
	}
	d := request(mad.MethodTrap, mad.AttrNotice, 0, nil)
	if v := ca.Originate(start, &d); v != Deliver {
		t.Errorf("trap: verdict %d", v)
	}
	ca.SetCapability(start, mad.CapIsSM, false)
	if s := ask(t, ca, mad.MethodGet, mad.AttrSMInfo, 0, nil); s.Status != mad.StatusBadMethodAttr {
		t.Errorf("without: %v", s.Status)
	}
}

func TestTables(t *testing.T) {
	ca, l := newCA()
	keys := mad.PKeyTable{0: 0x8001, 7: 0x0002, 31: 3}
	if s := ask(t, ca, mad.MethodSet, mad.AttrPKeyTable, 1, &keys); s.Status != 0 {
		t.Fatal(s.Status)
	} else {
		// The table has 40 entries: of the second block 8.
		var got mad.PKeyTable
		got.Parse(s.Data[:])
		if got != (mad.PKeyTable{0: 0x8001, 7: 0x0002}) || ca.PKeys(1)[39] != 2 || len(ca.PKeys(1)) != 40 ||
			ca.PKeys(1)[0] != ib.DefaultPKey {
			t.Errorf("%x %x", got, ca.PKeys(1))
		}
	}
	guids := mad.GUIDInfo{1, 2, 3}
	ask(t, ca, mad.MethodSet, mad.AttrGUIDInfo, 0, &guids)
	if g := ca.GUIDs(); g[0] != 0x201 || g[1] != 2 || g[2] != 3 || len(g) != 10 {
		t.Errorf("%v", g)
	}
	sl := mad.SLtoVL{0: 3, 15: 15}
	ask(t, ca, mad.MethodSet, mad.AttrSLtoVL, 0, &sl)
	if ca.SLtoVL(0, 0) != sl {
		t.Errorf("%v", ca.SLtoVL(0, 0))
	}
	arb := mad.VLArb{{VL: 1, Weight: 200}}
	ask(t, ca, mad.MethodSet, mad.AttrVLArb, mad.VLArbModifier(3, 1), &arb)
	var got mad.VLArb
	s := ask(t, ca, mad.MethodGet, mad.AttrVLArb, mad.VLArbModifier(3, 0), nil)
	if got.Parse(s.Data[:]); got != arb {
		t.Errorf("%v", got)
	}
	want := []string{"port 1: changed 0x8", "port 1: changed 0x10", "port 1: changed 0x40", "port 1: changed 0x40"}
	if diff := cmp.Diff(want, l.take()); diff != "" {
		t.Error(diff)
	}
	// Unchanged values are accepted and are no news.
	ask(t, ca, mad.MethodSet, mad.AttrPKeyTable, 1, &keys)
	ask(t, ca, mad.MethodSet, mad.AttrSLtoVL, 0, &sl)
	ask(t, ca, mad.MethodSet, mad.AttrVLArb, mad.VLArbModifier(3, 1), &arb)
	desc := mad.MakeNodeDescription("another")
	ask(t, ca, mad.MethodSet, mad.AttrNodeDescription, 0, &desc)
	if diff := cmp.Diff([]string{"port 1: changed 0x200"}, l.take()); diff != "" || ca.Description() != "another" {
		t.Error(diff)
	}

	sw, l := newSwitch(20)
	sw.LinkUp(start, 1, edr)
	sw.LinkUp(start, 17, edr)
	l.take()
	lft := mad.LFT{5: 17, 0: 3}
	s = ask(t, sw, mad.MethodSet, mad.AttrLFT, 0, &lft)
	if s.Data[0] != 0xff || s.Data[5] != 17 {
		t.Errorf("% x", s.Data)
	}
	mft := mad.MFT{2: 0xffff}
	s = ask(t, sw, mad.MethodSet, mad.AttrMFT, mad.MFTModifier(1, 0), &mft)
	var m mad.MFT
	if m.Parse(s.Data[:]); m != (mad.MFT{2: 0x1f}) { // ports 16 … 20
		t.Errorf("%x", m)
	}
	if diff := cmp.Diff([]string{"port 0: changed 0x100", "port 0: changed 0x100"}, l.take()); diff != "" {
		t.Error(diff)
	}
	si := mad.SwitchInfo{LinearFDBTop: 100, LifeTimeValue: 9, DefaultMulticastPrimaryPort: 1,
		DefaultMulticastNotPrimaryPort: 17,
		MulticastFDBTop:                0xbfff, LinearFDBCap: 1, PartitionEnforcementCap: 9, OptimizedSLtoVLMapping: 3}
	s = ask(t, sw, mad.MethodSet, mad.AttrSwitchInfo, 0, &si)
	want2 := mad.SwitchInfo{LinearFDBCap: 0xc000, MulticastFDBCap: 0x3fff, LinearFDBTop: 100, LifeTimeValue: 9,
		DefaultPort:                 0,
		DefaultMulticastPrimaryPort: 1, DefaultMulticastNotPrimaryPort: 17, MulticastFDBTop: 0xbfff, PartitionEnforcementCap: 32,
		InboundEnforcementCap: true, OutboundEnforcementCap: true, PortStateChange: true}
	var have mad.SwitchInfo
	have.Parse(s.Data[:])
	if diff := cmp.Diff(want2, have); diff != "" {
		t.Error(diff)
	}
	si.PortStateChange = true
	s = ask(t, sw, mad.MethodSet, mad.AttrSwitchInfo, 0, &si)
	if have.Parse(s.Data[:]); have.PortStateChange {
		t.Error("PortStateChange was not cleared")
	}
	for _, bad := range []mad.SwitchInfo{{LinearFDBTop: 0xc000}, {MulticastFDBTop: 0xbffe}, {MulticastFDBTop: 0xffff}} {
		if s := ask(t, sw, mad.MethodSet, mad.AttrSwitchInfo, 0, &bad); s.Status != mad.StatusInvalidValue {
			t.Errorf("%+v: %v", bad, s.Status)
		}
	}
	// The tables route.
	sw.Port(1).PortState, sw.Port(17).PortState = ib.PortActive, ib.PortActive
	sw.changed(1, ChangedState)
	sw.changed(17, ChangedState)
	if out, why := sw.Forwarding().Unicast(1, 5, ib.DefaultPKey); out != 17 || why != 0 {
		t.Errorf("port %d, %v", out, why)
	}
}

// TestPartitionEnforcement sets keys of an external port and switches their
// enforcement on.
func TestPartitionEnforcement(t *testing.T) {
	sw, l := newSwitch(2)
	sw.LinkUp(start, 1, edr)
	l.take()
	ask(t, sw, mad.MethodSet, mad.AttrPKeyTable, mad.PKeyModifier(1, 0), &mad.PKeyTable{0x8005})
	i := portInfo(t, sw, 1)
	i.PartitionEnforceIn, i.PartitionEnforceOut, i.PortState, i.PortPhysicalState = true, true, 0, 0
	ask(t, sw, mad.MethodSet, mad.AttrPortInfo, 1, &i)
	p := sw.Forwarding().Port(1)
	if !p.EnforceIn || !p.EnforceOut || p.PKeys[0] != 0x8005 || p.State != ib.PortInit {
		t.Errorf("%+v", p)
	}
	if diff := cmp.Diff([]string{"port 1: changed 0x8", "port 1: changed 0x8"}, l.take()); diff != "" {
		t.Error(diff)
	}
}

// TestPortInfoValues sets one value each and reads what became of it.
func TestPortInfoValues(t *testing.T) {
	type edit = func(*mad.PortInfo)
	const ok, val = mad.StatusOK, mad.StatusInvalidValue
	for name, c := range map[string]struct {
		edit   edit
		status mad.Status
		want   edit // on what was there before
		change Change
	}{
		"nothing": {func(i *mad.PortInfo) {}, ok, func(i *mad.PortInfo) {}, 0},
		"LID": {func(i *mad.PortInfo) { i.LID = 5 }, ok, func(i *mad.PortInfo) { i.LID = 5 },
			ChangedLID},
		"LMC": {func(i *mad.PortInfo) { i.LID, i.LMC = 8, 3 }, ok, func(i *mad.PortInfo) {
			i.LID,
				i.LMC = 8, 3
		}, ChangedLID},
		"LID inside LMC": {func(i *mad.PortInfo) { i.LID, i.LMC = 9, 3 }, val, nil, 0},
		"multicast LID":  {func(i *mad.PortInfo) { i.LID = 0xc000 }, val, nil, 0},
		"manager": {func(i *mad.PortInfo) { i.MasterSMLID, i.MasterSMSL = 3, 2 }, ok,
			func(i *mad.PortInfo) { i.MasterSMLID, i.MasterSMSL = 3, 2 }, ChangedSM},
		"manager multicast": {func(i *mad.PortInfo) { i.MasterSMLID = 0xffff }, val, nil, 0},
		"prefix": {func(i *mad.PortInfo) { i.GIDPrefix = 7 }, ok,
			func(i *mad.PortInfo) { i.GIDPrefix = 7 }, ChangedGIDs},
		"timeout": {func(i *mad.PortInfo) { i.SubnetTimeOut = 7 }, ok,
			func(i *mad.PortInfo) { i.SubnetTimeOut = 7 }, ChangedTimeouts},
		"reregister": {func(i *mad.PortInfo) { i.ClientReregister = true }, ok, func(i *mad.PortInfo) {},
			ClientReregister},
		"MTU": {func(i *mad.PortInfo) { i.NeighborMTU = ib.MTU2048 }, ok,
			func(i *mad.PortInfo) { i.NeighborMTU = ib.MTU2048 }, ChangedMTU},
		"MTU 0":         {func(i *mad.PortInfo) { i.NeighborMTU = 0 }, ok, func(i *mad.PortInfo) {}, 0},
		"MTU too large": {func(i *mad.PortInfo) { i.NeighborMTU = 6 }, val, nil, 0},
		"lanes": {func(i *mad.PortInfo) { i.OperationalVLs = mad.VL0 }, ok,
			func(i *mad.PortInfo) { i.OperationalVLs = mad.VL0 }, ChangedVLs},
		"too many lanes": {func(i *mad.PortInfo) { i.OperationalVLs = mad.VL0to7 }, val, nil, 0},
		"width": {func(i *mad.PortInfo) { i.LinkWidthEnabled = 1 }, ok,
			func(i *mad.PortInfo) { i.LinkWidthEnabled = 1 }, 0},
		"all widths":        {func(i *mad.PortInfo) { i.LinkWidthEnabled = 255 }, ok, func(i *mad.PortInfo) {}, 0},
		"width unsupported": {func(i *mad.PortInfo) { i.LinkWidthEnabled = 4 }, val, nil, 0},
		"speed": {func(i *mad.PortInfo) { i.LinkSpeedEnabled = 3 }, ok,
			func(i *mad.PortInfo) { i.LinkSpeedEnabled = 3 }, 0},
		"all speeds":        {func(i *mad.PortInfo) { i.LinkSpeedEnabled = 15 }, ok, func(i *mad.PortInfo) {}, 0},
		"speed unsupported": {func(i *mad.PortInfo) { i.LinkSpeedEnabled = 8 }, val, nil, 0},
		"default state": {func(i *mad.PortInfo) { i.LinkDownDefaultState = 1 }, ok,
			func(i *mad.PortInfo) { i.LinkDownDefaultState = 1 }, 0},
		"default state 3":      {func(i *mad.PortInfo) { i.LinkDownDefaultState = 3 }, val, nil, 0},
		"physical state 4":     {func(i *mad.PortInfo) { i.PortPhysicalState = 4 }, val, nil, 0},
		"state INIT":           {func(i *mad.PortInfo) { i.PortState = ib.PortInit }, val, nil, 0},
		"state ACTIVE in INIT": {func(i *mad.PortInfo) { i.PortState = ib.PortActive }, val, nil, 0},
		"state 5":              {func(i *mad.PortInfo) { i.PortState = 5 }, val, nil, 0},
		"key": {func(i *mad.PortInfo) { i.MKey, i.MKeyProtectBits, i.MKeyLeasePeriod = 9, 0, 3 }, ok,
			func(i *mad.PortInfo) {
				i.MKey, i.MKeyLeasePeriod = 9, 3
			}, ChangedOther},
		"violations": {func(i *mad.PortInfo) { i.MKeyViolations, i.PKeyViolations, i.QKeyViolations = 0, 9, 0 }, ok,
			func(i *mad.PortInfo) {
				i.MKeyViolations, i.QKeyViolations = 0, 0
			}, 0},
		"what is read-only": {func(i *mad.PortInfo) {
			i.CapabilityMask, i.MTUCap, i.VLCap, i.GUIDCap, i.LinkWidthSupported, i.LinkWidthActive, i.CapabilityMask2 = 0, 1, 1, 1, 8, 8, 0
			i.LinkSpeedSupported, i.LinkSpeedActive, i.LinkSpeedExtSupported, i.LocalPortNum, i.DiagCode, i.MaxCreditHint = 15, 2, 15, 9, 9, 9
			i.RespTimeValue, i.LinkRoundTripLatency, i.VLArbHighCap, i.VLArbLowCap, i.McastPKeyTrapSuppress = 9, 9, 9, 9, 3
		}, ok, func(i *mad.PortInfo) {}, 0},
		"limits": {func(i *mad.PortInfo) {
			i.VLHighLimit, i.HOQLife, i.VLStallCount, i.LocalPhyErrors, i.OverrunErrors = 1, 2, 3, 4, 5
		}, ok,
			func(i *mad.PortInfo) {
				i.VLHighLimit, i.HOQLife, i.VLStallCount, i.LocalPhyErrors, i.OverrunErrors = 1, 2, 3, 4, 5
			}, 0},
		"one wrong of two": {func(i *mad.PortInfo) { i.LID, i.NeighborMTU = 5, 7 }, val, nil, 0},
	} {
		ca, l := newCA()
		ca.Port(1).MKeyViolations, ca.Port(1).PKeyViolations = 1, 2
		want := portInfo(t, ca, 1)
		w := want
		w.PortState, w.PortPhysicalState = 0, 0
		c.edit(&w)
		s := ask(t, ca, mad.MethodSet, mad.AttrPortInfo, 1, &w)
		if s.Status != c.status {
			t.Errorf("%s: %#04x, want %#04x", name, s.Status, c.status)
			continue
		}
		if c.want != nil {
			c.want(&want)
		}
		got := portInfo(t, ca, 1)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if s.Status == ok {
			var answer mad.PortInfo
			if answer.Parse(s.Data[:]); answer != got {
				t.Errorf("%s: answer %s", name, cmp.Diff(got, answer))
			}
		}
		var log []string
		if c.change != 0 {
			log = []string{fmt.Sprintf("port 1: changed %#x", uint16(c.change))}
		}
		if got := l.take(); !slices.Equal(got, log) {
			t.Errorf("%s: told %q, want %q", name, got, log)
		}
	}
}

// TestExtendedSpeeds: extended speeds are validated and applied only if the manager supports them.
func TestExtendedSpeeds(t *testing.T) {
	for _, c := range []struct {
		mod    uint32
		v      ib.LinkSpeedExt
		status mad.Status
		want   ib.LinkSpeedExt
	}{
		{1, 1, 0, 3}, {1, 4, 0, 3}, {0x80000001, 1, 0, 1}, {0x80000001, 4, mad.StatusInvalidValue, 3}, {0x80000001,
			31, 0, 3},
		{0x80000001, 30, 0, 30}, {0x80000000, 0, 0, 3}, {0x80000000, 2, 0, 2},
	} {
		ca, _ := newCA()
		i := portInfo(t, ca, 1)
		i.PortState, i.PortPhysicalState, i.LinkSpeedExtEnabled = 0, 0, c.v
		s := ask(t, ca, mad.MethodSet, mad.AttrPortInfo, c.mod, &i)
		if got := portInfo(t, ca, 1); s.Status != c.status || got.LinkSpeedExtEnabled != c.want {
			t.Errorf("%+v: %v, %d", c, s.Status, got.LinkSpeedExtEnabled)
		}
	}
}

// setState sends a Set of port n that changes only states.
func setState(t *testing.T, a *Agent, n uint8, state ib.PortState, phys ib.PhysState) mad.Status {
	t.Helper()
	i := portInfo(t, a, n)
	i.PortState, i.PortPhysicalState = state, phys
	return ask(t, a, mad.MethodSet, mad.AttrPortInfo, uint32(n), &i).Status
}

// TestPortStates walks an external port of a switch through its states.
func TestPortStates(t *testing.T) {
	sw, l := newSwitch(3)
	is := func(state ib.PortState, phys ib.PhysState) {
		t.Helper()
		if i := portInfo(t, sw, 2); i.PortState != state || i.PortPhysicalState != phys {
			t.Errorf("%v, %v; want %v, %v", i.PortState, i.PortPhysicalState, state, phys)
		}
		if p := sw.Forwarding().Port(2); p.State != state {
			t.Errorf("forwarding believes it is %v", p.State)
		}
	}
	do := func(state ib.PortState, phys ib.PhysState, want mad.Status) {
		t.Helper()
		if got := setState(t, sw, 2, state, phys); got != want {
			t.Errorf("%v, %v: %v, want %v", state, phys, got, want)
		}
	}
	is(ib.PortDown, ib.PhysPolling)
	do(ib.PortArmed, 0, mad.StatusInvalidValue)
	do(ib.PortDown, 0, 0) // down already
	sw.LinkUp(start, 2, edr)
	sw.LinkUp(start, 2, edr) // twice is once
	is(ib.PortInit, ib.PhysLinkUp)
	do(ib.PortActive, 0, mad.StatusInvalidValue)
	is(ib.PortInit, ib.PhysLinkUp)
	do(ib.PortArmed, 0, 0)
	do(ib.PortArmed, 0, 0) // a repeated request
	is(ib.PortArmed, ib.PhysLinkUp)
	do(ib.PortActive, 0, 0)
	do(ib.PortActive, 0, 0)
	is(ib.PortActive, ib.PhysLinkUp)
	do(ib.PortArmed, 0, mad.StatusInvalidValue)
	if diff := cmp.Diff([]string{"port 2: changed 0x1", "port 2: changed 0x1", "port 2: changed 0x1"},
		l.take()); diff != "" {
		t.Error(diff)
	}
	// DOWN negotiates anew: the owner takes the link down and up.
	do(ib.PortDown, 0, 0)
	is(ib.PortActive, ib.PhysLinkUp)
	if diff := cmp.Diff([]string{"port 2: order 0"}, l.take()); diff != "" {
		t.Error(diff)
	}
	sw.LinkDown(start, 2)
	sw.LinkDown(start, 2)
	is(ib.PortDown, ib.PhysPolling)
	sw.LinkUp(start, 2, edr)
	is(ib.PortInit, ib.PhysLinkUp)
	do(ib.PortArmed, 0, 0)
	l.take()
	do(ib.PortActive, 0, 0)
	is(ib.PortActive, ib.PhysLinkUp)
	if diff := cmp.Diff([]string{"port 2: changed 0x1"}, l.take()); diff != "" {
		t.Error(diff)
	}
	// Disabled, whatever happens to the link. The link that goes down is reported.
	ask(t, sw, mad.MethodSet, mad.AttrSwitchInfo, 0, &mad.SwitchInfo{PortStateChange: true})
	l.take()
	do(0, ib.PhysDisabled, 0)
	if !sw.SwitchInfo().PortStateChange {
		t.Error("PortStateChange is not set")
	}
	is(ib.PortDown, ib.PhysDisabled)
	do(0, ib.PhysDisabled, 0)
	if diff := cmp.Diff([]string{"port 2: order 1", "port 2: changed 0x1"}, l.take()); diff != "" {
		t.Error(diff)
	}
	sw.LinkDown(start, 2)
	sw.LinkUp(start, 2, edr)
	is(ib.PortDown, ib.PhysDisabled)
	if sw.Enabled(2) || !sw.Enabled(1) || sw.Enabled(0) || sw.Enabled(4) {
		t.Error("Wants")
	}
	do(ib.PortArmed, 0, mad.StatusInvalidValue)
	do(0, ib.PhysPolling, 0)
	is(ib.PortDown, ib.PhysPolling)
	if diff := cmp.Diff([]string{"port 2: order 2", "port 2: changed 0x1"}, l.take()); diff != "" {
		t.Error(diff)
	}
	sw.LinkUp(start, 2, edr)
	is(ib.PortInit, ib.PhysLinkUp)
	do(0, ib.PhysSleep, 0)
	is(ib.PortDown, ib.PhysSleep)

	// Port 0 is ACTIVE and stays so.
	for _, s := range []ib.PortState{0, ib.PortArmed, ib.PortActive} {
		if got := setState(t, sw, 0, s, 0); got != 0 {
			t.Errorf("port 0, %v: %v", s, got)
		}
	}
	if got := setState(t, sw, 0, ib.PortDown, 0); got != mad.StatusInvalidValue {
		t.Errorf("port 0, Down: %v", got)
	}
	if i := portInfo(t, sw, 0); i.PortState != ib.PortActive {
		t.Errorf("port 0 is %v", i.PortState)
	}
	i := portInfo(t, sw, 0)
	i.LID, i.LMC = 8, 1
	if s := ask(t, sw, mad.MethodSet, mad.AttrPortInfo, 0, &i); s.Status != mad.StatusInvalidValue {
		t.Errorf("LMC of a base port 0: %v", s.Status)
	}
	// External ports show nothing that is the node's.
	if i := portInfo(t, sw, 1); i.CapabilityMask != 0 || i.GIDPrefix != 0 || i.SubnetTimeOut != 0 || i.GUIDCap != 0 {
		t.Errorf("%+v", i)
	}
	i = portInfo(t, sw, 1)
	i.PortState, i.PortPhysicalState, i.LID, i.MKey = 0, 0, 5, 9
	ask(t, sw, mad.MethodSet, mad.AttrPortInfo, 1, &i)
	if i := portInfo(t, sw, 1); i.LID != 0 || i.MKey != 0 {
		t.Errorf("%+v", i)
	}
}

func TestHandlingDoesNotAllocate(t *testing.T) {
	sw, _ := newSwitch(4)
	sw.LinkUp(start, 1, edr)
	sw.LinkUp(start, 2, edr)
	d := request(mad.MethodGet, mad.AttrPortInfo, 1, nil)
	via := request(mad.MethodGet, mad.AttrPortInfo, 1, nil, 1, 2, 1)
	if n := testing.AllocsPerRun(100, func() {
		q := d
		if sw.Originate(start, &q) != Deliver {
			t.Fatal("not answered")
		}
		q = via
		q.Data[6], q.Port = 1, 1
		if sw.Handle(start, &q) != Send {
			t.Fatal("not sent on")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
