// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// heir stands with doubts and returns where its term arrives.
func heir(t *testing.T, s Store, doubts <-chan struct{}) <-chan *Term {
	t.Helper()
	elected := make(chan *Term, 1)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() {
		stop()
		<-done
	})
	go func() {
		defer close(done)
		term, err := Stand(ctx, s, "master", Candidate{Leader: Leader{Name: "heir"}, Doubts: doubts})
		if err == nil {
			elected <- term
		}
	}()
	return elected
}

// hung is a store that does not answer once it is stopped; its leases live on.
type hung struct {
	Store
	stopped chan struct{}
}

func (h *hung) answers(ctx context.Context) error {
	select {
	case <-h.stopped:
		<-ctx.Done()
		return Closed()
	default:
		return nil
	}
}

func (h *hung) List(ctx context.Context, tree string) (Listing, error) {
	if err := h.answers(ctx); err != nil {
		return Listing{}, err
	}
	return h.Store.List(ctx, tree)
}

// TestDoubtDeposesTheDead: a leader that does not look at the election any more loses its office long before its lease
// ends, and cannot prove its term when the next one begins.
func TestDoubtDeposesTheDead(t *testing.T) {
	mem := NewMemory()
	defer mem.Close()
	own := mem.Open()
	defer own.Close()
	first := &hung{Store: own, stopped: make(chan struct{})}
	old, err := Campaign(t.Context(), first, "master", Leader{Name: "first"})
	if err != nil {
		t.Fatal(err)
	}
	for !old.Holds() {
		time.Sleep(time.Millisecond)
	}
	doubts := make(chan struct{}, 1)
	elected := heir(t, mem, doubts)
	close(first.stopped)
	began := time.Now()
	doubts <- struct{}{}
	term := <-elected
	if old.Holds() {
		t.Error("two leaders can prove their terms")
	}
	if took := time.Since(began); took < doubtPatience {
		t.Errorf("the leader was deposed after %v, its proof is good for %v", took, confirmFor)
	}
	if _, err := old.Txn(t.Context(), Txn{Do: []Op{PutOp("n", nil)}}); !errors.Is(err, ErrFenced) {
		t.Errorf("the leader before writes: %v", err)
	}
	<-old.Lost()
	if err := errors.Join(old.Resign(t.Context()), term.Resign(t.Context())); err != nil {
		t.Error(err)
	}
}

// TestDoubtSparesTheLiving: a leader that lives deletes doubts and remains the leader.
func TestDoubtSparesTheLiving(t *testing.T) {
	mem := NewMemory()
	defer mem.Close()
	own := mem.Open()
	defer own.Close()
	term, err := Campaign(t.Context(), own, "master", Leader{Name: "first"})
	if err != nil {
		t.Fatal(err)
	}
	doubts := make(chan struct{}, 1)
	elected := heir(t, mem, doubts)
	changes, err := mem.Watch(t.Context(), electionTree("master"))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		doubts <- struct{}{}
		for put, deleted := false, false; !put || !deleted; {
			for _, e := range (<-changes).Events {
				if e.Key == doubtKey("master") {
					put, deleted = put || !e.Deleted, put && e.Deleted
				}
			}
		}
	}
	select {
	case <-elected:
		t.Error("a leader that lives was deposed")
	case <-term.Lost():
		t.Error("the term of a leader that lives is over")
	case <-time.After(doubtPatience + confirmEvery):
	}
	if !term.Holds() {
		t.Error("a leader that lives cannot prove its term")
	}
	if err := term.Resign(t.Context()); err != nil {
		t.Error(err)
	}
}

// forgotten is a store with a first lease that can end without a notice. attempts gets a value for each transaction.
type forgotten struct {
	Store
	first    Lease
	leases   int
	attempts chan struct{}
}

type unnoticed struct{ Lease }

func (unnoticed) Lost() <-chan struct{} { return nil }

func (f *forgotten) Lease(ctx context.Context, ttl time.Duration) (Lease, error) {
	l, err := f.Store.Lease(ctx, ttl)
	if f.leases++; f.leases > 1 || err != nil {
		return l, err
	}
	f.first = l
	return unnoticed{l}, nil
}

func (f *forgotten) Txn(ctx context.Context, t Txn) (Rev, error) {
	defer func() { f.attempts <- struct{}{} }()
	return f.Store.Txn(ctx, t)
}

// TestCandidateTakesAnotherLease: a candidate with a lease that has ended, which it finds out when it could be elected,
// is elected though nothing changes in the election any more.
func TestCandidateTakesAnotherLease(t *testing.T) {
	mem := NewMemory()
	defer mem.Close()
	before, err := Campaign(t.Context(), mem, "master", Leader{Name: "first"})
	if err != nil {
		t.Fatal(err)
	}
	s := &forgotten{Store: mem, attempts: make(chan struct{}, 100)}
	elected := heir(t, s, nil)
	<-s.attempts // at first, and when the watch begins
	<-s.attempts
	if err := errors.Join(s.first.Revoke(t.Context()), before.Resign(t.Context())); err != nil {
		t.Fatal(err)
	}
	term := <-elected
	if s.leases != 2 {
		t.Errorf("%d leases, want 2", s.leases)
	}
	if err := term.Resign(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestReserve: where the office becomes free, a reserve lets another candidate have it, and takes it where there is
// none.
func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory()
		defer mem.Close()
		first, err := Campaign(t.Context(), mem, "master", Leader{Name: "first"})
		if err != nil {
			t.Fatal(err)
		}
		elected := make(chan *Term)
		stand := func(who Candidate) {
			term, err := Stand(t.Context(), mem, "master", who)
			if err != nil {
				t.Error(err)
			}
			elected <- term
		}
		go stand(Candidate{Leader: Leader{Name: "reserve"}, Reserve: func() bool { return true }})
		synctest.Wait()
		go stand(Candidate{Leader: Leader{Name: "heir"}})
		synctest.Wait()
		time.Sleep(time.Second) // both wait for a change
		for _, want := range []string{"heir", "reserve"} {
			if err := first.Resign(t.Context()); err != nil {
				t.Fatal(err)
			}
			first = <-elected
			if l, err := LeaderOf(t.Context(), mem, "master"); err != nil || l.Name != want {
				t.Errorf("%q is elected, want %q: %v", l.Name, want, err)
			}
		}
		if err := first.Resign(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
