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
	"weft/internal/node/mgmt"
)

// partitions lists the partitions of the intent: those of this file are of all ports. The list has others too while a
// port differs from what it shall have, such as the default partition until a sweep has written it.
func (r *running) partitions(t *testing.T) (keys []string) {
	t.Helper()
	list, err := api.Get(context.Background(), r.cli, api.ListPartitions)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if slices.ContainsFunc(p.Members, func(m api.Member) bool { return m.Port == api.AllPorts }) {
			keys = append(keys, p.PKey)
		}
	}
	return keys
}

func (r *running) addPartition(key string) error {
	_, err := api.Call(context.Background(), r.cli, api.AddPartition, api.Partition{PKey: key,
		Members: []api.Member{{Port: api.AllPorts, Membership: "full"}}})
	return err
}

// TestStoreIsBackedUpAndRestored: what was configured is as it was at the backup, and the node goes on.
func TestStoreIsBackedUpAndRestored(t *testing.T) {
	ctx := context.Background()
	r := run(t, func(c *config.Config) { c.Fabric, c.Store = true, config.StoreEmbedded })
	eventually(t, "the node manages", func() bool { return r.addPartition("0x8001") == nil })
	b, err := api.Get(ctx, r.cli, api.BackupStore)
	if err != nil || b.Entries == 0 {
		t.Fatalf("%+v, %v", b, err)
	}
	if err := r.addPartition("0x8002"); err != nil {
		t.Fatal(err)
	}
	_, err = api.Call(ctx, r.cli, api.RestoreStore, api.StoreRestore{Content: b.Content})
	if err == nil || !strings.Contains(err.Error(), "majority") {
		t.Errorf("restored without force: %v", err)
	}
	_, err = api.Call(ctx, r.cli, api.RestoreStore, api.StoreRestore{Content: b.Content[1:], Force: true})
	if code(err) != api.CodeInvalid {
		t.Errorf("half a backup: %v", err)
	}
	if got := r.partitions(t); len(got) != 2 {
		t.Errorf("partitions %v before the restore", got)
	}
	s, err := api.Call(ctx, r.cli, api.RestoreStore, api.StoreRestore{Content: b.Content, Force: true})
	if err != nil || s.Generation != 2 {
		t.Fatalf("%+v, %v", s, err)
	}
	if got := r.partitions(t); len(got) != 1 || got[0] != "0x8001" {
		t.Errorf("partitions %v after the restore", got)
	}
	// The manager follows the intent that is restored, and later ones.
	eventually(t, "the manager has the restored intent", func() bool {
		n := 0
		r.node.sub.Do(func() { m, _ := r.node.mgmt.Manager(); n = len(m.Intent().Subnet.Partitions) })
		return n == 1
	})
	eventually(t, "the node manages again", func() bool { return r.addPartition("0x8003") == nil })
	if d, err := api.Get(ctx, r.cli, api.DefragStore); err != nil || d.After > d.Before {
		t.Errorf("%+v, %v", d, err)
	}
	r.end()
	r = r.again(func(c *config.Config) { c.Store = config.StoreEmbedded })
	if got := r.partitions(t); len(got) != 2 {
		t.Errorf("partitions %v after a restart", got)
	}
	r.end()
}

// TestSurvivorOfTwoMembers: of two members the one with the only vote ends. The other keeps the configuration from its
// copy, refuses changes with the reason, and one command makes it the authority.
func TestSurvivorOfTwoMembers(t *testing.T) {
	ctx := context.Background()
	listen := map[string]string{"a": "127.0.0.1:" + freeTCP(t), "b": "127.0.0.1:" + freeTCP(t)}
	start := func(name string, seeds ...string) *running {
		testHookOpened = func(n *Node) {
			n.mgmt.Share(&mgmt.Fabric{Name: name, Listen: listen[name], Advertise: listen[name], Seeds: seeds})
		}
		defer func() { testHookOpened = nil }()
		return run(t, func(c *config.Config) { c.Fabric, c.Store = true, config.StoreEmbedded })
	}
	role := func(r *running) string {
		s, err := api.Get(ctx, r.cli, api.GetStore)
		if err != nil {
			return err.Error()
		}
		return s.Role
	}
	a := start("a")
	eventually(t, "a manages", func() bool { return a.addPartition("0x8001") == nil })
	b := start("b", listen["a"])
	eventually(t, "b has a copy", func() bool { return role(b) == "learner" })
	eventually(t, "b reads the partitions", func() bool {
		list, err := api.Get(ctx, b.cli, api.ListPartitions)
		return err == nil && len(list) == 1
	})
	a.end()
	eventually(t, "b reports that there is no majority", func() bool { return b.degraded("store_no_majority").What != "" })
	if d := b.degraded("store_no_majority"); !strings.Contains(d.Fix, "weft store restore") {
		t.Errorf("%+v", d)
	}
	eventually(t, "b keeps the subnet", func() bool {
		m, err := api.Get(ctx, b.cli, api.GetManager)
		return err == nil && m.State == "master"
	})
	if got := b.partitions(t); len(got) != 1 {
		t.Errorf("partitions %v", got)
	}
	var e *api.Error
	if err := b.addPartition("0x8002"); !errors.As(err, &e) || !strings.Contains(e.Fix, "weft store") {
		t.Errorf("a change without a majority: %v", err)
	}
	if s, err := api.Call(ctx, b.cli, api.RestoreStore, api.StoreRestore{}); err != nil || s.Generation != 2 {
		t.Fatalf("%+v, %v", s, err)
	}
	eventually(t, "b is the authority", func() bool { return b.addPartition("0x8002") == nil })
	if got := b.partitions(t); len(got) != 2 {
		t.Errorf("partitions %v", got)
	}
	b.end()
}
