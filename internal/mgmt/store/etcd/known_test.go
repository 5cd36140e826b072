// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/mgmt/store/voters"
)

// TestKnownLost: what a node keeps about its group is damaged or gone, as after a loss of power. The replica is used
// all the same, and not given up because another member reports its group.
func TestKnownLost(t *testing.T) {
	for what, damage := range map[string]func(string) error{
		"empty":      func(name string) error { return os.Truncate(name, 0) },
		"half":       func(name string) error { return os.Truncate(name, 20) },
		"gone":       os.Remove,
		"no numbers": func(name string) error { return os.WriteFile(name, []byte("{}"), 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			f := newFabric(t)
			f.open("a")
			f.open("b", "a")
			f.roles("a:voter b:learner")
			f.put("b", "k", "kept")
			group := f.members["b"].Part().Group
			f.kill("a")
			c := f.configs["a"]
			c.Seeds, c.Joins = []string{f.configs["b"].Advertise}, true
			f.configs["a"] = c
			if err := damage(filepath.Join(c.Dir, "group.json")); err != nil {
				t.Fatal(err)
			}
			f.open("a")
			f.roles("a:voter b:learner")
			f.expect("b", "k", "kept")
			f.put("b", "k", "changed")
			f.holds("a:voter b:learner")
			if p := f.members["a"].Part(); p.Group != group || p.Why != "" {
				t.Errorf("%+v, want the group %+v", p, group)
			}
		})
	}
}

// TestFilesFromBefore: a host was alone and joined; its end came before its store was set aside. At its start that
// store is no part of the fabric's. What it had in the fabric is.
func TestFilesFromBefore(t *testing.T) {
	f := newFabric(t)
	f.open("b")
	f.put("b", "k", "of b alone")
	f.kill("b")
	c := f.configs["b"]
	b, err := etcd.OpenMember(t.Context(), etcd.MemberConfig{Dir: c.Dir, Name: "weft", Timeout: c.Timeout, Now: c.Now})
	if err != nil { // as a node without a fabric has it
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	f.configs["a"] = etcd.MemberConfig{Dir: quick(t), Name: "a", Listen: freePort(t), Timeout: c.Timeout, Every: c.Every,
		Settings: c.Settings, Now: c.Now, Fabric: "f1"}
	first := f.configs["a"]
	first.Advertise = first.Listen
	f.configs["a"] = first
	f.open("a")
	f.put("a", "k", "of the fabric")

	c.Joins, c.Fabric = true, "f1" // and no seed answers
	f.configs["b"] = c
	b = f.open("b")
	if p := b.Part(); p.Role != etcd.RoleClient || !strings.Contains(p.Why, "before this host joined") {
		t.Fatalf("%+v", p)
	}
	f.kill("b")
	c.Seeds = []string{first.Advertise}
	f.configs["b"] = c
	f.open("b")
	f.roles("a:voter b:learner")
	f.expect("b", "k", "of the fabric")
	f.kill("b") // what it has now is the fabric's
	f.open("b")
	f.roles("a:voter b:learner")
	if p := f.members["b"].Part(); p.Why != "" {
		t.Errorf("%+v", p)
	}

	// The first member is no stranger to the store that it was alone with.
	f.kill("a")
	first.Joins, first.Seeds = true, []string{c.Advertise}
	f.configs["a"] = first
	f.open("a")
	f.roles("a:voter b:learner")
}

// otherStore is a member with a store of generation 1, which it has while there is set.
func otherStore(t *testing.T) (address string, there *atomic.Bool) {
	there = &atomic.Bool{}
	other := etcd.Report{Name: "z", ID: 7, Group: voters.Identity{Cluster: 1, Generation: 1}, Applied: 1}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !there.Load() {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(other)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), there
}

// TestTwoStores: another store of the same generation is found while this one is in use. Terms end, and nothing uses
// either until one is gone.
func TestTwoStores(t *testing.T) {
	f := newFabric(t)
	address, there := otherStore(t)
	f.open("a")
	f.put("a", "k", "1")
	f.kill("a")
	c := f.configs["a"]
	c.Seeds = []string{address}
	f.configs["a"] = c
	a := f.open("a")
	f.put("a", "k", "2")
	l, err := a.Lease(t.Context(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	there.Store(true)
	<-l.Lost()
	_, err = store.Put(t.Context(), a, "k", []byte("3"))
	want(t, err, store.ErrUnavailable, "another store of the same generation", "weft store restore")
	time.Sleep(5 * c.Every)
	_, err = store.Put(t.Context(), a, "k", []byte("3"))
	want(t, err, store.ErrUnavailable, "another store of the same generation")
	there.Store(false)
	f.put("a", "k", "4")
	if p := a.Part(); p.Why != "" || p.Role != etcd.RoleVoter {
		t.Errorf("%+v", p)
	}

	// Found at a start, neither is used until one is restored: that is of a later generation.
	f.kill("a")
	there.Store(true)
	a = f.open("a")
	_, err = store.Put(t.Context(), a, "k", []byte("5"))
	want(t, err, store.ErrUnavailable, "another store of the same generation", "weft store restore")
	if err := a.Restore(t.Context(), nil, false); err != nil {
		t.Fatal(err)
	}
	f.expect("a", "k", "4")
	f.put("a", "k", "6")
	time.Sleep(5 * c.Every)
	f.expect("a", "k", "6")
}

// TestClientOfTwoStores: a member without a replica manages the subnet when another store of the same generation is
// found, by the voter or by itself. Its term ends, and nothing uses either store until one is gone.
func TestClientOfTwoStores(t *testing.T) {
	for _, by := range []string{"voter", "client"} {
		t.Run("found by the "+by, func(t *testing.T) {
			f := newFabric(t)
			address, there := otherStore(t)
			seeds := func(name string, list ...string) {
				f.prepare(name)
				c := f.configs[name]
				c.Seeds, c.Unable = list, name == "d"
				f.configs[name] = c
			}
			f.open("a")
			f.put("a", "k", "1")
			a := f.configs["a"].Advertise
			if by == "voter" {
				f.kill("a")
				seeds("a", address)
				f.open("a")
				seeds("d", a)
			} else {
				seeds("d", a, address)
			}
			d := f.open("d")
			f.put("d", "k", "2")
			term, err := store.Campaign(t.Context(), d, "subnet-manager", store.Leader{Name: "d"})
			if err != nil {
				t.Fatal(err)
			}
			there.Store(true)
			select {
			case <-term.Lost():
			case <-time.After(patience):
				t.Error("the term goes on")
			}
			_, err = term.Txn(t.Context(), store.Txn{Do: []store.Op{store.PutOp("subnet/x", nil)}})
			if err == nil {
				t.Error("the term writes")
			}
			_, err = store.Put(t.Context(), d, "k", []byte("3"))
			want(t, err, store.ErrUnavailable, "another store of the same generation")
			if by == "client" { // the voter does not know of it
				f.expect("a", "k", "2")
				f.kill("d")
				f.open("d") // nor is one used at a start
				_, err = store.Put(t.Context(), f.members["d"], "k", []byte("3"))
				want(t, err, store.ErrUnavailable, "another store of the same generation")
			}
			there.Store(false)
			f.put("d", "k", "4")
		})
	}
}

// TestCopiedReplica: a copy of the directory of a replica that runs does not start a second one of its number, at
// another address. Where the first does not run, the host has only moved.
func TestCopiedReplica(t *testing.T) {
	f := newFabric(t)
	f.open("a")
	f.open("b", "a")
	f.roles("a:voter b:learner")
	f.put("a", "k", "1")
	f.expect("b", "k", "1")
	copied := f.configs["b"]
	copied.Dir = quick(t)
	if err := os.CopyFS(copied.Dir, os.DirFS(f.configs["b"].Dir)); err != nil {
		t.Fatal(err)
	}
	copied.Listen, copied.Advertise = freePort(t), ""
	copied.Advertise = copied.Listen
	m, err := etcd.OpenMember(t.Context(), copied)
	if err == nil {
		m.Close()
	}
	want(t, err, store.ErrUnavailable, "runs at "+f.configs["b"].Advertise+" too", "weft leave")
	f.kill("b")
	copied.Dir = f.configs["b"].Dir
	f.configs["b"] = copied
	f.open("b")
	f.roles("a:voter b:learner")
}

// TestRestoreInterrupted: the node ends when the store before is out of use and the restored one is not in yet. Its
// next start completes the restore. What a restore left that was not complete counts for nothing.
func TestRestoreInterrupted(t *testing.T) {
	a := newFabric(t)
	a.open("a")
	a.kill("a")
	end := errors.New("the end of the node")
	c := a.configs["a"]
	a.configs["a"] = c.WithInterrupt(end)
	m := a.open("a")
	a.put("a", "k", "backed up")
	b, err := m.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a.put("a", "k", "later")
	if err := m.Restore(t.Context(), b, true); !errors.Is(err, end) {
		t.Fatal(err)
	}
	a.kill("a")
	a.configs["a"] = c
	m = a.open("a")
	a.roles("a:voter")
	a.expect("a", "k", "backed up")
	if g := m.Part().Group.Generation; g != 2 {
		t.Errorf("generation %d", g)
	}
	a.put("a", "k", "again")
	a.kill("a")

	// A restore that is half done is no store, with another beside it or without.
	half := filepath.Join(a.configs["a"].Dir, "restore", "etcd", "member")
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}
	a.open("a")
	a.expect("a", "k", "again")
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// TestRetain: what a restore is to keep is decided before anything is touched, with the node's own copy at hand.
func TestRetain(t *testing.T) {
	f := newFabric(t)
	ca := newAuthority(t)
	refusal := errors.New("of another fabric")
	f.security = func(name string) *etcd.Security {
		s := ca.security(t, name)
		s.Retain = func(next, own *etcd.Backup) error {
			if len(next.Entries) == 0 {
				return refusal
			}
			for _, e := range own.Entries {
				if e.Key == "revoked" {
					next.Entries = append(next.Entries, e)
				}
			}
			return nil
		}
		return s
	}
	m := f.open("a")
	f.put("a", "revoked", "since")
	if err := m.Restore(t.Context(), &etcd.Backup{}, true); !errors.Is(err, refusal) {
		t.Errorf("%v", err)
	}
	f.expect("a", "revoked", "since")
	b := &etcd.Backup{Entries: []etcd.BackupEntry{{Key: "k", Value: []byte("backed up")}}}
	if err := m.Restore(t.Context(), b, true); err != nil || len(b.Entries) != 1 {
		t.Fatalf("%v, %d entries", err, len(b.Entries))
	}
	f.expect("a", "k", "backed up")
	f.expect("a", "revoked", "since")
}
