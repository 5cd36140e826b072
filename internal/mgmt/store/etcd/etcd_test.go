// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/mgmt/store/storetest"
	"weft/internal/proto/problem"
)

func TestMain(m *testing.M) {
	if os.Getenv(masterEnv) != "" {
		os.Exit(master(os.Getenv(masterEnv)))
	}
	if os.Getenv(memberEnv) != "" {
		os.Exit(member(os.Getenv(memberEnv)))
	}
	goleak.VerifyTestMain(m)
}

func start(t testing.TB, c etcd.ServerConfig) *etcd.Server {
	t.Helper()
	s, err := etcd.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func client(t testing.TB, s *etcd.Server) *etcd.Client {
	t.Helper()
	c, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func connect(t testing.TB, c etcd.ClientConfig) *etcd.Client {
	t.Helper()
	cl, err := etcd.Connect(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

// quick is a directory in memory where there is one: on a disk that is busy
// for seconds, leases end and calls fail as they should, which is not what
// these tests are about.
func quick(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "weft-store-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// patience is how long a call may take in tests on a busy machine.
const patience = time.Minute

type embedded struct{ *etcd.Server }

func (e embedded) Open(t testing.TB) store.Store    { return client(t, e.Server) }
func (e embedded) Kill(_ testing.TB, s store.Store) { s.(*etcd.Client).Kill() }

func TestEmbedded(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB) storetest.Site {
		return embedded{start(t, etcd.ServerConfig{Dir: quick(t), Timeout: patience})}
	})
}

type external struct{ *etcd.Server }

func (e external) Open(t testing.TB) store.Store {
	return connect(t, etcd.ClientConfig{Endpoints: []string{e.URL()}, Timeout: patience})
}
func (e external) Kill(_ testing.TB, s store.Store) { s.(*etcd.Client).Kill() }

func TestExternal(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB) storetest.Site {
		return external{start(t, etcd.ServerConfig{Dir: quick(t), Listen: "http://127.0.0.1:0"})}
	})
}

func want(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error is %v, want %v", err, kind)
	}
	for _, w := range append(words, ". fix: ") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func put(t *testing.T, s store.Store, key, value string) {
	t.Helper()
	if _, err := store.Put(t.Context(), s, key, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, s store.Store, key string) string {
	t.Helper()
	e, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(e.Value)
}

func TestStateSurvivesRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := start(t, etcd.ServerConfig{Dir: dir})
	c := client(t, s)
	put(t, c, "pkey/8001", "kept")
	before := c.Status(t.Context())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client(); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("client of a closed server: %v", err)
	}
	began := time.Now()
	again := client(t, start(t, etcd.ServerConfig{Dir: dir}))
	t.Logf("restart took %v", time.Since(began).Round(time.Millisecond))
	if got := get(t, again, "pkey/8001"); got != "kept" {
		t.Errorf("after a restart the value is %q", got)
	}
	after := again.Status(t.Context())
	if after.Revision != before.Revision || after.Kind != "embedded" || after.Dir != dir ||
		after.MaxBytes != etcd.MaxSize || after.Leader != "weft" || after.Members != 1 || after.Version == "" {
		t.Errorf("status is %+v, before the restart %+v", after, before)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("directory is %v, %v; want 0700", fi.Mode(), err)
	}
}

func TestTwoServersDoNotCollide(t *testing.T) {
	a, b := start(t, etcd.ServerConfig{Dir: quick(t)}), start(t, etcd.ServerConfig{Dir: quick(t)})
	ca, cb := client(t, a), client(t, b)
	put(t, ca, "k", "a")
	put(t, cb, "k", "b")
	if got := get(t, ca, "k"); got != "a" {
		t.Errorf("value is %q, want a", got)
	}
}

func TestDirectoryHasOneServer(t *testing.T) {
	dir := quick(t)
	start(t, etcd.ServerConfig{Dir: dir})
	_, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: dir})
	want(t, err, store.ErrUnavailable, dir, "another process")
	_, err = etcd.Start(t.Context(), etcd.ServerConfig{Dir: "store"})
	want(t, err, store.ErrInvalid, "absolute")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = etcd.Start(t.Context(), etcd.ServerConfig{Dir: file})
	want(t, err, store.ErrUnavailable, file)
}

// TestDamagedStoreEndsNothingElse damages what etcd returns an error for, and
// what it panics for. The latter leaves a goroutine of etcd's that waits for
// ever, so a child has it.
func TestDamagedStoreEndsNothingElse(t *testing.T) {
	for _, damage := range []struct {
		file string
		from int
	}{{"etcd/member/wal/*.wal", 0}, {"etcd/member/wal/*.wal", 64}, {"etcd/member/snap/db", 64}} {
		file, from := damage.file, damage.from
		dir := quick(t)
		s := start(t, etcd.ServerConfig{Dir: dir})
		put(t, client(t, s), "k", strings.Repeat("v", 5000))
		s.Close()
		paths, err := filepath.Glob(filepath.Join(dir, file))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no %s in %s: %v", file, dir, err)
		}
		b, err := os.ReadFile(paths[0])
		if err != nil {
			t.Fatal(err)
		}
		for i := from; i < min(len(b), 16000); i++ {
			b[i] ^= 0xff
		}
		if err := os.WriteFile(paths[0], b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, says := child(t, dir)
		for _, w := range []string{"cannot start the store in " + dir + ": ", ". fix: ", "move the directory away"} {
			if !strings.Contains(says, w) {
				t.Errorf("with %s damaged from octet %d on the child prints %q, want %q", file, from, says, w)
			}
		}
	}
}

func TestListen(t *testing.T) {
	s := start(t, etcd.ServerConfig{Dir: quick(t), Listen: "http://127.0.0.1:0"})
	_, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: quick(t), Listen: s.URL()})
	want(t, err, store.ErrUnavailable, s.URL(), "in use")
	for _, bad := range []string{"127.0.0.1:0", "unix:///x", "http://127.0.0.1", "http://127.0.0.1:0/x",
		"http://127.0.0.1:x", "http://u@127.0.0.1:0", "https://127.0.0.1:0", "http://a b:1"} {
		_, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: quick(t), Listen: bad})
		want(t, err, store.ErrInvalid, bad)
	}
	_, err = etcd.Connect(etcd.ClientConfig{Endpoints: []string{"10.0.0.1:2379"}})
	want(t, err, store.ErrInvalid, "http://")
	_, err = etcd.Connect(etcd.ClientConfig{})
	want(t, err, store.ErrInvalid, "no address")
	_, err = etcd.Connect(etcd.ClientConfig{Endpoints: []string{s.URL(), "https://127.0.0.1:1"}})
	want(t, err, store.ErrInvalid, "all must be https")
	_, err = etcd.Connect(etcd.ClientConfig{Endpoints: []string{s.URL()}, TLS: &tls.Config{}})
	want(t, err, store.ErrInvalid, "all must be https")
	_, err = etcd.Connect(etcd.ClientConfig{Endpoints: []string{s.URL()}, Namespace: "/"})
	want(t, err, store.ErrInvalid)
}

func TestNamespacesAreApart(t *testing.T) {
	s := start(t, etcd.ServerConfig{Dir: quick(t), Listen: "http://127.0.0.1:0"})
	a := connect(t, etcd.ClientConfig{Endpoints: []string{s.URL()}, Namespace: "fabric"})
	b := connect(t, etcd.ClientConfig{Endpoints: []string{s.URL()}, Namespace: "fabric2"})
	put(t, a, "k", "a")
	put(t, b, "k", "b")
	l, err := a.List(t.Context(), "")
	if err != nil || len(l.Entries) != 1 || l.Entries[0].Key != "k" || string(l.Entries[0].Value) != "a" {
		t.Errorf("list is %+v, %v", l, err)
	}
}

// TestReadWhileLeaderChanges: a read that a change of the leader ended begins again.
func TestReadWhileLeaderChanges(t *testing.T) {
	c := client(t, start(t, etcd.ServerConfig{Dir: quick(t), Timeout: patience}))
	put(t, c, "k", "v")
	c.ChangeLeader(2)
	if got := get(t, c, "k"); got != "v" {
		t.Errorf("value is %q", got)
	}
	c.ChangeLeader(1)
	if l, err := c.List(t.Context(), ""); err != nil || len(l.Entries) != 1 {
		t.Errorf("list is %+v, %v", l, err)
	}
}

// TestAway takes an external store away and gives it back.
func TestAway(t *testing.T) {
	dir := quick(t)
	s := start(t, etcd.ServerConfig{Dir: dir, Listen: "http://127.0.0.1:0"})
	url := s.URL()
	c := connect(t, etcd.ClientConfig{Endpoints: []string{url}, Timeout: patience})
	hasty := connect(t, etcd.ClientConfig{Endpoints: []string{url}, Timeout: 5 * time.Second})
	put(t, c, "k", "1")
	w, err := c.Watch(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if first := <-w; !first.Reset || len(first.Events) != 1 {
		t.Errorf("watch begins with %+v", first)
	}
	l, err := c.Lease(t.Context(), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()

	var noGet, noPut, noLease error
	var status store.Status
	var all sync.WaitGroup
	all.Go(func() { _, noGet = hasty.Get(t.Context(), "k") })
	all.Go(func() { _, noPut = store.Put(t.Context(), hasty, "k", nil) })
	all.Go(func() { _, noLease = hasty.Lease(t.Context(), time.Second) })
	all.Go(func() { status = hasty.Status(t.Context()) })
	all.Wait()
	want(t, noGet, store.ErrUnavailable, url, "connection refused", "weft up --store")
	want(t, noPut, store.ErrUnavailable, url, "connection refused")
	want(t, noLease, store.ErrUnavailable, url, "connection refused")
	if problem.Of("", status.Down).Fix == "" || status.Kind != "external" || len(status.Endpoints) != 1 {
		t.Errorf("status of a store that is away: %+v", status)
	}
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	if _, err := c.Get(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a caller that waits 10ms gets %v", err)
	}
	stop()
	select {
	case <-l.Lost():
	case <-time.After(patience):
		t.Error("a lease outlives its store")
	}

	// A candidate waits for the store.
	elected := make(chan error, 1)
	go func() {
		term, err := store.Campaign(t.Context(), c, "master", store.Leader{Name: "patient"})
		if err == nil {
			err = term.Resign(t.Context())
		}
		elected <- err
	}()

	back := start(t, etcd.ServerConfig{Dir: dir, Listen: url})
	if err := <-elected; err != nil {
		t.Error(err)
	}
	put(t, client(t, back), "k", "2")
	for c := range w {
		if c.Reset {
			t.Logf("reset to revision %d", c.Rev)
		}
		if len(c.Events) > 0 && string(c.Events[len(c.Events)-1].Value) == "2" {
			break
		}
	}
	if got := get(t, c, "k"); got != "2" {
		t.Errorf("value is %q", got)
	}
}
