// SPDX-License-Identifier: Apache-2.0

package handshake

import (
	"bytes"
	mrand "math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/proto/mono"
)

func apart(c *Config) { c.Apart = true }

// TestApart: handshakes complete where each Work takes its time, over networks with and without faults. Without faults
// nothing is sent twice: what overtakes a Work is kept.
func TestApart(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		a, b := two(t, apart)
		n := &network{sides: []*side{a, b}, rng: mrand.New(mrand.NewPCG(seed, 3)), slow: 30 * time.Millisecond}
		faults := seed%2 == 0
		if faults {
			n.loss, n.dup, n.delay = 0.25, 0.2, 30*time.Millisecond
		}
		a.Begin(ms, 1, b.at)
		took := n.run(t, ms, 8000*ms, func() bool { return len(a.results) > 0 && len(b.results) > 0 })
		if took == 0 || len(a.results)+len(b.results) != 2 {
			t.Fatalf("seed %d: %d and %d results: %+v %+v", seed, len(a.results), len(b.results), a.Counters,
				b.Counters)
		}
		works(t, a.results[0], b.results[0])
		if !faults && (took > 150*ms || a.Unknown+b.Unknown+a.Early+b.Early+a.Forged+b.Forged != 0) {
			t.Errorf("seed %d: took %v: %+v %+v", seed, time.Duration(took), a.Counters, b.Counters)
		}
	}
}

// TestWorkOut: a handshake that ends while its Work is out leaves nothing, and counts until the Work is back.
// The bubble fails when a goroutine remains.
func TestWorkOut(t *testing.T) { synctest.Test(t, workOut) }

func workOut(t *testing.T) {
	a, b := two(t, apart)
	buf := make([]byte, MaxDatagram)
	pass := func(from, to *side) {
		for {
			out, ok := from.Next(ms, buf)
			if !ok {
				return
			}
			to.Handle(ms, from.at, bytes.Clone(buf[:out.Len]))
		}
	}
	a.Begin(ms, 7, b.at)
	pass(a, b)
	pass(b, a)
	w, ok := a.Work(ms)
	if !ok {
		t.Fatal("nothing to compute")
	}
	if _, twice := a.Work(ms); twice {
		t.Fatal("two Works of one handshake")
	}
	a.Cancel(7)
	w.Run()
	a.Finish(ms, w)
	if _, ok := a.Next(ms, buf); ok || len(a.conns) != 0 {
		t.Error("a canceled handshake goes on")
	}

	a.Begin(ms, 8, b.at)
	pass(a, b)
	pass(b, a)
	w, _ = a.Work(ms)
	w.Run()
	a.Finish(ms, w)
	pass(a, b)
	w, ok = b.Work(ms)
	if !ok {
		t.Fatal("the ClientHello starts nothing")
	}
	w.Run()
	late := ms.Add(Life)
	b.Tick(late)
	if len(b.conns) != 0 || b.HalfOpenNow() != 1 {
		t.Errorf("%d handshakes, %d count", len(b.conns), b.HalfOpenNow())
	}
	b.Finish(late, w)
	a.Tick(late)
	if b.HalfOpenNow() != 0 || b.Completed != 0 {
		t.Errorf("%d count: %+v", b.HalfOpenNow(), b.Counters)
	}
}

// TestClose: an Endpoint that is closed leaves no goroutine of TLS: of handshakes that wait for the peer, with a Work
// that is out, and canceled while it is. The bubble fails when one remains.
func TestClose(t *testing.T) { synctest.Test(t, closeWhileOut) }

func closeWhileOut(t *testing.T) {
	a, b := two(t, apart)
	buf := make([]byte, MaxDatagram)
	pass := func(from, to *side) {
		for {
			out, ok := from.Next(ms, buf)
			if !ok {
				return
			}
			to.Handle(ms, from.at, bytes.Clone(buf[:out.Len]))
		}
	}
	var hello *Work
	for tag := range 2 {
		a.Begin(ms, tag, b.at)
		pass(a, b)
		pass(b, a)
		w, ok := a.Work(ms)
		if !ok {
			t.Fatal("nothing to compute")
		}
		w.Run()
		if tag == 0 {
			a.Finish(ms, w) // it waits for the peer
			pass(a, b)
			if hello, ok = b.Work(ms); !ok {
				t.Fatal("the ClientHello starts nothing")
			}
			hello.Run() // and never comes back
			b.Tick(ms.Add(Life))
		} else {
			a.Cancel(tag)
		}
	}
	a.Close()
	b.Close()
}

// clientHello returns the datagrams of a ClientHello, for a sender of any index with the cookie for it.
func clientHello(t testing.TB) func(theirs uint32, cookie [cookieLen]byte) [][]byte {
	a, b := two(t, nil)
	a.Begin(ms, 1, b.at)
	var parts [][]byte
	n := &network{sides: []*side{a, b}, touch: func(from *side, d []byte) bool {
		if h, body, ok := parseInitial(d); from == a && ok && h.cookie != [cookieLen]byte{} {
			if p, data, ok := parsePart(body); ok && p.total > 0 {
				parts = append(parts, p.put(nil, data))
			}
		}
		return true
	}}
	n.run(t, ms, 50*ms, func() bool { return len(a.results) > 0 })
	if len(parts) < 2 {
		t.Fatalf("a ClientHello of %d parts", len(parts))
	}
	return func(theirs uint32, cookie [cookieLen]byte) (out [][]byte) {
		h := initial{initiator: true, from: theirs, claim: 1, cookie: cookie}
		for _, p := range parts {
			out = append(out, append(h.put(nil), p...))
		}
		return out
	}
}

// TestWorkOrder: what this end began comes first, then peers, then strangers.
func TestWorkOrder(t *testing.T) {
	hello := clientHello(t)
	_, b := two(t, apart)
	known := netip.MustParseAddrPort("192.0.2.9:4792")
	b.cfg.Accept = func(from netip.AddrPort) Class {
		if from == known {
			return Known
		}
		return Stranger
	}
	begin := func(from netip.AddrPort, theirs uint32) {
		for _, d := range hello(theirs, b.cookie(seconds(ms), from, theirs)) {
			b.Handle(ms, from, d)
		}
	}
	for i := range byte(5) {
		begin(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 100 + i}), 1), 1)
	}
	begin(known, 1)
	b.Begin(ms, 3, netip.MustParseAddrPort("192.0.2.8:4792"))
	own := b.order[len(b.order)-1]
	own.state = talking
	var got []int
	for {
		w, ok := b.Work(ms)
		if !ok {
			break
		}
		got = append(got, w.c.rank())
		w.Run()
		b.Finish(ms, w)
	}
	const stranger = int(Stranger)
	want := []int{int(numClasses), int(Known), stranger, stranger, stranger, stranger, stranger}
	if len(got) != len(want) {
		t.Fatalf("%d Works, not %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("Work %d is of rank %d, not %d", i, got[i], want[i])
		}
	}
}

// flood sends 5000 whole ClientHellos in a second, each from an address that receives and with a good cookie, for five
// seconds. It returns how many came, how many were computed, and the processor time that took.
func flood(t testing.TB) (came, computed int, took time.Duration, bound int) {
	hello := clientHello(t)
	_, b := two(t, apart)
	buf := make([]byte, MaxDatagram)
	const per, length = 50, 5 * time.Second
	cpu := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for now := ms; now < mono.Time(length); now += 10 * ms {
		for range per {
			came++
			no := uint32(came)
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(no >> 16), byte(no >> 8), byte(no)}), 1)
			for _, d := range hello(no, b.cookie(seconds(now), from, no)) {
				b.Handle(now, from, d)
			}
		}
		start := cpu()
		for {
			w, ok := b.Work(now)
			if !ok {
				break
			}
			w.Run()
			computed++
			b.Finish(now, w)
		}
		took += cpu() - start
		for {
			if _, ok := b.Next(now, buf); !ok {
				break
			}
		}
		// The attacker gives each up at once, which frees its place: the rate alone bounds.
		for _, c := range b.order {
			c.close()
		}
		b.sweep()
	}
	if b.TooFast == 0 {
		t.Errorf("nothing was too fast: %+v", b.Counters)
	}
	return came, computed, took, Burst + Rate*int(length/time.Second)
}

// TestFloodCost: what is computed for a flood of strangers is bounded by Rate and Burst.
func TestFloodCost(t *testing.T) {
	if came, computed, _, bound := flood(t); computed > bound || computed < bound/2 {
		t.Errorf("%d of %d were computed, the bound is %d", computed, came, bound)
	}
}

// BenchmarkFlood is what a flood of strangers costs: the part of a processor, and the time of each Work.
func BenchmarkFlood(b *testing.B) {
	var computed int
	var took time.Duration
	for b.Loop() {
		_, n, d, _ := flood(b)
		computed, took = computed+n, took+d
	}
	b.ReportMetric(100*took.Seconds()/(5*float64(b.N)), "%CPU")
	b.ReportMetric(float64(took.Microseconds())/float64(computed), "cpu-µs/Work")
}

// BenchmarkHandshakeApart is a handshake of two ends. The metric is what remains of it outside Work, at both ends
// together: what the goroutine of the Endpoints does.
func BenchmarkHandshakeApart(b *testing.B) {
	x, y := two(b, apart)
	now, buf := ms, make([]byte, MaxDatagram)
	var ran time.Duration
	for b.Loop() {
		now += mono.Time(time.Second)
		x.results, y.results = nil, nil
		x.Begin(now, 1, y.at)
		for len(x.results) == 0 || len(y.results) == 0 {
			for _, s := range []*side{x, y} {
				to := x
				if s == x {
					to = y
				}
				for {
					out, ok := s.Next(now, buf)
					if !ok {
						break
					}
					to.Handle(now, s.at, buf[:out.Len])
				}
				if w, ok := s.Work(now); ok {
					start := time.Now()
					w.Run()
					ran += time.Since(start)
					s.Finish(now, w)
				}
				s.take()
			}
		}
		x.Confirm(x.results[0].Index)
	}
	b.ReportMetric(float64(b.Elapsed()-ran)/float64(b.N), "ns-outside/op")
}
