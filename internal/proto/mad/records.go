// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"bytes"

	"weft/internal/proto/ib"
)

// Lengths of the records below, without padding.
const (
	NodeRecordLen       = 108
	PortInfoRecordLen   = 68
	SLtoVLRecordLen     = 16
	SwitchInfoRecordLen = 24
	TableRecordLen      = 72 // LFT, MFT, GUIDInfo, PKeyTable and VLArb
	SMInfoRecordLen     = 25
	LinkRecordLen       = 6
	ServiceRecordLen    = 176
)

// NodeRecord is a node as one of its ports shows it (IBA volume 1, 15.2.5, as
// all records).
type NodeRecord struct {
	LID             ib.LID
	NodeInfo        NodeInfo
	NodeDescription NodeDescription
}

// Append appends the NodeRecordLen bytes of r to b.
func (r *NodeRecord) Append(b []byte) []byte {
	b = be.AppendUint16(b, uint16(r.LID))
	b = append(b, 0, 0)
	return r.NodeDescription.Append(r.NodeInfo.Append(b))
}

// Parse reads a NodeRecord from the start of b.
func (r *NodeRecord) Parse(b []byte) error {
	if len(b) < NodeRecordLen {
		return ErrShort
	}
	r.LID = ib.LID(be.Uint16(b))
	r.NodeDescription = NodeDescription(b[44:])
	return r.NodeInfo.Parse(b[4:])
}

// PortInfoRecord is the state of a port.
type PortInfoRecord struct {
	EndPortLID ib.LID
	PortNum    uint8
	Options    uint8
	PortInfo   PortInfo
}

// Append appends the PortInfoRecordLen bytes of r to b.
func (r *PortInfoRecord) Append(b []byte) []byte {
	b = be.AppendUint16(b, uint16(r.EndPortLID))
	return r.PortInfo.Append(append(b, r.PortNum, r.Options))
}

// Parse reads a PortInfoRecord from the start of b.
func (r *PortInfoRecord) Parse(b []byte) error {
	if len(b) < PortInfoRecordLen {
		return ErrShort
	}
	r.EndPortLID, r.PortNum, r.Options = ib.LID(be.Uint16(b)), b[2], b[3]
	return r.PortInfo.Parse(b[4:])
}

// SLtoVLRecord is the mapping from one port to another of a switch, or that
// of a channel adapter's port.
type SLtoVLRecord struct {
	LID             ib.LID
	InPort, OutPort uint8
	SLtoVL          SLtoVL
}

// Append appends the SLtoVLRecordLen bytes of r to b.
func (r *SLtoVLRecord) Append(b []byte) []byte {
	b = be.AppendUint16(b, uint16(r.LID))
	return r.SLtoVL.Append(append(b, r.InPort, r.OutPort, 0, 0, 0, 0))
}

// Parse reads an SLtoVLRecord from the start of b.
func (r *SLtoVLRecord) Parse(b []byte) error {
	if len(b) < SLtoVLRecordLen {
		return ErrShort
	}
	r.LID, r.InPort, r.OutPort = ib.LID(be.Uint16(b)), b[2], b[3]
	return r.SLtoVL.Parse(b[8:])
}

// SwitchInfoRecord is what a switch can do and does.
type SwitchInfoRecord struct {
	LID        ib.LID
	SwitchInfo SwitchInfo
}

// Append appends the SwitchInfoRecordLen bytes of r to b.
func (r *SwitchInfoRecord) Append(b []byte) []byte {
	b = be.AppendUint16(b, uint16(r.LID))
	return r.SwitchInfo.Append(append(b, 0, 0))
}

// Parse reads a SwitchInfoRecord from the start of b.
func (r *SwitchInfoRecord) Parse(b []byte) error {
	if len(b) < SwitchInfoRecordLen {
		return ErrShort
	}
	r.LID = ib.LID(be.Uint16(b))
	return r.SwitchInfo.Parse(b[4:])
}

// LFTRecord is a block of a switch's linear forwarding table.
type LFTRecord struct {
	LID   ib.LID
	Block uint16
	LFT   LFT
}

// Append appends the TableRecordLen bytes of r to b.
func (r *LFTRecord) Append(b []byte) []byte {
	b = be.AppendUint16(b, uint16(r.LID))
	b = be.AppendUint16(b, r.Block)
	return r.LFT.Append(append(b, 0, 0, 0, 0))
}

// Parse reads an LFTRecord from the start of b.
func (r *LFTRecord) Parse(b []byte) error {
	if len(b) < TableRecordLen {
		return ErrShort
	}
	r.LID, r.Block = ib.LID(be.Uint16(b)), be.Uint16(b[2:])
	return r.LFT.Parse(b[8:])
}

// MFTRecord is a block of a switch's multicast forwarding table.
type MFTRecord struct {
	LID      ib.LID
	Position uint8  // 4 bits
	Block    uint16 // 9 bits
	MFT      MFT
}

// Append appends the TableRecordLen bytes of r to b.
func (r *MFTRecord) Append(b []byte) []byte {
	b = be.AppendUint16(b, uint16(r.LID))
	b = be.AppendUint16(b, uint16(r.Position)<<12|r.Block&0x1ff)
	return r.MFT.Append(append(b, 0, 0, 0, 0))
}

// Parse reads an MFTRecord from the start of b.
func (r *MFTRecord) Parse(b []byte) error {
	if len(b) < TableRecordLen {
		return ErrShort
	}
	r.LID, r.Position, r.Block = ib.LID(be.Uint16(b)), b[2]>>4, be.Uint16(b[2:])&0x1ff
	return r.MFT.Parse(b[8:])
}

// GUIDInfoRecord is a block of a port's GUID table.
type GUIDInfoRecord struct {
	LID      ib.LID
	Block    uint8
	GUIDInfo GUIDInfo
}

// Append appends the TableRecordLen bytes of r to b.
func (r *GUIDInfoRecord) Append(b []byte) []byte {
	b = be.AppendUint16(b, uint16(r.LID))
	return r.GUIDInfo.Append(append(b, r.Block, 0, 0, 0, 0, 0))
}

// Parse reads a GUIDInfoRecord from the start of b.
func (r *GUIDInfoRecord) Parse(b []byte) error {
	if len(b) < TableRecordLen {
		return ErrShort
	}
	r.LID, r.Block = ib.LID(be.Uint16(b)), b[2]
	return r.GUIDInfo.Parse(b[8:])
}

// PKeyTableRecord is a block of a port's P_Key table.
type PKeyTableRecord struct {
	LID       ib.LID
	Block     uint16
	Port      uint8
	PKeyTable PKeyTable
}

// Append appends the TableRecordLen bytes of r to b.
func (r *PKeyTableRecord) Append(b []byte) []byte {
	b = be.AppendUint16(b, uint16(r.LID))
	b = be.AppendUint16(b, r.Block)
	return r.PKeyTable.Append(append(b, r.Port, 0, 0, 0))
}

// Parse reads a PKeyTableRecord from the start of b.
func (r *PKeyTableRecord) Parse(b []byte) error {
	if len(b) < TableRecordLen {
		return ErrShort
	}
	r.LID, r.Block, r.Port = ib.LID(be.Uint16(b)), be.Uint16(b[2:]), b[4]
	return r.PKeyTable.Parse(b[8:])
}

// VLArbRecord is a block of a port's VL arbitration table.
type VLArbRecord struct {
	LID   ib.LID
	Port  uint8
	Block uint8
	VLArb VLArb
}

// Append appends the TableRecordLen bytes of r to b.
func (r *VLArbRecord) Append(b []byte) []byte {
	b = be.AppendUint16(b, uint16(r.LID))
	return r.VLArb.Append(append(b, r.Port, r.Block, 0, 0, 0, 0))
}

// Parse reads a VLArbRecord from the start of b.
func (r *VLArbRecord) Parse(b []byte) error {
	if len(b) < TableRecordLen {
		return ErrShort
	}
	r.LID, r.Port, r.Block = ib.LID(be.Uint16(b)), b[2], b[3]
	return r.VLArb.Parse(b[8:])
}

// SMInfoRecord is a subnet manager.
type SMInfoRecord struct {
	LID    ib.LID
	SMInfo SMInfo
}

// Append appends the SMInfoRecordLen bytes of r to b.
func (r *SMInfoRecord) Append(b []byte) []byte {
	b = be.AppendUint16(b, uint16(r.LID))
	return r.SMInfo.Append(append(b, 0, 0))
}

// Parse reads an SMInfoRecord from the start of b.
func (r *SMInfoRecord) Parse(b []byte) error {
	if len(b) < SMInfoRecordLen {
		return ErrShort
	}
	r.LID = ib.LID(be.Uint16(b))
	return r.SMInfo.Parse(b[4:])
}

// LinkRecord is a link between two ports, in one direction.
type LinkRecord struct {
	FromLID  ib.LID
	FromPort uint8
	ToPort   uint8
	ToLID    ib.LID
}

// Append appends the LinkRecordLen bytes of r to b.
func (r *LinkRecord) Append(b []byte) []byte {
	b = be.AppendUint16(b, uint16(r.FromLID))
	return be.AppendUint16(append(b, r.FromPort, r.ToPort), uint16(r.ToLID))
}

// Parse reads a LinkRecord from the start of b.
func (r *LinkRecord) Parse(b []byte) error {
	if len(b) < LinkRecordLen {
		return ErrShort
	}
	*r = LinkRecord{FromLID: ib.LID(be.Uint16(b)), FromPort: b[2], ToPort: b[3], ToLID: ib.LID(be.Uint16(b[4:]))}
	return nil
}

// LeaseForever is the ServiceLease of a service that does not expire.
const LeaseForever = 0xffffffff

// ServiceRecord is a service that a port offers.
type ServiceRecord struct {
	ServiceID  uint64
	ServiceGID ib.GID
	PKey       ib.PKey
	Lease      uint32 // seconds
	Key        [16]byte
	Name       [64]byte // UTF-8, padded with zeros
	Data8      [16]uint8
	Data16     [8]uint16
	Data32     [4]uint32
	Data64     [2]uint64
}

// ServiceName returns Name without its padding.
func (r *ServiceRecord) ServiceName() string {
	text, _, _ := bytes.Cut(r.Name[:], []byte{0})
	return string(text)
}

// Append appends the ServiceRecordLen bytes of r to b.
func (r *ServiceRecord) Append(b []byte) []byte {
	b = be.AppendUint64(b, r.ServiceID)
	b = append(b, r.ServiceGID[:]...)
	b = be.AppendUint16(b, uint16(r.PKey))
	b = append(b, 0, 0)
	b = be.AppendUint32(b, r.Lease)
	b = append(b, r.Key[:]...)
	b = append(b, r.Name[:]...)
	b = append(b, r.Data8[:]...)
	for _, v := range r.Data16 {
		b = be.AppendUint16(b, v)
	}
	for _, v := range r.Data32 {
		b = be.AppendUint32(b, v)
	}
	for _, v := range r.Data64 {
		b = be.AppendUint64(b, v)
	}
	return b
}

// Parse reads a ServiceRecord from the start of b.
func (r *ServiceRecord) Parse(b []byte) error {
	if len(b) < ServiceRecordLen {
		return ErrShort
	}
	*r = ServiceRecord{
		ServiceID:  be.Uint64(b),
		ServiceGID: ib.GID(b[8:]),
		PKey:       ib.PKey(be.Uint16(b[24:])),
		Lease:      be.Uint32(b[28:]),
		Key:        [16]byte(b[32:]),
		Name:       [64]byte(b[48:]),
		Data8:      [16]uint8(b[112:]),
	}
	for i := range r.Data16 {
		r.Data16[i] = be.Uint16(b[128+2*i:])
	}
	for i := range r.Data32 {
		r.Data32[i] = be.Uint32(b[144+4*i:])
	}
	for i := range r.Data64 {
		r.Data64[i] = be.Uint64(b[160+8*i:])
	}
	return nil
}
