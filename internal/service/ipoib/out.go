// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"

	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// engineOut is the Link as its engine calls it: all interfaces of neigh.Out.
type engineOut struct{ l *Link }

// Xmit implements neigh.Frames.
func (o engineOut) Xmit(now mono.Time, frame []byte) { o.l.forwarder.forward(now, frame) }

// Deliver implements neigh.Frames.
func (o engineOut) Deliver(now mono.Time, frame []byte) { o.l.receiver.deliverOne(frame) }

// Learned implements neigh.Resolution. Calls that wait for the path to an address which has moved go on with the path
// to its new place.
func (o engineOut) Learned(now mono.Time, ip netip.Addr, hw wire.HWAddr) {
	if len(o.l.waiters.byIP[ip]) > 0 {
		o.Resolved(now, ip, hw)
		return
	}
	o.l.shadow.learn(now, ip, hw)
}

// Resolved implements neigh.Resolution: get-path goes on with the path.
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

// Unresolved implements neigh.Resolution.
func (o engineOut) Unresolved(now mono.Time, ip netip.Addr) { o.l.waiters.failed(ip, ErrNoNode) }

// Join implements neigh.Membership.
func (o engineOut) Join(now mono.Time, group netip.Addr) { o.l.JoinGroup(now, group) }

// Leave implements neigh.Membership.
func (o engineOut) Leave(now mono.Time, group netip.Addr) { o.l.LeaveGroup(now, group) }

// Conflict implements neigh.Resolution.
func (o engineOut) Conflict(now mono.Time, ip netip.Addr, hw wire.HWAddr) {
	o.l.report.event(now, EventConflict, ip, "used by "+hw.String())
}

// groupsOut is the Link as its groups call it.
type groupsOut struct{ l *Link }

func (o groupsOut) adoptBroadcast(now mono.Time) error { return o.l.adoptBroadcast(now) }
func (o groupsOut) updateCarrier(now mono.Time)        { o.l.updateCarrier(now) }
func (o groupsOut) undeliverable(now mono.Time, frame []byte) {
	o.l.engine.Undeliverable(now, frame)
}
func (o groupsOut) left(now mono.Time) { o.l.finish(now, false) }
