// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"cmp"
	"maps"
	"slices"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Confined switches (topo.Node.Confined) belong to hosts that the fabric trusts with their own ports alone. So a
// directed route ends at such a switch, or at an adapter behind it, and its reports about other switches count only
// if these report the same:
//
//   - Behind its ports the manager finds adapters, after all other switches are found (the phase beyond).
//   - A link between it and another switch that is not confined is found from the other end.
//   - A link between two confined switches is found if both report it (claims).
//   - Each port at the other end of its links enforces the partitions of its ports (the phase enforcing).

// border is the part of a sweep that finds what is behind confined switches, and has the others enforce partitions.
type border struct{ s *sweep }

// claim is what a probe over a port of a confined switch found: a port of another switch.
type claim struct {
	guid ib.GUID
	port uint8
}

// isEnd reports whether no directed route leads through a node: it is confined, and not the first switch of the routes
// of this manager.
func (s *sweep) isEnd(node int32) bool {
	if node < 0 || !s.t.Nodes[node].Confined {
		return false
	}
	own := s.t.Self.Node
	if p := s.t.Port(s.t.Self); p != nil && !s.t.Nodes[own].IsSwitch() && !p.Peer.IsNone() {
		own = p.Peer.Node
	}
	return node != own
}

// lookBeyond probes the nodes behind the ports of confined switches that have no known link.
func (b border) lookBeyond() {
	s := b.s
	for i := range s.t.Nodes {
		n := &s.t.Nodes[i]
		if !s.isEnd(int32(i)) {
			continue
		}
		for p := 1; p < len(n.Ports); p++ {
			s.lookBehind(topo.Ref{Node: int32(i), Port: uint8(p)}, n, &n.Ports[p])
		}
	}
}

// settleClaims records the links between confined switches that both of their ends report. A switch that only confined
// ones report is a problem: no path leads to it.
func (b border) settleClaims() {
	s := b.s
	order := func(a, b topo.Ref) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Port, b.Port)) }
	for _, a := range slices.SortedFunc(maps.Keys(s.claims), order) {
		c := s.claims[a]
		i, known := s.byGUID[c.guid]
		if !known {
			s.problem(s.nameOf(a), "the switch %v is connected only through this one, which carries no packets of "+
				"others. fix: weft trunk, on the member of that switch, lists its trunks that are down", c.guid)
			continue
		}
		o := topo.Ref{Node: i, Port: c.port}
		if p := s.t.Port(o); p == nil || !p.Peer.IsNone() || !s.t.Port(a).Peer.IsNone() {
			continue
		}
		if back, ok := s.claims[o]; ok && back == (claim{s.t.Nodes[a.Node].Info.NodeGUID, a.Port}) {
			s.join(a, o)
		}
	}
}

// maxEnforced bounds the entries of the P_Key table of a switch port that the manager uses: a switch that reports more
// must not make it write without end.
const maxEnforced = 1024

// enforcementCap returns the number of entries of the P_Key tables of the ports of a switch.
func enforcementCap(n *topo.Node) int {
	return min(int(n.Switch.Info.PartitionEnforcementCap), maxEnforced)
}

// confines reports whether a port is a port of a switch and has a link to a confined switch.
func (s *sweep) confines(r topo.Ref) bool {
	p := s.t.Port(r)
	return s.t.Nodes[r.Node].IsSwitch() && !p.Peer.IsNone() && s.t.Nodes[p.Peer.Node].Confined
}

// enforcement returns which packets a switch port compares with its P_Key table: packets that arrive from a confined
// switch, and, if the intent requires it, packets from and to an adapter.
func (s *sweep) enforcement(r topo.Ref) (in, out bool) {
	n := &s.t.Nodes[r.Node]
	i := &n.Switch.Info
	switch {
	case i.PartitionEnforcementCap == 0:
		return false, false
	case s.confines(r):
		return i.InboundEnforcementCap, false
	case s.enforces(r) && len(nonzero(s.t.Port(s.t.Port(r).Peer).PKeys)) <= enforcementCap(n):
		return i.InboundEnforcementCap, i.OutboundEnforcementCap
	}
	return false, false
}

// wanted returns the P_Key table that a port with LIDs must have, nil if it has no table. The keys that do not fit are
// missing.
func (s *sweep) wanted(r topo.Ref) []ib.PKey {
	p := s.t.Port(r)
	if len(p.PKeys) == 0 {
		return nil
	}
	keys := s.base.keysOf(p.GUID)
	want, _ := place(p.PKeys, keys[:min(len(keys), len(p.PKeys))])
	return want
}

// union returns the P_Keys of several tables: each partition once, with the higher membership, the default partition
// first.
func union(tables ...[]ib.PKey) (all []ib.PKey) {
	as := map[ib.PKey]ib.PKey{}
	for _, t := range tables {
		for _, k := range nonzero(t) {
			as[k&0x7fff] |= k
		}
	}
	return slices.SortedFunc(maps.Values(as), func(a, b ib.PKey) int {
		return cmp.Compare(defaultKey-a&0x7fff, defaultKey-b&0x7fff)
	})
}

// enforce writes the P_Key tables of switch ports that enforce partitions. The tables of the adapters behind them are
// written later: a key that is added is allowed before an adapter has it, and a key that is removed is no longer
// allowed while an adapter still has it.
func (b border) enforce() {
	s := b.s
	behind := b.keysBehind()
	for i := range s.t.Nodes {
		n := &s.t.Nodes[i]
		for k := range n.Ports {
			switch r := (topo.Ref{Node: int32(i), Port: uint8(k)}); {
			case s.confines(r):
				b.enforceConfined(r, behind[n.Ports[k].Peer.Node])
			case s.enforces(r):
				keys := nonzero(s.wanted(n.Ports[k].Peer))
				if len(keys) <= enforcementCap(n) {
					b.writeEnforced(r, keys)
				}
			}
		}
	}
}

// enforceConfined writes the table of a port with a link to a confined switch: the P_Keys of the ports behind the link.
// If they do not fit, the last ones are left out, and packets with them are dropped.
func (b border) enforceConfined(r topo.Ref, keys []ib.PKey) {
	s := b.s
	n, behind := &s.t.Nodes[r.Node], s.nameOf(s.t.Port(r).Peer)
	fit := enforcementCap(n)
	if fit == 0 || !n.Switch.Info.InboundEnforcementCap {
		s.problem(s.nameOf(r), "the P_Keys of packets from %s are not checked: this switch has no table for them. "+
			"fix: connect that member to members that run weft", behind)
		return
	}
	if len(keys) > fit {
		s.failed++
		s.problem(s.nameOf(r), "the ports behind %s have %d P_Keys, and the table for packets from there has %d "+
			"entries: packets with other keys are dropped. fix: weft pkey delete P_KEY, for partitions that those ports do "+
			"not use", behind, len(keys), fit)
		keys = keys[:fit]
	}
	b.writeEnforced(r, keys)
}

// keysBehind returns the P_Keys of all ports with LIDs at each confined switch.
func (b border) keysBehind() map[int32][]ib.PKey {
	s := b.s
	tables := map[int32][][]ib.PKey{}
	for r := range s.t.EndPorts() {
		if at := s.t.Attached(r); !at.IsNone() && s.t.Nodes[at.Node].Confined {
			tables[at.Node] = append(tables[at.Node], s.wanted(r))
		}
	}
	all := map[int32][]ib.PKey{}
	for i, t := range tables {
		all[i] = union(t...)
	}
	return all
}

// writeEnforced sets the blocks of the table of a switch port that differ, or all if the table is unknown. A key keeps
// its index, so that no key is missing between the writes of two blocks.
func (b border) writeEnforced(r topo.Ref, keys []ib.PKey) {
	s := b.s
	n, p := &s.t.Nodes[r.Node], s.t.Port(r)
	fit := enforcementCap(n)
	var had []ib.PKey
	unknown := true
	if s.trusted[r.Node] != nil {
		old := s.base.topo.Port(s.base.topo.PortOf(n.Info.NodeGUID, r.Port))
		if old != nil && len(old.PKeys) > 0 && len(old.PKeys) <= fit {
			had, unknown = old.PKeys, false
		}
	}
	p.PKeys = make([]ib.PKey, min(fit, max(1, len(had)+len(keys))))
	if copy(p.PKeys, had); len(keys) > 0 {
		p.PKeys, _ = place(p.PKeys, keys)
	} else {
		clear(p.PKeys)
	}
	blocks := (fit + mad.PKeysPerBlock - 1) / mad.PKeysPerBlock
	if !unknown {
		blocks = (len(p.PKeys) + mad.PKeysPerBlock - 1) / mad.PKeysPerBlock
	}
	want, was := make([]ib.PKey, blocks*mad.PKeysPerBlock), make([]ib.PKey, blocks*mad.PKeysPerBlock)
	copy(want, p.PKeys)
	copy(was, had)
	s.writeKeys(r, was, want, unknown)
	for len(p.PKeys) > 1 && p.PKeys[len(p.PKeys)-1] == 0 {
		p.PKeys = p.PKeys[:len(p.PKeys)-1]
	}
}

// readEnforced requests the blocks of P_Key tables of switch ports that had keys in the last heavy sweep.
func (b border) readEnforced() {
	s := b.s
	for _, i := range s.t.Switches() {
		for k := 1; k < len(s.t.Nodes[i].Ports); k++ {
			r := topo.Ref{Node: i, Port: uint8(k)}
			for at := 0; at*mad.PKeysPerBlock < len(s.t.Port(r).PKeys); at++ {
				q := s.request(mad.MethodGet, mad.AttrPKeyTable, mad.PKeyModifier(r.Port, uint16(at)),
					pathTo(s.t, r), r, b.gotEnforced)
				q.block, q.stern = uint16(at), true
			}
		}
	}
}

// gotEnforced has the next heavy sweep write all tables of a switch anew if one of them is not as it was written.
func (b border) gotEnforced(_ mono.Time, r *request, a *mad.SMP) {
	s := b.s
	if a == nil || a.Status != mad.StatusOK {
		return
	}
	var is, was mad.PKeyTable
	is.Parse(a.Data[:])
	copy(was[:], s.t.Port(r.ref).PKeys[int(r.block)*mad.PKeysPerBlock:])
	if is != was {
		s.changes, s.why = true, "another changed the P_Key table of "+s.nameOf(r.ref)
		delete(s.base.trust, s.t.Nodes[r.ref.Node].Info.NodeGUID)
	}
}
