// SPDX-License-Identifier: Apache-2.0

package mad

// PerfDataLen is the length of a performance management attribute.
const PerfDataLen = 192

// Reply turns a request into its response. The caller fills Data.
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

// Max returns the largest value of counter c, at which it saturates.
func (c Counter) Max() uint32 { return portCountersValuesMax[c] }

// Selected reports whether p, as a request to set counters, selects c.
func (p *PortCounters) Selected(c Counter) bool {
	return (uint32(p.CounterSelect)|uint32(p.CounterSelect2)<<16)>>c&1 != 0
}

// Load sets the values that the request req selects to those of req.
func (p *PortCounters) Load(req *PortCounters) {
	for c := range NumCounters {
		if req.Selected(c) {
			p.Values[c] = req.Values[c]
		}
	}
}

// Load sets the counters that the request req selects to those of req.
func (p *PortCountersExtended) Load(req *PortCountersExtended) {
	for i, c := range []struct{ to, from *uint64 }{
		{&p.XmitData, &req.XmitData}, {&p.RcvData, &req.RcvData}, {&p.XmitPkts, &req.XmitPkts}, {&p.RcvPkts,
			&req.RcvPkts},
		{&p.UnicastXmit, &req.UnicastXmit}, {&p.UnicastRcv, &req.UnicastRcv},
		{&p.MulticastXmit, &req.MulticastXmit}, {&p.MulticastRcv, &req.MulticastRcv},
	} {
		if req.CounterSelect>>i&1 != 0 {
			*c.to = *c.from
		}
	}
}
