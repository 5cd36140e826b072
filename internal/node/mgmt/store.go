// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/host/rundir"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/node/describe"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/problem"
)

// openStore opens the store that the configuration names.
func (n *Network) openStore(ctx context.Context) error {
	log := n.cfg.Log.With("part", "store")
	switch n.cfg.Settings.StoreKind() {
	case config.StoreMemory:
		n.store = store.NewMemory()
		return nil
	case config.StoreEmbedded:
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		s, err := etcd.Start(ctx, etcd.ServerConfig{Dir: filepath.Join(n.cfg.Settings.Dir, rundir.StoreDir),
			Listen: n.cfg.Settings.StoreListen, Log: log})
		if err != nil {
			return err
		}
		n.storeServer = s
		c, err := s.Client()
		if err != nil {
			return err
		}
		n.store = c
		return nil
	}
	s, err := etcd.Connect(etcd.ClientConfig{Endpoints: n.cfg.Settings.StoreURLs(), Log: log})
	if err != nil {
		return err
	}
	n.store = s
	return nil
}

// storeTimeout bounds the start of the embedded store.
const storeTimeout = 10 * time.Second

func (n *Network) closeStore() {
	if n.store != nil {
		n.store.Close()
	}
	if n.storeServer != nil {
		n.storeServer.Close()
	}
}

// Start opens the store and starts the subnet manager behind port 0 of the switch. A node that shall not manage
// has a store only if one is named. The management goroutine runs. Where the store cannot be used at present the node
// serves without a manager, and reports it.
func (n *Network) Start(ctx context.Context) error {
	manages := n.cfg.Settings.SM == config.SMAuto
	if n.sub == nil || !manages && n.cfg.Settings.Store == config.StoreAuto {
		return nil
	}
	if err := n.openStore(ctx); errors.Is(err, store.ErrUnavailable) {
		n.cfg.Log.Error("no store, and so no subnet manager", "err", err)
		n.closeStore()
		n.store, n.storeServer, n.noStore = nil, nil, err
		if manages {
			n.noManager = err
		}
		return nil
	} else if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	if !manages {
		return nil // the store keeps the node's devices
	}
	key, err := n.nodeMKey()
	if err != nil {
		return err
	}
	m, err := manager.New(manager.Config{Node: n.name(), Address: n.cfg.Settings.Dir, PortGUID: n.cfg.GUID,
		Priority: uint8(n.cfg.Settings.SMPriority), TIDs: uint32(manager.RandomMKey()), Store: n.store,
		Shared: n.cfg.Settings.StoreShared(), MKey: key, BroadcastMTU: broadcastMTU(n.cfg.Settings.IPoIBMTU),
		BroadcastQKey: ib.QKey(n.cfg.Settings.IPoIBQKey), Log: n.cfg.Log.With("part", "manager"), Now: n.cfg.Now,
		Post: func(f func()) { n.sub.Post(f) }})
	if err != nil {
		return err
	}
	n.manager = m
	n.sub.Do(func() {
		n.sub.Manager = m
		n.sub.Switch.SetCapability(n.cfg.Now(), mad.CapIsSM, true)
	})
	return nil
}

// nodeMKey reads the M_Key that was given to this node, 0 if none was.
func (n *Network) nodeMKey() (uint64, error) {
	if n.cfg.Settings.MKeyFile == "" {
		return 0, nil
	}
	const what, fix = "cannot read the M_Key", "write one number to it, such as 0x1122334455667788, readable by the node's user"
	b, err := os.ReadFile(n.cfg.Settings.MKeyFile)
	if err != nil {
		return 0, &api.Error{What: what, Why: err.Error(), Fix: fix}
	}
	key, err := api.ParseMKey(string(b))
	if err != nil {
		return 0, &api.Error{What: what, Why: n.cfg.Settings.MKeyFile + ": " + err.Error(), Fix: fix}
	}
	return key, nil
}

// broadcastMTU is the code of an MTU in bytes that was checked.
func broadcastMTU(bytes int) ib.MTU {
	if bytes == 4096 {
		return ib.MTU4096
	}
	return ib.MTU2048
}

// unmanaged lists why the manager of this node does not work.
func (n *Network) unmanaged(ctx context.Context) []api.Degraded {
	switch {
	case n.noManager != nil:
		p := problem.Of("", n.noManager)
		return []api.Degraded{{What: "no_manager", Why: problem.Text(p.What, p.Why, ""), Fix: p.Fix}}
	case n.store == nil:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, StorePatience)
	defer cancel()
	down := n.store.Status(ctx).Down
	if down == nil {
		return nil
	}
	d := api.Degraded{What: "store_down", Why: "no answer from " + n.cfg.Settings.StoreKind(),
		Fix: "start it or make it reachable, or name another with weft up --store"}
	if ctx.Err() == nil {
		p := problem.Of("", down)
		d.Why, d.Fix = problem.Text(p.What, p.Why, ""), p.Fix
	}
	return []api.Degraded{d}
}

// storeError is the error of a request that the store refused: with the store's fix, or the command that shows its
// state.
func storeError(err error) error {
	return describe.Problem(api.CodeInternal, "", err, "weft store status")
}

var errNoStore = &api.Error{Code: api.CodeNotFound, Why: "the node has no store, since it has no subnet manager",
	Fix: "weft up --sm auto"}

func (n *Network) getStore(ctx context.Context) (api.Store, error) {
	if n.store == nil {
		return api.Store{}, errNoStore
	}
	ctx, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	return describeStore(n.store.Status(ctx)), nil
}

func describeStore(s store.Status) api.Store {
	down := ""
	if s.Down != nil {
		down = s.Down.Error()
	}
	return api.Store{Kind: s.Kind, Version: s.Version, Dir: s.Dir, Endpoints: s.Endpoints, Leader: s.Leader,
		Members: s.Members, Revision: int64(s.Revision),
		SizeBytes: s.SizeBytes, UsedBytes: s.UsedBytes, MaxBytes: s.MaxBytes, Down: down}
}

func (n *Network) storeEntries(ctx context.Context, tree string) (list []api.StoreEntry, err error) {
	if n.store == nil {
		return nil, errNoStore
	}
	if tree != "" {
		if err := store.CheckTree(tree); err != nil {
			return nil, describe.Invalid("weft store list", "%v", err)
		}
	}
	ctx, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	l, err := n.store.List(ctx, tree)
	if err != nil {
		return nil, storeError(err)
	}
	for _, e := range l.Entries {
		list = append(list, api.StoreEntry{Key: e.Key, Revision: int64(e.Rev), Size: len(e.Value),
			Leased: e.Lease != 0, Value: string(e.Value)})
		if e.Key == manager.KeyMKey {
			list[len(list)-1].Value = "" // reading the status gives no right to manage
		}
	}
	return list, nil
}

// edit changes the intended partitions and groups, in the store.
func (n *Network) edit(ctx context.Context, f func(*manager.Intent) error) error {
	return n.editFor(ctx, "weft pkey list", f)
}

// editFor changes the intent, in the store; fix is for an intent that a manager would refuse.
func (n *Network) editFor(ctx context.Context, fix string, f func(*manager.Intent) error) error {
	ctx, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	err := manager.EditIntent(ctx, n.manager.Store(), f)
	var known *api.Error
	var wrong *manager.InvalidError
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.As(err, &wrong):
		return describe.Invalid(fix, "%v", wrong.Err)
	}
	return storeError(err)
}

// Close ends the manager and closes the store.
func (n *Network) Close() {
	if n.manager != nil {
		n.manager.Close()
	}
	n.closeStore()
}
