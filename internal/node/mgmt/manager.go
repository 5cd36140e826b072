// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/mgmt/store"
	"weft/internal/node/describe"
	"weft/internal/node/loop"
	"weft/internal/proto/ib"
)

func (n *Network) setManager(ctx context.Context, c api.ManagerChange) error {
	const fix = "weft sm set --help"
	if err := c.Validate(); err != nil {
		return describe.Invalid(fix, "%v", err)
	}
	if n.sub == nil {
		return ErrNoFabric
	}
	if err := n.administer(ctx); err != nil {
		return err
	}
	if n.manager == nil {
		return n.notMaster(ctx, "weft sm set")
	}
	if c.MKey != nil && n.cfg.Settings.MKeyFile != "" {
		return describe.Invalid("change that file and start the node anew",
			"the M_Key of this node is that of its --m-key-file, %s", n.cfg.Settings.MKeyFile)
	}
	if c != (api.ManagerChange{MKey: c.MKey}) {
		if err := n.editable(ctx, "weft sm set"); err != nil {
			return err
		}
		if err := n.setSubnet(ctx, fix, &c); err != nil {
			return err
		}
	}
	if c.MKey == nil {
		return nil
	}
	// Also where this manager stands by with a store of its own: it has to know the key when it follows.
	s, err := n.writes(ctx, "weft sm set")
	if err != nil {
		return err
	}
	edit := (*manager.MKey).Renew
	if *c.MKey != api.MKeyRandom {
		var key uint64
		if *c.MKey != api.MKeyNone {
			key, _ = api.ParseMKey(*c.MKey) // valid
		}
		edit = func(k *manager.MKey) { k.Set(key) }
	}
	ctx, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	by := n.changeOf(ctx, "sm set")
	if by.Text = "another M_Key"; *c.MKey == api.MKeyNone {
		by.Text = "no M_Key"
	}
	if err := manager.EditMKey(ctx, s, by, edit); err != nil {
		return storeError(err)
	}
	n.noMKey.Store(nil)
	n.cfg.Log.Info("M_Key changed", "none", *c.MKey == api.MKeyNone)
	return nil
}

// setSubnet changes what of c is kept with partitions and groups.
func (n *Network) setSubnet(ctx context.Context, fix string, c *api.ManagerChange) error {
	var roots []ib.GUID
	if c.Roots != nil {
		for _, s := range *c.Roots {
			g, ok := describe.ParseGUID(s)
			if !ok {
				return describe.Invalid("weft fabric nodes", "a root is the GUID of a switch, such as %v, not %q",
					n.cfg.GUID, s)
			}
			if t := n.topologyIfKnown(); t != nil {
				if i := t.NodeByGUID(g); i < 0 || !t.Nodes[i].IsSwitch() {
					return describe.NotFound("weft fabric nodes", "the subnet has no switch %v", g)
				}
			}
			roots = append(roots, g)
		}
	}
	err := n.change(ctx, "sm set", fix, func(d *manager.Desired) error {
		s := &d.Subnet
		if c.Routing != nil {
			s.Engine = *c.Routing
		}
		if c.Roots != nil {
			s.Roots = roots
		}
		if len(roots) > 0 && !slices.Contains(strings.Split(s.Engine, ","), "updn") {
			return describe.Invalid("weft sm set --routing updn --roots NODE",
				"roots are for the engine updn, which the routing %q does not name", s.Engine)
		}
		if c.MKeyProtect != nil {
			s.MKeyProtect = uint8(*c.MKeyProtect)
		}
		if c.MKeyLeaseS != nil {
			s.MKeyLease = uint16(*c.MKeyLeaseS)
		}
		return nil
	})
	if err == nil {
		n.cfg.Log.Info("subnet settings changed")
	}
	return err
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
			e.Why = "a program manages the subnet, not this node"
			e.Fix = "weft run -- saquery, or weft run -- ibnetdiscover"
		case n.fabric.Load().noManager():
			e.Why, e.Fix = "this host has not the role manager", command+" … on the node of the master"
			if lid := n.cfg.ManagedBy(); lid != 0 {
				e.Why += fmt.Sprintf("; the manager at LID %d is master", lid)
			}
		case n.cfg.ManagedBy() != 0:
			e.Why = fmt.Sprintf("this node has no manager; the one at LID %d is master", n.cfg.ManagedBy())
			e.Fix = command + " … on that node"
		}
		return e
	}
	m, err := n.getManager(ctx)
	if err != nil {
		return err
	}
	// A caretaker is master, and changes nothing.
	if alone := withoutMajority(n.storeMember, n.fabric.Load()); alone != nil {
		return alone
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
		e.Why, e.Fix = "the master is "+name, command+" … on that node"
		if who.Dir != "" {
			e.Fix = command + " … --dir " + who.Dir + " on that node"
		}
	}
	return e
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
		MKey: s.MKeyFrom, MKeyPerPort: s.KeyPerPort, MKeyProtect: int(s.MKeyProtect), MKeyLeaseS: int(s.MKeyLease)}
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
	v.Store = n.describeStore(n.store.Status(ctx))
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

func (n *Network) sweep(ctx context.Context) error {
	if _, err := n.topology(ctx, "weft fabric sweep"); err != nil {
		return err
	}
	return n.sub.Do(func() { n.manager.Sweep(n.cfg.Now()) })
}

// editable returns an error if this node's store does not hold the intent: its own manager was elected
// there and is not the master.
func (n *Network) editable(ctx context.Context, command string) error {
	if n.sub == nil {
		return ErrNoFabric
	}
	if n.manager == nil {
		return n.notMaster(ctx, command)
	}
	s, err := n.status()
	if err == nil && s.Elected && s.State == "standby" {
		return n.notMaster(ctx, command)
	}
	return err
}

// ReplaceMKey replaces the M_Key of the subnet, since a host that had it is no member any more. Where there is none,
// nothing is to be replaced.
func (n *Network) ReplaceMKey(ctx context.Context) error {
	switch {
	case n.cfg.Settings.MKeyFile != "":
		return describe.Invalid("write another to that file on each manager and start them anew",
			"the M_Key is that of --m-key-file, %s", n.cfg.Settings.MKeyFile)
	case n.store == nil:
		return errNoStore
	}
	ctx, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	if _, err := n.store.Get(ctx, manager.KeyMKey); isNotFound(err) {
		return nil
	}
	by := n.changeOf(ctx, "member remove")
	by.Text = "another M_Key, since a member was removed"
	if err := manager.EditMKey(ctx, n.store, by, func(k *manager.MKey) {
		if !k.Off {
			k.Renew()
		}
	}); err != nil {
		return storeError(err)
	}
	return nil
}
