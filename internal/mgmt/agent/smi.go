// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"

	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Handle handles a datagram that arrived by d.Port. It turns d into its answer, into itself one hop further, or
// into a datagram for the manager or a client at this node, as the verdict states. A switch forwards datagrams for
// other nodes by its forwarding tables. Of datagrams for queue pair 1 the agents answer those of performance
// management.
func (a *Agent) Handle(now mono.Time, d *mad.Datagram) Verdict {
	a.now = now
	p := a.external(d.Port)
	if p == nil && !(a.isSwitch() && d.Port == 0) {
		a.Stats.DropBadAddressed++
		return Done
	}
	if d.DLID != ib.LIDPermissive && !a.IsMine(d.DLID) {
		if !a.isSwitch() {
			a.Stats.DropLID++
			return Done
		}
		return a.route(d.Port, d)
	}
	return a.local(now, d)
}

// Originate handles a datagram that the manager or a client at this node sends: that of a switch leaves from
// port 0, that of an adapter from its port. The agents answer at once what is for the node itself.
func (a *Agent) Originate(now mono.Time, d *mad.Datagram) Verdict {
	a.now = now
	d.Port = a.endPort()
	if d.DstQPN == ib.QPNSMI && mad.Class(d.Data[1]) == mad.ClassSubnDR {
		s := &a.smp
		if s.Parse(d.Data[:]) != nil || s.BaseVersion != mad.BaseVersion {
			a.Stats.DropVersion++
			return Done
		}
		h := s.Send(a.isSwitch(), 1, a.cfg.NumPorts)
		if h.Action == mad.RouteLID {
			s.Append(d.Data[:0])
			return a.depart(d)
		}
		return a.hop(now, d, h)
	}
	if a.IsMine(d.DLID) || d.DLID == ib.LIDPermissive {
		return a.local(now, d)
	}
	return a.depart(d)
}

// local handles a datagram that has reached this node.
func (a *Agent) local(now mono.Time, d *mad.Datagram) Verdict {
	switch d.DstQPN {
	case ib.QPNSMI:
	case ib.QPNGSI:
		if mad.Class(d.Data[1]).IsSubn() { // these belong to queue pair 0, which only privileged senders reach
			a.Stats.DropBadAddressed++
			return Done
		}
		if !a.admits(now, d) {
			return Done
		}
		if mad.Class(d.Data[1]) == mad.ClassPerf && !mad.Method(d.Data[3]).IsResponse() {
			return a.performance(d)
		}
		return Deliver
	default:
		a.Stats.DropBadAddressed++
		return Done
	}
	s := &a.smp
	if s.Parse(d.Data[:]) != nil || s.BaseVersion != mad.BaseVersion || !s.MgmtClass.IsSubn() {
		a.Stats.DropVersion++
		return Done
	}
	if s.Directed() {
		// An answer arrives by the port by which its request left. If it does not, its route is not the route of its
		// request.
		if port, ok := s.LeftBy(); ok && s.D && d.Port != 0 && a.isSwitch() && port != d.Port {
			a.Stats.DropRoute++
			return Done
		}
		return a.hop(now, d, s.Receive(a.isSwitch(), d.Port, a.cfg.NumPorts))
	}
	return a.subnet(now, d)
}

// admits validates the keys of a datagram to queue pair 1: the P_Key of any partition of the port, and one Q_Key
// (IBA volume 1, 10.2.4 and 10.9.4).
func (a *Agent) admits(now mono.Time, d *mad.Datagram) bool {
	k := mad.BadKey{LID1: d.SLID, LID2: d.DLID, SL: d.SL, QP1: d.SrcQPN, QP2: d.DstQPN, GID1: d.SGID, GID2: d.DGID}
	switch {
	case !slices.ContainsFunc(a.end().pkeys, d.PKey.Match):
		a.Stats.DropPKey++
		k.Key = uint32(d.PKey)
		a.BadPKey(now, k, 1)
		return false
	case d.QKey != ib.GSIQKey:
		a.Stats.DropQKey++
		k.Key = uint32(d.QKey)
		a.BadQKey(now, k, 1)
		return false
	}
	return true
}

// hop executes one step of the directed route of the SMP in a.smp.
func (a *Agent) hop(now mono.Time, d *mad.Datagram, h mad.Hop) Verdict {
	s := &a.smp
	switch h.Action {
	case mad.Deliver:
		return a.subnet(now, d)
	case mad.Forward:
		p := a.external(h.Port)
		if p == nil || p.info.PortPhysicalState != ib.PhysLinkUp {
			a.Stats.DropPortDown++
			return Done
		}
		s.Append(d.Data[:0])
		d.Port, d.SLID, d.DLID = h.Port, ib.LIDPermissive, ib.LIDPermissive
		a.Stats.Forwarded++
		return Send
	case mad.RouteLID: // only switches: the directed part ends here
		d.SLID, d.DLID = a.LID(), s.DrDLID
		if s.D {
			d.DLID = s.DrSLID
		}
		if a.IsMine(d.DLID) {
			return a.subnet(now, d)
		}
		s.Append(d.Data[:0])
		return a.depart(d)
	}
	a.Stats.DropRoute++
	return Done
}

// depart routes by LID a datagram that originates at this node.
func (a *Agent) depart(d *mad.Datagram) Verdict {
	if d.SrcQPN == ib.QPNGSI {
		d.PKey = a.key(d.PKey)
	}
	if a.isSwitch() {
		return a.route(0, d)
	}
	if a.end().info.PortPhysicalState != ib.PhysLinkUp {
		a.Stats.DropPortDown++
		return Done
	}
	d.Port = 1
	return Send
}

// key returns the key that this port has of the partition of k. An answer bears it, because the key of the
// requester may be that of a limited member.
func (a *Agent) key(k ib.PKey) ib.PKey {
	own := a.end().pkeys
	if slices.Contains(own, k) {
		return k
	}
	if i := slices.IndexFunc(own, func(o ib.PKey) bool { return o != 0 && (o^k)&0x7fff == 0 }); i >= 0 {
		return own[i]
	}
	return k
}

// route sends a datagram by LID through the switch.
func (a *Agent) route(in uint8, d *mad.Datagram) Verdict {
	var out uint8
	var why vswitch.Refusal
	if d.DstQPN == ib.QPNSMI {
		out, why = a.forward.Management(in, d.DLID)
	} else {
		out, why = a.forward.Unicast(in, d.DLID, d.PKey)
	}
	if why != vswitch.OK || out == 0 {
		a.Stats.DropLID++
		return Done
	}
	d.Port = out
	return Send
}

// subnet handles the SMP in a.smp, which is for this node.
func (a *Agent) subnet(now mono.Time, d *mad.Datagram) Verdict {
	s := &a.smp
	switch {
	case s.Method == mad.MethodTrapRepress:
		a.repress()
		return Done
	case s.Method.IsResponse():
		s.Append(d.Data[:0])
		return Deliver
	case s.Method == mad.MethodTrap || s.AttributeID == mad.AttrSMInfo && (s.Method == mad.MethodGet ||
		s.Method == mad.MethodSet):
		// Only a manager can answer.
		if a.end().info.CapabilityMask&mad.CapIsSM != 0 {
			s.Append(d.Data[:0])
			return Deliver
		}
		if s.Method == mad.MethodTrap {
			a.Stats.DropMethod++
			return Done
		}
	case s.Method != mad.MethodGet && s.Method != mad.MethodSet:
		a.Stats.DropMethod++
		return Done
	}
	if s.ClassVersion != mad.ClassVersion {
		return a.respond(d, mad.StatusBadVersion)
	}
	known, ok := a.checkKey(now)
	if !ok {
		a.Stats.DropMKey++
		return Done
	}
	if s.Method == mad.MethodSet {
		a.Stats.Sets++
		return a.respond(d, a.set(d.Port))
	}
	a.Stats.Gets++
	return a.respond(d, a.get(d.Port, known))
}

// respond sends the SMP in a.smp back as its own answer.
func (a *Agent) respond(d *mad.Datagram, status mad.Status) Verdict {
	s := &a.smp
	s.Reply(status)
	if status != mad.StatusOK {
		a.Stats.Refused++
	}
	from := d.Port
	d.SLID, d.DLID = d.DLID, d.SLID
	d.SrcQPN, d.DstQPN = d.DstQPN, d.SrcQPN
	if !s.Directed() {
		s.Append(d.Data[:0])
		if d.DLID == ib.LIDPermissive { // an SMP without LIDs reached us from the neighbour, or from here
			if from == 0 || a.external(from).info.PortPhysicalState != ib.PhysLinkUp {
				return Deliver
			}
			return Send
		}
		if a.IsMine(d.DLID) {
			return Deliver
		}
		return a.depart(d)
	}
	h := s.Send(a.isSwitch(), 1, a.cfg.NumPorts)
	if h.Action == mad.RouteLID {
		s.Append(d.Data[:0])
		if a.IsMine(d.DLID) {
			return Deliver
		}
		return a.depart(d)
	}
	if h.Action == mad.Deliver {
		s.Append(d.Data[:0])
		return Deliver
	}
	return a.hop(0, d, h)
}
