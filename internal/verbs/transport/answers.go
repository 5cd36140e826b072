// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
)

// What the responder sends: records of READs and atomics, which are answered in
// order and again where a duplicate asks, and ACK and NAK.

// record is one READ or atomic that was executed or waits to be: what a
// duplicate is answered from (IBA volume 1, 9.7.5.1.5).
type record struct {
	atomic      bool
	stored      bool // ATOMIC WRITE: the answer is that to a READ of nothing
	pending     bool
	replay      bool // pending because of a duplicate
	first, last ib.PSN
	va          uint64
	length      uint64
	rkey        ib.Key
	orig        uint64
	seg         [1]mem.Seg
	// READ: the response to send covers [at, end) of the range; start is
	// where its first packet stands.
	start, at, end uint64
	// READ: [base, end) of the range was copied, and seg is the copy.
	copied bool
	base   uint64
}

// allocRecord returns a record for a new READ or atomic; nil where the peer
// has more outstanding than was granted.
func (q *QP) allocRecord() *record {
	p := &q.rsp
	depth := uint32(q.attr.MaxDestRdAtomic)
	if depth == 0 {
		return nil
	}
	for p.recTail-p.recHead >= depth {
		old := &p.recs[p.recHead&p.recMask]
		// A replay loses to a new request: a requester that sends one has
		// what the replay is for.
		if old.pending && !old.replay {
			return nil
		}
		p.settle(old)
		p.recHead++
	}
	rec := &p.recs[p.recTail&p.recMask]
	p.recTail++
	*rec = record{pending: true}
	p.pending++
	p.work = true
	return rec
}

// settle says that rec waits for nothing any more.
func (p *responder) settle(rec *record) {
	if rec.pending {
		rec.pending = false
		p.pending--
	}
}

func (p *responder) silence() {
	for i := range p.recs {
		p.settle(&p.recs[i])
	}
	p.nak, p.ackOwed, p.work = 0, false, false
}

// duplicate answers a request that was executed before (IBA volume 1,
// 9.7.4.2): memory is not touched again.
func (q *QP) duplicate(r *pkt.Burst, i *ib.OpInfo) {
	p := &q.rsp
	q.ctr.DuplicateRequest++
	if i.Send || i.Write {
		p.ackOwed, p.work = true, true
		return
	}
	// The newest first: numbers come back after 2^24 packets, records may last
	// longer.
	for k := p.recTail; k != p.recHead; k-- {
		rec := &p.recs[(k-1)&p.recMask]
		at := dist(r.PSN, rec.first)
		if at > dist(rec.last, rec.first) {
			continue
		}
		if rec.atomic != (i.Ext&ib.ExtAtomic != 0) || rec.stored != (r.Opcode == ib.AtomicWrite) {
			break
		}
		if !rec.atomic && !rec.stored && !q.replayRead(rec, r, uint64(at)*uint64(q.mtu)) {
			break
		}
		if !rec.pending {
			rec.pending, rec.replay = true, true
			p.pending++
		}
		p.work = true
		return
	}
	q.ctr.DropPSN++
}

// replayRead prepares the response to a duplicate READ, which may ask for a
// tail of the original range.
func (q *QP) replayRead(rec *record, r *pkt.Burst, off uint64) bool {
	n := uint64(r.DMALen)
	if r.RKey != rec.rkey || r.VA != rec.va+off || n > rec.length-off || n == 0 && rec.length != 0 {
		return false
	}
	if n != 0 {
		region := q.env.RemoteRegion(r.RKey, r.VA, n, ib.RemoteRead)
		if region == nil {
			return false
		}
		rec.seg[0] = mem.Seg{Region: region, Addr: rec.va, Len: rec.length}
	}
	rec.start, rec.at, rec.end = off, off, off+n
	rec.copied, rec.base = false, 0
	return true
}

// Acknowledge is Next for the answers alone that carry no payload: ACK, NAK and
// atomic acknowledge, up to the next READ response. Whoever makes completions
// visible asks for them first, so that a program which has seen its last one may
// take the queue pair down and leave nobody waiting.
func (q *QP) Acknowledge(r *pkt.Burst) bool {
	p := &q.rsp
	if q.dirty || !p.work {
		return false
	}
	for k := p.recHead; p.pending > 0 && k != p.recTail; k++ {
		if rec := &p.recs[k&p.recMask]; rec.pending {
			if !rec.atomic {
				return false
			}
			break
		}
	}
	if !q.nextResponse(r) {
		return false
	}
	q.sent(r)
	if invariants {
		q.verify()
	}
	return true
}

// nextResponse produces the next answer of the responder.
func (q *QP) nextResponse(r *pkt.Burst) bool {
	p := &q.rsp
	for k := p.recHead; p.pending > 0 && k != p.recTail; k++ {
		if rec := &p.recs[k&p.recMask]; rec.pending {
			q.emitRecord(rec, r)
			return true
		}
	}
	p.work = false
	switch {
	case p.nak != 0:
		q.header(r, ib.Acknowledge, p.nakPSN, 1)
		r.Syndrome = p.nak
		p.nak, p.ackOwed = 0, false
	case p.ackOwed:
		q.header(r, ib.Acknowledge, p.ackPSN(), 1)
		r.Syndrome = ib.SynACKNoCredit
		p.ackOwed = false
	default:
		return false
	}
	r.MSN, r.Data = p.msn, mem.Payload{}
	return true
}

// ackPSN returns the newest PSN that an ACK may bear. READs and atomics at the
// end are acknowledged by their responses alone: a peer that still waits for
// one must not be given an ACK in its place.
func (p *responder) ackPSN() ib.PSN {
	psn := p.ePSN.Add(ib.PSNMask)
	for k := p.recTail; k != p.recHead; k-- {
		rec := &p.recs[(k-1)&p.recMask]
		if rec.last != psn {
			break
		}
		psn = rec.first.Add(ib.PSNMask)
	}
	return psn
}

// emitRecord produces the next run of a READ response, or an atomic
// acknowledge. A response that starts in the middle of the range starts with
// First or Only all the same.
func (q *QP) emitRecord(rec *record, r *pkt.Burst) {
	if rec.atomic {
		q.header(r, ib.AtomicAck, rec.first, 1)
		r.Orig, r.Data = rec.orig, mem.Payload{}
		q.rsp.settle(rec)
	} else {
		n, last := rec.end-rec.at, true
		if run := max(uint64(q.attr.Path.MaxRun)&^uint64(q.mtu-1), uint64(q.mtu)); n > run {
			n, last = run, false
		}
		op := ib.ReadRespMiddle
		switch first := rec.at == rec.start; {
		case first && last:
			op = ib.ReadRespOnly
		case first:
			op = ib.ReadRespFirst
		case last:
			op = ib.ReadRespLast
		}
		q.header(r, op, rec.first.Add(uint32(rec.at/uint64(q.mtu))), packets(n, q.mtu))
		if r.Data = (mem.Payload{}); n != 0 {
			r.Data = mem.ListPayload(rec.seg[:], rec.at-rec.base, int(n))
		}
		rec.at += n
		if last {
			q.rsp.settle(rec)
			q.readAnswered()
		}
	}
	if !rec.pending && rec.last.Add(1) == q.rsp.ePSN {
		q.rsp.ackOwed = false // a response acknowledges everything before it
	}
	if r.Opcode.Info().Ext&ib.ExtAETH != 0 {
		r.Syndrome, r.MSN = ib.SynACKNoCredit, q.rsp.msn
	}
}
