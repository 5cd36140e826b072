// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// plan is a subnet built by hand: nodes get LIDs 1, 2 … in their order.
type plan struct{ topo.Subnet }

func (p *plan) sw(ports int) int32 {
	return p.add(mad.NodeSwitch, ports)
}

func (p *plan) ca() int32 { return p.add(mad.NodeCA, 1) }

func (p *plan) add(t mad.NodeType, ports int) int32 {
	i := int32(len(p.Nodes))
	n := topo.Node{Info: mad.NodeInfo{NodeType: t, NodeGUID: ib.GUID(i + 1)}, Ports: make([]topo.Port, ports+1)}
	for k := range n.Ports {
		n.Ports[k].Peer = topo.None
	}
	end := 1
	if t == mad.NodeSwitch {
		n.Switch, end = &topo.Switch{}, 0
	}
	n.Ports[end].GUID, n.Ports[end].Info.LID = ib.GUID(i+1), ib.LID(i+1)
	p.Nodes = append(p.Nodes, n)
	return i
}

func (p *plan) link(a int32, ap uint8, b int32, bp uint8) {
	p.Nodes[a].Ports[ap].Peer = topo.Ref{Node: b, Port: bp}
	p.Nodes[b].Ports[bp].Peer = topo.Ref{Node: a, Port: ap}
}

// install puts tables into the model, so that Walk follows them.
func (p *plan) install(t *Tables) {
	for r, i := range p.Switches() {
		p.Nodes[i].Switch.LFT = t.LFT[r]
	}
}

func (p *plan) end(i int32) topo.Ref {
	if p.Nodes[i].IsSwitch() {
		return topo.Ref{Node: i}
	}
	return topo.Ref{Node: i, Port: 1}
}

// flood counts the copies of a packet of from that arrive at each port.
func flood(p *plan, tree Tree, from topo.Ref) map[topo.Ref]int {
	return floodInto(p, tree, Tree{}, from)
}

// floodInto does, and adds to used what copies leave by.
func floodInto(p *plan, tree, used Tree, from topo.Ref) map[topo.Ref]int {
	got := map[topo.Ref]int{}
	var visit func(in topo.Ref, depth int)
	visit = func(in topo.Ref, depth int) {
		if depth > 20 {
			got[topo.None] = 2
			return
		}
		rank := p.Nodes[in.Node].Switch.Rank
		m := tree[rank]
		for n := range p.Nodes[in.Node].Ports {
			n := uint8(n)
			if !m.Has(n) || n == in.Port {
				continue
			}
			used.add(rank, n)
			if n == 0 {
				got[topo.Ref{Node: in.Node}]++
				continue
			}
			peer := p.Nodes[in.Node].Ports[n].Peer
			if p.Nodes[peer.Node].IsSwitch() {
				visit(peer, depth+1)
			} else {
				got[peer]++
			}
		}
	}
	visit(p.Attached(from), 0)
	return got
}

// finish gives every node a name and every port LIDs anew, 2^lmc to adapters, and
// indexes the plan.
func (p *plan) finish(lmc uint8) *plan {
	next := 1
	for i := range p.Nodes {
		n := &p.Nodes[i]
		e := p.Port(p.end(int32(i)))
		if n.IsSwitch() {
			n.Description = fmt.Sprintf("switch %d", i)
			e.Info.LID = ib.LID(next)
			next++
			continue
		}
		n.Description = fmt.Sprintf("adapter %d", i)
		next = (next + 1<<lmc - 1) >> lmc << lmc
		e.Info.LID, e.Info.LMC = ib.LID(next), lmc
		next += 1 << lmc
	}
	p.Index()
	return p
}

// plug joins the next free ports of two nodes.
func (p *plan) plug(a, b int32) {
	free := func(i int32) uint8 {
		for k := 1; k < len(p.Nodes[i].Ports); k++ {
			if p.Nodes[i].Ports[k].Peer.IsNone() {
				return uint8(k)
			}
		}
		panic("no free port")
	}
	pa := free(a)
	p.Nodes[a].Ports[pa].Peer = topo.Ref{Node: b} // for a cable from a switch to itself
	p.link(a, pa, b, free(b))
}

// twoLevels is a fat tree: hosts is the number of adapters at each leaf, and every leaf has trunks cables to every
// spine.
func twoLevels(hosts []int, spines, trunks int) *plan {
	p := &plan{}
	var tops []int32
	for range spines {
		tops = append(tops, p.sw(len(hosts)*trunks))
	}
	for _, n := range hosts {
		leaf := p.sw(n + spines*trunks)
		for range n {
			p.plug(leaf, p.ca())
		}
		for _, top := range tops {
			for range trunks {
				p.plug(leaf, top)
			}
		}
	}
	return p
}

func even(leaves, hosts int) []int {
	all := make([]int, leaves)
	for i := range all {
		all[i] = hosts
	}
	return all
}

// threeLevels is the k-ary fat tree: k pods of k/2 leaves with k/2 adapters
// and k/2 switches above them, and k²/4 cores.
func threeLevels(k int) *plan {
	p := &plan{}
	var cores []int32
	for range k * k / 4 {
		cores = append(cores, p.sw(k))
	}
	for range k {
		var middle []int32
		for a := range k / 2 {
			m := p.sw(k)
			for c := range k / 2 {
				p.plug(m, cores[a*k/2+c])
			}
			middle = append(middle, m)
		}
		for range k / 2 {
			leaf := p.sw(k)
			for range k / 2 {
				p.plug(leaf, p.ca())
			}
			for _, m := range middle {
				p.plug(leaf, m)
			}
		}
	}
	return p
}

// mesh has w×h switches with an adapter each; wrap closes rows and columns.
func mesh(w, h int, wrap bool) *plan {
	p := &plan{}
	for range w * h {
		p.sw(8)
	}
	at := func(x, y int) int32 { return int32(y%h*w + x%w) }
	for y := range h {
		for x := range w {
			p.plug(at(x, y), p.ca())
			if x+1 < w || wrap && w > 2 {
				p.plug(at(x, y), at(x+1, y))
			}
			if y+1 < h || wrap && h > 2 {
				p.plug(at(x, y), at(x, y+1))
			}
		}
	}
	return p
}

// random has switches, links and adapters where rng puts them; it may be in
// several parts.
func random(rng *rand.Rand) *plan {
	p := &plan{}
	n, links := 1+rng.IntN(14), 0
	if links = rng.IntN(3 * n); rng.IntN(4) == 0 { // a large one, with long ways
		n = 10 + rng.IntN(30)
		links = n/2 + rng.IntN(n)
		for i := range n {
			p.sw(120)
			if i > 0 {
				p.plug(int32(rng.IntN(i)), int32(i))
			}
		}
	}
	for len(p.Nodes) < n {
		p.sw(120)
	}
	for range links {
		p.plug(int32(rng.IntN(n)), int32(rng.IntN(n)))
	}
	for range rng.IntN(16) {
		p.plug(int32(rng.IntN(n)), p.ca())
	}
	return p
}

// join returns a plan with the nodes of both and no link between them.
func join(a, b *plan) *plan {
	off := int32(len(a.Nodes))
	for _, n := range b.Nodes {
		n.Info.NodeGUID += ib.GUID(off)
		for k := range n.Ports {
			if n.Ports[k].GUID != 0 {
				n.Ports[k].GUID += ib.GUID(off)
			}
			if !n.Ports[k].Peer.IsNone() {
				n.Ports[k].Peer.Node += off
			}
		}
		a.Nodes = append(a.Nodes, n)
	}
	return a
}

// parts returns which part of the plan each node is in.
func (p *plan) parts() []int {
	of := make([]int, len(p.Nodes))
	var visit func(i int32, part int)
	visit = func(i int32, part int) {
		if of[i] != 0 {
			return
		}
		of[i] = part
		for _, port := range p.Nodes[i].Ports {
			if !port.Peer.IsNone() {
				visit(port.Peer.Node, part)
			}
		}
	}
	for i := range p.Nodes {
		visit(int32(i), i+1)
	}
	return of
}

// check walks from every switch to every LID: a connected port must be reached, over the number of links in Hops. It
// returns the links that packets of one link wait for, over all paths.
func check(t *testing.T, p *plan, tab *Tables) map[topo.Ref]map[topo.Ref]bool {
	t.Helper()
	p.install(tab)
	parts := p.parts()
	hosts := make([]bool, len(p.Nodes))
	for r := range p.EndPorts() {
		if a := p.Attached(r); r.Port != 0 && !a.IsNone() {
			hosts[a.Node] = true
		}
	}
	waits := make(map[topo.Ref]map[topo.Ref]bool)
	lost := 0
	for _, i := range p.Switches() {
		from := p.end(i)
		for to := range p.EndPorts() {
			at := p.Attached(to)
			if at.IsNone() {
				continue
			}
			for k := range 1 << p.Port(to).Info.LMC {
				lid := p.Port(to).Info.LID + ib.LID(k)
				w, ok := p.Walk(from, lid, false)
				if ok && parts[i] != parts[to.Node] {
					t.Fatalf("%v reaches %v, which is not connected", from, to)
				}
				if !ok {
					if parts[i] == parts[to.Node] {
						if lost++; len(tab.Notes) == 0 || hosts[i] && hosts[at.Node] {
							t.Fatalf("%v does not reach LID %d of %v", from, k, to)
						}
					}
					continue
				}
				links := w.Hops
				if to.Port != 0 {
					links-- // to the adapter
				}
				// Only what goes by a hub may take a longer way than there is.
				h := int(tab.Hops[p.Nodes[i].Switch.Rank][p.Nodes[at.Node].Switch.Rank])
				if links < h || links > h && (tab.Engine == "minhop" || hosts[i] && hosts[at.Node]) {
					t.Fatalf("%v to %v: %d links, Hops has %d", from, to, links, h)
				}
				if links < 2 {
					continue
				}
				// Later pairs of links are the first ones of other ways.
				a := topo.Ref{Node: i, Port: p.Nodes[i].Switch.LFT[lid]}
				next := p.Port(a).Peer.Node
				b := topo.Ref{Node: next, Port: p.Nodes[next].Switch.LFT[lid]}
				if waits[a] == nil {
					waits[a] = make(map[topo.Ref]bool)
				}
				waits[a][b] = true
			}
		}
	}
	if lost > 0 {
		t.Logf("%d ways are missing: %q", lost, tab.Notes)
	}
	return waits
}

// circle reports whether links wait for each other in a circle.
func circle(waits map[topo.Ref]map[topo.Ref]bool) bool {
	const entered, left = 1, 2
	state := make(map[topo.Ref]int)
	var visit func(l topo.Ref) bool
	visit = func(l topo.Ref) bool {
		switch state[l] {
		case entered:
			return true
		case left:
			return false
		}
		state[l] = entered
		for m := range waits[l] {
			if visit(m) {
				return true
			}
		}
		state[l] = left
		return false
	}
	for l := range waits {
		if visit(l) {
			return true
		}
	}
	return false
}
