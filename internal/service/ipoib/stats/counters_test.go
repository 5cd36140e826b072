// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"slices"
	"testing"
)

// Every counter has a name of its own, and the engine's are among them.
func TestCounterNames(t *testing.T) {
	var c Counters
	c.Neigh.IgnoredLocked = 7
	c.Neigh.ARPTx = 9 // the link has counters of its own for these
	var names []string
	for _, x := range c.List() {
		if x.Name == "" || slices.Contains(names, x.Name) {
			t.Errorf("counter %q", x.Name)
		}
		names = append(names, x.Name)
		if want := map[string]uint64{"neigh_ignored_locked": 7}[x.Name]; x.Value != want {
			t.Errorf("%s is %d", x.Name, x.Value)
		}
	}
	for _, want := range []string{"rx_packets", "drop_no_path", "path_queries", "neigh_ignored_locked",
		"rx_arp_bad_hlen"} {
		if !slices.Contains(names, want) {
			t.Errorf("no counter %s", want)
		}
	}
}
