// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func exists(path ...string) bool {
	_, err := os.Stat(filepath.Join(path...))
	return err == nil
}

// TestRestoreFails: a restore that failed when the files before it could not be set aside leaves nothing that a later
// start would complete, and the store as it was.
func TestRestoreFails(t *testing.T) {
	f := newFabric(t)
	m := f.open("a")
	f.put("a", "k", "backed up")
	b, err := m.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.put("a", "k", "later")
	broken := errors.New("the disk is broken")
	m.FailAside(broken)
	if err := m.Restore(t.Context(), b, true); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	if dir := f.configs["a"].Dir; exists(dir, "restore") {
		t.Error("the restore is still there")
	}
	m.FailAside(nil)
	f.expect("a", "k", "later")
	f.kill("a")
	f.open("a")
	f.expect("a", "k", "later")
}

// TestLearnerAside: what a learner has does not take the place of a store that was set aside before, and what a voter
// has does.
func TestLearnerAside(t *testing.T) {
	f := newFabric(t)
	f.open("a")
	f.put("a", "k", "1")
	f.roles("a:voter")
	for _, name := range []string{"b", "c"} {
		f.open(name, "a")
		dir := f.configs[name].Dir
		if err := os.MkdirAll(filepath.Join(dir, "etcd.old", "before"), 0o700); err != nil {
			t.Fatal(err)
		}
		if name == "b" {
			f.roles("b:learner")
			f.members[name].SetAside()
			f.kill(name)
			if !exists(dir, "etcd.old", "before") || exists(dir, "etcd", "member") {
				t.Fatal("the store from before is gone, or that of the learner is there")
			}
			f.until("the group is without b", func() bool { return len(f.members["a"].Part().Replicas) == 1 })
			continue
		}
		f.open("d", "a")
		f.roles("a:voter c:voter d:voter")
		f.until("c keeps that it votes", func() bool { return !f.members[name].KeptAsLearner() })
		f.members[name].SetAside()
		if exists(dir, "etcd.old", "before") || !exists(dir, "etcd.old", "member") {
			t.Error("what the voter had is not kept")
		}
	}
}
