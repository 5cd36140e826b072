// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/fabric/link/roceframe"
	"weft/internal/host/hostnet"
	"weft/internal/node/control"
	"weft/internal/node/describe"
	"weft/internal/node/lane"
	"weft/internal/proto/counters"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// Use implements api.Backend.
func (n *Node) Use(context.Context) error {
	return n.sessions.Use()
}

// Shutdown implements api.Backend.
func (n *Node) Shutdown(context.Context) error {
	n.stop(errEnd)
	return nil
}

// buildVersion is the version the linker noted.
func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

// Status implements api.Backend.
func (n *Node) Status(ctx context.Context) (api.Status, error) {
	s := api.Status{Ready: n.ready.Load(), Version: buildVersion(), PID: os.Getpid(), UID: os.Geteuid(), Dir: n.cfg.Dir,
		StartedAt: n.started, UptimeNS: time.Since(n.started), WireLocal: n.cfg.WireLocal, RoCEPort: n.cfg.RoCEPort, IdleExitNS: n.cfg.IdleExit,
		AdapterEnabled: !n.funcs.adapterIsOff()}
	for _, f := range n.funcs.all() {
		p := f.a.Port()
		gids := 0
		for _, g := range p.GIDs {
			if !g.GID.IsZero() {
				gids++
			}
		}
		off, _ := n.funcs.off(f)
		mode, why := n.icrc(f)
		s.Devices = append(s.Devices, api.DeviceSummary{Name: f.a.Name, LinkLayer: p.Link.String(), PortState: describe.PortState(p.State),
			ActiveMTU: p.MTU.Bytes(), GIDs: gids, LID: uint16(p.LID), Segment: f.segment(), ICRC: mode, ICRCWhy: why, Enabled: !off && s.AdapterEnabled})
	}
	count := n.sessions.Count()
	for i, l := range n.lanes.All() {
		rt, _ := l.RealTime()
		s.Lanes = append(s.Lanes, api.Lane{ID: i, Sessions: count[i], Polling: !l.Asleep(), RealTime: rt})
	}
	for _, d := range n.sessions.Programs() {
		row := api.Session{Owner: d.Owner(), Lane: d.Lane().ID(), Memory: d.Memory()}
		objects := 0
		switch err := d.Lane().Query(func() { objects = d.Dev.Session().Objects() }); {
		case err == nil:
			row.Objects = objects
		case !errors.Is(err, lane.ErrStuck): // which is told below
			return s, err
		}
		s.Sessions = append(s.Sessions, row)
	}
	for _, r := range n.sessions.Internal() {
		row := api.Session{Owner: r.Owner(), Lane: r.Lane().ID(), Memory: "node"}
		switch err := r.Lane().Query(func() { row.Objects = r.Session().Objects() }); {
		case err == nil, errors.Is(err, lane.ErrStuck):
		default:
			return s, err
		}
		s.Sessions = append(s.Sessions, row)
	}
	s.Manager = n.mgmt.State()
	var err error
	if s.Captures, err = n.captures.List(ctx); err != nil {
		return s, err
	}
	if n.sub != nil {
		if s.Trunks, err = n.sub.Trunks(n.wall); err != nil && !errors.Is(err, lane.ErrStuck) {
			return s, err
		}
	}
	if s.IPLinks, err = n.ipLinks(ctx); err != nil && !errors.Is(err, lane.ErrStuck) {
		return s, err
	}
	s.Degraded, err = n.degraded(ctx)
	if n.ip != nil {
		s.Degraded = append(s.Degraded, n.ip.Degraded(s.IPLinks)...)
	}
	var e error
	if s.VESWInterfaces, e = n.VESWInterfaces(ctx); e != nil {
		return s, e
	}
	if n.vesw != nil {
		s.Degraded = append(s.Degraded, n.vesw.degraded(s.VESWInterfaces)...)
	}
	if err == nil {
		var more []api.Degraded
		more, err = n.mgmt.Degraded(ctx, s.Trunks)
		s.Degraded = append(s.Degraded, more...)
	}
	s.Notices = n.mgmt.Notices()
	if n.sub != nil {
		s.Notices = append(s.Notices, n.sub.Notices()...)
	}
	if s.VMs, e = n.VMs(ctx); e != nil {
		return s, e
	}
	s.Notices = append(s.Notices, vmNotices(s.VMs)...)
	for _, f := range n.funcs.all() {
		if f.st != nil {
			s.Notices = append(s.Notices, segmentNotices(f.a.Name, f.st.describe())...)
		}
	}
	if err == nil {
		s.Faults, err = n.faults.List(ctx)
	}
	return s, err
}

// whyNotActive says what an InfiniBand port waits for.
func whyNotActive(p *hca.Port) string {
	if p.Phys != ib.PhysLinkUp {
		return "its link is down"
	}
	return "no subnet manager has made it active"
}

// fixNotActive says what makes an InfiniBand port active.
func (n *Node) fixNotActive() string {
	m, missing := n.mgmt.Manager()
	switch {
	case missing != nil:
		return "see no_manager"
	case m != nil:
		return "weft wait --for=active; if that takes long, weft sm"
	case n.cfg.SM == config.SMExternal:
		return "weft run -- opensm"
	}
	return "weft up --sm auto, on this node or another of the subnet"
}

// degraded lists every state in which the node works less well than it could.
func (n *Node) degraded(ctx context.Context) (list []api.Degraded, err error) {
	for i, l := range n.lanes.All() {
		if _, e := l.RealTime(); e != nil {
			list = append(list, api.Degraded{What: "no_real_time", Why: fmt.Sprintf("lane %d: %v", i, e),
				Fix: "give the node CAP_SYS_NICE or a limit (ulimit -r 1), or leave --real-time out"})
		}
		var links []api.Degraded
		switch e := l.Query(func() {
			for _, d := range l.Net.RoCE.Degraded() {
				links = append(links, api.Degraded{What: d.Name, Why: d.Detail, Fix: d.Fix})
			}
		}); {
		case e == nil:
			list = append(list, links...)
		case !errors.Is(e, lane.ErrStuck):
			err = errors.Join(err, e)
		}
	}
	list = append(list, n.sessions.Degraded()...)
	list = append(list, n.intentStore.degraded()...)
	adapterOff := n.funcs.adapterIsOff()
	if adapterOff {
		list = append(list, api.Degraded{What: "adapter_disabled", Why: "the physical function disabled the adapter: every port is down, nothing is sent or received",
			Fix: "weft dev set " + n.funcs.physical() + " --adapter=enabled"})
	}
	for _, f := range n.funcs.all() {
		p := f.a.Port()
		switch off, _ := n.funcs.off(f); {
		case off:
			list = append(list, api.Degraded{What: "device_disabled", Why: f.a.Name + ": its port is down", Fix: "weft dev set " + f.a.Name + " --enabled"})
		case adapterOff:
		case f.st != nil && p.State != ib.PortActive:
			list = append(list, api.Degraded{What: "port_not_active", Why: fmt.Sprintf("%s: port is %s, %s", f.a.Name, describe.PortState(p.State), f.st.describe().CarrierReason),
				Fix: "weft vesw port add NAME " + (f.a.NodeGUID + 1).String() + " where the Ethernet Manager runs, if it is in no VESW; weft vesw interfaces"})
		case p.State != ib.PortActive:
			list = append(list, api.Degraded{What: "port_not_active", Why: fmt.Sprintf("%s: port is %s, %s", f.a.Name, describe.PortState(p.State), whyNotActive(p)),
				Fix: n.fixNotActive()})
		}
	}
	list = append(list, n.groups.degraded()...)
	table := n.table.Load()
	for _, p := range table.Absent {
		list = append(list, api.Degraded{What: "roce_interface", Why: n.adapter.Name + ": no interface " + p + " is up with an address",
			Fix: "ip addr; or start the node with another --roce-interfaces"})
	}
	if table.Left > 0 {
		list = append(list, api.Degraded{What: "gid_table_full", Why: fmt.Sprintf("%d addresses of this host found no place in the GID table", table.Left),
			Fix: "remove addresses that are not needed"})
	}
	return list, err
}

// Devices implements api.Backend.
func (n *Node) Devices(context.Context) ([]api.Device, error) {
	t := n.table.Load()
	list := []api.Device{}
	for _, f := range n.funcs.all() {
		p := f.a.Port()
		port := api.Port{Number: 1, State: describe.PortState(p.State), PhysState: describe.PhysState(p.Phys), LinkLayer: p.Link.String(),
			MaxMTU: p.MaxMTU.Bytes(), ActiveMTU: p.MTU.Bytes(), LID: uint16(p.LID), LMC: p.LMC, SMLID: uint16(p.SMLID)}
		off, adapterOff := n.funcs.off(f)
		d := api.Device{Name: f.a.Name, NodeGUID: f.a.NodeGUID.String(), SysImageGUID: n.identity.String(), NodeType: "CA", Firmware: buildVersion(), Enabled: !off, AdapterEnabled: !adapterOff}
		port.Segment = f.segment()
		if f.st != nil {
			nativeTables(&port, p)
			for i := range port.GIDs {
				port.GIDs[i].Type = "RoCE v2"
			}
			port.PKeys, port.Ethernet = nil, f.st.describe()
		} else if p.Link == ib.LinkEthernet {
			d.NodeGUID, d.SysImageGUID = t.NodeGUID.String(), t.NodeGUID.String()
			ethernetGIDs(&port, t)
		} else {
			nativeTables(&port, p)
		}
		d.Ports = []api.Port{port}
		list = append(list, d)
	}
	// Programs find them in lexical order.
	slices.SortFunc(list, func(a, b api.Device) int { return cmp.Compare(a.Name, b.Name) })
	for i := range list {
		list[i].Index = i
	}
	return list, nil
}

func ethernetGIDs(port *api.Port, t *hostnet.Table) {
	for i, e := range t.Entries {
		if e.Free() {
			continue
		}
		if port.NetDev == "" && !e.LocalOnly {
			port.NetDev = e.Interface
		}
		port.GIDs = append(port.GIDs, api.GID{Index: i, GID: e.GID.String(), Address: e.GID.Addr().String(), Type: "RoCE v2", NetDev: e.Interface})
	}
}

func nativeTables(port *api.Port, p *hca.Port) {
	for i, g := range p.GIDs {
		if !g.GID.IsZero() {
			port.GIDs = append(port.GIDs, api.GID{Index: i, GID: g.GID.String(), Address: g.GID.Addr().String(), Type: "IB"})
		}
	}
	for i, k := range p.PKeys {
		if k != 0 {
			port.PKeys = append(port.PKeys, api.PKey{Index: i, PKey: fmt.Sprintf("0x%04x", uint16(k))})
		}
	}
}

// Counters implements api.Backend.
func (n *Node) Counters(context.Context) (list []api.Counter, err error) {
	add := func(scope, instance, name string, v uint64) {
		list = append(list, api.Counter{Scope: scope, Instance: instance, Name: name, Value: v})
	}
	add(api.ScopeNode, "", "sessions", uint64(n.sessions.Connected()))
	for why, c := range n.funcs.ends() {
		add(api.ScopeNode, "", "session_end_"+why, c)
	}
	for why, c := range n.funcs.refusals() {
		add(api.ScopeNode, "", "refused_"+why, c)
	}
	for _, f := range n.funcs.all() {
		if f.a.Port().Link != ib.LinkInfiniBand {
			continue // the counters of its link are those of the port
		}
		c, err := n.lanes.PortCounters(f.a.Number())
		if err != nil {
			return nil, err
		}
		fields(add, api.ScopePort, f.a.Name, &c)
	}
	counters.Each("", n.sessions.Stats(), func(name string, v uint64) { add(api.ScopeNode, "", name, v) })
	for _, m := range n.machines() {
		if err := m.counters(add); err != nil {
			return nil, err
		}
	}
	n.cm.Counters(add)
	for i, l := range n.lanes.All() {
		err = l.Query(func() {
			if i == 0 {
				c := n.lanes.Multicast().Counters()
				fields(add, api.ScopeMcast, "", &c.Counters)
				add(api.ScopeMcast, "", "payloads", c.Payloads)
				add(api.ScopeMcast, "", "high_queue", c.HighQueue)
			}
			fields(add, api.ScopeLane, strconv.Itoa(i), &l.HCA.Stats)
			fields(add, api.ScopeLane, strconv.Itoa(i), l.Stats())
			c := l.Net.RoCE.Counters()
			c.Each(func(name string, v uint64) { add(api.ScopeLink, "roce"+strconv.Itoa(i), name, v) })
			l.Net.EachEthernet(func(function uint16, port *roceframe.Link) {
				c := port.Counters()
				c.Each(func(name string, v uint64) { add(api.ScopeLink, control.DeviceName(n.all, function), name, v) })
			})
		})
		if err != nil {
			return nil, err
		}
	}
	if n.sub != nil {
		if err := n.sub.Counters(add); err != nil {
			return nil, err
		}
	}
	n.mgmt.Counters(add)
	if n.ip != nil {
		c, err := n.ip.Counters(context.Background(), "")
		if err != nil {
			return nil, err
		}
		list = append(list, c...)
	}
	more, err := n.VESWStats(context.Background(), "")
	if err != nil {
		return nil, err
	}
	list = append(list, more...)
	for _, d := range n.sessions.Programs() {
		err := d.Lane().Query(func() {
			fields(add, api.ScopeSession, fmt.Sprint(d.Serial()), &d.Dev.Stats)
			for _, q := range d.Dev.Session().Inspect().QPs {
				fields(add, api.ScopeQP, fmt.Sprintf("%d", q.Num), &q.Counters)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	for _, r := range n.sessions.Internal() {
		if err := r.Lane().Query(func() {
			for _, q := range r.Session().Inspect().QPs {
				fields(add, api.ScopeQP, fmt.Sprintf("%d", q.Num), &q.Counters)
			}
		}); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(list, func(a, b api.Counter) int {
		return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// fields adds every counter of c, a pointer to a struct of counters.
func fields(add func(scope, instance, name string, v uint64), scope, instance string, c any) {
	counters.Each("", c, func(name string, v uint64) { add(scope, instance, name, v) })
}
