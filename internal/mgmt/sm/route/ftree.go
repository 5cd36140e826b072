// SPDX-License-Identifier: Apache-2.0

package route

import (
	"errors"
	"fmt"
	"slices"

	"weft/internal/mgmt/sm/topo"
)

// FTree routes fat trees of two and three levels. Packets go up from a leaf and down to another, so that there is no
// cyclic wait for buffers.
//
// Every LID of an adapter gets one path down from the top to its leaf, such that those of one leaf, and all of them,
// are spread evenly over the links down; all other leaves send up to the top of that path. In a full tree the adapters
// of a leaf thus use different links down, in the order of LIDs, and if every adapter sends to the one at a fixed
// distance, no two packets share a link. Leaves may differ in their adapters and links.
type FTree struct{}

// Name implements Engine.
func (FTree) Name() string { return "ftree" }

// Unicast implements Engine. It fails for a subnet that is no fat tree.
func (f FTree) Unicast(s *topo.Subnet) (*Tables, error) {
	g, at := newGraph(s), endsOf(s)
	hosts := adapters(at)
	level, err := g.levels(hosts)
	if err != nil {
		return nil, err
	}
	order := make([]int, len(g.node))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return g.height(level, b) - g.height(level, a) })
	w := newUpDown(g, order)
	if a, b, missing := w.missing(hosts); missing {
		return nil, fmt.Errorf("there is no switch above both %s and %s", g.name(a), g.name(b))
	}
	return w.connect(newTables(s, g, at, f.Name()), func(t *Tables) {
		t.fill(at, onlySwitches, w.ways)
		newFan(w, t).all(at)
	}), nil
}

// Multicast implements Engine.
func (FTree) Multicast(s *topo.Subnet, t *Tables, g Group) (Tree, error) {
	return spanning(s, t, g), nil
}

// height orders switches by their level: confined ones, through which no path leads, are below the others.
func (g *graph) height(level []uint8, rank int) int {
	if g.isConfined(rank) {
		return -1
	}
	return int(level[rank])
}

// levels returns the level of each switch: 0 of leaves, which are those with adapters and the confined ones. The error
// is the reason why it is no fat tree.
func (g *graph) levels(hosts []int) ([]uint8, error) {
	var leaves []int
	for r, n := range hosts {
		if n > 0 {
			leaves = append(leaves, r)
		}
	}
	if len(leaves) == 0 {
		return nil, errors.New("no fat tree: no adapter is connected to a switch")
	}
	level := make([]uint8, len(g.node))
	g.spread(level, nil, leaves...)
	for r := range g.confined {
		if g.confined[r] {
			level[r] = 0
		}
	}
	top := uint8(0)
	for r, l := range level {
		if l == Unreachable {
			return nil, fmt.Errorf("no fat tree: no leaf is connected to %s", g.name(r))
		}
		if l > 2 {
			return nil, fmt.Errorf("no fat tree of three levels: %s is %d links above the leaves", g.name(r), l)
		}
		top = max(top, l)
		for _, e := range g.edges[r] {
			if level[e.to] != l {
				continue
			}
			if l == 0 && hosts[r] > 0 && hosts[e.to] > 0 {
				return nil, fmt.Errorf("no fat tree: %s and %s are linked and both have adapters", g.name(r),
					g.name(e.to))
			}
			return nil, fmt.Errorf("no fat tree: %s and %s are linked and both on level %d", g.name(r), g.name(e.to), l)
		}
	}
	if top == 0 {
		return nil, errors.New("no fat tree: there is no level above the leaves")
	}
	return level, nil
}

// fan assigns paths to adapters.
type fan struct {
	w *updown
	t *Tables
	// By rank of the switch and port: the number of LIDs routed down, or up.
	downs, ups [][256]int32
	total      []int32 // number of LIDs that a switch routes down
	on         []bool  // by rank: is on the path of the current LID
	good       []bool  // leads to that path
	chain      []int   // that path, from the leaf to the top
	// via is, by LID, the links of its path down, from the leaf up.
	via  [][2]link
	some []edge
}

// link is a link down, by the switch above and its port; port 0 is none.
type link struct {
	at   int
	port uint8
}

func newFan(w *updown, t *Tables) *fan {
	n := len(w.g.node)
	return &fan{w: w, t: t, downs: make([][256]int32, n), ups: make([][256]int32, n), total: make([]int32, n),
		on: make([]bool, n), good: make([]bool, n), via: make([][2]link, int(t.Top)+1)}
}

// all routes the LIDs of all adapters: first the base LIDs, then the second of each port and so on, so that the base
// LIDs alone are spread evenly.
func (f *fan) all(at [][]ends) {
	most := 0
	for r := range at {
		for _, e := range at[r] {
			most = max(most, e.count)
		}
	}
	for k := range most {
		for leaf := range at {
			for _, e := range at[leaf] {
				if e.port != 0 && k < e.count {
					f.down(leaf, int(e.lid), k)
					f.rest(leaf, int(e.lid)+k)
				}
			}
		}
	}
}

// down chooses the path down to LID base+k, which is at a leaf, and leaves it in chain.
func (f *fan) down(leaf, base, k int) {
	lid := base + k
	for _, r := range f.chain {
		f.on[r] = false
	}
	f.chain = append(f.chain[:0], leaf)
	f.on[leaf] = true
	for at, level := leaf, 0; ; level++ {
		best, bestUsed := edge{}, int32(0)
		found := false
		for _, e := range f.w.g.edges[at] {
			if !f.w.up(at, e) {
				continue
			}
			// LIDs of one port get different paths while there are any.
			used := int32(0)
			for j := range k {
				if f.via[base+j][level] == (link{e.to, e.peer}) {
					used++
				}
			}
			if !found || less([...]int32{used, f.downs[e.to][e.peer], f.total[e.to]},
				[...]int32{bestUsed, f.downs[best.to][best.peer], f.total[best.to]}) {
				best, bestUsed, found = e, used, true
			}
		}
		if !found {
			return
		}
		at = best.to
		f.via[lid][level] = link{at, best.peer}
		f.t.LFT[at][lid] = best.peer
		f.downs[at][best.peer]++
		f.total[at]++
		f.on[at] = true
		f.chain = append(f.chain, at)
	}
}

func less(a, b [3]int32) bool { return slices.Compare(a[:], b[:]) < 0 }

// rest routes lid from all other switches towards chain.
func (f *fan) rest(leaf, lid int) {
	down := f.w.down[leaf]
	for _, at := range f.w.order {
		f.good[at] = f.on[at]
		if f.on[at] {
			continue
		}
		ways := f.w.ways(at, leaf, f.some[:0])
		f.some = ways
		if len(ways) == 0 {
			continue
		}
		if down[at] {
			// Few packets arrive here. Links that lead to the chain come first.
			if i := slices.IndexFunc(ways, func(e edge) bool { return f.on[e.to] }); i >= 0 {
				ways = slices.DeleteFunc(ways, func(e edge) bool { return !f.on[e.to] })
			}
			f.t.LFT[at][lid] = ways[lid%len(ways)].port
			continue
		}
		best := -1
		for i, e := range ways {
			if best >= 0 && f.good[ways[best].to] && !f.good[e.to] {
				continue
			}
			if best < 0 || f.good[e.to] && !f.good[ways[best].to] || f.ups[at][e.port] < f.ups[at][ways[best].port] {
				best = i
			}
		}
		f.good[at] = f.good[ways[best].to]
		f.t.LFT[at][lid] = ways[best].port
		f.ups[at][ways[best].port]++
	}
}
