// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/mgmt/store"
	"weft/internal/proto/condtest"
)

// TestLeaveAndJoin: a host that left is still in the records. It is refused with the command that makes room, and that
// does.
func TestLeaveAndJoin(t *testing.T) {
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
	b := newHost(t, spec.Dir, 2, spec.Port, nil, c)
	if err := b.Open(); err != nil {
		t.Fatal(err)
	}
	if err := b.dir.Leave(); err != nil {
		t.Fatal(err)
	}
	again := func() error { _, err := joins(t, a, at, 2, "b1", c); return err }
	const fix = "weft member remove --force b1"
	if err := again(); err == nil || !strings.Contains(err.Error(), fix) {
		t.Errorf("refused without %q: %v", fix, err)
	}
	if _, err := a.remove(t.Context(), api.MemberRemoval{Name: "b1", Force: true}); err != nil {
		t.Fatal(err)
	}
	condtest.Until(t, "the new CA", func() bool {
		return a.Roster().ByName("b1") == nil && a.Roster().Renewed() && !stale(a.cert.Load().Leaf, a.Roster())
	})
	if err := again(); err != nil {
		t.Error(err)
	}
	for _, x := range []string{rejoin("b1"), out("b1", "x").Fix} {
		if !strings.Contains(x, fix) {
			t.Errorf("%q", x)
		}
	}
}
