// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	members "weft/internal/mgmt/member"
	"weft/internal/mgmt/member/registry"
	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/proto/ib"
)

// TestReplicasForRemovals: the leader writes the replicas where removals read them.
func TestReplicasForRemovals(t *testing.T) {
	f := newFabric(t)
	m := f.open("a")
	f.until("the replicas are written", func() bool {
		e, err := m.Get(t.Context(), members.KeyStoreRoster)
		return err == nil && strings.Contains(string(e.Value), `"name":"a"`)
	})
}

// fillUp puts until the store is full, and no more: it is written anew after each put, else its size is known later.
func fillUp(t *testing.T, s *etcd.Server, c store.Store) {
	t.Helper()
	for i := range 1000 {
		if _, err := store.Put(t.Context(), c, fmt.Sprintf("many/%d", i), make([]byte, 64<<10)); err != nil {
			want(t, err, store.ErrFull)
			return
		}
		if err := s.Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the store is never full")
}

// TestRemovalFromFullStore removes a member from a store that is full of history, and then one that has filled it.
func TestRemovalFromFullStore(t *testing.T) {
	t.Parallel()
	s := start(t, etcd.ServerConfig{Dir: quick(t), Timeout: patience}.WithMaxSize(4<<20))
	c := client(t, s)
	host := func(n int) (*registry.Registry, *members.Identity, ib.GUID) {
		id, err := members.NewIdentity()
		if err != nil {
			t.Fatal(err)
		}
		guid := ib.GUID(0x0200000000000000 | uint64(n)<<16)
		return registry.New(registry.Config{Store: c, Now: time.Now, GUID: guid, Identity: id}), id, guid
	}
	a, _, _ := host(1)
	f := registry.Founder{Name: "a1", Addresses: []string{"a1:4792"}, By: "a test"}
	if _, err := a.Found(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	secret, _, err := a.CreateToken(t.Context(), registry.TokenSpec{Roles: members.HostRoles, By: "a1"})
	if err != nil {
		t.Fatal(err)
	}
	join := func(n int, name string) (devices string) {
		_, id, guid := host(n)
		csr, err := id.Request(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Join(t.Context(), &members.Request{Protocol: members.Protocol, Token: secret.ID, Secret: secret.Key(),
			Pin: secret.Pin[:], Name: name, GUID: guid, Clock: time.Now(), MTU: 1500, CSR: csr,
			Seal: id.Seal.PublicKey().Bytes(), Addresses: []string{name + ":4792"}}, 1500, "a1"); err != nil {
			t.Fatal(err)
		}
		return members.TreeNode + "/" + members.GUIDKey(guid) + "/functions"
	}
	remove := func(name string) {
		t.Helper()
		begin := time.Now()
		_, err := a.Remove(t.Context(), name, "a test", true)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s is out after %v", name, time.Since(begin))
	}
	join(2, "b1")
	devices := join(3, "c1")
	fill(t, c, func(int) string { return "one" })
	if err := s.SayFull(t.Context()); err != nil { // it may have made room already
		t.Fatal(err)
	}
	remove("b1")
	putSoon(t, c, "one")
	put(t, c, devices, strings.Repeat("x", store.MaxValue))
	fillUp(t, s, c)
	remove("c1")
	if l, err := c.List(t.Context(), members.TreeNode); err != nil || len(l.Entries) > 0 {
		t.Errorf("%d entries are left, %v", len(l.Entries), err)
	}
}
