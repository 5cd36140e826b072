// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"weft/internal/mgmt/member/shape"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
)

// confine makes switches confined, each with a probability of one in n.
func (p *plan) confine(rng *rand.Rand, n int) *plan {
	for _, i := range p.Switches() {
		p.Nodes[i].Confined = rng.IntN(n) == 0
	}
	return p
}

// reach is the slow model of what confined switches allow: the switches that a switch reaches by paths on which a
// confined switch is the first or the last, and all that it reaches by any path.
func (p *plan) reach(from int32) (allowed, linked map[int32]bool) {
	allowed, linked = map[int32]bool{}, map[int32]bool{}
	var visit func(i int32, all bool, into map[int32]bool)
	visit = func(i int32, all bool, into map[int32]bool) {
		if into[i] {
			return
		}
		if into[i] = true; p.Nodes[i].Confined && i != from && !all {
			return
		}
		for _, port := range p.Nodes[i].Ports {
			if !port.Peer.IsNone() && p.Nodes[port.Peer.Node].IsSwitch() {
				visit(port.Peer.Node, all, into)
			}
		}
	}
	visit(from, false, allowed)
	visit(from, true, linked)
	return allowed, linked
}

// lidsAt are all LIDs at a switch.
func (p *plan) lidsAt(i int32) (list []ib.LID) {
	for r := range p.EndPorts() {
		if at := p.Attached(r); at.Node == i && !at.IsNone() {
			for k := range 1 << p.Port(r).Info.LMC {
				list = append(list, p.Port(r).Info.LID+ib.LID(k))
			}
		}
	}
	return list
}

// sourceAllowed reports whether a switch accepts packets that a confined switch sends it by a link: all LIDs there are
// routed to that link.
func (p *plan) sourceAllowed(t *testing.T, at topo.Ref) {
	t.Helper()
	behind := p.Port(at).Peer.Node
	if !p.Nodes[behind].Confined {
		return
	}
	for _, lid := range p.lidsAt(behind) {
		if got := p.Nodes[at.Node].Switch.LFT[lid]; got != at.Port {
			t.Fatalf("%v receives from LID %d of confined switch %d and sends to it by port %d", at, lid, behind, got)
		}
	}
}

// checkConfined walks from every switch to every LID: exactly those pairs are reached that the model allows, and each
// switch accepts the packets of the confined switches next to it.
func checkConfined(t *testing.T, p *plan, tab *Tables) {
	t.Helper()
	p.install(tab)
	for _, i := range p.Switches() {
		allowed, linked := p.reach(i)
		for to := range p.EndPorts() {
			at := p.Attached(to)
			if at.IsNone() {
				continue
			}
			for _, lid := range p.lidsAt(at.Node) {
				w, ok := p.Walk(p.end(i), lid, true)
				if !ok {
					if allowed[at.Node] && (len(tab.Notes) == 0 || len(p.lidsAt(i)) > 1 && len(p.lidsAt(at.Node)) > 1) {
						t.Fatalf("%s: switch %d does not reach LID %d at switch %d: %q", tab.Engine, i, lid, at.Node,
							tab.Notes)
					}
					if linked[at.Node] && !allowed[at.Node] && len(tab.Notes) == 0 {
						t.Fatalf("%s: switches %d and %d are apart, and no note states it", tab.Engine, i, at.Node)
					}
					continue
				}
				for k, out := range w.Ports {
					if k > 0 && p.Nodes[out.Node].Confined && out.Node != at.Node {
						t.Fatalf("%s: the path from switch %d to LID %d leads through confined switch %d", tab.Engine,
							i, lid, out.Node)
					}
					if in := p.Port(out).Peer; p.Nodes[in.Node].IsSwitch() {
						p.sourceAllowed(t, in)
					}
				}
			}
		}
	}
}

// checkConfinedTrees floods trees of random groups: a confined switch has one link of a tree at most, members get one
// copy, and all members of one connected part do.
func checkConfinedTrees(t *testing.T, rng *rand.Rand, p *plan, e Engine, tab *Tables) {
	t.Helper()
	for range 4 {
		group := Group{MLID: 0xc000 + ib.LID(rng.IntN(100))}
		member := map[topo.Ref]bool{}
		share := 2 + rng.IntN(8)
		for r := range p.EndPorts() {
			if !p.Attached(r).IsNone() && rng.IntN(share) == 0 {
				group.Members, member[r] = append(group.Members, r), true
			}
		}
		tree, err := e.Multicast(&p.Subnet, tab, group)
		if err != nil {
			t.Fatal(err)
		}
		for rank, m := range tree {
			i, links := p.Switches()[rank], 0
			for n := range p.Nodes[i].Ports {
				peer := p.Nodes[i].Ports[n].Peer
				if m.Has(uint8(n)) && !peer.IsNone() && p.Nodes[peer.Node].IsSwitch() {
					links++
					p.sourceAllowed(t, topo.Ref{Node: i, Port: uint8(n)})
				}
			}
			if links > 1 && p.Nodes[i].Confined {
				t.Fatalf("%s: confined switch %d has %d links of a tree", e.Name(), i, links)
			}
		}
		whole := true // each reaches each by the switches that are not confined
		for r := range member {
			open := map[int32]bool{}
			allowed, _ := p.reach(p.Attached(r).Node)
			for i := range allowed {
				open[i] = !p.Nodes[i].Confined
			}
			for o := range member {
				common := false
				theirs, _ := p.reach(p.Attached(o).Node)
				for i := range theirs {
					common = common || open[i]
				}
				whole = whole && allowed[p.Attached(o).Node] && common
			}
		}
		for from := range member {
			for to, n := range flood(p, tree, from) {
				if n > 1 || !member[to] || to == from {
					t.Fatalf("%s: %v gets %d copies from %v", e.Name(), to, n, from)
				}
			}
			if got := len(flood(p, tree, from)); whole && oneOpenPart(p) && got != len(member)-1 {
				t.Fatalf("%s: %d of %d members get a copy from %v", e.Name(), got, len(member)-1, from)
			}
		}
	}
}

// oneOpenPart reports whether the switches that are not confined reach each other.
func oneOpenPart(p *plan) bool {
	first := int32(-1)
	var allowed map[int32]bool
	for _, i := range p.Switches() {
		switch {
		case p.Nodes[i].Confined:
		case first < 0:
			first = i
			allowed, _ = p.reach(i)
		case !allowed[i]:
			return false
		}
	}
	return true
}

// TestConfinedRandom checks the paths and trees of all engines in random subnets with confined switches.
func TestConfinedRandom(t *testing.T) {
	served := map[string]int{}
	apart := 0
	for seed := range uint64(600) {
		rng := rand.New(rand.NewPCG(seed, 21))
		p := random(rng)
		if seed%4 == 0 { // a fat tree, with some confined leaves
			p = twoLevels(even(2+rng.IntN(6), 1+rng.IntN(3)), 1+rng.IntN(4), 1+rng.IntN(2))
			for range rng.IntN(6) {
				leaf, spines := p.sw(8), 0
				for i := range p.Nodes[:leaf] {
					if n := &p.Nodes[i]; n.IsSwitch() && spines < 2 && rng.IntN(3) == 0 && free(n) {
						p.plug(leaf, int32(i))
						spines++
					}
				}
				p.Nodes[leaf].Confined = true
				for range rng.IntN(3) {
					p.plug(leaf, p.ca())
				}
			}
			p.finish(uint8(rng.IntN(2)))
		} else {
			p.finish(uint8(rng.IntN(3))).confine(rng, 1+rng.IntN(4))
		}
		if !oneOpenPart(p) {
			apart++
		}
		rooted := UpDn{Roots: []ib.GUID{1, 2, 3, 4}}
		for _, e := range []Engine{MinHop{}, UpDn{}, rooted, FTree{}, Chain{FTree{}, UpDn{}}} {
			t.Run(fmt.Sprint("seed ", seed, " ", e.Name()), func(t *testing.T) {
				tab, err := e.Unicast(&p.Subnet)
				if err != nil {
					if u, ok := e.(UpDn); !(ok && u.Roots != nil) && e.Name() != "ftree" {
						t.Fatal(err)
					}
					return
				}
				served[tab.Engine]++
				checkConfined(t, p, tab)
				if tab.Engine != "minhop" && newGraph(&p.Subnet).waits(tab.LFT) {
					t.Fatal("packets wait for each other in a circle")
				}
				checkConfinedTrees(t, rng, p, e, tab)
			})
		}
	}
	if served["ftree"] < 50 || served["updn"] < 500 || apart < 50 {
		t.Errorf("%v served, in %d subnets of several parts: the test covers less than it shall", served, apart)
	}
}

// free reports whether a node has a port without a link.
func free(n *topo.Node) bool {
	for k := 1; k < len(n.Ports); k++ {
		if n.Ports[k].Peer.IsNone() {
			return true
		}
	}
	return false
}

// TestConfinedShapes checks the paths of the plans of package shape, of which all but a few members are confined.
func TestConfinedShapes(t *testing.T) {
	for _, c := range []struct{ n, ports, open int }{{2, 36, 1}, {3, 36, 1}, {16, 36, 1}, {16, 36, 3}, {17, 36, 3},
		{60, 36, 1}, {60, 36, 4}, {60, 14, 16}, {170, 36, 14}, {60, 14, 6}} {
		t.Run(fmt.Sprint(c.n, "/", c.ports, "/", c.open), func(t *testing.T) {
			p := &plan{}
			var list []shape.Member
			for i := range c.n {
				list = append(list, shape.Member{GUID: ib.GUID(i + 1), Joined: time.Unix(int64(c.n-i), 0),
					Ports: shape.TrunkPorts(c.ports, 1, 0), Confined: i >= c.open})
				p.Nodes[p.sw(c.ports)].Confined = i >= c.open
			}
			for i := range c.n {
				p.plug(int32(i), p.ca())
			}
			s := shape.New(list)
			for _, x := range s.Trunks {
				p.plug(int32(x.A-1), int32(x.B-1))
			}
			p.finish(0)
			unplaced := 0
			for _, l := range s.Limits {
				if l.Kind == shape.Unplaced {
					unplaced += len(l.Members)
				}
			}
			for _, e := range []Engine{MinHop{}, UpDn{}} {
				tab, err := e.Unicast(&p.Subnet)
				if err != nil || len(tab.Notes) > 0 {
					t.Fatalf("%s: %v %q", e.Name(), err, tab.Notes)
				}
				checkConfined(t, p, tab)
				checkConfinedTrees(t, rand.New(rand.NewPCG(1, 2)), p, e, tab)
				reached := 0
				for r := range p.EndPorts() {
					if _, ok := p.Walk(p.end(0), p.Port(r).Info.LID, false); ok {
						reached++
					}
				}
				if want := 2 * (c.n - unplaced); reached != want {
					t.Errorf("%s: the first switch reaches %d ports, want %d", e.Name(), reached, want)
				}
			}
		})
	}
}

// TestConfinedNotes: what only confined switches connect is named, with the switch.
func TestConfinedNotes(t *testing.T) {
	for _, c := range []struct {
		name     string
		confined []int32
		want     string
	}{{"one between two", []int32{1}, `"switch 0" and "switch 2" are connected only through "switch 1"`},
		{"two in a row at the end", []int32{1, 2}, `"switch 0" and "switch 2" are connected only through "switch 1"`},
		{"none in between", []int32{0, 2}, ""}} {
		p := &plan{}
		for range 3 {
			p.plug(p.sw(4), p.ca())
		}
		p.plug(0, 2)
		p.plug(2, 4)
		for i, n := range []int32{0, 2, 4} {
			p.Nodes[n].Description = fmt.Sprint("switch ", i)
		}
		p.Index()
		for _, i := range c.confined {
			p.Nodes[2*i].Confined = true
		}
		for _, e := range []Engine{MinHop{}, UpDn{}} {
			tab, err := e.Unicast(&p.Subnet)
			if err != nil {
				t.Fatal(err)
			}
			notes := strings.Join(tab.Notes, "; ")
			if (notes == "") != (c.want == "") || !strings.Contains(notes, c.want) {
				t.Errorf("%s, %s: %q, want %q", c.name, e.Name(), notes, c.want)
			}
		}
	}
	// A confined root is none.
	p := &plan{}
	p.plug(p.sw(4), p.sw(4))
	p.finish(0)
	p.Nodes[0].Confined = true
	if _, err := (UpDn{Roots: []ib.GUID{1}}).Unicast(&p.Subnet); err == nil ||
		!strings.Contains(err.Error(), "carries packets of others") {
		t.Errorf("a confined root: %v", err)
	}
	tab, err := UpDn{Roots: []ib.GUID{1, 2}}.Unicast(&p.Subnet)
	if err != nil || len(tab.Notes) != 1 || !strings.Contains(tab.Notes[0], "carries no packets of others") {
		t.Errorf("one of two roots is confined: %v, %+v", err, tab)
	}
}
