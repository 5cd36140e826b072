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
	// Self is this node as a member; false where it is in no fabric.
	Self() (member.Claims, bool)
	// Ask has the node of a member do what is requested. *api.UnreachedError means that nothing was sent.
	Ask(ctx context.Context, node ib.GUID, r *api.Forwarded) (*api.Answer, error)
}

// forwardTime bounds a request to another member: less than a user's command waits.
const forwardTime = 8 * time.Second

var _ api.Forwarder = (*Network)(nil)

// Forward implements api.Forwarder: in a fabric of members, the node of the master does what only that one can. Where it
// cannot be reached, this node does it as far as it can, and else names the master.
func (n *Network) Forward(ctx context.Context, r *api.Forwarded) (a *api.Answer, here bool, err error) {
	if n.sub == nil || n.cfg.Members == nil {
		return nil, true, nil
	}
	self, ok := n.cfg.Members.Self()
	if !ok {
		return nil, true, nil
	}
	ctx, stop := context.WithTimeout(ctx, forwardTime)
	defer stop()
	to, err := destination(self, r.Change, n.cfg.GUID, n.masterNode(ctx))
	if err != nil || to == 0 {
		return nil, err == nil, err
	}
	a, err = n.cfg.Members.Ask(ctx, to, r)
	var unreached *api.UnreachedError
	switch {
	case errors.As(err, &unreached):
		n.cfg.Log.Warn("the node of the master is not reached", "node", to, "err", err)
		return nil, true, nil
	case err != nil:
		return nil, false, &api.Error{Code: api.CodeInternal, Why: "the node of the master, " + to.String() + ": " +
			err.Error(), Fix: "the same again: it may have been done, weft history shows it"}
	case notMaster(a): // any more: this node names the next one, or is it
		return nil, true, nil
	}
	return a, false, nil
}

// destination decides where a request of a user is handled: on the node that it returns, 0: here. master is the node of
// the master, 0 where none is known.
func destination(self member.Claims, change bool, own, master ib.GUID) (ib.GUID, error) {
	if p := member.MayForward(self, change); p != nil {
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

// masterNode is the node of the master: this one, the one that won the election in the store, or the one that this
// manager stands by for. 0: none is known.
func (n *Network) masterNode(ctx context.Context) ib.GUID {
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
