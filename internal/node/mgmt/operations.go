// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/store"
	"weft/internal/proto/counters"
)

// Register registers the operations of the control interface on the subnet.
func (n *Network) Register(mux *http.ServeMux) {
	api.Handle(mux, api.GetSubnet, api.NoInput(n.getSubnet))
	api.Handle(mux, api.GetSubnetText, n.subnetText)
	api.Handle(mux, api.ListRoutes, api.NoInput(n.routes))
	api.Handle(mux, api.FindPath, n.findPath)
	check := checks{n}
	api.Handle(mux, api.CheckPair, check.pair)
	api.Handle(mux, api.CheckFabric, api.NoInput(check.whole))
	api.Handle(mux, api.StartSweep, api.Action(n.sweep))
	api.Handle(mux, api.GetManager, api.NoInput(n.getManager))
	api.Handle(mux, api.ChangeManager, api.NoOutput(n.setManager))
	api.Handle(mux, api.ListTrunks, api.NoInput(n.trunks))
	api.Handle(mux, api.ListPartitions, api.NoInput(n.partitions))
	api.Handle(mux, api.AddPartition, n.addPartition)
	api.Handle(mux, api.DeletePartition, api.NoOutput(n.deletePartition))
	whole := configuration{n}
	api.Handle(mux, api.ExportDesired, api.NoInput(whole.exportDesired))
	api.Handle(mux, api.CompareDesired, whole.compareDesired)
	api.Handle(mux, api.ApplyDesired, whole.applyDesired)
	api.Handle(mux, api.ListHistory, whole.history)
	api.Handle(mux, api.LostByPort, whole.lostByPort)
	api.Handle(mux, api.ListSubnetGroups, api.NoInput(n.subnetGroups))
	api.Handle(mux, api.JoinGroup, api.NoOutput(n.joinGroup))
	api.Handle(mux, api.LeaveGroup, api.NoOutput(n.leaveGroup))
	api.Handle(mux, api.GetStore, api.NoInput(n.getStore))
	api.Handle(mux, api.ListStoreEntries, n.storeEntries)
	api.Handle(mux, api.BackupStore, api.NoInput(n.backupStore))
	api.Handle(mux, api.RestoreStore, n.restoreStore)
	api.Handle(mux, api.DefragStore, api.NoInput(n.defragStore))

	api.Handle(mux, api.ListVESWs, api.NoInput(n.VESWs.list))
	api.Handle(mux, api.GetVESW, n.VESWs.get)
	api.Handle(mux, api.CreateVESW, n.VESWs.create)
	api.Handle(mux, api.ChangeVESW, api.ByName(n.VESWs.change))
	api.Handle(mux, api.DeleteVESW, api.NoOutput(n.VESWs.delete))
	api.Handle(mux, api.AddVESWPort, api.ByName(n.VESWs.addPort))
	api.Handle(mux, api.DeleteVESWPort, api.NoOutput(n.VESWs.deletePort))
}

// Counters adds the counters of the store's listener, the manager and its administration.
func (n *Network) Counters(add func(scope, instance, name string, v uint64)) {
	each := func(scope string, c any) {
		counters.Each("", c, func(name string, v uint64) { add(scope, "", name, v) })
	}
	if n.storeMember != nil {
		each(api.ScopeStore, n.storeMember.Arrivals())
	}
	if n.manager == nil {
		return
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

// Degraded lists what is wrong with the store, the manager, the trunks and the subnet.
func (n *Network) Degraded(ctx context.Context, trunks []api.Trunk) (list []api.Degraded, err error) {
	if n.sub == nil {
		return nil, nil
	}
	down, err := n.sub.Degraded(trunks)
	list = append(leaderless(ctx, n), down...)
	list = append(list, unkeyed(n.noMKey.Load())...)
	if n.manager == nil || err != nil {
		return list, err
	}
	s, _ := n.status()
	list = append(list, n.VESWs.degraded()...)
	list = append(list, managerDegraded(&s)...)
	list = append(list, n.truthDegraded()...)
	return list, nil
}

// changePatience is how long the store and the election may be without a leader before that is reported: a change of
// leaders takes less.
const changePatience = 4 * time.Second

// leaderless lists what is wrong with the store and the election. While their leaders change it waits for the end of
// that, so that the state does not alternate. What was reported before is reported again at once.
func leaderless(ctx context.Context, n *Network) (list []api.Degraded) {
	for end := time.Now().Add(changePatience); ; {
		list = n.unmanaged(ctx)
		if len(list) == 0 {
			list = unelected(ctx, n)
		}
		if was := n.unsettled.Load(); len(list) == 0 || was || n.noManager != nil || time.Now().After(end) {
			n.unsettled.Store(len(list) > 0)
			return list
		}
		select {
		case <-ctx.Done():
			return list
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// unelected reports that no manager is elected.
func unelected(ctx context.Context, n *Network) []api.Degraded {
	if n.manager == nil {
		return nil
	}
	if s, _ := n.status(); s.Elected || s.Caretaker {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, StorePatience)
	defer stop()
	// unmanaged reports a store that is down
	if _, err := store.LeaderOf(ctx, n.store, manager.Election); isNotFound(err) {
		return []api.Degraded{{What: "no_subnet_manager", Why: "no manager is elected in the store", Fix: "weft sm"}}
	}
	return nil
}

// Notices lists states of the subnet that people should know.
func (n *Network) Notices() (list []api.Degraded) {
	if n.sub == nil || n.manager == nil {
		return nil
	}
	if s, _ := n.status(); s.Switches > 1 && !s.Keyed {
		list = append(list, api.Degraded{What: "no_m_key",
			Why: fmt.Sprintf("each of the %d nodes of the subnet may change its tables", s.Switches),
			Fix: "weft join has them in a fabric; or the same weft up --m-key-file FILE on each"})
	}
	return list
}
