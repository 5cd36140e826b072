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
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"weft/internal/fabric/trunk"
	"weft/internal/fabric/trunk/handshake"
	"weft/internal/fabric/trunk/seal"
	"weft/internal/fabric/trunk/trust"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Addr is a node's address on the underlay.
type Addr uint32

// port is a as package trunk has it.
func (a Addr) port() netip.AddrPort {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(a))
	return netip.AddrPortFrom(netip.AddrFrom4(b), trunk.DefaultPort)
}

func ofPort(a netip.AddrPort) Addr {
	b := a.Addr().As4()
	return Addr(binary.BigEndian.Uint32(b[:]))
}

// epoch is the wall clock at the virtual time 0.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

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
	seed   uint64
	starts int // of nodes
}

// NewNetwork returns an underlay without nodes.
func NewNetwork(seed uint64, f Faults) *Network {
	return &Network{faults: f, rng: rand.New(rand.NewPCG(seed, 0x7472756e6b)), links: map[Addr]*Link{},
		cut: map[[2]Addr]bool{}, seed: seed}
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
	Addr Addr
	Node ib.GUID
	// Trust authenticates the peers; nil: every node is accepted. Mode is that of trunk.Config.
	Trust handshake.Trust
	Mode  seal.Mode
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
	net   *Network
	cfg   Config
	core  *trunk.Core
	peers []trunk.Remote
	in    mono.Heap[*flight] // datagrams by arrival
	out   []byte             // room for the datagram that is sent
}

// Open adds a node, or replaces the one at its address, as a restart would.
func (n *Network) Open(cfg Config) (*Link, error) {
	if cfg.Limit == 0 {
		cfg.Limit = 1472
	}
	if cfg.Trust == nil {
		var err error
		if cfg.Trust, err = trust.NewAnyone(cfg.Node.String(), epoch); err != nil {
			return nil, err
		}
	}
	n.starts++
	seed := [32]byte{0: byte(cfg.Addr), 1: byte(n.starts), 2: byte(n.starts >> 8), 3: byte(n.seed)}
	l := &Link{net: n, cfg: cfg, peers: make([]trunk.Remote, len(cfg.Peers)), out: make([]byte, trunk.MaxDatagram)}
	core := trunk.Config{Node: cfg.Node, Trust: cfg.Trust, Mode: cfg.Mode, Rand: rand.NewChaCha8(seed),
		Wall:       func(now mono.Time) time.Time { return epoch.Add(time.Duration(now)) },
		HelloEvery: cfg.HelloEvery, DownAfter: cfg.DownAfter, Event: cfg.Event, Changed: l.changed}
	var err error
	if l.core, err = trunk.New(core); err != nil {
		return nil, fmt.Errorf("open trunks: %w", err)
	}
	for _, p := range cfg.Peers {
		if _, err := l.core.AddPeer(trunk.PeerConfig{Addr: p.Addr.port(), Node: p.Node, Limit: cfg.Limit}); err != nil {
			return nil, fmt.Errorf("open trunks: %w", err)
		}
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

func (l *Link) changed(i int) { l.peers[i] = l.core.Remote(i) }

// Recv delivers the packets of the next datagram that has arrived. They stay valid until the next
// Recv. deliver may use a Sender, but not the Link. more reports that there was a datagram.
func (l *Link) Recv(now mono.Time, deliver func(peer int, packet []byte)) (more bool) {
	l.core.Recycle()
	f, arrived := l.in.PopDue(now)
	if !arrived {
		return false
	}
	l.core.Handle(now, f.from.port(), f.data, deliver)
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
	for {
		o, ok := l.core.Next(now, l.out)
		if !ok {
			return
		}
		l.net.send(now, l.cfg.Addr, ofPort(o.To), l.out[:o.Len])
	}
}

// Peers returns the number of peers.
func (l *Link) Peers() int { return len(l.peers) }

// Strays returns the counters of what belongs to no peer.
func (l *Link) Strays() trunk.Strays { return l.core.Strays() }

// Status returns the state of the trunk to a peer.
func (l *Link) Status(peer int) trunk.Status { return l.core.Status(peer) }

// Sender is one stream, as udp.Sender is.
type Sender struct {
	l     *Link
	batch *trunk.Batch
}

// Sender returns the sender of a stream, which no other Sender may have.
func (l *Link) Sender(stream uint8) *Sender {
	return &Sender{l: l, batch: trunk.NewBatch(stream, func(i int) trunk.Remote { return l.peers[i] })}
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
