// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"errors"
	"net/http"
	"testing"

	"weft/internal/control/api"
	"weft/internal/mgmt/member"
	"weft/internal/proto/ib"
)

// TestDestination: the master's node handles requests of its users; others go to it. A change needs a role everywhere.
func TestDestination(t *testing.T) {
	const own, other = ib.GUID(1), ib.GUID(2)
	for _, x := range []struct {
		name    string
		roles   member.Role
		change  bool
		master  ib.GUID
		to      ib.GUID
		refused bool
	}{
		{"a read of the master", member.HostRoles, false, own, 0, false},
		{"a read of another", 0, false, other, other, false},
		{"a read without a master", 0, false, 0, 0, false},
		{"a change of the master", member.HostRoles, true, own, 0, false},
		{"a change of another", member.Administrator, true, other, other, false},
		{"a change of a voter", member.Voter, true, other, other, false},
		{"a change without a master", member.HostRoles, true, 0, 0, false},
		{"a change of a leaf", member.Leaf, true, other, 0, true},
		{"a change of a master without the role", member.Manager, true, own, 0, true},
	} {
		to, err := destination(member.Claims{Name: "b", Roles: x.roles}, x.change, own, x.master)
		var e *api.Error
		if to != x.to || (err != nil) != x.refused || err != nil && (!errors.As(err, &e) || e.Code != api.CodeRefused) {
			t.Errorf("%s: %v %v", x.name, to, err)
		}
	}
}

func TestNotMaster(t *testing.T) {
	for _, x := range []struct {
		a    api.Answer
		want bool
	}{
		{api.Answer{Status: http.StatusConflict, Body: []byte(`{"code":"not_master"}`)}, true},
		{api.Answer{Status: http.StatusConflict, Body: []byte(`{"code":"conflict"}`)}, false},
		{api.Answer{Status: http.StatusOK, Body: []byte(`{"code":"not_master"}`)}, false},
		{api.Answer{Status: http.StatusBadGateway, Body: []byte(`?`)}, false},
	} {
		if notMaster(&x.a) != x.want {
			t.Errorf("%+v", x.a)
		}
	}
}
