// SPDX-License-Identifier: Apache-2.0

package lane

import "time"

// A copy from or to the memory of a process waits for the server of its page: a file system in user space or a handler
// of page faults may take forever, and the lane with it (docs/notes/process-memory.md). A watchdog of the node detects
// that with Check.
const (
	// WatchPeriod is the time between two checks of a lane.
	WatchPeriod = 250 * time.Millisecond
	// StuckAfter is how long a lane may take to run a function before it counts as stuck.
	StuckAfter = 3 * time.Second
)

// Stuck reports whether the last Check found that the lane runs nothing. Any goroutine may call it.
func (l *Lane) Stuck() bool { return l.stuck.Load() }

// Check probes whether the lane runs functions, and marks the lane as stuck where the last probe is overdue. It does
// not wake a sleeping lane. probed is the result of the last Check, the zero time at first: when the open probe was
// posted. One goroutine at a time calls it.
func (l *Lane) Check(now, probed time.Time) time.Time {
	if l.probe.Load() {
		if now.Sub(probed) >= StuckAfter {
			l.stuck.Store(true)
		}
		return probed
	}
	l.stuck.Store(false)
	if !l.asleep.Load() {
		l.probe.Store(true)
		l.Post(func() { l.probe.Store(false) })
	}
	return now
}
