// SPDX-License-Identifier: Apache-2.0

// Package intent keeps the intent for the node's functions in the store: which there are, under which numbers, from
// which their GUIDs follow, and all settings that were requested of each; and the requests for IP links and for ports
// of virtual Ethernet switches. A node that starts again reads it back (docs/notes/fabric.md).
//
// What comes in: edits of the rooms that have such requests. What goes out: one entry of the store, and at the start
// what the entry has, to Contents. Rooms call it on goroutines that may wait, no lane and not the management goroutine.
// It does not make or change anything itself.
package intent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
)

// Config is what the intent needs from its node.
type Config struct {
	Settings config.Config
	Log      *slog.Logger
	Identity ib.GUID // the base of the node's GUIDs
	// Open returns the store, nil where there is none; the error is the reason, where there should be one.
	Open func() (store.Store, error)
}

// Contents is what the intent is about: the functions and requests of a node.
type Contents interface {
	// Collect returns what is to be kept.
	Collect() State
	// Restore makes it what it was, and returns what could not be restored. It is called once at most.
	Restore(*State) ([]LostFunction, []LostPort)
}

// Store keeps the intent of a node. Its methods may be called on any goroutine but a lane and the management goroutine.
type Store struct {
	cfg      Config
	contents Contents // set by Start

	// mu is held from reading the functions to the answer of the store, so that newer states are written later. It is
	// locked before the mutex that guards the functions.
	mu   sync.Mutex
	wake chan struct{}

	state  sync.Mutex // guards what follows; nothing else is locked with state held
	never  error      // why nothing is kept until the node starts again; nil: it is
	loaded bool       // functions are those of the store
	dirty  bool       // the last change is not in the store yet
	err    error      // why not
	failed []LostFunction
	ports  []LostPort
}

// LostPort is the use of a VESW port in the store that could not be restored. It stays in the store.
type LostPort struct {
	api.VESWRequest
	Err error
}

// LostFunction is a function of the store that could not be restored. It stays in the store.
type LostFunction struct {
	Function
	Err error
}

// State is what the store has of a node.
type State struct {
	Version         int        `json:"version"` // set by Store
	AdapterDisabled bool       `json:"adapter_disabled,omitempty"`
	Functions       []Function `json:"functions"`
	// VESWPorts is what ports of virtual Ethernet switches are for, whether they are there or not.
	VESWPorts []api.VESWRequest `json:"vesw_ports,omitempty"`
	// IPLinks are requests for IP links.
	IPLinks []api.IPRequest `json:"ip_links,omitempty"`
}

// Function is a function that was added, or one that is always there and was changed.
type Function struct {
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
	stateVersion = 1
	// retryAfter is how long a store that did not answer is left alone.
	retryAfter = time.Second
)

// New returns an intent that is not read yet.
func New(c Config) *Store { return &Store{cfg: c, wake: make(chan struct{}, 1)} }

// Key is where the store has the functions of a node.
func Key(identity ib.GUID) string { return fmt.Sprintf("node/%016x/functions", uint64(identity)) }

// Start finds out where functions are kept, and restores them. Run repeats the request to a store that does not answer
// soon.
func (k *Store) Start(ctx context.Context, c Contents) {
	k.contents = c
	never := k.keptNowhere()
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

// keptNowhere returns why the node has no store that outlives it, nil where it has one.
func (k *Store) keptNowhere() error {
	kept, missing := k.cfg.Open()
	kind := k.cfg.Settings.StoreKind()
	switch {
	case !k.cfg.Settings.Fabric:
		return errors.New("the node is in no subnet (--fabric=false)")
	case missing != nil:
		return fmt.Errorf("the store cannot be used: %w", missing)
	case kept == nil:
		return fmt.Errorf("the node has no store, since it has no subnet manager (--sm %s) and --store names none",
			k.cfg.Settings.SM)
	case kind == config.StoreMemory && k.cfg.Settings.Store == config.StoreAuto:
		return errors.New("the store of a node that ends by itself (--idle-exit) is its memory")
	case kind == config.StoreMemory:
		return errors.New("the store is the node's memory (--store memory)")
	}
	return nil
}

// Run reads and writes what the store did not answer for, until it does. It returns when ctx ends.
func (k *Store) Run(ctx context.Context) {
	for {
		var again <-chan time.Time
		if k.pending() {
			again = time.After(retryAfter)
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
func (k *Store) pending() bool {
	k.state.Lock()
	defer k.state.Unlock()
	return !k.loaded || k.dirty
}

// attempt reads from or writes to the store; mu is held.
func (k *Store) attempt(ctx context.Context, patience time.Duration) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	k.state.Lock()
	loaded, before := k.loaded, k.err
	k.state.Unlock()
	do := k.write
	if !loaded {
		do = k.load
	}
	err := do(ctx)
	if err != nil && ctx.Err() != nil { // all that is known is that the store did not answer
		err = fmt.Errorf("no answer from the store (%s)", k.cfg.Settings.StoreKind())
	}
	loaded = loaded || err == nil
	k.state.Lock()
	k.loaded, k.err, k.dirty = loaded, err, loaded && err != nil
	k.state.Unlock()
	if err == nil {
		return
	}
	if before == nil || before.Error() != err.Error() {
		k.cfg.Log.Error("the devices of the node are not read from the store, or not written to it", "err", err)
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// write puts the functions into the store; mu is held.
func (k *Store) write(ctx context.Context) error {
	v := k.contents.Collect()
	v.Version = stateVersion
	k.state.Lock()
	for _, f := range k.failed {
		v.Functions = append(v.Functions, f.Function)
	}
	for i := range k.ports {
		v.VESWPorts = append(v.VESWPorts, k.ports[i].VESWRequest)
	}
	k.state.Unlock()
	b, err := json.Marshal(v)
	if err == nil {
		s, _ := k.cfg.Open()
		_, err = store.Put(ctx, s, Key(k.cfg.Identity), b)
	}
	return err
}

// load reads what was kept and makes it so; mu is held.
func (k *Store) load(ctx context.Context) error {
	s, _ := k.cfg.Open()
	e, err := s.Get(ctx, Key(k.cfg.Identity))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	var v State
	if err := json.Unmarshal(e.Value, &v); err != nil {
		return fmt.Errorf("the store's entry %s is damaged: %w", e.Key, err)
	}
	if v.Version != stateVersion {
		return fmt.Errorf("the store's entry %s has version %d, this node knows %d", e.Key, v.Version, stateVersion)
	}
	failed, ports := k.contents.Restore(&v)
	for _, f := range failed {
		k.cfg.Log.Error("a device is not restored", "device", f.Name, "err", f.Err)
	}
	for _, p := range ports {
		k.cfg.Log.Error("what a VESW port was for is not restored", "device", p.Device, "vesw", p.VESW, "err", p.Err)
	}
	k.state.Lock()
	k.failed, k.ports = failed, ports
	k.state.Unlock()
	k.cfg.Log.Info("devices restored", "functions", len(v.Functions)-len(failed), "vesw_ports", len(v.VESWPorts),
		"adapter_disabled", v.AdapterDisabled)
	return nil
}

// Edit calls change, and saves after it unless that fails. It refuses while the contents of the store are unknown. A
// change that the store does not accept now is written later: Degraded reports it until then.
func (k *Store) Edit(ctx context.Context, what string, change func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.Lock()
	loaded, never, err := k.loaded, k.never, k.err
	k.state.Unlock()
	if !loaded {
		return &api.Error{Code: api.CodeNotReady, What: what,
			Why: fmt.Sprintf("the store does not tell yet what devices the node has: %v", err),
			Fix: "weft store status; then again"}
	}
	if err := change(); err != nil {
		return err
	}
	if never == nil {
		k.attempt(ctx, mgmt.StoreWait)
	}
	return nil
}

// Kept reports whether what was saved is there after a restart, and else why not.
func (k *Store) Kept() (bool, string) {
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

// Forget drops a function that was not restored; false where there is none of that name.
func (k *Store) Forget(name string) bool {
	k.state.Lock()
	defer k.state.Unlock()
	before := len(k.failed)
	k.failed = slices.DeleteFunc(k.failed, func(f LostFunction) bool { return f.Name == name })
	return len(k.failed) != before
}

// ForgetPorts drops what was not restored of VESW ports; false where there is nothing that matches.
func (k *Store) ForgetPorts(which func(*api.VESWRequest) bool) bool {
	k.state.Lock()
	defer k.state.Unlock()
	before := len(k.ports)
	k.ports = slices.DeleteFunc(k.ports, func(p LostPort) bool { return which(&p.VESWRequest) })
	return len(k.ports) != before
}

// Unsaved returns why the last change is not in the store yet, nil where it is.
func (k *Store) Unsaved() error {
	k.state.Lock()
	defer k.state.Unlock()
	if !k.dirty {
		return nil
	}
	return k.err
}

// Degraded lists what is wrong with the intent in the store.
func (k *Store) Degraded() (list []api.Degraded) {
	k.state.Lock()
	defer k.state.Unlock()
	add := func(what, fix, format string, args ...any) {
		list = append(list, api.Degraded{What: what, Why: fmt.Sprintf(format, args...), Fix: fix})
	}
	const fix = "weft store status"
	_, missing := k.cfg.Open()
	switch {
	case missing != nil:
		p := problem.Of("", missing)
		add("devices_not_restored", cmp.Or(p.Fix, fix)+"; then start the node again",
			"devices that were added are not there, and changes of devices are not kept: %s",
			problem.Text(p.What, p.Why, ""))
	case !k.loaded:
		add("devices_not_restored", fix, "devices that were added are not there yet: %v", k.err)
	case k.dirty:
		add("devices_not_kept", fix, "the last change of devices is not in the store yet: %v", k.err)
	}
	for _, f := range k.failed {
		fix := "weft dev del " + f.Name
		switch {
		case errors.Is(f.Err, subnet.ErrNoSwitchPort):
			fix = "start the node with more --switch-ports, or " + fix
		case errors.Is(f.Err, ErrNameTaken):
			fix = "start the node with another --device, or add it under another name"
		}
		add("device_not_restored", fix, "%s: %v", f.Name, f.Err)
	}
	for _, p := range k.ports {
		add("vesw_port_not_restored", "weft vesw detach "+p.Key()+"; then attach it again: weft vesw attach --help",
			"the port of %s in VESW %d: %v", p.Device, p.VESW, p.Err)
	}
	return list
}
