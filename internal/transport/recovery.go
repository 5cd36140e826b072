// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"time"

	"weft/internal/ib"
	"weft/internal/mono"
)

// What the requester does about loss: timers, probes, retries, and the window of
// paths that can lose packets (docs/adr/0007-loss-recovery.md, 0011 and 0013).

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
	s.probes++
	q.goBack()
	s.retrying = true
	q.armProbe(now)
}

// growWindow opens the window by what was acknowledged: as fast while it was
// never cut, by four packets per window afterwards. With cuts of a quarter that keeps
// 17 packets under way where every twentieth is lost at random (docs/adr/0011-loss-windows.md).
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
// larger window is mostly sent again in vain; where it keeps that, it is not.
const (
	cutDiscards = 4
	cutKeeps    = 8
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
	q.goBack()
	// The responder refuses a gap once: if the packet that fills it gets lost again,
	// only a timer tells. So it leaves twice, but for a READ, whose responses would.
	// After a retry that got lost that does too: on a path this bad, one packet per
	// timeout would use up the retries of an honest connection.
	s.twice = !q.attr.Path.Local && (s.retrying || s.sq[s.ack&s.mask].Op != ib.WRRead)
	s.retrying = true
	q.armAck(now)
}

func (q *QP) goBack() {
	s := &q.req
	s.asking = false
	s.rewind()
}

func (s *requester) rewind() {
	s.txPSN, s.tx, s.stalled = s.una, s.ack, false
	s.sampleAt = 0
}

// askEvery is after how many NAKs the peer is asked again whether it keeps what
// follows a gap. One that was found to discard it is asked sooner at first: two
// packets missing in a row look the same.
const askEvery = 32

// ask finds out whether the peer keeps what arrives behind a gap: of what a retry
// sends again only the first packet leaves (room), and the acknowledgement tells
// (answered). Nothing in the protocol says it (docs/adr/0013-shelf.md).
func (q *QP) ask() {
	s := &q.req
	switch {
	case q.attr.Path.Local || q.attr.State == ib.Err || s.sq[s.ack&s.mask].Op.NeedsResponse():
	case s.askIn == 0:
		s.asking = true
	default:
		s.askIn--
	}
}

// answered takes the first acknowledgement after ask.
func (q *QP) answered(keeps bool) {
	s := &q.req
	if s.asking, s.keeps = false, keeps; keeps {
		s.askIn, s.askNext = askEvery, 0
		return
	}
	s.askIn, s.askNext = s.askNext, min(2*s.askNext+1, askEvery)
}
