// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// Capability is a PortInfo.CapabilityMask.
type Capability uint32

// Capabilities of a port.
const (
	CapIsSM                     Capability = 1 << 1
	CapNotice                   Capability = 1 << 2
	CapTrap                     Capability = 1 << 3
	CapIPD                      Capability = 1 << 4
	CapAutoMigration            Capability = 1 << 5
	CapSLMapping                Capability = 1 << 6
	CapMKeyNVRAM                Capability = 1 << 7
	CapPKeyNVRAM                Capability = 1 << 8
	CapLedInfo                  Capability = 1 << 9
	CapSMDisabled               Capability = 1 << 10
	CapSystemImageGUID          Capability = 1 << 11
	CapPKeySwitchExternalPort   Capability = 1 << 12 // traps
	CapExtendedSpeeds           Capability = 1 << 14
	CapCapabilityMask2          Capability = 1 << 15
	CapCM                       Capability = 1 << 16
	CapSNMP                     Capability = 1 << 17
	CapReinit                   Capability = 1 << 18
	CapDeviceManagement         Capability = 1 << 19
	CapVendorClass              Capability = 1 << 20
	CapDRNotice                 Capability = 1 << 21
	CapCapabilityMaskNotice     Capability = 1 << 22
	CapBootManagement           Capability = 1 << 23
	CapLinkRoundTripLatency     Capability = 1 << 24
	CapClientReregistration     Capability = 1 << 25
	CapOtherLocalChangesNotice  Capability = 1 << 26
	CapLinkSpeedWidthPairs      Capability = 1 << 27
	CapVendorMADs               Capability = 1 << 28
	CapMcastPKeyTrapSuppression Capability = 1 << 29
	CapMulticastFDBTop          Capability = 1 << 30
	CapHierarchyInfo            Capability = 1 << 31
)

// Capability2 is a PortInfo.CapabilityMask2.
type Capability2 uint16

// Further capabilities of a port.
const (
	Cap2SetNodeDescription   Capability2 = 1 << 0
	Cap2PortInfoExtended     Capability2 = 1 << 1
	Cap2Virtualization       Capability2 = 1 << 2
	Cap2SwitchPortStateTable Capability2 = 1 << 3
	Cap2LinkWidth2x          Capability2 = 1 << 4
	Cap2LinkSpeedHDR         Capability2 = 1 << 5
	Cap2LinkSpeedNDR         Capability2 = 1 << 10
)

// VLCap is a code for a number of data virtual lanes.
type VLCap uint8

// Codes of virtual lanes: VL0, VL0-1, VL0-3, VL0-7, VL0-14.
const (
	VL0 VLCap = 1 + iota
	VL0to1
	VL0to3
	VL0to7
	VL0to14
)

var vlCapNames = [...]string{"VL?(0)", "VL0", "VL0-1", "VL0-3", "VL0-7", "VL0-14"}

// String returns the range of lanes as the InfiniBand diagnostics print it.
func (v VLCap) String() string {
	if int(v) < len(vlCapNames) {
		return vlCapNames[v]
	}
	return "VL?"
}

// Lanes returns the number of data virtual lanes, 0 for an unknown code.
func (v VLCap) Lanes() int {
	switch {
	case v >= VL0 && v <= VL0to7:
		return 1 << (v - 1)
	case v == VL0to14:
		return 15
	}
	return 0
}

// ModifierExtendedSpeeds in the attribute modifier of PortInfo says that the
// manager knows extended speeds; the low octet is the port.
const ModifierExtendedSpeeds = 1 << 31

// PortInfoLen is the length of a PortInfo.
const PortInfoLen = 64

// PortInfo is the state of a port (IBA volume 1, 14.2.5.6). Of a switch's external ports
// the fields that belong to the node (M_Key, prefix, LIDs, capabilities,
// timeouts) are zero: port 0 has them.
type PortInfo struct {
	MKey                  uint64
	GIDPrefix             uint64
	LID                   ib.LID
	MasterSMLID           ib.LID
	CapabilityMask        Capability
	DiagCode              uint16
	MKeyLeasePeriod       uint16 // seconds; 0 is for ever
	LocalPortNum          uint8  // the port that the SMP arrived on
	LinkWidthEnabled      ib.LinkWidth
	LinkWidthSupported    ib.LinkWidth
	LinkWidthActive       ib.LinkWidth
	LinkSpeedSupported    ib.LinkSpeed // 4 bits, as all speeds but the last
	PortState             ib.PortState // 4 bits
	PortPhysicalState     ib.PhysState // 4 bits
	LinkDownDefaultState  ib.PhysState // 4 bits: sleep or polling
	MKeyProtectBits       uint8        // 2 bits
	LMC                   uint8        // 3 bits
	LinkSpeedActive       ib.LinkSpeed
	LinkSpeedEnabled      ib.LinkSpeed
	NeighborMTU           ib.MTU // 4 bits
	MasterSMSL            uint8  // 4 bits
	VLCap                 VLCap  // 4 bits
	InitType              uint8  // 4 bits
	VLHighLimit           uint8
	VLArbHighCap          uint8
	VLArbLowCap           uint8
	InitTypeReply         uint8  // 4 bits
	MTUCap                ib.MTU // 4 bits
	VLStallCount          uint8  // 3 bits
	HOQLife               uint8  // 5 bits
	OperationalVLs        VLCap  // 4 bits
	PartitionEnforceIn    bool
	PartitionEnforceOut   bool
	FilterRawIn           bool
	FilterRawOut          bool
	MKeyViolations        uint16
	PKeyViolations        uint16
	QKeyViolations        uint16
	GUIDCap               uint8
	ClientReregister      bool
	McastPKeyTrapSuppress uint8 // 2 bits
	SubnetTimeOut         uint8 // 5 bits: 4.096 µs × 2^v
	RespTimeValue         uint8 // 5 bits
	LocalPhyErrors        uint8 // 4 bits: threshold
	OverrunErrors         uint8 // 4 bits: threshold
	MaxCreditHint         uint16
	LinkRoundTripLatency  uint32 // 24 bits
	CapabilityMask2       Capability2
	LinkSpeedExtActive    ib.LinkSpeedExt // 4 bits
	LinkSpeedExtSupported ib.LinkSpeedExt // 4 bits
	LinkSpeedExtEnabled   ib.LinkSpeedExt // 5 bits
}

// Append appends the PortInfoLen bytes of p to b.
func (p *PortInfo) Append(b []byte) []byte {
	b, d := extend(b, PortInfoLen)
	be.PutUint64(d, p.MKey)
	be.PutUint64(d[8:], p.GIDPrefix)
	be.PutUint16(d[16:], uint16(p.LID))
	be.PutUint16(d[18:], uint16(p.MasterSMLID))
	be.PutUint32(d[20:], uint32(p.CapabilityMask))
	be.PutUint16(d[24:], p.DiagCode)
	be.PutUint16(d[26:], p.MKeyLeasePeriod)
	d[28] = p.LocalPortNum
	d[29], d[30], d[31] = uint8(p.LinkWidthEnabled), uint8(p.LinkWidthSupported), uint8(p.LinkWidthActive)
	d[32] = nibbles(uint8(p.LinkSpeedSupported), uint8(p.PortState))
	d[33] = nibbles(uint8(p.PortPhysicalState), uint8(p.LinkDownDefaultState))
	d[34] = p.MKeyProtectBits<<6 | p.LMC&7
	d[35] = nibbles(uint8(p.LinkSpeedActive), uint8(p.LinkSpeedEnabled))
	d[36] = nibbles(uint8(p.NeighborMTU), p.MasterSMSL)
	d[37] = nibbles(uint8(p.VLCap), p.InitType)
	d[38], d[39], d[40] = p.VLHighLimit, p.VLArbHighCap, p.VLArbLowCap
	d[41] = nibbles(p.InitTypeReply, uint8(p.MTUCap))
	d[42] = p.VLStallCount<<5 | p.HOQLife&0x1f
	d[43] = uint8(p.OperationalVLs)<<4 | flag(p.PartitionEnforceIn, 3) | flag(p.PartitionEnforceOut, 2) |
		flag(p.FilterRawIn, 1) | flag(p.FilterRawOut, 0)
	be.PutUint16(d[44:], p.MKeyViolations)
	be.PutUint16(d[46:], p.PKeyViolations)
	be.PutUint16(d[48:], p.QKeyViolations)
	d[50] = p.GUIDCap
	d[51] = flag(p.ClientReregister, 7) | p.McastPKeyTrapSuppress&3<<5 | p.SubnetTimeOut&0x1f
	d[52] = p.RespTimeValue & 0x1f
	d[53] = nibbles(p.LocalPhyErrors, p.OverrunErrors)
	be.PutUint16(d[54:], p.MaxCreditHint)
	put24(d[57:], p.LinkRoundTripLatency)
	be.PutUint16(d[60:], uint16(p.CapabilityMask2))
	d[62] = nibbles(uint8(p.LinkSpeedExtActive), uint8(p.LinkSpeedExtSupported))
	d[63] = uint8(p.LinkSpeedExtEnabled) & 0x1f
	return b
}

// Parse reads a PortInfo from the start of b.
func (p *PortInfo) Parse(b []byte) error {
	if len(b) < PortInfoLen {
		return ErrShort
	}
	*p = PortInfo{
		MKey:                  be.Uint64(b),
		GIDPrefix:             be.Uint64(b[8:]),
		LID:                   ib.LID(be.Uint16(b[16:])),
		MasterSMLID:           ib.LID(be.Uint16(b[18:])),
		CapabilityMask:        Capability(be.Uint32(b[20:])),
		DiagCode:              be.Uint16(b[24:]),
		MKeyLeasePeriod:       be.Uint16(b[26:]),
		LocalPortNum:          b[28],
		LinkWidthEnabled:      ib.LinkWidth(b[29]),
		LinkWidthSupported:    ib.LinkWidth(b[30]),
		LinkWidthActive:       ib.LinkWidth(b[31]),
		LinkSpeedSupported:    ib.LinkSpeed(b[32] >> 4),
		PortState:             ib.PortState(b[32] & 0xf),
		PortPhysicalState:     ib.PhysState(b[33] >> 4),
		LinkDownDefaultState:  ib.PhysState(b[33] & 0xf),
		MKeyProtectBits:       b[34] >> 6,
		LMC:                   b[34] & 7,
		LinkSpeedActive:       ib.LinkSpeed(b[35] >> 4),
		LinkSpeedEnabled:      ib.LinkSpeed(b[35] & 0xf),
		NeighborMTU:           ib.MTU(b[36] >> 4),
		MasterSMSL:            b[36] & 0xf,
		VLCap:                 VLCap(b[37] >> 4),
		InitType:              b[37] & 0xf,
		VLHighLimit:           b[38],
		VLArbHighCap:          b[39],
		VLArbLowCap:           b[40],
		InitTypeReply:         b[41] >> 4,
		MTUCap:                ib.MTU(b[41] & 0xf),
		VLStallCount:          b[42] >> 5,
		HOQLife:               b[42] & 0x1f,
		OperationalVLs:        VLCap(b[43] >> 4),
		PartitionEnforceIn:    b[43]&8 != 0,
		PartitionEnforceOut:   b[43]&4 != 0,
		FilterRawIn:           b[43]&2 != 0,
		FilterRawOut:          b[43]&1 != 0,
		MKeyViolations:        be.Uint16(b[44:]),
		PKeyViolations:        be.Uint16(b[46:]),
		QKeyViolations:        be.Uint16(b[48:]),
		GUIDCap:               b[50],
		ClientReregister:      b[51]&0x80 != 0,
		McastPKeyTrapSuppress: b[51] >> 5 & 3,
		SubnetTimeOut:         b[51] & 0x1f,
		RespTimeValue:         b[52] & 0x1f,
		LocalPhyErrors:        b[53] >> 4,
		OverrunErrors:         b[53] & 0xf,
		MaxCreditHint:         be.Uint16(b[54:]),
		LinkRoundTripLatency:  get24(b[57:]),
		CapabilityMask2:       Capability2(be.Uint16(b[60:])),
		LinkSpeedExtActive:    ib.LinkSpeedExt(b[62] >> 4),
		LinkSpeedExtSupported: ib.LinkSpeedExt(b[62] & 0xf),
		LinkSpeedExtEnabled:   ib.LinkSpeedExt(b[63] & 0x1f),
	}
	return nil
}
