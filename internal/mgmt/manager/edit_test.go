// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/store"
)

// EditIntent changes partitions and groups without an author.
func EditIntent(ctx context.Context, s store.Store, edit func(*Intent) error) error {
	return Edit(ctx, s, Change{}, func(d *Desired, _ *Change) error { return edit(&d.Intent) })
}

// EditVESWs changes virtual Ethernet switches without an author.
func EditVESWs(ctx context.Context, s store.Store, edit func(*em.Intent) error) error {
	return Edit(ctx, s, Change{}, func(d *Desired, _ *Change) error { return edit(&d.Ethernet) })
}

// LoadIntent reads partitions and groups.
func LoadIntent(ctx context.Context, s store.Store) (Intent, error) {
	d, err := Load(ctx, s)
	return d.Intent, err
}

// LoadVESWs reads virtual Ethernet switches.
func LoadVESWs(ctx context.Context, s store.Store) (em.Intent, error) {
	d, err := Load(ctx, s)
	return d.Ethernet, err
}

// recorder is a store that keeps the transactions which were executed, and can lose the answer of one.
type recorder struct {
	store.Store
	mu   sync.Mutex
	done []store.Txn
}

func (r *recorder) Txn(ctx context.Context, t store.Txn) (store.Rev, error) {
	rev, err := r.Store.Txn(ctx, t)
	if err == nil {
		r.mu.Lock()
		r.done = append(r.done, t)
		r.mu.Unlock()
	}
	return rev, err
}

func keysOf(t store.Txn) (keys []string) {
	for _, o := range t.Do {
		keys = append(keys, o.Key)
	}
	return keys
}

// TestEditIsOneTransaction: both parts of a change and its entry of the history are written at once, and a change of
// nothing writes nothing.
func TestEditIsOneTransaction(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	s, ctx := &recorder{Store: mem}, t.Context()
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	c := Change{At: at, Author: Author{Member: "b1", UID: 1000, User: "ann"}, Op: "apply"}
	if err := Edit(ctx, s, c, func(d *Desired, c *Change) error {
		d.Subnet.Partitions = []sm.Partition{{Name: "red", PKey: 0x8001}}
		c.Text = "red and\nlab\x80"
		return d.Ethernet.Create(em.VESW{Name: "lab"})
	}); err != nil {
		t.Fatal(err)
	}
	if len(s.done) != 1 || !slices.Equal(keysOf(s.done[0]), []string{KeyIntent, KeyVESWs, KeyHistoryLast,
		"history/001"}) {
		t.Fatalf("transactions %v", s.done)
	}
	for _, f := range []func(*Desired, *Change) error{
		func(*Desired, *Change) error { return nil },
		func(d *Desired, _ *Change) error { d.Subnet.Partitions[0].Name = "red"; return nil },
	} {
		if err := Edit(ctx, s, c, f); err != nil || len(s.done) != 1 {
			t.Fatalf("a change of nothing: %v, %d transactions", err, len(s.done))
		}
	}
	if err := Edit(ctx, s, c, func(d *Desired, _ *Change) error { d.Subnet.LMC = 1; return nil }); err != nil {
		t.Fatal(err)
	}
	if len(s.done) != 2 || !slices.Equal(keysOf(s.done[1]), []string{KeyIntent, KeyHistoryLast, "history/002"}) {
		t.Fatalf("transactions %v", s.done)
	}
	list, err := History(ctx, mem, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	first, second := c, c
	first.Number, first.Text, second.Number = 1, "red and lab?", 2
	if diff := cmp.Diff([]Change{first, second}, list); diff != "" {
		t.Error(diff)
	}
	var wrong *InvalidError
	if err := Edit(ctx, s, c, func(d *Desired, _ *Change) error {
		d.Subnet.Partitions = nil
		d.Ethernet.FabricID = 5000
		return nil
	}); !errors.As(err, &wrong) {
		t.Errorf("a wrong configuration: %v", err)
	}
	if d, err := Load(ctx, mem); err != nil || len(d.Subnet.Partitions) != 1 || len(d.Ethernet.VESWs) != 1 {
		t.Errorf("half of it was written: %+v %v", d, err)
	}
}

// TestHistoryRing: the history keeps the last changes only, in their order, and concurrent changes have a number each.
func TestHistoryRing(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	ctx := t.Context()
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	edit := func(n int) error {
		return EditMKey(ctx, mem, Change{At: at.Add(time.Duration(n) * time.Second), Text: fmt.Sprint(n)},
			func(k *MKey) { k.Key = uint64(n) })
	}
	const more = 30
	for n := range HistorySize + more {
		if err := edit(n + 1); err != nil {
			t.Fatal(err)
		}
	}
	list, err := History(ctx, mem, time.Time{})
	if err != nil || len(list) != HistorySize {
		t.Fatalf("%d changes, want %d: %v", len(list), HistorySize, err)
	}
	for i, c := range list {
		if want := uint64(more + 1 + i); c.Number != want || c.Text != fmt.Sprint(want) {
			t.Fatalf("change %d is %+v, want number %d", i, c, want)
		}
	}
	if l, err := mem.List(ctx, KeyHistory); err != nil || len(l.Entries) != HistorySize+1 {
		t.Errorf("%d entries: %v", len(l.Entries), err)
	}
	since, err := History(ctx, mem, at.Add((HistorySize+more)*time.Second))
	if err != nil || len(since) != 1 || since[0].Text != fmt.Sprint(HistorySize+more) {
		t.Errorf("since the last: %+v %v", since, err)
	}
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for n := range 10 {
				if err := edit(10000*(w+1) + n); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	list, err = History(ctx, mem, time.Time{})
	if err != nil || list[len(list)-1].Number != HistorySize+more+40 {
		t.Errorf("the last change is %+v, want number %d: %v", list[len(list)-1], HistorySize+more+40, err)
	}
}

// TestHistoryDamaged: a damaged entry is named, and a damaged number does not stop changes.
func TestHistoryDamaged(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	ctx := t.Context()
	for n := range 3 {
		if err := EditMKey(ctx, mem, Change{Text: fmt.Sprint(n)}, func(k *MKey) { k.Key++ }); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{KeyHistoryLast, "history/002"} {
		if _, err := store.Put(ctx, mem, key, []byte("?")); err != nil {
			t.Fatal(err)
		}
	}
	if err := EditMKey(ctx, mem, Change{Text: "later"}, func(k *MKey) { k.Key++ }); err != nil {
		t.Fatal(err)
	}
	list, err := History(ctx, mem, time.Time{})
	if err != nil || len(list) != 4 || !strings.Contains(list[0].Text, "history/002") || list[3].Number != 4 ||
		list[3].Text != "later" {
		t.Errorf("%+v %v", list, err)
	}
}

func TestOneLine(t *testing.T) {
	for _, x := range []struct {
		in   string
		most int
		want string
	}{{"a\tb\n c ", 9, "a b c"}, {"größe", 7, "größe"}, {"größeres", 7, "grö…"}, {"größe", 6, "gr…"}, {"\xff", 3,
		"?"}} {
		if got := oneLine(x.in, x.most); got != x.want || len(got) > x.most {
			t.Errorf("%q in %d octets: %q, want %q", x.in, x.most, got, x.want)
		}
	}
}
