// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"fmt"
	"net/netip"

	"weft/internal/proto/mono"
	"weft/internal/service/ipoib/stats"
)

// reporter reports what happens to a link, as events of the device. It implements connected.Reporter.
type reporter struct {
	device Events
	p      *Params
	stats  *stats.Recorder
	last   map[string]mono.Time // when a cause was reported last
	now    mono.Time            // of the last call that may drop frames
}

func newReporter(device Events, p *Params, rec *stats.Recorder) *reporter {
	r := &reporter{device: device, p: p, stats: rec, last: map[string]mono.Time{}}
	rec.OnDrop = r.dropped
	return r
}

func (r *reporter) event(now mono.Time, k EventKind, a netip.Addr, text string) {
	r.device.Event(now, Event{Kind: k, Addr: a, Text: text})
}

// Logf reports a failure, one of each cause within logEvery.
func (r *reporter) Logf(now mono.Time, cause, format string, args ...any) {
	r.stats.Driver.LoggedErrors++
	if r.allowed(now, cause) {
		r.event(now, EventLog, netip.Addr{}, fmt.Sprintf(format, args...))
	}
}

// allowed reports whether a cause may be reported now, and counts it as reported.
func (r *reporter) allowed(now mono.Time, cause string) bool {
	if last, ok := r.last[cause]; ok && now.Sub(last) < logEvery {
		return false
	}
	if len(r.last) > 256 {
		clear(r.last)
	}
	r.last[cause] = now
	return true
}

// debugf reports what parameter debug selects.
func (r *reporter) debugf(now mono.Time, what uint, format string, args ...any) {
	if r.p.Debug&what != 0 {
		r.event(now, EventLog, netip.Addr{}, fmt.Sprintf(format, args...))
	}
}

// Debugf reports a step of the life cycle of a connection.
func (r *reporter) Debugf(now mono.Time, format string, args ...any) {
	r.debugf(now, DebugControl, format, args...)
}

// dropped reports the reason of a dropped frame, where parameter debug selects it.
func (r *reporter) dropped(d stats.Drop) {
	if r.p.Debug&DebugData != 0 && r.allowed(r.now, d.String()) {
		r.event(r.now, EventLog, netip.Addr{}, d.String())
	}
}
