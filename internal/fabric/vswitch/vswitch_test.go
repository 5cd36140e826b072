// SPDX-License-Identifier: Apache-2.0

package vswitch

import (
	"testing"

	"weft/internal/proto/ib"
)

// lab is a switch with 6 ports: 1 … 3 ACTIVE, 4 ARMED, 5 INIT, 6 Down.
func lab() *Builder {
	b := NewBuilder(6)
	for p, s := range map[uint8]ib.PortState{1: ib.PortActive, 2: ib.PortActive, 3: ib.PortActive, 4: ib.PortArmed,
		5: ib.PortInit} {
		b.SetPort(p, Port{State: s})
	}
	for lid, p := range map[ib.LID]uint8{1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 9: NoPort, 200: 1, 0xbfff: 2} {
		b.SetEntry(lid, p)
	}
	b.SetGlobals(Globals{LinearTop: 0xbfff, PrimaryPort: NoPort, NotPrimaryPort: NoPort})
	return b
}

const full = ib.DefaultPKey

func TestUnicast(t *testing.T) {
	b := lab()
	for _, c := range []struct {
		in   uint8
		dlid ib.LID
		out  uint8
		why  Refusal
	}{
		{1, 3, 2, OK},
		{1, 1, 0, OK}, // to the switch itself
		{0, 3, 2, OK}, // from the switch itself
		{0, 1, NoPort, Loopback},
		{4, 3, 2, OK},                // ARMED receives
		{1, 5, NoPort, EgressState},  // … but does not send
		{5, 3, NoPort, IngressState}, // INIT does neither
		{1, 6, NoPort, EgressState},
		{6, 3, NoPort, IngressState},
		{1, 7, NoPort, EgressState},
		{7, 3, NoPort, BadPort},
		{255, 3, NoPort, BadPort},
		{1, 2, NoPort, Loopback}, // never back out of the ingress port
		{1, 200, NoPort, Loopback},
		{2, 200, 1, OK},
		{1, 8, NoPort, Unreachable}, // a port the switch does not have
		{1, 9, NoPort, Unreachable},
		{1, 10, NoPort, Unreachable}, // never written
		{1, 0, NoPort, BadLID},
		{1, 0xffff, NoPort, BadLID},
		{1, 0xc000, NoPort, BadLID},
		{1, 0xbfff, 2, OK},
	} {
		if out, why := b.Unicast(c.in, c.dlid, full); out != c.out || why != c.why {
			t.Errorf("from port %d to %#x: port %d, %v; want %d, %v", c.in, c.dlid, out, why, c.out, c.why)
		}
		// Route returns the same as a set.
		set, why := b.Route(c.in, c.dlid, full)
		if c.dlid != 0xc000 && (why != c.why || (why == OK) != set.Has(c.out) || set.Len() > 1) {
			t.Errorf("Route from port %d to %#x: %v, %v", c.in, c.dlid, set, why)
		}
	}
	b.SetGlobals(Globals{LinearTop: 3})
	if _, why := b.Unicast(1, 3, full); why != OK {
		t.Errorf("at the top: %v", why)
	}
	if _, why := b.Unicast(1, 4, full); why != AboveTop {
		t.Errorf("above the top: %v", why)
	}
	b.SetState(0, ib.PortInit) // an enhanced port 0 that was not activated
	if _, why := b.Unicast(1, 1, full); why != EgressState {
		t.Errorf("to an inactive port 0: %v", why)
	}
	if _, why := b.Unicast(0, 3, full); why != IngressState {
		t.Errorf("from an inactive port 0: %v", why)
	}
}

func TestManagementPacketsNeedOnlyALink(t *testing.T) {
	b := lab()
	for _, c := range []struct {
		in   uint8
		dlid ib.LID
		out  uint8
		why  Refusal
	}{
		{1, 3, 2, OK}, {1, 5, 4, OK}, {1, 6, 5, OK}, {5, 3, 2, OK}, {4, 1, 0, OK},
		{5, 0xffff, 0, OK}, {0, 0xffff, 0, OK},
		{6, 0xffff, NoPort, IngressState},
		{1, 7, NoPort, EgressState},
		{7, 3, NoPort, BadPort},
		{1, 2, NoPort, Loopback},
		{1, 9, NoPort, Unreachable},
		{1, 0, NoPort, BadLID},
		{1, 0xc001, NoPort, BadLID},
	} {
		if out, why := b.Management(c.in, c.dlid); out != c.out || why != c.why {
			t.Errorf("from port %d to %#x: port %d, %v; want %d, %v", c.in, c.dlid, out, why, c.out, c.why)
		}
	}
	b.SetGlobals(Globals{LinearTop: 2})
	if _, why := b.Management(1, 3); why != AboveTop {
		t.Errorf("above the top: %v", why)
	}
}

func set(ports ...uint8) (s PortSet) {
	for _, p := range ports {
		s.Add(p)
	}
	return s
}

func TestMulticast(t *testing.T) {
	b := lab()
	mft := func(mlid ib.LID, s PortSet) {
		for pos := range uint8(Positions) {
			m := b.MFT(int(mlid-ib.LIDMulticastFirst)/BlockMLIDs, pos)
			m[int(mlid-ib.LIDMulticastFirst)%BlockMLIDs] = s.Part(pos)
			if !b.SetMFT(int(mlid-ib.LIDMulticastFirst)/BlockMLIDs, pos, &m) {
				t.Fatalf("no entry for %#x", mlid)
			}
		}
	}
	mft(0xc000, set(0, 1, 2, 3))
	mft(0xc001, set(1))
	mft(0xc002, set(4, 5, 6, 1))
	mft(0xc003, set(1, 2, 4, 7, 200)) // 7 and 200 do not exist
	mft(0xfffe, set(3, 2))
	for _, c := range []struct {
		in   uint8
		mlid ib.LID
		out  PortSet
		why  Refusal
	}{
		{1, 0xc000, set(0, 2, 3), OK},
		{2, 0xc000, set(0, 1, 3), OK},
		{0, 0xc000, set(1, 2, 3), OK}, // not back to the switch itself
		{4, 0xc000, set(0, 1, 2, 3), OK},
		{5, 0xc000, PortSet{}, IngressState},
		{7, 0xc000, PortSet{}, BadPort},
		{1, 0xc001, PortSet{}, NoMembers}, // only the ingress port
		{2, 0xc001, set(1), OK},
		{1, 0xc002, PortSet{}, EgressState},
		{2, 0xc002, set(1), OK},
		{3, 0xc003, set(1, 2), OK},
		{1, 0xc004, PortSet{}, NoMembers},
		{1, 0xfffe, set(2, 3), OK},
		{1, 0xffff, PortSet{}, BadLID},
		{1, 5, PortSet{}, BadLID},
	} {
		if out, why := b.Multicast(c.in, c.mlid, full); out != c.out || why != c.why {
			t.Errorf("from port %d to %#x: %v, %v; want %v, %v", c.in, c.mlid, out, why, c.out, c.why)
		}
		if out, why := b.Route(c.in, c.mlid, full); c.mlid >= ib.LIDMulticastFirst && (out != c.out || why != c.why) {
			t.Errorf("Route from port %d to %#x: %v, %v", c.in, c.mlid, out, why)
		}
	}
	if b.Members(0xc003) != set(1, 2, 4) || b.Members(0xffff) != set() || b.Members(1) != set() {
		t.Errorf("members: %v", b.Members(0xc003))
	}
}

// TestMulticastOutsideOfTheTable is the required relay of IBA 18.2.4.3.3.
func TestMulticastOutsideOfTheTable(t *testing.T) {
	b := lab()
	m := [BlockMLIDs]uint16{0: 0b1110, 5: 0b1110}
	b.SetMFT(0, 0, &m)
	try := func(top ib.LID, primary, notPrimary, in uint8, mlid ib.LID, want PortSet, wantWhy Refusal) {
		t.Helper()
		b.SetGlobals(Globals{MulticastTop: top, PrimaryPort: primary, NotPrimaryPort: notPrimary})
		if out, why := b.Multicast(in, mlid, full); out != want || why != wantWhy {
			t.Errorf("top %#x, from %d: %v, %v; want %v, %v", top, in, out, why, want, wantWhy)
		}
	}
	try(0, 3, 2, 1, 0xc005, set(2, 3), OK)
	try(0xc005, 3, 2, 1, 0xc005, set(2, 3), OK)
	try(0xc004, 3, 2, 1, 0xc005, set(3), OK)
	try(0xc004, 3, 2, 3, 0xc005, set(2), OK)
	try(0xc004, 3, NoPort, 3, 0xc005, PortSet{}, Unreachable)
	try(0xc004, NoPort, 2, 1, 0xc005, PortSet{}, Unreachable)
	try(0xc004, 3, 3, 3, 0xc005, PortSet{}, NoMembers)
	try(0xbfff, 3, 2, 1, 0xc000, set(3), OK)
	try(0xbfff, 6, 2, 1, 0xc000, PortSet{}, EgressState)
}

func TestPartitionEnforcement(t *testing.T) {
	const fullA, limA, fullB = ib.PKey(0x8001), ib.PKey(0x0001), ib.PKey(0x8002)
	b := NewBuilder(4)
	b.SetGlobals(Globals{LinearTop: 10})
	for p := range uint8(4) {
		b.SetEntry(ib.LID(p+1), p+1)
	}
	m := [BlockMLIDs]uint16{0: 0b11110}
	b.SetMFT(0, 0, &m)
	b.SetPort(1, Port{State: ib.PortActive, EnforceIn: true, EnforceOut: true, PKeys: []ib.PKey{0, limA}})
	b.SetPort(2, Port{State: ib.PortActive, EnforceIn: true, EnforceOut: true, PKeys: []ib.PKey{fullB, fullA}})
	b.SetPort(3, Port{State: ib.PortActive, EnforceIn: true, EnforceOut: true, PKeys: []ib.PKey{limA, 0, 0x8000}})
	b.SetPort(4, Port{State: ib.PortActive, PKeys: []ib.PKey{fullB}}) // a trunk: holds keys, compares none
	for _, c := range []struct {
		in, to uint8
		key    ib.PKey
		why    Refusal
	}{
		{1, 2, limA, OK},
		{1, 2, fullA, PKeyIn}, // a limited member that claims to be a full one
		{1, 2, fullB, PKeyIn},
		{1, 2, 0, PKeyIn},
		{1, 2, 0x8000, PKeyIn},
		{3, 2, 0x8000, PKeyIn}, // an empty entry is no partition, whatever its upper bit
		{1, 3, limA, PKeyOut},  // two limited members
		{2, 1, fullA, OK},
		{2, 1, limA, PKeyOut}, // a full member may send with the limited key, and is then treated as limited
		{2, 4, fullB, OK},
		{2, 4, fullA, OK},
		{4, 1, fullA, OK},
		{4, 1, fullB, PKeyOut},
		{4, 2, fullB, OK},
		{0, 2, fullB, OK},
		{0, 1, fullB, PKeyOut},
	} {
		if out, why := b.Unicast(c.in, ib.LID(c.to), c.key); why != c.why || why == OK && out != c.to {
			t.Errorf("%d to %d with %#04x: port %d, %v; want %v", c.in, c.to, c.key, out, why, c.why)
		}
	}
	for _, c := range []struct {
		in  uint8
		key ib.PKey
		out PortSet
		why Refusal
	}{
		{1, limA, set(2, 4), OK},
		{2, fullA, set(1, 3, 4), OK},
		{4, fullB, set(2), OK},
		{4, 0x8003, PortSet{}, PKeyOut},
		{3, fullB, PortSet{}, PKeyIn},
	} {
		if out, why := b.Multicast(c.in, ib.LIDMulticastFirst, c.key); out != c.out || why != c.why {
			t.Errorf("from %d with %#04x: %v, %v; want %v, %v", c.in, c.key, out, why, c.out, c.why)
		}
	}
	// A management packet has no partition.
	if out, why := b.Management(1, 2); out != 2 || why != OK {
		t.Errorf("management: %d, %v", out, why)
	}
}

// TestSnapshotsDoNotChange edits every part after a snapshot was taken.
func TestSnapshotsDoNotChange(t *testing.T) {
	b := NewBuilder(40)
	keys := []ib.PKey{0x8001}
	b.SetPort(1, Port{State: ib.PortActive, EnforceIn: true, PKeys: keys})
	b.SetEntry(5, 1)
	m := [BlockMLIDs]uint16{3: 2}
	b.SetMFT(1, 0, &m)
	old := b.Snapshot()
	keys[0] = 0x8002 // the caller's slice is the caller's
	b.SetPort(1, Port{State: ib.PortDown})
	b.SetEntry(5, 2)
	b.SetLFT(1, &[BlockLIDs]uint8{1})
	m[3] = 4
	b.SetMFT(1, 0, &m)
	b.SetMFT(1, 2, &[BlockMLIDs]uint16{3: 1})
	b.SetGlobals(Globals{LinearTop: 77})
	now := b.Snapshot()
	b.SetEntry(5, 3)
	if old.Entry(5) != 1 || now.Entry(5) != 2 || b.Entry(5) != 3 {
		t.Errorf("entries %d %d %d", old.Entry(5), now.Entry(5), b.Entry(5))
	}
	if old.LFT(1) != noLIDs || now.LFT(1)[0] != 1 || old.LFT(0)[5] != 1 {
		t.Error("unicast blocks")
	}
	if old.Members(0xc023) != set(1) || now.Members(0xc023) != set(2, 32) {
		t.Errorf("multicast: %v %v", old.Members(0xc023), now.Members(0xc023))
	}
	if p := old.Port(1); p.State != ib.PortActive || p.PKeys[0] != 0x8001 || now.Port(1).State != ib.PortDown {
		t.Errorf("port: %+v", p)
	}
	if old.LinearTop != 0 || now.LinearTop != 77 {
		t.Error("globals")
	}
	for i, blk := range noLIDs {
		if blk != NoPort {
			t.Fatalf("the empty block was written at %d", i)
		}
	}
	if noMLIDs != (mftBlock{}) {
		t.Fatal("the empty multicast block was written")
	}
}

func TestBounds(t *testing.T) {
	b := NewBuilder(255)
	if b.NumPorts() != MaxPorts {
		t.Errorf("%d ports", b.NumPorts())
	}
	for _, n := range []int{-1, lftBlocks, 1 << 20} {
		if b.SetLFT(n, &[BlockLIDs]uint8{}) || b.LFT(n) != noLIDs {
			t.Errorf("unicast block %d exists", n)
		}
	}
	for _, n := range []int{-1, mftBlocks, 1 << 20} {
		if b.SetMFT(n, 0, &[BlockMLIDs]uint16{}) || b.MFT(n, 0) != [BlockMLIDs]uint16{} {
			t.Errorf("multicast block %d exists", n)
		}
	}
	if b.SetMFT(0, Positions, &[BlockMLIDs]uint16{1}) || b.MFT(0, Positions) != [BlockMLIDs]uint16{} {
		t.Error("position 16 exists")
	}
	if b.SetEntry(ib.LIDMulticastFirst, 1) || b.Entry(ib.LIDMulticastFirst) != NoPort ||
		!b.SetEntry(ib.LIDMulticastFirst-1, 1) || b.Entry(ib.LIDMulticastFirst-1) != 1 {
		t.Error("the last unicast LID")
	}
	b.SetPort(255, Port{State: ib.PortActive})
	b.SetState(255, ib.PortActive)
	if b.Port(255).State != ib.PortDown || b.Port(254).State != ib.PortDown {
		t.Error("port 255")
	}
	// Port 254 is in position 15.
	b.SetState(254, ib.PortActive)
	b.SetState(1, ib.PortActive)
	b.SetMFT(0, 15, &[BlockMLIDs]uint16{0xffff})
	if out, why := b.Multicast(1, ib.LIDMulticastFirst, full); out != set(254) || why != OK {
		t.Errorf("%v %v", out, why)
	}
	var zero Table
	if _, why := zero.Unicast(0, 1, full); why != BadPort || zero.Entry(1) != NoPort || zero.LFT(0) != noLIDs ||
		zero.MFT(0, 0) != [BlockMLIDs]uint16{} || zero.Members(ib.LIDMulticastFirst) != set() ||
		zero.Port(0).State != ib.PortDown {
		t.Error("the zero table routes")
	}
	if _, why := zero.Multicast(0, ib.LIDMulticastFirst, full); why != BadPort {
		t.Error("the zero table routes multicast")
	}
	if _, why := zero.Management(0, ib.LIDPermissive); why != BadPort {
		t.Error("the zero table routes management")
	}
}

func TestPortSet(t *testing.T) {
	s := set(0, 1, 63, 64, 127, 128, 200, 255)
	if s.Len() != 8 || s.Empty() || !(PortSet{}).Empty() {
		t.Errorf("%v", s)
	}
	var got []uint8
	c := s
	for p, ok := c.Next(); ok; p, ok = c.Next() {
		got = append(got, p)
	}
	if want := []uint8{0, 1, 63, 64, 127, 128, 200, 255}; string(got) != string(want) {
		t.Errorf("%v, want %v", got, want)
	}
	var parts PortSet
	for pos := range uint8(Positions) {
		parts.SetPart(pos, 0xffff)
		parts.SetPart(pos, s.Part(pos))
	}
	if parts != s || s.Part(0) != 3 || s.Part(3) != 0x8000 || s.Part(4) != 1 || s.Part(15) != 0x8000 {
		t.Errorf("parts: %v, want %v", parts, s)
	}
	s.Remove(255)
	s.Remove(254)
	if s.Has(255) || !s.Has(200) || s.And(set(200, 1, 5)) != set(1, 200) {
		t.Errorf("%v", s)
	}
}

func TestLIDOf24(t *testing.T) {
	for l24, want := range map[uint32]ib.LID{0: 0, 1: 1, 0xbfff: 0xbfff, 0xf00000: 0xc000, 0xf00001: 0xc001,
		0xf03ffe: 0xfffe, 0xffffff: 0xffff} {
		if l, ok := LIDOf24(l24); l != want || !ok {
			t.Errorf("%#x: %#x %v, want %#x", l24, l, ok, want)
		}
	}
	for _, l24 := range []uint32{0xc000, 0xffff, 0x10000, 0xefffff, 0xf03fff, 0xf04000, 0xfffffe, 0x1000000,
		0xffffffff} {
		if l, ok := LIDOf24(l24); ok {
			t.Errorf("%#x is %#x", l24, l)
		}
	}
	for l := range 0x10000 {
		if back, ok := LIDOf24(LIDTo24(ib.LID(l))); !ok || back != ib.LID(l) {
			t.Fatalf("%#x came back as %#x, %v", l, back, ok)
		}
	}
}

// TestRoute24: a 16B packet is forwarded as a 9B packet to the same LID, by the same rules; other
// 24-bit LIDs have no egress port.
func TestRoute24(t *testing.T) {
	b := lab()
	var masks [BlockMLIDs]uint16
	masks[1] = 1<<1 | 1<<2 | 1<<3
	b.SetMFT(0, 0, &masks)
	for _, enforced := range []bool{false, true} {
		for p := uint8(1); p <= 3; p++ {
			b.SetPort(p, Port{State: ib.PortActive, EnforceIn: enforced, EnforceOut: enforced,
				PKeys: []ib.PKey{0x8001 + ib.PKey(p&1)}})
		}
		for _, in := range []uint8{0, 1, 2, 4, 5, 7} {
			for _, lid := range []ib.LID{0, 1, 2, 3, 4, 5, 9, 200, 0xbfff, 0xc000, 0xc001, 0xfffe, 0xffff} {
				for _, key := range []ib.PKey{full, 0x8001, 0x8002, 0x0002, 0} {
					out, why := b.Route24(in, LIDTo24(lid), key)
					if want, whyWant := b.Route(in, lid, key); out != want || why != whyWant {
						t.Errorf("from port %d to %#x with key %#x: %v, %v; as 9B %v, %v", in, lid, key, out, why,
							want, whyWant)
					}
				}
			}
		}
	}
	for _, lid := range []uint32{0xc000, 0xffff, 0x10002, 0xefffff, 0xf03fff, 0xfffffe, 0x1000002} {
		if out, why := b.Route24(1, lid, full); why != BadLID || !out.Empty() {
			t.Errorf("to %#x: %v, %v", lid, out, why)
		}
	}
	if out, why := b.Route24(1, 0xf00001, 0x8002); why != OK || out != (PortSet{1 << 3}) {
		t.Errorf("multicast: %v, %v", out, why)
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range Refusal(NumRefusals) {
		if s := r.String(); s == "" || s == "unknown" || seen[s] {
			t.Errorf("%d is called %q", r, s)
		} else {
			seen[s] = true
		}
	}
	if Refusal(NumRefusals).String() != "unknown" {
		t.Error("a refusal too many")
	}
}

func TestRoutingDoesNotAllocate(t *testing.T) {
	b := lab()
	b.SetPort(3, Port{State: ib.PortActive, EnforceIn: true, EnforceOut: true, PKeys: make([]ib.PKey, 32)})
	m := [BlockMLIDs]uint16{0: 0x7f}
	b.SetMFT(0, 0, &m)
	s := b.Snapshot()
	var sum int
	if n := testing.AllocsPerRun(100, func() {
		p, _ := s.Unicast(1, 3, full)
		q, _ := s.Management(1, 3)
		set, _ := s.Route(1, ib.LIDMulticastFirst, full)
		for r, ok := set.Next(); ok; r, ok = set.Next() {
			sum += int(r)
		}
		sum += int(p) + int(q)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if sum == 0 {
		t.Error("nothing was routed")
	}
}

func BenchmarkUnicast(b *testing.B) {
	s := lab().Snapshot()
	b.ReportAllocs()
	for b.Loop() {
		if _, why := s.Unicast(1, 3, full); why != OK {
			b.Fatal(why)
		}
	}
}
