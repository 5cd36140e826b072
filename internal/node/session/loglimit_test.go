// SPDX-License-Identifier: Apache-2.0

package session

import (
	"testing"
	"time"
)

func TestLogLimit(t *testing.T) {
	var l logLimit
	now := time.Unix(1000, 0)
	count := func(n int) (written int, held uint64) {
		for range n {
			h, ok := l.allow(now)
			if ok {
				written++
			}
			held += h
		}
		return written, held
	}
	for _, step := range []struct {
		wait    time.Duration
		calls   int
		written int
		held    uint64 // reported by the lines written
	}{
		{0, 5, 5, 0},
		{0, 1000, lineBurst - 5, 0},
		{linePeriod - 1, 10, 0, 0},
		{1, 10, 1, 985 + 10},
		{10 * linePeriod, 12, 10, 9},
		{time.Hour, 2 * lineBurst, lineBurst, 2},
	} {
		now = now.Add(step.wait)
		if written, held := count(step.calls); written != step.written || held != step.held {
			t.Errorf("after %v, %d calls: %d written, telling of %d; want %d, %d", step.wait, step.calls, written,
				held, step.written, step.held)
		}
	}
}
