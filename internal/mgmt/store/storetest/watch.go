// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"

	"github.com/google/go-cmp/cmp"

	"weft/internal/mgmt/store"
)

// mirror is a watcher's state, and the rules of changes.
type mirror struct {
	rev    store.Rev
	resets int
	all    map[string]store.Entry
}

func (m *mirror) take(e *env, c store.Change) {
	e.Helper()
	if c.Reset {
		m.resets++
		m.all = map[string]store.Entry{}
		if c.Rev < m.rev {
			e.Errorf("reset to revision %d after %d", c.Rev, m.rev)
		}
	} else {
		if c.Rev <= m.rev {
			e.Errorf("change of revision %d after %d", c.Rev, m.rev)
		}
		if len(c.Events) == 0 {
			e.Errorf("change of revision %d without an event", c.Rev)
		}
		if m.resets == 0 {
			e.Errorf("a change came before the reset")
		}
	}
	m.rev = c.Rev
	last := ""
	for _, ev := range c.Events {
		switch {
		case c.Reset && (ev.Deleted || ev.Rev > c.Rev || ev.Key <= last):
			e.Errorf("reset to %d has %+v after %q", c.Rev, ev, last)
		case !c.Reset && ev.Rev != c.Rev:
			e.Errorf("change of revision %d has %+v", c.Rev, ev)
		}
		last = ev.Key
		if ev.Deleted {
			if diff := cmp.Diff(store.Entry{Key: ev.Key, Rev: c.Rev}, ev.Entry); diff != "" {
				e.Errorf("a deleted key contains more (-want +got):\n%s", diff)
			}
			delete(m.all, ev.Key)
			continue
		}
		m.all[ev.Key] = ev.Entry
	}
}

// until takes changes until one of revision rev has come.
func (m *mirror) until(e *env, w <-chan store.Change, rev store.Rev) {
	e.Helper()
	for m.rev < rev {
		m.take(e, next(e, w))
	}
}

// equals compares with what the store lists below tree.
func (m *mirror) equals(e *env, s store.Store, tree string) {
	e.Helper()
	l, err := s.List(e.ctx, tree)
	e.ok(err)
	want := map[string]store.Entry{}
	for _, en := range l.Entries {
		want[en.Key] = en
	}
	if diff := cmp.Diff(want, m.all, equateEmpty); diff != "" {
		e.Errorf("a watcher of %q at %d differs from the list of %d (-list +watch):\n%s", tree, m.rev, l.Rev, diff)
	}
}

// equateEmpty takes nil for an empty value.
var equateEmpty = cmp.Comparer(func(a, b []byte) bool { return string(a) == string(b) })

func testWatchBeginsWithAll(e *env) {
	s := e.open()
	c := next(e, e.watch(s, "t"))
	if !c.Reset || len(c.Events) != 0 || c.Rev != s.Status(e.ctx).Revision {
		e.Errorf("a watch of nothing begins with %+v", c)
	}
	e.put(s, "t/b", "2")
	e.put(s, "t/a", "1")
	rev := e.put(s, "u/x", "other tree")
	c = next(e, e.watch(s, "t"))
	want := store.Change{Rev: rev, Reset: true, Events: []store.Event{{Entry: e.get(s, "t/a")},
		{Entry: e.get(s, "t/b")}}}
	if diff := cmp.Diff(want, c); diff != "" {
		e.Errorf("first change (-want +got):\n%s", diff)
	}
}

func testWatchOrder(e *env) {
	s, other := e.open(), e.open()
	w, all := e.watch(s, "t"), e.watch(other, "")
	next(e, w)
	next(e, all)
	a := e.put(s, "t/a", "1")
	x := e.put(other, "x", "1")
	a2 := e.put(other, "t/a", "2")
	d, err := store.Delete(e.ctx, s, "t/a")
	e.ok(err)
	want := []store.Change{
		{Rev: a, Events: []store.Event{{Entry: store.Entry{Key: "t/a", Value: []byte("1"), Created: a, Rev: a}}}},
		{Rev: x, Events: []store.Event{{Entry: store.Entry{Key: "x", Value: []byte("1"), Created: x, Rev: x}}}},
		{Rev: a2, Events: []store.Event{{Entry: store.Entry{Key: "t/a", Value: []byte("2"), Created: a, Rev: a2}}}},
		{Rev: d, Events: []store.Event{{Entry: store.Entry{Key: "t/a", Rev: d}, Deleted: true}}},
	}
	for _, c := range want {
		if diff := cmp.Diff(c, next(e, all)); diff != "" {
			e.Errorf("watch of all (-want +got):\n%s", diff)
		}
		if c.Rev == x {
			continue
		}
		if diff := cmp.Diff(c, next(e, w)); diff != "" {
			e.Errorf("watch of t (-want +got):\n%s", diff)
		}
	}
}

func testWatchKeepsTransactionsWhole(e *env) {
	s := e.open()
	e.put(s, "t/old", "")
	w := e.watch(s, "t")
	next(e, w)
	rev, err := s.Txn(e.ctx, store.Txn{Do: []store.Op{
		store.PutOp("t/z", nil), store.PutOp("u",
			nil), store.DeleteOp("t/old"), store.DeleteOp("t/never"), store.PutOp("t/b", nil),
	}})
	e.ok(err)
	c := next(e, w)
	var got []string
	for _, ev := range c.Events {
		got = append(got, fmt.Sprint(ev.Key, " ", ev.Deleted))
	}
	if diff := cmp.Diff([]string{"t/z false", "t/old true", "t/b false"}, got); diff != "" || c.Rev != rev || c.Reset {
		e.Errorf("one transaction of revision %d became %+v (-want +got):\n%s", rev, c, diff)
	}
}

// testWatchLags lets far more happen than a watcher may be behind.
func testWatchLags(e *env) {
	s := e.open()
	w := e.watch(s, "")
	var m mirror
	m.take(e, next(e, w))
	var last store.Rev
	const n = 3 * store.WatchBuffer
	for i := range n {
		last = e.put(s, "k/"+strconv.Itoa(i%7), strconv.Itoa(i))
	}
	taken := 0
	for m.rev < last {
		m.take(e, next(e, w))
		taken++
	}
	m.equals(e, s, "")
	if m.resets < 2 || taken == n {
		e.Errorf("a watcher that lagged by %d changes got %d of them and %d resets", n, taken, m.resets)
	}
	// The watch continues.
	m.until(e, w, e.put(s, "k/new", ""))
	m.equals(e, s, "")
}

func testWatchEnds(e *env) {
	s := e.open()
	ctx, stop := context.WithCancel(e.ctx)
	idle, err := s.Watch(ctx, "")
	e.ok(err)
	next(e, idle)
	full, err := s.Watch(ctx, "")
	e.ok(err)
	e.put(s, "k", "")
	stop()
	ends(e, "an idle watch", idle)
	ends(e, "a watch without a reader", full)
	e.put(s, "k", "")
}

// testWatchMirrors lets writers of two clients work while watchers follow.
func testWatchMirrors(e *env) {
	a, b := e.open(), e.open()
	var wg sync.WaitGroup
	ends := make(chan store.Rev, 2)
	for i, s := range []store.Store{a, b} {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(i)))
			var last store.Rev
			for range 100 {
				var t store.Txn
				for k := range 5 {
					key := fmt.Sprintf("t%d/%d", rnd.IntN(2), k)
					switch rnd.IntN(3) {
					case 0:
						t.Do = append(t.Do, store.DeleteOp(key))
					case 1:
						t.Do = append(t.Do, store.PutOp(key, strconv.AppendInt(nil, int64(rnd.Int32()), 10)))
					}
				}
				rev, err := s.Txn(e.ctx, t)
				if err != nil {
					e.Error(err)
				}
				last = rev
			}
			ends <- last
		})
	}
	watches := map[string]<-chan store.Change{"": e.watch(a, ""), "t1": e.watch(b, "t1")}
	wg.Wait()
	// A last change in every tree shows that all before it came.
	rev, err := a.Txn(e.ctx, store.Txn{Do: []store.Op{store.PutOp("t0/end", nil), store.PutOp("t1/end", nil)}})
	e.ok(err)
	for range 2 {
		if last := <-ends; last >= rev {
			e.Errorf("revision %d follows %d", rev, last)
		}
	}
	for tree, w := range watches {
		var m mirror
		m.until(e, w, rev)
		m.equals(e, a, tree)
	}
}
