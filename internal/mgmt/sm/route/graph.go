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

// graph is the switches and the links between them. A link has two directions, so it is in edges twice. If a confined
// switch and another switch have several links, only one is in graph: the link with the lowest port at the switch of
// the lower rank. A switch accepts packets of a confined switch only from the link by which it reaches their source.
type graph struct {
	s     *topo.Subnet
	node  []int32 // by rank: index in Subnet.Nodes
	edges [][]edge
	// confined is by rank, nil if no switch is confined.
	confined []bool
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
		if s.Nodes[i].Confined && g.confined == nil {
			g.confined = make([]bool, len(g.node))
		}
		if s.Nodes[i].Confined {
			g.confined[r] = true
		}
	}
	if g.confined != nil {
		g.single()
	}
	return g
}

// single drops all but one of several links between a confined switch and another.
func (g *graph) single() {
	for r := range g.edges {
		all := g.edges[r]
		g.edges[r] = slices.DeleteFunc(slices.Clone(all), func(e edge) bool {
			return (g.confined[r] || g.confined[e.to]) && slices.ContainsFunc(all, func(o edge) bool {
				return o.to == e.to && (r < e.to && o.port < e.port || r > e.to && o.peer < e.peer)
			})
		})
	}
}

// isConfined reports whether no path leads through a switch.
func (g *graph) isConfined(rank int) bool { return g.confined != nil && g.confined[rank] }

// bars reports whether packets to the switch to must not pass the switch at, since it is confined.
func (g *graph) bars(at, to int) bool { return g.confined != nil && g.confined[at] && at != to }

// name returns the name of a switch for people.
func (g *graph) name(rank int) string {
	n := &g.s.Nodes[g.node[rank]]
	if n.Description == "" {
		return n.Info.NodeGUID.String()
	}
	return fmt.Sprintf("%q", n.Description)
}

func (g *graph) guid(rank int) ib.GUID { return g.s.Nodes[g.node[rank]].Info.NodeGUID }

// spread fills hops with the distance of every switch from the nearest of from, by paths that do not lead through
// confined switches; it is Unreachable beyond the length of directed routes. queue is scratch space.
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
		if hops[at] > 0 && g.isConfined(at) {
			continue
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

// parts are the connected parts of a graph. The switches of a part that are not confined reach each other without the
// confined ones. A confined switch is in each part to which it has a link, or else in a part of its own.
type parts struct {
	list [][]int // by rank
	of   []int   // by rank: the part of a switch, the first one of a confined switch
	more [][]int // by rank: the other parts of a confined switch; nil if there are none
}

func (g *graph) parts() *parts {
	p := &parts{of: make([]int, len(g.node))}
	for i := range p.of {
		p.of[i] = -1
	}
	for r := range g.node {
		if p.of[r] >= 0 || g.isConfined(r) {
			continue
		}
		k := len(p.list)
		part := []int{r}
		p.of[r] = k
		for head := 0; head < len(part); head++ {
			for _, e := range g.edges[part[head]] {
				if p.of[e.to] < 0 && !g.isConfined(e.to) {
					p.of[e.to] = k
					part = append(part, e.to)
				}
			}
		}
		p.list = append(p.list, part)
	}
	for r := range g.confined {
		if g.confined[r] {
			p.addConfined(g, r)
		}
	}
	for _, part := range p.list {
		slices.Sort(part)
	}
	return p
}

// addConfined adds a confined switch to the parts to which it has a link.
func (p *parts) addConfined(g *graph, r int) {
	var of []int
	for _, e := range g.edges[r] {
		if k := p.of[e.to]; !g.confined[e.to] && !slices.Contains(of, k) {
			of = append(of, k)
		}
	}
	if len(of) == 0 {
		of = append(of, len(p.list))
		p.list = append(p.list, nil)
	}
	for _, k := range of {
		p.list[k] = append(p.list[k], r)
	}
	if p.of[r] = of[0]; len(of) > 1 {
		if p.more == nil {
			p.more = make([][]int, len(p.of))
		}
		p.more[r] = of[1:]
	}
}

// all returns the parts of a switch.
func (p *parts) all(r int) []int {
	all := p.of[r : r+1 : r+1]
	if p.more != nil {
		all = append(all, p.more[r]...)
	}
	return all
}

// common returns a part that has both switches, -1 if there is no such part. Two confined switches without a common
// part may still have a link.
func (p *parts) common(a, b int) int {
	if p.of[a] == p.of[b] {
		return p.of[a]
	}
	if p.more != nil {
		for _, k := range p.all(a) {
			if slices.Contains(p.all(b), k) {
				return k
			}
		}
	}
	return -1
}

// noteApart notes two parts of the subnet that only a confined switch connects, if there are any.
func (g *graph) noteApart(t *Tables) {
	if g.confined == nil {
		return
	}
	p := g.parts()
	for r := range g.confined {
		if !g.confined[r] {
			continue
		}
		around := slices.Clone(p.all(r))
		for _, e := range g.edges[r] {
			around = append(around, p.all(e.to)...)
		}
		slices.Sort(around)
		if around = slices.Compact(around); len(around) > 1 {
			t.Notes = append(t.Notes, fmt.Sprintf("%s and %s are connected only through %s, which carries no packets "+
				"of others", g.first(p.list[around[0]]), g.first(p.list[around[1]]), g.name(r)))
			return
		}
	}
}

// first returns the name of the first switch of a part that is not confined, or else of the first one.
func (g *graph) first(part []int) string {
	i := slices.IndexFunc(part, func(r int) bool { return !g.confined[r] })
	return g.name(part[max(0, i)])
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
