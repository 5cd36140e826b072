// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"

	"weft/internal/proto/ib"
)

// check returns what is wrong with the queue pair, or nil. Tests call it; with
// -tags invariants every entry point does and panics.
func (q *QP) check() error {
	s, p := &q.req, &q.rsp
	head, ack, tx, fresh, tail := uint32(0), s.ack-s.head, s.tx-s.head, s.fresh-s.head, s.tail-s.head
	flight, sent := dist(s.maxPSN, s.una), dist(s.txPSN, s.una)
	switch {
	case head > ack || ack > tx || tx > fresh || fresh > tail || tail > uint32(len(s.sq)):
		return fmt.Errorf("send queue indices: ack %d tx %d fresh %d tail %d of %d", ack, tx, fresh, tail, len(s.sq))
	case flight > maxOutstanding || sent > flight:
		return fmt.Errorf("sequence numbers: una %d next %d highest %d", s.una, s.txPSN, s.maxPSN)
	case s.timers.rnrAt != 0 && !s.stalled:
		return fmt.Errorf("sending while the RNR timer runs")
	case s.timers.rnrAt != 0 && s.timers.ackAt != 0:
		return fmt.Errorf("the ACK timer runs beside the RNR timer")
	case s.window.mode != windowOff && s.window.size < q.mtu:
		return fmt.Errorf("window of %d bytes", s.window.size)
	case q.cfg.Type == ib.RC && q.attr.Path != nil && q.orphan == nil && s.window.mode != windowClosing &&
		(s.window.mode == windowOff) != (q.attr.Path.Local && !s.lossy):
		return fmt.Errorf("window mode %d, path local: %v, lossy: %v", s.window.mode, q.attr.Path.Local, s.lossy)
	case q.cfg.Type == ib.RC && s.reads > uint32(q.attr.MaxRdAtomic) && q.attr.State != ib.SQD:
		return fmt.Errorf("%d reads outstanding of %d", s.reads, q.attr.MaxRdAtomic)
	case s.readRequests > s.reads:
		return fmt.Errorf("%d READ requests of %d requests that wait for a response", s.readRequests, s.reads)
	case p.recvs.count > stageDepth:
		return fmt.Errorf("%d receive completions staged", p.recvs.count)
	case p.answers.tail-p.answers.head > uint32(len(p.answers.records)):
		return fmt.Errorf("%d records", p.answers.tail-p.answers.head)
	case (q.attr.State == ib.Reset || q.attr.State == ib.Init) && (p.open || p.answers.due || flight != 0):
		return fmt.Errorf("activity in %v", q.attr.State)
	case p.open && !p.write && p.recvs.wr == nil:
		return fmt.Errorf("a SEND in progress without a receive request")
	case p.recvs.wr != nil && p.recvs.placed > p.recvs.capacity:
		return fmt.Errorf("%d bytes in a buffer of %d", p.recvs.placed, p.recvs.capacity)
	case p.open && p.write && p.target.done > p.target.length:
		return fmt.Errorf("%d bytes written of %d", p.target.done, p.target.length)
	}
	if err := p.checkOutOfOrder(); err != nil {
		return err
	}
	psn := s.una
	for i := s.ack; i != s.fresh; i++ {
		wr := &s.sq[i&s.mask]
		if i == s.ack && dist(psn, wr.firstPSN) > dist(wr.lastPSN, wr.firstPSN) || i != s.ack && wr.firstPSN != psn {
			return fmt.Errorf("request %d holds PSNs %d … %d, una %d", i-s.head, wr.firstPSN, wr.lastPSN, s.una)
		}
		psn = wr.lastPSN.Add(1)
	}
	return nil
}

func (p *responder) checkOutOfOrder() error {
	f := p.ooo
	for i := 0; f != nil && i < f.n; i++ {
		if e := &f.bursts[i]; e.PSN.Diff(p.ePSN) <= 0 || i > 0 && e.PSN.Diff(f.bursts[i-1].PSN) < 0 ||
			e.len > int(e.count)*4096 {
			return fmt.Errorf("out-of-order burst %d of %d: %d packets from PSN %d, expected %d", i, f.n, e.count,
				e.PSN, p.ePSN)
		}
	}
	return nil
}

// verify panics where an invariant is broken.
func (q *QP) verify() {
	if err := q.check(); err != nil {
		panic(fmt.Sprintf("transport: %v queue pair %d in %v: %v", q.cfg.Type, q.cfg.QPN, q.attr.State, err))
	}
}
