// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"slices"

	"weft/internal/control/api"
	"weft/internal/mgmt/agent"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/service/vnic/vema"
)

// serveEthernet gives a function's port its agent of virtual Ethernet, or with nil takes it away. Whether it
// has one the subnet manager sees in the port's capabilities, and hears of by a trap; the
// Ethernet Manager asks. It is called on the management goroutine, after the function was plugged in.
func (s *subnet) serveEthernet(function uint16, a *vema.Agent) {
	c := s.byFunc[function]
	if c == nil {
		return
	}
	c.vema = a
	c.agent.SetCapability(s.n.now(), mad.CapVendorClass, a != nil)
	s.changed[c] |= agent.ChangedOther
}

// ethernet returns the agent of the port's virtual Ethernet, which knows what the port is now; nil
// where there is none.
func (c *caPort) ethernet() *vema.Agent {
	if c.vema != nil {
		i := c.agent.Port(1)
		c.vema.SetPort(vema.Port{LID: i.LID, SMLID: i.MasterSMLID, Active: i.PortState == ib.PortActive})
	}
	return c.vema
}

// tellsManager reports whether a datagram of Omni-Path is what an Ethernet Manager hears: an answer, which may be the
// header alone of who does not serve the class, or a trap.
func tellsManager(d *mad.Datagram) bool {
	if len(d.Long) < mad.HeaderLen || mad.Class(d.Long[1]) != mad.ClassVEMA {
		return false
	}
	m := mad.Method(d.Long[3])
	return m == mad.MethodTrap || m == mad.MethodGetResp
}

// vemaNotices tells whose vports wait for an Ethernet Manager, and of strangers who
// would be one.
func (n *Node) vemaNotices() (list []api.Degraded) {
	if n.sub == nil {
		return nil
	}
	n.sub.do(func() {
		for _, c := range n.sub.byFunc {
			a := c.ethernet()
			if a == nil {
				continue
			}
			if a.Waiting() && c.agent.Port(1).PortState == ib.PortActive {
				list = append(list, api.Degraded{What: "no_ethernet_manager", Why: c.adapter.Name + ": waiting for an Ethernet Manager: none has set ClassPortInfo",
					Fix: "run the subnet manager of a node (weft up --sm auto), which has one"})
			}
			if k, stranger := a.Stats(); k.Untrusted != 0 {
				list = append(list, api.Degraded{What: "ethernet_strangers", Why: fmt.Sprintf("%s: %d orders of others than the Ethernet Manager refused, the last from LID %d",
					c.adapter.Name, k.Untrusted, stranger), Fix: fmt.Sprintf("weft fabric nodes tells who has LID %d", stranger)})
			}
		}
	})
	slices.SortFunc(list, func(a, b api.Degraded) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Why, b.Why)) })
	return list
}
