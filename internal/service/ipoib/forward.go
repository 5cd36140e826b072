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

// forwarder decides how a frame travels: to a group, to a neighbour as a datagram, or by a connection. It implements
// shadowLink and connected.Link.
type forwarder struct {
	attr   *attributes
	stats  *stats.Recorder
	engine *neigh.Engine
	groups *groups
	shadow *shadow
	sender *sender
	conns  *connected.Conns // nil in datagram mode
}

// forward sends a frame of the engine. Its destination is in the hard header, where the pseudo broadcast address stands
// for the broadcast group.
func (f *forwarder) forward(now mono.Time, frame []byte) {
	switch {
	case !f.attr.carrier:
		f.stats.Net.TxCarrierErrors++
		f.stats.TxError(stats.DropLinkDown)
		return
	case len(frame) <= Headroom:
		f.stats.TxError(stats.DropShort)
		return
	case len(frame)-Headroom > f.attr.mtu:
		f.stats.TxError(stats.DropTooBig)
		return
	}
	h := wire.HardHeader(frame)
	hw := h.Dst()
	switch {
	case hw.IsGroup() && len(frame)-Headroom > f.attr.dgramMTU:
		f.RejectTooBig(now, frame, f.attr.dgramMTU)
		return
	case hw == wire.PseudoBroadcast:
		f.groups.send(now, f.attr.broadcastGID, frame)
	case hw.IsGroup():
		f.groups.send(now, hw.GID(), frame)
	default:
		if e := f.shadow.destination(now, hw, frame); e != nil {
			f.sendTo(now, e, frame)
		}
	}
	f.noteRequests(now, h.Type(), hw, frame[Headroom:])
}

// sendTo sends a frame to a neighbour with a resolved entry: by its connection, or as a datagram.
func (f *forwarder) sendTo(now mono.Time, e *entry, frame []byte) {
	mtu := f.attr.dgramMTU
	if e.flags&wire.HWFlagRC != 0 && f.conns != nil && byConnection(frame) && !f.shadow.isLocal(e.path) {
		if mtu = f.conns.Send(now, e.hw, &e.attempts, &e.path.rec, frame); mtu == 0 {
			return
		}
	}
	if len(frame)-Headroom > f.attr.dgramMTU {
		f.RejectTooBig(now, frame, mtu)
		return
	}
	f.sender.send(frame, e.dest())
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

// RejectTooBig implements connected.Link: it drops a frame and reports the MTU to the IP stack.
func (f *forwarder) RejectTooBig(now mono.Time, frame []byte, mtu int) {
	f.stats.TxError(stats.DropTooBig)
	f.engine.TooBig(now, frame, mtu)
}

// noteRequests follows the ARP requests and solicitations that the link sends, which keeps the shadow table in step
// with the neighbours.
func (f *forwarder) noteRequests(now mono.Time, t wire.EtherType, hw wire.HWAddr, p []byte) {
	switch t {
	case wire.EtherARP:
		var a wire.ARP
		if f.stats.Driver.ARPTx++; a.Parse(p) == wire.FrameOK && a.Op == wire.ARPRequest {
			f.shadow.noteRequest(now, a.TargetIP, hw)
		}
	case wire.EtherIPv6:
		off, ok := wire.ICMPv6(p)
		if !ok || !wire.IsND(p[off]) {
			return
		}
		f.stats.Driver.NDTx++
		if p[off] == wire.NDNeighborSolicit && off+24 <= len(p) {
			f.shadow.noteRequest(now, netip.AddrFrom16([16]byte(p[off+8:])), hw)
		}
	}
}

// probe implements shadowLink.
func (f *forwarder) probe(now mono.Time, ip netip.Addr) { f.engine.Probe(now, ip) }

// SendUnicast implements connected.Link.
func (f *forwarder) SendUnicast(now mono.Time, hw wire.HWAddr, frame []byte) {
	t := f.shadow
	if t.entries[hw] == nil {
		f.stats.TxDrop(stats.DropNoPath)
	} else if e := t.destination(now, hw, frame); e != nil {
		f.sendTo(now, e, frame)
	}
}

// SendDatagram implements connected.Link.
func (f *forwarder) SendDatagram(hw wire.HWAddr, frame []byte) bool {
	e := f.shadow.entries[hw]
	if e == nil || e.state != entryResolved {
		return false
	}
	f.sender.send(frame, e.dest())
	return true
}
