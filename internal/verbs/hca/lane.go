// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"container/heap"
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca/replicate"
	"weft/internal/verbs/transport"
)

// Link carries bursts to other nodes.
type Link interface {
	// Send puts a burst into the batch being built; payload is gathered before it returns. SourceFault reports that it
	// could not be read.
	Send(now mono.Time, r *pkt.Burst, b *mem.Batch) mem.Result
	// Blocked reports that the link takes no more until it has drained.
	Blocked() bool
	// Flush hands the batch to the kernel.
	Flush(now mono.Time)
}

// LaneStats count what a lane saw; every refusal has a name.
type LaneStats struct {
	LocalBursts, WireBursts, RcvdBursts, ForeignBursts uint64
	DropNoQP, DropForeignFull, CQOverrun               uint64
	// from the network, with an address of this node as its source
	DropOwnSource uint64
	// from within the node, with a bit that an injected fault inverted
	DropCorrupt uint64
	// the port it left or arrived at was not active, or not the one addressed
	DropPort       uint64
	DropNoFunction uint64
	DropMulticast  uint64 // to the queue pair number of groups, but not to a group
	Copies         uint64 // of multicast packets, handed to a queue pair
	// copies of a queue pair's own packets, which it was created to block
	BlockedSelf uint64
	// copies for a queue pair that was detached from the group or destroyed meanwhile
	DropNotMember uint64
	// connected queue pairs of programs that died
	OrphanedQPs uint64
	Rounds      uint64
}

// Lane drives the queue pairs of its sessions. It has no goroutine: its owner calls Receive for what arrived and
// Run for everything else, from one goroutine.
type Lane struct {
	ID          int
	Stats       LaneStats
	Within      Within
	all         *Functions
	seen        uint64 // the generation of all that sessions follow
	counted     tally
	tap         *tapped // nil: no capture runs
	link        Link
	fabric      Link // nil: InfiniBand ports reach this node only
	sw          Switch
	manage      func(now mono.Time, r *pkt.Burst)
	general     func(now mono.Time, r *pkt.Burst)
	batch       *mem.Batch
	buffers     *transport.Buffers // shared by its queue pairs
	groups      *Multicast         // nil: no copies are made of multicast packets
	sessions    []*Session
	orphans     []*Session // their programs died; their peers are made to fail
	orphanEnded func(*Session)
	others      Others

	ready, running []*QP // to be given a turn
	sched          scheduler
	handled        []*QP // handled a burst since the last commit
	dirtyQPs       []*QP
	dirtyCQs       []*CQ
	waitingCQs     []*CQ // have a backlog
	failed         failures
	revoked        bool // another lane may still copy through memory that completions will report as invalidated
	timers         timerHeap
	linkBlocked    [2]int // queue pairs that waited for link and for fabric in the last round
	run            pkt.Burst
	// taken from the receive queue; the payloads of the first copied are being read
	copying              []replicate.Descriptor
	copied               int
	turnsWithCopies      int       // since there was unicast work
	outbound             pkt.Burst // and path: of a multicast packet on its way to the engine
	outboundPath         ib.Path
	cqe                  CQE
	bad                  []violations // by function
	report               func(function uint16, pkeys, qkeys Violations)
	reportedAt, reportAt mono.Time // when violations were reported last, and are due to be
	moved                int       // bytes since the last look at rings and sockets
	carried              uint64
}

// Others is a lane's way to the other lanes of its node.
type Others interface {
	// Forward enqueues a burst for a session of another lane; false where there is no room, and the burst is
	// dropped. from is the queue pair with the payload in its memory, nil where the payload is bytes. Where that
	// memory cannot be read Forward may set r.Fault at once, or call from.SourceFault later. What an unreliable
	// service sends must have been read when it returns.
	Forward(to *Lane, r *pkt.Burst, from *QP) bool
	// Room reports whether Forward would accept any burst now.
	Room(to *Lane) bool
	// Quiesce returns when every other lane has finished the copies that it was making at the time of the call.
	Quiesce()
}

// laneBuffers is how many buffers of 1 MiB the queue pairs of a lane share, for what arrived behind a gap and for READ
// responses that must be copied.
const laneBuffers = 32

// NewLane returns a lane that serves sessions of any of the functions. link sends what RoCE ports send to other nodes.
// others may be nil where there is one lane only.
func NewLane(all *Functions, id int, link Link, others Others) *Lane {
	l := &Lane{ID: id, all: all, link: link, others: others, batch: mem.NewBatch(128 << 10),
		buffers: transport.NewBuffers(laneBuffers)}
	l.Within.l = l
	l.refresh()
	return l
}

// SetFabric sets the link for what InfiniBand ports send and what does not go straight to another queue pair of the
// node. It is called before the lane runs.
func (l *Lane) SetFabric(f Link) { l.fabric = f }

// SetSwitch sets the switch between the node's InfiniBand ports. It is called before the lane runs.
func (l *Lane) SetSwitch(s Switch) { l.sw = s }

// SetManagement sets the function that receives datagrams for queue pair 1 of the node's InfiniBand ports;
// r.Path.Function names the port. It must read the payload before it returns; where that fails it sets r.Fault. It is
// called before the lane runs.
func (l *Lane) SetManagement(receive func(now mono.Time, r *pkt.Burst)) { l.manage = receive }

// SetGeneralServices is SetManagement for Ethernet ports: their keys are not checked before.
func (l *Lane) SetGeneralServices(receive func(now mono.Time, r *pkt.Burst)) { l.general = receive }

// Carried returns how many bytes of payload the lane has received and sent.
func (l *Lane) Carried() uint64 { return l.carried }

// Batch returns the lane's batch of placements.
func (l *Lane) Batch() *mem.Batch { return l.batch }

// Sessions returns the lane's sessions; the slice is the lane's.
func (l *Lane) Sessions() []*Session { return l.sessions }

const (
	turnBursts = 64 // bursts of one queue pair per turn
	maxRounds  = 16 // turns between two polls of rings and sockets
	// Bytes of one queue pair per turn, and of all between two polls: what a lane moves in tenths of a
	// millisecond. Else many pairs with large messages would keep other users of the lane waiting for seconds.
	turnBytes = 2 << 20
	pollBytes = 8 << 20
)

// Receive receives one inbound burst, from a link or from another lane. The burst and its payload must stay valid until
// Run returns.
func (l *Lane) Receive(now mono.Time, r *pkt.Burst) {
	l.refresh()
	l.Stats.RcvdBursts++
	l.carried += uint64(r.Data.Len)
	if r.DestQPN == ib.QPNMulticast {
		if l.tap != nil {
			l.mirrorReceived(r.Path.Function, r)
		}
		l.receiveMulticast(r)
		return
	}
	a := l.all.At(r.Path.Function)
	if a == nil {
		l.Stats.DropNoFunction++
		return
	}
	// What this node sends itself does not pass a socket: another host uses the address.
	if !r.Path.Local && !r.Path.Native() && a.Port().own(r.Path.SGID) {
		l.Stats.DropOwnSource++
		return
	}
	l.dispatch(now, a, r, nil)
}

// dispatch delivers a burst to its queue pair of function a. from is the sender where that is a queue pair of
// this lane.
func (l *Lane) dispatch(now mono.Time, a *Adapter, r *pkt.Burst, from *QP) {
	native := r.Path.Native()
	services := l.general
	if native {
		services = l.manage
	}
	if r.DestQPN != ib.QPNGSI || a.GuestGSI {
		services = nil
	}
	s := a.Session(r.DestQPN)
	if services == nil && s != nil && s.lane != l {
		l.forward(s.lane, r, from) // mirrored there
		return
	}
	if l.tap != nil {
		l.mirrorReceived(a.num, r)
	}
	switch {
	case services != nil:
		if p := a.Port(); l.portOpen(a, p, p.State == ib.PortActive, r) {
			services(now, r)
		}
	case s == nil:
		l.Stats.DropNoQP++
	case l.portOpen(s.a, s.port, s.up, r):
		l.handle(now, s, r)
	}
}

// portOpen reports whether port p of function a receives the burst, and counts it where it does not; up reports that
// the port is active.
func (l *Lane) portOpen(a *Adapter, p *Port, up bool, r *pkt.Burst) bool {
	if r.Path.Native() {
		return l.portReceives(a, p, up, r)
	}
	if !up {
		l.Stats.DropPort++
	}
	return up
}

func (l *Lane) forward(to *Lane, r *pkt.Burst, from *QP) {
	l.Stats.ForeignBursts++
	if l.others == nil || !l.others.Forward(to, r, from) {
		l.Stats.DropForeignFull++
	}
}

// What a queue pair may have to wait for before it produces a burst: the two links, or room on the way to the lane of
// its peer.
const (
	forLink = iota
	forFabric
	forLane
	forNothing
)

// blocked reports whether a link accepts nothing now.
func (l *Lane) blocked(link int) bool {
	if link == forFabric {
		return l.fabric != nil && l.fabric.Blocked()
	}
	return l.link.Blocked()
}

// blockedOn returns what the queue pair must wait for.
func (l *Lane) blockedOn(q *QP) int {
	p := q.t.PathOf()
	if p == nil || !p.Local {
		link := forLink
		if q.s.port.native() || q.s.port.OverFabric {
			link = forFabric
		}
		if l.blocked(link) {
			return link
		}
		return forNothing
	}
	if l.others == nil {
		return forNothing
	}
	a := l.all.At(p.Function)
	if a == nil {
		return forNothing
	}
	if s := a.Session(q.t.DestQPN()); s != nil && s.lane != l && !l.others.Room(s.lane) {
		return forLane
	}
	return forNothing
}

// refresh makes the sessions follow changes of functions and ports.
func (l *Lane) refresh() {
	g := l.all.generation.Load()
	if g == l.seen {
		return
	}
	l.seen = g
	l.refreshOrphans()
	l.sched.forget(l.all)
	for _, s := range l.sessions {
		s.follow()
	}
}

// quiesce waits until no other lane copies through memory that was just revoked.
func (l *Lane) quiesce() {
	l.revoked = false
	l.batch.Flush()
	if l.others != nil {
		l.others.Quiesce()
	}
}

func (l *Lane) handle(now mono.Time, s *Session, r *pkt.Burst) {
	slot := uint32(r.DestQPN) & slotMask
	if slot >= uint32(len(s.slots)) || s.slots[slot] == nil {
		l.Stats.DropNoQP++
		return
	}
	l.turnsWithCopies = 0
	l.handleBurst(now, s.slots[slot], r)
}

// handleBurst makes a queue pair handle a burst.
func (l *Lane) handleBurst(now mono.Time, q *QP, r *pkt.Burst) {
	if r.Path.Native() {
		k := q.t.Counters()
		pkeys, qkeys := k.DropPKey, k.DropQKey
		q.t.Handle(now, r, l.batch)
		c := l.counted.counters(q.s.a.num)
		if pkeys, qkeys = k.DropPKey-pkeys, k.DropQKey-qkeys; pkeys|qkeys != 0 {
			c.PKeyViolations += pkeys
			c.QKeyViolations += qkeys
			l.countViolation(now, q, r, pkeys, qkeys)
		}
	} else {
		q.t.Handle(now, r, l.batch)
	}
	l.commitLater(q)
}

// commitLater makes sure that the queue pair gets its Commit.
func (l *Lane) commitLater(q *QP) {
	if !q.handled {
		q.handled = true
		l.handled = append(l.handled, q)
	}
}

// Run gives every ready queue pair its turns, makes all effects visible and reports whether work remains. Rings
// with new requests (SendPosted) and inbound bursts (Receive) must have been reported before.
func (l *Lane) Run(now mono.Time) bool {
	l.refresh()
	for len(l.timers) > 0 && l.timers[0].timer.Due(now) {
		q := l.timers[0]
		l.timers.remove(q)
		q.schedule()
	}
	if l.Within.stage != nil {
		l.Within.stage.Flush(now)
	}
	l.commit(now)
	l.releaseCopied() // what a memory fault kept from it
	l.moved, l.linkBlocked, l.sched.held = 0, [2]int{}, [forNothing]int{}
	for i := 0; len(l.ready)+l.sched.queued > 0 && i < maxRounds*l.sched.rounds() && l.moved < pollBytes; i++ {
		l.Stats.Rounds++
		l.linkBlocked = [2]int{}
		l.ready, l.running = l.running[:0], l.ready
		if l.sched.busy > 1 {
			l.shareRound(now)
		} else {
			l.round(now)
		}
		l.commit(now)
	}
	l.gather()
	l.sendAnswers(now)
	l.link.Flush(now)
	if l.fabric != nil {
		l.fabric.Flush(now)
	}
	l.publish(now)
	more := l.replicate(now)
	if l.reportAt.Due(now) {
		l.reportViolations(now)
	}
	able := len(l.ready)
	for link, n := range l.linkBlocked {
		if n += l.sched.held[link]; n > 0 && l.blocked(link) {
			able -= n
		}
	}
	return able > 0 || more || l.failed.pending()
}

// round gives every queue pair of running its turn.
func (l *Lane) round(now mono.Time) {
	if l.sched.queued > 0 {
		// What was divided before is one class's now.
		l.ready, l.running = l.running, l.ready
		l.gather()
		l.ready, l.running = l.running[:0], l.ready
	}
	for i, q := range l.running {
		if l.moved >= pollBytes {
			// Queue pairs without a turn have the first ones next time.
			l.ready = slices.Insert(l.ready, 0, l.running[i:]...)
			break
		}
		l.sched.dismiss(q)
		if q.handled {
			q.schedule() // it must commit before it posts
		} else if !q.dead {
			l.turn(now, q, turnBytes)
		}
	}
}

// turn makes one queue pair produce bursts of about so many bytes.
func (l *Lane) turn(now mono.Time, q *QP, bytes int) {
	more := q.fetch(now)
	r := &l.run
	if q.pace.waiting {
		q.release(now)
	}
	for i, end := 0, l.moved+bytes; i < turnBursts && l.moved < end; i++ {
		if what := l.blockedOn(q); what != forNothing {
			if l.sched.sharing && i == 0 {
				l.sched.setAside(q, what)
				return
			}
			if what != forLane {
				l.linkBlocked[what]++
			}
			q.schedule()
			return
		}
		*r = pkt.Burst{}
		if !q.t.Next(now, r) {
			if q.orphaned && q.t.OrphanDone() {
				l.endOrphan(q)
				return
			}
			l.arm(q)
			if more || q.t.Pending() {
				q.schedule()
			}
			return
		}
		l.commitLater(q)
		l.moved += r.Data.Len
		if r.Path.SL&(Levels-1) != q.class.level {
			q.classify(r.Path)
		}
		if q.pace.limit != 0 || r.Path.StaticRate != 0 {
			q.chargeRate(now, r)
		}
		l.transmit(now, q, r)
	}
	q.schedule()
}

// transmit sends a burst along its path: to a queue pair of the node, a group, or a link.
func (l *Lane) transmit(now mono.Time, q *QP, r *pkt.Burst) {
	native := r.Path.Native()
	switch {
	case native && !l.portSends(q.s, r):
		return
	case !q.s.up:
		l.Stats.DropPort++
		return
	case native && l.sw != nil && !l.switchAllows(q, r):
		return
	case l.tap != nil && !l.mirrorSent(now, q, r):
		return
	case r.DestQPN == ib.QPNMulticast && groupPath(r.Path):
		l.sendMulticast(now, q, r)
		return
	case !r.Path.Local:
		l.turnsWithCopies = 0
		l.Stats.WireBursts++
		link := l.link
		if native {
			link = l.fabric
		}
		if link.Send(now, r, l.batch) == mem.SourceFault {
			q.t.SourceFault(now, r)
		}
		return
	}
	l.Stats.LocalBursts++
	r.IPv4 = !native && r.Path.DGID.IsIPv4()
	l.Within.transmit(now, q, r)
	if r.Fault {
		q.t.SourceFault(now, r)
	}
}

// commit puts payload in place and then makes its effects visible.
func (l *Lane) commit(now mono.Time) {
	l.batch.Flush()
	if l.tap != nil {
		l.tap.used = 0
	}
	for i := 0; i < len(l.handled); i++ {
		q := l.handled[i]
		q.handled = false
		if q.dead {
			continue
		}
		q.t.Commit(now)
		if q.orphaned && q.t.OrphanDone() {
			l.endOrphan(q)
			continue
		}
		if q.more || q.t.Pending() {
			q.schedule()
		}
		l.arm(q)
	}
	l.handled = l.handled[:0]
	l.failed.apply(now)
}

var errAttr = transport.Attr{State: ib.Err}

// sendAnswers sends the answers that queue pairs still owe when the budget of a Run is used up: before completions
// become visible, as an adapter does, since a program may destroy the queue pair as soon as it has seen its last one.
func (l *Lane) sendAnswers(now mono.Time) {
	r := &l.run
	for sent := true; sent; l.commit(now) { // again for those that had to commit first
		sent = false
		for _, q := range l.ready {
			for !q.dead && l.blockedOn(q) == forNothing {
				*r = pkt.Burst{}
				if !q.t.Acknowledge(r) {
					break
				}
				sent = true
				l.commitLater(q)
				l.transmit(now, q, r)
			}
		}
	}
}

// sendLastAnswers sends the answers for completions that the program may have seen, before the program takes the queue
// pair down: where a link was blocked completions became visible before the answers left. A blocked link mostly has
// room for these; else their loss is counted as any.
func (l *Lane) sendLastAnswers(now mono.Time, q *QP) {
	if q.t == nil || q.t.State() == ib.Err || q.t.State() == ib.Reset {
		return
	}
	for r := &l.run; ; l.transmit(now, q, r) {
		*r = pkt.Burst{}
		if !q.t.Acknowledge(r) {
			return
		}
	}
}

// fail moves a queue pair to ERR, with QP_FATAL, and reports whether it was in another state that allows that.
func (q *QP) fail(now mono.Time) bool {
	if q.dead || q.t.State() == ib.Err || q.t.State() == ib.Reset ||
		q.t.Modify(now, &errAttr, ib.AttrState) != nil {
		return false
	}
	q.Event(ib.EventQPFatal)
	q.more = q.send != nil
	q.schedule()
	return true
}

// publish makes used elements and then completions visible.
func (l *Lane) publish(now mono.Time) {
	if l.revoked {
		l.quiesce()
	}
	for _, q := range l.dirtyQPs {
		q.dirty = false
		if q.send != nil {
			q.send.Publish()
		}
		if q.recv != nil {
			q.recv.Publish()
		}
	}
	l.dirtyQPs = l.dirtyQPs[:0]
	// Clients return buffers without a kick: check at every opportunity.
	for _, c := range l.waitingCQs {
		c.touch()
	}
	l.waitingCQs = l.waitingCQs[:0]
	for _, c := range l.dirtyCQs {
		c.dirty = false
		if len(c.backlog) > 0 && c.drain() {
			l.waitingCQs = append(l.waitingCQs, c)
		}
		if c.ring != nil {
			c.ring.Publish(c.solicited)
			c.solicited = false
		}
	}
	l.dirtyCQs = l.dirtyCQs[:0]
}

// RetryCQs looks for buffers for completions that wait for one; drivers return buffers without a kick. It
// reports whether some still wait, or whether a queue failed, for which Run must be called.
func (l *Lane) RetryCQs() bool {
	l.publish(0)
	return len(l.waitingCQs) > 0 || l.failed.pending()
}

// Deadline returns when Run must be called next if nothing else happens.
func (l *Lane) Deadline() mono.Time {
	at := l.reportAt
	if l.Within.stage != nil {
		at = mono.Min(at, l.Within.stage.Deadline())
	}
	if len(l.timers) == 0 {
		return at
	}
	return mono.Min(l.timers[0].timer, at)
}

// arm keeps the queue pair's place among the timers. A deadline that became later is left in place and expires early:
// that is cheaper than moving it with every acknowledgement.
func (l *Lane) arm(q *QP) {
	d := q.t.Deadline()
	if q.pace.waiting {
		d = mono.Min(d, q.pace.nextAt)
	}
	if d == 0 || q.dead || q.heapIdx >= 0 && q.timer <= d {
		return
	}
	q.timer = d
	if q.heapIdx >= 0 {
		heap.Fix(&l.timers, q.heapIdx)
	} else {
		heap.Push(&l.timers, q)
	}
}

// forget drops a closed session from the lane's lists.
func (l *Lane) forget(s *Session) {
	for i, o := range l.sessions {
		if o == s {
			l.sessions = append(l.sessions[:i], l.sessions[i+1:]...)
			break
		}
	}
	keepQ := func(qs []*QP) []*QP {
		out := qs[:0]
		for _, q := range qs {
			if q.s != s {
				out = append(out, q)
			}
		}
		clear(qs[len(out):])
		return out
	}
	keepC := func(cs []*CQ) []*CQ {
		out := cs[:0]
		for _, c := range cs {
			if c.s != s {
				out = append(out, c)
			}
		}
		clear(cs[len(out):])
		return out
	}
	l.ready, l.handled, l.dirtyQPs = keepQ(l.ready), keepQ(l.handled), keepQ(l.dirtyQPs)
	l.failed.cqs, l.failed.qps = keepC(l.failed.cqs), keepQ(l.failed.qps)
	l.dirtyCQs, l.waitingCQs = keepC(l.dirtyCQs), keepC(l.waitingCQs)
	l.recount()
}

// Recover restores the lane after a memory fault unwound it in the middle of its work: every queue pair gets a turn and
// every queue is published. Copies that are pending stay so: they are system calls, which report a fault instead of
// raising it.
func (l *Lane) Recover() {
	l.ready, l.running, l.handled, l.dirtyQPs, l.dirtyCQs = l.ready[:0], l.running[:0], l.handled[:0], l.dirtyQPs[:0], l.dirtyCQs[:0]
	for _, u := range l.sched.users {
		for _, c := range u.classes {
			c.queue, c.head = c.queue[:0], 0
		}
	}
	l.sched.queued, l.sched.aside = 0, l.sched.aside[:0]
	l.recount()
	for _, s := range slices.Concat(l.sessions, l.orphans) {
		for _, q := range s.qps.m {
			q.active, q.dirty = false, false
			q.touch()
			if q.t == nil {
				continue
			}
			q.schedule()
			q.more = q.send != nil
			q.handled = true
			l.handled = append(l.handled, q)
		}
		for _, c := range s.cqs.m {
			c.dirty = false
			c.touch()
		}
	}
	if l.ownsEngine() {
		l.groups.engine.Recover()
	}
}

// timerHeap orders queue pairs by the time they must run again.
type timerHeap []*QP

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].timer < h[j].timer }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIdx, h[j].heapIdx = i, j
}

// Push implements heap.Interface.
func (h *timerHeap) Push(x any) {
	q := x.(*QP)
	q.heapIdx = len(*h)
	*h = append(*h, q)
}

// Pop implements heap.Interface.
func (h *timerHeap) Pop() any {
	old := *h
	q := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	q.heapIdx = -1
	return q
}

func (h *timerHeap) remove(q *QP) {
	if q.heapIdx >= 0 {
		heap.Remove(h, q.heapIdx)
	}
}
