// SPDX-License-Identifier: Apache-2.0

package node

import (
	"weft/internal/control/config"
	"weft/internal/fabric/link/roce"
	"weft/internal/node/control"
	"weft/internal/node/lane"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/hca/replicate"
)

// memoryOwner finds the session with mapped memory at addr, or nil.
func (n *Node) memoryOwner(addr uintptr) lane.MemoryOwner {
	if o := n.sessions.MemoryOwner(addr); o != nil {
		return o
	}
	return n.cards.MemoryOwner(addr)
}

var icrcModes = map[string]roce.ICRCMode{
	config.ICRCAuto:  roce.ICRCAuto,
	config.ICRCFull:  roce.ICRCFull,
	config.ICRCSolve: roce.ICRCSolve,
}

// openLanes makes the lanes and their links.
func (n *Node) openLanes() (err error) {
	c := lane.Config{
		Count:     n.cfg.LaneCount(),
		Functions: n.all,
		Now:       n.now,
		Spin:      n.cfg.Spin,
		RealTime:  n.cfg.RealTime,
		Log:       n.log,
		Multicast: replicate.Config{
			Payloads:  n.cfg.McastPayloads,
			Threshold: n.cfg.McastThreshold,
			Requests:  replicate.DefaultConfig.Requests,
		},
		RoCE: roce.Config{
			Port:    uint16(n.cfg.RoCEPort),
			ICRC:    icrcModes[n.cfg.ICRC],
			IfIndex: n.ifIndex,
		},
		MemoryOwner: n.memoryOwner,
		Prepare: func(h *hca.Lane) {
			h.SetGeneralServices(n.cm.Receiver(h))
			h.SetOrphanEnded(n.sessions.Detach)
		},
	}
	if n.sub != nil {
		c.Fabric = n.sub.LaneLink
	}
	if n.lanes, err = lane.Open(c); err != nil {
		return err
	}
	first := n.lanes.First().Net.RoCE // which receives
	n.groups = &ipGroups{
		port:   n.adapter.Port,
		join:   first.Join,
		quit:   first.Leave,
		log:    n.log,
		groups: map[ib.GID]*ipGroup{},
	}
	n.all.SetIPGroups(portGroups{n.funcs, n.groups})
	n.sessions.SetLanes(n.lanes)
	n.captures.SetLanes(n.lanes)
	n.cards.SetLanes(n.lanes)
	n.faults = control.NewFaults(
		control.FaultConfig{
			Log:    n.log,
			Lanes:  n.lanes,
			Host:   n.adapter,
			Trunks: n.sub != nil && n.sub.TrunkLink() != nil,
			Device: func(name string) bool { return n.funcs.named(name) != nil },
		},
	)
	n.lanes.Start()
	return nil
}
