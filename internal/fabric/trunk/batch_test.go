// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"bytes"
	"slices"
	"testing"

	"weft/internal/fabric/trunk/seal"
)

// TestRoundTrip sends packets of all kinds of lengths over all kinds of
// underlays; what arrives must be equal, in order.
func TestRoundTrip(t *testing.T) {
	for i, limit := range []int{MinDatagram, 1472, 1452, 8972, MaxDatagram, MinDatagram, 1472, 1472} {
		for _, slack := range []int{0, 9, 2000} {
			mode := seal.Mode(i % int(seal.NumModes))
			a, b := pairMode(t, limit, mode)
			var want [][]byte
			for _, n := range []int{1, 2, 30, 30, 1060, 1060, 1060, 1446, 1447, 4178, 4178, 4178, 520, 521, 522, 523,
				10240, MaxPacket, MaxPacket - 1, 7} {
				want = append(want, random(n))
			}
			a.send(slack, want...)
			for _, d := range a.datagrams() {
				if len(d) > limit {
					t.Errorf("limit %d: datagram of %d octets", limit, len(d))
				}
				b.handle(2*ms, d)
			}
			if !slices.EqualFunc(want, b.got, bytes.Equal) {
				t.Errorf("limit %d, slack %d: %d packets sent, %d received, or they differ", limit, slack, len(want),
					len(b.got))
			}
			s := b.core.Status(0)
			if s.Packets != uint64(len(want)) || s.Lost != 0 || s.Drop != [NumRefusals]uint64{} {
				t.Errorf("limit %d: counters %+v", limit, s)
			}
		}
	}
}
