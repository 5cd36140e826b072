// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"

	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/connected"
	"weft/internal/service/ipoib/neigh"
	"weft/internal/service/ipoib/stats"
)

// xmit sends a frame of the engine. Its destination is in the hard header, where the pseudo broadcast address stands
// for the broadcast group.
func (l *Link) xmit(now mono.Time, frame []byte) {
	switch {
	case !l.attr.carrier:
		l.stats.Net.TxCarrierErrors++
		l.stats.TxError(stats.DropLinkDown)
		return
	case len(frame) <= Headroom:
		l.stats.TxError(stats.DropShort)
		return
	case len(frame)-Headroom > l.attr.mtu:
		l.stats.TxError(stats.DropTooBig)
		return
	}
	h := wire.HardHeader(frame)
	hw := h.Dst()
	switch {
	case hw.IsGroup() && len(frame)-Headroom > l.attr.dgramMTU:
		l.rejectTooBig(now, frame, l.attr.dgramMTU)
		return
	case hw == wire.PseudoBroadcast:
		l.groups.send(now, l.attr.broadcastGID, frame)
	case hw.IsGroup():
		l.groups.send(now, hw.GID(), frame)
	default:
		if e := l.shadow.destination(now, hw, frame); e != nil {
			l.sendTo(now, e, frame)
		}
	}
	l.noteRequests(now, h.Type(), hw, frame[Headroom:])
}

// sendTo sends a frame to a neighbour whose entry is resolved: by its connection, or as a datagram.
func (l *Link) sendTo(now mono.Time, e *entry, frame []byte) {
	mtu := l.attr.dgramMTU
	if e.flags&wire.HWFlagRC != 0 && l.conns != nil && byConnection(frame) && !l.shadow.isLocal(e.path) {
		if mtu = l.conns.Send(now, e.hw, &e.attempts, &e.path.rec, frame); mtu == 0 {
			return
		}
	}
	if len(frame)-Headroom > l.attr.dgramMTU {
		l.rejectTooBig(now, frame, mtu)
		return
	}
	l.sender.send(frame, e.dest())
}

// byConnection reports whether a frame may go by a connection. ARP and Neighbor Discovery go as datagrams.
func byConnection(frame []byte) bool {
	switch wire.HardHeader(frame).Type() {
	case wire.EtherIPv4:
		return true
	case wire.EtherIPv6:
		return !isND(frame[Headroom:])
	}
	return false
}

// rejectTooBig drops a frame and reports the MTU to the IP stack.
func (l *Link) rejectTooBig(now mono.Time, frame []byte, mtu int) {
	l.stats.TxError(stats.DropTooBig)
	l.engine.TooBig(now, frame, mtu)
}

// noteRequests follows the ARP requests and solicitations that the link sends, which keeps the shadow table in step
// with the neighbours.
func (l *Link) noteRequests(now mono.Time, t wire.EtherType, hw wire.HWAddr, p []byte) {
	switch t {
	case wire.EtherARP:
		var a wire.ARP
		if l.stats.Driver.ARPTx++; a.Parse(p) == wire.FrameOK && a.Op == wire.ARPRequest {
			l.shadow.noteRequest(now, a.TargetIP, hw)
		}
	case wire.EtherIPv6:
		off, ok := wire.ICMPv6(p)
		if !ok || !wire.IsND(p[off]) {
			return
		}
		l.stats.Driver.NDTx++
		if p[off] == wire.NDNeighborSolicit && off+24 <= len(p) {
			l.shadow.noteRequest(now, netip.AddrFrom16([16]byte(p[off+8:])), hw)
		}
	}
}

// engineOut is the Link as its engine calls it.
type engineOut struct{ l *Link }

var _ neigh.Out = engineOut{}

// Xmit implements neigh.Out.
func (o engineOut) Xmit(now mono.Time, frame []byte) { o.l.xmit(now, frame) }

// Deliver implements neigh.Out.
func (o engineOut) Deliver(now mono.Time, frame []byte) { o.l.receiver.deliverOne(frame) }

// Learned implements neigh.Out. Calls that wait for the path to an address which has moved go on with the path to its
// new place.
func (o engineOut) Learned(now mono.Time, ip netip.Addr, hw wire.HWAddr) {
	if len(o.l.waiters.byIP[ip]) > 0 {
		o.Resolved(now, ip, hw)
		return
	}
	o.l.shadow.learn(now, ip, hw)
}

// Resolved implements neigh.Out: get-path goes on with the path.
func (o engineOut) Resolved(now mono.Time, ip netip.Addr, hw wire.HWAddr) {
	t := o.l.shadow
	e := t.learn(now, ip, hw)
	switch {
	case e == nil:
		o.l.waiters.failed(ip, ErrNoNode)
	case e.usable():
		o.l.waiters.found(ip, e.path)
	case e.state == entryResolved:
		e.transition(entryPathStale)
		t.queryPath(now, e.path)
	}
}

// Unresolved implements neigh.Out.
func (o engineOut) Unresolved(now mono.Time, ip netip.Addr) { o.l.waiters.failed(ip, ErrNoNode) }

// Join implements neigh.Out.
func (o engineOut) Join(now mono.Time, group netip.Addr) { o.l.JoinGroup(now, group) }

// Leave implements neigh.Out.
func (o engineOut) Leave(now mono.Time, group netip.Addr) { o.l.LeaveGroup(now, group) }

// Conflict implements neigh.Out.
func (o engineOut) Conflict(now mono.Time, ip netip.Addr, hw wire.HWAddr) {
	o.l.report.event(now, EventConflict, ip, "used by "+hw.String())
}

// shadowOut is the Link as its shadow table calls it.
type shadowOut struct{ l *Link }

func (o shadowOut) sendTo(now mono.Time, e *entry, frame []byte) { o.l.sendTo(now, e, frame) }
func (o shadowOut) probe(now mono.Time, ip netip.Addr)           { o.l.engine.Probe(now, ip) }

// groupsOut is the Link as its groups call it.
type groupsOut struct{ l *Link }

func (o groupsOut) adoptBroadcast(now mono.Time) error { return o.l.adoptBroadcast(now) }
func (o groupsOut) updateCarrier(now mono.Time)        { o.l.updateCarrier(now) }
func (o groupsOut) undeliverable(now mono.Time, frame []byte) {
	o.l.engine.Undeliverable(now, frame)
}
func (o groupsOut) left(now mono.Time) { o.l.finish(now, false) }

// connsOut is the Link as its connections call it.
type connsOut struct{ l *Link }

var _ connected.Link = connsOut{}

// SendUnicast implements connected.Link.
func (o connsOut) SendUnicast(now mono.Time, hw wire.HWAddr, frame []byte) {
	t := o.l.shadow
	if t.entries[hw] == nil {
		o.l.stats.TxDrop(stats.DropNoPath)
	} else if e := t.destination(now, hw, frame); e != nil {
		o.l.sendTo(now, e, frame)
	}
}

// SendDatagram implements connected.Link.
func (o connsOut) SendDatagram(hw wire.HWAddr, frame []byte) bool {
	e := o.l.shadow.entries[hw]
	if e == nil || e.state != entryResolved {
		return false
	}
	o.l.sender.send(frame, e.dest())
	return true
}

// RejectTooBig implements connected.Link.
func (o connsOut) RejectTooBig(now mono.Time, frame []byte, mtu int) {
	o.l.rejectTooBig(now, frame, mtu)
}
