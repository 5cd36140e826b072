// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/cli"
	"weft/internal/control/config"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/peer"
	"weft/internal/node/mgmt"
	"weft/internal/proto/ib"
)

// trial is a fabric with members of given roles, numbered from 1.
func trial(t *testing.T, roles ...member.Role) (r *member.Roster, selves []peer.Self) {
	t.Helper()
	const fabric = "0123456789abcdef"
	now := time.Now()
	ca, err := member.NewAuthority(fabric, 1, now, 0)
	if err != nil {
		t.Fatal(err)
	}
	r = &member.Roster{Fabric: fabric, At: now, CAs: []member.CA{ca.CA(member.CASigning, now)}}
	for i, role := range roles {
		id, err := member.NewIdentity()
		if err != nil {
			t.Fatal(err)
		}
		name, guid := "h"+string(rune('1'+i)), trialGUID(i+1)
		der, err := ca.Issue(member.Claims{Fabric: r.Fabric, Name: name, GUID: guid, Roles: role,
			Seal: id.Seal.PublicKey().Bytes()}, &id.Sign.PublicKey, now, 0, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		r.Members = append(r.Members, member.Record{GUID: guid, Name: name, Key: id.Key(), Certificate: der, Roles: role,
			State: member.Active})
		c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: id.Sign, Leaf: leaf}
		selves = append(selves, peer.Self{Certificate: func() (*tls.Certificate, error) { return c, nil },
			Roster: func() *member.Roster { return r }, Now: time.Now})
	}
	return r, selves
}

func trialGUID(n int) ib.GUID { return ib.GUID(0x0200000000000000 | uint64(n)<<16) }

// TestStoreOfLeaf: a member without the role voter is no server of the store, whatever it serves.
func TestStoreOfLeaf(t *testing.T) {
	_, m := trial(t, member.Voter|member.Administrator, member.Voter, member.Leaf, member.Manager|member.Administrator)
	for i, want := range []bool{1: true, 2: false, 3: false} {
		if i == 0 {
			continue
		}
		a, b := net.Pipe()
		served := make(chan error, 1)
		go func() { served <- tls.Server(b, m[i].Server("http/1.1")).HandshakeContext(t.Context()) }()
		c := tls.Client(a, storeClient(m[0]))
		err := c.HandshakeContext(t.Context())
		if (err == nil) != want {
			t.Errorf("the store of h%d: %v", i+1, err)
		}
		a.Close()
		b.Close()
		<-served
	}
}

// TestMayRestore: root on a member is no voter and no administrator for that.
func TestMayRestore(t *testing.T) {
	r, _ := trial(t, member.Voter|member.Administrator, member.Voter, member.Administrator, member.Leaf)
	for i, want := range []bool{true, false, false, false, false} {
		err := mayRestore(r, trialGUID(i+1))
		var e *api.Error
		if (err == nil) != want || err != nil && (!errors.As(err, &e) || e.Code != api.CodeRefused) {
			t.Errorf("h%d: %v", i+1, err)
		}
	}
}

// TestRestoreRefused: the command does what MayRestore decides, with force too, and the store stays as it is.
func TestRestoreRefused(t *testing.T) {
	at := "127.0.0.1:" + freeTCP(t)
	refusal := &api.Error{Code: api.CodeRefused, Why: "this host has not the roles", Fix: "weft member list"}
	testHookOpened = func(n *Node) {
		n.mgmt.Share(&mgmt.Fabric{Name: "a", Listen: at, Advertise: at,
			MayRestore: func() error { return refusal }})
	}
	defer func() { testHookOpened = nil }()
	r := run(t, func(c *config.Config) { c.Fabric, c.Store = true, config.StoreEmbedded })
	eventually(t, "the node manages", func() bool { return r.addPartition("0x8001") == nil })
	_, err := api.Call(context.Background(), r.cli, api.RestoreStore, api.StoreRestore{Force: true})
	if code(err) != api.CodeRefused {
		t.Errorf("%v", err)
	}
	if s, err := api.Get(context.Background(), r.cli, api.GetStore); err != nil || s.Generation != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	r.end()
}

// TestOtherSeeds: the store of a voter is looked for at its other addresses too, but those that lead to this host.
func TestOtherSeeds(t *testing.T) {
	r := &member.Roster{Members: []member.Record{
		{GUID: trialGUID(1), Roles: member.HostRoles, Store: "172.17.0.1:4793",
			Addresses: []string{"172.17.0.1:4792", "10.0.0.1:4792", "[fd00::1]:4792"}},
		{GUID: trialGUID(2), Roles: member.HostRoles, Store: "10.0.0.2:4793", Addresses: []string{"10.0.0.2:4792"}},
		{GUID: trialGUID(3), Roles: member.Leaf, Store: "10.0.0.3:4793", Addresses: []string{"10.0.0.4:4792"}},
		{GUID: trialGUID(4), Roles: member.HostRoles, Addresses: []string{"10.0.0.5:4792"}}, // an etcd elsewhere
	}}
	want := []string{"10.0.0.1:4793", "[fd00::1]:4793"}
	if got := otherSeeds(r, trialGUID(2), []string{"172.17.0.1", "10.0.0.2"}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestIsOut: a member is out after its removal, until it joins anew.
func TestIsOut(t *testing.T) {
	r := &member.Roster{Members: []member.Record{{GUID: trialGUID(1)}, {GUID: trialGUID(2)}},
		Removed: []member.Gone{{GUID: trialGUID(2)}, {GUID: trialGUID(3)}}}
	for n, want := range map[int]bool{1: false, 2: false, 3: true, 4: false} {
		if got := isOut(r, member.GUIDKey(trialGUID(n))); got != want {
			t.Errorf("%d: %v, want %v", n, got, want)
		}
	}
}

// TestRefusedJoinOfNewHost: a join that is refused leaves nothing in a directory that was not there.
func TestRefusedJoinOfNewHost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "node")
	s := cli.JoinSpec{Dir: dir, Host: "127.0.0.1", Token: "no.token.there", Name: "a1"}
	if _, err := Join(t.Context(), s); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("%v", err)
	}
	if list, err := os.ReadDir(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, %v", list, err)
	}
}
