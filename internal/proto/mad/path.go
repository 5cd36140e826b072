// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// Selector says how a value of a query is meant (IBA volume 1, 15.2.5.16).
type Selector uint8

// Selectors. Responses have SelectExactly.
const (
	SelectGreater Selector = iota
	SelectLess
	SelectExactly
	SelectBest // the largest MTU or rate available, the smallest life time
)

// Accepts reports whether value have satisfies a query for want. SelectBest is any
// value: choosing the best is the caller's.
func (s Selector) Accepts(have, want int) bool {
	switch s {
	case SelectGreater:
		return have > want
	case SelectLess:
		return have < want
	case SelectExactly:
		return have == want
	}
	return true
}

// GID returns the i-th of the SGIDCount+DGIDCount GIDs of the record at the
// start of b, false if b does not reach so far.
func (p *MultiPathRecord) GID(b []byte, i int) (g ib.GID, ok bool) {
	at := MultiPathRecordLen + 16*i
	if i < 0 || i >= int(p.SGIDCount)+int(p.DGIDCount) || len(b) < at+16 {
		return g, false
	}
	return ib.GID(b[at:]), true
}

// Bits of MCMemberRecord.JoinState.
const (
	JoinFull         = 1
	JoinNon          = 2
	JoinSendOnlyNon  = 4
	JoinSendOnlyFull = 8
)
