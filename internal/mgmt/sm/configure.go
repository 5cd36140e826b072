// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"cmp"
	"slices"

	"weft/internal/mgmt/sm/route"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// trustTables records the switches that still have the tables written to them: those that were not restarted since.
func (s *sweep) trustTables() {
	s.trusted = make([]*topo.Switch, len(s.t.Nodes))
	s.unwrote = map[int32]bool{}
	if s.base.topo == nil || !s.base.everSwept {
		return
	}
	for i := range s.t.Nodes {
		n := &s.t.Nodes[i]
		if !n.IsSwitch() || !s.base.trust[n.Info.NodeGUID] {
			continue
		}
		old := &s.base.topo.Nodes[s.base.topo.NodeByGUID(n.Info.NodeGUID)]
		if old.Ports[0].Info.LID == n.Ports[0].Info.LID && old.Switch.Info.LinearFDBTop == n.Switch.Info.LinearFDBTop {
			s.trusted[i] = old.Switch
		}
	}
}

// number assigns LIDs, and sets what differs at ports that have passed INIT, and at port 0 of switches. Ports in INIT
// are set when they become ARMED.
func (s *sweep) number() {
	var want []lidWant
	for r := range s.t.EndPorts() {
		p := s.t.Port(r)
		if p.Info.PortState == 0 {
			continue // it did not answer
		}
		w := lidWant{guid: p.GUID, current: p.Info.LID}
		if !s.t.Nodes[r.Node].IsSwitch() {
			w.lmc = s.base.intent.LMC
		}
		want = append(want, w)
	}
	adopted := !s.base.everSwept && s.base.lids.adopt(want)
	changed, without := s.base.lids.assign(want)
	s.base.selfLID = s.base.lids.of(s.base.cfg.PortGUID).LID
	if changed || adopted {
		s.base.version++
	}
	for _, g := range without {
		s.failed++
		s.problem(g.String(), "no LID is left for it")
	}
	for i := range s.t.Nodes {
		n := &s.t.Nodes[i]
		for k := range n.Ports {
			r := topo.Ref{Node: int32(i), Port: uint8(k)}
			if st := n.Ports[k].Info.PortState; st == ib.PortArmed || st == ib.PortActive {
				if w := s.desired(r); w != n.Ports[k].Info {
					s.setPort(r, w, 0)
				}
			}
		}
	}
}

// desired returns the PortInfo that a port must have, states apart.
func (s *sweep) desired(r topo.Ref) mad.PortInfo {
	n, p := &s.t.Nodes[r.Node], s.t.Port(r)
	w := p.Info
	if p.GUID != 0 {
		l := s.base.lids.of(p.GUID)
		master := s.base.lids.of(s.base.cfg.PortGUID)
		w.LID, w.LMC, w.MasterSMLID, w.MasterSMSL = l.LID, l.LMC, master.LID, 0
		w.GIDPrefix, w.SubnetTimeOut = s.base.intent.Prefix, s.base.intent.SubnetTimeout
		w.MKey = s.base.intent.MKey.Of(p.GUID)
		w.MKeyProtectBits, w.MKeyLeasePeriod = s.base.intent.MKeyProtect, s.base.intent.MKeyLease
		// A port that was not in the subnet has lost its groups and subscriptions, even if it did not detect that.
		w.ClientReregister = w.CapabilityMask&mad.CapClientReregistration != 0 &&
			(!s.base.everSwept || w.PortState == ib.PortInit || p.Info.LID != l.LID ||
				s.base.topo != nil && s.base.topo.PortByGUID(p.GUID).IsNone())
	}
	if n.IsSwitch() && r.Port == 0 {
		return w
	}
	if l := s.base.intent.Lanes; l != nil {
		w.VLHighLimit = l.HighLimit
	}
	peer := s.t.Port(p.Peer)
	if peer == nil || peer.Info.MTUCap == 0 {
		return w
	}
	w.NeighborMTU = min(w.MTUCap, peer.Info.MTUCap)
	if s.base.intent.MaxMTU != 0 {
		w.NeighborMTU = min(w.NeighborMTU, s.base.intent.MaxMTU)
	}
	w.OperationalVLs = min(w.VLCap, peer.Info.VLCap)
	if n.IsSwitch() {
		w.PartitionEnforceIn, w.PartitionEnforceOut = s.enforcement(r)
	}
	return w
}

// setPort sets the PortInfo of a port and its state; 0 leaves the state.
func (s *sweep) setPort(r topo.Ref, w mad.PortInfo, state ib.PortState) *request {
	mod := uint32(r.Port)
	// The capabilities of a switch's ports are at its port 0.
	if (s.t.Nodes[r.Node].Ports[0].Info.CapabilityMask|s.t.Port(r).Info.CapabilityMask)&mad.CapExtendedSpeeds != 0 {
		mod |= mad.ModifierExtendedSpeeds
	}
	w.PortState, w.PortPhysicalState = state, ib.PhysNoChange
	q := s.request(mad.MethodSet, mad.AttrPortInfo, mod, pathTo(s.t, r), r, s.gotPortSet)
	w.Append(q.data[:0])
	return q
}

func (s *sweep) gotPortSet(_ mono.Time, r *request, a *mad.SMP) {
	if s.hasFailed(r, a) {
		return
	}
	p := s.t.Port(r.ref)
	was := p.Info
	p.Info.Parse(a.Data[:])
	p.Held.LID = p.Info.LID
	if p.Info.PortState < was.PortState && r.ref.Port != 0 {
		s.again = "a link went down during the sweep"
	}
	if r.ref.Port != 0 && s.confines(r.ref) {
		if in, _ := s.enforcement(r.ref); in && !p.Info.PartitionEnforceIn {
			s.failed++
			s.problem(s.nameOf(r.ref), "it does not enforce partitions, though it was set to")
		}
	}
	// A port without a LID discards the trap that reports its new manager.
	if p.GUID != 0 && p.Info.CapabilityMask&^was.CapabilityMask&mad.CapIsSM != 0 {
		s.queryManager(r.ref)
	}
}

// raisePorts moves ports on both ends of links to their next state.
func (s *sweep) raisePorts(from, to ib.PortState) {
	for i := range s.t.Nodes {
		n := &s.t.Nodes[i]
		for k := range n.Ports {
			p, r := &n.Ports[k], topo.Ref{Node: int32(i), Port: uint8(k)}
			peer := s.t.Port(p.Peer)
			if p.Info.PortState != from || peer == nil || n.IsSwitch() && k == 0 || peer.Info.PortState < from {
				continue
			}
			w := p.Info
			if to == ib.PortArmed {
				w = s.desired(r)
			}
			if p.GUID != 0 && from == ib.PortInit && len(s.base.raised) < s.base.cfg.MaxNodes {
				s.base.raised = append(s.base.raised, p.GUID)
			}
			w.ClientReregister = w.ClientReregister && to == ib.PortArmed
			s.setPort(r, w, to)
		}
	}
}

// routes computes the unicast tables and writes the blocks that differ.
func (s *sweep) routes() {
	for r := range s.t.EndPorts() {
		if p := s.t.Port(r); p.Info.PortState != 0 {
			l := s.base.lids.of(p.GUID)
			p.Info.LID, p.Info.LMC = l.LID, l.LMC
		}
	}
	s.t.Index()
	t, err := s.base.engine.Unicast(s.t)
	if err != nil {
		s.failed++
		s.problem("routing", "%s: %v; by least hops instead", s.base.engine.Name(), err)
		t, _ = route.MinHop{}.Unicast(s.t) // never fails
	}
	for _, n := range t.Notes {
		s.problem("routing", "%s", n)
	}
	s.tables = t
	for rank, i := range s.t.Switches() {
		n := &s.t.Nodes[i]
		entries := int(n.Switch.Info.LinearFDBCap)
		if entries == 0 { // unknown, which is recorded already, or the switch has no table
			s.unwrote[i] = true
			continue
		}
		lft := t.LFT[rank]
		var old []uint8
		if sw := s.trusted[i]; sw != nil {
			old = sw.LFT
		}
		if int(t.Top) >= entries {
			s.failed++
			s.problem(s.nameOf(topo.Ref{Node: i}), "its table has %d entries, %d are needed", entries, int(t.Top)+1)
			lft = lft[:entries]
		}
		n.Switch.LFT = lft
		for b := 0; b*mad.LFTPerBlock < len(lft); b++ {
			have, want := lftBlock(old, b), lftBlock(lft, b)
			if old != nil && have == want {
				continue
			}
			q := s.request(mad.MethodSet, mad.AttrLFT, uint32(b), n.Path, topo.Ref{Node: i}, s.gotTable)
			want.Append(q.data[:0])
		}
		w := n.Switch.Info
		w.LinearFDBTop, w.PortStateChange = ib.LID(len(lft)-1), false
		if w.LifeTimeValue == 0 {
			w.LifeTimeValue = 18
		}
		if w != n.Switch.Info {
			q := s.request(mad.MethodSet, mad.AttrSwitchInfo, 0, n.Path, topo.Ref{Node: i}, s.gotTop)
			w.Append(q.data[:0])
		}
	}
}

func lftBlock(lft []uint8, b int) (t mad.LFT) {
	n := 0
	if at := b * mad.LFTPerBlock; at < len(lft) {
		n = copy(t[:], lft[at:])
	}
	for i := n; i < len(t); i++ {
		t[i] = mad.LFTUnreachable
	}
	return t
}

func (s *sweep) gotTable(_ mono.Time, r *request, a *mad.SMP) {
	if s.hasFailed(r, a) {
		s.unwrote[r.ref.Node] = true
	}
}

func (s *sweep) gotTop(now mono.Time, r *request, a *mad.SMP) {
	s.gotTable(now, r, a)
	if a != nil && a.Status == mad.StatusOK {
		s.t.Nodes[r.ref.Node].Switch.Info.Parse(a.Data[:])
	}
}

// replicate computes the multicast trees and writes the blocks that differ.
func (s *sweep) replicate() {
	s.base.groupsAt, s.groups = 0, s.base.groupsSet
	want := make([]map[ib.LID]topo.PortMask, len(s.t.Switches()))
	top := ib.LIDMulticastFirst
	s.base.trees.begin(s.tables)
	for _, g := range s.base.groups {
		if !g.MLID.IsMulticast() {
			continue
		}
		tree, ok := s.base.trees.of(&g)
		if !ok {
			ask := route.Group{MLID: g.MLID, Members: portsOf(s.t, g.Members), Senders: portsOf(s.t, g.Senders)}
			if len(ask.Members) > 0 {
				var err error
				if tree, err = s.base.engine.Multicast(s.t, s.tables, ask); err != nil {
					s.failed++
					s.problem("routing", "group %#04x: %v", uint16(g.MLID), err)
					continue
				}
			}
		}
		s.base.trees.keep(g, tree)
		if len(tree) == 0 {
			continue
		}
		top = max(top, g.MLID)
		for rank, ports := range tree {
			if want[rank] == nil {
				want[rank] = map[ib.LID]topo.PortMask{}
			}
			want[rank][g.MLID] = ports
		}
	}
	for rank, i := range s.t.Switches() {
		n := &s.t.Nodes[i]
		old := s.trusted[i]
		n.Switch.MFT = want[rank]
		blocks := map[int]bool{}
		if old == nil && len(s.base.groups) > 0 { // the old table is unknown: write all blocks up to the last in use
			for b := range int(top-ib.LIDMulticastFirst)/mad.MFTPerBlock + 1 {
				blocks[b] = true
			}
		}
		note := func(l ib.LID, is, was topo.PortMask) {
			if is != was {
				blocks[int(l-ib.LIDMulticastFirst)/mad.MFTPerBlock] = true
			}
		}
		var had map[ib.LID]topo.PortMask
		if old != nil {
			had = old.MFT
		}
		for l, ports := range want[rank] {
			note(l, ports, had[l])
		}
		for l, ports := range had {
			note(l, want[rank][l], ports)
		}
		for b := range blocks {
			for pos := uint8(0); int(pos)*mad.MFTPortsPerPosition <= int(n.Info.NumPorts); pos++ {
				var is, was mad.MFT
				for k := range is {
					l := ib.LIDMulticastFirst + ib.LID(b*mad.MFTPerBlock+k)
					is[k], was[k] = want[rank][l][pos], had[l][pos]
				}
				if old != nil && is == was {
					continue
				}
				if entries := int(n.Switch.Info.MulticastFDBCap); b*mad.MFTPerBlock >= entries {
					s.failed++
					s.problem(s.nameOf(topo.Ref{Node: i}), "its multicast table has %d entries, %d are needed",
						entries, (b+1)*mad.MFTPerBlock)
					continue
				}
				q := s.request(mad.MethodSet, mad.AttrMFT, mad.MFTModifier(pos, uint16(b)), n.Path, topo.Ref{Node: i},
					s.gotTable)
				is.Append(q.data[:0])
			}
		}
	}
}

// trees caches the trees of multicast groups for the unicast tables that they were computed for: one more member in
// one of a thousand groups must not cost a thousand trees.
type trees struct {
	tables    *route.Tables
	old, kept map[ib.LID]groupTree
}

type groupTree struct {
	group Group
	tree  route.Tree
}

// begin starts a new set of trees. The trees kept before remain available if the unicast tables are the same.
func (t *trees) begin(tables *route.Tables) {
	t.old, t.kept = t.kept, make(map[ib.LID]groupTree, len(t.kept))
	if tables != t.tables {
		t.old, t.tables = nil, tables
	}
}

func (t *trees) of(g *Group) (route.Tree, bool) {
	o, ok := t.old[g.MLID]
	if !ok || !slices.Equal(o.group.Members, g.Members) || !slices.Equal(o.group.Senders, g.Senders) {
		return nil, false
	}
	return o.tree, true
}

func (t *trees) keep(g Group, tree route.Tree) { t.kept[g.MLID] = groupTree{g, tree} }

// portsOf returns the ports that have the GUIDs, in the order of the model.
func portsOf(t *topo.Subnet, guids []ib.GUID) (ports []topo.Ref) {
	for _, guid := range guids {
		if r := t.PortByGUID(guid); !r.IsNone() {
			ports = append(ports, r)
		}
	}
	slices.SortFunc(ports, func(a, b topo.Ref) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(ports)
}

// startGroups writes multicast tables without a sweep.
func (m *Manager) startGroups(now mono.Time) {
	s := m.begin(now, groups, "groups changed")
	s.t, s.tables, s.unwrote, s.guarded = m.topo.Clone(), m.tables, map[int32]bool{}, m.guarded
	s.trusted = make([]*topo.Switch, len(s.t.Nodes))
	for _, i := range m.topo.Switches() {
		if n := &m.topo.Nodes[i]; m.trust[n.Info.NodeGUID] {
			s.trusted[i] = n.Switch
		}
	}
	s.replicate()
}

func (m *Manager) endGroups(now mono.Time) {
	s := m.sweep
	m.sweep = nil
	m.logSweep(now, s)
	m.topo, m.groupsWritten = s.t, s.groups
	for i := range s.unwrote {
		delete(m.trust, s.t.Nodes[i].Info.NodeGUID)
	}
	if s.failed > 0 {
		m.unfinished, m.backoff = true, max(m.backoff, m.cfg.Backoff)
		m.rest(now)
	}
}

// setLanes sets the mapping of service levels to virtual lanes at every port with more than one lane.
func (s *sweep) setLanes() {
	l := s.base.intent.Lanes
	if l == nil {
		return
	}
	for i := range s.t.Nodes {
		n := &s.t.Nodes[i]
		if s.trusted[i] != nil && s.base.lanesOf == l {
			continue // set, and not restarted since
		}
		for k := range n.Ports {
			p, r := &n.Ports[k], topo.Ref{Node: int32(i), Port: uint8(k)}
			if p.Info.VLCap <= mad.VL0 || p.Peer.IsNone() && !(n.IsSwitch() && k == 0) {
				continue
			}
			for b, e := range map[uint8][]mad.VLArbEntry{mad.VLArbLow: l.Low, mad.VLArbHigh: l.High} {
				for part := range uint8(2) {
					var t mad.VLArb
					if at := int(part) * mad.VLArbPerBlock; at < len(e) {
						copy(t[:], e[at:])
					} else if part > 0 {
						continue
					}
					q := s.request(mad.MethodSet, mad.AttrVLArb, mad.VLArbModifier(b+part, r.Port), pathTo(s.t, r), r,
						s.gotLane)
					t.Append(q.data[:0])
				}
			}
			ins := 1
			if n.IsSwitch() {
				ins = len(n.Ports)
			}
			for in := range ins {
				mod := uint32(0)
				if n.IsSwitch() {
					mod = mad.SLtoVLModifier(uint8(in), r.Port)
				}
				q := s.request(mad.MethodSet, mad.AttrSLtoVL, mod, pathTo(s.t, r), r, s.gotLane)
				l.SLtoVL.Append(q.data[:0])
			}
		}
	}
	s.base.lanesOf = l
}

func (s *sweep) gotLane(_ mono.Time, r *request, a *mad.SMP) {
	if s.hasFailed(r, a) {
		s.base.lanesOf = nil
	}
}
