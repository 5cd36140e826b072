// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"testing"
	"time"

	"weft/internal/proto/mono"
)

const timersStart = mono.Time(time.Second)

func TestTimersAckTimeout(t *testing.T) {
	for _, c := range []struct{ nominal, want time.Duration }{
		{time.Second, 4 * time.Second},
		{time.Microsecond, time.Millisecond}, // honoured no shorter
	} {
		var x timers
		x.startAck(timersStart, c.nominal, false)
		if got := x.ackAt.Sub(timersStart); got != c.want || x.probeAt != 0 {
			t.Errorf("nominal %v: %v, want %v, and a probe at %v", c.nominal, got, c.want, x.probeAt)
		}
	}
	var x timers
	x.startAck(timersStart, 0, true)
	if x.deadline() != 0 || x.due(timersStart.Add(time.Hour)) {
		t.Error("timeout 0 starts a timer")
	}
}

func TestTimersProbeFollowsRoundTrips(t *testing.T) {
	var x timers
	x.startAck(timersStart, time.Second, true)
	if got := x.probeAt.Sub(timersStart); got != firstProbe {
		t.Errorf("before a round trip was measured: %v, want %v", got, firstProbe)
	}
	x.sample(timersStart, 100)
	x.sample(timersStart.Add(time.Millisecond), 101) // one at a time
	x.acknowledged(timersStart.Add(time.Microsecond), 100, 0)
	if x.rtt != 0 {
		t.Error("an acknowledgement of nothing measured a round trip")
	}
	x.acknowledged(timersStart.Add(80*time.Microsecond), 100, 1)
	if x.rtt != 80*time.Microsecond || x.sampleAt != 0 {
		t.Fatalf("round trip %v", x.rtt)
	}
	x.startProbe(timersStart, true)
	if got := x.probeAt.Sub(timersStart); got != 210*time.Microsecond {
		t.Errorf("a probe after %v, want 210µs", got)
	}
	for _, want := range []time.Duration{420 * time.Microsecond, 840 * time.Microsecond} {
		x.countProbe()
		x.startProbe(timersStart, true)
		if got := x.probeAt.Sub(timersStart); got != want {
			t.Errorf("after %d probes: %v, want %v", x.probes, got, want)
		}
	}
	for range 1000 {
		x.countProbe()
	}
	x.startProbe(timersStart, true)
	if got := x.probeAt.Sub(timersStart); x.probes != 255 || got != 64*210*time.Microsecond {
		t.Errorf("after %d probes: %v", x.probes, got)
	}
}

func TestTimersSmoothRoundTrips(t *testing.T) {
	var x timers
	x.measured(0)
	if x.rtt != 1 {
		t.Error("a round trip of 0 counts as unknown")
	}
	x.rtt = 800
	x.measured(1600)
	if x.rtt != 900 {
		t.Errorf("round trip %d, want 900", x.rtt)
	}
}

func TestTimersDroppedSampleIsNotMeasured(t *testing.T) {
	var x timers
	x.sample(timersStart, 100)
	x.dropSample()
	x.acknowledged(timersStart.Add(time.Second), 100, 5)
	if x.rtt != 0 {
		t.Error("a packet that was sent again was measured")
	}
}

func TestTimersRNRStopsTheOthers(t *testing.T) {
	var x timers
	x.startAck(timersStart, time.Second, true)
	x.startRNR(timersStart, 10*time.Millisecond)
	if x.ackAt != 0 || x.probeAt != 0 || x.deadline() != timersStart.Add(10*time.Millisecond) {
		t.Errorf("beside the RNR timer: %+v", x)
	}
	if x.due(timersStart) || !x.due(timersStart.Add(10*time.Millisecond)) {
		t.Error("due at another time than the deadline")
	}
	x.stop()
	if x.deadline() != 0 {
		t.Error("a timer runs after stop")
	}
}
