// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// TableLen is the length of a block of every table below but SLtoVL.
const TableLen = 64

// Entries of one block.
const (
	GUIDsPerBlock = 8
	PKeysPerBlock = 32
	VLArbPerBlock = 32
	LFTPerBlock   = 64
	MFTPerBlock   = 32
)

// GUIDInfo is a block of a port's GUID table (IBA volume 1, 14.2.5.5). Entry 0 of block
// 0 is the port GUID, read-only.
type GUIDInfo [GUIDsPerBlock]ib.GUID

// Append appends the block's TableLen bytes to b.
func (t *GUIDInfo) Append(b []byte) []byte {
	for _, g := range t {
		b = be.AppendUint64(b, uint64(g))
	}
	return b
}

// Parse reads a block from the start of b.
func (t *GUIDInfo) Parse(b []byte) error {
	if len(b) < TableLen {
		return ErrShort
	}
	for i := range t {
		t[i] = ib.GUID(be.Uint64(b[8*i:]))
	}
	return nil
}

// PKeyTable is a block of a port's P_Key table (IBA volume 1, 14.2.5.7); 0 is an
// empty entry.
type PKeyTable [PKeysPerBlock]ib.PKey

// PKeyModifier returns the attribute modifier of a block of a P_Key table; port is 0
// for a channel adapter, whose table is that of the port the SMP reaches.
func PKeyModifier(port uint8, block uint16) uint32 { return uint32(port)<<16 | uint32(block) }

// Append appends the block's TableLen bytes to b.
func (t *PKeyTable) Append(b []byte) []byte {
	for _, k := range t {
		b = be.AppendUint16(b, uint16(k))
	}
	return b
}

// Parse reads a block from the start of b.
func (t *PKeyTable) Parse(b []byte) error {
	if len(b) < TableLen {
		return ErrShort
	}
	for i := range t {
		t[i] = ib.PKey(be.Uint16(b[2*i:]))
	}
	return nil
}

// SLtoVLLen is the length of an SLtoVL.
const SLtoVLLen = 8

// SLtoVL is the virtual lane of each service level (IBA volume 1, 14.2.5.8); 15 drops.
type SLtoVL [16]uint8

// SLtoVLModifier returns the attribute modifier of the mapping from port in to
// port out of a switch; of a channel adapter it is 0.
func SLtoVLModifier(in, out uint8) uint32 { return uint32(in)<<8 | uint32(out) }

// Append appends the mapping's SLtoVLLen bytes to b.
func (t *SLtoVL) Append(b []byte) []byte {
	for i := 0; i < len(t); i += 2 {
		b = append(b, nibbles(t[i], t[i+1]))
	}
	return b
}

// Parse reads a mapping from the start of b.
func (t *SLtoVL) Parse(b []byte) error {
	if len(b) < SLtoVLLen {
		return ErrShort
	}
	for i := range t {
		t[i] = b[i/2] >> (4 * (1 - i%2)) & 0xf
	}
	return nil
}

// Blocks of the VL arbitration tables: each table has two.
const (
	VLArbLow  = 1 // and 2
	VLArbHigh = 3 // and 4
)

// VLArbModifier returns the attribute modifier of block 1 … 4 of a port's
// arbitration tables.
func VLArbModifier(block, port uint8) uint32 { return uint32(block)<<16 | uint32(port) }

// VLArbEntry gives a virtual lane a weight in units of 64 bytes; 0 skips it.
type VLArbEntry struct{ VL, Weight uint8 }

// VLArb is a block of a VL arbitration table (IBA volume 1, 14.2.5.9).
type VLArb [VLArbPerBlock]VLArbEntry

// Append appends the block's TableLen bytes to b.
func (t *VLArb) Append(b []byte) []byte {
	for _, e := range t {
		b = append(b, e.VL&0xf, e.Weight)
	}
	return b
}

// Parse reads a block from the start of b.
func (t *VLArb) Parse(b []byte) error {
	if len(b) < TableLen {
		return ErrShort
	}
	for i := range t {
		t[i] = VLArbEntry{VL: b[2*i] & 0xf, Weight: b[2*i+1]}
	}
	return nil
}

// LFTUnreachable is the port of a LID that has none.
const LFTUnreachable = 0xff

// LFT is a block of a linear forwarding table (IBA volume 1, 14.2.5.10): the port of each of
// the LFTPerBlock LIDs from block × LFTPerBlock on.
type LFT [LFTPerBlock]uint8

// Append appends the block's TableLen bytes to b.
func (t *LFT) Append(b []byte) []byte { return append(b, t[:]...) }

// Parse reads a block from the start of b.
func (t *LFT) Parse(b []byte) error {
	if len(b) < TableLen {
		return ErrShort
	}
	*t = LFT(b)
	return nil
}

// MFTPortsPerPosition is how many ports one position of a multicast
// forwarding table covers.
const MFTPortsPerPosition = 16

// MFTModifier returns the attribute modifier of a multicast forwarding table: block of
// MFTPerBlock groups from 0xC000 on, and position of 16 ports.
func MFTModifier(position uint8, block uint16) uint32 {
	return uint32(position)<<28 | uint32(block)&0x1ff
}

// SplitMFTModifier is the inverse of MFTModifier.
func SplitMFTModifier(m uint32) (position uint8, block uint16) {
	return uint8(m >> 28), uint16(m & 0x1ff)
}

// MFT is a block of a multicast forwarding table (IBA volume 1, 14.2.5.12): for each of the
// MFTPerBlock groups the ports 16 × position + bit.
type MFT [MFTPerBlock]uint16

// Append appends the block's TableLen bytes to b.
func (t *MFT) Append(b []byte) []byte {
	for _, m := range t {
		b = be.AppendUint16(b, m)
	}
	return b
}

// Parse reads a block from the start of b.
func (t *MFT) Parse(b []byte) error {
	if len(b) < TableLen {
		return ErrShort
	}
	for i := range t {
		t[i] = be.Uint16(b[2*i:])
	}
	return nil
}
