// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// Counts are the counts of a port since its creation; they do not wrap in practice. XmitData and RcvData are in
// words of four bytes.
type Counts struct {
	Values                                               [mad.NumCounters]uint64
	UnicastXmit, UnicastRcv, MulticastXmit, MulticastRcv uint64
}

// Counters is the source of the counts of the ports of a node.
type Counters interface {
	// Counts adds the counts of port to c.
	Counts(port uint8, c *Counts)
}

// extended are the counts in the order of PortCountersExtended.
func (c *Counts) extended() [8]uint64 {
	return [8]uint64{c.Values[mad.CounterXmitData], c.Values[mad.CounterRcvData], c.Values[mad.CounterXmitPkts],
		c.Values[mad.CounterRcvPkts],
		c.UnicastXmit, c.UnicastRcv, c.MulticastXmit, c.MulticastRcv}
}

// origin is the counts of a port at which its counters are zero. The two attributes of counters have separate
// origins.
type origin struct {
	counters [mad.NumCounters]uint64
	extended [8]uint64
}

// performance executes a request of performance management and answers it.
func (a *Agent) performance(d *mad.Datagram) Verdict {
	var m mad.Perf
	if m.Parse(d.Data[:]) != nil || m.BaseVersion != mad.BaseVersion {
		a.Stats.DropVersion++
		return Done
	}
	if m.Method != mad.MethodGet && m.Method != mad.MethodSet {
		a.Stats.DropMethod++
		return Done
	}
	status := mad.StatusBadVersion
	if m.ClassVersion == mad.ClassVersion {
		status = a.perf(&m)
	}
	m.Reply(status)
	m.Append(d.Data[:0])
	*d = d.Reply()
	if a.IsMine(d.DLID) || d.DLID == ib.LIDPermissive {
		return Deliver
	}
	return a.depart(d)
}

// perf executes a request and leaves the attribute of the answer in m.Data.
func (a *Agent) perf(m *mad.Perf) mad.Status {
	switch m.AttributeID {
	case mad.AttrClassPortInfo:
		if m.Method != mad.MethodGet {
			return mad.StatusBadMethodAttr
		}
		c := mad.ClassPortInfo{BaseVersion: mad.BaseVersion, ClassVersion: mad.ClassVersion,
			CapabilityMask: mad.PerfCapExtWidth | mad.PerfCapXmitWait, RespTimeValue: a.cfg.Caps.ResponseTO}
		if a.isSwitch() {
			c.CapabilityMask |= mad.PerfCapAllPortSelect
		}
		m.Data = [mad.PerfDataLen]byte{}
		c.Append(m.Data[:0])
		return mad.StatusOK
	case mad.AttrPortCounters:
		var req mad.PortCounters
		req.Parse(m.Data[:]) // long enough
		first, last, ok := a.selected(req.PortSelect)
		if !ok {
			return mad.StatusInvalidValue
		}
		sum := mad.PortCounters{PortSelect: req.PortSelect, CounterSelect: req.CounterSelect,
			CounterSelect2: req.CounterSelect2}
		for n := first; n <= last; n++ {
			p, counts := &a.ports[n], countsOf(a.counters, uint8(n))
			if m.Method == mad.MethodSet {
				for c := range mad.NumCounters {
					if req.Selected(c) {
						p.since().counters[c] = counts.Values[c] - req.Values[c]
					}
				}
			}
			for c := range mad.NumCounters {
				sum.Values[c] += p.counter(c, &counts)
			}
		}
		m.Data = [mad.PerfDataLen]byte{}
		sum.Append(m.Data[:0])
		return mad.StatusOK
	case mad.AttrPortCountersExtended:
		var req mad.PortCountersExtended
		req.Parse(m.Data[:]) // long enough
		first, last, ok := a.selected(req.PortSelect)
		if !ok {
			return mad.StatusInvalidValue
		}
		var sum [8]uint64
		want := [8]uint64{req.XmitData, req.RcvData, req.XmitPkts, req.RcvPkts, req.UnicastXmit, req.UnicastRcv,
			req.MulticastXmit, req.MulticastRcv}
		for n := first; n <= last; n++ {
			p, counts := &a.ports[n], countsOf(a.counters, uint8(n))
			have := counts.extended()
			for i := range have {
				if m.Method == mad.MethodSet && req.CounterSelect>>i&1 != 0 {
					p.since().extended[i] = have[i] - want[i]
				}
				sum[i] += p.extended(i, &have)
			}
		}
		r := mad.PortCountersExtended{PortSelect: req.PortSelect, CounterSelect: req.CounterSelect, XmitData: sum[0],
			RcvData: sum[1], XmitPkts: sum[2],
			RcvPkts: sum[3], UnicastXmit: sum[4], UnicastRcv: sum[5], MulticastXmit: sum[6], MulticastRcv: sum[7]}
		m.Data = [mad.PerfDataLen]byte{}
		r.Append(m.Data[:0])
		return mad.StatusOK
	}
	return mad.StatusBadMethodAttr
}

// Counted returns the values of PortCounters and of PortCountersExtended of port n, if c are the counts of the port
// since its creation. Values larger than their field are the largest that fits.
func (a *Agent) Counted(n uint8, c *Counts) (v mad.PortCounters, x mad.PortCountersExtended) {
	p, have := &a.ports[n], c.extended()
	v.PortSelect, x.PortSelect = n, n
	for k := range mad.NumCounters {
		v.Values[k] = min(p.counter(k, c), uint64(k.Max()))
	}
	for i := range have {
		have[i] = p.extended(i, &have)
	}
	x.XmitData, x.RcvData, x.XmitPkts, x.RcvPkts = have[0], have[1], have[2], have[3]
	x.UnicastXmit, x.UnicastRcv, x.MulticastXmit, x.MulticastRcv = have[4], have[5], have[6], have[7]
	return v, x
}

// counter returns a counter of PortCounters of the port, for counts since its creation.
func (p *port) counter(c mad.Counter, counts *Counts) uint64 {
	if p.origin == nil {
		return counts.Values[c]
	}
	return counts.Values[c] - p.origin.counters[c]
}

// extended returns counter i of PortCountersExtended of the port, for counts since its creation.
func (p *port) extended(i int, counts *[8]uint64) uint64 {
	if p.origin == nil {
		return counts[i]
	}
	return counts[i] - p.origin.extended[i]
}

// selected returns the range of ports that a PortSelect names.
func (a *Agent) selected(n uint8) (first, last int, ok bool) {
	if a.isSwitch() && n == mad.PortSelectAll {
		return 0, len(a.ports) - 1, true
	}
	if int(n) >= len(a.ports) || n == 0 && !a.isSwitch() {
		return 0, 0, false
	}
	return int(n), int(n), true
}

func countsOf(c Counters, port uint8) (sum Counts) {
	if c != nil {
		c.Counts(port, &sum)
	}
	return sum
}

func (p *port) since() *origin {
	if p.origin == nil {
		p.origin = new(origin)
	}
	return p.origin
}
