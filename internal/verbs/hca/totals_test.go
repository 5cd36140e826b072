// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"fmt"
	"testing"

	"weft/internal/verbs/transport"
)

// counting returns a lane with a session of n queue pairs.
func counting(n int) (*Lane, *Session) {
	s := &Session{a: &Adapter{num: 3}}
	for range n {
		s.slots = append(s.slots, &QP{s: s, t: new(transport.QP)}, nil)
	}
	return &Lane{sessions: []*Session{s}}, s
}

// TestAppendCounters: queue pairs that count or end between two steps are counted once, and the sums never become
// lower.
func TestAppendCounters(t *testing.T) {
	const n = 2 * sweepStep
	l, s := counting(n)
	for _, q := range s.slots {
		if q != nil {
			q.t.Counters().SentPackets = 1
		}
	}
	end := func(i int) {
		l.counted.keepCounters(s.slots[i])
		s.slots[i].dead = true
		s.slots[i] = nil
	}
	var w Sweep
	steps := 0
	list, done := l.AppendCounters(&w, nil)
	for ; !done; steps++ {
		end(4 * steps)                                        // visited, but for the first
		s.slots[len(s.slots)-2].t.Counters().SentPackets += 5 // visited last
		list, done = l.AppendCounters(&w, list)
	}
	want := uint64(n + 5*steps)
	if steps < 3 || len(list) != 4 || list[3].QPs.SentPackets != want {
		t.Fatalf("%d more steps, want %d packets: %+v", steps, want, list)
	}
	end(len(s.slots) - 2)
	w = Sweep{}
	for list, done = l.AppendCounters(&w, nil); !done; {
		list, done = l.AppendCounters(&w, nil)
	}
	if got := list[3].QPs.SentPackets; got != want {
		t.Errorf("after the end of a queue pair: %d packets, want %d", got, want)
	}
}

// BenchmarkAppendCounters is the time for which a lane does nothing else, several times a second.
func BenchmarkAppendCounters(b *testing.B) {
	for _, n := range []int{10, sweepStep / 2, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l, _ := counting(n)
			var list []FunctionCounters
			b.ReportAllocs()
			for b.Loop() {
				clear(list)
				list, _ = l.AppendCounters(&Sweep{begun: true, sessions: l.sessions}, list)
			}
		})
	}
}
