// SPDX-License-Identifier: Apache-2.0

package ipif

import (
	"context"
	"slices"
	"time"

	"weft/internal/control/api"
	"weft/internal/node/describe"
	"weft/internal/proto/wire"
)

// patience is how long Add waits for links to come up before it returns their state.
const patience = 3 * time.Second

const cannotAdd = "cannot add IP links"

// Add grants a request, and returns its links once they have a carrier, or after a while. A request of which no link
// gets a network device is refused.
func (h *Host) Add(ctx context.Context, r api.IPRequest) (list []api.IPLink, err error) {
	if err := h.cfg.Admit(); err != nil {
		return nil, err // at once, whatever the store does
	}
	var q *request
	grant := func() error {
		if q, err = h.add(r, h.cfg.Admit); err != nil {
			return err
		}
		if r.Kept() {
			h.mu.Lock()
			h.kept = append(h.kept, r)
			h.unrestored = slices.DeleteFunc(h.unrestored, func(u unrestored) bool { return u.Key() == r.Key() })
			h.mu.Unlock()
		}
		return nil
	}
	if r.Kept() {
		err = h.cfg.Intent.Edit(ctx, cannotAdd, grant)
	} else {
		err = grant()
	}
	if err != nil {
		return nil, err
	}
	h.cfg.Log.Info("IP links requested", "device", nameOf(&r), "pkeys", r.PKeys, "backend", r.Backend)
	own := func(o *request) bool { return o == q }
	waiting, stop := context.WithTimeout(ctx, patience)
	defer stop()
	var failure error
	h.changes.Await(waiting, func() bool {
		if list, err = h.list(own); err != nil {
			return true
		}
		failure = h.failureOf(q)
		down := func(l api.IPLink) bool { return !l.Carrier && !l.Pending }
		return failure != nil || len(list) > 0 && !slices.ContainsFunc(list, down)
	})
	if failure == nil {
		return list, err
	}
	_ = h.withdraw(context.WithoutCancel(ctx), []*request{q})
	return nil, describe.Problem(api.CodeConflict, cannotAdd, failure, "")
}

// failureOf is the reason for which no link of a request has a network device; nil where one has, or may get one.
func (h *Host) failureOf(q *request) (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.links {
		if l.request == q {
			if l.failure == nil {
				return nil
			}
			err = l.failure
		}
	}
	return err
}

// Delete withdraws requests: those with a name (a device, or "all"), or the one for a link; of a device, with
// P_Keys, those for these partitions.
func (h *Host) Delete(ctx context.Context, d api.IPLinkDelete) error {
	var keys []string
	for _, s := range d.PKeys {
		k, err := describe.ParsePKey(s)
		if err != nil {
			return describe.Invalid("weft ipoib del --help", "%v", err)
		}
		keys = append(keys, describe.PKey(k))
	}
	if len(keys) == 0 {
		// A link, also one that is pending.
		all, err := h.List(ctx)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(all, func(l api.IPLink) bool { return sameLink(l.Name, d.Name) }); i >= 0 {
			return h.deleteLink(ctx, &all[i])
		}
	}
	var found []*request
	var kept []string // keys of requests that are not restored
	matches := func(r *api.IPRequest) bool {
		return nameOf(r) == d.Name && (len(keys) == 0 || len(r.PKeys) == 1 && slices.Contains(keys, r.PKey()))
	}
	if err := h.cfg.Subnet.Do(func() {
		for _, q := range h.requests {
			if matches(&q.api) {
				found = append(found, q)
			}
		}
	}); err != nil {
		return err
	}
	h.mu.Lock()
	for _, u := range h.unrestored {
		if matches(&u.IPRequest) {
			kept = append(kept, u.Key())
		}
	}
	h.mu.Unlock()
	if len(found)+len(kept) == 0 {
		return describe.NotFound("weft ipoib", "there is no request for IP links of %s", d.Name)
	}
	return h.withdraw(ctx, found, kept...)
}

// sameLink reports whether two names are of one link: its last part may have the membership bit.
func sameLink(a, b string) bool {
	if ca, port, k, err := wire.ParseIPoIBName(b); err == nil {
		b = wire.IPoIBName(ca, port, k)
	}
	return a == b
}

// deleteLink withdraws the request for one link.
func (h *Host) deleteLink(ctx context.Context, l *api.IPLink) error {
	var found *request
	if err := h.cfg.Subnet.Do(func() {
		for _, q := range h.requests {
			if q.api.Device != "" && q.api.Device != l.Device {
				continue
			}
			if k, err := describe.ParsePKey(l.PKey); err == nil && (len(q.keys) == 0 || slices.Contains(q.keys, k)) {
				found = q
			}
		}
	}); err != nil {
		return err
	}
	if found == nil {
		return errNoLink(l.Name)
	}
	if name := nameOf(&found.api); len(found.keys) != 1 || found.api.Device == "" {
		return describe.Invalid("weft ipoib del "+name,
			"%s is one of the links that come and go with the partitions of %s", l.Name, name)
	}
	return h.withdraw(ctx, []*request{found})
}

// withdraw ends requests and their links, and has the store forget them, and those of it that were not restored.
func (h *Host) withdraw(ctx context.Context, list []*request, unrestoredKeys ...string) error {
	stored := len(unrestoredKeys) > 0
	forget := unrestoredKeys
	for _, q := range list {
		stored = stored || q.api.Kept()
		forget = append(forget, q.api.Key())
	}
	end := func() error {
		ctx, stop := context.WithTimeout(ctx, unloadLimit)
		defer stop()
		for _, q := range list {
			h.remove(ctx, q)
			h.cfg.Log.Info("IP links withdrawn", "device", nameOf(&q.api), "pkeys", q.api.PKeys)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.kept = slices.DeleteFunc(h.kept, func(r api.IPRequest) bool { return slices.Contains(forget, r.Key()) })
		h.unrestored = slices.DeleteFunc(h.unrestored,
			func(u unrestored) bool { return slices.Contains(unrestoredKeys, u.Key()) })
		return nil
	}
	if !stored {
		return end()
	}
	return h.cfg.Intent.Edit(ctx, "cannot delete IP links", end)
}

func errNoLink(name string) error {
	return describe.NotFound("weft ipoib", "there is no IP link %s", name)
}
