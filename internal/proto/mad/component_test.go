// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"bytes"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// records are the structures of subnet administration by attribute.
var records = map[AttributeID]func() codec{
	AttrNodeRecord: of[NodeRecord](), AttrPortInfoRecord: of[PortInfoRecord](), AttrSLtoVLRecord: of[SLtoVLRecord](),
	AttrSwitchInfoRecord: of[SwitchInfoRecord](), AttrLFTRecord: of[LFTRecord](), AttrMFTRecord: of[MFTRecord](),
	AttrSMInfoRecord: of[SMInfoRecord](), AttrLinkRecord: of[LinkRecord](), AttrGUIDInfoRecord: of[GUIDInfoRecord](),
	AttrServiceRecord: of[ServiceRecord](), AttrPKeyTableRecord: of[PKeyTableRecord](), AttrPathRecord: of[PathRecord](),
	AttrVLArbRecord: of[VLArbRecord](), AttrMCMemberRecord: of[MCMemberRecord](), AttrMultiPathRecord: of[MultiPathRecord](),
	AttrInformInfo: of[InformInfo](), AttrInformInfoRecord: of[InformInfoRecord](),
}

// leaves are the settable values below v with their names; arrays that are one
// component are one leaf.
func leaves(v reflect.Value, prefix string, each func(string, reflect.Value)) {
	for i := range v.NumField() {
		f, name := v.Field(i), prefix+v.Type().Field(i).Name
		switch {
		case f.Kind() == reflect.Struct:
			leaves(f, name+".", each)
		case f.Kind() == reflect.Array && strings.HasPrefix(name, "Data"), f.Type() == reflect.TypeFor[GUIDInfo]():
			for j := range f.Len() {
				each(fmt.Sprintf("%s[%d]", name, j), f.Index(j))
			}
		default:
			each(name, f)
		}
	}
}

// TestComponentsAreFields proves that the tables of components and the structures
// agree: setting one field of a record, and nothing else, makes Match fail for exactly its
// component. It also counts that no component is without a field.
func TestComponentsAreFields(t *testing.T) {
	if len(records) != len(components) {
		t.Errorf("%d records, %d tables", len(records), len(components))
	}
	for attr, build := range records {
		zero := build().Append(nil)
		if len(zero) != RecordLen(attr) {
			t.Errorf("%T: %d bytes, its table has %d", build(), len(zero), RecordLen(attr))
			continue
		}
		seen, last := ComponentMask(0), ComponentMask(0)
		n := 0
		leaves(reflect.ValueOf(build()).Elem(), "", func(string, reflect.Value) { n++ })
		for i := range n {
			rec, at, name := build(), 0, ""
			leaves(reflect.ValueOf(rec).Elem(), "", func(s string, v reflect.Value) {
				if at == i {
					name = s
					fill(v)
				}
				at++
			})
			differ := ComponentMask(0)
			full := rec.Append(nil)
			for bit := range 64 {
				if !Match(attr, 0, 1<<bit, zero, full) {
					differ |= 1 << bit
				}
			}
			// The service ID of the path records has two components.
			want := 1
			if name == "ServiceID" && (attr == AttrPathRecord || attr == AttrMultiPathRecord) {
				want = 2
			}
			if bits.OnesCount64(uint64(differ)) != want || seen&differ != 0 {
				t.Errorf("%T.%s is component %b", build(), name, differ)
			}
			if attr != AttrMultiPathRecord && differ < last {
				t.Errorf("%T.%s is component %b, out of order", build(), name, differ)
			}
			seen, last = seen|differ, differ
		}
		for bit, f := range components[attr] {
			if (seen>>bit&1 == 0) != f.reserved {
				t.Errorf("%T: component %d is no field", build(), bit)
			}
		}
	}
}

// TestComponentNames proves that each constant selects the field it is named
// after. The numbers are those of IBA volume 1, 15.2.5.
func TestComponentNames(t *testing.T) {
	for _, c := range []struct {
		attr AttributeID
		bit  ComponentMask
		n    int
		name string
	}{
		{AttrNodeRecord, CompNodeLID, 0, "LID"}, {AttrNodeRecord, CompNodeBaseVersion, 2, "NodeInfo.BaseVersion"},
		{AttrNodeRecord, CompNodeClassVersion, 3, "NodeInfo.ClassVersion"},
		{AttrNodeRecord, CompNodeType, 4, "NodeInfo.NodeType"}, {AttrNodeRecord, CompNodeNumPorts, 5,
			"NodeInfo.NumPorts"},
		{AttrNodeRecord, CompNodeSystemImageGUID, 6, "NodeInfo.SystemImageGUID"}, {AttrNodeRecord, CompNodeGUID, 7,
			"NodeInfo.NodeGUID"},
		{AttrNodeRecord, CompNodePortGUID, 8, "NodeInfo.PortGUID"}, {AttrNodeRecord, CompNodePartitionCap, 9,
			"NodeInfo.PartitionCap"},
		{AttrNodeRecord, CompNodeDeviceID, 10, "NodeInfo.DeviceID"}, {AttrNodeRecord, CompNodeRevision, 11,
			"NodeInfo.Revision"},
		{AttrNodeRecord, CompNodeLocalPortNum, 12, "NodeInfo.LocalPortNum"},
		{AttrNodeRecord, CompNodeVendorID, 13, "NodeInfo.VendorID"}, {AttrNodeRecord, CompNodeDescription, 14,
			"NodeDescription"},
		{AttrPortInfoRecord, CompPortLID, 0, "EndPortLID"}, {AttrPortInfoRecord, CompPortNum, 1, "PortNum"},
		{AttrPortInfoRecord, CompPortOptions, 2, "Options"}, {AttrPortInfoRecord, CompPortMKey, 3, "PortInfo.MKey"},
		{AttrPortInfoRecord, CompPortGIDPrefix, 4, "PortInfo.GIDPrefix"}, {AttrPortInfoRecord, CompPortBaseLID, 5,
			"PortInfo.LID"},
		{AttrPortInfoRecord, CompPortMasterSMLID, 6, "PortInfo.MasterSMLID"},
		{AttrPortInfoRecord, CompPortCapabilityMask, 7, "PortInfo.CapabilityMask"},
		{AttrPortInfoRecord, CompPortState, 15, "PortInfo.PortState"}, {AttrPortInfoRecord, CompPortLMC, 20,
			"PortInfo.LMC"},
		{AttrPortInfoRecord, 1 << 57, 57, "PortInfo.LinkSpeedExtEnabled"}, {AttrPortInfoRecord, 1 << 42, 42,
			"PortInfo.GUIDCap"},
		{AttrSLtoVLRecord, CompTableLID, 0, "LID"}, {AttrSLtoVLRecord, CompSLtoVLInPort, 1, "InPort"},
		{AttrSLtoVLRecord, CompSLtoVLOutPort, 2, "OutPort"}, {AttrSwitchInfoRecord, CompTableLID, 0, "LID"},
		{AttrLFTRecord, CompTableLID, 0, "LID"}, {AttrLFTRecord, CompLFTBlock, 1, "Block"},
		{AttrMFTRecord, CompTableLID, 0, "LID"}, {AttrMFTRecord, CompMFTPosition, 1, "Position"}, {AttrMFTRecord,
			CompMFTBlock, 3, "Block"},
		{AttrPKeyTableRecord, CompTableLID, 0, "LID"}, {AttrPKeyTableRecord, CompPKeyBlock, 1, "Block"},
		{AttrPKeyTableRecord, CompPKeyPort, 2, "Port"}, {AttrVLArbRecord, CompTableLID, 0, "LID"},
		{AttrVLArbRecord, CompVLArbPort, 1, "Port"}, {AttrVLArbRecord, CompVLArbBlock, 2, "Block"},
		{AttrGUIDInfoRecord, CompTableLID, 0, "LID"}, {AttrGUIDInfoRecord, CompGUIDInfoBlock, 1, "Block"},
		{AttrGUIDInfoRecord, CompGUIDInfoGUID0, 4, "GUIDInfo[0]"}, {AttrGUIDInfoRecord, CompGUIDInfoGUID0 << 7, 11,
			"GUIDInfo[7]"},
		{AttrSMInfoRecord, CompSMLID, 0, "LID"}, {AttrSMInfoRecord, CompSMGUID, 2, "SMInfo.GUID"}, {AttrSMInfoRecord,
			CompSMKey, 3, "SMInfo.SMKey"},
		{AttrSMInfoRecord, CompSMActCount, 4, "SMInfo.ActCount"},
		{AttrSMInfoRecord, CompSMPriority, 5, "SMInfo.Priority"}, {AttrSMInfoRecord, CompSMState, 6, "SMInfo.State"},
		{AttrLinkRecord, CompLinkFromLID, 0, "FromLID"}, {AttrLinkRecord, CompLinkFromPort, 1, "FromPort"},
		{AttrLinkRecord, CompLinkToPort, 2, "ToPort"}, {AttrLinkRecord, CompLinkToLID, 3, "ToLID"},
		{AttrServiceRecord, CompServiceID, 0, "ServiceID"}, {AttrServiceRecord, CompServiceGID, 1, "ServiceGID"},
		{AttrServiceRecord, CompServicePKey, 2, "PKey"}, {AttrServiceRecord, CompServiceLease, 4, "Lease"},
		{AttrServiceRecord, CompServiceKey, 5, "Key"}, {AttrServiceRecord, CompServiceName, 6, "Name"},
		{AttrServiceRecord, 1 << 7, 7, "Data8[0]"}, {AttrServiceRecord, 1 << 23, 23, "Data16[0]"}, {AttrServiceRecord,
			1 << 31, 31, "Data32[0]"},
		{AttrServiceRecord, 1 << 36, 36, "Data64[1]"},
		{AttrPathRecord, CompPathServiceID & 1, 0, "ServiceID"}, {AttrPathRecord, CompPathServiceID & 2, 1,
			"ServiceID"},
		{AttrPathRecord, CompPathDGID, 2, "DGID"}, {AttrPathRecord, CompPathSGID, 3, "SGID"}, {AttrPathRecord,
			CompPathDLID, 4, "DLID"},
		{AttrPathRecord, CompPathSLID, 5, "SLID"}, {AttrPathRecord, CompPathRawTraffic, 6, "RawTraffic"},
		{AttrPathRecord, CompPathFlowLabel, 8, "FlowLabel"}, {AttrPathRecord, CompPathHopLimit, 9, "HopLimit"},
		{AttrPathRecord, CompPathTClass, 10, "TClass"}, {AttrPathRecord, CompPathReversible, 11, "Reversible"},
		{AttrPathRecord, CompPathNumbPath, 12, "NumbPath"}, {AttrPathRecord, CompPathPKey, 13, "PKey"},
		{AttrPathRecord, CompPathQoSClass, 14, "QoSClass"}, {AttrPathRecord, CompPathSL, 15, "SL"},
		{AttrPathRecord, CompPathMTUSelector, 16, "MTUSelector"}, {AttrPathRecord, CompPathMTU, 17, "MTU"},
		{AttrPathRecord, CompPathRateSelector, 18, "RateSelector"}, {AttrPathRecord, CompPathRate, 19, "Rate"},
		{AttrPathRecord, CompPathLifeSelector, 20, "LifeSelector"}, {AttrPathRecord, CompPathLife, 21, "Life"},
		{AttrPathRecord, CompPathPreference, 22, "Preference"},
		{AttrMCMemberRecord, CompMCMGID, 0, "MGID"}, {AttrMCMemberRecord, CompMCPortGID, 1,
			"PortGID"}, {AttrMCMemberRecord, CompMCQKey, 2, "QKey"},
		{AttrMCMemberRecord, CompMCMLID, 3, "MLID"}, {AttrMCMemberRecord, CompMCMTUSelector, 4, "MTUSelector"},
		{AttrMCMemberRecord, CompMCMTU, 5, "MTU"}, {AttrMCMemberRecord, CompMCTClass, 6,
			"TClass"}, {AttrMCMemberRecord, CompMCPKey, 7, "PKey"},
		{AttrMCMemberRecord, CompMCRateSelector, 8, "RateSelector"}, {AttrMCMemberRecord, CompMCRate, 9, "Rate"},
		{AttrMCMemberRecord, CompMCLifeSelector, 10, "LifeSelector"}, {AttrMCMemberRecord, CompMCLife, 11, "Life"},
		{AttrMCMemberRecord, CompMCSL, 12, "SL"}, {AttrMCMemberRecord, CompMCFlowLabel, 13, "FlowLabel"},
		{AttrMCMemberRecord, CompMCHopLimit, 14, "HopLimit"}, {AttrMCMemberRecord, CompMCScope, 15, "Scope"},
		{AttrMCMemberRecord, CompMCJoinState, 16, "JoinState"}, {AttrMCMemberRecord, CompMCProxyJoin, 17, "ProxyJoin"},
		{AttrMultiPathRecord, CompMultiRawTraffic, 0, "RawTraffic"}, {AttrMultiPathRecord, CompMultiFlowLabel, 2,
			"FlowLabel"},
		{AttrMultiPathRecord, CompMultiHopLimit, 3, "HopLimit"}, {AttrMultiPathRecord, CompMultiTClass, 4, "TClass"},
		{AttrMultiPathRecord, CompMultiReversible, 5, "Reversible"}, {AttrMultiPathRecord, CompMultiNumbPath, 6,
			"NumbPath"},
		{AttrMultiPathRecord, CompMultiPKey, 7, "PKey"}, {AttrMultiPathRecord, CompMultiQoSClass, 8, "QoSClass"},
		{AttrMultiPathRecord, CompMultiSL, 9, "SL"}, {AttrMultiPathRecord, CompMultiMTUSelector, 10, "MTUSelector"},
		{AttrMultiPathRecord, CompMultiMTU, 11, "MTU"}, {AttrMultiPathRecord, CompMultiRateSelector, 12,
			"RateSelector"},
		{AttrMultiPathRecord, CompMultiRate, 13, "Rate"}, {AttrMultiPathRecord, CompMultiLifeSelector, 14,
			"LifeSelector"},
		{AttrMultiPathRecord, CompMultiLife, 15, "Life"}, {AttrMultiPathRecord, CompMultiServiceIDHigh, 16,
			"ServiceID"},
		{AttrMultiPathRecord, CompMultiIndependence, 17, "Independence"}, {AttrMultiPathRecord, CompMultiSGIDCount,
			19, "SGIDCount"},
		{AttrMultiPathRecord, CompMultiDGIDCount, 20, "DGIDCount"}, {AttrMultiPathRecord, CompMultiServiceIDLow, 21,
			"ServiceID"},
		{AttrInformInfoRecord, CompInformSubscriberGID, 0, "SubscriberGID"}, {AttrInformInfoRecord, CompInformEnum, 1,
			"Enum"},
		{AttrInformInfoRecord, 1 << 15, 15, "InformInfo.Producer"}, {AttrInformInfoRecord, 1 << 10, 10,
			"InformInfo.TrapNumber"},
	} {
		rec, found := records[c.attr](), false
		zero := rec.Append(nil)
		leaves(reflect.ValueOf(rec).Elem(), "", func(s string, v reflect.Value) {
			if s == c.name {
				found = true
				fill(v)
			}
		})
		if !found {
			t.Errorf("%T has no field %s", rec, c.name)
		}
		if c.bit != 1<<c.n || Match(c.attr, 0, c.bit, zero, rec.Append(nil)) {
			t.Errorf("%T.%s is not component %d", rec, c.name, c.n)
		}
	}
}

// TestMatch compares Match with a model that looks at one bit after the other.
func TestMatch(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	model := func(attr AttributeID, mask ComponentMask, a, b []byte) bool {
		at := 0
		for n, f := range components[attr] {
			for range f.width {
				bit := byte(0x80 >> (at % 8))
				if mask>>n&1 != 0 && !f.reserved && a[at/8]&bit != b[at/8]&bit {
					return false
				}
				at++
			}
		}
		return true
	}
	for attr := range components {
		matches := 0
		for range 300 {
			a := make([]byte, RecordLen(attr))
			for i := range a {
				a[i] = byte(rng.Uint32())
			}
			b := bytes.Clone(a)
			for range rng.IntN(3) {
				b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
			}
			mask := ComponentMask(rng.Uint64())
			want, got := model(attr, mask, a, b), Match(attr, 0, mask, a, b)
			if want != got {
				t.Fatalf("attribute %#x, mask %#x: %v, want %v\n% x\n% x", attr, mask, got, want, a, b)
			}
			if got {
				matches++
			}
		}
		if matches == 0 || matches == 300 {
			t.Errorf("attribute %#x: %d matches prove nothing", attr, matches)
		}
		if full := make([]byte, RecordLen(attr)); Match(attr, 0, 0, full, full[1:]) ||
			Match(attr, 0, 0, full[1:], full) {
			t.Errorf("attribute %#x: a short record matches", attr)
		}
	}
	if Match(AttrClassPortInfo, 0, 0, make([]byte, Len), make([]byte, Len)) {
		t.Error("what is no record matches")
	}
}

func TestMatchCapability(t *testing.T) {
	want := PortInfoRecord{PortInfo: PortInfo{CapabilityMask: CapIsSM | CapTrap}}
	for _, c := range []struct {
		have     Capability
		modifier uint32
		match    bool
	}{
		{CapIsSM | CapTrap, 0, true}, {CapIsSM | CapTrap | CapCM, 0, false}, {CapIsSM, 0, false},
		{CapIsSM | CapTrap, ModifierMatchCapability, true}, {CapIsSM | CapTrap | CapCM, ModifierMatchCapability, true},
		{CapIsSM | CapCM, ModifierMatchCapability, false},
	} {
		have := PortInfoRecord{EndPortLID: 9, PortInfo: PortInfo{CapabilityMask: c.have}}
		if got := Match(AttrPortInfoRecord, c.modifier, CompPortCapabilityMask, want.Append(nil),
			have.Append(nil)); got != c.match {
			t.Errorf("%#x with modifier %#x: %v", c.have, c.modifier, got)
		}
		// The mode leaves other components alone, and does nothing where the
		// mask is not selected.
		if Match(AttrPortInfoRecord, c.modifier, CompPortCapabilityMask|CompPortLID, want.Append(nil),
			have.Append(nil)) ||
			!Match(AttrPortInfoRecord, c.modifier, CompPortNum, want.Append(nil), have.Append(nil)) {
			t.Errorf("%#x: other components", c.have)
		}
	}
}

func TestRecordOffset(t *testing.T) {
	for attr, want := range map[AttributeID]uint16{
		AttrNodeRecord: 14, AttrPortInfoRecord: 9, AttrSLtoVLRecord: 2, AttrSwitchInfoRecord: 3, AttrLFTRecord: 9, AttrMFTRecord: 9,
		AttrSMInfoRecord: 4, AttrLinkRecord: 1, AttrGUIDInfoRecord: 9, AttrServiceRecord: 22, AttrPKeyTableRecord: 9, AttrPathRecord: 8,
		AttrVLArbRecord: 9, AttrMCMemberRecord: 7, AttrInformInfoRecord: 8, AttrClassPortInfo: 0,
	} {
		if got := RecordOffset(attr); got != want {
			t.Errorf("attribute %#x: %d units, want %d", attr, got, want)
		}
		if want != 0 {
			b := AppendPadding(records[attr]().Append([]byte{1, 2, 3}), 3)
			if len(b) != 3+8*int(want) {
				t.Errorf("attribute %#x: padded to %d bytes", attr, len(b)-3)
			}
		}
	}
}

func TestMatchAllocatesNothing(t *testing.T) {
	a := make([]byte, PathRecordLen)
	if n := testing.AllocsPerRun(100, func() {
		if !Match(AttrPathRecord, 0, ^ComponentMask(0), a, a) {
			t.Fatal("no match")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
