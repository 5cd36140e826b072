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
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory()
		defer mem.Close()
		old, stop := dying(t, mem)
		doubts := make(chan struct{}, 1)
		elected := heir(t, mem, doubts)
		synctest.Wait() // no look is under way that could still delete the doubt
		stop()
		began := time.Now()
		doubts <- struct{}{}
		term := arrives(t, elected)
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
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// dying returns the term of a leader that has proven it. After stop, the leader looks at the election no more, but its
// lease lives on.
func dying(t *testing.T, mem *Memory) (term *Term, stop func()) {
	t.Helper()
	own := mem.Open()
	s := &hung{Store: own, stopped: make(chan struct{})}
	term, err := Campaign(t.Context(), s, "master", Leader{Name: "first"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(term.Resign(context.Background()), own.Close()); err != nil {
			t.Error(err)
		}
	})
	synctest.Wait() // the first look has ended
	if !term.Holds() {
		t.Fatal("a leader that lives cannot prove its term")
	}
	return term, func() { close(s.stopped) }
}

// arrives returns the term of a candidate that must be elected within a minute of the bubble's time.
func arrives(t *testing.T, elected <-chan *Term) *Term {
	t.Helper()
	select {
	case term := <-elected:
		return term
	case <-time.After(time.Minute):
		t.Fatal("the candidate is never elected")
		return nil
	}
}

// TestDoubtSparesTheLiving: a leader that lives deletes doubts and remains the leader.
func TestDoubtSparesTheLiving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		// A watch reports what happened before its Reset only by the result: a doubt that was put and deleted is
		// not in it.
		if c := <-changes; !c.Reset {
			t.Fatalf("the first change is %+v", c)
		}
		for range 3 {
			doubts <- struct{}{}
			for put, deleted := false, false; !put || !deleted; {
				select {
				case c := <-changes:
					for _, e := range c.Events {
						if e.Key == doubtKey("master") {
							put, deleted = put || !e.Deleted, put && e.Deleted
						}
					}
				case <-elected:
					t.Fatal("a leader that lives was deposed")
				case <-time.After(time.Minute):
					t.Fatalf("a doubt is missing: put: %v, deleted: %v", put, deleted)
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
	})
}

// lossy is a store of which some answers are lost until a moment: all to Get of a key, and those to the transactions
// that it has executed if loseTxns is set.
type lossy struct {
	Store
	key      string
	loseTxns bool
	until    time.Time
}

func (l *lossy) lost() error {
	if time.Now().Before(l.until) {
		return &Error{Kind: ErrUnavailable, What: "cannot use the store", Why: "no answer"}
	}
	return nil
}

func (l *lossy) Get(ctx context.Context, key string) (Entry, error) {
	if err := l.lost(); key == l.key && err != nil {
		return Entry{}, err
	}
	return l.Store.Get(ctx, key)
}

func (l *lossy) Txn(ctx context.Context, t Txn) (Rev, error) {
	rev, err := l.Store.Txn(ctx, t)
	if lost := l.lost(); l.loseTxns && err == nil && lost != nil {
		return 0, lost
	}
	return rev, err
}

// TestElectedWithoutAnswer: a candidate that was elected by an attempt without an answer learns of it, also if the
// store does not answer for longer than it reports changes. Nothing changes in the election afterwards.
func TestElectedWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory()
		defer mem.Close()
		s := &lossy{Store: mem, key: electionKey("master"), loseTxns: true, until: time.Now().Add(5 * time.Second)}
		term := arrives(t, heir(t, s, nil))
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestDoubtOutlastsSilence: a candidate repeats its attempt to depose a dead leader if the store did not answer when the
// candidate read the doubt that another one had put.
func TestDoubtOutlastsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory()
		defer mem.Close()
		_, stop := dying(t, mem)
		stop()
		if _, err := Put(t.Context(), mem, doubtKey("master"), nil); err != nil {
			t.Fatal(err)
		}
		doubts := make(chan struct{}, 1)
		s := &lossy{Store: mem, key: doubtKey("master"), until: time.Now().Add(doubtFor / 2)}
		elected := heir(t, s, doubts)
		doubts <- struct{}{}
		term := arrives(t, elected)
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// forgotten is a store with a first lease that can end without a notice.
type forgotten struct {
	Store
	first  Lease
	leases int
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

// TestCandidateTakesAnotherLease: a candidate with a lease that has ended, which it finds out when it could be elected,
// is elected though nothing changes in the election any more.
func TestCandidateTakesAnotherLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory()
		defer mem.Close()
		before, err := Campaign(t.Context(), mem, "master", Leader{Name: "first"})
		if err != nil {
			t.Fatal(err)
		}
		s := &forgotten{Store: mem}
		elected := heir(t, s, nil)
		synctest.Wait() // it has attempted, and waits for a change
		if s.first == nil {
			t.Fatal("the candidate has no lease")
		}
		if err := errors.Join(s.first.Revoke(t.Context()), before.Resign(t.Context())); err != nil {
			t.Fatal(err)
		}
		term := arrives(t, elected)
		if s.leases != 2 {
			t.Errorf("%d leases, want 2", s.leases)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
	})
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
