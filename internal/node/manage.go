// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"path/filepath"

	"weft/internal/config"
	"weft/internal/mad"
	"weft/internal/manager"
	"weft/internal/rundir"
	"weft/internal/store"
	"weft/internal/store/etcd"
)

// openStore opens the store that the configuration names.
func (n *Node) openStore(ctx context.Context) error {
	log := n.log.With("part", "store")
	switch n.cfg.Store {
	case config.StoreMemory:
		n.store = store.NewMemory()
		return nil
	case config.StoreEmbedded:
		s, err := etcd.Start(ctx, etcd.ServerConfig{Dir: filepath.Join(n.cfg.Dir, rundir.StoreDir), Listen: n.cfg.StoreListen, Log: log})
		if err != nil {
			return err
		}
		n.storeServer = s
		n.store, err = s.Client()
		return err
	}
	s, err := etcd.Connect(etcd.ClientConfig{Endpoints: n.cfg.StoreURLs(), Log: log})
	n.store = s
	return err
}

func (n *Node) closeStore() {
	if n.store != nil {
		n.store.Close()
	}
	if n.storeServer != nil {
		n.storeServer.Close()
	}
}

// startManager opens the store and starts the subnet manager behind port 0 of
// the switch. The management goroutine runs.
func (n *Node) startManager(ctx context.Context) error {
	if n.sub == nil || n.cfg.SM != config.SMAuto {
		return nil
	}
	if err := n.openStore(ctx); err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	m, err := manager.New(manager.Config{Node: n.host + " " + n.identity.String(), PortGUID: n.identity, Priority: uint8(n.cfg.SMPriority),
		TIDs: uint32(n.identity >> 16), Store: n.store, Log: n.log.With("part", "manager"), Now: n.now, Post: n.sub.post})
	if err != nil {
		return err
	}
	n.manager = m
	n.sub.do(func() {
		n.sub.mgr = m
		n.sub.sw.SetCapability(n.now(), mad.CapIsSM, true)
	})
	return nil
}
