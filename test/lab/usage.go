// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what a process has of the machine.
type Usage struct {
	CPU      time.Duration // user and system time since its start
	RSS, PSS int           // resident memory in octets, and with each page divided by the processes that share it
	Threads  int
}

// hertz is the unit of processor times in /proc (USER_HZ), the same on each architecture that Linux has Go for.
const hertz = 100

// UsageOf returns what a process has of the machine now.
func UsageOf(pid int) (u Usage, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	// proc(5): the name of the program, in parentheses, may hold spaces; the state follows as field 3.
	f := strings.Fields(string(stat[strings.LastIndex(string(stat), ")")+1:]))
	if len(f) < 18 {
		return u, fmt.Errorf("/proc/%d/stat has %d fields after the name", pid, len(f))
	}
	user, err1 := strconv.Atoi(f[14-3])
	system, err2 := strconv.Atoi(f[15-3])
	threads, err3 := strconv.Atoi(f[20-3])
	if err1 != nil || err2 != nil || err3 != nil {
		return u, fmt.Errorf("/proc/%d/stat: %q", pid, stat)
	}
	u.CPU, u.Threads = time.Duration(user+system)*time.Second/hertz, threads
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(rollup)) {
		var kib int
		if n, _ := fmt.Sscanf(line, "Rss: %d kB", &kib); n == 1 {
			u.RSS = kib << 10
		}
		if n, _ := fmt.Sscanf(line, "Pss: %d kB", &kib); n == 1 {
			u.PSS = kib << 10
		}
	}
	if u.RSS == 0 || u.PSS == 0 {
		return u, fmt.Errorf("/proc/%d/smaps_rollup has no Rss or Pss:\n%s", pid, rollup)
	}
	return u, nil
}
