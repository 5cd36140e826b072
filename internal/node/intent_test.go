// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/node/describe"
	"weft/internal/proto/ib"
)

func TestParseNames(t *testing.T) {
	for s, want := range map[string]ib.GUID{"0x0002c90300000001": 0x2c90300000001,
		"02aa:bbcc:0001:0003": 0x02aabbcc00010003, "0x1": 1,
		"weft_ib0": 0, "face": 0, "": 0, "0x": 0, "0x0": 0, "02aa:xxxx:0001:0003": 0, "1:2:3:4:5:6:7:8:9:a:b:c:d:e:f:0:1": 0} {
		if g, ok := describe.ParseGUID(s); ok != (want != 0) || ok && g != want {
			t.Errorf("%q: %v %v", s, g, ok)
		}
	}
	for s, want := range map[string]ib.PKey{"0x8001": 0x8001, "1": 0x8001, "0x7fff": 0xffff, "0xffff": 0xffff,
		"0x8000": 0, "0": 0, "0x10000": 0, "-1": 0, "red": 0} {
		if k, err := describe.ParsePKey(s); (err == nil) != (want != 0) || err == nil && k != want {
			t.Errorf("%q: %#x %v", s, uint16(k), err)
		}
	}
}

// master runs a node that manages its own subnet, alone.
func master(t *testing.T) *running {
	r := run(t, func(c *config.Config) { c.Fabric, c.Store = true, config.StoreMemory })
	eventually(t, "the port is active", func() bool {
		s := r.status()
		return len(s.Devices) == 2 && s.Devices[1].PortState == "ACTIVE" && s.Manager == "master"
	})
	return r
}

func code(err error) api.Code {
	var e *api.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// TestEditIntent: changes of partitions and groups through the control interface reach ports and the
// SA, and can be undone.
func TestEditIntent(t *testing.T) {
	r, ctx := master(t), context.Background()
	keys := func() (list []string) {
		d, err := api.Get(ctx, r.cli, api.ListDevices)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range d {
			if d.Name == firstNative {
				for _, k := range d.Ports[0].PKeys {
					list = append(list, k.PKey)
				}
			}
		}
		return list
	}
	own := r.node.identity.String()
	p, err := api.Call(ctx, r.cli, api.AddPartition, api.Partition{Name: "red", PKey: "1",
		Members: []api.Member{{Port: firstNative}, {Port: "0x77", Membership: api.MemberLimited}}})
	// They are sorted by GUID. The GUID of the device is random, above 0x77.
	if err != nil || p.PKey != "0x8001" || len(p.Members) != 2 || p.Members[0].Membership != api.MemberLimited ||
		!strings.HasSuffix(p.Members[1].Name, firstNative) {
		t.Fatalf("%v %+v", err, p)
	}
	eventually(t, "the key is in the port's table",
		func() bool { return slices.Equal(keys(), []string{"0x7fff", "0x8001"}) })
	weaker := api.Partition{PKey: "0x8001", Members: []api.Member{{Port: firstNative + "@" + own,
		Membership: api.MemberLimited}}}
	var refused *api.Error
	if _, err := api.Call(ctx, r.cli, api.AddPartition, weaker); !errors.As(err, &refused) ||
		refused.Code != api.CodeContact || refused.Lost.Pairs != 1 {
		t.Fatalf("limited members lose contact: %+v", err)
	}
	if !slices.Equal(keys(), []string{"0x7fff", "0x8001"}) {
		t.Errorf("a change that was refused is there: %v", keys())
	}
	ctx = api.Confirm(ctx, api.ConfirmAll)
	weaker.Members = append(weaker.Members, api.Member{Port: api.AllPorts})
	if _, err := api.Call(ctx, r.cli, api.AddPartition, weaker); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the membership has changed",
		func() bool { return slices.Equal(keys(), []string{"0x7fff", "0x0001"}) })
	list, err := api.Get(ctx, r.cli, api.ListPartitions)
	if err != nil || len(list) != 1 || list[0].Name != "red" || len(list[0].Members) != 3 ||
		list[0].Members[0].Port != api.AllPorts {
		t.Errorf("%v %+v", err, list)
	}

	const mgid = "ff12:401b:ffff::77"
	if err := api.Do(ctx, r.cli, api.JoinGroup, api.GroupJoin{MGID: mgid, MTU: 4096,
		Members: []string{firstNative}}); err != nil {
		t.Fatal(err)
	}
	group := func(yes func(g api.SubnetGroup) bool) func() bool {
		return func() bool {
			g, err := api.Get(ctx, r.cli, api.ListSubnetGroups)
			return err == nil && slices.ContainsFunc(g, func(g api.SubnetGroup) bool {
				return strings.HasSuffix(g.MGID, "0077") && strings.HasPrefix(g.MGID, "ff12:401b:ffff") && yes(g)
			})
		}
	}
	// A limited member of the default partition may be in a group of it.
	eventually(t, "the port is in the group", group(func(g api.SubnetGroup) bool {
		return len(g.Members) == 1 &&
			g.MTU == 4096
	}))
	if err := api.Do(ctx, r.cli, api.LeaveGroup, api.GroupJoin{MGID: mgid,
		Members: []string{firstNative}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the port has left the group", group(func(g api.SubnetGroup) bool { return len(g.Members) == 0 }))
	if err := api.Do(ctx, r.cli, api.LeaveGroup, api.GroupJoin{MGID: mgid}); err != nil {
		t.Fatal(err)
	}
	gone := group(func(api.SubnetGroup) bool { return true })
	eventually(t, "the group is gone", func() bool { return !gone() })

	for what, c := range map[string]struct {
		err  error
		code api.Code
	}{
		"no such partition": {api.Do(ctx, r.cli, api.DeletePartition, api.PartitionMembers{PKey: "0x8005"}),
			api.CodeNotFound},
		"no such member": {api.Do(ctx, r.cli, api.DeletePartition, api.PartitionMembers{PKey: "0x8001",
			Members: []string{"0x99"}}), api.CodeNotFound},
		"no key": {api.Do(ctx, r.cli, api.DeletePartition, api.PartitionMembers{PKey: "0x8000"}),
			api.CodeInvalid},
		"no such device": {api.Do(ctx, r.cli, api.DeletePartition, api.PartitionMembers{PKey: "0x8001",
			Members: []string{"weft_ib7"}}), api.CodeNotFound},
		"no InfiniBand": {api.Do(ctx, r.cli, api.DeletePartition, api.PartitionMembers{PKey: "0x8001",
			Members: []string{r.cfg.Device}}), api.CodeNotFound},
		"no such node": {api.Do(ctx, r.cli, api.DeletePartition, api.PartitionMembers{PKey: "0x8001",
			Members: []string{"weft_ib0@nowhere"}}), api.CodeNotFound},
		"no multicast": {api.Do(ctx, r.cli, api.JoinGroup, api.GroupJoin{MGID: "fe80::1"}), api.CodeInvalid},
		"no MTU": {api.Do(ctx, r.cli, api.JoinGroup, api.GroupJoin{MGID: mgid, MTU: 1500}),
			api.CodeInvalid},
		"a group of nobody's": {api.Do(ctx, r.cli, api.LeaveGroup, api.GroupJoin{MGID: "ff12::9"}), api.CodeNotFound},
	} {
		if code(c.err) != c.code {
			t.Errorf("%s: %v", what, c.err)
		}
	}
	if err := api.Do(ctx, r.cli, api.DeletePartition, api.PartitionMembers{PKey: "0x0001"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "everybody is a full member again", func() bool { return slices.Equal(keys(), []string{"0xffff"}) })
}

// TestFabricViews: the ways to look at a subnet agree with each other.
func TestFabricViews(t *testing.T) {
	r, ctx := master(t), context.Background()
	s, err := api.Get(ctx, r.cli, api.GetSubnet)
	if err != nil || len(s.Nodes) != 2 || len(s.Links) != 1 || s.Links[0].State != "ACTIVE" ||
		s.Nodes[0].GUID != r.node.identity.String() {
		t.Fatalf("%v %+v", err, s)
	}
	lid := s.Nodes[1].Ports[0].LID
	routes, err := api.Get(ctx, r.cli, api.ListRoutes)
	if err != nil || len(routes) != 1 || !slices.ContainsFunc(routes[0].Unicast,
		func(v api.Route) bool { return v.LID == lid && v.To.LID == lid && v.Port == 1 }) {
		t.Errorf("%v %+v", err, routes)
	}
	p, err := api.Call(ctx, r.cli, api.FindPath, api.PathQuery{From: firstNative, To: s.Nodes[0].GUID})
	if err != nil || p.From.LID != lid || len(p.Hops) != 1 || p.MTU != 4096 {
		t.Errorf("%v %+v", err, p)
	}
	for _, format := range api.TextFormats {
		if text, err := api.Call(ctx, r.cli, api.GetSubnetText, format); err != nil || !strings.Contains(text.Text,
			firstNative) {
			t.Errorf("%s: %v\n%s", format, err, text)
		}
	}
	m, err := api.Get(ctx, r.cli, api.GetManager)
	if err != nil || m.State != "master" || m.Store.Kind != "memory" || len(m.Sweeps) == 0 ||
		m.Master.Dir != r.cfg.Dir {
		t.Errorf("%v %+v", err, m)
	}
	before := len(m.Sweeps)
	if err := api.Do(ctx, r.cli, api.StartSweep, api.None{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the manager has swept", func() bool {
		m, err := api.Get(ctx, r.cli, api.GetManager)
		return err == nil && len(m.Sweeps) > before
	})
	if e, err := api.Call(ctx, r.cli, api.ListStoreEntries, "subnet"); err != nil || len(e) == 0 {
		t.Errorf("%v %+v", err, e)
	}
	if _, err := api.Call(ctx, r.cli, api.ListStoreEntries, "a b"); code(err) != api.CodeInvalid {
		t.Errorf("a tree that no key can have: %v", err)
	}
	if r.counter(api.ScopeSM, "answered") == 0 || r.counter(api.ScopeAgent, "gets") == 0 {
		t.Error("manager and agents count nothing")
	}
}

// TestNotMaster: a node that is not master replies with the reason and the fix.
func TestNotMaster(t *testing.T) {
	r, ctx := run(t, func(c *config.Config) { c.Fabric, c.SM = true, config.SMOff }), context.Background()
	_, err := api.Get(ctx, r.cli, api.GetSubnet)
	if code(err) != api.CodeNotMaster || !strings.Contains(err.Error(),
		"no manager of the subnet is known. fix: weft up --sm auto") {
		t.Error(err)
	}
	if m, err := api.Get(ctx, r.cli, api.GetManager); err != nil || m.State != config.SMOff {
		t.Errorf("%v %+v", err, m)
	}
	if _, err := api.Get(ctx, r.cli, api.GetStore); code(err) != api.CodeNotFound {
		t.Error(err)
	}
	if _, err := api.Call(ctx, r.cli, api.AddFault, api.FaultSpec{Drop: 1,
		Link: api.LinkTrunk}); code(err) != api.CodeNotFound {
		t.Error(err)
	}
	if _, err := api.Call(ctx, r.cli, api.AddFault, api.FaultSpec{Drop: 1,
		Device: firstNative}); code(err) != api.CodeInvalid {
		t.Error(err)
	}
	off := run(t, nil)
	if _, err := api.Get(ctx, off.cli, api.ListTrunks); code(err) != api.CodeNotFound {
		t.Error(err)
	}
}
