// SPDX-License-Identifier: Apache-2.0

package sa

import (
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// State is the records of clients as the store keeps them, for the SA of the next master.
type State struct {
	Groups        []Group
	Services      []Service
	Subscriptions []Subscription
}

// Service is a registered service.
type Service struct {
	Record mad.ServiceRecord
	Left   time.Duration // of its lease; 0 is for ever
}

// Subscription is a subscriber and the notices that it subscribed to.
type Subscription struct {
	GID  ib.GID
	LID  ib.LID
	PKey ib.PKey
	Info mad.InformInfo
}

// State returns the records to store.
func (a *SA) State(now mono.Time) (s State) {
	for _, g := range a.Groups() {
		c := *g
		c.Members = slices.Clone(g.Members)
		s.Groups = append(s.Groups, c)
	}
	for _, v := range a.services {
		k := Service{Record: v.ServiceRecord}
		if !v.forever {
			k.Left = max(1, v.end.Sub(now))
		}
		s.Services = append(s.Services, k)
	}
	for _, v := range a.subs {
		s.Subscriptions = append(s.Subscriptions, Subscription{v.GID, v.LID, v.PKey, v.InformInfo})
	}
	return s
}

// Restore replaces all records by those that another manager stored. The next SetSubnet removes those of ports
// that are not in the subnet.
func (a *SA) Restore(now mono.Time, s State) {
	a.groups, a.mlids, a.services, a.subs = map[ib.GID]*Group{}, map[ib.LID]*Group{}, nil, nil
	for _, g := range s.Groups {
		if a.groups[g.MGID] != nil || a.mlids[g.MLID] != nil || !g.MLID.IsMulticast() ||
			len(a.groups) >= a.cfg.Limits.Groups {
			continue
		}
		c := g
		c.Members = slices.Clone(g.Members)
		a.groups[c.MGID], a.mlids[c.MLID] = &c, &c
	}
	for _, v := range s.Services {
		a.services = append(a.services, &service{v.Record, v.Left == 0, now.Add(v.Left)})
	}
	for _, v := range s.Subscriptions {
		a.subs = append(a.subs, &subscription{v.GID, v.LID, v.PKey, v.Info})
	}
	a.owner.GroupsChanged()
}
