// SPDX-License-Identifier: Apache-2.0

package member

import (
	"strings"
	"testing"
)

// TestMayForward: each member reads, but the history, which the store shows to members with a role alone;
// administrators change.
func TestMayForward(t *testing.T) {
	for _, x := range []struct {
		roles  Role
		read   bool
		change bool
	}{
		{0, true, false},
		{Leaf, true, false},
		{Manager, true, false},
		{Manager | Leaf, true, false},
		{Administrator, true, true},
		{Voter, true, false},
		{Voter | Manager, true, false},
		{Administrator | Leaf, true, true},
		{HostRoles, true, true},
	} {
		c := Claims{Name: "b1", Roles: x.roles}
		if p := MayForward(c, false, ""); (p == nil) != x.read {
			t.Errorf("%v reads: %v", x.roles, p)
		}
		for _, tree := range []string{treeHistory, TreeToken, TreeReport, "subnet"} {
			store, forwarded := MayAccess(c, tree, "", false), MayForward(c, false, tree)
			if (store == nil) != (forwarded == nil) {
				t.Errorf("%v reads %s: from the store %v, from the master %v", x.roles, tree, store, forwarded)
			}
		}
		if p := MayForward(c, false, treeHistory); (p == nil) != (x.roles&HostRoles != 0) {
			t.Errorf("%v reads the history: %v", x.roles, p)
		}
		p := MayForward(c, true, "")
		if (p == nil) != x.change {
			t.Errorf("%v changes: %v", x.roles, p)
		}
		if p != nil && (!strings.Contains(p.Why, "b1 has the roles") || p.Fix == "") {
			t.Errorf("the refusal is %v", p)
		}
	}
}
