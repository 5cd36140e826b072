// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"bytes"
	"fmt"

	"weft/internal/proto/ib"
)

// NodeType is the kind of a node.
type NodeType uint8

// Node types.
const (
	NodeCA NodeType = 1 + iota
	NodeSwitch
	NodeRouter
)

var nodeTypeNames = [...]string{"NodeType(0)", "Channel Adapter", "Switch", "Router"}

// String returns the name that the InfiniBand diagnostics print.
func (t NodeType) String() string {
	if int(t) < len(nodeTypeNames) {
		return nodeTypeNames[t]
	}
	return fmt.Sprintf("NodeType(%d)", uint8(t))
}

// NodeInfoLen is the length of a NodeInfo.
const NodeInfoLen = 40

// NodeInfo says what a node is (IBA volume 1, 14.2.5.3).
type NodeInfo struct {
	BaseVersion     uint8
	ClassVersion    uint8
	NodeType        NodeType
	NumPorts        uint8
	SystemImageGUID ib.GUID
	NodeGUID        ib.GUID
	PortGUID        ib.GUID // of the port that the SMP arrived on; of a switch that of port 0
	PartitionCap    uint16  // entries of the P_Key table; of a switch that of port 0
	DeviceID        uint16
	Revision        uint32
	LocalPortNum    uint8  // the port that the SMP arrived on
	VendorID        uint32 // 24 bits
}

// Append appends the NodeInfoLen bytes of n to b.
func (n *NodeInfo) Append(b []byte) []byte {
	b, p := extend(b, NodeInfoLen)
	p[0], p[1], p[2], p[3] = n.BaseVersion, n.ClassVersion, uint8(n.NodeType), n.NumPorts
	be.PutUint64(p[4:], uint64(n.SystemImageGUID))
	be.PutUint64(p[12:], uint64(n.NodeGUID))
	be.PutUint64(p[20:], uint64(n.PortGUID))
	be.PutUint16(p[28:], n.PartitionCap)
	be.PutUint16(p[30:], n.DeviceID)
	be.PutUint32(p[32:], n.Revision)
	p[36] = n.LocalPortNum
	put24(p[37:], n.VendorID)
	return b
}

// Parse reads a NodeInfo from the start of b.
func (n *NodeInfo) Parse(b []byte) error {
	if len(b) < NodeInfoLen {
		return ErrShort
	}
	*n = NodeInfo{
		BaseVersion:     b[0],
		ClassVersion:    b[1],
		NodeType:        NodeType(b[2]),
		NumPorts:        b[3],
		SystemImageGUID: ib.GUID(be.Uint64(b[4:])),
		NodeGUID:        ib.GUID(be.Uint64(b[12:])),
		PortGUID:        ib.GUID(be.Uint64(b[20:])),
		PartitionCap:    be.Uint16(b[28:]),
		DeviceID:        be.Uint16(b[30:]),
		Revision:        be.Uint32(b[32:]),
		LocalPortNum:    b[36],
		VendorID:        get24(b[37:]),
	}
	return nil
}

// NodeDescriptionLen is the length of a NodeDescription.
const NodeDescriptionLen = 64

// NodeDescription is UTF-8 text, padded with zeros (IBA volume 1, 14.2.5.2).
type NodeDescription [NodeDescriptionLen]byte

// MakeNodeDescription returns s as a NodeDescription, cut if it is too long.
func MakeNodeDescription(s string) (d NodeDescription) {
	copy(d[:], s)
	return d
}

// String returns the text without its padding.
func (d *NodeDescription) String() string {
	text, _, _ := bytes.Cut(d[:], []byte{0})
	return string(text)
}

// Append appends the NodeDescriptionLen bytes of d to b.
func (d *NodeDescription) Append(b []byte) []byte { return append(b, d[:]...) }

// Parse reads a NodeDescription from the start of b.
func (d *NodeDescription) Parse(b []byte) error {
	if len(b) < NodeDescriptionLen {
		return ErrShort
	}
	*d = NodeDescription(b)
	return nil
}

// SwitchInfoLen is the length of a SwitchInfo.
const SwitchInfoLen = 20

// LifeTimeInfinite is the smallest LifeTimeValue that means forever; below it
// v is 4.096 µs × 2^v.
const LifeTimeInfinite = 0x14

// SwitchInfo is what a switch can do and does (IBA volume 1, 14.2.5.4).
type SwitchInfo struct {
	LinearFDBCap                   uint16
	RandomFDBCap                   uint16
	MulticastFDBCap                uint16
	LinearFDBTop                   ib.LID // unicast LIDs above it are dropped
	DefaultPort                    uint8
	DefaultMulticastPrimaryPort    uint8
	DefaultMulticastNotPrimaryPort uint8
	LifeTimeValue                  uint8 // 5 bits
	PortStateChange                bool  // set by the switch; a Set with true clears it
	OptimizedSLtoVLMapping         uint8 // 2 bits
	LIDsPerPort                    uint16
	PartitionEnforcementCap        uint16
	InboundEnforcementCap          bool
	OutboundEnforcementCap         bool
	FilterRawInboundCap            bool
	FilterRawOutboundCap           bool
	EnhancedPort0                  bool
	MulticastFDBTop                ib.LID
}

// Append appends the SwitchInfoLen bytes of s to b.
func (s *SwitchInfo) Append(b []byte) []byte {
	b, p := extend(b, SwitchInfoLen)
	be.PutUint16(p, s.LinearFDBCap)
	be.PutUint16(p[2:], s.RandomFDBCap)
	be.PutUint16(p[4:], s.MulticastFDBCap)
	be.PutUint16(p[6:], uint16(s.LinearFDBTop))
	p[8], p[9], p[10] = s.DefaultPort, s.DefaultMulticastPrimaryPort, s.DefaultMulticastNotPrimaryPort
	p[11] = s.LifeTimeValue<<3 | flag(s.PortStateChange, 2) | s.OptimizedSLtoVLMapping&3
	be.PutUint16(p[12:], s.LIDsPerPort)
	be.PutUint16(p[14:], s.PartitionEnforcementCap)
	p[16] = flag(s.InboundEnforcementCap, 7) | flag(s.OutboundEnforcementCap, 6) | flag(s.FilterRawInboundCap, 5) |
		flag(s.FilterRawOutboundCap, 4) | flag(s.EnhancedPort0, 3)
	be.PutUint16(p[18:], uint16(s.MulticastFDBTop))
	return b
}

// Parse reads a SwitchInfo from the start of b.
func (s *SwitchInfo) Parse(b []byte) error {
	if len(b) < SwitchInfoLen {
		return ErrShort
	}
	*s = SwitchInfo{
		LinearFDBCap:                   be.Uint16(b),
		RandomFDBCap:                   be.Uint16(b[2:]),
		MulticastFDBCap:                be.Uint16(b[4:]),
		LinearFDBTop:                   ib.LID(be.Uint16(b[6:])),
		DefaultPort:                    b[8],
		DefaultMulticastPrimaryPort:    b[9],
		DefaultMulticastNotPrimaryPort: b[10],
		LifeTimeValue:                  b[11] >> 3,
		PortStateChange:                b[11]&4 != 0,
		OptimizedSLtoVLMapping:         b[11] & 3,
		LIDsPerPort:                    be.Uint16(b[12:]),
		PartitionEnforcementCap:        be.Uint16(b[14:]),
		InboundEnforcementCap:          b[16]&0x80 != 0,
		OutboundEnforcementCap:         b[16]&0x40 != 0,
		FilterRawInboundCap:            b[16]&0x20 != 0,
		FilterRawOutboundCap:           b[16]&0x10 != 0,
		EnhancedPort0:                  b[16]&0x08 != 0,
		MulticastFDBTop:                ib.LID(be.Uint16(b[18:])),
	}
	return nil
}

// SMState is the state of a subnet manager.
type SMState uint8

// States of a subnet manager.
const (
	SMNotActive SMState = iota
	SMDiscovering
	SMStandby
	SMMaster
)

var smStateNames = [...]string{"SMINFO_NOTACT", "SMINFO_DISCOVER", "SMINFO_STANDBY", "SMINFO_MASTER"}

// String returns the name that the InfiniBand diagnostics print.
func (s SMState) String() string {
	if int(s) < len(smStateNames) {
		return smStateNames[s]
	}
	return fmt.Sprintf("SMState(%d)", uint8(s))
}

// Modifiers of a Set of SMInfo.
const (
	SMHandover    = 1
	SMAcknowledge = 2
	SMDisable     = 3
	SMStandbyReq  = 4
	SMDiscover    = 5
)

// SMInfoLen is the length of an SMInfo.
const SMInfoLen = 21

// SMInfo is how subnet managers know each other (IBA volume 1, 14.2.5.13).
type SMInfo struct {
	GUID     ib.GUID
	SMKey    uint64
	ActCount uint32
	Priority uint8 // 4 bits
	State    SMState
}

// Append appends the SMInfoLen bytes of s to b.
func (s *SMInfo) Append(b []byte) []byte {
	b, p := extend(b, SMInfoLen)
	be.PutUint64(p, uint64(s.GUID))
	be.PutUint64(p[8:], s.SMKey)
	be.PutUint32(p[16:], s.ActCount)
	p[20] = nibbles(s.Priority, uint8(s.State))
	return b
}

// Parse reads an SMInfo from the start of b.
func (s *SMInfo) Parse(b []byte) error {
	if len(b) < SMInfoLen {
		return ErrShort
	}
	*s = SMInfo{
		GUID:     ib.GUID(be.Uint64(b)),
		SMKey:    be.Uint64(b[8:]),
		ActCount: be.Uint32(b[16:]),
		Priority: b[20] >> 4,
		State:    SMState(b[20] & 0xf),
	}
	return nil
}
