// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"encoding/binary"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// handleResponse takes a response to this queue pair's requests (IBA volume
// 1, 9.7.5 and 9.7.6).
func (q *QP) handleResponse(now mono.Time, r *pkt.Burst, i *ib.OpInfo, b *mem.Batch) {
	switch {
	case q.attr.State != ib.RTS && q.attr.State != ib.SQD:
		q.ctr.DropState++
	case i.ReadResp:
		q.onReadResponse(now, r, i, b)
	case r.Count != 1 || r.Data.Len != 0:
		q.ctr.DropLength++
	case r.Opcode.Op() == ib.AtomicAck:
		q.onAtomicAck(now, r, b)
	default:
		q.onAck(now, r)
	}
}

// onAck takes an ACK or NAK.
func (q *QP) onAck(now mono.Time, r *pkt.Burst) {
	s := &q.req
	if dist(r.PSN, s.una) >= dist(s.maxPSN, s.una) {
		q.ctr.DropPSN++ // a ghost, or a duplicate of what was acknowledged
		return
	}
	syn, una := r.Syndrome, s.una
	if syn.IsACK() {
		if q.acknowledge(now, r.PSN.Add(1)) && q.mended(dist(s.una, una)) {
			q.resend(now)
		}
		return
	}
	// A NAK acknowledges what precedes its PSN.
	if !q.acknowledge(now, r.PSN) {
		return
	}
	switch {
	case syn.IsRNR():
		q.onRNR(now, syn.Value())
	case syn == ib.SynNAKSeq:
		q.ctr.SeqNakRcvd++
		q.mended(dist(s.una, una))
		// While the RNR timer runs, packets that were in flight behind the
		// refused one draw this too; and one NAK starts one retry.
		if s.rnrAt.IsZero() && !s.retrying {
			q.retry(now)
			q.ask()
		}
	case syn == ib.SynNAKInvReq:
		q.ctr.RemoteInvalidReq++
		q.failSend(ib.RemInvReqErr, ReasonRemoteNak)
	case syn == ib.SynNAKRemAcc:
		q.ctr.RemoteAccessErr++
		q.failSend(ib.RemAccessErr, ReasonRemoteNak)
	case syn == ib.SynNAKRemOp:
		q.ctr.RemoteOpErr++
		q.failSend(ib.RemOpErr, ReasonRemoteNak)
	default:
		q.badResponse()
	}
}

func (q *QP) badResponse() {
	q.ctr.BadResponse++
	q.failSend(ib.BadRespErr, ReasonResponse)
}

// acknowledge marks everything before psn as received by the peer; psn lies in
// (una, maxPSN] or is una. It reports false where a READ or atomic before psn
// is still without its response: that response was lost, and the retry has
// been started.
func (q *QP) acknowledge(now mono.Time, psn ib.PSN) bool {
	s := &q.req
	target := dist(psn, s.una)
	done := uint32(0)
	for done < target {
		wr := &s.sq[s.ack&s.mask]
		if wr.Op.NeedsResponse() {
			q.progress(now, done)
			if s.rnrAt.IsZero() && !s.retrying {
				q.retry(now)
			}
			return false
		}
		left := dist(wr.lastPSN, s.una) + 1 - done
		if left > target-done {
			done = target
			break
		}
		done += left
		s.ack++
	}
	q.progress(now, done)
	return true
}

// progress moves una over n PSNs that are done; s.ack is already right.
func (q *QP) progress(now mono.Time, n uint32) {
	if n == 0 {
		return
	}
	s := &q.req
	behind := dist(s.txPSN, s.una) < n // sent again, and answered meanwhile
	if !s.sampleAt.IsZero() && dist(s.samplePSN, s.una) <= n {
		q.measured(now.Sub(s.sampleAt))
	}
	s.una = s.una.Add(n)
	if behind {
		s.txPSN, s.tx = s.una, s.ack
	}
	s.retries, s.rnrs = q.attr.RetryCnt, q.attr.RNRRetry
	probed := s.probes != 0
	s.retrying, s.twice, s.stalled, s.probes = false, false, false, 0
	s.rnrAt = 0
	if s.una == s.maxPSN {
		s.ackAt, s.probeAt = 0, 0
	} else {
		q.armAck(now)
	}
	if s.recovering && dist(s.una, s.recover) < maxOutstanding {
		s.recovering = false
	}
	if probed && s.una != s.maxPSN {
		q.cutWindow(false) // more was lost than a tail of one packet
		return
	}
	q.growWindow(n)
}

// onRNR waits as long as the responder asked for, then sends again from the
// refused packet, which is una.
func (q *QP) onRNR(now mono.Time, code uint8) {
	s := &q.req
	q.ctr.RNRNakRcvd++
	if !s.rnrAt.IsZero() {
		return
	}
	if q.attr.RNRRetry != 7 {
		if s.rnrs == 0 {
			q.ctr.RNRRetryExceeded++
			q.failSend(ib.RNRRetryExcErr, ReasonRNR)
			return
		}
		s.rnrs--
	}
	s.rnrAt, s.ackAt, s.probeAt = now.Add(ib.RNRTimer(code)), 0, 0
	q.goBack()
	s.mending, s.stalled = false, true
}

// responseFor finds the request that a READ response or atomic acknowledge
// with this PSN answers: it acknowledges everything before and returns the
// oldest request, or nil where the response is not the awaited one.
func (q *QP) responseFor(now mono.Time, psn ib.PSN) *SendWR {
	s := &q.req
	if dist(psn, s.una) >= dist(s.maxPSN, s.una) {
		q.ctr.DropPSN++
		return nil
	}
	if psn != s.una {
		// Within the READ at hand this is a gap, before it a lost response.
		if !q.acknowledge(now, psn) {
			return nil
		}
	}
	s.mending = false
	return &s.sq[s.ack&s.mask]
}

// onReadResponse places READ data.
func (q *QP) onReadResponse(now mono.Time, r *pkt.Burst, i *ib.OpInfo, b *mem.Batch) {
	s := &q.req
	psn, count, op, skip := r.PSN, r.Count, i, 0
	if count == 0 || count > maxOutstanding {
		q.ctr.DropLength++
		return
	}
	if old := dist(s.una, psn); old != 0 && old < count {
		// The head of the run has been here before.
		psn, count, skip = s.una, count-old, int(old)*int(q.mtu)
		op = tail(r.Opcode).Info()
	}
	wr := q.responseFor(now, psn)
	if wr == nil {
		return
	}
	if wr.Op == ib.WRAtomicWrite && i.First && i.Last && r.Syndrome.IsACK() && r.Data.Len == 0 {
		s.reads--
		s.ack++
		q.progress(now, 1)
		return
	}
	if wr.Op != ib.WRRead || (i.First || i.Last) && !r.Syndrome.IsACK() {
		q.badResponse()
		return
	}
	at := dist(psn, wr.firstPSN)
	start := s.chunkStart(at)
	end := s.chunkEnd(wr, at)
	off := uint64(at) * uint64(q.mtu)
	want := uint64(count) * uint64(q.mtu)
	if op.Last {
		want = min(wr.length, uint64(end)*uint64(q.mtu)) - off
	}
	switch {
	case op.First && !start && psn != wr.readPSN, !op.First && start:
		q.badResponse()
		return
	case count > end-at, !shape(r, i, q.mtu), uint64(r.Data.Len-skip) != want:
		q.ctr.DropLength++
		q.failSend(ib.LocLenErr, ReasonLength)
		return
	case op.Last != (count == end-at):
		q.badResponse()
		return
	}
	switch placeList(b, (*requestOwner)(q), wr.segs, off, &r.Data, skip, r.Data.Len-skip) {
	case mem.SourceFault:
		r.Fault = true
		return
	case mem.DestFault:
		q.failSend(ib.LocProtErr, ReasonPlacement)
		return
	}
	if op.Last {
		s.reads--
		s.readRequests--
	}
	if at+count == dist(wr.lastPSN, wr.firstPSN)+1 {
		s.ack++
	}
	q.progress(now, count)
}

// onAtomicAck stores the original value, a number in this host's order.
func (q *QP) onAtomicAck(now mono.Time, r *pkt.Burst, b *mem.Batch) {
	s := &q.req
	wr := q.responseFor(now, r.PSN)
	if wr == nil {
		return
	}
	if !wr.Op.IsAtomic() || !r.Syndrome.IsACK() {
		q.badResponse()
		return
	}
	buf := b.Scratch(8)
	binary.NativeEndian.PutUint64(buf, r.Orig)
	data := mem.BytesPayload(buf)
	if placeList(b, (*requestOwner)(q), wr.segs, 0, &data, 0, 8) != mem.OK {
		q.failSend(ib.LocProtErr, ReasonPlacement)
		return
	}
	s.reads--
	s.ack++
	q.progress(now, 1)
}

// placeList copies n bytes of src, from offset from, to offset off of a
// resolved scatter list.
func placeList(b *mem.Batch, o mem.Owner, segs []mem.Seg, off uint64, src *mem.Payload, from, n int) mem.Result {
	for i := range segs {
		g := &segs[i]
		if off >= g.Len {
			off -= g.Len
			continue
		}
		c := int(min(uint64(n), g.Len-off))
		if res := b.Put(o, g.Region, g.Addr+off, src, from, c); res != mem.OK {
			return res
		}
		if n -= c; n == 0 {
			return mem.OK
		}
		from, off = from+c, 0
	}
	return mem.OK
}

// requestOwner is the queue pair as the owner of READ and atomic results.
type requestOwner QP

// PlacementFailed implements mem.Owner; Commit acts on it.
func (o *requestOwner) PlacementFailed() { o.req.placeFailed = true }

// failPlacement turns the oldest READ or atomic that is not yet visible into a
// protection error.
func (q *QP) failPlacement() {
	s := &q.req
	for i := s.head; i != s.fresh && int32(i-s.ack) <= 0; i++ {
		if s.sq[i&s.mask].Op.Fetches() {
			s.ack = i
			break
		}
	}
	q.failSend(ib.LocProtErr, ReasonPlacement)
}
