// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/proto/problem"
)

// A member uses another certificate than its record has for the moment of a renewal, and after a restore of the store
// until it has renewed it. A change that makes certificates in records count alone waits for it: each agreeEvery,
// agreeWait at most by default.
const (
	agreeEvery = 250 * time.Millisecond
	agreeWait  = 4 * time.Second
)

// differsAfter is how long a member may differ until status names it.
const differsAfter = 20 * time.Second

// errDiffers is the cause of a refusal because of members that use other certificates than their records have.
var errDiffers = errors.New("certificates differ from the records")

// differing lists the members that take part now and have not reported that they use the certificate of their record.
func (r *Registry) differing(ctx context.Context, v *view) (list []*member.Record, err error) {
	connected, err := r.connected(ctx)
	if err != nil {
		return nil, err
	}
	for i := range v.roster.Members {
		m := &v.roster.Members[i]
		p, reported := v.report[m.GUID]
		if !reported || p.Signed != 0 && p.Signed == v.roster.SignerOf(m) {
			continue // without a report it has the certificate that its record was made with
		}
		if connected[member.GUIDKey(m.GUID)] || m.Store == "" && !p.Clock.IsZero() {
			list = append(list, m)
		}
	}
	return list, nil
}

// agreed returns why a change after which certificates in records count alone cannot be made yet: a problem of the kind
// errDiffers. target is the member that the change removes, empty where it removes none. Once late, a target that
// differs itself is removed, so that no two such members keep each other in the fabric.
func (r *Registry) agreed(ctx context.Context, v *view, what, target string, late bool) error {
	list, err := r.differing(ctx, v)
	if err != nil {
		return err
	}
	var names []string
	for _, m := range list {
		names = append(names, m.Name)
	}
	if late && slices.Contains(names, target) {
		return nil
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == target })
	if len(names) == 0 {
		return nil
	}
	return &problem.Error{What: what, Err: errDiffers,
		Why: strings.Join(names, ", ") +
			" would be out as well: the certificates in use there are not those in the records",
		Fix: "repeat this when weft status here does not name " + names[0] + "; if it stays: " +
			restartOrRejoin(names[0])}
}

// restartOrRejoin is what a person does where a member does not renew its certificate.
func restartOrRejoin(name string) string {
	return "weft down; weft up --detach on " + name + ", or weft member remove --force " + name
}

// whenAgreed calls f each agreeEvery until its error is not of the kind errDiffers. late is true in the last call.
func (r *Registry) whenAgreed(ctx context.Context, f func(late bool) error) error {
	for end := time.Now().Add(r.patience); ; {
		late := !time.Now().Before(end)
		err := f(late)
		if late || !errors.Is(err, errDiffers) {
			return err
		}
		select {
		case <-time.After(agreeEvery):
		case <-ctx.Done():
			return err
		}
	}
}

// connected is the set of the members that are connected to the store, by the last part of their keys.
func (r *Registry) connected(ctx context.Context) (map[string]bool, error) {
	present, err := r.cfg.Store.List(ctx, member.TreeStorePresent)
	if err != nil {
		return nil, err
	}
	set := map[string]bool{}
	for _, e := range present.Entries {
		set[strings.TrimPrefix(e.Key, member.TreeStorePresent+"/")] = true
	}
	return set, nil
}

// disagreeing are the members that have differed from their records for a while, as problems for status.
func (r *Registry) disagreeing(ctx context.Context, v *view) (list []*problem.Error, err error) {
	differ, err := r.differing(ctx, v)
	if err != nil {
		return nil, err
	}
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	since := map[member.Key]time.Time{}
	for _, m := range differ {
		at, ok := r.differ[m.Key]
		if !ok {
			at = now
		}
		since[m.Key] = at
		if now.Sub(at) >= differsAfter {
			list = append(list, problem.New("the certificate of "+m.Name+" is not the one in its record",
				"it has not renewed it, and would be out of the fabric with the next removal of a member",
				restartOrRejoin(m.Name)))
		}
	}
	r.differ = since
	return list, nil
}
