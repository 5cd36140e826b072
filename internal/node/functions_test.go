// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// TestFunctionsByCommand adds, changes and deletes devices as a person does.
func TestFunctionsByCommand(t *testing.T) {
	r := run(t, nil)
	ctx := context.Background()
	refused := func(err error, code api.Code) {
		t.Helper()
		var e *api.Error
		if !errors.As(err, &e) || e.Code != code {
			t.Errorf("%v, want %v", err, code)
		}
	}
	add := func(name string, c api.FunctionChange) (api.Function, error) {
		return api.Call(ctx, r.cli, api.AddFunction, api.NewFunction{Name: name, FunctionChange: c})
	}
	if f, err := add("weft_ib0", api.FunctionChange{}); err != nil || f.Number != 1 || f.Virtual ||
		f.PortState != "INIT" || !f.Enabled || f.Weight != 100 {
		t.Fatalf("%+v, %v", f, err)
	}
	off := false
	f, err := add("vf", api.FunctionChange{Enabled: &off, Weight: 7, QoS: map[int]int{3: 5},
		Quotas: api.Quotas{QPs: 4, Sessions: 2}})
	if err != nil || f.Number != 2 || !f.Virtual || f.Enabled || f.PortState != "DOWN" || f.Weight != 7 ||
		f.QoS[3] != 5 || f.QoS[2] != 100 || f.Quotas.QPs != 4 {
		t.Errorf("%+v, %v", f, err)
	}
	_, err = add("vf", api.FunctionChange{})
	refused(err, api.CodeConflict)
	_, err = add("many", api.FunctionChange{Quotas: api.Quotas{QPs: 1 << 20}})
	refused(err, api.CodeInvalid)
	_, err = add("few", api.FunctionChange{Quotas: api.Quotas{CQs: 1}})
	refused(err, api.CodeInvalid)
	_, err = api.Call(ctx, r.cli, api.ChangeFunction, api.Named[api.FunctionChange]{Name: "nobody",
		Value: api.FunctionChange{}})
	refused(err, api.CodeNotFound)
	_, err = api.Call(ctx, r.cli, api.ChangeFunction, api.Named[api.FunctionChange]{Name: "vf",
		Value: api.FunctionChange{Quotas: api.Quotas{MRs: 1 << 30}}})
	refused(err, api.CodeInvalid)
	refused(api.Do(ctx, r.cli, api.DeleteFunction, "nobody"), api.CodeNotFound)
	refused(api.Do(ctx, r.cli, api.DeleteFunction, "weft_ib0"), api.CodeInvalid)

	// The quota of queue pairs counts the two that every session keeps.
	c := vhosttest.NewDriver(t, r.socketOf("vf"), vhosttest.Options{})
	pd, err := c.CreatePD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := c.CreateCQ(t, 16)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := c.CreateQP(t, vhosttest.QPOptions{Type: ib.RC, PD: pd, Send: cq,
			Recv: cq}); (err != nil) != (i == 2) {
			t.Errorf("queue pair %d: %v", i, err)
		}
	}
	vhosttest.NewDriver(t, r.socketOf("vf"), vhosttest.Options{})
	if _, err := vhosttest.Connect(t, r.socketOf("vf"), vhosttest.Options{}); err == nil {
		t.Error("a third session where there may be two")
	}
	on := true
	if f, err = api.Call(ctx, r.cli, api.ChangeFunction, api.Named[api.FunctionChange]{Name: "vf",
		Value: api.FunctionChange{Enabled: &on, Quotas: api.Quotas{Sessions: 3}}}); err != nil || !f.Enabled ||
		f.PortState != "INIT" ||
		f.Weight != 7 || f.Sessions != 2 {
		t.Errorf("%+v, %v", f, err)
	}
	vhosttest.NewDriver(t, r.socketOf("vf"), vhosttest.Options{})
	var asks *api.Error
	if err := api.Do(ctx, r.cli, api.DeleteFunction, "vf"); !errors.As(err, &asks) ||
		asks.Code != api.CodeContact || len(asks.Lost.Lines) != 1 ||
		!strings.Contains(asks.Lost.Lines[0], "(process ") {
		t.Fatalf("a device with programs: %+v", err)
	}
	if err := api.Do(api.Confirm(ctx, api.ConfirmAll), r.cli, api.DeleteFunction, "vf"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetU64(abi.ReqGetFeatures); err == nil {
		t.Error("a session survived its function")
	}
	if list, err := api.Get(ctx, r.cli, api.ListFunctions); err != nil || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
}
