// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
)

// TestRemovedLeader: the leader of the group is a member that is removed, and the CA is replaced. No replica reports to
// it any more, and its connections are from before. Another leads, its replica is removed, and changes go on.
func TestRemovedLeader(t *testing.T) {
	f := newFabric(t)
	old, next := newAuthority(t), newAuthority(t)
	r := &rollover{T: t, cas: []*authority{old}, members: map[string]*rolled{}}
	var out, renewed atomic.Bool
	f.security = func(name string) *etcd.Security {
		s := r.security(name)
		s.Out = func(member string) bool { return out.Load() && member == "a" }
		s.Settled = func(names []string) bool { return renewed.Load() && !slices.ContainsFunc(names, s.Out) }
		return s
	}
	f.open("a")
	f.open("b", "a")
	f.open("c", "a")
	f.roles("a:voter b:voter c:voter")
	if p := f.members["a"].Part(); p.Leader != "a" {
		t.Fatalf("%s leads", p.Leader)
	}
	out.Store(true)
	f.until("b deletes what a wrote", func() bool { // again where its client was replaced, since it votes now
		_, err := f.members["b"].Txn(t.Context(), store.Txn{Do: []store.Op{store.DeleteOp("store/member/a"),
			store.DeleteOp("store/present/a")}})
		return err == nil
	})
	r.mu.Lock()
	delete(r.members, "a")
	r.mu.Unlock()
	r.trust(old, next)
	for _, name := range []string{"b", "c"} {
		r.renew(name, next)
	}
	r.trust(next)
	renewed.Store(true)
	f.until("another leads, and a has no replica", func() bool {
		p := f.members["b"].Part()
		return (p.Leader == "b" || p.Leader == "c") &&
			!slices.ContainsFunc(p.Replicas, func(r etcd.Replica) bool { return r.Name == "a" })
	})
	f.put("c", "k", "after")
	f.expect("b", "k", "after")
}

// removedWhileDown has a, which is open, remove the replica of b while b is down. b has lost what it knew of the group.
func (f *fabric) removedWhileDown() {
	f.Helper()
	f.open("b", "a")
	f.roles("a:voter b:learner")
	f.put("a", "k", "1")
	f.expect("b", "k", "1")
	f.kill("b")
	f.until("a removes the replica of b", func() bool {
		return !slices.ContainsFunc(f.members["a"].Part().Replicas, func(r etcd.Replica) bool { return r.Name == "b" })
	})
	if err := os.WriteFile(filepath.Join(f.configs["b"].Dir, "group.json"), []byte("{}"), 0o600); err != nil {
		f.Fatal(err)
	}
}

// TestRemovedAtStart: a replica was removed while its node was down, and its node has lost what it knew of the group.
// The replica starts. So does the node, and shares the store anew.
func TestRemovedAtStart(t *testing.T) {
	f := newFabric(t)
	f.open("a")
	f.removedWhileDown()
	var removed atomic.Bool
	f.configs["b"] = f.configs["b"].WithStarting(func(failed <-chan struct{}) {
		if removed.Load() {
			return
		}
		select {
		case <-failed:
			removed.Store(true)
		case <-time.After(patience):
		}
	})
	f.open("b")
	if !removed.Load() {
		t.Fatal("the replica of b was not removed at its start")
	}
	f.roles("a:voter b:learner")
	f.expect("b", "k", "1")
}

// TestRemovedAfterStart: etcd finds out that the replica was removed, and closes its files, when it runs and the member
// has read nothing of them yet. The node starts, and shares the store anew. The store was restored once: its generation
// is there to be read.
func TestRemovedAfterStart(t *testing.T) {
	f := newFabric(t)
	f.open("a")
	f.put("a", "k", "0")
	if err := f.members["a"].Restore(t.Context(), nil, true); err != nil {
		t.Fatal(err)
	}
	f.removedWhileDown()
	f.kill("a") // which reports the removal once it runs again
	var removed atomic.Bool
	f.configs["b"] = f.configs["b"].WithStarted(func(stopped <-chan struct{}) {
		if removed.Load() {
			return
		}
		f.open("a")
		select {
		case <-stopped:
			removed.Store(true)
		case <-time.After(patience):
		}
	})
	f.open("b")
	if !removed.Load() {
		t.Fatal("the replica of b was not removed after its start")
	}
	f.roles("a:voter b:learner")
	f.expect("b", "k", "1")
}
