// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// field is one parsed line of a layout.
type field struct {
	offset, bits int
	line         string // name as the schema has it
	name         string // Go selector below the value, "" for the value itself
	shift        int    // of X[hi:lo]: lo, the place of the bits in the value
	part         bool   // X[hi:lo]
	goType       string
	nested       *parsed // of a nested layout
	elems        int     // of an array: its length, else 0
	elem         *field  // of an array: its first element, at the offset of the array
	embedded     bool
	each         bool
	saturating   bool
	note         string
}

func (f *field) reserved() bool { return f.line == "reserved" }

// declares reports whether the line declares a field with parts elsewhere.
func (f *field) declares() bool { return f.bits == 0 }

// bytes reports whether the field is an array of octets, copied as it is.
func (f *field) bytes() bool {
	return f.elem != nil && f.elem.nested == nil && f.elem.elem == nil && f.elem.bits == 8 || f.goType == "ib.GID"
}

// parsed is a layout with checked lines.
type parsed struct {
	layout
	list []*field
	bits int
}

// len returns the length in octets.
func (p *parsed) len() int { return p.bits / 8 }

// lengthName is the constant that names the length.
func (p *parsed) lengthName() string {
	if p.length != "" {
		return p.length
	}
	return p.name + "Len"
}

// typeName is the Go type that has the layout.
func (p *parsed) typeName() string {
	if p.of != "" {
		return p.of
	}
	return p.name
}

// widths are the widths of elements, for arrays with a named constant as their length.
var widths = map[string]int{"byte": 8, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
	"ib.GUID": 64, "ib.PKey": 16}

var (
	slice   = regexp.MustCompile(`^(.+)\[(\d+):(\d+)\]$`)
	array   = regexp.MustCompile(`^\[([^\]]+)\](.+)$`)
	integer = regexp.MustCompile(`^(u?int\d*|byte|[A-Z]\w*|ib\.[A-Z]\w*)$`)
)

// parse reads the schema and proves that the lines of each layout cover its bits in order, once each, and
// that they end at a whole octet.
func parse(ls []layout) (map[string]*parsed, error) {
	all := map[string]*parsed{}
	for _, l := range ls {
		p := &parsed{layout: l}
		for line := range strings.Lines(strings.TrimSpace(l.fields)) {
			f, err := parseField(line, all)
			if err != nil {
				return nil, fmt.Errorf("%s: %q: %w", l.name, strings.TrimSpace(line), err)
			}
			if f.offset != p.bits {
				return nil, fmt.Errorf("%s.%s: offset %d, want %d", l.name, f.line, f.offset, p.bits)
			}
			p.bits += f.bits
			p.list = append(p.list, f)
		}
		if p.bits%8 != 0 {
			return nil, fmt.Errorf("%s: %d bits are no whole octets", l.name, p.bits)
		}
		if all[l.name] != nil {
			return nil, fmt.Errorf("%s: two layouts have this name", l.name)
		}
		all[l.name] = p
	}
	return all, nil
}

func parseField(line string, all map[string]*parsed) (*field, error) {
	text, note, _ := strings.Cut(line, "//")
	w := strings.Fields(text)
	f := &field{note: strings.TrimSpace(note)}
	if len(w) < 3 {
		return nil, fmt.Errorf("want offset, bits, name, type")
	}
	var err error
	if f.offset, err = strconv.Atoi(w[0]); err != nil {
		return nil, err
	}
	if f.bits, err = strconv.Atoi(w[1]); err != nil {
		return nil, err
	}
	f.line = w[2]
	if f.reserved() {
		if len(w) != 3 {
			return nil, fmt.Errorf("a reserved field has no type")
		}
		return f, nil
	}
	if len(w) < 4 {
		return nil, fmt.Errorf("no type")
	}
	f.goType = w[3]
	for _, mark := range w[4:] {
		switch mark {
		case "each":
			f.each = true
		case "saturating":
			f.saturating = true
		default:
			return nil, fmt.Errorf("unknown mark %s", mark)
		}
	}
	if f.name = f.line; f.name == "*" {
		f.name = ""
	}
	if m := slice.FindStringSubmatch(f.line); m != nil {
		high, _ := strconv.Atoi(m[2])
		f.name, f.part = m[1], true
		f.shift, _ = strconv.Atoi(m[3])
		if high-f.shift+1 != f.bits {
			return nil, fmt.Errorf("%d bits hold no bits %d to %d", f.bits, f.shift, high)
		}
	}
	return f, f.resolve(all)
}

// resolve finds what the type of f is made of.
func (f *field) resolve(all map[string]*parsed) error {
	if f.declares() {
		return nil
	}
	if f.goType == "embedded" {
		f.embedded, f.goType = true, f.name
	}
	if f.goType == "ib.GID" {
		if f.bits != 128 || f.offset%8 != 0 {
			return fmt.Errorf("a GID has 128 bits at a whole octet")
		}
		return nil
	}
	if p := all[f.goType]; p != nil {
		if p.bits != f.bits || f.offset%8 != 0 {
			return fmt.Errorf("%s has %d bits at a whole octet", f.goType, p.bits)
		}
		f.nested = p
		return nil
	}
	if m := array.FindStringSubmatch(f.goType); m != nil {
		return f.resolveArray(m[1], m[2], all)
	}
	switch {
	case f.embedded || !integer.MatchString(f.goType) && f.goType != "bool":
		return fmt.Errorf("unknown type %s", f.goType)
	case f.goType == "bool" && f.bits != 1:
		return fmt.Errorf("a bool has 1 bit")
	case f.bits > 64:
		return fmt.Errorf("an integer has at most 64 bits")
	case f.saturating && f.bits > 32:
		return fmt.Errorf("a saturating field has at most 32 bits")
	}
	return nil
}

func (f *field) resolveArray(count, elem string, all map[string]*parsed) error {
	width := widths[elem]
	if p := all[elem]; p != nil {
		width = p.bits
	} else if m := array.FindStringSubmatch(elem); m != nil && m[2] == "byte" {
		n, _ := strconv.Atoi(m[1])
		width = 8 * n
	}
	if n, err := strconv.Atoi(count); err == nil && n > 0 {
		width = f.bits / n
	}
	if width == 0 || f.bits%width != 0 || f.offset%8 != 0 {
		return fmt.Errorf("%d bits hold no array of %s", f.bits, elem)
	}
	f.elems = f.bits / width
	f.elem = &field{offset: f.offset, bits: width, line: elem, goType: elem}
	return f.elem.resolve(all)
}

// array reports whether the Go type is an array, the only line of the layout.
func (p *parsed) array() bool { return p.list[0].line == "*" }
