// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// fakeVESW records its requests.
type fakeVESW struct{ vesw []any }

func (f *fakeVESW) VESWInterfaces(context.Context) ([]VESWInterface, error) {
	return []VESWInterface{{Name: "opa1v0", Device: "weft_ib0", VESW: 5, Backend: BackendTAP,
		State: StateForwarding}}, nil
}
func (f *fakeVESW) AttachVESW(_ context.Context, r VESWRequest) ([]VESWInterface, error) {
	f.vesw = append(f.vesw, r)
	return nil, nil
}
func (f *fakeVESW) DetachVESW(_ context.Context, name string) error {
	f.vesw = append(f.vesw, name)
	return nil
}
func (f *fakeVESW) VESWStats(_ context.Context, name string) ([]Counter, error) {
	return []Counter{{Scope: ScopeVESW, Instance: name, Name: "tx_packets", Value: 7}}, nil
}

func TestVESWInterfaces(t *testing.T) {
	b := &fake{}
	c, ctx := client(t, serve(t, b, FullAccess, nil)), t.Context()
	l, err := Get(ctx, c, ListVESWInterfaces)
	if err != nil || len(l) != 1 || l[0].Name != "opa1v0" {
		t.Errorf("%+v, %v", l, err)
	}
	s, err := Call(ctx, c, ListVESWCounters, "a b")
	if err != nil || len(s) != 1 || s[0].Instance != "a b" {
		t.Errorf("%+v, %v", s, err)
	}
	r := VESWRequest{Device: "weft_ib0", VESW: 5, Backend: BackendNetstack, Addrs: []string{"10.5.0.3/24"},
		SOCKS:    "127.0.0.1:1080",
		Forwards: []IPForward{{Network: "tcp", Listen: "127.0.0.1:8080", To: "10.5.0.1:80"}}}
	if l, err = Call(ctx, c, AttachVESW, r); err != nil || l == nil {
		t.Errorf("%+v, %v", l, err)
	}
	if err := Do(ctx, c, DetachVESW, "weft_ib0:5"); err != nil {
		t.Error(err)
	}
	if len(b.vesw) != 2 || b.vesw[1] != "weft_ib0:5" || !reflect.DeepEqual(b.vesw[0], r) {
		t.Errorf("%+v", b.vesw)
	}
	for want, change := range map[string]func(*VESWRequest){
		"needs a device":   func(r *VESWRequest) { r.Device = "" },
		"not 0":            func(r *VESWRequest) { r.VESW = 0 },
		"not 4096":         func(r *VESWRequest) { r.VESW = 4096 },
		"at most 15":       func(r *VESWRequest) { r.Name = "abcdefghijklmnop" },
		"unlike \"a/b\"":   func(r *VESWRequest) { r.Name = "a/b" },
		"needs an address": func(r *VESWRequest) { r.Addrs = nil },
		"prefix length":    func(r *VESWRequest) { r.Addrs = []string{"10.5.0.3"} },
		"PREFIX=GATEWAY":   func(r *VESWRequest) { r.Routes = []string{"10.0.0.0/8"} },
		"of tcp or udp": func(r *VESWRequest) {
			r.Forwards = []IPForward{{Network: "sctp", Listen: "1.1.1.1:1", To: "1.1.1.1:1"}}
		},
		"SOCKS listens":    func(r *VESWRequest) { r.SOCKS = "1080" },
		"gateway needs":    func(r *VESWRequest) { *r = VESWRequest{Device: "d", VESW: 1, Backend: BackendGateway} },
		"are for the back": func(r *VESWRequest) { r.Backend = BackendTAP },
		"must be tap, net": func(r *VESWRequest) { r.Backend = "tun" },
	} {
		r := r
		change(&r)
		var e *Error
		if _, err := Call(ctx, c, AttachVESW, r); !errors.As(err, &e) || e.Code != CodeInvalid ||
			!strings.Contains(e.Why, want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestVESWInterfacesAccess(t *testing.T) {
	c, ctx := client(t, serve(t, &fake{}, ReadAccess, nil)), t.Context()
	if _, err := Get(ctx, c, ListVESWInterfaces); err != nil {
		t.Error(err)
	}
	_, err := Call(ctx, c, AttachVESW, VESWRequest{Device: "weft_ib0", VESW: 5, Backend: BackendTAP})
	for _, err := range []error{err, Do(ctx, c, DetachVESW, "x")} {
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeRefused {
			t.Errorf("%v", err)
		}
	}
}
