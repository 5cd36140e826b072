// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

func (r *running) set(name string, c api.FunctionChange) (api.Function, error) {
	return api.Call(context.Background(), r.cli, api.ChangeFunction, api.Named[api.FunctionChange]{Name: name,
		Value: c})
}

func yes() *bool { v := true; return &v }
func no() *bool  { v := false; return &v }

// device returns a device by name.
func (r *running) device(name string) api.Device {
	r.t.Helper()
	list, err := api.Get(context.Background(), r.cli, api.ListDevices)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, d := range list {
		if d.Name == name {
			return d
		}
	}
	r.t.Fatalf("there is no device %s", name)
	return api.Device{}
}

// expectAfter waits for an event of port 1, after whatever a manager's last
// changes have raised.
func expectAfter(t testing.TB, q *vhosttest.EVQ, want ib.Event) {
	t.Helper()
	for {
		e, err := q.Next()
		if err != nil || e.Object != 1 {
			t.Fatalf("event %+v, %v; want %v", e, err, want)
		}
		if e.Type == uint32(want) {
			return
		}
	}
}

// TestAdapter takes every port down and up again through the physical function:
// the switch has no link to any of them meanwhile, sessions hear of it, packets
// are dropped, and the RC connections of both kinds of ports live through it.
func TestAdapter(t *testing.T) {
	t.Parallel()
	r := run(t, func(c *config.Config) { c.Fabric, c.Store = true, config.StoreMemory })
	ctx := context.Background()
	if _, err := api.Call(ctx, r.cli, api.AddFunction, api.NewFunction{Name: "vf"}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Call(ctx, r.cli, api.AddFunction, api.NewFunction{Name: "idle",
		FunctionChange: api.FunctionChange{Enabled: no()}}); err != nil {
		t.Fatal(err)
	}
	names := []string{r.cfg.Device, firstNative, "vf"}
	active := func() bool {
		for _, name := range names {
			if r.node.funcs.named(name).a.Port().State != ib.PortActive {
				return false
			}
		}
		return true
	}
	eventually(t, "every port is active", active)
	lid := r.device("vf").Ports[0].LID
	f := r.node.funcs.named(firstNative)
	a, b := r.client(t, vhosttest.Options{}), r.client(t, vhosttest.Options{})
	c, d := r.nativeClient(t, f), r.nativeClient(t, r.node.funcs.named("vf"))
	var events [3]*vhosttest.EVQ
	for i, x := range []*client{a, c, d} {
		var err error
		if events[i], err = x.CreateEVQ(t); err != nil {
			t.Fatal(err)
		}
		x.wait = 17 // 2 s, eight times: longer than whatever keeps this test from its processor
	}
	pair(t, ib.RC, a, b)
	pair(t, ib.RC, c, d)
	mustWrite(t, a, b, 1, 100)
	mustWrite(t, c, d, 1, 100)

	var wrong *api.Error
	if _, err := r.set("vf", api.FunctionChange{AdapterEnabled: no()}); !errors.As(err, &wrong) ||
		wrong.Code != api.CodeInvalid || !strings.Contains(wrong.Fix, "weft dev set weft_ib0 --adapter=") {
		t.Errorf("through a virtual function: %v", err)
	}
	if _, err := api.Call(ctx, r.cli, api.AddFunction, api.NewFunction{Name: "other",
		FunctionChange: api.FunctionChange{AdapterEnabled: no()}}); !errors.As(err, &wrong) ||
		wrong.Code != api.CodeInvalid {
		t.Errorf("with a new function: %v", err)
	}
	for range 2 {
		v, err := r.set(firstNative, api.FunctionChange{AdapterEnabled: no()})
		if err != nil || v.AdapterEnabled || !v.Enabled {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	for _, e := range events {
		expectAfter(t, e, ib.EventPortDown)
	}
	for _, name := range names {
		if s, p := r.file(name, "ports/1/state"), r.file(name, "ports/1/phys_state"); s != "1: DOWN" ||
			p != "3: Disabled" {
			t.Errorf("%s: state %q, %q", name, s, p)
		}
	}
	if v := r.device("vf"); v.AdapterEnabled || !v.Enabled || v.Ports[0].State != "DOWN" ||
		v.Ports[0].PhysState != "DISABLED" || v.Ports[0].LID != lid {
		t.Errorf("%+v", v)
	}
	s := r.status()
	for _, v := range s.Devices {
		if v.Enabled || v.PortState != "DOWN" {
			t.Errorf("%+v", v)
		}
	}
	if v := r.degraded("adapter_disabled"); s.AdapterEnabled || v.Fix != "weft dev set weft_ib0 --adapter=enabled" {
		t.Errorf("status: %v, %+v", s.AdapterEnabled, v)
	}
	if v := r.degraded("port_not_active"); v.What != "" {
		t.Errorf("%+v", v)
	}
	// The switch lost the links, and so the manager the functions.
	eventually(t, "the subnet is the switch alone", func() bool {
		v, err := api.Get(ctx, r.cli, api.GetSubnet)
		return err == nil && len(v.Nodes) == 1
	})
	// One more, and one that is enabled meanwhile, stay down.
	if v, err := api.Call(ctx, r.cli, api.AddFunction, api.NewFunction{Name: "late"}); err != nil ||
		v.PortState != "DOWN" || !v.Enabled {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err := r.set("idle", api.FunctionChange{Enabled: yes()}); err != nil || v.PortState != "DOWN" {
		t.Errorf("%+v, %v", v, err)
	}
	dropped := r.counter(api.ScopeLane, "drop_port")
	for i, x := range [][2]*client{{a, b}, {c, d}} {
		w := abi.Send{WRID: uint64(7 + i), Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
		w.SetRDMA(x[1].at, x[1].mr.RKey)
		if err := x[0].qp.PostSend(w, []ib.SGE{{Addr: x[0].at, Len: 8, LKey: x[0].mr.LKey}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "packets are dropped", func() bool { return r.counter(api.ScopeLane, "drop_port") >= dropped+2 })

	if v, err := r.set(firstNative, api.FunctionChange{AdapterEnabled: yes()}); err != nil || !v.AdapterEnabled {
		t.Fatalf("%+v, %v", v, err)
	}
	names = append(names, "late", "idle")
	eventually(t, "every port is active again", active)
	for _, e := range events {
		expectAfter(t, e, ib.EventPortActive)
	}
	if got := r.device("vf").Ports[0].LID; got != lid {
		t.Errorf("LID %d became %d", lid, got)
	}
	for i, x := range [][2]*client{{a, b}, {c, d}} {
		if list, err := x[0].cq.Wait(1); err != nil || list[0].Status != 0 || list[0].WRID != uint64(7+i) {
			t.Errorf("%+v, %v", list, err)
		}
		mustWrite(t, x[0], x[1], 2, 100)
	}
	if v := r.degraded("adapter_disabled"); v.What != "" || !r.status().AdapterEnabled {
		t.Errorf("%+v", v)
	}
}
