// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"weft/internal/proto/abi"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
)

// TestCardStream: a front-end streams as ib_write_bw does: a completion for each 50 requests, 60 requests outstanding.
// It never stops.
func TestCardStream(t *testing.T) {
	t.Parallel()
	limit := 2 * time.Second
	if condtest.Soak() {
		limit = 30 * time.Second
	}
	for name, features := range map[string]uint64{"NO_NOTIFY": 0, "EVENT_IDX": 1 << abi.FeatureEventIdx} {
		t.Run(name, func(t *testing.T) {
			a, b := cardNode(t, nil).cardPair(t, features)
			const depth, moderation, size = 60, 50, 4096
			s := abi.Send{Opcode: uint8(ib.WRWrite)}
			s.SetRDMA(b.at, b.mr.RKey)
			list := []ib.SGE{{Addr: a.at, Len: size, LKey: a.mr.LKey}}
			posted, done := 0, 0
			last := time.Now()
			for end := last.Add(limit); last.Before(end); {
				for posted-done < depth {
					s.Flags = 0
					if posted++; posted%moderation == 0 {
						s.Flags = ib.Signaled
					}
					if err := a.PostSend(s, list, nil); err != nil {
						t.Fatal(err)
					}
				}
				c, err := a.cq.Poll(16)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range c {
					if e.Status != 0 {
						t.Fatalf("%+v", e)
					}
					done += moderation
					last = time.Now()
				}
				if time.Since(last) > 5*time.Second {
					t.Fatalf("%d requests posted, %d done, then nothing", posted, done)
				}
			}
			t.Logf("%d requests, %d kicks", done, a.d.Kicks)
		})
	}
}
