// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
)

// narrow is a store that takes no value while it has one below a tree.
type narrow struct {
	store.Store
	tree   string
	full   int    // transactions that were refused
	before func() // called before one that only deletes; nil: nothing is
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
	if n.before != nil && len(t.Do) > 0 && t.Do[len(t.Do)-1].Delete {
		n.before()
	}
	return n.Store.Txn(ctx, t)
}

// older is a store that only its members delete devices from.
type older struct {
	store.Store
	refused int
}

func (o *older) Txn(ctx context.Context, t store.Txn) (store.Rev, error) {
	for _, op := range t.Do {
		if store.Below(member.TreeNode, op.Key) {
			o.refused++
			return 0, &store.Error{Kind: store.ErrUnavailable, What: "cannot write", Why: "a1 writes its own keys only"}
		}
	}
	return o.Store.Txn(ctx, t)
}

// own are keys that a member writes.
var own = []string{"node/%/functions", "member/report/%", "store/member/%", "store/present/%"}

// write has a member write one of its own keys.
func (l *lab) write(n int, key string) {
	l.t.Helper()
	_, err := store.Put(l.t.Context(), l.store, strings.Replace(key, "%", member.GUIDKey(guid(n)), 1), []byte("{}"))
	if err != nil {
		l.t.Fatal(err)
	}
}

// left lists the keys that name a member, or have values that do.
func (l *lab) left(n int) (keys []string) {
	l.t.Helper()
	all, err := l.store.List(l.t.Context(), "")
	if err != nil {
		l.t.Fatal(err)
	}
	for _, e := range all.Entries {
		if strings.Contains(e.Key, member.GUIDKey(guid(n))) || strings.Contains(string(e.Value), member.GUIDKey(guid(n))) {
			keys = append(keys, e.Key)
		}
	}
	return keys
}

// TestNothingStays: nothing that a removed member wrote stays, also where that has filled the store; a removal that is
// refused leaves all of it.
func TestNothingStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		a := l.found(1, "a1")
		l.join(a, 2, "b1")
		l.join(a, 3, "c1")
		l.settle(a)
		for _, n := range []int{2, 3} {
			for _, key := range own {
				l.write(n, key)
			}
		}
		before := len(l.left(2))
		if _, err := a.Remove(t.Context(), "b1", "root at a1", false); err == nil || len(l.left(2)) != before {
			t.Errorf("%v; %q", err, l.left(2))
		}
		if _, err := a.Remove(t.Context(), "b1", "root at a1", true); err != nil {
			t.Fatal(err)
		}
		if keys := l.left(2); len(keys) != 0 {
			t.Errorf("%q are left", keys)
		}
		s := &narrow{Store: l.store, tree: "node/" + member.GUIDKey(guid(3))}
		a.cfg.Store = s
		if _, err := a.Remove(t.Context(), "c1", "root at a1", true); err != nil || s.full == 0 {
			t.Fatalf("%v, %d refused", err, s.full)
		}
		if keys := l.left(3); len(keys) != 0 {
			t.Errorf("%q are left", keys)
		}
	})
}

// TestRemovalTakenBack: a removal in a full store that is not to be any more deletes nothing.
func TestRemovalTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		a := l.found(1, "a1")
		l.join(a, 2, "b1")
		l.join(a, 3, "c1")
		l.settle(a)
		for _, key := range own[1:] {
			l.write(2, key)
		}
		if err := a.SetDrain(t.Context(), "b1", true, false); err != nil {
			t.Fatal(err)
		}
		if err := a.Report(t.Context(), member.Report{}); err != nil {
			t.Fatal(err)
		}
		b := l.host(2)
		if err := b.Report(t.Context(), member.Report{}); err != nil {
			t.Fatal(err)
		}
		l.settle(a)
		l.write(2, own[0])
		before := len(l.left(2))
		other, undrained := l.host(1), 0
		a.cfg.Store = &narrow{Store: l.store, tree: "node/" + member.GUIDKey(guid(2)), before: func() {
			if undrained++; undrained > 1 {
				return
			}
			if err := other.SetDrain(t.Context(), "b1", false, false); err != nil {
				t.Error(err)
			}
		}}
		_, err := a.Remove(t.Context(), "b1", "root at a1", false)
		if err == nil || !strings.Contains(err.Error(), "it is active") || undrained != 1 {
			t.Errorf("removed: %v, %d times only deleted", err, undrained)
		}
		if keys := l.left(2); len(keys) != before {
			t.Errorf("%q are left of %d", keys, before)
		}
	})
}

// TestRemovalAtOlderVoter: the store of an older voter, which refuses to delete the devices of another member,
// takes a removal, and a voter of this one deletes the rest. So it does with what was written beside a removal. What a
// host writes that has joined again stays.
func TestRemovalAtOlderVoter(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	l.join(a, 2, "b1")
	c := l.join(a, 3, "c1")
	l.settle(a)
	l.write(2, own[0])
	s := &older{Store: l.store}
	a.cfg.Store = s
	incomplete := func(h *host) (why string) {
		t.Helper()
		_, problems, err := h.Members(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			why += p.Error()
		}
		return why
	}
	if _, err := a.Remove(t.Context(), "b1", "root at a1", true); err != nil {
		t.Fatal(err)
	}
	l.settle(a)
	if why := incomplete(a); !strings.Contains(why, "b1 is not complete: what it wrote") || s.refused == 0 {
		t.Errorf("problems %q, %d refused", why, s.refused)
	}
	l.settle(c)
	l.settle(a)
	if keys, why := l.left(2), incomplete(a); len(keys) != 0 || why != "" {
		t.Errorf("%q are left, %q", keys, why)
	}
	for _, key := range own { // they were on their way
		l.write(2, key)
	}
	l.settle(c)
	if keys := l.left(2); len(keys) != 0 {
		t.Errorf("%q are left", keys)
	}
	l.now = l.now.Add(2 * cleanAfter)
	l.join(c, 2, "b2")
	for _, key := range own {
		l.write(2, key)
	}
	l.settle(c)
	for _, key := range own {
		if !strings.Contains(strings.Join(l.left(2), " "), strings.Replace(key, "%", member.GUIDKey(guid(2)), 1)) {
			t.Errorf("%s is gone", key)
		}
	}
}

// TestOnlyVotingReplica: a member with the only replica of the store that votes is not removed, by force neither.
func TestOnlyVotingReplica(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	b := l.join(a, 2, "b1")
	l.settle(a)
	for _, c := range []struct {
		learner string // of the replica of b1
		refused bool
	}{{`,"learner":true`, true}, {"", false}} {
		group := fmt.Sprintf(`{"replicas":[{"id":1,"name":"%s"},{"id":2,"name":"%s"%s}]}`, member.GUIDKey(guid(1)),
			member.GUIDKey(guid(2)), c.learner)
		if _, err := store.Put(t.Context(), l.store, member.KeyStoreRoster, []byte(group)); err != nil {
			t.Fatal(err)
		}
		_, err := b.Remove(t.Context(), "a1", "root at b1", true)
		refused := err != nil && strings.Contains(err.Error(), "only copy of the store")
		if refused != c.refused || !refused && err != nil {
			t.Errorf("%s: %v", group, err)
		}
	}
}
