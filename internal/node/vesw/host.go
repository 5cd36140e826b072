// SPDX-License-Identifier: Apache-2.0

// Package vesw runs the ports of virtual Ethernet switches of a node (docs/notes/vesw.md): their interfaces, their
// frames on lane 0, and the Ethernet ports of devices (device segment ports).
//
// What comes in: functions that are plugged in, from the management goroutine; ports, from an Ethernet Manager by the
// agents that the room makes; requests for interfaces, of the store and the control interface. What goes out: frames
// between segments and the trunks, and descriptions of ports. Package node makes one Host and registers its operations.
// It must never block a lane or the management goroutine: what may wait runs on the worker of a port.
package vesw

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"weft/internal/control/api"
	"weft/internal/node/intent"
	"weft/internal/node/lane"
	"weft/internal/node/subnet"
	"weft/internal/node/supervisor"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/vnic"
	"weft/internal/service/vnic/vema"
	"weft/internal/verbs/hca"
)

// Config is what the ports of a node need from it.
type Config struct {
	Now func() mono.Time
	Log *slog.Logger
	// Subnet has the management goroutine, which owns the ports, and the InfiniBand ports of functions.
	Subnet *subnet.Subnet
	// Adapter returns the adapter with a name, nil where there is none. Any goroutine may call it.
	Adapter func(name string) *hca.Adapter
	// ChangePort has a become what next returns, if that differs, and notifies the users of the port. next is called
	// while no other change of a port is under way. No lane may call ChangePort.
	ChangePort func(a *hca.Adapter, next func() *hca.Port)
	// Functions are the functions of the node, for the groups of their queue pairs.
	Functions *hca.Functions
	// WireLocal: packets between functions of the node are built as for the network.
	WireLocal bool
	Intent    *intent.Store // keeps what Host.Kept returns
	// Admit returns why the host accepts no new port; nil: it does. Any goroutine may call it.
	Admit func() error
}

// Cards are the network cards of virtual machines. Any goroutine but a lane may call the methods.
type Cards interface {
	// Has reports whether a device is a card.
	Has(device string) bool
	// Segment puts the card to work for a port of its device.
	Segment(device string, d vnic.Device, notify func(vnic.SegmentEvent)) (vnic.OpenSegment, error)
}

// Host is the ports of virtual Ethernet switches of a node: those of each function, as an Ethernet Manager makes them,
// and the requests for their interfaces. Its methods may be called on any goroutine but a lane, unless they say
// otherwise. A nil Host, of a node in no subnet, has no ports: List, Counters, Degraded, DevicePort, EthernetPorts and
// Forget may be called.
type Host struct {
	cfg   Config
	cards Cards
	first *lane.Lane // lane 0
	data  *dataPath  // lane 0's
	wg    sync.WaitGroup
	// Retry is the time after which a segment that could not be opened is tried again. Only tests set it, on the
	// management goroutine.
	Retry time.Duration
	// Open opens the segment of a port, and returns it with its name. The port's worker calls it. Only tests set it, on
	// the management goroutine.
	Open func(o Opening) (vnic.OpenSegment, string, error)

	// The management goroutine's.
	funcs     map[uint16]*function // by number
	suspended bool                 // the host is drained by force: no port has an interface of the host

	changes supervisor.Changes // of ports

	mu       sync.Mutex // guards what follows; no other lock is taken while it is held
	requests []*api.VESWRequest
	devices  map[string]*DevicePort // by the name of the device
	guests   map[string]*GuestPort  // by the name of the card
}

// Opening is a segment to be opened.
type Opening struct {
	Request *api.VESWRequest // nil: there is none
	Device  vnic.Device
	Wake    func() // wakes the lane
	Notify  func(vnic.SegmentEvent)

	slot *slot
}

// function is the ports of a function: its vnic.Function. It belongs to the management goroutine.
type function struct {
	h       *Host
	a       *hca.Adapter
	ports   *vnic.Ports
	netdevs *vnic.Netdevs
	agent   *vema.Agent
	inlets  *inlets // the lane's
	slots   [vnic.MaxNetdevs]*slot
}

var _ vnic.Function = (*function)(nil)

// New returns a Host without ports.
func New(c Config) *Host {
	h := &Host{cfg: c, Retry: retryAfter, funcs: map[uint16]*function{}, devices: map[string]*DevicePort{},
		guests: map[string]*GuestPort{}}
	h.Open = h.OpenSegment
	return h
}

// Start has the lane carry the frames of all ports. Cards are the network cards of virtual machines. Start is called
// once, before the first function is plugged in.
func (h *Host) Start(l *lane.Lane, cards Cards) error {
	h.first, h.cards = l, cards
	return l.Do(func() { h.data = newDataPath(l, l.Net.Fabric) })
}

// opaPort is the number of every function's port.
const opaPort = 1

// Plugged gives a function its ports of virtual Ethernet switches, none yet, and the agent that makes them. The
// management goroutine calls it.
func (h *Host) Plugged(a *hca.Adapter) {
	f := &function{h: h, a: a, netdevs: vnic.NewNetdevs(0)}
	f.ports = vnic.New(vnic.Config{Function: f, OPAPort: opaPort})
	f.agent = vema.New(vema.Config{Ports: f.ports, Counters: f.counters})
	f.inlets = &inlets{number: a.Number(), recv: f.netdevs.Receiver()}
	h.funcs[a.Number()] = f
	h.first.Post(func() { h.data.addFunction(f.inlets) })
	h.cfg.Subnet.ServeEthernet(a.Number(), f.agent)
	f.portChanged()
}

// Unplugged undoes Plugged. wait returns when no worker is busy with the function any more; it must not be called on
// the management goroutine.
func (h *Host) Unplugged(number uint16) (wait func()) {
	f := h.funcs[number]
	if f == nil {
		return func() {}
	}
	delete(h.funcs, number)
	h.cfg.Subnet.ServeEthernet(number, nil)
	var all []uint8
	f.ports.Each(func(vport uint8, _ *vnic.Port) { all = append(all, vport) })
	for _, vport := range all {
		if err := f.ports.Remove(h.cfg.Now(), vport); err != nil {
			h.cfg.Log.Error("a VESW port was not removed", "device", f.a.Name, "vport", vport, "err", err)
		}
	}
	h.first.Post(func() { h.data.removeFunction(f.inlets) })
	return func() {
		for _, vport := range all {
			f.slots[vport].worker.Wait()
		}
	}
}

// Close ends all ports. The management goroutine and the lanes run.
func (h *Host) Close() {
	h.cfg.Subnet.Do(func() {
		for number := range h.funcs {
			h.Unplugged(number)
		}
	})
	h.wg.Wait()
}

// PortChanged follows a change of a function's port. The management goroutine calls it.
func (h *Host) PortChanged(a *hca.Adapter) {
	if f := h.funcs[a.Number()]; f != nil {
		f.portChanged()
	}
}

func (f *function) portChanged() {
	c := f.h.cfg.Subnet.Port(f.a.Number())
	if c == nil {
		return
	}
	p := c.FabricPort()
	f.netdevs.SetLIDs(uint32(p.LID), p.LMC)
	f.ports.SetLink(f.h.cfg.Now(), p.State == ib.PortActive)
}

// AllocNetdev implements vnic.Function.
func (f *function) AllocNetdev(vport uint8) (vnic.Netdev, error) {
	dev, err := f.netdevs.Alloc(vport)
	if err != nil {
		return nil, err
	}
	s := f.slots[vport]
	if s == nil {
		s = newSlot(f, vport)
		f.slots[vport] = s
	}
	s.begin()
	return &netdev{Slot: dev, s: s}, nil
}

// FreeNetdev implements vnic.Function.
func (f *function) FreeNetdev(vport uint8) {
	f.netdevs.Free(vport)
	f.slots[vport].end()
}

// countersOf are the counters of a port, by a query of the lane.
func (f *function) countersOf(vport uint8) (c vnic.Counters, u vnic.Unknown, err error) {
	s := f.slots[vport]
	if s == nil || s.port == nil {
		return c, u, nil
	}
	err = f.h.first.Query(func() {
		c = s.port.counters()
		u = f.inlets.recv.Unknown()
	})
	return c, u, err
}

// counters are the agent's answers to an Ethernet Manager.
func (f *function) counters(vport uint8) (mad.VESWSummary, mad.VESWErrors) {
	p := f.ports.Port(vport)
	if p == nil {
		return mad.VESWSummary{}, mad.VESWErrors{}
	}
	c, u, _ := f.countersOf(vport) // while the lane is stuck, zeros
	i := p.Info()
	return c.Summary(vport, &i), c.Errors(vport, &i, &u)
}

// counters are those of both directions. The lane calls it.
func (p *lanePort) counters() vnic.Counters {
	c := p.to.recv.Counters(p.vport)
	if p.sender != nil {
		s := p.sender.Counters()
		c.Add(&s)
	}
	return c
}

// Requested returns the request for the port of a device in a VESW, nil where there is none.
func (h *Host) Requested(device string, vesw uint16) *api.VESWRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.requests,
		func(r *api.VESWRequest) bool { return r.Device == device && r.VESW == int(vesw) })
	if i < 0 {
		return nil
	}
	return h.requests[i]
}

// Ports are the ports of a function, nil where it is not plugged in. They belong to the management goroutine.
func (h *Host) Ports(function uint16) *vnic.Ports {
	if f := h.funcs[function]; f != nil {
		return f.ports
	}
	return nil
}

// PortState is the port of a function in a VESW.
type PortState struct {
	VESW, VPort int // VESW is 0 where there is no port
	Device      vnic.Device
	Opening     bool  // its segment is being opened
	Failure     error // why it has no segment
}

// PortState returns the port of a function that has a segment, or else its first one.
func (h *Host) PortState(function uint16) (st PortState) {
	h.cfg.Subnet.Do(func() {
		f := h.funcs[function]
		if f == nil {
			return
		}
		f.ports.Each(func(vport uint8, p *vnic.Port) {
			if s := f.slots[vport]; s != nil && s.vesw != 0 && (st.VESW == 0 || s.seg != nil) {
				st = PortState{int(s.vesw), int(vport), p.Device(), s.seg == nil, s.why}
			}
		})
	})
	return st
}

// Await returns when done reports true, which is called after each change of a port, or ctx ends.
func (h *Host) Await(ctx context.Context, done func() bool) { h.changes.Await(ctx, done) }
