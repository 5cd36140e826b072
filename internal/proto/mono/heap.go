// SPDX-License-Identifier: Apache-2.0

package mono

// Timer is a deadline of Value. Its owner embeds it or holds it in a field, and sets Value once
// before the first Set. The zero Timer is not set. A Timer is in at most one Heap and must not be
// copied while it is set.
type Timer[T any] struct {
	Value T

	at  Time
	seq uint64 // orders equal deadlines
	pos int    // index in the heap plus one; 0: not set
}

// At returns the deadline, or the zero Time if t is not set.
func (t *Timer[T]) At() Time {
	if t.pos == 0 {
		return 0
	}
	return t.at
}

// IsSet reports whether t is in a heap.
func (t *Timer[T]) IsSet() bool { return t.pos != 0 }

// Heap orders timers by deadline; timers with equal deadlines are in the order of their Set calls.
// It is a binary heap with the timers' positions in the timers, so that Set and Stop are O(log n).
// It allocates only to grow. The zero Heap is empty. A Heap belongs to one goroutine.
type Heap[T any] struct {
	list []*Timer[T]
	seq  uint64
}

// Len returns the number of timers that are set.
func (h *Heap[T]) Len() int { return len(h.list) }

// Next returns the earliest deadline, or the zero Time if no timer is set.
func (h *Heap[T]) Next() Time {
	if len(h.list) == 0 {
		return 0
	}
	return h.list[0].at
}

// Set sets the deadline of t, which may be set already. The zero Time stops t.
func (h *Heap[T]) Set(t *Timer[T], at Time) {
	if at.IsZero() {
		h.Stop(t)
		return
	}
	h.seq++
	t.at, t.seq = at, h.seq
	if t.pos == 0 {
		h.list = append(h.list, t)
		t.pos = len(h.list)
	}
	if !h.up(t.pos - 1) {
		h.down(t.pos - 1)
	}
}

// Stop removes t if it is set.
func (h *Heap[T]) Stop(t *Timer[T]) {
	if t.pos == 0 {
		return
	}
	i, last := t.pos-1, len(h.list)-1
	if i != last {
		h.swap(i, last)
	}
	h.list[last] = nil
	h.list = h.list[:last]
	t.pos = 0
	if i != last && !h.up(i) {
		h.down(i)
	}
}

// PopDue removes the earliest timer and returns its value if its deadline is not after now. A loop
// over PopDue that sets timers to now again does not end: Run has a bound.
func (h *Heap[T]) PopDue(now Time) (value T, ok bool) {
	if len(h.list) == 0 || h.list[0].at > now {
		return value, false
	}
	t := h.list[0]
	h.Stop(t)
	return t.Value, true
}

// Run calls fire for each timer that is due, earliest first. A timer that fire sets during the call
// is left for the next Run, even if it is due, and so are the timers behind it: Next is then due.
func (h *Heap[T]) Run(now Time, fire func(T)) {
	last := h.seq
	for len(h.list) > 0 && h.list[0].at <= now && h.list[0].seq <= last {
		t := h.list[0]
		h.Stop(t)
		fire(t.Value)
	}
}

// All calls f for each timer that is set, in no particular order. f must not change the heap.
func (h *Heap[T]) All(f func(T)) {
	for _, t := range h.list {
		f(t.Value)
	}
}

func (h *Heap[T]) less(i, j int) bool {
	a, b := h.list[i], h.list[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (h *Heap[T]) swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].pos, h.list[j].pos = i+1, j+1
}

// up moves the timer at index i towards the root and reports whether it moved.
func (h *Heap[T]) up(i int) bool {
	start := i
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			break
		}
		h.swap(i, parent)
		i = parent
	}
	return i != start
}

// down moves the timer at index i towards the leaves.
func (h *Heap[T]) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h.list) {
			return
		}
		if child+1 < len(h.list) && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return
		}
		h.swap(i, child)
		i = child
	}
}
