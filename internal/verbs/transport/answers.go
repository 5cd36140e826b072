// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
)

// answers are what a responder owes its peer, in the order in which they leave: the pending records of READs and
// atomics, then the NAK, else the ACK.
type answers struct {
	due bool // one of them may be owed
	// records is a ring of a power of two of the newest READs and atomics, [head, tail): answered once in order, and
	// again for a duplicate request. pending counts those that wait for their answer.
	records    []record
	mask       uint32
	head, tail uint32
	pending    uint32
	nak        ib.Syndrome // zero for none
	nakPSN     ib.PSN      // counts while nak is not zero
	ackOwed    bool
}

// record is one READ or atomic that was executed or waits to be: what a duplicate is answered from (IBA volume 1,
// 9.7.5.1.5).
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
	// READ: the response to send covers [at, end) of the range; start is where its first packet stands.
	start, at, end uint64
	// READ: [base, end) of the range was copied, and seg is the copy.
	copied bool
	base   uint64
}

// isRead reports whether the record is a READ: its response carries memory.
func (rec *record) isRead() bool { return !rec.atomic && !rec.stored }

// reserve returns a record for a new READ or atomic; nil where the peer has more outstanding than depth.
func (a *answers) reserve(depth uint32) *record {
	if depth == 0 {
		return nil
	}
	for a.tail-a.head >= depth {
		old := &a.records[a.head&a.mask]
		// A new request cancels a replay: a requester that sends one has the response that the replay is for.
		if old.pending && !old.replay {
			return nil
		}
		a.settle(old)
		a.head++
	}
	rec := &a.records[a.tail&a.mask]
	a.tail++
	*rec = record{pending: true}
	a.pending++
	a.due = true
	return rec
}

// settle marks rec as answered.
func (a *answers) settle(rec *record) {
	if rec.pending {
		rec.pending = false
		a.pending--
	}
}

// cancel takes back the newest record.
func (a *answers) cancel() {
	a.tail--
	a.settle(&a.records[a.tail&a.mask])
}

// cancelFrom takes back the records of psn and everything after it.
func (a *answers) cancelFrom(psn ib.PSN) {
	for a.tail != a.head && a.records[(a.tail-1)&a.mask].first.Diff(psn) >= 0 {
		a.cancel()
	}
}

// clear drops everything that is owed.
func (a *answers) clear() {
	for i := range a.records {
		a.settle(&a.records[i])
	}
	a.nak, a.ackOwed, a.due = 0, false, false
}

// oweACK makes an ACK due.
func (a *answers) oweACK() { a.ackOwed, a.due = true, true }

// oweNAK makes a NAK for psn due. It acknowledges what precedes psn, as does an ACK that was due.
func (a *answers) oweNAK(syn ib.Syndrome, psn ib.PSN) { a.nak, a.nakPSN, a.due = syn, psn, true }

// next returns the record that is answered next; nil where none is pending.
func (a *answers) next() *record {
	for k := a.head; a.pending > 0 && k != a.tail; k++ {
		if rec := &a.records[k&a.mask]; rec.pending {
			return rec
		}
	}
	return nil
}

// nextIsRead reports whether the next answer is a READ response, also that to an ATOMIC WRITE.
func (a *answers) nextIsRead() bool {
	rec := a.next()
	return rec != nil && !rec.atomic
}

// readsDue reports whether READ responses wait to be sent.
func (a *answers) readsDue() bool {
	for k := a.head; a.pending > 0 && k != a.tail; k++ {
		if rec := &a.records[k&a.mask]; rec.pending && rec.isRead() {
			return true
		}
	}
	return false
}

// ackPSN returns the newest PSN that an ACK may bear where ePSN is expected. READs and atomics at the end are
// acknowledged by their responses alone: a peer that still waits for one must not get an ACK in its place.
func (a *answers) ackPSN(ePSN ib.PSN) ib.PSN {
	psn := ePSN.Add(ib.PSNMask)
	for k := a.tail; k != a.head; k-- {
		rec := &a.records[(k-1)&a.mask]
		if rec.last != psn {
			break
		}
		psn = rec.first.Add(ib.PSNMask)
	}
	return psn
}

// duplicate answers a request that was executed before (IBA volume 1, 9.7.4.2): nothing but a READ touches memory
// again.
func (p *responder) duplicate(r *pkt.Burst, i *ib.OpInfo) {
	a := &p.answers
	p.ctr.DuplicateRequest++
	if i.Send || i.Write {
		a.oweACK()
		return
	}
	// The newest first: numbers come back after 2^24 packets, records may last longer.
	for k := a.tail; k != a.head; k-- {
		rec := &a.records[(k-1)&a.mask]
		at := dist(r.PSN, rec.first)
		if at > dist(rec.last, rec.first) {
			continue
		}
		if rec.atomic != (i.Ext&ib.ExtAtomic != 0) || rec.stored != (r.Opcode == ib.AtomicWrite) {
			break
		}
		if rec.isRead() && !p.replayRead(rec, r, uint64(at)*uint64(p.mtu)) {
			break
		}
		if !rec.pending {
			rec.pending, rec.replay = true, true
			a.pending++
		}
		a.due = true
		return
	}
	p.ctr.DropPSN++
}

// replayRead prepares the response to a duplicate READ, which may request a tail of the original range, from offset
// off. Memory is read again, but for a response that was copied and is still due: it goes on as it was, since memory
// has changed, and the duplicate need not mean that anything was lost.
func (p *responder) replayRead(rec *record, r *pkt.Burst, off uint64) bool {
	n := uint64(r.DMALen)
	if r.RKey != rec.rkey || r.VA != rec.va+off || n > rec.length-off || n == 0 && rec.length != 0 {
		return false
	}
	if rec.pending && rec.copied {
		return true
	}
	if n != 0 {
		region := p.regions.RemoteRegion(r.RKey, r.VA, n, ib.RemoteRead)
		if region == nil {
			return false
		}
		rec.seg[0] = mem.Seg{Region: region, Addr: rec.va, Len: rec.length}
	}
	rec.start, rec.at, rec.end = off, off, off+n
	rec.copied, rec.base = false, 0
	return true
}

// nextAnswer produces the next answer of the responder.
func (p *responder) nextAnswer(r *pkt.Burst) bool {
	a := &p.answers
	if rec := a.next(); rec != nil {
		p.emitRecord(rec, r)
		return true
	}
	a.due = false
	switch {
	case a.nak != 0:
		p.header(r, ib.Acknowledge, a.nakPSN, 1)
		r.Syndrome = a.nak
		a.nak, a.ackOwed = 0, false
	case a.ackOwed:
		p.header(r, ib.Acknowledge, a.ackPSN(p.ePSN), 1)
		r.Syndrome = ib.SynACKNoCredit
		a.ackOwed = false
	default:
		return false
	}
	r.MSN, r.Data = p.msn, mem.Payload{}
	return true
}

// emitRecord produces the next burst of a READ response, or an atomic acknowledge. A response that starts in the
// middle of the range starts with First or Only all the same.
func (p *responder) emitRecord(rec *record, r *pkt.Burst) {
	if rec.atomic {
		p.header(r, ib.AtomicAck, rec.first, 1)
		r.Orig, r.Data = rec.orig, mem.Payload{}
		p.answers.settle(rec)
	} else {
		n, last := rec.end-rec.at, true
		if most := max(uint64(p.attr.Path.MaxRun)&^uint64(p.mtu-1), uint64(p.mtu)); n > most {
			n, last = most, false
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
		p.header(r, op, rec.first.Add(uint32(rec.at/uint64(p.mtu))), packets(n, p.mtu))
		if r.Data = (mem.Payload{}); n != 0 {
			r.Data = mem.ListPayload(rec.seg[:], rec.at-rec.base, int(n))
		}
		rec.at += n
		if last {
			p.answers.settle(rec)
			p.readAnswered()
		}
	}
	if !rec.pending && rec.last.Add(1) == p.ePSN {
		p.answers.ackOwed = false // a response acknowledges everything before it
	}
	if r.Opcode.Info().Ext&ib.ExtAETH != 0 {
		r.Syndrome, r.MSN = ib.SynACKNoCredit, p.msn
	}
}
