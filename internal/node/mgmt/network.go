// SPDX-License-Identifier: Apache-2.0

// Package mgmt is the management of a subnet by its node: the store, the subnet manager with its Ethernet Manager, and
// the operations of the control interface on them: topology, routes, partitions, groups, virtual Ethernet switches, the
// store.
//
// What comes in: requests of people; what goes out: their answers, and changes of the intent in the store, which
// managers apply. The node starts it after the management goroutine (package subnet), and closes it before.
package mgmt

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/node/subnet"
	"weft/internal/proto/counters"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Config is what the management needs from its node.
type Config struct {
	Settings config.Config
	Log      *slog.Logger
	Now      func() mono.Time
	Wall     func(mono.Time) time.Time // a time of Now as people have it
	GUID     ib.GUID                   // of the node
	Host     string                    // the host's name
	Subnet   *subnet.Subnet            // nil: the node is in no subnet
	// DevicePort returns the GUID of a device's InfiniBand port; false where there is none.
	DevicePort func(device string) (ib.GUID, bool)
	// ManagedBy is the LID of the manager that gave a port of this node its LID, 0 where there is none.
	ManagedBy func() ib.LID
}

// Network is the management of a subnet by its node. Its methods may be called on any goroutine but lanes and the
// management goroutine, after Start.
type Network struct {
	cfg Config
	sub *subnet.Subnet
	// VESWs has the virtual Ethernet switches of the subnet.
	VESWs VESWs

	// Set by Start.
	store       store.Store // nil: there is none
	storeServer *etcd.Server
	manager     *manager.Manager // nil where another node, or a program, manages
	noManager   error            // why there is none, though there should be
	noStore     error            // why there is no store, though there should be
}

// New returns a management that is not started.
func New(c Config) *Network {
	n := &Network{cfg: c, sub: c.Subnet}
	n.VESWs.n = n
	return n
}

// Close ends the manager and closes the store.
func (n *Network) Close() {
	if n.manager != nil {
		n.manager.Close()
	}
	n.closeStore()
}

// Store is the store, nil where there is none; missing is why, where there should be one.
func (n *Network) Store() (s store.Store, missing error) { return n.store, n.noStore }

// Manager is the subnet manager, nil where there is none; missing is why, where there should be one. It belongs to the
// management goroutine.
func (n *Network) Manager() (m *manager.Manager, missing error) { return n.manager, n.noManager }

// ErrNoFabric is the error of operations on a subnet where the node is in none.
var ErrNoFabric = &api.Error{Code: api.CodeNotFound, Why: "the node is in no subnet", Fix: "weft up --fabric"}

// StoreWait bounds how long a command waits for the store, StorePatience how long a request for the state does.
const (
	StorePatience = time.Second
	StoreWait     = 2 * StorePatience
)

func isNotFound(err error) bool { return errors.Is(err, store.ErrNotFound) }

// name is what the node is called in elections.
func (n *Network) name() string { return n.cfg.Host + " " + n.cfg.GUID.String() }

// State is the manager's state in a word, empty where the node is in no subnet.
func (n *Network) State() string {
	switch {
	case n.sub == nil:
		return ""
	case n.noManager != nil:
		return "failed"
	case n.manager == nil:
		return n.cfg.Settings.SM
	}
	s, _ := n.status()
	return s.State
}

// status is the state of the manager, which there is; the error is loop.ErrStopped.
func (n *Network) status() (s manager.Status, err error) {
	err = n.sub.Do(func() { s = n.manager.Status() })
	return s, err
}

// Counters adds the counters of the manager and its administration.
func (n *Network) Counters(add func(scope, instance, name string, v uint64)) {
	if n.manager == nil {
		return
	}
	each := func(scope string, c any) {
		counters.Each("", c, func(name string, v uint64) { add(scope, "", name, v) })
	}
	n.sub.Do(func() {
		s := n.manager.Status()
		for name, v := range s.Counters {
			add(api.ScopeSM, "", name, v)
		}
		each(api.ScopeSA, &s.SA)
		if e, master := n.manager.Ethernet(); master {
			each(api.ScopeEM, &e.Counters)
		}
	})
}

// Register registers the operations of the control interface on the subnet.
func (n *Network) Register(mux *http.ServeMux) {
	api.Handle(mux, api.GetSubnet, api.NoInput(n.getSubnet))
	api.Handle(mux, api.GetSubnetText, n.subnetText)
	api.Handle(mux, api.ListRoutes, api.NoInput(n.routes))
	api.Handle(mux, api.FindPath, n.findPath)
	api.Handle(mux, api.StartSweep, api.Action(n.sweep))
	api.Handle(mux, api.GetManager, api.NoInput(n.getManager))
	api.Handle(mux, api.ChangeManager, api.NoOutput(n.setManager))
	api.Handle(mux, api.ListTrunks, api.NoInput(n.trunks))
	api.Handle(mux, api.ListPartitions, api.NoInput(n.partitions))
	api.Handle(mux, api.AddPartition, n.addPartition)
	api.Handle(mux, api.DeletePartition, api.NoOutput(n.deletePartition))
	api.Handle(mux, api.ListSubnetGroups, api.NoInput(n.subnetGroups))
	api.Handle(mux, api.JoinGroup, api.NoOutput(n.joinGroup))
	api.Handle(mux, api.LeaveGroup, api.NoOutput(n.leaveGroup))
	api.Handle(mux, api.GetStore, api.NoInput(n.getStore))
	api.Handle(mux, api.ListStoreEntries, n.storeEntries)

	api.Handle(mux, api.ListVESWs, api.NoInput(n.VESWs.list))
	api.Handle(mux, api.GetVESW, n.VESWs.Get)
	api.Handle(mux, api.CreateVESW, n.VESWs.create)
	api.Handle(mux, api.ChangeVESW, api.ByName(n.VESWs.change))
	api.Handle(mux, api.DeleteVESW, api.NoOutput(n.VESWs.delete))
	api.Handle(mux, api.AddVESWPort, api.ByName(n.VESWs.AddPort))
	api.Handle(mux, api.DeleteVESWPort, api.NoOutput(n.VESWs.deletePort))
}

// Elsewhere gives an error of a node that is not the master another fix; other errors stay as they are.
func Elsewhere(err error, fix string) error {
	var e *api.Error
	if errors.As(err, &e) && e.Code == api.CodeNotMaster {
		x := *e
		x.Fix = fix
		return &x
	}
	return err
}

// topologyIfKnown is the model of the subnet if this node has one, to name ports by.
func (n *Network) topologyIfKnown() (t *topo.Subnet) {
	if n.manager != nil {
		n.sub.Do(func() { t = n.manager.Topo() })
	}
	return t
}
