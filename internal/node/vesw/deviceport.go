// SPDX-License-Identifier: Apache-2.0

package vesw

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"weft/internal/control/api"
	"weft/internal/fabric/link/roceframe"
	"weft/internal/host/netstack"
	"weft/internal/node/loop"
	"weft/internal/node/stack"
	"weft/internal/proto/ib"
	"weft/internal/service/vnic"
	"weft/internal/verbs/hca"
)

// DevicePort is the Ethernet port of a function in a virtual Ethernet switch (a device segment): the port of the
// function in the fabric stays as it is, and carries the frames of the first port of a switch that the function has.
// Programs see the Ethernet port, with addresses that people chose. RoCEv2 packets to and from them pass the port's
// link, on lane 0; all others an IP stack in the node, which also finds neighbours and reports groups.
type DevicePort struct {
	h       *Host
	want    api.NewFunction // Segment, Addrs and Routes of it
	addrs   []netip.Prefix
	routes  []netstack.Route
	a       *hca.Adapter // set before it is published
	work    *loop.Worker
	link    *roceframe.Link // of station; lane 0's, as is on
	station *station
	on      *deviceSegment // what the link's frames go by, nil: none

	mu     sync.Mutex // guards what follows; locked within ChangePort's next
	seg    *deviceSegment
	dev    vnic.Device // as seg is configured
	groups map[ib.GID]int
}

var ErrInAnotherVESW = errors.New("the device is in another VESW")

// NewDevicePort makes the Ethernet port that is asked for, without a function yet.
func (h *Host) NewDevicePort(want *api.NewFunction) (*DevicePort, error) {
	addrs, routes, err := stack.Parse(want.Addrs, want.Routes)
	dp := &DevicePort{h: h, want: *want, addrs: addrs, routes: routes, groups: map[ib.GID]int{}}
	dp.work = loop.NewWorker(&h.wg)
	return dp, err
}

// Begin gives the port its function, which has its number, before the function is plugged in.
func (dp *DevicePort) Begin(a *hca.Adapter) error {
	dp.a = a
	h := dp.h
	dp.station = h.newStation(a, roceframe.Config{Resolve: dp.resolve, Push: dp.push}, func() (*lanePort, uint16) {
		if !dp.Attached() {
			return nil, 0
		}
		return dp.on.port, dp.on.vesw
	})
	dp.link = dp.station.link
	if err := h.addStation(dp.station); err != nil {
		return err
	}
	h.mu.Lock()
	h.devices[a.Name] = dp
	h.mu.Unlock()
	return nil
}

// Remove undoes Begin, after the function was unplugged.
func (dp *DevicePort) Remove() {
	h := dp.h
	h.mu.Lock()
	delete(h.devices, dp.a.Name)
	h.mu.Unlock()
	dp.work.Wait()
	h.removeStation(dp.station)
}

// DevicePort returns the Ethernet port of the device with a name, nil where it has none; a nil Host has none.
func (h *Host) DevicePort(name string) *DevicePort {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.devices[name]
}

// EthernetPorts calls yield with the functions that have Ethernet ports, by the names of their devices, and the
// addresses of the ports; a nil Host has none.
func (h *Host) EthernetPorts(yield func(*hca.Adapter, []netip.Prefix) bool) {
	if h == nil {
		return
	}
	h.mu.Lock()
	list := slices.Collect(maps.Values(h.devices))
	h.mu.Unlock()
	slices.SortFunc(list, func(a, b *DevicePort) int { return strings.Compare(a.a.Name, b.a.Name) })
	for _, p := range list {
		if !yield(p.a, p.addrs) {
			return
		}
	}
}

// Requested is what was requested: Segment, Addrs and Routes of it.
func (dp *DevicePort) Requested() *api.NewFunction { return &dp.want }

// Link is the link of the port, which belongs to lane 0.
func (dp *DevicePort) Link() *roceframe.Link { return dp.link }

// Port is the port as programs see it.
func (dp *DevicePort) Port() *hca.Port {
	dp.mu.Lock()
	defer dp.mu.Unlock()
	return dp.port()
}

// port is the port as programs see it. mu is held.
func (dp *DevicePort) port() *hca.Port {
	p := dp.h.ethernetPort(&dp.dev, dp.seg != nil)
	// Index 0 is the link-local address, as everywhere; it is there once there is a MAC.
	p.GIDs = make([]hca.GIDEntry, 1, 1+len(dp.addrs))
	if dp.seg != nil {
		p.GIDs[0].GID = dp.seg.linkLocal
	}
	for _, a := range dp.addrs {
		if g := ib.GIDFromAddr(a.Addr()); g != p.GIDs[0].GID {
			p.GIDs = append(p.GIDs, hca.GIDEntry{GID: g})
		}
	}
	return p
}

// changed publishes the port as it is now.
func (dp *DevicePort) changed() {
	dp.h.cfg.ChangePort(dp.a, func() *hca.Port {
		dp.mu.Lock()
		p, mac := dp.port(), dp.dev.MAC
		dp.mu.Unlock()
		gids := make([]ib.GID, len(p.GIDs))
		for i := range p.GIDs {
			gids[i] = p.GIDs[i].GID
		}
		dp.h.first.Post(func() { dp.link.SetPort(mac, gids) })
		return p
	})
}

// resolve is the link's Config.Resolve.
func (dp *DevicePort) resolve(ip netip.Addr) bool {
	if dp.on == nil {
		return false
	}
	select {
	case dp.on.asks <- ip:
		return true
	default:
		return false
	}
}

// Join implements hca.IPGroups for the function: the link receives packets of a group that a queue pair is in, and the
// stack reports it to routers and the Ethernet Manager soon.
func (dp *DevicePort) Join(g ib.GID) {
	dp.mu.Lock()
	defer dp.mu.Unlock()
	if dp.groups[g]++; dp.groups[g] == 1 {
		dp.work.Post(dp.applyGroups)
	}
}

// Leave implements hca.IPGroups for the function.
func (dp *DevicePort) Leave(g ib.GID) {
	dp.mu.Lock()
	defer dp.mu.Unlock()
	if dp.groups[g]--; dp.groups[g] == 0 {
		delete(dp.groups, g)
		dp.work.Post(dp.applyGroups)
	}
}

// applyGroups has the stack join and leave groups as the queue pairs require. The worker calls it.
func (dp *DevicePort) applyGroups() {
	dp.mu.Lock()
	seg := dp.seg
	want := make(map[ib.GID]bool, len(dp.groups))
	for g := range dp.groups {
		want[g] = true
	}
	dp.mu.Unlock()
	if seg == nil {
		return
	}
	for g := range want {
		if !seg.joined[g] {
			if err := seg.JoinGroup(g.Addr()); err != nil {
				dp.h.cfg.Log.Warn("a multicast group was refused", "device", dp.a.Name, "group", g.Addr(), "err", err)
				continue
			}
			seg.joined[g] = true
		}
	}
	for g := range seg.joined {
		if !want[g] {
			delete(seg.joined, g)
			if err := seg.LeaveGroup(g.Addr()); err != nil {
				dp.h.cfg.Log.Warn("a multicast group was not left", "device", dp.a.Name, "group", g.Addr(), "err", err)
			}
		}
	}
}

// Describe describes the port.
func (dp *DevicePort) Describe() api.EthernetPort {
	v := api.EthernetPort{Addrs: dp.want.Addrs, Routes: dp.want.Routes, CarrierReason: "it is in no VESW"}
	if name := dp.want.VESW(); name != "" {
		v.CarrierReason = "the Ethernet Manager has made no port in " + name + " yet"
	}
	if s := dp.h.PortState(dp.a.Number()); s.VESW != 0 {
		v.Number, v.VPort, v.MTU = s.VESW, s.VPort, s.Device.MaxMTU
		v.Carrier, v.CarrierReason = s.Device.Carrier, s.Device.Reason
		v.MAC = net.HardwareAddr(s.Device.MAC[:]).String()
		switch {
		case s.Failure != nil:
			v.CarrierReason = s.Failure.Error()
		case s.Opening && v.CarrierReason == "":
			v.CarrierReason = "the port is being made"
		}
	}
	var known []roceframe.Neighbour
	first := dp.h.first
	if first.Query(func() { known = dp.link.Neighbours(first.Now()) }) != nil {
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

// DeviceNotices lists neighbours that have not answered lately.
func DeviceNotices(device string, v api.EthernetPort) (list []api.Degraded) {
	for _, o := range v.Neighbours {
		if o.State == roceframe.Unreachable.String() && o.SinceNS < neighbourNotice {
			list = append(list, api.Degraded{What: "neighbour_unreachable",
				Why: fmt.Sprintf("%s: no station in VESW %d answers for %s", device, v.Number, o.Address),
				Fix: "weft dev show " + device + "; check the address, and --route where it is behind a gateway"})
		}
	}
	return list
}
