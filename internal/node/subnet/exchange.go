// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"weft/internal/fabric/link/fabric"
	"weft/internal/mgmt/agent"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// turn lets agents, manager and programs send until none has anything to send, and returns when one may have. A change
// that an agent reports is published to the lanes before a datagram that may report it leaves: a program that reads
// that it is in a group sends to it at once.
func (s *Subnet) turn(now mono.Time) mono.Time {
	for {
		s.flush(now)
		if s.originate(now) {
			continue
		}
		s.publish()
		if !s.sendOut(now) {
			return s.deadline()
		}
	}
}

// sendOut sends the datagrams for others, false where there are none.
func (s *Subnet) sendOut(now mono.Time) bool {
	if len(s.outgoing) == 0 {
		return false
	}
	list := s.outgoing
	s.outgoing = nil
	var trunks []mad.Datagram
	for i := range list {
		if c := list[i].to; c != nil {
			s.deliver(now, c, &list[i].d)
		} else {
			trunks = append(trunks, list[i].d)
		}
	}
	if len(trunks) > 0 {
		l := s.lanes.First()
		l.Post(func() {
			for i := range trunks {
				l.Net.Fabric.SendMAD(l.Now(), trunks[i].Port, &trunks[i])
			}
		})
	}
	return true
}

// deliver gives a datagram to the user that speaks for a function's port.
func (s *Subnet) deliver(now mono.Time, c *Port, d *mad.Datagram) {
	f := c.Adapter.Number()
	if s.Functions[f] != c || s.gsi.receive(now, f, d) || s.Clients != nil && s.Clients.Receive(now, f, d) ||
		s.cfg.Connections.Offer(f, d) {
		return
	}
	s.unclaimed(now, c, c.Agent, d)
}

// originate dispatches what agents, manager and programs send on their own.
func (s *Subnet) originate(now mono.Time) (any bool) {
	var d mad.Datagram
	for v := s.Switch.Next(now, &d); v != agent.Done; v = s.Switch.Next(now, &d) {
		s.dispatch(now, nil, v, &d)
		any = true
	}
	for _, c := range s.ports {
		for v := c.Agent.Next(now, &d); v != agent.Done; v = c.Agent.Next(now, &d) {
			s.dispatch(now, c, v, &d)
			any = true
		}
		for a := c.Ethernet(); a != nil && a.Next(now, &d); {
			s.send(now, c, &d)
			any = true
		}
	}
	for s.Manager != nil && s.Manager.Next(now, &d) {
		s.dispatch(now, nil, s.Switch.Originate(now, &d), &d)
		any = true
	}
	for f, ok := s.gsi.next(now, &d); ok; f, ok = s.gsi.next(now, &d) {
		any = true
		if c := s.Functions[f]; c != nil {
			s.send(now, c, &d)
		}
	}
	for s.Clients != nil {
		f, ok := s.Clients.Next(now, &d)
		if !ok {
			break
		}
		any = true
		if c := s.Functions[f]; c != nil {
			s.send(now, c, &d)
		} else if f == 0 {
			s.dispatch(now, nil, s.Switch.Originate(now, &d), &d)
		}
	}
	return any
}

// handle handles a datagram that a lane brought.
func (s *Subnet) handle(now mono.Time, in *inbound) {
	if in.function == 0 {
		s.queued = append(s.queued, outbound{nil, in.d})
	} else if c := s.Functions[in.function]; c != nil {
		s.queued = append(s.queued, outbound{c, in.d})
	}
	s.flush(now)
}

// flush moves datagrams between the agents of the node until none is left.
func (s *Subnet) flush(now mono.Time) {
	for i := 0; i < len(s.queued); i++ {
		q := s.queued[i]
		if q.to == nil {
			s.dispatch(now, nil, s.Switch.Handle(now, &q.d), &q.d)
		} else {
			s.dispatch(now, q.to, q.to.Agent.Handle(now, &q.d), &q.d)
		}
	}
	s.queued = s.queued[:0]
	s.bounceLinks(now)
}

// dispatch executes the verdict of the agent of c, or of the switch, on a datagram.
func (s *Subnet) dispatch(now mono.Time, c *Port, v agent.Verdict, d *mad.Datagram) {
	switch {
	case v == agent.Done:
	case v == agent.Deliver && c == nil && s.replied(d):
	case v == agent.Deliver && c == nil:
		if s.Manager != nil && (d.Long == nil || forEthernetManager(d)) {
			s.Manager.Handle(now, d)
		} else {
			s.unclaimed(now, nil, s.Switch, d)
		}
	case v == agent.Deliver:
		if a := c.Ethernet(); a != nil && a.Handle(now, d) {
			s.send(now, c, d)
			return
		}
		s.outgoing = append(s.outgoing, outbound{c, *d})
	case c != nil: // from the adapter's port into the switch
		c.Mirror(d, true)
		d.Port = c.Number
		s.queued = append(s.queued, outbound{nil, *d})
	default:
		switch plug := s.wiring.Load().Port[d.Port]; plug.Kind {
		case fabric.Function:
			if to := s.ports[d.Port]; to != nil {
				d.Port = 1
				to.Mirror(d, false)
				s.queued = append(s.queued, outbound{to, *d})
			}
		case fabric.Peer:
			s.outgoing = append(s.outgoing, outbound{nil, *d})
		}
	}
}

// unclaimed answers a request of general services that no user at the port of a serves, so that the requester need not
// wait; it drops anything else. The answer to a MAD of Omni-Path is its header alone.
func (s *Subnet) unclaimed(now mono.Time, c *Port, a *agent.Agent, d *mad.Datagram) {
	var h mad.Header
	h.Parse(d.Data[:])
	if d.DstQPN != ib.QPNGSI || h.BaseVersion != mad.BaseVersion && d.Long == nil || h.Method != mad.MethodGet &&
		h.Method != mad.MethodSet {
		return
	}
	r := d.Reply()
	h.Method, h.Status = h.Method.Response(), mad.StatusBadMethodAttr
	h.Append(r.Data[:0])
	if d.Long != nil {
		r.SetMAD(r.Data[:mad.HeaderLen])
	}
	if c != nil {
		s.send(now, c, &r)
	} else {
		s.dispatch(now, nil, a.Originate(now, &r), &r)
	}
}

// deadline is when turn has something to do if nothing else happens.
func (s *Subnet) deadline() mono.Time {
	d := s.Switch.Deadline()
	for _, c := range s.ports {
		d = mono.Min(d, c.Agent.Deadline())
		if a := c.Ethernet(); a != nil {
			d = mono.Min(d, a.Deadline())
		}
	}
	if s.Manager != nil {
		d = mono.Min(d, s.Manager.Deadline())
	}
	if s.Clients != nil {
		d = mono.Min(d, s.Clients.Deadline())
	}
	return mono.Min(d, s.gsi.deadline())
}

// send sends, by the agent of c, a datagram of a user of its port. A datagram of the port to itself becomes no packet:
// captures receive it as sent, and so the answer of the agent, if there is one. Directed routes that do not leave the
// port are not mirrored.
func (s *Subnet) send(now mono.Time, c *Port, d *mad.Datagram) {
	method, own := d.Data[3], c.Agent.IsMine(d.DLID)
	if own {
		c.Mirror(d, true)
	}
	v := c.Agent.Originate(now, d)
	if own && v == agent.Deliver && d.Data[3] != method {
		c.Mirror(d, true)
	}
	s.dispatch(now, c, v, d)
}

// Send sends, by the agent of the port, a datagram of a user of the port.
func (c *Port) Send(d *mad.Datagram) { c.s.send(c.s.cfg.Now(), c, d) }
