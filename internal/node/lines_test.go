// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
)

func TestLines(t *testing.T) {
	var l lines
	now := time.Unix(1000, 0)
	count := func(n int) (written int, held uint64) {
		for range n {
			h, ok := l.take(now)
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
		held    uint64 // told of by the lines written
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
			t.Errorf("after %v, %d calls: %d written, telling of %d; want %d, %d", step.wait, step.calls, written, held, step.written, step.held)
		}
	}
}

// TestLogStaysSmall: a client that misbehaves in a loop is counted each time
// and logged a few times.
func TestLogStaysSmall(t *testing.T) {
	r := run(t, nil)
	const n = 10 * lineBurst
	start := time.Now()
	for range n {
		f, err := vhosttest.Dial(r.door())
		if err != nil {
			t.Fatal(err)
		}
		f.Send(abi.ReqGetFeatures, 0x17, nil)
		f.Recv(abi.ReqGetFeatures) // returns at the end of the connection
		f.Close()
	}
	eventually(t, "all are counted", func() bool { return r.counter(api.ScopeNode, "session_end_bad_header") == n })
	got, most := r.logs.count("session ended"), lineBurst+int(time.Since(start)/linePeriod)+1
	if got < lineBurst || got > most {
		t.Errorf("%d lines for %d sessions, want %d to %d", got, n, lineBurst, most)
	}
}
