// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
)

func mask(ports ...uint8) (m topo.PortMask) {
	for _, n := range ports {
		m.Add(n)
	}
	return m
}

// TestSenders writes a tree with one that only sends out.
func TestSenders(t *testing.T) {
	p := &plan{}
	s0, s1, s2 := p.sw(4), p.sw(4), p.sw(4)
	c3, c4, c5 := p.ca(), p.ca(), p.ca()
	p.link(s0, 1, s1, 1)
	p.link(s1, 2, s2, 1)
	p.link(s0, 3, c3, 1)
	p.link(s1, 3, c4, 1)
	p.link(s2, 3, c5, 1)
	tab := minHop(t, p)
	tree, err := MinHop{}.Multicast(&p.Subnet, tab, Group{MLID: 0xc000, Members: []topo.Ref{p.end(c4)},
		Senders: []topo.Ref{p.end(c3)}})
	if diff := cmp.Diff(Tree{0: mask(1), 1: mask(3)}, tree); diff != "" || err != nil {
		t.Error(diff, err)
	}
	tree, _ = MinHop{}.Multicast(&p.Subnet, tab, Group{MLID: 0xc000, Members: []topo.Ref{p.end(c3), p.end(s1)},
		Senders: []topo.Ref{p.end(c5)}})
	if diff := cmp.Diff(Tree{0: mask(1, 3), 1: mask(0, 1), 2: mask(1)}, tree); diff != "" {
		t.Error(diff)
	}
	tree, _ = MinHop{}.Multicast(&p.Subnet, tab, Group{MLID: 0xc000, Senders: []topo.Ref{p.end(c3), p.end(c5)}})
	if len(tree) != 0 {
		t.Errorf("of senders alone: %v", tree)
	}
}

// TestMulticast checks on all shapes and on random subnets that every member gets one copy from each port that may
// send, other ports get none, and that each entry is needed.
func TestMulticast(t *testing.T) {
	try := func(name string, rng *rand.Rand, p *plan, e Engine) {
		tab, err := e.Unicast(&p.Subnet)
		if err != nil {
			return // no fat tree
		}
		parts := p.parts()
		for range 4 {
			group := Group{MLID: 0xc000 + ib.LID(rng.IntN(100))}
			kind := map[topo.Ref]int{} // 1 member, 2 sender
			share := 2 + rng.IntN(20)
			for r := range p.EndPorts() {
				switch at := p.Attached(r); {
				case at.IsNone():
				case rng.IntN(share) == 0:
					group.Members, kind[r] = append(group.Members, r), 1
				case rng.IntN(2*share) == 0:
					group.Senders, kind[r] = append(group.Senders, r), 2
				}
			}
			tree, err := e.Multicast(&p.Subnet, tab, group)
			if err != nil {
				t.Fatal(err)
			}
			used := Tree{}
			for from := range kind {
				got := floodInto(p, tree, used, from)
				for to := range p.EndPorts() {
					at := p.Attached(to)
					if at.IsNone() {
						continue
					}
					// Of several parts the tree is in one.
					joined := tree[p.Nodes[at.Node].Switch.Rank]
					want := 0
					if from != to && kind[to] == 1 && parts[from.Node] == parts[to.Node] && joined.Has(at.Port) {
						want = 1
					}
					if got[to] != want {
						t.Fatalf("%s, %s: %v gets %d copies from %v, want %d", name, e.Name(), to, got[to], from, want)
					}
				}
			}
			// The part with the most switches of the group is served.
			served, most := map[int]int{}, map[int]map[int32]bool{}
			for r, k := range kind {
				at := p.Attached(r)
				if most[parts[at.Node]] == nil {
					most[parts[at.Node]] = map[int32]bool{}
				}
				most[parts[at.Node]][at.Node] = true
				if joined := tree[p.Nodes[at.Node].Switch.Rank]; k == 1 && joined.Has(at.Port) {
					served[parts[at.Node]]++
				}
			}
			if len(served) > 1 {
				t.Fatalf("%s: a tree in %d parts", name, len(served))
			}
			for part, n := range served {
				members := 0
				for _, r := range group.Members {
					if parts[r.Node] == part {
						members++
					}
				}
				for _, other := range most {
					if n != members || len(other) > len(most[part]) {
						t.Fatalf("%s: %d of %d members served, on %d switches of the group; another part has %d",
							name, n, members, len(most[part]), len(other))
					}
				}
			}
			if len(kind) > 1 {
				for rank, m := range tree {
					for n := range uint8(255) {
						u := used[rank]
						at := topo.Ref{Node: p.Switches()[rank], Port: n}
						own := n == 0 && kind[at] == 1 || n != 0 && kind[p.Port(at).Peer] == 1
						if m.Has(n) && !u.Has(n) && !own {
							t.Fatalf("%s, %s: no copy ever leaves by %v", name, e.Name(), at)
						}
						if int(n) == len(p.Nodes[at.Node].Ports)-1 {
							break
						}
					}
				}
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 3))
	for _, s := range shapes {
		if strings.HasPrefix(s.name, "72") {
			continue // takes long, and adds nothing
		}
		for _, e := range []Engine{MinHop{}, UpDn{}, FTree{}} {
			try(s.name, rng, s.plan().finish(0), e)
		}
	}
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 4))
		p := random(rng).finish(0)
		for _, e := range []Engine{MinHop{}, UpDn{}, FTree{}} {
			try(fmt.Sprint("seed ", seed), rng, p, e)
		}
	}
}

// TestRoots checks that the trees of different groups use different spines, and
// are as flat as can be.
func TestRoots(t *testing.T) {
	p := twoLevels(even(6, 4), 4, 2).finish(0)
	tab, err := FTree{}.Unicast(&p.Subnet)
	if err != nil {
		t.Fatal(err)
	}
	var members []topo.Ref
	for r := range p.EndPorts() {
		if r.Port != 0 {
			members = append(members, r)
		}
	}
	links := map[topo.Ref]int{}
	for k := range 16 {
		tree, _ := FTree{}.Multicast(&p.Subnet, tab, Group{MLID: 0xc000 + ib.LID(k), Members: members})
		if len(tree) != 7 {
			t.Fatalf("group %d uses %d switches, want 6 leaves and a spine", k, len(tree))
		}
		for rank, m := range tree {
			for n, port := range p.Nodes[p.Switches()[rank]].Ports {
				if m.Has(uint8(n)) && n > 0 && p.Nodes[port.Peer.Node].IsSwitch() {
					links[topo.Ref{Node: p.Switches()[rank], Port: uint8(n)}]++
				}
			}
		}
	}
	if len(links) != 6*4*2*2 {
		t.Errorf("16 groups use %d directions of links, of 96", len(links))
	}
	for l, n := range links {
		if n != 2 {
			t.Errorf("%v is in %d trees, want 2", l, n)
		}
	}
}

func BenchmarkMulticast(b *testing.B) {
	p := twoLevels(even(72, 18), 18, 1).finish(0)
	tab, err := FTree{}.Unicast(&p.Subnet)
	if err != nil {
		b.Fatal(err)
	}
	var members []topo.Ref
	for r := range p.EndPorts() {
		if r.Port != 0 {
			members = append(members, r)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := (FTree{}).Multicast(&p.Subnet, tab, Group{MLID: 0xc001, Members: members}); err != nil {
			b.Fatal(err)
		}
	}
}
