// SPDX-License-Identifier: Apache-2.0

package member

import (
	"strings"
	"testing"
)

// TestMayForward: each member reads; administrators change.
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
		if p := MayForward(c, false); (p == nil) != x.read {
			t.Errorf("%v reads: %v", x.roles, p)
		}
		p := MayForward(c, true)
		if (p == nil) != x.change {
			t.Errorf("%v changes: %v", x.roles, p)
		}
		if p != nil && (!strings.Contains(p.Why, "b1 has the roles") || p.Fix == "") {
			t.Errorf("the refusal is %v", p)
		}
	}
}
