// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// defined is what the sources define. An owner is a package ("roce") or a type, which has three names: "Link",
// "roce.Link" and "internal/fabric/link/roce.Link". A type that embeds another has the members of that one as well.
type defined struct {
	plain   map[string]bool            // functions of Go and C, methods, fields
	members map[string]map[string]bool // by owner; owners of one name are one
	embeds  map[string][]string        // by owner: the types that it embeds
	places  map[string][]string        // by type and name ("Link.Send"): the folders that define it
}

// definitions reads every source of the tree but tests.
func definitions(t *testing.T) defined {
	t.Helper()
	d := defined{map[string]bool{}, map[string]map[string]bool{}, map[string][]string{}, map[string][]string{}}
	dir := root(t)
	cFunc := regexp.MustCompile(`(?m)^[a-z][\w \*]*?\b\*?(\w+)\(`)
	for _, name := range tracked(t) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue // deleted, not yet committed
		}
		switch filepath.Ext(name) {
		case ".go":
			file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			d.addFile(filepath.Dir(name), file)
		case ".c", ".h":
			for _, m := range cFunc.FindAllStringSubmatch(string(src), -1) {
				d.plain[m[1]] = true
			}
		}
	}
	return d
}

func (d *defined) add(name string, owners ...string) {
	d.plain[name] = true
	for _, o := range owners {
		if d.members[o] == nil {
			d.members[o] = map[string]bool{}
		}
		d.members[o][name] = true
	}
}

func (d *defined) addFile(dir string, file *ast.File) {
	pkg := file.Name.Name
	owners := func(typ string) []string { return []string{typ, pkg + "." + typ, dir + "." + typ} }
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil {
				d.add(decl.Name.Name, pkg, dir)
			} else {
				typ := typeName(decl.Recv.List[0].Type)
				d.add(decl.Name.Name, owners(typ)...)
				if at := typ + "." + decl.Name.Name; !slices.Contains(d.places[at], dir) {
					d.places[at] = append(d.places[at], dir)
				}
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					d.add(spec.Name.Name, pkg, dir)
					d.addType(spec, owners(spec.Name.Name))
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						d.add(n.Name, pkg, dir)
					}
				}
			}
		}
	}
}

// addType adds the methods of an interface, and the fields of a struct.
func (d *defined) addType(spec *ast.TypeSpec, owners []string) {
	var fields *ast.FieldList
	switch t := spec.Type.(type) {
	case *ast.InterfaceType:
		fields = t.Methods
	case *ast.StructType:
		fields = t.Fields
	default:
		return
	}
	for _, f := range fields.List {
		for _, n := range f.Names {
			d.add(n.Name, owners...)
		}
		if name := typeName(f.Type); len(f.Names) == 0 && name != "" {
			for _, o := range owners {
				d.embeds[o] = append(d.embeds[o], name)
			}
		}
	}
}

// typeName returns the name of a type without its package, pointer and parameters; "" for a type without a name.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	}
	return ""
}

// has reports whether owner, a type or a package, defines or embeds name.
func (d *defined) has(owner, name string) bool { return d.hasWithin(owner, name, 4) }

func (d *defined) hasWithin(owner, name string, depth int) bool {
	if d.members[owner][name] {
		return true
	}
	if depth == 0 {
		return false
	}
	return slices.ContainsFunc(d.embeds[owner], func(e string) bool { return d.hasWithin(e, name, depth-1) })
}

// pages returns the documents that name functions and files: all Markdown but the decisions, which describe the tree
// of their time.
func pages(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, name := range tracked(t) {
		if strings.HasSuffix(name, ".md") && !strings.HasPrefix(name, "docs/adr/0") {
			names = append(names, name)
		}
	}
	return names
}

// TestDocsNameRealFunctions looks for a definition of every `name()`, `Type.name()`, `package.name()` and
// `package.Type.name()` in the documents. Where "of" or "in" and the folder of a package follow, it is looked for
// there. In ARCHITECTURE.md a method of types with one name in several packages stands with its package.
func TestDocsNameRealFunctions(t *testing.T) {
	dir, d := root(t), definitions(t)
	call := regexp.MustCompile("`((?:\\w+\\.)*)(\\w+)\\((?:now)?\\)`(?:\\s+(?:of|in)\\s+`(internal/[\\w/]+)`)?")
	calls := 0
	for _, page := range pages(t) {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			continue // deleted, not yet committed
		}
		for _, m := range call.FindAllStringSubmatch(string(text), -1) {
			calls++
			owner, name, place := strings.TrimSuffix(m[1], "."), m[2], m[3]
			switch {
			case len(owner) == 1: // a variable
				owner = ""
			case place != "" && owner != "":
				owner = place + "." + owner
			case place != "":
				owner = place
			}
			if owner == "" && !d.plain[name] || owner != "" && !d.has(owner, name) {
				t.Errorf("%s names %s, which no file defines", page, strings.Join(strings.Fields(m[0]), " "))
			}
			if at := d.places[owner+"."+name]; page == "ARCHITECTURE.md" && len(at) > 1 {
				t.Errorf("%s names %s, which is in %s: write its package in front", page, m[0],
					strings.Join(at, " and "))
			}
		}
	}
	if calls < 100 {
		t.Errorf("only %d functions named: the tours of ARCHITECTURE.md are gone", calls)
	}
}

// TestDocsNameRealMembers looks for the member in every `Type.member` and `package.member` of the documents, also
// without parentheses. A name with a small letter that is neither a type nor a package here is not Weft's.
func TestDocsNameRealMembers(t *testing.T) {
	dir, d := root(t), definitions(t)
	member := regexp.MustCompile("`((?:\\w+\\.)*?(\\w+))\\.(\\w+)(?:\\([^`]*\\))?`")
	file := regexp.MustCompile(`^(c|go|h|json|log|md|pem|s|sh|so|sock|txt|yaml)$`)
	for _, page := range pages(t) {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			continue // deleted, not yet committed
		}
		for _, m := range member.FindAllStringSubmatch(string(text), -1) {
			owner, last, name := m[1], m[2], m[3]
			ours := d.members[owner] != nil || 'A' <= last[0] && last[0] <= 'Z'
			if ours && len(last) > 1 && !file.MatchString(name) && !d.has(owner, name) {
				t.Errorf("%s names %s, which no file defines", page, m[0])
			}
		}
	}
}

// TestDocsNameRealPlaces looks for every file and folder that a document names in backquotes by its path in the tree.
func TestDocsNameRealPlaces(t *testing.T) {
	dir := root(t)
	place := regexp.MustCompile("`((?:internal|cmd|shim|test|docs|scripts|bench)/[\\w./*-]*)[^`]*`")
	for _, page := range pages(t) {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			continue // deleted, not yet committed
		}
		for _, m := range place.FindAllStringSubmatch(string(text), -1) {
			if found, err := filepath.Glob(filepath.Join(dir, m[1])); err != nil || len(found) == 0 {
				t.Errorf("%s names %s, which does not exist", page, m[0])
			}
		}
	}
}
