// SPDX-License-Identifier: Apache-2.0

// Package subnet runs a whole InfiniBand subnet in one goroutine under a virtual clock: switches and channel adapters
// with their real agents (package agent), cables with latency and seeded loss, and subnet managers (package sm).
//
// What comes in: nodes, cables, events, and the time to run; what goes out: the state of agents and managers, the same
// for the same seed. Tests call it. Every datagram is bytes on every hop: each node on its path parses and writes it
// again. The package never reads a clock and never starts a goroutine.
package subnet

import (
	"fmt"
	"math/rand/v2"
	"time"

	"weft/internal/mgmt/agent"
	"weft/internal/mgmt/sm"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Fabric is a subnet, or several that cables may join.
type Fabric struct {
	Now mono.Time
	// Loss is the probability in thousandths that a cable drops a packet.
	Loss int
	// Trace, if set, is called with every datagram that a node sends by a cable. It must not keep or change it.
	Trace func(from *Node, port uint8, d *mad.Datagram)
	Stats Stats

	hop      time.Duration
	rng      *rand.Rand
	nodes    []*Node
	queue    mono.Heap[*event]
	spare    []*event
	attached uint32 // managers so far
	free     []*mad.Datagram
}

// Stats count the packets of the cables.
type Stats struct{ Carried, Lost, Cut uint64 }

// relink is the time until a bounced link is up again.
const relink = time.Millisecond

// New returns an empty fabric with cables that take hop for each packet.
func New(seed uint64, hop time.Duration) *Fabric {
	return &Fabric{Now: mono.Time(time.Second), hop: hop, rng: rand.New(rand.NewPCG(seed, 0x5b))}
}

// end is what a port is cabled to.
type end struct {
	node  *Node
	port  uint8
	epoch uint32 // counts cables: packets on an earlier one are dropped
	trunk *Trunk // instead of a cable
	side  int    // which end of it
}

// Node is a switch or an adapter.
type Node struct {
	Name  string
	Agent *agent.Agent
	// Manager is the subnet manager at the node, nil if there is none.
	Manager *sm.Manager
	// GSI, if set, receives the datagrams of queue pair 1 that the agents do not answer; it may call Send.
	GSI func(now mono.Time, d *mad.Datagram)
	// Changes, if set, is called with each change at the node.
	Changes func(port uint8, what agent.Change)

	f       *Fabric
	ends    []end
	timer   mono.Time // of the queued event
	dead    bool
	stopped bool
	waiting []event // events since Stop
}

// Switch adds a switch.
func (f *Fabric) Switch(name string, ports uint8) *Node {
	c := f.config(name)
	c.Type, c.NumPorts, c.EnforceCap, c.PortGUID = mad.NodeSwitch, ports, agent.EnforceCap, c.NodeGUID
	return f.Add(name, c)
}

// CA adds a channel adapter.
func (f *Fabric) CA(name string) *Node {
	c := f.config(name)
	c.Type, c.NumPorts = mad.NodeCA, 1
	return f.Add(name, c)
}

func (f *Fabric) config(name string) agent.Config {
	g := ib.GUID(0x0200_0000_0000_0000 + uint64(len(f.nodes)+1)<<16)
	return agent.Config{NodeGUID: g, SystemImageGUID: g, PortGUID: g + 1, Description: name, Caps: agent.DefaultCaps,
		TIDs: uint32(len(f.nodes) + 1)}
}

// Add adds the node that c describes.
func (f *Fabric) Add(name string, c agent.Config) *Node {
	n := &Node{Name: name, f: f}
	n.Agent = agent.New(c, n, nil)
	n.ends = make([]end, int(n.Agent.Config().NumPorts)+1)
	f.nodes = append(f.nodes, n)
	return n
}

// Nodes are all nodes, in the order in which they were added.
func (f *Fabric) Nodes() []*Node { return f.nodes }

// PortGUID is the GUID of the node's port with LIDs.
func (n *Node) PortGUID() ib.GUID { return n.Agent.GUIDs()[0] }

// End is the number of the node's port with LIDs.
func (n *Node) End() uint8 {
	if n.Agent.Config().Type == mad.NodeSwitch {
		return 0
	}
	return 1
}

// Link connects two ports by a cable. They must not have one.
func (f *Fabric) Link(a *Node, ap uint8, b *Node, bp uint8) {
	if a.ends[ap].node != nil || b.ends[bp].node != nil {
		panic(fmt.Sprintf("subnet: %s port %d or %s port %d has a cable", a.Name, ap, b.Name, bp))
	}
	a.ends[ap].node, a.ends[ap].port = b, bp
	b.ends[bp].node, b.ends[bp].port = a, ap
	f.up(a, ap)
}

// edr is the width and speed of every link.
var edr = agent.Link{Width: ib.Width4x, Speed: ib.SpeedQDR, SpeedExt: ib.SpeedEDR}

// up brings the link at a port up, if both ends are enabled.
func (f *Fabric) up(a *Node, ap uint8) {
	e := a.ends[ap]
	if e.trunk != nil {
		e.trunk.link(e.side)
		return
	}
	if e.node == nil || a.dead || e.node.dead || !a.Agent.Enabled(ap) || !e.node.Agent.Enabled(e.port) {
		return
	}
	a.Agent.LinkUp(f.Now, ap, edr)
	e.node.Agent.LinkUp(f.Now, e.port, edr)
	f.wake(a)
	f.wake(e.node)
}

// down takes the link at a port down.
func (f *Fabric) down(a *Node, ap uint8) {
	e := &a.ends[ap]
	if e.trunk != nil {
		a.Agent.LinkDown(f.Now, ap)
		f.wake(a)
		return
	}
	if e.node == nil {
		return
	}
	e.epoch++
	e.node.ends[e.port].epoch++
	a.Agent.LinkDown(f.Now, ap)
	e.node.Agent.LinkDown(f.Now, e.port)
	f.wake(a)
	f.wake(e.node)
}

// Cut removes the cable at a port and returns the port at its other end.
func (f *Fabric) Cut(a *Node, ap uint8) (b *Node, bp uint8) {
	f.down(a, ap)
	e := &a.ends[ap]
	b, bp = e.node, e.port
	if b != nil {
		b.ends[bp].node, e.node = nil, nil
	}
	return b, bp
}

// Kill makes a node silent with its links up: it neither answers nor forwards any more. Revive ends that.
func (f *Fabric) Kill(n *Node) { n.dead = true }
func (f *Fabric) Revive(n *Node) {
	n.dead = false
	f.wake(n)
	for p := range n.ends {
		if n.ends[p].trunk != nil {
			f.push(f.Now, event{kind: trunkTimer, node: n, port: uint8(p)})
		}
	}
}

// Stop suspends a node, as on a machine without processor time. Its events wait. Resume continues it: it handles the
// events that have arrived, then its timers.
func (f *Fabric) Stop(n *Node) { n.stopped = true }
func (f *Fabric) Resume(n *Node) {
	n.stopped = false
	for _, late := range []bool{false, true} {
		for _, e := range n.waiting {
			if late == (e.kind == timer || e.kind == trunkTimer) {
				f.push(f.Now, e)
			}
		}
	}
	n.waiting = nil
}

// Attach starts a subnet manager at a node.
func (f *Fabric) Attach(n *Node, c sm.Config, i sm.Intent, o sm.Observations) *sm.Manager {
	c.PortGUID, c.TIDs = n.PortGUID(), uint32(0x5000+len(f.nodes))+f.attached
	f.attached++
	m, err := sm.New(c, i, o)
	if err != nil {
		panic(err)
	}
	n.Manager = m
	n.Agent.SetCapability(f.Now, mad.CapIsSM, true)
	f.wake(n)
	return m
}

// Detach removes the manager of a node without a message.
func (f *Fabric) Detach(n *Node) {
	n.Manager = nil
	n.Agent.SetCapability(f.Now, mad.CapIsSM, false)
	f.wake(n)
}

// Poke makes a manager continue after the test changed its state.
func (f *Fabric) Poke(n *Node) { f.wake(n) }

// Changed implements agent.Owner.
func (n *Node) Changed(port uint8, what agent.Change) {
	if n.Changes != nil {
		n.Changes(port, what)
	}
}

// Link implements agent.Owner: an order of a manager is executed a little later.
func (n *Node) Link(port uint8, o agent.Order) {
	at := n.f.Now.Add(n.f.hop)
	switch o {
	case agent.LinkEnable:
		n.f.push(at, event{kind: linkUp, node: n, port: port})
	case agent.LinkDisable:
		n.f.push(at, event{kind: linkDown, node: n, port: port})
	case agent.LinkBounce:
		n.f.push(at, event{kind: linkDown, node: n, port: port})
		n.f.push(at.Add(relink), event{kind: linkUp, node: n, port: port})
	}
}

var _ agent.Owner = (*Node)(nil)

// Kinds of events.
const (
	arrival = iota
	timer
	linkDown
	linkUp
	trunkTimer
	trunkHello
)

type event struct {
	timer mono.Timer[*event]
	kind  uint8
	port  uint8
	epoch uint32
	node  *Node
	d     *mad.Datagram
	n     uint16 // octets of a trunk's datagram in d
}

// push puts an event into the queue.
func (f *Fabric) push(at mono.Time, e event) {
	p := new(event)
	if k := len(f.spare); k > 0 {
		p, f.spare = f.spare[k-1], f.spare[:k-1]
	}
	*p = e
	p.timer.Value = p
	f.queue.Set(&p.timer, at)
}

// Step handles the next event and reports whether there was one.
func (f *Fabric) Step() bool {
	if f.queue.Len() == 0 {
		return false
	}
	at := f.queue.Next()
	p, _ := f.queue.PopDue(at)
	e := *p
	f.spare = append(f.spare, p)
	f.Now = max(f.Now, at)
	n := e.node
	if n.stopped {
		n.waiting = append(n.waiting, e)
		return true
	}
	switch e.kind {
	case arrival:
		x := &n.ends[e.port]
		if n.dead || x.epoch != e.epoch || x.node == nil || x.trunk != nil && !x.trunk.Up()[x.side] {
			f.Stats.Cut++
			f.free = append(f.free, e.d)
			break
		}
		e.d.Port = e.port
		n.dispatch(e.d, n.Agent.Handle(f.Now, e.d))
		n.pump()
	case timer:
		if n.timer == at {
			n.timer = 0
		}
		n.pump()
	case linkDown:
		f.down(n, e.port)
	case linkUp:
		f.up(n, e.port)
	case trunkTimer:
		n.ends[e.port].trunk.tick(n.ends[e.port].side)
	case trunkHello:
		n.ends[e.port].trunk.hello(n.ends[e.port].side, e.d.Data[:e.n])
		f.free = append(f.free, e.d)
	}
	return true
}

// Run runs the fabric for d.
func (f *Fabric) Run(d time.Duration) {
	end := f.Now.Add(d)
	for f.queue.Next().Due(end) {
		f.Step()
	}
	f.Now = end
}

// Until runs the fabric until cond holds, at most for d, and reports whether it does.
func (f *Fabric) Until(d time.Duration, cond func() bool) bool {
	end := f.Now.Add(d)
	for !cond() {
		if !f.queue.Next().Due(end) {
			f.Now = end
			return cond()
		}
		f.Step()
	}
	return true
}

// wake makes a node send what it has, now.
func (f *Fabric) wake(n *Node) { f.at(n, f.Now) }

func (f *Fabric) at(n *Node, t mono.Time) {
	if n.timer == 0 || t < n.timer {
		n.timer = t
		f.push(t, event{kind: timer, node: n})
	}
}

func (f *Fabric) datagram() *mad.Datagram {
	if k := len(f.free); k > 0 {
		d := f.free[k-1]
		f.free = f.free[:k-1]
		return d
	}
	return new(mad.Datagram)
}

// pump makes the agents and the manager of a node send what they have.
func (n *Node) pump() {
	if n.dead {
		return
	}
	f := n.f
	for {
		d := f.datagram()
		if v := n.Agent.Next(f.Now, d); v != agent.Done {
			n.dispatch(d, v)
			continue
		}
		if n.Manager != nil && n.Manager.Next(f.Now, d) {
			n.dispatch(d, n.Agent.Originate(f.Now, d))
			continue
		}
		f.free = append(f.free, d)
		break
	}
	t := n.Agent.Deadline()
	if n.Manager != nil {
		t = mono.Min(t, n.Manager.Deadline())
	}
	if t != 0 {
		f.at(n, max(t, f.Now))
	}
}

// Send sends a datagram from the node, as one of its clients would. The caller owns d again afterwards.
func (n *Node) Send(d *mad.Datagram) {
	c := n.f.datagram()
	*c = *d
	n.dispatch(c, n.Agent.Originate(n.f.Now, c))
	n.f.wake(n)
}

// dispatch executes the verdict of the agents on a datagram.
func (n *Node) dispatch(d *mad.Datagram, v agent.Verdict) {
	f := n.f
	if v == agent.Send {
		if f.Trace != nil {
			f.Trace(n, d.Port, d)
		}
		e := n.ends[d.Port]
		switch {
		case e.node == nil, e.trunk != nil && (!e.trunk.Up()[e.side] || e.trunk.Deaf[1-e.side]):
			f.Stats.Cut++
		case f.Loss > 0 && f.rng.IntN(1000) < f.Loss:
			f.Stats.Lost++
		default:
			f.Stats.Carried++
			f.push(f.Now.Add(f.hop), event{kind: arrival, node: e.node, port: e.port,
				epoch: e.node.ends[e.port].epoch, d: d})
			return
		}
	}
	if v == agent.Deliver {
		switch {
		case d.DstQPN == ib.QPNSMI && n.Manager != nil:
			n.Manager.Handle(f.Now, d)
		case d.DstQPN == ib.QPNGSI && n.GSI != nil:
			n.GSI(f.Now, d)
		}
	}
	f.free = append(f.free, d)
}

// Active reports whether every cabled port of every living node is ACTIVE and
// every end port has a LID.
func (f *Fabric) Active() bool {
	for _, n := range f.nodes {
		if n.dead {
			continue
		}
		for p := 1; p < len(n.ends); p++ {
			if n.ends[p].node != nil && !n.ends[p].node.dead && n.Agent.Port(uint8(p)).PortState != ib.PortActive {
				return false
			}
		}
		if n.Agent.LID() == 0 {
			return false
		}
	}
	return true
}

// FatTree adds a fat tree of two levels: leaves with hosts adapters each, and
// spines to each of which every leaf has trunks cables.
func FatTree(f *Fabric, leaves, hosts, spines, trunks int) (cas []*Node) {
	tops := make([]*Node, spines)
	for s := range tops {
		tops[s] = f.Switch(fmt.Sprintf("spine-%d", s+1), uint8(leaves*trunks))
	}
	for l := range leaves {
		leaf := f.Switch(fmt.Sprintf("leaf-%d", l+1), uint8(hosts+spines*trunks))
		for h := range hosts {
			ca := f.CA(fmt.Sprintf("host-%d", l*hosts+h+1))
			f.Link(ca, 1, leaf, uint8(h+1))
			cas = append(cas, ca)
		}
		for s, top := range tops {
			for t := range trunks {
				f.Link(leaf, uint8(hosts+s*trunks+t+1), top, uint8(l*trunks+t+1))
			}
		}
	}
	return cas
}
