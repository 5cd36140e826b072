// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"strings"
	"testing"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
)

// narrow is a store that takes no value while it has one below a tree.
type narrow struct {
	store.Store
	tree string
	full int // transactions that were refused
}

func (n *narrow) Txn(ctx context.Context, t store.Txn) (store.Rev, error) {
	l, err := n.List(ctx, n.tree)
	if err != nil {
		return 0, err
	}
	for _, op := range t.Do {
		if !op.Delete && len(l.Entries) > 0 {
			n.full++
			return 0, &store.Error{Kind: store.ErrFull, What: "cannot write"}
		}
	}
	return n.Store.Txn(ctx, t)
}

// TestNothingStays: nothing that a removed member wrote stays, also where that has filled the store; a removal that is
// refused leaves all of it.
func TestNothingStays(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	l.join(a, 2, "b1")
	l.join(a, 3, "c1")
	l.settle(a)
	left := func(n int) (keys []string) {
		t.Helper()
		all, err := l.store.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all.Entries {
			if strings.Contains(e.Key, member.GUIDKey(guid(n))) || strings.Contains(string(e.Value), member.GUIDKey(guid(n))) {
				keys = append(keys, e.Key)
			}
		}
		return keys
	}
	for _, n := range []int{2, 3} {
		for _, key := range []string{"node/%/functions", "member/report/%", "store/member/%", "store/present/%"} {
			key = strings.Replace(key, "%", member.GUIDKey(guid(n)), 1)
			if _, err := store.Put(t.Context(), l.store, key, []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := len(left(2))
	if _, err := a.Remove(t.Context(), "b1", "root at a1", false); err == nil || len(left(2)) != before {
		t.Errorf("%v; %q", err, left(2))
	}
	if _, err := a.Remove(t.Context(), "b1", "root at a1", true); err != nil {
		t.Fatal(err)
	}
	if keys := left(2); len(keys) != 0 {
		t.Errorf("%q are left", keys)
	}
	s := &narrow{Store: l.store, tree: "node/" + member.GUIDKey(guid(3))}
	a.cfg.Store = s
	if _, err := a.Remove(t.Context(), "c1", "root at a1", true); err != nil || s.full == 0 {
		t.Fatalf("%v, %d refused", err, s.full)
	}
	if keys := left(3); len(keys) != 0 {
		t.Errorf("%q are left", keys)
	}
}
