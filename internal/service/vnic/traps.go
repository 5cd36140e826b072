// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"math/bits"
	"time"

	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

const (
	// trapWindow is 4.096 µs · 2^18: the response time that the agent states.
	trapWindow = 1073741 * time.Microsecond
	// windowTraps is how many traps of a port are sent within it.
	windowTraps = 5
)

// traps are the unreported events of a port: each kind once, however often it happened, and at most
// windowTraps in a trapWindow.
type traps struct {
	dirty  uint8     // by opcode
	since  mono.Time // the oldest of them
	window mono.Time // when the first of the window was sent; 0: none was
	sent   int       // in it
}

func (t *traps) mark(now mono.Time, op mad.VEMAOpcode) {
	if t.dirty == 0 {
		t.since = now
	}
	t.dirty |= 1 << op
}

func (t *traps) next(now mono.Time) (op mad.VEMAOpcode, ok bool) {
	if t.dirty == 0 {
		return 0, false
	}
	if t.window == 0 || now >= t.window.Add(trapWindow) {
		t.window, t.sent = now, 0
	}
	if t.sent == windowTraps {
		return 0, false
	}
	t.sent++
	op = mad.VEMAOpcode(bits.TrailingZeros8(t.dirty))
	t.dirty &= t.dirty - 1
	return op, true
}

func (t *traps) deadline() mono.Time {
	switch {
	case t.dirty == 0:
		return 0
	case t.sent == windowTraps:
		return max(t.since, t.window.Add(trapWindow))
	}
	return t.since
}
