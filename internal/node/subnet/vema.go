// SPDX-License-Identifier: Apache-2.0

package subnet

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

// ServeEthernet gives a function's port its agent of virtual Ethernet, or with nil removes it. The subnet manager sees
// it in the port's capabilities and by a trap; the Ethernet Manager queries it. It runs on the management goroutine,
// after the function was plugged in.
func (s *Subnet) ServeEthernet(function uint16, a *vema.Agent) {
	c := s.Functions[function]
	if c == nil {
		return
	}
	c.vema = a
	c.Agent.SetCapability(s.cfg.Now(), mad.CapVendorClass, a != nil)
	s.changed[c] |= agent.ChangedOther
}

// Ethernet returns the agent of the port's virtual Ethernet, after it got the current state of the port; nil where
// there is none.
func (c *Port) Ethernet() *vema.Agent {
	if c.vema != nil {
		i := c.Agent.Port(1)
		c.vema.SetPort(vema.Port{LID: i.LID, SMLID: i.MasterSMLID, Active: i.PortState == ib.PortActive})
	}
	return c.vema
}

// forEthernetManager reports whether a datagram of Omni-Path is one that an Ethernet Manager receives: an answer, which
// may be the header alone where the class is not served, or a trap.
func forEthernetManager(d *mad.Datagram) bool {
	if len(d.Long) < mad.HeaderLen || mad.Class(d.Long[1]) != mad.ClassVEMA {
		return false
	}
	m := mad.Method(d.Long[3])
	return m == mad.MethodTrap || m == mad.MethodGetResp
}

// Notices lists the vports that wait for an Ethernet Manager, and orders of nodes that are not the Ethernet Manager. No
// lane may call it.
func (s *Subnet) Notices() (list []api.Degraded) {
	s.Do(func() {
		for _, c := range s.Functions {
			a := c.Ethernet()
			if a == nil {
				continue
			}
			if a.Waiting() && c.Agent.Port(1).PortState == ib.PortActive {
				list = append(list, api.Degraded{What: "no_ethernet_manager", Why: c.Adapter.Name +
					": waiting for an Ethernet Manager: none has set ClassPortInfo",
					Fix: "run the subnet manager of a node (weft up --sm auto), which has one"})
			}
			if k, from := a.Stats(); k.Untrusted != 0 {
				list = append(list, api.Degraded{What: "ethernet_refused_lid",
					Why: fmt.Sprintf("%s: %d orders of others than the Ethernet Manager refused, the last from LID %d",
						c.Adapter.Name, k.Untrusted, from),
					Fix: fmt.Sprintf("weft fabric nodes shows the node with LID %d", from)})
			}
		}
	})
	slices.SortFunc(list, func(a, b api.Degraded) int {
		return cmp.Or(cmp.Compare(a.What, b.What),
			cmp.Compare(a.Why, b.Why))
	})
	return list
}
