// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"slices"
	"sync/atomic"

	"weft/internal/hca/replicate"
	"weft/internal/ib"
	"weft/internal/mem"
	"weft/internal/mono"
	"weft/internal/pkt"
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
	told   []bool // by lane: has got descriptors that it may sleep through
	high   uint64
}

// MulticastCounters are those of the engine, and of what it leads to.
type MulticastCounters struct {
	replicate.Counters
	Payloads  uint64 // in the store now
	HighQueue uint64 // most descriptors in a lane's receive queue at a time
}

const (
	receiveSlots = 1024 // of a lane's receive queue
	// copyTurn bounds the copies that the engine injects, and that a lane
	// makes, between two looks at everything else: what a unicast packet may
	// have to wait for. Where none came for quietTurns looks the bound is
	// copyTurnMost: calls that place many copies at once cost less each.
	copyTurn     = 4
	copyTurnMost = 64
	quietTurns   = 16
)

// receiveQueue carries descriptors from lane 0 to a lane: a ring with a single
// writer and a single reader.
type receiveQueue struct {
	ring       [receiveSlots]replicate.Descriptor
	head, tail atomic.Uint32
}

// NewMulticast returns the pipeline for so many lanes, each of which is given
// it with SetMulticast. wake is called on lane 0 to tell another lane that
// descriptors wait for it; it may be nil where there is one lane only.
func NewMulticast(all *Functions, lanes int, cfg replicate.Config, wake func(lane int)) *Multicast {
	m := &Multicast{all: all, lanes: make([]*Lane, lanes), queues: make([]receiveQueue, lanes), wake: wake, told: make([]bool, lanes)}
	m.engine = replicate.New(cfg, injector{m})
	return m
}

// SetMulticast makes the lane a part of m. It is called before any lane runs.
func (l *Lane) SetMulticast(m *Multicast) {
	l.groups, m.lanes[l.ID] = m, l
	l.reading = make([]replicate.Descriptor, 0, copyTurnMost)
}

// Counters is called on lane 0.
func (m *Multicast) Counters() MulticastCounters {
	return MulticastCounters{m.engine.Counters, uint64(m.engine.Payloads()), m.high}
}

// Payloads returns how many payloads the store holds. It is safe for concurrent
// use.
func (m *Multicast) Payloads() int { return m.engine.Payloads() }

// Close gives back every payload. It is called when all lanes have ended.
func (m *Multicast) Close() {
	for i, l := range m.lanes {
		if l == nil {
			continue
		}
		l.readOut()
		q := &m.queues[i]
		for head := q.head.Load(); head != q.tail.Load(); head++ {
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
	tail := q.tail.Load()
	n := tail - q.head.Load()
	if n == receiveSlots {
		return false
	}
	q.ring[tail%receiveSlots] = d
	q.tail.Store(tail + 1)
	i.m.high = max(i.m.high, uint64(n+1))
	i.m.told[d.Dest.Lane] = true
	return true
}

// owns reports whether the lane is that of the engine.
func (l *Lane) owns() bool { return l.groups != nil && l.groups.lanes[0] == l }

// Replicating reports whether copies wait for the lane.
func (l *Lane) Replicating() bool {
	if l.groups == nil {
		return false
	}
	q := &l.groups.queues[l.ID]
	return q.head.Load() != q.tail.Load() || l.owns() && l.groups.engine.Pending()
}

// groupPath reports whether a path leads to a multicast group.
func groupPath(p *ib.Path) bool {
	if p.Native() {
		return p.DLID.IsMulticast()
	}
	return p.DGID.IsMulticast()
}

// spread sends a multicast packet of q, which its port lets go: to the network,
// and to the engine for the members on this node. Those are not told apart: what
// a queue pair sends comes back to itself if it is a member.
func (l *Lane) spread(now mono.Time, q *QP, r *pkt.Run) {
	native := r.Path.Native()
	link := l.link
	if native {
		link = l.fabric
	}
	if link != nil {
		l.Stats.WireRuns++
		if link.Send(now, r, l.batch) == mem.SourceFault {
			q.t.SourceFault(now, r)
			return
		}
	}
	if l.groups == nil {
		return
	}
	l.Stats.LocalRuns++
	o := &l.outbound
	*o, l.outboundPath = *r, *r.Path
	o.Path, o.IPv4 = &l.outboundPath, !native && r.Path.DGID.IsIPv4()
	o.Path.Local, o.Path.Function = true, q.s.a.num
	if l.owns() {
		l.inspect(o)
	} else {
		l.forward(l.groups.lanes[0], o, nil)
	}
	if o.Fault {
		q.t.SourceFault(now, r)
	}
}

// inspect hands a multicast packet to the engine: one of this node's, which has
// a local path, or one from a link.
func (l *Lane) inspect(r *pkt.Run) {
	p, from := r.Path, uint16(replicate.NoFunction)
	switch a := l.all.At(p.Function); {
	case !l.owns() || r.Opcode.Service() != ib.ServiceUD || !r.Opcode.Info().Valid || !groupPath(p):
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

// replicate lets the engine go on, if it is this lane's, and makes the copies
// that wait in the lane's receive queue: few of them, after everything else. It
// reports whether more wait.
func (l *Lane) replicate(now mono.Time) (more bool) {
	m := l.groups
	if m == nil {
		return false
	}
	turn := copyTurn
	if l.quiet++; l.quiet > quietTurns {
		turn = copyTurnMost
	}
	if l.owns() && m.engine.Pending() {
		m.engine.Run(&m.all.Groups().Groups, turn)
		for i, told := range m.told {
			if told {
				if m.told[i] = false; i != l.ID {
					m.wake(i)
				}
			}
		}
	}
	q := &m.queues[l.ID]
	head, tail := q.head.Load(), q.tail.Load()
	if head == tail {
		return l.owns() && m.engine.Pending()
	}
	for range turn {
		if head == tail {
			break
		}
		// Counted as being read before it is: a memory fault may unwind this.
		l.reading = append(l.reading, q.ring[head%receiveSlots])
		head++
		q.head.Store(head)
		l.copy(now, &l.reading[len(l.reading)-1])
	}
	l.settle(now)
	l.readOut()
	l.publish(now)
	return l.Replicating()
}

// copy hands one copy to its queue pair, which takes it as it takes a unicast
// packet.
func (l *Lane) copy(now mono.Time, d *replicate.Descriptor) {
	a := l.all.At(d.Dest.Function)
	if a == nil {
		l.Stats.DropNoFunction++
		return
	}
	r := &l.run
	*r = pkt.Run{Headers: d.Headers, Count: 1, MTU: uint32(len(d.Payload())), Path: &d.Path, IPv4: d.IPv4, Data: mem.BytesPayload(d.Payload())}
	r.DestQPN = d.Dest.QPN
	p := a.Port()
	up := p.State == ib.PortActive
	if p.native() && d.First {
		if !l.arrive(a, p, up, r) {
			return
		}
	} else if !up {
		l.Stats.DropPort++
		return
	}
	s := a.Session(r.DestQPN)
	if s == nil || s.lane != l {
		l.Stats.DropNotMember++
		return
	}
	slot := int(r.DestQPN & slotMask)
	if slot >= len(s.slots) {
		l.Stats.DropNotMember++
		return
	}
	q := s.slots[slot]
	if q == nil || !slices.Contains(q.groups, group{d.Path.DGID, d.Path.DLID}) {
		l.Stats.DropNotMember++
		return
	}
	if q.cfg.BlockSelf && d.Path.Local && d.Path.Function == d.Dest.Function && d.Headers.SrcQPN == q.num {
		l.Stats.BlockedSelf++
		return
	}
	l.Stats.Copies++
	l.carried += uint64(r.Data.Len)
	l.hand(now, q, r)
}

// readOut releases the payloads that were copied: the batch is flushed.
func (l *Lane) readOut() {
	for i := range l.reading {
		l.reading[i].Release()
	}
	l.reading = l.reading[:0]
}
