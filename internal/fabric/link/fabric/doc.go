// SPDX-License-Identifier: Apache-2.0

// Package fabric carries bursts between InfiniBand ports as native packets (9B): through the node's
// vswitch, and over trunks to the vswitches of other nodes. 16B packets of functions take the same
// way; they are built in the buffer that the trunk sends.
//
// What comes in: bursts of a lane's queue pairs, 16B packets of functions, management datagrams, and
// packets from trunks; what goes out: packets to trunks, bursts and 16B packets for functions of this
// node, and datagrams for the management goroutine. A lane owns a Link and calls it as it calls its
// RoCEv2 link. The shared vswitch.Table alone decides on forwarding: the package has no table of its
// own, opens no socket, and never lets a packet bypass the table.
//
// Layouts and both CRCs are those of IBA volume 1, 7.7, 7.8 and 8.3; docs/notes/fabric.md describes
// the whole way.
package fabric

import (
	"slices"
	"sync/atomic"
	"time"

	"weft/internal/fabric/vswitch"
	"weft/internal/proto/counters"
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
	// Recv calls f for each packet that has arrived; more reports that there may be more packets now.
	// Packets stay valid until the next Recv.
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

// Wiring is the assignment of functions and trunks to ports. It is immutable once shared.
type Wiring struct {
	Port  [vswitch.MaxPorts + 1]Plug
	Trunk []uint8 // by peer: its port
	// Confined are the ports with a trunk to a node that may send only packets of its own ports, and no request that
	// changes the subnet.
	Confined vswitch.PortSet
	// Nodes are the GUIDs of confined nodes, by peer, as their certificates prove them; 0: not known.
	Nodes []ib.GUID
}

// node returns the GUID of a confined node, 0 if it is not known.
func (w *Wiring) node(peer int) ib.GUID {
	if peer < len(w.Nodes) {
		return w.Nodes[peer]
	}
	return 0
}

// Clone returns a copy to change.
func (w *Wiring) Clone() *Wiring {
	c := *w
	c.Trunk, c.Nodes = slices.Clone(w.Trunk), slices.Clone(w.Nodes)
	return &c
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

// Multicast is the Function of an inbound burst to a multicast LID: the adapter looks up the members
// of the group.
const Multicast = 0xffff

// Config describes a Link.
type Config struct {
	Table  *atomic.Pointer[vswitch.Table]
	Wiring *atomic.Pointer[Wiring]
	Trunk  Trunk  // nil: there are no trunks
	Source Source // nil: another lane receives
	// WireLocal has also 16B packets between functions of this node built.
	WireLocal bool
	// Manage accepts a datagram to queue pair 0 or 1 of this node that arrived by port d.Port of the
	// vswitch. It is valid until Manage returns. Manage must not block.
	Manage func(d *mad.Datagram)
}

// Counters count the packets of a Link and, each by its reason, those it dropped.
type Counters struct {
	SentPackets, SentBytes, RcvdPackets, RcvdBytes uint64
	Forwarded                                      uint64 // from a trunk to a trunk
	LoopedBack                                     uint64 // to a function of this node, through the packet format
	ToManagement                                   uint64 // datagrams to queue pairs 0 and 1
	// the burst breaks the contract of pkt.Burst or a limit of this package
	DropBurst       uint64
	DropSourceFault uint64 // the payload could not be read
	DropNoRoom      uint64 // the loopback buffer is full
	DropUnconnected uint64 // the egress port has neither a function nor a trunk
	DropOwnSource   uint64 // arrived by a trunk with a source LID of this node
	// from a confined node, with a source LID that is not routed to it
	DropForeignSource uint64
	// from a confined node, a subnet management packet that only a manager may send
	DropForeignSMP uint64 `counter:"drop_foreign_smp"`
	// 16B packets that a function accepted
	Accepted16 uint64 `counter:"accepted_16b"`
	// the function has no port for the 16B packet
	Drop16NoPort uint64 `counter:"drop_16b_no_port"`
	// 16B packets that passed too many switches
	Drop16Age uint64 `counter:"drop_16b_age"`
	// multicast 16B packets on the service channel of management
	Drop16SC    uint64 `counter:"drop_16b_sc"`
	DropRefusal wire.Refusals
	DropRoute   vswitch.Refusals
}

// Each calls f with the name and the value of every counter, in a fixed order.
func (c *Counters) Each(f func(name string, v uint64)) { counters.Each("", c, f) }

// PeerCounters count what went over one trunk; data is in words of four bytes,
// from the LRH through the ICRC (IBA volume 1, 16.1.3.5).
type PeerCounters struct {
	XmitData, RcvData, XmitPkts, RcvPkts uint64
	MulticastXmit, MulticastRcv          uint64
	XmitDiscards, RcvErrors              uint64
	Foreign                              Foreign
}

// Foreign counts what a confined node sent that only others may send. The packets were dropped.
type Foreign struct {
	// Sources are packets with a LID of another node, PKeys those with a P_Key that no port of the node has, and SMPs
	// are subnet management packets that change the subnet, or answer for another node.
	Sources, PKeys, SMPs uint64
	// Newest is the time of the newest packet. Since is the time of the first packet of the present series: packets
	// with less than foreignPause between each two. Both are 0 until a packet arrives.
	Newest, Since mono.Time
}

// foreignPause is the time without foreign packets after which the next one begins another series (Foreign.Since).
const foreignPause = 10 * time.Second

// Limits.
const (
	// MaxRun bounds the payload bytes of a burst, MaxCount its packets.
	MaxRun   = 256 << 10
	MaxCount = MaxRun/256 + 1
	// loopBytes is the size of the loop-back queue; a burst fits in half of it.
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
	stage []byte // payload of a burst before it is cut into packets
	one   [1][]byte
	d     mad.Datagram

	loop, looping []byte // packets to functions of this node: enqueued, being delivered; each behind its length
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

// New returns a link. Several links, one per lane, share table and wiring. Wiring.Trunk never becomes longer.
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
