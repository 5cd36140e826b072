// SPDX-License-Identifier: Apache-2.0

package mad

import "bytes"

// ComponentMask selects fields of a record: bit n is its field n, reserved
// fields included (IBA volume 1, 15.2.5).
type ComponentMask uint64

// Components of a NodeRecord.
const (
	CompNodeLID ComponentMask = 1 << iota
	_
	CompNodeBaseVersion
	CompNodeClassVersion
	CompNodeType
	CompNodeNumPorts
	CompNodeSystemImageGUID
	CompNodeGUID
	CompNodePortGUID
	CompNodePartitionCap
	CompNodeDeviceID
	CompNodeRevision
	CompNodeLocalPortNum
	CompNodeVendorID
	CompNodeDescription
)

// Components of a PortInfoRecord that queries name; the others follow in the
// order of PortInfo.
const (
	CompPortLID ComponentMask = 1 << iota
	CompPortNum
	CompPortOptions
	CompPortMKey
	CompPortGIDPrefix
	CompPortBaseLID
	CompPortMasterSMLID
	CompPortCapabilityMask
	CompPortState ComponentMask = 1 << 15
	CompPortLMC   ComponentMask = 1 << 20
)

// Components of the records of tables.
const (
	CompTableLID ComponentMask = 1 << 0 // of every one

	CompSLtoVLInPort  ComponentMask = 1 << 1
	CompSLtoVLOutPort ComponentMask = 1 << 2

	CompLFTBlock ComponentMask = 1 << 1

	CompMFTPosition ComponentMask = 1 << 1
	CompMFTBlock    ComponentMask = 1 << 3

	CompPKeyBlock ComponentMask = 1 << 1
	CompPKeyPort  ComponentMask = 1 << 2

	CompVLArbPort  ComponentMask = 1 << 1
	CompVLArbBlock ComponentMask = 1 << 2

	CompGUIDInfoBlock ComponentMask = 1 << 1
	CompGUIDInfoGUID0 ComponentMask = 1 << 4 // GUID n is this << n
)

// Components of an SMInfoRecord.
const (
	CompSMLID ComponentMask = 1 << iota
	_
	CompSMGUID
	CompSMKey
	CompSMActCount
	CompSMPriority
	CompSMState
)

// Components of a LinkRecord.
const (
	CompLinkFromLID ComponentMask = 1 << iota
	CompLinkFromPort
	CompLinkToPort
	CompLinkToLID
)

// Components of a ServiceRecord; Data8, Data16, Data32 and Data64 follow.
const (
	CompServiceID ComponentMask = 1 << iota
	CompServiceGID
	CompServicePKey
	_
	CompServiceLease
	CompServiceKey
	CompServiceName
)

// Components of a PathRecord. The service ID has two, which queries set together.
const (
	CompPathServiceID ComponentMask = 3
	CompPathDGID      ComponentMask = 1 << iota << 1
	CompPathSGID
	CompPathDLID
	CompPathSLID
	CompPathRawTraffic
	_
	CompPathFlowLabel
	CompPathHopLimit
	CompPathTClass
	CompPathReversible
	CompPathNumbPath
	CompPathPKey
	CompPathQoSClass
	CompPathSL
	CompPathMTUSelector
	CompPathMTU
	CompPathRateSelector
	CompPathRate
	CompPathLifeSelector
	CompPathLife
	CompPathPreference
)

// Components of an MCMemberRecord.
const (
	CompMCMGID ComponentMask = 1 << iota
	CompMCPortGID
	CompMCQKey
	CompMCMLID
	CompMCMTUSelector
	CompMCMTU
	CompMCTClass
	CompMCPKey
	CompMCRateSelector
	CompMCRate
	CompMCLifeSelector
	CompMCLife
	CompMCSL
	CompMCFlowLabel
	CompMCHopLimit
	CompMCScope
	CompMCJoinState
	CompMCProxyJoin
)

// Components of a MultiPathRecord.
const (
	CompMultiRawTraffic ComponentMask = 1 << iota
	_
	CompMultiFlowLabel
	CompMultiHopLimit
	CompMultiTClass
	CompMultiReversible
	CompMultiNumbPath
	CompMultiPKey
	CompMultiQoSClass
	CompMultiSL
	CompMultiMTUSelector
	CompMultiMTU
	CompMultiRateSelector
	CompMultiRate
	CompMultiLifeSelector
	CompMultiLife
	CompMultiServiceIDHigh
	CompMultiIndependence
	_
	CompMultiSGIDCount
	CompMultiDGIDCount
	CompMultiServiceIDLow
)

// Components of an InformInfoRecord; those of the InformInfo follow.
const (
	CompInformSubscriberGID ComponentMask = 1 << iota
	CompInformEnum
)

// ModifierMatchCapability in the attribute modifier of a PortInfoRecord query
// asks for ports that have at least the given capabilities.
const ModifierMatchCapability = 1 << 31

// field is where a component lies in its record, in bits.
type field struct {
	offset, width int
	reserved      bool
}

// row places consecutive fields of the given widths in bits; a negative width
// is a reserved field.
func row(widths ...int) (fields []field) {
	at := 0
	for _, w := range widths {
		fields = append(fields, field{at, max(w, -w), w < 0})
		at += max(w, -w)
	}
	return fields
}

// components are the fields of each record in the order of its mask. A block of a table
// is one field.
var components = map[AttributeID][]field{
	AttrNodeRecord: row(16, -16, 8, 8, 8, 8, 64, 64, 64, 16, 16, 32, 8, 24, 512),
	AttrPortInfoRecord: row(16, 8, 8, 64, 64, 16, 16, 32, 16, 16, 8, 8, 8, 8, 4, 4, 4, 4, 2, -3, 3, 4, 4, 4, 4, 4, 4, 8, 8, 8, 4, 4, 3, 5,
		4, 1, 1, 1, 1, 16, 16, 16, 8, 1, 2, 5, -3, 5, 4, 4, 16, -8, 24, 16, 4, 4, -3, 5),
	AttrSLtoVLRecord:     row(16, 8, 8, -32, 64),
	AttrSwitchInfoRecord: row(16, -16, 16, 16, 16, 16, 8, 8, 8, 5, 1, 2, 16, 16, 1, 1, 1, 1, 1, -3, -8, 16),
	AttrLFTRecord:        row(16, 16, -32, 512),
	AttrMFTRecord:        row(16, 4, -3, 9, -32, 512),
	AttrSMInfoRecord:     row(16, -16, 64, 64, 32, 4, 4),
	AttrLinkRecord:       row(16, 8, 8, 16),
	AttrGUIDInfoRecord:   row(16, 8, -8, -32, 64, 64, 64, 64, 64, 64, 64, 64),
	AttrServiceRecord: row(64, 128, 16, -16, 32, 128, 512, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 16, 16, 16, 16, 16, 16, 16, 16,
		32, 32, 32, 32, 64, 64),
	AttrPKeyTableRecord:  row(16, 16, 8, -24, 512),
	AttrPathRecord:       row(8, 56, 128, 128, 16, 16, 1, -3, 20, 8, 8, 1, 7, 16, 12, 4, 2, 6, 2, 6, 2, 6, 8, -48),
	AttrVLArbRecord:      row(16, 8, 8, -32, 512),
	AttrMCMemberRecord:   row(128, 128, 32, 16, 2, 6, 8, 16, 2, 6, 2, 6, 4, 20, 8, 4, 4, 1, -23),
	AttrMultiPathRecord:  row(1, -3, 20, 8, 8, 1, 7, 16, 12, 4, 2, 6, 2, 6, 2, 6, 8, 2, -6, 8, 8, 56),
	AttrInformInfo:       row(128, 16, 16, -16, 8, 8, 16, 16, 24, -3, 5, -8, 24),
	AttrInformInfoRecord: row(128, 16, -48, 128, 16, 16, -16, 8, 8, 16, 16, 24, -3, 5, -8, 24),
}

// RecordLen returns the length of a record of subnet administration without
// padding, 0 if attr has no records. Of a MultiPathRecord it is the part before
// its GIDs.
func RecordLen(attr AttributeID) int {
	f := components[attr]
	if len(f) == 0 {
		return 0
	}
	last := f[len(f)-1]
	return (last.offset + last.width) / 8
}

// RecordOffset returns the AttributeOffset of a table of records: RecordLen
// rounded up, in units of 8 bytes.
func RecordOffset(attr AttributeID) uint16 { return uint16(RecordLen(attr)+7) / 8 }

// AppendPadding appends zeros so that the records appended to b since it was
// start bytes long take whole units of 8 bytes, as they do in a table.
func AppendPadding(b []byte, start int) []byte {
	return append(b, blank[:-(len(b)-start)&7]...)
}

// Match reports whether the record have has in all fields that mask selects
// the values of want. Both are as the record's Append makes them; one that is too
// short, or an attribute without records, never matches. Reserved fields
// and bits of the mask without a field are ignored, and selectors are fields
// like others: a query that understands greater and less than takes their
// bits, and those of their values, out of mask. modifier is the request's attribute modifier
// (ModifierMatchCapability).
func Match(attr AttributeID, modifier uint32, mask ComponentMask, want, have []byte) bool {
	fields := components[attr]
	if n := RecordLen(attr); n == 0 || len(want) < n || len(have) < n {
		return false
	}
	if attr == AttrPortInfoRecord && modifier&ModifierMatchCapability != 0 && mask&CompPortCapabilityMask != 0 {
		mask &^= CompPortCapabilityMask
		f := fields[7]
		if w := f.get(want); f.get(have)&w != w {
			return false
		}
	}
	for n, f := range fields {
		if mask>>n&1 != 0 && !f.reserved && !f.equal(want, have) {
			return false
		}
	}
	return true
}

// equal compares the field in two records that have it.
func (f field) equal(a, b []byte) bool {
	if f.width%8 == 0 && f.offset%8 == 0 {
		from, to := f.offset/8, (f.offset+f.width)/8
		return bytes.Equal(a[from:to], b[from:to])
	}
	return f.get(a) == f.get(b)
}

// get returns the value of a field of at most 56 bits in a record that has it.
func (f field) get(b []byte) (v uint64) {
	end := f.offset + f.width
	for _, c := range b[f.offset/8 : (end+7)/8] {
		v = v<<8 | uint64(c)
	}
	return v >> (-end & 7) & (1<<f.width - 1)
}
