// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// failures are the queues of a lane that failed since the last commit. A queue may fail in the midst of the work of a
// queue pair, which must end before the queue pair can be in ERR.
type failures struct {
	cqs []*CQ
	qps []*QP // and shared receive queues: their clients broke a ring
}

// pending reports whether failures wait for apply.
func (f *failures) pending() bool { return len(f.cqs)+len(f.qps) > 0 }

// apply makes failures take effect: events, and ERR of the queue pairs that use the queues.
func (f *failures) apply(now mono.Time) {
	for len(f.cqs) > 0 {
		c := f.cqs[0]
		f.cqs = f.cqs[1:]
		if other, err := c.s.cqs.get(c.handle); err != nil || other != c {
			continue // destroyed meanwhile
		}
		c.s.events.Event(ib.EventCQErr, c.handle)
		for q := range c.users {
			q.fail(now)
		}
	}
	for len(f.qps) > 0 {
		q := f.qps[0]
		f.qps = f.qps[1:]
		switch {
		case q.dead:
		case q.t == nil:
			q.failUsers(now)
		case !q.fail(now):
			q.Event(ib.EventQPFatal)
		}
	}
}

// failUsers raises SRQ_ERR for a shared receive queue, and moves its queue pairs to ERR.
func (q *QP) failUsers(now mono.Time) {
	q.s.events.Event(ib.EventSRQErr, q.slot)
	for _, user := range q.s.slots {
		if user != nil && user.srq == q {
			user.fail(now)
		}
	}
}
