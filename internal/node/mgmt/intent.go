// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"weft/internal/control/api"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/sa"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/node/describe"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

func (n *Network) partitions(ctx context.Context) (list []api.Partition, err error) {
	d, err := n.desired(ctx, "weft pkey list")
	if err != nil {
		return nil, err
	}
	t := n.topologyIfKnown()
	intended := manager.Partitions(&d.Intent, &d.Ethernet)
	for _, p := range intended {
		list = append(list, describePartition(&p, t))
	}
	if real, master := n.truth(); master {
		list = addTruth(list, intended, &real)
	}
	return list, nil
}

func describePartition(p *sm.Partition, t *topo.Subnet) api.Partition {
	v := api.Partition{Name: p.Name, PKey: describe.PKey(p.PKey | 0x8000)}
	if p.All != sm.NotMember {
		v.Members = append(v.Members, api.Member{Port: api.AllPorts, Membership: membershipText(p.All)})
	}
	for _, m := range p.Members {
		v.Members = append(v.Members, api.Member{Port: m.PortGUID.String(), Membership: membershipText(m.As),
			Name: portName(t, m.PortGUID)})
	}
	return v
}

func membershipText(m sm.Membership) string {
	switch m {
	case sm.Full:
		return api.MemberFull
	case sm.Limited:
		return api.MemberLimited
	}
	return "not"
}

func (n *Network) addPartition(ctx context.Context, want api.Partition) (api.Partition, error) {
	const help = "weft pkey add --help"
	key, err := describe.ParsePKey(want.PKey)
	if err != nil {
		return want, describe.Invalid(help, "%v", err)
	}
	if err := n.editable(ctx, "weft pkey add"); err != nil {
		return want, err
	}
	var members []sm.Member
	all := sm.NotMember
	t := n.topologyIfKnown()
	for _, m := range want.Members {
		as := sm.Full
		switch m.Membership {
		case "", api.MemberFull:
		case api.MemberLimited:
			as = sm.Limited
		default:
			return want, describe.Invalid(help, "a member is full or limited, not %q", m.Membership)
		}
		if m.Port == api.AllPorts {
			all = as
			continue
		}
		guid, err := n.portNamed(ctx, m.Port, t)
		if err != nil {
			return want, err
		}
		members = append(members, sm.Member{PortGUID: guid, As: as})
	}
	var out sm.Partition
	err = n.change(ctx, "pkey add", "weft pkey list", func(d *manager.Desired) error {
		i := &d.Intent
		if err := keyTaken(&d.Ethernet, key); err != nil {
			return err
		}
		j := partition(i, key)
		if j < 0 {
			name := want.Name
			if name == "" {
				name = describe.PKey(key)
			}
			i.Subnet.Partitions = append(i.Subnet.Partitions, sm.Partition{Name: name, PKey: key})
			j = len(i.Subnet.Partitions) - 1
		}
		p := &i.Subnet.Partitions[j]
		if want.Name != "" {
			p.Name = want.Name
		}
		if all != sm.NotMember {
			p.All = all
		}
		for _, m := range members {
			p.Members = slices.DeleteFunc(p.Members, func(o sm.Member) bool { return o.PortGUID == m.PortGUID })
			p.Members = append(p.Members, m)
		}
		out = *p
		return nil
	})
	if err != nil {
		return want, err
	}
	n.cfg.Log.Info("partition changed", "pkey", describe.PKey(key), "name", out.Name, "members", len(out.Members))
	return describePartition(&out, t), nil
}

func (n *Network) deletePartition(ctx context.Context, d api.PartitionMembers) error {
	pkey, names := d.PKey, d.Members
	key, err := describe.ParsePKey(pkey)
	if err != nil {
		return describe.Invalid("weft pkey list", "%v", err)
	}
	if err := n.editable(ctx, "weft pkey del"); err != nil {
		return err
	}
	t := n.topologyIfKnown()
	var guids []ib.GUID
	all := false
	for _, name := range names {
		if name == api.AllPorts {
			all = true
			continue
		}
		guid, err := n.portNamed(ctx, name, t)
		if err != nil {
			return err
		}
		guids = append(guids, guid)
	}
	err = n.change(ctx, "pkey delete", "weft pkey list", func(d *manager.Desired) error {
		i := &d.Intent
		j := partition(i, key)
		if j < 0 {
			if err := keyTaken(&d.Ethernet, key); err != nil {
				return err
			}
			return describe.NotFound("weft pkey list", "there is no partition %s", describe.PKey(key))
		}
		if len(names) == 0 {
			i.Subnet.Partitions = slices.Delete(i.Subnet.Partitions, j, j+1)
			return nil
		}
		p := &i.Subnet.Partitions[j]
		if all {
			p.All = sm.NotMember
		}
		for _, g := range guids {
			k := slices.IndexFunc(p.Members, func(m sm.Member) bool { return m.PortGUID == g })
			if k < 0 {
				return describe.NotFound("weft pkey list", "port %v is no member of %s", g, p.Name)
			}
			p.Members = slices.Delete(p.Members, k, k+1)
		}
		return nil
	})
	if err == nil {
		n.cfg.Log.Info("partition changed", "pkey", describe.PKey(key), "removed", names)
	}
	return err
}

func (n *Network) subnetGroups(ctx context.Context) (list []api.SubnetGroup, err error) {
	t, err := n.topology(ctx, "weft mcast groups")
	if err != nil {
		return nil, err
	}
	n.sub.Do(func() {
		for _, g := range n.manager.Status().Groups {
			v := api.SubnetGroup{MGID: g.MGID.String(), MLID: uint16(g.MLID), PKey: describe.PKey(g.PKey),
				QKey: uint32(g.QKey), MTU: describe.MTU(g.MTU), Gbps: describe.Gbps(g.Rate),
				SL: int(g.SL), Permanent: g.Permanent}
			for _, m := range g.Members {
				x := api.GroupMember{PortGUID: m.PortGUID.String(), Name: portName(t, m.PortGUID),
					Join: joinNames(m.JoinState)}
				switch {
				case t.PortByGUID(m.PortGUID).IsNone():
					x.Differs = api.Differs{Flag: api.FlagMissing, Why: sm.Absent}
				case !n.manager.Carries(g.MLID, m.PortGUID):
					x.Differs = api.Differs{Flag: api.FlagNotYet, Why: "the switches do not forward the group to it yet"}
				}
				v.Members = append(v.Members, x)
			}
			list = append(list, v)
		}
	})
	return list, nil
}

func joinNames(state uint8) (names []string) {
	for _, j := range []struct {
		bit  uint8
		name string
	}{{mad.JoinFull, "full"}, {mad.JoinNon, "non"}, {mad.JoinSendOnlyNon, "send_only"}, {mad.JoinSendOnlyFull,
		"send_only_full"}} {
		if state&j.bit != 0 {
			names = append(names, j.name)
		}
	}
	return names
}

// groupOf returns the group of a request. port returns the GUID of a port by its name.
func groupOf(j *api.GroupJoin, port func(string) (ib.GUID, error)) (g sa.Group, err error) {
	const help = "weft mcast join --help"
	a, err := netip.ParseAddr(j.MGID)
	if err != nil || !a.Is6() || !a.IsMulticast() {
		return g, describe.Invalid(help, "an MGID is a multicast address such as ff12:401b:ffff::1, not %q", j.MGID)
	}
	g = sa.Group{MGID: ib.GIDFromAddr(a), QKey: ib.QKey(j.QKey), PKey: ib.DefaultPKey, MTU: ib.MTU2048, Rate: ib.Rate10}
	if j.PKey != "" {
		if g.PKey, err = describe.ParsePKey(j.PKey); err != nil {
			return g, describe.Invalid(help, "%v", err)
		}
	}
	if j.MTU != 0 {
		g.MTU = 0
		for m := ib.MTU256; m <= ib.MTU4096; m++ {
			if m.Bytes() == j.MTU {
				g.MTU = m
			}
		}
		if g.MTU == 0 {
			return g, describe.Invalid(help, "the MTU must be 256, 512, 1024, 2048 or 4096, not %d", j.MTU)
		}
	}
	for _, name := range j.Members {
		guid, err := port(name)
		if err != nil {
			return g, err
		}
		g.Members = append(g.Members, sa.Member{PortGUID: guid, JoinState: mad.JoinFull})
	}
	return g, nil
}

// editGroup edits the intent for the group of a request: k is its place in the intent, -1: it is not there.
func (n *Network) editGroup(ctx context.Context, command string, j *api.GroupJoin,
	edit func(i *manager.Intent, k int, g *sa.Group) error) error {
	if err := n.editable(ctx, command); err != nil {
		return err
	}
	t := n.topologyIfKnown()
	g, err := groupOf(j, func(name string) (ib.GUID, error) { return n.portNamed(ctx, name, t) })
	if err != nil {
		return err
	}
	return n.change(ctx, strings.TrimPrefix(command, "weft "), "weft mcast groups", func(d *manager.Desired) error {
		i := &d.Intent
		return edit(i, slices.IndexFunc(i.Groups, func(o sa.Group) bool { return o.MGID == g.MGID }), &g)
	})
}

// removeMember removes the member of a port from a group, and reports whether there was one.
func removeMember(g *sa.Group, port ib.GUID) bool {
	k := slices.IndexFunc(g.Members, func(m sa.Member) bool { return m.PortGUID == port })
	if k >= 0 {
		g.Members = slices.Delete(g.Members, k, k+1)
	}
	return k >= 0
}

func (n *Network) joinGroup(ctx context.Context, j api.GroupJoin) error {
	return n.editGroup(ctx, "weft mcast join", &j, func(i *manager.Intent, k int, g *sa.Group) error {
		if k < 0 {
			i.Groups = append(i.Groups, *g)
			return nil
		}
		for _, m := range g.Members {
			removeMember(&i.Groups[k], m.PortGUID)
			i.Groups[k].Members = append(i.Groups[k].Members, m)
		}
		return nil
	})
}

func (n *Network) leaveGroup(ctx context.Context, j api.GroupJoin) error {
	return n.editGroup(ctx, "weft mcast leave", &j, func(i *manager.Intent, k int, g *sa.Group) error {
		if k < 0 {
			return describe.NotFound("weft mcast groups", "no such group was asked for by weft mcast join")
		}
		if len(g.Members) == 0 {
			i.Groups = slices.Delete(i.Groups, k, k+1)
		}
		for _, m := range g.Members {
			if !removeMember(&i.Groups[k], m.PortGUID) {
				return describe.NotFound("weft mcast groups", "port %v was not joined by weft mcast join", m.PortGUID)
			}
		}
		return nil
	})
}
