// SPDX-License-Identifier: Apache-2.0

package intent

import (
	"context"
	"strings"
	"testing"

	"weft/internal/mgmt/store"
)

// TestForeignEntry: an entry of the store that this node does not understand is
// left alone.
func TestForeignEntry(t *testing.T) {
	const identity = 0x0211220000ab0000
	if got := Key(identity); got != "node/0211220000ab0000/functions" {
		t.Error(got)
	}
	for _, text := range []string{`{"version":2,"functions":[{"name":"a"}]}`, `{`, `[]`} {
		kept := memoryWith(t, Key(identity), text)
		k := New(Config{Identity: identity, Open: func() (store.Store, error) { return kept, nil }})
		if err := k.load(context.Background()); err == nil || !strings.Contains(err.Error(), Key(identity)) {
			t.Errorf("%s: %v", text, err)
		}
		kept.Close()
	}
}

// memoryWith is a store with one entry.
func memoryWith(t *testing.T, key, value string) store.Store {
	t.Helper()
	s := store.NewMemory()
	if _, err := store.Put(context.Background(), s, key, []byte(value)); err != nil {
		t.Fatal(err)
	}
	return s
}
