// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"fmt"
	"slices"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
)

// edge is a link from one switch to another.
type edge struct {
	port uint8 // of the switch
	peer uint8 // the port of the other switch
	to   int   // rank of the other switch
}

// graph is the switches and the links between them. A link has two directions, so it is in edges twice.
type graph struct {
	s     *topo.Subnet
	node  []int32 // by rank: index in Subnet.Nodes
	edges [][]edge
}

func newGraph(s *topo.Subnet) *graph {
	g := &graph{s: s, node: s.Switches()}
	g.edges = make([][]edge, len(g.node))
	for r, i := range g.node {
		for p := range s.Nodes[i].Ports {
			peer := s.Nodes[i].Ports[p].Peer
			if p == 0 || peer.IsNone() || peer.Node == i || !s.Nodes[peer.Node].IsSwitch() {
				continue // no link, a link to itself, or to an end node
			}
			g.edges[r] = append(g.edges[r], edge{uint8(p), peer.Port, s.Nodes[peer.Node].Switch.Rank})
		}
	}
	return g
}

// name returns the name of a switch for people.
func (g *graph) name(rank int) string {
	n := &g.s.Nodes[g.node[rank]]
	if n.Description == "" {
		return n.Info.NodeGUID.String()
	}
	return fmt.Sprintf("%q", n.Description)
}

func (g *graph) guid(rank int) ib.GUID { return g.s.Nodes[g.node[rank]].Info.NodeGUID }

// spread fills hops with the distance of every switch from the nearest of from; it is Unreachable beyond the length of
// directed routes. queue is scratch space.
func (g *graph) spread(hops []uint8, queue []int, from ...int) []int {
	for i := range hops {
		hops[i] = Unreachable
	}
	queue = append(queue[:0], from...)
	for _, r := range from {
		hops[r] = 0
	}
	for head := 0; head < len(queue); head++ {
		at := queue[head]
		if hops[at] == Unreachable-1 {
			break
		}
		for _, e := range g.edges[at] {
			if hops[e.to] == Unreachable {
				hops[e.to] = hops[at] + 1
				queue = append(queue, e.to)
			}
		}
	}
	return queue
}

// distances returns the hops between all switches. Links have both directions, so the hops to a switch equal those from
// it.
func (g *graph) distances() [][]uint8 {
	hops := matrix(len(g.node))
	var queue []int
	for from := range hops {
		queue = g.spread(hops[from], queue, from)
	}
	return hops
}

func matrix(n int) [][]uint8 {
	all := make([]uint8, n*n)
	m := make([][]uint8, n)
	for i := range m {
		m[i] = all[i*n : (i+1)*n]
	}
	return m
}

// parts returns the connected parts of a graph, each by rank, and the part of each switch.
func (g *graph) parts() (parts [][]int, of []int) {
	of = make([]int, len(g.node))
	for i := range of {
		of[i] = -1
	}
	for r := range g.node {
		if of[r] >= 0 {
			continue
		}
		k := len(parts)
		part := []int{r}
		of[r] = k
		for head := 0; head < len(part); head++ {
			for _, e := range g.edges[part[head]] {
				if of[e.to] < 0 {
					of[e.to] = k
					part = append(part, e.to)
				}
			}
		}
		slices.Sort(part)
		parts = append(parts, part)
	}
	return parts, of
}

// ends are the LIDs of a port at a switch.
type ends struct {
	lid   uint16 // base LID
	count int    // LIDs
	port  uint8  // port of the switch, 0 for the switch itself
}

// endsOf returns the ports with LIDs at each switch, by rank, in the order of LIDs.
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

// adapters returns the number of LIDs of adapters at each switch.
func adapters(at [][]ends) []int {
	n := make([]int, len(at))
	for r := range at {
		for _, e := range at[r] {
			if e.port != 0 {
				n[r] += e.count
			}
		}
	}
	return n
}

// newTables returns tables with the routes from every switch to its own ports.
func newTables(s *topo.Subnet, g *graph, at [][]ends, engine string) *Tables {
	n := len(g.node)
	t := &Tables{Engine: engine, graph: g, Top: s.TopLID(), LFT: make([][]uint8, n)}
	width := int(t.Top) + 1
	all := make([]uint8, n*width)
	for i := range all {
		all[i] = NoPort
	}
	for r := range t.LFT {
		t.LFT[r] = all[r*width : (r+1)*width]
		for _, e := range at[r] {
			for k := range e.count {
				t.LFT[r][int(e.lid)+k] = e.port
			}
		}
	}
	return t
}

// Kinds of destinations of fill.
const (
	onlySwitches = iota // port 0 of switches
	allEnds
)

// fill completes tables: ways appends to buf the links by which packets from one switch may go to a destination switch,
// and each destination gets the link with the fewest others.
func (t *Tables) fill(at [][]ends, kind int, ways func(from, to int, buf []edge) []edge) {
	// Destinations by port: switches, which are destinations of few packets, do not count as adapters.
	var loads [2][256]int
	var some, left []edge
	n := len(t.LFT)
	for from := range n {
		lft := t.LFT[from]
		loads = [2][256]int{}
		for k := range n {
			// Switches of adjacent ranks start at different ports.
			to := (from + k) % n
			if to == from || len(at[to]) == 0 {
				continue
			}
			if some = ways(from, to, some[:0]); len(some) == 0 {
				continue
			}
			for _, e := range at[to] {
				if kind == onlySwitches && e.port != 0 {
					continue
				}
				// The LIDs of one port get different links while there are any.
				load := &loads[min(e.port, 1)]
				left = left[:0]
				for k := range e.count {
					if len(left) == 0 {
						left = append(left, some...)
					}
					best := 0
					for i := range left {
						if load[left[i].port] < load[left[best].port] {
							best = i
						}
					}
					p := left[best].port
					lft[int(e.lid)+k] = p
					load[p]++
					left = slices.Delete(left, best, best+1)
				}
			}
		}
	}
}
