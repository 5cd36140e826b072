// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

// TestNotices compares the notice of every trap with bytes written out by
// hand, and what is read back with what was put in.
func TestNotices(t *testing.T) {
	gid := ib.GID{0: 0xfe, 1: 0x80, 15: 7}
	change := LocalChange{LID: 0x0102, Other: true, CapabilityMask: 0x03040506,
		Flags: ChangeNodeDescription | ChangeCapabilityMask2, CapabilityMask2: 0x0708}
	mkey := BadMKey{LID: 0x0102, DrSLID: 0x0304, Method: MethodSet, AttributeID: 0x0506, Modifier: 0x0708090a,
		MKey:     0x0b0c0d0e0f101112,
		Directed: true, Truncated: true, Hops: 0x13, ReturnPath: [30]uint8{0: 0x14, 29: 0x15}}
	qkey := BadKey{LID1: 0x0102, LID2: 0x0304, Key: 0x05060708, SL: 9, QP1: 0x0a0b0c, QP2: 0x0d0e0f,
		GID1: ib.GID{0: 0x10, 15: 0x11}, GID2: ib.GID{0: 0x12, 15: 0x13}}
	pkey := qkey
	pkey.Key, pkey.DataValid, pkey.SwitchLID, pkey.Port = 0x0708, 0x1415, 0x1617, 0x18
	details := func(head []byte, at int, d []byte) []byte {
		b := make([]byte, NoticeLen)
		copy(b, head)
		copy(b[10+at:], d)
		return b
	}
	for _, c := range []struct {
		name string
		n    Notice
		want []byte
		back any
		get  func(*Notice) any
	}{
		{"64", GIDNotice(TrapGIDInService, 0x0203, gid), details([]byte{0x83, 0, 0, 4, 0, 64, 2, 3}, 6, gid[:]), gid,
			func(n *Notice) any { return n.GID() }},
		{"67", GIDNotice(TrapGroupDeleted, 0x0203, gid), details([]byte{0x83, 0, 0, 4, 0, 67, 2, 3}, 6, gid[:]), gid,
			func(n *Notice) any { return n.GID() }},
		{"128", LinkStateNotice(0x0203), details([]byte{0x81, 0, 0, 2, 0, 128, 2, 3}, 0, []byte{2, 3}),
			ib.LID(0x0203), func(n *Notice) any { return n.LID() }},
		{"130", PortErrorNotice(TrapBufferOverrun, ProducerCA, 0x0203, 4),
			details([]byte{0x81, 0, 0, 1, 0, 130, 2, 3}, 2, []byte{2, 3, 4}),
			[]any{ib.LID(0x0203), uint8(4)}, func(n *Notice) any { return []any{n.LID(), n.Port()} }},
		{"144", change.Notice(ProducerSwitch), details([]byte{0x84, 0, 0, 2, 0, 144, 1, 2}, 2,
			[]byte{1, 2, 0, 1, 3, 4, 5, 6, 0, 0x21, 7, 8}), change,
			func(n *Notice) any { return n.LocalChange() }},
		{"145", SystemImageNotice(ProducerOf(NodeRouter), 0x0203, 0x0405060708090a0b),
			details([]byte{0x84, 0, 0, 3, 0, 145, 2, 3}, 2, []byte{2, 3, 0, 0, 4, 5, 6, 7, 8, 9, 10, 11}),
			ib.GUID(0x0405060708090a0b), func(n *Notice) any { return n.SystemImageGUID() }},
		{"256", mkey.Notice(ProducerCA), details([]byte{0x82, 0, 0, 1, 1, 0, 1, 2}, 2,
			[]byte{1, 2, 3, 4, 2, 0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 0, 0xd3, 0x14, 51: 0x15}),
			mkey, func(n *Notice) any { return n.BadMKey() }},
		{"258", qkey.Notice(TrapBadQKey, ProducerCA, 0x0908), details([]byte{0x82, 0, 0, 1, 1, 2, 9, 8}, 2,
			[]byte{1, 2, 3, 4, 5, 6, 7, 8, 0x90, 10, 11, 12, 0, 13, 14, 15, 16: 0x10, 31: 0x11, 32: 0x12, 47: 0x13}),
			qkey, func(n *Notice) any { return n.BadKey() }},
		{"259", pkey.Notice(TrapBadPKeyAtSwitch, ProducerSwitch, 0x1617),
			details([]byte{0x82, 0, 0, 2, 1, 3, 0x16, 0x17}, 0,
				[]byte{0x14, 0x15, 1, 2, 3, 4, 7, 8, 0x90, 10, 11, 12, 0, 13, 14, 15, 16: 0x10, 31: 0x11, 32: 0x12,
					47: 0x13, 48: 0x16, 49: 0x17, 50: 0x18}), pkey,
			func(n *Notice) any { return n.BadKey() }},
	} {
		if diff := cmp.Diff(c.want, c.n.Append(nil)); diff != "" {
			t.Errorf("trap %s: %s", c.name, diff)
		}
		back := parse[Notice](t, c.want)
		if diff := cmp.Diff(c.n, back); diff != "" {
			t.Errorf("trap %s: %s", c.name, diff)
		}
		if diff := cmp.Diff(c.back, c.get(&back)); diff != "" {
			t.Errorf("trap %s: %s", c.name, diff)
		}
	}
	n := Notice{Type: 0x7f, Producer: 0x010203, TrapNumber: 0x0405, IssuerLID: 0x0607, Toggle: true, Count: 0x0809}
	want := details([]byte{0x7f, 1, 2, 3, 4, 5, 6, 7, 0x88, 9}, 0, nil)
	if diff := cmp.Diff(want, n.Append(nil)); diff != "" {
		t.Error(diff)
	}
	r := NoticeRecord{Notice: n, IssuerGID: gid}
	if diff := cmp.Diff(append(want, gid[:]...), r.Append(nil)); diff != "" {
		t.Error(diff)
	}
	if TrapBadPKey.String() != "bad P_Key" || TrapNumber(9).String() != "trap 9" {
		t.Error("names")
	}
}

func TestBadMKeyOf(t *testing.T) {
	s := SMP{Header: Header{MgmtClass: ClassSubnDR, Method: MethodGet, AttributeID: AttrPortInfo,
		AttributeModifier: 3}, MKey: 4,
		DrSLID: ib.LIDPermissive, HopCount: 29}
	for i := range s.ReturnPath {
		s.ReturnPath[i] = uint8(i)
	}
	m := BadMKeyOf(&s, 5)
	if m.LID != 5 || m.MKey != 4 || m.Method != MethodGet || m.AttributeID != AttrPortInfo || m.Modifier != 3 ||
		!m.Directed || m.Truncated ||
		m.Hops != 29 || m.ReturnPath[29] != 29 || m.DrSLID != ib.LIDPermissive {
		t.Errorf("%+v", m)
	}
	if s.HopCount = 30; !BadMKeyOf(&s, 5).Truncated {
		t.Error("a path of 30 hops fits 30 octets, the first of which is not used")
	}
	s.MgmtClass = ClassSubnLID
	if m := BadMKeyOf(&s, 5); m.Directed || m.Hops != 0 || m.DrSLID != 0 || m.ReturnPath != [30]uint8{} {
		t.Errorf("%+v", m)
	}
}

func TestInformWants(t *testing.T) {
	n := LinkStateNotice(5)
	gid := ib.GID{15: 1}
	all := InformInfo{LIDBegin: InformAllLIDs, IsGeneric: 1, Subscribe: 1, Type: InformAllTypes,
		TrapNumber: InformAllTraps, Producer: InformAllProducers}
	with := func(edit func(*InformInfo)) InformInfo {
		f := all
		edit(&f)
		return f
	}
	for _, c := range []struct {
		name string
		f    InformInfo
		want bool
	}{
		{"all", all, true},
		{"vendor", with(func(f *InformInfo) { f.IsGeneric = 0 }), false},
		{"type", with(func(f *InformInfo) { f.Type = NoticeUrgent }), true},
		{"other type", with(func(f *InformInfo) { f.Type = NoticeSubnet }), false},
		{"trap", with(func(f *InformInfo) { f.TrapNumber = TrapLinkState }), true},
		{"other trap", with(func(f *InformInfo) { f.TrapNumber = TrapGIDInService }), false},
		{"producer", with(func(f *InformInfo) { f.Producer = ProducerSwitch }), true},
		{"other producer", with(func(f *InformInfo) { f.Producer = ProducerCA }), false},
		{"one LID", with(func(f *InformInfo) { f.LIDBegin = 5 }), true},
		{"LIDs", with(func(f *InformInfo) { f.LIDBegin, f.LIDEnd = 4, 6 }), true},
		{"LIDs above", with(func(f *InformInfo) { f.LIDBegin, f.LIDEnd = 6, 9 }), false},
		{"LIDs below", with(func(f *InformInfo) { f.LIDBegin, f.LIDEnd = 1, 4 }), false},
		{"GID", with(func(f *InformInfo) { f.GID = gid; f.LIDBegin = 9 }), true},
		{"other GID", with(func(f *InformInfo) { f.GID = ib.GID{15: 2} }), false},
	} {
		if got := c.f.Covers(&n, gid); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
