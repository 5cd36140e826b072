// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// Wildcards of an InformInfo.
const (
	InformAllLIDs      ib.LID     = 0xffff
	InformAllTypes     NoticeType = 0xffff
	InformAllTraps     TrapNumber = 0xffff
	InformAllProducers Producer   = 0xffffff
)

// InformInfoLen is the length of an InformInfo.
const InformInfoLen = 36

// InformInfo subscribes to notices, or ends a subscription (IBA volume 1, 13.4.8.3).
type InformInfo struct {
	GID                  ib.GID // of the notices' issuer; if zero the LIDs count
	LIDBegin, LIDEnd     ib.LID // LIDBegin InformAllLIDs is all
	IsGeneric, Subscribe uint8  // as they came: any but 0 and 1 is for the receiver to refuse
	Type                 NoticeType
	TrapNumber           TrapNumber // of a vendor's notice the device ID
	QPN                  ib.QPN     // of the subscriber, when a subscription ends
	RespTime             uint8      // 5 bits
	Producer             Producer   // of a vendor's notice the vendor ID
}

// Append appends the InformInfoLen bytes of f to b.
func (f *InformInfo) Append(b []byte) []byte {
	b, p := extend(b, InformInfoLen)
	copy(p, f.GID[:])
	be.PutUint16(p[16:], uint16(f.LIDBegin))
	be.PutUint16(p[18:], uint16(f.LIDEnd))
	p[22], p[23] = f.IsGeneric, f.Subscribe
	be.PutUint16(p[24:], uint16(f.Type))
	be.PutUint16(p[26:], uint16(f.TrapNumber))
	be.PutUint32(p[28:], uint32(f.QPN)<<8|uint32(f.RespTime&0x1f))
	put24(p[33:], uint32(f.Producer))
	return b
}

// Parse reads an InformInfo from the start of b.
func (f *InformInfo) Parse(b []byte) error {
	if len(b) < InformInfoLen {
		return ErrShort
	}
	*f = InformInfo{
		GID:        ib.GID(b),
		LIDBegin:   ib.LID(be.Uint16(b[16:])),
		LIDEnd:     ib.LID(be.Uint16(b[18:])),
		IsGeneric:  b[22],
		Subscribe:  b[23],
		Type:       NoticeType(be.Uint16(b[24:])),
		TrapNumber: TrapNumber(be.Uint16(b[26:])),
		QPN:        ib.QPN(be.Uint32(b[28:]) >> 8),
		RespTime:   b[31] & 0x1f,
		Producer:   Producer(get24(b[33:])),
	}
	return nil
}

// Wants reports whether the subscription covers a notice from issuer.
func (f *InformInfo) Wants(n *Notice, issuer ib.GID) bool {
	switch {
	case (f.IsGeneric != 0) != n.Generic,
		f.Type != InformAllTypes && f.Type != n.Type,
		f.TrapNumber != InformAllTraps && f.TrapNumber != n.TrapNumber,
		f.Producer != InformAllProducers && f.Producer != n.Producer:
		return false
	case !f.GID.IsZero():
		return f.GID == issuer
	case f.LIDBegin == InformAllLIDs:
		return true
	}
	return n.IssuerLID >= f.LIDBegin && n.IssuerLID <= max(f.LIDBegin, f.LIDEnd)
}

// InformInfoRecordLen is the length of an InformInfoRecord.
const InformInfoRecordLen = 60

// InformInfoRecord is a subscription that the subnet administration keeps.
type InformInfoRecord struct {
	SubscriberGID ib.GID
	Enum          uint16
	InformInfo    InformInfo
}

// Append appends the InformInfoRecordLen bytes of r to b.
func (r *InformInfoRecord) Append(b []byte) []byte {
	b = append(b, r.SubscriberGID[:]...)
	b = be.AppendUint16(b, r.Enum)
	return r.InformInfo.Append(append(b, 0, 0, 0, 0, 0, 0))
}

// Parse reads an InformInfoRecord from the start of b.
func (r *InformInfoRecord) Parse(b []byte) error {
	if len(b) < InformInfoRecordLen {
		return ErrShort
	}
	r.SubscriberGID, r.Enum = ib.GID(b), be.Uint16(b[16:])
	return r.InformInfo.Parse(b[24:])
}
