// SPDX-License-Identifier: Apache-2.0

package sa

import (
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// wish is the properties of a path that a query selects, its ends apart.
type wish struct {
	mask mad.ComponentMask // of a PathRecord
	p    mad.PathRecord
}

func (w *wish) has(c mad.ComponentMask) bool { return w.mask&c != 0 }

// paths answers a query for PathRecords.
func (a *SA) paths(d *mad.Datagram, t *table) mad.Status {
	w := wish{mask: a.req.ComponentMask}
	w.p.Parse(a.req.Data[:]) // long enough
	from, slid, status := a.ends(&w, mad.CompPathSGID, w.p.SGID, mad.CompPathSLID, w.p.SLID)
	if status != mad.StatusOK {
		return status
	}
	to, dlid, status := a.ends(&w, mad.CompPathDGID, w.p.DGID, mad.CompPathDLID, w.p.DLID)
	if status != mad.StatusOK {
		return status
	}
	most := 0 // paths between two ports; as many as there are
	if w.has(mad.CompPathNumbPath) {
		most = max(1, int(w.p.NumbPath))
	}
	if a.req.Method == mad.MethodGet {
		most = 1
	}
	for _, f := range from {
		for _, g := range to {
			if t.full {
				return mad.StatusOK // answer refuses the query
			}
			a.between(t, &w, f, g, slid, dlid, most)
		}
	}
	return mad.StatusOK
}

// ends returns the ports that one end of a path in a query matches: the port of the GID or the LID, or all.
func (a *SA) ends(w *wish, gidBit mad.ComponentMask, gid ib.GID, lidBit mad.ComponentMask, lid ib.LID) ([]topo.Ref,
	ib.LID, mad.Status) {
	r := topo.None
	if w.has(gidBit) {
		if r = a.byGID(gid); r.IsNone() {
			return nil, 0, mad.StatusSAInvalidGID
		}
	}
	if !w.has(lidBit) {
		lid = 0
	} else if l := a.net.PortByLID(lid); l.IsNone() || !r.IsNone() && l != r {
		return nil, 0, mad.StatusSANoRecords
	} else {
		r = l
	}
	if !r.IsNone() {
		return []topo.Ref{r}, lid, mad.StatusOK
	}
	var all []topo.Ref
	for e := range a.net.EndPorts() {
		all = append(all, e)
	}
	return all, 0, mad.StatusOK
}

// byGID returns the port that has a GID.
func (a *SA) byGID(g ib.GID) topo.Ref {
	prefix, guid := g.Prefix(), g.GUID()
	if prefix != a.net.Prefix && prefix != ib.DefaultGIDPrefix {
		return topo.None
	}
	return a.net.PortByGUID(guid)
}

// between adds the paths between two ports that have the properties w, at most most of them; 0 means all.
func (a *SA) between(t *table, w *wish, f, g topo.Ref, slid, dlid ib.LID, most int) {
	src, dst := a.net.Port(f), a.net.Port(g)
	if !src.Info.LID.IsUnicast() || !dst.Info.LID.IsUnicast() || !a.sees(f) || !a.sees(g) {
		return
	}
	var want ib.PKey
	if w.has(mad.CompPathPKey) {
		want = w.p.PKey
	}
	key, ok := a.shares(f, g, want)
	if !ok {
		return
	}
	// With several LIDs at both ends path n goes from LID n to LID n.
	n := 1 << max(src.Info.LMC, dst.Info.LMC)
	found := 0
	for i := range n {
		s := src.Info.LID + ib.LID(i&(1<<src.Info.LMC-1))
		l := dst.Info.LID + ib.LID(i&(1<<dst.Info.LMC-1))
		if slid != 0 {
			s = slid
		}
		if dlid != 0 {
			l = dlid
		}
		if p, ok := a.path(w, f, g, s, l, key); ok {
			t.put(p.Append(nil))
			found++
		}
		if found == most && most != 0 || slid != 0 && dlid != 0 {
			return
		}
	}
}

// path returns the path from port f to LID dlid of port g, and reports whether the query selects it.
func (a *SA) path(w *wish, f, g topo.Ref, slid, dlid ib.LID, key ib.PKey) (p mad.PathRecord, ok bool) {
	way, ok := a.net.Walk(f, dlid, false)
	if !ok {
		return p, false
	}
	if back, ok := a.net.Walk(g, slid, false); !ok {
		if w.has(mad.CompPathReversible) && w.p.Reversible {
			return p, false
		}
	} else {
		p.Reversible = true
		way.MTU = min(way.MTU, back.MTU)
		if back.Rate.Tenths() < way.Rate.Tenths() {
			way.Rate = back.Rate
		}
	}
	p.SGID, p.DGID, p.SLID, p.DLID = a.net.GID(f), a.net.GID(g), slid, dlid
	p.NumbPath, p.PKey = 1, key
	p.MTUSelector, p.RateSelector, p.LifeSelector = mad.SelectExactly, mad.SelectExactly, mad.SelectExactly
	p.MTU, p.Rate, p.Life = way.MTU, way.Rate, a.cfg.Life
	switch {
	case w.has(mad.CompPathSL) && w.p.SL != 0, w.has(mad.CompPathQoSClass) && w.p.QoSClass != 0,
		w.has(mad.CompPathRawTraffic) && w.p.RawTraffic:
		return p, false
	}
	if w.has(mad.CompPathFlowLabel) {
		p.FlowLabel = w.p.FlowLabel
	}
	if w.has(mad.CompPathTClass) {
		p.TClass = w.p.TClass
	}
	if w.has(mad.CompPathServiceID) {
		p.ServiceID = w.p.ServiceID
	}
	// A path can be used with a smaller MTU or rate than it has.
	if w.has(mad.CompPathMTU) && w.has(mad.CompPathMTUSelector) {
		if p.MTU, ok = limitMTU(w.p.MTUSelector, w.p.MTU, p.MTU); !ok {
			return p, false
		}
	}
	if w.has(mad.CompPathRate) && w.has(mad.CompPathRateSelector) {
		if p.Rate, ok = limitRate(w.p.RateSelector, w.p.Rate, p.Rate); !ok {
			return p, false
		}
	}
	if w.has(mad.CompPathLife) && w.has(mad.CompPathLifeSelector) && !w.p.LifeSelector.Accepts(int(p.Life),
		int(w.p.Life)) {
		return p, false
	}
	return p, true
}

// limitMTU returns the MTU to state for a path that has the MTU have.
func limitMTU(s mad.Selector, want, have ib.MTU) (ib.MTU, bool) {
	switch {
	case s == mad.SelectLess && have >= want:
		return want - 1, want > ib.MTU256
	case s == mad.SelectExactly && have > want:
		return want, want.Valid()
	}
	return have, s.Accepts(int(have), int(want))
}

// ratesBySpeed are all rates from slow to fast.
var ratesBySpeed = []ib.Rate{ib.Rate2_5, ib.Rate5, ib.Rate10, ib.Rate14, ib.Rate20, ib.Rate25, ib.Rate28, ib.Rate30,
	ib.Rate40, ib.Rate50, ib.Rate56,
	ib.Rate60, ib.Rate80, ib.Rate100, ib.Rate112, ib.Rate120, ib.Rate168, ib.Rate200, ib.Rate300, ib.Rate400, ib.Rate600, ib.Rate800, ib.Rate1200}

// limitRate is limitMTU for rates.
func limitRate(s mad.Selector, want, have ib.Rate) (best ib.Rate, ok bool) {
	switch {
	case s == mad.SelectLess && have.Tenths() >= want.Tenths():
		for _, r := range ratesBySpeed {
			if r.Tenths() < want.Tenths() {
				best = r
			}
		}
		return best, best != 0
	case s == mad.SelectExactly && have.Tenths() > want.Tenths():
		return want, want.Valid()
	}
	return have, s.Accepts(have.Tenths(), want.Tenths())
}

// multiPath answers a query for paths between two sets of ports. It applies the properties that a PathRecord has
// too.
func (a *SA) multiPath(d *mad.Datagram, data []byte) {
	var m mad.MultiPathRecord
	if a.req.AttributeID != mad.AttrMultiPathRecord {
		a.refuse(d, mad.StatusBadMethodAttr)
		return
	}
	if m.Parse(data) != nil || a.req.ComponentMask&mad.CompMultiSGIDCount == 0 ||
		a.req.ComponentMask&mad.CompMultiDGIDCount == 0 ||
		m.SGIDCount == 0 || m.DGIDCount == 0 {
		a.refuse(d, mad.StatusSAInsufficient)
		return
	}
	ports := make([]topo.Ref, 0, int(m.SGIDCount)+int(m.DGIDCount))
	for i := range cap(ports) {
		g, ok := m.GID(data, i)
		r := a.byGID(g)
		if !ok || r.IsNone() {
			a.refuse(d, mad.StatusSAInvalidGID)
			return
		}
		ports = append(ports, r)
	}
	w := wish{p: mad.PathRecord{TClass: m.TClass, FlowLabel: m.FlowLabel, Reversible: m.Reversible, PKey: m.PKey,
		QoSClass: m.QoSClass, SL: m.SL, RawTraffic: m.RawTraffic,
		MTUSelector: m.MTUSelector, MTU: m.MTU, RateSelector: m.RateSelector, Rate: m.Rate, LifeSelector: m.LifeSelector, Life: m.Life}}
	for _, c := range []struct{ multi, path mad.ComponentMask }{{mad.CompMultiRawTraffic, mad.CompPathRawTraffic},
		{mad.CompMultiFlowLabel, mad.CompPathFlowLabel},
		{mad.CompMultiTClass, mad.CompPathTClass}, {mad.CompMultiReversible,
			mad.CompPathReversible}, {mad.CompMultiPKey, mad.CompPathPKey},
		{mad.CompMultiQoSClass, mad.CompPathQoSClass}, {mad.CompMultiSL, mad.CompPathSL}, {mad.CompMultiMTUSelector,
			mad.CompPathMTUSelector},
		{mad.CompMultiMTU, mad.CompPathMTU}, {mad.CompMultiRateSelector,
			mad.CompPathRateSelector}, {mad.CompMultiRate, mad.CompPathRate},
		{mad.CompMultiLifeSelector, mad.CompPathLifeSelector}, {mad.CompMultiLife, mad.CompPathLife}} {
		if a.req.ComponentMask&c.multi != 0 {
			w.mask |= c.path
		}
	}
	most := 0
	if a.req.ComponentMask&mad.CompMultiNumbPath != 0 {
		most = max(1, int(m.NumbPath))
	}
	t := &table{a: a, attr: mad.AttrPathRecord}
	for _, f := range ports[:m.SGIDCount] {
		for _, g := range ports[m.SGIDCount:] {
			if t.full {
				break
			}
			a.between(t, &w, f, g, 0, 0, most)
		}
	}
	a.answer(d, t)
}
