// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"testing"
	"time"

	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// waiting returns a master with a heavy sweep in a phase that waits for an answer while the next one is due.
func waiting(t *testing.T, p phase) (*Manager, mono.Time) {
	t.Helper()
	m, err := New(Config{PortGUID: 1}, Intent{}, Observations{})
	if err != nil {
		t.Fatal(err)
	}
	now := mono.Time(time.Hour)
	m.permitted, m.state = true, mad.SMMaster
	s := m.begin(now, heavy, "a test")
	s.phase = p
	m.requests.add(mad.MethodSet, mad.AttrSMInfo, mad.SMHandover, nil, ignored)
	for range 2 {
		var d mad.Datagram
		if !m.requests.transmit(now, &d) {
			t.Fatal("nothing to send")
		}
		now = now.Add(m.cfg.Timeout)
	}
	m.sweepSoon(now, "a trap")
	m.heavyAt = now
	return m, now
}

// TestCut: a sweep that waits ends when the next one is due, some times in a row; not while it hands over.
func TestCut(t *testing.T) {
	for p := discovering; p < finished; p++ {
		m, now := waiting(t, p)
		s := m.sweep
		m.tick(now)
		if cut := m.sweep != s; cut != (p < handing) || m.requests.busy() != (m.sweep != nil) {
			t.Errorf("phase %d: cut %v, requests are under way: %v", p, cut, m.requests.busy())
		}
	}
	m, now := waiting(t, routing)
	s := m.sweep
	m.cut = mostCut
	m.tick(now)
	if m.sweep != s {
		t.Errorf("cut more than %d times", mostCut)
	}
}

// TestCutsBeginAnew: the sweeps that are cut in a row are those of one term, and end with one that failed.
func TestCutsBeginAnew(t *testing.T) {
	m, now := waiting(t, routing)
	m.cut = mostCut
	m.become(now, mad.SMStandby, "a test")
	if m.cut != 0 {
		t.Errorf("%d cuts of another term", m.cut)
	}
	m, now = waiting(t, discovering)
	m.cut = mostCut
	m.endFailed(now, "a test")
	if m.cut != 0 {
		t.Errorf("%d cuts before a sweep that failed", m.cut)
	}
}
