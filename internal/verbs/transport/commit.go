// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
)

// stageDepth bounds the receive completions that wait for Commit; when it is
// reached Handle flushes and delivers by itself.
const stageDepth = 64

// stagedRecv is a receive completion whose data may still fail to arrive.
type stagedRecv struct {
	wr *RecvWR
	c  Completion
}

// stage appends a completion, which the caller fills in. Handle keeps room for
// the one of the run at hand and for one error.
func (q *QP) stage(wr *RecvWR) *Completion {
	p := &q.rsp
	st := &p.staged[(p.stageHead+p.nstaged)%stageDepth]
	p.nstaged++
	st.wr = wr
	return &st.c
}

// makeRoom delivers what is staged, after a flush of its data. False says that
// some of it failed and the queue pair is in ERR.
func (q *QP) makeRoom(b *mem.Batch) bool {
	p := &q.rsp
	b.Flush()
	if p.placeFailed {
		q.failRecv()
		return false
	}
	q.deliverRecv()
	p.safePSN, p.safeMSN = p.ePSN, p.msn
	return true
}

func (q *QP) deliverRecv() {
	p := &q.rsp
	for ; p.nstaged > 0; p.nstaged-- {
		st := &p.staged[p.stageHead%stageDepth]
		p.stageHead++
		wr := st.wr
		st.wr = nil
		q.recvDone(wr, &st.c)
	}
	p.stageHead = 0 // the same few entries again: they are at hand
}

// Commit makes visible what Handle staged: everything placed was flushed. It
// must follow Handle before anything but Handle is called, and follow the
// consumption of what Next produced.
func (q *QP) Commit(now mono.Time) {
	p, s := &q.rsp, &q.req
	q.dirty = false
	if q.bye != nil {
		return
	}
	if p.placeFailed {
		q.failRecv()
	}
	if s.placeFailed {
		s.placeFailed = false
		q.failPlacement()
	}
	if s.owed {
		s.owed, s.stalled = false, false
	}
	p.safePSN, p.safeMSN = p.ePSN, p.msn
	q.returnShelf()
	q.returnCopies()
	if p.nstaged != 0 || s.head != s.ack || q.attr.State >= ib.SQE {
		q.deliver()
	}
	if s.draining {
		q.checkDrained()
	}
	if invariants {
		q.verify()
	}
}

// failRecv takes back everything since the last Commit: a copy of it failed,
// and which one is not known. The oldest message reports it.
func (q *QP) failRecv() {
	p := &q.rsp
	p.placeFailed = false
	status := ib.LocProtErr
	for i := range p.nstaged {
		st := &p.staged[(p.stageHead+i)%stageDepth]
		st.c = Completion{Op: ib.WCRecv, Status: status, VendorErr: ReasonPlacement}
		status = ib.WRFlushErr
	}
	if q.attr.State == ib.Err {
		if p.nak != 0 {
			// A later packet was refused: the NAK must not acknowledge this one.
			p.nak, p.nakPSN = ib.SynNAKRemOp, p.safePSN
		}
		return
	}
	for p.recTail != p.recHead && p.recs[(p.recTail-1)&p.recMask].first.Diff(p.safePSN) >= 0 {
		p.recTail--
		p.settle(&p.recs[p.recTail&p.recMask])
	}
	p.ePSN, p.msn = p.safePSN, p.safeMSN
	reported := status == ib.WRFlushErr
	inRecv := p.recv != nil && (q.datagram() || p.open && !p.write)
	event := ib.EventQPFatal
	if q.cfg.Type == ib.RC {
		event = q.refusal(ib.SynNAKRemOp, p.safePSN)
	} else {
		p.open = false
		q.enterErr(false)
	}
	switch {
	case reported:
	case inRecv:
		wr := p.recv
		p.recv = nil
		*q.stage(wr) = Completion{Op: ib.WCRecv, Status: status, VendorErr: ReasonPlacement}
	default:
		q.env.Event(event)
	}
}

// RecvPosted tells that the receive queue got requests: in ERR the next Next
// flushes them.
func (q *QP) RecvPosted(now mono.Time) {
	if q.attr.State == ib.Err && !q.cfg.SRQ && q.bye == nil {
		q.rsp.recvPosted = true
	}
}
