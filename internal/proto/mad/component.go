// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"bytes"
	"math/bits"
)

// ComponentMask selects fields of a record: bit n is field n, reserved fields included (IBA volume 1, 15.2.5).
type ComponentMask uint64

// CompTableLID is the LID of every record of a table.
const CompTableLID ComponentMask = 1 << 0

// ModifierMatchCapability in the attribute modifier of a PortInfoRecord query selects ports that have at least the
// given capabilities.
const ModifierMatchCapability = 1 << 31

// field is the place of a component in its record, in bits.
type field struct {
	offset, width int
	reserved      bool
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

// AppendPadding appends zeros to the records that were appended to b since it was start bytes long, so that they take
// whole units of 8 bytes, as in a table.
func AppendPadding(b []byte, start int) []byte {
	return append(b, blank[:-(len(b)-start)&7]...)
}

// Match reports whether the record have equals want in all fields of mask. Both are as the Append of the record writes
// them; a record that is too short, or an attribute without records, never matches. Match ignores reserved fields and
// bits of the mask without a field. It compares selectors like other fields: a query that supports greater and less
// removes the bits of selectors and their values from mask. modifier is the attribute modifier of the request
// (ModifierMatchCapability).
func Match(attr AttributeID, modifier uint32, mask ComponentMask, want, have []byte) bool {
	fields := components[attr]
	if n := RecordLen(attr); n == 0 || len(want) < n || len(have) < n {
		return false
	}
	if attr == AttrPortInfoRecord && modifier&ModifierMatchCapability != 0 && mask&CompPortCapabilityMask != 0 {
		mask &^= CompPortCapabilityMask
		f := fields[bits.TrailingZeros64(uint64(CompPortCapabilityMask))]
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
func (f field) get(b []byte) uint64 {
	end := f.offset + f.width
	return getUint(b[f.offset/8:(end+7)/8]) >> (-end & 7) & (1<<f.width - 1)
}
