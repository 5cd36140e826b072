// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// What the requester does about loss: timers, probes and retries (docs/adr/0007-loss-recovery.md). The rules of its
// parts are those of window, gaps and timers.

// runTimers acts on the deadlines that have passed.
func (s *requester) runTimers(now mono.Time) {
	t := &s.timers
	if t.rnrAt.Due(now) {
		t.rnrAt, s.stalled = 0, false
	}
	if t.probeAt.Due(now) && !t.ackAt.Due(now) {
		s.probe(now)
	}
	if t.ackAt.Due(now) {
		t.ackAt = 0
		s.ctr.LocalAckTimeout++
		s.window.collapse(s.maxPSN, s.cutPart())
		s.retry(now)
		if s.attr.State == ib.Err {
			s.life.deliver()
		}
	}
}

// setLossy is QP.SetLossy for the requester.
func (s *requester) setLossy(now mono.Time, on bool) {
	if s.lossy == on {
		return
	}
	s.lossy = on
	if s.cfg.Type != ib.RC || s.attr.Path == nil || !s.attr.Path.Local {
		return
	}
	if on {
		s.window.open(uint64(dist(s.maxPSN, s.una))*uint64(s.mtu), s.mtu, s.cfg.MinWindow, s.cfg.Window)
		if !s.timers.ackAt.IsZero() {
			s.timers.startProbe(now, true)
		}
		return
	}
	s.window.mode, s.window.closeAt = windowClosing, s.maxPSN
	if s.una == s.maxPSN {
		s.closeWindow()
	}
}

// closeWindow ends the recovery from losses on a path that has none: everything that could be lost is acknowledged.
func (s *requester) closeWindow() {
	s.window = window{}
	s.gaps.reset()
	s.gaps.selective = false
	s.timers.probeAt, s.timers.probes, s.timers.rtt = 0, 0, 0
	s.timers.dropSample()
}

// startAck starts the local ACK timer, and with it the probe.
func (s *requester) startAck(now mono.Time) {
	s.timers.startAck(now, ib.AckTimeout(s.attr.Timeout), s.window.mode != windowOff)
}

// cutPart returns which part of the window a loss takes.
func (s *requester) cutPart() uint32 {
	if s.gaps.peerKeepsOOO {
		return cutPeerKeeps
	}
	return cutPeerDiscards
}

// probe goes back where no answer arrived for long: the loss of a tail, of a NAK or of what was sent again draws no
// NAK, and the local ACK timeout is mostly thousands of round trips. Until an answer arrives one packet is sent (room),
// and its acknowledgement shows which PSN the peer expects. It is no retry: only the timeout counts against retry_cnt.
func (s *requester) probe(now mono.Time) {
	s.ctr.Probes++
	if s.timers.probes > 1 {
		s.window.collapse(s.maxPSN, s.cutPart())
	}
	s.timers.countProbe()
	s.goBack()
	s.retrying = true
	s.timers.startProbe(now, true)
}

// retry goes back to the oldest unacknowledged packet, or gives up.
func (s *requester) retry(now mono.Time) {
	if s.retries == 0 {
		s.ctr.RetryExceeded++
		s.fail(ib.RetryExcErr, ReasonTimeout)
		return
	}
	s.retries--
	s.window.cut(s.maxPSN, s.cutPart())
	s.resend(now)
}

// resend sends the packet at una again, and what follows it unless the peer keeps that.
func (s *requester) resend(now mono.Time) {
	s.goBack()
	s.gaps.found(s.una, s.maxPSN)
	// The responder refuses a gap once: if the packet that fills it gets lost again, only a timer detects that. So it
	// leaves twice, but for a READ: its responses would leave twice. After a retry that got lost a READ does too: on
	// a path this bad, one packet per timeout would use up the retries of a connection that works.
	s.gaps.duplicate = s.window.mode != windowOff && (s.retrying || s.sq[s.ack&s.mask].Op != ib.WRRead)
	s.retrying = true
	s.startAck(now)
}

// goBack goes back to the oldest unacknowledged packet; only that one is sent again where the peer keeps what follows.
func (s *requester) goBack() {
	s.gaps.begin(!s.sq[s.ack&s.mask].Op.NeedsResponse(), s.maxPSN)
	s.rewind()
}

func (s *requester) rewind() {
	s.txPSN, s.tx, s.stalled = s.una, s.ack, false
	s.timers.dropSample()
}

// skip goes on behind everything that was sent.
func (s *requester) skip() {
	s.txPSN, s.tx = s.maxPSN, s.fresh
	if last := &s.sq[(s.fresh-1)&s.mask]; s.maxPSN != last.lastPSN.Add(1) {
		s.tx--
	}
}

// testPeer makes the retransmission at hand a test of the peer's out-of-order buffer where it can be one.
func (s *requester) testPeer() {
	if s.window.mode != windowOff && s.attr.State != ib.Err && !s.sq[s.ack&s.mask].Op.NeedsResponse() {
		s.gaps.test()
	}
}

// filledGap takes an acknowledgement that moved una by n packets, and reports whether the packet at una must be sent
// again now: it is lost too. READs and atomics are sent again only after a NAK.
func (s *requester) filledGap(n uint32) (again bool) {
	return s.gaps.filled(n, s.una) && !s.sq[s.ack&s.mask].Op.NeedsResponse()
}
