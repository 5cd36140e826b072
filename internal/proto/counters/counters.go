// SPDX-License-Identifier: Apache-2.0

// Package counters lists the counters of a struct by name.
//
// What comes in: a pointer to a struct of counters; what goes out: each name and value, in the order
// of the fields. Every package that counts declares a struct and nothing else; the control interface
// lists it. It is not for the packet path: it uses reflection.
//
// A field is a counter if it is exported and an unsigned integer, an atomic.Uint64 or atomic.Uint32.
// Its name is the tag `counter:"name"`, else the field's name in snake case: RNRNakSent is
// rnr_nak_sent. The tag "-" leaves a field out. An embedded struct adds its counters as they are. A
// struct in a field adds them with the field's name and "_" in front, or with the tag as the whole
// prefix: `counter:",rx_"`. An array or slice type with a method CounterName(i int) string adds an
// element per name that is not empty.
package counters

import (
	"reflect"
	"strings"
	"sync/atomic"
	"unicode"
)

// Namer is implemented by array and slice types with one counter per element. An empty name leaves
// the element out.
type Namer interface{ CounterName(i int) string }

// Each calls f with prefix and name, and the value, of each counter of c, a pointer to a struct.
// Fields of type atomic.Uint64 and atomic.Uint32 are loaded atomically; the caller orders access to
// the others.
func Each(prefix string, c any, f func(name string, value uint64)) {
	each(prefix, reflect.ValueOf(c).Elem(), f)
}

func each(prefix string, v reflect.Value, f func(string, uint64)) {
	t := v.Type()
	for i := range t.NumField() {
		field := t.Field(i)
		if !field.IsExported() {
			continue
		}
		tag := field.Tag.Get("counter")
		if tag == "-" {
			continue
		}
		name, nested, hasPrefix := strings.Cut(tag, ",")
		if name == "" {
			name = Snake(field.Name)
		}
		switch fv := v.Field(i); {
		case fv.CanUint():
			f(prefix+name, fv.Uint())
		case fv.Type() == reflect.TypeFor[atomic.Uint64]():
			f(prefix+name, fv.Addr().Interface().(*atomic.Uint64).Load())
		case fv.Type() == reflect.TypeFor[atomic.Uint32]():
			f(prefix+name, uint64(fv.Addr().Interface().(*atomic.Uint32).Load()))
		case fv.Kind() == reflect.Struct && field.Anonymous:
			each(prefix, fv, f)
		case fv.Kind() == reflect.Struct && hasPrefix:
			each(prefix+nested, fv, f)
		case fv.Kind() == reflect.Struct:
			each(prefix+name+"_", fv, f)
		default:
			elements(prefix, fv, f)
		}
	}
}

func elements(prefix string, v reflect.Value, f func(string, uint64)) {
	namer, ok := v.Interface().(Namer)
	if !ok {
		panic("counters: " + v.Type().String() +
			" is no counter and has no CounterName: give its field the tag counter:\"-\"")
	}
	for i := range v.Len() {
		if name := namer.CounterName(i); name != "" {
			f(prefix+name, v.Index(i).Uint())
		}
	}
}

// Snake turns RNRNakSent into rnr_nak_sent, and BadMACs into bad_macs.
func Snake(s string) string {
	var b strings.Builder
	r := []rune(s)
	upper := func(i int) bool { return i >= 0 && i < len(r) && unicode.IsUpper(r[i]) }
	lower := func(i int) bool { return i >= 0 && i < len(r) && unicode.IsLower(r[i]) }
	// plural reports whether r[i] is the s behind an acronym.
	plural := func(i int) bool {
		return i < len(r) && r[i] == 's' && upper(i-1) && upper(i-2) && (i+1 == len(r) || upper(i+1))
	}
	for i, c := range r {
		if upper(i) && i > 0 && (lower(i-1) || lower(i+1) && !plural(i+1)) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}
