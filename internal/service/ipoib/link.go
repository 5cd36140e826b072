// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/connected"
	"weft/internal/service/ipoib/neigh"
	"weft/internal/service/ipoib/stats"
)

// State is the state of a Link.
type State uint8

// States of a Link.
const (
	Absent    State = iota
	Creating        // making its objects, or waiting to try again
	Joining         // asking for the broadcast group, or registering the device
	Down            // the device exists, but is not open
	Up              // the device is open
	Destroyed       // releasing what it has, or done with that
)

var stateNames = [...]string{"ABSENT", "CREATING", "JOINING", "DOWN", "UP", "DESTROYED"}

// String returns the state's name.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "UNKNOWN"
}

// Times of the life cycle.
const (
	retryAfter = time.Second          // a step that failed
	drainLimit = connected.FlushLimit // posted work when the link ends
	idleSweep  = 10 * time.Second
	logEvery   = 10 * time.Second // per cause
)

// Link is one IP interface. It is not safe for concurrent use: it belongs to a lane.
//
// The Link itself has the life cycle, the carrier and the queue pair. Its parts have the rest; each has its own state
// and calls the others' methods, or the Link by a small interface.
type Link struct {
	cfg    LinkConfig
	p      *Params // of cfg
	access Access
	device Interface

	state  State
	steps  int    // of creating that are done
	why    string // the last of them failed
	opened int    // Open less Close
	reason string // of the missing carrier
	// registering is true from Device.Register until Registered.
	registering bool
	closed      bool // everything is released
	addrs       addresses

	attr     *attributes
	stats    *stats.Recorder
	report   *reporter
	timers   *timers
	sa       *transactions
	vectors  *vectorSet
	budget   *frameBudget
	engine   *neigh.Engine
	waiters  *pathWaiters
	shadow   *shadow
	groups   *groups
	sender   *sender
	receiver *receiver
	qp       *queuePair
	conns    *connected.Conns // nil in datagram mode

	forwarder *forwarder

	retry timer // of creating, and of registering
	idle  timer
	drain timer
}

// New makes a Link, which does nothing before Start. rnd spreads times over links.
func New(cfg LinkConfig, rnd *rand.Rand, access Access, dev Device) *Link {
	l := &Link{cfg: cfg, access: access, device: dev.Interface, reason: "not started", stats: &stats.Recorder{},
		timers: &timers{}, budget: &frameBudget{}, vectors: &vectorSet{port: access.Vectors}}
	l.p = &l.cfg.Params
	l.attr = &attributes{partition: cfg.PKey, pkey: cfg.PKey, index: -1,
		broadcastGID: wire.BroadcastGID(cfg.PKey, l.p.Scope)}
	l.report = newReporter(dev.Events, l.p, l.stats)
	l.sa = &transactions{sa: access.SA, timers: l.timers, open: map[uint32]*query{}}
	l.waiters = &pathWaiters{attr: l.attr, stats: l.stats, byIP: map[netip.Addr][]pathWaiter{}}
	l.forwarder = &forwarder{attr: l.attr, stats: l.stats}
	l.sender = &sender{p: l.p, queue: access.Queues, frames: access.Frames, attr: l.attr, vectors: l.vectors,
		budget: l.budget, stats: l.stats}
	l.shadow = &shadow{p: l.p, attr: l.attr, stats: l.stats, report: l.report, sa: l.sa, vectors: l.vectors,
		budget: l.budget, waiters: l.waiters, link: l.forwarder}
	l.shadow.init()
	l.groups = &groups{p: l.p, rnd: rnd, attr: l.attr, stats: l.stats, report: l.report, timers: l.timers, sa: l.sa,
		vectors: l.vectors, budget: l.budget, port: access.Groups, sender: l.sender, link: groupsOut{l}}
	l.groups.init()
	engine := neigh.Config{MaxNeighbours: l.p.MaxNeigh, Rand: rnd}
	if l.p.Mode == Connected {
		l.attr.flags = wire.HWFlagRC
		engine.QueueBytes = connected.QueueBytes
		c := connected.Config{MaxConns: l.p.MaxConns, Idle: l.p.ConnIdle, Copybreak: l.p.TxCopybreak}
		ports := access.Conns
		ports.Frames = access.Frames
		l.conns = connected.New(c, ports, l.forwarder, l.shadow, l.budget, l.report, l.stats)
	}
	out := engineOut{l}
	l.engine = neigh.New(engine, neigh.Out{Frames: out, Resolution: out, Membership: out})
	f := l.forwarder
	f.engine, f.groups, f.shadow, f.sender, f.conns = l.engine, l.groups, l.shadow, l.sender, l.conns
	l.receiver = &receiver{queue: access.Queues, device: dev.Packets, attr: l.attr, stats: l.stats, engine: l.engine,
		shadow: l.shadow, gen: &l.sender.gen}
	l.qp = &queuePair{p: l.p, service: access.Service, memory: access.Memory, cq: access.Queues, device: dev.Packets,
		attr: l.attr, stats: l.stats, report: l.report, timers: l.timers, engine: l.engine, shadow: l.shadow,
		conns: l.conns, link: l, sender: l.sender, receiver: l.receiver}
	l.qp.watchdog.Value = l.qp.checkSends
	l.retry.Value = l.tryAgain
	l.idle.Value = l.sweep
	l.drain.Value = func(now mono.Time) { l.finish(now, true) }
	return l
}

// step is a step of creating; undo may be nil.
type step struct {
	name string
	do   func(l *Link) error
	undo func(l *Link)
}

// creating are the steps that make the objects of a link, in the order of the driver design; their context is the Link.
// Joining the broadcast group follows.
var creating = []step{
	{"completion queue", func(l *Link) error { return l.access.Objects.CreateCQ(l.completions()) },
		func(l *Link) { l.access.Objects.DestroyCQ() }},
	{"queue pair", func(l *Link) (err error) {
		l.attr.qpn, err = l.access.Objects.CreateQP(l.p.SQDepth, l.p.RQDepth)
		return err
	}, func(l *Link) { l.access.Objects.DestroyQP(); l.attr.qpn = 0 }},
	{"datagram service", func(l *Link) error { return l.qp.initUD() }, nil},
	{"device memory", func(l *Link) error {
		l.receiver.packets = make([][]byte, 0, pollBatch)
		return nil
	}, func(l *Link) { l.receiver.packets = nil }},
	{"buffers", func(l *Link) error { return l.qp.register() }, func(l *Link) { l.qp.deregister() }},
}

// completions is how many completions there may be at a time.
func (l *Link) completions() int {
	n := l.p.SQDepth + l.p.RQDepth
	if l.conns != nil {
		n += connected.TxSlots + connected.RxSlots
	}
	return n
}

// Start begins the life of the link on a port.
func (l *Link) Start(now mono.Time, p Port) {
	if l.state != Absent {
		return
	}
	l.state = Creating
	l.attr.setPort(p)
	l.timers.Set(&l.idle, now.Add(idleSweep))
	l.create(now)
	l.qp.flush(now)
}

// create does the steps that are left. Where one fails it undoes all, last first, and tries again later.
func (l *Link) create(now mono.Time) {
	for l.steps < len(creating) {
		s := &creating[l.steps]
		if err := s.do(l); err != nil {
			l.why = fmt.Sprintf("%s: %v", s.name, err)
			l.report.Logf(now, s.name, "%s", l.why)
			l.undo()
			l.timers.Set(&l.retry, now.Add(retryAfter))
			l.updateCarrier(now)
			return
		}
		l.report.Debugf(now, "made: %s", s.name)
		l.steps++
	}
	l.why = ""
	l.setHW()
	l.state = Joining
	l.groups.start(now)
	l.updateCarrier(now)
}

func (l *Link) undo() {
	for l.steps > 0 {
		l.steps--
		if u := creating[l.steps].undo; u != nil {
			u(l)
		}
	}
}

// tryAgain retries what failed: a step of creating, or to register.
func (l *Link) tryAgain(now mono.Time) {
	switch l.state {
	case Creating:
		l.create(now)
	case Joining:
		l.why = ""
		if l.groups.broadcast.granted != 0 {
			if err := l.adoptBroadcast(now); err != nil {
				l.groups.broadcastFailed(now, err)
			}
		}
		l.updateCarrier(now)
	}
}

// setHW derives the hardware address from queue pair and port.
func (l *Link) setHW() {
	l.attr.setHW()
	if l.conns != nil {
		l.conns.SetLocal(connected.Local{HW: l.attr.hw, LMC: l.attr.port.LMC})
	}
}

// adoptBroadcast goes on when the broadcast group is joined: the queue pair gets its Q_Key, the device its MTU. The
// first time the device is registered before the queue pair is attached to the group.
func (l *Link) adoptBroadcast(now mono.Time) error {
	a := l.attr
	r := &a.broadcast
	if err := l.access.Service.SetQKey(r.QKey); err != nil {
		return fmt.Errorf("Q_Key: %w", err)
	}
	mtu := r.MTU
	if a.port.MTU.Valid() && a.port.MTU < mtu {
		mtu = a.port.MTU
	}
	mtuBefore, dgramBefore := a.mtu, a.dgramMTU
	a.dgramMTU = wire.IPMTU(mtu)
	a.mtu = a.dgramMTU
	if l.conns != nil {
		a.mtu = connected.MTU
		l.conns.SetDatagramMTU(a.dgramMTU)
	}
	l.configureEngine(now)
	switch {
	case a.registered:
		if a.mtu != mtuBefore {
			l.device.SetMTU(a.mtu)
		}
		if a.dgramMTU != dgramBefore {
			l.qp.reset(now) // receive buffers have another length now
		}
		return l.attachBroadcast(now)
	case !l.registering:
		l.registering = true
		d := DeviceInfo{Name: l.cfg.Name, MTU: a.mtu, Address: a.hw, QueueLen: l.p.SQDepth}
		if a.mtu >= wire.IPv6MinMTU {
			d.LinkLocal = wire.LinkLocal(a.port.GID.GUID())
		}
		l.device.Register(d)
	}
	return nil
}

// attachBroadcast attaches the broadcast group; then the link can work, and the other groups follow.
func (l *Link) attachBroadcast(now mono.Time) error {
	works, err := l.groups.attachBroadcast()
	if !works {
		return err
	}
	l.why = ""
	l.updateCarrier(now)
	l.groups.advanceAll(now)
	return nil
}

// configureEngine sets what the engine must know of the link.
func (l *Link) configureEngine(now mono.Time) {
	if l.attr.mtu > 0 {
		l.engine.SetLink(now, neigh.LinkInfo{HW: l.attr.hw, PKey: l.attr.partition, Scope: l.p.Scope, MTU: l.attr.mtu})
	}
}

// Registered reports how the registration of the network device ended.
func (l *Link) Registered(now mono.Time, err error) {
	if !l.registering || l.state == Destroyed {
		return
	}
	l.registering = false
	if err != nil {
		l.why = fmt.Sprintf("network device: %v", err)
		l.report.Logf(now, "network device", "%s", l.why)
		l.timers.Set(&l.retry, now.Add(retryAfter))
		l.updateCarrier(now)
		return
	}
	l.attr.registered = true
	l.state = Down
	if l.opened > 0 {
		l.state = Up
	}
	l.report.event(now, EventAdded, netip.Addr{}, "")
	l.receiver.postAll()
	if err := l.attachBroadcast(now); err != nil {
		l.groups.broadcastFailed(now, err)
	}
	l.updateCarrier(now)
	l.qp.flush(now)
}

// Open sets the device up. It must be closed as often as it was opened.
func (l *Link) Open(now mono.Time) error {
	if l.state == Destroyed {
		return ErrLinkDown
	}
	if l.opened++; l.opened > 1 {
		return nil
	}
	if l.state == Down {
		l.state = Up
	}
	l.updateCarrier(now)
	l.groups.resume(now)
	l.qp.flush(now)
	return nil
}

// Close undoes an Open. The last one sets the device down and releases what it used: shadow entries, frames that wait,
// and all groups but broadcast.
func (l *Link) Close(now mono.Time) {
	if l.opened == 0 {
		return
	}
	if l.opened--; l.opened > 0 {
		return
	}
	if l.state == Up {
		l.state = Down
	}
	l.updateCarrier(now)
	l.shadow.flush(now)
	l.groups.suspend(now)
	l.qp.flush(now)
}

// Opened returns how often the device is open.
func (l *Link) Opened() int { return l.opened }

// missing returns why the link has no carrier, or "".
func (l *Link) missing() string {
	a, broadcast := l.attr, l.groups.broadcast
	switch {
	case l.state == Absent:
		return "not started"
	case l.state == Destroyed:
		return "being removed"
	case a.port.State != ib.PortActive:
		return "port is " + a.port.State.String()
	case a.index < 0:
		return fmt.Sprintf("P_Key %#04x is not in the port's table", uint16(a.partition))
	case l.state == Creating:
		return l.why
	case !l.groups.up && broadcast.reason != "":
		return "broadcast group: " + broadcast.reason
	case l.why != "":
		return l.why
	case !l.groups.up:
		return "joining the broadcast group"
	case !a.registered:
		return "registering the network device"
	case l.opened == 0:
		return "device is down"
	case l.sender.broken:
		return "the queue pair is in error"
	}
	return ""
}

// updateCarrier has carrier and reason follow the state of the link.
func (l *Link) updateCarrier(now mono.Time) {
	why := l.missing()
	on := why == ""
	if on == l.attr.carrier {
		if why != l.reason {
			l.reason = why
			if l.attr.registered {
				l.device.SetCarrier(on, why)
			}
		}
		return
	}
	l.attr.carrier = on
	l.stats.Driver.CarrierChanges++
	l.reason = why
	if on {
		l.report.event(now, EventUp, netip.Addr{}, "")
	} else {
		l.report.event(now, EventDown, netip.Addr{}, why)
	}
	l.engine.SetUp(now, on)
	if l.attr.registered {
		l.device.SetCarrier(on, why)
	}
	if l.conns != nil {
		l.conns.SetCarrier(now, on)
	}
	if !on {
		l.shadow.flush(now)
	}
}

// Stop ends the link: Device.Closed is called when everything is released.
func (l *Link) Stop(now mono.Time) {
	if l.state == Destroyed {
		return
	}
	l.state = Destroyed
	l.groups.ending, l.qp.ending = true, true
	l.timers.Stop(&l.retry)
	l.timers.Stop(&l.idle)
	l.timers.Stop(&l.qp.watchdog)
	l.waiters.failAll()
	l.updateCarrier(now)
	if l.conns != nil {
		l.conns.EndAll(now)
	}
	l.shadow.flush(now)
	l.groups.leaveAll(now)
	l.sa.cancelIf(func(q *query) bool { return q.method != mad.MethodDelete })
	l.sender.dropBacklog()
	if l.steps > 2 {
		l.access.Service.StopQP()
	}
	l.timers.Set(&l.drain, now.Add(drainLimit))
	l.finish(now, false)
	l.qp.flush(now)
}

// outstanding is how many posted work requests, connections and leaves are not completed.
func (l *Link) outstanding() int {
	n := l.sender.inFlight + l.receiver.posted + l.groups.leaves
	if l.conns != nil {
		n += l.conns.Total()
	}
	return n
}

// finish releases the objects of a link that ends: when nothing is outstanding, or at once.
func (l *Link) finish(now mono.Time, force bool) {
	if l.state != Destroyed || !force && l.outstanding() > 0 || l.closed {
		return
	}
	l.closed = true
	l.sa.cancelIf(func(*query) bool { return true })
	l.groups.removeAll()
	if l.attr.registered || l.registering {
		l.device.Unregister()
		l.report.event(now, EventRemoved, netip.Addr{}, "")
	}
	l.attr.registered, l.registering = false, false
	if l.conns != nil {
		l.conns.Destroy()
	}
	l.undo()
	l.qp.reclaim() // what is still posted, now that there is no queue pair any more
	l.timers.Stop(&l.drain)
	l.waiters.run()
	l.device.Closed(nil)
}

// Tick does what is due.
func (l *Link) Tick(now mono.Time) {
	l.report.now = now
	l.timers.run(now)
	if l.conns != nil && l.conns.Deadline().Due(now) {
		l.conns.Tick(now)
		l.qp.drainQueues(now)
		l.finish(now, false)
	}
	if l.state != Destroyed {
		l.engine.Tick(now)
	}
	l.qp.flush(now)
	l.waiters.run()
}

// Deadline is when Tick has something to do; the zero Time is never.
func (l *Link) Deadline() mono.Time {
	if len(l.waiters.calls) > 0 {
		return 1
	}
	d := l.timers.Next()
	if l.conns != nil {
		d = mono.Min(d, l.conns.Deadline())
	}
	if l.state != Destroyed {
		d = mono.Min(d, l.engine.Deadline())
	}
	return d
}

// sweep removes what has not been used for long.
func (l *Link) sweep(now mono.Time) {
	l.timers.Set(&l.idle, now.Add(idleSweep))
	if l.conns != nil {
		l.conns.EndIdle(now)
	}
	l.shadow.removeIdle(now)
	l.groups.leaveIdle(now)
}

// SendBatch sends packets of the IP stack: packet i is frames[i][Headroom:], hops[i] its next hop. It returns how many
// it accepted: all, unless the send queue is full; Device.Wake is called when the rest can follow. The frames are the
// caller's again, but for those that connected.Mapper mapped.
func (l *Link) SendBatch(now mono.Time, frames [][]byte, hops []netip.Addr) int {
	l.report.now = now
	return l.qp.sendBatch(now, frames, hops)
}

// Interrupt is the one routine for completions, of sends and of receives. It handles a batch, and reports whether there
// may be more.
func (l *Link) Interrupt(now mono.Time) (more bool) {
	l.report.now = now
	if l.steps == 0 {
		return false
	}
	n := l.qp.poll(now)
	l.finish(now, false)
	l.qp.flush(now)
	return n == pollBatch
}

// JoinGroup has the link receive an IP group, until as many calls of LeaveGroup.
func (l *Link) JoinGroup(now mono.Time, a netip.Addr) error {
	err := l.groups.addUser(now, a)
	l.qp.flush(now)
	return err
}

// LeaveGroup undoes a JoinGroup.
func (l *Link) LeaveGroup(now mono.Time, a netip.Addr) error {
	err := l.groups.removeUser(now, a)
	l.qp.flush(now)
	return err
}

// SAResponse is the answer to the request with that ID; record is read during the call only. An answer that belongs to
// no request is ignored.
func (l *Link) SAResponse(now mono.Time, id uint32, status mad.Status, record []byte) {
	l.report.now = now
	l.sa.response(now, id, status, record)
	l.qp.flush(now)
}

// ConnEvent reports an event of a connection.
func (l *Link) ConnEvent(now mono.Time, e connected.Event) {
	l.report.now = now
	switch {
	case l.conns == nil:
	case l.state != Destroyed:
		l.conns.HandleEvent(now, &e)
	case e.Kind == connected.Requested:
		l.conns.Reject(e.ID)
	}
	l.qp.flush(now)
}

// ModeOf returns how packets go to a hardware address: "datagram", or "connected", or "connecting" while a connection
// is being made.
func (l *Link) ModeOf(hw wire.HWAddr) string {
	if l.conns != nil {
		if m := l.conns.Mode(hw); m != "" {
			return m
		}
	}
	return Datagram.String()
}
