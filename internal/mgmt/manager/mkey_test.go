// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/store"
)

func shared(c *Config) { c.Shared = true }

// TestMKeyIsShared: managers that share a store generate a key once. The next manager has it, and a
// configured M_Key reaches the ports.
func TestMKeyIsShared(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	first := mem.Open()
	a := begin(t, "a", first, shared)
	a.until("the first brings the port up", a.active)
	k := load[MKey](t, mem, KeyMKey)
	protect := uint8(1)
	guarded := func(n *node, key sm.MKey) func() bool {
		return func() bool {
			c, s := n.ca.Port(1), n.sw.Port(0)
			return c.MKey == key.Of(n.ca.Config().PortGUID) && s.MKey == key.Of(n.sw.Config().PortGUID) &&
				c.MKeyProtectBits == protect && c.MKeyLeasePeriod == 60
		}
	}
	if k.Version != 2 || k.Key != 0 || len(k.Secret) != secretLen {
		t.Fatalf("%+v", k)
	}
	own := sm.MKey{Secret: [secretLen]byte(k.Secret)}
	if !guarded(a, own)() || a.ca.Port(1).MKey == a.sw.Port(0).MKey {
		t.Fatalf("%+v, the port has %#x", k, a.ca.Port(1).MKey)
	}
	b := begin(t, "b", mem, shared)
	defer b.m.Close()
	first.Kill()
	b.until("the second takes over", b.active)
	if !guarded(b, own)() || !bytes.Equal(load[MKey](t, mem, KeyMKey).Secret, k.Secret) {
		t.Errorf("the port has %#x", b.ca.Port(1).MKey)
	}
	if s := b.m.Status(); s.MKeyFrom != MKeyOfStore || !s.Keyed || !s.KeyPerPort || s.MKeyLease != 60 ||
		s.Switches != 1 {
		t.Errorf("%+v", s)
	}
	a.until("the first notices", func() bool { return !a.m.Status().Elected })
	a.m.Close()

	ctx := context.Background()
	setProtect := func(to uint8) {
		protect = to
		if err := EditIntent(ctx, mem, func(i *Intent) error { i.Subnet.MKeyProtect = to; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	setProtect(2)
	b.until("ports that hide from managers without their key have the same", guarded(b, own.ForAll()))
	setProtect(1)
	b.until("ports have their own again", guarded(b, own))
	if err := EditMKey(ctx, mem, Change{}, (*MKey).Renew); err != nil {
		t.Fatal(err)
	}
	next := load[MKey](t, mem, KeyMKey)
	if len(next.SecretsBefore) != 1 || !bytes.Equal(next.SecretsBefore[0], k.Secret) {
		t.Errorf("%+v", next)
	}
	b.until("the keys of another secret reach the ports", guarded(b, sm.MKey{Secret: [secretLen]byte(next.Secret)}))
	if err := EditMKey(ctx, mem, Change{}, func(m *MKey) { m.Set(77) }); err != nil {
		t.Fatal(err)
	}
	b.until("one key reaches the ports", guarded(b, sm.MKey{All: 77}))
	if err := EditIntent(ctx, mem, func(i *Intent) error { i.Subnet.MKeyLease = 20; return nil }); err != nil {
		t.Fatal(err)
	}
	b.until("its lease reaches the ports", func() bool { return b.ca.Port(1).MKeyLeasePeriod == 20 })
	e, err := mem.Get(ctx, KeyIntent)
	if err != nil || strings.Contains(string(e.Value), "77") {
		t.Errorf("the intent contains the key: %s, %v", e.Value, err)
	}
	// One that cannot be read changes nothing, and is not repeated in an error.
	if _, err := store.Put(ctx, mem, KeyMKey, []byte(`{"version":1,"Kee":4711}`)); err != nil {
		t.Fatal(err)
	}
	if err := EditMKey(ctx, mem, Change{}, func(*MKey) {}); err == nil || strings.Contains(err.Error(), "Kee") {
		t.Error(err)
	}
	// Nor where the manager reads it anew because its term begins.
	damaged, rev, err := b.m.loadMKey(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.post(func() { b.m.setKey(damaged, rev) })
	b.pump()
	if s := b.m.Status(); !s.Keyed || s.MKeyFrom != MKeyOfStore {
		t.Errorf("ports lose their M_Key for one that cannot be read: %+v", s)
	}
	off, _ := json.Marshal(MKey{Version: MKeyVersion, Off: true, Before: []uint64{77}})
	if _, err := store.Put(ctx, mem, KeyMKey, off); err != nil {
		t.Fatal(err)
	}
	b.until("no key is wanted", func() bool {
		p := b.ca.Port(1)
		return p.MKey == 0 && p.MKeyProtectBits == 0 &&
			p.MKeyLeasePeriod == 0
	})
	if s := b.m.Status(); s.MKeyFrom != "" || s.Keyed {
		t.Errorf("%+v", s)
	}
}

// TestMKeyOfNode: a manager with a store of its own draws none; one that was given to the
// node goes before that of the store, which ports may have.
func TestMKeyOfNode(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	a := begin(t, "a", mem)
	a.until("the port comes up", a.active)
	if _, err := mem.Get(context.Background(), KeyMKey); !isNotFound(err) || a.ca.Port(1).MKey != 0 ||
		a.m.Status().MKeyFrom != "" {
		t.Errorf("a key was drawn: %v", err)
	}
	a.m.Close()
	if err := EditMKey(context.Background(), mem, Change{}, func(m *MKey) { m.Set(5) }); err != nil {
		t.Fatal(err)
	}
	b := begin(t, "b", mem, shared, func(c *Config) { c.MKey = 9 })
	defer b.m.Close()
	i := b.ca.Port(1)
	i.MKey, i.MKeyProtectBits = 5, 1
	b.until("the port comes up", b.active)
	if b.ca.Port(1).MKey != 9 || b.m.Status().MKeyFrom != MKeyOfNode || len(b.m.Status().Problems) != 0 {
		t.Errorf("%#x, %+v", b.ca.Port(1).MKey, b.m.Status())
	}
}

// TestMKeyVersions: programs that know no secrets read what has none; a secret of another length is refused.
func TestMKeyVersions(t *testing.T) {
	var m MKey
	m.Set(5)
	if b, err := m.encode(); err != nil || string(b) != `{"version":1,"Key":5}` {
		t.Errorf("%s, %v", b, err)
	}
	m.Renew()
	b, err := m.encode()
	if err != nil || !strings.HasPrefix(string(b), `{"version":2,"Secret":"`) || m.Key != 0 || m.Before[0] != 5 {
		t.Errorf("%s, %v", b, err)
	}
	if got, err := parseMKey(b); err != nil || !bytes.Equal(got.Secret, m.Secret) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{`{"version":0}`, `{"version":3}`, `{"version":2,"Secret":"AAAA"}`,
		`{"version":2,"SecretsBefore":["AAAA"]}`} {
		if _, err := parseMKey([]byte(bad)); err == nil || strings.Contains(err.Error(), "AAAA") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for range 20 {
		m.Renew()
	}
	if len(m.SecretsBefore) != keysBefore {
		t.Errorf("%d earlier secrets", len(m.SecretsBefore))
	}
}

// TestMKeySet keeps the newest earlier keys, each once.
func TestMKeySet(t *testing.T) {
	var m MKey
	for _, k := range []uint64{1, 2, 2, 3, 1, 0} {
		m.Set(k)
	}
	if m.Key != 0 || !m.Off || !slices.Equal(m.Before, []uint64{1, 3, 2}) {
		t.Errorf("%+v", m)
	}
	for k := range uint64(20) {
		m.Set(100 + k)
	}
	if m.Off || len(m.Before) != keysBefore || m.Before[0] != 118 {
		t.Errorf("%+v", m)
	}
	if a, b := RandomMKey(), RandomMKey(); a == b || a == 0 {
		t.Errorf("%#x %#x", a, b)
	}
}
