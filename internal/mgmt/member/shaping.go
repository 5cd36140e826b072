// SPDX-License-Identifier: Apache-2.0

package member

import (
	"weft/internal/mgmt/member/shape"
	"weft/internal/proto/ib"
)

// defaultPorts are those of the switch of a member that has not reported them yet: the default of --switch-ports.
const defaultPorts = 36

// Shape plans the trunks of the members. Equal records give equal plans, so each member plans by itself.
func (r *Roster) Shape() *shape.Plan {
	list := make([]shape.Member, len(r.Members))
	for i := range r.Members {
		m := &r.Members[i]
		ports := m.Switch.Ports
		if ports == 0 {
			ports = defaultPorts
		}
		list[i] = shape.Member{GUID: m.GUID, Name: m.Name, Joined: m.Joined, Place: m.Place,
			Confined: !m.Roles.Transits(),
			Drained:  m.State == Draining || m.State == Drained || m.Away,
			Ports:    shape.TrunkPorts(ports, m.Switch.Devices, 0)}
		switch {
		case m.Roles.Has(Leaf):
			list[i].Role = shape.LeafRole
		case m.Roles.Has(Spine):
			list[i].Role = shape.SpineRole
		}
	}
	return shape.New(list)
}

// Settled returns shape.View.Settled: whether a member has reported that all its trunks of a plan are up.
func (r *Roster) Settled(p *shape.Plan) func(ib.GUID) bool {
	marks := make(map[ib.GUID]uint64, len(r.Members))
	for i := range r.Members {
		marks[r.Members[i].GUID] = r.Members[i].Switch.Settled
	}
	return func(g ib.GUID) bool { return marks[g] == p.Mark(g) }
}
