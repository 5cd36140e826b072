// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
)

// A READ returns what memory held when its request arrived, although its response leaves later: adapters read memory
// then, and programs rely on it without a fence (docs/adr/0016-read-order.md). The responder copies what is left of
// the responses that are due before it executes a request that changes memory, or that reports to a program, which may
// change it. On a local path nothing is due by then: the requester keeps the order (fenced).

// readCopies are the READ responses of a queue pair that were copied before they left.
// Invariant: while a pending record has copied set, buf is not nil and the record's bytes lie in its first used bytes.
type readCopies struct {
	buf  *shelf // from the buffers of the lane; nil while there is no copy
	used int    // bytes of it
	// deferred says that a request was dropped because the responses before it found no room here. The responder
	// refuses it by a sequence error as soon as they have left, so that the requester sends it again.
	deferred bool
	to       [1][]byte // where one copy goes: a field, so that it never escapes
}

// isRead reports whether the record is a READ: its response carries memory.
func (rec *record) isRead() bool { return !rec.atomic && !rec.stored }

// dueReads reports whether READ responses wait to be sent.
func (p *responder) dueReads() bool {
	for k := p.recHead; p.pending > 0 && k != p.recTail; k++ {
		if rec := &p.recs[k&p.recMask]; rec.pending && rec.isRead() {
			return true
		}
	}
	return false
}

// copyReads copies what is left of every READ response that is due. It returns false where there is no room: the
// request at hand must not be executed now. A range that cannot be read stays as it is; its response will fail.
func (q *QP) copyReads(b *mem.Batch) bool {
	p := &q.rsp
	flushed := false
	for k := p.recHead; k != p.recTail; k++ {
		rec := &p.recs[k&p.recMask]
		n := rec.end - rec.at
		if !rec.pending || rec.copied || !rec.isRead() || n == 0 {
			continue
		}
		if p.copies.buf == nil && q.cfg.Shelves != nil {
			p.copies.buf, p.copies.used = q.cfg.Shelves.take(), 0
		}
		if p.copies.buf == nil || n > uint64(len(p.copies.buf.buf)-p.copies.used) {
			q.ctr.ReadCopyRefused++
			return false
		}
		if !flushed {
			b.Flush() // what was handled before the READ is in place
			flushed = true
		}
		to := p.copies.buf.buf[p.copies.used:][:n:n]
		p.copies.to[0] = to
		from := mem.ListPayload(rec.seg[:], rec.at, int(n))
		if b.Gather(p.copies.to[:], &from, 0) != mem.OK {
			continue
		}
		p.copies.used += int(n)
		rec.copied, rec.base = true, rec.at
		rec.seg[0] = mem.Seg{Bytes: to, Len: n}
		q.ctr.ReadCopies++
	}
	return true
}

// deferRequest drops the request at ePSN until the READ responses before it have left.
func (p *responder) deferRequest() { p.copies.deferred, p.nakSent = true, true }

// readAnswered refuses a deferred request once no READ response is due: the requester sends it again.
func (q *QP) readAnswered() {
	p := &q.rsp
	if p.copies.deferred && !p.dueReads() {
		p.copies.deferred = false
		p.nak, p.nakPSN, p.work = ib.SynNAKSeq, p.ePSN, true
		q.ctr.SeqNakSent++
	}
}

// returnCopies gives the buffer back to the lane when no response refers to it.
// Preconditions: what Next produced was consumed.
func (q *QP) returnCopies() {
	p := &q.rsp
	if p.copies.buf == nil {
		return
	}
	for k := p.recHead; p.pending > 0 && k != p.recTail; k++ {
		if rec := &p.recs[k&p.recMask]; rec.pending && rec.copied {
			return
		}
	}
	q.cfg.Shelves.free = append(q.cfg.Shelves.free, p.copies.buf)
	p.copies.buf = nil
}
