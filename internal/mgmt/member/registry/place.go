// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"slices"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
	"weft/internal/proto/ib"
)

// AwayAfter is how long a member is without a connection to the store until another one is a spine in its place.
const AwayAfter = 5 * time.Minute

// A member changes its record by its reports some times at once, and then once in changeEvery: each change is read by
// all members.
const (
	changeBurst = 8
	changeEvery = 15 * time.Second
)

// mayChange counts a change of a record that its member caused, or reports that there were too many.
func (r *Registry) mayChange(g ib.GUID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.caused[g]
	ok := b.Take(now, changeBurst, changeEvery)
	r.caused[g] = b
	return ok
}

// placeMembers writes what has changed of the switches and places of members, so that all rosters have it. A
// transaction has a bounded number of operations; plans with some of the places are plans as well.
func (r *Registry) placeMembers(ctx context.Context, v *view, now time.Time) (ops []store.Op, err error) {
	was := slices.Clone(v.roster.Members)
	if err := r.look(ctx, v, now); err != nil {
		return nil, err
	}
	plan := v.roster.Shape()
	for i, m := range v.roster.Members {
		p, reported := v.report[m.GUID]
		place := plan.Place(m.GUID)
		same := m.Place == place && m.Away == was[i].Away
		if same && (!reported || m.Switch == p.Switch) || len(ops) >= store.MaxTxn/2 {
			continue
		}
		if reported && m.Switch != p.Switch && r.mayChange(m.GUID, now) {
			m.Switch = p.Switch
		} else if same {
			continue // with a later look
		}
		m.Place = place
		w := v.record(m)
		if w.err != nil {
			return nil, w.err
		}
		ops = append(ops, w.op)
	}
	return ops, nil
}

// look sets Record.Away of the members in v. A member without a store of its own, as with an etcd elsewhere, has no
// record there that it is connected, and is not away. One that is away stays so until it is connected, whichever voter
// looks and since when.
func (r *Registry) look(ctx context.Context, v *view, now time.Time) error {
	connected, err := r.connected(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	missed := map[member.Key]time.Time{}
	for i := range v.roster.Members {
		m := &v.roster.Members[i]
		if m.Store == "" || connected[member.GUIDKey(m.GUID)] {
			m.Away = false
			continue
		}
		since, ok := r.missed[m.Key]
		if !ok {
			since = now
		}
		missed[m.Key] = since
		m.Away = m.Away || now.Sub(since) >= AwayAfter
	}
	r.missed = missed
	return nil
}
