// SPDX-License-Identifier: Apache-2.0

package em

import (
	"fmt"
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// Status is the state of the VESWs, as plain data.
type Status struct {
	VESWs []VESWStatus
	// Capable are the ports of the subnet with an agent.
	Capable  int
	Ports    int // that were probed
	Counters Counters
}

// VESWStatus is a VESW.
type VESWStatus struct {
	Name    string
	ID      uint16
	PKey    ib.PKey
	MLID    ib.LID // 0 if it has none
	MTU     int
	Up      bool // members forward, or may forward
	Members []MemberStatus
	// Problems are the differences from the configuration.
	Problems []Problem
	MACs     int // in its tables
}

// Problem is a problem, its subject and its fix.
type Problem struct {
	Port ib.GUID // 0: the VESW
	What string
	Fix  string
}

// MemberStatus is a member of a VESW.
type MemberStatus struct {
	Member
	Name    string // of the node of the port; empty: not in the subnet
	LID     ib.LID
	Agent   string // asked, present, none, silent; empty: not in the subnet
	BaseMAC MAC
	// State is absent, waiting, configuring, dropping (configured, and not forwarding yet), down (its interface or link
	// is), or forwarding.
	State     string
	MACs      []MAC // of its own
	Multicast []MAC
	// Default means that others send it frames to unknown MACs.
	Default bool
}

// States of members.
const (
	StateAbsent      = "absent"
	StateWaiting     = "waiting"
	StateConfiguring = "configuring"
	StateDropping    = "dropping"
	StateDown        = "down"
	StateForwarding  = "forwarding"
)

// Status returns the state of a manager. The caller owns the slices.
func (m *Manager) Status() Status {
	s := Status{Counters: m.Counters, Ports: len(m.ports)}
	for _, p := range m.ports {
		if p.state == agentThere {
			s.Capable++
		}
	}
	for _, v := range m.vesws {
		s.VESWs = append(s.VESWs, v.status())
	}
	return s
}

func (v *vesw) status() VESWStatus {
	s := VESWStatus{Name: v.want.Name, ID: v.want.ID, PKey: v.want.Key(), MLID: v.mlid, MTU: v.mtu, Up: v.up}
	note := func(port ib.GUID, what, fix string) { s.Problems = append(s.Problems, Problem{port, what, fix}) }
	if v.why != "" {
		note(0, v.why, v.fix)
	}
	if len(v.list) == 0 {
		note(0, "it has no members", "weft vesw port add "+v.want.Name+" DEVICE")
	}
	var mask uint16
	bits := map[ib.GUID]uint16{}
	gateways := 0
	for _, mb := range v.list {
		if mb.ok && !mb.is.Gateway {
			mask = mb.want.VESW.DefaultPortMask
		}
		if mb.is.Gateway {
			bits[mb.is.Port] = 1 << gateways
			gateways++
		}
	}
	for _, mb := range v.list {
		x := MemberStatus{Member: mb.is, State: mb.state(), Default: bits[mb.is.Port]&mask != 0}
		if mb.p != nil {
			x.Name, x.LID, x.BaseMAC, x.Agent = mb.p.name, mb.p.lid, v.base(mb), agentNames[mb.p.state]
			x.MACs, x.Multicast = slices.Clone(mb.port.uc.macs), slices.Clone(mb.port.mc.macs)
		}
		s.Members = append(s.Members, x)
		const where = "weft status on its node"
		switch {
		case mb.why != "" && mb.waitUntil == 0, mb.why != "" && v.up:
			note(mb.is.Port, mb.why, mb.fix)
		case mb.p == nil || mb.why != "":
		case mb.p.state == agentSilent:
			note(mb.is.Port, "its agent does not answer", where)
		case mb.port.why != "":
			note(mb.is.Port, mb.port.why, where)
		case mb.is.Gateway && x.State == StateDown:
			note(mb.is.Port, "the gateway's interface is down", where)
		}
		if mb.p != nil && mb.port.uc.cut {
			note(mb.is.Port, fmt.Sprintf("it has more than %d MACs", maxList), where)
		}
	}
	for _, r := range v.refused {
		what := fmt.Sprintf("others are not told of its MAC %v: %s", r.mac, r.why)
		if r.by != 0 {
			what += fmt.Sprintf(" (port %v)", r.by)
		}
		note(r.of, what, "give the interface another MAC, or take MACs from it")
	}
	for i := range v.slots {
		if v.slots[i].mac != (MAC{}) {
			s.MACs++
		}
	}
	return s
}

// state returns the state of the member for people.
func (mb *member) state() string {
	switch {
	case mb.p == nil:
		return StateAbsent
	case !mb.ok || mb.p.state != agentThere && !mb.port.known:
		return StateWaiting
	case !mb.set():
		return StateConfiguring
	case mb.port.info.Port.ConfigState != mad.VESWForwarding:
		return StateDropping
	case mb.port.info.Port.OperState != mad.VESWForwarding:
		return StateDown
	}
	return StateForwarding
}
