// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeVESWs records its requests.
type fakeVESWs struct {
	veswCalls []string
	veswError error
}

func (f *fakeVESWs) note(words ...any) error {
	for _, w := range words {
		f.veswCalls = append(f.veswCalls, fmt.Sprint(w))
	}
	return f.veswError
}

func (f *fakeVESWs) VESWs(context.Context) ([]VESW, error) {
	return []VESW{{Name: "lan", Ports: []VESWPort{{GUID: "a"}}}}, f.note("list")
}
func (f *fakeVESWs) VESW(_ context.Context, name string) (VESW, error) {
	return VESW{Name: name}, f.note("show", name)
}
func (f *fakeVESWs) CreateVESW(_ context.Context, c VESWCreate) (VESW, error) {
	return VESW{Name: c.Name}, f.note("create", c.Name, c.MTU)
}
func (f *fakeVESWs) ChangeVESW(_ context.Context, name string, c VESWChange) (VESW, error) {
	return VESW{}, f.note("change", name, *c.MTU)
}
func (f *fakeVESWs) DeleteVESW(_ context.Context, name string) error { return f.note("delete", name) }
func (f *fakeVESWs) AddVESWPort(_ context.Context, name string, p VESWPortAdd) (VESW, error) {
	return VESW{}, f.note("add", name, p.Port, *p.VPort, p.Gateway)
}
func (f *fakeVESWs) DelVESWPort(_ context.Context, name, port string, vport int) error {
	return f.note("del", name, port, vport)
}

// TestVESWRoundTrip: every call reaches the node with its arguments, and its error comes back.
func TestVESWRoundTrip(t *testing.T) {
	b := &fake{}
	c, ctx := client(t, serve(t, b, FullAccess, nil)), t.Context()
	n := 3
	for _, x := range []struct {
		what string
		do   func() error
		want []string
	}{
		{"cannot list virtual Ethernet switches", func() error { _, err := Get(ctx, c, ListVESWs); return err },
			[]string{"list"}},
		{"cannot show the virtual Ethernet switch", func() error {
			_, err := Call(ctx, c, GetVESW,
				"a/b c")
			return err
		}, []string{"show", "a/b c"}},
		{"cannot create the virtual Ethernet switch", func() error {
			_, err := Call(ctx, c, CreateVESW,
				VESWCreate{Name: "x", MTU: 9000})
			return err
		}, []string{"create", "x", "9000"}},
		{"cannot change the virtual Ethernet switch", func() error {
			_, err := Call(ctx, c, ChangeVESW, Named[VESWChange]{Name: "x", Value: VESWChange{MTU: &n}})
			return err
		}, []string{"change", "x", "3"}},
		{"cannot delete the virtual Ethernet switch", func() error { return Do(ctx, c, DeleteVESW, "x") },
			[]string{"delete", "x"}},
		{"cannot add the port to the virtual Ethernet switch", func() error {
			_, err := Call(ctx, c, AddVESWPort, Named[VESWPortAdd]{Name: "x", Value: VESWPortAdd{Port: "d@h",
				VPort: &n, Gateway: true}})
			return err
		}, []string{"add", "x", "d@h", "3", "true"}},
		{"cannot take the port out of the virtual Ethernet switch", func() error {
			return Do(ctx, c, DeleteVESWPort,
				VESWPortDelete{Name: "x", Port: "d@h"})
		}, []string{"del", "x", "d@h", "-1"}},
		{"cannot take the port out of the virtual Ethernet switch", func() error {
			return Do(ctx, c, DeleteVESWPort, VESWPortDelete{Name: "x", Port: "d@h", VPort: new(uint)})
		}, []string{"del", "x", "d@h", "0"}},
	} {
		b.veswCalls, b.veswError = nil, nil
		if err := x.do(); err != nil || !slices.Equal(b.veswCalls, x.want) {
			t.Errorf("%v: %v, the node was asked %q", x.want, err, b.veswCalls)
		}
		b.veswError = &Error{Code: CodeNotMaster, Why: "another is", Fix: "weft sm"}
		checkError(t, x.do(), CodeNotMaster, x.what+": another is. fix: weft sm")
	}
	b.veswError = nil
	l, err := Get(ctx, c, ListVESWs)
	want := withLists(VESW{Name: "lan", Ports: []VESWPort{{GUID: "a"}}})
	if d := cmp.Diff([]VESW{want}, l); d != "" || err != nil {
		t.Error(d, err)
	}
	_, err = Call(ctx, c, ChangeVESW, Named[VESWChange]{Name: "x", Value: VESWChange{}})
	checkError(t, err, CodeInvalid, "cannot change the virtual Ethernet switch: nothing is to be changed. fix: weft vesw set --help")
}

func TestVESWAccess(t *testing.T) {
	b := &fake{}
	c, ctx := client(t, serve(t, b, ReadAccess, nil)), t.Context()
	_, create := Call(ctx, c, CreateVESW, VESWCreate{})
	_, change := Call(ctx, c, ChangeVESW, Named[VESWChange]{Name: "x", Value: VESWChange{MTU: new(int)}})
	_, add := Call(ctx, c, AddVESWPort, Named[VESWPortAdd]{Name: "x", Value: VESWPortAdd{}})
	for _, err := range []error{create, change, add, Do(ctx, c, DeleteVESW, "x"), Do(ctx, c, DeleteVESWPort,
		VESWPortDelete{Name: "x", Port: "y"})} {
		if e, ok := err.(*Error); !ok || e.Code != CodeRefused {
			t.Errorf("a reader may change things: %v", err)
		}
	}
	if _, err := Call(ctx, c, GetVESW, "x"); err != nil || len(b.veswCalls) != 2 {
		t.Error(err, b.veswCalls)
	}
}
