// SPDX-License-Identifier: Apache-2.0

package roceframe

import (
	"bytes"
	"net/netip"
	"slices"
	"time"

	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

const (
	// maxNeighbours bounds the table; the one used least of late gives way.
	maxNeighbours = 1024
	// maxHeld bounds what waits for one neighbour, and maxHeldAll for all, in octets.
	maxHeld    = 256 << 10
	maxHeldAll = 1 << 20
	// fresh is how long a resolution is used without a new one. The IP stack has a neighbour cache
	// with its own rules (RFC 4861), so that a new resolution usually costs no packet, and a changed
	// MAC is detected soon.
	fresh = time.Second
)

// neighbours holds the resolved addresses: MACs of stations, or of gateways to them.
type neighbours struct {
	table map[ib.GID]*neighbour
	// used is a ring of all of them in the order of their last use: what follows it was used least of late.
	used neighbour
	held int // octets
}

// NeighbourState is the state of a neighbour's resolution.
type NeighbourState uint8

// States of a neighbour.
const (
	Resolving NeighbourState = iota
	Reachable
	Unreachable
)

// String is the name that people read.
func (s NeighbourState) String() string {
	return [...]string{"resolving", "reachable", "unreachable"}[s]
}

type neighbour struct {
	ip       netip.Addr
	state    NeighbourState
	mac      [6]byte
	asking   bool      // a resolution is pending
	answered mono.Time // time of the last result
	waiting  []heldFrame
	bytes    int

	before, after *neighbour // used before it, and after it
}

// heldFrame waits for its destination.
type heldFrame struct {
	b       []byte
	packets int
	o       ether.Offload
}

// Neighbour describes one for people.
type Neighbour struct {
	IP     netip.Addr
	MAC    [6]byte // zero until it is resolved
	State  NeighbourState
	Since  time.Duration // since the last result; 0 if there was none
	Frames int           // that wait for it
}

// find returns the destination of frames on path p. If drop is not nil, there is none, and drop is the
// counter of the reason.
func (l *Link) find(now mono.Time, p *ib.Path) (to target, drop *uint64) {
	g := p.DGID
	if l.own(g) {
		return target{mac: l.mac, own: true}, nil
	}
	if p.DMAC != ([6]byte{}) {
		return target{mac: p.DMAC}, nil // the sender resolved it
	}
	if g.IsMulticast() {
		return target{mac: groupMAC(g)}, nil
	}
	n := l.table[g]
	if n == nil {
		n = l.enter(g)
	}
	l.use(n)
	if !n.asking && (n.answered == 0 || now.Sub(n.answered) >= fresh) {
		if n.asking = l.cfg.Resolve(n.ip); n.asking {
			l.c.NeighbourRequests++
			if n.state == Unreachable {
				n.state = Resolving
			}
		}
	}
	switch {
	case n.state == Reachable:
		return target{mac: n.mac}, nil
	case n.state == Unreachable:
		return to, &l.c.DropUnreachable
	case !n.asking || n.bytes >= maxHeld || l.held >= maxHeldAll:
		return to, &l.c.DropUnresolved
	}
	return target{wait: n}, nil
}

// enter makes a place in the table.
func (l *Link) enter(g ib.GID) *neighbour {
	if l.table == nil {
		l.table = map[ib.GID]*neighbour{}
		l.used.before, l.used.after = &l.used, &l.used
	}
	if len(l.table) >= maxNeighbours {
		of := l.used.after
		l.lose(of, &l.c.DropUnresolved)
		of.unlink()
		delete(l.table, ib.GIDFromAddr(of.ip))
	}
	n := &neighbour{ip: g.Addr()}
	n.before, n.after = n, n
	l.table[g] = n
	return n
}

// use has n be the one used last.
func (l *Link) use(n *neighbour) {
	if last := l.used.before; n != last {
		n.unlink()
		n.before, n.after = last, &l.used
		last.after, l.used.before = n, n
	}
}

func (n *neighbour) unlink() { n.before.after, n.after.before = n.after, n.before }

// groupMAC is the address of frames to a group (RFC 1112 §6.4, RFC 2464 §7).
func groupMAC(g ib.GID) [6]byte {
	if g.IsIPv4() {
		return [6]byte{1, 0, 0x5e, g[13] & 0x7f, g[14], g[15]}
	}
	return [6]byte{0x33, 0x33, g[12], g[13], g[14], g[15]}
}

// hold keeps a frame that was laid out.
func (l *Link) hold(n *neighbour, f *frame) {
	size := f.end - f.off
	n.waiting = append(n.waiting, heldFrame{bytes.Clone(l.buf[f.off:f.end]), f.packets, f.o})
	n.bytes += size
	l.held += size
}

// lose drops what waits for a neighbour.
func (l *Link) lose(n *neighbour, why *uint64) {
	for _, f := range n.waiting {
		*why += uint64(f.packets)
	}
	l.held -= n.bytes
	n.waiting, n.bytes = nil, 0
}

func (l *Link) forget() {
	for _, n := range l.table {
		l.lose(n, &l.c.DropReset)
	}
	clear(l.table)
	l.used.before, l.used.after = &l.used, &l.used
}

// Resolved reports the result of a Resolve: the MAC of the address or of the gateway to it, or no
// reply. Frames that were held for a resolved address can then be read.
func (l *Link) Resolved(now mono.Time, ip netip.Addr, mac [6]byte, ok bool) {
	n := l.table[ib.GIDFromAddr(ip)]
	if n == nil || !n.asking {
		return // the table was reset after the request
	}
	n.asking, n.answered = false, now
	if !ok || mac[0]&1 != 0 || mac == [6]byte{} {
		n.state, n.mac = Unreachable, [6]byte{}
		l.lose(n, &l.c.DropUnreachable)
		return
	}
	n.state, n.mac = Reachable, mac
	for _, f := range n.waiting {
		if l.head == len(l.frames) {
			l.frames, l.head, l.tail = l.frames[:0], 0, 0
		}
		if len(l.buf)-l.tail < len(f.b) || len(l.frames) == cap(l.frames) {
			l.cfg.Push(now)
			if l.head < len(l.frames) && (len(l.buf)-l.tail < len(f.b) || len(l.frames) == cap(l.frames)) {
				l.c.DropBlocked += uint64(f.packets)
				continue
			}
			if l.head == len(l.frames) {
				l.frames, l.head, l.tail = l.frames[:0], 0, 0
			}
		}
		end := l.tail + copy(l.buf[l.tail:], f.b)
		copy(l.buf[l.tail:], mac[:])
		l.frames = append(l.frames, frame{off: l.tail, end: end, packets: f.packets, o: f.o})
		l.tail = end
	}
	l.held -= n.bytes
	n.waiting, n.bytes = nil, 0
}

// Neighbours lists the table, by address.
func (l *Link) Neighbours(now mono.Time) []Neighbour {
	list := make([]Neighbour, 0, len(l.table))
	for _, n := range l.table {
		v := Neighbour{IP: n.ip, MAC: n.mac, State: n.state, Frames: len(n.waiting)}
		if n.answered != 0 {
			v.Since = now.Sub(n.answered)
		}
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b Neighbour) int { return a.IP.Compare(b.IP) })
	return list
}
