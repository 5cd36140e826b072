// SPDX-License-Identifier: Apache-2.0

package mono

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestHeapAgainstSortedList compares a Heap with a list that is sorted before each look.
func TestHeapAgainstSortedList(t *testing.T) {
	const timers, steps = 40, 20000
	rng := rand.New(rand.NewPCG(1, 2))
	var h Heap[int]
	var all [timers]Timer[int]
	type entry struct {
		at    Time
		order int
	}
	model := map[int]entry{}
	for i := range all {
		all[i].Value = i
	}
	earliest := func() int {
		best := -1
		for i, e := range model {
			if best < 0 || e.at < model[best].at || e.at == model[best].at && e.order < model[best].order {
				best = i
			}
		}
		return best
	}
	for step := range steps {
		i := rng.IntN(timers)
		switch rng.IntN(4) {
		case 0, 1:
			at := Time(1 + rng.IntN(50))
			h.Set(&all[i], at)
			model[i] = entry{at, step}
		case 2:
			h.Stop(&all[i])
			delete(model, i)
		case 3:
			now := Time(rng.IntN(30))
			got, ok := h.PopDue(now)
			want := earliest()
			if wantOK := want >= 0 && model[want].at <= now; ok != wantOK || ok && got != want {
				t.Fatalf("step %d: PopDue(%d) = %d, %v; want %d, %v", step, now, got, ok, want, wantOK)
			}
			if ok {
				delete(model, got)
			}
		}
		next := Time(0)
		if e := earliest(); e >= 0 {
			next = model[e].at
		}
		if h.Next() != next || h.Len() != len(model) {
			t.Fatalf("step %d: Next %d, Len %d; want %d, %d", step, h.Next(), h.Len(), next, len(model))
		}
		for i := range all {
			if e, set := model[i]; all[i].IsSet() != set || all[i].At() != e.at {
				t.Fatalf("step %d: timer %d is set %v at %d; want %v at %d", step, i, all[i].IsSet(), all[i].At(),
					set, e.at)
			}
		}
	}
}

func TestHeapSetToZeroStops(t *testing.T) {
	var h Heap[string]
	a := Timer[string]{Value: "a"}
	h.Set(&a, 5)
	h.Set(&a, 0)
	if a.IsSet() || h.Len() != 0 || h.Next() != 0 {
		t.Errorf("set %v, %d timers, next %d", a.IsSet(), h.Len(), h.Next())
	}
	h.Stop(&a) // no effect
}

// TestHeapRunLeavesNewTimers sets timers that are due at once from inside Run.
func TestHeapRunLeavesNewTimers(t *testing.T) {
	var h Heap[int]
	all := []*Timer[int]{{Value: 0}, {Value: 1}, {Value: 2}}
	for _, x := range all {
		h.Set(x, 10)
	}
	var fired []int
	fire := func(i int) {
		fired = append(fired, i)
		if i == 0 {
			h.Set(all[0], 10)
			h.Stop(all[2])
		}
	}
	h.Run(9, fire)
	h.Run(10, fire)
	if want := []int{0, 1}; !slices.Equal(fired, want) {
		t.Errorf("fired %v, want %v", fired, want)
	}
	if !all[0].IsSet() || h.Len() != 1 {
		t.Errorf("timer 0 is set %v, %d timers", all[0].IsSet(), h.Len())
	}
}

func TestHeapAllocatesOnlyToGrow(t *testing.T) {
	var h Heap[int]
	all := make([]Timer[int], 64)
	for i := range all {
		h.Set(&all[i], Time(i+1))
	}
	if n := testing.AllocsPerRun(100, func() {
		for i := range all {
			h.Set(&all[i], Time(100-i))
		}
		for range all {
			h.PopDue(1000)
		}
		for i := range all {
			h.Set(&all[i], Time(i+1))
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkHeapSet(b *testing.B) {
	var h Heap[int]
	all := make([]Timer[int], 1024)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		h.Set(&all[i&1023], Time(1+uint32(i)*2654435761>>8))
	}
}
