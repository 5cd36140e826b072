// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"math/bits"
	"slices"

	"weft/internal/proto/mad"
)

// macKey is a MAC as a number: octet 0 is the lowest.
func macKey(mac [6]byte) uint64 { return uint64(le.Uint32(mac[:])) | uint64(le.Uint16(mac[4:]))<<32 }

// keyOf is the macKey of the first six octets of b, which has eight.
func keyOf(b []byte) uint64 { return le.Uint64(b) & (1<<48 - 1) }

const (
	groupBit = 1 << 0 // of a macKey: a group's
	localBit = 1 << 1 // locally administered
	// placeBits are where a MAC of mad.VESWMAC has fabric and VESW; its LID is
	// above them.
	placeBits = 24
)

// macTable leads from MACs to LIDs. It is immutable. Its zero value is empty.
type macTable struct {
	slots  []macSlot // a power of two of them, at least half of them empty
	shift  uint8
	groups []uint32 // LIDs that are groups', sorted
}

type macSlot struct {
	key  uint64 // 0: empty
	dlid uint32
}

// newMACTable makes the table of entries: those that are not a source's and have a LID. Of two with
// one MAC the first counts.
func newMACTable(entries []mad.VESWMACEntry) (t macTable) {
	n := 0
	for i := range entries {
		if leads(&entries[i]) {
			n++
		}
	}
	if n == 0 {
		return t
	}
	size := max(8, 1<<bits.Len(uint(2*n-1)))
	t.slots, t.shift = make([]macSlot, size), uint8(64-bits.TrailingZeros(uint(size)))
	for i := range entries {
		e := &entries[i]
		if !leads(e) {
			continue
		}
		s := t.slot(macKey(e.MAC))
		if s.key == 0 {
			*s = macSlot{macKey(e.MAC), e.DLID()}
			if isGroup(s.dlid) {
				t.groups = append(t.groups, s.dlid)
			}
		}
	}
	slices.Sort(t.groups)
	t.groups = slices.Compact(t.groups)
	return t
}

func leads(e *mad.VESWMACEntry) bool {
	return macKey(e.MAC) != 0 && !e.IsSource() && e.DLID() != 0
}

// slot returns where key is, or would be.
func (t *macTable) slot(key uint64) *macSlot {
	mask := uint64(len(t.slots) - 1)
	for i := key * 0x9e3779b97f4a7c15 >> t.shift; ; i++ {
		if s := &t.slots[i&mask]; s.key == key || s.key == 0 {
			return s
		}
	}
}

// dlid returns the DLID of a MAC, 0 if the table has no entry.
func (t *macTable) dlid(key uint64) uint32 {
	if len(t.slots) == 0 || key == 0 {
		return 0
	}
	return t.slot(key).dlid
}

// LIDs of 24 bits.
const (
	firstGroup = 0xf00000
	lastGroup  = 0xfffffe
)

func isUnicast(lid uint32) bool { return lid > 0 && lid < firstGroup }
func isGroup(lid uint32) bool   { return lid >= firstGroup && lid <= lastGroup }
