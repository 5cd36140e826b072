// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/service/vnic"
	"weft/internal/service/vnic/vema"
)

// netdevs are the netdevs of a function that carries nothing.
type netdevs struct{ *vnic.Netdevs }

func (n netdevs) AllocNetdev(vport uint8) (vnic.Netdev, error) { return n.Alloc(vport) }
func (n netdevs) FreeNetdev(vport uint8)                       { n.Free(vport) }

// serveVESW gives a function an agent and ports of its own.
func (r *running) serveVESW(device string) *vnic.Ports {
	p := vnic.New(vnic.Config{Function: netdevs{vnic.NewNetdevs(4)}, OPAPort: 1})
	number := r.node.funcs.named(device).a.Number()
	r.node.sub.Do(func() {
		p.SetLink(r.node.now(), true)
		r.node.sub.ServeEthernet(number, vema.New(vema.Config{Ports: p}))
	})
	return p
}

// TestEthernetManager: changes of virtual Ethernet switches through the control interface reach vports
// by MADs, are shown, and can be undone; invalid ones are refused with the reason.
func TestEthernetManager(t *testing.T) {
	t.Parallel()
	r, ctx := master(t), context.Background()
	if _, err := api.Call(ctx, r.cli, api.AddFunction, api.NewFunction{Name: "weft_ib1"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second port is active", func() bool {
		s := r.status()
		return len(s.Devices) == 3 && !slices.ContainsFunc(s.Devices, func(d api.DeviceSummary) bool {
			return d.PortState != "ACTIVE"
		})
	})
	ports := []*vnic.Ports{r.serveVESW(firstNative), r.serveVESW("weft_ib1")}
	v, err := api.Call(ctx, r.cli, api.CreateVESW, api.VESWCreate{Name: "lab", MTU: 9000, PCP: []int{0, 0, 0, 0, 0, 0,
		7, 7}})
	if err != nil || v.ID != 1 || v.PKey != "0xc001" || !v.OwnPartition || len(v.Ports) != 0 {
		t.Fatalf("%v %+v", err, v)
	}
	zero := 0
	if v, err = api.Call(ctx, r.cli, api.AddVESWPort, api.Named[api.VESWPortAdd]{Name: "lab",
		Value: api.VESWPortAdd{Port: firstNative, VPort: &zero}}); err != nil || len(v.Ports) != 1 {
		t.Fatalf("%v %+v", err, v)
	}
	if v, err = api.Call(ctx, r.cli, api.AddVESWPort, api.Named[api.VESWPortAdd]{Name: "1",
		Value: api.VESWPortAdd{Port: "weft_ib1@" + r.node.identity.String()}}); err != nil || len(v.Ports) != 2 ||
		!strings.HasSuffix(v.Ports[1].Name, "weft_ib1") {
		t.Fatalf("%v %+v", err, v)
	}
	states := func(name string) (states []string) {
		v, err := api.Call(ctx, r.cli, api.GetVESW, name)
		if err != nil {
			t.Fatal(err)
		}
		states = []string{v.State}
		for _, p := range v.Ports {
			states = append(states, p.State)
		}
		return states
	}
	eventually(t, "the ports are configured, and their interfaces down",
		func() bool { return slices.Equal(states("lab"), []string{"up", "down", "down"}) })
	r.node.sub.Do(func() {
		for _, p := range ports {
			if i := p.Info(0); i.VESW.VESWID != 1 || i.VESW.EthMTU != 9000 || i.VESW.PKey != 0xc001 ||
				i.Port.PCPToSCUc[6] != 7 || i.VESW.McastDLID < 0xf00000 {
				t.Errorf("%+v", i)
			}
			p.Port(0).SetAdmin(r.node.now(), true)
			if err := p.Port(0).SetMAC(r.node.now(), [6]byte{2, 0, 0, 0, 0, byte(p.Info(0).Port.PortNum)}); err != nil {
				t.Error(err)
			}
		}
	})
	eventually(t, "they forward", func() bool {
		return slices.Equal(states("lab"), []string{"up", "forwarding",
			"forwarding"})
	})
	eventually(t, "their MACs are known", func() bool {
		v, err := api.Call(ctx, r.cli, api.GetVESW, "lab")
		return err == nil && v.MACs == 2 && slices.Equal(v.Ports[0].MACs, []string{"02:00:00:00:00:01"})
	})
	if p, err := api.Get(ctx, r.cli, api.ListPartitions); err != nil || len(p) != 1 || p[0].Name != "vesw-lab" ||
		len(p[0].Members) != 2 {
		t.Errorf("%v %+v", err, p)
	}
	list, err := api.Get(ctx, r.cli, api.ListVESWs)
	if err != nil || len(list) != 1 || list[0].ActiveMTU != 9000 || list[0].MLID == "" ||
		list[0].Ports[1].BaseMAC == "" {
		t.Errorf("%v %+v", err, list)
	}

	for _, c := range []struct {
		why string
		err error
	}{
		{`there is a virtual Ethernet switch "lab" already`,
			second(api.Call(ctx, r.cli, api.CreateVESW, api.VESWCreate{Name: "lab"}))},
		{`there is no virtual Ethernet switch "none"`, second(api.Call(ctx, r.cli, api.GetVESW, "none"))},
		{`there is no virtual Ethernet switch "none"`, second(api.Call(ctx, r.cli, api.AddVESWPort,
			api.Named[api.VESWPortAdd]{Name: "none", Value: api.VESWPortAdd{Port: firstNative}}))},
		{`there is no virtual Ethernet switch "none"`, api.Do(ctx, r.cli, api.DeleteVESW, "none")},
		{"want 1 to 64 letters", second(api.Call(ctx, r.cli, api.CreateVESW, api.VESWCreate{Name: "a b"}))},
		{"id: 70000 is out of range", second(api.Call(ctx, r.cli, api.CreateVESW, api.VESWCreate{Name: "x",
			ID: 70000}))},
		{"ids that are one: 1", second(api.Call(ctx, r.cli, api.CreateVESW, api.VESWCreate{Name: "x", ID: 1}))},
		{"want 8", second(api.Call(ctx, r.cli, api.CreateVESW, api.VESWCreate{Name: "x", PCP: []int{1}}))},
		{"a P_Key is", second(api.Call(ctx, r.cli, api.CreateVESW, api.VESWCreate{Name: "x", PKey: "red"}))},
		{"MTU 20000: want", second(api.Call(ctx, r.cli, api.CreateVESW, api.VESWCreate{Name: "x", MTU: 20000}))},
		{"that lab has for itself", second(api.Call(ctx, r.cli, api.CreateVESW, api.VESWCreate{Name: "x",
			PKey: "0x4001"}))},
		{"has for itself", api.Do(ctx, r.cli, api.DeletePartition, api.PartitionMembers{PKey: "0x4001"})},
		{"has for itself", second(api.Call(ctx, r.cli, api.AddPartition, api.Partition{PKey: "0x4001"}))},
		{"has no such InfiniBand device", second(api.Call(ctx, r.cli, api.AddVESWPort,
			api.Named[api.VESWPortAdd]{Name: "lab", Value: api.VESWPortAdd{Port: "weft9"}}))},
		{"it is a member already, as vport 0", second(api.Call(ctx, r.cli, api.AddVESWPort,
			api.Named[api.VESWPortAdd]{Name: "lab", Value: api.VESWPortAdd{Port: firstNative, VPort: &[]int{3}[0]}}))},
		{"a vport is 0 to 254", second(api.Call(ctx, r.cli, api.AddVESWPort, api.Named[api.VESWPortAdd]{Name: "lab",
			Value: api.VESWPortAdd{Port: firstNative, VPort: &[]int{255}[0]}}))},
		{"is no member of lab", api.Do(ctx, r.cli, api.DeleteVESWPort, api.VESWPortDelete{Name: "lab", Port: "0x77"})},
		{"service level", second(api.Call(ctx, r.cli, api.ChangeVESW, api.Named[api.VESWChange]{Name: "lab",
			Value: api.VESWChange{SL: &[]int{15}[0]}}))},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.why) || !strings.Contains(c.err.Error(), ". fix: weft ") {
			t.Errorf("want %q, have %v", c.why, c.err)
		}
	}

	if _, err := api.Call(ctx, r.cli, api.AddVESWPort, api.Named[api.VESWPortAdd]{Name: "lab",
		Value: api.VESWPortAdd{Port: "0x77"}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a port that is not there is named", func() bool {
		return slices.ContainsFunc(r.status().Degraded, func(d api.Degraded) bool {
			return d.What == "vesw_lab" && strings.Contains(d.Why, "the port is not in the subnet") &&
				d.Fix == "weft fabric nodes"
		})
	})
	ctx = api.Confirm(ctx, api.ConfirmAll)
	if err := api.Do(ctx, r.cli, api.DeleteVESWPort, api.VESWPortDelete{Name: "lab", Port: "0x77"}); err != nil {
		t.Fatal(err)
	}
	mtu, no := 1400, false
	if v, err := api.Call(ctx, r.cli, api.ChangeVESW, api.Named[api.VESWChange]{Name: "lab",
		Value: api.VESWChange{MTU: &mtu, UserMACs: &no}}); err != nil || v.MTU != 1400 || v.UserMACs {
		t.Errorf("%v %+v", err, v)
	}
	eventually(t, "they have the new MTU, and forward still", func() bool {
		v, err := api.Call(ctx, r.cli, api.GetVESW, "lab")
		return err == nil && v.ActiveMTU == 1400 && v.MACs == 0 &&
			slices.Equal(states("lab"), []string{"up", "forwarding", "forwarding"})
	})
	if r.counter(api.ScopeEM, "sets") == 0 || r.counter(api.ScopeEM, "bounced") != 0 {
		t.Error("counters of the Ethernet Manager")
	}
	if err := api.Do(ctx, r.cli, api.DeleteVESW, "lab"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the vports are gone", func() (gone bool) {
		r.node.sub.Do(func() { gone = ports[0].Port(0) == nil && ports[1].Port(0) == nil })
		return gone
	})
	eventually(t, "the partition is gone", func() bool {
		d, err := api.Get(ctx, r.cli, api.ListDevices)
		return err == nil && !slices.ContainsFunc(d, func(d api.Device) bool {
			return slices.ContainsFunc(d.Ports[0].PKeys, func(k api.PKey) bool { return k.PKey == "0xc001" })
		})
	})
}

// TestVESWsElsewhere: a node without a manager names the node that has it.
func TestVESWsElsewhere(t *testing.T) {
	r, ctx := run(t, func(c *config.Config) { c.Fabric, c.SM = true, config.SMOff }), context.Background()
	for _, err := range []error{second(api.Get(ctx, r.cli, api.ListVESWs)),
		second(api.Call(ctx, r.cli, api.CreateVESW, api.VESWCreate{Name: "x"})), api.Do(ctx, r.cli, api.DeleteVESW,
			"x")} {
		if code(err) != api.CodeNotMaster {
			t.Error(err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
