// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"testing"
)

// TestEdit: an edit creates a missing value, starts again after a concurrent change, and does not
// write an unchanged value.
func TestEdit(t *testing.T) {
	ctx := context.Background()
	s := NewMemory()
	defer s.Close()
	edit := func(change func([]byte) ([]byte, error)) error { return Edit(ctx, s, "k", change) }
	is := func(want string, rev Rev) Rev {
		t.Helper()
		e, err := s.Get(ctx, "k")
		if err != nil || string(e.Value) != want || rev != 0 && e.Rev != rev {
			t.Fatalf("%q at %d, %v; want %q at %d", e.Value, e.Rev, err, want, rev)
		}
		return e.Rev
	}
	if err := edit(func(v []byte) ([]byte, error) {
		if v != nil {
			t.Errorf("a value before any: %q", v)
		}
		return []byte{}, nil
	}); err != nil {
		t.Fatal(err)
	}
	is("", 0)
	calls := 0
	if err := edit(func(v []byte) ([]byte, error) {
		if calls++; v == nil {
			t.Error("an empty value counts as none")
		}
		if calls == 1 {
			if _, err := Put(ctx, s, "k", []byte("faster")); err != nil {
				t.Error(err)
			}
		}
		return append(v[:len(v):len(v)], '+'), nil
	}); err != nil || calls != 2 {
		t.Fatalf("%d calls, %v", calls, err)
	}
	rev := is("faster+", 0)
	if err := edit(func([]byte) ([]byte, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	is("faster+", rev)
	bad := errors.New("bad")
	if err := edit(func([]byte) ([]byte, error) { return []byte("x"), bad }); err != bad {
		t.Errorf("%v", err)
	}
	is("faster+", rev)
}
