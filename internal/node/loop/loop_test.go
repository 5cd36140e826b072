// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// owner runs a Queue until end is closed; it drains once more before it stops.
func owner(end <-chan struct{}) *Queue {
	wake := make(chan struct{}, 1)
	q := NewQueue(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	go func() {
		defer q.Stop()
		for {
			q.Drain()
			select {
			case <-wake:
			case <-end:
				q.Drain()
				return
			}
		}
	}()
	return q
}

func TestDoRunsInOrder(t *testing.T) {
	end := make(chan struct{})
	q := owner(end)
	var got []int
	for i := range 100 {
		q.Post(func() { got = append(got, i) })
	}
	if err := q.Do(func() { got = append(got, 100) }); err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(got) || len(got) != 101 {
		t.Errorf("got %v", got)
	}
	close(end)
	<-q.Stopped()
	if q.Post(func() {}) {
		t.Error("a queue that has stopped accepts a function")
	}
	if err := q.Do(func() {}); !errors.Is(err, ErrStopped) {
		t.Errorf("Do after the end: %v", err)
	}
}

// TestDoReportsWhatRan ends the owner while others call Do: the error is exact about whether the
// function was called. Without the second look at ran, some of these calls report ErrStopped for
// functions that ran.
func TestDoReportsWhatRan(t *testing.T) {
	for range 300 {
		end := make(chan struct{})
		q := owner(end)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				var called atomic.Bool
				err := q.Do(func() { called.Store(true) })
				if called.Load() != (err == nil) {
					t.Errorf("called %v, error %v", called.Load(), err)
				}
			})
		}
		close(end)
		wg.Wait()
	}
}

// TestDoAfterStopInTheSameStep has both channels ready before Do looks at either.
func TestDoAfterStopInTheSameStep(t *testing.T) {
	for range 100 {
		var q *Queue
		q = NewQueue(func() { q.Drain(); q.Stop() }) // the function runs, then the owner ends
		if err := q.Do(func() {}); err != nil {
			t.Fatalf("the function ran, but Do returned %v", err)
		}
	}
}

func TestFunctionsBehindAPanicRun(t *testing.T) {
	q := NewQueue(func() {})
	var got []string
	q.Post(func() { got = append(got, "a") })
	q.Post(func() { panic("fault") })
	q.Post(func() { got = append(got, "b") })
	func() {
		defer func() { recover() }()
		q.Drain()
	}()
	q.Drain()
	if !slices.Equal(got, []string{"a", "b"}) || q.Drain() {
		t.Errorf("got %v", got)
	}
}

func TestQueryGivesUpOnAStuckOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end, stuck := make(chan struct{}), atomic.Bool{}
		q := owner(end)
		release := make(chan struct{})
		q.Post(func() { <-release })
		time.AfterFunc(time.Second, func() { stuck.Store(true) })
		start := time.Now()
		if err := q.Query(func() {}, 100*time.Millisecond, stuck.Load); !errors.Is(err, ErrStuck) {
			t.Errorf("got %v", err)
		}
		if d := time.Since(start); d > 1200*time.Millisecond {
			t.Errorf("gave up after %v", d)
		}
		if err := q.Query(func() { t.Error("a query of a stuck owner was enqueued") }, time.Hour,
			stuck.Load); !errors.Is(err, ErrStuck) {
			t.Errorf("got %v", err)
		}
		stuck.Store(false)
		close(release)
		if err := q.Query(func() {}, time.Second, stuck.Load); err != nil {
			t.Errorf("got %v", err)
		}
		close(end)
	})
}

func TestWorkerRunsOneAfterTheOther(t *testing.T) {
	var group sync.WaitGroup
	w := NewWorker(&group)
	var running atomic.Int32
	var got []int
	for i := range 50 {
		w.Post(func() {
			if running.Add(1) != 1 {
				t.Error("two functions at the same time")
			}
			got = append(got, i)
			if i == 49 {
				w.Post(func() { got = append(got, 50) })
			}
			running.Add(-1)
		})
	}
	w.Wait()
	group.Wait()
	if !slices.IsSorted(got) || len(got) != 51 {
		t.Errorf("got %v", got)
	}
}
