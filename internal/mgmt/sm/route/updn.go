// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
)

// UpDn routes packets up, towards roots, and then down, never up again, so that there is no cyclic wait for buffers, in
// any topology. A link leads up to the switch with the smaller distance to a root; at equal distances, to the one with
// the lower node GUID.
//
// Without Roots it uses, in each part of the subnet, the switches that are farthest from all adapters, if all adapters
// reach each other below them: these are the spines of a fat tree. If not, it uses the one switch that is nearest to
// all adapters, below which all ports reach each other.
type UpDn struct {
	Roots []ib.GUID // node GUIDs
}

// Name implements Engine.
func (UpDn) Name() string { return "updn" }

// Unicast implements Engine. It fails if adapters do not reach each other below the configured roots.
func (u UpDn) Unicast(s *topo.Subnet) (*Tables, error) {
	g, at := newGraph(s), endsOf(s)
	t := newTables(s, g, at, u.Name())
	given := make(map[int]bool)
	why := "none of its roots is a switch of the subnet"
	for _, guid := range u.Roots {
		i := s.NodeByGUID(guid)
		if i < 0 || !s.Nodes[i].IsSwitch() {
			t.Notes = append(t.Notes, fmt.Sprintf("updn: root %v: there is no such switch", guid))
			continue
		}
		if s.Nodes[i].Confined {
			t.Notes = append(t.Notes, fmt.Sprintf("updn: root %v: this switch carries no packets of others", guid))
			why = "none of its roots is a switch that carries packets of others"
			continue
		}
		given[s.Nodes[i].Switch.Rank] = true
	}
	if len(u.Roots) > 0 && len(given) == 0 {
		return nil, errors.New(why)
	}
	hosts := adapters(at)
	parts := g.parts()
	roots := make([][]int, len(parts.list))
	found := make([]bool, len(parts.list)) // in this part
	for k, part := range parts.list {
		for _, r := range part {
			if given[r] {
				roots[k] = append(roots[k], r)
			}
		}
		if len(roots[k]) == 0 {
			if len(given) > 0 {
				t.Notes = append(t.Notes, fmt.Sprintf("updn: no root is connected to %s: roots are chosen there",
					g.name(part[0])))
			}
			roots[k], found[k] = g.tops(part, hosts), true
		}
	}
	for {
		w := newUpDown(g, g.rankOrder(roots))
		from, to, missing := w.missing(hosts)
		if missing && !found[parts.common(from, to)] {
			return nil, fmt.Errorf("under the %d roots given, %s does not reach %s", len(roots[parts.common(from, to)]),
				g.name(from), g.name(to))
		}
		if !missing {
			done := w.connect(t, func(t *Tables) { t.fill(at, allEnds, w.ways) })
			if from, to, missing = w.apart(found); !missing {
				return done, nil
			}
		}
		// Below a single root all ports reach each other.
		k := parts.common(from, to)
		roots[k], found[k] = []int{g.center(parts.list[k], hosts)}, false
	}
}

// Multicast implements Engine. Copies follow a tree, which has no loop.
func (UpDn) Multicast(s *topo.Subnet, t *Tables, g Group) (Tree, error) {
	return spanning(s, t, g), nil
}

// tops returns the switches of a part that are farthest from all adapters, confined ones apart.
func (g *graph) tops(part, hosts []int) (tops []int) {
	var leaves []int
	for _, r := range part {
		if hosts[r] > 0 {
			leaves = append(leaves, r)
		}
	}
	level := make([]uint8, len(g.node))
	g.spread(level, nil, leaves...)
	top := uint8(0)
	for _, r := range part {
		if !g.isConfined(r) {
			top = max(top, level[r])
		}
	}
	if top == 0 || len(leaves) == 0 {
		return []int{g.center(part, hosts)}
	}
	for _, r := range part {
		if level[r] == top && !g.isConfined(r) {
			tops = append(tops, r)
		}
	}
	return tops
}

// center returns the switch of a part that is nearest to all adapters; among several, the one with the most links. It
// is confined only if all are.
func (g *graph) center(part, hosts []int) int {
	best, bestSum := -1, 0
	hops := make([]uint8, len(g.node))
	var queue []int
	open := slices.ContainsFunc(part, func(r int) bool { return !g.isConfined(r) })
	for _, r := range part {
		if open && g.isConfined(r) {
			continue
		}
		queue = g.spread(hops, queue, r)
		sum := 0
		for _, to := range part {
			// A part without adapters has a center, too.
			sum += int(hops[to]) * (hosts[to]*len(part) + 1)
		}
		if best < 0 || cmp.Or(cmp.Compare(sum, bestSum), cmp.Compare(len(g.edges[best]), len(g.edges[r])),
			cmp.Compare(g.guid(r), g.guid(best))) < 0 {
			best, bestSum = r, sum
		}
	}
	return best
}

// rankOrder returns all switches from the top down: by their distance from the
// nearest root, then by node GUID. Confined switches are the last.
func (g *graph) rankOrder(roots [][]int) []int {
	order := make([]int, len(g.node))
	for i := range order {
		order[i] = i
	}
	rank := make([]uint8, len(g.node))
	g.spread(rank, nil, slices.Concat(roots...)...)
	slices.SortFunc(order, func(a, b int) int {
		if last := g.isConfined(a); last != g.isConfined(b) {
			if last {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(rank[a], rank[b]), cmp.Compare(g.guid(a), g.guid(b)), cmp.Compare(a, b))
	})
	return order
}
