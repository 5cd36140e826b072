// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"container/heap"

	"weft/internal/proto/mono"
)

// timer is something that is due at a time. It is part of what it is about and
// not copied while it is set.
type timer struct {
	at   mono.Time
	i    int // in the heap, from 1; 0: not set
	fire func(now mono.Time)
}

// timers are those that are set, the earliest first.
type timers []*timer

func (q timers) Len() int           { return len(q) }
func (q timers) Less(i, j int) bool { return q[i].at < q[j].at }
func (q timers) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].i, q[j].i = i+1, j+1
}
func (q *timers) Push(x any) {
	t := x.(*timer)
	*q = append(*q, t)
	t.i = len(*q)
}
func (q *timers) Pop() any {
	old := *q
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	t.i = 0
	return t
}

// set makes t due at a time, whenever it was due before.
func (q *timers) set(t *timer, at mono.Time) {
	if t.at = at; t.i != 0 {
		heap.Fix(q, t.i-1)
		return
	}
	heap.Push(q, t)
}

// stop takes t out where it is set.
func (q *timers) stop(t *timer) {
	if t.i != 0 {
		heap.Remove(q, t.i-1)
	}
}

// run fires what is due: what it sets anew for the same moment waits for the next
// run.
func (q *timers) run(now mono.Time) {
	for n := len(*q); n > 0 && len(*q) > 0 && (*q)[0].at.Due(now); n-- {
		t := heap.Pop(q).(*timer)
		t.fire(now)
	}
}

// next is when run has something to do.
func (q timers) next() mono.Time {
	if len(q) == 0 {
		return 0
	}
	return q[0].at
}
