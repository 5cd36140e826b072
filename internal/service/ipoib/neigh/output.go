// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"net/netip"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// Offsets of destination addresses, and lengths of IP headers.
const (
	ipv4Len, ipv4Src, ipv4Dst = 20, 12, 16
	ipv6Len, ipv6Dst          = 40, 24
)

// Output sends a packet of the IP stack, which lies in frame behind headroom for the hard header: to its destination if
// that is a group or a broadcast address, else to hop; an invalid hop stands for the destination. The frame is the
// caller's again on return: a packet that must wait is copied.
func (e *Engine) Output(now mono.Time, frame []byte, hop netip.Addr) {
	p := frame[headroom:]
	if !e.up {
		e.c.DropDown++
		return
	}
	var typ wire.EtherType
	var group netip.Addr
	switch {
	case len(p) >= ipv4Len && p[0]>>4 == 4:
		typ = wire.EtherIPv4
		switch {
		case p[ipv4Dst]>>4 == 0xe:
			group = netip.AddrFrom4([4]byte(p[ipv4Dst:]))
		case p[ipv4Dst] == 255 && p[ipv4Dst+1] == 255 && p[ipv4Dst+2] == 255 && p[ipv4Dst+3] == 255:
			hop = limitedBroadcast
		case !hop.IsValid():
			hop = netip.AddrFrom4([4]byte(p[ipv4Dst:]))
		}
		if wire.MayReport(p) {
			e.snoop(now, p)
		}
	case len(p) >= ipv6Len && p[0]>>4 == 6:
		typ = wire.EtherIPv6
		if p[ipv6Dst] == 0xff {
			group = netip.AddrFrom16([16]byte(p[ipv6Dst:]))
		} else if !hop.IsValid() {
			hop = netip.AddrFrom16([16]byte(p[ipv6Dst:]))
		}
		if off, ok := wire.ICMPv6(p); ok {
			if wire.IsND(p[off]) && p[off] != wire.NDRouterAdvert {
				e.stackND(now, p, off)
				return
			}
			e.snoop(now, p)
		}
	default:
		e.c.DropVersion++
		return
	}
	if len(p) > e.link.MTU {
		e.c.DropTooBig++
		if !group.IsValid() {
			e.icmpError(now, &e.tooBig, p, plain(hop), e.link.MTU)
		}
		return
	}
	if group.IsValid() {
		e.xmit(now, frame, e.groupHW(group), typ)
		return
	}
	n := e.table.find(hop)
	if n == nil {
		hop = plain(hop)
		if _, ok := e.broadcast[hop]; ok || hop == limitedBroadcast {
			e.xmit(now, frame, wire.PseudoBroadcast, typ)
			return
		}
		if !oneHost(hop) || e.addrs[hop] != nil {
			e.c.DropNoRoute++
			return
		}
		if n = e.table.find(hop); n == nil {
			n = e.create(now, hop)
		}
	}
	e.table.use(n)
	e.unicast(now, n, frame, typ)
}

// unicast sends a frame to n, or keeps a copy until n is resolved.
func (e *Engine) unicast(now mono.Time, n *entry, frame []byte, typ wire.EtherType) {
	switch n.state {
	case Incomplete:
		wire.PutEncap(frame[headroom-wire.EncapLen:], typ)
		if e.pool.push(&n.queue, frame, e.cfg.QueueFrames, e.cfg.QueueBytes) {
			e.c.Queued++
		} else {
			e.c.DropQueueFull++
		}
		if !n.timer.IsSet() {
			e.solicit(now, n)
		}
		return
	case Stale:
		n.state = Delay
		e.timers.Set(&n.timer, now.Add(delayTime))
	}
	e.c.HeaderHits++
	copy(frame, n.header[:])
	wire.PutEncap(frame[headroom-wire.EncapLen:], typ)
	e.out.Frames.Xmit(now, frame)
}

// xmit sends a frame to hw.
func (e *Engine) xmit(now mono.Time, frame []byte, hw wire.HWAddr, typ wire.EtherType) {
	wire.PutHardHeader(frame, &hw, &e.link.HW, typ)
	e.out.Frames.Xmit(now, frame)
}

// groupHW returns the hardware address of an IP group.
func (e *Engine) groupHW(group netip.Addr) wire.HWAddr {
	return wire.GroupHWAddr(wire.GroupGID(group, e.link.PKey, e.link.Scope))
}

// snoop follows the membership reports of the IP stack. p is sent in any case.
func (e *Engine) snoop(now mono.Time, p []byte) {
	r, ok := wire.AppendReports(e.reports[:0], p)
	e.reports = r
	if !ok {
		e.c.BadReports++
	}
	for _, g := range r {
		e.groups.report(e, now, g)
	}
}

// stackND handles Neighbor Discovery of the IP stack. Its router solicitations are sent, with our hardware address;
// other messages are dropped, since the engine sends its own.
func (e *Engine) stackND(now mono.Time, p []byte, off int) {
	if p[off] != wire.NDRouterSolicit {
		e.c.DropStackND++
		return
	}
	var nd wire.ND
	if len(p) > maxScratch-wire.SourceLinkRoom || nd.Parse(p, off) != wire.FrameOK || !nd.Dst.IsMulticast() {
		e.c.DropStackRS++
		return
	}
	hw := &e.link.HW
	if nd.Src.IsUnspecified() {
		hw = nil
	}
	n := headroom + wire.PutSourceLink(e.scratch[headroom:], p, off, hw)
	e.c.NDTx++
	e.xmit(now, e.scratch[:n], e.groupHW(nd.Dst), wire.EtherIPv6)
}

func (e *Engine) sendARP(now mono.Time, a *wire.ARP, to wire.HWAddr) {
	e.c.ARPTx++
	n := headroom + a.Put(e.scratch[headroom:])
	e.xmit(now, e.scratch[:n], to, wire.EtherARP)
}

func (e *Engine) sendND(now mono.Time, nd *wire.ND, to wire.HWAddr) {
	e.c.NDTx++
	n := headroom + nd.Put(e.scratch[headroom:])
	e.xmit(now, e.scratch[:n], to, wire.EtherIPv6)
}

// icmpError sends the IP stack an ICMP error about its packet p, with from as source.
func (e *Engine) icmpError(now mono.Time, limit *bucket, p []byte, from netip.Addr, mtu int) {
	if e.addrs[from] != nil {
		return // the IP stack drops what has its own address as source
	}
	n := wire.PutICMPError(e.scratch[headroom:], p, from, mtu)
	if n == 0 {
		return
	}
	if !limit.allow(now) {
		e.c.ErrorsLimited++
		return
	}
	e.c.Errors++
	typ := wire.EtherIPv4
	if from.Is6() {
		typ = wire.EtherIPv6
	}
	wire.PutHardHeader(e.scratch[:], &e.link.HW, &wire.HWAddr{}, typ)
	e.out.Frames.Deliver(now, e.scratch[:headroom+n])
}

// Resolve returns the hardware address of ip. Where it is unknown, ok is false, and Resolved or Unresolved follows.
func (e *Engine) Resolve(now mono.Time, ip netip.Addr) (hw wire.HWAddr, ok bool) {
	ip = plain(ip)
	n := e.table.find(ip)
	if n == nil {
		n = e.create(now, ip)
	}
	e.table.use(n)
	if n.state != Incomplete {
		if n.state == Stale {
			n.state = Delay
			e.timers.Set(&n.timer, now.Add(delayTime))
		}
		return n.hw, true
	}
	n.resolving = true
	_, bcast := e.broadcast[ip]
	switch {
	case !e.up || bcast || !oneHost(ip) || e.addrs[ip] != nil:
		n.probes = maxProbes
		e.timers.Set(&n.timer, now) // Unresolved must not be called from within
	case !n.timer.IsSet():
		e.solicit(now, n)
	}
	return wire.HWAddr{}, false
}

// create makes an entry for ip. Precondition: it has none.
func (e *Engine) create(now mono.Time, ip netip.Addr) *entry {
	if v := e.table.victim(); v != nil {
		e.c.Evicted++
		e.remove(now, v, false)
	}
	return e.table.add(ip)
}

// remove removes a neighbour, and drops the frames that wait for it; with failed the IP stack gets an ICMP error for
// each.
func (e *Engine) remove(now mono.Time, n *entry, failed bool) {
	e.timers.Set(&n.timer, 0)
	for b := n.queue.pop(); b != nil; b = n.queue.pop() {
		e.c.DropUnresolved++
		if failed {
			e.icmpError(now, &e.unreachable, b.b[headroom:], n.ip, 0)
		}
		e.pool.release(b)
	}
	waited, ip := n.resolving, n.ip
	e.table.remove(n)
	if waited {
		e.out.Resolution.Unresolved(now, ip)
	}
}

// expire handles the timer of a neighbour.
func (e *Engine) expire(now mono.Time, n *entry) {
	switch n.state {
	case Incomplete, Probe:
		if n.probes >= maxProbes {
			e.c.Failed++
			e.remove(now, n, true)
			return
		}
		e.solicit(now, n)
	case Reachable:
		e.setState(now, n, Stale)
	case Stale:
		e.remove(now, n, false)
	case Delay:
		n.probes = 0
		n.state = Probe
		e.solicit(now, n)
	}
}

// solicit sends a request for n: to n itself in Probe, else to all, or to its solicited-node group.
func (e *Engine) solicit(now mono.Time, n *entry) {
	n.probes++
	e.timers.Set(&n.timer, now.Add(retransTime))
	src, ok := e.source(n.ip)
	if n.ip.Is4() {
		if !ok {
			src = netip.IPv4Unspecified() // neighbours reply to a probe as well
			e.c.NoSource++
		}
		to := wire.PseudoBroadcast
		if n.state == Probe {
			to = n.hw
		}
		e.sendARP(now, &wire.ARP{Op: wire.ARPRequest, SenderHW: e.link.HW, SenderIP: src, TargetHW: n.hw,
			TargetIP: n.ip}, to)
		return
	}
	if !ok {
		n.noSource = true // solicitDelayed follows
		e.c.NoSource++
		return
	}
	n.noSource = false
	nd := wire.ND{Type: wire.NDNeighborSolicit, Src: src, Dst: n.ip, Target: n.ip, Link: e.link.HW, HasLink: true}
	to := n.hw
	if n.state != Probe {
		nd.Dst = wire.SolicitedNode(n.ip)
		to = e.groupHW(nd.Dst)
	}
	e.sendND(now, &nd, to)
}

// solicitDelayed solicits the IPv6 neighbours for which there was no source address before: the first own address has
// become valid.
func (e *Engine) solicitDelayed(now mono.Time) {
	for n := range e.table.all() {
		if n.noSource {
			n.probes = 0
			e.solicit(now, n)
		}
	}
}

// setState sets the state of n and the timer of that.
func (e *Engine) setState(now mono.Time, n *entry, s State) {
	n.state = s
	var after mono.Time
	switch s {
	case Reachable:
		after = now.Add(reachableTime/2 + time.Duration(e.cfg.Rand.Int64N(int64(reachableTime))))
	case Stale:
		after = now.Add(staleTime)
	}
	e.timers.Set(&n.timer, after)
}

// Undeliverable reports that the destination group of a frame of Xmit does not exist. If the frame was a solicitation
// to a solicited-node group, the neighbour does not exist, and is removed at the next Tick. Xmit may call it.
func (e *Engine) Undeliverable(now mono.Time, frame []byte) {
	typ, p, why := wire.ParseFrame(frame[headroom-wire.EncapLen:])
	if why != wire.FrameOK || typ != wire.EtherIPv6 {
		return
	}
	off, ok := wire.ICMPv6(p)
	if !ok || p[off] != wire.NDNeighborSolicit {
		return
	}
	var nd wire.ND
	if nd.Parse(p, off) != wire.FrameOK || nd.Src.IsUnspecified() {
		return
	}
	if n := e.table.find(nd.Target); n != nil && n.state == Incomplete {
		n.probes = maxProbes
		e.timers.Set(&n.timer, now)
	}
}

// Forget removes the neighbours at a GID that is out of service.
func (e *Engine) Forget(now mono.Time, gid ib.GID) {
	for n := range e.table.all() {
		if n.state != Incomplete && n.state != Permanent && n.hw.GID() == gid {
			e.remove(now, n, false)
		}
	}
}

// TooBig reports that the packet of a frame of Xmit is longer than the MTU to its destination: the IP stack gets an
// ICMP error. Xmit may call it.
func (e *Engine) TooBig(now mono.Time, frame []byte, mtu int) {
	if &frame[0] == &e.scratch[0] {
		return // of the engine itself
	}
	p := frame[headroom:]
	var from netip.Addr
	switch {
	case len(p) >= ipv4Len && p[0]>>4 == 4:
		from = netip.AddrFrom4([4]byte(p[ipv4Dst:]))
	case len(p) >= ipv6Len && p[0]>>4 == 6:
		if from = netip.AddrFrom16([16]byte(p[ipv6Dst:])); from.IsMulticast() {
			from = e.otherAddr(from)
		}
	}
	// IPv4 has no errors about packets to groups and broadcast addresses (RFC 1122, 3.2.2).
	if _, broadcast := e.broadcast[from]; from.IsValid() && !broadcast {
		e.icmpError(now, &e.tooBig, p, from, mtu)
	}
}

// otherAddr returns an address of the link that is not ours: the source of ICMP errors about packets to an IPv6 group,
// which only another node could send.
func (e *Engine) otherAddr(group netip.Addr) netip.Addr {
	src, ok := e.source(group)
	if !ok {
		return netip.Addr{}
	}
	p := e.addrs[src].prefix
	for _, a := range []netip.Addr{src.Next(), src.Prev()} {
		if p.Contains(a) && e.addrs[a] == nil {
			return a
		}
	}
	return netip.Addr{}
}
