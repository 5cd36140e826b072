// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// farewell is what is left of an RC queue pair whose program is gone: it tells the
// peer, whose queue pair would otherwise wait for ever where nothing of it is on
// its way (docs/adr/0012-orphans.md). It holds nothing of the program's.
//
// As a responder it refuses what arrives: remote operational error. As a requester
// it sends, at the sequence number the peer expects, a request that every
// responder has to refuse, so that the peer's queue pair fails as well. Where that
// number is in doubt, a duplicate of the last request that was acknowledged
// brings it back: duplicates are acknowledged with all that arrived.
type farewell struct {
	// Responder: what is expected, and the messages executed.
	ePSN ib.PSN
	msn  uint32
	// Requester: una … end are the numbers that the peer may expect, guess the one
	// that is tried.
	asks            bool // the queue pair could send: the peer can be told
	una, end, guess ib.PSN
	asked           bool // a duplicate is on its way
	refused, probe  bool // what to send now
	answer          ib.Syndrome
	answerPSN       ib.PSN
	answers         bool
	tries, sent     int
	at              mono.Time // the next try, after the last one the end
	over            bool
}

const (
	// farewellGrace is how long a peer has to come with a request of its own, whose
	// completion then says more than one that was flushed.
	farewellGrace = 20 * time.Millisecond
	// farewellTries are made at growing intervals: 5 s in all.
	farewellTries = 8
	// farewellSent bounds the requests, whatever the peer answers.
	farewellSent = 32
)

// Farewell ends all work of an RC queue pair whose program is gone, which was
// connected or has failed by itself, and begins to tell the peer: Handle, Commit, Next and Deadline go on until Parted. It reports
// false, and has done nothing, where there is no peer to tell. Nothing of the
// program's memory is used, no completion or event arises any more. It is not
// called between Handle and Commit.
func (q *QP) Farewell(now mono.Time) bool {
	if q.cfg.Type != ib.RC || q.bye != nil {
		return false
	}
	b := &farewell{ePSN: q.rsp.safePSN, msn: q.rsp.safeMSN, at: now.Add(farewellGrace), end: q.req.maxPSN}
	state := q.attr.State
	b.una, b.guess = q.req.una, q.req.txPSN
	if state == ib.Err {
		state, b.una, b.guess = q.req.fell, q.req.fellUna, q.req.fellPSN
	}
	switch state {
	case ib.RTR:
	case ib.RTS, ib.SQD:
		b.asks = true
	default:
		return false
	}
	q.discard()
	q.rsp.forget()
	q.returnShelf()
	q.rsp.silence()
	q.returnCopies()
	q.req, q.rsp = requester{cwnd: q.mtu}, responder{}
	q.attr.State, q.dirty, q.bye = ib.Err, false, b
	return true
}

// Parted reports that a queue pair after Farewell has nothing more to do.
func (q *QP) Parted() bool { return q.bye != nil && q.bye.over }

// handleFarewell takes a run for a queue pair whose program is gone.
func (q *QP) handleFarewell(r *pkt.Burst, i *ib.OpInfo) {
	switch {
	case !q.fromPeer(r.Path):
		q.ctr.DropPath++
	case !q.pkey().Match(r.PKey):
		q.ctr.DropPKey++
	case r.Count == 0 || r.Count > maxOutstanding:
		q.ctr.DropLength++
	case i.Response:
		q.bye.response(r, i)
	default:
		q.bye.request(r, i)
	}
}

// request chooses the answer to what the peer asks for.
func (b *farewell) request(r *pkt.Burst, i *ib.OpInfo) {
	syn, psn := ib.SynNAKSeq, b.ePSN
	switch d := r.PSN.Diff(b.ePSN); {
	case d > 0:
	case d == 0 || uint32(-d) < r.Count:
		syn = ib.SynNAKRemOp
	case i.Send || i.Write:
		// It was received, and only its acknowledgement lost.
		syn, psn = ib.SynACKNoCredit, b.ePSN.Add(ib.PSNMask)
	default:
		// What it would read is gone. All before it was executed.
		syn, psn = ib.SynNAKRemOp, r.PSN
	}
	// Of several that come together the refusal counts: what follows it is gone
	// with it.
	if !b.answers || b.answer.IsACK() || b.answer == ib.SynNAKSeq && syn == ib.SynNAKRemOp {
		b.answers, b.answer, b.answerPSN = true, syn, psn
	}
}

// response learns from an answer what the peer expects.
func (b *farewell) response(r *pkt.Burst, i *ib.OpInfo) {
	d := dist(r.PSN, b.una)
	if !b.asks || d > dist(b.end, b.una) && (!b.asked || d != ib.PSNMask) {
		return // a ghost
	}
	syn := r.Syndrome
	switch {
	case i.Ext&ib.ExtAETH == 0 || syn.IsACK():
		if next := r.PSN.Add(r.Count); dist(next, b.una) <= dist(b.end, b.una) {
			b.una = next
		}
		if dist(b.guess, b.una) > dist(b.end, b.una) {
			b.guess = b.una
		}
		if b.asked {
			b.asked, b.guess, b.refused = false, b.una, true
		}
	case syn == ib.SynNAKSeq || syn.IsRNR():
		if d <= dist(b.end, b.una) {
			b.una, b.guess, b.refused, b.asked = r.PSN, r.PSN, true, false
		}
	default:
		b.over = true // it refused, and its queue pair has failed
	}
}

// run makes the try that is due.
func (b *farewell) run(now mono.Time) {
	if !b.at.Due(now) {
		return
	}
	if b.tries == farewellTries {
		b.over, b.at = true, 0
		return
	}
	b.at = now.Add(farewellGrace << b.tries)
	b.refused = b.asks
	b.probe = b.asks && b.tries > 0
	b.tries++
}

// nextFarewell produces the next answer or request.
func (q *QP) nextFarewell(now mono.Time, r *pkt.Burst) bool {
	b := q.bye
	if b.over {
		return false
	}
	b.run(now)
	switch {
	case b.over:
		return false
	case b.answers:
		b.answers = false
		q.header(r, ib.Acknowledge, b.answerPSN, 1)
		r.Syndrome, r.MSN = b.answer, b.msn
	case b.refused && b.sent < farewellSent:
		b.refused = false
		b.sent++
		// No message is that long and nothing is named by no key: refused whatever
		// was begun before it, whatever the peer allows.
		q.header(r, ib.ReadRequest, b.guess, 1)
		r.VA, r.RKey, r.DMALen, r.AckReq = 0, 0, ib.MaxMessage+1, true
	case b.probe && b.sent < farewellSent:
		b.probe, b.asked = false, true
		b.sent++
		q.header(r, ib.SendOnly, b.una.Add(ib.PSNMask), 1)
		r.AckReq = true
	default:
		return false
	}
	r.Data = mem.Payload{}
	return true
}

// pending reports whether there is something to send now.
func (b *farewell) pending() bool {
	return !b.over && (b.answers || (b.refused || b.probe) && b.sent < farewellSent)
}
