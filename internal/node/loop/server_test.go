// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"weft/internal/proto/mono"
)

// TestServer: functions run before values that came after them, turn runs at its time, and nothing runs after Close.
func TestServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer[int](2)
		start := time.Now()
		clock := func() mono.Time { return mono.Time(time.Since(start)) + 1 }
		var calls []string
		due := clock().Add(time.Second)
		s.Post(func() { calls = append(calls, "post") })
		for v := range 3 {
			if ok := s.Offer(v); ok != (v < 2) {
				t.Errorf("value %d: %v", v, ok)
			}
		}
		go s.Serve(clock, func(now mono.Time) mono.Time {
			if due != 0 && due.Due(now) {
				calls, due = append(calls, "due"), 0
			}
			return due
		}, func(_ mono.Time, v *int) { calls = append(calls, string(rune('0'+*v))) },
			func(mono.Time) { calls = append(calls, "finish") })
		synctest.Wait()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		s.Close()
		if want := []string{"post", "0", "1", "due", "finish"}; !slices.Equal(calls, want) {
			t.Errorf("got %q, want %q", calls, want)
		}
		if err := s.Do(func() {}); !errors.Is(err, ErrStopped) {
			t.Errorf("Do after the end: %v", err)
		}
	})
}
