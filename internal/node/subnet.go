// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft/internal/fabric/link/fabric"
	"weft/internal/fabric/trunk"
	"weft/internal/fabric/vswitch"
	"weft/internal/mgmt/agent"
	"weft/internal/node/loop"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/service/vnic/vema"
	"weft/internal/verbs/hca"
)

// subnet is the node's place in a subnet (docs/notes/fabric.md): its switch,
// the ports of its functions, and who manages them. One goroutine, run, owns
// the agents and everything else here but what is said to be shared; it never
// waits for a lane while a lane could wait for it.
type subnet struct {
	n    *Node
	log  *slog.Logger
	base ib.GUID

	// Shared with the lanes.
	table  atomic.Pointer[vswitch.Table]
	wiring atomic.Pointer[fabric.Wiring]
	inbox  chan inbound
	lost   atomic.Uint64 // datagrams that found the inbox full

	mu    sync.Mutex // guards calls
	calls []func()
	wake  chan struct{}
	end   chan struct{} // closed to end run
	done  chan struct{} // closed by run

	sw      *agent.Agent
	ports   map[uint8]*caPort  // by port of the switch
	byFunc  map[uint16]*caPort // by function
	peers   []trunkPort        // by peer
	dirty   bool               // the switch's tables changed
	changed map[*caPort]agent.Change
	bounced []uint8 // ports of the switch whose link is to come up again
	queue   []outbound
	leaving []outbound  // for others, once what changed is published
	mgr     portManager // nil: none at this node
	clients madClient   // nil: no program speaks for a port
	gsi     *gsi
	shown   ib.PSN // of the next datagram that captures are shown
}

// portManager is a subnet manager with its administration, behind port 0 of the
// switch.
type portManager interface {
	Handle(now mono.Time, d *mad.Datagram)
	Next(now mono.Time, d *mad.Datagram) bool
	Deadline() mono.Time
}

// madClient is the programs that speak for ports: function 0 stands for the
// switch's port 0.
type madClient interface {
	// Receive offers a datagram; false where nobody takes it.
	Receive(now mono.Time, function uint16, d *mad.Datagram) bool
	// Next returns a datagram that a program sends, and for whom it speaks.
	Next(now mono.Time, d *mad.Datagram) (function uint16, ok bool)
	Deadline() mono.Time
	// Remove tells that the port of a function is no more.
	Remove(now mono.Time, function uint16)
}

// caPort is a function with its InfiniBand port.
type caPort struct {
	s       *subnet
	port    uint8 // of the switch
	agent   *agent.Agent
	adapter *hca.Adapter
	vema    *vema.Agent // nil: none yet; see ethernet
	below   *hca.Port   // of a function whose programs have an Ethernet port; else nil
}

// trunkPort is the switch's end of a trunk.
type trunkPort struct {
	port uint8
	up   bool
	node ib.GUID
}

// inbound is a datagram from a lane: by a trunk for the switch, where function
// is 0, else from within the node for a function.
type inbound struct {
	function uint16
	d        mad.Datagram
}

// outbound is a datagram on its way between the agents of the node, or from them
// to others: to who is at a port, or by a trunk.
type outbound struct {
	to *caPort // nil: the switch, or a trunk
	d  mad.Datagram
}

// inboxLen bounds the datagrams that wait for the management goroutine.
const inboxLen = 1024

// linkOf is what every link of the node agrees on: 4X EDR.
var linkOf = agent.Link{Width: ib.Width4x, Speed: ib.SpeedQDR, SpeedExt: ib.SpeedEDR}

func newSubnet(n *Node, base ib.GUID) *subnet {
	s := &subnet{n: n, log: n.log.With("part", "subnet"), base: base, inbox: make(chan inbound, inboxLen), wake: make(chan struct{}, 1),
		end: make(chan struct{}), done: make(chan struct{}), ports: map[uint8]*caPort{}, byFunc: map[uint16]*caPort{}, changed: map[*caPort]agent.Change{}}
	s.gsi = newGSI(s)
	caps := agent.DefaultCaps
	s.sw = agent.New(agent.Config{Type: mad.NodeSwitch, NumPorts: uint8(n.cfg.SwitchPorts), SystemImageGUID: base, NodeGUID: base,
		VendorID: vendorID, Description: n.host + " weft switch", Caps: caps, EnforceCap: 32, EnhancedPort0: true}, switchOwner{s}, switchCounters{s})
	w := &fabric.Wiring{Trunk: make([]uint8, len(n.cfg.Peers))}
	for i := range n.cfg.Peers {
		p := uint8(n.cfg.SwitchPorts - i)
		w.Trunk[i] = p
		w.Port[p] = fabric.Plug{Kind: fabric.Peer, Number: uint16(i)}
		s.peers = append(s.peers, trunkPort{port: p})
	}
	s.wiring.Store(w)
	s.table.Store(s.sw.Forwarding().Snapshot())
	return s
}

// vendorID is that of nobody: locally administered.
const vendorID = 0x020000

// post has f run by the management goroutine soon. It never waits.
func (s *subnet) post(f func()) {
	s.mu.Lock()
	s.calls = append(s.calls, f)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// do runs f on the management goroutine and waits for it; false where that has
// ended. No lane may call it.
func (s *subnet) do(f func()) bool {
	ran := make(chan struct{})
	s.post(func() { f(); close(ran) })
	select {
	case <-ran:
		return true
	case <-s.done:
		return false
	}
}

// arrived takes a datagram on a lane.
func (s *subnet) arrived(in inbound) {
	select {
	case s.inbox <- in:
	default:
		s.lost.Add(1)
	}
}

// take is arrived for a run within the node to queue pair 1 of a function.
func (s *subnet) take(l *hca.Lane) func(mono.Time, *pkt.Burst) {
	return func(_ mono.Time, r *pkt.Burst) {
		in := inbound{function: r.Path.Function, d: mad.Datagram{Port: 1, SLID: r.Path.SLID, DLID: r.Path.DLID, SL: r.Path.SL, SrcQPN: r.SrcQPN,
			DstQPN: ib.QPNGSI, QKey: r.QKey, PKey: r.PKey, Global: r.Path.Global, SGID: r.Path.SGID, DGID: r.Path.DGID, HopLimit: r.Path.HopLimit}}
		if r.Opcode != ib.ServiceUD|ib.SendOnly || r.Data.Len < mad.HeaderLen || r.Data.Len > mad.OPALen {
			return
		}
		b := in.d.Data[:]
		if r.Data.Len != mad.Len {
			b = make([]byte, r.Data.Len)
		}
		if l.Batch().Gather([][]byte{b}, &r.Data, 0) != 0 {
			r.Fault = true
			return
		}
		if in.d.SetMAD(b) {
			s.arrived(in)
		}
	}
}

// violated takes a lane's word of packets with keys that a function does not
// have.
func (s *subnet) violated(function uint16, pkeys, qkeys hca.Violations) {
	s.post(func() {
		c := s.byFunc[function]
		if c == nil {
			return
		}
		now := s.n.now()
		if pkeys.Count != 0 {
			c.agent.BadPKey(now, pkeys.Newest, pkeys.Count)
		}
		if qkeys.Count != 0 {
			c.agent.BadQKey(now, qkeys.Newest, qkeys.Count)
		}
		s.changed[c] |= agent.ChangedOther
	})
}

// run is the management goroutine.
func (s *subnet) run() {
	defer close(s.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := s.n.now()
		s.turn(now)
		wait := time.Hour
		if d := s.deadline(); d != 0 {
			wait = max(0, d.Sub(s.n.now()))
		}
		timer.Reset(wait)
		select {
		case <-s.end:
			return
		case in := <-s.inbox:
			s.call()
			s.receive(s.n.now(), &in)
		case <-s.wake:
		case <-timer.C:
		}
		s.drain()
	}
}

// drain takes what has come in meanwhile.
func (s *subnet) drain() {
	now := s.n.now()
	for range inboxLen {
		select {
		case in := <-s.inbox:
			s.call()
			s.receive(now, &in)
			continue
		default:
		}
		break
	}
	s.call()
}

// call runs what was posted. That comes before a datagram: one that follows the news of its link would be dropped by a
// port that is down yet, and missed until it is sent again.
func (s *subnet) call() {
	s.mu.Lock()
	calls := s.calls
	s.calls = nil
	s.mu.Unlock()
	for _, f := range calls {
		f()
	}
}

func (s *subnet) deadline() mono.Time {
	d := s.sw.Deadline()
	for _, c := range s.ports {
		d = mono.Min(d, c.agent.Deadline())
		if a := c.ethernet(); a != nil {
			d = mono.Min(d, a.Deadline())
		}
	}
	if s.mgr != nil {
		d = mono.Min(d, s.mgr.Deadline())
	}
	if s.clients != nil {
		d = mono.Min(d, s.clients.Deadline())
	}
	return mono.Min(d, s.gsi.deadline())
}

// turn lets everybody send what they have, until nobody has anything. What an agent says it
// has done is done for the lanes before anybody hears of it: a program that was told that it is
// in a group sends to it at once.
func (s *subnet) turn(now mono.Time) {
	for {
		s.settle(now)
		if s.originate(now) {
			continue
		}
		s.publish()
		if !s.leave(now) {
			return
		}
	}
}

// leave hands over what is for others, false where nothing is.
func (s *subnet) leave(now mono.Time) bool {
	if len(s.leaving) == 0 {
		return false
	}
	list := s.leaving
	s.leaving = nil
	var trunks []mad.Datagram
	for i := range list {
		if c := list[i].to; c != nil {
			s.deliver(now, c, &list[i].d)
		} else {
			trunks = append(trunks, list[i].d)
		}
	}
	if len(trunks) > 0 {
		l := s.n.lanes.First()
		l.Post(func() {
			for i := range trunks {
				s.n.lanes.First().Net.Fabric.SendMAD(l.Now(), trunks[i].Port, &trunks[i])
			}
		})
	}
	return true
}

// deliver gives a datagram to whoever speaks for a function's port.
func (s *subnet) deliver(now mono.Time, c *caPort, d *mad.Datagram) {
	f := c.adapter.Number()
	if s.byFunc[f] != c || s.gsi.receive(now, f, d) || s.clients != nil && s.clients.Receive(now, f, d) || s.n.cm.offer(f, d) {
		return
	}
	s.unclaimed(now, c, c.agent, d)
}

// originate starts what agents, manager and clients send on their own.
func (s *subnet) originate(now mono.Time) (any bool) {
	var d mad.Datagram
	for v := s.sw.Next(now, &d); v != agent.Done; v = s.sw.Next(now, &d) {
		s.verdict(now, nil, v, &d)
		any = true
	}
	for _, c := range s.ports {
		for v := c.agent.Next(now, &d); v != agent.Done; v = c.agent.Next(now, &d) {
			s.verdict(now, c, v, &d)
			any = true
		}
		for a := c.ethernet(); a != nil && a.Next(now, &d); {
			s.send(now, c, &d)
			any = true
		}
	}
	for s.mgr != nil && s.mgr.Next(now, &d) {
		s.verdict(now, nil, s.sw.Originate(now, &d), &d)
		any = true
	}
	for f, ok := s.gsi.next(now, &d); ok; f, ok = s.gsi.next(now, &d) {
		any = true
		if c := s.byFunc[f]; c != nil {
			s.send(now, c, &d)
		}
	}
	for s.clients != nil {
		f, ok := s.clients.Next(now, &d)
		if !ok {
			break
		}
		any = true
		if c := s.byFunc[f]; c != nil {
			s.send(now, c, &d)
		} else if f == 0 {
			s.verdict(now, nil, s.sw.Originate(now, &d), &d)
		}
	}
	return any
}

// receive hands over a datagram that a lane brought.
func (s *subnet) receive(now mono.Time, in *inbound) {
	if in.function == 0 {
		s.queue = append(s.queue, outbound{nil, in.d})
	} else if c := s.byFunc[in.function]; c != nil {
		s.queue = append(s.queue, outbound{c, in.d})
	}
	s.settle(now)
}

// settle moves datagrams between the agents of the node until none is left.
func (s *subnet) settle(now mono.Time) {
	for i := 0; i < len(s.queue); i++ {
		q := s.queue[i]
		if q.to == nil {
			s.verdict(now, nil, s.sw.Handle(now, &q.d), &q.d)
		} else {
			s.verdict(now, q.to, q.to.agent.Handle(now, &q.d), &q.d)
		}
	}
	s.queue = s.queue[:0]
	s.links(now)
}

// verdict does with a datagram what the agent of c, or of the switch, said.
func (s *subnet) verdict(now mono.Time, c *caPort, v agent.Verdict, d *mad.Datagram) {
	switch {
	case v == agent.Done:
	case v == agent.Deliver && c == nil:
		if s.mgr != nil && (d.Long == nil || tellsManager(d)) {
			s.mgr.Handle(now, d)
		} else {
			s.unclaimed(now, nil, s.sw, d)
		}
	case v == agent.Deliver:
		if a := c.ethernet(); a != nil && a.Handle(now, d) {
			s.send(now, c, d)
			return
		}
		s.leaving = append(s.leaving, outbound{c, *d})
	case c != nil: // from the adapter's port into the switch
		s.show(c, d, true)
		d.Port = c.port
		s.queue = append(s.queue, outbound{nil, *d})
	default:
		switch plug := s.wiring.Load().Port[d.Port]; plug.Kind {
		case fabric.Function:
			if to := s.ports[d.Port]; to != nil {
				d.Port = 1
				s.show(to, d, false)
				s.queue = append(s.queue, outbound{to, *d})
			}
		case fabric.Peer:
			s.leaving = append(s.leaving, outbound{nil, *d})
		}
	}
}

// unclaimed answers a request of general services that nobody at the port of a
// serves, so that who asked need not wait; anything else is dropped. The answer to a MAD of
// Omni-Path is its header alone.
func (s *subnet) unclaimed(now mono.Time, c *caPort, a *agent.Agent, d *mad.Datagram) {
	var h mad.Header
	h.Parse(d.Data[:])
	if d.DstQPN != ib.QPNGSI || h.BaseVersion != mad.BaseVersion && d.Long == nil || h.Method != mad.MethodGet && h.Method != mad.MethodSet {
		return
	}
	r := d.Reply()
	h.Method, h.Status = h.Method.Response(), mad.StatusBadMethodAttr
	h.Append(r.Data[:0])
	if d.Long != nil {
		r.SetMAD(r.Data[:mad.HeaderLen])
	}
	if c != nil {
		s.send(now, c, &r)
	} else {
		s.verdict(now, nil, a.Originate(now, &r), &r)
	}
}

// links brings links up again that a manager took down for a moment.
func (s *subnet) links(now mono.Time) {
	for len(s.bounced) > 0 {
		p := s.bounced[0]
		s.bounced = s.bounced[1:]
		s.setLink(now, p, false)
		s.setLink(now, p, s.peerUp(p))
	}
}

// peerUp reports whether there is somebody at the other end of a port.
func (s *subnet) peerUp(p uint8) bool {
	if c := s.ports[p]; c != nil {
		return s.sw.Enabled(p) && c.agent.Enabled(1)
	}
	for _, t := range s.peers {
		if t.port == p {
			return t.up && s.sw.Enabled(p)
		}
	}
	return false
}

// setLink tells the agents at both ends of a port's link, as far as they are
// the node's, whether it is up.
func (s *subnet) setLink(now mono.Time, p uint8, up bool) {
	c := s.ports[p]
	if up {
		s.sw.LinkUp(now, p, linkOf)
		if c != nil {
			c.agent.LinkUp(now, 1, linkOf)
		}
		return
	}
	s.sw.LinkDown(now, p)
	if c != nil {
		c.agent.LinkDown(now, 1)
	}
}

// trunkEvent tells of a trunk that came up or went down; it is called on lane
// 0.
func (s *subnet) trunkEvent(e trunk.Event) {
	s.post(func() {
		t := &s.peers[e.Peer]
		t.up, t.node = e.Up, e.Node
		s.log.Info("trunk", "peer", s.n.cfg.Peers[e.Peer], "up", e.Up, "node", e.Node)
		s.setLink(s.n.now(), t.port, s.peerUp(t.port))
	})
}

// switchOwner and caOwner hear what managers change.
type switchOwner struct{ s *subnet }

// Changed implements agent.Owner.
func (o switchOwner) Changed(port uint8, what agent.Change) { o.s.dirty = true }

// Link implements agent.Owner.
func (o switchOwner) Link(port uint8, order agent.Order) { o.s.bounced = append(o.s.bounced, port) }

// Changed implements agent.Owner.
func (c *caPort) Changed(_ uint8, what agent.Change) { c.s.changed[c] |= what }

// Link implements agent.Owner.
func (c *caPort) Link(uint8, agent.Order) { c.s.bounced = append(c.s.bounced, c.port) }

// publish gives lanes, programs and files what has changed.
func (s *subnet) publish() {
	if s.dirty {
		s.dirty = false
		s.table.Store(s.sw.Forwarding().Snapshot())
		s.n.all.SetMulticastForwarding(forwarding(s.table.Load(), s.wiring.Load()))
	}
	if len(s.changed) == 0 {
		return
	}
	var news []portChange
	for c, what := range s.changed {
		delete(s.changed, c)
		news = append(news, portChange{c.adapter, c.publish(what)})
	}
	s.n.portsChanged(news)
	for _, p := range news {
		s.n.ip.portChanged(p.a, p.events)
		if d := s.n.cmDoor.Load(); d != nil {
			d.portChanged(p.a, p.events)
		}
		s.n.vesw.portChanged(p.a)
	}
}

// publish makes the function's port what its agent says it is, and returns what
// programs must hear.
func (c *caPort) publish(what agent.Change) []ib.Event {
	old, i := c.port1(), c.agent.Port(1)
	p := *old
	p.State, p.Phys = i.PortState, i.PortPhysicalState
	p.MTU, p.MaxMTU = i.NeighborMTU, i.MTUCap
	p.LID, p.LMC, p.SMLID, p.SMSL = i.LID, i.LMC, i.MasterSMLID, i.MasterSMSL
	p.SubnetTimeout, p.InitType = i.SubnetTimeOut, i.InitTypeReply
	p.Width, p.Speed, p.SpeedExt = i.LinkWidthActive, i.LinkSpeedActive, i.LinkSpeedExtActive
	p.PKeyViolations, p.QKeyViolations = i.PKeyViolations, i.QKeyViolations
	p.CapMask, p.GIDPrefix = uint32(i.CapabilityMask), i.GIDPrefix
	p.PKeys = append([]ib.PKey(nil), c.agent.PKeys(1)...)
	p.GUIDs = append([]ib.GUID(nil), c.agent.GUIDs()...)
	p.SetGIDs()
	events := p.Changes(old)
	if what&agent.ClientReregister != 0 {
		events = append(events, ib.EventReregister)
	}
	if c.below != nil {
		c.below = &p
	} else {
		c.adapter.SetPort(&p)
	}
	if slices.ContainsFunc(events, forgetful) {
		c.s.gsi.renew(c.adapter.Number())
	}
	if c.below != nil {
		return nil // its programs do not see this port
	}
	return events
}

// port1 is the port in the fabric, below an Ethernet port where the function has one.
func (c *caPort) port1() *hca.Port {
	if c.below != nil {
		return c.below
	}
	return c.adapter.Port()
}

// forgetful reports whether the subnet administration may not know after e what
// it was told for the port before.
func forgetful(e ib.Event) bool {
	switch e {
	case ib.EventReregister, ib.EventSMChange, ib.EventLIDChange, ib.EventPortActive:
		return true
	}
	return false
}

var _ switchboard = (*subnet)(nil)

// plug implements switchboard: it gives a function's InfiniBand port a port of
// the switch.
func (s *subnet) plug(a *hca.Adapter, on bool) (err error) {
	if !s.do(func() { err = s.add(a, on) }) {
		return loop.ErrStopped
	}
	return err
}

func (s *subnet) add(a *hca.Adapter, on bool) error {
	w := *s.wiring.Load()
	var port uint8
	for p := 1; p <= s.n.cfg.SwitchPorts; p++ {
		if w.Port[p].Kind == fabric.Nothing {
			port = uint8(p)
			break
		}
	}
	if port == 0 {
		return errNoSwitchPort
	}
	c := &caPort{s: s, port: port, adapter: a}
	c.agent = agent.New(agent.Config{Type: mad.NodeCA, NumPorts: 1, SystemImageGUID: s.base, NodeGUID: a.NodeGUID, PortGUID: a.NodeGUID + 1,
		VendorID: vendorID, Description: s.n.host + " " + a.Name, Caps: agent.DefaultCaps}, c, caCounters{c})
	if a.Port().Link != ib.LinkInfiniBand {
		c.below = s.n.newPort(a.NodeGUID + 1)
	}
	w.Port[port] = fabric.Plug{Kind: fabric.Function, Number: a.Number()}
	s.wiring.Store(&w)
	s.dirty = true
	s.ports[port], s.byFunc[a.Number()] = c, c
	s.changed[c] |= agent.ChangedState
	if on {
		s.setLink(s.n.now(), port, true)
	} else {
		c.agent.Disable(s.n.now(), 1)
	}
	s.n.vesw.plugged(a)
	return nil
}

// unplug implements switchboard.
func (s *subnet) unplug(a *hca.Adapter) {
	var busy []*ordered
	defer func() {
		for _, w := range busy {
			w.wait()
		}
	}()
	s.do(func() {
		c := s.byFunc[a.Number()]
		if c == nil {
			return
		}
		busy = s.n.vesw.unplugged(a.Number())
		s.setLink(s.n.now(), c.port, false)
		w := *s.wiring.Load()
		w.Port[c.port] = fabric.Plug{}
		s.wiring.Store(&w)
		s.dirty = true
		delete(s.ports, c.port)
		delete(s.byFunc, a.Number())
		delete(s.changed, c)
		s.gsi.remove(a.Number())
		s.n.cm.removed(a.Number())
		if s.clients != nil {
			s.clients.Remove(s.n.now(), a.Number())
		}
	})
}

// power implements switchboard.
func (s *subnet) power(list []*hca.Adapter, on bool) {
	s.do(func() {
		now := s.n.now()
		for _, a := range list {
			c := s.byFunc[a.Number()]
			if c == nil {
				continue
			}
			if on {
				c.agent.Enable(now, 1)
			} else {
				c.agent.Disable(now, 1)
			}
			s.setLink(now, c.port, s.peerUp(c.port))
		}
	})
	s.do(func() {}) // what the first one changed is published before the second
}
