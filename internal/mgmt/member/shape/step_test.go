// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// fabric is members that execute their steps, each at its own time. A trunk has two ends, of which each side adds and
// removes its own; it is up some time after both are there.
type fabric struct {
	t     *testing.T
	rng   *rand.Rand
	now   mono.Time
	list  []Member
	sees  map[ib.GUID]*Plan        // the plan that a member has so far
	marks map[ib.GUID]uint64       // reported
	ends  map[[2]ib.GUID]mono.Time // from, to: added
	up    map[Pair]mono.Time
	dead  map[ib.GUID]bool
	most  map[ib.GUID]int // trunks at a time
}

func newFabric(t *testing.T, seed uint64) *fabric {
	return &fabric{t: t, rng: rand.New(rand.NewPCG(seed, 22)), now: mono.Time(time.Hour), sees: map[ib.GUID]*Plan{},
		marks: map[ib.GUID]uint64{}, ends: map[[2]ib.GUID]mono.Time{}, up: map[Pair]mono.Time{},
		dead: map[ib.GUID]bool{}, most: map[ib.GUID]int{}}
}

// roster replaces the members; each reads it later.
func (f *fabric) roster(list []Member) {
	p := New(list)
	f.list = placed(p, list)
	for _, m := range f.list {
		if f.sees[m.GUID] == nil {
			f.sees[m.GUID] = p // what it got when it joined
		}
	}
	for g := range f.sees {
		if !p.Has(g) {
			delete(f.sees, g)
			f.dead[g] = true
		}
	}
}

// turn lets one member read the roster, perhaps, and execute its step.
func (f *fabric) turn(latest *Plan) {
	m := f.list[f.rng.IntN(len(f.list))]
	if f.dead[m.GUID] {
		return
	}
	if f.rng.IntN(4) > 0 {
		f.sees[m.GUID] = latest
	}
	p := f.sees[m.GUID]
	v := View{Self: m.GUID, Ports: m.Ports, Now: f.now,
		Settled: func(g ib.GUID) bool { return f.marks[g] == p.Mark(g) }}
	for e, since := range f.ends {
		if e[0] == m.GUID {
			at, up := f.up[NewPair(e[0], e[1])]
			if up {
				since = at
			}
			v.Have = append(v.Have, Trunk{Peer: e[1], Up: up, Since: since})
		}
	}
	s := p.Step(v)
	for _, g := range s.Add {
		f.ends[[2]ib.GUID{m.GUID, g}] = f.now
	}
	for _, g := range s.Remove {
		delete(f.ends, [2]ib.GUID{m.GUID, g})
		delete(f.up, NewPair(m.GUID, g))
	}
	if delete(f.marks, m.GUID); s.Settled {
		f.marks[m.GUID] = p.Mark(m.GUID)
	}
	n := 0
	for e := range f.ends {
		if e[0] == m.GUID {
			n++
		}
	}
	if f.most[m.GUID] = max(f.most[m.GUID], n); n > m.Ports {
		f.t.Fatalf("%s has %d trunks and %d ports", m.Name, n, m.Ports)
	}
	if again := s.Again; again != 0 && again <= f.now {
		f.t.Fatalf("the step of %s is due again at once", m.Name)
	}
}

// raise takes up trunks with two ends of living members.
func (f *fabric) raise() {
	ends := slices.SortedFunc(maps.Keys(f.ends), func(a, b [2]ib.GUID) int { return slices.Compare(a[:], b[:]) })
	for _, e := range ends {
		_, other := f.ends[[2]ib.GUID{e[1], e[0]}]
		p := NewPair(e[0], e[1])
		if _, up := f.up[p]; other && !up && !f.dead[e[0]] && !f.dead[e[1]] && f.rng.IntN(3) == 0 {
			f.up[p] = f.now
		}
	}
	for p := range f.up {
		if f.dead[p.A] || f.dead[p.B] {
			delete(f.up, p)
		}
	}
}

// settle runs until the trunks are those of the plan, and checks on the way that old members stay connected.
func (f *fabric) settle(watch []ib.GUID) {
	f.t.Helper()
	latest := New(f.list)
	for step := 0; ; step++ {
		if step > 600 {
			f.t.Fatalf("the trunks do not become those of the plan: %d up, %d planned, %d settled",
				len(f.up), len(latest.Trunks), len(f.marks))
		}
		for range len(f.list) {
			f.turn(latest)
		}
		f.raise()
		f.check(watch)
		f.now = f.now.Add(time.Second)
		if f.done(latest) {
			return
		}
	}
}

func (f *fabric) done(p *Plan) bool {
	planned := 0
	for _, x := range p.Trunks {
		if f.dead[x.A] || f.dead[x.B] {
			continue
		}
		if _, up := f.up[x]; !up {
			return false
		}
		planned++
	}
	return planned == len(f.up)
}

// check fails if a watched member is not connected with the first of them.
func (f *fabric) check(watch []ib.GUID) {
	f.t.Helper()
	next := map[ib.GUID][]ib.GUID{}
	for p := range f.up {
		next[p.A], next[p.B] = append(next[p.A], p.B), append(next[p.B], p.A)
	}
	if len(watch) == 0 {
		return
	}
	seen := map[ib.GUID]bool{watch[0]: true}
	for queue := []ib.GUID{watch[0]}; len(queue) > 0; queue = queue[1:] {
		for _, o := range next[queue[0]] {
			if !seen[o] {
				seen[o] = true
				queue = append(queue, o)
			}
		}
	}
	for _, g := range watch {
		if !seen[g] {
			f.t.Fatalf("%v is cut off", g)
		}
	}
}

func guids(list []Member) (all []ib.GUID) {
	for _, m := range list {
		all = append(all, m.GUID)
	}
	return all
}

// TestMeshBecomesSpines takes fabrics over each change of form, one member at a time, and back: at no time a member
// that was connected is cut off.
func TestMeshBecomesSpines(t *testing.T) {
	for _, c := range []struct {
		from, to, ports int
		seeds           uint64
	}{{15, 20, usual, 3}, {35, 38, usual, 3}, {151, 154, usual, 1}, {15, 19, 17, 3}} {
		for seed := range c.seeds {
			t.Run(fmt.Sprint(c.from, "-", c.to, "/", c.ports, "/", seed), func(t *testing.T) {
				f := newFabric(t, seed)
				f.roster(some(c.from, c.ports))
				f.settle(nil)
				for n := c.from; n < c.to; n++ {
					old := guids(f.list)
					f.roster(append(slices.Clone(f.list), someone(n, c.ports)))
					f.settle(old)
				}
				for len(f.list) > c.from {
					i := f.rng.IntN(len(f.list))
					f.roster(slices.Delete(slices.Clone(f.list), i, i+1))
					f.settle(nil)
				}
			})
		}
	}
}

// TestJoinsInARow has members join faster than the trunks settle.
func TestJoinsInARow(t *testing.T) {
	f := newFabric(t, 7)
	f.roster(some(2, usual))
	f.settle(nil)
	for n := 2; n < 60; n++ {
		old := guids(f.list)
		f.roster(append(slices.Clone(f.list), someone(n, usual)))
		latest := New(f.list)
		for range 3 * len(f.list) {
			f.turn(latest)
		}
		f.raise()
		f.now = f.now.Add(time.Second)
		f.check(old[:2])
	}
	f.settle(nil)
}

// TestDeadMemberHoldsNothing has a member that is away when the form changes: the others end with the plan.
func TestDeadMemberHoldsNothing(t *testing.T) {
	f := newFabric(t, 9)
	f.roster(some(16, usual))
	f.settle(nil)
	f.dead[f.list[9].GUID] = true
	f.raise()
	living := slices.DeleteFunc(guids(f.list), func(g ib.GUID) bool { return f.dead[g] })
	f.roster(append(slices.Clone(f.list), someone(16, usual)))
	f.settle(living)
}

func TestStep(t *testing.T) {
	list := some(17, usual)
	p := New(list)
	leaf := func(i int) ib.GUID { return list[i].GUID }
	spines := p.Peers(leaf(16))
	at := mono.Time(time.Hour)
	long := at.Add(-time.Hour)
	settled, unsettled := func(ib.GUID) bool { return true }, func(ib.GUID) bool { return false }
	gone := ib.GUID(99)
	up := func(g ib.GUID) Trunk { return Trunk{Peer: g, Up: true, Since: long} }
	young := func(g ib.GUID) Trunk { return Trunk{Peer: g, Up: true, Since: at} }
	static := func(g ib.GUID) Trunk { return Trunk{Peer: g, Up: true, Since: long, Static: true} }
	for _, c := range []struct {
		name                                string
		have                                []Trunk
		ports                               int
		others                              func(ib.GUID) bool
		add, remove, blocked, surplus, down int
		settled                             bool
	}{
		{"nothing yet", nil, 32, settled, 2, 0, 0, 0, 0, false},
		{"one port", nil, 1, settled, 1, 0, 1, 0, 0, false},
		{"one is up", []Trunk{up(spines[0])}, 32, settled, 1, 0, 0, 0, 0, false},
		{"both are up", []Trunk{up(spines[0]), up(spines[1])}, 32, settled, 0, 0, 0, 0, 0, true},
		{"one since a moment", []Trunk{up(spines[0]), young(spines[1])}, 32, settled,
			0, 0, 0, 0, 0, false},
		{"one is down", []Trunk{up(spines[0]), {Peer: spines[1], Since: at}}, 32, settled,
			0, 0, 0, 0, 1, false},
		{"one more", []Trunk{up(spines[0]), up(spines[1]), up(leaf(5))}, 32, settled,
			0, 1, 0, 0, 0, true},
		{"one more, others add", []Trunk{up(spines[0]), up(spines[1]), young(leaf(5))}, 32, unsettled,
			0, 0, 0, 1, 0, true},
		{"one more, self adds", []Trunk{up(spines[0]), up(leaf(5))}, 32, settled, 1, 0, 0, 1, 0, false},
		{"no port for what is missing", []Trunk{up(spines[0]), up(leaf(5))}, 2, settled,
			0, 1, 1, 0, 0, false},
		{"a removed member", []Trunk{up(gone)}, 32, unsettled, 2, 1, 0, 0, 0, false},
		{"a removed member has the port", []Trunk{up(gone), up(spines[0])}, 2, unsettled,
			1, 1, 0, 0, 0, false},
		{"a static one more", []Trunk{up(spines[0]), up(spines[1]), static(gone)}, 2, settled,
			0, 0, 0, 0, 0, true},
		{"a static one is planned", []Trunk{up(spines[0]), static(spines[1])}, 1, settled,
			0, 0, 0, 0, 0, true},
		{"one more is down", []Trunk{{Peer: leaf(5), Since: long}}, 32, unsettled, 2, 1, 0, 0, 0, false},
	} {
		s := p.Step(View{Self: leaf(16), Have: c.have, Ports: c.ports, Settled: c.others, Now: at})
		got := fmt.Sprint(len(s.Add), len(s.Remove), len(s.Blocked), len(s.Surplus), len(s.Down), s.Settled)
		if want := fmt.Sprint(c.add, c.remove, c.blocked, c.surplus, c.down, c.settled); got != want {
			t.Errorf("%s: add, remove, blocked, surplus, down, settled: %s, want %s", c.name, got, want)
		}
	}
	s := p.Step(View{Self: gone, Have: []Trunk{up(leaf(1))}, Ports: 32, Settled: settled, Now: at})
	if len(s.Add)+len(s.Remove) > 0 {
		t.Errorf("a member that is in no plan: %+v", s)
	}
}
