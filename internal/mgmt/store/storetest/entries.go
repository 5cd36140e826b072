// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/mgmt/store"
)

func testGetPutDelete(e *env) {
	a, b := e.open(), e.open()
	_, err := a.Get(e.ctx, "pkey/ffff")
	e.want(err, store.ErrNotFound)
	if !strings.Contains(err.Error(), "pkey/ffff") {
		e.Errorf("error %q does not name the key", err)
	}
	_, err = store.Delete(e.ctx, a, "pkey/ffff")
	e.want(err, store.ErrNotFound)

	first := e.put(a, "pkey/ffff", "all")
	if diff := cmp.Diff(store.Entry{Key: "pkey/ffff", Value: []byte("all"), Created: first, Rev: first},
		e.get(b, "pkey/ffff")); diff != "" {
		e.Errorf("after the first put (-want +got):\n%s", diff)
	}
	second := e.put(b, "pkey/ffff", "")
	if second <= first {
		e.Errorf("revision %d follows %d", second, first)
	}
	got := e.get(a, "pkey/ffff")
	if len(got.Value) != 0 || got.Created != first || got.Rev != second {
		e.Errorf("after the second put: %+v, want an empty value, created %d, put %d", got, first, second)
	}
	third, err := store.Delete(e.ctx, a, "pkey/ffff")
	e.ok(err)
	_, err = b.Get(e.ctx, "pkey/ffff")
	e.want(err, store.ErrNotFound)
	if fourth := e.put(a, "pkey/ffff", "x"); fourth <= third || e.get(a, "pkey/ffff").Created != fourth {
		e.Errorf("a key that came back was created at %d, want %d after %d", e.get(a, "pkey/ffff").Created, fourth,
			third)
	}
}

func testRefusals(e *env) {
	s := e.open()
	before := s.Status(e.ctx).Revision
	for _, key := range []string{"", "/a", "a/", "a//b", ".", "a/../b", "a b", "a\x00", "a*", "é",
		strings.Repeat("k", store.MaxKey+1)} {
		_, err := s.Get(e.ctx, key)
		e.want(err, store.ErrInvalid)
		_, err = store.Put(e.ctx, s, key, nil)
		e.want(err, store.ErrInvalid)
		_, err = store.Delete(e.ctx, s, key)
		e.want(err, store.ErrInvalid)
		if key == "" {
			continue
		}
		_, err = s.List(e.ctx, key)
		e.want(err, store.ErrInvalid)
		_, err = s.Watch(e.ctx, key)
		e.want(err, store.ErrInvalid)
	}
	many := func(n int) (ops []store.Op, conds []store.Cond) {
		for i := range n {
			ops = append(ops, store.PutOp("k/"+strconv.Itoa(i), nil))
			conds = append(conds, store.Absent("k/"+strconv.Itoa(i)))
		}
		return ops, conds
	}
	ops, conds := many(store.MaxTxn + 1)
	big := make([]byte, store.MaxValue)
	for name, txn := range map[string]store.Txn{
		"too many operations": {Do: ops},
		"too many conditions": {If: conds},
		"a value too big":     {Do: []store.Op{store.PutOp("k", make([]byte, store.MaxValue+1))}},
		"too many bytes":      {Do: []store.Op{store.PutOp("k", big), store.PutOp("l", big)}},
		"a key twice":         {Do: []store.Op{store.PutOp("k", nil), store.DeleteOp("k")}},
		"a deletion's value":  {Do: []store.Op{{Key: "k", Value: []byte{}, Delete: true}}},
		"a deletion's lease":  {Do: []store.Op{{Key: "k", Lease: 1, Delete: true}}},
		"a test without rev":  {If: []store.Cond{{Key: "k", Test: store.IsAt}}},
		"an unknown test":     {If: []store.Cond{{Key: "k", Test: 9, Rev: 1}}},
		"a fence without rev": {Fence: store.Fence{Key: "k"}},
		"a fence without key": {Fence: store.Fence{Created: 1}},
	} {
		if _, err := s.Txn(e.ctx, txn); !errors.Is(err, store.ErrInvalid) {
			e.Errorf("%s: %v, want invalid", name, err)
		}
	}
	for _, ttl := range []time.Duration{0, -1, store.MaxTTL + 1} {
		_, err := s.Lease(e.ctx, ttl)
		e.want(err, store.ErrInvalid)
	}
	_, err := s.Txn(e.ctx, store.Txn{Do: []store.Op{{Key: "k", Lease: 12345}}})
	e.want(err, store.ErrFenced)
	if _, err := store.Campaign(e.ctx, s, "a b", store.Leader{}); !errors.Is(err, store.ErrInvalid) {
		e.Errorf("campaign of a bad name: %v", err)
	}
	if _, err := store.Observe(e.ctx, s, "/"); !errors.Is(err, store.ErrInvalid) {
		e.Errorf("observation of a bad name: %v", err)
	}
	if after := s.Status(e.ctx).Revision; after != before {
		e.Errorf("refused calls took the store from revision %d to %d", before, after)
	}
}

func testValuesAreCopied(e *env) {
	s := e.open()
	v := []byte("value")
	_, err := store.Put(e.ctx, s, "k", v)
	e.ok(err)
	w := e.watch(s, "")
	copy(v, "XXXXX")
	copy(e.get(s, "k").Value, "YYYYY")
	l, err := s.List(e.ctx, "")
	e.ok(err)
	copy(l.Entries[0].Value, "ZZZZZ")
	copy(next(e, w).Events[0].Value, "WWWWW")
	if got := e.get(s, "k").Value; string(got) != "value" {
		e.Errorf("value is %q after others scribbled over theirs", got)
	}
}

func testListIsOneTree(e *env) {
	s := e.open()
	for _, k := range []string{"pkey", "pkey/2", "pkey/10", "pkey/1/a", "pkey-x/1", "pkey0/1", "b"} {
		e.put(s, k, k)
	}
	for tree, want := range map[string]string{
		"":         "b pkey pkey-x/1 pkey/1/a pkey/10 pkey/2 pkey0/1",
		"pkey":     "pkey/1/a pkey/10 pkey/2",
		"pkey/1":   "pkey/1/a",
		"pkey/1/a": "",
		"none":     "",
	} {
		l, err := s.List(e.ctx, tree)
		e.ok(err)
		var keys []string
		for _, en := range l.Entries {
			keys = append(keys, en.Key)
			if string(en.Value) != en.Key || en.Rev != e.get(s, en.Key).Rev {
				e.Errorf("list %q has %+v", tree, en)
			}
		}
		if got := strings.Join(keys, " "); got != want {
			e.Errorf("list %q is %q, want %q", tree, got, want)
		}
		if rev := s.Status(e.ctx).Revision; l.Rev != rev {
			e.Errorf("list %q is of revision %d, want %d", tree, l.Rev, rev)
		}
	}
}

func testTxnIsAllOrNothing(e *env) {
	s := e.open()
	e.put(s, "old", "1")
	rev, err := s.Txn(e.ctx, store.Txn{
		If: []store.Cond{store.Present("old"), store.Absent("new"), store.At(e.get(s, "old"))},
		Do: []store.Op{store.PutOp("new", []byte("2")), store.DeleteOp("old"), store.DeleteOp("never")},
	})
	e.ok(err)
	if got := e.get(s, "new"); got.Rev != rev || got.Created != rev {
		e.Errorf("a transaction of revision %d made %+v", rev, got)
	}
	_, err = s.Get(e.ctx, "old")
	e.want(err, store.ErrNotFound)

	_, err = s.Txn(e.ctx, store.Txn{
		If: []store.Cond{store.Present("new"), store.Present("old")},
		Do: []store.Op{store.DeleteOp("new"), store.PutOp("x", nil)},
	})
	e.want(err, store.ErrConflict)
	var se *store.Error
	if errors.As(err, &se); se.Key != "old" {
		e.Errorf("the conflict is about %q, want old", se.Key)
	}
	e.get(s, "new")
	_, err = s.Get(e.ctx, "x")
	e.want(err, store.ErrNotFound)
}

func testConditions(e *env) {
	s := e.open()
	e.put(s, "there", "")
	there := e.get(s, "there")
	for _, tt := range []struct {
		c    store.Cond
		want bool
	}{
		{store.Absent("gone"), true},
		{store.Present("gone"), false},
		{store.At(store.Entry{Key: "gone", Rev: there.Rev}), false},
		{store.Absent("there"), false},
		{store.Present("there"), true},
		{store.At(there), true},
		{store.At(store.Entry{Key: "there", Rev: there.Rev + 1}), false},
	} {
		_, err := s.Txn(e.ctx, store.Txn{If: []store.Cond{tt.c}})
		if tt.want {
			e.ok(err)
		} else {
			e.want(err, store.ErrConflict)
		}
	}
	_, err := store.Create(e.ctx, s, "there", nil)
	e.want(err, store.ErrConflict)
	_, err = store.Update(e.ctx, s, there, []byte("2"))
	e.ok(err)
	_, err = store.Update(e.ctx, s, there, []byte("3"))
	e.want(err, store.ErrConflict)
	if got := e.get(s, "there").Value; string(got) != "2" {
		e.Errorf("value is %q, want that of the update that was first", got)
	}
	// A fence compares the creation, not the last put.
	fence := store.Fence{Key: "there", Created: there.Created}
	_, err = s.Txn(e.ctx, store.Txn{Fence: fence, Do: []store.Op{store.PutOp("x", nil)}})
	e.ok(err)
	_, err = store.Put(e.ctx, store.Fenced(s, fence), "x", nil)
	e.ok(err)
	// The key of another term can have the same revision in a store that was restored, but never the same lease.
	_, err = store.Put(e.ctx, store.Fenced(s, store.Fence{Key: "there", Created: there.Created, Lease: 7}), "x", nil)
	e.want(err, store.ErrFenced)
	_, err = store.Delete(e.ctx, s, "there")
	e.ok(err)
	_, err = s.Txn(e.ctx, store.Txn{Fence: fence, Do: []store.Op{store.PutOp("x", nil)}})
	e.want(err, store.ErrFenced)
	e.put(s, "there", "")
	_, err = s.Txn(e.ctx, store.Txn{Fence: fence, If: []store.Cond{store.Absent("there")}})
	e.want(err, store.ErrFenced) // the fence is checked before the conditions
}

func testLargestTxn(e *env) {
	s := e.open()
	var txn store.Txn
	size := (store.MaxBytes - store.MaxTxn*3) / store.MaxTxn
	for i := range store.MaxTxn {
		txn.Do = append(txn.Do, store.PutOp(fmt.Sprintf("%03d", i), bytes.Repeat([]byte{byte(i)}, size)))
		txn.If = append(txn.If, store.Absent(fmt.Sprintf("%03d", i)))
	}
	e.put(s, "fence", "")
	txn.Fence = store.Fence{Key: "fence", Created: e.get(s, "fence").Created}
	_, err := s.Txn(e.ctx, txn)
	e.ok(err)
	_, err = s.Txn(e.ctx, txn)
	e.want(err, store.ErrConflict)
	_, err = store.Put(e.ctx, s, strings.Repeat("k", store.MaxKey), make([]byte, store.MaxValue))
	e.ok(err)
	// What was put can be listed, and watched.
	l, err := s.List(e.ctx, "")
	e.ok(err)
	if len(l.Entries) != store.MaxTxn+2 {
		e.Errorf("list has %d entries, want %d", len(l.Entries), store.MaxTxn+2)
	}
	if c := next(e, e.watch(s, "")); len(c.Events) != store.MaxTxn+2 {
		e.Errorf("watch begins with %d entries, want %d", len(c.Events), store.MaxTxn+2)
	}
}

func testRevisionsCountChanges(e *env) {
	s := e.open()
	at := e.put(s, "k", "v")
	step := func(name string, want store.Rev, t store.Txn) {
		e.Helper()
		rev, err := s.Txn(e.ctx, t)
		e.ok(err)
		if rev != want {
			e.Errorf("%s: revision %d, want %d", name, rev, want)
		}
	}
	step("nothing", at, store.Txn{})
	step("only a question", at, store.Txn{If: []store.Cond{store.Present("k")}})
	step("a deletion of nothing", at, store.Txn{Do: []store.Op{store.DeleteOp("none")}})
	step("the same value", at+1, store.Txn{Do: []store.Op{store.PutOp("k", []byte("v"))}})
	step("two keys", at+2, store.Txn{Do: []store.Op{store.PutOp("a", nil), store.PutOp("b", nil)}})
	step("a deletion", at+3, store.Txn{Do: []store.Op{store.DeleteOp("a")}})
}

func testConcurrentCompareAndSet(e *env) {
	const clients, writers, each = 2, 3, 12
	e.put(e.open(), "n", "0")
	var wg sync.WaitGroup
	for range clients {
		s := e.open()
		for range writers {
			wg.Go(func() {
				for done := 0; done < each; {
					en, err := s.Get(e.ctx, "n")
					if err != nil {
						e.Error(err)
						return
					}
					n, _ := strconv.Atoi(string(en.Value))
					_, err = store.Update(e.ctx, s, en, []byte(strconv.Itoa(n+1)))
					switch {
					case err == nil:
						done++
					case !errors.Is(err, store.ErrConflict):
						e.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	if got := string(e.get(e.open(), "n").Value); got != strconv.Itoa(clients*writers*each) {
		e.Errorf("counted %s increments, want %d", got, clients*writers*each)
	}
}

// calls are all calls of a store that can fail, with good arguments.
func calls(ctx context.Context, s store.Store) map[string]error {
	errs := map[string]error{}
	_, errs["Get"] = s.Get(ctx, "k")
	_, errs["List"] = s.List(ctx, "")
	_, errs["Txn"] = s.Txn(ctx, store.Txn{Do: []store.Op{store.PutOp("k", nil)}})
	_, errs["Watch"] = s.Watch(ctx, "")
	_, errs["Lease"] = s.Lease(ctx, time.Second)
	_, errs["Campaign"] = store.Campaign(ctx, s, "master", store.Leader{Name: "a"})
	_, errs["Observe"] = store.Observe(ctx, s, "master")
	_, errs["LeaderOf"] = store.LeaderOf(ctx, s, "master")
	return errs
}

func testEndedContext(e *env) {
	s := e.open()
	ctx, stop := context.WithCancel(e.ctx)
	stop()
	for name, err := range calls(ctx, s) {
		if !errors.Is(err, context.Canceled) {
			e.Errorf("%s with an ended context: %v", name, err)
		}
	}
}

func testClosedClient(e *env) {
	s := e.site.Open(e)
	e.put(s, "k", "v")
	w := e.watch(s, "")
	l, err := s.Lease(e.ctx, time.Second)
	e.ok(err)
	e.ok(s.Close())
	e.ok(s.Close())
	ends(e, "the watch", w)
	ends(e, "the lease", l.Lost())
	e.want(l.Revoke(e.ctx), store.ErrUnavailable)
	for name, err := range calls(e.ctx, s) {
		if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "closed") {
			e.Errorf("%s on a closed client: %v", name, err)
		}
	}
	if down := s.Status(e.ctx).Down; !errors.Is(down, store.ErrUnavailable) || !strings.Contains(down.Error(),
		"closed") {
		e.Errorf("status of a closed client: %v", down)
	}
	if got := e.get(e.open(), "k"); string(got.Value) != "v" {
		e.Errorf("another client reads %+v", got)
	}
}

func testStatus(e *env) {
	s := e.open()
	before := s.Status(e.ctx)
	rev := e.put(s, "k", strings.Repeat("v", 1000))
	after := s.Status(e.ctx)
	if after.Revision != rev || after.Revision != before.Revision+1 {
		e.Errorf("revision %d then %d, put said %d", before.Revision, after.Revision, rev)
	}
	if after.Kind == "" || after.Down != nil || after.Members < 1 {
		e.Errorf("status is %+v", after)
	}
	if after.UsedBytes < 1000 || after.SizeBytes < after.UsedBytes {
		e.Errorf("%d of %d bytes used, want at least 1000", after.UsedBytes, after.SizeBytes)
	}
}
