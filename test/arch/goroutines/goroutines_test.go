// SPDX-License-Identifier: Apache-2.0

package goroutines

import (
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

func TestStarts(t *testing.T) {
	for src, want := range map[string]bool{
		"func f() {}":                     false,
		"func f() { g() }":                false,
		"func f() { go g() }":             true,
		"func f() { go func() {}() }":     true,
		"func f() { if true { go g() } }": true,
		"func f() { w.Go(g) }":            true,
		"func f() { h(w.Go) }":            true,
		"func f() { time.AfterFunc(0,g)}": true,
		"func f() { b.RunParallel(g) }":   true,
		"func f() { t.Parallel() }":       false,
		`import "net/http"`:               true,
		`import "net/http/httptest"`:      true,
		`import "net/netip"`:              false,
		`import "google.golang.org/grpc"`: true,
		`import "go.etcd.io/etcd/api/v3"`: true,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "f.go", "package f\n"+src, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := Starts(f); got != want {
			t.Errorf("%s: starts is %v", src, got)
		}
	}
}

// TestSort sorts packages of this tree: goroutines of the code, of the tests, and of what they import count.
func TestSort(t *testing.T) {
	s, err := Sort("../../..", "./internal/...")
	if err != nil {
		t.Fatal(err)
	}
	for path, with := range map[string]bool{
		"weft/internal/node":              true,  // code and tests
		"weft/internal/proto/mem":         true,  // tests alone
		"weft/internal/control/doctor":    true,  // control/api alone
		"weft/internal/service/ipoib":     false, // a core
		"weft/internal/verbs/transport":   false,
		"weft/internal/fabric/link/inmem": false, // no core
	} {
		if slices.Contains(s.With, path) != with || slices.Contains(s.Without, path) == with {
			t.Errorf("%s: with is %v, without %v", path, slices.Contains(s.With, path), slices.Contains(s.Without, path))
		}
	}
	if s.With[0] != "weft/internal/node" {
		t.Errorf("the package with the most test code is %s", s.With[0])
	}
	if slices.Contains(slices.Concat(s.With, s.Without), "weft/internal/host/nstest") {
		t.Error("a package without tests is sorted")
	}
}
