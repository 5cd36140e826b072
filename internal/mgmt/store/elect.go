// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ElectionTTL is the time to live of a leader's lease: so long after its
// process died, and about half a second, another is elected. The sum is
// bounded by 3 s on a store that answers.
const ElectionTTL = 2 * time.Second

// retryEvery is the delay before a candidate retries a store that did not answer.
const retryEvery = 200 * time.Millisecond

// Leader is the leader of an election. The zero Leader is none.
type Leader struct {
	Name    string `json:"name"`    // of the node
	Address string `json:"address"` // where it is reached
	Term    Rev    `json:"-"`       // the revision in which its term began
}

// electionKey is the one key of an election. It stands alone below its tree,
// so that the tree can be watched.
func electionKey(election string) string { return electionTree(election) + "/leader" }

func electionTree(election string) string { return "election/" + election }

func leaderOf(e Entry) (Leader, error) {
	var l Leader
	if err := json.Unmarshal(e.Value, &l); err != nil {
		return Leader{}, fmt.Errorf("read the leader in %s: %w", e.Key, err)
	}
	l.Term = e.Created
	return l, nil
}

// Term is a term of office: from a won election until it is resigned or lost.
type Term struct {
	s     Store
	lease Lease
	fence Fence

	began  time.Time    // for intervals only
	proven atomic.Int64 // ns since began until which Holds is true

	lost chan struct{}
	stop context.CancelFunc // of the goroutines that watch the key
	done sync.WaitGroup
}

// Candidate is one that stands in an election.
type Candidate struct {
	Leader
	// Doubts are reasons to suspect that the leader is dead, which the candidate noticed by itself. A leader that is
	// alive, and reaches the store, remains the leader. Where it is not, another is elected a second later, earlier
	// than the end of its lease. nil: there are none.
	Doubts <-chan struct{}
	// Reserve reports whether any other candidate is better: it then has the first attempt. nil: never.
	Reserve func() bool
}

// reserveFor is how much later the attempt of a reserve is: longer than the others need to see that the office is free.
// A replica that follows another learns of a change with the next message, 100 ms later at most.
const reserveFor = 250 * time.Millisecond

// Campaign is a candidate until it is elected or ctx ends, also while the store does not answer. The
// order among several candidates is not defined. The caller ends the term with Resign, also a lost
// one.
func Campaign(ctx context.Context, s Store, election string, who Leader) (*Term, error) {
	return Stand(ctx, s, election, Candidate{Leader: who})
}

// Stand is Campaign of a candidate with more to state.
func Stand(ctx context.Context, s Store, election string, who Candidate) (*Term, error) {
	value, err := json.Marshal(who.Leader)
	if err != nil {
		return nil, err
	}
	if err := CheckKey(electionKey(election)); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop() // ends the watch
	changes, err := s.Watch(ctx, electionTree(election))
	if err != nil {
		return nil, err
	}
	c := candidate{s: s, election: election, key: electionKey(election), value: value}
	if who.Doubts != nil {
		var doubting sync.WaitGroup
		defer doubting.Wait()
		defer stop()
		doubting.Go(func() { c.doubt(ctx, who.Doubts) })
	}
	for {
		if who.Reserve != nil && who.Reserve() {
			select {
			case <-time.After(reserveFor):
			case <-ctx.Done():
			}
		}
		term, err := c.attempt(ctx)
		if term != nil {
			return term, nil
		}
		var again <-chan time.Time
		switch {
		case errors.Is(err, ErrUnavailable), errors.Is(err, ErrFenced): // the lease has ended: another is taken
			again = time.After(retryEvery)
		case !isConflict(err):
			c.withdraw(ctx)
			return nil, err
		}
		select {
		case _, ok := <-changes:
			if !ok {
				c.withdraw(ctx)
				return nil, cmp.Or(ctx.Err(), Closed())
			}
		case <-again:
		case <-c.leaseLost():
			c.lease = nil
		}
	}
}

// candidate is a participant of an election; its lease outlives the attempts.
type candidate struct {
	s        Store
	election string
	key      string
	value    []byte
	lease    Lease
}

func (c *candidate) leaseLost() <-chan struct{} {
	if c.lease == nil {
		return nil
	}
	return c.lease.Lost()
}

// withdraw gives the lease back, also when ctx has ended.
func (c *candidate) withdraw(ctx context.Context) {
	if c.lease == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), ElectionTTL)
	defer stop()
	// Without an answer the lease ends by itself.
	_ = c.lease.Revoke(ctx)
}

// attempt tries once: ErrConflict if there is another leader.
func (c *candidate) attempt(ctx context.Context) (*Term, error) {
	if c.lease == nil {
		l, err := c.s.Lease(ctx, ElectionTTL)
		if err != nil {
			return nil, err
		}
		c.lease = l
	}
	rev, err := c.s.Txn(ctx, Txn{If: []Cond{Absent(c.key)},
		Do: []Op{{Key: c.key, Value: c.value, Lease: c.lease.ID()}}})
	switch {
	case isConflict(err):
		// An attempt that got no answer may have been the one that won.
		e, geterr := c.s.Get(ctx, c.key)
		switch {
		case errors.Is(geterr, ErrNotFound):
			return nil, err // the key was deleted since: the watch reports that
		case geterr != nil:
			return nil, geterr // the candidate may be the leader: no change has to follow
		case e.Lease != c.lease.ID():
			return nil, err
		}
		rev = e.Created
	case errors.Is(err, ErrFenced):
		c.lease = nil
		return nil, err
	case err != nil:
		return nil, err
	}
	return c.begin(ctx, Fence{Key: c.key, Created: rev, Lease: c.lease.ID()}), nil
}

// begin starts the term of a candidate that has been elected.
func (c *candidate) begin(ctx context.Context, f Fence) *Term {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	watching, end := context.WithCancel(ctx)
	t := &Term{s: c.s, lease: c.lease, fence: f, began: time.Now(), lost: make(chan struct{}), stop: stop}
	t.done.Go(func() {
		defer close(t.lost)
		t.watch(watching)
	})
	t.done.Go(func() {
		defer end()
		t.confirm(ctx, c.election)
	})
	return t
}

// watch returns when the term is over: its key is gone or another's, its
// lease is lost, or ctx has ended.
func (t *Term) watch(ctx context.Context) {
	tree := t.fence.Key[:len(t.fence.Key)-len("/leader")]
	changes, err := t.s.Watch(ctx, tree)
	if err != nil {
		return // the store is closed
	}
	for {
		select {
		case c, ok := <-changes:
			if !ok || !t.holdsAfter(c) {
				return
			}
		case <-t.lease.Lost():
			return
		case <-ctx.Done():
			return
		}
	}
}

func (t *Term) holdsAfter(c Change) bool {
	holds := !c.Reset // a Reset without the key means that it was deleted
	for _, e := range c.Events {
		if e.Key == t.fence.Key {
			holds = !e.Deleted && t.fence.HeldBy(e.Entry)
		}
	}
	return holds
}

// Fence returns what makes a transaction fail once the term is over.
func (t *Term) Fence() Fence { return t.fence }

// Lost is closed when the term may be over for all that this node can observe: another leader may be
// elected from that moment on, and writes then fail. A leader must not rely on it alone: its writes
// carry Fence.
func (t *Term) Lost() <-chan struct{} { return t.lost }

// Txn does x if the term still lasts, else ErrFenced.
func (t *Term) Txn(ctx context.Context, x Txn) (Rev, error) {
	x.Fence = t.fence
	return t.s.Txn(ctx, x)
}

// Resign ends the term, so that another is elected at once. A term that was
// lost before is resigned without error.
func (t *Term) Resign(ctx context.Context) error {
	err := t.lease.Revoke(ctx)
	t.stop()
	t.done.Wait()
	return err
}

// LeaderOf returns the present leader of an election; ErrNotFound if there is none.
func LeaderOf(ctx context.Context, s Store, election string) (Leader, error) {
	e, err := s.Get(ctx, electionKey(election))
	if err != nil {
		return Leader{}, err
	}
	return leaderOf(e)
}

// Observe sends the leader of an election: first the present one, which may be none, then each change,
// until ctx or the store ends, which closes the channel. A slow observer misses leaders in between,
// never the last. A leader with an unreadable entry has a Term and no Name.
func Observe(ctx context.Context, s Store, election string) (<-chan Leader, error) {
	key := electionKey(election)
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	changes, err := s.Watch(ctx, electionTree(election))
	if err != nil {
		return nil, err
	}
	out := make(chan Leader)
	go observe(ctx, key, changes, out)
	return out, nil
}

func observe(ctx context.Context, key string, changes <-chan Change, out chan<- Leader) {
	defer close(out)
	var now Leader
	told, known := Leader{Term: -1}, false
	for {
		send := out
		if !known || now == told {
			send = nil
		}
		select {
		case c, ok := <-changes:
			if !ok {
				return
			}
			known = true
			if c.Reset {
				now = Leader{}
			}
			for _, e := range c.Events {
				if e.Key != key {
					continue
				}
				now = Leader{}
				if !e.Deleted {
					now, _ = leaderOf(e.Entry)
					now.Term = e.Created
				}
			}
		case send <- now:
			told = now
		case <-ctx.Done():
			return
		}
	}
}
