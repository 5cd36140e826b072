// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"weft/internal/control/api"
	"weft/internal/fabric/link/fault"
	"weft/internal/node/lane"
	"weft/internal/proto/ib"
)

// Faults implements api.Backend: the rules, and what they did on all lanes.
func (n *Node) Faults(context.Context) ([]api.Fault, error) {
	n.mu.Lock()
	list := append([]api.Fault(nil), n.faults...)
	n.mu.Unlock()
	for _, l := range n.lanes.All() {
		var rules []fault.Status
		err := l.Query(func() {
			rules = append(l.Net.Rules(), l.Net.TrunkRules()...)
		})
		if errors.Is(err, lane.ErrStuck) {
			continue // its counts are missing, which the status says
		}
		if err != nil {
			return nil, err
		}
		for _, s := range rules {
			for j := range list {
				if f := &list[j]; f.ID == s.ID {
					f.Packets += s.Packets
					f.Dropped += s.Dropped + s.Overflow
					f.Duplicated += s.Duplicated
					f.Reordered += s.Reordered
					f.Corrupted += s.Corrupted
					f.Delayed += s.Delayed
				}
			}
		}
	}
	return list, nil
}

// AddFault implements api.Backend. Every lane gets the rule with a seed of its
// own that follows from the one given.
func (n *Node) AddFault(_ context.Context, spec api.FaultSpec) (api.Fault, error) {
	r := fault.Rule{Drop: spec.Drop, Duplicate: spec.Duplicate, Reorder: spec.Reorder, Corrupt: spec.Corrupt, Delay: spec.DelayNS}
	onRoCE, onTrunks, err := n.faulty(&spec)
	if err != nil {
		return api.Fault{}, err
	}
	if spec.Peer != "" {
		a, err := netip.ParseAddr(spec.Peer)
		if err != nil {
			return api.Fault{}, err
		}
		r.Peer = ib.GIDFromAddr(a)
	}
	if spec.Seed == 0 {
		spec.Seed = rand.Uint64()
	}
	if err := r.Validate(); err != nil {
		return api.Fault{}, err
	}
	n.mu.Lock()
	n.faultID++
	f := api.Fault{ID: n.faultID, FaultSpec: spec}
	n.faults = append(n.faults, f)
	n.mu.Unlock()
	r.ID = f.ID
	for i, l := range n.lanes.All() {
		r.Seed = spec.Seed + uint64(i)
		err := l.Do(func() {
			if onRoCE {
				l.Net.Add(r)
			}
			if onTrunks {
				l.Net.AddToTrunks(r)
			}
		})
		if err != nil {
			return f, err
		}
	}
	n.log.Info("fault added", "id", f.ID, "spec", spec)
	return f, nil
}

// faulty says which links a fault acts on: trunks belong to no device, what a
// device sends over one cannot be told from what others do.
func (n *Node) faulty(spec *api.FaultSpec) (onRoCE, onTrunks bool, err error) {
	refuse := func(code api.Code, fix, format string, args ...any) error {
		return &api.Error{Code: code, What: "cannot add the fault", Why: fmt.Sprintf(format, args...), Fix: fix}
	}
	f := n.function(spec.Device)
	switch {
	case spec.Device != "" && f == nil:
		return false, false, refuse(api.CodeNotFound, "weft dev", "there is no device %q", spec.Device)
	case spec.Device != "" && f.a != n.adapter:
		return false, false, refuse(api.CodeInvalid, "weft fault add --link trunk, without --device", "a trunk carries what all InfiniBand devices send")
	case spec.Link == api.LinkTrunk && spec.Device != "":
		return false, false, refuse(api.CodeInvalid, "leave --device or --link out", "%s sends nothing over trunks", spec.Device)
	case spec.Link == api.LinkTrunk && !n.hasTrunks():
		return false, false, refuse(api.CodeNotFound, "weft up --peer ADDRESS", "the node has no trunk")
	}
	return spec.Link != api.LinkTrunk, spec.Link != api.LinkRoCE && spec.Device == "" && n.hasTrunks(), nil
}

// DelFault implements api.Backend.
func (n *Node) DelFault(_ context.Context, id int) error {
	n.mu.Lock()
	found := false
	for i, f := range n.faults {
		if f.ID == id {
			n.faults = append(n.faults[:i:i], n.faults[i+1:]...)
			found = true
			break
		}
	}
	n.mu.Unlock()
	if !found {
		return &api.Error{Code: api.CodeNotFound, What: "cannot delete the fault", Why: fmt.Sprintf("there is no fault %d", id), Fix: "weft fault list"}
	}
	var errs []error
	for _, l := range n.lanes.All() {
		errs = append(errs, l.Do(func() {
			l.Net.Remove(id)
			l.Net.RemoveFromTrunks(id)
		}))
	}
	return errors.Join(errs...)
}

func (n *Node) hasTrunks() bool { return n.sub != nil && n.sub.TrunkLink() != nil }
