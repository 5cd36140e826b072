// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// Selector is the meaning of a value in a query (IBA volume 1, 15.2.5.16).
type Selector uint8

// Selectors. Responses have SelectExactly.
const (
	SelectGreater Selector = iota
	SelectLess
	SelectExactly
	SelectBest // the largest MTU or rate available, the smallest life time
)

// Accepts reports whether the value have satisfies a query for want. SelectBest accepts any value: the caller chooses
// the best.
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

// GID returns the i-th of the SGIDCount+DGIDCount GIDs of the record at the start of b. It reports false if b is too
// short.
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
