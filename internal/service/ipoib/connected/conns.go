// SPDX-License-Identifier: Apache-2.0

package connected

import (
	"fmt"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/stats"
)

// Lengths of connected mode. The MTU is that of other implementations: with the encapsulation header a message is as
// long as the longest IP packet, rounded down for alignment.
const (
	// MTU is the longest packet that goes by a connection, in octets.
	MTU = 65520
	// RecvMTU is the longest message that a connection receives, in octets.
	RecvMTU = MTU + wire.EncapLen
	// SlotLen is the length of a slot. A message lies where a datagram does, behind room for a GRH.
	SlotLen = 65536 + 64
	// TxSlots and RxSlots are the numbers of send and receive slots of all connections of a link.
	TxSlots = 128
	RxSlots = 256

	headroom = wire.HardHeaderLen
	grhLen   = 40
)

// Times of connections.
const (
	// holdUnreachable is how long packets to a peer that did not answer go as datagrams before the next REQ;
	// holdRejected the same after a REJ, and after a failure of this side.
	holdUnreachable = 10 * time.Second
	holdRejected    = time.Second
	// orderWait is how long short packets wait for a connection behind long ones, so as not to overtake them.
	orderWait = time.Second
	// flushWait is how long the queue pair of a stopped connection exists at least, to flush what was posted;
	// FlushLimit how long at most.
	flushWait  = 100 * time.Millisecond
	FlushLimit = 5 * time.Second
	// idleSpare is how long an open connection must be unused, halfOpen how long one must have been in the making,
	// before another may take its place.
	idleSpare = time.Second
	halfOpen  = 2 * time.Second
	// StuckAfter ends a connection that has messages in flight of which none completes for so long: a peer may send RNR
	// NAKs for ever.
	StuckAfter = 5 * time.Second
	// Patience is how long the queue of one connection may apply backpressure to all: as long as a healthy peer
	// takes for what waits there.
	Patience = 50 * time.Millisecond
	// watchEvery is how often connections with messages in flight are checked.
	watchEvery = time.Second
	// touchEvery is how often use of a connection is noted at the shadow entry, at most.
	touchEvery = time.Second
)

// Bounds of one connection.
const (
	// QueueFrames and QueueBytes bound the frames that wait for a connection.
	QueueFrames = 64
	QueueBytes  = 1 << 20
	// Window is the largest number of messages in flight.
	Window = 32
	// trialWindow is the window of a peer that has acknowledged nothing within ackWindow.
	trialWindow = 4
	ackWindow   = time.Second
)

// maxRejections is after how many rejections in a row a neighbour counts as one without connected mode.
const maxRejections = 2

// state is the state of a connection.
type state uint8

const (
	// requesting: the REQ was sent. Accepted opens it; NoService, Rejected, Unreachable and eviction close it.
	requesting state = iota
	// accepting: the REP was sent. Ready, or the first message, opens it; the others of above close it.
	accepting
	// open: messages go both ways. An error, Disconnected, disuse and eviction close it.
	open
	// closing: the queue pair is in ERR and flushes. It is destroyed after flushWait, when nothing is in flight.
	closing
)

var stateNames = [...]string{"connecting", "connecting", "connected", "closing"}

// Peer is the other end of a connection.
type Peer struct {
	HW  wire.HWAddr // without flags
	LID ib.LID      // of its port: limits per port count by it
}

// conn is a connection.
type conn struct {
	Peer
	id    uint32
	qpn   ib.QPN // of this side
	state state
	// oneWay marks a connection of a peer that has one for each direction: nothing is sent by it.
	oneWay    bool
	mtu       int // longest packet that the peer takes
	queue     [][]byte
	queued    int       // octets
	waitsFrom mono.Time // when the queue began to fill, or the connection opened
	inFlight  int
	progress  mono.Time // when a message completed last, or the first was posted
	proven    mono.Time // when a message completed with success last
	used      mono.Time // when it was used last, or requested
	touched   mono.Time // when the use was noted at the shadow entry last
	since     mono.Time // when it began to close
}

// passive reports whether the peer requested the connection.
func (c *conn) passive() bool { return c.id >= FirstPassive }

// peerConns are the connections with one peer: out is sent by, in is the one by which only the peer sends.
type peerConns struct{ out, in *conn }

// portConns counts the connections that a port requested: those that are not closing, and all.
type portConns struct{ live, all int }

// Attempts is what the attempts to connect a neighbour led to; a part of its shadow entry. The zero value allows one.
type Attempts struct {
	holdUntil  mono.Time // no REQ before
	rejections uint8     // in a row
	oldService bool      // the peer listens at the other service ID (wire.CMServiceIDs)
}

// rejected notes that a connection with the neighbour was rejected, or failed here.
func (a *Attempts) rejected(now mono.Time) {
	if now.Sub(a.holdUntil) > holdUnreachable {
		a.rejections = 0 // the last one was long ago
	}
	a.rejections = min(a.rejections+1, maxRejections)
	a.holdUntil = now.Add(holdRejected)
}

// unreachable notes that the neighbour takes no connections.
func (a *Attempts) unreachable(now mono.Time) {
	a.rejections, a.holdUntil = maxRejections, now.Add(holdUnreachable)
}

// Config is the configuration of Conns.
type Config struct {
	MaxConns  int           // connections at a time
	Idle      time.Duration // after which an unused connection ends
	Copybreak int           // longer frames are mapped, where possible, instead of copied; octets
}

// Local is this side of all connections.
type Local struct {
	HW  wire.HWAddr // of the link
	LMC uint8       // of its port
}

// Conns are the connections of one link. They belong to the link's lane.
type Conns struct {
	cfg      Config
	ports    Ports
	link     Link
	shadow   Neighbours
	budget   Budget
	report   Reporter
	stats    *stats.Recorder
	local    Local
	dgramMTU int

	opened  bool // OpenConns was called
	carrier bool // requests of peers are accepted
	byID    map[uint32]*conn
	byQPN   map[ib.QPN]*conn
	peers   map[wire.HWAddr]*peerConns
	live    int // connections that are not closing
	passive int // of them, those that peers requested
	perPort map[ib.LID]portConns
	lastID  uint32
	waiting int   // connections with a queue
	blocker *conn // its queue applies backpressure; see Backpressured
	reapAt  mono.Time
	watchAt mono.Time
	private [wire.CMPrivateLen]byte
	slots   slots
}

// New makes Conns, of which nothing exists before Open.
func New(cfg Config, ports Ports, link Link, shadow Neighbours, budget Budget, report Reporter,
	rec *stats.Recorder) *Conns {
	return &Conns{cfg: cfg, ports: ports, link: link, shadow: shadow, budget: budget, report: report, stats: rec,
		byID: map[uint32]*conn{}, byQPN: map[ib.QPN]*conn{}, peers: map[wire.HWAddr]*peerConns{},
		perPort: map[ib.LID]portConns{}, slots: slots{ports: ports, stats: rec, copybreak: cfg.Copybreak}}
}

// Open makes what all connections share and begins to listen at the interface of queue pair qpn.
func (s *Conns) Open(qpn ib.QPN) error {
	tx, rx, err := s.ports.Shared.OpenConns(qpn, TxSlots, RxSlots, SlotLen)
	if err != nil {
		return fmt.Errorf("connected mode: %w", err)
	}
	s.opened = true
	s.slots.open(tx, rx)
	return nil
}

// Close releases what Open made. Precondition: Destroy was called, or there was no connection.
func (s *Conns) Close() {
	if s.opened {
		s.opened = false
		s.ports.Shared.CloseConns()
		s.slots.close()
	}
}

// SetLocal sets this side of all connections. It follows the port.
func (s *Conns) SetLocal(local Local) { s.local = local }

// SetDatagramMTU sets the longest packet that goes as a datagram, in octets.
func (s *Conns) SetDatagramMTU(mtu int) { s.dgramMTU = mtu }

// SetCarrier follows the carrier of the link. Without one all connections end, and requests of peers are rejected.
func (s *Conns) SetCarrier(now mono.Time, on bool) {
	if s.carrier = on; !on {
		s.EndAll(now)
	}
}

// share is how many connections one port may request.
func (s *Conns) share() int { return max(1, s.cfg.MaxConns/4) }

// tooManyClosing reports whether so many connections are closing, of all or of those that port lid requested (0: this
// side requests), that no other may be made before they are gone.
func (s *Conns) tooManyClosing(lid ib.LID) bool {
	if len(s.byID)-s.live < s.cfg.MaxConns && (lid == 0 || s.perPort[lid].all < 2*s.share()) {
		return false
	}
	s.stats.Driver.ConnNoRoom++
	return true
}

// makeRoom reports whether one connection more may be made, which port lid requests, or this side (0). At the limit a
// spare connection is ended for it: one of the port's own, if there is such a one. No port gets more than its share,
// and connections that ports request leave an eighth of all to this side.
func (s *Conns) makeRoom(now mono.Time, lid ib.LID) bool {
	if s.tooManyClosing(lid) {
		return false
	}
	overShare := lid != 0 && s.perPort[lid].live >= s.share()
	overPassive := lid != 0 && s.passive >= s.cfg.MaxConns-s.cfg.MaxConns/8
	if !overShare && !overPassive && s.live < s.cfg.MaxConns {
		return true
	}
	var best *conn
	own := func(c *conn) bool { return lid != 0 && c.passive() && c.LID == lid }
	for _, c := range s.byID {
		switch {
		case !c.spare(now), overShare && !own(c), overPassive && !c.passive():
		case lid != 0 && c.state == requesting: // a peer does not undo requests of this side
		case best == nil, own(c) && !own(best):
			best = c
		case own(c) == own(best) && (c.used < best.used || c.used == best.used && c.id < best.id):
			best = c
		}
	}
	if best == nil {
		s.stats.Driver.ConnNoRoom++
		return false
	}
	s.stats.Driver.ConnEvicted++
	if a := s.shadow.Attempts(best.HW); a != nil && best.state == requesting {
		a.rejected(now)
	}
	s.dropQueue(s.end(now, best), stats.DropNoPath)
	return true
}

// spare reports whether a connection may be ended for another.
func (c *conn) spare(now mono.Time) bool {
	switch c.state {
	case open:
		return c.inFlight == 0 && len(c.queue) == 0 && now.Sub(c.used) >= idleSpare
	case requesting, accepting:
		return now.Sub(c.used) >= halfOpen
	}
	return false
}

// nextID returns an unused number.
func (s *Conns) nextID() uint32 {
	for {
		if s.lastID = (s.lastID + 1) % FirstPassive; s.byID[s.lastID] == nil {
			return s.lastID
		}
	}
}

// privateData is the private data of REQ, REP and REJ (RFC 4755, 3.2).
func (s *Conns) privateData() []byte {
	wire.PutCMPrivate(s.private[:], s.local.HW.QPN(), RecvMTU)
	return s.private[:]
}

// add enters a connection into the tables.
func (s *Conns) add(c *conn) *conn {
	s.byID[c.id], s.byQPN[c.qpn] = c, c
	s.live++
	if c.passive() {
		s.passive++
		n := s.perPort[c.LID]
		s.perPort[c.LID] = portConns{n.live + 1, n.all + 1}
	}
	p := s.peers[c.HW]
	if p == nil {
		p = &peerConns{}
		s.peers[c.HW] = p
	}
	if c.oneWay {
		p.in = c
	} else {
		p.out = c
	}
	return c
}

// end closes a connection and returns the frames that waited for it; their octets are released. The queue pair is
// destroyed when it has flushed what was posted.
func (s *Conns) end(now mono.Time, c *conn) (queue [][]byte) {
	if c.state == closing {
		return nil
	}
	s.Flush()
	c.state, c.since = closing, now
	s.live--
	if c.passive() {
		s.passive--
		n := s.perPort[c.LID]
		s.perPort[c.LID] = portConns{n.live - 1, n.all}
	}
	if p := s.peers[c.HW]; p != nil {
		if p.out == c {
			p.out = nil
		}
		if p.in == c {
			p.in = nil
		}
		if p.out == nil && p.in == nil {
			delete(s.peers, c.HW)
		}
	}
	if len(c.queue) > 0 {
		s.queueEmptied(c)
	}
	queue, c.queue = c.queue, nil
	s.budget.Release(c.queued)
	c.queued = 0
	s.ports.QPs.StopConn(c.id)
	if s.reapAt == 0 {
		s.reapAt = now.Add(flushWait)
	}
	return queue
}

// dropQueue drops frames that waited.
func (s *Conns) dropQueue(queue [][]byte, why stats.Drop) {
	for range queue {
		s.stats.TxDrop(why)
	}
}

// EndAll ends all connections, and drops what waits for them.
func (s *Conns) EndAll(now mono.Time) {
	for _, c := range s.byID {
		s.dropQueue(s.end(now, c), stats.DropLinkDown)
	}
}

// destroy removes a closing connection.
func (s *Conns) destroy(c *conn) {
	s.slots.reclaim(c)
	delete(s.byID, c.id)
	delete(s.byQPN, c.qpn)
	if c.passive() {
		if n := s.perPort[c.LID]; n.all > 1 {
			s.perPort[c.LID] = portConns{n.live, n.all - 1}
		} else {
			delete(s.perPort, c.LID)
		}
	}
	s.ports.QPs.DestroyConn(c.id)
}

// Destroy removes all connections without waiting for what is posted: the link ends. Precondition: EndAll was called.
func (s *Conns) Destroy() {
	for _, c := range s.byID {
		s.destroy(c)
	}
	s.reapAt, s.watchAt = 0, 0
	s.blocker = nil
}

// Deadline is when Tick has something to do; the zero Time is never.
func (s *Conns) Deadline() mono.Time { return mono.Min(s.reapAt, s.watchAt) }

// Tick does what is due. Slots may be free afterwards.
func (s *Conns) Tick(now mono.Time) {
	if s.reapAt.Due(now) {
		s.reapAt = 0
		s.reap(now)
	}
	if s.watchAt.Due(now) {
		s.watchAt = 0
		s.watch(now)
	}
}

// reap destroys the queue pairs of connections that have flushed.
func (s *Conns) reap(now mono.Time) {
	for _, c := range s.byID {
		gone := now.Sub(c.since)
		if c.state == closing && (gone >= flushWait && c.inFlight == 0 || gone >= FlushLimit) {
			s.destroy(c)
		}
	}
	if len(s.byID) > s.live {
		s.reapAt = now.Add(flushWait)
	}
}

// watch ends connections with messages in flight of which none completes, and backpressure that lasts too long.
func (s *Conns) watch(now mono.Time) {
	var next mono.Time
	for _, c := range s.byID {
		switch {
		case c.state == closing || c.inFlight == 0:
		case now.Sub(c.progress) >= StuckAfter:
			s.broken(now, c, "no message completes")
		default:
			next = now.Add(watchEvery)
		}
	}
	if s.Backpressured(now) {
		next = s.blocker.waitsFrom.Add(Patience)
	} else {
		s.blocker = nil
	}
	if next != 0 {
		s.watchAt = next
	}
}

// watchBy sets the time of the next watch, unless that is earlier.
func (s *Conns) watchBy(at mono.Time) { s.watchAt = mono.Min(s.watchAt, at) }

// broken ends a connection that failed: the path to the peer and its addresses are queried again.
func (s *Conns) broken(now mono.Time, c *conn, why string) {
	if c.state == closing {
		return
	}
	s.stats.Driver.ConnLost++
	s.report.Debugf(now, "connection %#x with %v: %s", c.id, c.HW, why)
	s.dropQueue(s.end(now, c), stats.DropNoPath)
	if !c.oneWay {
		s.shadow.Rediscover(now, c.HW)
	}
}

// EndIdle ends connections that have not been used for the configured time.
func (s *Conns) EndIdle(now mono.Time) {
	for _, c := range s.byID {
		if c.state == open && now.Sub(c.used) >= s.cfg.Idle && c.inFlight == 0 {
			s.stats.Driver.ConnIdle++
			s.resend(now, c.HW, s.end(now, c))
		}
	}
}

// resend sends frames by the shadow table that waited for a connection which is not made.
func (s *Conns) resend(now mono.Time, hw wire.HWAddr, queue [][]byte) {
	for _, f := range queue {
		s.link.SendUnicast(now, hw, f)
	}
}

// Live is the number of connections that are not closing, Total that of all.
func (s *Conns) Live() int  { return s.live }
func (s *Conns) Total() int { return len(s.byID) }

// Mode returns how packets go to a neighbour: "connected", "connecting" while a connection is being made, or "" where
// they go as datagrams.
func (s *Conns) Mode(hw wire.HWAddr) string {
	if p := s.peers[hw.Key()]; p != nil && p.out != nil {
		return stateNames[p.out.state]
	}
	return ""
}

// Info describes a connection.
type Info struct {
	ID       uint32
	Peer     Peer
	State    string // connecting, connected or closing
	OneWay   bool   // only the peer sends by it
	MTU      int
	InFlight int // messages
	Queued   int // frames
}

// List lists all connections by their numbers.
func (s *Conns) List() []Info {
	all := make([]Info, 0, len(s.byID))
	for _, c := range s.byID {
		all = append(all, Info{ID: c.id, Peer: c.Peer, State: stateNames[c.state], OneWay: c.oneWay, MTU: c.mtu,
			InFlight: c.inFlight, Queued: len(c.queue)})
	}
	slices.SortFunc(all, func(a, b Info) int { return int(int64(a.ID) - int64(b.ID)) })
	return all
}
