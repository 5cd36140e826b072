// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// Tap gets a copy of the packets of queue pairs while a capture runs. It must not block, and keeps no reference to what
// it gets.
type Tap interface {
	// Selects reports whether the packets of a queue pair of a function are captured.
	Selects(function uint16, qpn ib.QPN) bool
	// Sent gets a burst that queue pair src of a function sends; one within the node is not mirrored again where it
	// arrives. The payload is r.Data.Bytes.
	Sent(function uint16, src ib.QPN, r *pkt.Burst)
	// Received gets a burst that arrived for a function by a link, or by the node's switch for queue pair 0 or
	// 1, in the same way.
	Received(function uint16, r *pkt.Burst)
}

// tapped is a tap and the lane's buffer for it.
type tapped struct {
	Tap
	// buf holds payload that was read to be mirrored, and that goes on from here. It is used again once the batch was
	// flushed, which may refer to it.
	buf  []byte
	used int
	one  [1][]byte
	run  pkt.Burst
}

// tapBytes is more than any burst's payload.
const tapBytes = 1 << 20

// SetTap mirrors to t what passes from now on; nil ends it. The payload of bursts that t selects is read into a
// buffer of the lane, and goes from there to its destination, another queue pair of the node included: what is
// mirrored is what arrives. It is called on the lane.
func (l *Lane) SetTap(t Tap) {
	if t == nil {
		l.batch.Flush()
		l.tap = nil
		return
	}
	if l.tap == nil {
		l.tap = &tapped{buf: make([]byte, tapBytes)}
	}
	l.tap.Tap = t
}

// read reads the payload of a burst into the buffer.
func (t *tapped) read(d *mem.Payload, b *mem.Batch) mem.Result {
	if d.Len == 0 {
		*d = mem.Payload{}
		return mem.OK
	}
	if t.used+d.Len > len(t.buf) {
		b.Flush()
		t.used = 0
	}
	p := t.buf[t.used : t.used+d.Len : t.used+d.Len]
	t.one[0] = p
	if res := b.Gather(t.one[:], d, 0); res != mem.OK {
		return res
	}
	t.used += d.Len
	*d = mem.BytesPayload(p)
	return mem.OK
}

// mirrorSent mirrors what a queue pair sends, and reports whether it could be read.
func (l *Lane) mirrorSent(now mono.Time, q *QP, r *pkt.Burst) bool {
	t, p, f := l.tap, r.Path, q.s.a.num
	if !t.Selects(f, q.num) && !(p.Local && t.Selects(p.Function, r.DestQPN)) {
		return true
	}
	if t.read(&r.Data, l.batch) != mem.OK {
		q.t.SourceFault(now, r)
		return false
	}
	t.Sent(f, q.num, r)
	return true
}

// MirrorManagement mirrors a datagram that the port of function r.Path.Function sends from queue pair 0 or 1, or
// else one that arrived for it from within the node. It is called on the lane, with a payload in the node's
// memory.
func (l *Lane) MirrorManagement(r *pkt.Burst, sent bool) {
	t, f := l.tap, r.Path.Function
	switch {
	case t == nil:
	case sent && t.Selects(f, r.SrcQPN):
		t.Sent(f, r.SrcQPN, r)
	case !sent && t.Selects(f, r.DestQPN):
		t.Received(f, r)
	}
}

// mirrorReceived mirrors what arrived by a link for function f.
func (l *Lane) mirrorReceived(f uint16, r *pkt.Burst) {
	t := l.tap
	if r.Path.Local || !t.Selects(f, r.DestQPN) {
		return
	}
	t.run = *r
	if t.read(&t.run.Data, l.batch) == mem.OK {
		t.Received(f, &t.run)
	}
}
