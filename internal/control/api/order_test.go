// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestOrder fills the answer of every operation with values that repeat, and sorts it in several random orders of all
// lists: the result is always the same, except for lists with a given order, which stay as they are.
func TestOrder(t *testing.T) {
	mux := (&fake{}).operations()
	answers := map[string]reflect.Type{}
	for _, x := range goldenRequests {
		h, pattern := mux.Handler(httptest.NewRequest(x.method, "http://weft/v1"+x.path, nil))
		if h, ok := h.(handler); ok {
			answers[pattern] = h.out
		}
	}
	if declared := declaredOps(t); len(answers) < declared {
		t.Errorf("the golden requests reach %d operations, %d are declared", len(answers), declared)
	}
	for pattern, out := range answers {
		sort, err := sorterOf(out, "")
		if err != nil {
			t.Errorf("%s: %v", pattern, err) // Handle would have panicked
		}
		if sort == nil {
			continue
		}
		for seed := range uint64(20) {
			want := ""
			for turn := range uint64(4) {
				v := reflect.New(out).Elem()
				fill(v, rand.New(rand.NewPCG(seed, 1)))
				shuffle(v, "", rand.New(rand.NewPCG(seed, turn)))
				sort(v)
				got := jsonText(t, v)
				if want == "" {
					want = got
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("%s, seed %d: the order depends on the order before:\n%s", pattern, seed, diff)
				}
			}
		}
	}
}

// declaredOps is the number of operations that the package declares, without the capture: its answer is a stream.
func declaredOps(t *testing.T) (n int) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(x ast.Node) bool {
			lit, ok := x.(*ast.CompositeLit)
			if !ok {
				return true
			}
			if of, ok := lit.Type.(*ast.IndexListExpr); ok {
				if name, ok := of.X.(*ast.Ident); ok && name.Name == "Op" {
					n++
				}
			}
			return true
		})
	}
	return n - 1
}

// texts are values for fields of text. Some are equal, and sorted as bytes they are not in the order of CompareText.
var texts = []string{"", "host10", "host2", "10.0.0.9", "10.0.0.10", "10.0.0.10:4792", "0x8001", "0x9", "ALL", "7"}

// fill sets every field, and makes every list of two to six elements.
func fill(v reflect.Value, r *rand.Rand) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(texts[r.IntN(len(texts))])
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(r.Int64N(3))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.Uint64N(3))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(r.IntN(3)))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), r)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2+r.IntN(5), 6))
		for i := range v.Len() {
			fill(v.Index(i), r)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, r)
		fill(value, r)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(r.Int64N(3), 0)))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), r)
		}
	default:
		panic("a value of an answer is a " + v.Type().String())
	}
}

// shuffle changes the order of all lists in v but for those with a given order; tag is the order of v.
func shuffle(v reflect.Value, tag string, r *rand.Rand) {
	switch v.Kind() {
	case reflect.Pointer:
		shuffle(v.Elem(), tag, r)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			shuffle(v.Field(i), v.Type().Field(i).Tag.Get(orderTag), r)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		for i := range v.Len() {
			shuffle(v.Index(i), "", r)
		}
		if !strings.HasPrefix(tag, orderGiven) {
			r.Shuffle(v.Len(), reflect.Swapper(v.Interface()))
		}
	}
}

func jsonText(t *testing.T, v reflect.Value) string {
	b, err := json.MarshalIndent(v.Interface(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// unsorted is an element without a stated order.
type unsorted struct {
	Name string `json:"name"`
}

// TestUnstatedOrder expects that an operation is refused if its answer has a list without a stated order.
func TestUnstatedOrder(t *testing.T) {
	refused[[]unsorted](t, "no stated order")
	refused[[]string](t, "no stated order")
	refused[struct{ Names []string }](t, "Names: the list []string has no stated order")
	refused[[]*struct {
		Name string `order:"1"`
	}](t, "no stated order")
	refused[struct {
		Names []string `order:"given"`
	}](t, "no text states which")
	refused[struct {
		Names []string `order:"1"`
	}](t, "no stated order")
	refused[struct {
		Deep *struct{ List []unsorted }
	}](t, "no stated order")
	refused[struct{ ByName map[string][]string }](t, "cannot be sorted")
	refused[[]struct {
		Name string `order:"1"`
		Also string `order:"1"`
	}](t, "two keys of the rank 1")
	refused[[]struct {
		Name []string `order:"1"`
	}](t, "Name: the list []string has no stated order")
	refused[[]struct {
		On bool `order:"1"`
	}](t, "cannot be a key")
}

func refused[Out any](t *testing.T, why string) {
	t.Helper()
	defer func() {
		if s := fmt.Sprint(recover()); !strings.Contains(s, why) {
			t.Errorf("Handle of an operation with the answer %s: %s, want %q in it", reflect.TypeFor[Out](), s, why)
		}
	}()
	Handle(http.NewServeMux(), Op[None, Out]{Method: "GET", Path: "/x"}, nil)
}

// TestOrderOfKeys sorts elements by their keys in the order of the ranks, also by keys of embedded structs.
func TestOrderOfKeys(t *testing.T) {
	type element struct {
		Owner
		N    int    `json:"n" order:"5"`
		Kind string `json:"kind" order:"4,ALL some"`
	}
	list := []element{
		{Owner: Owner{Device: "weft10"}}, {Owner: Owner{Device: "weft2"}, Kind: "b", N: 1},
		{Owner: Owner{Device: "weft2"}, Kind: "a", N: 2}, {Owner: Owner{Device: "weft2"}, Kind: "some", N: 3},
		{Owner: Owner{Device: "weft2"}, Kind: "ALL", N: 4}, {Owner: Owner{Device: "weft2", Session: 1}, Kind: "ALL"},
		{Owner: Owner{Device: "weft2"}, Kind: "b", N: -1},
	}
	sort, err := sorterOf(reflect.TypeFor[[]element](), "")
	if err != nil {
		t.Fatal(err)
	}
	sort(reflect.ValueOf(list))
	var got []string
	for _, e := range list {
		got = append(got, fmt.Sprint(e.Device, " ", e.Session, " ", e.Kind, " ", e.N))
	}
	want := []string{"weft2 0 ALL 4", "weft2 0 some 3", "weft2 0 a 2", "weft2 0 b -1", "weft2 0 b 1", "weft2 1 ALL 0",
		"weft10 0  0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := OrderText[element](); got != "device, session, pid, kind (ALL, some first), n" {
		t.Errorf("the order is %q", got)
	}
	if got := OrderText[Trunk](); got != "peer, port" {
		t.Errorf("the order of trunks is %q", got)
	}
}

// TestCompareText compares each text with each other: they are listed in their order.
func TestCompareText(t *testing.T) {
	list := []string{"", "9.0.0.1", "10.0.0.2", "10.0.0.2/8", "10.0.0.2/16", "10.0.0.2:80", "10.0.0.2:4792", "10.0.0.10",
		"10.0.0.10:1", "::1", "fe80::9", "fe80::9%eth0", "fe80::10", "[ff00::1]:7",
		"2", "0x9", "10", "0x8001", "65536",
		"0200:0000:0000:0010", "0200:0000:0000:00a1", "02:00:00:00:00:0a", "02:00:00:00:00:10",
		"ALL", "host", "host01", "host1", "host2", "host2a", "host2b1", "host10", "host10 weft_ib0", "hosts", "weft_ib9",
		"weft_ib10"}
	for i, a := range list {
		for k, b := range list {
			want := 0
			if i != k {
				want = 1 - 2*boolInt(i < k)
			}
			if got := CompareText(a, b); got != want {
				t.Errorf("CompareText(%q, %q) is %d, want %d", a, b, got, want)
			}
		}
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// FuzzCompareText expects a total order.
func FuzzCompareText(f *testing.F) {
	for i := range len(texts) - 2 {
		f.Add(texts[i], texts[i+1], texts[i+2])
	}
	f.Fuzz(func(t *testing.T, a, b, c string) {
		if CompareText(a, b) != -CompareText(b, a) || (a == b) != (CompareText(a, b) == 0) {
			t.Errorf("%q and %q: %d and %d", a, b, CompareText(a, b), CompareText(b, a))
		}
		list := []string{a, b, c}
		slices.SortFunc(list, CompareText)
		if CompareText(list[0], list[2]) > 0 {
			t.Errorf("not transitive: %q", list)
		}
	})
}
