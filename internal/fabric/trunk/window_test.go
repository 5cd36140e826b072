// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"testing"

	"pgregory.net/rapid"
)

// model is the account of a stream kept in a map.
type model struct {
	first, top int64
	seen       map[int64]bool
}

func (m *model) accept(n int64) verdict {
	if m.seen == nil {
		m.seen, m.first, m.top = map[int64]bool{n: true}, n, n
		return verdict{}
	}
	switch {
	case n > m.top:
		v := verdict{gap: uint64(n - m.top - 1)}
		m.top, m.seen[n] = n, true
		return v
	case m.top-n >= windowSize:
		return verdict{why: TooOld}
	case m.seen[n]:
		return verdict{why: Duplicate}
	}
	m.seen[n] = true
	return verdict{late: true, filled: n > m.first}
}

// check is what accept would refuse n for.
func (m *model) check(n int64) Refusal {
	switch {
	case m.seen == nil || n > m.top:
		return OK
	case m.top-n >= windowSize:
		return TooOld
	case m.seen[n]:
		return Duplicate
	}
	return OK
}

// TestWindow compares the window with the model.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w window
		var m model
		for range rapid.IntRange(1, 300).Draw(t, "datagrams") {
			step := rapid.OneOf(rapid.Int64Range(-3, 4), rapid.Int64Range(-windowSize-80, windowSize+80),
				rapid.Int64Range(-200,
					70)).Draw(t, "step")
			at := m.top + step
			if m.seen == nil {
				at = 1<<33 - 500 + step
			}
			if got, want := w.check(uint64(at)), m.check(at); got != want {
				t.Fatalf("%d after %d: check got %v, want %v", at, m.top, got, want)
			}
			if got, want := w.accept(uint64(at)), m.accept(at); got != want {
				t.Fatalf("%d after %d: got %+v, want %+v", at, m.top, got, want)
			}
		}
	})
}
