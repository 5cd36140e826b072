// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

const (
	// kind16 precedes a 16B packet on a trunk and in the loop-back queue. The low four bits of a 9B
	// packet's first octet are LVer of its LRH, which is 0, so that the first octet distinguishes the
	// two.
	kind16 = 0x01
	// maxAge16 bounds the switches that a 16B packet passes behind the first: no
	// path that a directed route can explore is longer (IBA 14.2.2).
	maxAge16 = 63
	// managementSC carries no multicast packet.
	managementSC = 15
)

// Taker accepts a 16B packet for a function of this node. wire.Parse16 has accepted it, and
// wire.Verify16 if it arrived over a trunk; the switch has checked its partition key, and nothing else
// is checked. h is valid until Taker returns, p until the next Recv. Taker may send. It returns false
// if the function has no port for such packets.
type Taker func(now mono.Time, function uint16, h *wire.Header16, p []byte) bool

// SetTaker makes f take all 16B packets that Recv has for functions of this
// node, on the goroutine that calls Recv; nil, which is how a Link begins: none
// of them has a port for such packets.
func (l *Link) SetTaker(f Taker) { l.take = f }

// Egress16 is the set of destinations of packets with one header, as the switch gave it to Open16. It
// is valid until the Link's next Recv.
type Egress16 struct {
	w     *Wiring
	ports vswitch.PortSet // to which packets are copied, if they are several
	only  Plug            // to which they go, if it is one
	n     int
	here  vswitch.PortSet // functions that Next has not returned yet
	group bool
}

// Open16 looks up the destinations of packets that a function of this node sends with header h; the
// length in h is not used. The function itself is no destination. The source must be a LID of the
// function. ok is false if there is no destination; each reason is counted as a drop of its own.
//
// Next returns the functions of this node, which get the content without the packets; with
// Config.WireLocal they get packets.
func (l *Link) Open16(function uint16, h *wire.Header16) (e Egress16, ok bool) {
	t, w := l.cfg.Table.Load(), l.cfg.Wiring.Load()
	slid, ok := source16(h)
	if !ok {
		l.c.DropRoute[vswitch.BadLID]++
		return e, false
	}
	in := t.Entry(slid)
	if w.At(in) != (Plug{Function, function}) {
		l.c.DropUnconnected++
		return e, false
	}
	return l.open16(t, w, in, h, l.cfg.WireLocal)
}

// open16 is Open16 with the ingress port.
func (l *Link) open16(t *vswitch.Table, w *Wiring, in uint8, h *wire.Header16, packets bool) (e Egress16, ok bool) {
	set, _ := l.route16(t, in, h)
	e.w, e.group = w, multicast16(h)
	looped := false
	for out, ok := set.Next(); ok; out, ok = set.Next() {
		switch to := w.Port[out]; {
		case to.Kind == Peer, to.Kind == Function && packets && !looped:
			looped = to.Kind == Function || looped // once: deliver16 looks up the destinations again
			e.ports.Add(out)
			e.only = to
			e.n++
		case to.Kind == Function && !packets:
			e.here.Add(out)
		case to.Kind != Function:
			l.c.Drop16NoPort++
		}
	}
	return e, e.n > 0 || !e.here.Empty()
}

// Packets reports whether packets have to be built.
func (e *Egress16) Packets() bool { return e.n > 0 }

// Next returns the next function of this node that is to get what the packets
// hold; false: no more.
func (e *Egress16) Next() (function uint16, ok bool) {
	out, ok := e.here.Next()
	if !ok {
		return 0, false
	}
	return e.w.Port[out].Number, true
}

// Reserve16 returns a buffer, with undefined content, for a packet of n octets: in the buffer of the
// trunk, if there is one destination. nil is a counted drop. The buffer is valid until the Link's next
// call.
//
// Preconditions: e.Packets(), and 0 < n ≤ wire.MaxPacket16.
func (l *Link) Reserve16(e *Egress16, n int) []byte {
	if e.n > 1 {
		return l.stage[:n:n]
	}
	b := l.reserve(e.only, 1+n)
	if b == nil {
		return nil
	}
	b[0] = kind16
	return b[1:]
}

// Commit16 sends the packet of n octets that was built, with Header16.Put and
// wire.Seal16, in what Reserve16 returned for n: over trunks with the next Flush, and
// within the node with the next Recv.
func (l *Link) Commit16(now mono.Time, e *Egress16, n int) {
	if e.n == 1 {
		l.commitWords(now, e.only, 1+n, n/4, e.group)
		return
	}
	ports := e.ports
	for out, ok := ports.Next(); ok; out, ok = ports.Next() {
		to := e.w.Port[out]
		if b := l.reserve(to, 1+n); b != nil {
			b[0] = kind16
			copy(b[1:], l.stage[:n])
			l.commitWords(now, to, 1+n, n/4, e.group)
		}
	}
}

// Send16 sends a whole 16B packet of a function of this node, as Open16 and
// Commit16 would, and to functions of this node as a packet. p is not kept.
func (l *Link) Send16(now mono.Time, p []byte) {
	var h wire.Header16
	if _, why := wire.Parse16(p, &h); why != wire.OK {
		l.c.DropRefusal[why]++
		return
	}
	t, w := l.cfg.Table.Load(), l.cfg.Wiring.Load()
	slid, ok := source16(&h)
	if !ok {
		l.c.DropRoute[vswitch.BadLID]++
		return
	}
	in := t.Entry(slid)
	if w.At(in).Kind != Function {
		l.c.DropUnconnected++
		return
	}
	e, ok := l.open16(t, w, in, &h, true)
	if !ok {
		return
	}
	if b := l.Reserve16(&e, len(p)); b != nil {
		copy(b, p)
		l.Commit16(now, &e, len(p))
	}
}

// source16 returns the source of a packet; false where it is no port's.
func source16(h *wire.Header16) (ib.LID, bool) {
	slid, ok := vswitch.LIDOf24(h.SLID)
	return slid, ok && slid.IsUnicast()
}

// multicast16 reports whether the destination of a packet is a group.
func multicast16(h *wire.Header16) bool {
	dlid, _ := vswitch.LIDOf24(h.DLID)
	return dlid.IsMulticast()
}

// route16 looks up the egress ports of a packet that arrived by port in. It counts a packet that is refused, and
// returns an empty set for it. why is OK unless the switch refused the packet.
func (l *Link) route16(t *vswitch.Table, in uint8, h *wire.Header16) (set vswitch.PortSet, why vswitch.Refusal) {
	if h.SC == managementSC && multicast16(h) {
		l.c.Drop16SC++
		return set, vswitch.OK
	}
	if set, why = t.Route24(in, h.DLID, h.PKey); why != vswitch.OK {
		l.c.DropRoute[why]++
		return vswitch.PortSet{}, why
	}
	return set, vswitch.OK
}

// put16 puts a packet on its way to a trunk or into the loop-back queue.
func (l *Link) put16(now mono.Time, to Plug, p []byte, h *wire.Header16, age uint8) bool {
	b := l.reserve(to, 1+len(p))
	if b == nil {
		return false
	}
	b[0] = kind16
	copy(b[1:], p)
	wire.SetAge16(b[1:], age)
	l.commitWords(now, to, len(b), len(p)/4, multicast16(h))
	return true
}

// fromTrunk16 takes one 16B packet of a peer at port in through the vswitch.
func (l *Link) fromTrunk16(w *Wiring, peer int, in uint8, p []byte) {
	var h wire.Header16
	_, bad := wire.Parse16(p, &h)
	if bad == wire.OK {
		bad = wire.Verify16(p)
	}
	pc := &l.peers[peer]
	if bad != wire.OK {
		l.c.DropRefusal[bad]++
		pc.RcvErrors++
		return
	}
	l.c.RcvdPackets++
	l.c.RcvdBytes += uint64(1 + len(p))
	pc.RcvPkts++
	pc.RcvData += uint64(len(p) / 4)
	if multicast16(&h) {
		pc.MulticastRcv++
	}
	t := l.cfg.Table.Load()
	slid, ok := source16(&h)
	if !ok {
		l.c.DropRoute[vswitch.BadLID]++
		return
	}
	if l.ours(t, w, slid) {
		l.c.DropOwnSource++
		return
	}
	confined := w.Confined.Has(in)
	if confined && t.Entry(slid) != in {
		l.foreignSource(peer)
		return
	}
	set, why := l.route16(t, in, &h)
	if confined && why == vswitch.PKeyIn {
		l.foreignPKey(peer)
	}
	for out, ok := set.Next(); ok; out, ok = set.Next() {
		switch to := w.Port[out]; to.Kind {
		case Peer:
			if h.Age >= maxAge16 {
				l.c.Drop16Age++
			} else if l.put16(l.now, to, p, &h, h.Age+1) {
				l.c.Forwarded++
			}
		case Function:
			l.take16(to.Number, &h, p)
		default:
			l.c.Drop16NoPort++
		}
	}
}

// deliver16 delivers a packet that this link sent to functions of its own node. It looks up the tables
// again, which may have changed.
func (l *Link) deliver16(p []byte) {
	var h wire.Header16
	if _, why := wire.Parse16(p, &h); why != wire.OK {
		l.c.DropRefusal[why]++
		return
	}
	t, w := l.cfg.Table.Load(), l.cfg.Wiring.Load()
	slid, _ := source16(&h)
	set, _ := l.route16(t, t.Entry(slid), &h)
	for out, ok := set.Next(); ok; out, ok = set.Next() {
		if to := w.Port[out]; to.Kind == Function {
			l.take16(to.Number, &h, p)
		}
	}
}

// take16 hands a packet to a function.
func (l *Link) take16(function uint16, h *wire.Header16, p []byte) {
	l.head16 = *h // in l, since what a Taker gets is on the heap
	if l.take == nil || !l.take(l.now, function, &l.head16, p) {
		l.c.Drop16NoPort++
		return
	}
	l.c.Accepted16++
}
