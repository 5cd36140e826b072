// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"fmt"
	"strings"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/mgmt/store"
	"weft/internal/node/describe"
	"weft/internal/node/loop"
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

// topology returns what the master knows; command is what to ask it.
func (n *Network) topology(ctx context.Context, command string) (t *topo.Subnet, err error) {
	if n.sub == nil {
		return nil, ErrNoFabric
	}
	if n.manager != nil && n.sub.Do(func() { t = n.manager.Topo() }) != nil {
		return nil, loop.ErrStopped
	}
	if t == nil {
		return nil, n.notMaster(ctx, command)
	}
	return t, nil
}

// notMaster returns the error that names the master, and the command for that node.
func (n *Network) notMaster(ctx context.Context, command string) error {
	e := &api.Error{Code: api.CodeNotMaster, Why: "no manager of the subnet is known",
		Fix: "weft up --sm auto on a node of the subnet"}
	if n.manager == nil {
		switch {
		case n.noManager != nil:
			e.Why, e.Fix = "the node has no manager: "+n.noManager.Error(), "weft status"
		case n.cfg.Settings.SM == config.SMExternal:
			e.Why, e.Fix = "a program manages the subnet, not this node", "saquery or ibnetdiscover, with weft run"
		case n.cfg.ManagedBy() != 0:
			e.Why = fmt.Sprintf("this node has no manager; the one at LID %d is master", n.cfg.ManagedBy())
			e.Fix = command + " on that node"
		}
		return e
	}
	m, err := n.getManager(ctx)
	if err != nil {
		return err
	}
	switch who := m.Master; {
	case m.State == "discovering", m.State == "master":
		e.Why, e.Fix = "the manager has not finished its first sweep", "weft wait --for=active"
	case m.Store.Down != "":
		e.Why, e.Fix = "the store does not answer: "+m.Store.Down, "weft store status"
	case who.GUID == n.cfg.GUID.String():
		// The store still names this node, from before its restart.
		e.Why, e.Fix = "this node is being elected", "weft wait --for=active"
	case who.GUID != "" || who.Name != "":
		name := who.Name
		if name == "" {
			name = "node " + who.GUID
		}
		if who.Peer != "" {
			name += " at " + who.Peer
		}
		e.Why, e.Fix = "the master is "+name, command+" on that node"
		if who.Dir != "" {
			e.Fix = command + " --dir " + who.Dir + " on that node"
		}
	}
	return e
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
		a, b := t.Port(l.A), t.Port(l.B)
		s.Links = append(s.Links, api.FabricLink{A: endOf(t, l.A), B: endOf(t, l.B), State: linkState(a, b),
			MTU: describe.MTU(a.Info.NeighborMTU), Gbps: describe.Gbps(a.Rate())})
	}
	return s
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
		guid, err := n.portNamed(name, t)
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

func (n *Network) sweep(ctx context.Context) error {
	if _, err := n.topology(ctx, "weft fabric sweep"); err != nil {
		return err
	}
	return n.sub.Do(func() { n.manager.Sweep(n.cfg.Now()) })
}

func (n *Network) getManager(ctx context.Context) (v api.Manager, err error) {
	if n.sub == nil {
		return v, ErrNoFabric
	}
	v.Store.Kind = "none"
	if n.manager == nil {
		v.State = n.State() // external, off or failed
		if n.noManager != nil {
			v.Store.Down = n.noManager.Error()
		}
		return v, nil
	}
	s, err := n.status()
	if err != nil {
		return v, err
	}
	v = api.Manager{State: s.State, PortGUID: s.PortGUID.String(), LID: uint16(s.LID), Priority: int(s.Priority),
		Elected: s.Elected, Term: s.Token,
		Engine: s.Engine, Routed: s.Routed, Sweeping: s.Sweeping,
		MKey: s.MKeyFrom, MKeyProtect: int(s.MKeyProtect), MKeyLeaseS: int(s.MKeyLease)}
	for _, g := range s.Roots {
		v.Roots = append(v.Roots, g.String())
	}
	for _, r := range s.Sweeps {
		v.Sweeps = append(v.Sweeps, api.Sweep{Kind: r.Kind, Why: r.Why, StartedAt: n.cfg.Wall(r.Started),
			TookNS: r.Took, Nodes: r.Nodes, Switches: r.Switches,
			Links: r.Links, Sent: r.Sent, Resent: r.Resent, Unanswered: r.Unanswered, Failed: r.Failed})
	}
	for _, p := range s.Problems {
		v.Problems = append(v.Problems, api.Problem{Where: p.Where, What: p.What})
	}
	for _, p := range s.Notes {
		v.Notes = append(v.Notes, api.Note{At: n.cfg.Wall(p.At), Text: p.Text})
	}
	for _, o := range s.Others {
		v.Others = append(v.Others, api.OtherManager{GUID: o.GUID.String(), LID: uint16(o.LID),
			Priority: int(o.Priority), State: o.State})
	}
	ctx, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	v.Store = describeStore(n.store.Status(ctx))
	v.Master, err = n.master(ctx, &s, v.Store.Down == "")
	return v, err
}

// master reports which node manages the subnet: this node, the one that won the election
// in the store, or the one that this manager stands by for.
func (n *Network) master(ctx context.Context, s *manager.Status, reachable bool) (m api.Master, err error) {
	guid := s.Master
	switch {
	case s.State == "master":
		return api.Master{Name: n.name(), GUID: n.cfg.GUID.String(), Dir: n.cfg.Settings.Dir}, nil
	case !s.Elected && reachable:
		l, err := store.LeaderOf(ctx, n.store, manager.Election)
		if err != nil {
			return m, nil // no manager is elected at the moment
		}
		m.Name, m.Dir = l.Name, l.Address
		if _, text, ok := strings.Cut(l.Name, " "); ok {
			guid, _ = describe.ParseGUID(text)
		}
	}
	if guid == 0 {
		return m, nil
	}
	m.GUID = guid.String()
	trunks, err := n.trunks(ctx)
	for _, t := range trunks {
		if t.Node == m.GUID {
			m.Peer = t.Peer
		}
	}
	return m, err
}

func (n *Network) trunks(context.Context) ([]api.Trunk, error) {
	if n.sub == nil {
		return nil, ErrNoFabric
	}
	return n.sub.Trunks(n.cfg.Wall)
}

// Degraded lists what is wrong with the store, the manager, the trunks and the subnet.
func (n *Network) Degraded(ctx context.Context, trunks []api.Trunk) (list []api.Degraded, err error) {
	if n.sub == nil {
		return nil, nil
	}
	down, err := n.sub.Degraded(trunks)
	list = append(n.unmanaged(ctx), down...)
	if n.manager == nil || err != nil {
		return list, err
	}
	s, _ := n.status()
	list = append(list, n.VESWs.degraded()...)
	if problems := len(s.Problems); problems > 0 {
		list = append(list, api.Degraded{What: "subnet_problems", Why: fmt.Sprintf("the last sweep met %d", problems),
			Fix: "weft sm"})
	}
	if s.Elected {
		return list, nil
	}
	ctx, stop := context.WithTimeout(ctx, StorePatience)
	defer stop()
	// unmanaged reports a store that is down
	if _, err := store.LeaderOf(ctx, n.store, manager.Election); isNotFound(err) {
		list = append(list, api.Degraded{What: "no_subnet_manager", Why: "no manager is elected in the store",
			Fix: "weft sm"})
	}
	return list, nil
}

// Notices lists states of the subnet that people should know.
func (n *Network) Notices() (list []api.Degraded) {
	if n.sub == nil || n.manager == nil {
		return nil
	}
	if s, _ := n.status(); s.Switches > 1 && !s.Keyed {
		list = append(list, api.Degraded{What: "no_m_key",
			Why: fmt.Sprintf("each of the %d nodes of the subnet may change its tables", s.Switches),
			Fix: "the same weft up --m-key-file on each, or one store for their managers (weft up --store)"})
	}
	return list
}
