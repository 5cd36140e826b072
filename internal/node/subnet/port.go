// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"errors"
	"slices"

	"weft/internal/fabric/link/fabric"
	"weft/internal/fabric/vswitch"
	"weft/internal/mgmt/agent"
	"weft/internal/node/loop"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/vnic/vema"
	"weft/internal/verbs/hca"
)

// ErrNoSwitchPort is the error of Plug where every port of the switch is in use.
var ErrNoSwitchPort = errors.New("every port of the switch is taken")

// Port is a function with its InfiniBand port. It belongs to the management goroutine.
type Port struct {
	Agent    *agent.Agent
	Adapter  *hca.Adapter
	s        *Subnet
	Number   uint8 // of the switch's port
	vema     *vema.Agent
	underlay *hca.Port // of a function with an Ethernet port for programs; else nil
}

// Port returns the port of a function, nil where it is not plugged in. It runs on the management goroutine.
func (s *Subnet) Port(function uint16) *Port { return s.Functions[function] }

// switchOwner receives the changes that managers make to the switch.
type switchOwner struct{ s *Subnet }

// Changed implements agent.Owner.
func (o switchOwner) Changed(uint8, agent.Change) { o.s.Dirty = true }

// Link implements agent.Owner.
func (o switchOwner) Link(port uint8, _ agent.Order) { o.s.bounced = append(o.s.bounced, port) }

// Changed implements agent.Owner.
func (c *Port) Changed(_ uint8, what agent.Change) { c.s.changed[c] |= what }

// Link implements agent.Owner.
func (c *Port) Link(uint8, agent.Order) { c.s.bounced = append(c.s.bounced, c.Number) }

// MarkChanged publishes the port with the next turn.
func (c *Port) MarkChanged() { c.s.changed[c] |= 0 }

// publish gives lanes, programs and files what has changed.
func (s *Subnet) publish() {
	if s.Dirty {
		s.Dirty = false
		s.Table.Store(s.Switch.Forwarding().Snapshot())
		s.cfg.SetMulticastForwarding(forwarding(s.Table.Load(), s.wiring.Load()))
	}
	if len(s.changed) == 0 {
		return
	}
	var changes []PortChange
	for c, what := range s.changed {
		delete(s.changed, c)
		changes = append(changes, PortChange{c.Adapter, c.Publish(what)})
	}
	s.cfg.Publish(changes)
}

// forwarding returns the functions that the switch leads each multicast LID to.
func forwarding(t *vswitch.Table, w *fabric.Wiring) map[ib.LID][]uint16 {
	m := map[ib.LID][]uint16{}
	for lid := ib.LIDMulticastFirst; lid <= ib.LIDMulticastLast; lid++ {
		var fs []uint16
		set := t.Members(lid)
		for p, ok := set.Next(); ok; p, ok = set.Next() {
			if int(p) < len(w.Port) && w.Port[p].Kind == fabric.Function {
				fs = append(fs, w.Port[p].Number)
			}
		}
		if len(fs) > 0 {
			slices.Sort(fs)
			m[lid] = fs
		}
	}
	return m
}

// Publish makes the function's port what its agent reports, and returns the events for programs.
func (c *Port) Publish(what agent.Change) []ib.Event {
	old, i := c.FabricPort(), c.Agent.Port(1)
	p := *old
	p.State, p.Phys = i.PortState, i.PortPhysicalState
	p.MTU, p.MaxMTU = i.NeighborMTU, i.MTUCap
	p.LID, p.LMC, p.SMLID, p.SMSL = i.LID, i.LMC, i.MasterSMLID, i.MasterSMSL
	p.SubnetTimeout, p.InitType = i.SubnetTimeOut, i.InitTypeReply
	p.Width, p.Speed, p.SpeedExt = i.LinkWidthActive, i.LinkSpeedActive, i.LinkSpeedExtActive
	p.PKeyViolations, p.QKeyViolations = i.PKeyViolations, i.QKeyViolations
	p.CapMask, p.GIDPrefix = uint32(i.CapabilityMask), i.GIDPrefix
	p.PKeys = append([]ib.PKey(nil), c.Agent.PKeys(1)...)
	p.GUIDs = append([]ib.GUID(nil), c.Agent.GUIDs()...)
	p.SetGIDs()
	events := p.Changes(old)
	if what&agent.ClientReregister != 0 {
		events = append(events, ib.EventReregister)
	}
	if c.underlay != nil {
		c.underlay = &p
	} else {
		c.Adapter.SetPort(&p)
	}
	if slices.ContainsFunc(events, LosesRegistrations) {
		c.s.gsi.renew(c.Adapter.Number())
	}
	if c.underlay != nil {
		return nil // its programs do not see this port
	}
	return events
}

// FabricPort is the port in the fabric, below an Ethernet port where the function has one.
func (c *Port) FabricPort() *hca.Port {
	if c.underlay != nil {
		return c.underlay
	}
	return c.Adapter.Port()
}

// LosesRegistrations reports whether the subnet administration may not have the registrations of the port any more
// after e.
func LosesRegistrations(e ib.Event) bool {
	switch e {
	case ib.EventReregister, ib.EventSMChange, ib.EventLIDChange, ib.EventPortActive:
		return true
	}
	return false
}

// Plug gives a function's InfiniBand port a port of the switch; on: its link may come up.
func (s *Subnet) Plug(a *hca.Adapter, on bool) (err error) {
	if e := s.Do(func() { err = s.plug(a, on) }); e != nil {
		return loop.ErrStopped
	}
	return err
}

func (s *Subnet) plug(a *hca.Adapter, on bool) error {
	w := *s.wiring.Load()
	var port uint8
	for p := 1; p <= s.cfg.SwitchPorts; p++ {
		if w.Port[p].Kind == fabric.Nothing {
			port = uint8(p)
			break
		}
	}
	if port == 0 {
		return ErrNoSwitchPort
	}
	c := &Port{s: s, Number: port, Adapter: a}
	c.Agent = agent.New(agent.Config{Type: mad.NodeCA, NumPorts: 1, SystemImageGUID: s.cfg.GUID, NodeGUID: a.NodeGUID,
		PortGUID: a.NodeGUID + 1,
		VendorID: vendorID, Description: portDescription(s.cfg.Host, a), Caps: agent.DefaultCaps}, c, portCounters{c})
	if a.Port().Link != ib.LinkInfiniBand {
		c.underlay = s.cfg.NewPort(a.NodeGUID + 1)
	}
	w.Port[port] = fabric.Plug{Kind: fabric.Function, Number: a.Number()}
	s.wiring.Store(&w)
	s.Dirty = true
	s.ports[port], s.Functions[a.Number()] = c, c
	s.changed[c] |= agent.ChangedState
	if on {
		s.setLink(s.cfg.Now(), port, true)
	} else {
		c.Agent.Disable(s.cfg.Now(), 1)
	}
	s.cfg.Plugged(a)
	return nil
}

// Unplug undoes Plug, and waits for work of other rooms on the function.
func (s *Subnet) Unplug(a *hca.Adapter) {
	wait := func() {}
	defer func() { wait() }()
	s.Do(func() {
		c := s.Functions[a.Number()]
		if c == nil {
			return
		}
		wait = s.cfg.Unplugged(a.Number())
		s.setLink(s.cfg.Now(), c.Number, false)
		w := *s.wiring.Load()
		w.Port[c.Number] = fabric.Plug{}
		s.wiring.Store(&w)
		s.Dirty = true
		delete(s.ports, c.Number)
		delete(s.Functions, a.Number())
		delete(s.changed, c)
		s.gsi.remove(a.Number())
		s.cfg.Connections.Removed(a.Number())
		if s.Clients != nil {
			s.Clients.Remove(s.cfg.Now(), a.Number())
		}
	})
}

// Power lets the links of functions come up, or takes them down. When it returns the ports are in that state, as far as
// they depend on this node.
func (s *Subnet) Power(list []*hca.Adapter, on bool) {
	s.Do(func() {
		now := s.cfg.Now()
		for _, a := range list {
			c := s.Functions[a.Number()]
			if c == nil {
				continue
			}
			if on {
				c.Agent.Enable(now, 1)
			} else {
				c.Agent.Disable(now, 1)
			}
			s.setLink(now, c.Number, s.peerUp(c.Number))
		}
	})
	s.Do(func() {}) // the changes of the first are published before the second runs
}

// bounceLinks brings links up again that a manager took down for a moment.
func (s *Subnet) bounceLinks(now mono.Time) {
	for len(s.bounced) > 0 {
		p := s.bounced[0]
		s.bounced = s.bounced[1:]
		s.setLink(now, p, false)
		s.setLink(now, p, s.peerUp(p))
	}
}

// peerUp reports whether the other end of a port's link is up.
func (s *Subnet) peerUp(p uint8) bool {
	if c := s.ports[p]; c != nil {
		return s.Switch.Enabled(p) && c.Agent.Enabled(1)
	}
	for _, t := range s.peers {
		if t.port == p && p != 0 {
			return t.up && s.Switch.Enabled(p)
		}
	}
	return false
}

// setLink reports the state of a port's link to the agents at its ends, as far as they are the node's.
func (s *Subnet) setLink(now mono.Time, p uint8, up bool) {
	c := s.ports[p]
	if up {
		s.Switch.LinkUp(now, p, linkOf)
		if c != nil {
			c.Agent.LinkUp(now, 1, linkOf)
		}
		return
	}
	s.Switch.LinkDown(now, p)
	if c != nil {
		c.Agent.LinkDown(now, 1)
	}
}
