// SPDX-License-Identifier: Apache-2.0

// Package conn is a node's connection management: the communication manager of its ports, and the rdma_cm device of
// programs.
//
// What comes in: datagrams to queue pair 1, commands of programs, and functions posted by users in the node; what goes
// out: datagrams, and events for programs. One goroutine owns the manager. The node starts it after the lanes, and
// closes it before the management goroutine and the lanes.
package conn

import (
	crand "crypto/rand"
	"iter"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"

	"weft/internal/control/api"
	"weft/internal/node/lane"
	"weft/internal/node/loop"
	"weft/internal/node/subnet"
	"weft/internal/proto/counters"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/service/cm"
	"weft/internal/service/ipoib"
	"weft/internal/verbs/hca"
)

// Config is what the communication manager needs from its node.
type Config struct {
	Now       func() mono.Time
	Host      *hca.Adapter // the function with the host's addresses
	Functions *hca.Functions
	Mirror    Mirror
}

// Links are the IP links of a node, which have addresses that are not the host's alone.
type Links interface {
	// Lookup returns the first address of an IP link, by the name of the link, that match accepts.
	Lookup(match func(*Address) bool) (Address, bool)
	// ResolvePath resolves the path from an IP link to an address. done is called once, on any goroutine; false where
	// there is no such link, and done is not called.
	ResolvePath(link string, dst netip.Addr, done func(*ipoib.PathInfo, error)) bool
	// BroadcastGID returns the broadcast group of an IP link.
	BroadcastGID(link string) (ib.GID, bool)
}

// Address is an address of an IP link.
type Address struct {
	Link    string
	Adapter *hca.Adapter
	PKey    ib.PKey
	Prefix  netip.Prefix
}

// Mirror copies datagrams of queue pair 1 to captures.
type Mirror interface {
	Active() bool
	Mirror(r *pkt.Burst, sent bool, number func(*pkt.Burst))
}

// Rooms are the rooms of the node that the communication manager uses.
type Rooms struct {
	Lanes  *lane.Group
	Subnet *subnet.Subnet // nil: the node is in no subnet
	Links  Links
	// Ethernet lists the functions with ports in virtual Ethernet switches, by name, with the addresses of the ports.
	Ethernet iter.Seq2[*hca.Adapter, []netip.Prefix]
}

// Service runs the node's communication manager (docs/notes/cm.md): one goroutine owns it and its tasks, and
// reaches queue pair 1 of InfiniBand ports by the management goroutine, of Ethernet ports by lane 0. It waits for
// neither.
type Service struct {
	cfg    Config
	rooms  Rooms // set by Start
	server *loop.Server[arrival]
	stats  Stats

	// dev is the rdma_cm device, nil before programs are served.
	dev atomic.Pointer[Device]

	// Of the goroutine.
	mgr   *cm.Manager
	known map[uint16]knownPort
	local []arrival // for ports of this node
	tasks []Task

	psn ib.PSN // lane 0's: of the next datagram
}

// Task is a user of the manager that shares its goroutine.
type Task interface {
	// Turn does what is due, and returns when it must be called again if nothing else happens. It is called after
	// everything else on the goroutine.
	Turn(now mono.Time) mono.Time
	// Removed is called when a function is unplugged, before the manager removes it.
	Removed(now mono.Time, function uint16)
	// Close is called when the goroutine is about to end.
	Close(now mono.Time)
}

// arrival is a datagram that came to queue pair 1 of a function's port.
type arrival struct {
	function uint16
	d        mad.Datagram
}

// Stats count datagrams that did not reach the manager, by reason; any goroutine does.
type Stats struct {
	DropInbox  atomic.Uint64 // too many wait
	DropLength atomic.Uint64 // no MAD, or it cannot be read
	DropPKey   atomic.Uint64 `counter:"drop_pkey"`
	DropQKey   atomic.Uint64 `counter:"drop_qkey"`
	DropSource atomic.Uint64 // not from queue pair 1
	DropPort   atomic.Uint64 `counter:"drop_no_port"` // to be sent from a port that does not exist
}

// knownPort is a port as it was given to the manager.
type knownPort struct {
	of *hca.Port
	cm.Port
}

// inboxLen bounds the datagrams that wait for the goroutine.
const inboxLen = 1024

// New returns a service that does not run yet.
func New(c Config) *Service {
	s := &Service{cfg: c, server: loop.NewServer[arrival](inboxLen), known: map[uint16]knownPort{}}
	var seed [32]byte
	crand.Read(seed[:])
	s.mgr = cm.New(cm.Config{Rand: rand.New(rand.NewChaCha8(seed))}, s)
	return s
}

// Start starts the goroutine, which Close ends. The lanes run.
func (s *Service) Start(r Rooms) {
	s.rooms = r
	handle := func(now mono.Time, in *arrival) { s.mgr.Handle(now, in.function, &in.d) }
	go s.server.Serve(s.cfg.Now, s.turn, handle, s.finish)
}

// Post lets the goroutine run f soon. It never waits; where the goroutine has ended, nothing happens.
func (s *Service) Post(f func(now mono.Time)) { s.server.Post(func() { f(s.cfg.Now()) }) }

// Do runs f on the goroutine and waits for it; loop.ErrStopped where that has ended. Neither lanes nor the management
// goroutine may call it.
func (s *Service) Do(f func(now mono.Time)) error { return s.server.Do(func() { f(s.cfg.Now()) }) }

// Manager is the communication manager, which belongs to the goroutine.
func (s *Service) Manager() *cm.Manager { return s.mgr }

// Add adds a task; it runs on the goroutine.
func (s *Service) Add(t Task) { s.tasks = append(s.tasks, t) }

// turn does what waits, and returns when there will be something again.
func (s *Service) turn(now mono.Time) mono.Time {
	for {
		s.send(now)
		var d mono.Time
		for _, t := range s.tasks {
			d = mono.Min(d, t.Turn(now))
		}
		if !s.mgr.Pending() {
			return mono.Min(d, s.mgr.Deadline())
		}
	}
}

// finish ends what is left, and notifies the peers.
func (s *Service) finish(now mono.Time) {
	s.turn(now)
	for _, t := range s.tasks {
		t.Close(now)
	}
	s.mgr.Close(now)
	s.send(now)
}

// Close ends the goroutine. The management goroutine and the lanes run.
func (s *Service) Close() {
	s.server.Close()
	if s.rooms.Subnet != nil {
		s.rooms.Subnet.Do(func() {}) // what it sent is on its way
	}
}

// send sends what the manager has to send.
func (s *Service) send(now mono.Time) {
	var d mad.Datagram
	for {
		f, ok := s.mgr.Next(now, &d)
		if ok {
			s.dispatch(f, &d)
			continue
		}
		if len(s.local) == 0 {
			return
		}
		local := s.local
		s.local = nil
		for i := range local {
			s.mgr.Handle(now, local[i].function, &local[i].d)
		}
	}
}

// dispatch sends a datagram from a function's port.
func (s *Service) dispatch(f uint16, d *mad.Datagram) {
	a := s.cfg.Functions.At(f)
	if a == nil {
		s.stats.DropPort.Add(1)
		return
	}
	switch p := a.Port(); {
	case p.Link == ib.LinkInfiniBand:
		if s.rooms.Subnet == nil {
			s.stats.DropPort.Add(1)
			return
		}
		s.rooms.Subnet.SendGSI(f, *d)
	case p.State != ib.PortActive:
		s.stats.DropPort.Add(1)
	case !p.WireLocal && p.Lookup(d.DGID) >= 0:
		if len(s.local) < inboxLen {
			s.local = append(s.local, arrival{f, *d})
			s.mirror(f, p, d)
		} else {
			s.stats.DropInbox.Add(1)
		}
	default:
		s.transmit(f, p, d)
	}
}

// gsiSrcPort is the UDP source port of datagrams of queue pair 1, as soft-RoCE has it.
const gsiSrcPort = 55410

// datagram is the packet of a datagram over RoCEv2: a UD SEND Only from queue pair 1.
func (s *Service) datagram(f uint16, p *hca.Port, d *mad.Datagram) *pkt.Burst {
	data := d.Data
	path := &ib.Path{SGID: d.SGID, DGID: d.DGID, TClass: d.TClass, HopLimit: d.HopLimit, FlowLabel: d.FlowLabel,
		SGIDIndex: uint8(max(p.Lookup(d.SGID), 0)), SL: d.SL,
		SrcPort: gsiSrcPort, MaxRun: p.MaxRun, Function: f}
	return &pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: d.PKey, DestQPN: d.DstQPN,
		QKey: d.QKey, SrcQPN: ib.QPNGSI}, Count: 1,
		MTU: mad.Len, Path: path, IPv4: d.DGID.IsIPv4(), Data: mem.BytesPayload(data[:])}
}

// number gives a datagram its packet sequence number, on lane 0.
func (s *Service) number(r *pkt.Burst) {
	r.PSN = s.psn
	s.psn = s.psn.Add(1)
}

// transmit sends a datagram over RoCEv2. Lane 0 has the links of all Ethernet ports.
func (s *Service) transmit(f uint16, p *hca.Port, d *mad.Datagram) {
	l, r := s.rooms.Lanes.First(), s.datagram(f, p, d)
	l.Post(func() {
		s.number(r)
		l.HCA.MirrorManagement(r, true)
		s.rooms.Lanes.First().Net.Send(l.Now(), r, l.HCA.Batch())
	})
}

// mirror copies to captures a datagram that stays in the port and becomes no packet.
func (s *Service) mirror(f uint16, p *hca.Port, d *mad.Datagram) {
	if !s.cfg.Mirror.Active() {
		return
	}
	r := s.datagram(f, p, d)
	r.Path.Local = true
	s.cfg.Mirror.Mirror(r, true, s.number)
}

// Receiver returns the handler of a lane for bursts to queue pair 1 of Ethernet ports.
func (s *Service) Receiver(l *hca.Lane) func(mono.Time, *pkt.Burst) {
	return func(_ mono.Time, r *pkt.Burst) {
		a := s.cfg.Functions.At(r.Path.Function)
		switch {
		case a == nil || r.Opcode != ib.ServiceUD|ib.SendOnly || r.Data.Len != mad.Len:
			s.stats.DropLength.Add(1)
			return
		case r.QKey != ib.GSIQKey:
			s.stats.DropQKey.Add(1)
			return
		case !hasKey(a.Port().PKeys, r.PKey):
			s.stats.DropPKey.Add(1)
			return
		case r.SrcQPN != ib.QPNGSI:
			// Of a program, which may have the key.
			s.stats.DropSource.Add(1)
			return
		}
		in := arrival{r.Path.Function, mad.Datagram{Port: 1, SLID: ib.LIDPermissive, DLID: ib.LIDPermissive,
			SL: r.Path.SL, SrcQPN: r.SrcQPN, DstQPN: r.DestQPN,
			QKey: r.QKey, PKey: r.PKey, Global: true, SGID: r.Path.SGID, DGID: r.Path.DGID, HopLimit: r.Path.HopLimit, TClass: r.Path.TClass}}
		if l.Batch().Gather([][]byte{in.d.Data[:]}, &r.Data, 0) != mem.OK {
			r.Fault = true
			return
		}
		s.arrived(in)
	}
}

func hasKey(table []ib.PKey, k ib.PKey) bool {
	for _, o := range table {
		if o.Match(k) {
			return true
		}
	}
	return false
}

// arrived enqueues a datagram; any goroutine may call it.
func (s *Service) arrived(in arrival) {
	if !s.server.Offer(in) {
		s.stats.DropInbox.Add(1)
	}
}

// Offer implements subnet.Connections: it accepts a datagram that arrived at a function's InfiniBand port, where it is
// for the manager.
func (s *Service) Offer(f uint16, d *mad.Datagram) bool {
	if mad.Class(d.Data[1]) != mad.ClassCM || d.DstQPN != ib.QPNGSI {
		return false
	}
	if d.SrcQPN != ib.QPNGSI {
		s.stats.DropSource.Add(1) // of a program, which may have the key
		return true
	}
	s.arrived(arrival{f, *d})
	return true
}

// Removed implements subnet.Connections.
func (s *Service) Removed(f uint16) {
	s.Post(func(now mono.Time) {
		for _, t := range s.tasks {
			t.Removed(now, f)
		}
		s.mgr.Remove(now, f)
		delete(s.known, f)
	})
}

// Port implements cm.Ports.
func (s *Service) Port(f uint16) (cm.Port, bool) {
	a := s.cfg.Functions.At(f)
	if a == nil {
		return cm.Port{}, false
	}
	p := a.Port()
	if k, ok := s.known[f]; ok && k.of == p {
		return k.Port, true
	}
	k := knownPort{p, cm.Port{Link: p.Link, CAGUID: a.NodeGUID, LID: p.LID, LMC: p.LMC, MTU: p.MTU, PKeys: p.PKeys,
		GIDs: make([]ib.GID, len(p.GIDs)),
		MTUs: make([]ib.MTU, len(p.GIDs))}}
	for i := range p.GIDs {
		k.MTUs[i] = p.GIDs[i].MTU
		if !p.GIDs[i].LocalOnly {
			k.GIDs[i] = p.GIDs[i].GID
		}
	}
	s.known[f] = k
	return k.Port, true
}

// Stats returns the counters of datagrams that did not reach the manager.
func (s *Service) Stats() *Stats { return &s.stats }

// Counters adds the counters of the communication manager, and of the rdma_cm device. Neither lanes nor the management
// goroutine may call it.
func (s *Service) Counters(add func(scope, instance, name string, v uint64)) {
	each := func(scope, instance string) func(string, uint64) {
		return func(name string, v uint64) { add(scope, instance, name, v) }
	}
	d := s.dev.Load()
	s.Do(func(mono.Time) {
		if d != nil {
			counters.Each("", &d.hub.Stats, each(api.ScopeNode, "rdmacm"))
		}
		s.mgr.Stats.Each(each(api.ScopeCM, ""))
		conns, half := s.mgr.Load()
		add(api.ScopeCM, "", "conns", uint64(conns))
		add(api.ScopeCM, "", "half_open", uint64(half))
	})
	counters.Each("", &s.stats, each(api.ScopeCM, ""))
}
