// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"errors"
	"fmt"
	"time"

	"weft/internal/proto/counters"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Config configures a Core.
type Config struct {
	Node  ib.GUID // this node's, not 0
	Epoch Epoch   // of this start: random, not 0
	// Peers are the node GUIDs of the peers; 0 accepts the GUID of the node that
	// replies at the peer's address.
	Peers []ib.GUID
	// HelloEvery and DownAfter are the package's constants if 0.
	HelloEvery, DownAfter time.Duration
	// Event is called when a trunk comes up or goes down, on the Core's
	// goroutine, within Handle or Tick. It must not call the Core. It may be nil.
	Event func(Event)
	// Read returns the time up to which all datagrams of a peer have been
	// handled, so that a busy node does not count unread datagrams as silence.
	// nil: the time of Tick.
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
		errs = append(errs, fmt.Errorf("hellos every %v, down after %v: must be positive and in this order",
			c.HelloEvery, c.DownAfter))
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

// Remote is the state of a peer that a Batch depends on. The zero value is a
// peer that is down.
type Remote struct {
	To Epoch // 0: down, nothing can be sent
	// Limit is the size of the largest datagram, MinDatagram to MaxDatagram.
	Limit int
}

// Counters count what one trunk received. They continue when the peer restarts.
type Counters struct {
	Datagrams   uint64 `counter:"rcvd_datagrams"` // accepted, hellos included
	Bytes       uint64 `counter:"rcvd_bytes"`     // of those datagrams
	Packets     uint64 `counter:"rcvd_packets"`   // delivered
	Reassembled uint64 // of the delivered packets, those that arrived in fragments
	Lost        uint64 // datagrams missing from the sequence
	Reordered   uint64 // datagrams that arrived after a successor
	Expired     uint64 `counter:"reassembly_expired"` // packets of which fragments did not arrive in time
	Hellos      uint64 // accepted
	Replies     uint64 `counter:"hello_replies"` // accepted
	Ups, Downs  uint64 // changes of the trunk's state
	Restarts    uint64 // of the peer
	Drop        Refusals
}

// Each calls f with the name and the value of every counter, in a fixed order.
func (c *Counters) Each(f func(name string, v uint64)) { counters.Each("", c, f) }

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

const helloMemory = 8 // number of recent hellos with a measured reply

// peer is the state of one trunk.
type peer struct {
	guid   ib.GUID // configured, or 0
	status Status
	heard  mono.Time // last datagram with the right epochs
	// The epoch that was proved last, and the one before.
	last, before Epoch
	// The epoch that hellos claim, the time of the last such hello, and its
	// number. Nothing proves the claim; it is only echoed in replies and hellos.
	claim   Epoch
	claimed mono.Time
	theirNo uint32
	// What Next sends: a reply, and a hello out of turn.
	reply   bool
	replyTo Epoch
	replyNo uint32
	hello   bool

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
	// Peers before turn have nothing for Next.
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
	s.Expired = p.parts.expired
	return s
}

// Handle handles a datagram from the address of a peer, delivers its packets, at
// most MaxPackets, and returns their number. A packet is a part of the datagram
// or, if it was reassembled, valid until Recycle. deliver may use a Batch, but
// not the Core. Refused datagrams are counted. The caller then calls Next.
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

// Recycle reuses the memory of the packets that Handle delivered.
func (c *Core) Recycle() { c.pool.recycle() }

// permitted validates the sender and the receiver of the datagram. Hellos may
// bring a new epoch.
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

// hello handles a hello: it schedules a reply, and the trunk is up if the hello
// proves that the sender receives our datagrams.
func (c *Core) hello(now mono.Time, i int, h *Header) Refusal {
	p := &c.peers[i]
	p.status.Hellos++
	p.reply, p.replyTo, p.replyNo = true, h.From, h.Seq
	c.turn = 0
	stale := h.From == p.claim && int32(h.Seq-p.theirNo) <= 0
	switch {
	case h.To == c.cfg.Epoch:
		c.alive(now, i, h)
	case h.To == 0 && p.status.Up && h.From == p.status.Epoch && !stale:
		// The peer receives nothing of ours, and drops our data.
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

// measure smooths the round-trip time as RFC 6298 does.
func (p *peer) measure(rtt time.Duration) {
	s := &p.status
	s.LastRTT = rtt
	if s.RTT == 0 {
		s.RTT = rtt
	}
	s.RTT += (rtt - s.RTT) / 8
}

// alive handles the proof that the peer receives our datagrams.
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
		// Within an epoch sequence numbers go on while the trunk goes down and up.
		for _, w := range p.streams {
			if w != nil {
				*w = window{}
			}
		}
	}
	s.Up, s.Node, s.Epoch, s.Since = true, h.Node, h.From, now
	s.Ups++
	p.hello = true // the peer may need it to bring its end up
	c.turn = 0
	c.cfg.Event(Event{Peer: i, Up: true, Node: h.Node, Epoch: h.From, Restarted: restarted})
}

func (c *Core) down(now mono.Time, i int, restarted bool) {
	p := &c.peers[i]
	s := &p.status
	s.Up, s.Epoch, s.Since, s.RTT = false, 0, now, 0
	s.Downs++
	p.hello = true // a peer that still receives ours learns that this end is down
	c.turn = 0
	p.parts.clear(&c.pool)
	c.cfg.Event(Event{Peer: i, Node: s.Node, Restarted: restarted})
}

// sequence applies the sequence window to a datagram of a stream.
func (p *peer) sequence(h *Header) Refusal {
	w := p.streams[h.Stream]
	if w == nil {
		w = new(window) // once per stream and peer
		p.streams[h.Stream] = w
	}
	v := w.accept(h.Seq)
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

// read returns the time up to which all datagrams of a peer have been handled.
func (c *Core) read(now mono.Time, peer int) mono.Time {
	if c.cfg.Read == nil {
		return now
	}
	return c.cfg.Read(peer)
}

// Tick schedules hellos, and takes down trunks after DownAfter without a datagram of the peer. The
// caller then calls Next.
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

// Deadline returns when Tick must be called next, which is in the past while
// Tick waits for Config.Read; 0 if there is no peer.
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
// octets, and returns the peer to send it to; ok is false if there is none.
func (c *Core) Next(now mono.Time, b []byte) (peer, n int, ok bool) {
	for ; c.turn < len(c.peers); c.turn++ {
		p := &c.peers[c.turn]
		h := Header{From: c.cfg.Epoch, Node: c.cfg.Node}
		switch {
		case p.reply:
			p.reply = false
			h.Kind, h.To, h.Seq = HelloReply, p.replyTo, p.replyNo
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
