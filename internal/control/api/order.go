// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Order of lists. Every list in an answer has an order that its type states, with tags of the name order. Handle sorts
// each answer by it, and panics if an answer has a list without one.
//
//   - A field of an element with `order:"1"` is the first key of all lists of such elements, "2" the second, and so on.
//     Keys of embedded structs count as well. `order:"1,ALL"` puts elements with that value before all others;
//     several values, with blanks between them, are in this order.
//   - A list of texts or numbers has `order:"value"`.
//   - A list with `order:"given: …"` stays as it was made. The text states the order.
//
// Numbers and times ascend. Texts are in the order of CompareText. Elements with equal keys are in the order of their
// JSON, so that the order in which a node found them never shows.

// orderTag is the name of the tag.
const orderTag = "order"

// Words of the tag for a list.
const (
	orderValue = "value"
	orderGiven = "given"
)

// sorter sorts all lists in an addressable value.
type sorter func(v reflect.Value)

// compareFunc compares two values of one type.
type compareFunc func(a, b reflect.Value) int

// sorterOf returns the sorter of a type, nil if the type has no list to sort. tag is the order of the field that has
// the type. The error names a list without a stated order.
func sorterOf(t reflect.Type, tag string) (sorter, error) {
	switch t.Kind() {
	case reflect.Pointer:
		s, err := sorterOf(t.Elem(), tag)
		if s == nil || err != nil {
			return nil, err
		}
		return func(v reflect.Value) {
			if !v.IsNil() {
				s(v.Elem())
			}
		}, nil
	case reflect.Struct:
		return structSorter(t)
	case reflect.Slice:
		return listSorter(t, tag)
	case reflect.Map:
		if k := t.Elem().Kind(); k == reflect.Struct || k == reflect.Slice || k == reflect.Map || k == reflect.Pointer {
			return nil, fmt.Errorf("%s may have lists, which cannot be sorted there", t)
		}
	}
	return nil, nil
}

func structSorter(t reflect.Type) (sorter, error) {
	if t == reflect.TypeFor[time.Time]() {
		return nil, nil
	}
	type part struct {
		field int
		sort  sorter
	}
	var parts []part
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		s, err := sorterOf(f.Type, f.Tag.Get(orderTag))
		if err != nil {
			return nil, fmt.Errorf("%s.%s: %w", t.Name(), f.Name, err)
		}
		if s != nil {
			parts = append(parts, part{i, s})
		}
	}
	if len(parts) == 0 {
		return nil, nil
	}
	return func(v reflect.Value) {
		for _, p := range parts {
			p.sort(v.Field(p.field))
		}
	}, nil
}

func listSorter(t reflect.Type, tag string) (sorter, error) {
	if t.Elem().Kind() == reflect.Uint8 {
		return nil, nil // octets
	}
	inner, err := sorterOf(t.Elem(), "")
	if err != nil {
		return nil, err
	}
	word, why, _ := strings.Cut(tag, ": ")
	var compare compareFunc
	switch keys := keysOf(t.Elem(), nil); {
	case word == orderGiven && why != "":
	case word == orderGiven:
		return nil, fmt.Errorf("the order of %s is given, and no text states which it is", t)
	case word == orderValue && t.Elem().Kind() != reflect.Struct:
		if compare, err = comparerOf(t.Elem(), nil); err != nil {
			return nil, err
		}
	case t.Elem().Kind() == reflect.Struct && len(keys) > 0 && !isNumber(tag):
		if compare, err = elementComparer(t.Elem(), keys); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("the list %s has no stated order. fix: the tag %s (internal/control/api/order.go)", t,
			orderTag)
	}
	return func(v reflect.Value) {
		if inner != nil {
			for i := range v.Len() {
				inner(v.Index(i))
			}
		}
		if compare == nil || v.Len() < 2 {
			return
		}
		l := elements{v, reflect.Swapper(v.Interface()), compare}
		if !sort.IsSorted(l) {
			sort.Stable(l)
		}
	}, nil
}

// elements is a list that sort can order.
type elements struct {
	list    reflect.Value
	swap    func(i, j int)
	compare compareFunc
}

func (l elements) Len() int           { return l.list.Len() }
func (l elements) Swap(i, j int)      { l.swap(i, j) }
func (l elements) Less(i, j int) bool { return l.compare(l.list.Index(i), l.list.Index(j)) < 0 }

// orderKey is a key of the elements of a list.
type orderKey struct {
	index []int // of the field
	name  string
	rank  int
	first []string // values before all others
}

// keysOf returns the keys of a type and of its embedded structs, the first key first.
func keysOf(t reflect.Type, at []int) (keys []orderKey) {
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() {
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		index := append(slices.Clone(at), i)
		rank, first, _ := strings.Cut(f.Tag.Get(orderTag), ",")
		switch n, err := strconv.Atoi(rank); {
		case err == nil:
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			keys = append(keys, orderKey{index, name, n, strings.Fields(first)})
		case f.Anonymous:
			keys = append(keys, keysOf(f.Type, index)...)
		}
	}
	slices.SortStableFunc(keys, func(a, b orderKey) int { return cmp.Compare(a.rank, b.rank) })
	return keys
}

func isNumber(tag string) bool {
	_, err := strconv.Atoi(tag)
	return err == nil
}

// elementComparer compares structs by their keys, and if those are equal by their JSON.
func elementComparer(t reflect.Type, keys []orderKey) (compareFunc, error) {
	list := make([]compareFunc, len(keys))
	for i, k := range keys {
		if i > 0 && keys[i-1].rank == k.rank {
			return nil, fmt.Errorf("%s has two keys of the rank %d", t, k.rank)
		}
		var err error
		if list[i], err = comparerOf(t.FieldByIndex(k.index).Type, k.first); err != nil {
			return nil, err
		}
	}
	return func(a, b reflect.Value) int {
		for i, k := range keys {
			if c := list[i](a.FieldByIndex(k.index), b.FieldByIndex(k.index)); c != 0 {
				return c
			}
		}
		x, _ := json.Marshal(a.Interface()) // an answer, which is encoded next: an error shows there
		y, _ := json.Marshal(b.Interface())
		return bytes.Compare(x, y)
	}, nil
}

// comparerOf compares values of a type. first are values before all others, in their order.
func comparerOf(t reflect.Type, first []string) (compareFunc, error) {
	switch t.Kind() {
	case reflect.String:
		return func(a, b reflect.Value) int {
			x, y := slices.Index(first, a.String()), slices.Index(first, b.String())
			switch {
			case x >= 0 && y >= 0:
				return cmp.Compare(x, y)
			case x != y:
				return cmp.Compare(y, x) // -1: none of first
			}
			return CompareText(a.String(), b.String())
		}, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(a, b reflect.Value) int { return cmp.Compare(a.Int(), b.Int()) }, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return func(a, b reflect.Value) int { return cmp.Compare(a.Uint(), b.Uint()) }, nil
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return func(a, b reflect.Value) int {
				return a.Interface().(time.Time).Compare(b.Interface().(time.Time))
			}, nil
		}
		if keys := keysOf(t, nil); len(keys) > 0 {
			return elementComparer(t, keys)
		}
	}
	return nil, fmt.Errorf("%s cannot be a key of an order", t)
}

// CompareText compares texts as a person sorts them, and returns -1, 0 or 1. Empty text is first, then addresses
// (with prefix length or port, as they may be) by number, then numbers, decimal or with 0x, by number, then GUIDs and
// hardware addresses, then all other text. In that, runs of digits compare by number: host2 is before host10. Texts
// that differ are never equal.
func CompareText(a, b string) int {
	if a == b {
		return 0
	}
	x, y := textKeyOf(a), textKeyOf(b)
	if c := cmp.Compare(x.kind, y.kind); c != 0 {
		return c
	}
	c := 0
	switch x.kind {
	case addressText:
		c = cmp.Or(x.addr.Compare(y.addr), cmp.Compare(x.number, y.number))
	case numberText:
		c = cmp.Compare(x.number, y.number)
	case otherText:
		c = compareNatural(a, b)
	}
	return cmp.Or(c, strings.Compare(a, b))
}

// Kinds of text, in their order.
const (
	emptyText = iota
	addressText
	numberText
	hexText // groups of hexadecimal digits with colons between them
	otherText
)

// textKey is a text as CompareText compares it.
type textKey struct {
	kind   int
	addr   netip.Addr
	number uint64 // of numberText; of an address its prefix length or port
}

func textKeyOf(s string) textKey {
	if s == "" {
		return textKey{}
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return textKey{kind: addressText, addr: a}
	}
	if p, err := netip.ParsePrefix(s); err == nil {
		return textKey{kind: addressText, addr: p.Addr(), number: uint64(p.Bits())}
	}
	if p, err := netip.ParseAddrPort(s); err == nil {
		return textKey{kind: addressText, addr: p.Addr(), number: uint64(p.Port())}
	}
	digits, base := s, 10
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		digits, base = hex, 16
	}
	if n, err := strconv.ParseUint(digits, base, 64); err == nil {
		return textKey{kind: numberText, number: n}
	}
	if strings.Contains(s, ":") && strings.Trim(s, "0123456789abcdefABCDEF:") == "" {
		return textKey{kind: hexText}
	}
	return textKey{kind: otherText}
}

// compareNatural compares texts with runs of digits by number.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		x, y := digitsOf(a), digitsOf(b)
		if x == "" || y == "" {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		a, b = a[len(x):], b[len(y):]
		x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		if c := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y)); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// digitsOf returns the decimal digits that a text begins with.
func digitsOf(s string) string {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return s[:n]
}

// OrderText states the order of a list of elements of T: "peer, port". It panics if T states none.
func OrderText[T any]() string {
	var words []string
	for _, k := range keysOf(reflect.TypeFor[T](), nil) {
		word := k.name
		if len(k.first) > 0 {
			word += " (" + strings.Join(k.first, ", ") + " first)"
		}
		words = append(words, word)
	}
	if len(words) == 0 {
		panic(fmt.Sprintf("api: %s states no order", reflect.TypeFor[T]()))
	}
	return strings.Join(words, ", ")
}
