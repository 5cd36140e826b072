// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// What the requester does about loss: timers, probes, retries, and the window of
// paths that can lose packets (docs/adr/0007-loss-recovery.md, 0011, 0013 and 0014).

// runTimers acts on the deadlines that have passed.
func (q *QP) runTimers(now mono.Time) {
	s := &q.req
	if s.rnrAt.Due(now) {
		s.rnrAt, s.stalled = 0, false
	}
	if s.probeAt.Due(now) && !s.ackAt.Due(now) {
		q.probe(now)
	}
	if s.ackAt.Due(now) {
		s.ackAt = 0
		q.ctr.LocalAckTimeout++
		q.cutWindow(true)
		q.retry(now)
		if q.attr.State == ib.Err {
			q.deliver()
		}
	}
}

// armAck starts the local ACK timer.
func (q *QP) armAck(now mono.Time) {
	s := &q.req
	if d := ib.AckTimeout(q.attr.Timeout); d != 0 {
		s.ackAt = now.Add(max(ackTolerance*d, minAckTimeout))
		q.armProbe(now)
	}
}

// probeSlack is what a probe allows for, beyond what round trips show.
const probeSlack = 50 * time.Microsecond

// firstProbe is when to probe before the first round trip was measured.
const firstProbe = 16 * time.Millisecond

// armProbe sets the time of the next probe: longer than round trips take, twice
// as long after each probe without progress. One that was needless, since a peer did not run
// for a moment, costs a packet.
func (q *QP) armProbe(now mono.Time) {
	s := &q.req
	if s.probeAt = 0; q.attr.Path.Local {
		return
	}
	d := firstProbe
	if s.rtt != 0 {
		d = probeSlack + 2*s.rtt
	}
	s.probeAt = now.Add(d << min(s.probes, 6))
}

// measured takes one round trip (RFC 6298, section 2).
func (q *QP) measured(d time.Duration) {
	s := &q.req
	s.sampleAt = 0
	if d = max(d, 1); s.rtt == 0 {
		s.rtt = d
		return
	}
	s.rtt += (d - s.rtt) / 8
}

// probe goes back when nothing came back for long: the loss of a tail, of a
// NAK or of what was sent again draws no NAK, and the local ACK timeout is
// mostly thousands of round trips. Until something comes back one packet is sent
// (room), whose acknowledgement says where the peer is. It is no retry: only the
// timeout counts against retry_cnt.
func (q *QP) probe(now mono.Time) {
	s := &q.req
	q.ctr.Probes++
	if s.probes > 1 {
		q.cutWindow(true)
	}
	s.probes = min(s.probes, 254) + 1
	q.goBack()
	s.retrying = true
	q.armProbe(now)
}

// growWindow opens the window by what was acknowledged: as fast while it was
// never cut, by four packets per window afterwards. Where every hundredth is lost at random, cuts of
// a quarter keep 37 packets under way (docs/adr/0011-loss-windows.md), those of a sixteenth 80.
func (q *QP) growWindow(n uint32) {
	s := &q.req
	if q.attr.Path.Local || s.cwnd >= q.cfg.Window {
		return
	}
	bytes := uint64(n) * uint64(q.mtu)
	if s.cwnd >= s.ssthresh {
		bytes = bytes * 4 * uint64(q.mtu) / uint64(s.cwnd)
	}
	s.cwnd = uint32(min(uint64(s.cwnd)+bytes, uint64(q.cfg.Window)))
}

// Parts of a window that a loss takes: where the peer discards what follows a gap, a
// larger window is mostly sent again in vain; where it keeps that, nothing is.
const (
	cutDiscards = 4
	cutKeeps    = 16
)

// cutWindow answers a loss; timeout says that nothing at all came back.
func (q *QP) cutWindow(timeout bool) {
	s := &q.req
	if q.attr.Path.Local {
		return
	}
	// Several packets at least: with one, every lost packet or ACK would cost
	// a timeout.
	floor := max(q.cfg.MinWindow, 4*q.mtu)
	if !s.recovering {
		s.recovering, s.recover = true, s.maxPSN
		part := uint32(cutDiscards)
		if s.keeps {
			part = cutKeeps
		}
		s.cwnd = max(s.cwnd-s.cwnd/part, floor)
		s.ssthresh = s.cwnd
	}
	if timeout {
		s.cwnd = floor
	}
}

// retry goes back to the oldest unacknowledged packet, or gives up.
func (q *QP) retry(now mono.Time) {
	s := &q.req
	if s.retries == 0 {
		q.ctr.RetryExceeded++
		q.failSend(ib.RetryExcErr, ReasonTimeout)
		return
	}
	s.retries--
	q.cutWindow(false)
	q.resend(now)
}

// mendGaps is how many gaps may be expected in what is under way for them to be mended
// one per round trip. Where there are more, going back by everything costs less time.
const mendGaps = 4

// resend sends the packet at una again, and what follows it unless that is on the
// peer's shelf.
func (q *QP) resend(now mono.Time) {
	s := &q.req
	q.goBack()
	if n := dist(s.una, s.gap); n != 0 {
		s.gap = s.una
		s.between += (int32(min(n, gapFar)) - s.between) / 8
	}
	s.mending = s.mending && dist(s.maxPSN, s.una) <= uint32(s.between)*mendGaps
	// The responder refuses a gap once: if the packet that fills it gets lost again,
	// only a timer tells. So it leaves twice, but for a READ, whose responses would.
	// After a retry that got lost that does too: on a path this bad, one packet per
	// timeout would use up the retries of an honest connection.
	s.twice = !q.attr.Path.Local && (s.retrying || s.sq[s.ack&s.mask].Op != ib.WRRead)
	s.retrying = true
	q.armAck(now)
}

// goBack goes back to the oldest unacknowledged packet, and no further than to that
// where the peer keeps what followed it.
func (q *QP) goBack() {
	s := &q.req
	s.mending = s.keeps && !s.sq[s.ack&s.mask].Op.NeedsResponse()
	s.mendEnd = s.maxPSN
	s.rewind()
}

func (s *requester) rewind() {
	s.txPSN, s.tx, s.stalled = s.una, s.ack, false
	s.sampleAt = 0
}

// skip goes on behind everything that was sent.
func (s *requester) skip() {
	s.txPSN, s.tx = s.maxPSN, s.fresh
	if last := &s.sq[(s.fresh-1)&s.mask]; s.maxPSN != last.lastPSN.Add(1) {
		s.tx--
	}
}

// gapFar is what the distance of two gaps counts as at most, in packets.
const gapFar = 1 << 10

// askEvery is after how many NAKs at most a peer that was found to discard what follows a
// gap is asked again; at first sooner: two packets missing in a row look the same.
const askEvery = 32

// ask finds out whether the peer keeps what arrives behind a gap: of what a retry
// sends again only the first packet leaves (waits), and the acknowledgement tells
// (mended). Nothing in the protocol says it (docs/adr/0013-out-of-order-buffer.md). A peer that is known to is
// asked by every gap that is mended.
func (q *QP) ask() {
	s := &q.req
	switch {
	case s.keeps || q.attr.Path.Local || q.attr.State == ib.Err || s.sq[s.ack&s.mask].Op.NeedsResponse():
	case s.askIn == 0:
		s.mending = true
	default:
		s.askIn--
	}
}

// mended takes an acknowledgement of n packets where the first of them was sent again to
// mend a gap. It answers what arrived after all that had been sent before. So if more than
// the gap was acknowledged, the peer keeps what follows one; and if less than all
// before mendEnd, the packet at una is missing too. mended reports whether that is to be
// sent again now, without waiting for a NAK.
func (q *QP) mended(n uint32) (again bool) {
	s := &q.req
	if !s.mending || n == 0 {
		return false
	}
	s.mending = false
	again = s.mendEnd.Diff(s.una) > 0
	switch {
	case n > 1:
		s.keeps, s.doubted, s.askIn, s.askNext = true, false, 0, 0
	case !again:
	case s.keeps && !s.doubted:
		s.doubted = true // two packets missing in a row look the same
	default:
		again = s.keeps // else what follows leaves in any case
		s.keeps, s.askIn, s.askNext = false, s.askNext, min(2*s.askNext+1, askEvery)
	}
	return again && !s.sq[s.ack&s.mask].Op.NeedsResponse()
}
