// SPDX-License-Identifier: Apache-2.0

// Package subnet is a node's place in a subnet (docs/notes/fabric.md): its switch, the InfiniBand ports of its
// functions, its trunks to other nodes, queue pair 1 for users in the node, and the user-MAD socket for programs.
//
// What comes in: management datagrams of lanes and programs, functions that are plugged in and out, and functions
// posted by other goroutines; what goes out: datagrams, forwarding tables for lanes, and changes of ports through
// Config.Publish. One goroutine, the management goroutine, owns the agents and everything else that is not said to be
// shared. It never waits for a lane while a lane could wait for it.
package subnet

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"weft/internal/control/api"
	"weft/internal/fabric/link/fabric"
	"weft/internal/fabric/link/udp"
	"weft/internal/fabric/trunk"
	"weft/internal/fabric/vswitch"
	"weft/internal/mgmt/agent"
	"weft/internal/node/lane"
	"weft/internal/node/loop"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca"
)

// Config is what a subnet needs from its node. The functions are called on the management goroutine.
type Config struct {
	Log         *slog.Logger
	Now         func() mono.Time
	GUID        ib.GUID  // of the node: the base of its GUIDs
	Host        string   // the name of the host or member, for descriptions; later that of Rename
	SwitchPorts int      // ports of the switch
	Peers       []string // the nodes at the other ends of trunks from the start, by trunk
	WireLocal   bool     // datagrams within the node become packets, too
	// NewPort describes the InfiniBand port of a function that no manager has configured yet.
	NewPort func(guid ib.GUID) *hca.Port
	// SetMulticastForwarding gives the functions in each group of the switch to the lanes.
	SetMulticastForwarding func(map[ib.LID][]uint16)
	// Publish gives changes of ports to files, programs and other rooms. It must not wait for a lane.
	Publish func([]PortChange)
	// Plugged follows Plug of a function. Unplugged precedes its end, and returns what waits for work on that function.
	Plugged   func(*hca.Adapter)
	Unplugged func(function uint16) (wait func())
	// Connections is the communication manager.
	Connections Connections
	// Mirror copies datagrams to captures.
	Mirror Mirror
}

// Connections is the communication manager.
type Connections interface {
	// Offer offers a datagram that arrived at a function's port, and reports whether it was accepted.
	Offer(function uint16, d *mad.Datagram) bool
	// Removed reports that a function is unplugged.
	Removed(function uint16)
}

// Mirror copies datagrams of queue pairs 0 and 1 to captures.
type Mirror interface {
	Active() bool
	Mirror(r *pkt.Burst, sent bool, number func(*pkt.Burst))
}

// PortChange is a change of a function's port, with its events for programs.
type PortChange struct {
	Adapter *hca.Adapter
	Events  []ib.Event
}

// Subnet is a node's place in a subnet.
type Subnet struct {
	cfg    Config
	log    *slog.Logger
	server *loop.Server[inbound] // the management goroutine
	lanes  *lane.Group           // set before Start
	first  atomic.Pointer[lane.Lane]

	// Shared with the lanes: the forwarding table of the switch, and what is plugged into its ports.
	Table     atomic.Pointer[vswitch.Table]
	wiring    atomic.Pointer[fabric.Wiring]
	inboxFull atomic.Uint64 // datagrams that found the inbox full

	// The trunks to other nodes: the link of lane 0, and the sender of each lane. nil: there are no peers.
	listens atomic.Bool // trunks has its sockets
	trunks  *udp.Link
	senders []*udp.Sender
	trunkMu sync.Mutex // held while a trunk is added or removed; it precedes no other lock
	// watching is the number of lanes that watch the sockets of trunks; trunkMu guards it.
	watching int
	trusts   []api.Degraded // what is wrong with their trust
	// What handshakes compute, for a goroutine of its own, from OpenTrunks to CloseTrunks.
	handshakes    chan func()
	handshakesEnd chan struct{}

	// Switch is the agent of the switch. It belongs to the management goroutine, as all that follows.
	Switch    *agent.Agent
	Manager   Manager                   // behind port 0 of the switch; nil: none at this node
	Clients   Clients                   // nil: no program speaks for a port
	Functions map[uint16]*Port          // the ports of functions that are plugged in, by function
	ports     map[uint8]*Port           // the same, by port of the switch
	peers     [trunk.MaxPeers]trunkPort // by peer
	manages   bool                      // programs of the node may manage the subnet
	Dirty     bool                      // the switch's tables changed: the next turn publishes them
	changed   map[*Port]agent.Change
	bounced   []uint8    // ports of the switch with a link that comes up again
	queued    []outbound // between the agents of the node
	outgoing  []outbound // for others, once changes are published
	gsi       *gsi
	asks      requests
	mirrorPSN ib.PSN // of the next mirrored datagram
}

// Manager is a subnet manager with its administration, behind port 0 of the switch.
type Manager interface {
	Handle(now mono.Time, d *mad.Datagram)
	Next(now mono.Time, d *mad.Datagram) bool
	Deadline() mono.Time
	// Doubt reports a trunk that went down: the master may be at its other end.
	Doubt()
}

// Clients are the programs that speak for ports: function 0 is the switch's port 0.
type Clients interface {
	// Receive offers a datagram; false where no program accepts it.
	Receive(now mono.Time, function uint16, d *mad.Datagram) bool
	// Next returns a datagram that a program sends, and the function it speaks for.
	Next(now mono.Time, d *mad.Datagram) (function uint16, ok bool)
	Deadline() mono.Time
	// Remove removes the port of a function.
	Remove(now mono.Time, function uint16)
}

// trunkPort is the switch's end of a trunk.
type trunkPort struct {
	name string
	port uint8 // 0: none
	up   bool
	node ib.GUID
}

// inbound is a datagram from a lane: by a trunk for the switch, where function is 0, else from within the node for a
// function.
type inbound struct {
	function uint16
	d        mad.Datagram
}

// outbound is a datagram on its way between the agents of the node, or from them to others: to the users of a port, or
// by a trunk.
type outbound struct {
	to *Port // nil: the switch, or a trunk
	d  mad.Datagram
}

// inboxLen bounds the datagrams that wait for the management goroutine.
const inboxLen = 1024

// linkOf are the properties of every link of the node: 4X EDR.
var linkOf = agent.Link{Width: ib.Width4x, Speed: ib.SpeedQDR, SpeedExt: ib.SpeedEDR}

// New returns a subnet that does not run yet.
func New(c Config) *Subnet {
	s := &Subnet{cfg: c, log: c.Log.With("part", "subnet"), server: loop.NewServer[inbound](inboxLen),
		ports: map[uint8]*Port{}, Functions: map[uint16]*Port{}, changed: map[*Port]agent.Change{}, manages: true}
	s.gsi = newGSI(s)
	s.asks.waiting = map[uint64]chan<- mad.Perf{}
	s.Switch = agent.New(agent.Config{Type: mad.NodeSwitch, NumPorts: uint8(c.SwitchPorts), SystemImageGUID: c.GUID,
		NodeGUID: c.GUID,
		VendorID: vendorID, Description: switchDescription(c.Host), Caps: agent.DefaultCaps,
		EnforceCap: agent.EnforceCap, EnhancedPort0: true}, switchOwner{s},
		switchCounters{s})
	w := &fabric.Wiring{Trunk: make([]uint8, trunk.MaxPeers), Nodes: make([]ib.GUID, trunk.MaxPeers)}
	for i, name := range c.Peers {
		p := uint8(c.SwitchPorts - i)
		w.Trunk[i] = p
		w.Port[p] = fabric.Plug{Kind: fabric.Peer, Number: uint16(i)}
		s.peers[i] = trunkPort{name: name, port: p}
	}
	s.wiring.Store(w)
	s.Table.Store(s.Switch.Forwarding().Snapshot())
	return s
}

// SetMember makes the node a member of a fabric with a name. The descriptions of the switch and the ports, which the
// manager reads, have that name. If manages is set, programs of the node may manage the subnet. No lane may call it.
func (s *Subnet) SetMember(host string, manages bool) error {
	return s.Do(func() {
		s.manages = manages
		if s.cfg.Host == host {
			return
		}
		s.cfg.Host = host
		now := s.cfg.Now()
		s.Switch.SetDescription(now, switchDescription(host))
		for _, c := range s.Functions {
			c.Agent.SetDescription(now, portDescription(host, c.Adapter))
		}
	})
}

func switchDescription(host string) string               { return host + " weft switch" }
func portDescription(host string, a *hca.Adapter) string { return host + " " + a.Name }

// vendorID is a locally administered one.
const vendorID = 0x020000

// Start starts the management goroutine, which Close ends. The lanes run.
func (s *Subnet) Start(g *lane.Group) {
	s.lanes = g
	s.first.Store(g.First())
	go s.server.Serve(s.cfg.Now, s.turn, s.handle, func(mono.Time) {})
}

// Close ends the management goroutine.
func (s *Subnet) Close() { s.server.Close() }

// Post lets the management goroutine run f soon. It never waits; any goroutine may call it.
func (s *Subnet) Post(f func()) bool { return s.server.Post(f) }

// Do runs f on the management goroutine and waits for it; loop.ErrStopped where that has ended. No lane may call it.
func (s *Subnet) Do(f func()) error { return s.server.Do(f) }

// receive enqueues a datagram for the management goroutine, on a lane.
func (s *Subnet) receive(in inbound) {
	if !s.server.Offer(in) {
		s.inboxFull.Add(1)
	}
}

// receiver returns the handler of a lane for bursts within the node to queue pair 1 of a function.
func (s *Subnet) receiver(h *hca.Lane) func(mono.Time, *pkt.Burst) {
	return func(_ mono.Time, r *pkt.Burst) {
		in := inbound{function: r.Path.Function, d: mad.Datagram{Port: 1, SLID: r.Path.SLID, DLID: r.Path.DLID,
			SL: r.Path.SL, SrcQPN: r.SrcQPN,
			DstQPN: ib.QPNGSI, QKey: r.QKey, PKey: r.PKey, Global: r.Path.Global, SGID: r.Path.SGID, DGID: r.Path.DGID,
			HopLimit: r.Path.HopLimit}}
		if r.Opcode != ib.ServiceUD|ib.SendOnly || r.Data.Len < mad.HeaderLen || r.Data.Len > mad.OPALen {
			return
		}
		b := in.d.Data[:]
		if r.Data.Len != mad.Len {
			b = make([]byte, r.Data.Len)
		}
		if h.Batch().Gather([][]byte{b}, &r.Data, 0) != 0 {
			r.Fault = true
			return
		}
		if in.d.SetMAD(b) {
			s.receive(in)
		}
	}
}

// Receive handles a burst within the node to queue pair 1 of a function; it runs on the lane of h.
func (s *Subnet) Receive(h *hca.Lane, now mono.Time, r *pkt.Burst) { s.receiver(h)(now, r) }

// Violated counts packets with keys that a function does not have. Lanes call it.
func (s *Subnet) Violated(function uint16, pkeys, qkeys hca.Violations) {
	s.Post(func() {
		c := s.Functions[function]
		if c == nil {
			return
		}
		now := s.cfg.Now()
		if pkeys.Count != 0 {
			c.Agent.BadPKey(now, pkeys.Newest, pkeys.Count)
		}
		if qkeys.Count != 0 {
			c.Agent.BadQKey(now, qkeys.Newest, qkeys.Count)
		}
		s.changed[c] |= agent.ChangedOther
	})
}
