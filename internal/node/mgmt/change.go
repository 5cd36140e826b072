// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"weft/internal/control/api"
	"weft/internal/control/fabricfile"
	"weft/internal/mgmt/contact"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/sm/sa"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/mgmt/store"
	"weft/internal/node/describe"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// change changes the configuration in the store, in the name of the caller of ctx. op is the command, fix for a
// configuration that a manager would refuse. edit may be called several times. A change that takes contact away is
// refused unless ctx confirms it.
func (n *Network) change(ctx context.Context, op, fix string, edit func(d *manager.Desired) error) error {
	if err := n.administer(ctx); err != nil {
		return err
	}
	s, err := n.writes(ctx, "weft "+op)
	if err != nil {
		return err
	}
	t := n.topologyIfKnown()
	within, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	repartitioned := false
	err = manager.Edit(within, s, n.changeOf(ctx, op),
		func(d *manager.Desired, c *manager.Change) error {
			before := d.Clone()
			if err := edit(d); err != nil {
				return err
			}
			repartitioned = !reflect.DeepEqual(partitionsOf(&before), partitionsOf(d))
			c.Text = fabricfile.Text(compare(&before, d, t))
			lost, err := lostBy(ctx, &before, d, t)
			if err != nil {
				return err
			}
			return refuseLoss(ctx, describeLost(lost, t))
		})
	if err == nil && repartitioned {
		return configuration{n}.await(ctx)
	}
	return n.changeError(fix, err)
}

// administer returns why the caller of ctx may not change the subnet. The role of a member that forwards a request is
// proved by its certificate (member.MayForward); that of this node counts for its own users.
func (n *Network) administer(ctx context.Context) error {
	if api.CallerOf(ctx).Member != "" {
		return nil
	}
	return n.fabric.Load().administer()
}

// writes returns the store for a change of the configuration; command is what makes it. A node that may not write
// refuses it and names the master.
func (n *Network) writes(ctx context.Context, command string) (store.Store, error) {
	if s, ok := n.fenced(); ok {
		return s, nil
	}
	return nil, n.notMaster(ctx, command)
}

// fenced returns the store for a change. In a fabric of members each change bears the term of the master: false means
// that this node has none, and what it writes would have no fence.
func (n *Network) fenced() (s store.Store, ok bool) {
	s, ok = n.manager.Store()
	if !ok && n.cfg.Members != nil {
		if _, in, _ := n.cfg.Members.Self(); in {
			return nil, false
		}
	}
	return s, true
}

// changeError is the error of a change as people see it.
func (n *Network) changeError(fix string, err error) error {
	var known *api.Error
	var wrong *manager.InvalidError
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.As(err, &wrong):
		return describe.Invalid(fix, "%v", wrong.Err)
	}
	return refusedChange(n.storeMember, n.fabric.Load(), err)
}

// changeOf is the entry of the history for a change by the caller of ctx.
func (n *Network) changeOf(ctx context.Context, op string) manager.Change {
	c := api.CallerOf(ctx)
	if c.Member == "" && n.cfg.Members != nil {
		self, _, _ := n.cfg.Members.Self()
		c.Member = self.Name
	}
	return manager.Change{At: n.cfg.Wall(n.cfg.Now()).UTC(), Op: op,
		Author: manager.Author{Member: c.Member, UID: c.UID, User: c.User}}
}

// contactOf is what of a configuration decides about contact.
func contactOf(d *manager.Desired) contact.Config {
	return contact.Config{Partitions: manager.Partitions(&d.Intent, &d.Ethernet), FabricID: d.Ethernet.FabricID,
		VESWs: d.Ethernet.VESWs, Groups: d.Groups}
}

// lostBy returns what a change takes away from the ports of the subnet. Where this node does not know them, t is nil,
// the ports that the configuration names count, and all others are one. The error is that of ctx.
func lostBy(ctx context.Context, before, after *manager.Desired, t *topo.Subnet) (*contact.Losses, error) {
	was, is := contactOf(before), contactOf(after)
	lost, err := contact.Lost(ctx, was, is, portsOf(t), nil)
	if err != nil || t != nil {
		return lost, err
	}
	with, err := contact.Lost(ctx, was, is, []ib.GUID{unnamed, unnamed + 1}, nil)
	if err == nil && with.Count() > lost.Count() {
		lost.Add(contact.Loss{Port: unnamed, By: "every port that is in no partition with it"})
	}
	return lost, err
}

// unnamed stands for any port that no configuration names; no port has this GUID or the next.
const unnamed ib.GUID = 1<<64 - 2

// portsOf are the ports of adapters in the subnet.
func portsOf(t *topo.Subnet) (list []ib.GUID) {
	if t == nil {
		return nil
	}
	for r := range t.EndPorts() {
		if n := &t.Nodes[r.Node]; !n.IsSwitch() {
			list = append(list, t.Port(r).GUID)
		}
	}
	return list
}

// describeLost describes a loss, nil where nothing is lost.
func describeLost(lost *contact.Losses, t *topo.Subnet) *api.LostContact {
	if lost == nil || lost.Count() == 0 {
		return nil
	}
	v := &api.LostContact{Pairs: lost.Pairs, Digest: lost.Digest()}
	for _, l := range lost.List[:min(len(lost.List), api.LostLines)] {
		v.Lines = append(v.Lines, lossText(l, t))
	}
	v.More = lost.Count() - len(v.Lines)
	return v
}

// lossText is a loss in a line.
func lossText(l contact.Loss, t *topo.Subnet) string {
	const most = 3 // names in a line
	total := len(l.With) + l.More
	var names []string
	for i, p := range l.With {
		if i == most && total > most+1 {
			names = append(names, fmt.Sprintf("%d more", total-most))
			break
		}
		names = append(names, portText(t, p))
	}
	text := portText(t, l.Port)
	if l.Port == unnamed {
		text = "every port that the configuration does not name"
	}
	switch {
	case len(names) == 0:
		return text + ": " + l.By
	case l.By != "":
		return text + ": " + strings.Join(names, ", ") + ", in " + l.By
	}
	return text + ": " + strings.Join(names, ", ")
}

// portText is the name of a port, its GUID where it has none.
func portText(t *topo.Subnet, g ib.GUID) string {
	if name := portName(t, g); name != "" {
		return name
	}
	return g.String()
}

// refuseLoss refuses a change that takes contact away, unless the request of ctx confirms it.
func refuseLoss(ctx context.Context, lost *api.LostContact) error {
	if lost == nil {
		return nil
	}
	switch api.Confirmed(ctx) {
	case api.ConfirmAll, lost.Digest:
		return nil
	}
	return LossError(lost)
}

// LossError is the refusal of a change that takes contact away.
func LossError(lost *api.LostContact) error {
	why := strings.Join(lost.Lines[:min(len(lost.Lines), 3)], "; ")
	if more := len(lost.Lines) - 3 + lost.More; more > 0 {
		why += fmt.Sprintf("; and %d more", more)
	}
	return &api.Error{Code: api.CodeContact, Why: "it takes contact away: " + why,
		Fix: "the same with --yes", Lost: lost}
}

// RefuseDelete refuses the deletion of a device with a port that the configuration names, or that programs use, unless
// the request of ctx confirms it. users are the programs.
func (n *Network) RefuseDelete(ctx context.Context, port ib.GUID, users []string) error {
	return refuseLoss(ctx, n.LostByDelete(ctx, port, users))
}

// LostByDelete is what RefuseDelete refuses, nil for nothing. The node of the master compares. Where the configuration
// cannot be read, that is a line of it: the port may be in it.
func (n *Network) LostByDelete(ctx context.Context, port ib.GUID, users []string) *api.LostContact {
	var programs contact.Losses
	for _, u := range users {
		programs.Add(contact.Loss{Port: port, By: "the sessions of " + u + " end"})
	}
	lost := describeLost(&programs, n.topologyIfKnown())
	if n.sub == nil || port == 0 || unmanaged(n) {
		return lost
	}
	more, err := api.Via(ctx, n.Forwarder(), api.LostByPort, port.String(), configuration{n}.lostByPort)
	if err != nil {
		var unknown contact.Losses
		unknown.Add(contact.Loss{Port: port, By: "what else loses contact is not known: " + problem.Of("", err).Why})
		more = describeLost(&unknown, nil)
	}
	return joinLost(lost, more)
}

// unmanaged reports whether the node is in no fabric and manages nothing: it has no configuration, and there is no
// other node that it could read one from.
func unmanaged(n *Network) bool {
	if n.store != nil || n.manager != nil {
		return false
	}
	if n.cfg.Members == nil {
		return true
	}
	_, in, _ := n.cfg.Members.Self()
	return !in
}

// joinLost is two losses as one; nil is none.
func joinLost(a, b *api.LostContact) *api.LostContact {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	v := &api.LostContact{Pairs: a.Pairs + b.Pairs, Lines: slices.Concat(a.Lines, b.Lines), More: a.More + b.More}
	if over := len(v.Lines) - api.LostLines; over > 0 {
		v.Lines, v.More = v.Lines[:api.LostLines], v.More+over
	}
	sum := sha256.Sum256([]byte(a.Digest + " " + b.Digest))
	v.Digest = hex.EncodeToString(sum[:16])
	return v
}

// lostByPort is what the ports that the configuration names lose where a port is deleted; nil for nothing. A port that
// it does not name takes nothing away.
func (c configuration) lostByPort(ctx context.Context, port string) (*api.LostContact, error) {
	n := c.n
	g, ok := describe.ParseGUID(port)
	switch {
	case !ok:
		return nil, describe.Invalid("weft fabric nodes", "%q is no GUID of a port", port)
	case n.sub == nil:
		return nil, ErrNoFabric
	case n.store == nil:
		return nil, n.notMaster(ctx, "weft dev del")
	}
	within, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	d, err := manager.Load(within, reads(n.store, n.storeMember))
	if err != nil {
		return nil, storeError(err)
	}
	is := contactOf(&d)
	if !named(&is, g) {
		return nil, nil
	}
	done, err := n.comparisons.take(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	t := n.topologyIfKnown()
	lost, err := contact.Lost(ctx, is, is, portsOf(t), []ib.GUID{g})
	return describeLost(lost, t), err
}

// named reports whether a configuration names a port.
func named(c *contact.Config, port ib.GUID) bool {
	for _, p := range c.Partitions {
		if slices.ContainsFunc(p.Members, func(m sm.Member) bool { return m.PortGUID == port }) {
			return true
		}
	}
	return slices.ContainsFunc(c.VESWs, func(v em.VESW) bool {
		return slices.ContainsFunc(v.Members, func(m em.Member) bool { return m.Port == port })
	}) || slices.ContainsFunc(c.Groups, func(g sa.Group) bool {
		return slices.ContainsFunc(g.Members, func(m sa.Member) bool { return m.PortGUID == port })
	})
}
