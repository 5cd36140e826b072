// SPDX-License-Identifier: Apache-2.0

package node

import "testing"

// TestHeapBound: the control group bounds the heap, unless the user has.
func TestHeapBound(t *testing.T) {
	for _, x := range []struct {
		goMemLimit  string
		group, want int64
	}{{"", 0, 0}, {"", 1000, 900}, {"off", 1000, 0}, {"1GiB", 1000, 0}} {
		if got := heapBound(x.goMemLimit, x.group); got != x.want {
			t.Errorf("%q and %d: %d, want %d", x.goMemLimit, x.group, got, x.want)
		}
	}
}
