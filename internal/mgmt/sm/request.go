// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"bytes"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// maxOutstanding bounds the outstanding requests: an octet of the transaction identifier is the index of their slot.
const maxOutstanding = 256

// patience is the number of rounds of repetitions to a node that answers other requests.
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
	// done handles the answer. It must not keep the request.
	done  answer
	sweep *sweep // nil: a request to another manager, of no sweep
	// What done needs.
	ref   topo.Ref
	block uint16
	nth   int  // number of M_Keys tried before
	stern bool // no extra repetitions: silence is an answer
	probe bool // is for the node behind ref, not for the node of ref

	slot       uint8
	gen        uint32
	tries, max int // repetitions so far, and at most
	first, due mono.Time
}

// answer handles the answer s to r, nil if there is none.
type answer func(now mono.Time, r *request, s *mad.SMP)

// requests are the requests of a manager: outstanding ones in slots, the others in a queue.
type requests struct {
	base        *base
	queue       []*request
	head        int
	slots       [maxOutstanding]*request
	outstanding int // outstanding: slots in use
	gen         uint32
	free        []*request
	in          mad.SMP // in Handle
	out         mad.SMP // in build
	// orders is the number of requests to other managers.
	orders int
	// dead are routes beyond which no node answers, in this sweep.
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

// busy reports whether requests are queued or outstanding.
func (q *requests) busy() bool { return q.outstanding > 0 || q.head < len(q.queue) }

// transmit writes the next request to d: a repetition that is due, or one from the queue.
func (q *requests) transmit(now mono.Time, d *mad.Datagram) bool {
	for i, seen := 0, 0; seen < q.outstanding && i < len(q.slots); i++ {
		r := q.slots[i]
		if r == nil {
			continue
		}
		seen++
		if r.due.Due(now) { // expire removed those without repetitions left
			r.tries++
			r.due = now.Add(q.base.cfg.Timeout)
			q.Resent++
			q.build(r, d)
			if r.probe {
				r.sweep.checkLink(r)
			}
			return true
		}
	}
	for q.outstanding < q.base.cfg.Outstanding && q.head < len(q.queue) {
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
		q.outstanding++
		q.Sent++
		q.build(r, d)
		return true
	}
	return false
}

// waits reports whether a request was repeated and is not answered yet.
func (q *requests) waits() bool {
	for i, seen := 0, 0; seen < q.outstanding && i < len(q.slots); i++ {
		if r := q.slots[i]; r != nil {
			if seen++; r.tries > 0 {
				return true
			}
		}
	}
	return false
}

func (r *request) tid(upper uint32) uint64 {
	return uint64(upper)<<32 | uint64(r.gen)<<8 | uint64(r.slot)
}

// build writes a request as a datagram.
func (q *requests) build(r *request, d *mad.Datagram) {
	s := &q.out
	*s = mad.SMP{Header: mad.Header{BaseVersion: mad.BaseVersion, MgmtClass: mad.ClassSubnDR,
		ClassVersion: mad.ClassVersion, Method: r.method,
		TransactionID: r.tid(q.base.cfg.TIDs), AttributeID: r.attr, AttributeModifier: r.mod}, MKey: r.mkey,
		Data:   r.data,
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

// answered matches an answer, from the LID slid, with its request. Hosts can guess transaction identifiers, so the
// answer also has to come by the route of the request.
func (q *requests) answered(now mono.Time, s *mad.SMP, slid ib.LID) {
	r := q.slots[uint8(s.TransactionID)]
	if r == nil || s.TransactionID != r.tid(q.base.cfg.TIDs) || s.AttributeID != r.attr ||
		s.AttributeModifier != r.mod || !r.isFrom(s, slid) {
		q.Stray++
		return
	}
	q.slots[r.slot] = nil
	q.outstanding--
	q.Answered++
	if r.sweep != nil && !r.probe {
		r.sweep.heardOf(r.ref.Node, now)
	}
	q.finish(now, r, s)
}

// isFrom reports whether an answer, from the LID slid, took the route of the request.
func (r *request) isFrom(s *mad.SMP, slid ib.LID) bool {
	if r.lid != 0 {
		return !s.Directed() && slid == r.lid
	}
	return s.Directed() && s.D && s.DrSLID == ib.LIDPermissive && int(s.HopCount) == len(r.path) &&
		bytes.Equal(s.InitialPath[1:1+len(r.path)], r.path)
}

// expire ends requests without repetitions left.
func (q *requests) expire(now mono.Time) {
	for i, seen := 0, 0; seen < q.outstanding && i < len(q.slots); i++ {
		r := q.slots[i]
		if r == nil {
			continue
		}
		if seen++; !r.due.Due(now) || r.tries < r.max {
			continue
		}
		// A node that has answered other requests is up: packets were dropped.
		if r.sweep != nil && !r.probe && !r.stern && r.sweep.heard(r.ref.Node) >= r.first &&
			r.max < patience*(q.base.cfg.Retries+1) {
			r.max += q.base.cfg.Retries + 1
			r.first = now
			continue
		}
		q.slots[i] = nil
		q.outstanding--
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

// isDead reports whether the route of r leads through a node that does not answer.
func (q *requests) isDead(r *request) bool {
	for _, d := range q.dead {
		if r.lid == 0 && len(d) > 0 && bytes.HasPrefix(r.path, d) {
			return true
		}
	}
	return false
}

// abandon removes all requests. Their answers count as Stray.
func (q *requests) abandon() {
	for i := range q.slots {
		q.slots[i] = nil
	}
	clear(q.queue)
	q.queue, q.head, q.outstanding, q.dead, q.orders = q.queue[:0], 0, 0, nil, 0
}

// cancelProbe removes and returns the outstanding probe behind a port, nil if there is none.
func (q *requests) cancelProbe(ref topo.Ref) *request {
	for i, seen := 0, 0; seen < q.outstanding && i < len(q.slots); i++ {
		r := q.slots[i]
		if r == nil {
			continue
		}
		if seen++; r.probe && r.ref == ref {
			q.slots[i] = nil
			q.outstanding--
			q.Unanswered++
			return r
		}
	}
	return nil
}

// deadline returns when the next repetition is due.
func (q *requests) deadline() (t mono.Time) {
	for i, seen := 0, 0; seen < q.outstanding && i < len(q.slots); i++ {
		if r := q.slots[i]; r != nil {
			seen++
			t = mono.Min(t, r.due)
		}
	}
	return t
}
