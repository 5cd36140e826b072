// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft/internal/proto/ib"
)

// epoch is when the first member of a test joined.
var epoch = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// someone is member number i, with ports for trunks.
func someone(i, ports int) Member {
	return Member{GUID: ib.GUID(0x0200_0000_0000_0001 + uint64(i)<<16), Name: fmt.Sprintf("m%d", i),
		Joined: epoch.Add(time.Duration(i) * time.Minute), Ports: ports}
}

func some(n, ports int) (list []Member) {
	for i := range n {
		list = append(list, someone(i, ports))
	}
	return list
}

// usual are the ports for trunks of a member with default settings.
var usual = TrunkPorts(36, 1, 0)

// drawMembers draws a fabric: its size, roles, ports, ages and places.
func drawMembers(t *rapid.T) []Member {
	n := rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(0, 180)).Draw(t, "members")
	ports := rapid.SampledFrom([][]int{{usual}, {250}, {usual, usual, usual, 250}, {0, 1, 2, 3, 5, 9}, {2}, {3, 4}}).
		Draw(t, "ports")
	roles := rapid.SampledFrom([][]Role{{AnyRole}, {AnyRole, LeafRole}, {LeafRole, LeafRole, AnyRole, SpineRole},
		{LeafRole}}).Draw(t, "roles")
	confined := rapid.SampledFrom([][]bool{{false}, {false, true}, {true, true, true, true, false}, {true}}).
		Draw(t, "confined")
	places := rapid.Bool().Draw(t, "places")
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	list := some(n, 0)
	for i := range list {
		m := &list[i]
		m.GUID ^= ib.GUID(rng.Uint64() >> 48)
		m.Ports, m.Role = ports[rng.IntN(len(ports))], roles[rng.IntN(len(roles))]
		m.Confined = confined[rng.IntN(len(confined))]
		m.Joined, m.Drained = epoch.Add(time.Duration(rng.IntN(n))*time.Minute), rng.IntN(9) == 0
		if places { // of any plan, also an impossible one
			m.Place = Place{Level: Level(rng.IntN(4)), Pod: uint8(rng.IntN(12)), Up: uint8(rng.IntN(4))}
		}
	}
	return list
}

// reach returns the distances of the members that are connected with the first one, without those that are dead, by
// paths that lead only through members that may carry packets of others.
func reach(p *Plan, list []Member, from ib.GUID, dead ...ib.GUID) map[ib.GUID]int {
	far := map[ib.GUID]int{from: 0}
	ends := map[ib.GUID]bool{}
	for i := range list {
		ends[list[i].GUID] = !list[i].transits() && list[i].GUID != from
	}
	for queue := []ib.GUID{from}; len(queue) > 0; queue = queue[1:] {
		if ends[queue[0]] {
			continue
		}
		for _, o := range p.Peers(queue[0]) {
			if _, seen := far[o]; !seen && !slices.Contains(dead, o) {
				far[o] = far[queue[0]] + 1
				queue = append(queue, o)
			}
		}
	}
	return far
}

// treeExists reports whether members can be connected at all, if only some may carry packets of others: by degrees.
func treeExists(list []Member) bool {
	ports, hubs, leaves := 0, 0, 0
	for _, m := range list {
		switch {
		case m.Ports == 0:
			return false
		case m.transits():
			hubs, ports = hubs+1, ports+m.Ports
		default:
			leaves++
		}
	}
	return len(list) < 2 || hubs > 0 && ports-2*(hubs-1) >= leaves
}

func TestPlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := drawMembers(t)
		p := New(list)
		ports, role, transits := map[ib.GUID]int{}, map[ib.GUID]Role{}, map[ib.GUID]bool{}
		for _, m := range list {
			ports[m.GUID], role[m.GUID], transits[m.GUID] = m.Ports, m.Role, m.transits()
		}
		seen := map[Pair]bool{}
		for _, x := range p.Trunks {
			if x.A >= x.B || seen[x] {
				t.Fatalf("trunk %v is twice, or in the wrong order", x)
			}
			seen[x] = true
			if role[x.A] == LeafRole && role[x.B] == LeafRole {
				t.Fatalf("%v: neither can be reached", x)
			}
			if !p.Wants(x.A, x.B) || !p.Wants(x.B, x.A) {
				t.Fatalf("%v is in the peers of one only", x)
			}
		}
		ends := 0
		for g, n := range ports {
			ends += len(p.Peers(g))
			if len(p.Peers(g)) > n {
				t.Fatalf("%v has %d trunks and %d ports", g, len(p.Peers(g)), n)
			}
			if pl := p.Place(g); !transits[g] && pl.Level > Leaf {
				t.Fatalf("%v is %v, and may not carry packets of others", g, pl.Level)
			}
		}
		if ends != 2*len(p.Trunks) {
			t.Fatalf("%d ends of %d trunks", ends, len(p.Trunks))
		}
		if len(list) > 0 {
			together := len(reach(p, list, list[0].GUID))
			if together < len(list) && treeExists(list) {
				t.Fatalf("%v: %d of %d are connected, and all could be", p.Form, together, len(list))
			}
			if together < len(list) && !slices.ContainsFunc(p.Limits, func(l Limit) bool { return !l.Kind.Note() }) {
				t.Fatal("some are cut off, and no limit is reported")
			}
		}
		// A member without a trunk is named.
		named := map[ib.GUID]bool{}
		whole := true
		for _, l := range p.Limits {
			if len(l.Members) == 0 || l.Why == "" || l.Fix == "" {
				t.Fatalf("limit without members, reason or fix: %+v", l)
			}
			whole = whole && l.Kind.Note()
			for _, g := range l.Members {
				named[g] = true
			}
		}
		for _, m := range list {
			if len(list) > 1 && len(p.Peers(m.GUID)) == 0 && !named[m.GUID] {
				t.Fatalf("%s has no trunk, and no limit names it", m.Name)
			}
		}
		if whole && len(list) > 2 {
			survives(t, p, list)
		}
		sameEverywhere(t, p, list)
	})
}

// survives checks that the end of any member leaves the others connected.
func survives(t interface{ Fatalf(string, ...any) }, p *Plan, list []Member) {
	for i, dead := range list {
		if p.Place(dead.GUID).Level == Leaf && i%16 != 0 || len(list) > 200 && i%5 != 0 {
			continue // a leaf forwards nothing, and of many members some are enough
		}
		from := list[0].GUID
		if from == dead.GUID {
			from = list[1].GUID
		}
		if n := len(reach(p, list, from, dead.GUID)); n != len(list)-1 {
			t.Fatalf("%v: after the end of %s %d of %d are connected", p.Form, dead.Name, n, len(list)-1)
		}
	}
}

// sameEverywhere checks that the order of the members does not matter, and that a plan is the plan of its own places.
func sameEverywhere(t interface{ Fatalf(string, ...any) }, p *Plan, list []Member) {
	other := slices.Clone(list)
	slices.SortFunc(other, func(a, b Member) int { return cmp.Compare(b.GUID, a.GUID) })
	if q := New(other); !reflect.DeepEqual(p, q) {
		t.Fatalf("another order of the members gives another plan")
	}
	// Places of no plan may need a second one, and in one of 20,000 draws a third.
	q := New(placed(p, list))
	r := New(placed(q, list))
	if last := New(placed(r, list)); differ(r, last) > 0 {
		t.Fatalf("%v, %v, %v: the plan of its own places differs by %d trunks: %v", p.Form, q.Form, r.Form,
			differ(r, last), last.Form)
	}
	if slices.IndexFunc(list, func(m Member) bool { return m.Place != Place{} }) < 0 && differ(p, q) > 0 {
		t.Fatalf("%v: the first plan of its places differs by %d trunks: %v", p.Form, differ(p, q), q.Form)
	}
}

// placed are the members with the places of a plan.
func placed(p *Plan, list []Member) []Member {
	list = slices.Clone(list)
	for i := range list {
		list[i].Place = p.Place(list[i].GUID)
	}
	return list
}

// differ counts the trunks that one of two plans has.
func differ(p, q *Plan) int {
	n, of := 0, map[Pair]bool{}
	for _, x := range p.Trunks {
		of[x] = true
	}
	for _, x := range q.Trunks {
		if !of[x] {
			n++
		}
	}
	return n + len(p.Trunks) - (len(q.Trunks) - n)
}

func TestMesh(t *testing.T) {
	for n := range MeshLimit + 1 {
		p := New(some(n, usual))
		if p.Form != Mesh || len(p.Trunks) != n*(n-1)/2 || len(p.Limits) > 0 {
			t.Errorf("%d members: %v with %d trunks, %v", n, p.Form, len(p.Trunks), p.Limits)
		}
	}
	list := some(5, usual)
	list[1].Role, list[3].Role = LeafRole, LeafRole
	if p := New(list); len(p.Trunks) != 9 || p.Wants(list[1].GUID, list[3].GUID) {
		t.Errorf("two that cannot be reached: %d trunks", len(p.Trunks))
	}
}

// longest is the longest of all shortest paths, in trunks.
func longest(p *Plan, list []Member) (most int) {
	for _, m := range list {
		for _, n := range reach(p, list, m.GUID) {
			most = max(most, n)
		}
	}
	return most
}

// TestForms has the forms of fabrics of members with equal switches.
func TestForms(t *testing.T) {
	for _, c := range []struct {
		members, ports       int
		form                 Form
		cores, spines, hops  int
		mostLeaves, maxTrunk int // of a pod; of a member
	}{
		{16, usual, Mesh, 0, 0, 1, 0, 15},
		{17, usual, Spines, 0, 2, 2, 15, 16},
		{18, usual, Spines, 0, 2, 2, 16, 17},
		{19, usual, Spines, 0, 4, 3, 8, 11},
		{40, usual, Spines, 0, 6, 3, 12, 17},
		{144, usual, Spines, 0, 16, 3, 16, 31},
		{152, usual, Spines, 0, 16, 3, 17, 32},
		{153, usual, Cores, 2, 10, 4, 29, 32},
		{400, usual, Cores, 2, 26, 4, 29, 32},
		{1000, usual, Cores, 6, 66, 5, 29, 32},
		{1000, TrunkPorts(160, 1, 0), Spines, 0, 16, 3, 123, 138},
	} {
		t.Run(fmt.Sprint(c.members, "/", c.ports), func(t *testing.T) {
			list := some(c.members, c.ports)
			p := New(list)
			count := map[Level]int{}
			pods := map[uint8]int{}
			trunks := 0
			for _, m := range list {
				pl := p.Place(m.GUID)
				count[pl.Level]++
				if pl.Level == Leaf {
					pods[pl.Pod]++
				}
				trunks = max(trunks, len(p.Peers(m.GUID)))
			}
			least, most := 0, 0
			for _, n := range pods {
				if most = max(most, n); least == 0 || n < least {
					least = n
				}
			}
			if most-least > 1 {
				t.Errorf("pods have %d to %d leaves", least, most)
			}
			got := fmt.Sprint(p.Form, count[Core], count[Spine], longest(p, list), most, trunks)
			if want := fmt.Sprint(c.form, c.cores, c.spines, c.hops, c.mostLeaves, c.maxTrunk); got != want {
				t.Errorf("form, cores, spines, hops, leaves of a pod, trunks: %s, want %s", got, want)
			}
			for _, l := range p.Limits {
				if l.Kind != ThreeLevels || c.form != Cores {
					t.Errorf("%v: %s. fix: %s", l.Kind, l.Why, l.Fix)
				}
			}
			survives(t, p, list)
		})
	}
}

// TestWideSpines gives sixteen of 1,000 members larger switches: these become the spines, and the levels are two.
func TestWideSpines(t *testing.T) {
	list := some(1000, usual)
	b := newBuilder(list)
	if got := b.enough(1000); got != 142 {
		t.Errorf("switches of %d ports are enough, want 142", got)
	}
	for i := range 16 {
		list[i*61].Ports = TrunkPorts(142, 1, 0)
	}
	p := New(list)
	if n := longest(p, list); p.Form != Spines || n != 3 || len(p.Limits) > 0 {
		t.Errorf("%v, the longest path has %d trunks: %v", p.Form, n, p.Limits)
	}
	for i := range 16 {
		if pl := p.Place(list[i*61].GUID); pl.Level != Spine {
			t.Errorf("%s is %v", list[i*61].Name, pl)
		}
	}
}

func TestRoles(t *testing.T) {
	list := some(60, usual)
	for _, i := range []int{11, 23, 35, 47, 59} {
		list[i].Role = SpineRole
	}
	for i := range 11 {
		list[i].Role = LeafRole
	}
	before := New(some(60, usual))
	for k, l := range [][]Member{list, placed(before, list)} {
		p := New(l)
		for _, m := range l {
			got := p.Place(m.GUID).Level
			if m.Role == SpineRole && got != Spine || m.Role == LeafRole && got != Leaf {
				t.Errorf("%d: %s with role %d is %v", k, m.Name, m.Role, got)
			}
		}
		// Five are named, and one makes the number even.
		if n := spines(p); n != 6 {
			t.Errorf("%d: %d spines, want 6", k, n)
		}
	}
}

// TestDrained drains spines: others take their seats, and the trunks of all others stay.
func TestDrained(t *testing.T) {
	for _, n := range []int{40, 200} {
		list := some(n, usual)
		p := New(list)
		list = placed(p, list)
		for i := range list {
			if list[i].Place.Level >= Spine && list[i].Place.Pod == 0 {
				list[i].Drained = true
				break
			}
		}
		q := New(list)
		for _, m := range list {
			if m.Drained != (m.Place.Level >= Spine && q.Place(m.GUID).Level == Leaf) {
				t.Errorf("%d: %s was %v and is %v", n, m.Name, m.Place, q.Place(m.GUID))
			}
		}
	}
	list := some(17, usual)
	for i := range list {
		list[i].Drained = true
	}
	if p := New(list); p.Form != Spines || len(p.Limits) > 0 {
		t.Errorf("all are drained: %v, %v", p.Form, p.Limits)
	}
}

func TestLimits(t *testing.T) {
	kinds := func(list []Member) string {
		var all []Kind
		for _, l := range New(list).Limits {
			all = append(all, l.Kind)
		}
		return fmt.Sprint(all)
	}
	one := some(3, usual)
	one[1].Ports = 0
	nat := some(20, usual)
	for i := range 19 {
		nat[i].Role = LeafRole
	}
	none := some(3, usual)
	for i := range none {
		none[i].Role = LeafRole
	}
	tight := some(20, 5)
	tight[3].Ports = 1
	full := some(40, 250)
	for i := range full {
		full[i].Role = SpineRole
	}
	wide := some(20, usual)
	wide[19].Ports = 1
	plain := func(n, ports, open int) []Member {
		list := some(n, ports)
		for i := range list {
			list[i].Confined = i < n-open
		}
		return list
	}
	apart := plain(5, usual, 1)
	apart[0].Role, apart[1].Role = LeafRole, LeafRole
	for _, c := range []struct {
		name string
		list []Member
		want string
	}{
		{"no port", one, "[no_port]"},
		{"one carries packets of others, and all have trunks to each other", plain(16, usual, 1), "[]"},
		{"one carries packets of others, and two have no trunk", apart, "[single_spine]"},
		{"one of many carries packets of others", plain(17, usual, 1), "[single_spine]"},
		{"two of many carry packets of others", plain(30, usual, 2), "[]"},
		{"three of too many carry packets of others", plain(120, usual, 3), "[narrow unplaced single_trunk]"},
		{"one of too many carries packets of others", plain(60, usual, 1), "[narrow unplaced single_spine]"},
		{"none of many carries packets of others", plain(17, usual, 0), "[no_reachable]"},
		{"one spine", nat, "[single_spine]"},
		{"none reachable", none, "[no_reachable]"},
		{"few ports", tight, "[narrow single_trunk]"},
		{"too few ports", some(30, 1), "[narrow unplaced single_trunk]"},
		{"all are spines", full, "[spare_roles]"},
		{"a leaf with one port", wide, "[single_trunk]"},
		{"three levels", some(200, usual), "[three_levels]"},
	} {
		if got := kinds(c.list); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	// The fix of a limit removes it.
	fixed := some(20, 5)
	b := newBuilder(fixed)
	for i := range 2 * podsFor(20) {
		fixed[i].Ports, fixed[i].Role = TrunkPorts(b.enough(20), 0, 0), SpineRole
	}
	if got := kinds(fixed); got != "[]" {
		t.Errorf("after the fix: %s", got)
	}
}

func TestTrunkPorts(t *testing.T) {
	for _, c := range []struct{ ports, devices, static, want int }{
		{36, 1, 0, 32}, {36, 4, 0, 32}, {36, 9, 0, 27}, {36, 1, 3, 29}, {4, 1, 0, 0}, {2, 1, 2, 0}, {254, 1, 0, 250}} {
		if got := TrunkPorts(c.ports, c.devices, c.static); got != c.want {
			t.Errorf("TrunkPorts(%d, %d, %d) = %d, want %d", c.ports, c.devices, c.static, got, c.want)
		}
	}
}

// change plans after a join or a leave and returns how many trunks changed, and the members with their new places.
func change(list []Member, p *Plan) ([]Member, *Plan, int) {
	q := New(list)
	return placed(q, list), q, differ(p, q)
}

// TestJoinsChangeFew has members join one after another, and leave at random. What a join or a leave changes has a
// bound: see docs/adr/0022-shape.md.
func TestJoinsChangeFew(t *testing.T) {
	for _, c := range []struct{ ports, upTo, leaf, mean int }{{usual, 300, 2, 10}, {250, 400, 2, 8}} {
		t.Run(fmt.Sprint(c.ports), func(t *testing.T) {
			var list []Member
			p := New(nil)
			sum, pods := 0, 0
			for i := range c.upTo {
				n, old := 0, p
				list, p, n = change(append(list, someone(i, c.ports)), p)
				sum += n
				if i < MeshLimit {
					continue
				}
				if spines(p) == spines(old) && n > c.leaf {
					t.Fatalf("the join of %d changes %d trunks, at most %d may", i, n, c.leaf)
				}
				if spines(p) != spines(old) {
					pods = max(pods, n)
				}
			}
			if mean := float64(sum) / float64(c.upTo); mean > float64(c.mean) {
				t.Errorf("a join changes %.1f trunks in the mean, at most %d may", mean, c.mean)
			}
			t.Logf("a join changes %.1f trunks in the mean, %d where a pod is added", float64(sum)/float64(c.upTo),
				pods)
			rng := rand.New(rand.NewPCG(5, 6))
			sum = 0
			for range c.upTo - 150 {
				i := rng.IntN(len(list))
				gone, n, old := list[i], 0, p
				list, p, n = change(slices.Delete(slices.Clone(list), i, i+1), p)
				own := len(old.Peers(gone.GUID))
				sum += n
				// Its own, as many for the one in its place, the two that this had, and four of one that moves.
				if spines(p) == spines(old) && n > 2*own+2+4 {
					t.Fatalf("the leave of %s (%v, %d trunks) changes %d", gone.Name, gone.Place.Level, own, n)
				}
				if len(reach(p, list, list[0].GUID)) != len(list) {
					t.Fatal("the members are not connected")
				}
			}
			t.Logf("a leave changes %.1f trunks in the mean", float64(sum)/float64(c.upTo-150))
		})
	}
}

// spines counts the spines and cores.
func spines(p *Plan) (n int) {
	for _, pl := range p.places {
		if pl.Level >= Spine {
			n++
		}
	}
	return n
}

func TestLevelText(t *testing.T) {
	for l := range Level(4) {
		b, err := l.MarshalText()
		var back Level
		if err != nil || back.UnmarshalText(b) != nil || back != l {
			t.Errorf("%v: %q, %v", l, b, err)
		}
	}
	var l Level
	if _, err := Level(4).MarshalText(); err == nil || l.UnmarshalText([]byte("trunk")) == nil {
		t.Error("an unknown level passes")
	}
}

func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{16, 40, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			list := some(n, usual)
			list = placed(New(list), list)
			b.ReportAllocs()
			for b.Loop() {
				New(list)
			}
		})
	}
}
