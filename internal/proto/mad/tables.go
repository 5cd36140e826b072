// SPDX-License-Identifier: Apache-2.0

package mad

// TableLen is the length of a block of every table, except for SLtoVL.
const TableLen = 64

// Entries of one block.
const (
	GUIDsPerBlock = 8
	PKeysPerBlock = 32
	VLArbPerBlock = 32
	LFTPerBlock   = 64
	MFTPerBlock   = 32
)

// PKeyModifier returns the attribute modifier of a block of a P_Key table. port is 0 of a channel adapter: its table is
// that of the port which receives the SMP.
func PKeyModifier(port uint8, block uint16) uint32 { return uint32(port)<<16 | uint32(block) }

// SLtoVLModifier returns the attribute modifier of the mapping from port in to
// port out of a switch; of a channel adapter it is 0.
func SLtoVLModifier(in, out uint8) uint32 { return uint32(in)<<8 | uint32(out) }

// Blocks of the VL arbitration tables: each table has two.
const (
	VLArbLow  = 1 // and 2
	VLArbHigh = 3 // and 4
)

// VLArbModifier returns the attribute modifier of block 1 … 4 of a port's
// arbitration tables.
func VLArbModifier(block, port uint8) uint32 { return uint32(block)<<16 | uint32(port) }

// LFTUnreachable is the entry of a LID without a port.
const LFTUnreachable = 0xff

// MFTPortsPerPosition is the number of ports in one position of a multicast forwarding table.
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
