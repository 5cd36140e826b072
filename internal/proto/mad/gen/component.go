// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// component is a field of a record that its component mask selects.
type component struct {
	name         string
	offset, bits int
	reserved     bool
	first        bool // of the components of an array, each element of which is one
	rest         bool // of such an array, not the first
}

// flatten returns the components of a record that begins at bit offset at of another, in order.
func (p *parsed) flatten(at int, renamed map[string]string) (list []component) {
	for _, f := range p.list {
		c := component{name: f.line, offset: at + f.offset, bits: f.bits, reserved: f.reserved()}
		if f.part && renamed[f.line] == "" {
			c.name = f.name
		}
		inner := f
		if f.nested != nil && f.nested.array() {
			inner = f.nested.list[0]
		}
		switch {
		case f.declares():
			continue
		case inner.each:
			c.first, c.bits = true, inner.elem.bits
			for range inner.elems {
				list = append(list, c)
				c.offset += c.bits
				c.first, c.rest = false, true
			}
			continue
		case f.nested != nil && inner == f:
			list = append(list, f.nested.flatten(c.offset, renamed)...)
			continue
		}
		list = append(list, c)
	}
	return list
}

// goComponents returns the component masks of the records, and the table by which Match reads them.
func goComponents(ls []layout, all map[string]*parsed) (string, error) {
	masks, table := &strings.Builder{}, &strings.Builder{}
	masks.WriteString(goHead)
	for _, l := range ls {
		if l.attr == "" {
			continue
		}
		renamed := map[string]string{}
		for r := range strings.FieldsSeq(l.renamed) {
			from, to, _ := strings.Cut(r, "=")
			renamed[from] = to
		}
		list := all[l.name].flatten(0, renamed)
		if len(list) > 64 {
			return "", fmt.Errorf("%s has %d components", l.name, len(list))
		}
		writeMasks(masks, &l, list, renamed)
		fmt.Fprintf(table, "%s: {", l.attr)
		for i, c := range list {
			if i%6 == 0 {
				table.WriteString("\n")
			}
			fmt.Fprintf(table, "{%d, %d, %v}, ", c.offset, c.bits, c.reserved)
		}
		table.WriteString("\n},\n")
	}
	fmt.Fprintf(masks, "// components are the fields of each record in the order of its mask.\n"+
		"var components = map[AttributeID][]field{\n%s}\n", table)
	return gofmt(masks)
}

// writeMasks writes a constant for each component, one for those that are parts of a field.
func writeMasks(b *strings.Builder, l *layout, list []component, renamed map[string]string) {
	if l.components == "" {
		return
	}
	fmt.Fprintf(b, "// Components of %s %s.\nconst (\n", article(l.name), l.name)
	for i := 0; i < len(list); i++ {
		c := list[i]
		name, ok := renamed[c.name]
		if !ok {
			if name = strings.TrimPrefix(c.name, l.components); name == "" {
				name = c.name
			}
		}
		if c.reserved || c.rest || name == "-" {
			continue
		}
		mask, n := 1, i
		for i+1 < len(list) && list[i+1].name == c.name && !c.first {
			i++
			mask = mask<<1 | 1
		}
		note := ""
		if c.first {
			note = " // of element 0; that of element n is this << n"
		}
		fmt.Fprintf(b, "Comp%s%s ComponentMask = %d << %d%s\n", l.components, name, mask, n, note)
	}
	b.WriteString(")\n\n")
}
