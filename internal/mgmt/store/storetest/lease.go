// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weft/internal/mgmt/store"
)

// MaxTakeover bounds how long the fabric has no master after one died, on a
// machine that runs what is ready to run.
const MaxTakeover = 5 * time.Second

// Stall measures until the test ends how well the machine keeps time. The function it returns gives
// the sum of delays of more than 50 ms so far, by which bounds on elapsed time must be extended.
func Stall(t testing.TB) func() time.Duration {
	var sum atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for last := time.Now(); ; {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			now := time.Now()
			if late := now.Sub(last); late > 50*time.Millisecond {
				sum.Add(int64(late))
			}
			last = now
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
	})
	return func() time.Duration { return time.Duration(sum.Load()) }
}

func (e *env) lease(s store.Store, ttl time.Duration) store.Lease {
	e.Helper()
	l, err := s.Lease(e.ctx, ttl)
	e.ok(err)
	if l.ID() == 0 {
		e.Error("a lease has no name")
	}
	return l
}

func (e *env) leased(s store.Store, l store.Lease, keys ...string) {
	e.Helper()
	var t store.Txn
	for _, k := range keys {
		t.Do = append(t.Do, store.Op{Key: k, Lease: l.ID()})
	}
	_, err := s.Txn(e.ctx, t)
	e.ok(err)
}

func testLeaseRevoked(e *env) {
	s, other := e.open(), e.open()
	l := e.lease(s, time.Minute)
	e.leased(s, l, "t/b", "t/a", "t/kept")
	if got := e.get(other, "t/a").Lease; got != l.ID() {
		e.Errorf("t/a has lease %d, want %d", got, l.ID())
	}
	e.put(other, "t/kept", "without a lease now")
	// An update leaves the lease as it is.
	_, err := store.Update(e.ctx, other, e.get(other, "t/b"), []byte("2"))
	e.ok(err)
	w := e.watch(other, "t")
	next(e, w)
	e.ok(l.Revoke(e.ctx))
	ends(e, "the lease", l.Lost())
	c := next(e, w)
	if len(c.Events) != 2 || c.Events[0].Key != "t/a" || !c.Events[0].Deleted || c.Events[1].Key != "t/b" ||
		!c.Events[1].Deleted {
		e.Errorf("the end of a lease became %+v, want the deletion of t/a and t/b", c)
	}
	e.get(s, "t/kept")
	_, err = s.Txn(e.ctx, store.Txn{Do: []store.Op{store.PutOp("plain", nil), {Key: "t/a", Lease: l.ID()}}})
	e.want(err, store.ErrFenced)
	_, err = s.Get(e.ctx, "plain")
	e.want(err, store.ErrNotFound)
	e.ok(l.Revoke(e.ctx)) // again: it has ended already
}

func testLeaseEndsWithItsClient(e *env) {
	s, other := e.site.Open(e), e.open()
	e.leased(s, e.lease(s, time.Hour), "k")
	e.ok(s.Close())
	_, err := other.Get(e.ctx, "k")
	e.want(err, store.ErrNotFound)
}

func testLeaseExpires(e *env) {
	s, other := e.site.Open(e), e.open()
	l := e.lease(s, time.Second)
	e.leased(s, l, "t/k")
	w := e.watch(other, "t")
	next(e, w)
	stalled := Stall(e)
	began := time.Now()
	e.site.Kill(e, s)
	c := next(e, w)
	if len(c.Events) != 1 || !c.Events[0].Deleted {
		e.Errorf("expiry became %+v", c)
	}
	if took := time.Since(began); took > MaxTakeover+stalled() {
		e.Errorf("a lease of 1s took %v to expire", took)
	}
	ends(e, "the lease", l.Lost())
	_, err := other.Txn(e.ctx, store.Txn{Do: []store.Op{{Key: "t/k", Lease: l.ID()}}})
	e.want(err, store.ErrFenced)
}

// testLeaseIsRenewed outlasts the time to live: that is what it is about. A machine that stood still proves nothing, so
// the test begins anew then.
func testLeaseIsRenewed(e *env) {
	s := e.open()
	stalled := Stall(e)
	for range 10 {
		l := e.lease(s, 4*time.Second)
		e.leased(s, l, "k")
		before := stalled()
		select {
		case <-l.Lost():
			if late := stalled() - before; late > time.Second {
				e.Logf("the machine stood still for %v", late)
				continue
			}
			e.Error("a lease of a living client was lost")
		case <-time.After(6 * time.Second):
			e.get(s, "k")
		}
		return
	}
	e.Error("the machine stands still again and again")
}

func (e *env) campaign(s store.Store, name string) *store.Term {
	e.Helper()
	t, err := store.Campaign(e.ctx, s, "master", store.Leader{Name: name, Address: name + ":1"})
	e.ok(err)
	return t
}

// testElectOne runs several candidates of one election: never two are elected.
func testElectOne(e *env) {
	var inOffice, terms atomic.Int32
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		s := e.open()
		wg.Go(func() {
			for range 3 {
				t, err := store.Campaign(e.ctx, s, "master", store.Leader{Name: name})
				if err != nil {
					e.Error(err)
					return
				}
				if n := inOffice.Add(1); n != 1 {
					e.Errorf("%d are in office", n)
				}
				terms.Add(1)
				if l, err := store.LeaderOf(e.ctx, s, "master"); err != nil || l.Name != name {
					e.Errorf("in the office of %s is %+v, %v", name, l, err)
				}
				inOffice.Add(-1)
				if err := t.Resign(e.ctx); err != nil {
					e.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := terms.Load(); n != 9 {
		e.Errorf("%d terms of 9", n)
	}
}

func testElectionHandover(e *env) {
	a, b := e.open(), e.open()
	_, err := store.LeaderOf(e.ctx, a, "master")
	e.want(err, store.ErrNotFound)
	first := e.campaign(a, "a")
	l, err := store.LeaderOf(e.ctx, b, "master")
	e.ok(err)
	if want := (store.Leader{Name: "a", Address: "a:1", Term: first.Fence().Created}); l != want {
		e.Errorf("leader is %+v, want %+v", l, want)
	}
	elected := make(chan *store.Term, 1)
	go func() { elected <- e.campaign(b, "b") }()
	_, err = first.Txn(e.ctx, store.Txn{Do: []store.Op{store.PutOp("lid/1", []byte("by a"))}})
	e.ok(err)
	select {
	case <-elected:
		e.Fatal("two lead")
	case <-first.Lost():
		e.Fatal("a term was lost for no reason")
	default:
	}
	e.ok(first.Resign(e.ctx))
	ends(e, "the resigned term", first.Lost())
	second := next(e, elected)
	_, err = second.Txn(e.ctx, store.Txn{Do: []store.Op{store.PutOp("lid/1", []byte("by b"))}})
	e.ok(err)
	_, err = first.Txn(e.ctx, store.Txn{Do: []store.Op{store.PutOp("lid/1", []byte("by a, late"))}})
	e.want(err, store.ErrFenced)
	if got := string(e.get(a, "lid/1").Value); got != "by b" {
		e.Errorf("lid/1 was written %s", got)
	}
	e.ok(second.Resign(e.ctx))
	e.ok(second.Resign(e.ctx))
}

func testTakeoverAfterDeath(e *env) {
	a, b := e.site.Open(e), e.open()
	first := e.campaign(a, "a")
	elected := make(chan *store.Term, 1)
	go func() { elected <- e.campaign(b, "b") }()
	stalled := Stall(e)
	began := time.Now()
	e.site.Kill(e, a)
	second := next(e, elected)
	took := time.Since(began)
	most := MaxTakeover + stalled()
	e.Logf("takeover after %v", took.Round(time.Millisecond))
	if took > most {
		e.Errorf("takeover took %v, at most %v may pass", took, most)
	}
	ends(e, "the term of the dead", first.Lost())
	e.want(first.Resign(e.ctx), store.ErrUnavailable)
	if second.Fence().Created <= first.Fence().Created {
		e.Errorf("the term %+v follows %+v", second.Fence(), first.Fence())
	}
	e.ok(second.Resign(e.ctx))
}

// testStaleMasterIsFenced deposes a master that continues to write.
func testStaleMasterIsFenced(e *env) {
	a, b := e.open(), e.open()
	stale := e.campaign(a, "a")
	_, err := store.Delete(e.ctx, b, stale.Fence().Key)
	e.ok(err)
	// Without a master a late write fails too.
	_, err = stale.Txn(e.ctx, store.Txn{Do: []store.Op{store.PutOp("lid/1", nil)}})
	e.want(err, store.ErrFenced)
	now := e.campaign(b, "b")
	_, err = stale.Txn(e.ctx, store.Txn{Do: []store.Op{store.PutOp("lid/1", nil)}})
	e.want(err, store.ErrFenced)
	ends(e, "the term of the deposed", stale.Lost())
	_, err = b.Get(e.ctx, "lid/1")
	e.want(err, store.ErrNotFound)
	// Its resignation takes nothing from the other.
	e.ok(stale.Resign(e.ctx))
	_, err = now.Txn(e.ctx, store.Txn{Do: []store.Op{store.PutOp("lid/1", nil)}})
	e.ok(err)
	e.ok(now.Resign(e.ctx))
}

func testCampaignIsGivenUp(e *env) {
	a, b := e.open(), e.open()
	first := e.campaign(a, "a")
	ctx, stop := context.WithCancel(e.ctx)
	gone := make(chan error, 1)
	go func() {
		_, err := store.Campaign(ctx, b, "master", store.Leader{Name: "b"})
		gone <- err
	}()
	stop()
	if err := next(e, gone); !errors.Is(err, context.Canceled) {
		e.Errorf("a campaign that was given up returns %v", err)
	}
	e.ok(first.Resign(e.ctx))
	_, err := store.LeaderOf(e.ctx, b, "master")
	e.want(err, store.ErrNotFound)
	// Elections of other names are others.
	one, two := e.campaign(a, "a"), (*store.Term)(nil)
	two, err = store.Campaign(e.ctx, b, "other", store.Leader{Name: "b"})
	e.ok(err)
	e.ok(one.Resign(e.ctx))
	select {
	case <-two.Lost():
		e.Error("the end of one election ended another")
	default:
	}
	e.ok(two.Resign(e.ctx))
}

func testObserve(e *env) {
	a, b := e.open(), e.open()
	ctx, stop := context.WithCancel(e.ctx)
	seen, err := store.Observe(ctx, b, "master")
	e.ok(err)
	if l := next(e, seen); l != (store.Leader{}) {
		e.Errorf("before any election %+v leads", l)
	}
	for _, name := range []string{"a", "b"} {
		t := e.campaign(a, name)
		want := store.Leader{Name: name, Address: name + ":1", Term: t.Fence().Created}
		if l := next(e, seen); l != want {
			e.Errorf("leader is %+v, want %+v", l, want)
		}
		e.ok(t.Resign(e.ctx))
		if l := next(e, seen); l != (store.Leader{}) {
			e.Errorf("after a resignation %+v leads", l)
		}
	}
	last := e.campaign(a, "c")
	late, err := store.Observe(ctx, b, "master")
	e.ok(err)
	if l := next(e, late); l.Name != "c" {
		e.Errorf("a late observer sees %+v", l)
	}
	stop()
	ends(e, "observation", seen)
	ends(e, "observation", late)
	e.ok(last.Resign(e.ctx))
}
