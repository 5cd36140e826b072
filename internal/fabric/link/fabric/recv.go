// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"encoding/binary"

	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// Recv returns bursts for functions of this node: from trunks, and from this node's own functions
// through the packet format. It forwards packets for other nodes, and passes datagrams to
// Config.Manage. Bursts, their paths and payload stay valid until the next Recv; Path.Function is the
// receiving function, or Multicast. more reports that there may be more packets now.
func (l *Link) Recv(now mono.Time) (runs []pkt.Burst, more bool) {
	l.now = now
	l.joiner.Reset()
	l.npaths = 0
	if len(l.rest) == 0 {
		l.loop, l.looping = l.looping[:0], l.loop
		l.rest = l.looping
	}
	for range loopPackets {
		if len(l.rest) == 0 {
			break
		}
		n := int(binary.BigEndian.Uint16(l.rest))
		l.deliver(l.rest[2 : 2+n])
		l.rest = l.rest[2+n:]
	}
	if s := l.cfg.Source; s != nil {
		more = s.Recv(now, l.recv)
		s.Tick(now)
	}
	return l.joiner.Bursts(), more
}

// fromTrunk takes one packet of a peer through the vswitch.
func (l *Link) fromTrunk(peer int, p []byte) {
	w := l.cfg.Wiring.Load()
	in, ok := w.PortOf(peer)
	if !ok {
		l.c.DropUnconnected++
		return
	}
	if len(p) > 0 && p[0] == kind16 {
		l.fromTrunk16(w, peer, in, p[1:])
		return
	}
	var lrh wire.LRH
	var grh wire.GRH
	t, why := wire.ParseIB(p, &lrh, &grh)
	if why == wire.OK && len(t) < wire.BTHLen {
		why = wire.Short
	}
	if why == wire.OK && wire.VCRC(p[:len(p)-wire.VCRCLen]) != binary.BigEndian.Uint16(p[len(p)-wire.VCRCLen:]) {
		why = wire.BadVCRC
	}
	pc := &l.peers[peer]
	if why != wire.OK {
		l.c.DropRefusal[why]++
		pc.RcvErrors++
		return
	}
	l.c.RcvdPackets++
	l.c.RcvdBytes += uint64(len(p))
	pc.RcvPkts++
	pc.RcvData += uint64(lrh.PktLen)
	if lrh.DLID.IsMulticast() {
		pc.MulticastRcv++
	}
	table := l.cfg.Table.Load()
	if lrh.SLID.IsUnicast() && l.ours(table, w, lrh.SLID) {
		l.c.DropOwnSource++
		return
	}
	confined := w.Confined.Has(in)
	if confined && !l.admits(table, w, in, peer, &lrh, &grh, t) {
		return
	}
	if lrh.VL == managementVL {
		out, why := table.Management(in, lrh.DLID)
		if why != vswitch.OK {
			l.c.DropRoute[why]++
			return
		}
		l.manage(w, in, out, p, &lrh, &grh, t)
		return
	}
	key := ib.PKey(binary.BigEndian.Uint16(t[2:]))
	if !lrh.DLID.IsMulticast() {
		out, why := table.Unicast(in, lrh.DLID, key)
		if why != vswitch.OK {
			l.refused(confined, peer, why)
			return
		}
		to := w.Port[out]
		switch qpn := binary.BigEndian.Uint32(t[4:]) & 0xffffff; {
		case to.Kind == Peer:
			l.forward(to, p, lrh.DLID)
		case out == 0 || qpn <= uint32(ib.QPNGSI):
			l.manage(w, in, out, p, &lrh, &grh, t)
		case to.Kind == Function:
			l.burst(to.Number, p, &lrh, &grh, t)
		default:
			l.c.DropUnconnected++
		}
		return
	}
	set, route := table.Multicast(in, lrh.DLID, key)
	if route != vswitch.OK {
		l.refused(confined, peer, route)
		return
	}
	here := false
	for out, ok := set.Next(); ok; out, ok = set.Next() {
		switch to := w.Port[out]; to.Kind {
		case Peer:
			l.forward(to, p, lrh.DLID)
		case Function:
			here = true
		}
	}
	if here {
		l.burst(Multicast, p, &lrh, &grh, t)
	}
}

// ours reports whether a LID is one of this node. A packet from a trunk must not have such a source.
func (l *Link) ours(t *vswitch.Table, w *Wiring, slid ib.LID) bool {
	at := t.Entry(slid)
	return at == 0 || w.At(at).Kind == Function
}

// forward sends a packet on as it is: neither CRC changes with the hop, since
// the virtual lane does not.
func (l *Link) forward(to Plug, p []byte, dlid ib.LID) {
	if b := l.reserve(to, len(p)); b != nil {
		copy(b, p)
		l.commit(l.now, to, len(p), dlid)
		l.c.Forwarded++
	}
}

// manage hands over a packet for queue pair 0 or 1 of port out, or sends it on.
func (l *Link) manage(w *Wiring, in, out uint8, p []byte, lrh *wire.LRH, grh *wire.GRH, t []byte) {
	if to := w.Port[out]; to.Kind == Peer {
		l.forward(to, p, lrh.DLID)
		return
	}
	if !l.intact(p) {
		return
	}
	if !ParseMAD(lrh, grh, t, &l.d) || (lrh.VL == managementVL) != (l.d.DstQPN == ib.QPNSMI) {
		l.c.DropRefusal[wire.NotTransport]++
		return
	}
	l.c.ToManagement++
	l.d.Port = in
	l.cfg.Manage(&l.d)
}

// deliver delivers a packet that this link sent to a function of its own node.
func (l *Link) deliver(p []byte) {
	if p[0] == kind16 {
		l.deliver16(p[1:])
		return
	}
	var lrh wire.LRH
	var grh wire.GRH
	t, why := wire.ParseIB(p, &lrh, &grh)
	if why != wire.OK {
		l.c.DropRefusal[why]++
		return
	}
	// The tables may have changed since it was sent.
	to := l.cfg.Wiring.Load().At(l.cfg.Table.Load().Entry(lrh.DLID))
	if to.Kind != Function {
		l.c.DropUnconnected++
		return
	}
	l.burst(to.Number, p, &lrh, &grh, t)
}

// intact reports whether the packet's ICRC is right.
func (l *Link) intact(p []byte) bool {
	n := len(p) - wire.VCRCLen
	if wire.SumIB(p[:n-wire.ICRCLen]) != wire.ICRC(p[:n]) {
		l.c.DropRefusal[wire.BadICRC]++
		return false
	}
	return true
}

// burst appends a packet to the bursts of this Recv.
func (l *Link) burst(function uint16, p []byte, lrh *wire.LRH, grh *wire.GRH, t []byte) {
	if l.joiner.Full() || l.npaths == len(l.paths) {
		l.c.DropNoRoom++
		return
	}
	r := l.joiner.Slot()
	payload, why := r.Headers.Parse(t)
	if why != wire.OK {
		l.c.DropRefusal[why]++
		return
	}
	if !l.intact(p) {
		return
	}
	path := &l.paths[l.npaths]
	*path = ib.Path{SLID: lrh.SLID, DLID: lrh.DLID, SL: lrh.SL, Function: function}
	if lrh.LNH == wire.LNHGlobal {
		path.Global, path.TClass, path.FlowLabel, path.HopLimit = true, grh.TClass, grh.FlowLabel, grh.HopLimit
		path.SGID, path.DGID = grh.SGID, grh.DGID
	}
	if l.npaths > 0 && *path == l.paths[l.npaths-1] {
		path = &l.paths[l.npaths-1]
	} else {
		l.npaths++
	}
	r.Count, r.MTU, r.Path, r.IPv4, r.Fault = 1, uint32(len(payload)), path, false, false
	r.Data = mem.Payload{Bytes: payload, Len: len(payload), Lasting: true}
	l.joiner.Add()
}
