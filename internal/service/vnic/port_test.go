// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// TestState: the table of docs/notes/vesw.md 6, all combinations.
func TestState(t *testing.T) {
	for bits := range 16 {
		forward, admin, link, bound := bits&1 != 0, bits&2 != 0, bits&4 != 0, bits&8 != 0
		h := bare(1)
		i := info(1)
		if !forward {
			i.Port.ConfigState = mad.VESWDropAll
		}
		if !bound {
			i.VESW.VESWID = 0
		}
		if err := h.SetInfo(1, 0, i); err != nil {
			t.Fatal(err)
		}
		p := h.Port(0)
		p.SetAdmin(1, admin)
		h.SetLink(1, link)
		oper := forward && admin && link && bound
		q, d := p.Info().Port, p.Device()
		if (q.OperState == mad.VESWForwarding) != oper || (q.LinkStatus == mad.VESWLinkUp) != oper || !oper &&
			(q.OperState != mad.VESWDropAll || q.LinkStatus != mad.VESWLinkDown) {
			t.Errorf("released %v, set up %v, link %v, VESW %v: oper %d, link status %d", forward, admin, link, bound,
				q.OperState, q.LinkStatus)
		}
		if (d.Reason == "") != oper || d.Dormant == forward || d.Carrier != (admin && link && bound) {
			t.Errorf("released %v, set up %v, link %v, VESW %v: %+v", forward, admin, link, bound, d)
		}
		h.tx = p.Sender()
		if got := h.dlid(mad.VESWMAC(testFabric, testVESW, 2)); (got != 0) != oper {
			t.Errorf("released %v, set up %v, link %v, VESW %v: goes to %d", forward, admin, link, bound, got)
		}
		if c := h.tx.Counters(); (c.TxDropState == 1) == oper {
			t.Errorf("%v", some(c.Each))
		}
	}
	// Undefined config states keep the port from forwarding.
	for _, s := range []mad.VESWState{0, 2, 4, 0xff} {
		h := newHost(t, 1, func(i *mad.VESWPortInfo) { i.Port.ConfigState = s })
		if q := h.Info(0).Port; q.OperState != mad.VESWDropAll || q.ConfigState != s {
			t.Errorf("config state %d: oper %d", s, q.OperState)
		}
	}
}

// TestPowerOn: the state of a port that was never configured, and of one that was deleted.
func TestPowerOn(t *testing.T) {
	h := bare(1)
	none := mad.DefaultVESWPortInfo()
	if diff := cmp.Diff(none, h.Info(3)); diff != "" {
		t.Error(diff)
	}
	if h.Port(3) != nil || h.Port(255) != nil || len(h.a.did()) != 0 {
		t.Error("asking made a port")
	}
	if err := h.SetInfo(1, 3, info(1)); err != nil {
		t.Fatal(err)
	}
	if err := h.SetMACEntries(3, 0, []mad.VESWMACEntry{{MAC: [6]byte{0, 1}, DLIDSD: 0x200}}, 77); err != nil {
		t.Fatal(err)
	}
	h.Port(3).SetFilters(1, nil, [][6]byte{{1}})
	if err := h.Delete(1, 3); err != nil {
		t.Fatal(err)
	}
	want := none
	want.Port.LinkStatus, want.Port.McMACsGen = mad.VESWLinkDown, 1
	if diff := cmp.Diff(want, h.Info(3)); diff != "" {
		t.Error(diff)
	}
	e := make([]mad.VESWMACEntry, 4)
	e[0].MAC[0] = 0xa5
	if digest, err := h.MACEntries(3, 0, e); err != nil || digest != 0 || e[0] != (mad.VESWMACEntry{}) {
		t.Errorf("after Delete: %v %d %v", e, digest, err)
	}
	for _, err := range []error{h.Delete(1, 4), h.Remove(1, 4), h.SetMACEntries(4, 0, nil, 1)} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("a port that there is not: %v", err)
		}
	}
	if _, err := h.MACEntries(4, 0, nil); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, _, _, err := h.UnicastMACs(4, 0, nil); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, _, _, err := h.MulticastMACs(4, 0, nil); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

// TestSetKeepsWhatItMustNot: what only the port may write stays, and what has no meaning is
// kept.
func TestSetKeepsWhatItMustNot(t *testing.T) {
	h := newHost(t, 1, nil)
	h.Port(0).SetFilters(1, [][6]byte{{2, 1}}, [][6]byte{{1}, {3}})
	h.SetMACEntries(0, 0, nil, 42)
	i := info(1)
	i.VESW.Reserved4, i.VESW.Reserved12, i.VESW.Reserved16, i.VESW.Reserved150 = [6]byte{1, 2, 3, 4, 5,
		6}, [2]byte{7}, [4]byte{8}, [2]byte{9}
	i.VESW.Reserved92[55], i.Port.Reserved5[2], i.Port.Reserved24[0], i.Port.Reserved68[47], i.Port.Reserved120[7] = 1, 2, 3, 4, 5
	i.VESW.UcastDLIDs[15], i.VESW.RC = 99, 0xffffffff
	want := *i
	want.Port.OperState, want.Port.LinkStatus, want.Port.MACDigest, want.Port.UcMACsGen, want.Port.McMACsGen = mad.VESWForwarding, mad.VESWLinkUp, 42, 1, 1
	i.Port.OperState, i.Port.LinkStatus, i.Port.MaxMACEntries, i.Port.MaxSMACEntries, i.Port.MACDigest, i.Port.UcMACsGen, i.Port.McMACsGen = 9, 9, 9, 9, 9, 9, 9
	if err := h.SetInfo(1, 0, i); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, h.Info(0)); diff != "" {
		t.Error(diff)
	}
}

// TestNetdev is how the independent half drives the adapter's.
func TestNetdev(t *testing.T) {
	h := bare(1)
	expect := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, h.a.did()); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	i := info(1)
	if err := h.SetInfo(1, 0, i); err != nil {
		t.Fatal(err)
	}
	p := h.Port(0)
	expect("made", "alloc 0", "vesw 513", "mac 061c20010000 mtu 1500/1500 carrier false dormant false")
	h.SetInfo(1, 0, i)
	expect("the same once more")
	p.SetAdmin(1, true)
	expect("set up", "mac 061c20010000 mtu 1500/1500 carrier true dormant false", "up")
	p.SetAdmin(1, true)
	expect("set up once more")
	i.VESW.EthMTU = 9000
	h.SetInfo(1, 0, i)
	expect("jumbo frames", "mac 061c20010000 mtu 1500/9000 carrier true dormant false")
	if err := p.SetMTU(1, 9001); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if err := p.SetMTU(1, 67); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if err := p.SetMTU(1, 9000); err != nil {
		t.Error(err)
	}
	expect("and taken", "mac 061c20010000 mtu 9000/9000 carrier true dormant false")
	i.VESW.EthMTU = 4000
	h.SetInfo(1, 0, i)
	expect("less", "mac 061c20010000 mtu 4000/4000 carrier true dormant false")
	i.VESW.EthMTU = 9000
	h.SetInfo(1, 0, i)
	expect("and more again", "mac 061c20010000 mtu 4000/9000 carrier true dormant false")
	i.VESW.VESWID = 7
	h.SetInfo(1, 0, i)
	expect("moved", "down", "vesw 7", "up")
	h.SetLink(1, false)
	expect("link lost", "down", "mac 061c20010000 mtu 4000/9000 carrier false dormant false")
	h.SetLink(1, true)
	expect("link back", "mac 061c20010000 mtu 4000/9000 carrier true dormant false", "up")
	i.Port.ConfigState = mad.VESWDropAll
	h.SetInfo(1, 0, i)
	expect("held", "down", "mac 061c20010000 mtu 4000/9000 carrier true dormant true")
	h.Delete(1, 0)
	expect("deleted", "vesw 0", "mac 061c20010000 mtu 1500/1500 carrier false dormant true")
	h.Remove(1, 0)
	expect("removed", "free 0")
	if h.Port(0) != nil || h.a.used != 0 {
		t.Error("a netdev is left")
	}
}

// TestAdapterFails: a refusal of the adapter is reported, keeps the port down, and is retried.
func TestAdapterFails(t *testing.T) {
	h := bare(1)
	h.a.fail = "vesw"
	if err := h.SetInfo(1, 0, info(1)); err != nil {
		t.Fatal(err)
	}
	p := h.Port(0)
	p.SetAdmin(1, true)
	if d := p.Device(); d.Carrier || !strings.Contains(d.Reason, errAdapter.Error()) ||
		h.Info(0).Port.OperState != mad.VESWDropAll {
		t.Errorf("%+v", d)
	}
	h.a.fail = "up"
	h.SetInfo(1, 0, info(1))
	if d := p.Device(); d.Carrier || !strings.Contains(d.Reason, errAdapter.Error()) ||
		h.Info(0).Port.OperState != mad.VESWDropAll {
		t.Errorf("%+v", d)
	}
	h.a.fail = "groups"
	i := info(1)
	i.VESW.McastDLID++
	h.SetInfo(1, 0, i)
	if d := p.Device(); !d.Carrier || d.Reason != "" || h.Info(0).Port.OperState != mad.VESWForwarding {
		t.Errorf("%+v", d)
	}
	if groups, _ := p.Refused(); groups != 1 {
		t.Errorf("%d groups refused", groups)
	}
	h.a.fail = ""
	h.SetInfo(1, 0, i)
	if groups, _ := p.Refused(); groups != 0 || !h.a.slots[0].d.seen.Load().inlet[0].attached(testGroup+1) ||
		h.a.slots[0].d.seen.Load().inlet[0].attached(testGroup) {
		t.Errorf("%d groups refused", groups)
	}
}

// TestBounds: netdevs, ports and groups are a function's resources.
func TestBounds(t *testing.T) {
	h := bare(1)
	h.a.Netdevs = NewNetdevs(2)
	set := func(vport uint8, vesw uint16) error {
		i := info(1)
		i.VESW.VESWID = vesw
		return h.SetInfo(1, vport, i)
	}
	if err := errors.Join(set(9, 1), set(0, 2)); err != nil {
		t.Fatal(err)
	}
	if err := set(1, 3); !errors.Is(err, ErrNoResource) || !errors.Is(err, ErrInvalid) || h.Port(1) != nil {
		t.Errorf("a third netdev of two: %v", err)
	}
	h.Remove(1, 9)
	if err := set(1, 3); err != nil {
		t.Error(err)
	}
	if err := set(255, 4); !errors.Is(err, ErrInvalid) {
		t.Errorf("port 255: %v", err)
	}
	n := NewNetdevs(0)
	for i := range MaxNetdevs {
		if _, err := n.Alloc(uint8(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.Alloc(7); !errors.Is(err, ErrNoResource) {
		t.Error(err)
	}
	n.Free(7)
	s, err := n.Alloc(7)
	if err != nil {
		t.Fatal(err)
	}
	var full []uint32
	for g := range uint32(MaxGroups) {
		full = append(full, firstGroup+g)
	}
	for _, x := range []struct {
		what    string
		groups  []uint32
		refused int
		has     []uint32
	}{
		{"as many as there can be", full, 0, full},
		{"one of them twice", append(slices.Clone(full), firstGroup), 0, full},
		{"one too many, which is new", append([]uint32{lastGroup, lastGroup}, full...), 1, full},
		{"another instead of the first", append([]uint32{lastGroup}, full[1:]...), 0,
			append(slices.Clone(full[1:]), lastGroup)},
		{"no groups", []uint32{0, 5, 0xffffff, lastGroup}, 3, []uint32{lastGroup}},
		{"none", nil, 0, nil},
	} {
		if n := s.SetGroups(x.groups); n != x.refused || !slices.Equal(s.groups, x.has) {
			t.Errorf("%s: %d refused, want %d; it has %x", x.what, n, x.refused, s.groups)
		}
	}
	// A table of more groups than a netdev accepts is kept; the excess is reported.
	h = newHost(t, 1, nil)
	entries := make([]mad.VESWMACEntry, MaxGroups+9)
	for i := range entries {
		entries[i] = mad.VESWMACEntry{MAC: [6]byte{1, 0, 0x5e, 0, byte(i >> 8), byte(i)},
			DLIDSD: mad.MakeDLIDSD(0xf00100 + uint32(i))}
	}
	if err := h.SetMACEntries(0, 0, entries, 1); err != nil {
		t.Fatal(err)
	}
	if groups, _ := h.Port(0).Refused(); groups != 10 {
		t.Errorf("%d groups refused", groups)
	}
	h.SetMACEntries(0, 0, make([]mad.VESWMACEntry, len(entries)), 1)
	if groups, _ := h.Port(0).Refused(); groups != 0 {
		t.Errorf("%d groups refused", groups)
	}
	// A freed Slot does nothing.
	s.d.Free(7)
	s.SetVESW(5)
	s.Up()
	if n.seen.Load().index[5] != 0 {
		t.Error("a freed netdev came back")
	}
}

// TestTwoVESWs: a function's ports in two VESWs, and no two in one.
func TestTwoVESWs(t *testing.T) {
	h := newHost(t, 1, nil)
	i := info(1)
	if err := h.SetInfo(1, 1, i); !errors.Is(err, ErrVESWInUse) || !errors.Is(err, ErrInvalid) || h.Port(1) != nil {
		t.Errorf("a second port in the VESW: %v", err)
	}
	i.VESW.VESWID = 0x301
	if err := h.SetInfo(1, 1, i); err != nil {
		t.Fatal(err)
	}
	i.VESW.VESWID = testVESW
	if err := h.SetInfo(1, 1, i); !errors.Is(err, ErrVESWInUse) || h.Info(1).VESW.VESWID != 0x301 {
		t.Errorf("a port moved to where another is: %v, in %#x", err, h.Info(1).VESW.VESWID)
	}
	h.Delete(1, 0)
	if err := h.SetInfo(1, 1, i); err != nil {
		t.Errorf("the place is free: %v", err)
	}
	s, _ := h.a.Alloc(9)
	if err := s.SetVESW(testVESW); !errors.Is(err, ErrVESWInUse) || s.vesw != 0 {
		t.Errorf("%v", err)
	}
	if err := s.SetVESW(0x1000); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
}

// TestMACTable compares the table with a list that is searched from its beginning.
func TestMACTable(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var model [mad.VESWMaxMACs]mad.VESWMACEntry
	h := newHost(t, 1, nil)
	mac := func() [6]byte { // few of them, so that there are duplicates; many with one last octet
		return [6]byte{byte(r.IntN(3)) * 2 &^ 2, 0, byte(r.IntN(2)), byte(r.IntN(4)), byte(r.IntN(16)), byte(r.IntN(2))}
	}
	for round := range 300 {
		offset := r.IntN(mad.VESWMaxMACs)
		e := make([]mad.VESWMACEntry, r.IntN(min(mad.VESWMACsPerMAD, mad.VESWMaxMACs-offset)+1))
		for i := range e {
			if r.IntN(3) > 0 {
				e[i] = mad.VESWMACEntry{MAC: mac(), Mask: [6]byte{byte(r.Uint32())},
					DLIDSD: mad.MakeDLIDSD(uint32(r.IntN(5)*r.IntN(1000))) | uint32(r.IntN(40)/39*0x20)}
			}
		}
		if err := h.SetMACEntries(0, offset, e, uint32(round)); err != nil {
			t.Fatal(err)
		}
		for i := range e {
			model[offset+i] = e[i]
			if macKey(e[i].MAC) == 0 {
				model[offset+i] = mad.VESWMACEntry{}
			}
		}
		got := make([]mad.VESWMACEntry, mad.VESWMaxMACs)
		digest, err := h.MACEntries(0, 0, got)
		if err != nil || digest != uint32(round) || h.Info(0).Port.MACDigest != digest {
			t.Fatalf("digest %d, %v", digest, err)
		}
		if !slices.Equal(model[:], got) {
			t.Fatal(cmp.Diff(model[:], got))
		}
		for range 50 {
			m := mac()
			want := uint32(0)
			for i := range model {
				if e := &model[i]; e.MAC == m && !e.IsSource() && e.DLID() != 0 {
					want = e.DLID()
					break
				}
			}
			if got := h.Port(0).plan.Load().macs.dlid(macKey(m)); got != want && macKey(m) != 0 {
				t.Fatalf("%x leads to %d, want %d", m, got, want)
			}
		}
	}
	for _, x := range []struct{ offset, n int }{{0, 2049}, {2048, 1}, {2047, 2}, {-1, 1}, {1 << 40, 0}} {
		if err := h.SetMACEntries(0, x.offset, make([]mad.VESWMACEntry, x.n), 9); !errors.Is(err, ErrInvalid) {
			t.Errorf("slots %d and %d more: %v", x.offset, x.n, err)
		}
		if _, err := h.MACEntries(0, x.offset, make([]mad.VESWMACEntry, x.n)); !errors.Is(err, ErrInvalid) {
			t.Errorf("slots %d and %d more: %v", x.offset, x.n, err)
		}
	}
	if h.Info(0).Port.MACDigest == 9 {
		t.Error("a refused Set changed the digest")
	}
	if err := h.SetMACEntries(0, 2048, nil, 9); err != nil || h.Info(0).Port.MACDigest != 9 {
		t.Errorf("the digest alone: %v", err)
	}
}

// TestSourceEntries: at most 256 entries are sources', none leads anywhere.
func TestSourceEntries(t *testing.T) {
	h := newHost(t, 1, nil)
	e := make([]mad.VESWMACEntry, mad.VESWMaxSMACs+1)
	for i := range e {
		e[i] = mad.VESWMACEntry{MAC: [6]byte{0, 1, 2, 3, byte(i >> 8), byte(i)}, DLIDSD: mad.MakeDLIDSD(9) | 0x20}
	}
	if err := h.SetMACEntries(0, 0, e, 1); !errors.Is(err, ErrInvalid) || h.Info(0).Port.MACDigest != 0 {
		t.Errorf("%d sources: %v", len(e), err)
	}
	if err := h.SetMACEntries(0, 0, e[1:], 1); err != nil {
		t.Error(err)
	}
	if err := h.SetMACEntries(0, 1000, e[:1], 1); !errors.Is(err, ErrInvalid) {
		t.Errorf("one more elsewhere: %v", err)
	}
	if got := h.dlid(e[5].MAC); got != 0 {
		t.Errorf("a source's entry leads to %d", got)
	}
}

// TestLists: paging and generations of the lists of MACs.
func TestLists(t *testing.T) {
	h := newHost(t, 1, nil)
	p := h.Port(0)
	list := func(f func(uint8, int, [][6]byte) (int, int, uint16, error), start, want int) string {
		dst := make([][6]byte, want)
		n, total, gen, err := f(0, start, dst)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%x of %d, %d", dst[:n], total, gen)
	}
	expect := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	expect(list(h.UnicastMACs, 0, 9), "[] of 0, 0")
	p.SetFilters(1, [][6]byte{{2, 3}, {}, {2, 1}, {1, 1}, {2, 3}, info(1).Port.BaseMAC}, [][6]byte{{1, 1}, {2, 2},
		{3, 3}})
	expect(list(h.UnicastMACs, 0, 9), "[020100000000 020300000000] of 2, 1")
	expect(list(h.MulticastMACs, 0, 9), "[010100000000 030300000000] of 2, 1")
	expect(list(h.MulticastMACs, 1, 9), "[030300000000] of 2, 1")
	expect(list(h.MulticastMACs, 0, 1), "[010100000000] of 2, 1")
	expect(list(h.MulticastMACs, 2, 9), "[] of 2, 1")
	expect(list(h.MulticastMACs, 65535, 9), "[] of 2, 1")
	if err := p.SetMAC(1, [6]byte{0, 9}); err != nil {
		t.Fatal(err)
	}
	expect(list(h.UnicastMACs, 0, 9), "[000900000000 020100000000 020300000000] of 3, 2")
	p.SetMAC(1, info(1).Port.BaseMAC)
	expect(list(h.UnicastMACs, 0, 9), "[020100000000 020300000000] of 2, 3")
	for _, m := range [][6]byte{{}, {1, 2}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
		if err := p.SetMAC(1, m); !errors.Is(err, ErrInvalid) {
			t.Errorf("MAC %x: %v", m, err)
		}
	}
	var many [][6]byte
	for i := range MaxFilters + 7 {
		many = append(many, [6]byte{2, 1, 1, 1, byte(i >> 8), byte(i)})
	}
	p.SetFilters(1, many, nil)
	if _, total, _, _ := h.UnicastMACs(0, 0, nil); total != MaxFilters {
		t.Errorf("%d MACs", total)
	}
	if _, macs := p.Refused(); macs != 7 {
		t.Errorf("%d MACs refused", macs)
	}
}

// TestTrapWindow: five traps in a window, and one of each kind when it is over.
func TestTrapWindow(t *testing.T) {
	h := newHost(t, 1, nil)
	p := h.Port(0)
	now := mono.Time(1).Add(2 * trapWindow) // newHost sent some
	if h.Deadline() != 0 {
		t.Error("a trap for nothing")
	}
	start := now
	for i := range 5 {
		p.SetAdmin(now, i%2 == 1)
		if d := h.Deadline(); !d.Due(now) {
			t.Fatalf("trap %d is due at %d, not %d", i, d, now)
		}
		if got := h.drain(now); len(got) != 1 || got[0] != mad.VEMALinkStatus {
			t.Fatalf("trap %d: %v", i, got)
		}
		now += 1000
	}
	for i := range 6 { // ends down, as it was before
		p.SetAdmin(now, i%2 == 0)
		p.SetMAC(now, [6]byte{0, 1, byte(i)})
		if got := h.drain(now); got != nil {
			t.Fatalf("a trap too many: %v", got)
		}
		now += 1000
	}
	if d := h.Deadline(); d != start.Add(trapWindow) {
		t.Errorf("due at %d, want %d", d, start.Add(trapWindow))
	}
	if got := h.drain(start.Add(trapWindow) - 1); got != nil {
		t.Errorf("too early: %v", got)
	}
	now = start.Add(trapWindow)
	if diff := cmp.Diff([]mad.VEMAOpcode{mad.VEMAUnicastMACs, mad.VEMALinkStatus}, h.drain(now)); diff != "" {
		t.Error(diff)
	}
	if h.Deadline() != 0 {
		t.Error("a trap for nothing")
	}
	// A port's window is its own.
	i := info(1)
	i.VESW.VESWID = 9
	h.SetInfo(now, 4, i)
	h.Port(4).SetAdmin(now, true)
	if tr, ok := h.NextTrap(now); !ok || tr.VPort != 4 || tr.Opcode != mad.VEMALinkStatus {
		t.Errorf("%+v %v", tr, ok)
	}
}
