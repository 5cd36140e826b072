// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// raisePriority asks for what makes a lane run soon after it is kicked: real
// time where that is allowed, else a short slice, which a fair scheduler
// (Linux 6.12 and later) takes as "prefer this thread when it wakes". Both are
// per thread; failing is normal and costs latency only.
func raisePriority(log *slog.Logger) (realTime bool) {
	fifo := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(0, &fifo, 0); err == nil {
		return true
	}
	short := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Runtime: 100_000}
	if err := unix.SchedSetAttr(0, &short, 0); err != nil {
		log.Debug("lane keeps the default scheduling slice", "err", err)
	}
	return false
}
