// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"slices"
	"sync/atomic"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca/replicate"
)

// Multicast is the multicast part of a node's receive pipeline: the replication
// engine, which lane 0 owns, and the receive queues by which its descriptors
// reach the lanes.
type Multicast struct {
	all    *Functions
	engine *replicate.Engine
	lanes  []*Lane
	queues []receiveQueue // by lane
	wake   func(lane int)
	high   uint64
}

// MulticastCounters are those of the engine, the payload store and the receive queues.
type MulticastCounters struct {
	replicate.Counters
	Payloads  uint64 // in the store now
	HighQueue uint64 // most descriptors in a lane's receive queue at a time
}

const (
	receiveSlots = 1024 // of a lane's receive queue
	// copyTurn bounds the copies that the engine injects, and that a lane makes, per turn: what a unicast packet may
	// have to wait for. Each time that none arrived for quietTurns turns with copies the bound doubles, up to
	// copyTurnMost: calls that place many copies at once cost less each.
	copyTurn     = 4
	quietTurns   = 16
	maxDoublings = 4
	copyTurnMost = copyTurn << maxDoublings
)

// receiveQueue carries descriptors from lane 0 to a lane: a ring with a single
// writer and a single reader. The reader sees what was published.
type receiveQueue struct {
	ring       [receiveSlots]replicate.Descriptor
	head, tail atomic.Uint32
	next       uint32 // the writer's: where the next descriptor goes
}

// publish makes visible to the lane what was injected, and reports whether that is any.
func (q *receiveQueue) publish() bool {
	if q.next == q.tail.Load() {
		return false
	}
	q.tail.Store(q.next)
	return true
}

// NewMulticast returns the pipeline for so many lanes; SetMulticast makes each a part of it. wake is called on lane 0
// when descriptors wait for another lane; it may be nil where there is one lane only.
func NewMulticast(all *Functions, lanes int, cfg replicate.Config, wake func(lane int)) *Multicast {
	m := &Multicast{all: all, lanes: make([]*Lane, lanes), queues: make([]receiveQueue, lanes), wake: wake}
	m.engine = replicate.New(cfg, injector{m})
	return m
}

// SetMulticast makes the lane a part of m. It is called before any lane runs.
func (l *Lane) SetMulticast(m *Multicast) {
	l.groups, m.lanes[l.ID] = m, l
	l.copying = make([]replicate.Descriptor, 0, copyTurnMost)
}

// Counters is called on lane 0.
func (m *Multicast) Counters() MulticastCounters {
	return MulticastCounters{m.engine.Counters, uint64(m.engine.Payloads()), m.high}
}

// Payloads returns how many payloads the store holds. It is safe for concurrent
// use.
func (m *Multicast) Payloads() int { return m.engine.Payloads() }

// Close releases every payload. It is called when all lanes have ended.
func (m *Multicast) Close() {
	for i, l := range m.lanes {
		if l == nil {
			continue
		}
		l.copied = len(l.copying)
		l.releaseCopied()
		q := &m.queues[i]
		for head := q.head.Load(); head != q.next; head++ {
			q.ring[head%receiveSlots].Release()
			q.head.Store(head + 1)
		}
	}
	m.engine.Close()
}

// injector is the way of descriptors into the lanes.
type injector struct{ m *Multicast }

// Inject implements replicate.Pipeline.
func (i injector) Inject(d replicate.Descriptor) bool {
	q := &i.m.queues[d.Dest.Lane]
	n := q.next - q.head.Load()
	if n == receiveSlots {
		return false
	}
	q.ring[q.next%receiveSlots] = d
	q.next++
	i.m.high = max(i.m.high, uint64(n+1))
	return true
}

// ownsEngine reports whether the lane is that of the engine.
func (l *Lane) ownsEngine() bool { return l.groups != nil && l.groups.lanes[0] == l }

// Replicating reports whether copies wait for the lane.
func (l *Lane) Replicating() bool {
	if l.groups == nil {
		return false
	}
	q := &l.groups.queues[l.ID]
	return len(l.copying) > 0 || q.head.Load() != q.tail.Load() || l.ownsEngine() && l.groups.engine.Pending()
}

// groupPath reports whether a path leads to a multicast group.
func groupPath(p *ib.Path) bool {
	if p.Native() {
		return p.DLID.IsMulticast()
	}
	return p.DGID.IsMulticast()
}

// sendMulticast sends a multicast packet of q, which its port allows: to the network, and to the engine for the members
// on this node. q is no exception: what a queue pair sends returns to itself if it is a member.
func (l *Lane) sendMulticast(now mono.Time, q *QP, r *pkt.Burst) {
	native := r.Path.Native()
	link := l.link
	if native {
		link = l.fabric
	}
	if link != nil {
		l.Stats.WireBursts++
		if link.Send(now, r, l.batch) == mem.SourceFault {
			q.t.SourceFault(now, r)
			return
		}
	}
	if l.groups == nil {
		return
	}
	l.Stats.LocalBursts++
	o := &l.outbound
	*o, l.outboundPath = *r, *r.Path
	o.Path, o.IPv4 = &l.outboundPath, !native && r.Path.DGID.IsIPv4()
	o.Path.Local, o.Path.Function = true, q.s.a.num
	l.Within.transmit(now, q, o)
	if o.Fault {
		q.t.SourceFault(now, r)
	}
}

// receiveMulticast passes a multicast packet to the engine: one of this node's, which has a local path, or one from a
// link.
func (l *Lane) receiveMulticast(r *pkt.Burst) {
	p, from := r.Path, uint16(replicate.NoFunction)
	switch a := l.all.At(p.Function); {
	case !l.ownsEngine() || r.Opcode.Service() != ib.ServiceUD || !r.Opcode.Info().Valid || !groupPath(p):
		l.Stats.DropMulticast++
		return
	case p.Native():
		// IBA volume 1, 7.7.8 and 9.8.3: a group is named by LID and GID both.
		if !p.Global || p.DGID[0] != 0xff || !p.SLID.IsUnicast() {
			l.Stats.DropMulticast++
			return
		}
		if p.Local {
			from = p.Function
		}
	case a == nil:
		l.Stats.DropNoFunction++
		return
	case !p.Local && a.Port().own(p.SGID):
		l.Stats.DropOwnSource++
		return
	}
	if l.groups.engine.Receive(r, from, l.batch) == mem.SourceFault {
		r.Fault = true
	}
}

// replicate runs the engine, if it is this lane's, and makes the copies that wait in the lane's receive queue: few of
// them, after everything else. It reports whether more wait.
func (l *Lane) replicate(now mono.Time) (more bool) {
	m := l.groups
	if m == nil {
		return false
	}
	turn := copyTurn << min(l.turnsWithCopies/quietTurns, maxDoublings)
	if l.ownsEngine() && m.engine.Pending() {
		m.engine.Run(&m.all.Groups().Groups, turn)
		for i := range m.queues {
			if m.queues[i].publish() && i != l.ID {
				m.wake(i)
			}
		}
	}
	if len(l.copying) == 0 {
		q := &m.queues[l.ID]
		head := q.head.Load()
		for n := min(q.tail.Load()-head, uint32(turn)); n > 0; n-- {
			l.copying = append(l.copying, q.ring[head%receiveSlots])
			head++
		}
		if len(l.copying) == 0 {
			return l.ownsEngine() && m.engine.Pending()
		}
		q.head.Store(head)
	}
	l.turnsWithCopies++
	for l.copied < len(l.copying) {
		l.deliverCopies(now)
	}
	l.commit(now)
	l.releaseCopied()
	l.publish(now)
	return l.Replicating()
}

// deliverCopies delivers the next copies, those in a row for one queue pair. The queue pair handles each as it
// handles a unicast packet; the lookup is done once.
func (l *Lane) deliverCopies(now mono.Time) {
	dest := l.copying[l.copied].Dest
	a := l.all.At(dest.Function)
	var p *Port
	var q *QP
	if a != nil {
		p = a.Port()
		q = l.memberAt(a, dest.QPN)
	}
	native := p != nil && p.native()
	up := p != nil && p.State == ib.PortActive
	var key group
	for l.copied < len(l.copying) && l.copying[l.copied].Dest == dest {
		d := &l.copying[l.copied]
		// Counted as made before it is: a memory fault may unwind this.
		l.copied++
		r := &d.Run
		switch {
		case a == nil:
			l.Stats.DropNoFunction++
			continue
		case native && d.First:
			if !l.portReceives(a, p, up, r) {
				continue
			}
		case !up:
			l.Stats.DropPort++
			continue
		}
		if g := (group{r.Path.DGID, r.Path.DLID}); q != nil && g != key {
			if !slices.Contains(q.groups, g) {
				l.Stats.DropNotMember++
				continue
			}
			key = g
		}
		if q == nil {
			l.Stats.DropNotMember++
			continue
		}
		if q.cfg.BlockSelf && r.Path.Local && r.Path.Function == dest.Function && r.SrcQPN == q.num {
			l.Stats.BlockedSelf++
			continue
		}
		l.Stats.Copies++
		l.carried += uint64(r.Data.Len)
		l.handleBurst(now, q, r)
	}
}

// memberAt returns the queue pair of the lane that has a number of function a,
// nil where there is none.
func (l *Lane) memberAt(a *Adapter, n ib.QPN) *QP {
	s := a.Session(n)
	slot := int(n & slotMask)
	if s == nil || s.lane != l || slot >= len(s.slots) {
		return nil
	}
	return s.slots[slot]
}

// releaseCopied releases the payloads that were copied: the batch is flushed. What was not copied because of a fault
// remains.
func (l *Lane) releaseCopied() {
	for i := range l.copying[:l.copied] {
		l.copying[i].Release()
	}
	l.copying = l.copying[:copy(l.copying, l.copying[l.copied:])]
	l.copied = 0
}
