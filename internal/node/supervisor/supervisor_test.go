// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft/internal/node/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is an owner that the test runs by hand, and the calls that a supervisor of numbers made.
type fixture struct {
	*Supervisor[int]
	worker *loop.Worker
	group  sync.WaitGroup
	mu     sync.Mutex // guards what follows
	owner  []func()
	calls  []string
}

func newFixture() *fixture {
	f := &fixture{}
	f.worker = loop.NewWorker(&f.group)
	f.Supervisor = New(f.worker, func(g func()) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.owner = append(f.owner, g)
	}, func(r int) { f.note("release %d", r) })
	return f
}

func (f *fixture) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

// open opens a number, which fails if it is negative.
func (f *fixture) open(n int) {
	f.Open(func(Term) (int, error) {
		f.note("make %d", n)
		if n < 0 {
			return 0, errors.New("negative")
		}
		return n, nil
	}, func(r int, err error) { f.note("opened %d %v", r, err) })
}

// expect runs worker and owner until nothing is left, and compares the calls since the last expect.
func (f *fixture) expect(t *testing.T, want ...string) {
	t.Helper()
	for {
		f.worker.Wait()
		f.mu.Lock()
		list := f.owner
		f.owner = nil
		f.mu.Unlock()
		if len(list) == 0 {
			break
		}
		for _, g := range list {
			g()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.calls, want) {
		t.Errorf("got %q\nwant %q", f.calls, want)
	}
	f.calls = nil
}

func TestOneResourceAtATime(t *testing.T) {
	f := newFixture()
	f.open(1)
	f.expect(t, "make 1", "opened 1 <nil>")
	f.Change(func(r int) { f.note("change %d", r) }, func() { f.note("done") })
	f.expect(t, "change 1", "done")
	f.open(2)
	f.expect(t, "release 1", "make 2", "opened 2 <nil>")
	f.Discard()
	f.Discard()
	f.Change(func(r int) { f.note("change %d", r) }, func() { f.note("done") })
	f.expect(t, "release 2", "done")
	f.open(-3)
	f.expect(t, "make -3", "opened 0 negative")
	f.Discard()
	f.expect(t)
}

// A result, a change or a notification of an earlier term does not reach the owner.
func TestEarlierTermsHaveNoEffect(t *testing.T) {
	f := newFixture()
	f.open(1)
	f.Change(func(r int) { f.note("change %d", r) }, func() { f.note("done") })
	old := f.Term()
	f.open(2)
	old.Post(func() { f.note("late") })
	f.Term().Post(func() { f.note("now") })
	f.expect(t, "make 1", "change 1", "release 1", "make 2", "now", "opened 2 <nil>")
	f.Discard()
	f.open(3)
	f.Discard()
	f.expect(t, "release 2", "make 3", "release 3")
}

func TestAfter(t *testing.T) {
	f := newFixture()
	f.Term().After(time.Millisecond, func() { f.note("late") })
	f.Discard()
	posted := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.owner) > 0
	}
	for !posted() {
		time.Sleep(time.Millisecond)
	}
	f.expect(t)
	f.Term().After(time.Millisecond, func() { f.note("in time") })
	for !posted() {
		time.Sleep(time.Millisecond)
	}
	f.expect(t, "in time")
}

func TestAwait(t *testing.T) {
	var c Changes
	c.Announce() // with no one waiting
	var mu sync.Mutex
	state := 0
	done := make(chan bool)
	for range 3 {
		go func() {
			done <- c.Await(context.Background(), func() bool { mu.Lock(); defer mu.Unlock(); return state == 3 })
		}()
	}
	for range 3 {
		mu.Lock()
		state++
		mu.Unlock()
		c.Announce()
	}
	for range 3 {
		if !<-done {
			t.Error("ended before the state was reached")
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if c.Await(ctx, func() bool { return false }) {
		t.Error("reached a state that does not come")
	}
}
