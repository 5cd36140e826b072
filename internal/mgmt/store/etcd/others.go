// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"slices"
)

// Others are the other voters of the group as a voter without a leader finds them.
type Others struct {
	Leading []Replica // they answer, and have a leader: the group has its majority without this node
	Silent  []Replica // they do not answer
}

// FindOthers queries the other voters of the group of a member. A removed member does not answer for one: its reports
// do not count.
func FindOthers(ctx context.Context, m *Member) (o Others) {
	v := m.view.Load()
	replicas := v.replicas
	if v.server != nil {
		replicas = v.server.Replicas()
	}
	replicas = slices.DeleteFunc(slices.Clone(replicas), func(r Replica) bool {
		return r.Learner || r.Name == m.c.Name
	})
	var addresses []string
	for _, r := range replicas {
		addresses = append(addresses, host(r.URL))
	}
	reports := collect(ctx, addresses, 0, m.ask)
	for _, r := range replicas {
		i := slices.IndexFunc(reports, func(p Report) bool { return p.Name == r.Name && p.Group == v.group })
		switch {
		case i < 0:
			o.Silent = append(o.Silent, r)
		case reports[i].Leader != 0:
			o.Leading = append(o.Leading, r)
		}
	}
	return o
}
