// SPDX-License-Identifier: Apache-2.0

package neigh

import "weft/internal/proto/mono"

// timer is a deadline of a neighbour, or of an own address; of the engine
// where neither is set.
type timer struct {
	at    mono.Time
	index int // in the heap, plus one; 0: not in it
	entry *entry
	addr  *address
}

// timers is a binary heap by deadline.
type timers struct{ heap []*timer }

// next returns the earliest deadline.
func (h *timers) next() mono.Time {
	if len(h.heap) == 0 {
		return 0
	}
	return h.heap[0].at
}

// due takes a timer whose time has come out of the heap; nil is none.
func (h *timers) due(now mono.Time) *timer {
	if len(h.heap) == 0 || !h.heap[0].at.Due(now) {
		return nil
	}
	t := h.heap[0]
	h.set(t, 0)
	return t
}

// set moves t to at, and stops it where that is 0.
func (h *timers) set(t *timer, at mono.Time) {
	t.at = at
	switch {
	case at.IsZero() && t.index == 0:
	case at.IsZero():
		i, last := t.index-1, len(h.heap)-1
		h.swap(i, last)
		h.heap[last] = nil
		h.heap = h.heap[:last]
		t.index = 0
		if i < last {
			h.fix(i)
		}
	case t.index == 0:
		h.heap = append(h.heap, t)
		t.index = len(h.heap)
		h.fix(t.index - 1)
	default:
		h.fix(t.index - 1)
	}
}

func (h *timers) swap(i, j int) {
	h.heap[i], h.heap[j] = h.heap[j], h.heap[i]
	h.heap[i].index, h.heap[j].index = i+1, j+1
}

// fix restores the order after heap[i] has changed.
func (h *timers) fix(i int) {
	for i > 0 && h.heap[i].at < h.heap[(i-1)/2].at {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h.heap); c++ {
			if h.heap[c].at < h.heap[least].at {
				least = c
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}
