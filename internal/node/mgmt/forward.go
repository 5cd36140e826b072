// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
	"weft/internal/node/describe"
	"weft/internal/proto/ib"
)

// Members passes requests on to the other members of the fabric.
type Members interface {
	// Self is this node as a member. in is false where it is in no fabric; an error is why it is a member no more.
	Self() (c member.Claims, in bool, err error)
	// Ask has the node of a member do what is requested. *api.UnreachedError means that nothing was sent.
	Ask(ctx context.Context, node ib.GUID, r *api.Forwarded) (*api.Answer, error)
}

// forwardTime bounds a request to another member: less than a user's command waits.
const forwardTime = 8 * time.Second

// forwarder passes requests on to the node of the master.
type forwarder struct{ n *Network }

var _ api.Forwarder = forwarder{}

// Forwarder is what passes requests for operations of the master on, in a fabric of members.
func (n *Network) Forwarder() api.Forwarder { return forwarder{n} }

// Forward implements api.Forwarder: the node of the master does what only that one can. Where it cannot be reached,
// this node reads what it can, and refuses a change.
func (f forwarder) Forward(ctx context.Context, r *api.Forwarded) (a *api.Answer, here bool, err error) {
	n := f.n
	if n.sub == nil || n.cfg.Members == nil {
		return nil, true, nil
	}
	self, in, gone := n.cfg.Members.Self()
	switch {
	case !in, gone != nil && !r.Change:
		return nil, true, nil
	case gone != nil:
		return nil, false, &api.Error{Code: api.CodeRefused, Why: "this node is no member of its fabric: " +
			gone.Error(),
			Fix: "weft member list"}
	}
	ctx, stop := context.WithTimeout(ctx, forwardTime)
	defer stop()
	to, err := destination(self, r.Right, n.cfg.GUID, f.master(ctx))
	if err != nil || to == 0 {
		return nil, err == nil, err
	}
	a, err = n.cfg.Members.Ask(ctx, to, r)
	var unreached *api.UnreachedError
	switch {
	case errors.As(err, &unreached) && r.Change:
		return nil, false, &api.Error{Code: api.CodeNotMaster, Why: "the node of the master, " + to.String() +
			", cannot be reached, and nothing is changed: " + unreached.Error(),
			Fix: "the same on that node, or here as soon as another is master: weft sm"}
	case errors.As(err, &unreached):
		n.cfg.Log.Warn("the node of the master is not reached", "node", to, "err", err)
		return nil, true, nil
	case err != nil && r.Change:
		return nil, false, &api.Error{Code: api.CodeInternal, Why: "the node of the master, " + to.String() + ": " +
			err.Error(), Fix: "the same again: it may have been done, weft history shows it"}
	case err != nil:
		return nil, false, &api.Error{Code: api.CodeInternal, Why: "the node of the master, " + to.String() + ": " +
			err.Error(), Fix: "weft sm"}
	case notMaster(a): // any more: this node names the next one, or is it
		return nil, true, nil
	}
	return a, false, nil
}

// destination decides where a request of a user is handled: on the node that it returns, 0: here. master is the node of
// the master, 0 where none is known.
func destination(self member.Claims, need api.Right, own, master ib.GUID) (ib.GUID, error) {
	if p := member.MayForward(self, need.Change, need.Reads); p != nil {
		return 0, &api.Error{Code: api.CodeRefused, Why: p.Why, Fix: p.Fix}
	}
	if master == own {
		return 0, nil
	}
	return master, nil
}

// notMaster reports whether an answer is the refusal of a node that is not the master.
func notMaster(a *api.Answer) bool {
	var e api.Error
	return a.Status != http.StatusOK && json.Unmarshal(a.Body, &e) == nil && e.Code == api.CodeNotMaster
}

// master is the node of the master: this one, the one that won the election in the store, or the one that this
// manager stands by for. 0: none is known.
func (f forwarder) master(ctx context.Context) ib.GUID {
	n := f.n
	var known ib.GUID
	if n.manager != nil {
		s, err := n.status()
		if err != nil || s.State == "master" {
			return n.cfg.GUID
		}
		known = s.Master
	}
	if n.store == nil {
		return known
	}
	ctx, stop := context.WithTimeout(ctx, StorePatience)
	defer stop()
	l, err := store.LeaderOf(ctx, n.store, manager.Election)
	if err != nil {
		return known
	}
	if _, text, ok := strings.Cut(l.Name, " "); ok {
		if g, ok := describe.ParseGUID(text); ok {
			return g
		}
	}
	return known
}
