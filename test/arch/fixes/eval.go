// SPDX-License-Identifier: Apache-2.0

package fixes

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"strings"
)

// most bounds the texts of a concatenation.
const most = 1024

// hole is a text of which only the type is known.
func (t *tree) hole(e ast.Expr) []Text {
	typ := t.info.Types[e].Type
	if _, several := typ.(*types.Tuple); several || typ == nil {
		return []Text{{{Hole: "string", at: e.Pos()}}}
	}
	return []Text{{{Hole: t.name(typ), at: e.Pos()}}}
}

// eval returns the texts that a value can have.
func (t *tree) eval(v value) []Text {
	if v.result >= 0 {
		if call, ok := ast.Unparen(v.e).(*ast.CallExpr); ok {
			return t.results(call, v.result)
		}
		return []Text{{{Hole: "string"}}} // of a map, a channel or an assertion
	}
	if v.elem {
		return t.elements(v.e)
	}
	e := ast.Unparen(v.e)
	if c := t.info.Types[e].Value; c != nil && c.Kind() == constant.String {
		return []Text{{{Literal: constant.StringVal(c), at: e.Pos()}}}
	}
	switch e := e.(type) {
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return join(t.eval(value{e: e.X, result: -1}), t.eval(value{e: e.Y, result: -1}))
		}
	case *ast.CallExpr:
		return t.call(e)
	case *ast.Ident:
		return t.variable(e, t.object(e))
	case *ast.SelectorExpr:
		if o := t.object(e); isFix(o) {
			return []Text{{{Hole: HoleFix + t.name(t.info.Types[e.X].Type)}}}
		} else if o != nil && isString(o.Type()) {
			if v, ok := o.(*types.Var); ok && (!v.IsField() || len(t.writes[o]) > 0 && fragment(v.Name())) {
				return t.variable(e, o)
			}
		}
	case *ast.IndexExpr:
		return t.elements(e.X)
	case *ast.SliceExpr:
		return t.eval(value{e: e.X, result: -1})
	}
	return t.hole(e)
}

// fragment reports whether a field with a name has words of fixes.
func fragment(name string) bool {
	return strings.Contains(strings.ToLower(name), "fix") || name == "flag"
}

// variable returns the texts that a variable, a parameter or a field can have.
func (t *tree) variable(e ast.Expr, o types.Object) []Text {
	if o == nil {
		return t.hole(e)
	}
	if t.stack[o] {
		return nil // its other values are all
	}
	t.stack[o] = true
	defer delete(t.stack, o)
	var all []Text
	if p, ok := t.params[o]; ok {
		calls := t.calls[p.of]
		if call := t.bound[p.of]; call != nil {
			calls = []*ast.CallExpr{call}
			delete(t.bound, p.of)
			defer func() { t.bound[p.of] = call }()
		}
		for _, call := range calls {
			if !p.variadic && p.index < len(call.Args) {
				all = union(all, t.eval(value{e: call.Args[p.index], result: -1}))
			}
		}
	}
	var added []Text
	for _, v := range t.writes[o] {
		if v.add {
			added = union(added, t.eval(value{e: v.e, result: -1}))
		} else {
			all = union(all, t.eval(v))
		}
	}
	if len(all) == 0 {
		if len(added) == 0 {
			return t.hole(e)
		}
		all = []Text{{}}
	}
	return union(all, join(all, added))
}

// elements returns the texts that are elements of a variable with a composite literal.
func (t *tree) elements(x ast.Expr) (all []Text) {
	from := func(e ast.Expr) {
		l, ok := ast.Unparen(e).(*ast.CompositeLit)
		if !ok {
			return
		}
		for _, el := range l.Elts {
			if kv, ok := el.(*ast.KeyValueExpr); ok {
				el = kv.Value
			}
			if typ := t.info.Types[el].Type; typ != nil && isString(typ) {
				all = union(all, t.eval(value{e: el, result: -1}))
			}
		}
	}
	from(x)
	if o := t.object(x); o != nil {
		for _, v := range t.writes[o] {
			from(v.e)
		}
	}
	if len(all) == 0 {
		return []Text{{{Hole: "string"}}}
	}
	return all
}

// call returns the texts that a call can return.
func (t *tree) call(e *ast.CallExpr) []Text {
	if t.info.Types[e.Fun].IsType() && len(e.Args) == 1 && isString(t.info.Types[e.Args[0]].Type) {
		return t.eval(value{e: e.Args[0], result: -1})
	}
	o := t.object(e.Fun)
	f, ok := o.(*types.Func)
	if ok && f.Pkg() != nil {
		switch f.Pkg().Path() + "." + f.Name() {
		case "cmp.Or":
			return t.or(e.Args)
		case "fmt.Sprintf":
			return t.format(e, 0)
		case "fmt.Sprint":
			all := []Text{{}}
			for _, a := range e.Args {
				all = join(all, t.argument(e, a))
			}
			return all
		case "strings.Replace": // of the command in the fix of another node
			return t.eval(value{e: e.Args[0], result: -1})
		case "strings.Map":
			return t.eval(value{e: e.Args[1], result: -1})
		case "strings.TrimPrefix":
			return trim(t.eval(value{e: e.Args[0], result: -1}), t.eval(value{e: e.Args[1], result: -1}))
		case "github.com/spf13/cobra.CommandPath", "weft/internal/control/cli.commandLine":
			return []Text{{{Hole: HoleCommand}}}
		}
		if sel, ok := ast.Unparen(e.Fun).(*ast.SelectorExpr); ok && f.Name() == "String" && len(e.Args) == 0 {
			h := t.hole(sel.X)
			h[0][0].Checked = t.validates(t.within[e])
			return h
		}
	}
	return t.results(e, 0)
}

// fails reports whether a return has an error as its last result.
func (t *tree) fails(r *ast.ReturnStmt) bool {
	if len(r.Results) < 2 {
		return false
	}
	last := r.Results[len(r.Results)-1]
	typ := t.info.Types[last].Type
	return typ != nil && types.Implements(typ, types.Universe.Lookup("error").Type().Underlying().(*types.Interface))
}

// trim is strings.TrimPrefix where the prefix is known.
func trim(list, prefix []Text) []Text {
	for i, text := range list {
		if len(prefix) == 1 && len(text) > 0 && text[0].Hole == "" {
			list[i] = append(Text{{Literal: strings.TrimPrefix(text[0].Literal, prefix[0].String()), at: text[0].at}},
				text[1:]...)
		}
	}
	return list
}

// or is cmp.Or: an empty text gives way to those behind it.
func (t *tree) or(args []ast.Expr) (all []Text) {
	for i, a := range args {
		for _, text := range t.eval(value{e: a, result: -1}) {
			if i == len(args)-1 || text.String() != "" && !strings.HasPrefix(text.String(), "<"+HoleFix) {
				all = append(all, text)
			}
		}
	}
	return all
}

// results returns the texts of a result of a function of the module.
func (t *tree) results(e *ast.CallExpr, index int) (all []Text) {
	o := t.object(e.Fun)
	body, f := t.bodies[o], t.funcs[o]
	if body == nil || t.stack[body] {
		return t.hole(e)
	}
	t.stack[body], t.bound[o] = true, e
	defer delete(t.stack, body)
	defer delete(t.bound, o)
	var named []types.Object
	if f.Results != nil {
		for _, field := range f.Results.List {
			for _, name := range field.Names {
				named = append(named, t.info.Defs[name])
			}
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		if _, ok := n.(*ast.FuncLit); ok {
			return false
		}
		r, ok := n.(*ast.ReturnStmt)
		switch {
		case !ok:
		case t.fails(r): // no result but the error is used
		case len(r.Results) == 0 && index < len(named):
			for _, v := range t.writes[named[index]] {
				all = union(all, t.eval(v))
			}
		case len(r.Results) == 1 && index > 0:
			if c, ok := ast.Unparen(r.Results[0]).(*ast.CallExpr); ok {
				all = union(all, t.results(c, index))
			}
		case index < len(r.Results):
			all = union(all, t.eval(value{e: r.Results[index], result: -1}))
		}
		return true
	})
	if len(all) == 0 {
		return t.hole(e)
	}
	return all
}

// format is fmt.Sprintf, and what takes a format as its argument at.
func (t *tree) format(e *ast.CallExpr, at int) (all []Text) {
	for _, text := range t.eval(value{e: e.Args[at], result: -1}) {
		list := []Text{{}}
		args := e.Args[at+1:]
		if e.Ellipsis.IsValid() {
			args = nil
		}
		for _, p := range text {
			if p.Hole != "" {
				list = join(list, []Text{{p}})
				continue
			}
			rest := p.Literal
			for {
				i := strings.IndexByte(rest, '%')
				if i < 0 || i+1 == len(rest) {
					break
				}
				list = join(list, []Text{{{Literal: rest[:i], at: p.at}}})
				if rest[i+1] == '%' {
					list, rest = join(list, []Text{{{Literal: "%"}}}), rest[i+2:]
					continue
				}
				n := i + 1
				for n < len(rest)-1 && strings.IndexByte("+#0123456789.-", rest[n]) >= 0 {
					n++
				}
				rest = rest[n+1:]
				if len(args) > 0 {
					list, args = join(list, t.argument(e, args[0])), args[1:]
				} else {
					list = join(list, []Text{{{Hole: "any"}}})
				}
			}
			list = join(list, []Text{{{Literal: rest, at: p.at}}})
		}
		all = union(all, list)
	}
	return all
}

// argument is a value as fmt prints it.
func (t *tree) argument(call *ast.CallExpr, e ast.Expr) []Text {
	if typ := t.info.Types[e].Type; typ != nil && isString(typ) {
		return t.eval(value{e: e, result: -1})
	}
	h := t.hole(e)
	h[0][0].Checked = t.validates(t.within[call]) || t.ofGID(e)
	return h
}

// ofGID reports whether an address is that of a GID, which always has one.
func (t *tree) ofGID(e ast.Expr) bool {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := t.object(call.Fun).(*types.Func)
	return ok && f.FullName() == "(weft/internal/proto/ib.GID).Addr"
}

// validates reports whether a function calls IsValid.
func (t *tree) validates(body *ast.BlockStmt) (yes bool) {
	if body != nil {
		ast.Inspect(body, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "IsValid" {
				yes = true
			}
			return !yes
		})
	}
	return yes
}

// join returns each text of a with each of b behind it; one hole where those are too many.
func join(a, b []Text) (all []Text) {
	if len(a)*len(b) > most {
		return []Text{{{Hole: "string"}}}
	}
	for _, x := range a {
		for _, y := range b {
			all = append(all, append(append(Text{}, x...), y...))
		}
	}
	return all
}

// union returns the texts of a and b, each once.
func union(a, b []Text) []Text {
	seen := map[string]bool{}
	var all []Text
	for _, text := range append(append([]Text{}, a...), b...) {
		if s := text.String(); !seen[s] {
			seen[s] = true
			all = append(all, text)
		}
	}
	return all
}
