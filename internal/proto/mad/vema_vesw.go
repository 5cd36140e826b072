// SPDX-License-Identifier: Apache-2.0

package mad

// VESWGateways is the largest number of default ports of a VESW.
const VESWGateways = 16

// veswFlood is the bit of the last octet of Reserved4 that enables flooding. It exists only in Weft; any agent keeps
// and returns it.
const veswFlood = 1

// Flood reports whether unicast frames to an unknown destination go to all ports of the VESW.
func (v *VESW) Flood() bool { return v.Reserved4[5]&veswFlood != 0 }

// SetFlood sets the result of Flood.
func (v *VESW) SetFlood(on bool) { v.Reserved4[5] = v.Reserved4[5]&^veswFlood | flag(on, 0) }

// VESWMAC returns the locally administered MAC of a port: of the number of the fabric (10 bits), of the VESW (12), and
// its LID (24). As a little-endian number its bits are 0, 1, and these in this order.
func VESWMAC(fabric, vesw uint16, lid uint32) [6]byte {
	return [6]byte{byte(fabric)<<2 | 2, byte(vesw)<<4 | byte(fabric>>6)&0xf, byte(vesw >> 4), byte(lid),
		byte(lid >> 8), byte(lid >> 16)}
}

// ParseVESWMAC is the inverse of VESWMAC. It reports false if the MAC is not locally administered, or a multicast
// address.
func ParseVESWMAC(mac [6]byte) (fabric, vesw uint16, lid uint32, ok bool) {
	return uint16(mac[0]>>2) | uint16(mac[1]&0xf)<<6, uint16(mac[1]>>4) | uint16(mac[2])<<4,
		uint32(mac[3]) | uint32(mac[4])<<8 | uint32(mac[5])<<16, mac[0]&3 == 2
}

// VESWState is the configured or the operational state of a port.
type VESWState uint8

// States of ports; others mean VESWDropAll.
const (
	VESWDropAll    VESWState = 1
	VESWForwarding VESWState = 3
)

// VESWLinkStatus is the state of the Ethernet link of a port.
type VESWLinkStatus uint8

// States of links; 0 is the state of a vport that does not exist.
const (
	VESWLinkUp   VESWLinkStatus = 1
	VESWLinkDown VESWLinkStatus = 2
)

// Limits of the table of MACs of a port.
const (
	VESWMaxMACs  = 2048
	VESWMaxSMACs = 256 // number of source entries among them
)

// DefaultEthMTU is the MTU of a port that is not configured.
const DefaultEthMTU = 1500

// DefaultVESWPortInfo returns the state of a vport that is not configured; a Get of a vport that does not exist returns
// the same.
func DefaultVESWPortInfo() VESWPortInfo {
	return VESWPortInfo{VESW: VESW{EthMTU: DefaultEthMTU},
		Port: VESWPort{ConfigState: VESWDropAll, OperState: VESWDropAll, MaxMACEntries: VESWMaxMACs,
			MaxSMACEntries: VESWMaxSMACs}}
}

// VESWMACsPerMAD is the number of slots of a table of MACs in one MAD.
const VESWMACsPerMAD = (VEMADataLen - 8) / VESWMACEntryLen

// veswSourceMAC is the bit of side data that marks the entry of a source.
const veswSourceMAC = 0x20

// MakeDLIDSD returns the DLIDSD of an entry with a destination LID.
func MakeDLIDSD(dlid uint32) uint32 { return dlid << 8 }

// DLID returns the destination of the entry, in 24 bits.
func (e *VESWMACEntry) DLID() uint32 { return e.DLIDSD >> 8 }

// IsSource reports whether the entry is that of a source, which has no destination.
func (e *VESWMACEntry) IsSource() bool { return e.DLIDSD&veswSourceMAC != 0 }

// Valid reports whether the range lies in a table and fits a MAD.
func (m *VESWMACEntries) Valid() bool {
	return int(m.Num) <= VESWMACsPerMAD && int(m.Offset)+int(m.Num) <= VESWMaxMACs
}

// VESWListPerMAD is the number of MACs of a list in one MAD.
const VESWListPerMAD = (VEMADataLen - 8) / 6

// VESWCounter is a counter of VESWSummary, in the order of the attribute.
type VESWCounter uint8

// Counters of VESWSummary. Octets include a frame check sequence of 4 octets that frames do not have; so do the lengths
// in the names.
const (
	VESWTxErrors VESWCounter = iota
	VESWRxErrors
	VESWTxPackets
	VESWRxPackets
	VESWTxBytes
	VESWRxBytes
	VESWTxUnicast
	VESWTxMcastBcast
	VESWTxUntagged
	VESWTxVLAN
	VESWTx64
	VESWTx65To127
	VESWTx128To255
	VESWTx256To511
	VESWTx512To1023
	VESWTx1024To1518
	VESWTx1519Max
	VESWRxUnicast
	VESWRxMcastBcast
	VESWRxUntagged
	VESWRxVLAN
	VESWRx64
	VESWRx65To127
	VESWRx128To255
	VESWRx256To511
	VESWRx512To1023
	VESWRx1024To1518
	VESWRx1519Max
	NumVESWCounters
)
