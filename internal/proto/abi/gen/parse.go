// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
)

// field is one parsed line of a layout.
type field struct {
	off    int
	name   string
	elem   string // u8 … u64, or the C name of a layout; "" for a union
	count  int    // array length, 0 for a single element
	flex   bool
	goType string
	arms   [][2]string // of a union: member, layout
	size   int
}

// reserved reports whether the field is written as zero and ignored.
func (f *field) reserved() bool {
	return strings.HasPrefix(f.name, "reserved") || strings.HasPrefix(f.name, "pad")
}

// parsed is a layout with checked offsets.
type parsed struct {
	layout
	list  []field
	align int
}

var scalars = map[string]int{"u8": 1, "u16": 2, "u32": 4, "u64": 8}

// parse reads the schema and proves that natural alignment gives exactly the
// stated offsets and sizes, so that C structures need no packing.
func parse(ls []layout) (map[string]*parsed, error) {
	all := map[string]*parsed{}
	for _, l := range ls {
		p := &parsed{layout: l, align: 1}
		next := 0
		for line := range strings.Lines(strings.TrimSpace(l.fields)) {
			f, align, err := parseField(strings.Fields(line), all)
			if err != nil {
				return nil, fmt.Errorf("%s: %q: %w", l.c, line, err)
			}
			if f.off != next || f.off%align != 0 {
				return nil, fmt.Errorf("%s.%s: offset %d, want %d aligned to %d", l.c, f.name, f.off, next, align)
			}
			p.align = max(p.align, align)
			next += f.size
			p.list = append(p.list, f)
		}
		if next != l.size || l.size%p.align != 0 {
			return nil, fmt.Errorf("%s: fields end at %d, size %d, alignment %d", l.c, next, l.size, p.align)
		}
		all[l.c] = p
	}
	return all, nil
}

func parseField(w []string, all map[string]*parsed) (f field, align int, err error) {
	if len(w) < 3 {
		return f, 0, fmt.Errorf("want offset, name, type")
	}
	if f.off, err = strconv.Atoi(w[0]); err != nil {
		return f, 0, err
	}
	f.name = w[1]
	sizeOf := func(t string) (int, int, error) {
		if n := scalars[t]; n != 0 {
			return n, n, nil
		}
		if p := all[t]; p != nil {
			return p.size, p.align, nil
		}
		return 0, 0, fmt.Errorf("unknown type %s", t)
	}
	if w[2] == "union" {
		align = 1
		for _, a := range w[3:] {
			name, t, _ := strings.Cut(a, "=")
			n, al, err := sizeOf(t)
			if err != nil {
				return f, 0, err
			}
			f.arms = append(f.arms, [2]string{name, t})
			f.size, align = max(f.size, n), max(align, al)
		}
		return f, align, nil
	}
	f.elem, f.goType, _ = strings.Cut(w[2], ":")
	if e, n, ok := strings.Cut(f.elem, "["); ok {
		f.elem = e
		if f.count, err = strconv.Atoi(strings.TrimSuffix(n, "]")); err != nil {
			return f, 0, err
		}
	}
	if f.size, align, err = sizeOf(f.elem); err != nil {
		return f, 0, err
	}
	f.size *= max(f.count, 1)
	if len(w) == 4 && w[3] == "flex" {
		f.flex, f.size = true, 0
	}
	return f, align, nil
}
