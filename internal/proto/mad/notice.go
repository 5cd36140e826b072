// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"fmt"

	"weft/internal/proto/ib"
)

// NoticeType is the severity of a notice.
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

// Producer is the kind of node that issued a generic notice, or the vendor of another notice.
type Producer uint32

// Producers of generic notices.
const (
	ProducerCA Producer = 1 + iota
	ProducerSwitch
	ProducerRouter
	ProducerClassManager
)

// ProducerOf returns the producer of the notices of a node of type t.
func ProducerOf(t NodeType) Producer { return Producer(t) }

// TrapNumber is the subject of a generic notice, or the device of another notice.
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

// noticeDetails is the number of octets for the details of a notice.
const noticeDetails = 54

// GIDNotice returns the notice of traps 64 to 67: the GID of a port or a group came or went. issuer is the port of the
// subnet manager.
func GIDNotice(trap TrapNumber, issuer ib.LID, gid ib.GID) Notice {
	n := Notice{Generic: true, Type: NoticeSubnet, Producer: ProducerClassManager, TrapNumber: trap, IssuerLID: issuer}
	copy(n.Details[6:], gid[:])
	return n
}

// GID returns the GID of traps 64 to 67.
func (n *Notice) GID() ib.GID { return ib.GID(n.Details[6:]) }

// LinkStateNotice returns the notice of trap 128: the state of a port of the switch at lid changed.
func LinkStateNotice(lid ib.LID) Notice {
	n := Notice{Generic: true, Type: NoticeUrgent, Producer: ProducerSwitch, TrapNumber: TrapLinkState, IssuerLID: lid}
	be.PutUint16(n.Details[:], uint16(lid))
	return n
}

// LID returns the LID of the subject of traps 128 to 131, 144, 145 and 256.
func (n *Notice) LID() ib.LID {
	if n.TrapNumber == TrapLinkState {
		return ib.LID(be.Uint16(n.Details[:]))
	}
	return ib.LID(be.Uint16(n.Details[2:]))
}

// PortErrorNotice returns the notice of traps 129 to 131: a threshold of the port was exceeded.
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

// Notice returns the notice of trap 144.
func (c *LocalChange) Notice(from Producer) Notice {
	n := Notice{Generic: true, Type: NoticeInformational, Producer: from, TrapNumber: TrapLocalChange, IssuerLID: c.LID}
	c.put(n.Details[:])
	return n
}

// LocalChange returns the details of trap 144.
func (n *Notice) LocalChange() (c LocalChange) {
	c.get(n.Details[:])
	return c
}

// SystemImageNotice returns the notice of trap 145.
func SystemImageNotice(from Producer, lid ib.LID, guid ib.GUID) Notice {
	n := Notice{Generic: true, Type: NoticeInformational, Producer: from, TrapNumber: TrapSystemImageGUID,
		IssuerLID: lid}
	be.PutUint16(n.Details[2:], uint16(lid))
	be.PutUint64(n.Details[6:], uint64(guid))
	return n
}

// SystemImageGUID returns the GUID of trap 145.
func (n *Notice) SystemImageGUID() ib.GUID { return ib.GUID(be.Uint64(n.Details[6:])) }

// maxNoticePath is the length of the return path in a notice.
const maxNoticePath = 30

// BadMKeyOf returns the details of trap 256 about the refused SMP s at the port of lid.
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
	m.put(n.Details[:])
	return n
}

// BadMKey returns the details of trap 256.
func (n *Notice) BadMKey() (m BadMKey) {
	m.get(n.Details[:])
	return m
}

// BadKey is the details of traps 257 to 259: a packet from LID1 to LID2 had a wrong P_Key or Q_Key.
type BadKey struct {
	LID1, LID2 ib.LID
	Key        uint32 // a Q_Key, or a P_Key in the low half
	SL         uint8  // 4 bits
	QP1, QP2   ib.QPN
	GID1, GID2 ib.GID
	// Of trap 259: the valid fields of those above, and the place of detection.
	DataValid uint16
	SwitchLID ib.LID
	Port      uint8
}

// Notice returns the notice of trap 257, 258 or 259 issued by the port of lid.
func (k *BadKey) Notice(trap TrapNumber, from Producer, lid ib.LID) Notice {
	n := Notice{Generic: true, Type: NoticeSecurity, Producer: from, TrapNumber: trap, IssuerLID: lid}
	if trap == TrapBadPKeyAtSwitch {
		k.putAtSwitch(n.Details[:])
	} else {
		k.putAtPort(n.Details[:])
	}
	return n
}

// BadKey returns the details of traps 257 to 259.
func (n *Notice) BadKey() (k BadKey) {
	if n.TrapNumber == TrapBadPKeyAtSwitch {
		k.getAtSwitch(n.Details[:])
	} else {
		k.getAtPort(n.Details[:])
	}
	return k
}
