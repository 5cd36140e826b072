// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// PerfDataLen is the length of a performance management attribute.
const PerfDataLen = 192

// Perf is a MAD of performance management (IBA volume 1, 16.1.1).
type Perf struct {
	Header
	Data [PerfDataLen]byte
}

// Append appends the MAD's Len bytes to b.
func (m *Perf) Append(b []byte) []byte {
	b, p := extend(b, Len)
	m.Header.put(p)
	copy(p[Len-PerfDataLen:], m.Data[:])
	return b
}

// Parse reads a MAD from the start of b.
func (m *Perf) Parse(b []byte) error {
	if len(b) < Len {
		return ErrShort
	}
	m.Data = [PerfDataLen]byte(b[Len-PerfDataLen:])
	return m.Header.Parse(b)
}

// Reply turns a request into its response, whose Data the caller fills.
func (m *Perf) Reply(status Status) {
	m.Method = m.Method.Response()
	m.Status = status
}

// Capabilities in ClassPortInfo.CapabilityMask. The first two are common to
// all classes.
const (
	ClassCapTrap           = 0x0001
	ClassCapNotice         = 0x0002
	PerfCapAllPortSelect   = 0x0100
	PerfCapExtWidth        = 0x0200 // PortCountersExtended
	PerfCapExtWidthNoIETF  = 0x0400 // the same without unicast and multicast packets
	PerfCapSamplesOnly     = 0x0800
	PerfCapXmitWait        = 0x1000
	PerfCapQP1Dropped      = 0x8000
	SACapUDMulticast       = 0x0200
	SACapMultiPath         = 0x0400
	SACapPortInfoCapMatch  = 0x2000
	SACap2SendOnlyFullMemb = 1 << 12 // of CapabilityMask2: joins as send-only full member
)

// PortSelectAll in a request selects all ports of a switch.
const PortSelectAll = 0xff

// ClassPortInfoLen is the length of a ClassPortInfo.
const ClassPortInfoLen = 72

// Target is where a class of a port sends something to: requests that are redirected, or
// traps.
type Target struct {
	GID       ib.GID
	TClass    uint8
	SL        uint8  // 4 bits
	FlowLabel uint32 // 20 bits
	LID       ib.LID
	PKey      ib.PKey
	HopLimit  uint8 // of traps; reserved of redirection
	QPN       ib.QPN
	QKey      ib.QKey
}

func (t *Target) put(p []byte) {
	copy(p, t.GID[:])
	be.PutUint32(p[16:], uint32(t.TClass)<<24|uint32(t.SL&0xf)<<20|t.FlowLabel&0xfffff)
	be.PutUint16(p[20:], uint16(t.LID))
	be.PutUint16(p[22:], uint16(t.PKey))
	be.PutUint32(p[24:], uint32(t.HopLimit)<<24|uint32(t.QPN&ib.QPNMask))
	be.PutUint32(p[28:], uint32(t.QKey))
}

func (t *Target) get(p []byte) {
	*t = Target{GID: ib.GID(p), TClass: p[16], SL: p[17] >> 4, FlowLabel: get24(p[17:]) & 0xfffff, LID: ib.LID(be.Uint16(p[20:])),
		PKey: ib.PKey(be.Uint16(p[22:])), HopLimit: p[24], QPN: ib.QPN(get24(p[25:])), QKey: ib.QKey(be.Uint32(p[28:]))}
}

// ClassPortInfo is how a port serves a class (IBA volume 1, 13.4.8.1).
type ClassPortInfo struct {
	BaseVersion     uint8
	ClassVersion    uint8
	CapabilityMask  uint16
	CapabilityMask2 uint32 // 27 bits
	RespTimeValue   uint8  // 5 bits
	Redirect        Target // without a HopLimit
	Trap            Target
}

// Append appends the ClassPortInfoLen bytes of c to b.
func (c *ClassPortInfo) Append(b []byte) []byte {
	b, p := extend(b, ClassPortInfoLen)
	p[0], p[1] = c.BaseVersion, c.ClassVersion
	be.PutUint16(p[2:], c.CapabilityMask)
	be.PutUint32(p[4:], c.CapabilityMask2<<5|uint32(c.RespTimeValue&0x1f))
	c.Redirect.put(p[8:])
	p[32] = 0
	c.Trap.put(p[40:])
	return b
}

// Parse reads a ClassPortInfo from the start of b.
func (c *ClassPortInfo) Parse(b []byte) error {
	if len(b) < ClassPortInfoLen {
		return ErrShort
	}
	*c = ClassPortInfo{BaseVersion: b[0], ClassVersion: b[1], CapabilityMask: be.Uint16(b[2:]),
		CapabilityMask2: be.Uint32(b[4:]) >> 5, RespTimeValue: b[7] & 0x1f}
	c.Redirect.get(b[8:])
	c.Redirect.HopLimit = 0
	c.Trap.get(b[40:])
	return nil
}

// Counter is a counter of PortCounters: bit n of CounterSelect, and from
// CounterXmitWait on bit n-16 of CounterSelect2.
type Counter uint8

// Counters in the order of their select bits.
const (
	CounterSymbolErrors Counter = iota
	CounterLinkErrorRecovery
	CounterLinkDowned
	CounterRcvErrors
	CounterRcvRemotePhysErrors
	CounterRcvSwitchRelayErrors
	CounterXmitDiscards
	CounterXmitConstraintErrors
	CounterRcvConstraintErrors
	CounterLocalLinkIntegrity
	CounterBufferOverrun
	CounterVL15Dropped
	CounterXmitData // units of 4 bytes
	CounterRcvData  // units of 4 bytes
	CounterXmitPkts
	CounterRcvPkts
	CounterXmitWait
	CounterQP1Dropped
	NumCounters
)

// counterFields is where each counter lies in PortCounters, in bits.
var counterFields = [NumCounters]struct{ offset, width uint16 }{
	{32, 16}, {48, 8}, {56, 8}, {64, 16}, {80, 16}, {96, 16}, {112, 16}, {128, 8}, {136, 8}, {152, 4}, {156, 4}, {176, 16},
	{192, 32}, {224, 32}, {256, 32}, {288, 32}, {320, 32}, {160, 16},
}

// Max returns the value at which counter c stays.
func (c Counter) Max() uint32 { return uint32(1<<counterFields[c].width - 1) }

// PortCountersLen is the length of PortCounters.
const PortCountersLen = 44

// PortCounters are the counters of a port that saturate (IBA volume 1, 16.1.3.5).
type PortCounters struct {
	PortSelect     uint8
	CounterSelect  uint16
	CounterSelect2 uint8
	// Values are by Counter, and capped at its Max on the wire.
	Values [NumCounters]uint64
}

// Selected reports whether p, as a request to set counters, selects c.
func (p *PortCounters) Selected(c Counter) bool {
	return (uint32(p.CounterSelect)|uint32(p.CounterSelect2)<<16)>>c&1 != 0
}

// Load sets those values of p that the request req selects to req's.
func (p *PortCounters) Load(req *PortCounters) {
	for c := range NumCounters {
		if req.Selected(c) {
			p.Values[c] = req.Values[c]
		}
	}
}

// Append appends the PortCountersLen bytes of p to b.
func (p *PortCounters) Append(b []byte) []byte {
	b, d := extend(b, PortCountersLen)
	d[1] = p.PortSelect
	be.PutUint16(d[2:], p.CounterSelect)
	d[18] = p.CounterSelect2
	for c, f := range counterFields {
		v, at := min(p.Values[c], uint64(Counter(c).Max())), d[f.offset/8:]
		switch {
		case f.width == 32:
			be.PutUint32(at, uint32(v))
		case f.width == 16:
			be.PutUint16(at, uint16(v))
		case f.width == 8:
			at[0] = uint8(v)
		case f.offset%8 == 0:
			at[0] |= uint8(v) << 4
		default:
			at[0] |= uint8(v)
		}
	}
	return b
}

// Parse reads PortCounters from the start of b.
func (p *PortCounters) Parse(b []byte) error {
	if len(b) < PortCountersLen {
		return ErrShort
	}
	*p = PortCounters{PortSelect: b[1], CounterSelect: be.Uint16(b[2:]), CounterSelect2: b[18]}
	for c, f := range counterFields {
		p.Values[c] = field{offset: int(f.offset), width: int(f.width)}.get(b)
	}
	return nil
}

// PortCountersExtendedLen is the length of PortCountersExtended.
const PortCountersExtendedLen = 72

// PortCountersExtended are the counters of a port that wrap (IBA volume 1, 16.1.4.11). A bit
// of CounterSelect selects each, in the order of the fields.
type PortCountersExtended struct {
	PortSelect     uint8
	CounterSelect  uint16
	CounterSelect2 uint32
	XmitData       uint64 // units of 4 bytes
	RcvData        uint64 // units of 4 bytes
	XmitPkts       uint64
	RcvPkts        uint64
	UnicastXmit    uint64
	UnicastRcv     uint64
	MulticastXmit  uint64
	MulticastRcv   uint64
}

// Load sets those counters of p that the request req selects to req's.
func (p *PortCountersExtended) Load(req *PortCountersExtended) {
	for i, c := range []struct{ to, from *uint64 }{
		{&p.XmitData, &req.XmitData}, {&p.RcvData, &req.RcvData}, {&p.XmitPkts, &req.XmitPkts}, {&p.RcvPkts, &req.RcvPkts},
		{&p.UnicastXmit, &req.UnicastXmit}, {&p.UnicastRcv, &req.UnicastRcv},
		{&p.MulticastXmit, &req.MulticastXmit}, {&p.MulticastRcv, &req.MulticastRcv},
	} {
		if req.CounterSelect>>i&1 != 0 {
			*c.to = *c.from
		}
	}
}

// Append appends the PortCountersExtendedLen bytes of p to b.
func (p *PortCountersExtended) Append(b []byte) []byte {
	b = append(b, 0, p.PortSelect)
	b = be.AppendUint16(b, p.CounterSelect)
	b = be.AppendUint32(b, p.CounterSelect2)
	for _, v := range [...]uint64{p.XmitData, p.RcvData, p.XmitPkts, p.RcvPkts, p.UnicastXmit, p.UnicastRcv, p.MulticastXmit, p.MulticastRcv} {
		b = be.AppendUint64(b, v)
	}
	return b
}

// Parse reads PortCountersExtended from the start of b.
func (p *PortCountersExtended) Parse(b []byte) error {
	if len(b) < PortCountersExtendedLen {
		return ErrShort
	}
	*p = PortCountersExtended{PortSelect: b[1], CounterSelect: be.Uint16(b[2:]), CounterSelect2: be.Uint32(b[4:]),
		XmitData: be.Uint64(b[8:]), RcvData: be.Uint64(b[16:]), XmitPkts: be.Uint64(b[24:]), RcvPkts: be.Uint64(b[32:]),
		UnicastXmit: be.Uint64(b[40:]), UnicastRcv: be.Uint64(b[48:]), MulticastXmit: be.Uint64(b[56:]), MulticastRcv: be.Uint64(b[64:])}
	return nil
}
