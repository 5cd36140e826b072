// SPDX-License-Identifier: Apache-2.0

package ipif

import (
	"slices"
	"testing"

	"weft/internal/proto/ib"
)

// Connections with failed queue pairs are recorded, by each of the events.
func TestFailedConnectionsAreRecorded(t *testing.T) {
	a := &access{}
	a.failed(ib.EventQPReqErr, 7) // before there are connections
	a.made = map[uint32]*connection{}
	for i, e := range []ib.Event{ib.EventQPFatal, ib.EventQPReqErr, ib.EventQPAccessErr} {
		a.failed(e, uint32(10+i))
	}
	a.failed(ib.EventSRQLimit, 13)
	if !slices.Equal(a.fatal, []ib.QPN{10, 11, 12}) || a.broken {
		t.Errorf("%v failed; broken: %v", a.fatal, a.broken)
	}
	if a.failed(ib.EventCQErr, 1); !a.broken {
		t.Error("the completion queue is in error")
	}
}
