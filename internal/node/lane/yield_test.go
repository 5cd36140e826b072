// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"testing"
	"time"
)

// TestLostYield: a long absence is made good by as much data, as from a lane
// of another node that had the processor meanwhile, and by nothing less.
func TestLostYield(t *testing.T) {
	for _, c := range []struct {
		name  string
		away  time.Duration
		bytes uint64
		lost  bool
	}{
		{"soon back, nothing to do", 10 * time.Microsecond, 0, false},
		{"at the limit", patience, 0, false},
		{"long away for a small message", patience + time.Microsecond, 8, true},
		{"a window of 1 MiB came meanwhile", 600 * time.Microsecond, 1 << 20, false},
		{"a slice of a thread that does not yield, with a little data", 1400 * time.Microsecond, 64 << 10, true},
		{"the same with a window of data", 1400 * time.Microsecond, 1 << 20, true},
		{"a tick", 4 * time.Millisecond, 1 << 20, true},
	} {
		if got := costlyYield(c.away, c.bytes); got != c.lost {
			t.Errorf("%s: costlyYield(%v, %d) = %v, want %v", c.name, c.away, c.bytes, got, c.lost)
		}
	}
}
