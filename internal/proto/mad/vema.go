// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// The class of the virtual Ethernet management agent (VEMA) of Omni-Path: how an Ethernet
// Manager configures the Ethernet ports (vports) behind a port of the fabric. Its MADs
// have a base version and a length of their own. The layouts are those of the Linux driver,
// as docs/notes/vesw.md has them; its own bytes are in test/vectors/opa16b.json.
const ClassVEMA Class = 0x34

// What every MAD of the class carries.
const (
	OPABaseVersion   = 0x80
	VEMAClassVersion = 0x80
	VEMAOUI          = 0x00066a
)

// OPALen is the length of the longest MAD of base version OPABaseVersion, and of every VEMA
// but traps and refusals.
const OPALen = 2048

// Attributes of the class, besides AttrClassPortInfo and AttrNotice. VESWRemove is of this
// project alone: its Set removes the vport, which VESWDelete leaves behind unconfigured.
const (
	AttrVESWPortInfo    AttributeID = 0x0011
	AttrVESWMACEntries  AttributeID = 0x0012
	AttrVESWUnicastMACs AttributeID = 0x0013
	AttrVESWMcastMACs   AttributeID = 0x0014
	AttrVESWDelete      AttributeID = 0x0015
	AttrVESWSummary     AttributeID = 0x0020
	AttrVESWErrors      AttributeID = 0x0022
	AttrVESWRemove      AttributeID = 0xff15
)

// VEMAHeaderLen is the length of the headers of a VEMA, which an answer repeats.
const VEMAHeaderLen = 40

// VEMADataLen is the length of the attribute of a VEMA.
const VEMADataLen = OPALen - VEMAHeaderLen

// VEMA is a MAD of the class, which is of vendor range 2: RMPP header and OUI follow the common
// header. AttributeModifier is the vport (VEMAVPort).
type VEMA struct {
	Header
	RMPP RMPP   // zero: the class does without
	OUI  uint32 // 24 bits
	Data [VEMADataLen]byte
}

// NewVEMA returns a request: a Get or a Set of an attribute of a vport.
func NewVEMA(m Method, a AttributeID, vport uint8, tid uint64) VEMA {
	return VEMA{Header: Header{BaseVersion: OPABaseVersion, MgmtClass: ClassVEMA, ClassVersion: VEMAClassVersion, Method: m, TransactionID: tid,
		AttributeID: a, AttributeModifier: uint32(vport)}, OUI: VEMAOUI}
}

// VEMAVPort returns the vport that an attribute modifier names. The upper 24 bits
// are sent as zero and ignored.
func VEMAVPort(modifier uint32) uint8 { return uint8(modifier) }

// IsVEMA reports whether the MAD b has the base version, class, class version and OUI of a
// VEMA.
func IsVEMA(b []byte) bool {
	return len(b) >= VEMAHeaderLen && b[0] == OPABaseVersion && Class(b[1]) == ClassVEMA && b[2] == VEMAClassVersion && get24(b[37:]) == VEMAOUI
}

// Append appends the MAD's OPALen bytes to b.
func (m *VEMA) Append(b []byte) []byte {
	b, p := extend(b, OPALen)
	m.put(p)
	copy(p[VEMAHeaderLen:], m.Data[:])
	return b
}

func (m *VEMA) put(p []byte) {
	m.Header.put(p)
	m.RMPP.put(p[HeaderLen:])
	put24(p[37:], m.OUI)
}

// Parse reads a MAD from the start of b.
func (m *VEMA) Parse(b []byte) error {
	if len(b) < OPALen {
		return ErrShort
	}
	m.get(b)
	copy(m.Data[:], b[VEMAHeaderLen:])
	return nil
}

func (m *VEMA) get(b []byte) {
	m.Header.Parse(b)
	m.RMPP.Parse(b[HeaderLen:])
	m.OUI = get24(b[37:])
}

// VEMATrapLen is the length of a trap.
const VEMATrapLen = 272

// VEMATrap is a trap of the class: a MAD that is shorter than others and has a notice as its
// attribute.
type VEMATrap struct {
	Header
	RMPP   RMPP
	OUI    uint32 // 24 bits
	Notice VEMANotice
}

// NewVEMATrap returns a trap.
func NewVEMATrap(tid uint64, n VEMANotice) VEMATrap {
	return VEMATrap{Header: Header{BaseVersion: OPABaseVersion, MgmtClass: ClassVEMA, ClassVersion: VEMAClassVersion, Method: MethodTrap,
		TransactionID: tid, AttributeID: AttrNotice}, OUI: VEMAOUI, Notice: n}
}

// Append appends the trap's VEMATrapLen bytes to b.
func (t *VEMATrap) Append(b []byte) []byte {
	b, p := extend(b, VEMATrapLen)
	m := VEMA{Header: t.Header, RMPP: t.RMPP, OUI: t.OUI}
	m.put(p)
	t.Notice.put(p[VEMAHeaderLen:])
	return b
}

// Parse reads a trap from the start of b.
func (t *VEMATrap) Parse(b []byte) error {
	if len(b) < VEMATrapLen {
		return ErrShort
	}
	t.Header.Parse(b)
	t.RMPP.Parse(b[HeaderLen:])
	t.OUI = get24(b[37:])
	return t.Notice.Parse(b[VEMAHeaderLen:])
}

// VEMAOpcode is what a notice of the class reports.
type VEMAOpcode uint8

// What notices report.
const (
	VEMAUnicastMACs VEMAOpcode = 1 + iota // another list of unicast MACs
	VEMAMcastMACs                         // another list of multicast MACs
	VEMALinkStatus                        // another state of the Ethernet link
)

func (o VEMAOpcode) String() string {
	switch o {
	case VEMAUnicastMACs:
		return "unicast MACs"
	case VEMAMcastMACs:
		return "multicast MACs"
	case VEMALinkStatus:
		return "link status"
	}
	return "unknown"
}

// VEMAGenericType is the first octet of a notice as the driver sends it: the type
// NoticeInformational, shifted by a bit that the layout of notices has not.
const VEMAGenericType = 0x08

// VEMANoticeLen is the length of a VEMANotice.
const VEMANoticeLen = 96

// VEMANotice reports an event of a vport.
type VEMANotice struct {
	GenericType uint8  // VEMAGenericType; see Informational
	OUI         uint32 // 24 bits
	TrapNumber  TrapNumber
	ToggleCount uint16
	IssuerLID   uint32 // EncapSLID
	IssuerGID   ib.GID
	FabricID    uint16
	VESWID      uint16
	PortNum     uint32 // within the VESW
	OPAPort     uint16 // number of the port, from 1
	VPort       uint8
	Opcode      VEMAOpcode
}

// Informational reports whether n has the type that traps of the class have, as the driver
// sends it or as the layout of notices demands.
func (n *VEMANotice) Informational() bool {
	return n.GenericType == VEMAGenericType || n.GenericType == uint8(NoticeInformational)
}

// Append appends the VEMANoticeLen bytes of n to b.
func (n *VEMANotice) Append(b []byte) []byte {
	b, p := extend(b, VEMANoticeLen)
	n.put(p)
	return b
}

func (n *VEMANotice) put(p []byte) {
	p[0] = n.GenericType
	put24(p[1:], n.OUI)
	be.PutUint16(p[4:], uint16(n.TrapNumber))
	be.PutUint16(p[6:], n.ToggleCount)
	be.PutUint32(p[8:], n.IssuerLID)
	copy(p[16:32], n.IssuerGID[:])
	be.PutUint16(p[32:], n.FabricID)
	be.PutUint16(p[34:], n.VESWID)
	be.PutUint32(p[36:], n.PortNum)
	be.PutUint16(p[40:], n.OPAPort)
	p[42], p[43] = n.VPort, uint8(n.Opcode)
}

// Parse reads a notice from the start of b.
func (n *VEMANotice) Parse(b []byte) error {
	if len(b) < VEMANoticeLen {
		return ErrShort
	}
	*n = VEMANotice{GenericType: b[0], OUI: get24(b[1:]), TrapNumber: TrapNumber(be.Uint16(b[4:])), ToggleCount: be.Uint16(b[6:]),
		IssuerLID: be.Uint32(b[8:]), IssuerGID: ib.GID(b[16:]), FabricID: be.Uint16(b[32:]), VESWID: be.Uint16(b[34:]),
		PortNum: be.Uint32(b[36:]), OPAPort: be.Uint16(b[40:]), VPort: b[42], Opcode: VEMAOpcode(b[43])}
	return nil
}

// VEMAClassPortInfoLen is the length of a VEMAClassPortInfo.
const VEMAClassPortInfoLen = 80

// VEMATarget is where a class of a port sends something to, with LIDs of 32 bits.
type VEMATarget struct {
	GID       ib.GID
	TClass    uint8
	FlowLabel uint32 // 20 bits
	LID       uint32
	SL        uint8 // 5 bits
	HopLimit  uint8 // of traps; of redirection it does not exist
	QPN       ib.QPN
	QKey      ib.QKey
	PKey      ib.PKey
}

// VEMAClassPortInfo is how a port serves the class. Its last fields lie elsewhere than in a
// ClassPortInfo.
type VEMAClassPortInfo struct {
	BaseVersion     uint8
	ClassVersion    uint8
	CapabilityMask  uint16 // ClassCapTrap, and in the upper half how many vports there can be
	CapabilityMask2 uint32 // 27 bits
	RespTimeValue   uint8  // 5 bits
	Redirect        VEMATarget
	// Trap is where traps go to: its LID 0 means nowhere. Only LID and SL matter to the
	// driver's agent and to ours; the rest is kept.
	Trap VEMATarget
}

// MaxVPorts returns how many vports the port can have.
func (c *VEMAClassPortInfo) MaxVPorts() int { return int(c.CapabilityMask >> 8) }

// Append appends the VEMAClassPortInfoLen bytes of c to b.
func (c *VEMAClassPortInfo) Append(b []byte) []byte {
	b, p := extend(b, VEMAClassPortInfoLen)
	p[0], p[1] = c.BaseVersion, c.ClassVersion
	be.PutUint16(p[2:], c.CapabilityMask)
	be.PutUint32(p[4:], c.CapabilityMask2<<5|uint32(c.RespTimeValue&0x1f))
	r, t := &c.Redirect, &c.Trap
	copy(p[8:24], r.GID[:])
	be.PutUint32(p[24:], uint32(r.TClass)<<24|r.FlowLabel&0xfffff)
	be.PutUint32(p[28:], r.LID)
	be.PutUint32(p[32:], uint32(r.SL)<<27|uint32(r.QPN&ib.QPNMask))
	be.PutUint32(p[36:], uint32(r.QKey))
	copy(p[40:56], t.GID[:])
	be.PutUint32(p[56:], uint32(t.TClass)<<24|t.FlowLabel&0xfffff)
	be.PutUint32(p[60:], t.LID)
	be.PutUint32(p[64:], uint32(t.HopLimit)<<24|uint32(t.QPN&ib.QPNMask))
	be.PutUint32(p[68:], uint32(t.QKey))
	be.PutUint16(p[72:], uint16(t.PKey))
	be.PutUint16(p[74:], uint16(r.PKey))
	p[76] = t.SL << 3
	return b
}

// Parse reads a VEMAClassPortInfo from the start of b.
func (c *VEMAClassPortInfo) Parse(b []byte) error {
	if len(b) < VEMAClassPortInfoLen {
		return ErrShort
	}
	*c = VEMAClassPortInfo{BaseVersion: b[0], ClassVersion: b[1], CapabilityMask: be.Uint16(b[2:]),
		CapabilityMask2: be.Uint32(b[4:]) >> 5, RespTimeValue: b[7] & 0x1f,
		Redirect: VEMATarget{GID: ib.GID(b[8:]), TClass: b[24], FlowLabel: get24(b[25:]) & 0xfffff, LID: be.Uint32(b[28:]),
			SL: b[32] >> 3, QPN: ib.QPN(get24(b[33:])), QKey: ib.QKey(be.Uint32(b[36:])), PKey: ib.PKey(be.Uint16(b[74:]))},
		Trap: VEMATarget{GID: ib.GID(b[40:]), TClass: b[56], FlowLabel: get24(b[57:]) & 0xfffff, LID: be.Uint32(b[60:]),
			SL: b[76] >> 3, HopLimit: b[64], QPN: ib.QPN(get24(b[65:])), QKey: ib.QKey(be.Uint32(b[68:])), PKey: ib.PKey(be.Uint16(b[72:]))}}
	return nil
}
