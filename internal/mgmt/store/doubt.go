// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"time"
)

// A lease ends late: after its time to live, to which etcd adds an election timeout where the leader of the store died
// with the leader of the election. A candidate with a reason to suspect that the leader is dead puts a doubt beside the
// leader's key. A leader that lives deletes it. Where the doubt stands for doubtPatience, the candidate deletes the
// leader's key.
//
// A leader reads the tree of the election every confirmEvery, after it renewed its lease. Each such look proves that it
// was the leader when the look began, and that no doubt was there, or none any more; the proof is good for confirmFor.
// So a leader that was deposed has no proof: it was deposed doubtPatience after the doubt, and its last look without
// the doubt began before that. The lease ends later than the proof too.
const (
	confirmEvery = 200 * time.Millisecond
	confirmFor   = 800 * time.Millisecond
	// doubtPatience is longer than confirmFor, by more than clocks differ in that time.
	doubtPatience = time.Second
	// doubtFor bounds how long a candidate attempts to put a doubt while the store does not answer.
	doubtFor = 10 * time.Second
)

func doubtKey(election string) string { return electionTree(election) + "/doubt" }

// doubt puts doubts as long as ctx lasts: one for each reason.
func (c *candidate) doubt(ctx context.Context, reasons <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-reasons:
		}
		for end := time.Now().Add(doubtFor); time.Now().Before(end); {
			err := c.depose(ctx)
			if !errors.Is(err, ErrUnavailable) {
				break // the leader lives, or is deposed; a doubt of another candidate serves as well
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(retryEvery):
			}
		}
	}
}

// depose puts a doubt and ends the leader's term if it stands for doubtPatience. An error is ErrConflict if the leader
// lives, or there is none.
func (c *candidate) depose(ctx context.Context) error {
	leader, err := c.s.Get(ctx, c.key)
	if err != nil {
		return err
	}
	key := doubtKey(c.election)
	rev, err := c.s.Txn(ctx, Txn{If: []Cond{At(leader), Absent(key)}, Do: []Op{PutOp(key, c.value)}})
	if isConflict(err) {
		// A doubt without its candidate would stand until the next leader, and block others.
		old, geterr := c.s.Get(ctx, key)
		switch {
		case errors.Is(geterr, ErrNotFound):
			return err // the leader deleted the doubt since, or there is another leader
		case geterr != nil:
			return geterr
		}
		rev = old.Rev
	} else if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(doubtPatience):
	}
	_, err = c.s.Txn(ctx, Txn{If: []Cond{At(leader), {Key: key, Test: IsAt, Rev: rev}},
		Do: []Op{DeleteOp(c.key), DeleteOp(key)}})
	return err
}

// confirm looks at the election until ctx ends, or the term has.
func (t *Term) confirm(ctx context.Context, election string) {
	tick := time.NewTicker(confirmEvery)
	defer tick.Stop()
	for {
		if !t.look(ctx, election) {
			return
		}
		select {
		case <-tick.C:
		case <-t.lost:
			return
		case <-ctx.Done():
			return
		}
	}
}

// look renews the lease, deletes a doubt, and returns false where the term is over.
func (t *Term) look(ctx context.Context, election string) bool {
	began := time.Now()
	call, stop := context.WithTimeout(ctx, confirmFor) // a later answer proves nothing
	defer stop()
	if err := t.lease.Renew(call); err != nil {
		return !errors.Is(err, ErrFenced)
	}
	l, err := t.s.List(call, electionTree(election))
	if err != nil {
		return true
	}
	holds := false
	for _, e := range l.Entries {
		switch e.Key {
		case t.fence.Key:
			holds = t.fence.HeldBy(e)
		case doubtKey(election):
			if _, err := t.Txn(call, Txn{If: []Cond{At(e)}, Do: []Op{DeleteOp(e.Key)}}); err != nil {
				return !errors.Is(err, ErrFenced)
			}
		}
	}
	if holds {
		t.proven.Store(int64(began.Add(confirmFor).Sub(t.began)))
	}
	return holds
}

// Holds reports whether no other leader can have been elected yet, whatever happened meanwhile: also where this process
// was stopped. What a leader sends to others than the store, which checks Fence, it sends only while this is true. It
// may be called on any goroutine.
func (t *Term) Holds() bool { return int64(time.Since(t.began)) < t.proven.Load() }
