// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// Levels is the number of QoS levels within a function: the service level of a
// queue pair's path is its level. A datagram queue pair has that of the last
// packet it sent. Paths of Ethernet ports have the level of their address vector.
const Levels = 16

// Shares are the weights by which the send scheduler of a lane divides what the
// lane can send: among functions, and within one among its QoS levels. Only
// those that have something to send count.
type Shares struct {
	Weight uint16 // of the function
	Level  [Levels]uint16
}

// MaxWeight is the largest weight; the smallest is 1.
const MaxWeight = 1000

// EqualShares are those of a function without configured weights.
var EqualShares = Shares{Weight: 100, Level: [Levels]uint16{100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100,
	100, 100, 100, 100, 100}}

// Shares returns the weights of the function, which must not be changed in
// place.
func (a *Adapter) Shares() *Shares { return a.shares.Load() }

// SetShares changes the weights; lanes follow with their next round. Every
// weight must lie in 1 … MaxWeight.
func (a *Adapter) SetShares(s Shares) { a.shares.Store(&s) }

// The scheduler is start-time fair queueing (Goyal, Vin and Cheng 1996) at two
// levels, functions and the QoS levels of each: every turn goes to the one that has sent least for its weight, and one
// that was idle starts at the pass of the others, not at its own old one. Unlike a round robin of quanta it loses
// nothing when a link blocks in the middle of a round. With one class to serve, queue pairs have turns in the order in
// which they became ready, and nothing is weighed.

// share is what has been sent for one function, or one QoS level of it, in bytes
// per weight.
type share struct {
	ready int    // queue pairs that wait for a turn
	held  int    // those of them that a link holds back
	pass  uint64 // where it is
}

// passShift is the fraction bits of a pass.
const passShift = 10

// arrive makes a share that was idle start no earlier than now.
func (s *share) portReceives(now uint64) {
	if s.ready++; s.ready == 1 {
		s.pass = max(s.pass, now)
	}
}

// pay moves a share by what was sent for it.
func (s *share) pay(cost int, weight uint16) {
	s.pass += uint64(cost) << passShift / uint64(max(weight, 1))
}

// user is a function as a lane's scheduler sees it.
type user struct {
	share
	fn      *Adapter
	now     uint64 // the pass of the level served last
	classes []*class
}

// class is one QoS level of a function. queue is what was taken out of the
// lane's ready list and has not had its turn.
type class struct {
	share
	of    *user
	level uint8
	queue []*QP
	head  int
}

// scheduler is a lane's send scheduler.
type scheduler struct {
	users  []*user
	now    uint64 // the pass of the function served last
	busy   int    // classes with queue pairs that wait for a turn
	queued int    // queue pairs in the queues of classes
	// While it is sharing, queue pairs that must wait for a link are aside until the end of the round, so that others
	// behind them have their turns; held counts them, by what they wait for.
	sharing bool
	aside   []*QP
	held    [forNothing]int
	scratch []*QP
}

const (
	// sharedBytes is what one turn sends where several classes have something
	// to send.
	sharedBytes = 64 << 10
	// burstCost is what a burst costs besides its payload, in bytes.
	burstCost = 64
)

// class returns the class of a level of a function.
func (s *scheduler) class(a *Adapter, level uint8) *class {
	var u *user
	for _, o := range s.users {
		if o.fn == a {
			u = o
		}
	}
	if u == nil {
		u = &user{fn: a}
		s.users = append(s.users, u)
	}
	for _, c := range u.classes {
		if c.level == level {
			return c
		}
	}
	c := &class{of: u, level: level}
	u.classes = append(u.classes, c)
	return c
}

// classify gives the queue pair the class of its path's service level. A queue pair that waits for a turn changes only
// its place in the count: it is in no class's queue between rounds.
func (q *QP) classify(p *ib.Path) {
	level := uint8(0)
	if p != nil {
		level = p.SL & (Levels - 1)
	}
	if q.class != nil && q.class.level == level {
		return
	}
	s := &q.s.lane.sched
	if waits := q.active; waits {
		s.dismiss(q)
		defer s.enlist(q)
	}
	q.class = s.class(q.s.a, level)
}

// enlist and dismiss keep count of what waits for a turn.
func (s *scheduler) enlist(q *QP) {
	q.active = true
	c := q.class
	if c.ready == 0 {
		s.busy++
	}
	c.of.portReceives(s.now)
	c.portReceives(c.of.now)
}

func (s *scheduler) dismiss(q *QP) {
	q.active = false
	c := q.class
	c.of.ready--
	if c.ready--; c.ready == 0 {
		s.busy--
	}
}

// pick returns the queue pair that is next, nil where its class has none at hand: then the round is over, and its
// commit makes others ready.
func (s *scheduler) pick() *QP {
	var u *user
	for _, o := range s.users {
		if o.ready > o.held && (u == nil || o.pass < u.pass) {
			u = o
		}
	}
	if u == nil {
		return nil
	}
	var c *class
	for _, o := range u.classes {
		if o.ready > o.held && (c == nil || o.pass < c.pass) {
			c = o
		}
	}
	if c.head == len(c.queue) {
		return nil
	}
	q := c.queue[c.head]
	c.queue[c.head] = nil
	if c.head++; c.head == len(c.queue) {
		c.queue, c.head = c.queue[:0], 0
	}
	s.queued--
	s.now, u.now = u.pass, c.pass
	return q
}

// rounds returns how many rounds do what one does without sharing.
func (s *scheduler) rounds() int {
	if s.busy > 1 {
		return 8
	}
	return 1
}

// setAside keeps a queue pair out of the queues until the round is over. It still waits for its turn: its class loses
// nothing.
func (s *scheduler) setAside(q *QP, what int) {
	s.enlist(q)
	q.class.held++
	q.class.of.held++
	s.aside = append(s.aside, q)
	s.held[what]++
}

// shareRound gives turns by weight. What has none this time stays in the queue
// of its class.
func (l *Lane) shareRound(now mono.Time) {
	s := &l.sched
	for _, q := range l.running {
		q.class.queue = append(q.class.queue, q)
	}
	s.queued += len(l.running)
	s.sharing = true
	defer func() { s.sharing = false }()
	for l.moved < pollBytes {
		q := s.pick()
		if q == nil {
			return
		}
		s.dismiss(q)
		switch {
		case q.handled:
			q.schedule() // it must commit before it posts
			continue
		case q.dead:
			continue
		}
		c, moved, runs := q.class, l.moved, l.Stats.LocalBursts+l.Stats.WireBursts
		l.turn(now, q, sharedBytes)
		cost := l.moved - moved + burstCost*int(l.Stats.LocalBursts+l.Stats.WireBursts-runs)
		w := c.of.fn.Shares()
		c.of.pay(cost, w.Weight)
		c.pay(cost, w.Level[c.level])
	}
}

// gather returns what waits in the queues of classes to the ready list, before what became ready later, and what is
// aside.
func (l *Lane) gather() {
	s := &l.sched
	if s.queued > 0 {
		list := s.scratch[:0]
		for _, u := range s.users {
			for _, c := range u.classes {
				list = append(list, c.queue[c.head:]...)
				clear(c.queue)
				c.queue, c.head = c.queue[:0], 0
			}
		}
		l.ready = slices.Insert(l.ready, 0, list...)
		s.scratch, s.queued = list[:0], 0
	}
	for _, q := range s.aside {
		q.class.held, q.class.of.held = 0, 0
	}
	l.ready = append(l.ready, s.aside...)
	s.aside = s.aside[:0]
}

// recount counts again after the ready list was cut.
func (l *Lane) recount() {
	s := &l.sched
	s.busy = 0
	for _, u := range s.users {
		u.ready, u.held = 0, 0
		for _, c := range u.classes {
			c.ready, c.held = 0, 0
		}
	}
	for _, q := range l.ready {
		s.enlist(q)
	}
}

// forget removes functions that no longer exist.
func (s *scheduler) forget(all *Functions) {
	s.users = slices.DeleteFunc(s.users, func(u *user) bool { return u.ready == 0 && all.At(u.fn.num) != u.fn })
}

// pace is a queue pair's limit of what it sends.
type pace struct {
	limit   uint32    // kbit/s, as verbs states it; 0: none
	nextAt  mono.Time // when the next request may leave
	waiting bool      // for nextAt
}

// paceBurst is for how long a paced queue pair may have been silent and still
// send at once what it might have sent meanwhile; one burst takes no longer.
const paceBurst = time.Millisecond

// nanos returns how long a byte takes on path p, 0 where nothing limits it: the
// slower of rate limit and static rate counts.
func (q *QP) nanos(p *ib.Path) (n float64) {
	if q.pace.limit != 0 {
		n = 8e6 / float64(q.pace.limit)
	}
	if t := p.StaticRate.Tenths(); t != 0 {
		n = max(n, 80/float64(t))
	}
	return n
}

// setPace follows a change of the rate limit or of the path p of a connected
// queue pair: what leaves at once must not be long.
func (q *QP) setPace(p *ib.Path) {
	q.pace.nextAt, q.pace.waiting = 0, false
	q.t.Pause(false)
	if p == nil {
		return
	}
	run := q.s.a.Port().MaxRun
	if p.Local {
		run = q.s.a.Port().MaxLocalRun
	}
	if n := q.nanos(p); n != 0 {
		run = uint32(min(float64(run), float64(paceBurst)/n))
	}
	if run != p.MaxRun {
		c := *p
		c.MaxRun = run
		q.t.SetPath(&c)
	}
}

// release resumes a queue pair when its time to send again has come.
func (q *QP) release(now mono.Time) {
	q.pace.waiting = q.pace.nextAt > now
	q.t.Pause(q.pace.waiting)
}

// chargeRate holds the queue pair to its rate after it produced a request.
func (q *QP) chargeRate(now mono.Time, r *pkt.Burst) {
	per := q.nanos(r.Path)
	if per == 0 || r.Opcode.Info().Response {
		return
	}
	n := uint64(r.Data.Len) + uint64(r.Count)*packetOverhead
	if r.Opcode.Op() == ib.ReadRequest {
		n += uint64(r.DMALen) // the responses that it requests
	}
	q.pace.nextAt = max(q.pace.nextAt, now.Add(-paceBurst)).Add(time.Duration(float64(n) * per))
	q.release(now)
}

// packetOverhead is about what a packet has besides payload on a native link.
const packetOverhead = 26

// RateLimit returns the rate limit in kbit/s, 0 where there is none.
func (q *QP) RateLimit() uint32 { return q.pace.limit }
