// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"weft/internal/ib"
	"weft/internal/mono"
	"weft/internal/vswitch"
	"weft/internal/wire"
)

const (
	// kind16 stands in front of a 16B packet on a trunk and in the loop-back
	// queue. Where a 9B packet begins the low four bits are LVer of its LRH,
	// which is 0; so neither can be taken for the other.
	kind16 = 0x01
	// maxAge16 bounds the switches that a 16B packet passes behind the first: no
	// path that a directed route can explore is longer (IBA 14.2.2).
	maxAge16 = 63
	// managementSC carries no multicast packet.
	managementSC = 15
)

// Taker takes a 16B packet that has come for a function of this node, as
// wire.Parse16 and, where it came over a trunk, wire.Verify16 accepted it; its
// partition key has passed the switch and no more. p and h stay valid until it
// returns. It may call Send16. false tells that the function has no port for
// such packets.
type Taker func(now mono.Time, function uint16, h *wire.Header16, p []byte) bool

// SetTaker makes f take all 16B packets that Recv has for functions of this
// node, on the goroutine that calls Recv; nil, which is how a Link begins: none
// of them has a port for such packets.
func (l *Link) SetTaker(f Taker) { l.take = f }

// Send16 sends a 16B packet of a function of this node, built with
// Header16.Put and wire.Seal16, where the switch says: over trunks with the next
// Flush, to functions of this node with the next Recv, and never back to the
// function. p is not kept. What stands in the way is counted as a loss by its name.
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
		l.c.DropNoPlug++
		return
	}
	set, ok := l.route16(t, in, &h)
	if !ok {
		return
	}
	here := Plug{}
	for out, ok := set.Next(); ok; out, ok = set.Next() {
		switch to := w.Port[out]; to.Kind {
		case Peer:
			l.put16(now, to, p, &h, h.Age)
		case Function:
			here = to
		default:
			l.c.Drop16NoPort++
		}
	}
	if here.Kind == Function {
		l.put16(now, here, p, &h, h.Age) // once: deliver16 asks the switch again
	}
}

// source16 returns the source of a packet; false where it is no port's.
func source16(h *wire.Header16) (ib.LID, bool) {
	slid, ok := vswitch.LIDOf24(h.SLID)
	return slid, ok && slid.IsUnicast()
}

// multicast16 reports whether a packet goes to a group.
func multicast16(h *wire.Header16) bool {
	dlid, _ := vswitch.LIDOf24(h.DLID)
	return dlid.IsMulticast()
}

// route16 asks the switch where a packet goes that came in by port in, and counts
// what it refuses.
func (l *Link) route16(t *vswitch.Table, in uint8, h *wire.Header16) (set vswitch.PortSet, ok bool) {
	if h.SC == managementSC && multicast16(h) {
		l.c.Drop16SC++
		return set, false
	}
	set, why := t.Route24(in, h.DLID, h.PKey)
	if why != vswitch.OK {
		l.c.DropRoute[why]++
		return set, false
	}
	return set, true
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
	_, why := wire.Parse16(p, &h)
	if why == wire.OK {
		why = wire.Verify16(p)
	}
	pc := &l.peers[peer]
	if why != wire.OK {
		l.c.DropRefusal[why]++
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
	set, ok := l.route16(t, in, &h)
	if !ok {
		return
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

// deliver16 takes in a packet that this link sent to functions of its own node.
// The tables may have changed since.
func (l *Link) deliver16(p []byte) {
	var h wire.Header16
	if _, why := wire.Parse16(p, &h); why != wire.OK {
		l.c.DropRefusal[why]++
		return
	}
	t, w := l.cfg.Table.Load(), l.cfg.Wiring.Load()
	slid, _ := source16(&h)
	set, ok := l.route16(t, t.Entry(slid), &h)
	if !ok {
		return
	}
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
	l.c.Taken16++
}
