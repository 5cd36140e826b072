// SPDX-License-Identifier: Apache-2.0

// Package contact compares which ports reach each other before and after a change of a fabric's configuration.
//
// What comes in: the configured partitions, virtual Ethernet switches and groups before and after, and the ports of the
// subnet; what goes out: the ports that lose contact. Callers: the operations that change the configuration, which
// refuse a loss that was not confirmed. It is pure, and it never reads a state: what the manager has written to ports
// does not count.
//
// Ports with the same memberships before and after are alike, so that no pair of ports is looked at: the work grows
// with the number of members of the configuration, and with the number of ports for each partition of all ports.
package contact

import (
	"cmp"
	"context"
	"slices"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/sm/sa"
	"weft/internal/proto/ib"
)

// Config is what decides about contact.
type Config struct {
	Partitions []sm.Partition // with those that VESWs have for themselves
	FabricID   uint16         // of all VESWs
	VESWs      []em.VESW
	Groups     []sa.Group // that ports are kept in
}

// Lost returns the losses of a change. ports are those of the subnet; ports that the configuration before names count
// as well. gone are ports that do not exist afterwards. The error is that of ctx.
func Lost(ctx context.Context, before, after Config, ports, gone []ib.GUID) (*Losses, error) {
	c := comparison{before: before, after: after, was: keysOf(before.Partitions), is: keysOf(after.Partitions),
		ports: universe(before, ports), gone: map[ib.GUID]bool{}}
	for _, g := range gone {
		c.gone[g] = true
	}
	now := map[string]*em.VESW{}
	for i := range after.VESWs {
		now[after.VESWs[i].Name] = &after.VESWs[i]
	}
	for i := range before.VESWs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c.ethernet(&before.VESWs[i], now[before.VESWs[i].Name])
	}
	if err := c.partitions(ctx); err != nil {
		return nil, err
	}
	c.groups()
	return &c.lost, ctx.Err()
}

// universe returns the ports of the subnet, and those that a configuration names, each once.
func universe(c Config, ports []ib.GUID) []ib.GUID {
	all := slices.Clone(ports)
	for _, p := range c.Partitions {
		for _, m := range p.Members {
			all = append(all, m.PortGUID)
		}
	}
	for _, v := range c.VESWs {
		for _, m := range v.Members {
			all = append(all, m.Port)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

type comparison struct {
	before, after Config
	was, is       keys
	ports         []ib.GUID // sorted, each once
	gone          map[ib.GUID]bool
	lost          Losses
}

// defaultKey is the low part of the P_Key of the default partition, of which every port is a member.
const defaultKey ib.PKey = 0x7fff

// keys are the memberships that partitions give, by the low part of the P_Key, as sm.Keys has them.
type keys struct {
	of     map[ib.PKey]*keyed
	others sm.Membership // of the default partition, where it is not configured
}

// keyed is a partition with its members by their ports.
type keyed struct {
	*sm.Partition
	as map[ib.GUID]sm.Membership
}

func keysOf(list []sm.Partition) keys {
	k := keys{of: map[ib.PKey]*keyed{}, others: sm.Full}
	for i := range list {
		p := &list[i]
		if !p.Apart {
			k.others = sm.Limited
		}
		x := &keyed{p, make(map[ib.GUID]sm.Membership, len(p.Members))}
		for _, m := range p.Members {
			if _, twice := x.as[m.PortGUID]; !twice {
				x.as[m.PortGUID] = m.As
			}
		}
		k.of[p.PKey&0x7fff] = x
	}
	return k
}

// at is the membership of a port in the partition of a key.
func (k keys) at(key ib.PKey, port ib.GUID) sm.Membership {
	is := sm.NotMember
	p := k.of[key]
	if p != nil {
		is = p.All
		if as, named := p.as[port]; named {
			is = as
		}
	}
	switch {
	case key != defaultKey:
		return is
	case p == nil:
		return k.others
	}
	return max(is, sm.Limited)
}

// sameKey reports whether a partition is as it was.
func (c *comparison) sameKey(key ib.PKey) bool {
	a, b := c.was.of[key], c.is.of[key]
	if a == nil || b == nil {
		return a == b && (key != defaultKey || c.was.others == c.is.others)
	}
	return a.All == b.All && slices.Equal(a.Members, b.Members)
}

// partitions finds the ports that lose a partition in common. Those that VESWs have for themselves count as Ethernet.
func (c *comparison) partitions(ctx context.Context) error {
	own := map[ib.PKey]bool{}
	for i := range c.before.VESWs {
		if v := &c.before.VESWs[i]; v.OwnPartition() {
			own[v.Key()&0x7fff] = true
		}
	}
	c.partition(defaultKey, "the default partition")
	seen := map[ib.PKey]bool{defaultKey: true}
	for i := range c.before.Partitions {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := &c.before.Partitions[i]
		if k := p.PKey & 0x7fff; !seen[k] && !(p.Apart && own[k]) {
			seen[k] = true
			c.partition(k, "partition "+p.Name)
		}
	}
	return nil
}

// partition finds the ports that lose each other in the partition of a key.
func (c *comparison) partition(key ib.PKey, name string) {
	if len(c.gone) == 0 && c.sameKey(key) {
		return
	}
	r := relation{by: name}
	for _, port := range c.membersOf(key) {
		r.add(port, c.was.at(key, port), c.afterwards(port, c.is.at(key, port)))
	}
	c.lost.related(&r)
}

// afterwards is a membership after the change: a port that is gone has none.
func (c *comparison) afterwards(port ib.GUID, as sm.Membership) sm.Membership {
	if c.gone[port] {
		return sm.NotMember
	}
	return as
}

// membersOf are the ports that were in the partition of a key, sorted, and maybe others.
func (c *comparison) membersOf(key ib.PKey) (ports []ib.GUID) {
	p := c.was.of[key]
	if key == defaultKey || p.All != sm.NotMember {
		return c.ports
	}
	for port := range p.as {
		ports = append(ports, port)
	}
	slices.Sort(ports)
	return ports
}

// ethernet finds the ports that lose contact over a virtual Ethernet switch. now is the switch after the change, nil:
// there is none. One with another number begins anew: interfaces of hosts are by it, and so is each packet.
func (c *comparison) ethernet(v, now *em.VESW) {
	name := "vesw " + v.Name
	r := relation{by: name}
	if now != nil && (v.ID != now.ID || c.before.FabricID != c.after.FabricID) {
		r.by, r.anew = name+", which gets another identifier", true
	}
	on := map[ib.GUID]bool{}
	if now != nil {
		if len(c.gone) == 0 && !r.anew && slices.Equal(v.Members, now.Members) && v.Key() == now.Key() &&
			v.NoUserMACs == now.NoUserMACs && c.sameKey(v.Key()&0x7fff) {
			return
		}
		for _, m := range now.Members {
			on[m.Port] = true
		}
	}
	var ports, strict []ib.GUID
	for _, m := range v.Members {
		ports = append(ports, m.Port)
	}
	slices.Sort(ports)
	for _, port := range ports {
		is := sm.NotMember
		if on[port] {
			is = c.afterwards(port, c.is.at(now.Key()&0x7fff, port))
		}
		r.add(port, c.was.at(v.Key()&0x7fff, port), is)
		if is != sm.NotMember {
			strict = append(strict, port)
		}
	}
	c.lost.related(&r)
	if now == nil || v.NoUserMACs || !now.NoUserMACs {
		return
	}
	for _, port := range strict {
		c.lost.Add(Loss{Port: port, By: "MACs of its own in " + name})
	}
}

// groups finds the ports that are not kept in a group any more. A group with another P_Key, Q_Key or MTU is another
// one: its members join anew, or cannot.
func (c *comparison) groups() {
	now := map[ib.GID]*sa.Group{}
	for i := range c.after.Groups {
		now[c.after.Groups[i].MGID] = &c.after.Groups[i]
	}
	for i := range c.before.Groups {
		g := &c.before.Groups[i]
		by := "group " + g.MGID.String()
		kept, is := map[ib.GUID]bool{}, now[g.MGID]
		if is != nil {
			for _, m := range is.Members {
				kept[m.PortGUID] = true
			}
			if what := differs(g, is); what != "" {
				by += ", of which the " + what + " changes"
				clear(kept)
			}
		}
		for _, m := range g.Members {
			if !kept[m.PortGUID] || c.gone[m.PortGUID] {
				c.lost.Add(Loss{Port: m.PortGUID, By: by})
			}
		}
	}
}

// differs names what makes a group another one, empty where nothing does.
func differs(a, b *sa.Group) string {
	switch {
	case (a.PKey^b.PKey)&0x7fff != 0:
		return "P_Key"
	case a.QKey != b.QKey:
		return "Q_Key"
	case a.MTU != b.MTU:
		return "MTU"
	}
	return ""
}

// relation is the memberships of ports in what connects them, before and after a change. Ports with the same
// memberships are a class.
type relation struct {
	by      string
	anew    bool // no port reaches another by what it was connected by
	classes [sm.Full + 1][sm.Full + 1][]ib.GUID
}

// add adds a port. Ports come in their order, each once.
func (r *relation) add(port ib.GUID, before, after sm.Membership) {
	if r.anew {
		after = sm.NotMember
	}
	if before != sm.NotMember {
		r.classes[before][after] = append(r.classes[before][after], port)
	}
}

// class is what is left of the ports of a relation with the same memberships.
type class struct {
	before, after sm.Membership
	left          []ib.GUID
}

// parted reports whether the ports of two classes lose contact.
func parted(a, b *class) bool {
	return connected(a.before, b.before) && !connected(a.after, b.after)
}

func connected(a, b sm.Membership) bool {
	return a != sm.NotMember && b != sm.NotMember && (a == sm.Full || b == sm.Full)
}

// list returns the classes with ports that lose contact, with how many pairs do.
func (r *relation) list() (list []class, pairs int) {
	var all []class
	for before := range r.classes {
		for after, ports := range r.classes[before] {
			if len(ports) > 0 {
				all = append(all, class{sm.Membership(before), sm.Membership(after), ports})
			}
		}
	}
	for i := range all {
		lost := 0
		for k := range all {
			if n := len(all[k].left); parted(&all[i], &all[k]) && i != k {
				lost += n
			} else if parted(&all[i], &all[k]) {
				lost += n - 1
			}
		}
		if lost > 0 {
			list = append(list, all[i])
			pairs += lost * len(all[i].left)
		}
	}
	return list, pairs / 2
}

// next takes the port that loses most out of the classes, the first of several. parts are the classes that it loses;
// none: no port loses any more.
func next(list []class) (port ib.GUID, parts [][]ib.GUID) {
	most, best := 0, -1
	for i := range list {
		c := &list[i]
		if len(c.left) == 0 {
			continue
		}
		n := 0
		for k := range list {
			if parted(c, &list[k]) {
				n += len(list[k].left)
			}
		}
		if parted(c, c) {
			n-- // itself
		}
		if n > most || n == most && n > 0 && c.left[0] < list[best].left[0] {
			most, best = n, i
		}
	}
	if best < 0 {
		return 0, nil
	}
	c := &list[best]
	port, c.left = c.left[0], c.left[1:]
	for k := range list {
		if parted(c, &list[k]) && len(list[k].left) > 0 {
			parts = append(parts, list[k].left)
		}
	}
	return port, parts
}

// merge returns the first ports of several lists, in their order, and how many more there are.
func merge(parts [][]ib.GUID, most int) (first []ib.GUID, more int) {
	parts = slices.Clone(parts)
	for len(parts) > 0 && len(first) < most {
		k := 0
		for i := range parts {
			if cmp.Less(parts[i][0], parts[k][0]) {
				k = i
			}
		}
		first = append(first, parts[k][0])
		if parts[k] = parts[k][1:]; len(parts[k]) == 0 {
			parts = slices.Delete(parts, k, k+1)
		}
	}
	for _, p := range parts {
		more += len(p)
	}
	return first, more
}
