// SPDX-License-Identifier: Apache-2.0

package route

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
)

// shapes are subnets for tests of every engine, and whether each is a fat tree.
var shapes = []struct {
	name  string
	ftree string // text of the failure
	loops bool   // by least hops, adapters' packets can wait in a circle
	plan  func() *plan
}{
	{name: "8 leaves, 4 spines", plan: func() *plan { return twoLevels(even(8, 18), 4, 1) }},
	{name: "36 leaves, 18 spines", plan: func() *plan { return twoLevels(even(36, 18), 18, 1) }},
	{name: "72 leaves, 18 spines", plan: func() *plan { return twoLevels(even(72, 18), 18, 1) }},
	{name: "trunks of 3", plan: func() *plan { return twoLevels(even(6, 12), 4, 3) }},
	{name: "uneven leaves", plan: func() *plan { return twoLevels([]int{3, 18, 7, 1, 12, 18, 5}, 6, 2) }},
	{name: "a leaf without adapters", plan: func() *plan { return twoLevels([]int{3, 0, 7}, 2, 1) }},
	{name: "three levels of 4", plan: func() *plan { return threeLevels(4) }},
	{name: "three levels of 8", plan: func() *plan { return threeLevels(8) }},
	{name: "two fat trees", plan: func() *plan {
		return join(twoLevels(even(4, 4), 2, 1), twoLevels(even(3, 2), 3,
			2))
	}},
	{name: "one switch", ftree: "no level above", plan: func() *plan { return mesh(1, 1, false) }},
	{name: "row of 5", ftree: "both have adapters", plan: func() *plan { return mesh(5, 1, false) }},
	{name: "ring of 5", ftree: "both have adapters", loops: true, plan: func() *plan { return mesh(5, 1, true) }},
	{name: "ring of 12", ftree: "both have adapters", loops: true, plan: func() *plan { return mesh(12, 1, true) }},
	{name: "mesh", ftree: "both have adapters", loops: true, plan: func() *plan { return mesh(5, 4, false) }},
	{name: "torus", ftree: "both have adapters", loops: true, plan: func() *plan { return mesh(5, 4, true) }},
	{name: "fat tree and ring", ftree: "both have adapters", loops: true,
		plan: func() *plan { return join(twoLevels(even(4, 4), 2, 1), mesh(7, 1, true)) }},
	{name: "a spine with an adapter", ftree: "both have adapters", plan: func() *plan {
		p := twoLevels(even(3, 2), 2, 1)
		p.Nodes[0].Ports = append(p.Nodes[0].Ports, topo.Port{Peer: topo.None})
		p.plug(0, p.ca())
		return p
	}},
	{name: "linked spines", ftree: `"switch 0" and "switch 1" are linked and both on level 1`, plan: func() *plan {
		p := twoLevels(even(3, 2), 2, 1)
		p.Nodes[0].Ports = append(p.Nodes[0].Ports, topo.Port{Peer: topo.None})
		p.Nodes[1].Ports = append(p.Nodes[1].Ports, topo.Port{Peer: topo.None})
		p.plug(0, 1)
		return p
	}},
	{name: "leaves without a common spine", ftree: "no switch above both", plan: func() *plan {
		p := &plan{}
		for range 5 {
			p.sw(8)
		}
		for _, l := range [][2]int32{{0, 3}, {3, 1}, {1, 4}, {4, 2}} {
			p.plug(l[0], l[1])
		}
		for i := range int32(3) {
			p.plug(i, p.ca())
		}
		return p
	}},
	{name: "four levels", ftree: "3 links above the leaves", plan: func() *plan {
		p := &plan{}
		for range 4 {
			p.sw(8)
		}
		for i := range int32(3) {
			p.plug(i, i+1)
		}
		p.plug(0, p.ca())
		return p
	}},
	{name: "no adapters", ftree: "no adapter is connected", plan: func() *plan {
		p := &plan{}
		p.plug(p.sw(2), p.sw(2))
		return p
	}},
}

// TestEngines checks on every shape that all that is connected is reached, and
// that under updn and ftree no packets wait for each other in a circle.
func TestEngines(t *testing.T) {
	for _, s := range shapes {
		for _, e := range []Engine{MinHop{}, UpDn{}, FTree{}} {
			for _, lmc := range []uint8{0, 2} {
				if lmc > 0 && strings.HasPrefix(s.name, "72") {
					continue // takes long, and adds nothing
				}
				t.Run(fmt.Sprintf("%s/%s/lmc%d", s.name, e.Name(), lmc), func(t *testing.T) {
					p := s.plan().finish(lmc)
					tab, err := e.Unicast(&p.Subnet)
					if e.Name() == "ftree" && s.ftree != "" {
						if err == nil || !strings.Contains(err.Error(), s.ftree) {
							t.Fatalf("refusal: %v, want %q", err, s.ftree)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					if len(tab.Notes) > 0 || tab.Engine != e.Name() {
						t.Errorf("by %s: %q", tab.Engine, tab.Notes)
					}
					got := circle(check(t, p, tab))
					if got && e.Name() != "minhop" || !got && s.loops && e.Name() == "minhop" {
						t.Errorf("a circle: %v", got)
					}
					if own := newGraph(&p.Subnet).waits(tab.LFT); own != got {
						t.Errorf("waits: %v, want %v", own, got)
					}
					if again, _ := e.Unicast(&p.Subnet); !reflect.DeepEqual(again, tab) {
						t.Error("the same subnet has other tables")
					}
				})
			}
		}
	}
}

// TestEnginesRandom does the same with random subnets.
func TestEnginesRandom(t *testing.T) {
	served, noted := 0, 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 2))
		p := random(rng).finish(uint8(rng.IntN(3)))
		for _, e := range []Engine{MinHop{}, UpDn{}, FTree{}} {
			tab, err := e.Unicast(&p.Subnet)
			if err != nil {
				if e.Name() != "ftree" || !strings.Contains(err.Error(), "no ") {
					t.Fatalf("seed %d: %s: %v", seed, e.Name(), err)
				}
				continue
			}
			if e.Name() == "ftree" {
				served++
			}
			if len(tab.Notes) > 0 {
				noted++
			}
			c := circle(check(t, p, tab))
			if c && e.Name() != "minhop" {
				t.Fatalf("seed %d: %s: a circle", seed, e.Name())
			}
			if c != newGraph(&p.Subnet).waits(tab.LFT) {
				t.Fatalf("seed %d: %s: waits returns %v", seed, e.Name(), !c)
			}
		}
	}
	if served == 0 {
		t.Error("no random subnet was a fat tree")
	}
	t.Logf("%d fat trees, %d with notes", served, noted)
}

// TestUpDnRoots gives roots.
func TestUpDnRoots(t *testing.T) {
	p := mesh(8, 1, true).finish(0)
	guid := func(i int) ib.GUID { return p.Nodes[i].Info.NodeGUID }
	// Under two opposite switches of a ring, those beside one of them reach
	// each other and no others.
	_, err := UpDn{Roots: []ib.GUID{guid(0), guid(4)}}.Unicast(&p.Subnet)
	if err == nil || !strings.Contains(err.Error(), `under the 2 roots given, "switch 3" does not reach "switch 0"`) {
		t.Error(err)
	}
	tab, err := Chain{UpDn{Roots: []ib.GUID{guid(0), guid(4)}}}.Unicast(&p.Subnet)
	if err != nil || tab.Engine != "minhop" || len(tab.Notes) != 1 || !strings.HasPrefix(tab.Notes[0],
		"updn: under the 2 roots given") {
		t.Errorf("%+v %v", tab, err)
	}
	tab, err = UpDn{Roots: []ib.GUID{guid(3), 0x99}}.Unicast(&p.Subnet)
	if err != nil || len(tab.Notes) != 1 || tab.Notes[0] != "updn: root 0000:0000:0000:0099: there is no such switch" {
		t.Fatalf("%+v %v", tab, err)
	}
	if circle(check(t, p, tab)) {
		t.Error("a circle")
	}
	if _, err = (UpDn{Roots: []ib.GUID{0x99}}).Unicast(&p.Subnet); err == nil ||
		err.Error() != "none of its roots is a switch of the subnet" {
		t.Error(err)
	}
	p = join(mesh(3, 1, false), mesh(2, 1, false)).finish(0)
	tab, err = UpDn{Roots: []ib.GUID{guid(0)}}.Unicast(&p.Subnet)
	if err != nil || len(tab.Notes) != 1 || !strings.HasPrefix(tab.Notes[0],
		`updn: no root is connected to "switch 6"`) {
		t.Errorf("%+v %v", tab, err)
	}
	check(t, p, tab)
}

// loads counts, at each switch of a level, the LIDs of adapters elsewhere by the
// port they leave by towards another switch.
func loads(p *plan, tab *Tables, i int32) map[uint8]int {
	got := map[uint8]int{}
	for k, port := range p.Nodes[i].Ports {
		if k > 0 && !port.Peer.IsNone() && p.Nodes[port.Peer.Node].IsSwitch() {
			got[uint8(k)] = 0
		}
	}
	for r := range p.EndPorts() {
		if r.Port == 0 {
			continue
		}
		for k := range 1 << p.Port(r).Info.LMC {
			port := tab.LFT[p.Nodes[i].Switch.Rank][int(p.Port(r).Info.LID)+k]
			if _, up := got[port]; up {
				got[port]++
			}
		}
	}
	return got
}

// TestFTreeBalance checks how even the links are used.
func TestFTreeBalance(t *testing.T) {
	for _, c := range []struct {
		name  string
		plan  *plan
		slack int // between the most and the least used link of a switch
	}{
		{"8 leaves, 4 spines", twoLevels(even(8, 16), 4, 1), 0},
		{"8 leaves, 18 adapters, 4 spines", twoLevels(even(8, 18), 4, 1), 2},
		{"36 leaves, 18 spines", twoLevels(even(36, 18), 18, 1), 0},
		{"72 leaves, 18 spines", twoLevels(even(72, 18), 18, 1), 0},
		{"trunks of 3", twoLevels(even(6, 12), 4, 3), 0},
		{"three levels of 4", threeLevels(4), 0},
		{"three levels of 8", threeLevels(8), 0},
		{"uneven leaves", twoLevels([]int{3, 18, 7, 1, 12, 18, 5}, 6, 2), 3},
	} {
		for _, lmc := range []uint8{0, 1} {
			p := c.plan.finish(lmc)
			tab, err := FTree{}.Unicast(&p.Subnet)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			for _, i := range p.Switches() {
				isLeaf := slices.ContainsFunc(p.Nodes[i].Ports[1:],
					func(q topo.Port) bool { return !q.Peer.IsNone() && !p.Nodes[q.Peer.Node].IsSwitch() })
				if !isLeaf {
					continue
				}
				most, least := 0, 1<<20
				for _, n := range loads(p, tab, i) {
					most, least = max(most, n), min(least, n)
				}
				if most-least > c.slack<<lmc {
					t.Errorf("%s, LMC %d, switch %d: its links up carry %d to %d LIDs", c.name, lmc, i, least, most)
				}
			}
		}
	}
}

// TestFTreeShift sends from every adapter to the one that is so many places
// further, for all shifts: in a full tree no two packets share a link.
func TestFTreeShift(t *testing.T) {
	for name, p := range map[string]*plan{"two levels": twoLevels(even(12, 6), 6, 1), "trunks": twoLevels(even(6, 6),
		3, 2), "three levels": threeLevels(4)} {
		p.finish(0)
		tab, err := FTree{}.Unicast(&p.Subnet)
		if err != nil {
			t.Fatal(err)
		}
		p.install(tab)
		var hosts []topo.Ref
		for r := range p.EndPorts() {
			if r.Port != 0 {
				hosts = append(hosts, r)
			}
		}
		for shift := 1; shift < len(hosts); shift++ {
			used := map[topo.Ref]int{}
			for i, from := range hosts {
				w, ok := p.Walk(from, p.Port(hosts[(i+shift)%len(hosts)]).Info.LID, true)
				if !ok {
					t.Fatal("not delivered")
				}
				for _, l := range w.Ports {
					if used[l]++; used[l] > 1 {
						t.Fatalf("%s, shift %d: two packets at %v", name, shift, l)
					}
				}
			}
		}
	}
}

// TestLMCWays checks that the LIDs of one port take different ways where
// there are.
func TestLMCWays(t *testing.T) {
	for _, e := range []Engine{MinHop{}, UpDn{}, FTree{}} {
		for name, p := range map[string]*plan{"two levels": twoLevels(even(5, 7), 4, 1),
			"trunks": twoLevels(even(4, 5), 1, 4), "three levels": threeLevels(8)} {
			p.finish(2)
			tab, err := e.Unicast(&p.Subnet)
			if err != nil {
				t.Fatal(err)
			}
			p.install(tab)
			for a := range p.EndPorts() {
				for b := range p.EndPorts() {
					if a.Port == 0 || b.Port == 0 || p.Attached(a).Node == p.Attached(b).Node {
						continue
					}
					ways := map[topo.Ref]bool{}
					for k := range 4 {
						w, ok := p.Walk(a, p.Port(b).Info.LID+ib.LID(k), true)
						if !ok {
							t.Fatal("not delivered")
						}
						ways[w.Ports[1]] = true
					}
					if len(ways) != 4 {
						t.Fatalf("%s, %s: %v to %v: 4 LIDs leave the first switch by %d links", e.Name(), name, a, b,
							len(ways))
					}
				}
			}
		}
	}
}

func TestChain(t *testing.T) {
	e, err := ByName("ftree,updn")
	if err != nil || e.Name() != "ftree,updn" {
		t.Fatal(e, err)
	}
	p := mesh(4, 1, true).finish(0)
	tab, err := e.Unicast(&p.Subnet)
	if err != nil || tab.Engine != "updn" || len(tab.Notes) != 1 ||
		tab.Notes[0] != `ftree: no fat tree: "switch 0" and "switch 1" are linked and both have adapters` {
		t.Errorf("%+v %v", tab, err)
	}
	if _, err := ByName("ftree,nonesuch"); !errors.Is(err, ErrEngine) || !strings.Contains(err.Error(), `"nonesuch"`) {
		t.Error(err)
	}
}

func BenchmarkUnicast(b *testing.B) {
	for _, leaves := range []int{8, 36, 72} {
		spines := 18
		if leaves == 8 {
			spines = 4
		}
		p := twoLevels(even(leaves, 18), spines, 1).finish(0)
		for _, e := range []Engine{MinHop{}, UpDn{}, FTree{}} {
			b.Run(fmt.Sprintf("%s/%d", e.Name(), leaves*18), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := e.Unicast(&p.Subnet); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
