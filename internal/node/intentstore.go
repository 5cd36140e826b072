// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/mgmt/store"
	"weft/internal/node/mgmt"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
	"weft/internal/verbs/hca"
)

// intentStore keeps the intent for the node's functions in the store: which there are, under which numbers, from which
// their GUIDs follow, and all settings that were requested of each. A node that starts again reads it back
// (docs/notes/fabric.md).
type intentStore struct {
	n *Node
	// store is the store, nil where there is none, and why, where there should be one.
	store func() (store.Store, error)
	// mu is held from reading the functions to the answer of the store, so that newer states are written later. It is
	// locked before the functionEditor's mu, and guards asked of every function.
	mu   sync.Mutex
	wake chan struct{}

	state  sync.Mutex // guards what follows; nothing else is locked with state held
	never  error      // why nothing is kept until the node starts again; nil: it is
	loaded bool       // functions are those of the store
	dirty  bool       // the last change is not in the store yet
	err    error      // why not
	failed []failedFunction
	ports  []failedPort
}

// failedPort is the use of a VESW port in the store that could not be restored. It stays in the store.
type failedPort struct {
	api.VESWRequest
	err error
}

// failedFunction is a function of the store that could not be restored. It stays in the store.
type failedFunction struct {
	keptFunction
	err error
}

// keptFunctions is what the store has of a node.
type keptFunctions struct {
	Version         int            `json:"version"` // keptVersion
	AdapterDisabled bool           `json:"adapter_disabled,omitempty"`
	Functions       []keptFunction `json:"functions"`
	// VESWPorts is what ports of virtual Ethernet switches are for, whether they are there or not.
	VESWPorts []api.VESWRequest `json:"vesw_ports,omitempty"`
	// IPLinks are requests for IP links.
	IPLinks []api.IPRequest `json:"ip_links,omitempty"`
}

// keptFunction is a function that was added, or one that is always there and
// was changed.
type keptFunction struct {
	Name   string             `json:"name"`
	Number uint16             `json:"number"`
	Asked  api.FunctionChange `json:"asked"`
	VM     *api.NewVM         `json:"vm,omitempty"` // that has this network card
	// Of an Ethernet port.
	Segment string   `json:"segment,omitempty"`
	Addrs   []string `json:"addrs,omitempty"`
	Routes  []string `json:"routes,omitempty"`
}

const (
	keptVersion = 1
	// keepRetry is how long a store that did not answer is left alone.
	keepRetry = time.Second
)

func newIntentStore(n *Node) *intentStore {
	return &intentStore{n: n, store: func() (store.Store, error) { return n.mgmt.Store() }, wake: make(chan struct{},
		1)}
}

// keptKey is where the store has the functions of a node.
func keptKey(identity ib.GUID) string { return fmt.Sprintf("node/%016x/functions", uint64(identity)) }

// start finds out where functions are kept, and restores them. run repeats the request to a store that does not answer
// soon.
func (k *intentStore) start(ctx context.Context) {
	n := k.n
	kept, missing := k.store()
	var never error
	switch {
	case n.sub == nil:
		never = errors.New("the node is in no subnet (--fabric=false)")
	case missing != nil:
		never = fmt.Errorf("the store cannot be used: %w", missing)
	case kept == nil:
		never = fmt.Errorf("the node has no store, since it has no subnet manager (--sm %s) and --store names none",
			n.cfg.SM)
	case n.cfg.StoreKind() == config.StoreMemory && n.cfg.Store == config.StoreAuto:
		never = errors.New("the store of a node that ends by itself (--idle-exit) is its memory")
	case n.cfg.StoreKind() == config.StoreMemory:
		never = errors.New("the store is the node's memory (--store memory)")
	}
	k.state.Lock()
	k.never, k.loaded = never, never != nil
	k.state.Unlock()
	if never != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.attempt(ctx, mgmt.StorePatience)
}

// run reads and writes what the store did not answer for, until it does. It returns when ctx ends.
func (k *intentStore) run(ctx context.Context) {
	for {
		var again <-chan time.Time
		if k.pending() {
			again = time.After(keepRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-again:
			k.mu.Lock()
			k.attempt(ctx, mgmt.StoreWait)
			k.mu.Unlock()
		}
	}
}

// pending reports whether the store is still to be read or written.
func (k *intentStore) pending() bool {
	k.state.Lock()
	defer k.state.Unlock()
	return !k.loaded || k.dirty
}

// attempt reads from or writes to the store; mu is held.
func (k *intentStore) attempt(ctx context.Context, patience time.Duration) {
	n := k.n
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	k.state.Lock()
	loaded, before := k.loaded, k.err
	k.state.Unlock()
	var err error
	if !loaded {
		if err = k.load(ctx); err == nil {
			loaded = true
		}
	} else {
		err = k.write(ctx)
	}
	k.state.Lock()
	k.loaded, k.err, k.dirty = loaded, err, loaded && err != nil
	k.state.Unlock()
	if err == nil {
		return
	}
	if before == nil || before.Error() != err.Error() {
		n.log.Error("the store does not have, or tell, what devices the node has", "err", err)
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// save writes the functions as they are; mu is held. A change that the store does not accept now is written later:
// degraded reports it until then.
func (k *intentStore) save(ctx context.Context) {
	k.state.Lock()
	never := k.never
	k.state.Unlock()
	if never == nil {
		k.attempt(ctx, mgmt.StoreWait)
	}
}

// write puts the functions into the store; mu is held.
func (k *intentStore) write(ctx context.Context) error {
	n := k.n
	v := keptFunctions{Version: keptVersion, AdapterDisabled: n.funcs.adapterIsOff(), VESWPorts: n.vesw.Kept(),
		IPLinks: n.ip.Kept()}
	for _, f := range n.funcs.all() {
		if virtual(f.a) || asksAnything(&f.asked) {
			k := keptFunction{Name: f.a.Name, Number: f.a.Number(), Asked: f.asked}
			if m := n.cards.Card(f.a.Name); m != nil {
				k.VM = m.Request()
			}
			if f.st != nil {
				w := f.st.Requested()
				k.Segment, k.Addrs, k.Routes = w.Segment, w.Addrs, w.Routes
			}
			v.Functions = append(v.Functions, k)
		}
	}
	k.state.Lock()
	for _, f := range k.failed {
		v.Functions = append(v.Functions, f.keptFunction)
	}
	for i := range k.ports {
		v.VESWPorts = append(v.VESWPorts, k.ports[i].VESWRequest)
	}
	k.state.Unlock()
	b, err := json.Marshal(v)
	if err == nil {
		s, _ := k.store()
		_, err = store.Put(ctx, s, keptKey(n.identity), b)
	}
	return k.outOf(ctx, err)
}

// outOf names the store where all that is known is that it did not answer.
func (k *intentStore) outOf(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("no answer from the store (%s)", k.n.cfg.StoreKind())
	}
	return err
}

// load reads what was kept and makes it so; mu is held.
func (k *intentStore) load(ctx context.Context) error {
	n := k.n
	s, _ := k.store()
	e, err := s.Get(ctx, keptKey(n.identity))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return k.outOf(ctx, err)
	}
	var v keptFunctions
	if err := json.Unmarshal(e.Value, &v); err != nil {
		return fmt.Errorf("the store's entry %s is damaged: %w", e.Key, err)
	}
	if v.Version != keptVersion {
		return fmt.Errorf("the store's entry %s has version %d, this node knows %d", e.Key, v.Version, keptVersion)
	}
	if v.AdapterDisabled {
		n.editor.enableAdapter(false)
	}
	n.editor.mu.Lock()
	for _, f := range v.Functions {
		n.all.Reserve(f.Number)
	}
	n.editor.mu.Unlock()
	slices.SortStableFunc(v.Functions, func(a, b keptFunction) int { return int(a.Number) - int(b.Number) })
	restored := 0
	for _, f := range v.Functions {
		if err := k.restore(&f); err != nil {
			n.log.Error("a device is not restored", "device", f.Name, "err", err)
			k.state.Lock()
			k.failed = append(k.failed, failedFunction{f, err})
			k.state.Unlock()
			continue
		}
		restored++
	}
	for i := range v.VESWPorts {
		r := &v.VESWPorts[i]
		if err := k.restorePort(r); err != nil {
			n.log.Error("what a VESW port was for is not restored", "device", r.Device, "vesw", r.VESW, "err", err)
			k.state.Lock()
			k.ports = append(k.ports, failedPort{*r, err})
			k.state.Unlock()
		}
	}
	n.ip.Restore(v.IPLinks)
	n.log.Info("devices restored", "functions", restored, "vesw_ports", len(v.VESWPorts), "adapter_disabled",
		v.AdapterDisabled)
	return nil
}

var errNumber = errors.New("its number in the store is one that no added device has")

// restore makes one function what it was.
func (k *intentStore) restore(f *keptFunction) error {
	n := k.n
	want := api.NewFunction{Name: f.Name, Segment: f.Segment, Addrs: f.Addrs, Routes: f.Routes, FunctionChange: f.Asked}
	if f.Number < virtualFunctions {
		i := slices.IndexFunc(n.funcs.all(), func(o *function) bool { return o.a.Number() == f.Number })
		if i < 0 {
			return errNumber
		}
		if err := f.Asked.Validate(); err != nil {
			return err
		}
		return n.functionOps.change(n.funcs.all()[i], &f.Asked)
	}
	if err := want.Validate(); err != nil {
		return err
	}
	number := func(a *hca.Adapter) error { return n.all.AddAt(a, f.Number) }
	if f.VM != nil {
		_, err := n.cards.Make(*f.VM, &f.Asked, number)
		return err
	}
	_, err := n.functionOps.create(&want, number)
	return err
}

// restorePort has a VESW port be again what it was for.
func (k *intentStore) restorePort(r *api.VESWRequest) error {
	switch err := r.Validate(); {
	case err != nil:
		return err
	case !r.Kept():
		return errors.New("it was its command's")
	case !k.n.vesw.Restore(r):
		return errors.New("the store has two values of it")
	}
	return nil
}

// editable refuses changes before the functions of the store are known.
func (k *intentStore) editable(what string) error {
	k.state.Lock()
	defer k.state.Unlock()
	if k.loaded {
		return nil
	}
	return &api.Error{Code: api.CodeNotReady, What: what,
		Why: fmt.Sprintf("the store does not tell yet what devices the node has: %v", k.err),
		Fix: "weft store status; then again"}
}

// kept reports whether what the node has now is there after it starts again,
// and else why not.
func (k *intentStore) kept() (bool, string) {
	k.state.Lock()
	defer k.state.Unlock()
	switch {
	case k.never != nil:
		return false, k.never.Error()
	case !k.loaded, k.dirty:
		return false, fmt.Sprintf("%v", k.err)
	}
	return true, ""
}

// Forget drops a function that was not restored; false where there is none of
// that name.
func (k *intentStore) Forget(name string) bool {
	k.state.Lock()
	defer k.state.Unlock()
	before := len(k.failed)
	k.failed = slices.DeleteFunc(k.failed, func(f failedFunction) bool { return f.Name == name })
	return len(k.failed) != before
}

// ForgetPorts drops what was not restored of VESW ports, by a device or a request's key; false where there
// is nothing.
func (k *intentStore) ForgetPorts(which func(*api.VESWRequest) bool) bool {
	k.state.Lock()
	defer k.state.Unlock()
	before := len(k.ports)
	k.ports = slices.DeleteFunc(k.ports, func(p failedPort) bool { return which(&p.VESWRequest) })
	return len(k.ports) != before
}

// unsaved returns why the last change is not in the store yet, nil where it is.
func (k *intentStore) unsaved() error {
	k.state.Lock()
	defer k.state.Unlock()
	if !k.dirty {
		return nil
	}
	return k.err
}

// degraded lists what is wrong with the intent in the store.
func (k *intentStore) degraded() (list []api.Degraded) {
	k.state.Lock()
	defer k.state.Unlock()
	const fix = "weft store status"
	_, missing := k.store()
	switch {
	case missing != nil:
		p := problem.Of("", missing)
		list = append(list, api.Degraded{What: "devices_not_restored",
			Why: "devices that were added are not there, and changes of devices are not kept: " + problem.Text(p.What,
				p.Why, ""),
			Fix: p.Fix + "; then start the node again"})
	case !k.loaded:
		list = append(list, api.Degraded{What: "devices_not_restored",
			Why: fmt.Sprintf("devices that were added are not there yet: %v", k.err), Fix: fix})
	case k.dirty:
		list = append(list, api.Degraded{What: "devices_not_kept",
			Why: fmt.Sprintf("the last change of devices is not in the store yet: %v", k.err), Fix: fix})
	}
	for _, f := range k.failed {
		d := api.Degraded{What: "device_not_restored", Why: fmt.Sprintf("%s: %v", f.Name, f.err),
			Fix: "weft dev del " + f.Name}
		switch {
		case errors.Is(f.err, subnet.ErrNoSwitchPort):
			d.Fix = "start the node with more --switch-ports, or weft dev del " + f.Name
		case errors.Is(f.err, errFunctionThere):
			d.Fix = "start the node with another --device, or add it under another name"
		}
		list = append(list, d)
	}
	for _, p := range k.ports {
		list = append(list, api.Degraded{What: "vesw_port_not_restored",
			Why: fmt.Sprintf("the port of %s in VESW %d: %v", p.Device, p.VESW, p.err),
			Fix: "weft vesw detach " + p.Key() + ", and weft vesw attach again"})
	}
	return list
}

// merge adds the changes of c to those requested before.
func merge(of *api.FunctionChange, c *api.FunctionChange) {
	if c.Enabled != nil {
		on := *c.Enabled
		of.Enabled = &on
	}
	if c.Weight != 0 {
		of.Weight = c.Weight
	}
	for level, w := range c.QoS {
		if of.QoS == nil {
			of.QoS = map[int]int{}
		}
		of.QoS[level] = w
	}
	to, from := &of.Quotas, &c.Quotas
	for _, q := range []struct {
		to   *int
		from int
	}{{&to.Sessions, from.Sessions}, {&to.PDs, from.PDs}, {&to.MRs, from.MRs}, {&to.CQs, from.CQs}, {&to.QPs,
		from.QPs}, {&to.SRQs, from.SRQs},
		{&to.AHs, from.AHs}} {
		if q.from != 0 {
			*q.to = q.from
		}
	}
	if from.MemoryBytes != 0 {
		to.MemoryBytes = from.MemoryBytes
	}
}

// asksAnything reports whether c differs from no change.
func asksAnything(c *api.FunctionChange) bool {
	return c.Enabled != nil || c.Weight != 0 || len(c.QoS) != 0 || c.Quotas != (api.Quotas{})
}
