// SPDX-License-Identifier: Apache-2.0

// Package topo is a model of a subnet: its nodes, their ports, the links between them, LIDs and forwarding tables.
//
// What comes in: the results and settings of the subnet manager; what goes out: lookups of nodes and ports, and the
// paths of packets. The manager (package sm) builds a Subnet and publishes it; route engines, subnet administration and
// the commands that print a fabric read it. A published Subnet never changes, so that any number of readers may keep
// one. Nothing here sends or decides anything.
//
// Nodes are identified by their index in Subnet.Nodes, ports by a Ref. Everything is plain data: a Subnet can be
// written as JSON and, after Index, be read back.
package topo

import (
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// Ref identifies a port of a Subnet.
type Ref struct {
	Node int32 // index in Subnet.Nodes; -1 is none
	Port uint8
}

// None is no port.
var None = Ref{Node: -1}

// IsNone reports whether r names no port.
func (r Ref) IsNone() bool { return r.Node < 0 }

// PortMask is a set of ports of a switch: bit n%16 of element n/16 is port n,
// as in multicast forwarding tables.
type PortMask [16]uint16

// Add puts port n into the set.
func (m *PortMask) Add(n uint8) { m[n>>4] |= 1 << (n & 15) }

// Remove takes port n out of the set.
func (m *PortMask) Remove(n uint8) { m[n>>4] &^= 1 << (n & 15) }

// Has reports whether port n is in the set.
func (m *PortMask) Has(n uint8) bool { return m[n>>4]>>(n&15)&1 != 0 }

// IsEmpty reports whether the set has no port.
func (m *PortMask) IsEmpty() bool { return *m == PortMask{} }

// Port is a port of a node.
type Port struct {
	// GUID is the port GUID of a port that has LIDs (of an adapter, or port 0
	// of a switch), 0 of others.
	GUID ib.GUID
	// Info is the last answer of the port, or what was set and acknowledged. Its PortState is 0 for a
	// port that was not queried: port 0 of an adapter, or a port of an adapter without a link to this
	// subnet.
	Info mad.PortInfo
	// PKeys is the P_Key table of a port with LIDs, and of an external port of
	// a switch as far as the manager enforces partitions there.
	PKeys []ib.PKey
	// Held is what the port has by its own answers, of a port with LIDs. Info and PKeys differ from it where a Set was
	// refused or not answered.
	Held Held
	// Peer is the port at the other end of the link: None if there is no link, or no node answers there.
	Peer Ref
	// Path is, for a port of an adapter, the directed route to it.
	Path []uint8
}

// Held is what a port has by its answers to Get and Set.
type Held struct {
	PKeys []ib.PKey // nil: it reported none
	LID   ib.LID
	// Why is the reason of the newest Get or Set of its P_Key table or PortInfo that failed, empty if none did.
	Why string
}

// Switch is the part of a node that only switches have.
type Switch struct {
	Info mad.SwitchInfo
	// Unwritten reports that the switch did not accept all of its tables: LFT and MFT are those that were sent.
	Unwritten bool
	// Rank counts the switches in the order of Subnet.Nodes.
	Rank int
	// LFT is the unicast forwarding table by LID, up to Info.LinearFDBTop; nil until it is written.
	LFT []uint8
	// MFT is the multicast forwarding table, without empty entries.
	MFT map[ib.LID]PortMask
}

// Node is a switch, a channel adapter or a router.
type Node struct {
	Info        mad.NodeInfo // PortGUID and LocalPortNum are those of the first path to it
	Description string
	// Ports are by number. Element 0 of an adapter is not used; the slice ends at the highest known port.
	Ports []Port
	// Path is the directed route from the manager: the ports of departure.
	Path   []uint8
	Switch *Switch // nil of others
	// Confined: no path leads through this switch. It is only the first or the last switch of a path.
	Confined bool
}

// IsSwitch reports whether n is a switch.
func (n *Node) IsSwitch() bool { return n.Switch != nil }

// Subnet is a model of a subnet from the view of its manager. Nodes[0] is the node of the manager. Lookups need Index
// first.
type Subnet struct {
	Nodes []Node
	// Self is the port of the manager.
	Self Ref
	// Prefix is the GID prefix of the subnet.
	Prefix uint64

	switches []int32
	byNode   map[ib.GUID]int32
	byPort   map[ib.GUID]Ref
	byLID    []Ref
}

// Index builds the tables of the lookups. Call it when nodes, LIDs and LMCs are complete, and before others read the
// Subnet.
func (s *Subnet) Index() {
	s.switches = nil
	s.byNode = make(map[ib.GUID]int32, len(s.Nodes))
	s.byPort = make(map[ib.GUID]Ref, len(s.Nodes))
	top := 0
	for i := range s.Nodes {
		n := &s.Nodes[i]
		s.byNode[n.Info.NodeGUID] = int32(i)
		if n.IsSwitch() {
			n.Switch.Rank = len(s.switches)
			s.switches = append(s.switches, int32(i))
		}
		for r := range n.endPorts(int32(i)) {
			p := &n.Ports[r.Port]
			s.byPort[p.GUID] = r
			if p.Info.LID.IsUnicast() {
				top = max(top, int(p.Info.LID)+1<<p.Info.LMC)
			}
		}
	}
	s.byLID = make([]Ref, top)
	for i := range s.byLID {
		s.byLID[i] = None
	}
	for r := range s.EndPorts() {
		i := &s.Port(r).Info
		if i.LID.IsUnicast() {
			for l := range 1 << i.LMC {
				s.byLID[int(i.LID)+l] = r
			}
		}
	}
}

// endPorts returns the ports of n, node i, that can have LIDs.
func (n *Node) endPorts(i int32) func(func(Ref) bool) {
	return func(yield func(Ref) bool) {
		if n.IsSwitch() {
			if len(n.Ports) > 0 && n.Ports[0].GUID != 0 {
				yield(Ref{i, 0})
			}
			return
		}
		for p := 1; p < len(n.Ports); p++ {
			if n.Ports[p].GUID != 0 && !yield(Ref{i, uint8(p)}) {
				return
			}
		}
	}
}

// EndPorts returns all ports that can have LIDs, in the order of Nodes.
func (s *Subnet) EndPorts() func(func(Ref) bool) {
	return func(yield func(Ref) bool) {
		for i := range s.Nodes {
			for r := range s.Nodes[i].endPorts(int32(i)) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// Switches returns the indices of the switches, by rank.
func (s *Subnet) Switches() []int32 { return s.switches }

// Port returns the port of r, nil for None.
func (s *Subnet) Port(r Ref) *Port {
	if r.Node < 0 || int(r.Node) >= len(s.Nodes) || int(r.Port) >= len(s.Nodes[r.Node].Ports) {
		return nil
	}
	return &s.Nodes[r.Node].Ports[r.Port]
}

// NodeByGUID returns the index of the node with a node GUID, -1 for none.
func (s *Subnet) NodeByGUID(g ib.GUID) int32 {
	if i, ok := s.byNode[g]; ok {
		return i
	}
	return -1
}

// PortOf returns port n of the node with a node GUID, None if there is no such node. The node may not have the port.
func (s *Subnet) PortOf(g ib.GUID, n uint8) Ref {
	i := s.NodeByGUID(g)
	if i < 0 {
		return None
	}
	return Ref{i, n}
}

// PortByGUID returns the port with a port GUID.
func (s *Subnet) PortByGUID(g ib.GUID) Ref {
	if r, ok := s.byPort[g]; ok {
		return r
	}
	return None
}

// PortByLID returns the port with a LID, the base LID or another one.
func (s *Subnet) PortByLID(l ib.LID) Ref {
	if int(l) >= len(s.byLID) {
		return None
	}
	return s.byLID[l]
}

// TopLID returns the highest unicast LID in use.
func (s *Subnet) TopLID() ib.LID { return ib.LID(max(0, len(s.byLID)-1)) }

// GID returns the first GID of a port that can have LIDs.
func (s *Subnet) GID(r Ref) ib.GID {
	p := s.Port(r)
	if p == nil {
		return ib.GID{}
	}
	return ib.MakeGID(p.Info.GIDPrefix, p.GUID)
}

// Attached returns the switch port to which a port with LIDs is attached: its peer, or port 0 of a switch itself. It is
// None if the peer is no switch.
func (s *Subnet) Attached(r Ref) Ref {
	p := s.Port(r)
	switch {
	case p == nil:
		return None
	case s.Nodes[r.Node].IsSwitch():
		return r
	case !p.Peer.IsNone() && s.Nodes[p.Peer.Node].IsSwitch():
		return p.Peer
	}
	return None
}

// Link is a link between two ports, A before B in the order of Nodes and
// ports.
type Link struct{ A, B Ref }

// Links returns every link once.
func (s *Subnet) Links() (all []Link) {
	for i := range s.Nodes {
		for p := range s.Nodes[i].Ports {
			a, b := Ref{int32(i), uint8(p)}, s.Nodes[i].Ports[p].Peer
			if !b.IsNone() && (a.Node < b.Node || a.Node == b.Node && a.Port < b.Port) {
				all = append(all, Link{a, b})
			}
		}
	}
	return all
}

// Rate returns the rate of a port, 0 if it has no link.
func (p *Port) Rate() ib.Rate {
	return ib.RateOf(p.Info.LinkWidthActive, p.Info.LinkSpeedActive, p.Info.LinkSpeedExtActive)
}

// maxWalk bounds the switches on a path: a longer one means that the tables contain a loop.
const maxWalk = 64

// Route is the path from one port to a LID.
type Route struct {
	To   Ref // the port that has the LID
	Hops int // links
	// MTU and Rate are the smallest on the path; of a path without a link those of the port itself.
	MTU  ib.MTU
	Rate ib.Rate
	// Ports are the ports of departure, from the source on.
	Ports []Ref
}

// Walk follows the forwarding tables from port from to dlid. ok is false if they do not lead there. ports fills
// Route.Ports, which allocates.
func (s *Subnet) Walk(from Ref, dlid ib.LID, ports bool) (w Route, ok bool) {
	w.To = s.PortByLID(dlid)
	p, to := s.Port(from), s.Port(w.To)
	if p == nil || to == nil {
		return w, false
	}
	if from == w.To {
		w.MTU, w.Rate = p.Info.MTUCap, p.Rate()
		return w, true
	}
	at := from
	take := func(out Ref) bool {
		p := s.Port(out)
		if p == nil || p.Peer.IsNone() {
			return false
		}
		if ports {
			w.Ports = append(w.Ports, out)
		}
		w.Hops++
		if w.MTU == 0 || p.Info.NeighborMTU < w.MTU {
			w.MTU = p.Info.NeighborMTU
		}
		if r := p.Rate(); w.Rate == 0 || r.Tenths() < w.Rate.Tenths() {
			w.Rate = r
		}
		at = p.Peer
		return true
	}
	if !s.Nodes[from.Node].IsSwitch() && !take(from) {
		return w, false
	}
	for range maxWalk {
		n := &s.Nodes[at.Node]
		if at.Node == w.To.Node && (at == w.To || n.IsSwitch()) {
			return w, true
		}
		if !n.IsSwitch() || int(dlid) >= len(n.Switch.LFT) {
			return w, false
		}
		if !take(Ref{at.Node, n.Switch.LFT[dlid]}) {
			return w, false
		}
	}
	return w, false
}

// Clone returns a copy: changes of its nodes, ports and switches do not affect the original. It shares tables and
// paths, which must be replaced, not written.
func (s *Subnet) Clone() *Subnet {
	c := &Subnet{Nodes: slices.Clone(s.Nodes), Self: s.Self, Prefix: s.Prefix}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		n.Ports = slices.Clone(n.Ports)
		if n.Switch != nil {
			sw := *n.Switch
			n.Switch = &sw
		}
	}
	c.Index()
	return c
}
