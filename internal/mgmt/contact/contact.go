// SPDX-License-Identifier: Apache-2.0

// Package contact compares which ports reach each other before and after a change of a fabric's configuration.
//
// What comes in: the configured partitions, virtual Ethernet switches and groups before and after, and the ports of the
// subnet; what goes out: the ports that lose contact. Callers: the operations that change the configuration, which
// refuse a loss that was not confirmed. It is pure, and it never reads a state: what the manager has written to ports
// does not count.
package contact

import (
	"cmp"
	"math/bits"
	"reflect"
	"slices"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/sm/sa"
	"weft/internal/proto/ib"
)

// Config is what decides about contact.
type Config struct {
	Partitions []sm.Partition // with those that VESWs have for themselves
	VESWs      []em.VESW
	Groups     []sa.Group // that ports are kept in
}

// Loss is a port that loses contact by a partition, an Ethernet or a group: what uses that ends, also where the ports
// reach each other by another. A pair of ports is in one Loss only of each.
type Loss struct {
	Port ib.GUID
	With []ib.GUID // that it does not reach there any more; empty where By alone is lost
	By   string    // "partition red", "vesw lab", "group ff12::1"
}

// Lost returns the losses of a change, the largest first. ports are those of the subnet; ports that the configuration
// before names count as well. gone are ports that do not exist afterwards.
func Lost(before, after Config, ports, gone []ib.GUID) []Loss {
	c := comparison{before: before, after: after, ports: universe(before, ports), gone: map[ib.GUID]bool{}}
	for _, g := range gone {
		c.gone[g] = true
	}
	var list []Loss
	for i := range before.VESWs {
		list = append(list, c.ethernet(&before.VESWs[i])...)
	}
	list = append(list, c.partitions()...)
	return append(list, c.groups()...)
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
	ports         []ib.GUID // sorted, each once
	gone          map[ib.GUID]bool
}

// defaultKey is the low part of the P_Key of the default partition, of which every port is a member.
const defaultKey ib.PKey = 0x7fff

// partitions returns the ports that lose a partition in common. Those that VESWs have for themselves count as Ethernet.
func (c *comparison) partitions() (list []Loss) {
	if len(c.gone) == 0 && reflect.DeepEqual(c.before.Partitions, c.after.Partitions) {
		return nil
	}
	was, is := c.keysOf(c.before.Partitions), c.keysOf(c.after.Partitions)
	names := map[ib.PKey]string{defaultKey: "the default partition"}
	keys := []ib.PKey{defaultKey}
	for _, p := range c.before.Partitions {
		k := p.PKey & 0x7fff
		if _, known := names[k]; known || p.Apart && c.ofVESW(k) {
			continue
		}
		names[k] = "partition " + p.Name
		keys = append(keys, k)
	}
	for _, k := range keys {
		lost := newPairs(len(c.ports))
		a, b := make([]sm.Membership, len(c.ports)), make([]sm.Membership, len(c.ports))
		for i, port := range c.ports {
			if a[i], b[i] = was[i][k], is[i][k]; c.gone[port] {
				b[i] = sm.NotMember
			}
		}
		for i := range a {
			for j := range i {
				if connected(a[i], a[j]) && !connected(b[i], b[j]) {
					lost.add(i, j)
				}
			}
		}
		list = append(list, lost.losses(c.ports, names[k])...)
	}
	return list
}

// ofVESW reports whether a VESW has a partition for itself.
func (c *comparison) ofVESW(k ib.PKey) bool {
	return slices.ContainsFunc(c.before.VESWs, func(v em.VESW) bool { return v.OwnPartition() && v.Key()&0x7fff == k })
}

// keysOf are the partitions of every port.
func (c *comparison) keysOf(list []sm.Partition) []map[ib.PKey]sm.Membership {
	of := make([]map[ib.PKey]sm.Membership, len(c.ports))
	for i, p := range c.ports {
		of[i] = map[ib.PKey]sm.Membership{}
		for _, k := range sm.Keys(list, p) {
			of[i][k&0x7fff] = sm.Limited
			if k&0x8000 != 0 {
				of[i][k&0x7fff] = sm.Full
			}
		}
	}
	return of
}

// ethernet returns the ports that lose contact over a virtual Ethernet switch.
func (c *comparison) ethernet(v *em.VESW) (list []Loss) {
	var now *em.VESW
	if k := slices.IndexFunc(c.after.VESWs, func(o em.VESW) bool { return o.Name == v.Name }); k >= 0 {
		now = &c.after.VESWs[k]
		if len(c.gone) == 0 && reflect.DeepEqual(v, now) && (v.OwnPartition() ||
			reflect.DeepEqual(c.before.Partitions, c.after.Partitions)) {
			return nil
		}
	}
	was, is := c.onSwitch(v, c.before.Partitions), c.onSwitch(now, c.after.Partitions)
	lost := newPairs(len(c.ports))
	for i, a := range was {
		for j, b := range was {
			if j < i && connected(a, b) && (c.gone[c.ports[i]] || c.gone[c.ports[j]] || !connected(is[i], is[j])) {
				lost.add(i, j)
			}
		}
	}
	list = lost.losses(c.ports, "vesw "+v.Name)
	if now == nil || v.NoUserMACs || !now.NoUserMACs {
		return list
	}
	for i := range was {
		if is[i] != sm.NotMember {
			list = append(list, Loss{Port: c.ports[i], By: "MACs of its own in vesw " + v.Name})
		}
	}
	slices.SortFunc(list, func(a, b Loss) int { return cmp.Compare(len(b.With), len(a.With)) })
	return list
}

func connected(a, b sm.Membership) bool {
	return a != sm.NotMember && b != sm.NotMember && (a == sm.Full || b == sm.Full)
}

// onSwitch returns the members of a VESW that are in its partition, by their place among the ports.
func (c *comparison) onSwitch(v *em.VESW, list []sm.Partition) map[int]sm.Membership {
	on := map[int]sm.Membership{}
	if v == nil {
		return on
	}
	for _, m := range v.Members {
		i, ok := slices.BinarySearch(c.ports, m.Port)
		if !ok {
			continue
		}
		for _, k := range sm.Keys(list, m.Port) {
			if (k^v.Key())&0x7fff != 0 {
				continue
			}
			if on[i] = sm.Limited; k&0x8000 != 0 {
				on[i] = sm.Full
			}
		}
	}
	return on
}

// groups returns the ports that are not kept in a group any more.
func (c *comparison) groups() (list []Loss) {
	for _, g := range c.before.Groups {
		k := slices.IndexFunc(c.after.Groups, func(o sa.Group) bool { return o.MGID == g.MGID })
		for _, m := range g.Members {
			if k < 0 || c.gone[m.PortGUID] || !slices.ContainsFunc(c.after.Groups[k].Members,
				func(o sa.Member) bool { return o.PortGUID == m.PortGUID }) {
				list = append(list, Loss{Port: m.PortGUID, By: "group " + g.MGID.String()})
			}
		}
	}
	return list
}

// pairs is a set of pairs of n things, as a symmetric matrix of bits.
type pairs struct {
	n, words int
	bits     []uint64
}

func newPairs(n int) pairs {
	words := (n + 63) / 64
	return pairs{n, words, make([]uint64, n*words)}
}

func (p pairs) row(i int) []uint64 { return p.bits[i*p.words : (i+1)*p.words] }

func (p pairs) has(i, j int) bool { return p.row(i)[j/64]>>(j%64)&1 != 0 }

func (p pairs) add(i, j int) {
	p.row(i)[j/64] |= 1 << (j % 64)
	p.row(j)[i/64] |= 1 << (i % 64)
}

func (p pairs) count(i int) (n int) {
	for _, w := range p.row(i) {
		n += bits.OnesCount64(w)
	}
	return n
}

// losses names the pairs by as few ports as a greedy choice finds: a port that loses all others is one Loss. It empties
// the set.
func (p pairs) losses(ports []ib.GUID, by string) (list []Loss) {
	counts := make([]int, p.n)
	for i := range counts {
		counts[i] = p.count(i)
	}
	for p.n > 0 {
		most := 0
		for i, n := range counts {
			if n > counts[most] {
				most = i
			}
		}
		if counts[most] == 0 {
			break
		}
		l := Loss{Port: ports[most], By: by}
		for j := range p.n {
			if !p.has(most, j) {
				continue
			}
			l.With = append(l.With, ports[j])
			p.row(j)[most/64] &^= 1 << (most % 64)
			counts[j]--
		}
		clear(p.row(most))
		counts[most] = 0
		list = append(list, l)
	}
	return list
}

// Pairs is the number of pairs of ports in a list, each counted once.
func Pairs(list []Loss) int {
	seen := map[[2]ib.GUID]bool{}
	for _, l := range list {
		for _, w := range l.With {
			seen[[2]ib.GUID{min(l.Port, w), max(l.Port, w)}] = true
		}
	}
	return len(seen)
}
