// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"math/bits"
	"slices"
)

// updown is the paths that go up first and then down, never up again. The direction up is a total order of the
// switches, so there is no cycle of packets that wait for buffers: a link up waits for links further up or for links
// down, and these wait only for links further down.
//
// A forwarding table does not distinguish the origin of a packet. Hence a switch with a path down to a destination
// always uses it, even if a path up first would be shorter: a switch above that sent it the packet relies on that.
type updown struct {
	g     *graph
	pos   []int   // by rank: the place in the order, 0 is the top
	order []int   // ranks from the top down
	cost  [][]int // by rank to and rank from: the links, none if there is no path
	down  [][]bool
	parts *parts
	hub   []int // by part, -1 for none; see connect
}

// none is the cost without a path.
const none = 1 << 20

// newUpDown computes all paths of an order, in which confined switches are the last.
func newUpDown(g *graph, order []int) *updown {
	n := len(g.node)
	u := &updown{g: g, order: order, pos: make([]int, n), cost: make([][]int, n), down: make([][]bool, n)}
	for i, r := range order {
		u.pos[r] = i
	}
	u.parts = g.parts()
	u.hub = make([]int, len(u.parts.list))
	for i := range u.hub {
		u.hub[i] = -1
	}
	costs, downs := make([]int, n*n), make([]bool, n*n)
	var queue []int
	for to := range n {
		cost, down := costs[to*n:(to+1)*n], downs[to*n:(to+1)*n]
		u.cost[to], u.down[to] = cost, down
		for i := range cost {
			cost[i] = none
		}
		cost[to], down[to] = 0, true
		queue = append(queue[:0], to)
		for head := 0; head < len(queue); head++ {
			at := queue[head]
			if g.bars(at, to) {
				continue
			}
			for _, e := range g.edges[at] {
				if u.pos[e.to] < u.pos[at] && !down[e.to] {
					down[e.to], cost[e.to] = true, cost[at]+1
					queue = append(queue, e.to)
				}
			}
		}
		for _, r := range order {
			if down[r] {
				continue
			}
			for _, e := range g.edges[r] {
				if u.pos[e.to] < u.pos[r] && !g.bars(e.to, to) {
					cost[r] = min(cost[r], cost[e.to]+1)
				}
			}
		}
	}
	return u
}

// up reports whether e leads up from a switch.
func (u *updown) up(from int, e edge) bool { return u.pos[e.to] < u.pos[from] }

// ways appends to buf the links of departure of packets from one switch to another.
func (u *updown) ways(from, to int, buf []edge) []edge {
	if u.cost[to][from] >= none {
		k := u.parts.common(from, to)
		if k < 0 || u.hub[k] < 0 {
			return buf
		}
		to = u.hub[k]
	}
	cost, down := u.cost[to], u.down[to][from]
	for _, e := range u.g.edges[from] {
		if cost[e.to] == cost[from]-1 && u.up(from, e) != down && (!down || u.down[to][e.to]) && !u.g.bars(e.to, to) {
			buf = append(buf, e)
		}
	}
	return buf
}

// missing returns two switches with adapters, of one part, without a path.
func (u *updown) missing(adapters []int) (from, to int, found bool) {
	for to := range u.cost {
		if adapters[to] == 0 {
			continue
		}
		for from, c := range u.cost[to] {
			if c >= none && adapters[from] != 0 && u.parts.common(from, to) >= 0 {
				return from, to, true
			}
		}
	}
	return 0, 0, false
}

// apart returns two switches of one part without a path, not even by a hub. It examines only the parts for which of
// holds.
func (u *updown) apart(of []bool) (from, to int, found bool) {
	for to := range u.cost {
		if !slices.ContainsFunc(u.parts.all(to), func(k int) bool { return of[k] && u.hub[k] < 0 }) {
			continue
		}
		for from, c := range u.cost[to] {
			if c < none {
				continue
			}
			if k := u.parts.common(from, to); k >= 0 && of[k] && u.hub[k] < 0 {
				return from, to, true
			}
		}
	}
	return 0, 0, false
}

// connect fills tables by fill with ways.
//
// Switches without a path get one through a hub, a switch at the bottom: down to it, and up again. Only switches have
// no path under the rule, as the tops of a fat tree, and only packets that they send themselves use such paths. connect
// does so only if there is still no cyclic wait for buffers; Tables.Notes has the switches that remain without a path.
func (u *updown) connect(blank *Tables, fill func(*Tables)) *Tables {
	every := make([]bool, len(u.hub))
	for i := range every {
		every[i] = true
	}
	t := blank.clone()
	hubs := false
	for {
		from, to, lost := u.apart(every)
		if !lost {
			break
		}
		k := u.parts.common(from, to)
		u.hub[k], every[k] = u.findHub(k), false
		hubs = hubs || u.hub[k] >= 0
	}
	fill(t)
	if hubs && u.g.waits(t.LFT) {
		t = blank.clone()
		for k := range u.hub {
			u.hub[k] = -1
		}
		fill(t)
	}
	for k := range every {
		every[k] = true
	}
	for {
		from, to, lost := u.apart(every)
		if !lost {
			break
		}
		every[u.parts.common(from, to)] = false
		t.Notes = append(t.Notes, fmt.Sprintf("%s: switches without adapters do not all reach each other, as %s does not reach %s",
			t.Engine, u.g.name(from), u.g.name(to)))
	}
	u.hops(t)
	u.g.noteApart(t)
	return t
}

// findHub returns the lowest switch of a part that reaches all others and is reached by them under the rule, -1 if
// there is none. It is not confined.
func (u *updown) findHub(part int) int {
	for _, h := range slices.Backward(u.order) {
		if u.parts.of[h] != part || u.g.isConfined(h) {
			continue
		}
		all := true
		for _, r := range u.parts.list[part] {
			all = all && u.cost[h][r] < none && u.cost[r][h] < none
		}
		if all {
			return h
		}
	}
	return -1
}

// hops fills in t.Hops.
func (u *updown) hops(t *Tables) {
	n := len(u.g.node)
	t.Hops = matrix(n)
	byHub := make([]int, n)
	var some []edge
	for to := range n {
		for from, c := range u.cost[to] {
			t.Hops[from][to] = uint8(min(c, Unreachable))
		}
		for _, k := range u.parts.all(to) {
			hub := u.hub[k]
			if hub < 0 {
				continue
			}
			// From the hub outwards: a switch without a path under the rule is one link farther than the next one on
			// its path to the hub.
			byHub = byHub[:0]
			for from, c := range u.cost[to] {
				if c >= none && u.parts.common(from, to) == k {
					byHub = append(byHub, from)
				}
			}
			slices.SortFunc(byHub, func(a, b int) int { return u.cost[hub][a] - u.cost[hub][b] })
			for _, from := range byHub {
				some = u.ways(from, to, some[:0])
				for _, e := range some {
					if h := t.Hops[e.to][to]; h < Unreachable-1 {
						t.Hops[from][to] = min(t.Hops[from][to], h+1)
					}
				}
			}
		}
	}
}

func (t *Tables) clone() *Tables {
	c := *t
	c.LFT = make([][]uint8, len(t.LFT))
	for i := range t.LFT {
		c.LFT[i] = slices.Clone(t.LFT[i])
	}
	return &c
}

// waits reports whether packets that follow the tables can form a cyclic wait for buffers: whether the links, each
// direction separately, joined where packets of one continue by the other, contain a cycle.
func (g *graph) waits(lft [][]uint8) bool {
	const ports = 256
	n := len(g.node)
	to := make([]int32, n*ports) // by link: the switch it leads to, -1 for none
	for i := range to {
		to[i] = -1
	}
	for r := range g.edges {
		for _, e := range g.edges[r] {
			to[r*ports+int(e.port)] = int32(e.to)
		}
	}
	// next is, by link, the ports of departure at the other switch.
	next := make([][ports / 64]uint64, n*ports)
	for r := range lft {
		for lid, p := range lft[r] {
			l := r*ports + int(p)
			if to[l] < 0 {
				continue
			}
			if q := lft[to[l]][lid]; to[int(to[l])*ports+int(q)] >= 0 {
				next[l][q>>6] |= 1 << (q & 63)
			}
		}
	}
	each := func(l int, f func(m int)) {
		for k, w := range next[l] {
			for ; w != 0; w &= w - 1 {
				f(int(to[l])*ports + k*64 + bits.TrailingZeros64(w))
			}
		}
	}
	before := make([]int32, n*ports) // links that wait for this one
	for l := range to {
		each(l, func(m int) { before[m]++ })
	}
	var free []int
	links, seen := 0, 0
	for l := range to {
		if to[l] >= 0 {
			links++
			if before[l] == 0 {
				free = append(free, l)
			}
		}
	}
	for len(free) > 0 {
		l := free[len(free)-1]
		free = free[:len(free)-1]
		seen++
		each(l, func(m int) {
			if before[m]--; before[m] == 0 {
				free = append(free, m)
			}
		})
	}
	return seen < links
}
