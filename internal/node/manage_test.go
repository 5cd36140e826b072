// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/host/rundir"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
)

// end ends the node and returns the names of what it leaves in its directory.
func (r *running) end() (left []string) {
	r.t.Helper()
	r.stop()
	select {
	case err := <-r.done:
		if err != nil {
			r.t.Errorf("the node ended: %v", err)
		}
		r.done <- nil // for the starter
	case <-time.After(limit):
		r.t.Fatal("the node does not end")
	}
	files, err := os.ReadDir(r.cfg.Dir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range files {
		left = append(left, f.Name())
	}
	return left
}

// degraded returns the state of that name, zero where there is none.
func (r *running) degraded(what string) api.Degraded {
	r.t.Helper()
	for _, d := range r.status().Degraded {
		if d.What == what {
			return d
		}
	}
	return api.Degraded{}
}

// TestManaged: the InfiniBand device of a node without configuration comes up by itself, and the node
// stores its state.
func TestManaged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		idle time.Duration
		left []string
	}{{0, []string{"door", "identity", "lock", "store"}}, {time.Hour, []string{"door", "identity", "lock"}}} {
		r := run(t, func(cfg *config.Config) { cfg.Fabric, cfg.IdleExit = true, c.idle })
		f := r.node.funcs.named(firstNative)
		eventually(t, "the port comes up", func() bool { return f.a.Port().State == ib.PortActive })
		pair(t, ib.RC, r.nativeClient(t, f), r.nativeClient(t, f))
		for _, what := range []string{"no_manager", "store_down", "port_not_active"} {
			if d := r.degraded(what); d.What != "" {
				t.Errorf("%+v", d)
			}
		}
		if d := cmp.Diff(c.left, r.end()); d != "" {
			t.Errorf("left by a node with --idle-exit %v: %s", c.idle, d)
		}
		if n := r.logs.count("out of date"); n != 0 {
			t.Errorf("%d lines about files that could not be written", n)
		}
	}
}

// TestWithoutStore: a node with a damaged or unavailable store serves everything that needs no
// manager, and reports the fault.
func TestWithoutStore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, why, fix string
		change         func(*config.Config) error
	}{
		{"no_manager", "cannot keep the store in ", "--dir", func(cfg *config.Config) error {
			return os.WriteFile(filepath.Join(cfg.Dir, rundir.StoreDir), nil, 0o600)
		}},
		{"store_down", "no answer from http://127.0.0.1:1", "--store",
			func(cfg *config.Config) error { cfg.Store = "http://127.0.0.1:1"; return nil }},
	} {
		r := run(t, func(cfg *config.Config) {
			cfg.Fabric = true
			if err := c.change(cfg); err != nil {
				t.Fatal(err)
			}
		})
		if d := r.degraded(c.what); !strings.Contains(d.Why, c.why) || !strings.Contains(d.Fix, c.fix) {
			t.Errorf("%s: %+v, all: %+v", c.what, d, r.status().Degraded)
		}
		a, b := r.client(t, vhosttest.Options{}), r.client(t, vhosttest.Options{})
		pair(t, ib.RC, a, b)
		mustWrite(t, a, b, 1, 5000)
		r.end()
	}
}

// TestWrongFabric: an impossible configuration is refused at once.
func TestWrongFabric(t *testing.T) {
	for _, c := range []struct {
		says   string
		change func(*config.Config)
	}{
		{"all must be https", func(cfg *config.Config) { cfg.Store = "http://127.0.0.1:1,https://127.0.0.1:2" }},
		{"fix: give it another --device", func(cfg *config.Config) { cfg.Device = firstNative }},
	} {
		cfg := config.Default()
		cfg.Dir, cfg.RoCEPort = t.TempDir(), condtest.Port(t)
		c.change(&cfg)
		err := Run(context.Background(), cfg, func() { t.Error("it is ready") }, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
		}
		if _, err := os.Stat(filepath.Join(cfg.Dir, rundir.TreeDir)); !os.IsNotExist(err) {
			t.Errorf("it left files for programs: %v", err)
		}
	}
}
