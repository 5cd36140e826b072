// SPDX-License-Identifier: Apache-2.0

package trunk

// windowSize bounds how far below the newest a sequence number may arrive.
const windowSize = 1024

// window is the receiver's sequence window of one stream of one epoch. The zero
// value has received nothing.
type window struct {
	begun bool
	young bool                    // first is less than windowSize below top
	first uint32                  // the number that arrived first
	top   uint32                  // the highest number so far
	seen  [windowSize / 64]uint64 // bit n%windowSize: n of (top-windowSize, top] arrived
}

// verdict is the result of a sequence number.
type verdict struct {
	why    Refusal // OK, Duplicate or TooOld
	gap    uint32  // numbers skipped just now
	late   bool    // below the top
	filled bool    // late, and one of the numbers skipped earlier
}

// accept records the arrival of a datagram with number n.
func (w *window) accept(n uint32) (v verdict) {
	if !w.begun {
		*w = window{begun: true, young: true, first: n, top: n}
		w.set(n)
		return v
	}
	d := n - w.top
	if int32(d) > 0 {
		w.advance(d)
		w.top = n
		w.set(n)
		w.young = w.young && d < windowSize && n-w.first < windowSize
		v.gap = d - 1
		return v
	}
	switch {
	case w.top-n >= windowSize:
		v.why = TooOld
	case w.has(n):
		v.why = Duplicate
	default:
		w.set(n)
		v.late = true
		// Numbers below the first were never counted as missing.
		v.filled = !w.young || int32(n-w.first) > 0
	}
	return v
}

// advance clears the bits of the d numbers above top.
func (w *window) advance(d uint32) {
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

func (w *window) set(n uint32)      { w.seen[n%windowSize/64] |= 1 << (n % 64) }
func (w *window) has(n uint32) bool { return w.seen[n%windowSize/64]>>(n%64)&1 != 0 }
