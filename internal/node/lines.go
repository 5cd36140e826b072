// SPDX-License-Identifier: Apache-2.0

package node

import "time"

// Lines about what clients did wrong: so many at once, then one a second.
// Whoever connects again and again must not fill the log.
const (
	lineBurst  = 20
	linePeriod = time.Second
)

// lines decides which lines are written. The zero value is ready; the caller
// serialises the calls.
type lines struct {
	full time.Time // when the burst is available again
	held uint64
}

// take reports whether a line may be written now, and how many before it were
// not.
func (l *lines) take(now time.Time) (held uint64, ok bool) {
	if l.full.Before(now) {
		l.full = now
	}
	next := l.full.Add(linePeriod)
	if next.Sub(now) > lineBurst*linePeriod {
		l.held++
		return 0, false
	}
	l.full = next
	held, l.held = l.held, 0
	return held, true
}
