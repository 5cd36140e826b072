// SPDX-License-Identifier: Apache-2.0

package walk

import (
	"fmt"
	"slices"
	"strings"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
)

// maxHops bounds the links of a way: a longer one means that tables contain a loop.
const maxHops = 64

// stop is where a way ends before its destination.
type stop struct{ why, fix string }

// follow returns the links from a port to the LID of another by the forwarding tables, as far as they lead.
func (f *Fabric) follow(from, to topo.Ref) (hops []Hop, end *stop) {
	const sweep = "weft fabric sweep; weft sm, if that does not help"
	dlid := f.Topo.Port(to).Info.LID
	at := from
	leave := func(out topo.Ref) *stop {
		p := f.Topo.Port(out)
		switch {
		case p == nil:
			return &stop{fmt.Sprintf("%s sends it to port %d, which it does not have", f.name(at), out.Port), sweep}
		case p.Peer.IsNone():
			return &stop{fmt.Sprintf("the link of %s is down", f.portName(out)), "weft trunk on that node; ping the peer"}
		}
		q := f.Topo.Port(p.Peer)
		h := Hop{Out: out, In: p.Peer, MTU: min(p.Info.NeighborMTU, q.Info.NeighborMTU), Rate: p.Rate(),
			State: min(p.Info.PortState, q.Info.PortState)}
		hops = append(hops, h)
		at = p.Peer
		if h.State != ib.PortActive {
			return &stop{fmt.Sprintf("the link from %s to %s is %s, not ACTIVE", f.portName(out), f.portName(p.Peer),
				stateName(h.State)), sweep}
		}
		return nil
	}
	if from == to {
		return nil, nil
	}
	if !f.Topo.Nodes[from.Node].IsSwitch() {
		if end = leave(from); end != nil {
			return hops, end
		}
	}
	for range maxHops {
		n := &f.Topo.Nodes[at.Node]
		switch {
		case at.Node == to.Node && (at == to || n.IsSwitch()):
			return hops, nil
		case !n.IsSwitch():
			return hops, &stop{fmt.Sprintf("it arrives at %s instead", f.name(at)), sweep}
		case int(dlid) >= len(n.Switch.LFT) || n.Switch.LFT[dlid] == 0xff:
			return hops, &stop{fmt.Sprintf("the forwarding table of %s has no port for LID %d", f.name(at), dlid), sweep}
		}
		if end = leave(topo.Ref{Node: at.Node, Port: n.Switch.LFT[dlid]}); end != nil {
			return hops, end
		}
	}
	return hops, &stop{fmt.Sprintf("the forwarding tables lead in a circle, through %s", f.name(at)), sweep}
}

// way checks the way from one port to another.
func (f *Fabric) way(r *Report, from, to topo.Ref, prefix string) (hops []Hop, ok bool) {
	hops, end := f.follow(from, to)
	if end != nil {
		r.add(Fail, "path", end.fix, "%sfrom %s to %s: %s", prefix, f.name(from), f.name(to), end.why)
		return hops, false
	}
	var over []string
	for _, h := range hops {
		n := &f.Topo.Nodes[h.Out.Node]
		if !n.IsSwitch() {
			continue
		}
		over = append(over, f.portName(h.Out))
		if n.Switch.Unwritten {
			r.add(Warn, "path", "weft sm", "%s%s did not accept all of its tables: its way may be another", prefix,
				f.name(h.Out))
		}
	}
	what := "directly"
	if len(over) > 0 {
		what = "by " + strings.Join(over, ", ")
	}
	r.add(OK, "path", "", "%sLID %d to LID %d, %d links, %s", prefix, f.Topo.Port(from).Info.LID,
		f.Topo.Port(to).Info.LID, len(hops), what)
	return hops, true
}

// mtu checks the MTU of each link on the way. whole reports that the way leads to its end.
func (f *Fabric) mtu(r *Report, whole bool) {
	best := min(f.Topo.Port(r.From).Info.MTUCap, f.Topo.Port(r.To).Info.MTUCap)
	smallest := best
	var narrow []string
	bad := false
	for _, h := range r.Hops {
		x, y := f.Topo.Port(h.Out).Info.NeighborMTU, f.Topo.Port(h.In).Info.NeighborMTU
		if x != y {
			bad = true
			r.add(Fail, "mtu", "weft fabric sweep; weft sm", "%s has MTU %d, %s at the other end has %d", f.portName(h.Out),
				x.Bytes(), f.portName(h.In), y.Bytes())
		}
		if h.MTU < best {
			narrow = append(narrow, fmt.Sprintf("%s to %s: %d", f.portName(h.Out), f.portName(h.In), h.MTU.Bytes()))
		}
		smallest = min(smallest, h.MTU)
	}
	if whole {
		r.MTU = smallest
	}
	switch {
	case bad || !whole && len(narrow) == 0:
	case len(narrow) > 0:
		r.add(Warn, "mtu", fmt.Sprintf("an MTU of %d in the program, such as ib_write_bw -m %d", smallest.Bytes(),
			smallest.Bytes()),
			"%d on the way, though both ports can have %d: %s", smallest.Bytes(), best.Bytes(), strings.Join(narrow, ", "))
	default:
		r.add(OK, "mtu", "", "%d on each link", smallest.Bytes())
	}
}

// lossShare is the share of lost datagrams from which on a trunk is worth a warning: one in lossShare.
const lossShare = 1000

// fewLost is the number of losses that are worth no warning: some packets are lost while a subnet comes up.
const fewLost = 10

// isMuch reports whether lost of all is worth a warning.
func isMuch(lost, all uint64) bool { return lost >= fewLost && lost*lossShare > all }

// trunk returns the findings of one end of a trunk; none if it is sound.
func (f *Fabric) trunk(at topo.Ref, t Trunk) (list []Finding) {
	add := func(l Level, fix, format string, args ...any) {
		list = append(list, Finding{Level: l, Step: "trunk", Fix: fix,
			What: fmt.Sprintf("%s to %s: ", f.name(at), t.Peer) + fmt.Sprintf(format, args...)})
	}
	if !t.Up {
		add(Fail, "ping the peer; weft trunk there", "down")
		return list
	}
	if t.Here != 0 && t.There != 0 && t.Here != t.There {
		add(Warn, fmt.Sprintf("ip link set DEV mtu %d at both hosts and on the network between, or leave it",
			max(t.Here, t.There)+headers(t.Peer)), "the MTU differs: datagrams of %d octets here, %d there; the smaller counts",
			t.Here, t.There)
	}
	if isMuch(t.Lost, t.Received+t.Lost) {
		add(Warn, "weft fault list; the counters of the interface (ip -s link)", "%d of %d datagrams were lost", t.Lost,
			t.Received+t.Lost)
	}
	return list
}

// headers is the size of the IP and UDP headers of a datagram to a peer.
func headers(peer string) int {
	if strings.HasPrefix(peer, "[") {
		return 48
	}
	return 28
}

// ends compares the two ends of a trunk, where both are known.
func (f *Fabric) ends(out, in topo.Ref) *Finding {
	x, xok := f.Trunks[out]
	y, yok := f.Trunks[in]
	if !xok || !yok || x.Limit == 0 || y.Limit == 0 || x.Limit == y.Limit {
		return nil
	}
	return &Finding{Level: Fail, Step: "mtu", Fix: fmt.Sprintf("ip link set DEV mtu %d at both hosts",
		max(x.Limit, y.Limit)+headers(x.Peer)), What: fmt.Sprintf(
		"%s sends datagrams of up to %d octets, %s of up to %d: the MTU of the hosts differs, large datagrams are lost",
		f.name(out), x.Limit, f.name(in), y.Limit)}
}

// trunks checks the trunks on the way, and those of its nodes that are down and not on it.
func (f *Fabric) trunks(r *Report) {
	on := map[topo.Ref]bool{}
	nodes := map[int32]bool{}
	sound, known := 0, 0
	for _, h := range r.Hops {
		for _, at := range []topo.Ref{h.Out, h.In} {
			on[at], nodes[at.Node] = true, true
			if t, ok := f.Trunks[at]; ok {
				known++
				bad := f.trunk(at, t)
				r.Findings = append(r.Findings, bad...)
				if len(bad) == 0 {
					sound++
					r.add(OK, "trunk", "", "%s to %s: up, datagrams of %d octets, %d of %d lost", f.name(at), t.Peer, t.Limit,
						t.Lost, t.Received+t.Lost)
				}
			}
		}
		if x := f.ends(h.Out, h.In); x != nil {
			r.Findings = append(r.Findings, *x)
		}
	}
	for _, x := range f.broken() {
		if nodes[x.node] && !on[x.at] {
			x.Level = Warn // the way does not need it
			r.Findings = append(r.Findings, x.Finding)
		}
	}
}

// brokenTrunk is a trunk or link that is down, at a node.
type brokenTrunk struct {
	Finding
	node int32
	at   topo.Ref
}

// broken returns the trunks that are down, each once for each of its known ends.
func (f *Fabric) broken() (list []brokenTrunk) {
	var refs []topo.Ref
	for at, t := range f.Trunks {
		if !t.Up {
			refs = append(refs, at)
		}
	}
	slices.SortFunc(refs, func(a, b topo.Ref) int {
		if a.Node != b.Node {
			return int(a.Node - b.Node)
		}
		return int(a.Port) - int(b.Port)
	})
	for _, at := range refs {
		for _, x := range f.trunk(at, f.Trunks[at]) {
			list = append(list, brokenTrunk{x, at.Node, at})
		}
	}
	for _, l := range f.Lost {
		a, b := f.Topo.PortOf(l.A, l.PortA), f.Topo.PortOf(l.B, l.PortB)
		if a.IsNone() || b.IsNone() || slices.Contains(refs, a) || slices.Contains(refs, b) {
			continue
		}
		x := Finding{Level: Fail, Step: "trunk",
			Fix:  "weft trunk on both nodes; weft fabric sweep accepts the shape as it is",
			What: fmt.Sprintf("the link between %s and %s is lost", f.portName(a), f.portName(b))}
		list = append(list, brokenTrunk{x, a.Node, a})
	}
	return list
}

// counters reports the counters of the ports on the way.
func (f *Fabric) counters(r *Report) {
	read, bad := 0, 0
	var few []string
	for _, h := range r.Hops {
		for _, at := range []topo.Ref{h.Out, h.In} {
			c, ok := f.Counters[at]
			if !ok {
				continue
			}
			read++
			var parts []string
			for _, x := range []struct {
				n    uint64
				what string
			}{{c.Discards, "packets not sent"}, {c.Errors, "damaged packets"},
				{c.Constraints, "packets of a foreign partition"}, {c.Symbols, "datagrams lost"}, {c.Downs,
					"failures of the link"}} {
				if x.n > 0 {
					parts = append(parts, fmt.Sprintf("%d %s", x.n, x.what))
				}
			}
			lost := c.Discards + c.Errors + c.Constraints + c.Symbols
			text := f.portName(at) + ": " + strings.Join(parts, ", ")
			switch {
			case isMuch(lost, c.Packets+lost):
				bad++
				r.add(Warn, "counters", "weft run -- perfquery shows whether they grow", "%s, of %d packets", text, c.Packets)
			case len(parts) > 0:
				few = append(few, text)
			}
		}
	}
	switch {
	case len(few) > 0:
		r.add(OK, "counters", "", "few losses since the start: %s", strings.Join(few, "; "))
	case read > 0 && bad == 0:
		r.add(OK, "counters", "", "no errors at %d ports", read)
	}
}
