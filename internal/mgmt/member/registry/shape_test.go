// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/shape"
	"weft/internal/mgmt/store"
)

// upkeep is what a voter does after changes.
func (l *lab) upkeep(h *host) {
	l.t.Helper()
	for again := true; again; {
		var err error
		if again, err = h.Advance(l.t.Context()); err != nil {
			l.t.Fatal(err)
		}
	}
}

// TestPlaces has members join until there are leaves and spines: a voter notes where each is, and what members report
// about their switches is in the roster of all.
func TestPlaces(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	hosts := []*host{a}
	for n := 2; n <= shape.MeshLimit+1; n++ {
		l.now = l.now.Add(time.Second)
		hosts = append(hosts, l.join(a, n, fmt.Sprintf("a%d", n)))
	}
	l.upkeep(a)
	r, err := a.Roster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	plan := r.Shape()
	spines := 0
	for _, m := range r.Members {
		if m.Place != plan.Place(m.GUID) {
			t.Errorf("%s: %+v is in the record, planned is %+v", m.Name, m.Place, plan.Place(m.GUID))
		}
		if m.Place.Level == shape.Spine {
			spines++
		}
	}
	if plan.Form != shape.Spines || spines != 2 {
		t.Errorf("%v with %d spines, want 2", plan.Form, spines)
	}

	// A member reports a larger switch, and that its trunks are up.
	g := guid(9)
	report := member.Report{Incarnation: 1, Clock: l.now,
		Switch: member.Switch{Ports: 200, Devices: 4, Settled: plan.Mark(g)}}
	if err := hosts[8].Report(t.Context(), report); err != nil {
		t.Fatal(err)
	}
	l.upkeep(a)
	if r, err = a.Roster(t.Context()); err != nil {
		t.Fatal(err)
	}
	settled := r.Settled(plan)
	if m := r.ByName("a9"); m.Switch != report.Switch || !settled(g) || settled(guid(8)) {
		t.Errorf("%+v, settled: %v, another: %v", m.Switch, settled(g), settled(guid(8)))
	}
	if p := r.Shape(); p.Place(g).Level != shape.Leaf {
		t.Errorf("a larger switch takes the place of a spine: %v", p.Place(g))
	}
	if err := a.SetShape(t.Context(), "a9", member.Spine); err != nil {
		t.Fatal(err)
	}
	l.upkeep(a)
	if r, err = a.Roster(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m := r.ByName("a9"); m.Place.Level != shape.Spine || !m.Roles.Has(member.Spine|member.Voter) {
		t.Errorf("with the role: %v, %v", m.Place, m.Roles)
	}
}

func TestSetShape(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	s := l.token(a, TokenSpec{Roles: member.Spine | member.Manager})
	b := l.host(2)
	answer, err := a.Join(t.Context(), l.request(b, 2, "b1", s), 1500, "10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	b.cert = parse(t, answer.Certificate, nil)
	plain := l.token(a, TokenSpec{Roles: member.Leaf})
	if _, err := a.Join(t.Context(), l.request(l.host(3), 3, "c1", plain), 1500, "10.0.0.1"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, fault string
		role, want  member.Role
	}{
		{"b1", "", 0, member.Manager},
		{"b1", "", member.Spine, member.Spine | member.Manager},
		{"c1", "a spine carries management packets of others", member.Spine, 0},
		{"c1", "", member.Leaf, member.Leaf},
		{"c1", "", 0, 0},
		{"a1", "a leaf is neither voter nor manager", member.Leaf, 0},
		{"x", "there is no member x", member.Leaf, 0},
	} {
		err := a.SetShape(t.Context(), c.name, c.role)
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%s %v: %v, want %q", c.name, c.role, err, c.fault)
			}
			continue
		}
		r, e := a.Roster(t.Context())
		if err != nil || e != nil || r.ByName(c.name).Roles != c.want {
			t.Errorf("%s %v: %v, %v", c.name, c.role, err, r.ByName(c.name).Roles)
		}
	}
	// The certificate has the role after the next renewal, and the roles of both count.
	if err := a.SetShape(t.Context(), "b1", member.Spine); err != nil {
		t.Fatal(err)
	}
	answer, err = a.Renew(t.Context(), b.cert)
	if err != nil {
		t.Fatal(err)
	}
	x, err := member.ClaimsOf(parse(t, answer.Certificate, nil))
	if err != nil || x.Roles != member.Spine|member.Manager {
		t.Errorf("renewed: %v, %v", x.Roles, err)
	}
}

// TestReportedChanges: a member that reports another switch again and again, or programs and none while it is drained,
// has the records change a few times, then now and then.
func TestReportedChanges(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	b := l.join(a, 2, "b1")
	kinds := []func(i int, p *member.Report){
		func(i int, p *member.Report) { p.Switch = member.Switch{Ports: 100 + i%2, Devices: 4} },
		func(i int, p *member.Report) { p.Users = make([]member.User, i%2) }, // of one that is drained
	}
	kind := 0
	changes := func(n int) (changed int) {
		t.Helper()
		for i := range n {
			before := l.roster(a).Revision
			p := member.Report{Incarnation: 1, Clock: l.now, Switch: member.Switch{Ports: 101, Devices: 4}}
			kinds[kind](i, &p)
			if err := b.Report(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			l.upkeep(a)
			if l.roster(a).Revision != before {
				changed++
			}
			l.now = l.now.Add(time.Second)
		}
		return changed
	}
	changes(1) // the member is active
	for kind = range kinds {
		l.now = l.now.Add(10 * time.Minute)
		if n := changes(15); n < 7 || n > 9 {
			t.Errorf("%d: %d changes at once", kind, n)
		}
		if n := changes(60); n > 6 {
			t.Errorf("%d: %d changes in a minute", kind, n)
		}
		l.now = l.now.Add(10 * time.Minute)
		if n := changes(2); n == 0 {
			t.Errorf("%d: no change later", kind)
		}
		if err := a.SetDrain(t.Context(), "b1", true, false); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSpineAway: a spine without a connection to the store is a leaf after a while, with another in its place, by each
// voter that has looked for so long; one that looks for the first time changes nothing. When it returns it can be a
// spine again, and members of which no connection is known stay where they are.
func TestSpineAway(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	connect := func(n int) {
		t.Helper()
		key := member.TreeStorePresent + "/" + member.GUIDKey(guid(n))
		if _, err := store.Put(t.Context(), l.store, key, nil); err != nil {
			t.Fatal(err)
		}
	}
	for n := 1; n <= shape.MeshLimit+2; n++ {
		l.now = l.now.Add(time.Second)
		h := a
		if n > 1 {
			h = l.join(a, n, fmt.Sprintf("a%d", n))
		}
		if n < shape.MeshLimit { // others have their store elsewhere
			if err := h.Report(t.Context(), member.Report{Incarnation: 1, Clock: l.now,
				Store: fmt.Sprintf("h%d:4793", n)}); err != nil {
				t.Fatal(err)
			}
			connect(n)
		}
	}
	spines := func() (list []string) {
		for _, m := range l.roster(a).Members {
			if m.Place.Level == shape.Spine {
				list = append(list, m.Name)
			}
		}
		return list
	}
	l.upkeep(a)
	before := spines()
	if len(before) != 2 {
		t.Fatalf("spines %v", before)
	}
	gone := l.roster(a).ByName(before[0])
	key := member.TreeStorePresent + "/" + member.GUIDKey(gone.GUID)
	if _, err := l.store.Txn(t.Context(), store.Txn{Do: []store.Op{store.DeleteOp(key)}}); err != nil {
		t.Fatal(err)
	}
	l.upkeep(a)
	l.now = l.now.Add(AwayAfter - time.Second)
	l.upkeep(a)
	late := New(a.cfg)
	late.Advance(t.Context())
	if now := spines(); !slices.Equal(now, before) {
		t.Errorf("spines %v at once, were %v", now, before)
	}
	l.now = l.now.Add(time.Second)
	if again, err := late.Advance(t.Context()); again || err != nil {
		t.Errorf("a voter that looked for a second changes something: %v", err)
	}
	l.upkeep(a)
	if now := spines(); len(now) != 2 || slices.Contains(now, gone.Name) || !slices.Contains(now, before[1]) {
		t.Errorf("spines %v, were %v", now, before)
	}
	for _, r := range []*Registry{a.Registry, late} {
		if again, err := r.Advance(t.Context()); again || err != nil {
			t.Errorf("it does not stay: %v", err)
		}
	}
	if err := a.SetShape(t.Context(), gone.Name, member.Spine); err != nil {
		t.Fatal(err)
	}
	l.upkeep(a)
	if slices.Contains(spines(), gone.Name) {
		t.Error("a member that is away is a spine, and there are others")
	}
	for n := 1; n < shape.MeshLimit; n++ {
		connect(n)
	}
	l.upkeep(a)
	if !slices.Contains(spines(), gone.Name) || l.roster(a).ByName(gone.Name).Away {
		t.Errorf("spines %v: %s is back, with the role spine", spines(), gone.Name)
	}
}
