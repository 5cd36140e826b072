// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"weft/internal/proto/mono"
)

// lossFeed passes datagrams to a lossRate, some of which are lost.
type lossFeed struct {
	lossRate
	now            mono.Time
	received, lost uint64
}

// run lets time pass in steps of 100 ms: each second, so many datagrams are sent and so many of these are lost.
func (f *lossFeed) run(during time.Duration, sent, lost uint64) {
	for end := f.now.Add(during); f.now < end; {
		f.now = f.now.Add(100 * time.Millisecond)
		if f.now%mono.Time(time.Second) == 0 {
			f.received += sent - lost
			f.lost += lost
		}
		f.tick(f.now, f.received, f.lost)
	}
}

func TestLossRate(t *testing.T) {
	type step struct {
		during     time.Duration
		sent, lost uint64 // in each second
		lossy      bool
		rate       float64
	}
	for name, steps := range map[string][]step{
		"nothing sent":       {{30 * time.Second, 0, 0, false, 0}},
		"nothing lost":       {{30 * time.Second, 1000, 0, false, 0}},
		"two percent":        {{3 * time.Second, 1000, 20, true, 0.02}, {20 * time.Second, 1000, 20, true, 0.02}},
		"half":               {{2 * time.Second, 100_000, 54_000, true, 0.54}},
		"all but the newest": {{5 * time.Second, 1000, 999, true, 0.999}},
		"too few to tell":    {{30 * time.Second, 9, 4, false, 0}},
		"few lost":           {{30 * time.Second, 10_000, 30, false, 0.003}},
		"not many lost": {{10 * time.Second, 70, 0, false, 0},
			{1100 * time.Millisecond, 130, 7, false, 7 / (9*70. + 130)}},
		"it ends":               {{20 * time.Second, 1000, 20, true, 0.02}, {11 * time.Second, 1000, 0, false, 0}},
		"it goes on":            {{20 * time.Second, 1000, 20, true, 0.02}, {60 * time.Second, 1000, 3, true, 0.003}},
		"it ends at a low rate": {{20 * time.Second, 1000, 20, true, 0.02}, {12 * time.Second, 1000, 2, false, 0.002}},
		"nothing sent after it": {{20 * time.Second, 1000, 20, true, 0.02}, {30 * time.Second, 0, 0, true, 0.02},
			{60 * time.Second, 0, 0, false, 0.02}},
	} {
		f := &lossFeed{}
		for i, s := range steps {
			f.run(s.during, s.sent, s.lost)
			if f.lossy != s.lossy || math.Abs(f.rate-s.rate) > 0.0005 {
				t.Errorf("%s, step %d: lossy %v, rate %v", name, i, f.lossy, f.rate)
			}
		}
	}
	// Late datagrams fill gaps that the window before has counted.
	f := &lossFeed{}
	f.run(5*time.Second, 1000, 20)
	f.lost -= 90
	f.received += 90
	f.run(12*time.Second, 1000, 0)
	if f.lossy || f.rate != 0 {
		t.Errorf("lossy %v, rate %v", f.lossy, f.rate)
	}
	// What was lost before a reset does not count.
	f = &lossFeed{}
	f.run(5*time.Second, 1000, 0)
	f.lost += 500
	f.reset()
	f.run(5*time.Second, 1000, 0)
	if f.lossy || f.rate != 0 {
		t.Errorf("lossy %v, rate %v", f.lossy, f.rate)
	}
}

// dropping is an Injector that drops two percent of the packets.
type dropping struct{ *rand.Rand }

func (d *dropping) Pass(mono.Time, int, []byte) int {
	if d.Float64() < 0.02 {
		return Lost
	}
	return 1
}
func (d *dropping) Release(mono.Time, func(int, []byte)) {}
func (d *dropping) Deadline() mono.Time                  { return 0 }

// side sends five packets from a, side by side as far as they fit into datagrams, and lets 20 ms pass.
func side(w *world, a *host, size int) {
	for i := range 4 {
		if p := a.batch.Reserve(0, size); p != nil {
			copy(p, numbered(i, size))
			a.batch.Commit(w.now, size)
		}
	}
	a.send(0, numbered(4, size))
	w.run(20*time.Millisecond, never)
}

// TestNetworkLoss: what the network loses shows at the end that lacks it. What an outage took does not, once the trunk
// is up again.
func TestNetworkLoss(t *testing.T) {
	w, a, b := joined(t)
	w.run(2*time.Second, never)
	w.loss = 0.05
	for range 12 * 50 {
		side(w, a, 4096)
	}
	if s := b.core.Status(0); !s.Lossy || s.LossRate < 0.03 || s.LossRate > 0.07 {
		t.Errorf("lossy %v, rate %v", s.Lossy, s.LossRate)
	}
	w.loss = 0
	for range 12 * 50 {
		side(w, a, 4096)
	}
	if s := b.core.Status(0); s.Lossy || s.LossRate != 0 || s.Downs != 0 {
		t.Errorf("afterwards: lossy %v, rate %v, %d downs", s.Lossy, s.LossRate, s.Downs)
	}
	w.loss = 1
	lost := b.core.Status(0).Lost
	for range 50 {
		side(w, a, 4096)
	}
	w.loss = 0
	if !w.run(10*time.Second, both(a, b, func(s Status) bool { return s.Up })) {
		t.Fatal("the trunk does not come back")
	}
	w.run(300*time.Millisecond, never) // the first datagram, which shows the gap, comes a little later
	for range 5 * 50 {
		side(w, a, 4096)
	}
	// Enough was lost for the state, if it counted.
	if s := b.core.Status(0); s.Lost-lost < 2*lossCount || s.Lossy || s.LossRate != 0 || s.Downs != 1 {
		t.Errorf("after an outage: lossy %v, rate %v, %d lost, %d downs", s.Lossy, s.LossRate, s.Lost-lost, s.Downs)
	}
}

// TestInjectedLoss: packets that an Injector drops are missing at the peer, as if the network had lost them, whether
// several are in a datagram, or one in several.
func TestInjectedLoss(t *testing.T) {
	for _, size := range []int{100, 1000, 4096, 10000} {
		w, a, b := joined(t)
		five := func() { side(w, a, size) }
		w.run(2*time.Second, never)
		a.batch.Inject(&dropping{rand.New(rand.NewPCG(1, 2))})
		for range 12 * 50 {
			five()
		}
		s := b.core.Status(0)
		t.Logf("%d octets: rate %.4f, %d of %d", size, s.LossRate, s.Lost, s.Datagrams)
		if !s.Lossy || s.LossRate < 0.012 || s.LossRate > 0.028 {
			t.Errorf("%d octets: lossy %v, rate %v, %d lost", size, s.Lossy, s.LossRate, s.Lost)
		}
		if s := a.core.Status(0); s.Lossy || s.Lost != 0 {
			t.Errorf("%d octets: the other direction: lossy %v, %d lost", size, s.Lossy, s.Lost)
		}
		a.batch.Inject(nil)
		for range 12 * 50 {
			five()
		}
		if s := b.core.Status(0); s.Lossy || s.LossRate != 0 {
			t.Errorf("%d octets: afterwards lossy %v, rate %v", size, s.Lossy, s.LossRate)
		}
	}
}
