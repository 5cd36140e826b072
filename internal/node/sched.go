// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// niceLane is the nice value a lane asks for: it works for every program of
// the node and sleeps when none of them wants anything.
const niceLane = -15

// raisePriority makes the calling thread run soon after it is woken. A short
// slice is what a fair scheduler (Linux 6.12 and later) takes as "prefer this
// thread when it wakes"; it needs no privilege. Real time is for those who ask:
// a lane that spins then keeps everybody else off its processor.
func raisePriority(realTime bool) (error, bool) {
	if realTime {
		a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
		if err := unix.SchedSetAttr(0, &a, 0); err != nil {
			return fmt.Errorf("real-time priority: %w", err), false
		}
		return nil, true
	}
	setPriority(niceLane)
	return nil, false
}

// setPriority gives the calling thread a nice value, where it may have that, and the short slice.
func setPriority(nice int32) {
	a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: nice, Runtime: shortSlice}
	if unix.SchedSetAttr(0, &a, 0) != nil && nice != 0 {
		a.Nice = 0
		unix.SchedSetAttr(0, &a, 0) // an older kernel refuses the slice: all is as usual then
	}
}

// shortSlice is the shortest the kernel grants, in nanoseconds.
const shortSlice = 100_000
