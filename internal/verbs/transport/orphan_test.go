// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// FuzzOrphan: whatever a queue pair did before its program died, and whatever arrives afterwards, it returns the
// requests it had, sends at most one answer per burst that arrived and a bounded number of requests, uses no memory and
// completes nothing, and is done in time.
func FuzzOrphan(f *testing.F) {
	f.Add([]byte{2, 3, 2, 1, 4, 0, 0, 8}, []byte{0x11, 1, 0, 0, 0})
	f.Add([]byte{2, 2, 1, 1, 3, 0x00, 1, 0, 1}, []byte{0x0c, 1, 2, 3, 0, 0x04, 1, 0, 0, 0})
	f.Add([]byte{2, 3, 0, 4, 1, 2, 0, 4, 1, 2, 0, 5, 7}, []byte{0x11, 1, 0xff, 0, 0x65, 0x11, 1, 0, 0, 0x65})
	f.Fuzz(func(t *testing.T, before, after []byte) {
		z := &fuzzer{t: t, in: before, now: mono.Time(time.Second)}
		cfg := testConfig(ib.RC, 17)
		cfg.Cap.MaxSendWR = 4
		z.s = newSide("X", cfg, 4096, nil)
		z.s.quiet, z.s.batch = true, fuzzBatch
		for _, st := range []ib.QPState{ib.Init, ib.RTR, ib.RTS} {
			z.modify(st)
		}
		for range 100 {
			if len(z.in) == 0 {
				break
			}
			z.step()
		}
		z.settle()
		q := z.s.q
		was := q.State()
		if was == ib.Err {
			was = q.req.failure.state
		}
		if began := q.Orphan(z.now); began != (was == ib.RTR || was == ib.RTS || was == ib.SQD) {
			t.Fatalf("orphan in %v: %v", was, began)
		} else if !began {
			return
		}
		if z.s.sends != z.posts || len(z.s.free)+len(z.s.recvs) != z.taken {
			t.Fatalf("%d requests of %d came back, %d receives of %d", z.s.sends, z.posts,
				len(z.s.free)+len(z.s.recvs), z.taken)
		}
		sends, free := z.s.sends, len(z.s.free)
		z.in = after
		end := z.now.Add(5200 * time.Millisecond)
		arrived, answers, requests := 0, 0, 0
		for !q.OrphanDone() {
			if z.now > end {
				t.Fatal("not done")
			}
			if len(z.in) > 0 {
				z.handle()
				arrived++
			} else {
				if q.Deadline() == 0 {
					t.Fatal("nothing to wait for")
				}
				z.now = q.Deadline()
			}
			z.settle()
			var r pkt.Burst
			for q.Next(z.now, &r) {
				if r.Opcode.Info().Response {
					answers++
				} else {
					requests++
				}
				if r.Data.Len != 0 || r.Count != 1 || r.Path == nil {
					t.Fatalf("burst %+v", r)
				}
			}
			q.Commit(z.now)
			if err := q.check(); err != nil {
				t.Fatal(err)
			}
		}
		if answers > arrived || requests > orphanRequests {
			t.Fatalf("%d answers to %d bursts, %d requests", answers, arrived, requests)
		}
		if z.s.sends != sends || len(z.s.free) != free {
			t.Fatal("completions after the end")
		}
	})
}
