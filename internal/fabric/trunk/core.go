// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"errors"
	"fmt"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Config says how to make a Core.
type Config struct {
	Node  ib.GUID // this node's, not 0
	Epoch Epoch   // of this start: random, not 0
	// Peers are the node GUIDs of the peers, 0 where the one that answers at the
	// peer's address is taken.
	Peers []ib.GUID
	// HelloEvery and DownAfter are the package's constants if 0.
	HelloEvery, DownAfter time.Duration
	// Event is told when a trunk comes up or goes down, on the Core's
	// goroutine, within Handle or Tick. It must not call the Core. nil is told
	// nothing.
	Event func(Event)
	// Read returns until when everything that came from a peer has been handled:
	// it is not silence that a busy node has not read yet. nil: until Tick is
	// called.
	Read func(peer int) mono.Time
}

func (c *Config) validate() error {
	var errs []error
	if c.Node == 0 || c.Epoch == 0 {
		errs = append(errs, errors.New("node GUID and epoch must not be 0"))
	}
	if len(c.Peers) > MaxPeers {
		errs = append(errs, fmt.Errorf("%d peers are too many: at most %d", len(c.Peers), MaxPeers))
	}
	for i, g := range c.Peers {
		if g != 0 && g == c.Node {
			errs = append(errs, fmt.Errorf("peer %d has this node's GUID %v", i, g))
		}
	}
	if c.HelloEvery < 0 || c.DownAfter < 0 || c.DownAfter != 0 && c.DownAfter < c.HelloEvery {
		errs = append(errs, fmt.Errorf("hellos every %v, down after %v: must be positive and in this order", c.HelloEvery, c.DownAfter))
	}
	return errors.Join(errs...)
}

// Event is a change of a trunk.
type Event struct {
	Peer int
	Up   bool
	Node ib.GUID // of the peer
	// Epoch is the peer's, for a Remote; 0 if down.
	Epoch Epoch
	// Restarted: the peer has another epoch than before. If it was up, a down
	// and an up event follow each other.
	Restarted bool
}

// Remote is what a Batch needs to know of a peer. The zero value is a peer that
// is down.
type Remote struct {
	To Epoch // 0: down, nothing can be sent
	// Limit is the size of the largest datagram, MinDatagram to MaxDatagram.
	Limit int
}

// Counters count what one trunk received. They do not restart with the peer.
type Counters struct {
	Datagrams, Bytes uint64 // accepted, hellos included
	Packets          uint64 // delivered
	Reassembled      uint64 // of these, from fragments
	Lost             uint64 // datagrams that did not come, as far as their successors tell
	Reordered        uint64 // came after a successor
	GaveUp           uint64 // packets whose fragments did not all come in time
	Hellos, Replies  uint64
	Ups, Downs       uint64
	Restarts         uint64
	Drop             [NumRefusals]uint64 // datagrams, by Refusal
}

// Each calls f with the snake-case name and the value of every counter, in a
// fixed order.
func (c *Counters) Each(f func(name string, v uint64)) {
	for _, e := range [...]struct {
		name string
		v    uint64
	}{
		{"rcvd_datagrams", c.Datagrams}, {"rcvd_bytes", c.Bytes}, {"rcvd_packets", c.Packets}, {"reassembled", c.Reassembled},
		{"lost", c.Lost}, {"reordered", c.Reordered}, {"reassembly_gave_up", c.GaveUp}, {"hellos", c.Hellos}, {"hello_replies", c.Replies},
		{"ups", c.Ups}, {"downs", c.Downs}, {"restarts", c.Restarts},
	} {
		f(e.name, e.v)
	}
	for r := OK + 1; r < NumRefusals; r++ {
		f("drop_"+r.String(), c.Drop[r])
	}
}

// Status is the state of one trunk.
type Status struct {
	Up    bool
	Node  ib.GUID   // of the peer; 0: not known yet
	Epoch Epoch     // of the peer; 0: down
	Since mono.Time // of the last change; 0: never up
	// RTT is the smoothed round trip of hellos, 0: none yet; LastRTT the newest.
	RTT, LastRTT time.Duration
	Counters
}

const helloMemory = 8 // hellos whose replies give a round trip

// peer is the state of one trunk.
type peer struct {
	guid   ib.GUID // configured, or 0
	status Status
	heard  mono.Time // last datagram with the right epochs
	// The epoch that was learned last, and the one before.
	last, before Epoch
	// The epoch that hellos claim, when they last did, and the newest one's
	// number. Nothing proves it, but it may be told back.
	claim   Epoch
	claimed mono.Time
	theirNo uint32
	// What goes out next: an answer, and a hello out of turn.
	answer   bool
	answerTo Epoch
	answerNo uint32
	hello    bool

	helloNo uint32
	sentAt  [helloMemory]mono.Time // by number of the hello
	streams [MaxStreams]*window
	parts   partials
}

// Core is a node's end of its trunks. Its calls must not overlap.
type Core struct {
	cfg   Config
	peers []peer
	pool  pool
	next  mono.Time // of the hellos
	// Peers before turn have been asked by Next since there was something new.
	turn int
}

// New returns a Core with all trunks down.
func New(cfg Config) (*Core, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.HelloEvery == 0 {
		cfg.HelloEvery = HelloEvery
	}
	if cfg.DownAfter == 0 {
		cfg.DownAfter = max(DownAfter, cfg.HelloEvery)
	}
	if cfg.Event == nil {
		cfg.Event = func(Event) {}
	}
	c := &Core{cfg: cfg, peers: make([]peer, len(cfg.Peers))}
	for i := range c.peers {
		c.peers[i].guid = cfg.Peers[i]
	}
	c.turn = len(c.peers)
	return c, nil
}

// Peers returns the number of peers.
func (c *Core) Peers() int { return len(c.peers) }

// Status returns the state of the trunk to a peer.
func (c *Core) Status(peer int) Status {
	p := &c.peers[peer]
	s := p.status
	s.GaveUp = p.parts.gaveUp
	return s
}

// Handle takes a datagram that came from the address of a peer, delivers its
// packets, at most MaxPackets, and returns their number. Each is part of the
// datagram, or, of fragments, valid until Recycle. deliver may use a
// Batch, not the Core. What is refused is counted. Afterwards Next may have
// something.
func (c *Core) Handle(now mono.Time, peer int, datagram []byte, deliver func(peer int, packet []byte)) (delivered int) {
	p := &c.peers[peer]
	before := p.status.Packets
	var h Header
	body, why := h.Parse(datagram)
	if why == OK {
		why = c.permitted(p, &h)
	}
	if why == OK {
		switch h.Kind {
		case Hello:
			why = c.hello(now, peer, &h)
		case HelloReply:
			why = c.reply(now, peer, &h)
		case Data:
			why = c.data(now, peer, &h, body, deliver)
		case Fragment:
			why = c.fragment(now, peer, &h, body, deliver)
		}
	}
	if why != OK {
		p.status.Drop[why]++
		return 0
	}
	p.status.Datagrams++
	p.status.Bytes += uint64(len(datagram))
	return int(p.status.Packets - before)
}

// Recycle takes back the memory of the packets that Handle delivered.
func (c *Core) Recycle() { c.pool.recycle() }

// permitted judges whom the datagram is from and for, but for what hellos may
// bring.
func (c *Core) permitted(p *peer, h *Header) Refusal {
	s := &p.status
	switch {
	case p.guid != 0 && h.Node != p.guid || h.Node == c.cfg.Node:
		return WrongNode
	case h.From == p.before:
		return WrongEpoch
	case h.Kind == Hello:
		return OK
	case h.To != c.cfg.Epoch:
		return WrongEpoch
	case h.Kind == HelloReply:
		return OK
	case !s.Up:
		return PeerDown
	case h.From != s.Epoch:
		return WrongEpoch
	case h.Node != s.Node:
		return WrongNode
	}
	return OK
}

// hello answers, and takes note of the sender if it hears us.
func (c *Core) hello(now mono.Time, i int, h *Header) Refusal {
	p := &c.peers[i]
	p.status.Hellos++
	p.answer, p.answerTo, p.answerNo = true, h.From, h.Seq
	c.turn = 0
	stale := h.From == p.claim && int32(h.Seq-p.theirNo) <= 0
	switch {
	case h.To == c.cfg.Epoch:
		c.alive(now, i, h)
	case h.To == 0 && p.status.Up && h.From == p.status.Epoch && !stale:
		// It does not hear us, and drops what we send.
		c.down(now, i, false)
	}
	if !stale {
		p.claim, p.claimed, p.theirNo = h.From, now, h.Seq
	}
	return OK
}

func (c *Core) reply(now mono.Time, i int, h *Header) Refusal {
	p := &c.peers[i]
	p.status.Replies++
	c.alive(now, i, h)
	at := &p.sentAt[h.Seq%helloMemory]
	if p.helloNo-h.Seq < helloMemory && *at != 0 {
		p.measure(now.Sub(*at))
		*at = 0
	}
	return OK
}

// measure smooths the round trip as RFC 6298 does.
func (p *peer) measure(rtt time.Duration) {
	s := &p.status
	s.LastRTT = rtt
	if s.RTT == 0 {
		s.RTT = rtt
	}
	s.RTT += (rtt - s.RTT) / 8
}

// alive takes note of a sender that proved it hears us.
func (c *Core) alive(now mono.Time, i int, h *Header) {
	p := &c.peers[i]
	s := &p.status
	p.heard = now
	if s.Up && s.Epoch == h.From && s.Node == h.Node {
		return
	}
	if s.Up {
		c.down(now, i, h.From != p.last)
	}
	restarted := p.last != 0 && h.From != p.last
	if restarted {
		s.Restarts++
	}
	if h.From != p.last {
		p.before, p.last = p.last, h.From
		// Within an epoch numbers go on, whatever the trunk does.
		for _, w := range p.streams {
			if w != nil {
				*w = window{}
			}
		}
	}
	s.Up, s.Node, s.Epoch, s.Since = true, h.Node, h.From, now
	s.Ups++
	p.hello = true // it may wait for this to send
	c.turn = 0
	c.cfg.Event(Event{Peer: i, Up: true, Node: h.Node, Epoch: h.From, Restarted: restarted})
}

func (c *Core) down(now mono.Time, i int, restarted bool) {
	p := &c.peers[i]
	s := &p.status
	s.Up, s.Epoch, s.Since, s.RTT = false, 0, now, 0
	s.Downs++
	p.hello = true // the other end may hear us still, and shall not think that we hear it
	c.turn = 0
	p.parts.clear(&c.pool)
	c.cfg.Event(Event{Peer: i, Node: s.Node, Restarted: restarted})
}

// sequence accounts for a datagram of a stream.
func (p *peer) sequence(h *Header) Refusal {
	w := p.streams[h.Stream]
	if w == nil {
		w = new(window) // once per stream and peer
		p.streams[h.Stream] = w
	}
	v := w.take(h.Seq)
	p.status.Lost += uint64(v.gap)
	if v.late {
		p.status.Reordered++
	}
	if v.filled {
		p.status.Lost--
	}
	return v.why
}

func (c *Core) data(now mono.Time, i int, h *Header, body []byte, deliver func(int, []byte)) Refusal {
	p := &c.peers[i]
	if !boundaries(body) {
		return BadBody
	}
	if why := p.sequence(h); why != OK {
		return why
	}
	p.heard = now
	for len(body) > 0 {
		end := lengthLen + int(be.Uint16(body))
		p.status.Packets++
		deliver(i, body[lengthLen:end:end])
		body = body[end:]
	}
	return OK
}

func (c *Core) fragment(now mono.Time, i int, h *Header, body []byte, deliver func(int, []byte)) Refusal {
	p := &c.peers[i]
	at, data, ok := parsePiece(body)
	if !ok {
		return BadBody
	}
	if why := p.sequence(h); why != OK {
		return why
	}
	p.heard = now
	packet, why := p.parts.add(now, &c.pool, h.Stream, h.Seq, at, data)
	if packet != nil {
		p.status.Packets++
		p.status.Reassembled++
		deliver(i, packet)
	}
	return why
}

// read is until when everything that came from a peer has been handled.
func (c *Core) read(now mono.Time, peer int) mono.Time {
	if c.cfg.Read == nil {
		return now
	}
	return c.cfg.Read(peer)
}

// Tick does what time asks for: hellos, and trunks that have not been heard of.
// Afterwards Next may have something.
func (c *Core) Tick(now mono.Time) {
	for i := range c.peers {
		if p := &c.peers[i]; p.status.Up && c.read(now, i).Sub(p.heard) >= c.cfg.DownAfter {
			c.down(now, i, false)
		}
	}
	if !c.next.Due(now) && c.next != 0 {
		return
	}
	c.next = now.Add(c.cfg.HelloEvery)
	for i := range c.peers {
		c.peers[i].hello = true
		c.peers[i].parts.expire(c.read(now, i), &c.pool)
	}
	c.turn = 0
}

// Deadline returns when Tick must be called next, which is not later than now
// while it waits for Config.Read; 0 where there is no peer.
func (c *Core) Deadline() mono.Time {
	if len(c.peers) == 0 {
		return 0
	}
	d := c.next
	if d == 0 {
		return 1 // no hello went out yet
	}
	for i := range c.peers {
		if p := &c.peers[i]; p.status.Up {
			d = mono.Min(d, p.heard.Add(c.cfg.DownAfter))
		}
	}
	return d
}

// Next writes the next hello or reply to b, which has room for HeaderLen
// octets, and returns whom it is for; ok is false when there is none.
func (c *Core) Next(now mono.Time, b []byte) (peer, n int, ok bool) {
	for ; c.turn < len(c.peers); c.turn++ {
		p := &c.peers[c.turn]
		h := Header{From: c.cfg.Epoch, Node: c.cfg.Node}
		switch {
		case p.answer:
			p.answer = false
			h.Kind, h.To, h.Seq = HelloReply, p.answerTo, p.answerNo
		case p.hello:
			p.hello = false
			p.helloNo++
			p.sentAt[p.helloNo%helloMemory] = now
			h.Kind, h.To, h.Seq = Hello, p.status.Epoch, p.helloNo
			if h.To == 0 && p.claim != 0 && now.Sub(p.claimed) < c.cfg.DownAfter {
				h.To = p.claim
			}
		default:
			continue
		}
		h.Put(b)
		return c.turn, HeaderLen, true
	}
	return 0, 0, false
}
