// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"reflect"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// Truth is what a master knows about what ports have. It may be read on any goroutine.
type Truth struct {
	Topo       *topo.Subnet
	Partitions []sm.Partition // in force
	Manager    ib.GUID        // its port
	Applied    bool           // the last sweep has applied the intent in force
	Lost       []sm.LostLink
}

// AppliedTo reports whether the last sweep has applied these partitions.
func (t *Truth) AppliedTo(partitions []sm.Partition) bool {
	return t.Applied && (len(partitions) == 0 && len(t.Partitions) == 0 || reflect.DeepEqual(partitions, t.Partitions))
}

// Truth returns what the manager knows; false where it is not the master.
func (m *Manager) Truth() (t Truth, ok bool) {
	if t.Topo = m.Topo(); t.Topo == nil {
		return t, false
	}
	t.Partitions, t.Manager = m.partitions(), m.sm.Status().PortGUID
	t.Applied, t.Lost = m.sm.Applied(), m.sm.LostLinks()
	return t, true
}

// Carries reports whether packets of a multicast group reach a port, as sm.Manager.Carries.
func (m *Manager) Carries(mlid ib.LID, port ib.GUID) bool {
	return m.sm.State() == mad.SMMaster && m.sm.Carries(mlid, port)
}
