// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/vhost"
	"weft/internal/fabric/link/roce"
	"weft/internal/node/conn"
	"weft/internal/node/control"
	"weft/internal/node/intent"
	"weft/internal/node/ipif"
	"weft/internal/node/lane"
	"weft/internal/node/mesh"
	"weft/internal/node/mgmt"
	"weft/internal/node/session"
	"weft/internal/node/subnet"
	"weft/internal/node/vesw"
	"weft/internal/node/vmcard"
	"weft/internal/proto/ib"
	"weft/internal/service/ipoib"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/hca/replicate"
)

// openRooms makes the rooms of the node, and wires them. The management goroutine does not run yet.
func (n *Node) openRooms() error {
	params, err := n.ipoibParams()
	if err != nil {
		return err
	}
	n.sessions = session.New(session.Config{Now: n.now, Log: n.log, AllowUIDs: n.cfg.AllowUIDs,
		Sessions: n.adapter.Limits().Sessions, Admit: n.gate.Admit})
	n.tree = &portTree{node: n.cfg.Dir, identity: n.identity, log: n.log, functions: n.funcs, host: n.table.Load,
		notify: n.sessions.NotifyPort}
	n.captures = control.NewCaptures(control.CaptureConfig{Log: n.log, Port: uint16(n.cfg.RoCEPort),
		Functions: n.funcs.adapters,
		IPLinks:   func(ctx context.Context) ([]api.IPLink, error) { return n.ip.List(ctx) }})
	n.cm = conn.New(conn.Config{Now: n.now, Host: n.adapter, Functions: n.all, Mirror: n.captures})
	n.member = newMembership(n)
	if err := n.member.Open(); err != nil {
		return err
	}
	if name := n.member.Name(); name != "" {
		if err := mayBeMember(&n.cfg, "the member "+name); err != nil {
			return err
		}
	}
	if err := n.openSubnet(); err != nil {
		return err
	}
	n.mgmt = mgmt.New(mgmt.Config{Settings: n.cfg, Log: n.log, Now: n.now, Wall: n.wall, GUID: n.identity, Host: n.host,
		Subnet: n.sub, DevicePort: n.funcs.fabricPort, ManagedBy: n.funcs.managedBy, Members: n.member.Commands(),
		Drained: func(port ib.GUID) string { return n.member.Roster().DrainedAt(port) },
		Planned: func(a, b ib.GUID) bool { return n.mesh == nil || n.mesh.Planned(a, b) }})
	if n.member.Name() != "" {
		n.mgmt.Share(n.shared())
		n.mgmt.Transit.Set(n.member.Roster().Transit())
	}
	n.intent = intent.New(intent.Config{Settings: n.cfg, Log: n.log, Identity: n.identity, Open: n.mgmt.Store})
	if err := n.openLanes(); err != nil {
		n.closeTrunks()
		return err
	}
	if n.sub != nil {
		n.openInterfaces(params)
	}
	n.openFunctions()
	n.openReports()
	n.lanes.Start()
	// It ends with close.
	n.cm.Start(conn.Rooms{Lanes: n.lanes, Subnet: n.sub, Links: n.ip, Ethernet: n.vesw.EthernetPorts})
	return nil
}

// openSubnet gives the node its switch and its trunks; lanes are made after it.
func (n *Node) openSubnet() (err error) {
	if !n.cfg.Fabric {
		return nil
	}
	if n.host, err = os.Hostname(); err != nil {
		return err
	}
	if name := n.member.Name(); name != "" {
		n.host = name // other hosts may have the same host name, no member has the same name
	}
	n.sub = subnet.New(subnet.Config{Log: n.log, Now: n.now, GUID: n.identity, Host: n.host,
		SwitchPorts: n.cfg.SwitchPorts, Peers: n.cfg.Peers, WireLocal: n.cfg.WireLocal,
		NewPort:                func(guid ib.GUID) *hca.Port { return newPort(guid, n.cfg.WireLocal) },
		SetMulticastForwarding: n.all.SetMulticastForwarding, Publish: n.publish, Connections: n.cm, Mirror: n.captures,
		Plugged:   func(a *hca.Adapter) { n.vesw.Plugged(a) },
		Unplugged: func(function uint16) (wait func()) { return n.vesw.Unplugged(function) }})
	n.mesh = mesh.New(mesh.Config{Self: n.identity, Trunks: memberTrunks{n.sub}, Ports: n.trunkPorts,
		Log: n.log.With("part", "mesh"), Now: time.Now})
	return n.openTrunks()
}

// peerAddrs are the addresses of --peer.
func (n *Node) peerAddrs() (list []netip.AddrPort, err error) {
	for _, p := range n.cfg.Peers {
		a, err := n.cfg.PeerAddr(p)
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

// publish gives changes of InfiniBand ports to files, programs and the users of the ports; it is called on the
// management goroutine.
func (n *Node) publish(changes []subnet.PortChange) {
	n.tree.changed(changes...)
	for _, p := range changes {
		n.ip.PortChanged(p.Adapter, p.Events)
		n.cm.PortChanged(p.Adapter, p.Events)
		n.vesw.PortChanged(p.Adapter)
	}
}

var icrcModes = map[string]roce.ICRCMode{
	config.ICRCAuto:  roce.ICRCAuto,
	config.ICRCFull:  roce.ICRCFull,
	config.ICRCSolve: roce.ICRCSolve,
}

// openLanes makes the lanes and their links. The lanes do not run yet.
func (n *Node) openLanes() (err error) {
	c := lane.Config{Count: n.cfg.LaneCount(), Functions: n.all, Now: n.now, Spin: n.cfg.Spin, RealTime: n.cfg.RealTime,
		Log: n.log,
		Multicast: replicate.Config{Payloads: n.cfg.McastPayloads, Threshold: n.cfg.McastThreshold,
			Requests: replicate.DefaultConfig.Requests},
		RoCE: roce.Config{Port: uint16(n.cfg.RoCEPort), ICRC: icrcModes[n.cfg.ICRC], IfIndex: n.ifIndex,
			Allow: n.cfg.RoCEAllowed(), Own: n.own},
		MemoryOwner: n.memoryOwner,
		Prepare: func(h *hca.Lane) {
			h.SetGeneralServices(n.cm.Receiver(h))
			h.SetOrphanEnded(n.sessions.Detach)
		}}
	if n.sub != nil {
		c.Fabric = n.sub.LaneLink
	}
	if n.lanes, err = lane.Open(c); err != nil {
		return err
	}
	first := n.lanes.First().Net.RoCE // which receives
	n.groups = &ipGroups{port: n.adapter.Port, join: first.Join, quit: first.Leave, log: n.log,
		groups: map[ib.GID]*ipGroup{}}
	n.all.SetIPGroups(portGroups{n.funcs, n.groups})
	n.sessions.SetLanes(n.lanes)
	n.captures.SetLanes(n.lanes)
	n.faults = control.NewFaults(control.FaultConfig{Log: n.log, Lanes: n.lanes, Host: n.adapter,
		Trunks: func() bool { return n.sub != nil && n.sub.HasTrunks() },
		Device: func(name string) bool { return n.funcs.named(name) != nil }})
	return nil
}

// memoryOwner finds the session with mapped memory at addr, or nil.
func (n *Node) memoryOwner(addr uintptr) lane.MemoryOwner {
	if o := n.sessions.MemoryOwner(addr); o != nil {
		return o
	}
	return n.cards.MemoryOwner(addr)
}

// own reports whether an address is this node's to the link; it is called on a lane.
func (n *Node) own(g ib.GID) bool {
	p := n.adapter.Port()
	i := p.Lookup(g)
	return i >= 0 && !p.GIDs[i].LocalOnly
}

// ifIndex returns the interface of a local address to the link; it is called on a lane.
func (n *Node) ifIndex(index uint8, g ib.GID) uint32 {
	p := n.adapter.Port()
	if i := p.Lookup(g); i >= 0 {
		return uint32(p.GIDs[i].IfIndex)
	}
	return 0
}

// ipoibParams reads the parameters of IP links that the configuration names.
func (n *Node) ipoibParams() (p ipoib.Params, err error) {
	if !n.cfg.Fabric {
		return p, nil
	}
	var text []byte
	if n.cfg.IPoIBParams != "" {
		if text, err = os.ReadFile(n.cfg.IPoIBParams); err != nil {
			return p, fmt.Errorf("parameters of IP links: %w", err)
		}
	}
	if p, err = ipoib.ParseParams(n.cfg.IPoIBParams, string(text), n.cfg.IPoIBSet); err != nil {
		return p, &api.Error{Code: api.CodeInvalid, What: "wrong parameters of IP links",
			Why: strings.ReplaceAll(err.Error(), "\n", "; "), Fix: "see docs/notes/ipoib.md, section 7"}
	}
	return p, nil
}

// openInterfaces makes the rooms of IP links and of ports of virtual Ethernet switches.
func (n *Node) openInterfaces(params ipoib.Params) {
	n.ip = ipif.New(ipif.Config{Params: params, Addrs: n.cfg.IPoIBAddrs, Now: n.now, Log: n.log, Subnet: n.sub,
		Adapters: n.funcs.nativeAdapters, Sessions: n.sessions, Connections: n.cm, Intent: n.intent,
		Host: n.named, Admit: n.gate.Admit})
	n.vesw = vesw.New(vesw.Config{Now: n.now, Log: n.log, Subnet: n.sub, Adapter: n.funcs.adapter, Functions: n.all,
		WireLocal: n.cfg.WireLocal, Intent: n.intent, ChangePort: n.tree.changePort,
		Admit: n.gate.Admit})
}

// named is the name of the host in the subnet, and whether that is its name as a member of a fabric.
func (n *Node) named() (name string, isMember bool) {
	if name := n.member.Name(); name != "" {
		return name, true
	}
	return n.host, false
}

// openFunctions makes the editor of functions, the network cards of virtual machines, and the operations on functions.
func (n *Node) openFunctions() {
	n.editor = &functionEditor{dir: n.cfg.Dir, perm: n.perm, identity: n.identity, wireLocal: n.cfg.WireLocal,
		spin: n.cfg.Spin, functions: n.all, table: n.funcs, tree: n.tree, sessions: n.sessions, lanes: n.lanes,
		ip: n.ip}
	if n.sub != nil {
		n.editor.board = n.sub
	}
	c := vmcard.Config{Dir: n.cfg.Dir, DirPerm: n.perm.dir(), Log: n.log, Lanes: n.lanes,
		Sessions: n.sessions, Share: func() *vhost.Server { return n.funcs.all()[0].socket },
		RemoveFunction: n.editor.remove, Number: n.all.Add, PortState: n.vesw.PortState, AwaitPort: n.vesw.Await,
		VESWs: &n.mgmt.VESWs, Keeper: n.intent, Admit: n.gate.Admit,
		NewGuestPort: func() *vesw.GuestPort { return n.vesw.NewGuestPort(n.sessions.NotifyPort) },
		HalfEnded:    n.sessions.GuestEnded}
	c.Half = func(a *hca.Adapter, s *vhost.Session, h vmcard.HalfConfig) (vmcard.Half, error) {
		g, err := n.sessions.AdmitGuest(a, n.lanes.First(), s, session.GuestConfig{QPs: uint32(h.QPs),
			CQs: uint32(h.CQs), Ring: uint32(h.Ring), Port: h.Port})
		if err != nil {
			return vmcard.Half{}, err
		}
		return vmcard.Half{RoCE: g, Rings: g, Life: g}, nil
	}
	if n.sub == nil {
		c.Absent = mgmt.ErrNoFabric
	}
	c.AddFunction = func(m *vmcard.Card, change *api.FunctionChange, number func(*hca.Adapter) error) error {
		f, err := n.functionOps.create(&api.NewFunction{Name: m.Request().Name, FunctionChange: *change}, number,
			m.EthernetPort())
		if err != nil {
			return err
		}
		return n.editor.addCard(f, m)
	}
	n.cards = vmcard.New(c)
	n.editor.cards = n.cards
	n.functionOps = &functionOperations{functions: n.all, table: n.funcs, editor: n.editor, intent: n.intent,
		vesws: &n.mgmt.VESWs, cards: n.cards, ip: n.ip, vesw: n.vesw, refuseDelete: n.refuseDelete,
		lostByDelete: n.lostByDelete, admit: n.gate.Admit}
}

// openReports makes the reports.
func (n *Node) openReports() {
	n.reports = &reporter{settings: n.cfg, identity: n.identity, started: n.started, ready: n.ready.Load, wall: n.wall,
		host: n.table.Load, functions: n.all, table: n.funcs, lanes: n.lanes, sessions: n.sessions, groups: n.groups,
		intent: n.intent, captures: n.captures, faults: n.faults, connections: n.cm, network: n.mgmt, member: n.member,
		mesh: n.mesh, subnet: n.sub, ip: n.ip, vesw: n.vesw, cards: n.cards}
}

// restore finds out where the intent is kept, and restores it.
func (n *Node) restore(ctx context.Context) {
	n.intent.Start(ctx, n.contents())
}

// firstNative is the device of the physical function's InfiniBand port.
const firstNative = "weft_ib0"

// startSubnet starts the management goroutine, and plugs in the port of the physical function. The lanes run.
func (n *Node) startSubnet() error {
	if n.sub == nil {
		return nil
	}
	if err := n.vesw.Start(n.lanes.First(), n.cards); err != nil {
		return err
	}
	n.sub.Start(n.lanes) // ends with close
	if n.cfg.Device == firstNative {
		return &api.Error{What: "cannot run the node", Why: firstNative + " is the name of its InfiniBand device",
			Fix: "give it another --device, or --fabric=false"}
	}
	_, err := n.editor.add(firstNative, hca.DefaultLimits)
	return err
}

// operations registers what the node does for the operations of the control interface.
func (n *Node) operations() *http.ServeMux {
	mux := http.NewServeMux()
	api.Handle(mux, api.AnnounceProgram, api.Action(func(context.Context) error { return n.sessions.Use() }))
	api.Handle(mux, api.Shutdown, api.Action(func(context.Context) error {
		n.stop(errEnd)
		return nil
	}))
	api.Handle(mux, api.ExportNode, api.NoInput(n.exportNode))
	n.reports.register(mux)
	n.functionOps.register(mux)
	n.captures.Register(mux)
	n.faults.Register(mux)
	(&control.Inspector{Sessions: n.sessions, All: n.all, Identifiers: n.cm.Identifiers}).Register(mux)
	n.mgmt.Register(mux)
	n.member.Register(mux)
	api.Handle(mux, api.GetTrunkPlan, api.NoInput(func(context.Context) (p api.TrunkPlan, err error) {
		if n.mesh != nil {
			p = n.mesh.Plan()
		}
		return p, nil
	}))
	n.cards.Operations(mux)
	if n.sub == nil {
		n.refuseInterfaces(mux)
		return mux
	}
	n.ip.Operations(mux)
	n.vesw.Operations(mux)
	return mux
}

// refuseInterfaces registers the operations on IP links and VESW ports of a node in no subnet: its lists are empty, and
// every other one is refused.
func (n *Node) refuseInterfaces(mux *http.ServeMux) {
	api.Handle(mux, api.ListIPLinks, api.NoInput(n.ip.List))
	api.Handle(mux, api.ListVESWInterfaces, api.NoInput(n.vesw.List))
	api.Handle(mux, api.ListVESWCounters, n.vesw.Counters)
	for _, op := range []interface{ Refuse(*http.ServeMux, error) }{api.AddIPLinks, api.DeleteIPLinks, api.ChangeIPLink,
		api.ListIPNeighbours, api.ListIPShadow, api.ListIPPaths, api.ListIPGroups, api.ListIPCounters, api.ListIPParams,
		api.ListIPEvents, api.ResolveIPPath, api.AttachVESW, api.DetachVESW} {
		op.Refuse(mux, mgmt.ErrNoFabric)
	}
}

func (n *Node) closeTrunks() {
	if n.sub != nil {
		n.sub.CloseTrunks()
	}
}
