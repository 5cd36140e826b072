// SPDX-License-Identifier: Apache-2.0

// Package inmem carries trunks between nodes of one process under a virtual clock: package trunk over
// a queue, for simulations and tests.
//
// What comes in: the calls of link/udp, and a seed with faults of the underlay; what goes out: packets
// at the other nodes, dropped, duplicated, delayed and reordered by the seed. One goroutine makes all
// calls to a Network. It never reads a clock, and equal calls with an equal seed have equal results.
package inmem

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"weft/internal/fabric/trunk"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Addr is a node's address on the underlay.
type Addr uint32

// Faults are what the underlay does to datagrams. Chances are 0 … 1 of each
// datagram by itself.
type Faults struct {
	Drop, Duplicate float64
	// Reorder is the chance that a datagram takes up to ReorderBy longer.
	Reorder   float64
	ReorderBy time.Duration
	Delay     time.Duration // of every datagram
}

// Counters count what the underlay did, in datagrams.
type Counters struct{ Sent, Dropped, Duplicated, Reordered, NoRoute uint64 }

// flight is a datagram on its way.
type flight struct {
	timer    mono.Timer[*flight]
	from, to Addr
	data     []byte
}

// Network is the underlay.
type Network struct {
	Counters
	faults Faults
	rng    *rand.Rand
	links  map[Addr]*Link
	cut    map[[2]Addr]bool
}

// NewNetwork returns an underlay without nodes.
func NewNetwork(seed uint64, f Faults) *Network {
	return &Network{faults: f, rng: rand.New(rand.NewPCG(seed, 0x7472756e6b)), links: map[Addr]*Link{},
		cut: map[[2]Addr]bool{}}
}

// SetFaults changes the faults of what is sent from now on.
func (n *Network) SetFaults(f Faults) { n.faults = f }

// Cut stops or lets pass what is sent from one node to another from now on; the
// other direction is another matter.
func (n *Network) Cut(from, to Addr, cut bool) { n.cut[[2]Addr{from, to}] = cut }

// send enqueues a datagram, or drops it, by the network's faults.
func (n *Network) send(now mono.Time, from, to Addr, data []byte) {
	n.Sent++
	f := &n.faults
	// The same number of draws for each, so that one fault does not shift another.
	drop, twice, late, by := n.rng.Float64() < f.Drop, n.rng.Float64() < f.Duplicate, n.rng.Float64() < f.Reorder, n.rng.Float64()
	l := n.links[to]
	switch {
	case l == nil:
		n.NoRoute++
		return
	case drop || n.cut[[2]Addr{from, to}]:
		n.Dropped++
		return
	}
	due := now.Add(f.Delay)
	if late {
		n.Reordered++
		due = due.Add(time.Duration(by * float64(f.ReorderBy)))
	}
	copies := 1
	if twice {
		n.Duplicated++
		copies = 2
	}
	for range copies {
		d := &flight{from: from, to: to, data: bytes.Clone(data)}
		d.timer.Value = d
		l.in.Set(&d.timer, due)
	}
}

// Config configures a Link.
type Config struct {
	Addr  Addr
	Node  ib.GUID
	Epoch trunk.Epoch // not 0
	// Peers are identified by their index in all other calls.
	Peers []Peer
	// Limit is the size of the largest datagram; 1472, that of Ethernet, if 0.
	Limit                 int
	HelloEvery, DownAfter time.Duration
	Event                 func(trunk.Event)
}

// Peer is a node at the other end of a trunk.
type Peer struct {
	Addr Addr
	Node ib.GUID // 0: the one that answers
}

// Link is a node's end of its trunks, as udp.Link is.
type Link struct {
	net    *Network
	cfg    Config
	core   *trunk.Core
	peers  []trunk.Remote
	byAddr map[Addr]int
	in     mono.Heap[*flight] // datagrams by arrival
	// Unknown counts datagrams from an address that is no peer's.
	Unknown uint64
}

// Open adds a node, or replaces the one at its address, as a restart would.
func (n *Network) Open(cfg Config) (*Link, error) {
	if cfg.Limit == 0 {
		cfg.Limit = 1472
	}
	l := &Link{net: n, cfg: cfg, peers: make([]trunk.Remote, len(cfg.Peers)), byAddr: map[Addr]int{}}
	core := trunk.Config{Node: cfg.Node, Epoch: cfg.Epoch, HelloEvery: cfg.HelloEvery, DownAfter: cfg.DownAfter,
		Event: l.changed}
	var errs []error
	for i, p := range cfg.Peers {
		if _, twice := l.byAddr[p.Addr]; twice {
			errs = append(errs, fmt.Errorf("peer %d is given twice", p.Addr))
		}
		l.byAddr[p.Addr] = i
		l.peers[i].Limit = cfg.Limit
		core.Peers = append(core.Peers, p.Node)
	}
	var err error
	if l.core, err = trunk.New(core); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("open trunks: %w", errors.Join(errs...))
	}
	n.links[cfg.Addr] = l
	return l, nil
}

// Close takes the node off the underlay.
func (l *Link) Close() {
	if l.net.links[l.cfg.Addr] == l {
		delete(l.net.links, l.cfg.Addr)
	}
}

func (l *Link) changed(e trunk.Event) {
	l.peers[e.Peer].To = e.Epoch
	if l.cfg.Event != nil {
		l.cfg.Event(e)
	}
}

// Recv delivers the packets of the next datagram that has arrived. They stay valid until the next
// Recv. deliver may use a Sender, but not the Link. more reports that there was a datagram.
func (l *Link) Recv(now mono.Time, deliver func(peer int, packet []byte)) (more bool) {
	l.core.Recycle()
	f, arrived := l.in.PopDue(now)
	if !arrived {
		return false
	}
	peer, known := l.byAddr[f.from]
	if !known {
		l.Unknown++
		return true
	}
	l.core.Handle(now, peer, f.data, deliver)
	l.control(now)
	return true
}

// Tick sends hellos and looks at timeouts. Call it at Deadline, after Recv.
func (l *Link) Tick(now mono.Time) {
	l.core.Tick(now)
	l.control(now)
}

// Deadline returns when Recv or Tick must be called next.
func (l *Link) Deadline() mono.Time {
	return mono.Min(l.core.Deadline(), l.in.Next())
}

func (l *Link) control(now mono.Time) {
	var b [trunk.HeaderLen]byte
	for {
		i, n, ok := l.core.Next(now, b[:])
		if !ok {
			return
		}
		l.net.send(now, l.cfg.Addr, l.cfg.Peers[i].Addr, b[:n])
	}
}

// Peers returns the number of peers.
func (l *Link) Peers() int { return len(l.peers) }

// Status returns the state of the trunk to a peer.
func (l *Link) Status(peer int) trunk.Status { return l.core.Status(peer) }

// Sender is one stream, as udp.Sender is.
type Sender struct {
	l     *Link
	batch *trunk.Batch
}

// Sender returns the sender of a stream, which no other Sender may have.
func (l *Link) Sender(stream uint8) *Sender {
	return &Sender{l: l, batch: trunk.NewBatch(l.cfg.Node, l.cfg.Epoch, stream, len(l.peers),
		func(i int) trunk.Remote { return l.peers[i] })}
}

// Inject is that of udp.Sender.
func (s *Sender) Inject(i trunk.Injector) { s.batch.Inject(i) }

// Reserve is that of udp.Sender.
func (s *Sender) Reserve(peer, n int) []byte { return s.batch.Reserve(peer, n) }

// Drops returns the number of packets to a peer that Reserve refused, by reason.
func (s *Sender) Drops(peer int) trunk.Drops { return s.batch.Drops(peer) }

// Commit is that of udp.Sender.
func (s *Sender) Commit(now mono.Time, n int) {
	s.batch.Commit(now, n)
	if s.batch.Waiting() >= 128<<10 {
		s.flush(now)
	}
}

// Flush sends everything that was committed, and what an Injector held until
// now.
func (s *Sender) Flush(now mono.Time) {
	s.batch.Release(now)
	s.flush(now)
}

func (s *Sender) flush(now mono.Time) {
	var d []byte
	trains := s.batch.Trains()
	for i := range trains {
		t := &trains[i]
		for _, p := range s.batch.Pieces(t) {
			d = append(d, s.batch.Bytes()[p.Off:p.Off+p.Len]...)
			for len(d) >= t.Size {
				s.l.net.send(now, s.l.cfg.Addr, s.l.cfg.Peers[t.Peer].Addr, d[:t.Size])
				d = append(d[:0], d[t.Size:]...)
			}
		}
		if len(d) > 0 {
			s.l.net.send(now, s.l.cfg.Addr, s.l.cfg.Peers[t.Peer].Addr, d)
			d = d[:0]
		}
	}
	s.batch.Reset()
}

// Blocked is that of udp.Sender; this underlay takes everything.
func (s *Sender) Blocked() bool { return false }

// Deadline returns when Flush must be called next on behalf of an Injector; 0:
// never.
func (s *Sender) Deadline() mono.Time { return s.batch.Deadline() }
