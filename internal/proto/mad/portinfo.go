// SPDX-License-Identifier: Apache-2.0

package mad

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

// ModifierExtendedSpeeds in the attribute modifier of PortInfo means that the manager supports extended speeds; the low
// octet is the port.
const ModifierExtendedSpeeds = 1 << 31
