// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/host/rundir"
	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/node/intent"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
)

// again starts a node in the directory of one that has ended.
func (r *running) again(change func(*config.Config)) *running {
	r.t.Helper()
	return run(r.t, func(c *config.Config) {
		c.Fabric, c.Dir = true, r.cfg.Dir
		if change != nil {
			change(c)
		}
	})
}

func (r *running) functions() map[string]api.Function {
	r.t.Helper()
	list, err := api.Get(context.Background(), r.cli, api.ListFunctions)
	if err != nil {
		r.t.Fatal(err)
	}
	m := map[string]api.Function{}
	for _, f := range list {
		m[f.Name] = f
	}
	return m
}

func (r *running) add(name string, c api.FunctionChange) api.Function {
	r.t.Helper()
	f, err := api.Call(context.Background(), r.cli, api.AddFunction, api.NewFunction{Name: name, FunctionChange: c})
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// TestFunctionsAreKept: changes of a node's functions survive a restart, and deleted functions stay
// deleted.
func TestFunctionsAreKept(t *testing.T) {
	t.Parallel()
	fabric := func(c *config.Config) { c.Fabric = true }
	r := run(t, fabric)
	ctx := context.Background()
	r.add("gone", api.FunctionChange{})
	v := r.add("vf", api.FunctionChange{Weight: 7, QoS: map[int]int{3: 5}, Quotas: api.Quotas{QPs: 64,
		MemoryBytes: 1 << 20}})
	off := r.add("off", api.FunctionChange{Enabled: no()})
	if v.Number != 3 || off.Number != 4 || !v.Kept || v.NotKept != "" {
		t.Errorf("%+v, %+v", v, off)
	}
	if err := api.Do(ctx, r.cli, api.DeleteFunction, "gone"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.set("vf", api.FunctionChange{QoS: map[int]int{4: 6}, Quotas: api.Quotas{Sessions: 9}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.set(firstNative, api.FunctionChange{Weight: 40}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.set(r.cfg.Device, api.FunctionChange{Enabled: no()}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the port is active", func() bool { return r.node.funcs.named("vf").a.Port().State == ib.PortActive })
	lid := r.device("vf").Ports[0].LID
	r.end()

	r = r.again(nil)
	m := r.functions()
	got := m["vf"]
	if len(m) != 4 || got.Number != 3 || got.NodeGUID != v.NodeGUID || got.Weight != 7 || got.QoS[3] != 5 ||
		got.QoS[4] != 6 || got.QoS[5] != 100 ||
		got.Quotas.QPs != 64 || got.Quotas.MemoryBytes != 1<<20 || got.Quotas.Sessions != 9 || !got.Enabled ||
		!got.Kept {
		t.Errorf("%+v", m)
	}
	if m["off"].Enabled || m["off"].NodeGUID != off.NodeGUID || m["off"].PortState != "DOWN" ||
		m[firstNative].Weight != 40 || m[r.cfg.Device].Enabled ||
		m[r.cfg.Device].PortState != "DOWN" {
		t.Errorf("%+v", m)
	}
	eventually(t, "the port is active again",
		func() bool { return r.node.funcs.named("vf").a.Port().State == ib.PortActive })
	if got := r.device("vf").Ports[0].LID; got != lid {
		t.Errorf("LID %d became %d", lid, got)
	}
	if f := r.add("new", api.FunctionChange{}); f.Number != 2 { // the number is free again
		t.Errorf("%+v", f)
	}
	if _, err := r.set(firstNative, api.FunctionChange{AdapterEnabled: no()}); err != nil {
		t.Fatal(err)
	}
	r.end()

	// A switch with room for one device; the others stay in the store.
	r = r.again(func(c *config.Config) { c.SwitchPorts = 2 })
	m = r.functions()
	if len(m) != 3 || m["new"].Number != 2 || m["new"].AdapterEnabled || r.status().AdapterEnabled ||
		r.degraded("adapter_disabled").What == "" {
		t.Errorf("%+v", m)
	}
	var missing []string
	for _, d := range r.status().Degraded {
		if d.What == "device_not_restored" {
			missing = append(missing, d.Why+" | "+d.Fix)
		}
	}
	if len(missing) != 2 || !strings.HasPrefix(missing[1], "vf: "+subnet.ErrNoSwitchPort.Error()) ||
		!strings.Contains(missing[1], "--switch-ports") {
		t.Errorf("%q", missing)
	}
	if err := api.Do(ctx, r.cli, api.DeleteFunction, "off"); err != nil { // one that is not there
		t.Error(err)
	}
	if _, err := r.set(firstNative, api.FunctionChange{AdapterEnabled: yes()}); err != nil {
		t.Fatal(err)
	}
	r.end()

	r = r.again(nil)
	m = r.functions()
	if len(m) != 4 || m["vf"].NodeGUID != v.NodeGUID || m["vf"].Weight != 7 || m["new"].Number != 2 ||
		!r.status().AdapterEnabled {
		t.Errorf("%+v", m)
	}
}

// TestNotKept: a node reports that its functions do not survive a restart, and why.
func TestNotKept(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		why    string
		change func(*config.Config)
	}{
		{"--fabric=false", func(c *config.Config) { c.Fabric = false }},
		{"--store memory", func(c *config.Config) { c.Store = config.StoreMemory }},
		{"--sm off", func(c *config.Config) { c.SM = config.SMOff }},
		{"the store cannot be used", func(c *config.Config) {
			if err := os.WriteFile(filepath.Join(c.Dir, rundir.StoreDir), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		r := run(t, func(cfg *config.Config) {
			cfg.Fabric = true
			c.change(cfg)
		})
		if !r.cfg.Fabric {
			r.native(t, firstNative, 0) // function 1 is the physical function's
		}
		if f := r.add("vf", api.FunctionChange{}); f.Kept || !strings.Contains(f.NotKept, c.why) {
			t.Errorf("%s: %+v", c.why, f)
		}
		if f, err := r.set("vf", api.FunctionChange{Weight: 3}); err != nil || f.Kept || f.Weight != 3 {
			t.Errorf("%s: %+v, %v", c.why, f, err)
		}
		if err := api.Do(context.Background(), r.cli, api.DeleteFunction, "vf"); err != nil {
			t.Error(err)
		}
		if d := r.degraded("devices_not_restored"); (d.What != "") != strings.Contains(c.why, "cannot") {
			t.Errorf("%s: %+v", c.why, d)
		}
		r.end()
	}
}

// TestStoreComesLate: a node with a store that does not answer at the start refuses to change functions that
// it has not read, and has them once the store answers.
func TestStoreComesLate(t *testing.T) {
	t.Parallel()
	dir, url := t.TempDir(), "http://127.0.0.1:"+freeTCP(t)
	serve := func() *etcd.Server {
		s, err := etcd.Start(context.Background(), etcd.ServerConfig{Dir: dir, Listen: url})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	with := func(c *config.Config) { c.Fabric, c.Store, c.SM = true, url, config.SMOff }
	s := serve()
	r := run(t, with)
	v := r.add("vf", api.FunctionChange{Weight: 9})
	if !v.Kept {
		t.Errorf("%+v", v)
	}
	s.Close()
	// A change while the store is away is reported, and stored when it is back.
	if f, err := r.set("vf", api.FunctionChange{Weight: 8}); err != nil || f.Weight != 8 || f.Kept ||
		!strings.Contains(f.NotKept, url) {
		t.Errorf("%+v, %v", f, err)
	}
	if d := r.degraded("devices_not_kept"); !strings.Contains(d.Fix, "weft store status") {
		t.Errorf("%+v", d)
	}
	s = serve()
	eventually(t, "the store has the last change", func() bool { return r.functions()["vf"].Kept })
	s.Close()
	r.end()

	r = r.again(with)
	var e *api.Error
	if _, err := api.Call(context.Background(), r.cli, api.AddFunction,
		api.NewFunction{Name: "other"}); !errors.As(err, &e) || e.Code != api.CodeNotReady ||
		!strings.Contains(e.Fix, "weft store status") {
		t.Errorf("%v", err)
	}
	if _, err := r.set(firstNative, api.FunctionChange{Weight: 1}); !errors.As(err, &e) || e.Code != api.CodeNotReady {
		t.Errorf("%v", err)
	}
	if err := api.Do(context.Background(), r.cli, api.DeleteFunction, "vf"); !errors.As(err, &e) ||
		e.Code != api.CodeNotReady {
		t.Errorf("%v", err)
	}
	if d := r.degraded("devices_not_restored"); !strings.Contains(d.Why, url) {
		t.Errorf("%+v", d)
	}
	s = serve()
	defer s.Close()
	eventually(t, "the device is back", func() bool { return r.functions()["vf"].Kept })
	if f := r.functions()["vf"]; f.NodeGUID != v.NodeGUID || f.Weight != 8 {
		t.Errorf("%+v", f)
	}
	if d := r.degraded("devices_not_restored"); d.What != "" {
		t.Errorf("%+v", d)
	}
	r.end()
}

func freeTCP(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// TestVESWPortsAreKept: interfaces of VESW ports survive a restart of the node, until they are
// detached or their device is removed; the IP stack of a command ends with the command.
func TestVESWPortsAreKept(t *testing.T) {
	t.Parallel()
	noIP := func(c *config.Config) { c.Fabric, c.IPoIB = true, false }
	r := run(t, noIP)
	ctx := context.Background()
	r.add("vf", api.FunctionChange{})
	tap := api.VESWRequest{Device: firstNative, VESW: 7, Backend: api.BackendTAP, Name: "lab0"}
	gateway := api.VESWRequest{Device: firstNative, VESW: 8, Backend: api.BackendGateway, Name: "out0"}
	other := api.VESWRequest{Device: "vf", VESW: 7, Backend: api.BackendTAP, Name: "lab1"}
	stack := api.VESWRequest{Device: firstNative, VESW: 9, Backend: api.BackendNetstack, Addrs: []string{"10.9.0.1/24"}}
	attach := func(v api.VESWRequest) {
		t.Helper()
		if err := r.node.vesw.Request(ctx, &v); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want ...api.VESWRequest) {
		t.Helper()
		if got := r.node.vesw.Kept(); !cmp.Equal(got, want) {
			t.Errorf("kept %+v, want %+v", got, want)
		}
	}
	for _, v := range []api.VESWRequest{tap, gateway, other, stack} {
		attach(v)
	}
	r.end()

	r = r.again(noIP)
	expect(tap, gateway, other)
	if v := r.node.vesw.Requested(firstNative, 7); v == nil || v.Name != "lab0" || r.node.vesw.Requested(firstNative,
		9) != nil {
		t.Errorf("port in VESW 7: %+v", v)
	}
	attach(stack)
	var e *api.Error
	if err := r.node.vesw.Request(ctx, &tap); !errors.As(err, &e) || e.Code != api.CodeInvalid {
		t.Errorf("said twice: %v", err)
	}
	if err := api.Do(ctx, r.cli, api.DetachVESW, gateway.Key()); err != nil {
		t.Error(err)
	}
	if err := api.Do(ctx, r.cli, api.DetachVESW, gateway.Key()); !errors.As(err, &e) || e.Code != api.CodeNotFound {
		t.Errorf("undone twice: %v", err)
	}
	if err := api.Do(ctx, r.cli, api.DeleteFunction, "vf"); err != nil {
		t.Error(err)
	}
	expect(tap)
	r.end()

	r = r.again(noIP)
	expect(tap)
	r.add("vf", api.FunctionChange{})
	if r.node.vesw.Requested("vf", 7) != nil {
		t.Error("a device has the port of another that had its name")
	}
}

// TestVESWPortsNotRestored: stored ports that cannot be restored are reported, and stay in the store
// until they are detached.
func TestVESWPortsNotRestored(t *testing.T) {
	t.Parallel()
	noIP := func(c *config.Config) { c.Fabric, c.IPoIB = true, false }
	r := run(t, noIP)
	ctx := context.Background()
	good := api.VESWRequest{Device: firstNative, VESW: 7, Backend: api.BackendTAP, Name: "lab0"}
	if err := r.node.vesw.Request(ctx, &good); err != nil {
		t.Fatal(err)
	}
	// As a newer or a broken node wrote it.
	key := intent.Key(r.node.identity)
	stored := func() (v intent.State) {
		t.Helper()
		e, err := storeOf(r.node).Get(ctx, key)
		if err == nil {
			err = json.Unmarshal(e.Value, &v)
		}
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	v := stored()
	wrong := api.VESWRequest{Device: firstNative, VESW: 8, Backend: "wire", Name: "lab1"}
	twice := api.VESWRequest{Device: firstNative, VESW: 7, Backend: api.BackendTAP, Name: "lab2"}
	stack := api.VESWRequest{Device: firstNative, VESW: 9, Backend: api.BackendNetstack, Addrs: []string{"10.9.0.1/24"}}
	v.VESWPorts = append(v.VESWPorts, wrong, twice, stack)
	b, err := json.Marshal(v)
	if err == nil {
		_, err = store.Put(ctx, storeOf(r.node), key, b)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.end()

	r = r.again(noIP)
	told := func() (list []string) {
		for _, d := range r.status().Degraded {
			if d.What == "vesw_port_not_restored" {
				list = append(list, d.Why+" | "+d.Fix)
			}
		}
		return list
	}
	if list := told(); len(list) != 3 || !strings.Contains(list[1], `not "wire"`) ||
		!strings.Contains(list[1], "weft vesw detach "+wrong.Key()) {
		t.Errorf("%q", list)
	}
	// The next write has it all.
	r.add("vf", api.FunctionChange{})
	if got := stored().VESWPorts; !cmp.Equal(got, []api.VESWRequest{good, wrong, twice, stack}) {
		t.Errorf("the store has %+v", got)
	}
	// One is undone, another replaced.
	if err := api.Do(ctx, r.cli, api.DetachVESW, stack.Key()); err != nil {
		t.Error(err)
	}
	var e *api.Error
	if err := api.Do(ctx, r.cli, api.DetachVESW, stack.Key()); !errors.As(err, &e) || e.Code != api.CodeNotFound {
		t.Errorf("undone twice: %v", err)
	}
	right := wrong
	right.Backend = api.BackendTAP
	if err := r.node.vesw.Request(ctx, &right); err != nil {
		t.Error(err)
	}
	if got := stored().VESWPorts; !cmp.Equal(got, []api.VESWRequest{good, right, twice}) {
		t.Errorf("the store has %+v", got)
	}
	if err := api.Do(ctx, r.cli, api.DetachVESW, good.Key()); err != nil {
		t.Error(err)
	}
	if got := stored().VESWPorts; !cmp.Equal(got, []api.VESWRequest{right}) || len(told()) != 0 {
		t.Errorf("the store has %+v, told: %q", got, told())
	}
}

// TestVESWPortOutlivesNoDevice: the request for a port ends with its device.
func TestVESWPortOutlivesNoDevice(t *testing.T) {
	r := run(t, func(c *config.Config) { c.Fabric, c.IPoIB = true, false })
	ctx := context.Background()
	r.add("vf", api.FunctionChange{})
	if err := api.Do(ctx, r.cli, api.DeleteFunction, "vf"); err != nil {
		t.Fatal(err)
	}
	// AttachVESW has seen the device before it was deleted.
	for _, backend := range []string{api.BackendTAP, api.BackendNetstack} {
		var e *api.Error
		if err := r.node.vesw.Request(ctx, &api.VESWRequest{Device: "vf", VESW: 7, Backend: backend}); !errors.As(err,
			&e) || e.Code != api.CodeNotFound {
			t.Errorf("%v", err)
		}
		if r.node.vesw.Requested("vf", 7) != nil {
			t.Error("it is still wanted")
		}
	}
}

// storeOf is the store of a node.
func storeOf(n *Node) store.Store {
	s, _ := n.mgmt.Store()
	return s
}
