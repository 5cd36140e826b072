// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"fmt"
	"slices"

	"weft/internal/mgmt/sm/route"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// kind is what a sweep is about.
type kind uint8

const (
	heavy  kind = iota // everything
	light              // has anything changed?
	groups             // multicast tables only
)

var kindNames = [...]string{"heavy", "light", "groups"}

// phase is a step of a heavy sweep; each begins when every request of the one
// before was answered or given up.
type phase uint8

const (
	discovering phase = iota
	electing
	claiming   // ports with another M_Key
	clearing   // PortStateChange
	rechecking // ports that were down when it was cleared late
	partitioning
	numbering // LIDs and what else ports hold that are not in INIT
	laning
	routing
	replicating // multicast tables
	arming
	activating
	handing // over to a better manager
	finished
)

// sweep is one that is going on.
type sweep struct {
	kind    kind
	phase   phase
	why     string
	started mono.Time
	t       *topo.Subnet
	tables  *route.Tables
	byGUID  map[ib.GUID]int32
	byPort  map[ib.GUID]topo.Ref
	ports   int
	times   []mono.Time // by node: when it answered last
	links   int
	others  []remote   // managers
	quiet   []topo.Ref // ports behind which nobody answers
	late    map[int32]bool
	trusted []*topo.Switch   // by node: tables that the switch still has
	unwrote map[int32]bool   // nodes whose tables were not written in full
	keys    map[int32]uint64 // M_Keys, other than the one wanted, that nodes answered to
	guarded map[int32]bool   // nodes with an M_Key that is not known
	again   string           // why another sweep is needed at once
	groups  uint64           // number of the SetGroups whose trees it writes
	failed  int              // requests given up, Sets refused
	before  requestsCount
	changes bool // light: something did

	problems []Problem
}

type requestsCount struct{ sent, resent, unanswered uint64 }

// silentKey names a port behind which nobody answers.
type silentKey struct {
	guid ib.GUID
	port uint8
}

func (s *sweep) heardOf(node int32, now mono.Time) {
	if node < 0 {
		return
	}
	if int(node) >= len(s.times) {
		s.times = append(s.times, make([]mono.Time, int(node)+1-len(s.times))...)
	}
	s.times[node] = now
}

func (s *sweep) heard(node int32) mono.Time {
	if node < 0 || int(node) >= len(s.times) {
		return 0
	}
	return s.times[node]
}

// portsPerNode bounds, with Config.MaxNodes, the ports that are believed.
const portsPerNode = 64

func (m *Manager) begin(now mono.Time, k kind, why string) *sweep {
	m.sweep = &sweep{kind: k, why: why, started: now, before: requestsCount{m.Sent, m.Resent, m.Unanswered}}
	m.dead = m.dead[:0]
	m.actCount++
	return m.sweep
}

// startHeavy begins to discover the subnet anew.
func (m *Manager) startHeavy(now mono.Time, why string) {
	m.heavyAt, m.heavyWhy, m.started = 0, "", true
	s := m.begin(now, heavy, why)
	n := 16
	if m.topo != nil {
		n = len(m.topo.Nodes)
	}
	s.t = &topo.Subnet{Prefix: m.intent.Prefix, Nodes: make([]topo.Node, 0, n+n/8)}
	s.byGUID = make(map[ib.GUID]int32, n)
	s.byPort = make(map[ib.GUID]topo.Ref, n)
	s.late = map[int32]bool{}
	s.keys, s.guarded = map[int32]uint64{}, map[int32]bool{}
	m.probe(nil, topo.None, 0)
}

// advance begins the next phase when the present one has ended.
func (m *Manager) advance(now mono.Time) {
	for m.sweep != nil && !m.busy() {
		switch s := m.sweep; s.kind {
		case light:
			m.endLight(now)
		case groups:
			if s.phase == finished {
				m.endGroups(now)
				continue
			}
			s.phase = finished
		default:
			if s.phase == finished {
				m.endHeavy(now)
				continue
			}
			s.phase++
			m.enter(now, s)
		}
	}
}

// enter begins a phase of a heavy sweep.
func (m *Manager) enter(now mono.Time, s *sweep) {
	switch s.phase {
	case electing:
		if len(s.t.Nodes) == 0 {
			m.endFailed(now, "the manager's own port does not answer, or only to another M_Key")
			return
		}
		m.elect(now)
	case claiming:
		m.claim(s)
	case clearing:
		m.clearChanges(s)
	case rechecking:
		m.recheck(s)
	case partitioning:
		m.partition(s)
	case numbering:
		m.number(s)
	case laning:
		m.setLanes(s)
	case routing:
		m.routes(s)
	case replicating:
		m.replicate(s)
	case arming:
		m.groupsWritten = s.groups
		m.raisePorts(s, ib.PortInit, ib.PortArmed)
	case activating:
		m.raisePorts(s, ib.PortArmed, ib.PortActive)
	case handing:
		m.handOver(now, s)
	}
}

// problem notes what is wrong with the subnet.
func (m *Manager) problem(where string, format string, args ...any) {
	const most = 200
	if m.sweep != nil && len(m.sweep.problems) < most {
		m.sweep.problems = append(m.sweep.problems, Problem{Where: where, What: fmt.Sprintf(format, args...)})
	}
}

// gaveUp notes a request of a sweep that nobody answered, or that was refused.
func (m *Manager) gaveUp(r *request, s *mad.SMP) bool {
	if s != nil && s.Status == mad.StatusOK {
		return false
	}
	if m.sweep == nil || m.barred(r) {
		return true
	}
	m.sweep.failed++
	why := "no answer"
	if s != nil {
		why = s.Status.String()
	}
	m.problem(m.nameOf(r.ref), "%v of %s, modifier %#x: %s", r.method, attrName(r.attr), r.mod, why)
	return true
}

// nameOf is how people call a port of the subnet being swept.
func (m *Manager) nameOf(r topo.Ref) string {
	t := m.topo
	if m.sweep != nil && m.sweep.t != nil {
		t = m.sweep.t
	}
	if t == nil || r.IsNone() || int(r.Node) >= len(t.Nodes) {
		return "the manager's node"
	}
	n := &t.Nodes[r.Node]
	if n.Description == "" {
		return fmt.Sprintf("%v port %d", n.Info.NodeGUID, r.Port)
	}
	return fmt.Sprintf("%q port %d", n.Description, r.Port)
}

var attrNames = map[mad.AttributeID]string{mad.AttrNodeInfo: "NodeInfo", mad.AttrNodeDescription: "NodeDescription", mad.AttrSwitchInfo: "SwitchInfo",
	mad.AttrPortInfo: "PortInfo", mad.AttrPKeyTable: "P_KeyTable", mad.AttrSLtoVL: "SLtoVL", mad.AttrVLArb: "VLArbitration",
	mad.AttrLFT: "LinearForwardingTable", mad.AttrMFT: "MulticastForwardingTable", mad.AttrSMInfo: "SMInfo", mad.AttrGUIDInfo: "GUIDInfo"}

func attrName(a mad.AttributeID) string {
	if n, ok := attrNames[a]; ok {
		return n
	}
	return fmt.Sprintf("attribute %#x", uint16(a))
}

// probe asks who is behind a port, or with None who the manager's node is. nth
// counts the M_Keys tried before.
func (m *Manager) probe(path []uint8, behind topo.Ref, nth int) {
	r := m.ask(mad.MethodGet, mad.AttrNodeInfo, 0, path, behind, (*Manager).gotNodeInfo)
	r.probe = true
	r.mkey, r.nth = m.knownKey(nth), nth
	if nth > 0 {
		m.dead = slices.DeleteFunc(m.dead, func(d []uint8) bool { return slices.Equal(d, path) })
		return
	}
	// Nobody there, or packets lost: ports that were silent before get less
	// patience.
	if behind.IsNone() || !m.silent[silentKey{m.sweep.t.Nodes[behind.Node].Info.NodeGUID, behind.Port}] {
		r.max = 2*m.cfg.Retries + 1
	}
}

// askLink asks whether the link is up still over which a probe gets no answer:
// its end here may notice later than others that it is gone, and its trap not
// come through.
func (m *Manager) askLink(probe *request) {
	if r := probe.ref; m.sweep != nil && m.sweep.kind == heavy && !r.IsNone() {
		m.ask(mad.MethodGet, mad.AttrPortInfo, uint32(r.Port), pathTo(m.sweep.t, r), r, (*Manager).gotLink)
	}
}

// gotLink ends the probe over a link that is down.
func (m *Manager) gotLink(now mono.Time, r *request, a *mad.SMP) {
	var i mad.PortInfo
	if a == nil || a.Status != mad.StatusOK {
		return
	}
	if i.Parse(a.Data[:]); i.PortState != ib.PortDown {
		return
	}
	if p := m.cancelProbe(r.ref); p != nil {
		m.sweep.t.Port(r.ref).Info = i
		p.done = (*Manager).ignored
		m.finish(now, p, nil)
	}
}

// gotNodeInfo adds a node to the model, or a link to one that is there.
func (m *Manager) gotNodeInfo(_ mono.Time, r *request, a *mad.SMP) {
	s, from := m.sweep, r.ref
	switch {
	case a == nil && r.nth < len(m.intent.MKeysBefore):
		m.probe(r.path, from, r.nth+1)
		return
	case a == nil && !from.IsNone():
		s.quiet = append(s.quiet, from)
		m.silent[silentKey{s.t.Nodes[from.Node].Info.NodeGUID, from.Port}] = true
		m.problem(m.nameOf(from), "its link is up, but nobody answers behind it, or only to another M_Key")
		return
	case m.gaveUp(r, a):
		return
	}
	var i mad.NodeInfo
	i.Parse(a.Data[:]) // long enough
	if !from.IsNone() {
		delete(m.silent, silentKey{s.t.Nodes[from.Node].Info.NodeGUID, from.Port})
	}
	known, ok := s.byGUID[i.NodeGUID]
	isSwitch := i.NodeType == mad.NodeSwitch
	switch {
	case i.NodeGUID == 0 || i.PortGUID == 0:
		s.failed++
		m.problem(m.nameOf(from), "the node behind it has no GUID")
		return
	case i.NodeType < mad.NodeCA || i.NodeType > mad.NodeRouter || isSwitch && (i.NumPorts == 0xff || i.LocalPortNum > i.NumPorts) ||
		!isSwitch && i.LocalPortNum == 0:
		s.failed++
		m.problem(m.nameOf(from), "the node behind it, %v, calls itself %v with %d ports, entered by port %d", i.NodeGUID, i.NodeType, i.NumPorts, i.LocalPortNum)
		return
	case ok && (s.t.Nodes[known].IsSwitch() != isSwitch || isSwitch && s.t.Nodes[known].Info.NumPorts != i.NumPorts):
		s.failed++
		m.problem(m.nameOf(from), "the node behind it has the GUID %v of %q: two nodes of one GUID", i.NodeGUID, s.t.Nodes[known].Description)
		return
	case !ok && (len(s.t.Nodes) >= m.cfg.MaxNodes || s.ports > portsPerNode*m.cfg.MaxNodes):
		s.failed++
		m.problem(m.nameOf(from), "the node behind it is one too many: there are %d with %d ports", len(s.t.Nodes), s.ports)
		return
	}
	end := i.LocalPortNum
	if isSwitch {
		end = 0
	}
	// LIDs are given by port GUID.
	if owner, taken := s.byPort[i.PortGUID]; taken && (!ok || owner != topo.Ref{Node: known, Port: end}) {
		s.failed++
		m.problem(m.nameOf(from), "the node behind it has the port GUID %v of %s: two ports of one GUID", i.PortGUID, m.nameOf(owner))
		return
	}
	if !ok {
		known = m.addNode(r, &i)
	}
	s.byPort[i.PortGUID] = topo.Ref{Node: known, Port: end}
	n := &s.t.Nodes[known]
	here := topo.Ref{Node: known, Port: i.LocalPortNum}
	for len(n.Ports) <= int(here.Port) {
		n.Ports = append(n.Ports, topo.Port{Peer: topo.None})
	}
	if !isSwitch {
		p := &n.Ports[here.Port]
		if p.GUID == 0 {
			p.GUID = i.PortGUID
			p.Path = slices.Clone(r.path)
			m.askPort(here)
			m.askKeys(here, n.Info.PartitionCap)
		} else if p.GUID != i.PortGUID {
			s.failed++
			m.problem(m.nameOf(here), "two ports with node GUID %v and port number %d", i.NodeGUID, here.Port)
			return
		}
	}
	if from.IsNone() {
		s.t.Self = here
		if isSwitch {
			s.t.Self.Port = 0
		}
		m.cfg.PortGUID = i.PortGUID // the port itself knows best
		return
	}
	m.join(from, here)
}

// join notes the link between two ports.
func (m *Manager) join(a, b topo.Ref) {
	s := m.sweep
	pa, pb := s.t.Port(a), s.t.Port(b)
	switch {
	case pa.Peer == b && pb.Peer == a:
	case a == b:
		m.problem(m.nameOf(a), "its cable leads back to itself")
	case !pa.Peer.IsNone() || !pb.Peer.IsNone():
		s.failed++
		other := pa.Peer
		if other.IsNone() {
			other = pb.Peer
		}
		m.problem(m.nameOf(a), "its link leads to %s, which has one to %s: two nodes of one GUID, or a cable that was moved", m.nameOf(b), m.nameOf(other))
	default:
		pa.Peer, pb.Peer = b, a
		s.links++
	}
}

// addNode adds the node that i tells of, and asks for the rest.
func (m *Manager) addNode(r *request, i *mad.NodeInfo) int32 {
	s := m.sweep
	known := int32(len(s.t.Nodes))
	s.ports += int(i.NumPorts)
	s.byGUID[i.NodeGUID] = known
	if r.nth > 0 {
		s.keys[known] = r.mkey
	}
	s.t.Nodes = append(s.t.Nodes, topo.Node{Info: *i, Path: slices.Clone(r.path)})
	n := &s.t.Nodes[known]
	ref := topo.Ref{Node: known}
	m.ask(mad.MethodGet, mad.AttrNodeDescription, 0, n.Path, ref, (*Manager).gotDescription)
	if i.NodeType == mad.NodeSwitch {
		n.Switch = &topo.Switch{}
		n.Ports = make([]topo.Port, int(i.NumPorts)+1)
		for p := range n.Ports {
			n.Ports[p].Peer = topo.None
		}
		n.Ports[0].GUID = i.PortGUID
		m.askPort(ref) // tells whether the switch takes orders
		m.ask(mad.MethodGet, mad.AttrSwitchInfo, 0, n.Path, ref, (*Manager).gotSwitchInfo)
	}
	return known
}

func (m *Manager) gotDescription(_ mono.Time, r *request, a *mad.SMP) {
	if m.gaveUp(r, a) {
		return
	}
	d := mad.NodeDescription(a.Data)
	m.sweep.t.Nodes[r.ref.Node].Description = d.String()
}

// gotSwitchInfo goes on with the switch's ports: a master first clears
// PortStateChange, so that what changes after its ports were asked sets it
// again.
func (m *Manager) gotSwitchInfo(_ mono.Time, r *request, a *mad.SMP) {
	if m.gaveUp(r, a) {
		return
	}
	n := &m.sweep.t.Nodes[r.ref.Node]
	n.Switch.Info.Parse(a.Data[:])
	if i := n.Switch.Info; i.PortStateChange && m.state == mad.SMMaster && r.method == mad.MethodGet && !isClosed(&n.Ports[0].Info) {
		set := m.ask(mad.MethodSet, mad.AttrSwitchInfo, 0, n.Path, r.ref, (*Manager).gotSwitchInfo)
		i.Append(set.data[:0])
		return
	}
	m.askKeys(r.ref, n.Info.PartitionCap)
	for p := 1; p < len(n.Ports); p++ {
		m.askPort(topo.Ref{Node: r.ref.Node, Port: uint8(p)})
	}
}

// pathTo is the directed route to a port.
func pathTo(t *topo.Subnet, r topo.Ref) []uint8 {
	n := &t.Nodes[r.Node]
	if n.IsSwitch() {
		return n.Path
	}
	return n.Ports[r.Port].Path
}

func (m *Manager) askPort(r topo.Ref) {
	m.ask(mad.MethodGet, mad.AttrPortInfo, uint32(r.Port), pathTo(m.sweep.t, r), r, (*Manager).gotPortInfo)
}

// askKeys asks for the P_Key table of a port with LIDs.
func (m *Manager) askKeys(r topo.Ref, pkeys uint16) {
	m.sweep.t.Port(r).PKeys = make([]ib.PKey, pkeys)
	for b := 0; b*mad.PKeysPerBlock < int(pkeys); b++ {
		q := m.ask(mad.MethodGet, mad.AttrPKeyTable, mad.PKeyModifier(0, uint16(b)), pathTo(m.sweep.t, r), r, (*Manager).gotPKeys)
		q.block = uint16(b)
	}
}

func (m *Manager) gotPKeys(_ mono.Time, r *request, a *mad.SMP) {
	if m.gaveUp(r, a) {
		return
	}
	var t mad.PKeyTable
	t.Parse(a.Data[:])
	if p := m.sweep.t.Port(r.ref); int(r.block)*mad.PKeysPerBlock < len(p.PKeys) {
		copy(p.PKeys[int(r.block)*mad.PKeysPerBlock:], t[:])
	}
}

// gotPortInfo notes a port's state and looks behind it.
func (m *Manager) gotPortInfo(_ mono.Time, r *request, a *mad.SMP) {
	if m.gaveUp(r, a) {
		return
	}
	s := m.sweep
	p := s.t.Port(r.ref)
	p.Info.Parse(a.Data[:])
	if p.GUID != 0 && m.tryKey(r, &p.Info) {
		return
	}
	n := &s.t.Nodes[r.ref.Node]
	if p.GUID != 0 && p.Info.CapabilityMask&mad.CapIsSM != 0 && p.GUID != m.cfg.PortGUID {
		m.ask(mad.MethodGet, mad.AttrSMInfo, 0, pathTo(s.t, r.ref), r.ref, (*Manager).gotOther)
	}
	m.lookBehind(r.ref, n, p)
}

// lookBehind asks who is at the other end of a port's link, if that is not
// known yet. Adapters are dead ends, but for the manager's own.
func (m *Manager) lookBehind(r topo.Ref, n *topo.Node, p *topo.Port) {
	if p.Info.PortState < ib.PortInit || p.Info.PortState > ib.PortActive || !p.Peer.IsNone() {
		return
	}
	if n.IsSwitch() && r.Port == 0 || !n.IsSwitch() && (r.Node != 0 || m.sweep.t.Self != r) {
		return
	}
	path := pathTo(m.sweep.t, r)
	if len(path) >= mad.MaxHops {
		m.sweep.failed++
		m.problem(m.nameOf(r), "what is behind it is more than %d hops away", mad.MaxHops)
		return
	}
	m.probe(append(path[:len(path):len(path)], r.Port), r, 0)
}

// clearChanges clears PortStateChange of the switches where a manager that was
// not master yet left it. Ports that were down then may have come up meanwhile.
func (m *Manager) clearChanges(s *sweep) {
	for i := range s.t.Nodes {
		n := &s.t.Nodes[i]
		if n.IsSwitch() && n.Switch.Info.PortStateChange {
			s.late[int32(i)] = true
			set := m.ask(mad.MethodSet, mad.AttrSwitchInfo, 0, n.Path, topo.Ref{Node: int32(i)}, (*Manager).gotCleared)
			n.Switch.Info.Append(set.data[:0])
		}
	}
}

func (m *Manager) gotCleared(_ mono.Time, r *request, a *mad.SMP) {
	if !m.gaveUp(r, a) {
		m.sweep.t.Nodes[r.ref.Node].Switch.Info.Parse(a.Data[:])
	}
}

// recheck asks ports that were down when the change was cleared.
func (m *Manager) recheck(s *sweep) {
	for i := range s.t.Nodes {
		if !s.late[int32(i)] {
			continue
		}
		for p := 1; p < len(s.t.Nodes[i].Ports); p++ {
			if s.t.Nodes[i].Ports[p].Info.PortState == ib.PortDown {
				m.askPort(topo.Ref{Node: int32(i), Port: uint8(p)})
			}
		}
	}
}

// endHeavy publishes what a sweep found and did.
func (m *Manager) endHeavy(now mono.Time) {
	s := m.sweep
	m.sweep, m.heavyWas = nil, now
	m.logSweep(now, s)
	s.t.Index()
	m.topo, m.tables, m.quiet, m.unfinished, m.guarded = s.t, s.tables, s.quiet, s.failed > 0, s.guarded
	clear(m.trust)
	for i := range s.t.Nodes {
		if n := &s.t.Nodes[i]; n.IsSwitch() && !s.unwrote[int32(i)] {
			m.trust[n.Info.NodeGUID] = true
		}
	}
	m.everSwept = true
	m.renewed(now)
	if m.backoff = min(max(2*m.backoff, m.cfg.Backoff), m.cfg.SweepInterval); s.failed == 0 && len(s.quiet) == 0 {
		m.backoff = 0
	}
	m.rest(now)
	if s.again != "" {
		m.sweepSoon(now, s.again)
	}
}

// rest sets the time of the next light sweep: sooner than usual as long as the
// last heavy one left something undone, or a link has changed of late.
func (m *Manager) rest(now mono.Time) {
	m.lightAt = now.Add(m.cfg.SweepInterval)
	if m.backoff > 0 {
		m.lightAt = now.Add(m.backoff)
	}
	if m.watch > 0 {
		m.lightAt = mono.Min(m.lightAt, now.Add(watchFirst<<(watches-m.watch)))
		m.watch--
	}
	m.lightAt = mono.Min(m.lightAt, m.renewAt)
}

// endFailed ends a sweep that came to nothing.
func (m *Manager) endFailed(now mono.Time, why string) {
	s := m.sweep
	m.problem("the manager", "%s", why)
	m.logSweep(now, s)
	m.sweep = nil
	m.heavyAt, m.heavyWhy = now.Add(m.cfg.Backoff), why
}

// startLight asks every switch whether a port changed, and the manager's own port.
func (m *Manager) startLight(now mono.Time) {
	m.lightAt = 0
	if m.topo == nil {
		m.sweepSoon(now, "nothing is known")
		return
	}
	s := m.begin(now, light, "time")
	s.t = m.topo
	if m.unfinished {
		s.changes, s.why = true, "the last sweep had failures"
		return
	}
	for _, r := range m.quiet {
		path := pathTo(m.topo, r)
		m.ask(mad.MethodGet, mad.AttrNodeInfo, 0, append(path[:len(path):len(path)], r.Port), r, (*Manager).gotLightProbe).probe = true
	}
	for _, i := range m.topo.Switches() {
		m.ask(mad.MethodGet, mad.AttrSwitchInfo, 0, m.topo.Nodes[i].Path, topo.Ref{Node: i}, (*Manager).gotLight)
	}
	r := m.topo.Self
	m.ask(mad.MethodGet, mad.AttrPortInfo, uint32(r.Port), pathTo(m.topo, r), r, (*Manager).gotLightPort)
	m.renew(now)
}

func (m *Manager) gotLightProbe(_ mono.Time, _ *request, a *mad.SMP) {
	if a != nil {
		m.sweep.changes, m.sweep.why = true, "a node that was silent answers"
	}
}

func (m *Manager) gotLight(_ mono.Time, r *request, a *mad.SMP) {
	var i mad.SwitchInfo
	if a != nil {
		i.Parse(a.Data[:])
	}
	if a == nil || a.Status != mad.StatusOK || i.PortStateChange {
		m.sweep.changes, m.sweep.why = true, "a switch reports a change, or is silent"
	}
}

func (m *Manager) gotLightPort(_ mono.Time, r *request, a *mad.SMP) {
	var i mad.PortInfo
	if a != nil {
		i.Parse(a.Data[:])
	}
	was := m.topo.Port(r.ref).Info
	if a == nil || a.Status != mad.StatusOK || i.PortState != was.PortState || i.LID != was.LID || i.MasterSMLID != was.MasterSMLID {
		m.sweep.changes, m.sweep.why = true, "the manager's own port changed"
	}
}

func (m *Manager) endLight(now mono.Time) {
	s := m.sweep
	m.sweep = nil
	m.logSweep(now, s)
	if m.backoff > 0 {
		m.backoff = min(2*m.backoff, m.cfg.SweepInterval)
	}
	m.rest(now)
	if s.changes {
		m.startHeavy(now, s.why)
	}
}
