// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"sync/atomic"

	"weft/internal/proto/ib"
)

// Transit is which members of the node's fabric carry packets of third members, for the subnet manager.
type Transit struct {
	n     *Network
	nodes atomic.Pointer[map[ib.GUID]bool] // nil: Set was not called
}

// Set replaces the set of the members that may carry packets of third members, by the GUID of the node. Before
// the first call all switches may: the node is in no fabric. nodes must not be changed any more. Set is not called
// while Network.Start runs.
func (t *Transit) Set(nodes map[ib.GUID]bool) {
	t.nodes.Store(&nodes)
	if m := t.n.manager; m != nil {
		t.n.sub.Post(func() { m.SetTransit(t.n.cfg.Now(), nodes) })
	}
}

// load returns the set, nil before the first call of Set.
func (t *Transit) load() map[ib.GUID]bool {
	if p := t.nodes.Load(); p != nil {
		return *p
	}
	return nil
}
