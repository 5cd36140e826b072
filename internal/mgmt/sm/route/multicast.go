// SPDX-License-Identifier: Apache-2.0

package route

import "weft/internal/mgmt/sm/topo"

// spanning connects the switches of the ports of a group by shortest paths to a root. The root is the switch with the
// smallest distance to the farthest of them; among several, the one with the smallest average distance; among those the
// MLID selects, so that groups use different roots and links.
func spanning(s *topo.Subnet, t *Tables, group Group) Tree {
	g := t.graph
	if g == nil {
		g = newGraph(s)
	}
	tree := Tree{}
	n := len(g.node)
	// Ports at each switch that receive copies, and that send.
	gets, sends := make([]int, n), make([]int, n)
	var at []int // switches with such ports
	count := func(ports []topo.Ref, member bool) {
		for _, r := range ports {
			sw := s.Attached(r)
			if sw.IsNone() {
				continue
			}
			rank := s.Nodes[sw.Node].Switch.Rank
			if gets[rank]+sends[rank] == 0 {
				at = append(at, rank)
			}
			sends[rank]++
			if member {
				gets[rank]++
				tree.add(rank, sw.Port)
			}
		}
	}
	count(group.Members, true)
	count(group.Senders, false)
	if len(at) < 2 {
		return tree
	}
	roots := g.pickRoots(t, at)
	if len(roots) == 0 {
		return tree // there are only confined switches, of which no two are linked
	}
	root := roots[int(group.MLID)%len(roots)]
	parent, order := g.towards(root, int(group.MLID)/len(roots))

	// A link up carries copies if there are senders below and receivers elsewhere; a link down, if there are receivers
	// below and senders elsewhere.
	for _, r := range at {
		if r != root && parent[r].to < 0 {
			delete(tree, r) // in another part of the subnet
			gets[r], sends[r] = 0, 0
		}
	}
	allGets, allSends := 0, 0
	for _, r := range at {
		allGets, allSends = allGets+gets[r], allSends+sends[r]
	}
	for i := len(order) - 1; i > 0; i-- { // from the leaves of the tree to its root
		r := order[i]
		up := parent[r]
		if sends[r] > 0 && allGets > gets[r] {
			tree.add(r, up.port)
		}
		if gets[r] > 0 && allSends > sends[r] {
			tree.add(up.to, up.peer)
		}
		gets[up.to] += gets[r]
		sends[up.to] += sends[r]
	}
	return tree
}

func (t Tree) add(rank int, port uint8) {
	m := t[rank]
	m.Add(port)
	t[rank] = m
}

// mayRoot reports whether a tree of the switches at may have a root: confined switches have one link of a tree at most.
func (g *graph) mayRoot(t *Tables, root int, at []int) bool {
	return !g.isConfined(root) || len(at) == 2 && (at[0] == root && t.Hops[root][at[1]] == 1 ||
		at[1] == root && t.Hops[root][at[0]] == 1)
}

// pickRoots returns the best roots for the switches at, which are equally good.
func (g *graph) pickRoots(t *Tables, at []int) (roots []int) {
	type rating struct{ lost, depth, sum int }
	var best rating
	for r := range t.Hops {
		if !g.mayRoot(t, r, at) {
			continue
		}
		var is rating
		for _, m := range at {
			if h := t.Hops[r][m]; h == Unreachable {
				is.lost++
			} else {
				is.depth, is.sum = max(is.depth, int(h)), is.sum+int(h)
			}
		}
		switch {
		case len(roots) == 0 || is.lost < best.lost || is.lost == best.lost && (is.depth < best.depth ||
			is.depth == best.depth && is.sum < best.sum):
			best, roots = is, append(roots[:0], r)
		case is == best:
			roots = append(roots, r)
		}
	}
	return roots
}

// towards returns, by rank, the link to root on a shortest path, with to -1 if there is none, and the switches that
// reach it, from root on. pick selects among equally good links.
func (g *graph) towards(root, pick int) (parent []edge, order []int) {
	hops := make([]uint8, len(g.node))
	order = g.spread(hops, nil, root)
	parent = make([]edge, len(g.node))
	var some []edge
	for r := range parent {
		parent[r].to = -1
		if r == root || hops[r] == Unreachable {
			continue
		}
		some = some[:0]
		for _, e := range g.edges[r] {
			if hops[e.to] == hops[r]-1 && !g.bars(e.to, root) {
				some = append(some, e)
			}
		}
		parent[r] = some[pick%len(some)]
	}
	return parent, order
}
