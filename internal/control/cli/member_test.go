// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/host/rundir"
)

// fakeMembers is a fabric of three members.
type fakeMembers struct{ memberError error }

var fakeTime = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func (f *fakeMembers) Members(context.Context) ([]api.FabricMember, error) {
	all := []string{"voter", "manager", "administrator"}
	return []api.FabricMember{
		{Name: "a1", GUID: "0200:0000:0001:0000", Roles: all, State: "active", Self: true,
			Addresses: []string{"10.0.0.1:4792", "[fd00::1]:4792"}, Joined: fakeTime, By: "the first member",
			CertificateEnds: fakeTime.Add(90 * 24 * time.Hour), Program: "v1.2"},
		{Name: "b1", GUID: "0200:0000:0002:0000", Roles: all, State: "draining", Addresses: []string{"b1.example:4792"},
			Joined: fakeTime, By: "token abcdefgh of a1", CertificateEnds: fakeTime.Add(90 * 24 * time.Hour),
			Program: "v1.2",
			Users: []api.MemberUser{{Kind: "program", Name: "ib_write_bw", PID: 4711, UID: 1000}, {Kind: "guest",
				Name: "web"}}, MoreUsers: 3},
		{Name: "c1", GUID: "0200:0000:0003:0000", Roles: []string{"leaf"}, State: "joining", Joined: fakeTime,
			By: "token abcdefgh of a1", CertificateEnds: fakeTime.Add(90 * 24 * time.Hour)},
	}, f.memberError
}

func (f *fakeMembers) member(name string) (api.FabricMember, error) {
	all, err := f.Members(context.Background())
	for _, m := range all {
		if m.Name == name && err == nil {
			return m, nil
		}
	}
	if err == nil {
		err = &api.Error{Code: api.CodeNotFound, Why: "there is no member " + name, Fix: "weft member list"}
	}
	return api.FabricMember{}, err
}

func (f *fakeMembers) RenameMember(name, to string) error {
	_, err := f.member(name)
	return err
}

func (f *fakeMembers) SetMember(name, role string) error {
	m, err := f.member(name)
	if err == nil && role == "leaf" && len(m.Roles) > 1 {
		err = &api.Error{Code: api.CodeConflict, Why: name + " is a voter: a leaf is neither voter nor manager",
			Fix: "weft member remove " + name}
	}
	return err
}

func (f *fakeMembers) TrunkPlan(context.Context) (api.TrunkPlan, error) {
	pod := 0
	return api.TrunkPlan{Form: "spines", Members: []api.PlannedMember{
		{Name: "a1", Level: "spine", Pod: &pod, Trunks: 3, Ports: 36, Settled: true},
		{Name: "b1", Level: "spine", Pod: &pod, Trunks: 3, Ports: 160},
		{Name: "c1", Level: "leaf", Pod: &pod, Trunks: 2, Ports: 36},
		{Name: "d1"},
	}, Trunks: []api.PlannedTrunk{
		{A: "a1", B: "b1", State: "up"},
		{A: "a1", B: "c1", State: "up"},
		{A: "b1", B: "c1", State: "missing", Why: "neither has reported that its trunks are up"},
		{A: "a1", B: "d1", State: "surplus", Why: "of the plan before: it goes when all have their trunks"},
	}, Limits: []api.PlanLimit{
		{What: "no_port", Members: []string{"d1"}, Why: "the switch has no port for a trunk beside devices",
			Fix: "weft up --switch-ports 20, there"},
		{What: "three_levels", Note: true, Members: []string{"a1"}, Why: "paths have up to 5 trunks",
			Fix: "weft up --switch-ports 142, on 16 members"},
	}}, f.memberError
}

func (f *fakeMembers) DrainMember(_ context.Context, name string, d api.MemberDrain) (api.FabricMember, error) {
	m, err := f.member(name)
	if m.Name != "" && !d.Drain {
		m.State = "active"
	}
	return m, err
}

func (f *fakeMembers) RemoveMember(_ context.Context, r api.MemberRemoval) (api.RemovedMember, error) {
	m, err := f.member(r.Name)
	if err == nil && m.State != "drained" && !r.Force {
		err = &api.Error{Code: api.CodeConflict, Why: "it is " + m.State + ", and programs may use it",
			Fix: "weft member remove --force " + m.Name}
	}
	if err != nil {
		return api.RemovedMember{}, err
	}
	return api.RemovedMember{Name: m.Name, Replaced: []string{"sessions", "tokens", "M_Key", "CA"}}, nil
}

func (f *fakeMembers) RotateSecrets(context.Context) (api.RotatedSecrets, error) {
	return api.RotatedSecrets{Replaced: []string{"tokens", "M_Key"},
		Begun: []string{"CA", "certificates"}}, f.memberError
}

func (f *fakeMembers) Tokens(context.Context) ([]api.Token, error) {
	return []api.Token{{ID: "abcdefgh", Roles: []string{"voter", "manager", "administrator"}, Uses: 40, Used: 2,
		Ends: fakeTime.Add(time.Hour), By: "a1"}, {ID: "ijklmnop", Roles: []string{"leaf"}, Used: 7,
		Ends: fakeTime.Add(2 * time.Hour), By: "a1"}}, f.memberError
}

func (f *fakeMembers) CreateToken(_ context.Context, n api.NewToken) (api.Token, error) {
	return api.Token{ID: "qrstuvwx", Roles: []string{"voter", "manager", "administrator"}, Uses: n.Uses,
			Ends: fakeTime.Add(n.LifeNS), By: "a1", Founded: "0123456789abcdef",
			Line: "weft join 10.0.0.1 --token qrstuvwx.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa." +
				"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"},
		f.memberError
}

func (f *fakeMembers) DeleteToken(_ context.Context, id string) error {
	if id != "abcdefgh" {
		return &api.Error{Code: api.CodeNotFound, Why: "there is no token " + id, Fix: "weft token list"}
	}
	return f.memberError
}

// fakeJoin joins every host but one with the token "old".
func fakeJoin(_ context.Context, s JoinSpec) (Joined, error) {
	d, err := rundir.Acquire(s.Dir, 0o700)
	if err != nil {
		return Joined{}, err
	}
	defer d.Close()
	if s.Token == "old" {
		return Joined{}, &api.Error{Code: api.CodeRefused, What: "cannot join the fabric",
			Why: "the token abcdefgh ended 2026-11-23 12:00:00 UTC", Fix: "weft token, on a member, prints a new one"}
	}
	return Joined{Name: "b1", Fabric: "0123456789abcdef", Members: 3, Roles: "voter,manager", Warnings: []string{
		"the MTU is 1500 here and 9000 at 10.0.0.1: the trunk uses 1500. " +
			"fix: ip link set DEVICE mtu 9000, on both"}}, nil
}

func fakeLeave(dir string) error {
	d, err := rundir.Acquire(dir, 0o700)
	if err != nil {
		return err
	}
	return d.Close()
}

// TestJoinSettings: weft join takes the settings of a node that can be a member and passes those that are given on, but
// no token.
func TestJoinSettings(t *testing.T) {
	a := &app{env: Env{Getenv: func(string) string { return "" }}, dir: t.TempDir()}
	cmd := joinCommand(a)
	f := cmd.Flags()
	if err := f.Parse([]string{"--token", "secret", "--name", "b1", "--roce-allow", "10.0.0.0/24,fd00::/64", "--lanes=3",
		"--trunk-port", "4800", "--no-start"}); err != nil {
		t.Fatal(err)
	}
	want := []string{"--lanes=3", "--roce-allow=10.0.0.0/24,fd00::/64", "--trunk-port=4800"}
	if got := upArguments(f); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	c, err := a.loadConfig(f, "")
	if err != nil || c.TrunkPort != 4800 || len(c.RoCEAllow) != 2 || c.Lanes != 3 {
		t.Errorf("%v, %+v", err, c)
	}
	for _, name := range []string{"peer", "idle-exit", "trunk-key-file"} {
		if f.Lookup(name) != nil {
			t.Errorf("a member takes --%s", name)
		}
	}
}
