// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"testing"
	"time"
)

// TestOrderOfStarts: of the voters 1, 2 and 3 that start again for other CAs, no two are away at a time. 3 leads.
func TestOrderOfStarts(t *testing.T) {
	report := func(leader uint64, cas string) *Report { return &Report{Leader: leader, CAs: cas} }
	before, after := report(3, "before"), report(3, "after")
	for name, c := range map[string]struct {
		order order
		wait  bool
	}{
		"the first follower": {order{own: 1, leader: 3, others: []other{{2, before, true}, {3, before, true}}}, false},
		"the second waits for the first": {order{own: 2, leader: 3,
			others: []other{{1, before, true}, {3, before, true}}}, true},
		"and while it is away": {order{own: 2, leader: 3, due: 10 * time.Second,
			others: []other{{1, nil, true}, {3, before, true}}}, true},
		"and until it follows the leader": {order{own: 2, leader: 3,
			others: []other{{1, report(0, "after"), true}, {3, before, true}}}, true},
		"the second after the first": {order{own: 2, leader: 3,
			others: []other{{1, after, true}, {3, before, true}}}, false},
		"the leader waits for both": {order{own: 3, leader: 3,
			others: []other{{1, after, true}, {2, before, true}}}, true},
		"the leader is last": {order{own: 3, leader: 3, others: []other{{1, after, true}, {2, after, true}}}, false},
		"two that take each other for the leader": {order{own: 1, leader: 2,
			others: []other{{2, report(1, "before"), true}, {3, report(2, "before"), true}}}, true},
		"one that never answered is away": {order{own: 1, leader: 3, due: time.Second,
			others: []other{{2, nil, false}, {3, before, true}}}, true},
		"or dead": {order{own: 1, leader: 3, due: deadPatience,
			others: []other{{2, nil, false}, {3, before, true}}}, false},
		"one that does not come back": {order{own: 2, leader: 3, due: orderPatience,
			others: []other{{1, nil, true}, {3, before, true}}}, false},
		"a leader that was removed": {order{own: 1, leader: 3, removed: true,
			others: []other{{2, report(0, "before"), true}}}, false},
		"alone": {order{own: 1, leader: 1}, false},
	} {
		c.order.cas = "after"
		if wait := c.order.wait(); wait != c.wait {
			t.Errorf("%s: it waits: %v, want %v", name, wait, c.wait)
		}
	}
}
