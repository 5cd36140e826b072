// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"weft/internal/ib"
	"weft/internal/mono"
	"weft/internal/wire"
)

// Times of connections.
const (
	// connHold is how long packets to a peer that gave no connection go as datagrams
	// before it is asked again; connRetry where it said no, as when it asks itself.
	connHold  = 10 * time.Second
	connRetry = time.Second
	// connOrder is how long short packets wait behind long ones for a connection, so as not to overtake them.
	connOrder = time.Second
	// connDrain is what the queue pair of a connection that ended has at least to flush what was posted.
	connDrain = 100 * time.Millisecond
	// connSpare is how long a connection must have been unused to make room for another.
	connSpare = time.Second
)

// Bounds of what waits for a connection.
const (
	connFrames = 64
	connBytes  = 1 << 20
)

// connState is where a connection is.
type connState uint8

const (
	connAsking    connState = iota // the peer was asked
	connAnswering                  // the peer asked and was told yes
	connOpen
	connClosing // the queue pair is being flushed
)

var connStateNames = [...]string{"connecting", "connecting", "connected", "closing"}

// conn is a connection with a peer.
type conn struct {
	id    uint32
	hw    wire.HWAddr // of the peer, without flags
	lid   ib.LID      // of the peer's port: who what it tells of others counts for
	qpn   ib.QPN      // of this side
	state connState
	// oneWay is a connection of a peer that has one for each direction: by it nothing is sent back.
	oneWay   bool
	mtu      int // of packets: what the peer takes
	queue    [][]byte
	queued   int // octets
	inFlight int
	used     mono.Time // or when it was asked for
	touched  mono.Time // when the use was noted at the shadow entry
	since    mono.Time // of closing
}

// peer is the connections with one: that to send by, and that which it alone sends by.
type peer struct{ out, in *conn }

// connected is the connected mode of a link.
type connected struct {
	connsOpen bool // OpenConns was called
	conns     map[uint32]*conn
	byQPN     map[ib.QPN]*conn
	peers     map[wire.HWAddr]*peer
	live      int // connections that are not closing
	lastID    uint32
	reaper    timer
	connIO
}

func (l *Link) initConns() {
	l.conns, l.byQPN, l.peers = map[uint32]*conn{}, map[ib.QPN]*conn{}, map[wire.HWAddr]*peer{}
	l.reaper.fire = l.reap
}

// isConnected reports whether the link is in connected mode.
func (l *Link) isConnected() bool { return l.p.Mode == Connected }

// deviceMTU is the MTU of the network device, where datagrams have that of l.dgramMTU.
func (l *Link) deviceMTU() int {
	if l.isConnected() {
		return ConnMTU
	}
	return l.dgramMTU
}

// connDepth is how many completions connections may have at a time.
func (l *Link) connDepth() int {
	if l.isConnected() {
		return connTxSlots + connRxSlots
	}
	return 0
}

// ownFlags are those of the hardware address.
func (l *Link) ownFlags() uint8 {
	if l.isConnected() {
		return wire.HWFlagRC
	}
	return 0
}

// openConns makes what connections need; it is part of the step of creating that makes buffers.
func (l *Link) openConns() error {
	if !l.isConnected() {
		return nil
	}
	tx, rx, err := l.al.OpenConns(l.qpn, connTxSlots, connRxSlots, connSlotLen)
	if err != nil {
		return fmt.Errorf("connected mode: %w", err)
	}
	l.connsOpen = true
	l.initConnIO(tx, rx)
	return nil
}

func (l *Link) closeConns() {
	if l.connsOpen {
		l.connsOpen = false
		l.al.CloseConns()
		l.dropConnIO()
	}
}

// toNode sends a frame to a neighbour whose entry is resolved: by its connection, or as a datagram.
func (l *Link) toNode(now mono.Time, e *entry, frame []byte) {
	n := len(frame) - Headroom
	most := l.dgramMTU
	if c := l.connFor(now, e, frame); c != nil {
		switch {
		case n > c.mtu:
			most = max(most, c.mtu)
		case c.state == connOpen && len(c.queue) == 0 && len(l.connFree) > 0:
			l.postMessage(now, c, frame)
			return
		case c.state == connOpen || n > l.dgramMTU || len(c.queue) > 0 && now.Sub(c.used) < connOrder:
			l.await(c, frame)
			return
		}
	}
	if n > l.dgramMTU {
		l.tooBig(now, frame, most)
		return
	}
	l.transmit(frame, e.dest())
}

// tooBig drops a frame of which the IP stack is told how long it may be.
func (l *Link) tooBig(now mono.Time, frame []byte, mtu int) {
	l.txError(DropTooBig)
	l.eng.TooBig(now, frame, mtu)
}

// await keeps a copy of a frame until its connection can take it.
func (l *Link) await(c *conn, frame []byte) {
	if len(c.queue) >= connFrames || c.queued+len(frame) > connBytes || !l.charge(len(frame)) {
		l.c.Net.TxWindowErrors++
		l.txDrop(DropQueueFull)
		return
	}
	c.queue = append(c.queue, slices.Clone(frame))
	c.queued += len(frame)
}

// connFor returns the connection for a frame to a neighbour, which may have yet to be made; nil where
// the frame is to go as a datagram. ARP and Neighbor Discovery always do.
func (l *Link) connFor(now mono.Time, e *entry, frame []byte) *conn {
	if !l.connsOpen || e.flags&wire.HWFlagRC == 0 || e.path.local {
		return nil
	}
	switch wire.HardHeader(frame).Type() {
	case wire.EtherIPv4:
	case wire.EtherIPv6:
		if resolves(frame[Headroom:]) {
			return nil
		}
	default:
		return nil
	}
	if p := l.peers[e.hw]; p != nil && p.out != nil {
		return p.out
	}
	if e.hold > now {
		return nil
	}
	return l.connect(now, e)
}

// room reports whether there may be one more connection; one that is not used makes room.
func (l *Link) room(now mono.Time) bool {
	if l.live < l.p.MaxConns {
		return true
	}
	var oldest *conn
	for _, c := range l.conns {
		if c.state == connOpen && c.inFlight == 0 && len(c.queue) == 0 && now.Sub(c.used) >= connSpare &&
			(oldest == nil || c.used < oldest.used || c.used == oldest.used && c.id < oldest.id) {
			oldest = c
		}
	}
	if oldest == nil {
		l.c.Driver.ConnNoRoom++
		return false
	}
	l.c.Driver.ConnEvicted++
	l.endConn(now, oldest)
	return true
}

// connect asks the node of an entry for a connection; nil where that cannot be done now.
func (l *Link) connect(now mono.Time, e *entry) *conn {
	if !l.room(now) {
		e.hold = now.Add(connRetry)
		return nil
	}
	rfc, old := wire.CMServiceIDs(e.hw.QPN())
	r := ConnRequest{ID: l.nextConn(), ServiceID: rfc, GID: e.hw.GID(), Path: e.path.rec, Private: l.connPrivate()}
	if e.oldService {
		r.ServiceID = old
	}
	qpn, err := l.al.Connect(&r)
	if err != nil {
		l.log(now, "connection", "connection to %v: %v", e.hw, err)
		l.c.Driver.ConnFailed++
		e.hold = now.Add(connHold)
		return nil
	}
	l.debug(now, DebugControl, "connection %d to %v: asking", r.ID, e.hw)
	return l.addConn(&conn{id: r.ID, hw: e.hw, lid: r.Path.DLID, qpn: qpn, state: connAsking, mtu: ConnMTU, used: now})
}

// nextConn returns an unused number.
func (l *Link) nextConn() uint32 {
	for {
		if l.lastID = (l.lastID + 1) % PassiveConn; l.conns[l.lastID] == nil {
			return l.lastID
		}
	}
}

// connPrivate is what requests and answers say of this side (RFC 4755, 3.2).
func (l *Link) connPrivate() []byte {
	wire.PutCMPrivate(l.private[:], l.qpn, connRecvMTU)
	return l.private[:]
}

func (l *Link) addConn(c *conn) *conn {
	l.conns[c.id], l.byQPN[c.qpn] = c, c
	l.live++
	p := l.peers[c.hw]
	if p == nil {
		p = &peer{}
		l.peers[c.hw] = p
	}
	if c.oneWay {
		p.in = c
	} else {
		p.out = c
	}
	return c
}

// endConn ends a connection: nothing goes by it any more, and what waits for it is returned. Its queue
// pair goes when it has flushed what was posted.
func (l *Link) endConn(now mono.Time, c *conn) (queue [][]byte) {
	if c.state == connClosing {
		return nil
	}
	l.postMessages()
	c.state, c.since = connClosing, now
	l.live--
	if p := l.peers[c.hw]; p != nil {
		if p.out == c {
			p.out = nil
		}
		if p.in == c {
			p.in = nil
		}
		if p.out == nil && p.in == nil {
			delete(l.peers, c.hw)
		}
	}
	queue, c.queue = c.queue, nil
	l.pending -= c.queued
	c.queued = 0
	l.al.StopConn(c.id)
	if l.reaper.i == 0 {
		l.timers.set(&l.reaper, now.Add(connDrain))
	}
	return queue
}

// reap destroys the queue pairs of connections that ended.
func (l *Link) reap(now mono.Time) {
	for _, c := range l.conns {
		if gone := now.Sub(c.since); c.state == connClosing && (gone >= connDrain && c.inFlight == 0 || gone >= drainLimit) {
			l.destroyConn(c)
		}
	}
	if len(l.conns) > l.live {
		l.timers.set(&l.reaper, now.Add(connDrain))
	}
	if l.state != Destroyed {
		l.drainConns(now)
		l.drainBacklog()
		l.flush(now)
	}
	l.finish(now, false)
}

// destroyConn is the last of a connection that is closing.
func (l *Link) destroyConn(c *conn) {
	l.reclaimMessages(c)
	delete(l.conns, c.id)
	delete(l.byQPN, c.qpn)
	l.al.DestroyConn(c.id)
}

// endConns ends all connections.
func (l *Link) endConns(now mono.Time) {
	for _, c := range l.conns {
		for range l.endConn(now, c) {
			l.txDrop(DropLinkDown)
		}
	}
}

// destroyConns destroys what is left of connections when the link ends.
func (l *Link) destroyConns() {
	for _, c := range l.conns {
		l.destroyConn(c)
	}
	l.timers.stop(&l.reaper)
}

// resend sends frames that waited for a connection which there is not.
func (l *Link) resend(now mono.Time, hw wire.HWAddr, queue [][]byte) {
	for _, f := range queue {
		if e := l.entries[hw]; e != nil && e.resolved {
			l.toNode(now, e, f)
		} else {
			l.txDrop(DropNoPath)
		}
	}
}

// hold has frames to a neighbour go as datagrams for some time.
func (l *Link) hold(now mono.Time, hw wire.HWAddr, d time.Duration) {
	if e := l.entries[hw]; e != nil {
		e.hold = now.Add(d)
	}
}

// ConnEvent tells of a connection.
func (l *Link) ConnEvent(now mono.Time, e ConnEvent) {
	l.at = now
	if l.state == Destroyed {
		if e.Kind == ConnAsked {
			l.al.RejectConn(e.ID, false, nil)
		}
		return
	}
	if e.Kind == ConnAsked {
		l.asks(now, &e)
	} else if c := l.conns[e.ID]; c != nil && c.state != connClosing {
		l.connEvent(now, c, &e)
	}
	l.flush(now)
}

func (l *Link) connEvent(now mono.Time, c *conn, e *ConnEvent) {
	switch e.Kind {
	case ConnAccepted:
		if c.state == connAsking {
			l.accepted(now, c, e.Private)
		}
	case ConnReady:
		if c.state == connAnswering {
			l.nowOpen(now, c)
		}
	case ConnNoService, ConnRefused, ConnUnreachable:
		if c.state == connOpen {
			l.lost(now, c, "the peer gave it up")
			return
		}
		queue := l.endConn(now, c)
		x := l.entries[c.hw]
		switch {
		case x == nil:
		case e.Kind == ConnNoService && !x.oldService:
			x.oldService = true // asked by the other service ID with the next frame
		case e.Kind == ConnRefused:
			l.c.Driver.ConnRejected++
			x.hold = now.Add(connRetry)
		default:
			x.oldService = false
			l.c.Driver.ConnFailed++
			x.hold = now.Add(connHold)
		}
		l.resend(now, c.hw, queue)
	case ConnOver:
		l.lost(now, c, "the peer ended it")
	}
}

// asks decides on a peer's request.
func (l *Link) asks(now mono.Time, e *ConnEvent) {
	qpn, most, ok := wire.ParseCMPrivate(e.Private)
	hw := wire.MakeHWAddr(0, qpn, e.GID)
	_, old := wire.CMServiceIDs(l.qpn)
	mtu := int(min(most, connRecvMTU)) - wire.EncapLen
	no := func(full bool) { l.al.RejectConn(e.ID, full, l.connPrivate()) }
	switch {
	case !l.carrier || !l.connsOpen:
		no(false)
		return
	case !ok || !hw.Unicast() || hw.Same(l.hw) || !e.LID.IsUnicast():
		l.c.Driver.ConnBadData++
		no(false)
		return
	}
	oneWay := e.Service == old
	var before *conn
	if p := l.peers[hw]; p != nil && oneWay {
		before = p.in
	} else if p != nil {
		before = p.out
	}
	if before != nil && before.state == connAsking {
		// Both ask: the request of the one whose address is larger stays (RFC 4755, 3.3).
		l.c.Driver.ConnCrossed++
		if own := l.hw.Key(); bytes.Compare(own[:], hw[:]) > 0 {
			no(false)
			return
		}
	}
	var queue [][]byte
	if before != nil {
		queue = l.endConn(now, before) // a peer that asks for another has lost it
	} else if !l.room(now) {
		no(true)
		return
	}
	q, err := l.al.AcceptConn(e.ID, l.connPrivate())
	if err != nil {
		l.log(now, "connection", "connection of %v: %v", hw, err)
		l.c.Driver.ConnFailed++
		no(true)
		l.hold(now, hw, connRetry)
		l.resend(now, hw, queue)
		return
	}
	l.debug(now, DebugControl, "connection %#x of %v: accepted", e.ID, hw)
	c := l.addConn(&conn{id: e.ID, hw: hw, lid: e.LID, qpn: q, state: connAnswering, oneWay: oneWay, mtu: mtu, used: now})
	if oneWay {
		return
	}
	c.queue = queue
	for _, f := range queue {
		c.queued += len(f)
	}
	l.pending += c.queued
}

// accepted goes on when a peer said yes.
func (l *Link) accepted(now mono.Time, c *conn, private []byte) {
	qpn, most, ok := wire.ParseCMPrivate(private)
	if !ok || qpn != c.hw.QPN() {
		l.c.Driver.ConnBadData++
		queue := l.endConn(now, c)
		l.hold(now, c.hw, connHold)
		l.resend(now, c.hw, queue)
		return
	}
	c.mtu = int(min(most, connRecvMTU)) - wire.EncapLen
	if err := l.al.ReadyConn(c.id); err != nil {
		l.log(now, "connection", "connection to %v: %v", c.hw, err)
		l.c.Driver.ConnFailed++
		queue := l.endConn(now, c)
		l.hold(now, c.hw, connHold)
		l.resend(now, c.hw, queue)
		return
	}
	l.nowOpen(now, c)
}

// nowOpen sends what waited for a connection.
func (l *Link) nowOpen(now mono.Time, c *conn) {
	c.state, c.used = connOpen, now
	l.c.Driver.ConnOpened++
	l.debug(now, DebugControl, "connection %#x with %v: open, MTU %d", c.id, c.hw, c.mtu)
	l.drainConn(now, c)
}

// drainConn sends what waits for an open connection, as far as there are slots. What is longer than
// the peer takes goes another way.
func (l *Link) drainConn(now mono.Time, c *conn) {
	for len(c.queue) > 0 && len(l.connFree) > 0 && c.state == connOpen {
		f := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		c.queued -= len(f)
		l.pending -= len(f)
		switch e := l.entries[c.hw]; {
		case len(f)-Headroom <= c.mtu:
			l.postMessage(now, c, f)
		case len(f)-Headroom <= l.dgramMTU && e != nil && e.resolved:
			l.transmit(f, e.dest())
		default:
			l.tooBig(now, f, max(c.mtu, l.dgramMTU))
		}
	}
	if len(c.queue) == 0 {
		c.queue = nil
	}
}

// lost ends a connection that broke: where the peer is now is asked anew, from its path to its address.
func (l *Link) lost(now mono.Time, c *conn, why string) {
	if c.state == connClosing {
		return
	}
	l.c.Driver.ConnLost++
	l.debug(now, DebugControl, "connection %#x with %v: %s", c.id, c.hw, why)
	for range l.endConn(now, c) {
		l.txDrop(DropNoPath)
	}
	e := l.entries[c.hw]
	if e == nil || c.oneWay {
		return
	}
	ips := slices.Clone(e.ips)
	if e.resolved {
		l.purge(now, e)
	}
	for _, ip := range ips {
		l.eng.Probe(now, ip)
	}
}

// sweepConns ends connections that nobody has used for long.
func (l *Link) sweepConns(now mono.Time) {
	for _, c := range l.conns {
		if c.state == connOpen && now.Sub(c.used) >= l.p.ConnIdle && c.inFlight == 0 {
			l.c.Driver.ConnIdle++
			l.resend(now, c.hw, l.endConn(now, c))
		}
	}
}

// ModeOf tells how packets go to a hardware address: "datagram", or "connected", or while a connection
// is being made "connecting".
func (l *Link) ModeOf(hw wire.HWAddr) string {
	if p := l.peers[hw.Key()]; p != nil && p.out != nil {
		return connStateNames[p.out.state]
	}
	return Datagram.String()
}
