// SPDX-License-Identifier: Apache-2.0

package hca

import "weft/internal/verbs/transport"

// QPCounters are sums of what the queue pairs of a function counted, those that were destroyed included. Octets are
// those of payload.
type QPCounters struct {
	SentPackets, RcvdPackets, SentOctets, RcvdOctets uint64
	DuplicateRequest, OutOfSequence                  uint64
	RNRNakSent, RNRNakRcvd, SeqNakRcvd               uint64
	RetryExceeded, RNRRetryExceeded                  uint64
}

// Add adds o to c.
func (c *QPCounters) Add(o *QPCounters) {
	c.SentPackets += o.SentPackets
	c.RcvdPackets += o.RcvdPackets
	c.SentOctets += o.SentOctets
	c.RcvdOctets += o.RcvdOctets
	c.DuplicateRequest += o.DuplicateRequest
	c.OutOfSequence += o.OutOfSequence
	c.RNRNakSent += o.RNRNakSent
	c.RNRNakRcvd += o.RNRNakRcvd
	c.SeqNakRcvd += o.SeqNakRcvd
	c.RetryExceeded += o.RetryExceeded
	c.RNRRetryExceeded += o.RNRRetryExceeded
}

// Sub subtracts o from c.
func (c *QPCounters) Sub(o *QPCounters) {
	c.SentPackets -= o.SentPackets
	c.RcvdPackets -= o.RcvdPackets
	c.SentOctets -= o.SentOctets
	c.RcvdOctets -= o.RcvdOctets
	c.DuplicateRequest -= o.DuplicateRequest
	c.OutOfSequence -= o.OutOfSequence
	c.RNRNakSent -= o.RNRNakSent
	c.RNRNakRcvd -= o.RNRNakRcvd
	c.SeqNakRcvd -= o.SeqNakRcvd
	c.RetryExceeded -= o.RetryExceeded
	c.RNRRetryExceeded -= o.RNRRetryExceeded
}

// countersOf returns those counters of a queue pair that are summed.
func countersOf(k *transport.Counters) QPCounters {
	return QPCounters{SentPackets: k.SentPackets, RcvdPackets: k.RcvdPackets, SentOctets: k.SentBytes,
		RcvdOctets: k.RcvdBytes, DuplicateRequest: k.DuplicateRequest, OutOfSequence: k.OutOfSequence,
		RNRNakSent: k.RNRNakSent, RNRNakRcvd: k.RNRNakRcvd, SeqNakRcvd: k.SeqNakRcvd,
		RetryExceeded: k.RetryExceeded, RNRRetryExceeded: k.RNRRetryExceeded}
}

// FunctionCounters are what a lane counted for one function: its port, if that is an InfiniBand port, and its queue
// pairs.
type FunctionCounters struct {
	Port PortCounters
	QPs  QPCounters
}

// Sweep is the progress of AppendCounters of one lane. The zero value is its begin.
type Sweep struct {
	begun    bool
	sessions []*Session // that are left
	slot     int        // of the first, where the next step begins
}

// sweepStep is how many slots of queue pairs a step visits: about 10 µs (BenchmarkAppendCounters).
const sweepStep = 512

// AppendCounters adds what this lane has counted to list, which is indexed by the number of the function, and returns
// the list, which grows to the functions that the lane knows. It visits every queue pair, which would hold up the lane
// if there are many. So each call is a step, and only the one that returns true adds to list. It is called on the lane.
func (l *Lane) AppendCounters(w *Sweep, list []FunctionCounters) (sum []FunctionCounters, done bool) {
	if !w.begun {
		w.begun = true
		w.sessions = append(append(w.sessions, l.sessions...), l.orphans...)
	}
	for left := sweepStep; len(w.sessions) > 0; w.sessions, w.slot = w.sessions[1:], 0 {
		slots := w.sessions[0].slots
		for ; w.slot < len(slots); w.slot++ {
			if left--; left < 0 {
				return list, false
			}
			if q := slots[w.slot]; q != nil {
				l.counted.keepCounters(q)
			}
		}
	}
	for n := range l.counted.ports {
		list = grow(list, n)
		list[n].Port.Add(&l.counted.ports[n])
	}
	for n := range l.counted.qps {
		list = grow(list, n)
		list[n].QPs.Add(&l.counted.qps[n])
	}
	return list, true
}

// tally has what a lane counted, by function.
type tally struct {
	ports []PortCounters
	qps   []QPCounters // up to the last keepCounters of each queue pair
}

// keepCounters adds what a queue pair counted since the last call to the counters of its function.
func (t *tally) keepCounters(q *QP) {
	if q.t == nil || q.dead {
		return
	}
	now := countersOf(q.t.Counters())
	more := now
	more.Sub(&q.kept)
	q.kept = now
	n := int(q.s.a.num)
	t.qps = grow(t.qps, n)
	t.qps[n].Add(&more)
}

// grow returns list with an element n.
func grow[T any](list []T, n int) []T {
	if more := n + 1 - len(list); more > 0 {
		list = append(list, make([]T, more)...)
	}
	return list
}
