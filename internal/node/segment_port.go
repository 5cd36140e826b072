// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"weft/internal/control/api"
	"weft/internal/fabric/link/roceframe"
	"weft/internal/host/netstack"
	"weft/internal/node/lane"
	"weft/internal/node/loop"
	"weft/internal/node/mgmt"
	"weft/internal/node/stack"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/service/vnic"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/hca/replicate"
)

// segmentPort is the Ethernet port of a function in a virtual Ethernet switch (a device segment): the port of the
// function in the fabric stays as it is, and carries the frames of the first port of a switch that the function has.
// Programs see the Ethernet port, with addresses that people chose. RoCEv2 packets to and from them pass the port's
// link, on lane 0; all others an IP stack in the node, which also finds neighbours and reports groups.
type segmentPort struct {
	n      *Node
	want   api.NewFunction // Segment, Addrs and Routes of it
	addrs  []netip.Prefix
	routes []netstack.Route
	a      *hca.Adapter // set before it is published
	work   *loop.Worker
	link   *roceframe.Link // lane 0's, as is on
	on     *portSegment    // what the link's frames go by, nil: none

	mu     sync.Mutex // guards what follows; before it the portTree's
	seg    *portSegment
	dev    vnic.Device // as seg is configured
	groups map[ib.GID]int
}

var errInAnotherVESW = errors.New("the device is in another VESW")

// newSegmentPort makes the Ethernet port that is asked for, without a function yet.
func (n *Node) newSegmentPort(want *api.NewFunction) (*segmentPort, error) {
	if n.sub == nil {
		return nil, mgmt.ErrNoFabric
	}
	st := &segmentPort{n: n, want: *want, groups: map[ib.GID]int{}}
	st.work = loop.NewWorker(&n.vesw.wg)
	var errs []error
	for _, v := range want.Addrs {
		p, err := netip.ParsePrefix(v)
		errs = append(errs, err)
		st.addrs = append(st.addrs, p)
	}
	for _, v := range want.Routes {
		to, via, err := stack.ParseRoute(v)
		errs = append(errs, err)
		st.routes = append(st.routes, netstack.Route{Dst: to, Via: via})
	}
	return st, errors.Join(errs...)
}

// begin gives the port its function, which has its number.
func (st *segmentPort) begin(a *hca.Adapter) error {
	st.a = a
	n := st.n
	st.link = roceframe.New(roceframe.Config{Function: a.Number(), Resolve: st.ask, Push: st.push,
		Arrived: func() { n.lanes.First().LinkReadable() },
		Member: func(g ib.GID) bool {
			return len(n.all.Groups().Attached[replicate.GroupKey{Function: a.Number(), MGID: g}]) > 0
		}})
	return n.lanes.First().Do(func() { n.lanes.First().Net.AddEthernet(a.Number(), st.link) })
}

// removeSegmentPort removes a port that has no segment any more.
func (n *Node) removeSegmentPort(st *segmentPort) {
	n.mu.Lock()
	delete(n.segmentPorts, st.a.Name)
	n.mu.Unlock()
	st.work.Wait()
	n.lanes.First().Do(func() { n.lanes.First().Net.RemoveEthernet(st.a.Number()) })
}

// segmentPort returns the Ethernet port of the device with a name, nil where it has none.
func (n *Node) segmentPort(name string) *segmentPort {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.segmentPorts[name]
}

// port is the port as programs see it. mu is held, or the segmentPort is not published yet.
func (st *segmentPort) port() *hca.Port {
	p := &hca.Port{Link: ib.LinkEthernet, State: ib.PortDown, Phys: ib.PhysPolling, MTU: ib.MTUForLink(st.dev.MaxMTU), MaxMTU: ib.MTU4096, PKeys: []ib.PKey{ib.DefaultPKey},
		WireLocal: st.n.cfg.WireLocal, MaxRun: roceframe.MaxRun, MaxLocalRun: lane.LocalBurst, OverFabric: true}
	if st.seg != nil && st.dev.Carrier {
		p.State, p.Phys = ib.PortActive, ib.PhysLinkUp
	}
	// Index 0 is the link-local address, as everywhere; it is there once there is a MAC.
	p.GIDs = make([]hca.GIDEntry, 1, 1+len(st.addrs))
	if st.seg != nil {
		p.GIDs[0].GID = st.seg.linkLocal
	}
	for _, a := range st.addrs {
		if g := ib.GIDFromAddr(a.Addr()); g != p.GIDs[0].GID {
			p.GIDs = append(p.GIDs, hca.GIDEntry{GID: g})
		}
	}
	return p
}

// changed publishes the port as it is now.
func (st *segmentPort) changed() {
	n := st.n
	n.tree.update(func() []subnet.PortChange {
		st.mu.Lock()
		p, mac := st.port(), st.dev.MAC
		st.mu.Unlock()
		gids := make([]ib.GID, len(p.GIDs))
		for i := range p.GIDs {
			gids[i] = p.GIDs[i].GID
		}
		n.lanes.First().Post(func() { st.link.SetPort(mac, gids) })
		old := st.a.Port()
		events := p.Changes(old)
		if len(events) == 0 && p.MTU == old.MTU {
			return nil
		}
		st.a.SetPort(p)
		return []subnet.PortChange{{Adapter: st.a, Events: events}}
	})
}

// ask is the link's Config.Ask; push its Config.Push.
func (st *segmentPort) ask(ip netip.Addr) bool {
	if st.on == nil {
		return false
	}
	select {
	case st.on.asks <- ip:
		return true
	default:
		return false
	}
}

// join implements hca.IPGroups for the function: the link takes packets of a group that a queue pair is in, and the stack tells
// routers and the Ethernet Manager of it soon.
func (st *segmentPort) join(g ib.GID) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.groups[g]++; st.groups[g] == 1 {
		st.work.Post(st.applyGroups)
	}
}

func (st *segmentPort) leave(g ib.GID) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.groups[g]--; st.groups[g] == 0 {
		delete(st.groups, g)
		st.work.Post(st.applyGroups)
	}
}

// applyGroups has the stack join and leave groups as the queue pairs require. The worker calls it.
func (st *segmentPort) applyGroups() {
	st.mu.Lock()
	seg := st.seg
	want := make(map[ib.GID]bool, len(st.groups))
	for g := range st.groups {
		want[g] = true
	}
	st.mu.Unlock()
	if seg == nil {
		return
	}
	for g := range want {
		if !seg.joined[g] {
			if err := seg.JoinGroup(g.Addr()); err != nil {
				st.n.log.Warn("a multicast group was refused", "device", st.a.Name, "group", g.Addr(), "err", err)
				continue
			}
			seg.joined[g] = true
		}
	}
	for g := range seg.joined {
		if !want[g] {
			delete(seg.joined, g)
			if err := seg.LeaveGroup(g.Addr()); err != nil {
				st.n.log.Warn("a multicast group was not left", "device", st.a.Name, "group", g.Addr(), "err", err)
			}
		}
	}
}

// describe describes the port.
func (st *segmentPort) describe() api.EthernetPort {
	n := st.n
	v := api.EthernetPort{Addrs: st.want.Addrs, Routes: st.want.Routes, CarrierReason: "it is in no VESW"}
	if name := st.want.VESW(); name != "" {
		v.CarrierReason = "the Ethernet Manager has made no port in " + name + " yet"
	}
	n.sub.Do(func() {
		h := n.vesw.funcs[st.a.Number()]
		if h == nil {
			return
		}
		h.ports.Each(func(vport uint8, p *vnic.Port) {
			d := p.Device()
			if s := h.slots[vport]; s != nil && s.vesw != 0 && (v.Number == 0 || s.seg != nil) {
				v.Number, v.VPort, v.MTU = int(s.vesw), int(vport), d.MaxMTU
				v.Carrier, v.CarrierReason, v.MAC = d.Carrier, d.Reason, net.HardwareAddr(d.MAC[:]).String()
				switch {
				case s.why != nil:
					v.CarrierReason = s.why.Error()
				case s.seg == nil && v.CarrierReason == "":
					v.CarrierReason = "the port is being made"
				}
			}
		})
	})
	var known []roceframe.Neighbour
	if n.lanes.First().Query(func() { known = st.link.Neighbours(n.lanes.First().Now()) }) != nil {
		return v // without those: a lane that is stuck may still write known
	}
	for _, o := range known {
		w := api.Neighbour{Address: o.IP.String(), State: o.State.String(), SinceNS: o.Since, Frames: o.Frames}
		if o.MAC != ([6]byte{}) {
			w.MAC = net.HardwareAddr(o.MAC[:]).String()
		}
		v.Neighbours = append(v.Neighbours, w)
	}
	return v
}

// segmentNotices lists neighbours that have not answered lately.
func segmentNotices(device string, v api.EthernetPort) (list []api.Degraded) {
	for _, o := range v.Neighbours {
		if o.State == roceframe.Unreachable.String() && o.SinceNS < neighbourNotice {
			list = append(list, api.Degraded{What: "neighbour_unreachable", Why: fmt.Sprintf("%s: no station in VESW %d answers for %s", device, v.Number, o.Address),
				Fix: "weft dev show " + device + "; check the address, and --route where it is behind a gateway"})
		}
	}
	return list
}
