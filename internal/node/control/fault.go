// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync"

	"weft/internal/control/api"
	"weft/internal/fabric/link/fault"
	"weft/internal/node/lane"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// FaultConfig is what injected faults need from their node.
type FaultConfig struct {
	Log   *slog.Logger
	Lanes *lane.Group
	// Host is the adapter with the host's addresses.
	Host *hca.Adapter
	// Device reports whether there is a device with a name.
	Device func(name string) bool
	// Trunks reports whether the node has trunks.
	Trunks func() bool
}

// Faults are the faults that people inject into the links.
type Faults struct {
	cfg FaultConfig

	changes sync.Mutex // one change of the lanes at a time; taken before mu

	mu   sync.Mutex  // guards what follows; never held while waiting for a lane
	list []api.Fault // their counters are with the links
	last int
}

// NewFaults returns an empty list of faults.
func NewFaults(c FaultConfig) *Faults { return &Faults{cfg: c} }

// Register registers the operations on faults.
func (s *Faults) Register(mux *http.ServeMux) {
	api.Handle(mux, api.ListFaults, api.NoInput(s.List))
	api.Handle(mux, api.AddFault, s.add)
	api.Handle(mux, api.DeleteFault, api.NoOutput(s.delete))
}

// List lists the rules, with what they did on all lanes.
func (s *Faults) List(context.Context) ([]api.Fault, error) {
	s.mu.Lock()
	list := append([]api.Fault(nil), s.list...)
	s.mu.Unlock()
	for _, l := range s.cfg.Lanes.All() {
		var rules []fault.Status
		err := l.Query(func() {
			rules = slices.Concat(l.Net.Rules(), l.Net.TrunkRules(), l.Net.RulesWithin())
		})
		if errors.Is(err, lane.ErrStuck) {
			continue // its counts are missing; the status reports the stuck lane
		}
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			for j := range list {
				if f := &list[j]; f.ID == r.ID {
					f.Packets += r.Packets
					f.Dropped += r.Dropped + r.Overflow
					f.Duplicated += r.Duplicated
					f.Reordered += r.Reordered
					f.Corrupted += r.Corrupted
					f.Delayed += r.Delayed
				}
			}
		}
	}
	return list, nil
}

// add adds a rule. Every lane gets it with a seed of its own that follows from the one given. A rule for RoCE links
// also acts on packets within the node.
func (s *Faults) add(_ context.Context, spec api.FaultSpec) (api.Fault, error) {
	r := fault.Rule{Drop: spec.Drop, Duplicate: spec.Duplicate, Reorder: spec.Reorder, Corrupt: spec.Corrupt,
		Delay: spec.DelayNS}
	onRoCE, onTrunks, err := s.links(&spec)
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
	s.changes.Lock()
	defer s.changes.Unlock()
	s.mu.Lock()
	s.last++
	f := api.Fault{ID: s.last, FaultSpec: spec}
	s.list = append(s.list, f)
	s.mu.Unlock()
	r.ID = f.ID
	if onRoCE {
		for _, l := range s.cfg.Lanes.All() {
			if err := l.Do(func() { l.Net.OpenWithin(l.Now()) }); err != nil {
				return f, err
			}
		}
	}
	for i, l := range s.cfg.Lanes.All() {
		r.Seed = spec.Seed + uint64(i)
		err := l.Do(func() {
			if onRoCE {
				l.Net.Add(r)
				within := r
				within.RoCE = spec.Link == api.LinkRoCE || spec.Device != ""
				l.Net.AddWithin(within)
			}
			if onTrunks {
				l.Net.AddToTrunks(r)
			}
		})
		if err != nil {
			return f, err
		}
	}
	s.cfg.Log.Info("fault added", "id", f.ID, "spec", spec)
	return f, nil
}

// links reports on which links a fault acts. Trunks belong to no device: packets of one device cannot be told from
// those of others there.
func (s *Faults) links(spec *api.FaultSpec) (onRoCE, onTrunks bool, err error) {
	refuse := func(code api.Code, fix, format string, args ...any) error {
		return &api.Error{Code: code, What: "cannot add the fault", Why: fmt.Sprintf(format, args...), Fix: fix}
	}
	switch {
	case spec.Device != "" && !s.cfg.Device(spec.Device):
		return false, false, refuse(api.CodeNotFound, "weft dev", "there is no device %q", spec.Device)
	case spec.Device != "" && spec.Device != s.cfg.Host.Name:
		return false, false, refuse(api.CodeInvalid, "weft fault add --link trunk, without --device",
			"a trunk carries what all InfiniBand devices send")
	case spec.Link == api.LinkTrunk && spec.Device != "":
		return false, false, refuse(api.CodeInvalid, "leave --device or --link out", "%s sends nothing over trunks",
			spec.Device)
	case spec.Link == api.LinkTrunk && !s.cfg.Trunks():
		return false, false, refuse(api.CodeNotFound, "weft join makes trunks to all members of a fabric",
			"the node has no trunk")
	}
	return spec.Link != api.LinkTrunk, spec.Link != api.LinkRoCE && spec.Device == "" && s.cfg.Trunks(), nil
}

func (s *Faults) delete(_ context.Context, id int) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	s.mu.Lock()
	found := false
	for i, f := range s.list {
		if f.ID == id {
			s.list = append(s.list[:i:i], s.list[i+1:]...)
			found = true
			break
		}
	}
	s.mu.Unlock()
	if !found {
		return &api.Error{Code: api.CodeNotFound, What: "cannot delete the fault",
			Why: fmt.Sprintf("there is no fault %d", id), Fix: "weft fault list"}
	}
	var errs []error
	for _, l := range s.cfg.Lanes.All() {
		errs = append(errs, l.Do(func() {
			l.Net.Remove(id)
			l.Net.RemoveFromTrunks(id)
			l.Net.RemoveWithin(id)
		}))
	}
	for _, l := range s.cfg.Lanes.All() {
		errs = append(errs, l.Do(func() { l.Net.CloseWithin(l.Now()) }))
	}
	return errors.Join(errs...)
}
