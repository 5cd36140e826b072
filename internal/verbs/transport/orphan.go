// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// orphan is what is left of an RC queue pair after its program died: it makes the peer's queue pair fail, which would
// otherwise wait for ever where no request of it is under way (docs/adr/0012-orphans.md). It holds nothing of the
// program's.
//
// As a responder it refuses what arrives: remote operational error. As a requester it sends, at the sequence number
// that the peer expects, a request that every responder has to refuse, so that the peer's queue pair fails as well.
// Where that number is in doubt, a duplicate of the last request that was acknowledged finds it: duplicates are
// acknowledged with all that arrived.
type orphan struct {
	// Responder: the PSN that is expected, and the messages executed.
	ePSN ib.PSN
	msn  uint32
	// Requester: una … end are the numbers that the peer may expect, guess the one that is tried next.
	canSend         bool // the queue pair could send, so the peer can be reached by a request
	una, end, guess ib.PSN
	duplicateSent   bool // a duplicate is under way
	// What to send next: the request to be refused, or the duplicate.
	sendRefused, sendDuplicate bool
	// The answer that is owed to a request of the peer; the next two count while answerDue is set.
	answerDue bool
	answer    ib.Syndrome
	answerPSN ib.PSN
	tries     int       // made so far, 0 … orphanTries
	sent      int       // requests so far, 0 … orphanRequests
	at        mono.Time // the next try, after the last one the end
	done      bool      // nothing is left to do
}

const (
	// orphanGrace is how long a peer has to send a request of its own, with a completion that gives more reason than a
	// flushed one.
	orphanGrace = 20 * time.Millisecond
	// orphanTries are made at growing intervals: 5 s in all.
	orphanTries = 8
	// orphanRequests bounds the requests, whatever the peer answers.
	orphanRequests = 32
)

// Orphan ends all work of an RC queue pair of a program that died, if it was connected or has failed by itself, and
// begins to make the peer's queue pair fail: Handle, Commit, Next and Deadline go on until OrphanDone reports the end.
// It returns false, and has done nothing, where there is no peer to reach. Nothing of the program's memory is used, no
// completion or event arises any more. It is not called between Handle and Commit.
func (q *QP) Orphan(now mono.Time) bool {
	if q.cfg.Type != ib.RC || q.orphan != nil {
		return false
	}
	o := &orphan{ePSN: q.rsp.safePSN, msn: q.rsp.safeMSN, at: now.Add(orphanGrace), end: q.req.maxPSN}
	at := failurePoint{q.attr.State, q.req.una, q.req.txPSN}
	if at.state == ib.Err {
		at = q.req.failure
	}
	o.una, o.guess = at.una, at.txPSN
	switch at.state {
	case ib.RTR:
	case ib.RTS, ib.SQD:
		o.canSend = true
	default:
		return false
	}
	q.discard()
	q.rsp.release()
	q.req, q.rsp = requester{endpoint: &q.endpoint}, responder{endpoint: &q.endpoint}
	q.attr.State, q.uncommitted, q.orphan = ib.Err, false, o
	return true
}

// OrphanDone reports that a queue pair after Orphan has nothing more to do.
func (q *QP) OrphanDone() bool { return q.orphan != nil && q.orphan.done }

// handle receives a burst.
func (o *orphan) handle(e *endpoint, r *pkt.Burst, i *ib.OpInfo) {
	switch {
	case !e.fromPeer(r.Path):
		e.ctr.DropPath++
	case !e.pkey().Match(r.PKey):
		e.ctr.DropPKey++
	case r.Count == 0 || r.Count > maxOutstanding:
		e.ctr.DropLength++
	case i.Response:
		o.handleResponse(r, i)
	default:
		o.handleRequest(r, i)
	}
}

// handleRequest chooses the answer to a request of the peer.
func (o *orphan) handleRequest(r *pkt.Burst, i *ib.OpInfo) {
	syn, psn := ib.SynNAKSeq, o.ePSN
	switch d := r.PSN.Diff(o.ePSN); {
	case d > 0:
	case d == 0 || uint32(-d) < r.Count:
		syn = ib.SynNAKRemOp
	case i.Send || i.Write:
		// It was received, and only its acknowledgement lost.
		syn, psn = ib.SynACKNoCredit, o.ePSN.Add(ib.PSNMask)
	default:
		// What it would read is gone. All before it was executed.
		syn, psn = ib.SynNAKRemOp, r.PSN
	}
	// Of several requests that arrive together the refused one counts: what follows it is gone with it.
	if !o.answerDue || o.answer.IsACK() || o.answer == ib.SynNAKSeq && syn == ib.SynNAKRemOp {
		o.answerDue, o.answer, o.answerPSN = true, syn, psn
	}
}

// handleResponse learns from an answer which PSN the peer expects.
func (o *orphan) handleResponse(r *pkt.Burst, i *ib.OpInfo) {
	d := dist(r.PSN, o.una)
	if !o.canSend || d > dist(o.end, o.una) && (!o.duplicateSent || d != ib.PSNMask) {
		return // a ghost
	}
	syn := r.Syndrome
	switch {
	case i.Ext&ib.ExtAETH == 0 || syn.IsACK():
		if next := r.PSN.Add(r.Count); dist(next, o.una) <= dist(o.end, o.una) {
			o.una = next
		}
		if dist(o.guess, o.una) > dist(o.end, o.una) {
			o.guess = o.una
		}
		if o.duplicateSent {
			o.duplicateSent, o.guess, o.sendRefused = false, o.una, true
		}
	case syn == ib.SynNAKSeq || syn.IsRNR():
		if d <= dist(o.end, o.una) {
			o.una, o.guess, o.sendRefused, o.duplicateSent = r.PSN, r.PSN, true, false
		}
	default:
		o.done = true // it refused, and its queue pair has failed
	}
}

// runTimer makes the try that is due.
func (o *orphan) runTimer(now mono.Time) {
	if !o.at.Due(now) {
		return
	}
	if o.tries == orphanTries {
		o.done, o.at = true, 0
		return
	}
	o.at = now.Add(orphanGrace << o.tries)
	o.sendRefused = o.canSend
	o.sendDuplicate = o.canSend && o.tries > 0
	o.tries++
}

// next produces the next answer or request.
func (o *orphan) next(now mono.Time, e *endpoint, r *pkt.Burst) bool {
	if o.done {
		return false
	}
	o.runTimer(now)
	switch {
	case o.done:
		return false
	case o.answerDue:
		o.answerDue = false
		e.header(r, ib.Acknowledge, o.answerPSN, 1)
		r.Syndrome, r.MSN = o.answer, o.msn
	case o.sendRefused && o.sent < orphanRequests:
		o.sendRefused = false
		o.sent++
		// No message is that long and no key is 0: it is refused whatever was begun before it, whatever the peer
		// allows.
		e.header(r, ib.ReadRequest, o.guess, 1)
		r.VA, r.RKey, r.DMALen, r.AckReq = 0, 0, ib.MaxMessage+1, true
	case o.sendDuplicate && o.sent < orphanRequests:
		o.sendDuplicate, o.duplicateSent = false, true
		o.sent++
		e.header(r, ib.SendOnly, o.una.Add(ib.PSNMask), 1)
		r.AckReq = true
	default:
		return false
	}
	r.Data = mem.Payload{}
	return true
}

// pending reports whether there is something to send now.
func (o *orphan) pending() bool {
	return !o.done && (o.answerDue || (o.sendRefused || o.sendDuplicate) && o.sent < orphanRequests)
}
