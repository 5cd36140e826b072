// SPDX-License-Identifier: Apache-2.0

// Package store keeps the desired and the observed state of a fabric: small values under slash paths,
// with transactions, watches, leases, and elections with a winner that can be fenced off.
//
// What comes in: keys and bytes of the manager, which owns their format; what goes out: entries with
// revisions, ordered changes, and terms of office. NewMemory keeps all of it in this process; package
// store/etcd keeps it in etcd, embedded in the node or a cluster's. Both pass the suite of
// store/storetest. Called by manager, node and tests. The data path must never wait for it, and it
// must never interpret a value.
package store

import (
	"context"
	"errors"
	"time"
)

// Rev counts the changes of a whole store, from 1. A transaction that changes
// something has one revision, whatever the number of keys in it.
type Rev int64

// LeaseID names a lease. 0 is none.
type LeaseID int64

// Bounds of a store. Beyond them a call fails with ErrInvalid.
const (
	MaxKey   = 512       // bytes of a key
	MaxValue = 1 << 20   // bytes of a value
	MaxTxn   = 100       // operations, and conditions, of one transaction
	MaxBytes = 5 << 18   // bytes of all keys and values of one transaction
	MaxTTL   = time.Hour // of a lease
)

// Entry is a key with its value. The value belongs to the caller.
type Entry struct {
	Key     string
	Value   []byte
	Created Rev     // when the key came to be, this time
	Rev     Rev     // when the value was put
	Lease   LeaseID // the key ends with this lease; 0: it stays
}

// Listing is a tree as it was at one revision.
type Listing struct {
	Entries []Entry // in the order of their keys
	Rev     Rev
}

// Op is one operation of a transaction; Put and Delete make one.
type Op struct {
	Key    string
	Value  []byte  // of a put; not kept after the call
	Lease  LeaseID // of a put: the key ends with it
	Delete bool    // of a key that is there or not
}

// Test is the kind of a Cond.
type Test uint8

// Tests.
const (
	IsAbsent  Test = iota // there is no such key
	IsPresent             // there is
	IsAt                  // it was last put at Cond.Rev
)

// Cond is a condition of a transaction; Absent, Present and At make one.
type Cond struct {
	Key  string
	Test Test
	Rev  Rev // of IsAt
}

// Holds reports whether the condition is true of a key that was last put at
// rev, 0 if it is not there.
func (c Cond) Holds(rev Rev) bool {
	switch c.Test {
	case IsAbsent:
		return rev == 0
	case IsPresent:
		return rev != 0
	}
	return rev == c.Rev
}

// Absent is true while key does not exist.
func Absent(key string) Cond { return Cond{Key: key, Test: IsAbsent} }

// Present is true when key is there.
func Present(key string) Cond { return Cond{Key: key, Test: IsPresent} }

// At is true while e is unchanged since it was read.
func At(e Entry) Cond { return Cond{Key: e.Key, Test: IsAt, Rev: e.Rev} }

// PutOp sets a key.
func PutOp(key string, value []byte) Op { return Op{Key: key, Value: value} }

// DeleteOp removes a key if it is there.
func DeleteOp(key string) Op { return Op{Key: key, Delete: true} }

// Fence is the proof of a term of office: the key of the election, and the revision in which its winner created it. It
// holds as long as that very key exists. Revisions begin anew in a store that was restored, so that the lease counts as
// well: its number has the time in it. The zero Fence is no condition.
type Fence struct {
	Key     string
	Created Rev
	Lease   LeaseID
}

// HeldBy reports whether the fence holds, given the entry of its key; the zero Entry where there is none.
func (f Fence) HeldBy(e Entry) bool { return e.Created == f.Created && e.Lease == f.Lease }

// Txn is atomic: if the fence holds and every condition is true, then every operation is executed,
// otherwise none. No key may be in two operations. Without operations it only checks.
type Txn struct {
	Fence Fence
	If    []Cond
	Do    []Op
}

// Event is a key that was put or deleted. A deleted one has only Key and Rev.
type Event struct {
	Entry
	Deleted bool
}

// Change is the effect of one transaction on a watched tree, in the order of its operations. With
// Reset, Events are instead all keys of the tree at Rev, in order, and replace the watcher's state.
type Change struct {
	Rev    Rev
	Reset  bool
	Events []Event
}

// ResetTo is the change that replaces a watcher's state by a listing.
func ResetTo(l Listing) Change {
	c := Change{Rev: l.Rev, Reset: true}
	for _, e := range l.Entries {
		c.Events = append(c.Events, Event{Entry: e})
	}
	return c
}

// Lease keeps keys alive while its process lives: the store renews it until
// it is revoked, and when its holder dies or loses the store for longer than
// the time to live, it ends and its keys are deleted.
type Lease interface {
	ID() LeaseID
	// Lost is closed when the lease has ended, or when the holder could not
	// renew it for its time to live and must expect that it has.
	Lost() <-chan struct{}
	// Renew renews the lease once more, now: after it returned nil, the lease lasts at least its time to live from the
	// call on. ErrFenced: it has ended.
	Renew(ctx context.Context) error
	// Revoke ends the lease now and deletes its keys. Without an answer of the
	// store (ErrUnavailable) it still ends, by its time to live.
	Revoke(ctx context.Context) error
}

// Store is one client of a store. All methods may be called by several goroutines. Errors are *Error,
// except the context's own; a method waits no longer than its context and, if it needs an answer, than
// the store's own limit (ErrUnavailable). A write that fails with ErrUnavailable may have been
// executed: conditions make a retry safe.
//
// The seven methods stay one interface: they are one contract, which storetest proves for each implementation as a
// whole (a lease fences a Txn, Close ends leases and watches, Status explains what the others return), and no
// implementation has a part of them.
type Store interface {
	// Get returns an entry, or ErrNotFound.
	Get(ctx context.Context, key string) (Entry, error)
	// List returns the entries below tree: all keys that begin with tree and a slash; the whole store
	// for "".
	List(ctx context.Context, tree string) (Listing, error)
	// Txn executes t and returns the store's revision after it. Errors: ErrFenced (the fence does not
	// hold, or a lease in it has ended), ErrConflict (a condition is false; Error.Key is its key).
	Txn(ctx context.Context, t Txn) (Rev, error)
	// Watch follows the entries below tree until ctx or the store ends, which
	// closes the channel. The first change is a Reset; then every change comes
	// once, in order. A watcher that lags by more than WatchBuffer changes, or
	// was cut off for longer than the store remembers, gets a Reset in place of
	// what it missed. An unavailable store is silent until it is back.
	Watch(ctx context.Context, tree string) (<-chan Change, error)
	// Lease grants a lease that is renewed until it is revoked or lost. ttl is
	// rounded up to what the store can do: whole seconds.
	Lease(ctx context.Context, ttl time.Duration) (Lease, error)
	// Status returns the state of the store, also if the store does not answer.
	Status(ctx context.Context) Status
	// Close revokes the leases and ends the watches of this client, and waits
	// until they ended. Other calls then fail with ErrUnavailable.
	Close() error
}

// WatchBuffer is how many changes wait for a watcher.
const WatchBuffer = 128

// Status is the state of a store, as `weft store status` prints it.
type Status struct {
	Kind      string   // memory, embedded, external
	Version   string   // of etcd
	Dir       string   // of an embedded store
	Endpoints []string // of the servers, or of the listener of an embedded store
	Leader    string   // the member that leads the cluster
	Members   int
	Revision  Rev
	SizeBytes int64 // on disk, or in memory
	UsedBytes int64 // the part of SizeBytes that holds live entries
	MaxBytes  int64 // the store refuses writes beyond it; 0 when unknown
	Down      error // why the store cannot be used, an *Error or the error of the context; nil when it can
}

// Put sets a key whatever it was.
func Put(ctx context.Context, s Store, key string, value []byte) (Rev, error) {
	return s.Txn(ctx, Txn{Do: []Op{PutOp(key, value)}})
}

// Create sets a key that must not be there; else ErrConflict.
func Create(ctx context.Context, s Store, key string, value []byte) (Rev, error) {
	return s.Txn(ctx, Txn{If: []Cond{Absent(key)}, Do: []Op{PutOp(key, value)}})
}

// Fenced returns s with a fence in every transaction that has none.
func Fenced(s Store, f Fence) Store { return fenced{s, f} }

type fenced struct {
	Store
	fence Fence
}

func (f fenced) Txn(ctx context.Context, t Txn) (Rev, error) {
	if t.Fence == (Fence{}) {
		t.Fence = f.fence
	}
	return f.Store.Txn(ctx, t)
}

// Update replaces the value of an entry that was read before; ErrConflict if it has changed since.
func Update(ctx context.Context, s Store, e Entry, value []byte) (Rev, error) {
	return s.Txn(ctx, Txn{If: []Cond{At(e)}, Do: []Op{{Key: e.Key, Value: value, Lease: e.Lease}}})
}

// Edit changes or creates the value of a key under concurrent changes: change gets the value, nil if
// there is none, and is called again after a conflict. Its result is stored; nil leaves the value
// unchanged. Its error ends the edit and is returned.
func Edit(ctx context.Context, s Store, key string, change func(value []byte) ([]byte, error)) error {
	for {
		e, err := s.Get(ctx, key)
		there := err == nil
		if !there && !errors.Is(err, ErrNotFound) {
			return err
		}
		if there && e.Value == nil {
			e.Value = []byte{} // empty is not absent
		}
		value, err := change(e.Value)
		if err != nil || value == nil {
			return err
		}
		if there {
			_, err = Update(ctx, s, e, value)
		} else {
			_, err = Create(ctx, s, key, value)
		}
		if !isConflict(err) {
			return err
		}
	}
}

// Delete removes a key; one that is not there is ErrNotFound.
func Delete(ctx context.Context, s Store, key string) (Rev, error) {
	rev, err := s.Txn(ctx, Txn{If: []Cond{Present(key)}, Do: []Op{DeleteOp(key)}})
	if isConflict(err) {
		return 0, NotFound(key)
	}
	return rev, err
}
