// SPDX-License-Identifier: Apache-2.0

package node

import (
	"math/rand/v2"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/proto/abi"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
)

// TestCardKicks: two front-ends post in turn, after pauses in which the node's lane spins, yields or sleeps, and kick
// only if the device requests it. No request is lost. Then both are at rest, and so is the lane.
func TestCardKicks(t *testing.T) {
	t.Parallel()
	limit := time.Second
	if condtest.Soak() {
		limit = 30 * time.Second
	}
	for name, features := range map[string]uint64{"NO_NOTIFY": 0, "EVENT_IDX": 1 << abi.FeatureEventIdx} {
		t.Run(name, func(t *testing.T) {
			r := cardNode(t, nil)
			a, b := r.cardPair(t, features)
			g := rand.New(rand.NewPCG(1, features))
			n := 0
			for end := time.Now().Add(limit); time.Now().Before(end); n++ {
				if s := a.request(t, uint8(ib.WRWrite), 8); s != 0 {
					t.Fatalf("request %d: status %d", n, s)
				}
				a, b = b, a
				a.peer, b.peer = b, a
				switch g.IntN(3) {
				case 0:
					time.Sleep(time.Duration(g.IntN(300)) * time.Microsecond)
				case 1:
					for pause := time.Now().Add(time.Duration(g.IntN(100)) * time.Microsecond); time.Now().Before(pause); {
					}
				}
			}
			if n < 100 {
				t.Errorf("%d requests in %v", n, limit)
			}
			t.Logf("%d requests, %d and %d kicks", n, a.d.Kicks, b.d.Kicks)
			first := r.counter(api.ScopeLane, "loops")
			time.Sleep(time.Second)
			if n := r.counter(api.ScopeLane, "loops") - first; n > 1000 {
				t.Errorf("%d turns of the lane in a second at rest", n)
			}
		})
	}
}
