// SPDX-License-Identifier: Apache-2.0

package etcd_test

import "testing"

// TestRestoredTwice: what is written after the second restore of one backup is newer than all that was before, which
// terms of managers and rosters are compared by.
func TestRestoredTwice(t *testing.T) {
	f := newFabric(t)
	m := f.open("a")
	f.put("a", "k", "backed up")
	b, err := m.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		f.put("a", "k", "since")
		since, err := m.Get(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Restore(t.Context(), b, true); err != nil {
			t.Fatal(err)
		}
		f.expect("a", "k", "backed up")
		if e, err := m.Get(t.Context(), "k"); err != nil || e.Rev <= since.Rev {
			t.Errorf("revision %d after the restore, %d before it: %v", e.Rev, since.Rev, err)
		}
	}
}
