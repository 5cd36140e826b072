// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"fmt"
	"slices"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// problem records a problem of the subnet.
func (s *sweep) problem(where string, format string, args ...any) {
	const most = 200
	if len(s.problems) < most {
		s.problems = append(s.problems, Problem{Where: where, What: fmt.Sprintf(format, args...)})
	}
}

// hasFailed records a request that was not answered, or refused, and reports whether r was one.
func (s *sweep) hasFailed(r *request, a *mad.SMP) bool {
	if a != nil && a.Status == mad.StatusOK {
		return false
	}
	if s.barred(r) {
		s.holds(r, "the port is guarded by the M_Key of another manager")
		return true
	}
	s.failed++
	why := "no answer"
	if a != nil {
		why = a.Status.String()
	}
	s.holds(r, fmt.Sprintf("%v of its %s: %s", r.method, attrName(r.attr), why))
	s.problem(s.nameOf(r.ref), "%v of %s, modifier %#x: %s", r.method, attrName(r.attr), r.mod, why)
	return true
}

// holds records why a port may have other keys or another LID than it shall have.
func (s *sweep) holds(r *request, why string) {
	if s.t == nil || r.attr != mad.AttrPKeyTable && r.attr != mad.AttrPortInfo {
		return
	}
	if p := s.t.Port(r.ref); p != nil && p.GUID != 0 {
		p.Held.Why = why
	}
}

// nameOf returns the name of a port for people.
func (s *sweep) nameOf(r topo.Ref) string {
	t := s.base.topo
	if s.t != nil {
		t = s.t
	}
	if t == nil || r.IsNone() || int(r.Node) >= len(t.Nodes) {
		return "the node of the manager"
	}
	n := &t.Nodes[r.Node]
	if n.Description == "" {
		return fmt.Sprintf("%v port %d", n.Info.NodeGUID, r.Port)
	}
	return fmt.Sprintf("%q port %d", n.Description, r.Port)
}

var attrNames = map[mad.AttributeID]string{mad.AttrNodeInfo: "NodeInfo", mad.AttrNodeDescription: "NodeDescription",
	mad.AttrSwitchInfo: "SwitchInfo",
	mad.AttrPortInfo:   "PortInfo", mad.AttrPKeyTable: "P_KeyTable", mad.AttrSLtoVL: "SLtoVL", mad.AttrVLArb: "VLArbitration",
	mad.AttrLFT: "LinearForwardingTable", mad.AttrMFT: "MulticastForwardingTable", mad.AttrSMInfo: "SMInfo", mad.AttrGUIDInfo: "GUIDInfo"}

func attrName(a mad.AttributeID) string {
	if n, ok := attrNames[a]; ok {
		return n
	}
	return fmt.Sprintf("attribute %#x", uint16(a))
}

// request queues a request to the node of ref, with the M_Key of its port. The caller fills in the rest.
func (s *sweep) request(method mad.Method, attr mad.AttributeID, mod uint32, path []uint8, ref topo.Ref,
	done answer) *request {
	r := s.requests.add(method, attr, mod, path, done)
	r.sweep, r.ref, r.mkey = s, ref, s.keyFor(ref)
	return r
}

// probe requests NodeInfo of the node behind a port, or with None of the node of the manager. nth is the number of
// M_Keys tried before.
func (s *sweep) probe(path []uint8, behind topo.Ref, nth int) {
	r := s.request(mad.MethodGet, mad.AttrNodeInfo, 0, path, behind, s.gotNodeInfo)
	r.probe = true
	r.mkey, r.nth = s.base.intent.knownKey(nth).All, nth
	if nth > 0 {
		s.requests.dead = slices.DeleteFunc(s.requests.dead, func(d []uint8) bool { return slices.Equal(d, path) })
		return
	}
	// A lost packet looks like a node that does not answer. Ports that were silent before get fewer repetitions.
	if behind.IsNone() || !s.base.silent[silentKey{s.t.Nodes[behind.Node].Info.NodeGUID, behind.Port}] {
		r.max = 2*s.base.cfg.Retries + 1
	}
}

// checkLink requests the state of the link over which a probe gets no answer: this end may detect later than others
// that it is down, and its trap may not arrive.
func (s *sweep) checkLink(probe *request) {
	if r := probe.ref; s.kind == heavy && !r.IsNone() {
		s.request(mad.MethodGet, mad.AttrPortInfo, uint32(r.Port), pathTo(s.t, r), r, s.gotLink)
	}
}

// gotLink ends the probe over a link that is down.
func (s *sweep) gotLink(now mono.Time, r *request, a *mad.SMP) {
	var i mad.PortInfo
	if a == nil || a.Status != mad.StatusOK {
		return
	}
	if i.Parse(a.Data[:]); i.PortState != ib.PortDown {
		return
	}
	if p := s.requests.cancelProbe(r.ref); p != nil {
		s.t.Port(r.ref).Info = i
		p.done = ignored
		s.requests.finish(now, p, nil)
	}
}

// gotNodeInfo adds a node to the model, or a link to one that is there.
func (s *sweep) gotNodeInfo(_ mono.Time, r *request, a *mad.SMP) {
	from := r.ref
	if next, ok := s.base.intent.nextForAll(r.nth + 1); ok && a == nil {
		s.probe(r.path, from, next)
		return
	}
	switch {
	case a == nil && !from.IsNone():
		s.quiet = append(s.quiet, from)
		s.base.silent[silentKey{s.t.Nodes[from.Node].Info.NodeGUID, from.Port}] = true
		s.problem(s.nameOf(from), "its link is up, but no node answers behind it, or only to another M_Key")
		return
	case s.hasFailed(r, a):
		return
	}
	var i mad.NodeInfo
	i.Parse(a.Data[:]) // long enough
	if !from.IsNone() {
		delete(s.base.silent, silentKey{s.t.Nodes[from.Node].Info.NodeGUID, from.Port})
	}
	known, ok := s.byGUID[i.NodeGUID]
	isSwitch := i.NodeType == mad.NodeSwitch
	if isSwitch && s.isEnd(from.Node) {
		s.claims[from] = claim{i.NodeGUID, i.LocalPortNum}
		return
	}
	switch {
	case i.NodeGUID == 0 || i.PortGUID == 0:
		s.failed++
		s.problem(s.nameOf(from), "the node behind it has no GUID")
		return
	case i.NodeType < mad.NodeCA || i.NodeType > mad.NodeRouter || isSwitch && (i.NumPorts == 0xff ||
		i.LocalPortNum > i.NumPorts) ||
		!isSwitch && i.LocalPortNum == 0:
		s.failed++
		s.problem(s.nameOf(from), "the node behind it, %v, reports to be a %v with %d ports, entered by port %d",
			i.NodeGUID, i.NodeType, i.NumPorts, i.LocalPortNum)
		return
	case ok && (s.t.Nodes[known].IsSwitch() != isSwitch || isSwitch && s.t.Nodes[known].Info.NumPorts != i.NumPorts):
		s.failed++
		s.problem(s.nameOf(from), "the node behind it has the GUID %v of %q: two nodes of one GUID", i.NodeGUID,
			s.t.Nodes[known].Description)
		return
	case !ok && (len(s.t.Nodes) >= s.base.cfg.MaxNodes || s.ports > portsPerNode*s.base.cfg.MaxNodes):
		s.failed++
		s.problem(s.nameOf(from), "the node behind it is one too many: there are %d with %d ports", len(s.t.Nodes),
			s.ports)
		return
	}
	end := i.LocalPortNum
	if isSwitch {
		end = 0
	}
	if s.claimsAnother(from, &i) {
		s.failed++
		s.problem(s.nameOf(from), "the node behind it has the GUID %v, which is none of that member", i.NodeGUID)
		return
	}
	// LIDs are given by port GUID.
	if owner, taken := s.byPort[i.PortGUID]; taken && (!ok || owner != topo.Ref{Node: known, Port: end}) {
		s.failed++
		s.problem(s.nameOf(from), "the node behind it has the port GUID %v of %s: two ports of one GUID", i.PortGUID,
			s.nameOf(owner))
		return
	}
	if !ok {
		known = s.addNode(r, &i)
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
			s.requestPort(here)
			s.requestKeys(here, n.Info.PartitionCap)
		} else if p.GUID != i.PortGUID {
			s.failed++
			s.problem(s.nameOf(here), "two ports with node GUID %v and port number %d", i.NodeGUID, here.Port)
			return
		}
	}
	if from.IsNone() {
		s.t.Self = here
		if isSwitch {
			s.t.Self.Port = 0
		}
		s.base.cfg.PortGUID = i.PortGUID // from the port itself
		return
	}
	s.join(from, here)
}

// claimsAnother reports whether the node of i, found behind a port, has GUIDs of another member. An adapter at a
// confined switch must have GUIDs of the member of that switch, and all GUIDs of a confined switch must be of one
// member. The switch before it has compared the GUIDs of the confined switch with the certificate
// (fabric.Wiring.Nodes).
func (s *sweep) claimsAnother(from topo.Ref, i *mad.NodeInfo) bool {
	bits := s.base.cfg.MemberBits
	if bits == 0 || from.IsNone() {
		return false
	}
	same := func(a, b ib.GUID) bool { return (a^b)>>bits == 0 }
	switch at := &s.t.Nodes[from.Node]; {
	case i.NodeType == mad.NodeSwitch:
		return s.base.confined(i.NodeGUID) && !same(i.NodeGUID, i.PortGUID)
	case at.Confined:
		return !same(at.Info.NodeGUID, i.NodeGUID) || !same(at.Info.NodeGUID, i.PortGUID)
	}
	return false
}

// join records the link between two ports.
func (s *sweep) join(a, b topo.Ref) {
	pa, pb := s.t.Port(a), s.t.Port(b)
	switch {
	case pa.Peer == b && pb.Peer == a:
	case a == b:
		s.problem(s.nameOf(a), "its cable leads back to itself")
	case !pa.Peer.IsNone() || !pb.Peer.IsNone():
		s.failed++
		other := pa.Peer
		if other.IsNone() {
			other = pb.Peer
		}
		s.problem(s.nameOf(a), "its link leads to %s, which has one to %s: two nodes of one GUID, or a cable that was moved", s.nameOf(b), s.nameOf(other))
	default:
		pa.Peer, pb.Peer = b, a
		s.links++
	}
}

// addNode adds the node of i, and requests its other attributes.
func (s *sweep) addNode(r *request, i *mad.NodeInfo) int32 {
	known := int32(len(s.t.Nodes))
	s.ports += int(i.NumPorts)
	s.byGUID[i.NodeGUID] = known
	if r.nth > 0 && r.mkey != 0 {
		s.keys[known] = r.mkey
	}
	s.t.Nodes = append(s.t.Nodes, topo.Node{Info: *i, Path: slices.Clone(r.path)})
	n := &s.t.Nodes[known]
	ref := topo.Ref{Node: known}
	s.request(mad.MethodGet, mad.AttrNodeDescription, 0, n.Path, ref, s.gotDescription)
	if i.NodeType == mad.NodeSwitch {
		n.Switch, n.Confined = &topo.Switch{}, s.base.confined(i.NodeGUID)
		n.Ports = make([]topo.Port, int(i.NumPorts)+1)
		for p := range n.Ports {
			n.Ports[p].Peer = topo.None
		}
		n.Ports[0].GUID = i.PortGUID
		s.requestPort(ref) // reports whether the switch accepts the M_Key
		s.request(mad.MethodGet, mad.AttrSwitchInfo, 0, n.Path, ref, s.gotSwitchInfo)
	}
	return known
}

func (s *sweep) gotDescription(_ mono.Time, r *request, a *mad.SMP) {
	if s.hasFailed(r, a) {
		return
	}
	d := mad.NodeDescription(a.Data)
	s.t.Nodes[r.ref.Node].Description = d.String()
}

// gotSwitchInfo continues with the ports of the switch. A master first clears PortStateChange, so that a change after
// the requests to the ports sets it again.
func (s *sweep) gotSwitchInfo(_ mono.Time, r *request, a *mad.SMP) {
	if s.hasFailed(r, a) {
		return
	}
	n := &s.t.Nodes[r.ref.Node]
	n.Switch.Info.Parse(a.Data[:])
	if i := n.Switch.Info; i.PortStateChange && s.base.state == mad.SMMaster && r.method == mad.MethodGet &&
		!isClosed(&n.Ports[0].Info) {
		set := s.request(mad.MethodSet, mad.AttrSwitchInfo, 0, n.Path, r.ref, s.gotSwitchInfo)
		i.Append(set.data[:0])
		return
	}
	s.requestKeys(r.ref, n.Info.PartitionCap)
	for p := 1; p < len(n.Ports); p++ {
		s.requestPort(topo.Ref{Node: r.ref.Node, Port: uint8(p)})
	}
}

// pathTo returns the directed route to a port.
func pathTo(t *topo.Subnet, r topo.Ref) []uint8 {
	n := &t.Nodes[r.Node]
	if n.IsSwitch() {
		return n.Path
	}
	return n.Ports[r.Port].Path
}

func (s *sweep) requestPort(r topo.Ref) {
	s.request(mad.MethodGet, mad.AttrPortInfo, uint32(r.Port), pathTo(s.t, r), r, s.gotPortInfo)
}

// requestKeys requests the P_Key table of a port with LIDs.
func (s *sweep) requestKeys(r topo.Ref, pkeys uint16) {
	s.t.Port(r).PKeys = make([]ib.PKey, pkeys)
	for b := 0; b*mad.PKeysPerBlock < int(pkeys); b++ {
		q := s.request(mad.MethodGet, mad.AttrPKeyTable, mad.PKeyModifier(0, uint16(b)), pathTo(s.t, r), r, s.gotPKeys)
		q.block = uint16(b)
	}
}

func (s *sweep) gotPKeys(_ mono.Time, r *request, a *mad.SMP) {
	if s.hasFailed(r, a) {
		return
	}
	p := s.t.Port(r.ref)
	keepKeys(p, r.block, a)
	if at := int(r.block) * mad.PKeysPerBlock; at < len(p.PKeys) {
		copy(p.PKeys[at:min(len(p.PKeys), at+mad.PKeysPerBlock)], p.Held.PKeys[at:])
	}
}

// gotPortInfo records the state of a port and continues behind it.
func (s *sweep) gotPortInfo(_ mono.Time, r *request, a *mad.SMP) {
	if s.hasFailed(r, a) {
		return
	}
	p := s.t.Port(r.ref)
	p.Info.Parse(a.Data[:])
	p.Held.LID = p.Info.LID
	if p.GUID != 0 && s.tryKey(r, &p.Info) {
		return
	}
	n := &s.t.Nodes[r.ref.Node]
	if p.GUID != 0 && p.Info.CapabilityMask&mad.CapIsSM != 0 {
		s.queryManager(r.ref)
	}
	s.lookBehind(r.ref, n, p)
}

// lookBehind probes the node at the other end of the link of a port, if it is unknown. Adapters have no other
// ports, except for the adapter of the manager. The ports of confined switches have to wait for the phase beyond.
func (s *sweep) lookBehind(r topo.Ref, n *topo.Node, p *topo.Port) {
	if p.Info.PortState < ib.PortInit || p.Info.PortState > ib.PortActive || !p.Peer.IsNone() {
		return
	}
	if n.IsSwitch() && r.Port == 0 || !n.IsSwitch() && (r.Node != 0 || s.t.Self != r) {
		return
	}
	if s.phase < beyond && s.isEnd(r.Node) {
		return
	}
	path := pathTo(s.t, r)
	if len(path) >= mad.MaxHops {
		s.failed++
		s.problem(s.nameOf(r), "what is behind it is more than %d hops away", mad.MaxHops)
		return
	}
	s.probe(append(path[:len(path):len(path)], r.Port), r, 0)
}

// clearChanges clears PortStateChange of the switches where this manager, before it was master, left it set. Ports
// that were down at that time may have come up since.
func (s *sweep) clearChanges() {
	for i := range s.t.Nodes {
		n := &s.t.Nodes[i]
		if n.IsSwitch() && n.Switch.Info.PortStateChange {
			s.late[int32(i)] = true
			set := s.request(mad.MethodSet, mad.AttrSwitchInfo, 0, n.Path, topo.Ref{Node: int32(i)}, s.gotCleared)
			n.Switch.Info.Append(set.data[:0])
		}
	}
}

func (s *sweep) gotCleared(_ mono.Time, r *request, a *mad.SMP) {
	if !s.hasFailed(r, a) {
		s.t.Nodes[r.ref.Node].Switch.Info.Parse(a.Data[:])
	}
}

// recheck requests the state of ports that were down when PortStateChange was cleared.
func (s *sweep) recheck() {
	for i := range s.t.Nodes {
		if !s.late[int32(i)] {
			continue
		}
		for p := 1; p < len(s.t.Nodes[i].Ports); p++ {
			if s.t.Nodes[i].Ports[p].Info.PortState == ib.PortDown {
				s.requestPort(topo.Ref{Node: int32(i), Port: uint8(p)})
			}
		}
	}
}

func (s *sweep) gotLightProbe(_ mono.Time, _ *request, a *mad.SMP) {
	if a != nil {
		s.changes, s.why = true, "a node that was silent answers"
	}
}

func (s *sweep) gotLight(_ mono.Time, r *request, a *mad.SMP) {
	var i mad.SwitchInfo
	if a != nil {
		i.Parse(a.Data[:])
	}
	if a == nil || a.Status != mad.StatusOK || i.PortStateChange {
		s.changes, s.why = true, "a switch reports a change, or is silent"
	}
}

func (s *sweep) gotLightPort(_ mono.Time, r *request, a *mad.SMP) {
	var i mad.PortInfo
	if a != nil {
		i.Parse(a.Data[:])
	}
	was := s.base.topo.Port(r.ref).Info
	if a == nil || a.Status != mad.StatusOK || i.PortState != was.PortState || i.LID != was.LID ||
		i.MasterSMLID != was.MasterSMLID {
		s.changes, s.why = true, "the manager's own port changed"
	}
}
