// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/store"
	"weft/internal/proto/mad"
)

// stoppable is the store of a process that can be stopped as SIGSTOP does: no call returns, no event arrives, and
// leases are not renewed.
type stoppable struct {
	store.Store
	leases *store.Memory // dies when the process is stopped
	mu     sync.RWMutex  // held while it is stopped
}

func (s *stoppable) stop() {
	s.mu.Lock()
	s.leases.Kill()
}

// run waits while the process is stopped.
func (s *stoppable) run() {
	s.mu.RLock()
	defer s.mu.RUnlock()
}

func (s *stoppable) Get(ctx context.Context, key string) (store.Entry, error) {
	s.run()
	return s.Store.Get(ctx, key)
}

func (s *stoppable) List(ctx context.Context, tree string) (store.Listing, error) {
	s.run()
	return s.Store.List(ctx, tree)
}

func (s *stoppable) Txn(ctx context.Context, t store.Txn) (store.Rev, error) {
	s.run()
	return s.Store.Txn(ctx, t)
}

func (s *stoppable) Lease(ctx context.Context, ttl time.Duration) (store.Lease, error) {
	return s.leases.Lease(ctx, ttl)
}

func (s *stoppable) Watch(ctx context.Context, tree string) (<-chan store.Change, error) {
	in, err := s.Store.Watch(ctx, tree)
	if err != nil {
		return nil, err
	}
	out := make(chan store.Change)
	go func() {
		defer close(out)
		for c := range in {
			s.run()
			select {
			case out <- c:
			case <-ctx.Done():
			}
		}
	}()
	return out, nil
}

// TestStoppedMasterChangesNothing stops a master in the middle of a change of the intent, until another is master and
// has changed it, and lets it go on.
func TestStoppedMasterChangesNothing(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	own := mem.Open()
	defer own.Close()
	first := &stoppable{Store: own, leases: mem.Open()}
	a := begin(t, "a", first)
	a.until("the first brings the port up", a.active)

	changed := make(chan error, 1)
	reading := make(chan bool)
	go func() {
		s, _ := a.m.Store()
		changed <- EditIntent(context.Background(), s, func(i *Intent) error {
			if i.Subnet.LMC == 0 { // the first attempt
				reading <- true
				<-reading
			}
			i.Subnet.Partitions = append(i.Subnet.Partitions, sm.Partition{Name: "stale", PKey: 0x8009})
			return nil
		})
	}()
	<-reading
	first.stop()
	second := mem.Open()
	defer second.Close()
	b := begin(t, "b", second)
	defer b.m.Close()
	b.until("the second takes over", b.active)
	token := b.m.Status().Token
	b.until("what was observed is kept", func() bool {
		return load[sm.Observations](t, mem, KeyObservations).Token == token
	})
	fenced, master := b.m.Store()
	if !master {
		t.Error("the store of a master has no fence")
	}
	if err := EditIntent(t.Context(), fenced, func(i *Intent) error {
		i.Subnet.LMC = 1
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	intent, err := mem.Get(t.Context(), KeyIntent)
	if err != nil {
		t.Fatal(err)
	}

	// The first process goes on: it has something to write down, a sweep to make, and a change to complete.
	a.m.kept, a.m.dirty = 0, true
	a.m.Sweep(a.now())
	sent := a.sent
	var d mad.Datagram
	for a.m.Next(a.now().Add(time.Minute), &d) { // when the sweep is due
		a.sent++
	}
	first.mu.Unlock()
	reading <- true
	if err := <-changed; !errors.Is(err, store.ErrFenced) {
		t.Errorf("the change of the stopped master: %v", err)
	}
	a.until("the first notices", func() bool { return !a.m.Status().Elected })
	if a.sent != sent || a.m.sm.Status().State == "master" {
		t.Errorf("the stopped master sent %d datagrams, and is %+v", a.sent-sent, a.m.sm.Status())
	}
	if e, err := mem.Get(t.Context(), KeyIntent); err != nil || e.Rev != intent.Rev {
		t.Errorf("the intent is %s of revision %d, it was of %d: %v", e.Value, e.Rev, intent.Rev, err)
	}
	if o := load[sm.Observations](t, mem, KeyObservations); o.Token != token {
		t.Errorf("what was observed has token %d, want %d of the master", o.Token, token)
	}
	a.m.Close()
}

// unanswered is a store that was cut off: no write returns, and leases end.
type unanswered struct {
	store.Store
	leases *store.Memory
	cut    chan struct{}
	ended  chan error // why the wait of a write ended
}

func (u *unanswered) Lease(ctx context.Context, ttl time.Duration) (store.Lease, error) {
	return u.leases.Lease(ctx, ttl)
}

func (u *unanswered) Txn(ctx context.Context, t store.Txn) (store.Rev, error) {
	select {
	case <-u.cut:
		<-ctx.Done()
		u.ended <- ctx.Err()
		return 0, ctx.Err()
	default:
		return u.Store.Txn(ctx, t)
	}
}

// TestLostTermEndsItsWrites: a master that waits for a write when its term ends manages no more at once. Until then it
// would be another master, without answers, for its successor.
func TestLostTermEndsItsWrites(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	u := &unanswered{Store: mem, leases: mem.Open(), cut: make(chan struct{}), ended: make(chan error, 100)}
	a := begin(t, "a", u)
	defer a.m.Close()
	a.until("it brings the port up", a.active)
	a.until("it has kept all", func() bool { return len(a.m.keep) == 0 })
	close(u.cut)
	a.m.kept, a.m.dirty = 0, true
	a.until("it writes", func() bool { return a.m.kept != 0 && len(a.m.keep) == 0 })
	u.leases.Kill()
	a.until("it is not elected any more", func() bool { return !a.m.Status().Elected })
	if err := <-u.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the write ended with %v", err)
	}
}

// TestUnreadableIntent: a manager that is elected and cannot read the intent changes no port, since each would become a
// full member of the default partition; it gives the term back, and begins when the intent can be read. The master that
// has read it before goes on.
func TestUnreadableIntent(t *testing.T) {
	for _, bad := range []string{`{`, `{"version":9}`, `{"version":1,"Subnet":{"LMC":200}}`} {
		mem := store.NewMemory()
		defer mem.Close()
		if err := EditIntent(t.Context(), mem, func(i *Intent) error {
			i.Subnet.Partitions = []sm.Partition{{Name: "red", PKey: 0x8001, All: sm.Limited}}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		good, err := mem.Get(t.Context(), KeyIntent)
		if err != nil {
			t.Fatal(err)
		}
		first := mem.Open()
		a := begin(t, "a", first)
		a.until("the first brings the port up", a.active)
		keys := slices.Clone(a.ca.PKeys(1))
		if _, err := store.Put(t.Context(), mem, KeyIntent, []byte(bad)); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			a.pump()
			time.Sleep(time.Millisecond)
		}
		if !slices.Equal(a.ca.PKeys(1), keys) || !a.m.Status().Permitted {
			t.Errorf("%s: the master that read the intent before has %v, it had %v", bad, a.ca.PKeys(1), keys)
		}
		first.Kill()
		a.m.Close()

		b := begin(t, "b", mem)
		b.until("the second cannot read the intent", func() bool { return b.m.Unreadable() != nil })
		for range 20 {
			b.pump()
			time.Sleep(time.Millisecond)
		}
		if s := b.m.Status(); s.Permitted || b.ca.LID() != 0 {
			t.Errorf("%s: it manages without the intent: %+v, keys %v", bad, s, b.ca.PKeys(1))
		}
		b.until("it gives the term back", func() bool {
			_, err := store.LeaderOf(t.Context(), mem, Election)
			return isNotFound(err)
		})
		if _, err := store.Put(t.Context(), mem, KeyIntent, good.Value); err != nil {
			t.Fatal(err)
		}
		b.until("it begins with the intent", b.active)
		if !slices.Equal(b.ca.PKeys(1), keys) || b.m.Unreadable() != nil {
			t.Errorf("%s: keys %v, want %v; %v", bad, b.ca.PKeys(1), keys, b.m.Unreadable())
		}
		b.m.Close()
	}
}
