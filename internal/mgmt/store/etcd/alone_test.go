// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"testing"
	"time"

	"weft/internal/proto/mono"
)

// TestSolitude: a replica counts as alone after it looked for the leader in vain for alonePatience. A process that was
// stopped for longer than that does not.
func TestSolitude(t *testing.T) {
	const every = time.Second
	now := mono.Time(time.Hour)
	s := solitude{looked: now}
	look := func(after time.Duration, found bool) bool {
		now = now.Add(after)
		s.look(now, every, found)
		return s.lasts >= alonePatience
	}
	for range 3 {
		if look(every, false) {
			t.Fatalf("alone after %v", s.lasts)
		}
	}
	if !look(every, false) {
		t.Errorf("not alone after %v", s.lasts)
	}
	if look(every, true) || look(every, false) {
		t.Error("alone with a leader, or right after it")
	}
	look(every, true)
	if look(time.Hour, false) {
		t.Error("alone at the first look after the process was stopped")
	}
	if look(every, true); s.lasts != 0 {
		t.Errorf("%v without a leader", s.lasts)
	}
}
