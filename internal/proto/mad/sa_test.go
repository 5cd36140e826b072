// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

// TestSampleGMPs proves byte equality of every sample of subnet administration
// and performance management both ways, header and attribute.
func TestSampleGMPs(t *testing.T) {
	attributes := map[Class]map[AttributeID]codec{
		ClassSA: {AttrClassPortInfo: new(ClassPortInfo), AttrPathRecord: new(PathRecord),
			AttrMCMemberRecord: new(MCMemberRecord),
			AttrNodeRecord:     new(NodeRecord), AttrPortInfoRecord: new(PortInfoRecord)},
		ClassPerf: {AttrClassPortInfo: new(ClassPortInfo), AttrPortCounters: new(PortCounters),
			AttrPortCountersExtended: new(PortCountersExtended)},
	}
	seen := 0
	for _, m := range sampleMADs(t) {
		h := parse[Header](t, m)
		var got, data []byte
		switch h.MgmtClass {
		case ClassSA:
			sa := parse[SA](t, m)
			got, data = sa.Append(bytes.Repeat([]byte{0xa5}, 7))[7:], sa.Data[:]
		case ClassPerf:
			perf := parse[Perf](t, m)
			got, data = perf.Append(bytes.Repeat([]byte{0xa5}, 7))[7:], perf.Data[:]
		default:
			continue
		}
		seen++
		if diff := cmp.Diff(m, got); diff != "" {
			t.Error(diff)
		}
		c := attributes[h.MgmtClass][h.AttributeID]
		if c == nil {
			t.Fatalf("class %#x, attribute %#x", h.MgmtClass, h.AttributeID)
		}
		if err := c.Parse(data); err != nil {
			t.Fatal(err)
		}
		if got := c.Append(nil); !bytes.Equal(got, data[:len(got)]) {
			t.Errorf("%T:\nwant % x\n got % x", c, data[:len(got)], got)
		}
	}
	if seen != 19 {
		t.Errorf("%d samples", seen)
	}
}

func saSample(t *testing.T, title string, n int) SA {
	t.Helper()
	for _, s := range vectors(t).MADSamples.Samples {
		if s.Title == title {
			return parse[SA](t, s.Exchange[n].MAD)
		}
	}
	t.Fatalf("no sample %q", title)
	return SA{}
}

// TestSampleRecords compares decoded samples with what saquery printed of them.
func TestSampleRecords(t *testing.T) {
	query := saSample(t, "SA GetTable PathRecord SLID 4 DLID 5 NumbPath", 0)
	if query.Method != MethodGetTable || query.ComponentMask != CompPathSLID|CompPathDLID|CompPathNumbPath ||
		query.SMKey != 0 {
		t.Errorf("query %+v", query.SAHeader)
	}
	if diff := cmp.Diff(PathRecord{SLID: 4, DLID: 5, NumbPath: 0x7f}, parse[PathRecord](t, query.Data[:])); diff != "" {
		t.Error(diff)
	}
	sa := saSample(t, "SA GetTable PathRecord SLID 4 DLID 5 NumbPath", 1)
	if sa.Method != MethodGetTableResp || sa.AttributeOffset != RecordOffset(AttrPathRecord) ||
		sa.RMPP.Flags != RMPPActive ||
		sa.ComponentMask != query.ComponentMask {
		t.Errorf("answer %+v", sa.SAHeader)
	}
	if diff := cmp.Diff(PathRecord{DGID: ib.MakeGID(ib.DefaultGIDPrefix, 0x100005),
		SGID: ib.MakeGID(ib.DefaultGIDPrefix, 0x100003),
		DLID: 5, SLID: 4, Reversible: true, PKey: 0xffff, MTUSelector: SelectExactly, MTU: ib.MTU2048, RateSelector: SelectExactly,
		Rate: ib.Rate10, LifeSelector: SelectExactly, Life: 18}, parse[PathRecord](t, sa.Data[:])); diff != "" {
		t.Error(diff)
	}
	sa = saSample(t, "SA GetTable MCMemberRecord", 1)
	if diff := cmp.Diff(MCMemberRecord{MGID: ib.GID{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 12: 0xff, 13: 0xff, 14: 0xff,
		15: 0xff}, QKey: 0xb1b,
		MLID: 0xc000, MTUSelector: SelectExactly, MTU: ib.MTU2048, PKey: 0xffff, RateSelector: SelectExactly, Rate: ib.Rate10,
		LifeSelector: SelectExactly, Life: 18, Scope: 2}, parse[MCMemberRecord](t, sa.Data[:])); diff != "" {
		t.Error(diff)
	}
	sa = saSample(t, "SA GetTable NodeRecord LID 4", 1)
	if diff := cmp.Diff(NodeRecord{LID: 4, NodeDescription: MakeNodeDescription("H2"),
		NodeInfo: NodeInfo{BaseVersion: 1, ClassVersion: 1,
			NodeType: NodeCA, NumPorts: 1, SystemImageGUID: 0x100002, NodeGUID: 0x100002, PortGUID: 0x100003, PartitionCap: 64, Revision: 0xa1,
			LocalPortNum: 1}}, parse[NodeRecord](t, sa.Data[:])); diff != "" {
		t.Error(diff)
	}
	sa = saSample(t, "SA GetTable PortInfoRecord LID 4", 1)
	rec := parse[PortInfoRecord](t, sa.Data[:])
	smp := response(t, "SubnGet PortInfo, LID 4 port 1 (CA)", 1)
	if diff := cmp.Diff(parse[PortInfo](t, smp.Data[:]), rec.PortInfo); diff != "" || rec.EndPortLID != 4 ||
		rec.PortNum != 1 {
		t.Errorf("%+v\n%s", rec, diff)
	}
	query = saSample(t, "SA GetTable PortInfoRecord LID 4", 0)
	if !query.Match(sa.Data[:]) {
		t.Error("the answer does not match its query")
	}
	if rec.EndPortLID = 5; query.Match(rec.Append(nil)) {
		t.Error("another LID matches")
	}
	sa = saSample(t, "SA Get ClassPortInfo", 1)
	if diff := cmp.Diff(ClassPortInfo{BaseVersion: 1, ClassVersion: 2,
		CapabilityMask:  ClassCapNotice | SACapUDMulticast | SACapMultiPath | SACapPortInfoCapMatch,
		CapabilityMask2: 0xb5ea, RespTimeValue: 0x10, Redirect: Target{QPN: 1,
			QKey: ib.GSIQKey}, Trap: Target{QKey: ib.GSIQKey}},
		parse[ClassPortInfo](t, sa.Data[:])); diff != "" {
		t.Error(diff)
	}
}

// TestSampleJoin decodes the published join of a broadcast group by three components.
func TestSampleJoin(t *testing.T) {
	sa := parse[SA](t, vectors(t).Join.MAD)
	if sa.Method != MethodSet || sa.AttributeID != AttrMCMemberRecord || sa.ClassVersion != ClassVersionSA ||
		sa.TransactionID != 0x99 ||
		sa.ComponentMask != CompMCMGID|CompMCPortGID|CompMCJoinState {
		t.Errorf("%+v", sa.SAHeader)
	}
	want := MCMemberRecord{MGID: ib.GID{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 12: 0xff, 13: 0xff, 14: 0xff, 15: 0xff},
		PortGID: ib.MakeGID(ib.DefaultGIDPrefix, 0x0002c90300000001), JoinState: JoinFull}
	if diff := cmp.Diff(want, parse[MCMemberRecord](t, sa.Data[:])); diff != "" {
		t.Error(diff)
	}
	sa.SMKey, sa.RMPP.Flags = 7, RMPPActive
	sa.Reply(StatusSARequest)
	if sa.Method != MethodGetResp || sa.Status != 0x0200 || sa.SMKey != 0 || sa.RMPP != (RMPP{}) ||
		sa.ComponentMask != 0x10003 {
		t.Errorf("reply %+v", sa.SAHeader)
	}
}

// TestRecordBytes compares records that no sample has with bytes written out
// by hand.
func TestRecordBytes(t *testing.T) {
	for _, c := range []struct {
		rec  codec
		want []byte
	}{
		{&SLtoVLRecord{LID: 0x0102, InPort: 3, OutPort: 4, SLtoVL: SLtoVL{0: 5, 1: 6, 15: 7}},
			[]byte{1, 2, 3, 4, 0, 0, 0, 0, 0x56, 0, 0, 0, 0, 0, 0, 7}},
		{&LinkRecord{FromLID: 0x0102, FromPort: 3, ToPort: 4, ToLID: 0x0506}, []byte{1, 2, 3, 4, 5, 6}},
		{&LFTRecord{LID: 0x0102, Block: 0x0304, LFT: LFT{0: 9, 63: 8}},
			append([]byte{1, 2, 3, 4, 0, 0, 0, 0, 9, 71: 8}, nil...)},
		{&MFTRecord{LID: 0x0102, Position: 0xf, Block: 0x1f3, MFT: MFT{0: 0x0a0b, 31: 0x0c0d}},
			[]byte{1, 2, 0xf1, 0xf3, 0, 0, 0, 0, 0xa, 0xb, 70: 0xc, 71: 0xd}},
		{&GUIDInfoRecord{LID: 0x0102, Block: 3, GUIDInfo: GUIDInfo{0: 0x0405060708090a0b, 7: 1}},
			[]byte{1, 2, 3, 0, 0, 0, 0, 0, 4, 5, 6, 7, 8, 9, 10, 11, 71: 1}},
		{&PKeyTableRecord{LID: 0x0102, Block: 0x0304, Port: 5, PKeyTable: PKeyTable{0: 0x0607, 31: 0x0809}},
			[]byte{1, 2, 3, 4, 5, 0, 0, 0, 6, 7, 70: 8, 71: 9}},
		{&VLArbRecord{LID: 0x0102, Port: 3, Block: 4, VLArb: VLArb{0: {5, 6}, 31: {7, 8}}}, []byte{1, 2, 3, 4, 0, 0,
			0, 0, 5, 6, 70: 7, 71: 8}},
		{&SMInfoRecord{LID: 0x0102, SMInfo: SMInfo{GUID: 0x0304050607080900, SMKey: 1, ActCount: 2, Priority: 3,
			State: SMMaster}},
			[]byte{1, 2, 0, 0, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x33}},
		{&ServiceRecord{ServiceID: 1, ServiceGID: ib.GID{0: 2, 15: 3}, PKey: 0x0405, Lease: 0x06070809,
			Key: [16]byte{0: 10, 15: 11}, Name: [64]byte{0: 'a', 63: 'z'},
			Data8: [16]uint8{0: 12, 15: 13}, Data16: [8]uint16{0: 0x0e0f, 7: 0x1011}, Data32: [4]uint32{0: 0x12131415,
				3: 0x16171819}, Data64: [2]uint64{1: 0x1a}},
			[]byte{7: 1, 8: 2, 23: 3, 24: 4, 25: 5, 28: 6, 29: 7, 30: 8, 31: 9, 32: 10, 47: 11, 48: 'a', 111: 'z',
				112: 12, 127: 13, 128: 0xe, 129: 0xf, 142: 0x10, 143: 0x11,
				144: 0x12, 145: 0x13, 146: 0x14, 147: 0x15, 156: 0x16, 157: 0x17, 158: 0x18, 159: 0x19, 175: 0x1a}},
		{&MultiPathRecord{RawTraffic: true, FlowLabel: 0x12345, HopLimit: 6, TClass: 7, Reversible: true, NumbPath: 8,
			PKey: 0x090a, QoSClass: 0xb0c, SL: 0xd,
			MTUSelector: SelectLess, MTU: ib.MTU4096, RateSelector: SelectExactly, Rate: ib.Rate10, LifeSelector: SelectBest, Life: 4,
			ServiceID: 0x1112131415161718, Independence: 2, SGIDCount: 0x21, DGIDCount: 0x22},
			[]byte{0x81, 0x23, 0x45, 6, 7, 0x88, 9, 0xa, 0xb0, 0xcd, 0x45, 0x83, 0xc4, 0x11, 0x80, 0x21, 0x22, 0x12,
				0x13, 0x14, 0x15, 0x16, 0x17, 0x18}},
		{&InformInfo{GID: ib.GID{0: 1, 15: 2}, LIDBegin: 0x0304, LIDEnd: 0x0506, IsGeneric: 7, Subscribe: 8,
			Type: 0x090a, TrapNumber: 0x0b0c, QPN: 0x0d0e0f, RespTime: 0x10,
			Producer: 0x111213}, []byte{0: 1, 15: 2, 16: 3, 17: 4, 18: 5, 19: 6, 22: 7, 23: 8, 24: 9, 25: 10, 26: 11, 27: 12,
			28: 13, 29: 14, 30: 15, 31: 16, 33: 0x11, 34: 0x12, 35: 0x13}},
		{&InformInfoRecord{SubscriberGID: ib.GID{0: 1, 15: 2}, Enum: 0x0304,
			InformInfo: InformInfo{LIDBegin: 0x0506}}, []byte{0: 1, 15: 2, 16: 3, 17: 4, 40: 5, 41: 6, 59: 0}},
		{&RMPP{Version: 1, Type: RMPPAck, RRespTime: 0x1f, Flags: RMPPActive | RMPPLast, Status: 118,
			Data1: 0x01020304, Data2: 0x05060708},
			[]byte{1, 2, 0xfd, 118, 1, 2, 3, 4, 5, 6, 7, 8}},
		{&ClassPortInfo{BaseVersion: 1, ClassVersion: 2, CapabilityMask: 0x0304, CapabilityMask2: 1,
			RespTimeValue: 0x1e,
			Redirect: Target{GID: ib.GID{0: 5}, TClass: 6, SL: 7, FlowLabel: 0x80910, LID: 0x1112, PKey: 0x1314,
				HopLimit: 0xff, QPN: 0x151617, QKey: 0x18191a1b},
			Trap: Target{GID: ib.GID{15: 0x1c}, TClass: 0x1d, SL: 0xe, FlowLabel: 0xf2021, LID: 0x2223,
				PKey: 0x2425, HopLimit: 0x26, QPN: 0x272829, QKey: 0x2a2b2c2d}},
			[]byte{1, 2, 3, 4, 0, 0, 0, 0x3e, 5, 24: 6, 25: 0x78, 26: 0x09, 27: 0x10, 28: 0x11, 29: 0x12, 30: 0x13,
				31: 0x14, 33: 0x15, 34: 0x16, 35: 0x17, 36: 0x18, 37: 0x19, 38: 0x1a, 39: 0x1b,
				55: 0x1c, 56: 0x1d, 57: 0xef, 58: 0x20, 59: 0x21, 60: 0x22, 61: 0x23, 62: 0x24, 63: 0x25, 64: 0x26, 65: 0x27,
				66: 0x28, 67: 0x29, 68: 0x2a, 69: 0x2b, 70: 0x2c, 71: 0x2d}},
	} {
		if diff := cmp.Diff(c.want, c.rec.Append(nil)); diff != "" {
			t.Errorf("%T: %s", c.rec, diff)
		}
	}
}

func TestMultiPathGIDs(t *testing.T) {
	q := MultiPathRecord{SGIDCount: 2, DGIDCount: 1}
	b := q.Append(nil)
	for i := range 3 {
		b = append(b, bytes.Repeat([]byte{byte(i + 1)}, 16)...)
	}
	for i := range 3 {
		if g, ok := q.GID(b, i); !ok || g[0] != byte(i+1) || g[15] != byte(i+1) {
			t.Errorf("GID %d: %v %v", i, g, ok)
		}
	}
	if _, ok := q.GID(append(b, b...), 3); ok {
		t.Error("a GID beyond the counts")
	}
	if _, ok := q.GID(b, -1); ok {
		t.Error("a negative GID")
	}
	if _, ok := q.GID(b[:len(b)-1], 2); ok {
		t.Error("a truncated GID")
	}
}

func TestSelectors(t *testing.T) {
	for _, c := range []struct {
		s          Selector
		have, want int
		ok         bool
	}{
		{SelectGreater, 5, 4, true}, {SelectGreater, 4, 4, false}, {SelectLess, 3, 4, true}, {SelectLess, 4, 4, false},
		{SelectExactly, 4, 4, true}, {SelectExactly, 5, 4, false}, {SelectBest, 1, 4, true},
	} {
		if c.s.Accepts(c.have, c.want) != c.ok {
			t.Errorf("%d: have %d, want %d", c.s, c.have, c.want)
		}
	}
}

func TestServiceName(t *testing.T) {
	r := ServiceRecord{}
	copy(r.Name[:], "weft\x00junk")
	if r.ServiceName() != "weft" {
		t.Errorf("%q", r.ServiceName())
	}
}

func TestStatusNames(t *testing.T) {
	for s, want := range map[Status]string{0: "success", 1: "busy", 2: "redirect required", 4: "bad version",
		8:   "method not supported",
		0xc: "method/attribute combination not supported", 0x1c: "attribute or modifier value invalid", 0x0300: "no records",
		0x0800: "priority suggested", 0x0900: "Status(0x0900)", 0x0010: "Status(0x0010)"} {
		if got := s.String(); got != want {
			t.Errorf("%#x: %q, want %q", uint16(s), got, want)
		}
	}
	if MethodGetTable.String() != "GetTable" || Method(0x7e).String() != "Method(0x7e)" {
		t.Error("method names")
	}
	for c, want := range map[Class]bool{ClassSA: true, ClassPing: true, 0x30: true, 0x4f: true, 0x50: false,
		0x09: false, ClassPerf: false, ClassSubnDR: false} {
		if c.HasRMPP() != want {
			t.Errorf("class %#x: RMPP %v", uint8(c), !want)
		}
	}
}
