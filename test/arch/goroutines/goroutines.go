// SPDX-License-Identifier: Apache-2.0

// Package goroutines sorts packages by whether their tests start goroutines.
//
// What comes in: patterns of packages, as the go command takes them. What goes out: two lists of import paths. The
// Makefile calls it through its command: the race detector reports accesses of two goroutines, so tests that start none
// run without it. It reads the tree and changes nothing.
package goroutines

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Sorted are the packages that have tests, those with the most test code first.
type Sorted struct {
	With    []string // the tests, or the code of this module that they call, start goroutines
	Without []string
}

// starters are the methods and functions that run a function on a goroutine of their own. The goroutines of
// testing.T.Parallel are not counted: parallel tests share only what the package has, and the soak runs all tests with
// the race detector.
var starters = []string{"Go", "AfterFunc", "RunParallel"}

// servers are the imports that call this module's functions from goroutines of their own, each with all below it.
var servers = []string{"net/http", "net/rpc", "google.golang.org/grpc", "go.etcd.io/etcd"}

type pkg struct {
	Dir, ImportPath                              string
	GoFiles, CgoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports           []string

	starts bool // its own code, without its tests
}

// Sort sorts the packages that match the patterns, with -tags invariants. dir is a directory of the module.
func Sort(dir string, patterns ...string) (Sorted, error) {
	wanted, err := list(dir, patterns)
	if err != nil {
		return Sorted{}, err
	}
	all, err := list(dir, []string{"./..."})
	if err != nil {
		return Sorted{}, err
	}
	for _, p := range all {
		if p.starts, _, err = p.read(slices.Concat(p.GoFiles, p.CgoFiles)); err != nil {
			return Sorted{}, err
		}
	}
	var s Sorted
	octets := map[string]int64{}
	for path := range wanted {
		p := all[path]
		if p == nil || len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue
		}
		starts, n, err := p.read(slices.Concat(p.TestGoFiles, p.XTestGoFiles))
		if err != nil {
			return Sorted{}, err
		}
		octets[path] = n
		if starts || reach(all, slices.Concat([]string{path}, p.TestImports, p.XTestImports)) {
			s.With = append(s.With, path)
		} else {
			s.Without = append(s.Without, path)
		}
	}
	for _, l := range [][]string{s.With, s.Without} {
		slices.SortFunc(l, func(a, b string) int {
			if octets[a] != octets[b] {
				return int(octets[b] - octets[a])
			}
			return strings.Compare(a, b)
		})
	}
	return s, nil
}

// list returns the packages that match, by import path.
func list(dir string, patterns []string) (map[string]*pkg, error) {
	cmd := exec.Command("go", append([]string{"list", "-json", "-tags=invariants"}, patterns...)...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w: %s", strings.Join(patterns, " "), err, stderr.Bytes())
	}
	pkgs := map[string]*pkg{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &pkg{}
		if err := dec.Decode(p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, err
		}
		pkgs[p.ImportPath] = p
	}
}

// reach reports whether one of the packages, or one that they import, starts goroutines.
func reach(all map[string]*pkg, paths []string) bool {
	seen := map[string]bool{}
	for len(paths) > 0 {
		path := paths[len(paths)-1]
		paths = paths[:len(paths)-1]
		p := all[path]
		if p == nil || seen[path] {
			continue
		}
		if p.starts {
			return true
		}
		seen[path] = true
		paths = append(paths, p.Imports...)
	}
	return false
}

// read reports whether one of the files starts goroutines, and the size of all in octets.
func (p *pkg) read(names []string) (starts bool, octets int64, err error) {
	for _, name := range names {
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return false, 0, err
		}
		starts = starts || Starts(f)
		octets += int64(set.File(f.FileStart).Size())
	}
	return starts, octets, nil
}

// Starts reports whether a file starts goroutines.
func Starts(f *ast.File) bool {
	found := slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool {
		path := strings.Trim(i.Path.Value, `"`)
		return slices.ContainsFunc(servers, func(s string) bool { return path == s || strings.HasPrefix(path, s+"/") })
	})
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = true
		case *ast.SelectorExpr: // the function may be a value, so no call is needed
			found = found || slices.Contains(starters, n.Sel.Name)
		}
		return !found
	})
	return found
}
