// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// timers are the deadlines of a requester and the round trips that its probes follow. A zero Time is a timer that does
// not run.
//
// Invariants: probeAt runs only while ackAt does; ackAt and rnrAt do not run at the same time.
type timers struct {
	ackAt   mono.Time // the local ACK timeout; it runs while packets are unacknowledged, unless Attr.Timeout is 0
	rnrAt   mono.Time // the end of the time that an RNR NAK states; while it runs the requester is stalled
	probeAt mono.Time // when to look for the loss of what was sent last, on a path that can lose packets
	// probes counts since the last progress. While it is not 0, one packet leaves at a time.
	probes uint8
	// sampleAt is when the packet before samplePSN left, sent once so far: its acknowledgement is a round trip. Zero
	// while no packet is timed, and samplePSN counts only while one is.
	sampleAt  mono.Time
	samplePSN ib.PSN
	rtt       time.Duration // the smoothed round trip; 0 before the first was measured
}

const (
	// minAckTimeout is the shortest local ACK timeout that is honoured: a peer in software is scheduled, and below
	// this a busy processor looks like loss.
	minAckTimeout = time.Millisecond
	// ackTolerance is how many times its nominal value the local ACK timeout is: as long as it may be (IBA volume 1,
	// 9.7.6.1.3). Probes find losses; what is left for the timeout is a peer that is gone, or one that does not run or
	// is not reachable for a moment, which the 0.5 s that most programs configure would not cover.
	ackTolerance = 4
	// probeSlack is what a probe allows for, beyond measured round trips.
	probeSlack = 50 * time.Microsecond
	// firstProbe is when to probe before the first round trip was measured.
	firstProbe = 16 * time.Millisecond
)

// startAck starts the local ACK timer for a nominal timeout d; where d is 0 the timers stay as they are. probe reports
// that the path can lose packets.
func (t *timers) startAck(now mono.Time, d time.Duration, probe bool) {
	if d != 0 {
		t.ackAt = now.Add(max(ackTolerance*d, minAckTimeout))
		t.startProbe(now, probe)
	}
}

// startProbe sets the time of the next probe: longer than round trips take, twice as long after each probe without
// progress. A probe that was needless, since the peer did not run for a moment, costs a packet.
func (t *timers) startProbe(now mono.Time, probe bool) {
	if t.probeAt = 0; !probe {
		return
	}
	d := firstProbe
	if t.rtt != 0 {
		d = probeSlack + 2*t.rtt
	}
	t.probeAt = now.Add(d << min(t.probes, 6))
}

// countProbe counts a probe that leaves.
func (t *timers) countProbe() { t.probes = min(t.probes, 254) + 1 }

// startRNR starts the wait that an RNR NAK states: nothing is sent, so nothing else is timed.
func (t *timers) startRNR(now mono.Time, d time.Duration) {
	t.rnrAt, t.ackAt, t.probeAt = now.Add(d), 0, 0
}

// stopAck stops the timers of unacknowledged packets: there are none.
func (t *timers) stopAck() { t.ackAt, t.probeAt = 0, 0 }

// stop stops every timer.
func (t *timers) stop() { t.ackAt, t.rnrAt, t.probeAt = 0, 0, 0 }

// due reports whether a deadline has passed.
func (t *timers) due(now mono.Time) bool {
	return t.ackAt.Due(now) || t.rnrAt.Due(now) || t.probeAt.Due(now)
}

// deadline returns the earliest deadline.
func (t *timers) deadline() mono.Time { return mono.Min(mono.Min(t.ackAt, t.rnrAt), t.probeAt) }

// sample times the packet psn, which leaves now for the first time, unless another packet is being timed.
func (t *timers) sample(now mono.Time, psn ib.PSN) {
	if t.sampleAt.IsZero() {
		t.sampleAt, t.samplePSN = now, psn.Add(1)
	}
}

// dropSample abandons the measurement: the packet may be sent again, and its acknowledgement could be either's.
func (t *timers) dropSample() { t.sampleAt = 0 }

// acknowledged takes the acknowledgement of n packets from una on, and measures the round trip if the timed packet is
// among them.
func (t *timers) acknowledged(now mono.Time, una ib.PSN, n uint32) {
	if !t.sampleAt.IsZero() && dist(t.samplePSN, una) <= n {
		t.measured(now.Sub(t.sampleAt))
	}
}

// measured takes one round trip (RFC 6298, section 2).
func (t *timers) measured(d time.Duration) {
	t.sampleAt = 0
	if d = max(d, 1); t.rtt == 0 {
		t.rtt = d
		return
	}
	t.rtt += (d - t.rtt) / 8
}
