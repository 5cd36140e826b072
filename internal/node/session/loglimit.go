// SPDX-License-Identifier: Apache-2.0

package session

import "time"

// Lines about mistakes of clients: so many at once, then one a second. A client that connects again and again must not
// fill the log.
const (
	lineBurst  = 20
	linePeriod = time.Second
)

// logLimit decides which lines are written. The zero value is ready; the caller serialises the calls.
type logLimit struct {
	full time.Time // when the burst is available again
	held uint64
}

// allow reports whether a line may be written now, and how many before it were not.
func (l *logLimit) allow(now time.Time) (held uint64, ok bool) {
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
