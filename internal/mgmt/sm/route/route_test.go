// SPDX-License-Identifier: Apache-2.0

package route

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
)

func minHop(t *testing.T, p *plan) *Tables {
	t.Helper()
	p.Index()
	tab, err := MinHop{}.Unicast(&p.Subnet)
	if err != nil {
		t.Fatal(err)
	}
	p.install(tab)
	return tab
}

// asWritten compares tables as far as switches get them.
var asWritten = cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".graph" }, cmp.Ignore())

// TestMinHopRow writes the tables of a row of three switches out.
func TestMinHopRow(t *testing.T) {
	p := &plan{}
	s1, s2, s3 := p.sw(4), p.sw(4), p.sw(4) // LIDs 1 2 3
	c4, c5 := p.ca(), p.ca()                // LIDs 4 5
	lost := p.ca()                          // LID 6, not plugged in
	_ = lost
	p.link(s1, 1, s2, 2)
	p.link(s2, 3, s3, 4)
	p.link(s1, 3, c4, 1)
	p.link(s3, 1, c5, 1)
	tab := minHop(t, p)
	const no = NoPort
	want := &Tables{Engine: "minhop", Top: 6, LFT: [][]uint8{
		{no, 0, 1, 1, 3, 1, no},
		{no, 2, 0, 3, 2, 3, no},
		{no, 4, 4, 0, 4, 1, no},
	}, Hops: [][]uint8{{0, 1, 2}, {1, 0, 1}, {2, 1, 0}}}
	if diff := cmp.Diff(want, tab, asWritten); diff != "" {
		t.Error(diff)
	}
	w, ok := p.Walk(p.end(c4), 5, true)
	if !ok || w.Hops != 4 || w.To != p.end(c5) || !cmp.Equal(w.Ports, []topo.Ref{{Node: c4, Port: 1},
		{Node: s1, Port: 1}, {Node: s2, Port: 3}, {Node: s3, Port: 1}}) {
		t.Errorf("%+v %v", w, ok)
	}
	if _, ok := p.Walk(p.end(c4), 6, false); ok {
		t.Error("there is a way to a port without a link")
	}
	tree, err := MinHop{}.Multicast(&p.Subnet, tab, Group{Members: []topo.Ref{p.end(c4), p.end(c5), p.end(s2)}})
	if diff := cmp.Diff(Tree{0: mask(3, 1), 1: mask(2, 3, 0), 2: mask(4, 1)}, tree); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

// TestMinHopSpreads checks that equal ways carry equally many destinations,
// and that the LIDs of one port take different ones.
func TestMinHopSpreads(t *testing.T) {
	p := &plan{}
	s1, s2 := p.sw(36), p.sw(36)
	for k := range uint8(4) {
		p.link(s1, 30+k, s2, 30+k)
	}
	for k := range uint8(8) {
		c := p.ca()
		p.link(s2, 1+k, c, 1)
		p.Nodes[c].Ports[1].Info.LID, p.Nodes[c].Ports[1].Info.LMC = ib.LID(16+4*int(k)), 2
	}
	tab := minHop(t, p)
	load := map[uint8]int{}
	for k := range 8 {
		of := map[uint8]bool{}
		for l := range 4 {
			port := tab.LFT[0][16+4*k+l]
			load[port]++
			of[port] = true
		}
		if len(of) != 4 {
			t.Errorf("adapter %d: its LIDs take %d ways", k, len(of))
		}
	}
	for port, n := range load {
		if n != 8 || port < 30 || port > 33 {
			t.Errorf("port %d: %d destinations", port, n)
		}
	}
	if !cmp.Equal(minHop(t, p), tab, asWritten) {
		t.Error("the same subnet has other tables")
	}
}

func TestLoopsAndNothing(t *testing.T) {
	p := &plan{}
	p.Index()
	if tab, err := (MinHop{}).Unicast(&p.Subnet); err != nil || len(tab.LFT) != 0 {
		t.Errorf("of nothing: %+v %v", tab, err)
	}
	a, b := p.ca(), p.ca()
	p.link(a, 1, b, 1)
	if tab := minHop(t, p); len(tab.LFT) != 0 {
		t.Errorf("of two adapters: %+v", tab)
	}
	if w, ok := p.Walk(p.end(a), 2, false); !ok || w.Hops != 1 {
		t.Errorf("to the other end of the cable: %+v %v", w, ok)
	}
	p = &plan{}
	s := p.sw(4)
	c := p.ca()
	p.link(s, 1, s, 2) // a cable from the switch to itself
	p.link(s, 3, c, 1)
	if tab := minHop(t, p); tab.LFT[0][2] != 3 || tab.Hops[0][0] != 0 {
		t.Errorf("%+v", tab)
	}
	if _, err := ByName("nonesuch"); !errors.Is(err, ErrEngine) {
		t.Error(err)
	}
	if e, err := ByName(""); err != nil || e.Name() != "minhop" {
		t.Error(e, err)
	}
}

// TestMinHopRandom compares hops with Floyd and Warshall's, and walks between all
// ports; multicast must reach each member exactly once from each.
func TestMinHopRandom(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p := &plan{}
		n := 1 + rng.IntN(9)
		next := make([]uint8, 64)
		for range n {
			p.sw(40)
		}
		plug := func(a, b int32) { next[a]++; next[b]++; p.link(a, next[a], b, next[b]) }
		for range rng.IntN(3 * n) {
			if a, b := rng.IntN(n), rng.IntN(n); a != b {
				plug(int32(a), int32(b))
			}
		}
		for range rng.IntN(12) {
			plug(int32(rng.IntN(n)), p.ca())
		}
		tab := minHop(t, p)
		dist := make([][]int, n)
		for i := range n {
			dist[i] = make([]int, n)
			for j := range n {
				dist[i][j] = 1000
				for _, port := range p.Nodes[i].Ports {
					if port.Peer.Node == int32(j) {
						dist[i][j] = 1
					}
				}
			}
			dist[i][i] = 0
		}
		for k := range n {
			for i := range n {
				for j := range n {
					dist[i][j] = min(dist[i][j], dist[i][k]+dist[k][j])
				}
			}
		}
		var members []topo.Ref
		for a := range p.EndPorts() {
			if rng.IntN(3) == 0 {
				members = append(members, a)
			}
			for b := range p.EndPorts() {
				ra, rb := p.Nodes[p.Attached(a).Node].Switch.Rank, p.Nodes[p.Attached(b).Node].Switch.Rank
				w, ok := p.Walk(a, p.Port(b).Info.LID, true)
				want := dist[ra][rb]
				if a.Port != 0 {
					want++
				}
				if b.Port != 0 {
					want++
				}
				if a == b {
					want = 0
				}
				if ok != (dist[ra][rb] < 1000) || ok && w.Hops != want {
					t.Fatalf("seed %d: %v to %v: %+v %v, want %d hops", seed, a, b, w, ok, want)
				}
			}
		}
		tree, err := MinHop{}.Multicast(&p.Subnet, tab, Group{Members: members})
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range members {
			got := flood(p, tree, from)
			for _, to := range members {
				reach := dist[p.Nodes[p.Attached(from).Node].Switch.Rank][p.Nodes[p.Attached(to).Node].Switch.Rank] < 1000
				left := tree[p.Nodes[p.Attached(to).Node].Switch.Rank]
				port := p.Attached(to).Port
				if want := from != to && reach && left.Has(port); (got[to] == 1) != want || got[to] > 1 {
					t.Fatalf("seed %d: %v got %d copies from %v", seed, to, got[to], from)
				}
			}
		}
	}
}
