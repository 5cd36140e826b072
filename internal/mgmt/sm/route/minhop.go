// SPDX-License-Identifier: Apache-2.0

package route

import "weft/internal/mgmt/sm/topo"

// MinHop routes by shortest paths, and spreads destinations evenly over equally short ones. It is deadlock-free only if
// the shortest paths are, as in trees and stars, and between the adapters of fat trees.
type MinHop struct{}

// Name implements Engine.
func (MinHop) Name() string { return "minhop" }

// Unicast implements Engine.
func (e MinHop) Unicast(s *topo.Subnet) (*Tables, error) {
	g, at := newGraph(s), endsOf(s)
	t := newTables(s, g, at, e.Name())
	t.Hops = g.distances()
	t.fill(at, allEnds, func(from, to int, buf []edge) []edge {
		h := t.Hops[to] // the same in both directions
		if h[from] == Unreachable {
			return buf
		}
		for _, e := range g.edges[from] {
			if h[e.to] == h[from]-1 && !g.bars(e.to, to) {
				buf = append(buf, e)
			}
		}
		return buf
	})
	g.noteApart(t)
	return t, nil
}

// Multicast implements Engine.
func (MinHop) Multicast(s *topo.Subnet, t *Tables, g Group) (Tree, error) {
	return spanning(s, t, g), nil
}
