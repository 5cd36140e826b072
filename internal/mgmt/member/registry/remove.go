// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// A store that is full makes room by itself within seconds where there is any to make. A removal is attempted again
// each fullEvery: fullTries times, and as often once what the member wrote is deleted.
const (
	fullEvery = 250 * time.Millisecond
	fullTries = 20
)

// Remove removes a member: it is out with this transaction. It returns what was replaced. The M_Key follows, and so
// does the deletion of all that the member wrote of its own; Advance repeats both until they are done. A store that
// stays full gets its room by that deletion, which comes first then, unless the members changed after the removal was
// decided. An error of the kind store.ErrFull is of a store that had too little room even so: the member is still one.
func (r *Registry) Remove(ctx context.Context, name, by string, force bool) (member.Replaced, error) {
	var x removal
	decide := func() error {
		return r.whenAgreed(ctx, func(late bool) error {
			return r.edit(ctx, func(v *view) (ops []store.Op, err error) {
				x, ops, err = r.removal(ctx, v, name, by, force, late)
				return ops, err
			})
		})
	}
	err := decide()
	for try := 1; errors.Is(err, store.ErrFull) && try < 2*fullTries; try++ {
		if try == fullTries {
			if e := r.deleteOwn(ctx, x.at, x.gone.GUID); e != nil && !errors.Is(e, store.ErrConflict) {
				return 0, e
			}
		}
		select {
		case <-time.After(fullEvery):
		case <-ctx.Done():
			return 0, err
		}
		err = decide()
	}
	if err != nil {
		return 0, err
	}
	if v, err := r.load(ctx); err == nil { // else with the next look
		r.clean(ctx, v)
	}
	if r.cfg.Rekey != nil {
		return x.replaced, r.rekey(ctx)
	}
	return x.replaced, nil
}

// removal is a removal that was decided.
type removal struct {
	at       store.Cond // that the members are those of the decision
	gone     member.Gone
	replaced member.Replaced
}

// removal decides about a removal. Its operations are those that each version of the store takes from a voter. late is
// that of whenAgreed.
func (r *Registry) removal(ctx context.Context, v *view, name, by string, force, late bool) (x removal,
	ops []store.Op, err error) {
	now := r.cfg.Now()
	next, err := member.NewAuthority(v.fabric.ID, v.fabric.NextEpoch(), now, 0)
	if err != nil {
		return x, nil, err
	}
	plan, p := member.PlanRemoval(v.fabric, &v.roster, name, next, now, by, force)
	if p != nil {
		return x, nil, p
	}
	if err := r.mayLoseReplica(ctx, &plan.Gone); err != nil {
		return x, nil, err
	}
	if plan.Fabric != nil {
		if err := r.agreed(ctx, v, "cannot remove the member "+name, name, late); err != nil {
			return x, nil, err
		}
	}
	x = removal{at: v.change, gone: plan.Gone, replaced: plan.Replace}
	if ops, err = join(put(goneKey(plan.Gone.Key), plan.Gone)); err != nil {
		return x, nil, err
	}
	g := plan.Gone.GUID
	ops = append(append(ops, reports(g)...), store.DeleteOp(recordKey(g)), store.DeleteOp(nameKey(plan.Gone.Name)))
	for _, c := range v.fabric.CAs {
		ops = append(ops, store.DeleteOp(sealedKey(c.Epoch, g)))
	}
	tokens, err := r.cfg.Store.List(ctx, member.TreeToken)
	if err != nil {
		return x, nil, err
	}
	for _, t := range tokens.Entries {
		ops = append(ops, store.DeleteOp(t.Key))
	}
	if plan.Fabric == nil {
		return x, ops, nil
	}
	f, err := r.replaceCA(v, *plan.Fabric, next, plan.Voters)
	return x, append(ops, f...), err
}

// mayLoseReplica returns why a member cannot be removed as far as the store is concerned: it has the only replica that
// votes. The others refuse the removed member, and so could not get the vote from it.
func (r *Registry) mayLoseReplica(ctx context.Context, g *member.Gone) error {
	what := "cannot remove the member " + g.Name
	e, err := r.cfg.Store.Get(ctx, member.KeyStoreRoster)
	if errors.Is(err, store.ErrNotFound) {
		return nil // an etcd elsewhere, or none
	} else if err != nil {
		return err
	}
	var group struct {
		Replicas []struct {
			Name    string `json:"name"`
			Learner bool   `json:"learner"`
		} `json:"replicas"`
	}
	if err := json.Unmarshal(e.Value, &group); err != nil {
		return problem.New(what, "the list of replicas is unreadable: "+err.Error(), "weft store status")
	}
	own, others := false, false
	for _, c := range group.Replicas {
		own = own || !c.Learner && c.Name == member.GUIDKey(g.GUID)
		others = others || !c.Learner && c.Name != member.GUIDKey(g.GUID)
	}
	if own && !others {
		return problem.New(what, "it has the only copy of the store that votes, and the others could change nothing "+
			"without it", "weft join on a third host, then wait until weft store status lists three voters; or weft down "+
			"on "+g.Name+" and weft store restore here, then repeat this")
	}
	return nil
}

// reports deletes what a member writes for the others. Its replica of the store leaves the group by that.
func reports(g ib.GUID) []store.Op {
	guid := "/" + member.GUIDKey(g)
	return []store.Op{store.DeleteOp(reportKey(g)), store.DeleteOp(member.TreeStoreMember + guid),
		store.DeleteOp(member.TreeStorePresent + guid)}
}

// maxOwn bounds the keys of a member's devices, of which there is one.
const maxOwn = 16

// deleteOwn deletes what a member wrote of its own, its devices too, while the members are as they are at one time.
func (r *Registry) deleteOwn(ctx context.Context, at store.Cond, g ib.GUID) error {
	guid := member.GUIDKey(g)
	devices, err := r.cfg.Store.List(ctx, member.TreeNode+"/"+guid)
	if err != nil {
		return err
	}
	var ops []store.Op
	for _, e := range devices.Entries[:min(len(devices.Entries), maxOwn)] {
		ops = append(ops, store.DeleteOp(e.Key))
	}
	for _, op := range reports(g) {
		_, err := r.cfg.Store.Get(ctx, op.Key)
		if err == nil {
			ops = append(ops, op)
		} else if !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	if len(ops) == 0 {
		return nil
	}
	_, err = r.cfg.Store.Txn(ctx, store.Txn{If: []store.Cond{at}, Do: ops})
	return err
}

// cleanAfter is how long after a removal nothing arrives any more that its member wrote before: the nodes with the
// store refuse the member within seconds.
const cleanAfter = time.Minute

// clean deletes what removed members wrote of their own and is still there: an older weft left their devices, the store
// of an older voter refuses to delete them, and a write may have been on its way. Each removal is looked at until
// cleanAfter has passed. What cannot be deleted is among the problems of Members, and Advance attempts it again.
func (r *Registry) clean(ctx context.Context, v *view) {
	now := r.cfg.Now()
	r.mu.Lock()
	before := r.cleaned
	r.mu.Unlock()
	after := map[member.Key]error{}
	for _, g := range v.roster.Removed {
		if slices.ContainsFunc(v.roster.Members, func(m member.Record) bool { return m.GUID == g.GUID }) {
			continue // it has joined again, and the keys are its own
		}
		if err, seen := before[g.Key]; seen && err == nil {
			after[g.Key] = nil
			continue
		}
		err := r.deleteOwn(ctx, v.change, g.GUID)
		if errors.Is(err, store.ErrConflict) || ctx.Err() != nil {
			return // with the next look
		}
		if err != nil || now.Sub(g.At) >= cleanAfter {
			after[g.Key] = err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleaned = after
}

// incomplete is why a removal is not complete, nil where it is.
func (r *Registry) incomplete(g *member.Gone) *problem.Error {
	what := "the removal of " + g.Name + " is not complete"
	if g.MKey {
		return problem.New(what, "the subnet's M_Key, which it had, has not been replaced", "weft sm set --m-key random")
	}
	r.mu.Lock()
	err := r.cleaned[g.Key]
	r.mu.Unlock()
	if err != nil {
		return problem.New(what, "what it wrote is still in the store: "+problem.Of("", err).Why,
			"upgrade weft on the members that have a replica: weft store status")
	}
	return nil
}
