// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/mgmt/sm/walk"
	"weft/internal/node/describe"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// truth is what this node's manager knows about what ports have; false where it is not the master.
func (n *Network) truth() (t manager.Truth, master bool) {
	if n.manager != nil {
		n.sub.Do(func() { t, master = n.manager.Truth() })
	}
	t.Lost = missed(t.Lost, n.cfg.Planned)
	return t, master
}

// addTruth adds what ports have to the partitions that are intended, with members and partitions that are not.
func addTruth(list []api.Partition, intended []sm.Partition, t *manager.Truth) []api.Partition {
	for i := range list {
		key, _ := describe.ParsePKey(list[i].PKey)
		for j := range list[i].Members {
			m := &list[i].Members[j]
			if guid, ok := describe.ParseGUID(m.Port); ok {
				if p := t.Topo.Port(t.Topo.PortByGUID(guid)); p != nil {
					m.Has = hasText(sm.MembershipOf(p.Held.PKeys, key))
				} else {
					m.Has = hasText(sm.NotMember)
				}
			} else if m.Port == api.AllPorts {
				m.Has = allHave(&list[i], m.Membership, key, t.Topo)
			}
		}
	}
	applied := t.AppliedTo(intended)
	for _, d := range sm.KeyDifferences(intended, t.Topo, t.Manager) {
		i := slices.IndexFunc(list, func(p api.Partition) bool {
			key, err := describe.ParsePKey(p.PKey)
			return err == nil && (key^d.PKey)&0x7fff == 0
		})
		if i < 0 {
			i = len(list)
			p := api.Partition{PKey: describe.PKey(d.PKey | 0x8000)}
			if d.PKey == ib.DefaultPKey&0x7fff {
				p.Name = "default"
			}
			list = append(list, p)
		}
		members := &list[i].Members
		j := slices.IndexFunc(*members, func(m api.Member) bool { return m.Port == d.Port.String() })
		if j < 0 {
			j = len(*members)
			m := api.Member{Port: d.Port.String(), Name: portName(t.Topo, d.Port), Has: hasText(d.Has)}
			if d.Want != sm.NotMember {
				m.Membership = membershipText(d.Want)
			}
			*members = append(*members, m)
		}
		(*members)[j].Differs = describeDifference(&d, applied)
	}
	return list
}

// hasText is a membership that a port has.
func hasText(m sm.Membership) string {
	if m == sm.NotMember {
		return "no"
	}
	return membershipText(m)
}

// describeDifference returns the flag of a difference and its reason.
func describeDifference(d *sm.KeyDifference, applied bool) api.Differs {
	v := api.Differs{Flag: api.FlagMissing, Why: d.Why}
	switch {
	case d.Absent:
	case !applied:
		v = api.Differs{Flag: api.FlagNotYet, Why: "no sweep has applied the newest change yet"}
	case d.Want < d.Has:
		v.Flag = api.FlagExtra
	}
	return v
}

// allHave is how many of the ports that a membership of every port means have it.
func allHave(p *api.Partition, as string, key ib.PKey, t *topo.Subnet) string {
	have, all := 0, 0
	for r := range t.EndPorts() {
		x := t.Port(r)
		named := slices.ContainsFunc(p.Members, func(m api.Member) bool { return m.Port == x.GUID.String() })
		if named || len(x.PKeys) == 0 {
			continue
		}
		if all++; membershipText(sm.MembershipOf(x.Held.PKeys, key)) == as {
			have++
		}
	}
	return fmt.Sprintf("%d of %d ports", have, all)
}

// checks are the checks of the subnet by the node of the master.
type checks struct{ n *Network }

// missed leaves out links that were lost and that no plan has: the members removed the trunk.
func missed(lost []sm.LostLink, planned func(a, b ib.GUID) bool) []sm.LostLink {
	if planned == nil {
		return lost
	}
	return slices.DeleteFunc(lost, func(l sm.LostLink) bool { return !planned(l.A, l.B) })
}

// observe returns what checks of the subnet need. Only the node of the master has it; command is for that node.
func (c checks) observe(ctx context.Context, command string) (f *walk.Fabric, err error) {
	if _, err := c.n.topology(ctx, command); err != nil {
		return nil, err
	}
	t, master := c.n.truth()
	if !master {
		return nil, c.n.notMaster(ctx, command)
	}
	trunks, err := c.n.trunks(ctx)
	if err != nil {
		return nil, err
	}
	f = &walk.Fabric{Topo: t.Topo, Partitions: t.Partitions, Manager: t.Manager, Applied: t.Applied,
		Lost:   t.Lost,
		Trunks: map[topo.Ref]walk.Trunk{}, Counters: map[topo.Ref]walk.Counters{}}
	for _, x := range trunks {
		f.Trunks[t.Topo.PortOf(c.n.cfg.GUID, uint8(x.Port))] = walk.Trunk{Peer: x.Peer, Up: x.Up, Limit: x.Limit,
			Here: x.LimitHere, There: x.LimitThere, Received: x.Received, Lost: x.Lost, Reordered: x.Reordered, Downs: x.Downs}
	}
	delete(f.Trunks, topo.None)
	return f, nil
}

func (c checks) pair(ctx context.Context, q api.PathQuery) (v api.PairCheck, err error) {
	f, err := c.observe(ctx, "weft check "+q.From+" "+q.To)
	if err != nil {
		return v, err
	}
	var ends [2]ib.GUID
	for i, name := range []string{q.From, q.To} {
		if ends[i], err = c.n.portNamed(ctx, name, f.Topo); err != nil {
			return v, err
		}
	}
	c.readCounters(ctx, f, f.Pair(ends[0], ends[1]).Hops)
	r := f.Pair(ends[0], ends[1])
	v = api.PairCheck{From: endOf(f.Topo, r.From), To: endOf(f.Topo, r.To), Works: r.Works(), MTU: describe.MTU(r.MTU),
		Findings: describeFindings(r.Findings)}
	for _, h := range r.Hops {
		v.Hops = append(v.Hops, api.CheckHop{Out: endOf(f.Topo, h.Out), In: endOf(f.Topo, h.In),
			State: describe.PortState(h.State), MTU: describe.MTU(h.MTU), Gbps: describe.Gbps(h.Rate)})
	}
	w := r.Worst()
	v.Fix = w.Fix
	switch w.Level {
	case walk.Fail:
		v.Verdict = "breaks at " + w.Step + ": " + w.What
	case walk.Warn:
		v.Verdict = "works, though " + w.What
	default:
		v.Verdict = fmt.Sprintf("works, with MTU %d", v.MTU)
	}
	return v, nil
}

func (c checks) whole(ctx context.Context) ([]api.Finding, error) {
	f, err := c.observe(ctx, "weft doctor")
	if err != nil {
		return nil, err
	}
	list := c.managers()
	return append(list, describeFindings(f.Whole())...), nil
}

// countersWait bounds the time to read the counters of the ports on a way.
const countersWait = 2 * time.Second

// readCounters adds the counters of the ports at both ends of hops. A port that does not answer has none.
func (c checks) readCounters(ctx context.Context, f *walk.Fabric, hops []walk.Hop) {
	ctx, stop := context.WithTimeout(ctx, countersWait)
	defer stop()
	for _, h := range hops {
		for _, at := range []topo.Ref{h.Out, h.In} {
			node := &f.Topo.Nodes[at.Node]
			lid := f.Topo.Port(at).Info.LID
			if node.IsSwitch() {
				lid = node.Ports[0].Info.LID
			}
			got, err := c.n.sub.PortCounters(ctx, lid, at.Port)
			if err != nil {
				continue
			}
			v := &got.Values
			f.Counters[at] = walk.Counters{Packets: v[mad.CounterXmitPkts] + v[mad.CounterRcvPkts],
				Discards: v[mad.CounterXmitDiscards], Errors: v[mad.CounterRcvErrors],
				Constraints: v[mad.CounterXmitConstraintErrors] + v[mad.CounterRcvConstraintErrors],
				Symbols:     v[mad.CounterSymbolErrors], Downs: v[mad.CounterLinkDowned]}
		}
	}
}

// managers checks that this manager, the master, is the only one, and that its last sweep met no problem.
func (c checks) managers() (list []api.Finding) {
	s, err := c.n.status()
	if err != nil {
		return nil
	}
	for _, d := range managerDegraded(&s) {
		list = append(list, api.Finding{Level: api.LevelFail, Check: "manager", What: d.Why, Fix: d.Fix})
	}
	if len(list) == 0 {
		others := fmt.Sprintf("with %d others that stand by", len(s.Others))
		if c.n.fabric.Load() != nil {
			others = "elected in the store of the fabric" // it does not see those that stand by
		}
		list = append(list, api.Finding{Level: api.LevelOK, Check: "manager", What: fmt.Sprintf(
			"one master, %s, %s; its last sweep met no problem", c.n.cfg.Host, others)})
	}
	return list
}

// managerDegraded lists what is wrong with the managers of the subnet.
func managerDegraded(s *manager.Status) (list []api.Degraded) {
	for _, o := range s.Others {
		if o.State == "master" && s.State == "master" {
			list = append(list, api.Degraded{What: "two_managers",
				Why: fmt.Sprintf("the manager %v at LID %d is master as well: each has a subnet of its own", o.GUID, o.LID),
				Fix: "weft sm and weft trunk on both nodes"})
		}
	}
	if k := len(s.Problems); k > 0 {
		list = append(list, api.Degraded{What: "subnet_problems",
			Why: fmt.Sprintf("the last sweep met %d, such as %s: %s", k, s.Problems[0].Where, withoutFix(s.Problems[0].What)),
			Fix: "weft sm"})
	}
	return list
}

// withoutFix returns the text of a problem without its fix.
func withoutFix(text string) string {
	text, _, _ = strings.Cut(text, ". fix: ")
	return text
}

func describeFindings(list []walk.Finding) (v []api.Finding) {
	for _, f := range list {
		v = append(v, api.Finding{Level: f.Level.String(), Check: f.Step, What: f.What, Fix: f.Fix})
	}
	return v
}

// truthDegraded lists what members should reach and cannot: partitions that ports do not have, lost links, ways that
// lead nowhere. Differences that no sweep had the time to remove are left out.
func (n *Network) truthDegraded() (list []api.Degraded) {
	t, master := n.truth()
	if !master {
		return nil
	}
	f := walk.Fabric{Topo: t.Topo, Partitions: t.Partitions, Manager: t.Manager, Applied: t.Applied, Lost: t.Lost}
	names := map[string]string{"partition": "partition_differs", "trunk": "link_lost", "path": "no_way",
		"mtu":  "mtu_differs",
		"port": "fabric_port", "link": "fabric_link"}
	more := map[string]int{}
	for _, x := range f.Whole() {
		name := cmp.Or(names[x.Step], x.Step)
		switch {
		case x.Level != walk.Fail:
		case more[name] == 0:
			list = append(list, api.Degraded{What: name, Why: x.What, Fix: x.Fix})
			more[name]++
		default:
			more[name]++
		}
	}
	for i := range list {
		if k := more[list[i].What] - 1; k > 0 {
			list[i].Why += fmt.Sprintf(", and %d more", k)
			list[i].Fix = "weft doctor"
		}
	}
	return list
}
