// SPDX-License-Identifier: Apache-2.0

package wire

import "weft/internal/proto/ib"

// LRHLen is the length of a local route header (9B).
const LRHLen = 8

// VCRCLen is the length of the variant CRC that ends a native packet.
const VCRCLen = 2

// What follows an LRH (its LNH field). The raw kinds carry no ICRC.
const (
	LNHRaw    = 0
	LNHRawIP  = 1
	LNHLocal  = 2 // BTH
	LNHGlobal = 3 // GRH, then BTH
)

// NxtHdrIBA is the GRH next header value of IBA transport.
const NxtHdrIBA = 0x1b

// LRH is a local route header (IBA volume 1, 7.7).
type LRH struct {
	VL     uint8 // 4 bits
	LVer   uint8 // 4 bits
	SL     uint8 // 4 bits
	LNH    uint8 // 2 bits
	DLID   ib.LID
	SLID   ib.LID
	PktLen uint16 // 11 bits: four-byte words, LRH through ICRC
}

// Put writes h to the first LRHLen bytes of b, reserved bits zero.
func (h *LRH) Put(b []byte) {
	b = b[:LRHLen]
	b[0] = h.VL<<4 | h.LVer&0x0f
	b[1] = h.SL<<4 | h.LNH&3
	be.PutUint16(b[2:], uint16(h.DLID))
	be.PutUint16(b[4:], h.PktLen&0x7ff)
	be.PutUint16(b[6:], uint16(h.SLID))
}

// parse decodes the first LRHLen bytes of b.
func (h *LRH) parse(b []byte) {
	b = b[:LRHLen]
	*h = LRH{VL: b[0] >> 4, LVer: b[0] & 0x0f, SL: b[1] >> 4, LNH: b[1] & 3, DLID: ib.LID(be.Uint16(b[2:])),
		PktLen: be.Uint16(b[4:]) & 0x7ff, SLID: ib.LID(be.Uint16(b[6:]))}
}

// GRH is a global route header (IBA volume 1, 8.3).
type GRH struct {
	IPVer      uint8 // 4 bits, 6
	TClass     uint8
	FlowLabel  uint32 // 20 bits
	PayLen     uint16 // bytes behind the GRH through the ICRC
	NxtHdr     uint8
	HopLimit   uint8 // 0 or 1 stays in the subnet
	SGID, DGID ib.GID
}

// Put writes h to the first GRHLen bytes of b.
func (h *GRH) Put(b []byte) {
	b = b[:GRHLen]
	be.PutUint32(b, uint32(h.IPVer)<<28|uint32(h.TClass)<<20|h.FlowLabel&0xfffff)
	be.PutUint16(b[4:], h.PayLen)
	b[6], b[7] = h.NxtHdr, h.HopLimit
	copy(b[8:24], h.SGID[:])
	copy(b[24:40], h.DGID[:])
}

// parse decodes the first GRHLen bytes of b.
func (h *GRH) parse(b []byte) {
	b = b[:GRHLen]
	first := be.Uint32(b)
	*h = GRH{IPVer: uint8(first >> 28), TClass: uint8(first >> 20), FlowLabel: first & 0xfffff,
		PayLen: be.Uint16(b[4:]),
		NxtHdr: b[6], HopLimit: b[7], SGID: ib.GID(b[8:24]), DGID: ib.GID(b[24:40])}
}

// ParseIB decodes the link and network headers of a native packet p, LRH …
// VCRC, and returns what Headers.Parse takes, BTH … ICRC, aliasing p. g is
// written only where l.LNH is LNHGlobal. It checks lengths and kinds, not the
// CRCs (VerifyIB). On a refusal transport is nil and l and g are undefined.
func ParseIB(p []byte, l *LRH, g *GRH) (transport []byte, why Refusal) {
	if len(p) < LRHLen+BTHLen+ICRCLen+VCRCLen {
		return nil, Short
	}
	l.parse(p)
	if l.LVer != 0 {
		return nil, LinkVersion
	}
	if int(l.PktLen)*4+VCRCLen != len(p) {
		return nil, LinkLength
	}
	t := p[LRHLen : len(p)-VCRCLen]
	switch l.LNH {
	case LNHLocal:
		return t, OK
	case LNHGlobal:
		if len(t) < GRHLen+BTHLen+ICRCLen {
			return nil, Short
		}
		g.parse(t)
		t = t[GRHLen:]
		switch {
		case g.IPVer != 6:
			return nil, LinkVersion
		case g.NxtHdr != NxtHdrIBA:
			return nil, NotTransport
		case int(g.PayLen) != len(t):
			return nil, LinkLength
		}
		return t, OK
	}
	return nil, NotTransport
}

// VerifyIB checks both CRCs of a native packet, LRH … VCRC: OK, BadVCRC or BadICRC. Only tests use it; links
// check by their own batches.
//
// Preconditions: ParseIB accepted p.
func VerifyIB(p []byte) Refusal {
	n := len(p) - VCRCLen
	if VCRC(p[:n]) != be.Uint16(p[n:]) {
		return BadVCRC
	}
	if SumIB(p[:n-ICRCLen]) != ICRC(p[:n]) {
		return BadICRC
	}
	return OK
}
