// SPDX-License-Identifier: Apache-2.0

package vnic

import "weft/internal/proto/mad"

// numSizes is how many classes of lengths are counted apart.
const numSizes = 7

// size returns the class of a frame's length: boundaries are of lengths with an FCS.
func size(n int) int {
	switch {
	case n <= 60:
		return 0
	case n <= 123:
		return 1
	case n <= 251:
		return 2
	case n <= 507:
		return 3
	case n <= 1019:
		return 4
	case n <= 1514:
		return 5
	}
	return 6
}

var sizeNames = [numSizes]string{"64_size", "65_127", "128_255", "256_511", "512_1023", "1024_1518", "1519_max"}

// Traffic counts frames that were sent, or delivered, as they are on the wire.
type Traffic struct {
	Packets, Bytes      uint64 // octets with an FCS
	Unicast, McastBcast uint64
	Untagged, VLAN      uint64
	Sizes               [numSizes]uint64
}

func (t *Traffic) count(c Cut, group, tagged bool) {
	n := uint64(c.Frames)
	t.Packets += n
	long, last := max(c.Len, MinFrame), max(c.Last, MinFrame)
	t.Bytes += (n-1)*uint64(long) + uint64(last) + n*fcsLen
	if group {
		t.McastBcast += n
	} else {
		t.Unicast += n
	}
	if tagged {
		t.VLAN += n
	} else {
		t.Untagged += n
	}
	t.Sizes[size(long)] += n - 1
	t.Sizes[size(last)]++
}

// uncount takes back what count counted.
func (t *Traffic) uncount(c Cut, group, tagged bool) {
	var n Traffic
	n.count(c, group, tagged)
	t.Packets -= n.Packets
	t.Bytes -= n.Bytes
	t.Unicast -= n.Unicast
	t.McastBcast -= n.McastBcast
	t.VLAN -= n.VLAN
	t.Untagged -= n.Untagged
	for i, v := range n.Sizes {
		t.Sizes[i] -= v
	}
}

func (t *Traffic) add(o *Traffic) {
	t.Packets += o.Packets
	t.Bytes += o.Bytes
	t.Unicast += o.Unicast
	t.McastBcast += o.McastBcast
	t.Untagged += o.Untagged
	t.VLAN += o.VLAN
	for i, v := range o.Sizes {
		t.Sizes[i] += v
	}
}

// Counters of a port. Those of errors are of frames that were dropped, each by one reason, as
// frames on the wire.
type Counters struct {
	Tx, Rx Traffic

	TxFIFOErrors    uint64 // no room to send from
	TxCarrierErrors uint64 // the fabric's switch does not let them pass
	TxDLIDZero      uint64 // nowhere to go
	TxDropState     uint64 // not operational
	TxOversize      uint64 // longer than the VESW allows
	TxRunt          uint64 // no Ethernet header

	RxFIFOErrors uint64 // no room
	RxDropState  uint64 // not operational
	RxOversize   uint64 // longer than the interface allows
	RxRunt       uint64 // shorter than MinFrame
	RxBadSLID    uint64 // from no port's LID, or this port's own
	RxBadDLID    uint64 // neither to this port nor to a group of it
	RxBadPKey    uint64 // of another partition
	RxBadSC      uint64 // to a group on the service channel of management

	// Not errors.
	RxReserved     uint64 // reserved bits were not zero
	RxFECN, RxBECN uint64 // congestion marks received
	NotifySent     uint64 // congestion notifications
}

// TxErrors is the sum of all reasons not to send.
func (c *Counters) TxErrors() uint64 { return c.TxLogic() + c.TxDLIDZero + c.TxDropState }

// TxLogic is what a manager sees as tx_logic.
func (c *Counters) TxLogic() uint64 {
	return c.TxFIFOErrors + c.TxCarrierErrors + c.TxOversize + c.TxRunt
}

// RxErrors is the sum of all reasons not to deliver, once it was clear to which port.
func (c *Counters) RxErrors() uint64 {
	return c.RxLogic() + c.RxDropState + c.RxOversize + c.RxRunt
}

// RxLogic is what a manager sees as rx_logic.
func (c *Counters) RxLogic() uint64 {
	return c.RxFIFOErrors + c.RxBadSLID + c.RxBadDLID + c.RxBadPKey + c.RxBadSC
}

// Add adds what another lane counted.
func (c *Counters) Add(o *Counters) {
	c.Tx.add(&o.Tx)
	c.Rx.add(&o.Rx)
	sum, list := c.reasons(), o.reasons()
	for i := range sum {
		*sum[i].v += *list[i].v
	}
}

type named struct {
	name string
	v    *uint64
}

// reasons are the counters that the driver does not have, and those behind its histograms.
func (c *Counters) reasons() [18]named {
	return [...]named{{"rx_fifo_errors", &c.RxFIFOErrors}, {"tx_fifo_errors", &c.TxFIFOErrors},
		{"tx_carrier_errors", &c.TxCarrierErrors},
		{"tx_dlid_zero", &c.TxDLIDZero}, {"tx_drop_state", &c.TxDropState}, {"rx_drop_state", &c.RxDropState},
		{"rx_oversize", &c.RxOversize}, {"rx_runt", &c.RxRunt}, {"tx_oversize", &c.TxOversize}, {"tx_runt",
			&c.TxRunt}, {"rx_bad_slid", &c.RxBadSLID},
		{"rx_bad_dlid", &c.RxBadDLID}, {"rx_bad_pkey", &c.RxBadPKey}, {"rx_bad_sc", &c.RxBadSC}, {"rx_reserved",
			&c.RxReserved},
		{"rx_fecn", &c.RxFECN}, {"rx_becn", &c.RxBECN}, {"cnp_sent", &c.NotifySent}}
}

// Each calls f with the name and value of every counter: first the statistics of the driver,
// by its names and in its order.
func (c *Counters) Each(f func(name string, v uint64)) {
	f("rx_packets", c.Rx.Packets)
	f("tx_packets", c.Tx.Packets)
	f("rx_bytes", c.Rx.Bytes)
	f("tx_bytes", c.Tx.Bytes)
	f("rx_errors", c.RxErrors())
	f("tx_errors", c.TxErrors())
	f("rx_dropped", c.RxErrors())
	f("tx_dropped", c.TxErrors())
	for _, d := range [...]struct {
		prefix string
		t      *Traffic
	}{{"tx_", &c.Tx}, {"rx_", &c.Rx}} {
		f(d.prefix+"unicast", d.t.Unicast)
		f(d.prefix+"mcastbcast", d.t.McastBcast)
		f(d.prefix+"untagged", d.t.Untagged)
		f(d.prefix+"vlan", d.t.VLAN)
		for i, v := range d.t.Sizes {
			f(d.prefix+sizeNames[i], v)
		}
	}
	for i, r := range c.reasons() {
		if i == 1 {
			f("rx_length_errors", c.RxOversize+c.RxRunt)
		}
		f(r.name, *r.v)
	}
}

// Unknown counts packets to a function that are no port's.
type Unknown struct {
	BadL4     uint64 // not Ethernet
	Malformed uint64 // without the header of an Ethernet packet
	BadVESW   uint64 // to a VESW that the function is not in
}

// Add adds what another lane counted.
func (u *Unknown) Add(o *Unknown) {
	u.BadL4 += o.BadL4
	u.Malformed += o.Malformed
	u.BadVESW += o.BadVESW
}

// Each calls f with the name and value of every counter.
func (u *Unknown) Each(f func(name string, v uint64)) {
	f("rx_bad_l4", u.BadL4)
	f("rx_malformed", u.Malformed)
	f("rx_bad_veswid", u.BadVESW)
}

// Summary returns the counters as a manager reads them.
func (c *Counters) Summary(vport uint8, i *mad.VESWPortInfo) mad.VESWSummary {
	s := mad.VESWSummary{VPort: uint16(vport), VESWID: i.VESW.VESWID, PortNum: i.Port.PortNum}
	v := &s.Values
	v[mad.VESWTxErrors], v[mad.VESWRxErrors] = c.TxErrors(), c.RxErrors()
	v[mad.VESWTxPackets], v[mad.VESWRxPackets] = c.Tx.Packets, c.Rx.Packets
	v[mad.VESWTxBytes], v[mad.VESWRxBytes] = c.Tx.Bytes, c.Rx.Bytes
	for _, d := range [...]struct {
		at int
		t  *Traffic
	}{{int(mad.VESWTxUnicast), &c.Tx}, {int(mad.VESWRxUnicast), &c.Rx}} {
		v[d.at], v[d.at+1], v[d.at+2], v[d.at+3] = d.t.Unicast, d.t.McastBcast, d.t.Untagged, d.t.VLAN
		copy(v[d.at+4:], d.t.Sizes[:])
	}
	return s
}

// Errors returns why frames were lost as a manager reads it. u is of the function: what it
// counts is no port's, so that it is in no sum.
func (c *Counters) Errors(vport uint8, i *mad.VESWPortInfo, u *Unknown) mad.VESWErrors {
	return mad.VESWErrors{VPort: uint16(vport), VESWID: i.VESW.VESWID, PortNum: i.Port.PortNum,
		TxErrors: c.TxErrors(), RxErrors: c.RxErrors(), TxDLIDZero: c.TxDLIDZero, TxLogic: c.TxLogic(), TxDropState: c.TxDropState,
		RxBadVESWID: u.BadVESW, RxRunt: c.RxRunt, RxOversize: c.RxOversize, RxDropState: c.RxDropState, RxLogic: c.RxLogic()}
}
