// SPDX-License-Identifier: Apache-2.0

package trunk

// windowSize bounds how far below the newest a sequence number may arrive.
const windowSize = 8192

// window is the receiver's sequence window of one stream of one epoch: what refuses replays. Numbers do not wrap. The
// zero value has received nothing.
type window struct {
	begun bool
	young bool                    // first is less than windowSize below top
	first uint64                  // the number that arrived first
	top   uint64                  // the highest number so far
	seen  [windowSize / 64]uint64 // bit n%windowSize: n of (top-windowSize, top] arrived
}

// verdict is the result of a sequence number.
type verdict struct {
	why    Refusal // OK, Duplicate or TooOld
	gap    uint64  // numbers skipped just now
	late   bool    // below the top
	filled bool    // late, and one of the numbers skipped earlier
}

// accept records the arrival of a datagram with number n.
func (w *window) accept(n uint64) (v verdict) {
	if !w.begun {
		*w = window{begun: true, young: true, first: n, top: n}
		w.set(n)
		return v
	}
	if n > w.top {
		d := n - w.top
		w.advance(d)
		w.top = n
		w.set(n)
		w.young = w.young && d < windowSize && n-w.first < windowSize
		v.gap = d - 1
		return v
	}
	if v.why = w.check(n); v.why == OK {
		w.set(n)
		v.late = true
		// Numbers below the first were never counted as missing.
		v.filled = !w.young || n > w.first
	}
	return v
}

// check returns what accept would refuse a number for, before its datagram is known to be genuine.
func (w *window) check(n uint64) Refusal {
	switch {
	case !w.begun || n > w.top:
		return OK
	case w.top-n >= windowSize:
		return TooOld
	case w.has(n):
		return Duplicate
	}
	return OK
}

// advance clears the bits of the d numbers above top.
func (w *window) advance(d uint64) {
	if d >= windowSize {
		clear(w.seen[:])
		return
	}
	for d > 0 {
		first := (w.top + 1) % windowSize
		k := min(d, 64-first%64) // to the end of the word
		w.seen[first/64] &^= (1<<k - 1) << (first % 64)
		w.top += k
		d -= k
	}
}

func (w *window) set(n uint64)      { w.seen[n%windowSize/64] |= 1 << (n % 64) }
func (w *window) has(n uint64) bool { return w.seen[n%windowSize/64]>>(n%64)&1 != 0 }
