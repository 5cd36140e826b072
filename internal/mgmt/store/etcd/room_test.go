// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
)

// TestSnapshotFails: the snapshot of the log cannot be written. etcd gives up, and the process goes on. The server ends
// in order: another one has everything that was put when the reason is gone.
func TestSnapshotFails(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	c := etcd.ServerConfig{Dir: quick(t)}.WithSnapshotCount(10)
	s, own, other := served(t, c)
	if _, err := store.Put(ctx, other, "k/more", nil); err != nil {
		t.Fatal(err)
	}
	// A folder with the name of the file is in its place, whichever change the snapshot is of.
	var folders []string
	for term := range 4 {
		for change := range 200 {
			folders = append(folders, filepath.Join(c.Dir, "etcd", "member", "snap",
				fmt.Sprintf("%016x-%016x.snap", term, change)))
		}
	}
	for _, f := range folders {
		if err := os.MkdirAll(filepath.Join(f, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	n, failed := 0, false
	for !failed {
		select {
		case <-s.Failed():
			failed = true
		case <-time.After(10 * time.Millisecond): // no change waits for the one with the snapshot
			if _, err := store.Put(ctx, own, fmt.Sprintf("k/%d", n), nil); err == nil {
				n++
			} else if ctx.Err() != nil {
				t.Fatal("etcd wrote snapshots")
			}
		}
	}
	for range 3 { // other nodes go on, and give etcd more to do
		_, _ = store.Put(ctx, other, "k/more", nil)
	}
	if err := own.Status(ctx).Down; err == nil || !strings.Contains(err.Error(), "failed to save snapshot") {
		t.Errorf("the status is %v", err)
	}
	s.Close()
	if !s.Ended() {
		t.Error("etcd has not ended")
	}
	for _, f := range folders {
		if err := os.RemoveAll(f); err != nil {
			t.Fatal(err)
		}
	}
	s, err := etcd.Start(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := s.Copy(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Entries) < n {
		t.Errorf("%d of %d entries are there", len(l.Entries), n)
	}
}

// TestRoom: the disk of a voter has no room, then that of the leader. Its replica ends, the others take changes, also
// those of its node, and it comes back with them when there is room.
func TestRoom(t *testing.T) {
	f := newFabric(t)
	free := map[string]*atomic.Int64{"a": {}, "b": {}, "c": {}}
	for name, seeds := range map[string][]string{"a": nil, "b": {"a"}, "c": {"a"}} {
		free[name].Store(1 << 40)
		f.configs["a"] = f.prepare("a")
		f.configs[name] = f.prepare(name, seeds...).WithFree(free[name].Load).WithSnapshotCount(10)
	}
	for _, name := range []string{"a", "b", "c"} {
		f.open(name)
	}
	const all = "a:voter b:voter c:voter"
	f.roles(all)
	for _, name := range []string{"c", "a"} {
		m := f.members[name]
		f.put(name, "k", "1")
		free[name].Store(1 << 20)
		f.until("the replica ends", func() bool { return m.Part().Room != nil })
		if why := m.Part().Room.Error(); !strings.Contains(why, "1 MiB free, and 19 MiB are needed") {
			t.Error(why)
		}
		for i := range 30 {
			f.put(name, "k", fmt.Sprint(i)) // by the other voters
		}
		f.expect("b", "k", "29")
		free[name].Store(1 << 40)
		f.roles(all)
		f.until("it has what was put meanwhile", func() bool {
			l, _ := m.Copy(t.Context(), "") // empty with an error
			return slices.ContainsFunc(l.Entries, func(e store.Entry) bool {
				return e.Key == "k" && string(e.Value) == "29"
			})
		})
		if why := m.Part().Room; why != nil {
			t.Error(why)
		}
	}
}

// TestRoomStuck: etcd does not end where the disk of its node has no room. Its files are used by no other replica until
// it has ended, and that is named.
func TestRoomStuck(t *testing.T) {
	f := newFabric(t)
	var free atomic.Int64
	free.Store(1 << 40)
	f.configs["a"] = f.prepare("a").WithFree(free.Load)
	m := f.open("a")
	f.roles("a:voter")
	f.put("a", "k", "1")
	leave, err := m.Keep()
	if err != nil {
		t.Fatal(err)
	}
	named := func(what string) {
		f.Helper()
		f.until(what, func() bool {
			why := m.Part().Room
			return why != nil && strings.Contains(why.Error(), what)
		})
	}
	free.Store(1 << 20)
	named("etcd did not end in order")
	free.Store(1 << 40)
	named("etcd did not end in order")
	leave()
	f.roles("a:voter")
	f.expect("a", "k", "1")
}

// TestRoomAlone: the disk of a node that is alone has no room, from its start. Calls of its store return that, and
// succeed when there is room.
func TestRoomAlone(t *testing.T) {
	f := newFabric(t)
	var free atomic.Int64
	c := f.prepare("a")
	c.Listen, c.Advertise = "", ""
	f.configs["a"] = c.WithFree(free.Load)
	m := f.open("a")
	for range 2 {
		_, err := store.Put(t.Context(), m, "k", []byte("1"))
		if err == nil || !strings.Contains(err.Error(), "free space") {
			t.Errorf("a put: %v", err)
		}
		free.Store(1 << 40)
		f.put("a", "k", "1")
		f.expect("a", "k", "1")
		free.Store(0)
		f.until("the replica ends", func() bool { return m.Part().Room != nil })
	}
}
