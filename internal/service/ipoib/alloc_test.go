// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

// steady makes two links that talk already, a batch of packets from A to B, and
// a function that sends it and has it delivered.
func steady(t testing.TB, n, size int) (func(), *node, *node) {
	s, a, b := two(t)
	a.send(ipA, ipB, "first")
	s.run(2 * time.Second)
	a.discard, b.discard = true, true
	frames, hops := make([][]byte, n), make([]netip.Addr, n)
	for i := range frames {
		frames[i], hops[i] = ipv4(ipA, ipB, strings.Repeat("x", size)), ipB
	}
	turn := func() {
		if got := a.l.SendBatch(s.now, frames, hops); got != n {
			t.Fatalf("%d of %d taken", got, n)
		}
		a.complete()
		for a.l.Interrupt(s.now) {
		}
		for b.l.Interrupt(s.now) {
		}
	}
	turn() // room that batches need is made
	return turn, a, b
}

// TestNoAllocation: sending, completing, receiving and delivering a batch
// allocates nothing.
func TestNoAllocation(t *testing.T) {
	for _, n := range []int{1, 64, 128} {
		turn, a, b := steady(t, n, 1400)
		before := b.count
		if allocs := testing.AllocsPerRun(50, turn); allocs != 0 {
			t.Errorf("%.1f allocations per batch of %d", allocs, n)
		}
		if got := b.count - before; got != 51*n {
			t.Errorf("%d of %d packets arrived", got, 51*n)
		}
		if i := a.l.Info(); i.SendFree != i.QueueLen {
			t.Errorf("%d of %d send slots free", i.SendFree, i.QueueLen)
		}
	}
}

func BenchmarkTwoLinks(b *testing.B) {
	turn, _, _ := steady(b, 64, 2000)
	b.SetBytes(64 * 2020)
	b.ReportAllocs()
	for b.Loop() {
		turn()
	}
}
