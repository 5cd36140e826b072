// SPDX-License-Identifier: Apache-2.0

// Package fabric carries runs between InfiniBand ports as native packets (9B):
// through the node's vswitch, and over trunks to the vswitches of other nodes.
// 16B packets of functions go the same way, built where they leave from.
//
// What comes in: runs of a lane's queue pairs, 16B packets of functions,
// management datagrams, and packets from trunks; what goes out: packets to
// trunks, runs and 16B packets for functions of this node, and datagrams for
// the management goroutine. A lane owns a Link
// and calls it as it calls its RoCEv2 link. Forwarding decisions are those of
// the shared vswitch.Table and nothing else; the package keeps no table of its
// own, opens no socket, and never lets a packet past the table.
//
// Layouts and both CRCs are those of IBA volume 1, 7.7, 7.8 and 8.3;
// docs/notes/fabric.md tells the whole way.
package fabric

import (
	"sync/atomic"

	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// Trunk carries packets to other nodes; udp.Sender is one. It belongs to the
// lane.
type Trunk interface {
	// Reserve returns room for a packet of n octets to a peer, nil where there
	// is none, which it counts.
	Reserve(peer, n int) []byte
	// Commit sends what Reserve returned last, its first n octets.
	Commit(now mono.Time, n int)
	Flush(now mono.Time)
	Blocked() bool
	Deadline() mono.Time
}

// Source brings packets from other nodes; udp.Link is one. Only one lane has
// it.
type Source interface {
	// Recv calls f for each packet that has arrived; more tells that there may
	// be others at once. Packets stay valid until the next Recv.
	Recv(now mono.Time, f func(peer int, packet []byte)) (more bool)
	Tick(now mono.Time)
	Deadline() mono.Time
}

// What is plugged into a port of the vswitch.
const (
	Nothing = iota
	Function
	Peer
)

// Plug is one end of a cable at the vswitch.
type Plug struct {
	Kind   uint8
	Number uint16 // of the function, or of the trunk's peer
}

// Wiring says what is plugged where. It is immutable once shared.
type Wiring struct {
	Port  [vswitch.MaxPorts + 1]Plug
	Trunk []uint8 // by peer: its port
}

// At returns what is plugged into a port, Nothing where there is no such port.
func (w *Wiring) At(port uint8) (p Plug) {
	if int(port) < len(w.Port) {
		p = w.Port[port]
	}
	return p
}

// PortOf returns the port of a peer, false where it has none.
func (w *Wiring) PortOf(peer int) (uint8, bool) {
	if peer < 0 || peer >= len(w.Trunk) || w.Trunk[peer] == 0 {
		return 0, false
	}
	return w.Trunk[peer], true
}

// Multicast is the Function of an inbound run to a multicast LID: the adapter
// looks up who is in the group.
const Multicast = 0xffff

// Config describes a Link.
type Config struct {
	Table  *atomic.Pointer[vswitch.Table]
	Wiring *atomic.Pointer[Wiring]
	Trunk  Trunk  // nil: there are no trunks
	Source Source // nil: another lane receives
	// WireLocal has also 16B packets between functions of this node built.
	WireLocal bool
	// Manage takes a datagram to queue pair 0 or 1 that came in by d.Port of the
	// vswitch and is for this node. It is valid until Manage returns, which must
	// not wait.
	Manage func(d *mad.Datagram)
}

// Counters count what a Link did and, each by its name, what it dropped.
type Counters struct {
	SentPackets, SentBytes, RcvdPackets, RcvdBytes   uint64
	Forwarded, LoopedBack, ToManagement              uint64
	DropRun, DropSourceFault, DropNoRoom, DropNoPlug uint64
	DropOwnSource                                    uint64 // came over a trunk with a LID of this node as its source
	// Of 16B packets: given to a function; dropped because who they are for has
	// no port for them, because they passed too many switches, and multicast
	// packets on the service channel of management.
	Taken16, Drop16NoPort, Drop16Age, Drop16SC uint64
	DropRefusal                                [wire.NumRefusals]uint64
	DropRoute                                  [vswitch.NumRefusals]uint64
}

// PeerCounters count what went over one trunk; data is in words of four bytes,
// from the LRH through the ICRC (IBA volume 1, 16.1.3.5).
type PeerCounters struct {
	XmitData, RcvData, XmitPkts, RcvPkts uint64
	MulticastXmit, MulticastRcv          uint64
	XmitDiscards, RcvErrors              uint64
}

// Each calls f with the name and value of every counter.
func (c *Counters) Each(f func(name string, v uint64)) {
	f("sent_packets", c.SentPackets)
	f("sent_bytes", c.SentBytes)
	f("rcvd_packets", c.RcvdPackets)
	f("rcvd_bytes", c.RcvdBytes)
	f("forwarded", c.Forwarded)
	f("looped_back", c.LoopedBack)
	f("to_management", c.ToManagement)
	f("drop_run", c.DropRun)
	f("drop_source_fault", c.DropSourceFault)
	f("drop_no_room", c.DropNoRoom)
	f("drop_no_plug", c.DropNoPlug)
	f("drop_own_source", c.DropOwnSource)
	f("taken_16b", c.Taken16)
	f("drop_16b_no_port", c.Drop16NoPort)
	f("drop_16b_age", c.Drop16Age)
	f("drop_16b_sc", c.Drop16SC)
	for i, v := range c.DropRefusal {
		if wire.Refusal(i) != wire.OK {
			f("drop_"+wire.Refusal(i).String(), v)
		}
	}
	for i, v := range c.DropRoute {
		if vswitch.Refusal(i) != vswitch.OK {
			f("drop_route_"+vswitch.Refusal(i).String(), v)
		}
	}
}

// Limits.
const (
	// MaxRun bounds the payload bytes of a run, MaxCount its packets.
	MaxRun   = 256 << 10
	MaxCount = MaxRun/256 + 1
	// loopBytes bounds what waits to come back in; half of it holds a run.
	loopBytes = 1 << 20
	// A Recv delivers at most loopPackets of those, and what the Source does
	// (512): there is room for all.
	loopPackets = 1024
	recvRuns    = 2 * loopPackets
)

// Link is a lane's way into the subnet.
type Link struct {
	cfg   Config
	c     Counters
	psn   ib.PSN // of datagrams sent
	stage []byte // payload of a run on its way into packets
	one   [1][]byte
	d     mad.Datagram

	loop, looping []byte // packets to functions of this node: to come, being delivered; each behind its length
	rest          []byte // of looping: for the next Recv
	joiner        *pkt.Joiner
	paths         []ib.Path
	npaths        int
	recv          func(peer int, packet []byte)
	peers         []PeerCounters
	take          Taker
	head16        wire.Header16 // of the packet being taken
	now           mono.Time
}

// New returns a link. Several links, one per lane, share table and wiring,
// which has all its trunks from the start.
func New(cfg Config) *Link {
	l := &Link{cfg: cfg, stage: make([]byte, MaxRun), joiner: pkt.NewJoiner(recvRuns), paths: make([]ib.Path, recvRuns)}
	l.recv = l.fromTrunk
	l.peers = make([]PeerCounters, len(cfg.Wiring.Load().Trunk))
	return l
}

// PeerCounters returns what went over the trunk to a peer, zero where there is
// none.
func (l *Link) PeerCounters(peer int) (c PeerCounters) {
	if peer >= 0 && peer < len(l.peers) {
		c = l.peers[peer]
	}
	return c
}

// Counters returns a copy of the counters.
func (l *Link) Counters() Counters { return l.c }
