// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"weft/internal/control/api"
	"weft/internal/device/vhost"
	"weft/internal/node/lane"
)

// errMemoryStuck ends a session because a copy waits for its memory (docs/notes/process-memory.md).
var errMemoryStuck = fmt.Errorf("a copy from or to its memory has not ended after %v", lane.StuckAfter)

// Watchdog detects lanes that are stuck, and ends the sessions with memory that a copy waits for. One goroutine calls
// it.
type Watchdog struct {
	r      *Registry
	probed []time.Time // by lane: see lane.Check
	copies map[*Session]sample
}

// sample is the number of copies of a process's memory that have ended, and since when.
type sample struct {
	ended uint64
	since time.Time
}

// NewWatchdog returns a watchdog of the lanes as they are at a time.
func (r *Registry) NewWatchdog(now time.Time) *Watchdog {
	w := &Watchdog{r: r, probed: make([]time.Time, len(r.lanes.All())), copies: make(map[*Session]sample)}
	for i := range w.probed {
		w.probed[i] = now
	}
	return w
}

// Check probes lanes and copies, and reports whether a lane that has not ended is stuck. It is called every
// lane.WatchPeriod.
func (w *Watchdog) Check(now time.Time) (stuck bool) {
	for i, l := range w.r.lanes.All() {
		w.probed[i] = l.Check(now, w.probed[i])
		stuck = stuck || l.Stuck() && !l.Ended()
	}
	w.checkCopies(now)
	return stuck
}

// checkCopies ends the sessions with memory that a copy waits for.
func (w *Watchdog) checkCopies(now time.Time) {
	programs := w.r.Programs()
	seen := make(map[*Session]bool, len(programs))
	for _, d := range programs {
		p := d.process()
		if p == nil {
			continue
		}
		seen[d] = true
		ended, busy := p.Calls()
		s, known := w.copies[d]
		switch {
		case !known || !busy || ended != s.ended:
			w.copies[d] = sample{ended, now}
			d.waits.Store(false)
		case now.Sub(s.since) >= lane.StuckAfter && !d.waits.Swap(true):
			d.s.Fail(vhost.StuckMemory, errMemoryStuck)
		}
	}
	for d := range w.copies {
		if !seen[d] {
			delete(w.copies, d)
		}
	}
}

// StuckReason returns what a lane waits for.
func (r *Registry) StuckReason() string {
	var programs []string
	for _, d := range r.Programs() {
		if d.waits.Load() {
			programs = append(programs, fmt.Sprintf("%s (pid %d)", d.comm, d.pid))
		}
	}
	if programs == nil {
		return fmt.Sprintf("a lane has given no sign of life for %v", lane.StuckAfter)
	}
	return fmt.Sprintf("a copy from or to the memory of %s has not ended", strings.Join(programs, ", "))
}

// Degraded lists what is wrong with sessions and lanes.
func (r *Registry) Degraded() (list []api.Degraded) {
	for _, d := range r.Programs() {
		if d.waits.Load() {
			list = append(list, api.Degraded{What: "stuck_memory", Why: fmt.Sprintf("%s (pid %d): %v", d.comm, d.pid,
				errMemoryStuck),
				Fix: fmt.Sprintf("kill -9 %d, and end what serves its memory: a file system in user space, or a handler of page faults", d.pid)})
		}
	}
	for i, l := range r.lanes.All() {
		if l.Stuck() {
			list = append(list, api.Degraded{What: "stuck_lane",
				Why: fmt.Sprintf("lane %d and its sessions stand still: %v, or for a processor", i, lane.ErrStuck),
				Fix: "see stuck_memory; else give the node a processor"})
		}
	}
	if e := vhost.SharedCalls(); e != nil {
		list = append(list, api.Degraded{What: "shared_calls",
			Why: fmt.Sprintf("a client can delay a lane by the eventfd it is notified by: %v", e),
			Fix: "let the node use asynchronous I/O (io_setup; fs.aio-max-nr)"})
	}
	for _, d := range r.Programs() {
		if m := d.slow(); m != "" {
			list = append(list, api.Degraded{What: "slow_memory_access", Why: fmt.Sprintf("%s (pid %d): %s", d.comm,
				d.pid, m),
				Fix: "run the node as the program's user or as root, or the program with weft run --arena -- PROGRAM"})
		}
		if why := d.protection(); why != "" {
			list = append(list, api.Degraded{What: "protected_memory", Why: fmt.Sprintf("%s (pid %d): %s", d.comm, d.pid,
				why),
				Fix: "end the registration before the memory is protected, or weft run --arena -- PROGRAM"})
		}
	}
	return slices.Concat(list, r.shortages(time.Now()), r.socketsDegraded(time.Now()))
}
