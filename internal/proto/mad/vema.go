// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// ClassVEMA is the class of the virtual Ethernet management agent (VEMA) of Omni-Path, by which an Ethernet Manager
// configures the Ethernet ports (vports) behind a port of the fabric. Its MADs have a base version and a length of
// their own. The layouts are those of the Linux driver, as in docs/notes/vesw.md; bytes of the driver are in
// test/vectors/opa16b.json.
const ClassVEMA Class = 0x34

// Values in the headers of every MAD of the class.
const (
	OPABaseVersion   = 0x80
	VEMAClassVersion = 0x80
	VEMAOUI          = 0x00066a
)

// OPALen is the length of the longest MAD of base version OPABaseVersion, and of every VEMA except for traps and
// refusals.
const OPALen = 2048

// Attributes of the class, besides AttrClassPortInfo and AttrNotice. VESWRemove exists only in Weft: its Set removes
// the vport, which VESWDelete leaves unconfigured.
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

// NewVEMA returns a request: a Get or a Set of an attribute of a vport.
func NewVEMA(m Method, a AttributeID, vport uint8, tid uint64) VEMA {
	return VEMA{Header: Header{BaseVersion: OPABaseVersion, MgmtClass: ClassVEMA, ClassVersion: VEMAClassVersion,
		Method: m, TransactionID: tid,
		AttributeID: a, AttributeModifier: uint32(vport)}, OUI: VEMAOUI}
}

// VEMAVPort returns the vport of an attribute modifier. The upper 24 bits are sent as zero and ignored.
func VEMAVPort(modifier uint32) uint8 { return uint8(modifier) }

// IsVEMA reports whether the MAD b has the base version, class, class version and OUI of a
// VEMA.
func IsVEMA(b []byte) bool {
	return len(b) >= VEMAHeaderLen && b[0] == OPABaseVersion && Class(b[1]) == ClassVEMA &&
		b[2] == VEMAClassVersion && get24(b[37:]) == VEMAOUI
}

// NewVEMATrap returns a trap.
func NewVEMATrap(tid uint64, n VEMANotice) VEMATrap {
	return VEMATrap{Header: Header{BaseVersion: OPABaseVersion, MgmtClass: ClassVEMA, ClassVersion: VEMAClassVersion,
		Method:        MethodTrap,
		TransactionID: tid, AttributeID: AttrNotice}, OUI: VEMAOUI, Notice: n}
}

// VEMAOpcode is the subject of a notice of the class.
type VEMAOpcode uint8

// Subjects of notices.
const (
	VEMAUnicastMACs VEMAOpcode = 1 + iota // the list of unicast MACs changed
	VEMAMcastMACs                         // the list of multicast MACs changed
	VEMALinkStatus                        // the state of the Ethernet link changed
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

// VEMAGenericType is the first octet of a notice of the driver: the type NoticeInformational, shifted by a bit that
// does not exist in the layout of notices.
const VEMAGenericType = 0x08

// Informational reports whether n has the type of traps of the class, as the driver sends it or as the layout of
// notices requires.
func (n *VEMANotice) Informational() bool {
	return n.GenericType == VEMAGenericType || n.GenericType == uint8(NoticeInformational)
}

// VEMATarget is where a class of a port sends to, with LIDs of 32 bits.
type VEMATarget struct {
	GID       ib.GID
	TClass    uint8
	FlowLabel uint32 // 20 bits
	LID       uint32
	SL        uint8 // 5 bits
	HopLimit  uint8 // of traps; redirection has none
	QPN       ib.QPN
	QKey      ib.QKey
	PKey      ib.PKey
}

// MaxVPorts returns the largest number of vports of the port.
func (c *VEMAClassPortInfo) MaxVPorts() int { return int(c.CapabilityMask >> 8) }
