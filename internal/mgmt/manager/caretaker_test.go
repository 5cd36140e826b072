// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/store"
)

// kept is a copy of a store.
type kept struct {
	mu    sync.Mutex
	alone bool
	l     store.Listing
}

func (k *kept) Alone() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.alone
}

func (k *kept) Copy(context.Context, string) (store.Listing, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.l, nil
}

func (k *kept) LeadsOthers() bool { return false }

func (k *kept) set(alone bool, l store.Listing) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.alone, k.l = alone, l
}

// TestCaretaker: where the store has lost its majority, a node with a copy keeps LIDs and partitions as they were, and
// writes nothing; it stops when the store is back. A copy that cannot be read opens nothing.
func TestCaretaker(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	if err := EditIntent(t.Context(), mem, func(i *Intent) error {
		i.Subnet.Partitions = []sm.Partition{{Name: "red", PKey: 0x8001, All: sm.Limited}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	first := mem.Open()
	a := begin(t, "a", first)
	a.until("the first brings the port up", a.active)
	a.until("what was observed is kept", func() bool {
		_, err := mem.Get(context.Background(), KeyObservations)
		return err == nil
	})
	lid, keys := a.ca.LID(), slices.Clone(a.ca.PKeys(1))
	if len(keys) < 2 {
		t.Fatalf("partitions %v: the test shows nothing", keys)
	}
	l, err := mem.List(t.Context(), "subnet")
	if err != nil {
		t.Fatal(err)
	}
	first.Kill()
	a.m.Close()

	away := mem.Open()
	away.Kill() // every call fails from now on
	k := &kept{}
	b := begin(t, "b", away, func(c *Config) { c.Copy = k })
	defer b.m.Close()
	broken := store.Listing{Rev: l.Rev}
	for _, e := range l.Entries {
		if e.Key == KeyIntent {
			e.Value = []byte("?")
		}
		broken.Entries = append(broken.Entries, e)
	}
	for _, bad := range []store.Listing{broken, {}} {
		k.set(true, bad)
		for end := time.Now().Add(3 * lookEvery); time.Now().Before(end); time.Sleep(time.Millisecond) {
			b.pump()
		}
		if s := b.m.Status(); s.Permitted || b.ca.LID() != 0 {
			t.Fatalf("a copy that cannot be read is used: %+v", s)
		}
	}
	k.set(true, l)
	b.until("the caretaker brings the port up", b.active)
	s := b.m.Status()
	if !s.Caretaker || s.Elected || s.State != "master" {
		t.Errorf("the caretaker is %+v", s)
	}
	if got := b.ca.LID(); got != lid {
		t.Errorf("LID %d, it was %d", got, lid)
	}
	b.until("partitions are as they were", func() bool { return slices.Equal(b.ca.PKeys(1), keys) })
	if len(b.m.keep) != 0 {
		t.Error("the caretaker writes")
	}
	k.set(false, l)
	b.until("the caretaker ends", func() bool { s := b.m.Status(); return !s.Permitted && !s.Caretaker })
}
