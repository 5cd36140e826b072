// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/mgmt/manager"
	"weft/internal/proto/condtest"
)

// TestSetManager: changes of routing and M_Key through the control interface reach the subnet and the
// status; the key itself is not shown.
func TestSetManager(t *testing.T) {
	t.Parallel()
	r, ctx := master(t), context.Background()
	text := func(s string) *string { return &s }
	number := func(n int) *int { return &n }
	set := func(c api.ManagerChange) {
		t.Helper()
		if err := api.Do(ctx, r.cli, api.ChangeManager, c); err != nil {
			t.Fatal(err)
		}
	}
	port := func() (key uint64, protect uint8, lease uint16) {
		r.node.sub.Do(func() {
			p := r.node.sub.Port(1).Agent.Port(1)
			key, protect, lease = p.MKey, p.MKeyProtectBits, p.MKeyLeasePeriod
		})
		return
	}
	shown := func() api.Manager {
		t.Helper()
		m, err := api.Get(ctx, r.cli, api.GetManager)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if m := shown(); m.MKey != "" || m.Routed != "minhop" || r.notices("no_m_key") != 0 {
		t.Errorf("%+v", m)
	}
	root := r.node.identity.String()
	set(api.ManagerChange{Routing: text("updn"), Roots: &[]string{root}})
	eventually(t, "another engine serves", func() bool {
		m := shown()
		return m.Routed == "updn" &&
			len(m.Roots) == 1 && m.Roots[0] == root
	})
	set(api.ManagerChange{MKey: text("0x4711471147114711"), MKeyLeaseS: number(20), MKeyProtect: number(2)})
	eventually(t, "the ports are guarded", func() bool {
		k, p, l := port()
		return k == 0x4711471147114711 &&
			p == 2 && l == 20
	})
	if m := shown(); m.MKey != manager.MKeyOfStore || m.MKeyProtect != 2 || m.MKeyLeaseS != 20 {
		t.Errorf("%+v", m)
	}
	set(api.ManagerChange{MKey: text("random")})
	eventually(t, "the ports have another key", func() bool {
		k, _, _ := port()
		return k != 0 &&
			k != 0x4711471147114711
	})
	list, err := api.Call(ctx, r.cli, api.ListStoreEntries, "subnet")
	found := false
	for _, e := range list {
		found = found || e.Key == manager.KeyMKey
		// 0x4711471147114711 is 5120…
		if strings.Contains(e.Value, "5120") || e.Key == manager.KeyMKey && (e.Value != "" || e.Size == 0) {
			t.Errorf("the key is shown: %+v", e)
		}
	}
	if err != nil || !found {
		t.Errorf("%v: %+v", err, list)
	}
	set(api.ManagerChange{MKey: text("none")})
	eventually(t, "the ports have no key", func() bool { k, p, l := port(); return k == 0 && p == 0 && l == 0 })
	for _, x := range []struct {
		c    api.ManagerChange
		code api.Code
		want string
	}{
		{api.ManagerChange{Routing: text("updn,fastest")}, api.CodeInvalid,
			`engine "fastest": there is no such one: want minhop, updn, ftree`},
		{api.ManagerChange{Roots: &[]string{"sw1"}}, api.CodeInvalid, `a root is the GUID of a switch, such as ` +
			root + `, not "sw1". fix: weft fabric nodes`},
		{api.ManagerChange{Roots: &[]string{"0x7"}}, api.CodeNotFound, "the subnet has no switch 0000:0000:0000:0007"},
		{api.ManagerChange{Routing: text("ftree"), Roots: &[]string{root}}, api.CodeInvalid,
			`roots are for the engine updn, which the routing "ftree" does not name`},
		{api.ManagerChange{}, api.CodeInvalid, "nothing is to be changed"},
		{api.ManagerChange{MKey: text("0")}, api.CodeInvalid, "an M_Key is a number"},
	} {
		err := api.Do(ctx, r.cli, api.ChangeManager, x.c)
		if code(err) != x.code || !strings.Contains(err.Error(), "cannot change the subnet manager: "+x.want) {
			t.Errorf("%+v: %v", x.c, err)
		}
	}
	if m := shown(); m.Routed != "updn" || len(m.Problems) != 0 {
		t.Errorf("%+v", m)
	}
}

// TestMKeyFile gives a node a key of its own, which commands do not change.
func TestMKeyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("0x123456789abcdef0\n")
	r := run(t, func(c *config.Config) { c.Fabric, c.Store, c.MKeyFile = true, config.StoreMemory, file })
	eventually(t, "the port has the key", func() (ok bool) {
		r.node.sub.Do(func() { ok = r.node.sub.Port(1).Agent.Port(1).MKey == 0x123456789abcdef0 })
		return ok
	})
	m, err := api.Get(context.Background(), r.cli, api.GetManager)
	if err != nil || m.MKey != manager.MKeyOfNode || m.MKeyProtect != 1 || m.MKeyLeaseS != 60 {
		t.Errorf("%+v, %v", m, err)
	}
	key := "none"
	if err := api.Do(context.Background(), r.cli, api.ChangeManager,
		api.ManagerChange{MKey: &key}); code(err) != api.CodeInvalid || !strings.Contains(err.Error(), "--m-key-file") {
		t.Error(err)
	}
	for _, wrong := range []string{"", "0", "12g", "0x123456789abcdef01"} {
		write(wrong)
		cfg := r.cfg
		cfg.Dir, cfg.RoCEPort = t.TempDir(), condtest.Port(t)
		err := Run(context.Background(), cfg, func() { t.Error("it started") }, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), "cannot read the M_Key: "+file+": an M_Key is a number") ||
			strings.Contains(err.Error(), "12g") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
