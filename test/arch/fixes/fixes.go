// SPDX-License-Identifier: Apache-2.0

// Package fixes finds every fix that the Go code of the tree can print: the values that reach a field Fix of any type.
//
// What comes in: the source of the module. What goes out: texts, each with the place of its words, in which a value
// that is known only at run time is a hole. A fix of which nothing is known is one too: its text is one hole. The test
// of internal/control/cli judges them. It reads the tree and changes nothing.
package fixes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Fix is a text that code can put into a field Fix, or that stands behind "fix: " in a string.
type Fix struct {
	Pos  string // file:line of its words, or of the field
	Type string // of the value with the field, such as "api.Degraded"; empty: it is in a string
	Text Text
}

// Text is literal parts and holes.
type Text []Part

// Part is a literal, or with Hole the type of a value that is known at run time.
type Part struct {
	Literal string
	Hole    string
	Checked bool // the function that forms the text calls IsValid
	at      token.Pos
}

// Holes that are no types. HoleFix begins the hole of a fix that is that of another value, whose own fixes are found as
// well; the type of that value is behind it.
const (
	HoleFix     = "fix of "
	HoleCommand = "command line" // of the command that runs
)

// String shows the text with the types of holes in angle brackets.
func (t Text) String() string {
	var b strings.Builder
	for _, p := range t {
		if p.Hole != "" {
			b.WriteString("<" + p.Hole + ">")
		} else {
			b.WriteString(p.Literal)
		}
	}
	return b.String()
}

// listed is a package as "go list" describes it.
type listed struct {
	Dir, ImportPath, Export string
	GoFiles                 []string
	Standard                bool
	Module                  *struct{ Main bool }
}

// tree is the type-checked module.
type tree struct {
	fset   *token.FileSet
	dir    string
	info   types.Info
	files  []*ast.File
	types  map[string]*types.Package
	gc     types.Importer
	writes map[types.Object][]value // what is assigned to variables and fields
	calls  map[types.Object][]*ast.CallExpr
	funcs  map[types.Object]*ast.FuncType // declared functions, and closures by their variable
	bodies map[types.Object]*ast.BlockStmt
	params map[types.Object]param
	within map[ast.Node]*ast.BlockStmt    // the outermost body that a composite literal or a call is in
	stack  map[any]bool                   // what is being evaluated
	bound  map[types.Object]*ast.CallExpr // functions of which results are being evaluated, by the call
}

// value is an expression, or the result of a call with this index.
type value struct {
	e      ast.Expr
	result int  // -1: e itself
	add    bool // it is appended to what was there
	elem   bool // an element of e
}

type param struct {
	of       types.Object // the function
	index    int
	variadic bool
}

// Import implements types.Importer.
func (t *tree) Import(path string) (*types.Package, error) {
	if p := t.types[path]; p != nil {
		return p, nil
	}
	return t.gc.Import(path)
}

// Find lists the fixes of the module in dir.
func Find(dir string) ([]Fix, error) {
	t, err := load(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range t.files {
		t.index(f)
	}
	var list []Fix
	for _, f := range t.files {
		list = append(list, t.find(f)...)
	}
	slices.SortStableFunc(list, func(a, b Fix) int { return strings.Compare(a.Pos, b.Pos) })
	return list, nil
}

// load parses and checks the packages of the module without their tests.
func load(dir string) (*tree, error) {
	cmd := exec.Command("go", "list", "-e", "-deps", "-export", "-json=Dir,ImportPath,Export,GoFiles,Standard,Module",
		"./...")
	cmd.Dir = dir
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, failed.String())
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	t := &tree{fset: token.NewFileSet(), dir: dir, types: map[string]*types.Package{},
		writes: map[types.Object][]value{},
		calls:  map[types.Object][]*ast.CallExpr{}, funcs: map[types.Object]*ast.FuncType{},
		bodies: map[types.Object]*ast.BlockStmt{}, params: map[types.Object]param{},
		within: map[ast.Node]*ast.BlockStmt{}, stack: map[any]bool{}, bound: map[types.Object]*ast.CallExpr{}}
	t.info = types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{},
		Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{},
		Implicits: map[ast.Node]types.Object{}}
	exports := map[string]string{}
	t.gc = importer.ForCompiler(t.fset, "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); err == io.EOF {
			return t, nil
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		if p.Standard || p.Module == nil || !p.Module.Main {
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(t.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
		c := types.Config{Importer: t}
		checked, err := c.Check(p.ImportPath, t.fset, files, &t.info) // "go list -deps" has imports first
		if err != nil {
			return nil, err
		}
		t.types[p.ImportPath] = checked
		t.files = append(t.files, files...)
	}
}

// object is what an expression names: a function, a variable or a field, of a generic type its origin.
func (t *tree) object(e ast.Expr) types.Object {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		if o := t.info.Uses[e]; o != nil {
			return origin(o)
		}
		return origin(t.info.Defs[e])
	case *ast.SelectorExpr:
		return origin(t.info.Uses[e.Sel])
	case *ast.IndexExpr:
		return t.object(e.X)
	case *ast.IndexListExpr:
		return t.object(e.X)
	}
	return nil
}

func origin(o types.Object) types.Object {
	switch o := o.(type) {
	case *types.Func:
		return o.Origin()
	case *types.Var:
		return o.Origin()
	}
	return o
}

// index notes the assignments, calls and functions of a file.
func (t *tree) index(f *ast.File) {
	var outer *ast.BlockStmt
	for _, d := range f.Decls {
		outer = nil
		if fn, ok := d.(*ast.FuncDecl); ok {
			outer = fn.Body
			t.function(t.info.Defs[fn.Name], fn.Type, fn.Body)
		}
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				t.assign(n)
			case *ast.ValueSpec:
				for i, name := range n.Names {
					switch {
					case len(n.Values) == len(n.Names):
						t.write(t.info.Defs[name], value{e: n.Values[i], result: -1})
					case len(n.Values) == 1:
						t.write(t.info.Defs[name], value{e: n.Values[0], result: i})
					}
				}
			case *ast.RangeStmt:
				if n.Value != nil {
					t.write(t.object(n.Value), value{e: n.X, result: -1, elem: true})
				}
			case *ast.CallExpr:
				t.within[n] = outer
				if o := t.object(n.Fun); o != nil {
					t.calls[o] = append(t.calls[o], n)
				}
			case *ast.CompositeLit:
				t.within[n] = outer
				t.literal(n, func(field *types.Var, e ast.Expr) { t.write(origin(field), value{e: e, result: -1}) })
			}
			return true
		})
	}
}

func (t *tree) assign(n *ast.AssignStmt) {
	for i, l := range n.Lhs {
		o := t.object(l)
		if _, index := ast.Unparen(l).(*ast.IndexExpr); index || o == nil {
			continue
		}
		v := value{e: n.Rhs[min(i, len(n.Rhs)-1)], result: -1, add: n.Tok == token.ADD_ASSIGN}
		if len(n.Rhs) == 1 && len(n.Lhs) > 1 {
			v.result = i
		}
		t.write(o, v)
		if len(n.Rhs) == len(n.Lhs) {
			if f, ok := n.Rhs[i].(*ast.FuncLit); ok {
				t.function(o, f.Type, f.Body)
			}
		}
	}
}

func (t *tree) write(o types.Object, v value) {
	if o != nil {
		t.writes[o] = append(t.writes[o], v)
	}
}

// function notes the parameters of a function or a closure.
func (t *tree) function(o types.Object, f *ast.FuncType, body *ast.BlockStmt) {
	if o == nil {
		return
	}
	t.funcs[o], t.bodies[o] = f, body
	i := 0
	for _, field := range f.Params.List {
		_, variadic := field.Type.(*ast.Ellipsis)
		for _, name := range field.Names {
			if p := t.info.Defs[name]; p != nil {
				t.params[p] = param{o, i, variadic}
			}
			i++
		}
		if len(field.Names) == 0 {
			i++
		}
	}
}

// literal calls f with each field of a struct literal that has a value.
func (t *tree) literal(n *ast.CompositeLit, f func(*types.Var, ast.Expr)) *types.Struct {
	typ := t.info.Types[n].Type
	if p, ok := typ.Underlying().(*types.Pointer); ok {
		typ = p.Elem()
	}
	s, ok := typ.Underlying().(*types.Struct)
	if !ok {
		return nil
	}
	for i, e := range n.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if v, ok := t.info.Uses[kv.Key.(*ast.Ident)].(*types.Var); ok {
				f(v, kv.Value)
			}
		} else {
			f(s.Field(i), e)
		}
	}
	return s
}

// isFix reports whether a field has fixes.
func isFix(v types.Object) bool {
	x, ok := v.(*types.Var)
	return ok && x.IsField() && strings.EqualFold(x.Name(), "fix") && isString(x.Type())
}

func isString(typ types.Type) bool {
	b, ok := typ.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsString != 0
}

// find lists the fixes that a file writes.
func (t *tree) find(f *ast.File) (list []Fix) {
	note := func(of string, at token.Pos, texts []Text) {
		if len(texts) == 0 {
			texts = []Text{{{Hole: "string"}}}
		}
		for _, text := range texts {
			words := at
			for _, p := range text {
				if (p.Hole != "" && len(text) == 1 || strings.TrimSpace(p.Literal) != "") && p.at.IsValid() {
					words = p.at
					break
				}
			}
			list = append(list, Fix{Pos: t.pos(words), Type: of, Text: text})
		}
	}
	add := func(of types.Type, e ast.Expr, at token.Pos) { note(t.name(of), at, t.eval(value{e: e, result: -1})) }
	var body *ast.BlockStmt
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			body = n.Body
		case *ast.CompositeLit:
			has := false
			s := t.literal(n, func(v *types.Var, e ast.Expr) {
				if isFix(v) {
					has = true
					add(t.info.Types[n].Type, e, e.Pos())
				}
			})
			if s != nil && !has && len(n.Elts) > 0 && strings.HasSuffix(t.name(t.info.Types[n].Type), ".Degraded") &&
				!t.setsFix(body) {
				list = append(list, Fix{Pos: t.pos(n.Pos()), Type: t.name(t.info.Types[n].Type), Text: Text{}})
			}
		case *ast.CallExpr:
			for i, a := range n.Args {
				if t.names(a) {
					note("", a.Pos(), behindFix(t.format(n, i)))
				}
			}
		case *ast.AssignStmt:
			for i, l := range n.Lhs {
				sel, ok := ast.Unparen(l).(*ast.SelectorExpr)
				if !ok || !isFix(t.info.Uses[sel.Sel]) {
					continue
				}
				of := t.info.Types[sel.X].Type
				if len(n.Rhs) == len(n.Lhs) {
					add(of, n.Rhs[i], n.Rhs[i].Pos())
					continue
				}
				note(t.name(of), l.Pos(), t.eval(value{e: n.Rhs[0], result: i}))
			}
		}
		return true
	})
	return list
}

// setsFix reports whether a function assigns a field Fix.
func (t *tree) setsFix(body *ast.BlockStmt) (yes bool) {
	if body != nil {
		ast.Inspect(body, func(n ast.Node) bool {
			if a, ok := n.(*ast.AssignStmt); ok {
				for _, l := range a.Lhs {
					if sel, ok := l.(*ast.SelectorExpr); ok && isFix(t.info.Uses[sel.Sel]) {
						yes = true
					}
				}
			}
			return !yes
		})
	}
	return yes
}

func (t *tree) pos(p token.Pos) string {
	at := t.fset.Position(p)
	rel, err := filepath.Rel(t.dir, at.Filename)
	if err != nil {
		rel = at.Filename
	}
	return fmt.Sprintf("%s:%d", rel, at.Line)
}

func (t *tree) name(typ types.Type) string {
	if p, ok := typ.(*types.Pointer); ok {
		typ = p.Elem()
	}
	return types.TypeString(typ, func(p *types.Package) string { return p.Name() })
}

// marker stands before a fix in a line that people read.
const marker = "fix: "

// names reports whether a constant has a fix.
func (t *tree) names(e ast.Expr) bool {
	c := t.info.Types[e].Value
	return c != nil && c.Kind() == constant.String && strings.Contains(constant.StringVal(c), marker)
}

// behindFix cuts texts to their fixes: what stands behind the marker, up to the end of the line.
func behindFix(list []Text) (all []Text) {
	for _, text := range list {
		var fix Text
		found := false
		for _, p := range text {
			rest := p.Literal
			if !found {
				if _, rest, found = strings.Cut(p.Literal, marker); !found {
					continue
				}
			} else if p.Hole != "" {
				fix = append(fix, p)
				continue
			}
			line, _, more := strings.Cut(rest, "\n")
			fix = append(fix, Part{Literal: line, at: p.at})
			if more {
				break
			}
		}
		all = append(all, fix)
	}
	return all
}
