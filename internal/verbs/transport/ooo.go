// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// The out-of-order buffer keeps what arrives behind a gap until the gap is filled, and then it is handled as if it had
// arrived in order (docs/adr/0013-out-of-order-buffer.md). Nothing of it is validated before that, and no memory but
// the buffer's is touched: what programs see, and in which order, is what they would see if it had been sent again.

// bufferBytes is the payload that an out-of-order buffer holds, in packets of the path MTU, and oooBursts in how many
// bursts: the window of a peer like this one.
const (
	bufferBytes = defaultWindow
	oooBursts   = 256
)

// Buffers are what the queue pairs of a lane share: a queue pair takes one when a packet is missing, or when it must
// copy READ responses, and returns it soon after, so few are in use at a time.
type Buffers struct {
	free []*buffer
	left int // not allocated yet
}

// buffer is one of Buffers: bytes, and what an out-of-order buffer has beside them.
type buffer struct {
	bytes  []byte // out of order: the packet with PSN p stands in slot p modulo their number
	n      int
	bursts [oooBursts]oooBurst // the first n by PSN, all beyond ePSN; they may overlap
	parts  [2][]byte
	segs   [2]mem.Seg
	burst  pkt.Burst
}

// oooBurst is a burst in an out-of-order buffer.
type oooBurst struct {
	wire.Headers
	count uint32
	len   int
}

// NewBuffers returns n buffers of 1 MiB, which are allocated when one is first needed.
func NewBuffers(n int) *Buffers { return &Buffers{free: make([]*buffer, 0, n), left: n} }

// get returns an empty buffer. It returns nil where all are in use, and where s is nil: that queue pair has no buffers.
func (s *Buffers) get() *buffer {
	if s == nil {
		return nil
	}
	if n := len(s.free); n > 0 {
		f := s.free[n-1]
		s.free = s.free[:n-1]
		return f
	}
	if s.left == 0 {
		return nil
	}
	s.left--
	return &buffer{bytes: make([]byte, bufferBytes)}
}

// put returns a buffer that get returned.
func (s *Buffers) put(f *buffer) { s.free = append(s.free, f) }

// keepOutOfOrder buffers a burst that arrived behind a gap, where there is room. What it does not keep comes again.
func (p *responder) keepOutOfOrder(r *pkt.Burst, i *ib.OpInfo, b *mem.Batch) {
	if p.cfg.Buffers == nil || p.rnrSent || !validLength(r, i, p.mtu) {
		return
	}
	if p.ooo == nil {
		p.ooo = p.cfg.Buffers.get()
	}
	if p.ooo == nil || !p.copyOutOfOrder(p.ooo, r, b) {
		p.ctr.OOORefused += uint64(r.Count)
	}
}

// copyOutOfOrder copies a burst into the buffer; false where there is no room, or it cannot be read.
func (p *responder) copyOutOfOrder(f *buffer, r *pkt.Burst, b *mem.Batch) bool {
	end := r.PSN.Add(r.Count)
	// Slots of what was in order are read until Commit.
	if dist(end, p.safePSN) > bufferBytes/p.mtu {
		return false
	}
	at := 0
	for ; at < f.n && f.bursts[at].PSN.Diff(r.PSN) <= 0; at++ {
		if e := &f.bursts[at]; end.Diff(e.PSN.Add(e.count)) <= 0 {
			p.ctr.DuplicateRequest++
			return true
		}
	}
	joins := at > 0 && f.bursts[at-1].precedes(r, p.mtu)
	if !joins && f.n == oooBursts {
		return false
	}
	f.parts[0], f.parts[1] = f.slots(r.PSN, r.Data.Len, p.mtu)
	if b.Gather(f.parts[:], &r.Data, 0) != mem.OK {
		return false
	}
	p.ctr.OOOBuffered += uint64(r.Count)
	if joins {
		f.bursts[at-1].join(r)
		return true
	}
	copy(f.bursts[at+1:f.n+1], f.bursts[at:f.n])
	f.bursts[at] = oooBurst{Headers: r.Headers, count: r.Count, len: r.Data.Len}
	f.n++
	return true
}

// slots returns where n bytes of payload from the packet psn on stand.
func (f *buffer) slots(psn ib.PSN, n int, mtu uint32) (a, b []byte) {
	from := int(uint32(psn) % (bufferBytes / mtu) * mtu)
	first := min(n, bufferBytes-from)
	return f.bytes[from : from+first], f.bytes[:n-first]
}

// precedes reports whether r continues the burst, in the same message.
func (e *oooBurst) precedes(r *pkt.Burst, mtu uint32) bool {
	_, ok := e.Opcode.Join(r.Opcode)
	return ok && r.PSN == e.PSN.Add(e.count) && uint32(e.len) == e.count*mtu && !e.SE
}

// join appends r. It requests an acknowledgement if either did: there is one for both.
func (e *oooBurst) join(r *pkt.Burst) {
	e.Opcode, _ = e.Opcode.Join(r.Opcode)
	e.SE, e.AckReq, e.Imm, e.InvKey = r.SE, e.AckReq || r.AckReq, r.Imm, r.InvKey
	e.count, e.len = e.count+r.Count, e.len+r.Data.Len
}

// handleBuffered handles what the buffer holds and is in order now. Where a gap is left it is refused when more arrives
// behind it: the peer, which went back to the first gap, may be sending what fills this one.
func (p *responder) handleBuffered(b *mem.Batch) {
	f, at := p.ooo, 0
	for at < f.n && f.bursts[at].PSN.Diff(p.ePSN) <= 0 {
		e := &f.bursts[at]
		at++
		if e.PSN.Add(e.count).Diff(p.ePSN) <= 0 {
			continue
		}
		if p.recvs.full() && !p.makeRoom(b) {
			break
		}
		r := &f.burst
		*r = pkt.Burst{Headers: e.Headers, Count: e.count, MTU: p.mtu, Path: p.attr.Path}
		first, rest := f.slots(r.PSN, e.len, p.mtu)
		f.segs = [2]mem.Seg{{Bytes: first, Len: uint64(len(first))}, {Bytes: rest, Len: uint64(len(rest))}}
		r.Data = mem.ListPayload(f.segs[:], 0, e.len)
		p.handleInOrder(r, r.Opcode.Info(), b)
		if p.rnrSent {
			p.dropOutOfOrder() // it comes again
		}
	}
	f.n = copy(f.bursts[:], f.bursts[min(at, f.n):f.n])
}

// dropOutOfOrder empties the buffer.
func (p *responder) dropOutOfOrder() {
	if p.ooo != nil {
		p.ooo.n = 0
	}
}

// releaseOutOfOrder returns an empty buffer to the lane.
// Preconditions: everything placed was flushed, some of it perhaps from there.
func (p *responder) releaseOutOfOrder() {
	if p.ooo != nil && p.ooo.n == 0 {
		p.cfg.Buffers.put(p.ooo)
		p.ooo = nil
	}
}
