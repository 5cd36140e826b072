// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"bytes"
	"fmt"
	"slices"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// defaultKey is the low part of the P_Key of the default partition, by which every port reaches subnet
// administration.
const defaultKey ib.PKey = 0x7fff

// Keys returns the partition keys that a configuration gives a port, that of the default partition first. If other
// partitions are configured, ports are limited members of the default one: they reach the manager, and not each other.
func Keys(partitions []Partition, guid ib.GUID) (keys []ib.PKey) {
	as := Full
	if slices.ContainsFunc(partitions, func(p Partition) bool { return !p.Apart }) {
		as = Limited
	}
	for i := range partitions {
		p := &partitions[i]
		ms := p.All
		if j := slices.IndexFunc(p.Members, func(x Member) bool { return x.PortGUID == guid }); j >= 0 {
			ms = p.Members[j].As
		}
		if k := p.PKey & 0x7fff; k == defaultKey {
			as = max(ms, Limited)
		} else if ms != NotMember {
			keys = append(keys, key(k, ms))
		}
	}
	return append([]ib.PKey{key(defaultKey, as)}, keys...)
}

// keysOf returns the partition keys of a port.
func (b *base) keysOf(guid ib.GUID) []ib.PKey {
	return keysFor(b.intent.Partitions, guid, b.cfg.PortGUID)
}

// keysFor is Keys with the port of a manager, which is a full member of the default partition.
func keysFor(partitions []Partition, guid, manager ib.GUID) []ib.PKey {
	keys := Keys(partitions, guid)
	if guid == manager {
		keys[0] |= 0x8000
	}
	return keys
}

func key(k ib.PKey, as Membership) ib.PKey {
	if as == Full {
		k |= 0x8000
	}
	return k
}

// place returns the table with keys in place of those that it has. A key that it has keeps its index, because queue
// pairs use it; the default partition has index 0. ok is false if the keys do not fit.
func place(table, keys []ib.PKey) (t []ib.PKey, ok bool) {
	t = make([]ib.PKey, len(table))
	if len(keys) > len(table) {
		return t, false
	}
	t[0] = keys[0]
	rest := slices.Clone(keys[1:])
	for i := 1; i < len(table); i++ {
		if j := slices.Index(rest, table[i]); j >= 0 {
			t[i] = table[i]
			rest = slices.Delete(rest, j, j+1)
		}
	}
	// A key that changed only its membership keeps its index too.
	for i := 1; i < len(table); i++ {
		if table[i]&0x7fff == 0 || t[i] != 0 {
			continue
		}
		if j := slices.IndexFunc(rest, func(k ib.PKey) bool { return (k^table[i])&0x7fff == 0 }); j >= 0 {
			t[i] = rest[j]
			rest = slices.Delete(rest, j, j+1)
		}
	}
	for i := 1; i < len(table) && len(rest) > 0; i++ {
		if t[i] == 0 {
			t[i], rest = rest[0], rest[1:]
		}
	}
	return t, true
}

// partition writes the P_Key tables of ports with LIDs.
func (s *sweep) partition() {
	for r := range s.t.EndPorts() {
		p := s.t.Port(r)
		if p.Info.PortState == 0 || len(p.PKeys) == 0 {
			continue
		}
		if keys := s.base.keysOf(p.GUID); len(keys) > len(p.PKeys) {
			s.failed++
			p.Held.Why = fmt.Sprintf("its P_Key table has %d entries, %d are needed", len(p.PKeys), len(keys))
			s.problem(s.nameOf(r), "%s", p.Held.Why)
		}
		want := s.wanted(r)
		s.writeKeys(r, p.PKeys, want, false)
		p.PKeys = want
	}
}

func nonzero(keys []ib.PKey) []ib.PKey {
	return slices.DeleteFunc(slices.Clone(keys), func(k ib.PKey) bool { return k&0x7fff == 0 })
}

// enforces reports whether the intent makes a switch port enforce the partitions of the adapter behind it.
func (s *sweep) enforces(r topo.Ref) bool {
	n, p := &s.t.Nodes[r.Node], s.t.Port(r)
	peer := s.t.Port(p.Peer)
	return s.base.intent.Enforce && n.IsSwitch() && r.Port != 0 && peer != nil &&
		!s.t.Nodes[p.Peer.Node].IsSwitch() && len(peer.PKeys) > 0
}

// writeKeys sets the blocks of a P_Key table that differ, or all.
func (s *sweep) writeKeys(r topo.Ref, had, want []ib.PKey, all bool) {
	for b := 0; b*mad.PKeysPerBlock < len(want); b++ {
		var is, was mad.PKeyTable
		copy(is[:], want[b*mad.PKeysPerBlock:])
		copy(was[:], had[b*mad.PKeysPerBlock:])
		if is == was && !all {
			continue
		}
		port := uint8(0)
		if s.t.Nodes[r.Node].IsSwitch() {
			port = r.Port
		}
		q := s.request(mad.MethodSet, mad.AttrPKeyTable, mad.PKeyModifier(port, uint16(b)), pathTo(s.t, r), r,
			s.gotKeys)
		q.block = uint16(b)
		is.Append(q.data[:0])
	}
}

// keepKeys records a block of the P_Key table that a port reports.
func keepKeys(p *topo.Port, block uint16, a *mad.SMP) {
	if p.Held.PKeys == nil {
		p.Held.PKeys = make([]ib.PKey, len(p.PKeys))
	}
	if at := int(block) * mad.PKeysPerBlock; at < len(p.Held.PKeys) {
		var t mad.PKeyTable
		t.Parse(a.Data[:])
		copy(p.Held.PKeys[at:], t[:])
	}
}

// readKeys requests the P_Key tables that ports had in the last heavy sweep.
func (s *sweep) readKeys() {
	for r := range s.t.EndPorts() {
		for b := 0; b*mad.PKeysPerBlock < len(s.t.Port(r).Held.PKeys); b++ {
			q := s.request(mad.MethodGet, mad.AttrPKeyTable, mad.PKeyModifier(0, uint16(b)), pathTo(s.t, r), r,
				s.gotLightKeys)
			q.block, q.stern = uint16(b), true
		}
	}
	border{s}.readEnforced()
}

func (s *sweep) gotLightKeys(_ mono.Time, r *request, a *mad.SMP) {
	if a == nil || a.Status != mad.StatusOK {
		return // the switch of a silent port reports when its link goes down
	}
	var is, was mad.PKeyTable
	is.Parse(a.Data[:])
	held := s.base.topo.Port(r.ref).Held.PKeys
	at := min(len(held), int(r.block)*mad.PKeysPerBlock)
	n := copy(was[:], held[at:])
	clear(is[n:])
	if is != was {
		s.changes, s.why = true, "another changed the P_Key table of "+s.nameOf(r.ref)
	}
}

// gotKeys records the P_Key table that a port reports to have after a Set.
func (s *sweep) gotKeys(now mono.Time, r *request, a *mad.SMP) {
	s.gotTable(now, r, a)
	p := s.t.Port(r.ref)
	switch {
	case a == nil || a.Status != mad.StatusOK:
	case p.GUID != 0:
		keepKeys(p, r.block, a)
	case !bytes.Equal(a.Data[:], r.data[:]):
		s.unwrote[r.ref.Node] = true
		s.failed++
		s.problem(s.nameOf(r.ref), "it has not the P_Keys that were written to it")
	}
}
