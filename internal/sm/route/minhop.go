// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"slices"

	"weft/internal/sm/topo"
)

// MinHop sends packets by a shortest way, and spreads destinations evenly over
// the ports of equally short ones. It is free of dead-locks only where the
// shortest ways are, as in trees, fat trees and stars.
type MinHop struct{}

// Name implements Engine.
func (MinHop) Name() string { return "minhop" }

// edge is a link from one switch to another.
type edge struct {
	port uint8
	to   int // rank
}

// graph is the switches and the links between them.
type graph struct {
	node  []int32 // by rank: index in Subnet.Nodes
	edges [][]edge
}

func newGraph(s *topo.Subnet) *graph {
	g := &graph{node: s.Switches()}
	g.edges = make([][]edge, len(g.node))
	for r, i := range g.node {
		for p := range s.Nodes[i].Ports {
			peer := s.Nodes[i].Ports[p].Peer
			if p == 0 || peer.IsNone() || peer.Node == i || !s.Nodes[peer.Node].IsSwitch() {
				continue // not a link, back to itself, or to an end node
			}
			g.edges[r] = append(g.edges[r], edge{uint8(p), s.Nodes[peer.Node].Switch.Rank})
		}
	}
	return g
}

// distances returns the hops between all switches. Links go both ways, so the
// hops to a switch are those from it.
func (g *graph) distances() [][]uint8 {
	n := len(g.node)
	all := make([]uint8, n*n)
	hops := make([][]uint8, n)
	queue := make([]int, 0, n)
	for from := range n {
		d := all[from*n : (from+1)*n]
		for i := range d {
			d[i] = Unreachable
		}
		d[from] = 0
		queue = append(queue[:0], from)
		for head := 0; head < len(queue); head++ {
			at := queue[head]
			if d[at] == Unreachable-1 {
				break // farther than any directed route reaches
			}
			for _, e := range g.edges[at] {
				if d[e.to] == Unreachable {
					d[e.to] = d[at] + 1
					queue = append(queue, e.to)
				}
			}
		}
		hops[from] = d
	}
	return hops
}

// ends are the ports with LIDs at each switch, by rank, and their LIDs in order.
type ends struct {
	lid   uint16 // base LID
	count int    // LIDs
	port  uint8  // of the switch that serves it, 0 for itself
}

func endsOf(s *topo.Subnet) [][]ends {
	at := make([][]ends, len(s.Switches()))
	for r := range s.EndPorts() {
		i := &s.Port(r).Info
		sw := s.Attached(r)
		if sw.IsNone() || !i.LID.IsUnicast() {
			continue
		}
		rank := s.Nodes[sw.Node].Switch.Rank
		at[rank] = append(at[rank], ends{uint16(i.LID), 1 << i.LMC, sw.Port})
	}
	for _, e := range at {
		slices.SortFunc(e, func(a, b ends) int { return cmp.Compare(a.lid, b.lid) })
	}
	return at
}

// Unicast implements Engine.
func (MinHop) Unicast(s *topo.Subnet) (*Tables, error) {
	g, at := newGraph(s), endsOf(s)
	t := &Tables{Top: s.TopLID(), Hops: g.distances()}
	n := len(g.node)
	width := int(t.Top) + 1
	all := make([]uint8, n*width)
	for i := range all {
		all[i] = NoPort
	}
	t.LFT = make([][]uint8, n)
	// Destinations by port: switches, which few talk to, do not count as ends.
	var loads [2][256]int
	var ways, lids []edge
	for from := range n {
		lft := all[from*width : (from+1)*width]
		t.LFT[from] = lft
		loads = [2][256]int{}
		for _, e := range at[from] {
			for k := range e.count {
				lft[int(e.lid)+k] = e.port
			}
		}
		for k := range n {
			// Neighbours in rank start at different ports.
			to := (from + k) % n
			if to == from || len(at[to]) == 0 || t.Hops[from][to] == Unreachable {
				continue
			}
			ways = ways[:0]
			for _, e := range g.edges[from] {
				if t.Hops[e.to][to] == t.Hops[from][to]-1 {
					ways = append(ways, e)
				}
			}
			for _, e := range at[to] {
				// The LIDs of one port take different ways as long as there are
				// any.
				load := &loads[min(e.port, 1)]
				lids = append(lids[:0], ways...)
				for k := range e.count {
					if len(lids) == 0 {
						lids = append(lids, ways...)
					}
					best := 0
					for i := range lids {
						if load[lids[i].port] < load[lids[best].port] {
							best = i
						}
					}
					p := lids[best].port
					lft[int(e.lid)+k] = p
					load[p]++
					lids = slices.Delete(lids, best, best+1)
				}
			}
		}
	}
	return t, nil
}

// Multicast implements Engine: the shortest ways from all members' switches to
// the switch that is nearest to them all.
func (MinHop) Multicast(s *topo.Subnet, t *Tables, members []topo.Ref) (Tree, error) {
	return spanning(s, t, newGraph(s), members), nil
}

func spanning(s *topo.Subnet, t *Tables, g *graph, members []topo.Ref) Tree {
	tree := Tree{}
	at := make(map[int]bool)
	for _, r := range members {
		if sw := s.Attached(r); !sw.IsNone() {
			rank := s.Nodes[sw.Node].Switch.Rank
			at[rank] = true
			m := tree[rank]
			m.Add(sw.Port)
			tree[rank] = m
		}
	}
	if len(at) < 2 {
		return tree
	}
	// The root reaches the most members, and of those it is the nearest to them.
	root, reached, sum := -1, 0, 0
	for r := range g.node {
		n, d := 0, 0
		for m := range at {
			if h := t.Hops[r][m]; h != Unreachable {
				n, d = n+1, d+int(h)
			}
		}
		if root < 0 || n > reached || n == reached && d < sum {
			root, reached, sum = r, n, d
		}
	}
	for m := range at {
		if t.Hops[root][m] == Unreachable {
			delete(tree, m)
		}
	}
	// Towards the root every switch has one way: the first port of those that
	// lead nearer, so that ways that meet stay together.
	for m := range at {
		for here := m; here != root && t.Hops[root][here] != Unreachable; {
			i := slices.IndexFunc(g.edges[here], func(e edge) bool { return t.Hops[root][e.to] == t.Hops[root][here]-1 })
			e := g.edges[here][i]
			up := tree[here]
			joined := up.Has(e.port)
			up.Add(e.port)
			tree[here] = up
			peer := s.Nodes[g.node[here]].Ports[e.port].Peer
			down := tree[e.to]
			down.Add(peer.Port)
			tree[e.to] = down
			if joined {
				break // the rest of the way is there
			}
			here = e.to
		}
	}
	return tree
}
