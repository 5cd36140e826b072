// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/control/cli"
	"weft/internal/control/config"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/home"
	"weft/internal/mgmt/store"
	"weft/internal/node/mgmt"
	"weft/internal/proto/condtest"
)

// TestFoundWithoutMKey: where the M_Key of a fabric cannot be written, it is open to others, and status reports that.
func TestFoundWithoutMKey(t *testing.T) {
	ctx := context.Background()
	r := run(t, func(c *config.Config) {
		c.Fabric, c.Store, c.TrunkPort, c.StorePort = true, config.StoreEmbedded, condtest.Port(t), condtest.Port(t)
	})
	s, err := r.node.mgmt.Store()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Put(ctx, s, manager.KeyMKey, []byte("?")); err != nil {
		t.Fatal(err)
	}
	made, err := api.Call(ctx, r.cli, api.CreateToken, api.NewToken{Uses: 1})
	if err != nil || made.Line == "" || made.Founded == "" {
		t.Fatalf("%+v, %v", made, err)
	}
	if d := r.degraded("m_key_failed"); !strings.Contains(d.Fix, "weft sm set") {
		t.Errorf("%+v", d)
	}
	if d := r.degraded("fabric_closed"); d.What != "" {
		t.Errorf("%+v", d)
	}
	if _, err := store.Delete(ctx, s, manager.KeyMKey); err != nil {
		t.Fatal(err)
	}
	key := api.MKeyRandom
	if _, err := api.Call(ctx, r.cli, api.ChangeManager, api.ManagerChange{MKey: &key}); err != nil {
		t.Fatal(err)
	}
	if d := r.degraded("m_key_failed"); d.What != "" {
		t.Errorf("%+v", d)
	}
}

// TestRolesOfMembers: a voter that is neither manager nor administrator runs no subnet manager, and its root changes
// nothing, also where its own store would take the write.
func TestRolesOfMembers(t *testing.T) {
	ctx := context.Background()
	listen := func(c *config.Config) {
		c.Fabric, c.Store, c.TrunkPort, c.StorePort = true, config.StoreEmbedded, condtest.Port(t), condtest.Port(t)
	}
	a := run(t, listen)
	made, err := api.Call(ctx, a.cli, api.CreateToken, api.NewToken{Roles: "voter", Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.Call(ctx, a.cli, api.CreateToken, api.NewToken{Roles: "administrator"}); err == nil ||
		!strings.Contains(err.Error(), "an administrator is a voter as well") {
		t.Errorf("a token for an administrator that is no voter: %v", err)
	}
	b := run(t, func(c *config.Config) { c.Fabric, c.Store = true, config.StoreEmbedded })
	b.end()
	words := strings.Fields(made.Line)
	cfg := b.cfg
	listen(&cfg)
	if _, err := Join(ctx, cli.JoinSpec{Dir: cfg.Dir, Host: words[2], Token: words[4], Port: cfg.TrunkPort,
		Name: "b1"}); err != nil {
		t.Fatal(err)
	}
	b = b.again(func(c *config.Config) {
		c.Store, c.TrunkPort, c.StorePort = config.StoreEmbedded, cfg.TrunkPort, cfg.StorePort
	})
	if m, _ := b.node.mgmt.Manager(); m != nil {
		t.Error("a member without the role manager runs one")
	}
	if m, err := api.Get(ctx, b.cli, api.GetManager); err != nil || m.State != config.SMOff {
		t.Errorf("%+v, %v", m, err)
	}
	key := api.MKeyRandom
	_, err = api.Call(ctx, b.cli, api.ChangeManager, api.ManagerChange{MKey: &key})
	for what, err := range map[string]error{"M_Key": err, "partition": b.addPartition("0x8001")} {
		if code(err) != api.CodeRefused || !strings.Contains(err.Error(), "administrator") {
			t.Errorf("%s: %v", what, err)
		}
	}
	condtest.Until(t, "the administrator changes the subnet", func() bool {
		err = a.addPartition("0x8001")
		return err == nil
	}, func() any { return err })
	for _, r := range []*running{a, b} { // a handshake in the middle would outlive the nodes
		eventually(t, "the trunk is up", func() bool {
			list, err := api.Get(ctx, r.cli, api.ListTrunks)
			return err == nil && len(list) == 1 && list[0].Up
		})
	}
}

// TestNoRecord: a member that its own roster does not list has no roles, from its start on; one that is listed has its
// own again, also before it reads the store.
func TestNoRecord(t *testing.T) {
	ctx := context.Background()
	a := run(t, func(c *config.Config) {
		c.Fabric, c.Store, c.TrunkPort, c.StorePort = true, config.StoreEmbedded, condtest.Port(t), condtest.Port(t)
	})
	if _, err := api.Call(ctx, a.cli, api.CreateToken, api.NewToken{Uses: 1}); err != nil {
		t.Fatal(err)
	}
	a.end()
	dir := home.Open(a.cfg.Dir)
	listed, err := dir.Roster()
	if err != nil {
		t.Fatal(err)
	}
	without := *listed
	without.Members = nil
	for i, r := range []*member.Roster{&without, listed} {
		has := i == 1
		if err := dir.SaveRoster(r); err != nil {
			t.Fatal(err)
		}
		var f *mgmt.Fabric
		testHookOpened = func(n *Node) { f = n.shared() }
		a = a.again(func(c *config.Config) {
			c.Store, c.TrunkPort, c.StorePort = config.StoreEmbedded, a.cfg.TrunkPort, a.cfg.StorePort
		})
		testHookOpened = nil
		m, _ := a.node.mgmt.Manager()
		if f.Unable == has || f.NoManager == has || f.NoAdministrator == has || (m != nil) != has {
			t.Errorf("a record: %v; unable %v, no manager %v, no administrator %v; a manager runs: %v", has, f.Unable,
				f.NoManager, f.NoAdministrator, m != nil)
		}
		a.end()
	}
}
