// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"fmt"

	"weft/internal/proto/ib"
)

// NoticeType says how grave a notice is.
type NoticeType uint16

// Types of notices. In a Notice it has 7 bits, in an InformInfo 16.
const (
	NoticeFatal NoticeType = iota
	NoticeUrgent
	NoticeSecurity
	NoticeSubnet
	NoticeInformational
	NoticeEmpty NoticeType = 0x7f
)

// Producer is what kind of node issued a generic notice, or the vendor of
// another.
type Producer uint32

// Producers of generic notices.
const (
	ProducerCA Producer = 1 + iota
	ProducerSwitch
	ProducerRouter
	ProducerClassManager
)

// ProducerOf returns the producer of what a node of type t issues.
func ProducerOf(t NodeType) Producer { return Producer(t) }

// TrapNumber says what a generic notice is about, or the device of another.
type TrapNumber uint16

// Traps (IBA volume 1, 14.2.5.1 and 14.3.13).
const (
	TrapGIDInService       TrapNumber = 64
	TrapGIDOutOfService    TrapNumber = 65
	TrapGroupCreated       TrapNumber = 66
	TrapGroupDeleted       TrapNumber = 67
	TrapLinkState          TrapNumber = 128
	TrapLocalLinkIntegrity TrapNumber = 129
	TrapBufferOverrun      TrapNumber = 130
	TrapFlowControl        TrapNumber = 131
	TrapLocalChange        TrapNumber = 144
	TrapSystemImageGUID    TrapNumber = 145
	TrapBadMKey            TrapNumber = 256
	TrapBadPKey            TrapNumber = 257
	TrapBadQKey            TrapNumber = 258
	TrapBadPKeyAtSwitch    TrapNumber = 259
)

var trapNames = map[TrapNumber]string{
	TrapGIDInService: "GID in service", TrapGIDOutOfService: "GID out of service", TrapGroupCreated: "multicast group created",
	TrapGroupDeleted: "multicast group deleted", TrapLinkState: "link state change", TrapLocalLinkIntegrity: "local link integrity",
	TrapBufferOverrun: "buffer overrun", TrapFlowControl: "flow control watchdog", TrapLocalChange: "local change",
	TrapSystemImageGUID: "system image GUID change", TrapBadMKey: "bad M_Key", TrapBadPKey: "bad P_Key", TrapBadQKey: "bad Q_Key",
	TrapBadPKeyAtSwitch: "bad P_Key at switch",
}

func (t TrapNumber) String() string {
	if n, ok := trapNames[t]; ok {
		return n
	}
	return fmt.Sprintf("trap %d", uint16(t))
}

// NoticeLen is the length of a Notice.
const NoticeLen = 64

// noticeDetails is how many octets a notice has for what it reports.
const noticeDetails = 54

// Notice reports an event (IBA volume 1, 13.4.8.2). It is the attribute of a trap;
// reports of subnet administration have a NoticeRecord.
type Notice struct {
	Generic    bool
	Type       NoticeType // 7 bits
	Producer   Producer   // 24 bits
	TrapNumber TrapNumber
	IssuerLID  ib.LID
	Toggle     bool
	Count      uint16 // 15 bits
	Details    [noticeDetails]byte
}

// Append appends the NoticeLen bytes of n to b.
func (n *Notice) Append(b []byte) []byte {
	b, p := extend(b, NoticeLen)
	p[0] = flag(n.Generic, 7) | uint8(n.Type)&0x7f
	put24(p[1:], uint32(n.Producer))
	be.PutUint16(p[4:], uint16(n.TrapNumber))
	be.PutUint16(p[6:], uint16(n.IssuerLID))
	be.PutUint16(p[8:], uint16(flag(n.Toggle, 7))<<8|n.Count&0x7fff)
	copy(p[10:], n.Details[:])
	return b
}

// Parse reads a Notice from the start of b.
func (n *Notice) Parse(b []byte) error {
	if len(b) < NoticeLen {
		return ErrShort
	}
	*n = Notice{
		Generic:    b[0]&0x80 != 0,
		Type:       NoticeType(b[0] & 0x7f),
		Producer:   Producer(get24(b[1:])),
		TrapNumber: TrapNumber(be.Uint16(b[4:])),
		IssuerLID:  ib.LID(be.Uint16(b[6:])),
		Toggle:     b[8]&0x80 != 0,
		Count:      be.Uint16(b[8:]) & 0x7fff,
		Details:    [noticeDetails]byte(b[10:64]),
	}
	return nil
}

// NoticeRecordLen is the length of a NoticeRecord.
const NoticeRecordLen = 80

// NoticeRecord is a notice as subnet administration reports it.
type NoticeRecord struct {
	Notice
	IssuerGID ib.GID
}

// Append appends the NoticeRecordLen bytes of n to b.
func (n *NoticeRecord) Append(b []byte) []byte { return append(n.Notice.Append(b), n.IssuerGID[:]...) }

// Parse reads a NoticeRecord from the start of b.
func (n *NoticeRecord) Parse(b []byte) error {
	if len(b) < NoticeRecordLen {
		return ErrShort
	}
	n.IssuerGID = ib.GID(b[64:])
	return n.Notice.Parse(b)
}

// GIDNotice returns the notice of traps 64 to 67: a port's or a group's GID
// came or went. issuer is the subnet manager's port.
func GIDNotice(trap TrapNumber, issuer ib.LID, gid ib.GID) Notice {
	n := Notice{Generic: true, Type: NoticeSubnet, Producer: ProducerClassManager, TrapNumber: trap, IssuerLID: issuer}
	copy(n.Details[6:], gid[:])
	return n
}

// GID returns the GID of traps 64 to 67.
func (n *Notice) GID() ib.GID { return ib.GID(n.Details[6:]) }

// LinkStateNotice returns the notice of trap 128: a port of the switch at lid
// changed its state.
func LinkStateNotice(lid ib.LID) Notice {
	n := Notice{Generic: true, Type: NoticeUrgent, Producer: ProducerSwitch, TrapNumber: TrapLinkState, IssuerLID: lid}
	be.PutUint16(n.Details[:], uint16(lid))
	return n
}

// LID returns the LID that the notice is about: of traps 128 to 131, 144, 145
// and 256.
func (n *Notice) LID() ib.LID {
	if n.TrapNumber == TrapLinkState {
		return ib.LID(be.Uint16(n.Details[:]))
	}
	return ib.LID(be.Uint16(n.Details[2:]))
}

// PortErrorNotice returns the notice of traps 129 to 131: a threshold of the port
// was passed.
func PortErrorNotice(trap TrapNumber, from Producer, lid ib.LID, port uint8) Notice {
	n := Notice{Generic: true, Type: NoticeUrgent, Producer: from, TrapNumber: trap, IssuerLID: lid}
	be.PutUint16(n.Details[2:], uint16(lid))
	n.Details[4] = port
	return n
}

// Port returns the port of traps 129 to 131.
func (n *Notice) Port() uint8 { return n.Details[4] }

// Flags of LocalChange.Flags.
const (
	ChangeNodeDescription  = 0x01
	ChangeLinkWidthEnabled = 0x02
	ChangeLinkSpeedEnabled = 0x04
	ChangeSMPriority       = 0x08
	ChangeCapabilityMask2  = 0x20
)

// LocalChange is what trap 144 says: a port's capabilities, or with Other what
// Flags name, changed.
type LocalChange struct {
	LID             ib.LID
	Other           bool
	CapabilityMask  Capability
	Flags           uint16
	CapabilityMask2 Capability2
}

// Notice returns the notice of trap 144.
func (c *LocalChange) Notice(from Producer) Notice {
	n := Notice{Generic: true, Type: NoticeInformational, Producer: from, TrapNumber: TrapLocalChange, IssuerLID: c.LID}
	be.PutUint16(n.Details[2:], uint16(c.LID))
	n.Details[5] = flag(c.Other, 0)
	be.PutUint32(n.Details[6:], uint32(c.CapabilityMask))
	be.PutUint16(n.Details[10:], c.Flags)
	be.PutUint16(n.Details[12:], uint16(c.CapabilityMask2))
	return n
}

// LocalChange returns the details of trap 144.
func (n *Notice) LocalChange() LocalChange {
	d := n.Details[:]
	return LocalChange{LID: ib.LID(be.Uint16(d[2:])), Other: d[5]&1 != 0, CapabilityMask: Capability(be.Uint32(d[6:])),
		Flags: be.Uint16(d[10:]), CapabilityMask2: Capability2(be.Uint16(d[12:]))}
}

// SystemImageNotice returns the notice of trap 145.
func SystemImageNotice(from Producer, lid ib.LID, guid ib.GUID) Notice {
	n := Notice{Generic: true, Type: NoticeInformational, Producer: from, TrapNumber: TrapSystemImageGUID, IssuerLID: lid}
	be.PutUint16(n.Details[2:], uint16(lid))
	be.PutUint64(n.Details[6:], uint64(guid))
	return n
}

// SystemImageGUID returns the GUID of trap 145.
func (n *Notice) SystemImageGUID() ib.GUID { return ib.GUID(be.Uint64(n.Details[6:])) }

// maxNoticePath is how much of a return path fits a notice.
const maxNoticePath = 30

// BadMKey is what trap 256 says: an SMP had a wrong M_Key.
type BadMKey struct {
	LID         ib.LID
	DrSLID      ib.LID
	Method      Method
	AttributeID AttributeID
	Modifier    uint32
	MKey        uint64
	Directed    bool
	Truncated   bool  // the return path was longer
	Hops        uint8 // 6 bits
	ReturnPath  [maxNoticePath]uint8
}

// BadMKeyOf returns what trap 256 says of the refused SMP s at the port of lid.
func BadMKeyOf(s *SMP, lid ib.LID) BadMKey {
	m := BadMKey{LID: lid, Method: s.Method, AttributeID: s.AttributeID, Modifier: s.AttributeModifier, MKey: s.MKey}
	if s.Directed() {
		m.Directed, m.DrSLID, m.Hops = true, s.DrSLID, s.HopCount
		m.Truncated = int(s.HopCount) >= maxNoticePath
		copy(m.ReturnPath[:], s.ReturnPath[:])
	}
	return m
}

// Notice returns the notice of trap 256.
func (m *BadMKey) Notice(from Producer) Notice {
	n := Notice{Generic: true, Type: NoticeSecurity, Producer: from, TrapNumber: TrapBadMKey, IssuerLID: m.LID}
	d := n.Details[:]
	be.PutUint16(d[2:], uint16(m.LID))
	be.PutUint16(d[4:], uint16(m.DrSLID))
	d[6] = uint8(m.Method)
	be.PutUint16(d[8:], uint16(m.AttributeID))
	be.PutUint32(d[10:], m.Modifier)
	be.PutUint64(d[14:], m.MKey)
	d[23] = flag(m.Directed, 7) | flag(m.Truncated, 6) | m.Hops&0x3f
	copy(d[24:], m.ReturnPath[:])
	return n
}

// BadMKey returns the details of trap 256.
func (n *Notice) BadMKey() BadMKey {
	d := n.Details[:]
	return BadMKey{LID: ib.LID(be.Uint16(d[2:])), DrSLID: ib.LID(be.Uint16(d[4:])), Method: Method(d[6]),
		AttributeID: AttributeID(be.Uint16(d[8:])), Modifier: be.Uint32(d[10:]), MKey: be.Uint64(d[14:]),
		Directed: d[23]&0x80 != 0, Truncated: d[23]&0x40 != 0, Hops: d[23] & 0x3f, ReturnPath: [maxNoticePath]uint8(d[24:])}
}

// BadKey is what traps 257 to 259 say: a packet from LID1 to LID2 had a wrong
// P_Key or Q_Key.
type BadKey struct {
	LID1, LID2 ib.LID
	Key        uint32 // a Q_Key, or a P_Key in the low half
	SL         uint8  // 4 bits
	QP1, QP2   ib.QPN
	GID1, GID2 ib.GID
	// Of trap 259: which of the above are known, and where it was seen.
	DataValid uint16
	SwitchLID ib.LID
	Port      uint8
}

// Notice returns the notice of trap 257, 258 or 259 issued by the port of lid.
func (k *BadKey) Notice(trap TrapNumber, from Producer, lid ib.LID) Notice {
	n := Notice{Generic: true, Type: NoticeSecurity, Producer: from, TrapNumber: trap, IssuerLID: lid}
	d := n.Details[:]
	be.PutUint16(d[2:], uint16(k.LID1))
	be.PutUint16(d[4:], uint16(k.LID2))
	rest := d[10:]
	if trap == TrapBadPKeyAtSwitch {
		be.PutUint16(d, k.DataValid)
		be.PutUint16(d[6:], uint16(k.Key))
		rest = d[8:]
		be.PutUint16(rest[40:], uint16(k.SwitchLID))
		rest[42] = k.Port
	} else {
		be.PutUint32(d[6:], k.Key)
	}
	be.PutUint32(rest, uint32(k.SL)<<28|uint32(k.QP1&ib.QPNMask))
	be.PutUint32(rest[4:], uint32(k.QP2&ib.QPNMask))
	copy(rest[8:], k.GID1[:])
	copy(rest[24:], k.GID2[:])
	return n
}

// BadKey returns the details of traps 257 to 259.
func (n *Notice) BadKey() BadKey {
	d := n.Details[:]
	k := BadKey{LID1: ib.LID(be.Uint16(d[2:])), LID2: ib.LID(be.Uint16(d[4:])), Key: be.Uint32(d[6:])}
	rest := d[10:]
	if n.TrapNumber == TrapBadPKeyAtSwitch {
		k.DataValid, k.Key = be.Uint16(d), uint32(be.Uint16(d[6:]))
		rest = d[8:]
		k.SwitchLID, k.Port = ib.LID(be.Uint16(rest[40:])), rest[42]
	}
	k.SL = rest[0] >> 4
	k.QP1, k.QP2 = ib.QPN(get24(rest[1:])), ib.QPN(get24(rest[5:]))
	k.GID1, k.GID2 = ib.GID(rest[8:]), ib.GID(rest[24:])
	return k
}
