// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"cmp"
	"slices"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// KeyDifference is a partition in which a port is not as it is intended, by the last answers of the port.
type KeyDifference struct {
	Port ib.GUID
	PKey ib.PKey    // without the membership
	Want Membership // as intended
	Has  Membership // by its answers
	// Why is the reason if there is one: an unanswered or refused request, a full table, a port that is not in the
	// subnet.
	Why string
	// Absent reports that the subnet does not have the port.
	Absent bool
}

// Absent is the reason of a member that the subnet does not have.
const Absent = "the port is not in the subnet"

// KeyDifferences returns how the P_Key tables of ports, by the answers of the ports, differ from partitions. manager is
// the port of the manager. Differences are in the order of partitions, the default one first, and of ports.
func KeyDifferences(partitions []Partition, t *topo.Subnet, manager ib.GUID) (list []KeyDifference) {
	for r := range t.EndPorts() {
		p := t.Port(r)
		if len(p.PKeys) == 0 {
			continue // it has no table
		}
		want, has := memberships(keysFor(partitions, p.GUID, manager)), memberships(p.Held.PKeys)
		why := p.Held.Why
		if p.Held.PKeys == nil && why == "" {
			why = "it gave no answer"
		}
		for k, w := range want {
			if has[k] != w {
				list = append(list, KeyDifference{Port: p.GUID, PKey: k, Want: w, Has: has[k], Why: why})
			}
		}
		for k, h := range has {
			if want[k] == NotMember {
				list = append(list, KeyDifference{Port: p.GUID, PKey: k, Has: h, Why: why})
			}
		}
	}
	for i := range partitions {
		for _, m := range partitions[i].Members {
			if t.PortByGUID(m.PortGUID).IsNone() && m.As != NotMember {
				list = append(list, KeyDifference{Port: m.PortGUID, PKey: partitions[i].PKey & 0x7fff, Want: m.As,
					Why: Absent, Absent: true})
			}
		}
	}
	place := func(k ib.PKey) int {
		if k == defaultKey {
			return -1
		}
		i := slices.IndexFunc(partitions, func(p Partition) bool { return p.PKey&0x7fff == k })
		if i < 0 {
			return len(partitions)
		}
		return i
	}
	slices.SortFunc(list, func(a, b KeyDifference) int {
		return cmp.Or(cmp.Compare(place(a.PKey), place(b.PKey)), cmp.Compare(a.PKey, b.PKey), cmp.Compare(a.Port, b.Port))
	})
	return list
}

// memberships are the memberships of a P_Key table.
func memberships(table []ib.PKey) map[ib.PKey]Membership {
	m := map[ib.PKey]Membership{}
	for _, k := range table {
		if k&0x7fff == 0 {
			continue
		}
		as := Limited
		if k&0x8000 != 0 {
			as = Full
		}
		m[k&0x7fff] = max(m[k&0x7fff], as)
	}
	return m
}

// MembershipOf returns the membership of a P_Key table in a partition.
func MembershipOf(table []ib.PKey, key ib.PKey) Membership { return memberships(table)[key&0x7fff] }

// IntendedKeys returns the P_Keys that a port shall have, that of the default partition first. manager is the port of
// the manager.
func IntendedKeys(partitions []Partition, port, manager ib.GUID) []ib.PKey {
	return keysFor(partitions, port, manager)
}

// Applied reports whether the last complete sweep applied the intent in force, so that a difference is not one of time.
func (m *Manager) Applied() bool { return m.topo != nil && m.swept == m.intents }

// LostLink is a link between two switches that an earlier sweep of this manager found, and the last one did not, though
// both switches are in the subnet.
type LostLink struct {
	A, B         ib.GUID // of the nodes
	PortA, PortB uint8
	Since        mono.Time // the end of the sweep that missed it
}

// maxLost bounds the links that are remembered.
const maxLost = 1024

// rememberLinks updates the lost links after a sweep that found the subnet t; m.topo is the result of the one before.
func (m *Manager) rememberLinks(now mono.Time, t *topo.Subnet) {
	if m.topo != nil && m.everSwept {
		for _, l := range m.topo.Links() {
			a, b := &m.topo.Nodes[l.A.Node], &m.topo.Nodes[l.B.Node]
			x := LostLink{A: a.Info.NodeGUID, B: b.Info.NodeGUID, PortA: l.A.Port, PortB: l.B.Port, Since: now}
			same := func(o LostLink) bool { return o.A == x.A && o.PortA == x.PortA || o.B == x.A && o.PortB == x.PortA }
			if a.IsSwitch() && b.IsSwitch() && len(m.lost) < maxLost && !slices.ContainsFunc(m.lost, same) {
				m.lost = append(m.lost, x)
			}
		}
	}
	linked := func(n ib.GUID, port uint8) bool {
		p := t.Port(t.PortOf(n, port))
		return p == nil || !p.Peer.IsNone()
	}
	m.lost = slices.DeleteFunc(m.lost, func(l LostLink) bool { return linked(l.A, l.PortA) || linked(l.B, l.PortB) })
}

// LostLinks returns the links that were lost. The slice is the caller's.
func (m *Manager) LostLinks() []LostLink {
	if m.state != mad.SMMaster {
		return nil
	}
	return slices.Clone(m.lost)
}
