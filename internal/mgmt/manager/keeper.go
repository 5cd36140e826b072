// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"weft/internal/mgmt/store"
	"weft/internal/proto/problem"
)

func isNotFound(err error) bool { return errors.Is(err, store.ErrNotFound) }
func isConflict(err error) bool { return errors.Is(err, store.ErrConflict) }

// govern stands in the election, term after term, and keeps what the manager
// hands over while a term lasts.
func (m *Manager) govern(ctx context.Context) {
	who := store.Candidate{Leader: store.Leader{Name: m.cfg.Node, Address: m.cfg.Address}, Doubts: m.doubts}
	if m.cfg.Copy != nil {
		// After a death that takes the master and the leader of the store the subnet is without a master for longer.
		who.Reserve = m.cfg.Copy.LeadsOthers
	}
	for ctx.Err() == nil {
		term, err := store.Stand(ctx, m.cfg.Store, Election, who)
		if err != nil {
			if ctx.Err() == nil {
				m.cfg.Log.Error("cannot stand in the election of a subnet manager", "err", err)
				pause(ctx, time.Second)
			}
			continue
		}
		unreadable := m.hold(ctx, term)
		// A clean end lets another manager go on at once. The lease of a term that is over may have ended, too.
		end, stop := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
		if err := term.Resign(end); err != nil {
			m.cfg.Log.Debug("the term ends by itself", "err", err)
		}
		stop()
		if unreadable != nil {
			pause(ctx, unreadableWait)
		}
	}
}

// resignTimeout bounds the end of a term: until then this manager stands in no other election.
const resignTimeout = time.Second

// unreadableWait is how long a manager that cannot read the intent or the VESWs waits before it stands in the next
// election.
const unreadableWait = 2 * time.Second

// recallAgain is the delay before a master reads again what the store did not answer: the subnet has no other master
// meanwhile.
const recallAgain = 200 * time.Millisecond

// hold is one term of office. The error is an intent that cannot be read: without it every port would be a full member
// of the default partition, so that the term ends before it changes a port.
func (m *Manager) hold(ctx context.Context, term *store.Term) error {
	// What waits for a store that does not answer ends with the term: until then this manager would be a second master
	// for others, which gives them no answer.
	ctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	watching.Go(func() {
		select {
		case <-term.Lost():
			m.cfg.Log.Warn("the term of the subnet manager is over")
			stop()
		case <-ctx.Done():
		}
	})
	var in inherited
	for {
		in = inherited{}
		err := recall(ctx, m, term, KeyObservations, &in.o)
		if err == nil {
			err = recall(ctx, m, term, KeyClients, &in.clients)
		}
		if err == nil {
			in.vesws, err = m.recallVESWs(ctx, term)
		}
		if err == nil {
			in.intent, in.intentRev, err = m.loadIntent(ctx)
		}
		if err == nil {
			in.wanted, in.wantedRev, err = m.loadVESWs(ctx)
		}
		if err == nil {
			in.mkey, in.keyRev, err = m.loadMKey(ctx, term)
		}
		var wrong *problem.Error
		if errors.As(err, &wrong) {
			if m.unreadable.Swap(wrong) == nil {
				m.cfg.Log.Error("the subnet is not managed", "err", wrong)
			}
			return wrong
		}
		if err == nil {
			break
		}
		m.cfg.Log.Warn("cannot read what the manager before observed", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(recallAgain):
		}
	}
	m.unreadable.Store(nil)
	fence := term.Fence()
	m.fence.Store(&fence)
	defer m.fence.Store(nil)
	m.term.Store(term)
	defer m.term.CompareAndSwap(term, nil)
	token := uint64(fence.Created)
	begun := make(chan struct{})
	m.cfg.Post(func() {
		defer close(begun)
		select { // of an earlier term
		case <-m.keep:
		default:
		}
		m.cfg.Log.Info("elected to manage the subnet", "term", token)
		m.elected, m.caretaker = true, false
		m.resume(in)
		m.sm.Permit(m.cfg.Now(), token)
	})
	defer m.cfg.Post(func() {
		m.elected = false
		if m.caretaker {
			return // since the term was lost
		}
		m.endEthernet()
		m.sm.Revoke(m.cfg.Now())
	})
	select {
	case <-begun:
	case <-ctx.Done():
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case k := <-m.keep:
			if !m.write(ctx, term, k) {
				return nil
			}
		}
	}
}

// write keeps k until it is in the store, or is not to be there any more; ctx ends with the term.
func (m *Manager) write(ctx context.Context, term *store.Term, k keeping) bool {
	for {
		c, stop := context.WithTimeout(ctx, writeTimeout)
		var err error
		if k.observed != nil {
			if _, err = term.Txn(c, store.Txn{Do: []store.Op{store.PutOp(KeyObservations, k.observed)}}); err == nil {
				k.observed = nil
			}
		}
		if err == nil && k.clients != nil {
			// By themselves: what clients registered may be too much for the store,
			// and LIDs are not to be lost for it.
			if _, err = term.Txn(c, store.Txn{Do: []store.Op{store.PutOp(KeyClients, k.clients)}}); errors.Is(err,
				store.ErrInvalid) {
				m.cfg.Log.Error("groups, services and subscriptions are not kept: there are too many", "bytes",
					len(k.clients), "err", err)
				err = nil
			}
		}
		for key, b := range k.vesws {
			if err != nil {
				break
			}
			op := store.PutOp(key, b)
			if b == nil {
				op = store.DeleteOp(key)
			}
			if _, err = term.Txn(c, store.Txn{Do: []store.Op{op}}); errors.Is(err, store.ErrInvalid) {
				m.cfg.Log.Error("what was observed of a virtual Ethernet switch is not kept", "key", key, "bytes",
					len(b), "err", err)
				err = nil
			}
			if err == nil {
				delete(k.vesws, key)
			}
		}
		stop()
		switch {
		case err == nil:
			return true
		case errors.Is(err, store.ErrFenced), ctx.Err() != nil:
			return false
		}
		m.cfg.Log.Warn("what was observed is not kept yet", "err", err)
		select {
		case <-ctx.Done():
			return false
		case next := <-m.keep:
			k = next.over(k)
		case <-time.After(time.Second):
		}
	}
}

// Damaged is appended to the key of what could not be read.
const Damaged = ".damaged"

// recall reads a value that the previous manager wrote; v stays empty if there is none. A value that
// cannot be read must not leave the subnet without a manager, since it can be obtained again: LIDs
// from the ports, registrations from the clients, which are told to reregister. It is moved to a key
// of its own.
func recall[T any](ctx context.Context, m *Manager, term *store.Term, key string, v *T) error {
	e, err := m.cfg.Store.Get(ctx, key)
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	why := json.Unmarshal(e.Value, v)
	if why == nil {
		return nil
	}
	*v = *new(T)
	if _, err := term.Txn(ctx, store.Txn{Do: []store.Op{store.PutOp(key+Damaged, e.Value)}}); err != nil {
		return err
	}
	m.cfg.Log.Error("what the manager before observed cannot be read, and is asked for anew", "key", key, "kept",
		key+Damaged, "err", why)
	return nil
}

// loadIntent reads the intent at the begin of a term. The revision is 0 where the store has none. One that cannot be
// used is a *problem.Error, also where this manager followed an earlier one: the earlier one may be older than a change
// that took a port out of a partition.
func (m *Manager) loadIntent(ctx context.Context) (i Intent, rev store.Rev, err error) {
	e, err := m.cfg.Store.Get(ctx, KeyIntent)
	if isNotFound(err) {
		return i, 0, nil
	}
	if err != nil {
		return i, 0, err
	}
	if i, err = usableIntent(e.Value); err != nil {
		return i, 0, &problem.Error{What: "cannot manage the subnet", Why: err.Error(), Err: err,
			Fix: "weft store restore FILE with a backup, or upgrade weft on this node"}
	}
	return i, e.Rev, nil
}

// follow hands every new intent to the management goroutine.
func (m *Manager) follow(ctx context.Context) {
	for ctx.Err() == nil {
		changes, err := m.cfg.Store.Watch(ctx, "subnet")
		if err != nil {
			m.cfg.Log.Warn("the intent is not followed", "err", err)
			pause(ctx, time.Second)
			continue
		}
		for c := range changes {
			if c.Reset && !slices.ContainsFunc(c.Events, func(e store.Event) bool { return e.Key == KeyVESWs }) {
				m.cfg.Post(func() { m.setVESWs(VESWs{Version: VESWsVersion}, c.Rev) })
			}
			for _, e := range c.Events {
				switch e.Key {
				case KeyIntent:
				case KeyVESWs:
					i := VESWs{Version: VESWsVersion}
					if !e.Deleted {
						if i, err = parseVESWs(e.Value); err != nil {
							m.cfg.Log.Error("the virtual Ethernet switches in the store are wrong: those before stand", "err", err)
							continue
						}
					}
					m.cfg.Post(func() { m.setVESWs(i, e.Rev) })
					continue
				case KeyMKey:
					var k MKey
					if !e.Deleted {
						if k, err = parseMKey(e.Value); err != nil {
							m.cfg.Log.Error("the M_Key in the store is wrong: the one before stands", "err", err)
							continue
						}
					}
					m.cfg.Post(func() { m.setKey(k, e.Rev) })
					continue
				default:
					continue
				}
				i := Intent{Version: IntentVersion}
				if !e.Deleted {
					if i, err = parseIntent(e.Value); err != nil {
						m.cfg.Log.Error("the intent in the store is wrong: the one before stands", "err", err)
						continue
					}
				}
				m.cfg.Post(func() { m.setIntent(i, e.Rev) })
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
