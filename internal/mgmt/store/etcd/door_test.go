// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
)

// TestDoor: no file but door.go has the etcd server without the door around it.
func TestDoor(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	found := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.Name == "unguarded" {
				if found++; name != "door.go" {
					t.Errorf("%s: etcd may have closed its files", fset.Position(id.Pos()))
				}
			}
			return true
		})
	}
	if found == 0 {
		t.Error("door.go has no etcd server")
	}
}

// served starts a server with two clients: one in this process, and one over the network.
func served(t *testing.T, c etcd.ServerConfig) (s *etcd.Server, own, other *etcd.Client) {
	t.Helper()
	c.Listen = "http://127.0.0.1:0"
	s, err := etcd.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if own, err = s.Client(); err != nil {
		t.Fatal(err)
	}
	if other, err = etcd.Connect(etcd.ClientConfig{Endpoints: []string{s.URL()}, Timeout: time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	return s, own, other
}

// TestCallsWhileEtcdEnds: etcd ends by itself while each kind of call is made again and again. None panics, and each
// returns an error once etcd has ended.
func TestCallsWhileEtcdEnds(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	s, own, other := served(t, etcd.ServerConfig{Dir: quick(t)})
	put := func(c *etcd.Client, key string) error {
		_, err := store.Put(ctx, c, key, make([]byte, 1000))
		return err
	}
	for _, key := range []string{"k", "store/generation"} {
		if err := put(own, key); err != nil {
			t.Fatal(err)
		}
	}
	calls := map[string]func() error{
		"Copy":           func() error { _, err := s.Copy(ctx, ""); return err },
		"Backup":         func() error { _, err := s.Backup(ctx); return err },
		"Report":         func() error { _, err := s.Report(ctx, 0); return err },
		"Defrag":         func() error { _, _, err := s.Defrag(); return err },
		"Compact":        func() error { return s.Compact(ctx) },
		"List":           func() error { _, err := own.List(ctx, ""); return err },
		"Put":            func() error { return put(own, "k") },
		"Status":         func() error { return own.Status(ctx).Down },
		"List of others": func() error { _, err := other.List(ctx, ""); return err },
		"Put of others":  func() error { return put(other, "k") },
	}
	type end struct {
		name string
		err  error
	}
	ended := make(chan end)
	var begun sync.WaitGroup
	for name, call := range calls {
		begun.Add(1)
		go func() {
			err := call()
			for begun.Done(); err == nil; {
				err = call()
			}
			ended <- end{name, err}
		}()
	}
	begun.Wait()
	s.StopEtcd()
	for range calls {
		e := <-ended
		if ctx.Err() != nil {
			t.Fatalf("%s went on: %v", e.name, e.err)
		}
		t.Logf("%s: %v", e.name, e.err)
	}
}
