// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"bytes"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// maxOutstanding bounds the requests on their way: an octet of the transaction
// identifier names them.
const maxOutstanding = 256

// patience is how many rounds of repetitions a node gets that answers other
// requests.
const patience = 8

// request is a Get or Set that waits to be sent or answered.
type request struct {
	method mad.Method
	attr   mad.AttributeID
	mod    uint32
	mkey   uint64
	path   []uint8 // of a directed route
	lid    ib.LID  // routed by LID instead, if not 0
	data   [mad.SMPDataLen]byte
	// done gets the answer, or nil if there is none. The request may not be
	// kept.
	done  answer
	sweep *sweep // nil: a request to another manager, of no sweep
	// What done needs.
	ref   topo.Ref
	block uint16
	nth   int  // how many M_Keys were tried before
	stern bool // no patience: silence is an answer
	probe bool // goes to whoever is behind ref, not to ref's node

	slot       uint8
	gen        uint32
	tries, max int // repetitions so far, and at most
	first, due mono.Time
}

// answer handles the answer s to r, nil if there is none.
type answer func(now mono.Time, r *request, s *mad.SMP)

// requests are those of a manager: some on their way, the others in a queue.
type requests struct {
	base  *base
	queue []*request
	head  int
	slots [maxOutstanding]*request
	flown int // slots in use
	gen   uint32
	free  []*request
	in    mad.SMP // being handled
	out   mad.SMP // being sent
	// orders are the requests to other managers among them.
	orders int
	// dead are routes beyond which nobody answers, in this sweep.
	dead [][]uint8

	// Counters.
	Sent, Resent, Answered, Unanswered, Drops, Stray uint64
}

// add queues a request; the caller fills in the rest of what it returns.
func (q *requests) add(method mad.Method, attr mad.AttributeID, mod uint32, path []uint8, done answer) *request {
	var r *request
	if n := len(q.free); n > 0 {
		r, q.free = q.free[n-1], q.free[:n-1]
	} else {
		r = new(request)
	}
	*r = request{method: method, attr: attr, mod: mod, path: path, ref: topo.None, done: done, max: q.base.cfg.Retries}
	q.queue = append(q.queue, r)
	return r
}

// busy reports whether requests are waiting or on their way.
func (q *requests) busy() bool { return q.flown > 0 || q.head < len(q.queue) }

// transmit puts the next request into d: one to be repeated, or a new one.
func (q *requests) transmit(now mono.Time, d *mad.Datagram) bool {
	for i, seen := 0, 0; seen < q.flown && i < len(q.slots); i++ {
		r := q.slots[i]
		if r == nil {
			continue
		}
		seen++
		if r.due.Due(now) { // expire took those that were tried often enough
			r.tries++
			r.due = now.Add(q.base.cfg.Timeout)
			q.Resent++
			q.build(r, d)
			if r.probe {
				r.sweep.askLink(r)
			}
			return true
		}
	}
	for q.flown < q.base.cfg.Outstanding && q.head < len(q.queue) {
		r := q.queue[q.head]
		q.queue[q.head] = nil
		if q.head++; q.head == len(q.queue) {
			q.queue, q.head = q.queue[:0], 0
		}
		if q.isDead(r) || r.sweep != nil && r.sweep.barred(r) {
			q.finish(now, r, nil)
			continue
		}
		for q.slots[r.slot] != nil {
			r.slot++
		}
		q.gen = (q.gen + 1) & 0xffffff
		r.gen, r.first, r.due = q.gen, now, now.Add(q.base.cfg.Timeout)
		q.slots[r.slot] = r
		q.flown++
		q.Sent++
		q.build(r, d)
		return true
	}
	return false
}

func (r *request) tid(upper uint32) uint64 {
	return uint64(upper)<<32 | uint64(r.gen)<<8 | uint64(r.slot)
}

// build writes a request as a datagram.
func (q *requests) build(r *request, d *mad.Datagram) {
	s := &q.out
	*s = mad.SMP{Header: mad.Header{BaseVersion: mad.BaseVersion, MgmtClass: mad.ClassSubnDR, ClassVersion: mad.ClassVersion, Method: r.method,
		TransactionID: r.tid(q.base.cfg.TIDs), AttributeID: r.attr, AttributeModifier: r.mod}, MKey: r.mkey, Data: r.data,
		DrSLID: ib.LIDPermissive, DrDLID: ib.LIDPermissive}
	*d = mad.Datagram{SLID: ib.LIDPermissive, DLID: ib.LIDPermissive, PKey: ib.DefaultPKey}
	if r.lid != 0 {
		s.MgmtClass = mad.ClassSubnLID
		d.SLID, d.DLID = q.base.selfLID, r.lid
	} else {
		s.HopCount = uint8(len(r.path))
		copy(s.InitialPath[1:], r.path)
	}
	s.Append(d.Data[:0])
}

// answered finds the request that s answers.
func (q *requests) answered(now mono.Time, s *mad.SMP) {
	r := q.slots[uint8(s.TransactionID)]
	if r == nil || s.TransactionID != r.tid(q.base.cfg.TIDs) || s.AttributeID != r.attr || s.AttributeModifier != r.mod ||
		s.Directed() != (r.lid == 0) || s.Directed() && (!s.D || int(s.HopCount) != len(r.path)) {
		q.Stray++
		return
	}
	q.slots[r.slot] = nil
	q.flown--
	q.Answered++
	if r.sweep != nil && !r.probe {
		r.sweep.heardOf(r.ref.Node, now)
	}
	q.finish(now, r, s)
}

// expire gives up requests that were repeated often enough.
func (q *requests) expire(now mono.Time) {
	for i, seen := 0, 0; seen < q.flown && i < len(q.slots); i++ {
		r := q.slots[i]
		if r == nil {
			continue
		}
		if seen++; !r.due.Due(now) || r.tries < r.max {
			continue
		}
		// A node that answered others meanwhile is there: packets were lost.
		if r.sweep != nil && !r.probe && !r.stern && r.sweep.heard(r.ref.Node) >= r.first && r.max < patience*(q.base.cfg.Retries+1) {
			r.max += q.base.cfg.Retries + 1
			r.first = now
			continue
		}
		q.slots[i] = nil
		q.flown--
		seen--
		q.Unanswered++
		if r.lid == 0 && r.sweep != nil {
			q.dead = append(q.dead, r.path)
		}
		q.finish(now, r, nil)
	}
}

func (q *requests) finish(now mono.Time, r *request, s *mad.SMP) {
	if r.sweep == nil {
		q.orders--
	}
	r.done(now, r, s)
	r.path, r.done, r.sweep = nil, nil, nil
	q.free = append(q.free, r)
}

// isDead reports whether r would travel through a node that does not answer.
func (q *requests) isDead(r *request) bool {
	for _, d := range q.dead {
		if r.lid == 0 && len(d) > 0 && bytes.HasPrefix(r.path, d) {
			return true
		}
	}
	return false
}

// abandon forgets all requests: their answers will be strays.
func (q *requests) abandon() {
	for i := range q.slots {
		q.slots[i] = nil
	}
	clear(q.queue)
	q.queue, q.head, q.flown, q.dead, q.orders = q.queue[:0], 0, 0, nil, 0
}

// cancelProbe takes back the probe of who is behind a port, nil if none is on
// its way.
func (q *requests) cancelProbe(ref topo.Ref) *request {
	for i, seen := 0, 0; seen < q.flown && i < len(q.slots); i++ {
		r := q.slots[i]
		if r == nil {
			continue
		}
		if seen++; r.probe && r.ref == ref {
			q.slots[i] = nil
			q.flown--
			q.Unanswered++
			return r
		}
	}
	return nil
}

// deadline is when the oldest request is due.
func (q *requests) deadline() (t mono.Time) {
	for i, seen := 0, 0; seen < q.flown && i < len(q.slots); i++ {
		if r := q.slots[i]; r != nil {
			seen++
			t = mono.Min(t, r.due)
		}
	}
	return t
}
