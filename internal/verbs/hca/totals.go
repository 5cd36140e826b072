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

// addQP adds the counters of a queue pair.
func (c *QPCounters) addQP(k *transport.Counters) {
	c.Add(&QPCounters{SentPackets: k.SentPackets, RcvdPackets: k.RcvdPackets, SentOctets: k.SentBytes,
		RcvdOctets: k.RcvdBytes, DuplicateRequest: k.DuplicateRequest, OutOfSequence: k.OutOfSequence,
		RNRNakSent: k.RNRNakSent, RNRNakRcvd: k.RNRNakRcvd, SeqNakRcvd: k.SeqNakRcvd,
		RetryExceeded: k.RetryExceeded, RNRRetryExceeded: k.RNRRetryExceeded})
}

// FunctionCounters are what a lane counted for one function: its port, if that is an InfiniBand port, and its queue
// pairs.
type FunctionCounters struct {
	Port PortCounters
	QPs  QPCounters
}

// Add adds o to c.
func (c *FunctionCounters) Add(o *FunctionCounters) {
	c.Port.Add(&o.Port)
	c.QPs.Add(&o.QPs)
}

// AppendCounters adds what this lane has counted to list, which is indexed by the number of the function, and returns
// the list, which grows to the functions that the lane knows. It takes time for each queue pair. It is called on the
// lane.
func (l *Lane) AppendCounters(list []FunctionCounters) []FunctionCounters {
	at := func(n int) *FunctionCounters {
		list = grow(list, n)
		return &list[n]
	}
	for n := range l.counted.ports {
		at(n).Port.Add(&l.counted.ports[n])
	}
	for n := range l.counted.ended {
		at(n).QPs.Add(&l.counted.ended[n])
	}
	for _, sessions := range [][]*Session{l.sessions, l.orphans} {
		for _, s := range sessions {
			for _, q := range s.qps.m {
				if q.t != nil && !q.dead {
					at(int(s.a.num)).QPs.addQP(q.t.Counters())
				}
			}
		}
	}
	return list
}

// tally has what a lane counted, by function.
type tally struct {
	ports []PortCounters
	ended []QPCounters // of queue pairs that ended
}

// keepCounters adds the counters of a queue pair that ends to those of its function.
func (t *tally) keepCounters(q *QP) {
	if q.t == nil || q.dead {
		return
	}
	n := int(q.s.a.num)
	t.ended = grow(t.ended, n)
	t.ended[n].addQP(q.t.Counters())
}

// grow returns list with an element n.
func grow[T any](list []T, n int) []T {
	if more := n + 1 - len(list); more > 0 {
		list = append(list, make([]T, more)...)
	}
	return list
}
