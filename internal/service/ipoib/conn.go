// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
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
	// connSpare is how long a connection must have been unused to make room for another, connHalf how long
	// one must have been in the making.
	connSpare = time.Second
	connHalf  = 2 * time.Second
	// connStuck is how long a connection may have messages in flight of which none completes: a peer may
	// put them off for ever.
	connStuck = 5 * time.Second
	// connPatience is how long the frames that wait for a connection's window may keep others from
	// being sent: as long as a peer that is well takes for what waits.
	connPatience = 50 * time.Millisecond
	// connWatchEvery is how often connections with messages in flight are looked at.
	connWatchEvery = time.Second
)

// Bounds of what waits for a connection, and of the messages that one has in flight.
const (
	connFrames = 64
	connBytes  = 1 << 20
	connWindow = 32
	// connTrial is how many messages a peer may have in flight that has not acknowledged any lately, connLately how
	// long its last acknowledgement may be past.
	connTrial  = 4
	connLately = time.Second
)

// maxRefusals is after how many refusals in turn a neighbour is taken for one without connections.
const maxRefusals = 2

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
	queued   int       // octets
	waits    mono.Time // since when the queue is not empty, or the connection open
	inFlight int
	progress mono.Time // when a message completed last, or the first was posted
	proven   mono.Time // when a message completed last
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
	passive   int // of them, those that peers asked for
	connPorts map[ib.LID]portConns
	lastID    uint32
	reaper    timer
	connWatch timer
	connWaits int   // connections with a queue
	holder    *conn // its queue has others not be sent; see holds
	connIO
}

// portConns counts connections that a port asked for.
type portConns struct{ live, all int }

func (l *Link) initConns() {
	l.conns, l.byQPN, l.peers = map[uint32]*conn{}, map[ib.QPN]*conn{}, map[wire.HWAddr]*peer{}
	l.connPorts = map[ib.LID]portConns{}
	l.reaper.fire = l.reap
	l.connWatch.fire = l.watchConns
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
	c := l.connFor(now, e, frame)
	if c != nil {
		switch {
		case n > c.mtu:
			most = max(most, c.mtu)
		case c.state == connOpen && len(c.queue) == 0 && l.mayPost(now, c):
			l.postMessage(now, c, frame)
			return
		case c.state == connOpen || n > l.dgramMTU || len(c.queue) > 0 && now.Sub(c.used) < connOrder:
			l.await(now, c, frame)
			return
		}
	}
	switch {
	case n <= l.dgramMTU:
		l.transmit(frame, e.dest())
	case c == nil && e.hold > now && e.refusals < maxRefusals:
		// There is a connection soon, and the IP stack does not forget soon what it is told.
		l.txDrop(DropNoPath)
	default:
		l.tooBig(now, frame, most)
	}
}

// mayPost reports whether a connection may have one message more in flight: none takes all slots, and the fewer
// are left, the fewer it may have. Peers that acknowledge nothing may hold theirs for long, and be many: what was sent to
// such takes half of the slots at most, and a quarter more for the first message of each.
func (l *Link) mayPost(now mono.Time, c *conn) bool {
	free := len(l.connFree)
	switch {
	case c.acknowledges(now):
		return c.inFlight < min(connWindow, free)
	case c.inFlight == 0:
		return free > 0 && l.connTrials < connTxSlots*3/4
	}
	return c.inFlight < min(connTrial, free) && l.connTrials < connTxSlots/2
}

// acknowledges reports whether the peer has done so lately.
func (c *conn) acknowledges(now mono.Time) bool {
	return c.proven != 0 && now.Sub(c.proven) < connLately
}

// holds reports whether SendBatch is to wait for the queue of a connection to empty, which it does for a short time: a
// connection that is slow loses frames, and no others do.
func (l *Link) holds(now mono.Time) bool {
	c := l.holder
	return c != nil && c.state == connOpen && len(c.queue) > 0 && now.Sub(c.waits) < connPatience
}

// watchConns fires while messages are in flight: a connection of which none completes is ended.
func (l *Link) watchConns(now mono.Time) {
	var next mono.Time
	for _, c := range l.conns {
		switch {
		case c.state == connClosing || c.inFlight == 0:
		case now.Sub(c.progress) >= connStuck:
			l.lost(now, c, "no message completes")
		default:
			next = now.Add(connWatchEvery)
		}
	}
	if l.holds(now) {
		next = l.holder.waits.Add(connPatience)
	} else {
		l.holder = nil
	}
	if next != 0 {
		l.timers.set(&l.connWatch, next)
	}
	if l.state != Destroyed {
		l.drainConns(now)
		l.drainBacklog()
	}
}

// watchBy has watchConns look at connections at a time at the latest.
func (l *Link) watchBy(at mono.Time) {
	if l.connWatch.i == 0 || at < l.connWatch.at {
		l.timers.set(&l.connWatch, at)
	}
}

// tooBig drops a frame of which the IP stack is told how long it may be.
func (l *Link) tooBig(now mono.Time, frame []byte, mtu int) {
	l.txError(DropTooBig)
	l.eng.TooBig(now, frame, mtu)
}

// await keeps a copy of a frame until its connection can take it.
func (l *Link) await(now mono.Time, c *conn, frame []byte) {
	if len(c.queue) >= connFrames || c.queued+len(frame) > connBytes || !l.charge(len(frame)) {
		l.c.Net.TxWindowErrors++
		l.txDrop(DropQueueFull)
		return
	}
	if len(c.queue) == 0 {
		l.connWaits++
		c.waits = now
	}
	c.queue = append(c.queue, slices.Clone(frame))
	c.queued += len(frame)
	if l.holder != c && (len(c.queue) >= connFrames/2 || c.queued >= connBytes/2) && !l.holds(now) {
		if l.holder = c; l.holds(now) {
			l.watchBy(c.waits.Add(connPatience))
		}
	}
}

// waitsNoMore notes that the queue of a connection became empty.
func (l *Link) waitsNoMore(c *conn) {
	if l.connWaits--; l.holder == c {
		l.holder = nil
	}
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
	if e.hold > now || l.stale(e) {
		return nil
	}
	return l.connect(now, e)
}

// refused notes that there is no connection with a neighbour for now.
func (e *entry) refused(now mono.Time) {
	if now.Sub(e.hold) > connHold {
		e.refusals = 0 // the last is long ago
	}
	e.refusals = min(e.refusals+1, maxRefusals)
	e.hold = now.Add(connRetry)
}

// without notes that a neighbour takes no connections.
func (e *entry) without(now mono.Time) { e.refusals, e.hold = maxRefusals, now.Add(connHold) }

// connShare is how many connections one port may ask for.
func (l *Link) connShare() int { return max(1, l.p.MaxConns/4) }

// crowded reports whether connections that ended, of all or of those that a port asked for (0: the link itself asks),
// are so many that there may be no other before they are gone.
func (l *Link) crowded(lid ib.LID) bool {
	if len(l.conns)-l.live < l.p.MaxConns && (lid == 0 || l.connPorts[lid].all < 2*l.connShare()) {
		return false
	}
	l.c.Driver.ConnNoRoom++
	return true
}

// room reports whether there may be one more connection, which a port asks for, or the link itself (0). One that is not used, or
// is not made in time, makes room: of the port's own, if it has such a one. No port gets more than its share, and what
// ports ask for leaves an eighth for the link.
func (l *Link) room(now mono.Time, lid ib.LID) bool {
	if l.crowded(lid) {
		return false
	}
	share := lid != 0 && l.connPorts[lid].live >= l.connShare()
	ports := lid != 0 && l.passive >= l.p.MaxConns-l.p.MaxConns/8
	if !share && !ports && l.live < l.p.MaxConns {
		return true
	}
	var best *conn
	own := func(c *conn) bool { return lid != 0 && c.id >= PassiveConn && c.lid == lid }
	for _, c := range l.conns {
		switch {
		case !c.spare(now), share && !own(c), ports && c.id < PassiveConn:
		case lid != 0 && c.state == connAsking: // others do not undo what the link asks for
		case best == nil, own(c) && !own(best):
			best = c
		case own(c) == own(best) && (c.used < best.used || c.used == best.used && c.id < best.id):
			best = c
		}
	}
	if best == nil {
		l.c.Driver.ConnNoRoom++
		return false
	}
	l.c.Driver.ConnEvicted++
	if e := l.entries[best.hw]; e != nil && best.state == connAsking {
		e.refused(now)
	}
	for range l.endConn(now, best) {
		l.txDrop(DropNoPath)
	}
	return true
}

// spare reports whether a connection can make room for another.
func (c *conn) spare(now mono.Time) bool {
	switch c.state {
	case connOpen:
		return c.inFlight == 0 && len(c.queue) == 0 && now.Sub(c.used) >= connSpare
	case connAsking, connAnswering:
		return now.Sub(c.used) >= connHalf
	}
	return false
}

// connect asks the node of an entry for a connection; nil where that cannot be done now.
func (l *Link) connect(now mono.Time, e *entry) *conn {
	if !l.room(now, 0) {
		e.refused(now)
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
		e.refused(now)
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
	if c.id >= PassiveConn {
		l.passive++
		n := l.connPorts[c.lid]
		l.connPorts[c.lid] = portConns{n.live + 1, n.all + 1}
	}
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
	if c.id >= PassiveConn {
		l.passive--
		n := l.connPorts[c.lid]
		l.connPorts[c.lid] = portConns{n.live - 1, n.all}
	}
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
	if len(c.queue) > 0 {
		l.waitsNoMore(c)
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
	if c.id >= PassiveConn {
		if n := l.connPorts[c.lid]; n.all > 1 {
			l.connPorts[c.lid] = portConns{n.live, n.all - 1}
		} else {
			delete(l.connPorts, c.lid)
		}
	}
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
	l.timers.stop(&l.connWatch)
	l.holder = nil
}

// resend sends frames that waited for a connection which there is not.
func (l *Link) resend(now mono.Time, hw wire.HWAddr, queue [][]byte) {
	for _, f := range queue {
		if l.entries[hw] != nil {
			l.unicast(now, hw, f)
		} else {
			l.txDrop(DropNoPath)
		}
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
			x.refused(now)
		default:
			x.oldService = false
			l.c.Driver.ConnFailed++
			x.without(now)
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
	if !l.verified(now, hw, e.LID, before) {
		l.c.Driver.ConnBadData++
		no(false)
		return
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
	switch {
	case before != nil && !l.crowded(e.LID):
		queue = l.endConn(now, before) // a peer that asks for another has lost it
	case before != nil || !l.room(now, e.LID):
		no(true)
		return
	}
	q, err := l.al.AcceptConn(e.ID, l.connPrivate())
	if err != nil {
		l.log(now, "connection", "connection of %v: %v", hw, err)
		l.c.Driver.ConnFailed++
		no(true)
		if x := l.entries[hw]; x != nil {
			x.refused(now)
		}
		l.resend(now, hw, queue)
		return
	}
	l.debug(now, DebugControl, "connection %#x of %v: accepted", e.ID, hw)
	c := l.addConn(&conn{id: e.ID, hw: hw, lid: e.LID, qpn: q, state: connAnswering, oneWay: oneWay, mtu: mtu, used: now})
	if oneWay {
		return
	}
	if c.queue = queue; len(queue) > 0 {
		l.connWaits++
	}
	for _, f := range queue {
		c.queued += len(f)
	}
	l.pending += c.queued
}

// verified reports whether a request of a neighbour comes from where that is, as far as is known: by the path to it, else by
// the connection that there is. Where it does not, the path is asked for, by which the next request is judged.
func (l *Link) verified(now mono.Time, hw wire.HWAddr, lid ib.LID, before *conn) bool {
	p := l.paths[hw.GID()]
	known := lid
	switch {
	case p != nil && p.valid:
		known = p.rec.DLID
	case before != nil:
		known = before.lid
	}
	// Ports may have several LIDs, as ours has.
	if lid>>l.port.LMC == known>>l.port.LMC {
		return true
	}
	l.from = lid
	switch {
	case p == nil:
		l.entryOf(now, wire.MakeHWAddr(wire.HWFlagRC, hw.QPN(), hw.GID()))
	case now.Sub(p.checked) > time.Second:
		p.checked = now
		l.askPath(now, p)
	}
	l.from = 0
	return false
}

// accepted goes on when a peer said yes.
func (l *Link) accepted(now mono.Time, c *conn, private []byte) {
	qpn, most, ok := wire.ParseCMPrivate(private)
	if !ok || qpn != c.hw.QPN() {
		l.c.Driver.ConnBadData++
		l.failedConn(now, c)
		return
	}
	c.mtu = int(min(most, connRecvMTU)) - wire.EncapLen
	if err := l.al.ReadyConn(c.id); err != nil {
		l.log(now, "connection", "connection to %v: %v", c.hw, err)
		l.c.Driver.ConnFailed++
		l.failedConn(now, c)
		return
	}
	l.nowOpen(now, c)
}

// failedConn ends a connection that cannot be made.
func (l *Link) failedConn(now mono.Time, c *conn) {
	queue := l.endConn(now, c)
	if e := l.entries[c.hw]; e != nil {
		e.without(now)
	}
	l.resend(now, c.hw, queue)
}

// nowOpen sends what waited for a connection.
func (l *Link) nowOpen(now mono.Time, c *conn) {
	c.state, c.used, c.waits = connOpen, now, now
	if e := l.entries[c.hw]; e != nil {
		e.refusals = 0
	}
	l.c.Driver.ConnOpened++
	l.debug(now, DebugControl, "connection %#x with %v: open, MTU %d", c.id, c.hw, c.mtu)
	l.drainConn(now, c)
}

// drainConn sends what waits for an open connection, as far as there are slots. What is longer than
// the peer takes goes another way.
func (l *Link) drainConn(now mono.Time, c *conn) {
	if len(c.queue) == 0 {
		return
	}
	for len(c.queue) > 0 && l.mayPost(now, c) && c.state == connOpen {
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
		l.waitsNoMore(c)
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
