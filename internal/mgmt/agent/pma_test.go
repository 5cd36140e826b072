// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// counting makes counter c of port n 1000·n + c.
type counting struct{ more uint64 }

func (k *counting) Counts(port uint8, c *Counts) {
	for i := range c.Values {
		c.Values[i] += 1000*uint64(port) + uint64(i) + k.more
	}
	c.UnicastXmit += 7 + k.more
	c.MulticastRcv += 9
}

func perf(t *testing.T, a *Agent, m mad.Method, attr mad.AttributeID, data attribute) mad.Perf {
	t.Helper()
	p := mad.Perf{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassPerf, ClassVersion: 1, Method: m,
		TransactionID: 5, AttributeID: attr}}
	if data != nil {
		data.Append(p.Data[:0])
	}
	d := mad.Datagram{SLID: 9, DLID: 9, SrcQPN: 1, DstQPN: 1, QKey: ib.GSIQKey, PKey: 0x7fff}
	p.Append(d.Data[:0])
	if v := a.Originate(start, &d); v != Deliver || d.PKey != 0x7fff || d.QKey != ib.GSIQKey {
		t.Fatalf("verdict %d, P_Key %#x, Q_Key %#x", v, d.PKey, d.QKey)
	}
	if err := p.Parse(d.Data[:]); err != nil || p.Method != mad.MethodGetResp || p.TransactionID != 5 {
		t.Fatalf("%+v", p.Header)
	}
	return p
}

func TestPerformance(t *testing.T) {
	k := &counting{}
	ca, sw := New(Config{Type: mad.NodeCA, Caps: DefaultCaps, NodeGUID: 1}, nil, k), New(Config{Type: mad.NodeSwitch,
		NumPorts: 3, Caps: DefaultCaps, NodeGUID: 2}, nil, k)
	managed(ca)
	managed(sw)
	for a, want := range map[*Agent]uint16{ca: 0x1200, sw: 0x1300} {
		p := perf(t, a, mad.MethodGet, mad.AttrClassPortInfo, nil)
		var c mad.ClassPortInfo
		if c.Parse(p.Data[:]); c.CapabilityMask != want || c.BaseVersion != 1 || c.ClassVersion != 1 ||
			c.RespTimeValue != 16 || p.Status != 0 {
			t.Errorf("%+v", c)
		}
	}
	counters := func(a *Agent, m mad.Method, req mad.PortCounters) (c mad.PortCounters) {
		t.Helper()
		p := perf(t, a, m, mad.AttrPortCounters, &req)
		c.Parse(p.Data[:])
		if p.Status != 0 || c.PortSelect != req.PortSelect {
			t.Errorf("%v, port %d", p.Status, c.PortSelect)
		}
		return c
	}
	c := counters(ca, mad.MethodGet, mad.PortCounters{PortSelect: 1})
	if c.Values[mad.CounterXmitData] != 1012 || c.Values[mad.CounterSymbolErrors] != 1000 ||
		c.Values[mad.CounterLinkDowned] != 255 || c.Values[mad.CounterXmitWait] != 1016 {
		t.Errorf("%v", c.Values)
	}
	// Reset some, set one.
	req := mad.PortCounters{PortSelect: 1, CounterSelect: 1<<mad.CounterXmitData | 1<<mad.CounterLinkDowned,
		CounterSelect2: 1}
	req.Values[mad.CounterXmitData] = 50
	c = counters(ca, mad.MethodSet, req)
	if c.Values[mad.CounterXmitData] != 50 || c.Values[mad.CounterLinkDowned] != 0 ||
		c.Values[mad.CounterXmitWait] != 0 || c.Values[mad.CounterRcvData] != 1013 {
		t.Errorf("%v", c.Values)
	}
	k.more = 5
	c = counters(ca, mad.MethodGet, mad.PortCounters{PortSelect: 1})
	if c.Values[mad.CounterXmitData] != 55 || c.Values[mad.CounterLinkDowned] != 5 ||
		c.Values[mad.CounterRcvData] != 1018 {
		t.Errorf("%v", c.Values)
	}
	// All ports of a switch.
	k.more = 0
	c = counters(sw, mad.MethodGet, mad.PortCounters{PortSelect: 0xff})
	if c.Values[mad.CounterXmitData] != 6000+4*12 {
		t.Errorf("%v", c.Values)
	}
	if c = counters(sw, mad.MethodGet, mad.PortCounters{PortSelect: 0}); c.Values[mad.CounterXmitData] != 12 {
		t.Errorf("port 0: %v", c.Values)
	}
	counters(sw, mad.MethodSet, mad.PortCounters{PortSelect: 0xff, CounterSelect: 0xffff, CounterSelect2: 0xff})
	if c = counters(sw, mad.MethodGet, mad.PortCounters{PortSelect: 2}); c.Values != [mad.NumCounters]uint64{} {
		t.Errorf("after a reset: %v", c.Values)
	}

	ext := func(a *Agent, m mad.Method, req mad.PortCountersExtended) (c mad.PortCountersExtended) {
		t.Helper()
		p := perf(t, a, m, mad.AttrPortCountersExtended, &req)
		c.Parse(p.Data[:])
		if p.Status != 0 {
			t.Error(p.Status)
		}
		return c
	}
	// The reset above was of the other counters.
	e := ext(sw, mad.MethodGet, mad.PortCountersExtended{PortSelect: 3})
	want := mad.PortCountersExtended{PortSelect: 3, XmitData: 3012, RcvData: 3013, XmitPkts: 3014, RcvPkts: 3015,
		UnicastXmit: 7, MulticastRcv: 9}
	if e != want {
		t.Errorf("%+v", e)
	}
	e = ext(sw, mad.MethodSet, mad.PortCountersExtended{PortSelect: 3, CounterSelect: 0x11, XmitData: 1})
	want.CounterSelect, want.XmitData, want.UnicastXmit = 0x11, 1, 0
	if e != want {
		t.Errorf("%+v", e)
	}
	if e = ext(sw, mad.MethodGet, mad.PortCountersExtended{PortSelect: 0xff}); e.XmitData != 1+12+1012+2012 {
		t.Errorf("%+v", e)
	}
	// Ports that are not there, attributes that are not.
	for _, c := range []struct {
		a    *Agent
		attr mad.AttributeID
		port uint8
		want mad.Status
	}{{ca, mad.AttrPortCounters, 0, mad.StatusInvalidValue}, {ca, mad.AttrPortCounters, 2, mad.StatusInvalidValue},
		{ca, mad.AttrPortCounters, 0xff, mad.StatusInvalidValue}, {sw, mad.AttrPortCountersExtended, 4,
			mad.StatusInvalidValue},
		{sw, mad.AttrPortXmitDataSL, 1, mad.StatusBadMethodAttr}, {sw, mad.AttrPortSamplesControl, 1,
			mad.StatusBadMethodAttr}} {
		if p := perf(t, c.a, mad.MethodGet, c.attr, &mad.PortCounters{PortSelect: c.port}); p.Status != c.want {
			t.Errorf("%#x of port %d: %v", c.attr, c.port, p.Status)
		}
	}
	if p := perf(t, ca, mad.MethodSet, mad.AttrClassPortInfo, nil); p.Status != mad.StatusBadMethodAttr {
		t.Error(p.Status)
	}
}

// TestGeneralServices checks what is not the agents'.
func TestGeneralServices(t *testing.T) {
	ca, _ := newCA()
	managed(ca)
	for name, c := range map[string]struct {
		class  mad.Class
		method mad.Method
		base   uint8
		qpn    ib.QPN
		want   Verdict
	}{
		"SA":              {mad.ClassSA, mad.MethodGet, 1, 1, Deliver},
		"CM":              {mad.ClassCM, mad.MethodSend, 1, 1, Deliver},
		"perf response":   {mad.ClassPerf, mad.MethodGetResp, 1, 1, Deliver},
		"perf request":    {mad.ClassPerf, mad.MethodGet, 1, 1, Send},
		"perf Send":       {mad.ClassPerf, mad.MethodSend, 1, 1, Done},
		"perf, version 2": {mad.ClassPerf, mad.MethodGet, 2, 1, Done},
		"another QP":      {mad.ClassPerf, mad.MethodGet, 1, 2, Done},
		"GS on QP0":       {mad.ClassPerf, mad.MethodGet, 1, 0, Done},
	} {
		d := mad.Datagram{SLID: 1, DLID: 9, SrcQPN: 1, DstQPN: c.qpn, QKey: ib.GSIQKey, PKey: ib.DefaultPKey, Port: 1}
		h := mad.Header{BaseVersion: c.base, MgmtClass: c.class, ClassVersion: 1, Method: c.method,
			AttributeID: mad.AttrPortCounters}
		h.Append(d.Data[:0])
		if v := ca.Handle(start, &d); v != c.want {
			t.Errorf("%s: verdict %d, want %d", name, v, c.want)
		}
	}
	d := mad.Datagram{DLID: 9, DstQPN: 1, Port: 2}
	if v := ca.Handle(start, &d); v != Done || ca.Stats.DropBadAddressed != 2 {
		t.Errorf("by port 2 of an adapter: %d, %+v", v, ca.Stats)
	}
}

// TestKeysOfGeneralServices checks what queue pair 1 takes: any partition of
// the port's, its well-known Q_Key, and what becomes of the rest.
func TestKeysOfGeneralServices(t *testing.T) {
	for name, c := range map[string]struct {
		key          ib.PKey
		qkey         ib.QKey
		want         Verdict
		trap         mad.TrapNumber
		pkeys, qkeys uint16
	}{
		"full member":              {0xffff, ib.GSIQKey, Send, 0, 0, 0},
		"limited member":           {0x7fff, ib.GSIQKey, Send, 0, 0, 0},
		"of another partition":     {0x8005, ib.GSIQKey, Send, 0, 0, 0},
		"limited members":          {0x0006, ib.GSIQKey, Done, mad.TrapBadPKey, 1, 0},
		"not the port's partition": {0x8007, ib.GSIQKey, Done, mad.TrapBadPKey, 1, 0},
		"no key":                   {0x8000, ib.GSIQKey, Done, mad.TrapBadPKey, 1, 0},
		"another Q_Key":            {0xffff, 0x0b1b, Done, mad.TrapBadQKey, 0, 1},
	} {
		ca, _ := newCA()
		managed(ca)
		ca.ports[1].pkeys[1], ca.ports[1].pkeys[2] = 0x0005, 0x0006
		d := mad.Datagram{SLID: 3, DLID: 9, SrcQPN: 1, DstQPN: 1, QKey: c.qkey, PKey: c.key, Port: 1, SL: 2}
		h := mad.Header{BaseVersion: 1, MgmtClass: mad.ClassPerf, ClassVersion: 1, Method: mad.MethodSet,
			AttributeID: mad.AttrPortCounters}
		h.Append(d.Data[:0])
		if v := ca.Handle(start, &d); v != c.want {
			t.Errorf("%s: verdict %d, want %d", name, v, c.want)
		}
		// The answer bears the port's own key.
		if own := map[ib.PKey]ib.PKey{0x7fff: 0xffff, 0xffff: 0xffff, 0x8005: 0x0005}[c.key]; c.want == Send &&
			d.PKey != own {
			t.Errorf("%s: answered with key %#x, want %#x", name, uint16(d.PKey), uint16(own))
		}
		if i := ca.Port(1); i.PKeyViolations != c.pkeys || i.QKeyViolations != c.qkeys ||
			ca.Stats.DropPKey != uint64(c.pkeys) || ca.Stats.DropQKey != uint64(c.qkeys) {
			t.Errorf("%s: %d and %d violations, %+v", name, i.PKeyViolations, i.QKeyViolations, ca.Stats)
		}
		var s mad.SMP
		var n mad.Notice
		for d := (mad.Datagram{}); ca.Next(start, &d) != Done; {
			s.Parse(d.Data[:])
			n.Parse(s.Data[:])
		}
		if n.TrapNumber != c.trap {
			t.Errorf("%s: trap %v, want %v", name, n.TrapNumber, c.trap)
		}
	}
}
