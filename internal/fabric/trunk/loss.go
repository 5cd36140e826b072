// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"time"

	"weft/internal/proto/mono"
)

// LossWindow is the time over which the rate of lost datagrams is taken.
const LossWindow = 10 * time.Second

// Bounds of the state in which a trunk loses datagrams.
const (
	lossStep  = time.Second
	lossMarks = int(LossWindow/lossStep) + 1
	// A window with fewer datagrams is too short to decide whether the trunk loses datagrams.
	lossLeast = 100
	// The state begins when a window has at least lossCount lost datagrams at a rate of lossOn, and ends below lossOff.
	lossCount      = 8
	lossOn         = 0.005
	lossOff        = 0.0025
	lossForget     = time.Minute // the state ends after this time with too few datagrams
	lossSettle     = time.Second // after a trunk came up: datagrams that an outage took do not count as lost
	lossUnmeasured = -1
)

// lossMark is what had been received and lost at a time.
type lossMark struct {
	at             mono.Time
	received, lost uint64
}

// lossRate measures which share of the datagrams that a peer sent in the newest LossWindow did not arrive. The zero
// value has measured nothing.
type lossRate struct {
	marks  [lossMarks]lossMark // of the window, the oldest first
	n      int
	recent float64   // of the window; lossUnmeasured: it had too few datagrams
	rate   float64   // as last measured
	lossy  bool      // the trunk loses datagrams
	judged mono.Time // when rate was measured
}

// reset begins the window anew: what is received and lost until the next tick does not count.
func (l *lossRate) reset() { l.n, l.recent = 0, lossUnmeasured }

// tick takes the totals of datagrams that have been received, and that are missing, at a time.
func (l *lossRate) tick(now mono.Time, received, lost uint64) {
	if l.n > 0 && now.Sub(l.marks[l.n-1].at) < lossStep {
		return
	}
	old := 0
	for old < l.n && now.Sub(l.marks[old].at) > LossWindow {
		old++
	}
	if l.n-old == lossMarks {
		old++
	}
	l.n = copy(l.marks[:], l.marks[old:l.n])
	l.marks[l.n] = lossMark{now, received, lost}
	l.n++
	first := &l.marks[0]
	missing := lost - min(lost, first.lost) // a late datagram fills a gap of an earlier window
	expected := received - first.received + missing
	if expected < lossLeast {
		l.recent = lossUnmeasured
		if l.lossy && now.Sub(l.judged) >= lossForget {
			l.lossy = false
		}
		return
	}
	l.recent = float64(missing) / float64(expected)
	l.rate, l.judged = l.recent, now
	if l.lossy {
		l.lossy = l.rate >= lossOff
	} else {
		l.lossy = l.rate >= lossOn && missing >= lossCount
	}
}
