// SPDX-License-Identifier: Apache-2.0

// Package storetest is what every store must do, as one suite of tests.
//
// What comes in: a Site, that is a store to which clients can be opened; what
// goes out: test failures. Called by the tests of store and store/etcd only.
package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"weft/internal/mgmt/store"
	"weft/internal/proto/problem"
)

// Site is one store, empty at first.
type Site interface {
	// Open returns another client; the test closes or kills it.
	Open(t testing.TB) store.Store
	// Kill ends a client as the death of its process does.
	Kill(t testing.TB, s store.Store)
}

// patience is how long anything that must happen may take on a busy machine.
const patience = 30 * time.Second

// Run runs the suite, each test on a site of its own.
func Run(t *testing.T, site func(t testing.TB) Site) {
	tests := []struct {
		name string
		f    func(e *env)
	}{
		{"GetPutDelete", testGetPutDelete},
		{"Refusals", testRefusals},
		{"ValuesAreCopied", testValuesAreCopied},
		{"ListIsOneTree", testListIsOneTree},
		{"TxnIsAllOrNothing", testTxnIsAllOrNothing},
		{"Conditions", testConditions},
		{"LargestTxn", testLargestTxn},
		{"RevisionsCountChanges", testRevisionsCountChanges},
		{"ConcurrentCompareAndSet", testConcurrentCompareAndSet},
		{"EndedContext", testEndedContext},
		{"ClosedClient", testClosedClient},
		{"WatchBeginsWithAll", testWatchBeginsWithAll},
		{"WatchOrder", testWatchOrder},
		{"WatchKeepsTransactionsWhole", testWatchKeepsTransactionsWhole},
		{"WatchLags", testWatchLags},
		{"WatchEnds", testWatchEnds},
		{"WatchMirrors", testWatchMirrors},
		{"LeaseRevoked", testLeaseRevoked},
		{"LeaseEndsWithItsClient", testLeaseEndsWithItsClient},
		{"LeaseExpires", testLeaseExpires},
		{"LeaseIsRenewed", testLeaseIsRenewed},
		{"ElectOne", testElectOne},
		{"ElectionHandover", testElectionHandover},
		{"TakeoverAfterDeath", testTakeoverAfterDeath},
		{"StaleMasterIsFenced", testStaleMasterIsFenced},
		{"CampaignIsGivenUp", testCampaignIsGivenUp},
		{"Observe", testObserve},
		{"Status", testStatus},
		{"Model", testModel},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithTimeout(t.Context(), 4*patience)
			defer stop()
			tt.f(&env{T: t, ctx: ctx, site: site(t)})
		})
	}
}

// env is what a test of the suite works with.
type env struct {
	*testing.T
	ctx  context.Context
	site Site
}

// open returns a client that ends with the test.
func (e *env) open() store.Store {
	e.Helper()
	s := e.site.Open(e)
	e.Cleanup(func() {
		if err := s.Close(); err != nil {
			e.Errorf("close: %v", err)
		}
	})
	return s
}

func (e *env) put(s store.Store, key, value string) store.Rev {
	e.Helper()
	rev, err := store.Put(e.ctx, s, key, []byte(value))
	e.ok(err)
	return rev
}

func (e *env) get(s store.Store, key string) store.Entry {
	e.Helper()
	got, err := s.Get(e.ctx, key)
	e.ok(err)
	return got
}

func (e *env) ok(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// want checks the kind of an error, and that its text has reason and fix.
func (e *env) want(err, kind error) {
	e.Helper()
	if !errors.Is(err, kind) {
		e.Fatalf("error is %v, want %v", err, kind)
	}
	var se *store.Error
	if !errors.As(err, &se) {
		e.Fatalf("error %v is a %T, want *store.Error", err, err)
	}
	if se.What == "" || se.Why == "" || se.Fix == "" || problem.Of("", err).Fix != se.Fix {
		e.Errorf("error %q does not say what failed, why, and the fix", err)
	}
}

func (e *env) watch(s store.Store, tree string) <-chan store.Change {
	e.Helper()
	w, err := s.Watch(e.ctx, tree)
	e.ok(err)
	return w
}

// next takes from a channel what must come.
func next[T any](e *env, c <-chan T) T {
	e.Helper()
	select {
	case v, ok := <-c:
		if !ok {
			e.Fatal("channel closed")
		}
		return v
	case <-time.After(patience):
		e.Fatal("nothing came")
	}
	panic("unreachable")
}

// ends waits until a channel is closed.
func ends[T any](e *env, what string, c <-chan T) {
	e.Helper()
	late := time.After(patience)
	for {
		select {
		case _, ok := <-c:
			if !ok {
				return
			}
		case <-late:
			e.Fatalf("%s does not end", what)
		}
	}
}
