// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"

	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/neigh"
)

// out is the Link as its engine sees it.
type out struct{ l *Link }

var _ neigh.Out = out{}

func newEngine(l *Link) *neigh.Engine {
	c := neigh.Config{MaxNeighbours: l.p.MaxNeigh, Rand: l.rnd}
	if l.isConnected() {
		c.QueueBytes = connBytes
	}
	return neigh.New(c, out{l})
}

// setLink tells the engine what it has to know of the link.
func (l *Link) setLink(now mono.Time) {
	if l.mtu > 0 {
		l.eng.SetLink(now, neigh.LinkInfo{HW: l.hw, PKey: l.cfg.PKey, Scope: l.scope(), MTU: l.mtu})
	}
}

// Xmit implements neigh.Out: the destination of a frame is in its hard header, where
// the pseudo broadcast address stands for the broadcast group.
func (o out) Xmit(now mono.Time, frame []byte) { o.l.xmit(now, frame) }

func (l *Link) xmit(now mono.Time, frame []byte) {
	switch {
	case !l.carrier:
		l.c.Net.TxCarrierErrors++
		l.txError(DropLinkDown)
		return
	case len(frame) <= Headroom:
		l.txError(DropShort)
		return
	case len(frame)-Headroom > l.mtu:
		l.txError(DropTooBig)
		return
	}
	h := wire.HardHeader(frame)
	hw := h.Dst()
	switch {
	case hw.IsGroup() && len(frame)-Headroom > l.dgramMTU:
		l.tooBig(now, frame, l.dgramMTU)
		return
	case hw == wire.PseudoBroadcast:
		l.groupcast(now, l.broadcast.mgid, frame)
	case hw.IsGroup():
		l.groupcast(now, hw.GID(), frame)
	default:
		l.unicast(now, hw, frame)
	}
	l.watchQuestions(now, h.Type(), hw, frame[Headroom:])
}

// watchQuestions follows the questions for addresses that the link sends, which keeps the
// shadow table in step with the neighbours.
func (l *Link) watchQuestions(now mono.Time, t wire.EtherType, hw wire.HWAddr, p []byte) {
	switch t {
	case wire.EtherARP:
		var a wire.ARP
		if l.c.Driver.ARPTx++; a.Parse(p) == wire.FrameOK && a.Op == wire.ARPRequest {
			l.asked(now, a.TargetIP, hw)
		}
	case wire.EtherIPv6:
		off, ok := wire.ICMPv6(p)
		if !ok || !wire.IsND(p[off]) {
			return
		}
		l.c.Driver.NDTx++
		if p[off] == wire.NDNeighborSolicit && off+24 <= len(p) {
			l.asked(now, netip.AddrFrom16([16]byte(p[off+8:])), hw)
		}
	}
}

// Deliver implements neigh.Out.
func (o out) Deliver(now mono.Time, frame []byte) { o.l.deliverOne(frame) }

// Learned implements neigh.Out. Who waits for the path to an address that is elsewhere
// now goes on with the path to there.
func (o out) Learned(now mono.Time, ip netip.Addr, hw wire.HWAddr) {
	if len(o.l.waiters[ip]) > 0 {
		o.Resolved(now, ip, hw)
		return
	}
	o.l.learned(now, ip, hw)
}

// Resolved implements neigh.Out: get-path goes on with the path.
func (o out) Resolved(now mono.Time, ip netip.Addr, hw wire.HWAddr) {
	l := o.l
	e := l.learned(now, ip, hw)
	switch {
	case e == nil:
		l.notFound(ip, ErrNoNode)
	case e.resolved && !l.stale(e):
		l.found(ip, e)
	case e.resolved:
		e.resolved = false
		l.askPath(now, e.path)
	}
}

// Unresolved implements neigh.Out.
func (o out) Unresolved(now mono.Time, ip netip.Addr) { o.l.notFound(ip, ErrNoNode) }

// Join implements neigh.Out.
func (o out) Join(now mono.Time, group netip.Addr) { o.l.JoinGroup(now, group) }

// Leave implements neigh.Out.
func (o out) Leave(now mono.Time, group netip.Addr) { o.l.LeaveGroup(now, group) }

// Conflict implements neigh.Out.
func (o out) Conflict(now mono.Time, ip netip.Addr, hw wire.HWAddr) {
	o.l.event(now, EventConflict, ip, "used by "+hw.String())
}
