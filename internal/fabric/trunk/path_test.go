// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"testing"
	"time"
)

// joined is two hosts with a trunk that has measured its path of 8972 octets.
func joined(t *testing.T) (w *world, a, b *host) {
	t.Helper()
	w = newWorld(t, 8)
	key := psk(t, 1)
	a, b = w.host(0xa, 8972, key, nil, 0xb), w.host(0xb, 8972, key, nil, 0xa)
	if !w.run(5*time.Second, both(a, b, measured)) {
		t.Fatalf("not measured: %+v", a.core.Status(0))
	}
	return w, a, b
}

func measured(s Status) bool { return s.Measured }

func both(a, b *host, is func(Status) bool) func() bool {
	return func() bool { return is(a.core.Status(0)) && is(b.core.Status(0)) }
}

// TestPathShrinks: a path that passes less than it did, which no end is told, is found while the trunk is up, and large
// packets pass again. RFC 8899, section 4.3, calls it a black hole.
func TestPathShrinks(t *testing.T) {
	for _, hole := range []int{8900, 3000, BaseDatagram} {
		w, a, b := joined(t)
		w.hole = hole
		from := w.now
		if !w.run(10*time.Second, both(a, b, func(s Status) bool { return s.Limit <= hole })) {
			t.Errorf("%d: after 10 s the limit is %d", hole, a.core.Status(0).Limit)
			continue
		}
		t.Logf("path of %d: found after %v", hole, w.now.Sub(from))
		// As soon as it is found, packets are cut accordingly.
		for i, h := range []*host{a, b} {
			if n := h.core.Remote(0).Limit; n > hole {
				t.Errorf("%d: packets are cut for %d", hole, n)
			}
			h.send(0, numbered(i, 8500))
		}
		w.run(10*time.Millisecond, never)
		if len(a.got) != 1 || len(b.got) != 1 {
			t.Errorf("%d: %d and %d packets arrive", hole, len(a.got), len(b.got))
		}
		if !w.run(10*time.Second, both(a, b, func(s Status) bool { return s.Hole })) {
			t.Errorf("%d: the hole is not in the status: %+v", hole, a.core.Status(0))
		}
		if n := a.core.Status(0).Limit; n > hole || n < hole-probeStep {
			t.Errorf("%d: the limit is %d", hole, n)
		}
		if s := a.core.Status(0); !s.Up || s.Downs != 0 {
			t.Errorf("%d: %+v", hole, s)
		}
		w.hole = 0
		if !w.run(40*time.Second, both(a, b, measured)) {
			t.Errorf("%d: the path is wide again: %+v", hole, a.core.Status(0))
		}
	}
}

// TestPathBelowBase: a path that passes less than every path has to is reported as well, while the trunk is up.
func TestPathBelowBase(t *testing.T) {
	w, a, b := joined(t)
	w.hole = 1000
	if !w.run(20*time.Second, both(a, b, func(s Status) bool { return s.Hole && s.Up && s.Limit <= BaseDatagram })) {
		t.Errorf("%+v", a.core.Status(0))
	}
}

// TestPathWithLoss: loss that hits datagrams of every size is no hole, and the status does not flicker.
func TestPathWithLoss(t *testing.T) {
	w, a, b := joined(t)
	w.loss = 0.05
	if w.run(5*time.Minute, func() bool {
		return !both(a, b, measured)() && a.core.Status(0).Downs+b.core.Status(0).Downs == 0
	}) {
		t.Errorf("after %v a limit is %d or %d", w.now, a.core.Status(0).Limit, b.core.Status(0).Limit)
	}
	if n := a.core.Status(0).Probes; n < 30 {
		t.Errorf("%d probes: the size that passes is not proved again", n)
	}
}

// TestPathAfterStorm: whatever a storm of loss led to, the path is measured again after it.
func TestPathAfterStorm(t *testing.T) {
	w, a, b := joined(t)
	w.loss = 0.4
	w.run(time.Minute, never)
	w.loss = 0
	if !w.run(2*probeAgain, both(a, b, measured)) {
		t.Errorf("%+v", a.core.Status(0))
	}
}

// TestLimitOfPeer: a peer that states a limit below any path's gets no datagram above it, and harms no one.
func TestLimitOfPeer(t *testing.T) {
	for _, stated := range []int{1, 100, MinDatagram - 1, MinDatagram, 65535, 1 << 20} {
		w, a, b := joined(t)
		b.core.SetLimit(0, stated)
		w.run(5*time.Second, never)
		limit := a.core.Remote(0).Limit
		if limit > 8972 || stated <= 65535 && limit > stated {
			t.Errorf("the peer states %d: the limit is %d", stated, limit)
		}
		a.send(0, numbered(1, 4000))
		w.run(10*time.Millisecond, never)
		if got := len(b.got); got != 1 && limit >= MinDatagram {
			t.Errorf("the peer states %d: %d packets arrive", stated, got)
		}
	}
}
