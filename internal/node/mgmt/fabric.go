// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/node/describe"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

func (n *Network) getSubnet(ctx context.Context) (api.Subnet, error) {
	t, err := n.topology(ctx, "weft fabric topo")
	if err != nil {
		return api.Subnet{}, err
	}
	return describeSubnet(t), nil
}

func (n *Network) subnetText(ctx context.Context, format api.TextFormat) (api.Text, error) {
	t, err := n.topology(ctx, "weft fabric topo -o "+string(format))
	if err != nil {
		return api.Text{}, err
	}
	if format == "dot" {
		return api.Text{Text: t.DOT()}, nil
	}
	return api.Text{Text: t.NetDiscover(time.Now())}, nil
}

// describeSubnet turns a model into what people see of it.
func describeSubnet(t *topo.Subnet) api.Subnet {
	s := api.Subnet{Prefix: fmt.Sprintf("0x%016x", t.Prefix)}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		v := api.FabricNode{GUID: n.Info.NodeGUID.String(), SystemGUID: n.Info.SystemImageGUID.String(),
			Type: nodeType(n), Description: n.Description,
			NumPorts: int(n.Info.NumPorts)}
		for p := range n.Ports {
			if n.Ports[p].GUID != 0 || !n.Ports[p].Peer.IsNone() {
				v.Ports = append(v.Ports, describePort(p, &n.Ports[p]))
			}
		}
		s.Nodes = append(s.Nodes, v)
	}
	for _, l := range t.Links() {
		s.Links = append(s.Links, describeLink(t, l))
	}
	return s
}

// describeLink describes a link. Its end A is the first of both in the order of a list of ends, whichever of them the
// manager found first.
func describeLink(t *topo.Subnet, l topo.Link) api.FabricLink {
	v := api.FabricLink{A: endOf(t, l.A), B: endOf(t, l.B)}
	if cmp.Or(api.CompareText(v.A.Description, v.B.Description), api.CompareText(v.A.GUID, v.B.GUID),
		cmp.Compare(v.A.Port, v.B.Port)) > 0 {
		l.A, l.B, v.A, v.B = l.B, l.A, v.B, v.A
	}
	a, b := t.Port(l.A), t.Port(l.B)
	v.State, v.MTU, v.Gbps = linkState(a, b), describe.MTU(a.Info.NeighborMTU), describe.Gbps(a.Rate())
	return v
}

func nodeType(n *topo.Node) string {
	switch {
	case n.IsSwitch():
		return "switch"
	case n.Info.NodeType == mad.NodeCA:
		return "ca"
	}
	return "router"
}

func describePort(number int, p *topo.Port) api.FabricPort {
	v := api.FabricPort{Number: number, State: describe.PortState(p.Info.PortState),
		PhysState: describe.PhysState(p.Info.PortPhysicalState),
		LID:       uint16(p.Info.LID), LMC: p.Info.LMC, MTU: describe.MTU(p.Info.NeighborMTU), Gbps: describe.Gbps(p.Rate())}
	if p.GUID != 0 {
		v.GUID = p.GUID.String()
	}
	for _, k := range p.PKeys {
		if k != 0 {
			v.PKeys = append(v.PKeys, describe.PKey(k))
		}
	}
	return v
}

// linkState is the lower state of the two ends: INIT for one that a manager
// has not finished.
func linkState(a, b *topo.Port) string {
	return describe.PortState(min(a.Info.PortState, b.Info.PortState))
}

// endOf names a port, with the LID of its switch if it has none itself.
func endOf(t *topo.Subnet, r topo.Ref) api.FabricEnd {
	p := t.Port(r)
	if p == nil {
		return api.FabricEnd{}
	}
	n := &t.Nodes[r.Node]
	e := api.FabricEnd{GUID: n.Info.NodeGUID.String(), Port: int(r.Port), LID: uint16(p.Info.LID),
		Description: n.Description}
	if n.IsSwitch() && len(n.Ports) > 0 {
		e.LID = uint16(n.Ports[0].Info.LID)
	}
	return e
}

func (n *Network) routes(ctx context.Context) (list []api.SwitchRoutes, err error) {
	t, err := n.topology(ctx, "weft fabric routes")
	if err != nil {
		return nil, err
	}
	for _, i := range t.Switches() {
		s := t.Nodes[i].Switch
		v := api.SwitchRoutes{Switch: endOf(t, topo.Ref{Node: i})}
		for lid, port := range s.LFT {
			if port == 0xff {
				continue
			}
			to := t.PortByLID(ib.LID(lid))
			w, _ := t.Walk(topo.Ref{Node: i}, ib.LID(lid), false)
			v.Unicast = append(v.Unicast, api.Route{LID: uint16(lid), Port: int(port), To: endOf(t, to), Hops: w.Hops})
		}
		for mlid := ib.LID(0xc000); mlid < 0xffff; mlid++ {
			mask, ok := s.MFT[mlid]
			if !ok {
				continue
			}
			m := api.MulticastRoute{MLID: uint16(mlid)}
			for p := range 256 {
				if mask.Has(uint8(p)) {
					m.Ports = append(m.Ports, p)
				}
			}
			v.Multicast = append(v.Multicast, m)
		}
		list = append(list, v)
	}
	return list, nil
}

func (n *Network) findPath(ctx context.Context, q api.PathQuery) (v api.Path, err error) {
	from, to := q.From, q.To
	t, err := n.topology(ctx, "weft fabric routes "+from+" "+to)
	if err != nil {
		return v, err
	}
	var ends [2]topo.Ref
	for i, name := range []string{from, to} {
		guid, err := n.portNamed(ctx, name, t)
		if err != nil {
			return v, err
		}
		if ends[i] = t.PortByGUID(guid); ends[i].IsNone() {
			return v, describe.NotFound("weft fabric nodes", "the subnet has no port %v", guid)
		}
	}
	w, ok := t.Walk(ends[0], t.Port(ends[1]).Info.LID, true)
	if !ok {
		return v, describe.NotFound("weft fabric sweep", "the forwarding tables do not lead from %s to %s", from, to)
	}
	v = api.Path{From: endOf(t, ends[0]), To: endOf(t, ends[1]), MTU: describe.MTU(w.MTU), Gbps: describe.Gbps(w.Rate)}
	for _, r := range w.Ports {
		v.Hops = append(v.Hops, endOf(t, r))
	}
	return v, nil
}
