// SPDX-License-Identifier: Apache-2.0

package member

import (
	"maps"
	"testing"

	"weft/internal/proto/ib"
)

// TestTransits: the roles that permit a member to carry packets of third members, for all sets of roles.
func TestTransits(t *testing.T) {
	for r := range allRoles + 1 {
		want := r&(Voter|Manager|Administrator) != 0 && r&Leaf == 0
		if r.Transits() != want {
			t.Errorf("%v: %v", r, r.Transits())
		}
		if err := r.Assignable(); r.Has(Spine) && !want && err == nil {
			t.Errorf("%v is assignable, and a spine that carries nothing", r)
		}
	}
	r := &Roster{Members: []Record{{GUID: 1, Roles: HostRoles}, {GUID: 2}, {GUID: 3, Roles: Leaf},
		{GUID: 4, Roles: Spine}, {GUID: 7, Roles: Spine | Voter}, {GUID: 5, Roles: Leaf | Administrator},
		{GUID: 6, Roles: Manager}}}
	if got, want := r.Transit(), (map[ib.GUID]bool{1: true, 6: true, 7: true}); !maps.Equal(got, want) {
		t.Errorf("transit by %v, want %v", got, want)
	}
	if r.Members = nil; r.Transit() == nil {
		t.Error("a fabric without such a member is one in which every switch may carry packets")
	}
}
