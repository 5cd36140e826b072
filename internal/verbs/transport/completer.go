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
func (s *requester) handleResponse(now mono.Time, r *pkt.Burst, i *ib.OpInfo, b *mem.Batch) {
	switch {
	case s.attr.State != ib.RTS && s.attr.State != ib.SQD:
		s.ctr.DropState++
	case i.ReadResp:
		s.onReadResponse(now, r, i, b)
	case r.Count != 1 || r.Data.Len != 0:
		s.ctr.DropLength++
	case r.Opcode.Op() == ib.AtomicAck:
		s.onAtomicAck(now, r, b)
	default:
		s.onAck(now, r)
	}
}

// onAck takes an ACK or NAK.
func (s *requester) onAck(now mono.Time, r *pkt.Burst) {
	if dist(r.PSN, s.una) >= dist(s.maxPSN, s.una) {
		s.ctr.DropPSN++ // a ghost, or a duplicate of what was acknowledged
		return
	}
	syn, una := r.Syndrome, s.una
	if syn.IsACK() {
		if s.acknowledge(now, r.PSN.Add(1)) && s.filledGap(dist(s.una, una)) {
			s.resend(now)
		}
		return
	}
	// A NAK acknowledges what precedes its PSN.
	if !s.acknowledge(now, r.PSN) {
		return
	}
	switch {
	case syn.IsRNR():
		s.onRNR(now, syn.Value())
	case syn == ib.SynNAKSeq:
		s.ctr.SeqNakRcvd++
		s.filledGap(dist(s.una, una))
		// While the RNR timer runs, packets that were in flight behind the
		// refused one draw this too; and one NAK starts one retry.
		if s.timers.rnrAt.IsZero() && !s.retrying {
			s.retry(now)
			s.testPeer()
		}
	case syn == ib.SynNAKInvReq:
		s.ctr.RemoteInvalidReq++
		s.fail(ib.RemInvReqErr, ReasonRemoteNak)
	case syn == ib.SynNAKRemAcc:
		s.ctr.RemoteAccessErr++
		s.fail(ib.RemAccessErr, ReasonRemoteNak)
	case syn == ib.SynNAKRemOp:
		s.ctr.RemoteOpErr++
		s.fail(ib.RemOpErr, ReasonRemoteNak)
	default:
		s.badResponse()
	}
}

func (s *requester) badResponse() {
	s.ctr.BadResponse++
	s.fail(ib.BadRespErr, ReasonResponse)
}

// acknowledge marks everything before psn as received by the peer; psn lies in
// (una, maxPSN] or is una. It reports false where a READ or atomic before psn
// is still without its response: that response was lost, and the retry has
// been started.
func (s *requester) acknowledge(now mono.Time, psn ib.PSN) bool {
	target := dist(psn, s.una)
	done := uint32(0)
	for done < target {
		wr := &s.sq[s.ack&s.mask]
		if wr.Op.NeedsResponse() {
			s.progress(now, done)
			if s.timers.rnrAt.IsZero() && !s.retrying {
				s.retry(now)
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
	s.progress(now, done)
	return true
}

// progress moves una over n PSNs that are done; s.ack is already right.
func (s *requester) progress(now mono.Time, n uint32) {
	if n == 0 {
		return
	}
	behind := dist(s.txPSN, s.una) < n // sent again, and answered meanwhile
	s.timers.acknowledged(now, s.una, n)
	s.una = s.una.Add(n)
	if behind {
		s.txPSN, s.tx = s.una, s.ack
	}
	s.retries, s.rnrRetries = s.attr.RetryCnt, s.attr.RNRRetry
	probed := s.timers.probes != 0
	s.retrying, s.gaps.duplicate, s.stalled, s.timers.probes = false, false, false, 0
	s.timers.rnrAt = 0
	if s.una == s.maxPSN {
		s.timers.stopAck()
	} else {
		s.startAck(now)
	}
	if s.window.mode == windowOff {
		return
	}
	if s.window.closed(s.una) {
		s.closeWindow()
		return
	}
	s.window.acknowledged(s.una)
	if probed && s.una != s.maxPSN {
		s.window.cut(s.maxPSN, s.cutPart()) // more was lost than a tail of one packet
		return
	}
	s.window.grow(n)
}

// onRNR waits as long as the responder requests, then sends again from the refused packet, which is una.
func (s *requester) onRNR(now mono.Time, code uint8) {
	s.ctr.RNRNakRcvd++
	if !s.timers.rnrAt.IsZero() {
		return
	}
	if s.attr.RNRRetry != 7 {
		if s.rnrRetries == 0 {
			s.ctr.RNRRetryExceeded++
			s.fail(ib.RNRRetryExcErr, ReasonRNR)
			return
		}
		s.rnrRetries--
	}
	s.timers.startRNR(now, ib.RNRTimer(code))
	s.goBack()
	s.gaps.selective, s.stalled = false, true
}

// responseFor finds the request that a READ response or atomic acknowledge
// with this PSN answers: it acknowledges everything before and returns the
// oldest request, or nil where the response is not the awaited one.
func (s *requester) responseFor(now mono.Time, psn ib.PSN) *SendWR {
	if dist(psn, s.una) >= dist(s.maxPSN, s.una) {
		s.ctr.DropPSN++
		return nil
	}
	if psn != s.una {
		// Within the READ at hand this is a gap, before it a lost response.
		if !s.acknowledge(now, psn) {
			return nil
		}
	}
	s.gaps.selective = false
	return &s.sq[s.ack&s.mask]
}

// onReadResponse places READ data.
func (s *requester) onReadResponse(now mono.Time, r *pkt.Burst, i *ib.OpInfo, b *mem.Batch) {
	psn, count, op, skip := r.PSN, r.Count, i, 0
	if count == 0 || count > maxOutstanding {
		s.ctr.DropLength++
		return
	}
	if old := dist(s.una, psn); old != 0 && old < count {
		// The first packets of the burst were received before.
		psn, count, skip = s.una, count-old, int(old)*int(s.mtu)
		op = tail(r.Opcode).Info()
	}
	wr := s.responseFor(now, psn)
	if wr == nil {
		return
	}
	if wr.Op == ib.WRAtomicWrite && i.First && i.Last && r.Syndrome.IsACK() && r.Data.Len == 0 {
		s.reads--
		s.ack++
		s.progress(now, 1)
		return
	}
	if wr.Op != ib.WRRead || (i.First || i.Last) && !r.Syndrome.IsACK() {
		s.badResponse()
		return
	}
	at := dist(psn, wr.firstPSN)
	start := s.chunkStart(at)
	end := s.chunkEnd(wr, at)
	off := uint64(at) * uint64(s.mtu)
	want := uint64(count) * uint64(s.mtu)
	if op.Last {
		want = min(wr.length, uint64(end)*uint64(s.mtu)) - off
	}
	switch {
	case op.First && !start && psn != wr.readPSN, !op.First && start:
		s.badResponse()
		return
	case count > end-at, !validLength(r, i, s.mtu), uint64(r.Data.Len-skip) != want:
		s.ctr.DropLength++
		s.fail(ib.LocLenErr, ReasonLength)
		return
	case op.Last != (count == end-at):
		s.badResponse()
		return
	}
	switch placeList(b, s, wr.segs, off, &r.Data, skip, r.Data.Len-skip) {
	case mem.SourceFault:
		r.Fault = true
		return
	case mem.DestFault:
		s.fail(ib.LocProtErr, ReasonPlacement)
		return
	}
	if op.Last {
		s.reads--
		s.readRequests--
	}
	if at+count == dist(wr.lastPSN, wr.firstPSN)+1 {
		s.ack++
	}
	s.progress(now, count)
}

// onAtomicAck stores the original value, a number in this host's order.
func (s *requester) onAtomicAck(now mono.Time, r *pkt.Burst, b *mem.Batch) {
	wr := s.responseFor(now, r.PSN)
	if wr == nil {
		return
	}
	if !wr.Op.IsAtomic() || !r.Syndrome.IsACK() {
		s.badResponse()
		return
	}
	buf := b.Scratch(8)
	binary.NativeEndian.PutUint64(buf, r.Orig)
	data := mem.BytesPayload(buf)
	if placeList(b, s, wr.segs, 0, &data, 0, 8) != mem.OK {
		s.fail(ib.LocProtErr, ReasonPlacement)
		return
	}
	s.reads--
	s.ack++
	s.progress(now, 1)
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

// PlacementFailed implements mem.Owner for READ and atomic results; Commit acts on it.
func (s *requester) PlacementFailed() { s.placeFailed = true }

// failPlacement turns the oldest READ or atomic that is not yet visible into a
// protection error.
func (s *requester) failPlacement() {
	s.placeFailed = false
	for i := s.head; i != s.fresh && int32(i-s.ack) <= 0; i++ {
		if s.sq[i&s.mask].Op.Fetches() {
			s.ack = i
			break
		}
	}
	s.fail(ib.LocProtErr, ReasonPlacement)
}
