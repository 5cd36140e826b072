// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/http"

	"weft/internal/control/api"
	"weft/internal/node/subnet"
	"weft/internal/node/vesw"
	"weft/internal/verbs/hca"
)

// newVESW makes the room of ports of virtual Ethernet switches.
func newVESW(n *Node) *vesw.Host {
	return vesw.New(vesw.Config{Now: n.now, Log: n.log, Manage: n.sub, ServeEthernet: n.sub.ServeEthernet,
		FabricPort: func(function uint16) *hca.Port {
			if c := n.sub.Port(function); c != nil {
				return c.FabricPort()
			}
			return nil
		},
		Adapter: n.funcs.adapter, Functions: n.all, WireLocal: n.cfg.WireLocal, Keeper: n.intentStore,
		ChangePort: func(a *hca.Adapter, next func() *hca.Port) {
			n.tree.update(func() []subnet.PortChange {
				p, old := next(), a.Port()
				events := p.Changes(old)
				if len(events) == 0 && p.MTU == old.MTU {
					return nil
				}
				a.SetPort(p)
				return []subnet.PortChange{{Adapter: a, Events: events}}
			})
		}})
}

var _ vesw.Keeper = (*intentStore)(nil)

// veswOperations registers the operations of VESW ports, or their refusal where the node is in no subnet.
func veswOperations(n *Node, mux *http.ServeMux) {
	if n.vesw != nil {
		n.vesw.Operations(mux)
		return
	}
	api.Handle(mux, api.ListVESWInterfaces, api.NoInput(n.vesw.List))
	api.Handle(mux, api.ListVESWCounters, n.vesw.Counters)
	api.Handle(mux, api.AttachVESW, absent[api.VESWRequest, []api.VESWInterface])
	api.Handle(mux, api.DetachVESW, absent[string, api.None])
}
