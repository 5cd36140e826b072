// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/peer"
	"weft/internal/mgmt/store"
	"weft/internal/proto/condtest"
)

// joins makes a host of a number a member by way of another.
func joins(t *testing.T, a *host, at, n int, name string, c *clockwork) (JoinSpec, error) {
	t.Helper()
	made, err := a.createToken(t.Context(), api.NewToken{Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := JoinSpec{Dir: t.TempDir(), GUID: guid(n), Host: "127.0.0.1:" + port(at), Port: condtest.Port(t),
		Token: strings.Fields(made.Line)[4], Name: name, Now: c.now}
	_, err = Join(t.Context(), s)
	return s, err
}

// TestClientWithoutRoster: a member that has no store of its own and cannot read its roster admits the voters that it
// knew, no other, and gets the roster from them.
func TestClientWithoutRoster(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	at := condtest.Port(t)
	a := newHost(t, t.TempDir(), 1, at, s.Open(), c)
	a.start(t)
	spec, err := joins(t, a, at, 2, "b1", c)
	if err != nil {
		t.Fatal(err)
	}
	b := newHost(t, spec.Dir, 2, spec.Port, s.Open(), c)
	b.start(t)
	third, err := joins(t, a, at, 3, "c1", c)
	if err != nil {
		t.Fatal(err)
	}
	gone := newHost(t, third.Dir, 3, third.Port, s.Open(), c)
	gone.start(t)
	condtest.Until(t, "b follows", func() bool { return b.Roster().ByName("c1") != nil })
	if _, err := a.remove(t.Context(), api.MemberRemoval{Name: "c1", Force: true}); err != nil {
		t.Fatal(err)
	}
	stays := func() bool { // its certificate is of the CA that signs now
		return slices.ContainsFunc(b.kept.Voters, func(x member.Record) bool {
			return x.Name == "a1" || string(x.Certificate) == string(a.cert.Load().Certificate[0])
		})
	}
	condtest.Until(t, "the removal and the new CA", func() bool {
		b.Membership.mu.Lock()
		defer b.Membership.mu.Unlock()
		return b.Roster().ByName("c1") == nil && b.Roster().Renewed() && stays() &&
			!stale(a.cert.Load().Leaf, a.Roster())
	})
	b.Close()
	fourth, err := joins(t, a, at, 4, "d1", c)
	if err != nil {
		t.Fatal(err)
	}
	late := newHost(t, fourth.Dir, 4, fourth.Port, s.Open(), c)
	late.start(t)
	if err := os.Remove(filepath.Join(spec.Dir, "member", "roster.json")); err != nil {
		t.Fatal(err)
	}

	b = newHost(t, spec.Dir, 2, spec.Port, nil, c) // the store is that of the voters
	b.start(t)
	self := peer.Self{Certificate: b.Certificate, Roster: b.Roster, Now: c.now}
	verify := func(h *host) error {
		_, err := self.Verify(c.now(), []*x509.Certificate{h.cert.Load().Leaf})
		return err
	}
	if err := verify(a); err != nil {
		t.Error("the voter is refused:", err)
	}
	if verify(late) == nil || verify(gone) == nil {
		t.Error("a member that it did not know, or that was removed, is admitted")
	}
	c.move(time.Minute)
	condtest.Until(t, "the roster of a voter", func() bool {
		c.move(time.Second)
		return verify(late) == nil && b.Roster().Revision > 0
	})
	if err := verify(gone); err == nil {
		t.Error("a removed member is admitted")
	}
	if slices.ContainsFunc(b.Degraded(), func(d api.Degraded) bool { return d.What == "member_roster" }) {
		t.Errorf("%+v", b.Degraded())
	}
}
