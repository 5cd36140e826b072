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
	"weft/internal/service/ipoib/neigh"
)

// State is where a Link is in its life.
type State uint8

// States of a Link.
const (
	Absent    State = iota
	Creating        // making its objects, or waiting to try again
	Joining         // asking for the broadcast group, or registering the device
	Down            // the device is there, but not open
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
	retryAfter = time.Second     // a step that failed
	drainLimit = 5 * time.Second // posted work when the link ends
	idleSweep  = 10 * time.Second
	logEvery   = 10 * time.Second // per cause
)

// Link is one IP interface. It is not safe for concurrent use: it belongs to a
// lane.
type Link struct {
	cfg LinkConfig
	p   *Params // of cfg
	rnd *rand.Rand
	al  AL
	dev Device
	eng *neigh.Engine

	state  State
	steps  int    // of creating that are done
	why    string // what the last of them failed with
	opened int    // Open less Close
	port   Port
	pkey   ib.PKey // as the table has it
	index  int     // of pkey in the table, -1: not there
	qpn    ib.QPN
	hw     wire.HWAddr
	retry  timer // of creating, and of registering

	registering, registered bool
	carrier                 bool
	reason                  string // why there is none
	mtu                     int    // of the device
	dgramMTU                int    // of what goes as datagrams
	addrs, onLink           []netip.Prefix

	timers    timers
	queries   map[uint32]*query
	lastQuery uint32

	shadow
	multicast
	sender
	receiver
	waiting
	connected

	idle   timer
	drain  timer
	leaves int // unanswered, when the link ends
	logged map[string]mono.Time
	at     mono.Time // of the last call that may drop frames
	c      Counters
}

// New makes a Link, which does nothing before Start. rnd spreads times over
// links.
func New(cfg LinkConfig, rnd *rand.Rand, al AL, dev Device) *Link {
	l := &Link{cfg: cfg, rnd: rnd, al: al, dev: dev, index: -1, pkey: cfg.PKey, queries: map[uint32]*query{}, logged: map[string]mono.Time{},
		reason: "not started"}
	l.p = &l.cfg.Params
	l.shadow.init()
	l.multicast.init()
	l.waiting.init()
	l.initConns()
	l.retry.fire = l.again
	l.idle.fire = l.sweep
	l.drain.fire = func(now mono.Time) { l.finish(now, true) }
	l.watchdog.fire = l.watch
	l.eng = newEngine(l)
	return l
}

// step is part of creating; undo may be nil.
type step struct {
	name string
	do   func(l *Link) error
	undo func(l *Link)
}

// creating is how the objects of a link are made, in the order of the driver
// design; the context is the Link itself. Joining the broadcast group follows.
var creating = []step{
	{"completion queue", func(l *Link) error { return l.al.CreateCQ(l.p.SQDepth + l.p.RQDepth + l.connDepth()) }, func(l *Link) { l.al.DestroyCQ() }},
	{"queue pair", func(l *Link) (err error) {
		l.qpn, err = l.al.CreateQP(l.p.SQDepth, l.p.RQDepth)
		return err
	}, func(l *Link) { l.al.DestroyQP(); l.qpn = 0 }},
	{"datagram service", (*Link).initUD, nil},
	{"device memory", (*Link).makeDevice, (*Link).freeDevice},
	{"buffers", (*Link).register, (*Link).deregister},
}

// Start begins the life of the link on a port.
func (l *Link) Start(now mono.Time, p Port) {
	if l.state != Absent {
		return
	}
	l.state = Creating
	l.setPort(p)
	l.timers.set(&l.idle, now.Add(idleSweep))
	l.create(now)
	l.flush(now)
}

// create does the steps that are left; where one fails it undoes all, last first, and
// tries again later.
func (l *Link) create(now mono.Time) {
	for l.steps < len(creating) {
		s := &creating[l.steps]
		if err := s.do(l); err != nil {
			l.why = fmt.Sprintf("%s: %v", s.name, err)
			l.log(now, s.name, "%s", l.why)
			l.undo()
			l.timers.set(&l.retry, now.Add(retryAfter))
			l.follow(now)
			return
		}
		l.debug(now, DebugControl, "made: %s", s.name)
		l.steps++
	}
	l.why = ""
	l.setHW()
	l.state = Joining
	l.startBroadcast(now)
	l.follow(now)
}

func (l *Link) undo() {
	for l.steps > 0 {
		l.steps--
		if u := creating[l.steps].undo; u != nil {
			u(l)
		}
	}
}

func (l *Link) initUD() error {
	if l.index < 0 {
		return fmt.Errorf("P_Key %#04x is not in the port's table", uint16(l.cfg.PKey))
	}
	return l.al.InitUD(uint16(l.index), l.qkey())
}

// again retries what failed: a step of creating, or to register.
func (l *Link) again(now mono.Time) {
	switch l.state {
	case Creating:
		l.create(now)
	case Joining:
		l.why = ""
		if l.broadcast.have != 0 {
			if err := l.broadcastJoined(now); err != nil {
				l.broadcast.have = 0
				l.joinFailed(now, l.broadcast, mad.JoinFull, &answer{silent: true}, err.Error())
			}
		}
		l.follow(now)
	}
}

// setHW derives the hardware address from queue pair and port.
func (l *Link) setHW() { l.hw = wire.MakeHWAddr(l.ownFlags(), l.qpn, l.port.GID) }

// Registered tells how registering the network device ended.
func (l *Link) Registered(now mono.Time, err error) {
	if !l.registering || l.state == Destroyed {
		return
	}
	l.registering = false
	if err != nil {
		l.why = fmt.Sprintf("network device: %v", err)
		l.log(now, "network device", "%s", l.why)
		l.timers.set(&l.retry, now.Add(retryAfter))
		l.follow(now)
		return
	}
	l.registered = true
	l.state = Down
	if l.opened > 0 {
		l.state = Up
	}
	l.event(now, EventAdded, netip.Addr{}, "")
	l.postAll()
	if err := l.broadcastReady(now); err != nil {
		l.broadcast.have = 0
		l.joinFailed(now, l.broadcast, mad.JoinFull, &answer{silent: true}, err.Error())
	}
	l.follow(now)
	l.flush(now)
}

// Open sets the device up. As often as it was opened it must be closed.
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
	l.follow(now)
	l.resume(now)
	l.flush(now)
	return nil
}

// Close undoes an Open; the last one sets the device down and releases what it took: shadow
// entries, frames that wait, and all groups but broadcast.
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
	l.follow(now)
	l.flushShadow(now)
	l.suspend(now)
	l.flush(now)
}

// Opened returns how often the device is open.
func (l *Link) Opened() int { return l.opened }

// missing says what keeps the link from having a carrier, or "".
func (l *Link) missing() string {
	switch {
	case l.state == Absent:
		return "not started"
	case l.state == Destroyed:
		return "being removed"
	case l.port.State != ib.PortActive:
		return "port is " + l.port.State.String()
	case l.index < 0:
		return fmt.Sprintf("P_Key %#04x is not in the port's table", uint16(l.cfg.PKey))
	case l.state == Creating:
		return l.why
	case !l.broadcast.up && l.broadcast.reason != "":
		return "broadcast group: " + l.broadcast.reason
	case l.why != "":
		return l.why
	case !l.broadcast.up:
		return "joining the broadcast group"
	case !l.registered:
		return "registering the network device"
	case l.opened == 0:
		return "device is down"
	case l.broken:
		return "the queue pair is in error"
	}
	return ""
}

// follow lets carrier and reason follow what the link has.
func (l *Link) follow(now mono.Time) {
	why := l.missing()
	if on := why == ""; on != l.carrier {
		l.carrier = on
		l.c.Driver.CarrierChanges++
		l.reason = why
		if on {
			l.event(now, EventUp, netip.Addr{}, "")
		} else {
			l.event(now, EventDown, netip.Addr{}, why)
		}
		l.eng.SetUp(now, on)
		if l.registered {
			l.dev.SetCarrier(on, why)
		}
		if !on {
			l.endConns(now)
			l.flushShadow(now)
		}
		return
	}
	if why != l.reason {
		l.reason = why
		if l.registered {
			l.dev.SetCarrier(l.carrier, why)
		}
	}
}

// Stop ends the link: Device.Closed tells when it has released everything.
func (l *Link) Stop(now mono.Time) {
	if l.state == Destroyed {
		return
	}
	l.state = Destroyed
	l.timers.stop(&l.retry)
	l.timers.stop(&l.idle)
	l.timers.stop(&l.watchdog)
	l.failWaiters()
	l.follow(now)
	l.endConns(now)
	l.flushShadow(now)
	l.leaveAll(now)
	for _, q := range l.queries {
		if q.method != mad.MethodDelete {
			l.forget(q)
		}
	}
	l.dropBacklog()
	if l.steps > 2 {
		l.al.StopQP()
	}
	l.timers.set(&l.drain, now.Add(drainLimit))
	l.finish(now, false)
	l.flush(now)
}

// finish releases the link's objects when nothing is posted and no leave is
// unanswered any more, or at once.
func (l *Link) finish(now mono.Time, force bool) {
	if l.state != Destroyed || !force && (l.inFlight() > 0 || l.leaves > 0) || l.closed {
		return
	}
	l.closed = true
	for _, q := range l.queries {
		l.forget(q)
	}
	l.dropGroups()
	if l.registered || l.registering {
		l.dev.Unregister()
		l.event(now, EventRemoved, netip.Addr{}, "")
	}
	l.registered, l.registering = false, false
	l.destroyConns()
	l.undo()
	l.reclaim() // of what is still posted only now that there is no queue pair any more
	l.timers.stop(&l.drain)
	l.runCalls()
	l.dev.Closed(nil)
}

// Tick does what is due.
func (l *Link) Tick(now mono.Time) {
	l.at = now
	l.timers.run(now)
	if l.state != Destroyed {
		l.eng.Tick(now)
	}
	l.flush(now)
	l.runCalls()
}

// Deadline is when Tick has something to do; the zero Time is never.
func (l *Link) Deadline() mono.Time {
	if len(l.calls) > 0 {
		return 1
	}
	d := l.timers.next()
	if l.state != Destroyed {
		d = mono.Min(d, l.eng.Deadline())
	}
	return d
}

// sweep removes what has not been used for long.
func (l *Link) sweep(now mono.Time) {
	l.timers.set(&l.idle, now.Add(idleSweep))
	l.sweepConns(now)
	l.sweepShadow(now)
	l.sweepGroups(now)
}

func (l *Link) event(now mono.Time, k EventKind, a netip.Addr, text string) {
	l.dev.Event(now, Event{Kind: k, Addr: a, Text: text})
}

// log tells of a failure, one of a cause within a while.
func (l *Link) log(now mono.Time, cause, format string, args ...any) {
	l.c.Driver.LoggedErrors++
	if l.seldom(now, cause) {
		l.event(now, EventLog, netip.Addr{}, fmt.Sprintf(format, args...))
	}
}

// seldom reports whether something may be told, and that it was.
func (l *Link) seldom(now mono.Time, cause string) bool {
	if last, ok := l.logged[cause]; ok && now.Sub(last) < logEvery {
		return false
	}
	if len(l.logged) > 256 {
		clear(l.logged)
	}
	l.logged[cause] = now
	return true
}

// debug tells what parameter debug asks for.
func (l *Link) debug(now mono.Time, what uint, format string, args ...any) {
	if l.p.Debug&what != 0 {
		l.event(now, EventLog, netip.Addr{}, fmt.Sprintf(format, args...))
	}
}
