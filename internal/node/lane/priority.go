// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// niceLane is the nice value of a lane where the system grants it: a lane works for every program of the node and
// sleeps when there is no work.
const niceLane = -15

// raisePriority makes the calling thread run soon after it is woken. A fair scheduler (Linux 6.12 and later) prefers a
// thread with a short slice when it wakes; that needs no privilege. Real-time priority is optional: a lane that spins
// then keeps every other thread off its processor.
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

// setPriority sets the nice value of the calling thread, where that is permitted, and the short slice.
func setPriority(nice int32) {
	a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: nice, Runtime: shortSlice}
	if unix.SchedSetAttr(0, &a, 0) != nil && nice != 0 {
		a.Nice = 0
		unix.SchedSetAttr(0, &a, 0) // an older kernel refuses the slice; the defaults then apply
	}
}

// shortSlice is the shortest the kernel grants, in nanoseconds.
const shortSlice = 100_000
