// SPDX-License-Identifier: Apache-2.0

package census

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// listed is what is read of the output of go list.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	Imports                 []string
	ImportMap               map[string]string
	Module                  *struct {
		Path string
		Main bool
	}
}

// countTypes fills in the counts that need types. Packages of the module are checked from source,
// others come from the go command's export data.
func (c *Census) countTypes(dir string) error {
	out, err := output(dir, "go", "list", "-export", "-deps",
		"-json=ImportPath,Dir,Export,GoFiles,Imports,ImportMap,Module", "./...")
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	exports := map[string]string{}
	checked := map[string]*types.Package{}
	outside := importer.ForCompiler(fset, "gc", func(name string) (io.ReadCloser,
		error) {
		return os.Open(exports[name])
	})
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p listed
		if err := dec.Decode(&p); err != nil {
			return err
		}
		exports[p.ImportPath] = p.Export
		if p.Module == nil || !p.Module.Main {
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil,
				parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			files = append(files, file)
		}
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
		config := types.Config{Importer: importerFunc(func(name string) (*types.Package, error) {
			if full := p.ImportMap[name]; full != "" {
				name = full
			}
			if own := checked[name]; own != nil || name == "unsafe" {
				return cmp.Or(own, types.Unsafe), nil
			}
			return outside.Import(name)
		})}
		pkg, err := config.Check(p.ImportPath, fset, files, info)
		if err != nil {
			return err
		}
		checked[p.ImportPath] = pkg
		folder, err := filepath.Rel(dir, p.Dir)
		if err != nil {
			return err
		}
		c.addTypes(fset, dir, folder, pkg)
		graph := callGraph(fset, files, info)
		for i := range c.Packages {
			if one := &c.Packages[i]; one.Name == folder {
				one.Arrows, one.Back, one.Circle = graph.arrows(), graph.back(), graph.inCircles()
			}
		}
	}
	slices.SortFunc(c.Types, func(a, b Type) int {
		return cmp.Or(b.Methods-a.Methods, b.Fields-a.Fields, strings.Compare(a.Name, b.Name))
	})
	slices.SortFunc(c.Interfaces, func(a, b Interface) int {
		return cmp.Or(b.Methods-a.Methods, strings.Compare(a.Name, b.Name))
	})
	return nil
}

type importerFunc func(name string) (*types.Package, error)

func (f importerFunc) Import(name string) (*types.Package, error) { return f(name) }

func (c *Census) addTypes(fset *token.FileSet, dir, folder string, pkg *types.Package) {
	for _, name := range pkg.Scope().Names() {
		obj, ok := pkg.Scope().Lookup(name).(*types.TypeName)
		if !ok || obj.IsAlias() {
			continue
		}
		named, ok := obj.Type().(*types.Named)
		if !ok {
			continue
		}
		if face, ok := named.Underlying().(*types.Interface); ok {
			if face.NumMethods() > MaxInterface {
				c.Interfaces = append(c.Interfaces, Interface{folder + "." + name, face.NumMethods()})
			}
			continue
		}
		at := fset.Position(obj.Pos())
		file, _ := filepath.Rel(dir, at.Filename)
		t := Type{
			Name:     folder + "." + name,
			Methods:  types.NewMethodSet(types.NewPointer(named)).Len(),
			Declared: named.NumMethods(),
			Line:     fmt.Sprintf("%s:%d", file, at.Line),
		}
		if s, ok := named.Underlying().(*types.Struct); ok {
			t.Fields, t.Mutexes = s.NumFields(), mutexes(s)
		}
		c.Types = append(c.Types, t)
	}
}

// mutexes returns the mutexes among the fields of s and of the anonymous structs in it.
func mutexes(s *types.Struct) int {
	n := 0
	for field := range s.Fields() {
		switch field.Type().String() {
		case "sync.Mutex", "sync.RWMutex", "*sync.Mutex", "*sync.RWMutex":
			n++
		}
		if inner, ok := field.Type().(*types.Struct); ok {
			n += mutexes(inner)
		}
	}
	return n
}

// graph has an edge from each file of a package to each other one that it calls a function or
// method of. Calls through an interface have no edge: the interface cuts them.
type graph [][]bool

func callGraph(fset *token.FileSet, files []*ast.File, info *types.Info) graph {
	index := map[string]int{}
	for i, file := range files {
		index[fset.Position(file.FileStart).Filename] = i
	}
	g := make(graph, len(files))
	for i, file := range files {
		g[i] = make([]bool, len(files))
		ast.Inspect(file, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			f, ok := info.Uses[id].(*types.Func)
			if !ok {
				return true
			}
			f = f.Origin()
			if recv := f.Signature().Recv(); recv != nil && types.IsInterface(recv.Type()) {
				return true
			}
			if to, ok := index[fset.Position(f.Pos()).Filename]; ok && to != i {
				g[i][to] = true
			}
			return true
		})
	}
	return g
}

func (g graph) arrows() int {
	n := 0
	for _, row := range g {
		for _, edge := range row {
			if edge {
				n++
			}
		}
	}
	return n
}

// back returns the edges that run from a later to an earlier file, in the best order found. To
// find the least number is hard in general; here each file moves to its best place until no move
// helps, from several orders to begin with. The result is the same in each run.
func (g graph) back() int {
	best := g.arrows()
	for start := range 8 {
		order := make([]int, len(g))
		for i := range order {
			order[i] = i
		}
		seed := uint32(start)
		slices.SortFunc(order, func(a, b int) int {
			if start == 0 { // those that call more than they are called come first
				return g.balance(b) - g.balance(a)
			}
			return int(mix(uint32(a)+seed<<8)) - int(mix(uint32(b)+seed<<8))
		})
		best = min(best, g.improve(order))
	}
	return best
}

func mix(x uint32) uint32 { x *= 2654435761; x ^= x >> 15; x *= 2246822519; return (x ^ x>>13) >> 2 }

func (g graph) balance(file int) int {
	n := 0
	for other := range g {
		if g[file][other] {
			n++
		}
		if g[other][file] {
			n--
		}
	}
	return n
}

// improve moves files within order until no move lessens the back edges, and returns their number.
func (g graph) improve(order []int) int {
	for moved := true; moved; {
		moved = false
		for from := range order {
			file := order[from]
			// gain of placing file before position to: edges between it and those that it passes.
			bestTo, bestGain := from, 0
			for gain, to := 0, from-1; to >= 0; to-- {
				gain += sign(g[file][order[to]]) - sign(g[order[to]][file])
				if gain > bestGain {
					bestTo, bestGain = to, gain
				}
			}
			for gain, to := 0, from+1; to < len(order); to++ {
				gain += sign(g[order[to]][file]) - sign(g[file][order[to]])
				if gain > bestGain {
					bestTo, bestGain = to, gain
				}
			}
			if bestTo != from {
				copy(order[from:], order[from+1:])
				order = slices.Insert(order[:len(order)-1], bestTo, file)
				moved = true
			}
		}
	}
	n := 0
	for i, file := range order {
		for _, earlier := range order[:i] {
			n += sign(g[file][earlier])
		}
	}
	return n
}

func sign(edge bool) int {
	if edge {
		return 1
	}
	return 0
}

// inCircles returns the edges between files of which each reaches the other.
func (g graph) inCircles() int {
	reach := make([][]bool, len(g))
	for i := range g {
		reach[i] = slices.Clone(g[i])
	}
	for via := range g {
		for from := range g {
			if reach[from][via] {
				for to := range g {
					reach[from][to] = reach[from][to] || reach[via][to]
				}
			}
		}
	}
	n := 0
	for from := range g {
		for to := range g {
			if g[from][to] && reach[to][from] {
				n++
			}
		}
	}
	return n
}
