// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: the first values of poke begin a round at once each, and a flood of them one in roundEvery, the last of
// which is after the last value. Without any there are rounds as well.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		poke, rounds, last := make(chan struct{}, 1), 0, time.Time{}
		go paced(ctx, poke, func() { rounds++; last = time.Now() })
		for n := 1; n <= roundBurst; n++ {
			poke <- struct{}{}
			synctest.Wait()
			if rounds != n {
				t.Errorf("%d rounds after %d values", rounds, n)
			}
		}
		rounds = 0
		const flood = 60 * time.Second
		var poked time.Time
		for began := time.Now(); time.Since(began) < flood; time.Sleep(time.Millisecond) {
			select {
			case poke <- struct{}{}:
				poked = time.Now()
			default:
			}
		}
		if least, most := int(flood/roundEvery)-1, int(flood/roundEvery)+1; rounds < least || rounds > most {
			t.Errorf("%d rounds in %v of a flood", rounds, flood)
		}
		time.Sleep(roundEvery)
		synctest.Wait()
		if last.Before(poked) {
			t.Errorf("the last round is %v before the last value", poked.Sub(last))
		}
		rounds = 0
		time.Sleep(10 * workEvery)
		synctest.Wait()
		if rounds < 9 || rounds > 11 {
			t.Errorf("%d rounds of %v without a value", rounds, workEvery)
		}
	})
}
