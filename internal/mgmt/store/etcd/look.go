// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"maps"
	"slices"

	"weft/internal/mgmt/store/voters"
)

// othersAsked is how many members, in turn, a client with a working store queries for another one.
const othersAsked = 16

// look decides by the reports of others whether this node, which has no replica, may use the store, and which; mu is
// held, or nothing runs yet.
func (m *Member) look(ctx context.Context) {
	own := m.known.Roster.Group
	var reports []Report
	if m.attending.Load() { // the replicas of its store are in use
		_, rest := places(&m.c, &m.known, nil)
		reports = slices.DeleteFunc(collect(ctx, inTurn(&m.turn, rest, othersAsked), 0, m.ask), func(r Report) bool {
			return r.Group == own
		})
	} else {
		reports = m.askAll(ctx, 0, maxAsked)
	}
	verdict, why := voters.Choose(own, answers(reports))
	r := newest(reports)
	if verdict == voters.Conflict {
		m.rivals = m.rivals[:0]
		for _, x := range reports {
			if x.Group.Generation >= max(own.Generation, r.Group.Generation) && x.Group.Cluster != own.Cluster {
				m.rivals = append(m.rivals, x.address)
			}
		}
		m.separate(why)
		return
	}
	m.reunite()
	alone := func(x Replica) bool { return x.URL == memberURL } // its group has not its address yet
	if r != nil && r.Group.Generation >= own.Generation && !slices.ContainsFunc(r.Replicas, alone) {
		m.learn(Roster{Group: r.Group, Replicas: r.Replicas, Addresses: m.known.Roster.Addresses})
	}
}

// answers are what reports have of groups.
func answers(reports []Report) (list []voters.Answer) {
	for _, r := range reports {
		list = append(list, voters.Answer{From: r.Name, Group: r.Group, Removed: r.Removed})
	}
	return list
}

// newest returns the report of the highest generation, and among those of the one that applied the most.
func newest(reports []Report) (best *Report) {
	for i := range reports {
		r := &reports[i]
		if best == nil || r.Group.Generation > best.Group.Generation ||
			r.Group.Generation == best.Group.Generation && r.Applied > best.Applied {
			best = r
		}
	}
	return best
}

// addresses are at most n of the members that may have a replica, but this one; 0: all. Those that have one come first;
// the others are a different part of them each time.
func (m *Member) addresses(n int) []string {
	first, rest := places(&m.c, &m.known, m.rivals)
	if n == 0 || len(first)+len(rest) <= n {
		return append(first, rest...)
	}
	first = first[:min(len(first), n)]
	return append(first, inTurn(&m.turn, rest, n-len(first))...)
}

// places are the addresses of the members that have a replica, or have another store, and of the others that may, but
// that of the configuration.
func places(c *MemberConfig, k *known, rivals []string) (first, rest []string) {
	taken := map[string]bool{c.Advertise: true, "": true}
	add := func(list *[]string, a string) {
		if !taken[a] {
			taken[a] = true
			*list = append(*list, a)
		}
	}
	for _, r := range k.Roster.Replicas {
		add(&first, host(r.URL))
	}
	for _, a := range rivals {
		add(&first, a)
	}
	for _, a := range c.Seeds {
		add(&rest, a)
	}
	for _, name := range slices.Sorted(maps.Keys(k.Roster.Addresses)) {
		add(&rest, k.Roster.Addresses[name])
	}
	return first, rest
}

// inTurn are at most n of a list, others each time; turn is where the next begin.
func inTurn(turn *int, list []string, n int) (some []string) {
	if len(list) == 0 {
		return nil
	}
	*turn %= len(list)
	for range min(n, len(list)) {
		some = append(some, list[*turn])
		*turn = (*turn + 1) % len(list)
	}
	return some
}
