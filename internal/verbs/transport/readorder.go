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
	buf  *buffer // of the lane; nil while there is no copy
	used int     // bytes of it
	// deferred: a request was dropped because the responses before it found no room here. The responder refuses it by
	// a sequence error as soon as they have left, so that the requester sends it again.
	deferred bool
	to       [1][]byte // where one copy goes: a field, so that it never escapes
}

// copyReads copies what is left of every READ response that is due. It returns false where there is no room: the
// request at hand must not be executed now. A range that cannot be read stays as it is; its response will fail.
func (p *responder) copyReads(b *mem.Batch) bool {
	a, c := &p.answers, &p.copies
	flushed := false
	for k := a.head; k != a.tail; k++ {
		rec := &a.records[k&a.mask]
		n := rec.end - rec.at
		if !rec.pending || rec.copied || !rec.isRead() || n == 0 {
			continue
		}
		if c.buf == nil {
			c.buf, c.used = p.cfg.Buffers.get(), 0
		}
		if c.buf == nil || n > uint64(len(c.buf.bytes)-c.used) {
			p.ctr.ReadCopyRefused++
			return false
		}
		if !flushed {
			b.Flush() // what was handled before the READ is in place
			flushed = true
		}
		to := c.buf.bytes[c.used:][:n:n]
		c.to[0] = to
		from := mem.ListPayload(rec.seg[:], rec.at, int(n))
		if b.Gather(c.to[:], &from, 0) != mem.OK {
			continue
		}
		c.used += int(n)
		rec.copied, rec.base = true, rec.at
		rec.seg[0] = mem.Seg{Bytes: to, Len: n}
		p.ctr.ReadCopies++
	}
	return true
}

// deferRequest drops the request at ePSN until the READ responses before it have left.
func (p *responder) deferRequest() { p.copies.deferred, p.nakSent = true, true }

// readAnswered refuses a deferred request once no READ response is due: the requester sends it again.
func (p *responder) readAnswered() {
	if p.copies.deferred && !p.answers.readsDue() {
		p.copies.deferred = false
		p.answers.oweNAK(ib.SynNAKSeq, p.ePSN)
		p.ctr.SeqNakSent++
	}
}

// releaseCopies returns the buffer to the lane when no response refers to it.
// Preconditions: what Next produced was consumed.
func (p *responder) releaseCopies() {
	a := &p.answers
	if p.copies.buf == nil {
		return
	}
	for k := a.head; a.pending > 0 && k != a.tail; k++ {
		if rec := &a.records[k&a.mask]; rec.pending && rec.copied {
			return
		}
	}
	p.cfg.Buffers.put(p.copies.buf)
	p.copies.buf = nil
}
