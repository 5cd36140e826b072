// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"fmt"

	"weft/internal/control/api"
	"weft/internal/fabric/link/udp"
	"weft/internal/fabric/trunk"
	"weft/internal/mgmt/umad"
	"weft/internal/proto/counters"
)

// Counters adds the counters of the fabric link of each lane, of trunks, agents, queue pair 1 and user MADs. No lane
// may call it.
func (s *Subnet) Counters(add func(scope, instance, name string, v uint64)) error {
	var sent [trunk.MaxPeers]udp.SendCounters
	var names [trunk.MaxPeers]string // of the peers; empty: none
	for i, l := range s.lanes.All() {
		err := l.Query(func() {
			c := l.Net.Fabric.Counters()
			c.Each(func(name string, v uint64) { add(api.ScopeLink, fmt.Sprintf("fabric%d", i), name, v) })
			if s.trunks == nil {
				return
			}
			if i == 0 {
				for p := range s.trunks.Peers() {
					if s.trunks.Used(p) {
						names[p] = peerName(s, p, s.trunks.Status(p).Addr)
					}
				}
			}
			for p, name := range names {
				if name != "" {
					c := s.senders[i].Counters(p)
					sent[p].Add(&c)
				}
			}
			if i != 0 {
				return
			}
			t := s.trunks.Counters()
			t.Each(func(name string, v uint64) { add(api.ScopeLink, "trunks", name, v) })
			for p, at := range names {
				if at != "" {
					k := s.trunks.Status(p)
					k.Each(func(name string, v uint64) { add(api.ScopeTrunk, at, name, v) })
				}
			}
		})
		if err != nil {
			return err
		}
	}
	for p, at := range names {
		if at != "" {
			sent[p].Each(func(name string, v uint64) { add(api.ScopeTrunk, at, name, v) })
		}
	}
	each := func(scope, instance, prefix string, c any) {
		counters.Each(prefix, c, func(name string, v uint64) { add(scope, instance, name, v) })
	}
	s.Do(func() {
		each(api.ScopeAgent, "switch", "", &s.Switch.Stats)
		each(api.ScopeNode, "gsi", "", &s.gsi.stats)
		if u, ok := s.Clients.(*umad.Hub); ok {
			each(api.ScopeNode, "umad", "", &u.Stats)
		}
		for _, c := range s.ports {
			each(api.ScopeAgent, c.Adapter.Name, "", &c.Agent.Stats)
			if a := c.Ethernet(); a != nil {
				k, _ := a.Stats()
				each(api.ScopePort, c.Adapter.Name, "vema_", &k)
			}
		}
	})
	add(api.ScopeNode, "", "management_inbox_full", s.inboxFull.Load())
	return nil
}
