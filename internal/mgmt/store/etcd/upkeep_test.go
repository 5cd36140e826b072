// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/proto/condtest"
	"weft/internal/proto/problem"
)

// fill puts until the store is full.
func fill(t *testing.T, c store.Store, key func(i int) string) {
	t.Helper()
	v := make([]byte, 64<<10)
	for i := range 1000 {
		if _, err := store.Put(t.Context(), c, key(i), v); err != nil {
			want(t, err, store.ErrFull)
			return
		}
	}
	t.Fatal("the store is never full")
}

// putSoon puts as soon as the store takes it.
func putSoon(t *testing.T, c store.Store, key string) {
	t.Helper()
	condtest.Until(t, "the store has room", func() bool {
		_, err := store.Put(t.Context(), c, key, nil)
		if err != nil {
			want(t, err, store.ErrFull)
		}
		return err == nil
	})
}

func TestFullStoreMakesRoom(t *testing.T) {
	s := start(t, etcd.ServerConfig{Dir: quick(t), Timeout: patience}.WithMaxSize(4<<20))
	c := client(t, s)
	put(t, c, "kept", "x")

	// Full of history: the store recovers by itself.
	fill(t, c, func(int) string { return "one" })
	condtest.Until(t, "the store makes room", func() bool { return !s.SaysFull() })
	// A put that was refused before there was room reports it afterwards.
	if err := s.SayFull(t.Context()); err != nil {
		t.Fatal(err)
	}
	putSoon(t, c, "after")

	// Full of entries: room comes with what is deleted.
	fill(t, c, func(i int) string { return fmt.Sprintf("many/%d", i) })
	if st := c.Status(t.Context()); !errors.Is(st.Down, store.ErrFull) || problem.Of("", st.Down).Fix == "" {
		t.Errorf("status of a full store: %v", st.Down)
	}
	l, err := c.List(t.Context(), "many")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range l.Entries {
		if _, err := store.Delete(t.Context(), c, e.Key); err != nil {
			t.Fatal(err)
		}
	}
	putSoon(t, c, "again")
	if got := get(t, c, "kept"); got != "x" {
		t.Errorf("value is %q", got)
	}
	if st := c.Status(t.Context()); st.Down != nil || st.SizeBytes > 2<<20 {
		t.Errorf("status is %+v", st)
	}
}

// TestWatchSurvivesCompaction takes away the history that a watch needs.
func TestWatchSurvivesCompaction(t *testing.T) {
	s := start(t, etcd.ServerConfig{Dir: quick(t), Timeout: patience})
	c := client(t, s)
	w, err := c.Watch(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	// The watch has delivered nothing, and waits for its receiver.
	for i := range 20 {
		put(t, c, fmt.Sprintf("k/%d", i), "x")
	}
	if err := s.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for resets := 0; len(all) < 20; {
		ch := <-w
		if ch.Reset {
			resets++
			clear(all)
		}
		for _, e := range ch.Events {
			all[e.Key] = true
		}
		if !ch.Reset {
			t.Errorf("a change of revision %d came out of history that is gone", ch.Rev)
		}
		if resets > 2 {
			t.Fatalf("%d resets for one compaction", resets)
		}
	}
}

// TestEtcdGaveUp is what is left when etcd ends a goroutine of its own.
func TestEtcdGaveUp(t *testing.T) {
	s := start(t, etcd.ServerConfig{Dir: quick(t)})
	c := client(t, s)
	s.Fail("failed to write its log: no space left on device")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := c.Get(ctx, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("get with an ended context: %v", err)
	}
	_, err := c.Get(t.Context(), "k")
	want(t, err, store.ErrUnavailable, "no space left", "start the node again")
	_, err = store.Put(t.Context(), c, "k", nil)
	want(t, err, store.ErrUnavailable, "no space left")
	if st := c.Status(t.Context()); st.Down == nil || !strings.Contains(st.Down.Error(), "no space left") {
		t.Errorf("status: %v", st.Down)
	}
}

// records keeps what is logged.
type records struct {
	mu  sync.Mutex
	min slog.Level
	all []string
}

func (r *records) Enabled(_ context.Context, l slog.Level) bool { return l >= r.min }
func (r *records) WithAttrs([]slog.Attr) slog.Handler           { return r }
func (r *records) WithGroup(string) slog.Handler                { return r }
func (r *records) Handle(_ context.Context, rec slog.Record) error {
	s := rec.Level.String() + " " + rec.Message
	rec.Attrs(func(a slog.Attr) bool { s += " " + a.String(); return true })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, s)
	return nil
}

func (r *records) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

func TestLogIsBridged(t *testing.T) {
	r := &records{min: slog.LevelDebug}
	var fatal []string
	l := etcd.Bridge(slog.New(r), func(why string) { fatal = append(fatal, why) }, nil)
	l.Debug("never")
	l.With(zap.String("member", "a")).Info("started", zap.Int("n", 3))
	l.Warn("slow", zap.Duration("took", time.Second))
	l.Error("bad")
	for _, f := range []func(string, ...zap.Field){l.Fatal, l.Panic} {
		done := make(chan bool)
		go func() {
			returned := false
			defer func() { done <- returned }()
			f("cannot go on", zap.Error(errors.New("disk full")))
			returned = true
		}()
		if <-done {
			t.Error("a goroutine of etcd went on after its end")
		}
	}
	want := "DEBUG etcd: started n=3|INFO etcd: slow took=1s|WARN etcd: bad|ERROR etcd: cannot go on error=disk full|ERROR etcd: cannot go on error=disk full"
	if got := strings.Join(r.all, "|"); got != want {
		t.Errorf("logged\n%s, want\n%s", got, want)
	}
	if got := strings.Join(fatal, "|"); got != "cannot go on: disk full|cannot go on: disk full" {
		t.Errorf("told of the end: %q", got)
	}
}

func TestQuietWhenNothingIsWrong(t *testing.T) {
	r := &records{min: slog.LevelInfo}
	dir := quick(t)
	for range 2 {
		s := start(t, etcd.ServerConfig{Dir: dir, Listen: "http://127.0.0.1:0", Log: slog.New(r)})
		put(t, connect(t, etcd.ClientConfig{Endpoints: []string{s.URL()}, Log: slog.New(r)}), "k", "v")
		s.Close()
	}
	for _, s := range r.list() {
		if !busy(s) {
			t.Errorf("logged %s", s)
		}
	}
}

// TestLogWhileEnding: a warning of an etcd that ends is no news, an error is. Both are news before.
func TestLogWhileEnding(t *testing.T) {
	r := &records{min: slog.LevelDebug}
	ends := false
	l := etcd.Bridge(slog.New(r), nil, func() bool { return ends }).With(zap.String("member", "a"))
	for _, ends = range []bool{false, true} {
		l.Warn("given up")
		l.Error("bad")
	}
	want := "INFO etcd: given up|WARN etcd: bad|DEBUG etcd: given up|WARN etcd: bad"
	if got := strings.Join(r.list(), "|"); got != want {
		t.Errorf("logged\n%s, want\n%s", got, want)
	}
}

// TestQuietWhenItEnds: a server that is closed at once logs nothing about what its etcd is then still doing, or begins
// afterwards.
func TestQuietWhenItEnds(t *testing.T) {
	r := &records{min: slog.LevelInfo}
	s := start(t, etcd.ServerConfig{Dir: quick(t), Log: slog.New(r)})
	s.Close()
	s.UpdateVersion()
	for _, l := range r.list() {
		if !busy(l) {
			t.Errorf("logged %s", l)
		}
	}
}

// busy reports whether a line is about a machine that is slow.
func busy(line string) bool {
	return strings.Contains(line, "took too long") || strings.Contains(line, "slow fdatasync")
}
