// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"net/netip"

	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// Input handles a frame of the link with its hard header: the source, or zero where it is unknown, and the
// encapsulation header; the destination is ignored. It returns the frame for the IP stack, with its headroom, perhaps
// shortened; nil where the frame ends here. The frame may be changed.
func (e *Engine) Input(now mono.Time, kind Kind, frame []byte) (up []byte) {
	typ, p, why := wire.ParseFrame(frame[headroom-wire.EncapLen:])
	if why != wire.FrameOK {
		e.c.Refused[why]++
		return nil
	}
	switch typ {
	case wire.EtherIPv4:
		return frame
	case wire.EtherARP:
		e.handleARP(now, kind, p)
		return nil
	case wire.EtherIPv6:
		if off, ok := wire.ICMPv6(p); ok && wire.IsND(p[off]) {
			return e.handleND(now, frame, p, off)
		}
		return frame
	}
	return nil // RARP is not supported
}

// handleARP handles an ARP packet (RFC 826).
func (e *Engine) handleARP(now mono.Time, kind Kind, p []byte) {
	e.c.ARPRx++
	var a wire.ARP
	if why := a.Parse(p); why != wire.FrameOK {
		e.c.Refused[why]++
		return
	}
	switch {
	case !e.up || a.SenderHW.Same(e.link.HW): // our own, returned by the fabric
		return
	case a.Op != wire.ARPRequest && a.Op != wire.ARPReply:
		e.c.IgnoredOp++
		return
	}
	target := e.validAddr(a.TargetIP)
	if mine := e.addrs[a.SenderIP]; mine != nil {
		e.handleConflict(now, mine, a.SenderHW)
	} else if !a.SenderIP.IsUnspecified() {
		solicited := a.Op == wire.ARPReply && kind == Host
		e.learn(now, a.SenderIP, a.SenderHW, solicited, solicited, target != nil)
	}
	if a.Op == wire.ARPRequest && target != nil {
		e.sendARP(now, &wire.ARP{Op: wire.ARPReply, SenderHW: e.link.HW, SenderIP: a.TargetIP, TargetHW: a.SenderHW,
			TargetIP: a.SenderIP}, a.SenderHW)
	}
}

// learn stores that ip is at hw. confirmed: it is the reply to a request of ours. override changes an address whatever
// its age. create makes an entry where there is none. It returns the entry; nil where there is none.
func (e *Engine) learn(now mono.Time, ip netip.Addr, hw wire.HWAddr, confirmed, override, create bool) *entry {
	n := e.table.find(ip)
	if n == nil {
		if _, ok := e.broadcast[ip]; ok || !oneHost(ip) {
			e.c.IgnoredSender++
			return nil
		}
		if !create {
			return nil
		}
		n = e.create(now, ip)
	}
	switch {
	case n.state == Permanent:
		return n
	case n.state == Incomplete:
	case n.hw != hw:
		if !override && now.Sub(n.updated) < lockTime {
			e.c.IgnoredLocked++
			return n
		}
	case !confirmed:
		return n // nothing new
	}
	e.store(now, n, hw, confirmed)
	return n
}

// store sets the hardware address of n, and sends the frames that wait for it.
func (e *Engine) store(now mono.Time, n *entry, hw wire.HWAddr, confirmed bool) {
	if n.state == Incomplete || n.hw != hw {
		n.hw, n.updated = hw, now
		n.makeHeader(&e.link.HW)
	}
	n.noSource = false
	if confirmed {
		e.setState(now, n, Reachable)
	} else {
		e.setState(now, n, Stale)
	}
	e.out.Resolution.Learned(now, n.ip, hw)
	if n.resolving {
		n.resolving = false
		e.out.Resolution.Resolved(now, n.ip, hw)
	}
	for b := n.queue.pop(); b != nil; b = n.queue.pop() {
		e.unicast(now, n, b.b, wire.HardHeader(b.b).Type())
		e.pool.release(b)
	}
}

// handleND handles Neighbor Discovery. Messages of neighbours end here. Those of routers go to the IP stack, without
// the option that it would refuse.
func (e *Engine) handleND(now mono.Time, frame, p []byte, off int) (up []byte) {
	e.c.NDRx++
	var nd wire.ND
	if why := nd.Parse(p, off); why != wire.FrameOK {
		e.c.Refused[why]++
		return nil
	}
	if !e.up || nd.HasLink && nd.Link.Same(e.link.HW) || wire.HardHeader(frame).Src().Same(e.link.HW) {
		return nil // our own, returned by the fabric
	}
	switch nd.Type {
	case wire.NDNeighborSolicit:
		e.handleSolicit(now, &nd, wire.HardHeader(frame).Src())
		return nil
	case wire.NDNeighborAdvert:
		e.handleAdvert(now, &nd, wire.HardHeader(frame).Src())
		return nil
	case wire.NDRedirect:
		e.c.IgnoredRedirect++ // routes belong to the IP stack
		return nil
	}
	if nd.HasLink && !nd.Src.IsUnspecified() {
		if mine := e.addrs[nd.Src]; mine != nil {
			e.handleConflict(now, mine, nd.Link)
			return nil
		}
		advert := nd.Type == wire.NDRouterAdvert
		if n := e.learn(now, nd.Src, nd.Link, false, false, advert); n != nil {
			n.router = advert
		}
	}
	return frame[:headroom+wire.PutSourceLink(p, p, off, nil)]
}

// handleSolicit replies to a Neighbor Solicitation. from is the hardware address of the sender; zero where it is
// unknown.
func (e *Engine) handleSolicit(now mono.Time, nd *wire.ND, from wire.HWAddr) {
	mine := e.addrs[nd.Target]
	if mine == nil {
		e.c.IgnoredTarget++
		return
	}
	probe := nd.Src.IsUnspecified() // duplicate address detection of another node
	if mine.state != Valid {
		if probe && mine.state == Tentative {
			e.handleConflict(now, mine, from)
		}
		return
	}
	reply := wire.ND{Type: wire.NDNeighborAdvert, Src: nd.Target, Dst: nd.Src, Target: nd.Target, Solicited: true,
		Override: true, Link: e.link.HW, HasLink: true}
	if probe {
		reply.Dst, reply.Solicited = allNodes, false
		e.sendND(now, &reply, e.groupHW(allNodes))
		return
	}
	if other := e.addrs[nd.Src]; other != nil {
		if nd.HasLink {
			from = nd.Link
		}
		e.handleConflict(now, other, from)
		return
	}
	if nd.HasLink {
		e.learn(now, nd.Src, nd.Link, false, false, true)
		e.sendND(now, &reply, nd.Link)
		return
	}
	n := e.table.find(nd.Src)
	switch {
	case n != nil && n.state != Incomplete:
		e.sendND(now, &reply, n.hw)
	case from.Unicast():
		e.sendND(now, &reply, from)
	case !oneHost(nd.Src):
		e.c.IgnoredSender++
	default:
		if n == nil {
			n = e.create(now, nd.Src)
		}
		e.c.NDTx++
		e.unicast(now, n, e.scratch[:headroom+reply.Put(e.scratch[headroom:])], wire.EtherIPv6)
	}
}

// handleAdvert handles a Neighbor Advertisement (RFC 4861, 7.2.5).
func (e *Engine) handleAdvert(now mono.Time, nd *wire.ND, from wire.HWAddr) {
	if mine := e.addrs[nd.Target]; mine != nil {
		if nd.HasLink {
			from = nd.Link
		}
		e.handleConflict(now, mine, from)
		return
	}
	n := e.table.find(nd.Target)
	switch {
	case n == nil || n.state == Incomplete && !nd.HasLink:
		e.c.IgnoredAdvert++
		return
	case n.state == Permanent:
		return
	case n.state == Incomplete:
		e.store(now, n, nd.Link, nd.Solicited)
	case nd.HasLink && nd.Link != n.hw && !nd.Override:
		if n.state == Reachable {
			e.setState(now, n, Stale)
		}
		return
	case nd.HasLink && nd.Link != n.hw:
		if !nd.Solicited && now.Sub(n.updated) < lockTime {
			e.c.IgnoredLocked++
			return
		}
		e.store(now, n, nd.Link, nd.Solicited)
	case nd.Solicited:
		e.store(now, n, n.hw, true)
	}
	n.router = nd.Router
}
