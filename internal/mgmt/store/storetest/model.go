// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weft/internal/mgmt/store"
)

// model is a map: the store as one would write it in an hour. The site is
// shared by all runs, so it begins with what the last one left.
type model struct {
	e       *env
	s       store.Store
	rev     store.Rev
	all     map[string]store.Entry
	watch   <-chan store.Change
	watched mirror
}

var modelKeys = rapid.SampledFrom([]string{"a", "a/b", "a/c", "a/b/c", "b", "ab"})

func testModel(e *env) {
	s := e.open()
	rapid.Check(e.T, func(t *rapid.T) {
		ctx, stop := context.WithCancel(e.ctx)
		t.Cleanup(stop)
		w, err := s.Watch(ctx, "")
		e.ok(err)
		m := &model{e: e, s: s, all: map[string]store.Entry{}, watch: w}
		m.watched.take(e, next(e, m.watch))
		m.rev = m.watched.rev
		maps.Copy(m.all, m.watched.all)
		t.Repeat(map[string]func(*rapid.T){
			"get":  m.get,
			"list": m.list,
			"txn":  m.txn,
			"":     m.check,
		})
	})
}

func (m *model) get(t *rapid.T) {
	key := modelKeys.Draw(t, "key")
	got, err := m.s.Get(m.e.ctx, key)
	want, ok := m.all[key]
	if ok != (err == nil) || !ok && !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("get %s: %v, want %+v", key, err, want)
	}
	if diff := cmp.Diff(want, got, equateEmpty); ok && diff != "" {
		t.Fatalf("get %s (-want +got):\n%s", key, diff)
	}
}

func (m *model) list(t *rapid.T) {
	tree := rapid.SampledFrom([]string{"", "a", "a/b", "b"}).Draw(t, "tree")
	want := store.Listing{Rev: m.rev}
	for _, key := range slices.Sorted(maps.Keys(m.all)) {
		if tree == "" || len(key) > len(tree) && key[:len(tree)+1] == tree+"/" {
			want.Entries = append(want.Entries, m.all[key])
		}
	}
	got, err := m.s.List(m.e.ctx, tree)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, equateEmpty); diff != "" {
		t.Fatalf("list %q (-want +got):\n%s", tree, diff)
	}
}

// txn executes a transaction with mostly true conditions.
func (m *model) txn(t *rapid.T) {
	var x store.Txn
	var want error
	for _, key := range rapid.SliceOfNDistinct(modelKeys, 0, 2, rapid.ID).Draw(t, "if") {
		at := m.all[key].Rev
		c := store.Cond{Key: key, Test: store.IsAbsent}
		if at != 0 {
			c.Test = rapid.SampledFrom([]store.Test{store.IsPresent, store.IsAt}).Draw(t, "test")
			c.Rev = at
		}
		if rapid.IntRange(0, 5).Draw(t, "lie") == 0 {
			want = store.ErrConflict
			switch {
			case at == 0:
				c.Test = store.IsPresent
			case c.Test == store.IsAt:
				c.Rev++
			default:
				c.Test = store.IsAbsent
			}
		}
		x.If = append(x.If, c)
	}
	if rapid.IntRange(0, 3).Draw(t, "fenced") == 0 {
		key := modelKeys.Draw(t, "fence")
		created := m.all[key].Created
		if created == 0 {
			want, created = store.ErrFenced, m.rev
		}
		x.Fence = store.Fence{Key: key, Created: created}
	}
	for i, key := range rapid.SliceOfNDistinct(modelKeys, 0, 3, rapid.ID).Draw(t, "do") {
		if rapid.Bool().Draw(t, "delete") {
			x.Do = append(x.Do, store.DeleteOp(key))
		} else {
			x.Do = append(x.Do, store.PutOp(key, fmt.Append(nil, m.rev, i)))
		}
	}
	rev, err := m.s.Txn(m.e.ctx, x)
	if want != nil {
		if !errors.Is(err, want) {
			t.Fatalf("txn %+v: %v, want %v", x, err, want)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if m.apply(x.Do); rev != m.rev {
		t.Fatalf("txn %+v: revision %d, want %d", x, rev, m.rev)
	}
}

func (m *model) apply(ops []store.Op) {
	next, changed := m.rev+1, false
	for _, op := range ops {
		old, was := m.all[op.Key]
		switch {
		case !op.Delete:
			e := store.Entry{Key: op.Key, Value: op.Value, Created: next, Rev: next}
			if was {
				e.Created = old.Created
			}
			m.all[op.Key], changed = e, true
		case was:
			delete(m.all, op.Key)
			changed = true
		}
	}
	if changed {
		m.rev = next
	}
}

// check brings the watcher up to the model and compares.
func (m *model) check(t *rapid.T) {
	m.watched.until(m.e, m.watch, m.rev)
	if m.watched.resets != 1 {
		t.Fatalf("a watcher that keeps up got %d resets", m.watched.resets)
	}
	if diff := cmp.Diff(m.all, m.watched.all, equateEmpty); diff != "" {
		t.Fatalf("watcher at %d (-want +got):\n%s", m.watched.rev, diff)
	}
}
