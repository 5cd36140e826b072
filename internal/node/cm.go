// SPDX-License-Identifier: Apache-2.0

package node

import (
	crand "crypto/rand"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/service/cm"
	"weft/internal/verbs/hca"
)

// cmService runs the node's communication manager (docs/notes/cm.md): one goroutine, run,
// owns it and whatever stands above it, and reaches queue pair 1 of InfiniBand ports by the
// management goroutine, of Ethernet ports by lane 0. It waits for neither.
type cmService struct {
	n     *Node
	inbox chan cmArrival
	stats cmStats

	mu    sync.Mutex // guards calls and over
	calls []func(now mono.Time)
	over  bool
	wake  chan struct{}
	end   chan struct{} // closed to end run
	done  chan struct{} // closed by run

	// run's.
	mgr   *cm.Manager
	known map[uint16]cmPort
	local []cmArrival // for ports of this node
	tasks []cmTask
	psn   ib.PSN // lane 0's: of the next datagram
}

// cmTask is what stands above the manager and shares its goroutine.
type cmTask interface {
	// Turn does what is due, and returns when it is to be called again at the latest if nothing
	// else happens. It is called after everything else that is done on the goroutine.
	Turn(now mono.Time) mono.Time
	// Removed tells that a function is no more; the manager hears of it after.
	Removed(now mono.Time, function uint16)
	// Close is called when the goroutine is about to end.
	Close(now mono.Time)
}

// cmArrival is a datagram that came to queue pair 1 of a function's port.
type cmArrival struct {
	function uint16
	d        mad.Datagram
}

// cmStats count what did not reach the manager, by name; any goroutine does.
type cmStats struct {
	DropInbox  atomic.Uint64 // too many wait
	DropLength atomic.Uint64 // no MAD, or it cannot be read
	DropPKey   atomic.Uint64
	DropQKey   atomic.Uint64
	DropSource atomic.Uint64 // not from queue pair 1
	DropPort   atomic.Uint64 // to be sent from a port that there is not
}

// cmPort is a port as the manager was told of it.
type cmPort struct {
	of *hca.Port
	cm.Port
}

// cmInbox bounds the datagrams that wait for the goroutine.
const cmInbox = 1024

func newCMService(n *Node) *cmService {
	s := &cmService{n: n, inbox: make(chan cmArrival, cmInbox), wake: make(chan struct{}, 1), end: make(chan struct{}), done: make(chan struct{}),
		known: map[uint16]cmPort{}}
	var seed [32]byte
	crand.Read(seed[:])
	s.mgr = cm.New(cm.Config{Rand: rand.New(rand.NewChaCha8(seed))}, s)
	return s
}

// post has f run on the goroutine soon. It never waits; where the goroutine has ended, nothing
// happens.
func (s *cmService) post(f func(now mono.Time)) {
	s.mu.Lock()
	if !s.over {
		s.calls = append(s.calls, f)
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// do runs f on the goroutine and waits for it; false where that has ended. Neither lanes nor the
// management goroutine may call it.
func (s *cmService) do(f func(now mono.Time)) bool {
	ran := make(chan struct{})
	s.post(func(now mono.Time) { f(now); close(ran) })
	select {
	case <-ran:
		return true
	case <-s.done:
		select {
		case <-ran:
			return true
		default:
			return false
		}
	}
}

// add has a task run on the goroutine, on which it is called.
func (s *cmService) add(t cmTask) { s.tasks = append(s.tasks, t) }

// run is the goroutine.
func (s *cmService) run() {
	defer close(s.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		if d := s.turn(); d != 0 {
			wait = max(0, d.Sub(s.n.now()))
		}
		timer.Reset(wait)
		select {
		case <-s.end:
			s.finish()
			return
		case in := <-s.inbox:
			s.mgr.Handle(s.n.now(), in.function, &in.d)
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// turn does what waits, and returns when there will be something again.
func (s *cmService) turn() mono.Time {
	now := s.n.now()
	for range cmInbox {
		select {
		case in := <-s.inbox:
			s.mgr.Handle(now, in.function, &in.d)
			continue
		default:
		}
		break
	}
	s.mu.Lock()
	calls := s.calls
	s.calls = nil
	s.mu.Unlock()
	for _, f := range calls {
		f(now)
	}
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

// finish ends whatever is left, and lets the peers know.
func (s *cmService) finish() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.turn()
	now := s.n.now()
	for _, t := range s.tasks {
		t.Close(now)
	}
	s.mgr.Close(now)
	s.send(now)
}

// close ends the goroutine. The management goroutine and the lanes run.
func (s *cmService) close() {
	close(s.end)
	<-s.done
	if s.n.sub != nil {
		s.n.sub.Do(func() {}) // what it sent is on its way
	}
}

// send sends what the manager has to send.
func (s *cmService) send(now mono.Time) {
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
func (s *cmService) dispatch(f uint16, d *mad.Datagram) {
	a := s.n.all.At(f)
	if a == nil {
		s.stats.DropPort.Add(1)
		return
	}
	switch p := a.Port(); {
	case p.Link == ib.LinkInfiniBand:
		if s.n.sub == nil {
			s.stats.DropPort.Add(1)
			return
		}
		s.n.sub.SendGSI(f, *d)
	case p.State != ib.PortActive:
		s.stats.DropPort.Add(1)
	case !p.WireLocal && p.Lookup(d.DGID) >= 0:
		if len(s.local) < cmInbox {
			s.local = append(s.local, cmArrival{f, *d})
			s.show(f, p, d)
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
func (s *cmService) datagram(f uint16, p *hca.Port, d *mad.Datagram) *pkt.Burst {
	data := d.Data
	path := &ib.Path{SGID: d.SGID, DGID: d.DGID, TClass: d.TClass, HopLimit: d.HopLimit, FlowLabel: d.FlowLabel, SGIDIndex: uint8(max(p.Lookup(d.SGID), 0)), SL: d.SL,
		SrcPort: gsiSrcPort, MaxRun: p.MaxRun, Function: f}
	return &pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: d.PKey, DestQPN: d.DstQPN, QKey: d.QKey, SrcQPN: ib.QPNGSI}, Count: 1,
		MTU: mad.Len, Path: path, IPv4: d.DGID.IsIPv4(), Data: mem.BytesPayload(data[:])}
}

// number gives a datagram its packet sequence number, on lane 0.
func (s *cmService) number(r *pkt.Burst) {
	r.PSN = s.psn
	s.psn = s.psn.Add(1)
}

// transmit sends a datagram over RoCEv2. Lane 0 has the links of all Ethernet ports.
func (s *cmService) transmit(f uint16, p *hca.Port, d *mad.Datagram) {
	l, r := s.n.lanes.First(), s.datagram(f, p, d)
	l.Post(func() {
		s.number(r)
		l.HCA.MirrorManagement(r, true)
		s.n.lanes.First().Net.Send(l.Now(), r, l.HCA.Batch())
	})
}

// show shows captures a datagram that stays in the port and becomes no packet.
func (s *cmService) show(f uint16, p *hca.Port, d *mad.Datagram) {
	if !s.n.captures.Active() {
		return
	}
	r := s.datagram(f, p, d)
	r.Path.Local = true
	s.n.captures.Mirror(r, true, s.number)
}

// take takes what arrives at queue pair 1 of Ethernet ports, on a lane.
func (s *cmService) take(l *hca.Lane) func(mono.Time, *pkt.Burst) {
	return func(_ mono.Time, r *pkt.Burst) {
		a := s.n.all.At(r.Path.Function)
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
			// A program's, which may know the key.
			s.stats.DropSource.Add(1)
			return
		}
		in := cmArrival{r.Path.Function, mad.Datagram{Port: 1, SLID: ib.LIDPermissive, DLID: ib.LIDPermissive, SL: r.Path.SL, SrcQPN: r.SrcQPN, DstQPN: r.DestQPN,
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

// arrived takes a datagram on any goroutine.
func (s *cmService) arrived(in cmArrival) {
	select {
	case s.inbox <- in:
	default:
		s.stats.DropInbox.Add(1)
	}
}

// Offer implements subnet.Connections: it accepts a datagram that arrived at a function's InfiniBand port, where it is for
// the manager.
func (s *cmService) Offer(f uint16, d *mad.Datagram) bool {
	if mad.Class(d.Data[1]) != mad.ClassCM || d.DstQPN != ib.QPNGSI {
		return false
	}
	if d.SrcQPN != ib.QPNGSI {
		s.stats.DropSource.Add(1) // a program's, which may know the key
		return true
	}
	s.arrived(cmArrival{f, *d})
	return true
}

// Removed implements subnet.Connections.
func (s *cmService) Removed(f uint16) {
	s.post(func(now mono.Time) {
		for _, t := range s.tasks {
			t.Removed(now, f)
		}
		s.mgr.Remove(now, f)
		delete(s.known, f)
	})
}

// Port implements cm.Ports.
func (s *cmService) Port(f uint16) (cm.Port, bool) {
	a := s.n.all.At(f)
	if a == nil {
		return cm.Port{}, false
	}
	p := a.Port()
	if k, ok := s.known[f]; ok && k.of == p {
		return k.Port, true
	}
	k := cmPort{p, cm.Port{Link: p.Link, CAGUID: a.NodeGUID, LID: p.LID, LMC: p.LMC, MTU: p.MTU, PKeys: p.PKeys, GIDs: make([]ib.GID, len(p.GIDs)),
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

// counters calls add with the name and the value of every counter.
func (s *cmService) counters(add func(name string, v uint64)) {
	s.do(func(mono.Time) {
		s.mgr.Stats.Each(add)
		conns, half := s.mgr.Load()
		add("conns", uint64(conns))
		add("half_open", uint64(half))
	})
	for _, c := range []struct {
		name string
		v    *atomic.Uint64
	}{{"drop_inbox", &s.stats.DropInbox}, {"drop_length", &s.stats.DropLength}, {"drop_pkey", &s.stats.DropPKey}, {"drop_qkey", &s.stats.DropQKey},
		{"drop_source", &s.stats.DropSource}, {"drop_no_port", &s.stats.DropPort}} {
		add(c.name, c.v.Load())
	}
}
