// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// Selector says how a value of a query is meant (IBA volume 1, 15.2.5.16).
type Selector uint8

// Selectors. Responses have SelectExactly.
const (
	SelectGreater Selector = iota
	SelectLess
	SelectExactly
	SelectBest // the largest MTU or rate available, the smallest life time
)

// selected joins a selector and its 6-bit value.
func selected(s Selector, v uint8) uint8 { return uint8(s)<<6 | v&0x3f }

// Accepts reports whether value have satisfies a query for want. SelectBest is any
// value: choosing the best is the caller's.
func (s Selector) Accepts(have, want int) bool {
	switch s {
	case SelectGreater:
		return have > want
	case SelectLess:
		return have < want
	case SelectExactly:
		return have == want
	}
	return true
}

// PathRecordLen is the length of a PathRecord.
const PathRecordLen = 64

// PathRecord is a path between two ports, or a query for paths.
type PathRecord struct {
	ServiceID    uint64
	DGID, SGID   ib.GID
	DLID, SLID   ib.LID
	RawTraffic   bool
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8
	TClass       uint8
	Reversible   bool
	NumbPath     uint8 // 7 bits
	PKey         ib.PKey
	QoSClass     uint16 // 12 bits
	SL           uint8  // 4 bits
	MTUSelector  Selector
	MTU          ib.MTU // 6 bits
	RateSelector Selector
	Rate         ib.Rate // 6 bits
	LifeSelector Selector
	Life         uint8 // 6 bits: packet life time 4.096 µs × 2^v
	Preference   uint8
}

// Append appends the PathRecordLen bytes of p to b.
func (p *PathRecord) Append(b []byte) []byte {
	b, d := extend(b, PathRecordLen)
	be.PutUint64(d, p.ServiceID)
	copy(d[8:], p.DGID[:])
	copy(d[24:], p.SGID[:])
	be.PutUint16(d[40:], uint16(p.DLID))
	be.PutUint16(d[42:], uint16(p.SLID))
	be.PutUint32(d[44:], uint32(flag(p.RawTraffic, 7))<<24|p.FlowLabel&0xfffff<<8|uint32(p.HopLimit))
	d[48], d[49] = p.TClass, flag(p.Reversible, 7)|p.NumbPath&0x7f
	be.PutUint16(d[50:], uint16(p.PKey))
	be.PutUint16(d[52:], p.QoSClass<<4|uint16(p.SL&0xf))
	d[54] = selected(p.MTUSelector, uint8(p.MTU))
	d[55] = selected(p.RateSelector, uint8(p.Rate))
	d[56] = selected(p.LifeSelector, p.Life)
	d[57] = p.Preference
	return b
}

// Parse reads a PathRecord from the start of b.
func (p *PathRecord) Parse(b []byte) error {
	if len(b) < PathRecordLen {
		return ErrShort
	}
	*p = PathRecord{
		ServiceID:    be.Uint64(b),
		DGID:         ib.GID(b[8:]),
		SGID:         ib.GID(b[24:]),
		DLID:         ib.LID(be.Uint16(b[40:])),
		SLID:         ib.LID(be.Uint16(b[42:])),
		RawTraffic:   b[44]&0x80 != 0,
		FlowLabel:    be.Uint32(b[44:]) >> 8 & 0xfffff,
		HopLimit:     b[47],
		TClass:       b[48],
		Reversible:   b[49]&0x80 != 0,
		NumbPath:     b[49] & 0x7f,
		PKey:         ib.PKey(be.Uint16(b[50:])),
		QoSClass:     be.Uint16(b[52:]) >> 4,
		SL:           b[53] & 0xf,
		MTUSelector:  Selector(b[54] >> 6),
		MTU:          ib.MTU(b[54] & 0x3f),
		RateSelector: Selector(b[55] >> 6),
		Rate:         ib.Rate(b[55] & 0x3f),
		LifeSelector: Selector(b[56] >> 6),
		Life:         b[56] & 0x3f,
		Preference:   b[57],
	}
	return nil
}

// MultiPathRecordLen is the length of a MultiPathRecord without its GIDs.
const MultiPathRecordLen = 24

// MultiPathRecord is a query for paths between two sets of ports: SGIDCount
// sources and then DGIDCount destinations follow it, which GID reads.
type MultiPathRecord struct {
	RawTraffic   bool
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8
	TClass       uint8
	Reversible   bool
	NumbPath     uint8 // 7 bits
	PKey         ib.PKey
	QoSClass     uint16 // 12 bits
	SL           uint8  // 4 bits
	MTUSelector  Selector
	MTU          ib.MTU
	RateSelector Selector
	Rate         ib.Rate
	LifeSelector Selector
	Life         uint8
	ServiceID    uint64
	Independence uint8 // 2 bits
	SGIDCount    uint8
	DGIDCount    uint8
}

// Append appends the MultiPathRecordLen bytes of p to b, without GIDs.
func (p *MultiPathRecord) Append(b []byte) []byte {
	b, d := extend(b, MultiPathRecordLen)
	// The service ID's low octets lie behind the counts.
	be.PutUint64(d[16:], p.ServiceID)
	be.PutUint32(d, uint32(flag(p.RawTraffic, 7))<<24|p.FlowLabel&0xfffff<<8|uint32(p.HopLimit))
	d[4], d[5] = p.TClass, flag(p.Reversible, 7)|p.NumbPath&0x7f
	be.PutUint16(d[6:], uint16(p.PKey))
	be.PutUint16(d[8:], p.QoSClass<<4|uint16(p.SL&0xf))
	d[10] = selected(p.MTUSelector, uint8(p.MTU))
	d[11] = selected(p.RateSelector, uint8(p.Rate))
	d[12] = selected(p.LifeSelector, p.Life)
	d[13] = uint8(p.ServiceID >> 56)
	d[14] = p.Independence << 6
	d[15], d[16] = p.SGIDCount, p.DGIDCount
	return b
}

// Parse reads a MultiPathRecord from the start of b.
func (p *MultiPathRecord) Parse(b []byte) error {
	if len(b) < MultiPathRecordLen {
		return ErrShort
	}
	*p = MultiPathRecord{
		RawTraffic:   b[0]&0x80 != 0,
		FlowLabel:    be.Uint32(b) >> 8 & 0xfffff,
		HopLimit:     b[3],
		TClass:       b[4],
		Reversible:   b[5]&0x80 != 0,
		NumbPath:     b[5] & 0x7f,
		PKey:         ib.PKey(be.Uint16(b[6:])),
		QoSClass:     be.Uint16(b[8:]) >> 4,
		SL:           b[9] & 0xf,
		MTUSelector:  Selector(b[10] >> 6),
		MTU:          ib.MTU(b[10] & 0x3f),
		RateSelector: Selector(b[11] >> 6),
		Rate:         ib.Rate(b[11] & 0x3f),
		LifeSelector: Selector(b[12] >> 6),
		Life:         b[12] & 0x3f,
		ServiceID:    uint64(b[13])<<56 | be.Uint64(b[16:])&(1<<56-1),
		Independence: b[14] >> 6,
		SGIDCount:    b[15],
		DGIDCount:    b[16],
	}
	return nil
}

// GID returns the i-th of the SGIDCount+DGIDCount GIDs of the record at the
// start of b, false if b does not reach so far.
func (p *MultiPathRecord) GID(b []byte, i int) (g ib.GID, ok bool) {
	at := MultiPathRecordLen + 16*i
	if i < 0 || i >= int(p.SGIDCount)+int(p.DGIDCount) || len(b) < at+16 {
		return g, false
	}
	return ib.GID(b[at:]), true
}

// Bits of MCMemberRecord.JoinState.
const (
	JoinFull         = 1
	JoinNon          = 2
	JoinSendOnlyNon  = 4
	JoinSendOnlyFull = 8
)

// MCMemberRecordLen is the length of an MCMemberRecord.
const MCMemberRecordLen = 52

// MCMemberRecord is a multicast group with one of its members, or a request to join or
// leave it (IBA volume 1, 15.2.5.17).
type MCMemberRecord struct {
	MGID         ib.GID
	PortGID      ib.GID
	QKey         ib.QKey
	MLID         ib.LID
	MTUSelector  Selector
	MTU          ib.MTU // 6 bits
	TClass       uint8
	PKey         ib.PKey
	RateSelector Selector
	Rate         ib.Rate // 6 bits
	LifeSelector Selector
	Life         uint8  // 6 bits: packet life time 4.096 µs × 2^v
	SL           uint8  // 4 bits
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8
	Scope        uint8 // 4 bits
	JoinState    uint8 // 4 bits
	ProxyJoin    bool
}

// Append appends the MCMemberRecordLen bytes of m to b.
func (m *MCMemberRecord) Append(b []byte) []byte {
	b, d := extend(b, MCMemberRecordLen)
	copy(d, m.MGID[:])
	copy(d[16:], m.PortGID[:])
	be.PutUint32(d[32:], uint32(m.QKey))
	be.PutUint16(d[36:], uint16(m.MLID))
	d[38] = selected(m.MTUSelector, uint8(m.MTU))
	d[39] = m.TClass
	be.PutUint16(d[40:], uint16(m.PKey))
	d[42] = selected(m.RateSelector, uint8(m.Rate))
	d[43] = selected(m.LifeSelector, m.Life)
	be.PutUint32(d[44:], uint32(m.SL)<<28|m.FlowLabel&0xfffff<<8|uint32(m.HopLimit))
	d[48] = nibbles(m.Scope, m.JoinState)
	d[49] = flag(m.ProxyJoin, 7)
	return b
}

// Parse reads an MCMemberRecord from the start of b.
func (m *MCMemberRecord) Parse(b []byte) error {
	if len(b) < MCMemberRecordLen {
		return ErrShort
	}
	*m = MCMemberRecord{
		MGID:         ib.GID(b),
		PortGID:      ib.GID(b[16:]),
		QKey:         ib.QKey(be.Uint32(b[32:])),
		MLID:         ib.LID(be.Uint16(b[36:])),
		MTUSelector:  Selector(b[38] >> 6),
		MTU:          ib.MTU(b[38] & 0x3f),
		TClass:       b[39],
		PKey:         ib.PKey(be.Uint16(b[40:])),
		RateSelector: Selector(b[42] >> 6),
		Rate:         ib.Rate(b[42] & 0x3f),
		LifeSelector: Selector(b[43] >> 6),
		Life:         b[43] & 0x3f,
		SL:           b[44] >> 4,
		FlowLabel:    be.Uint32(b[44:]) >> 8 & 0xfffff,
		HopLimit:     b[47],
		Scope:        b[48] >> 4,
		JoinState:    b[48] & 0xf,
		ProxyJoin:    b[49]&0x80 != 0,
	}
	return nil
}
