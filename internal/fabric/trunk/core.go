// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"weft/internal/fabric/trunk/handshake"
	"weft/internal/fabric/trunk/seal"
	"weft/internal/proto/counters"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Config configures a Core.
type Config struct {
	Node          ib.GUID // this node's, not 0
	Name, Version string  // of this node, for the peers
	// Mode is the weakest that this node accepts; of two ends the stronger one's mode counts.
	Mode seal.Mode
	// Trust authenticates the peers. nil: there are no handshakes; sessions come by Install.
	Trust handshake.Trust
	// Wall is the time of certificates; needed with Trust.
	Wall func(mono.Time) time.Time
	// Apart: the caller runs what handshakes compute, by Work and Finish. Otherwise Handle does.
	Apart bool
	// Rand is the source of epochs, indices and nonces; nil: crypto/rand. Key exchange and signatures take their
	// randomness inside the crypto packages.
	Rand io.Reader
	// Peers are those from the start; AddPeer adds others.
	Peers []PeerConfig
	// HelloEvery and DownAfter are the package's constants if 0, and so are RekeyAfter and RekeyDatagrams.
	HelloEvery, DownAfter, RekeyAfter time.Duration
	RekeyDatagrams                    uint64
	// Event is called when a trunk comes up or goes down, Changed when a peer's Remote or address may have changed.
	// Both
	// are called on the Core's goroutine, within its calls, and must only read the Core. They may be nil.
	Event   func(Event)
	Changed func(peer int)
	// Read returns the time up to which all datagrams of a peer have been
	// handled, so that a busy node does not count unread datagrams as silence.
	// nil: the time of Tick.
	Read func(peer int) mono.Time
}

// PeerConfig is a node at the other end of a trunk.
type PeerConfig struct {
	// Addr is where it receives. The zero value is that of a peer that begins itself, from wherever it is; its Node is
	// needed then.
	Addr netip.AddrPort
	// Node is its GUID; 0 accepts the GUID of the node that proves itself at Addr.
	Node ib.GUID
	// Limit is the size of the largest datagram on the path to it as this node has it; SetLimit changes it.
	Limit int
}

func (c *Config) validate() error {
	var errs []error
	if c.Node == 0 {
		errs = append(errs, errors.New("the node GUID must not be 0"))
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
	Name string  // of the peer
	// Restarted: the peer has another epoch than before. If it was up, a down
	// and an up event follow each other.
	Restarted bool
}

// Remote is the state of a peer that a Batch depends on. The zero value is a
// peer that is down.
type Remote struct {
	Key  *seal.Key // nil: down, nothing can be sent
	Mode seal.Mode
	// Limit is the size of the largest datagram, MinDatagram to MaxDatagram.
	Limit int
}

// Counters count what one trunk received. They continue when the peer restarts.
type Counters struct {
	Datagrams   uint64 `counter:"rcvd_datagrams"` // accepted, control datagrams included
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
	Sessions    uint64 // handshakes completed with the peer
	Rekeys      uint64 // of these, those that replaced a session in use
	Refused     uint64 `counter:"handshakes_failed"`
	Probes      uint64 `counter:"mtu_probes"` // sent
	Drop        Refusals
}

// Each calls f with the name and the value of every counter, in a fixed order.
func (c *Counters) Each(f func(name string, v uint64)) { counters.Each("", c, f) }

// Status is the state of one trunk.
type Status struct {
	Up    bool
	Addr  netip.AddrPort // where the peer is; zero: not known yet
	Node  ib.GUID        // of the peer; 0: not known yet
	Name  string         // of the peer, the same way, and Version
	Since mono.Time      // of the last change; 0: never up
	// RTT is the smoothed round trip of hellos, 0: none yet; LastRTT the newest.
	RTT, LastRTT time.Duration
	Version      string
	// Session is when the keys in use were agreed on; 0: there are none. Mode is what they do.
	Session mono.Time
	Mode    seal.Mode
	// Limit is the size of the largest datagram that passes, as measured; Own and Theirs are the limits of the path as
	// this node and the peer have it; 0: not known.
	Limit, Own, Theirs int
	// Measured: Limit is all that Own and Theirs allow. Hole: larger datagrams than Limit do not pass.
	Measured, Hole bool
	// LossRate is the share of the datagrams of LossWindow that did not arrive, as last measured. Lossy: LossRate is
	// higher than on a path that works.
	LossRate float64
	Lossy    bool
	// Why is the reason of the newest handshake that failed, empty once one completes.
	Why string
	Counters
}

// Strays count datagrams that belong to no session, and what handshakes did.
type Strays struct {
	Drop Stray
	handshake.Counters
}

// Each calls f with the name and the value of every counter, in a fixed order.
func (s *Strays) Each(f func(name string, v uint64)) {
	counters.Each("", s, f)
}

const helloMemory = 8 // number of recent hellos with a measured reply

// peer is the state of one trunk.
type peer struct {
	used   bool
	cfg    PeerConfig
	addr   netip.AddrPort // where it is
	status Status
	epoch  uint64 // of this end
	// theirs is the epoch of the peer that was proved last, by the handshake of the newest confirmed session.
	theirs     uint64
	generation uint32 // of the handshakes begun here
	sessions   []*session
	tx         *session // of sessions, the one to send on; nil: none is confirmed
	heard      mono.Time
	begin      mono.Time // earliest next handshake
	wantsRekey bool      // the peer has used its key up
	restarted  bool      // the next event of a trunk that comes up states it

	theirNo uint32 // newest number of a hello
	// What Next sends: a reply, and a hello out of turn.
	reply   bool
	replyNo uint32
	ack     probe // of a probe; size 0: none
	hello   bool

	tooOld  uint64 // status.Drop[TooOld] when windows of the mode none began anew
	number  uint64 // of control datagrams
	helloNo uint32
	sentAt  [helloMemory]mono.Time // by number of the hello
	streams [numStreams]*window
	parts   partials
	path    path
	carried uint64 // received datagrams with packets or parts of packets; loss counts these alone
	loss    lossRate
}

// Core is a node's end of its trunks. Its calls must not overlap.
type Core struct {
	cfg     Config
	peers   []peer
	byAddr  map[netip.AddrPort]int
	byIndex map[uint32]*session
	old     [oldSessions]uint32 // indices of sessions that ended
	oldNext int
	last    *session // of the newest datagram
	hs      *handshake.Endpoint
	strays  Stray
	scratch seal.Scratch
	pool    pool
	next    mono.Time // of the hellos
	// Peers before turn have nothing for Next.
	turn int
}

// New returns a Core with all trunks down.
func New(cfg Config) (*Core, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&cfg.HelloEvery, HelloEvery)
	set(&cfg.DownAfter, max(DownAfter, cfg.HelloEvery))
	set(&cfg.RekeyAfter, RekeyAfter)
	if cfg.RekeyDatagrams == 0 {
		cfg.RekeyDatagrams = RekeyDatagrams
	}
	if cfg.Event == nil {
		cfg.Event = func(Event) {}
	}
	if cfg.Changed == nil {
		cfg.Changed = func(int) {}
	}
	c := &Core{cfg: cfg, byAddr: map[netip.AddrPort]int{}, byIndex: map[uint32]*session{}}
	c.newHandshakes()
	for _, p := range cfg.Peers {
		if _, err := c.AddPeer(p); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// AddPeer adds a peer and returns its index, which may be that of one that was removed. The caller then calls Tick.
func (c *Core) AddPeer(cfg PeerConfig) (int, error) {
	switch {
	case cfg.Node != 0 && cfg.Node == c.cfg.Node:
		return 0, fmt.Errorf("the peer has this node's GUID %v", cfg.Node)
	case !cfg.Addr.IsValid() && cfg.Node == 0:
		return 0, errors.New("a peer without an address needs its node GUID")
	}
	for i := range c.peers {
		p := &c.peers[i]
		if p.used && (cfg.Addr.IsValid() && p.cfg.Addr == cfg.Addr || cfg.Node != 0 && p.cfg.Node == cfg.Node) {
			return 0, fmt.Errorf("%v is given twice, as peer %d", cfg.Addr, i)
		}
	}
	i := 0
	for i < len(c.peers) && c.peers[i].used {
		i++
	}
	if i == len(c.peers) {
		if i == MaxPeers {
			return 0, fmt.Errorf("%d peers are too many: at most %d", i+1, MaxPeers)
		}
		c.peers = append(c.peers, peer{})
	}
	p := &c.peers[i]
	*p = peer{used: true, cfg: cfg, addr: cfg.Addr, epoch: c.newEpoch()}
	p.status.Node = cfg.Node
	p.path.own = cfg.Limit
	if cfg.Addr.IsValid() {
		c.byAddr[cfg.Addr] = i
	}
	c.turn = len(c.peers)
	c.next = min(c.next, 1) // hellos, and handshakes, are due
	c.cfg.Changed(i)
	return i, nil
}

// Close ends the handshakes that go on. No Work is being run, and nothing else is called afterwards.
func (c *Core) Close() {
	if c.hs != nil {
		c.hs.Close()
	}
}

// RemovePeer ends the trunk to a peer at once, and its sessions. Its index may become that of another.
func (c *Core) RemovePeer(now mono.Time, i int) {
	p := &c.peers[i]
	if !p.used {
		return
	}
	if c.hs != nil {
		c.hs.Cancel(i)
	}
	for len(p.sessions) > 0 {
		c.end(p, p.sessions[0])
	}
	if p.status.Up {
		c.down(now, i, false)
	}
	p.parts.clear(&c.pool)
	if c.byAddr[p.cfg.Addr] == i {
		delete(c.byAddr, p.cfg.Addr)
	}
	*p = peer{}
	c.cfg.Changed(i)
}

// SetAddr sets where a peer is from now on. Its sessions stay.
func (c *Core) SetAddr(i int, at netip.AddrPort) error {
	p := &c.peers[i]
	switch j, taken := c.byAddr[at]; {
	case !p.used || !at.IsValid():
		return fmt.Errorf("peer %d cannot be at %v", i, at)
	case taken && j != i:
		return fmt.Errorf("%v is the address of peer %d", at, j)
	}
	if c.byAddr[p.cfg.Addr] == i {
		delete(c.byAddr, p.cfg.Addr)
	}
	c.byAddr[at] = i
	p.cfg.Addr, p.addr, p.begin = at, at, 0
	if c.hs != nil {
		c.hs.Cancel(i)
	}
	p.hello = true
	c.turn = 0
	c.cfg.Changed(i)
	return nil
}

// SetLimit sets the size of the largest datagram on the path to a peer, as this node has it; 0: there is no route.
func (c *Core) SetLimit(i int, limit int) {
	p := &c.peers[i]
	if !p.used || p.path.own == limit {
		return
	}
	p.path.own = limit
	p.path.follow()
	p.hello = true
	c.turn = 0
	c.cfg.Changed(i)
}

// Peers returns the number of peers; free indices of removed ones count.
func (c *Core) Peers() int { return len(c.peers) }

// Used reports whether an index is that of a peer.
func (c *Core) Used(peer int) bool { return peer < len(c.peers) && c.peers[peer].used }

// Remote returns what a Batch depends on.
func (c *Core) Remote(i int) Remote {
	p := &c.peers[i]
	if !p.status.Up || p.tx == nil {
		return Remote{}
	}
	return Remote{Key: p.tx.send, Mode: p.tx.mode, Limit: p.path.limit()}
}

// Addr returns where a peer is; the zero value: not known.
func (c *Core) Addr(i int) netip.AddrPort { return c.peers[i].addr }

// Status returns the state of the trunk to a peer.
func (c *Core) Status(peer int) Status {
	p := &c.peers[peer]
	s := p.status
	s.Expired = p.parts.expired
	s.Addr, s.Own, s.Theirs, s.Limit = p.addr, p.path.own, p.path.theirs, p.path.limit()
	s.LossRate, s.Lossy = p.loss.rate, p.loss.lossy
	if p.loss.recent == lossUnmeasured && !p.loss.lossy {
		s.LossRate = 0
	}
	s.Measured, s.Hole = p.path.measured(), p.path.hole()
	if p.tx != nil {
		s.Session, s.Mode = p.tx.at, p.tx.mode
	}
	return s
}

// Strays returns the counters of what belongs to no peer.
func (c *Core) Strays() Strays {
	s := Strays{Drop: c.strays}
	if c.hs != nil {
		s.Counters = c.hs.Counters
	}
	return s
}

// Handle handles a datagram from an address, delivers its packets, at most MaxPackets, and returns their number. It
// decrypts the datagram in place. A packet is a part of the datagram or, if it was reassembled, valid until Recycle.
// deliver may use a Batch, but not the Core. Refused datagrams are counted. The caller then calls Next.
func (c *Core) Handle(now mono.Time, from netip.AddrPort, datagram []byte, deliver func(peer int, packet []byte)) (
	delivered int) {
	if len(datagram) >= HeaderLen && datagram[0] == seal.Magic && datagram[1]>>4 == seal.Version &&
		handshake.HandshakeKind(datagram) {
		c.handshake(now, from, datagram)
		return 0
	}
	var h Header
	n, why := h.Parse(datagram)
	if why != OK {
		c.strays[why]++
		return 0
	}
	s := c.last
	if s == nil || s.recv.Index() != h.Index {
		if s = c.byIndex[h.Index]; s == nil {
			c.strays[c.unknown(h.Index)]++
			return 0
		}
		c.last = s
	}
	i := s.peer
	p := &c.peers[i]
	before := p.status.Packets
	if why = c.accept(now, from, s, &h, datagram, n, deliver); why != OK {
		p.status.Drop[why]++
		return 0
	}
	p.status.Datagrams++
	p.status.Bytes += uint64(len(datagram))
	return int(p.status.Packets - before)
}

// accept handles a datagram of a session.
func (c *Core) accept(now mono.Time, from netip.AddrPort, s *session, h *Header, d []byte, n int,
	deliver func(int, []byte)) Refusal {
	p := &c.peers[s.peer]
	mode := s.mode
	if h.Kind == Control {
		mode = seal.Encrypt
	}
	// A session of another start of the peer begins its numbers anew. Its first genuine datagram confirms it.
	if w := p.streams[h.Stream]; w != nil && (s.confirmed || s.theirs == p.theirs) {
		if why := w.check(h.Number); why != OK {
			return why
		}
	}
	body, ok := s.recv.Open(&c.scratch, mode, d, n)
	if !ok {
		return Forged
	}
	var at piece
	switch h.Kind {
	case Control:
		ok = len(body) >= controlLen
	case Data:
		ok = boundaries(body)
	case Fragment:
		at, ok = parsePiece(d[HeaderLen:FragmentLen], len(body))
	}
	if !ok {
		return BadBody
	}
	if !s.confirmed && mode != seal.None {
		c.confirm(now, s)
	}
	if h.Kind != Control && (!p.status.Up || s.theirs != p.theirs) {
		return PeerDown
	}
	if why := p.sequence(h); why != OK {
		return why
	}
	switch h.Kind {
	case Control:
		c.control(now, from, s.peer, body, len(d))
	case Data:
		p.heard = now
		c.data(s.peer, body, deliver)
	case Fragment:
		p.heard = now
		return c.fragment(now, s.peer, h, at, body, deliver)
	}
	return OK
}

// Recycle reuses the memory of the packets that Handle delivered.
func (c *Core) Recycle() { c.pool.recycle() }

// sequence applies the sequence window to a datagram of a stream.
func (p *peer) sequence(h *Header) Refusal {
	w := p.streams[h.Stream]
	if w == nil {
		w = new(window) // once per stream and peer
		p.streams[h.Stream] = w
	}
	v := w.accept(h.Number)
	if h.Stream == controlStream {
		return v.why // datagrams of handshakes and probes may be lost; counters are those of packets
	}
	p.carried++
	p.status.Lost += v.gap
	if v.late {
		p.status.Reordered++
	}
	if v.filled {
		p.status.Lost--
	}
	return v.why
}

func (c *Core) data(i int, body []byte, deliver func(int, []byte)) {
	p := &c.peers[i]
	for len(body) > 0 {
		end := lengthLen + int(be.Uint16(body))
		p.status.Packets++
		deliver(i, body[lengthLen:end:end])
		body = body[end:]
	}
}

func (c *Core) fragment(now mono.Time, i int, h *Header, at piece, data []byte, deliver func(int, []byte)) Refusal {
	p := &c.peers[i]
	packet, why := p.parts.add(now, &c.pool, h.Stream, h.Number, at, data)
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

// Tick schedules hellos and handshakes, and takes down trunks after DownAfter without a datagram of the peer. The
// caller then calls Next.
func (c *Core) Tick(now mono.Time) {
	for i := range c.peers {
		if p := &c.peers[i]; p.status.Up && c.read(now, i).Sub(p.heard) >= c.cfg.DownAfter {
			c.down(now, i, false)
		}
	}
	if c.hs != nil {
		c.hs.Tick(now)
		c.harvest(now)
	}
	if !c.next.Due(now) && c.next != 0 {
		return
	}
	c.next = now.Add(c.cfg.HelloEvery)
	for i := range c.peers {
		p := &c.peers[i]
		if !p.used {
			continue
		}
		p.hello = true
		p.parts.expire(c.read(now, i), &c.pool)
		if p.path.tick(now, p.status.Up) {
			c.cfg.Changed(i)
		}
		if p.status.Up && now.Sub(p.status.Since) >= lossSettle {
			p.loss.tick(now, p.carried, p.status.Lost)
		} else {
			p.loss.reset()
		}
		c.age(now, i)
		c.renew(now, i)
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
	if c.hs != nil {
		d = mono.Min(d, c.hs.Deadline())
	}
	return d
}
