// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// Memory is a client of a store in this process's memory. Nothing of it
// outlives the process.
type Memory struct {
	tree *memTree

	mu      sync.Mutex // never held together with tree.mu by way of tree.mu first
	closed  bool
	leases  map[LeaseID]*memLease
	stop    chan struct{} // closed by Close and Kill
	watches sync.WaitGroup
}

var _ Store = (*Memory)(nil)

// memTree is what the clients of one memory store share.
type memTree struct {
	mu        sync.Mutex
	rev       Rev
	lastLease LeaseID
	entries   map[string]Entry
	leases    map[LeaseID]*memLease
	watches   map[*memWatch]struct{}
}

// NewMemory returns the first client of an empty store.
func NewMemory() *Memory {
	return (&memTree{
		rev:     1,
		entries: map[string]Entry{},
		leases:  map[LeaseID]*memLease{},
		watches: map[*memWatch]struct{}{},
	}).client()
}

func (t *memTree) client() *Memory {
	return &Memory{tree: t, leases: map[LeaseID]*memLease{}, stop: make(chan struct{})}
}

// Open returns another client of the same store, as another node would be.
func (m *Memory) Open() *Memory { return m.tree.client() }

// Close implements Store.
func (m *Memory) Close() error {
	for _, l := range m.end() {
		m.tree.endLease(l)
	}
	m.watches.Wait()
	return nil
}

// Kill ends the client as the death of its process would: without notice, and its leases end by their
// time to live.
func (m *Memory) Kill() {
	for _, l := range m.end() {
		time.AfterFunc(l.ttl, func() { m.tree.endLease(l) })
	}
	m.watches.Wait()
}

func (m *Memory) end() []*memLease {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	close(m.stop)
	var ls []*memLease
	for _, l := range m.leases {
		ls = append(ls, l)
	}
	m.leases = nil
	return ls
}

// usable returns an error if no call can succeed.
func (m *Memory) usable(ctx context.Context) error {
	select {
	case <-m.stop:
		return Closed()
	default:
		return ctx.Err()
	}
}

// Get implements Store.
func (m *Memory) Get(ctx context.Context, key string) (Entry, error) {
	if err := CheckKey(key); err != nil {
		return Entry{}, err
	}
	if err := m.usable(ctx); err != nil {
		return Entry{}, err
	}
	m.tree.mu.Lock()
	defer m.tree.mu.Unlock()
	e, ok := m.tree.entries[key]
	if !ok {
		return Entry{}, NotFound(key)
	}
	return e.clone(), nil
}

func (e Entry) clone() Entry {
	e.Value = bytes.Clone(e.Value)
	return e
}

// List implements Store.
func (m *Memory) List(ctx context.Context, tree string) (Listing, error) {
	if err := CheckTree(tree); err != nil {
		return Listing{}, err
	}
	if err := m.usable(ctx); err != nil {
		return Listing{}, err
	}
	m.tree.mu.Lock()
	defer m.tree.mu.Unlock()
	return m.tree.list(tree), nil
}

func (t *memTree) list(tree string) Listing {
	l := Listing{Rev: t.rev}
	for key, e := range t.entries {
		if Below(tree, key) {
			l.Entries = append(l.Entries, e.clone())
		}
	}
	slices.SortFunc(l.Entries, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	return l
}

// Txn implements Store.
func (m *Memory) Txn(ctx context.Context, t Txn) (Rev, error) {
	if err := CheckTxn(t); err != nil {
		return 0, err
	}
	if err := m.usable(ctx); err != nil {
		return 0, err
	}
	return m.tree.do(t)
}

func (t *memTree) do(x Txn) (Rev, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.Fence != (Fence{}) && !x.Fence.HeldBy(t.entries[x.Fence.Key]) {
		return 0, TermOver(x.Fence)
	}
	for _, c := range x.If {
		if found := t.entries[c.Key].Rev; !c.Holds(found) {
			return 0, Conflict(c, found)
		}
	}
	for _, op := range x.Do {
		if op.Lease != 0 && t.leases[op.Lease] == nil {
			return 0, LeaseEnded(op.Lease)
		}
	}
	t.apply(x.Do)
	return t.rev, nil
}

// apply executes the operations in a new revision, if they change anything, and notifies the watches.
func (t *memTree) apply(ops []Op) {
	next := t.rev + 1
	var events []Event
	for _, op := range ops {
		old, was := t.entries[op.Key]
		if op.Delete {
			if was {
				delete(t.entries, op.Key)
				events = append(events, Event{Entry: Entry{Key: op.Key, Rev: next}, Deleted: true})
			}
			continue
		}
		e := Entry{Key: op.Key, Value: append([]byte{}, op.Value...), Created: next, Rev: next, Lease: op.Lease}
		if was {
			e.Created = old.Created
		}
		t.entries[op.Key] = e
		events = append(events, Event{Entry: e})
	}
	if len(events) == 0 {
		return
	}
	t.rev = next
	for w := range t.watches {
		w.notify(next, events)
	}
}

// Status implements Store.
func (m *Memory) Status(ctx context.Context) Status {
	s := Status{Kind: "memory", Members: 1}
	if err := m.usable(ctx); err != nil {
		s.Down = err
		return s
	}
	m.tree.mu.Lock()
	defer m.tree.mu.Unlock()
	s.Revision = m.tree.rev
	for key, e := range m.tree.entries {
		s.UsedBytes += int64(len(key) + len(e.Value))
	}
	s.SizeBytes = s.UsedBytes
	return s
}

type memLease struct {
	id   LeaseID
	ttl  time.Duration
	of   *Memory
	once sync.Once
	lost chan struct{}
}

// Lease implements Store. A lease of a client that lives is always renewed in
// time: it is the same process.
func (m *Memory) Lease(ctx context.Context, ttl time.Duration) (Lease, error) {
	ttl, err := WholeTTL(ttl)
	if err != nil {
		return nil, err
	}
	if err := m.usable(ctx); err != nil {
		return nil, err
	}
	l := &memLease{ttl: ttl, of: m, lost: make(chan struct{})}
	m.tree.mu.Lock()
	m.tree.lastLease++
	l.id = m.tree.lastLease
	m.tree.leases[l.id] = l
	m.tree.mu.Unlock()

	m.mu.Lock()
	closed := m.closed
	if !closed {
		m.leases[l.id] = l
	}
	m.mu.Unlock()
	if closed {
		m.tree.endLease(l)
		return nil, Closed()
	}
	return l, nil
}

func (l *memLease) ID() LeaseID           { return l.id }
func (l *memLease) Lost() <-chan struct{} { return l.lost }

func (l *memLease) Renew(ctx context.Context) error {
	if err := l.of.usable(ctx); err != nil {
		return err
	}
	l.of.tree.mu.Lock()
	defer l.of.tree.mu.Unlock()
	if l.of.tree.leases[l.id] == nil {
		return LeaseEnded(l.id)
	}
	return nil
}

func (l *memLease) Revoke(ctx context.Context) error {
	if err := l.of.usable(ctx); err != nil {
		return err
	}
	l.of.tree.endLease(l)
	return nil
}

// endLease deletes a lease and its keys, in the order of the keys.
func (t *memTree) endLease(l *memLease) {
	l.of.mu.Lock()
	delete(l.of.leases, l.id)
	l.of.mu.Unlock()

	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leases[l.id] == nil {
		return
	}
	delete(t.leases, l.id)
	var ops []Op
	for key, e := range t.entries {
		if e.Lease == l.id {
			ops = append(ops, DeleteOp(key))
		}
	}
	slices.SortFunc(ops, func(a, b Op) int { return strings.Compare(a.Key, b.Key) })
	t.apply(ops)
	l.once.Do(func() { close(l.lost) })
}
