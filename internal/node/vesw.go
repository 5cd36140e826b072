// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"slices"
	"sync"
	"time"

	"weft/internal/control/api"
	"weft/internal/node/loop"
	"weft/internal/node/supervisor"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/vnic"
	"weft/internal/service/vnic/vema"
	"weft/internal/verbs/hca"
)

// veswHost is the ports of virtual Ethernet switches of a node (docs/notes/vesw.md): those of each function, as an
// Ethernet Manager makes them, and the requests of people for their interfaces.
type veswHost struct {
	n    *Node
	lane *veswLane // lane 0's
	wg   sync.WaitGroup
	// retry is the time after which a segment that could not be opened is tried again.
	retry time.Duration
	// open opens the segment of a port. The port's worker calls it.
	open func(s *veswSlot, r *api.VESWRequest, d vnic.Device, wake func(), news func(vnic.SegmentEvent)) (vnic.Segment, string, error)

	funcs map[uint16]*veswFunction // by number; the management goroutine's

	changes supervisor.Changes // of ports

	mu       sync.Mutex // guards what follows
	requests []*api.VESWRequest
}

// veswFunction is the ports of a function: its vnic.Function. It belongs to the management goroutine.
type veswFunction struct {
	h       *veswHost
	a       *hca.Adapter
	ports   *vnic.Ports
	netdevs *vnic.Netdevs
	agent   *vema.Agent
	inlets  *veswInlets // the lane's
	slots   [vnic.MaxNetdevs]*veswSlot
}

var _ vnic.Function = (*veswFunction)(nil)

func newVESW(n *Node) *veswHost {
	h := &veswHost{n: n, retry: veswRetry, funcs: map[uint16]*veswFunction{}}
	h.open = h.openSegment
	return h
}

// veswOPAPort is the number of every function's port.
const veswOPAPort = 1

// plugged gives a function its ports of virtual Ethernet switches, none yet, and the agent that makes them. The
// management goroutine calls it.
func (h *veswHost) plugged(a *hca.Adapter) {
	f := &veswFunction{h: h, a: a, netdevs: vnic.NewNetdevs(0)}
	f.ports = vnic.New(vnic.Config{Function: f, OPAPort: veswOPAPort})
	f.agent = vema.New(vema.Config{Ports: f.ports, Counters: f.counters})
	f.inlets = &veswInlets{number: a.Number(), recv: f.netdevs.Receiver()}
	h.funcs[a.Number()] = f
	h.n.lanes.First().Post(func() { h.lane.addFunction(f.inlets) })
	h.n.sub.ServeEthernet(a.Number(), f.agent)
	f.portChanged()
}

// unplugged undoes plugged, and returns the workers that are still busy with it.
func (h *veswHost) unplugged(number uint16) (busy []*loop.Worker) {
	f := h.funcs[number]
	if f == nil {
		return nil
	}
	delete(h.funcs, number)
	h.n.sub.ServeEthernet(number, nil)
	var all []uint8
	f.ports.Each(func(vport uint8, _ *vnic.Port) { all = append(all, vport) })
	for _, vport := range all {
		if err := f.ports.Remove(h.n.now(), vport); err != nil {
			h.n.log.Error("a VESW port was not removed", "device", f.a.Name, "vport", vport, "err", err)
		}
		busy = append(busy, f.slots[vport].worker)
	}
	h.n.lanes.First().Post(func() { h.lane.removeFunction(f.inlets) })
	return busy
}

// close ends all ports. The management goroutine and the lanes run.
func (h *veswHost) close() {
	h.n.sub.Do(func() {
		for number := range h.funcs {
			h.unplugged(number)
		}
	})
	h.wg.Wait()
}

// portChanged follows a change of a function's port. The management goroutine calls it.
func (h *veswHost) portChanged(a *hca.Adapter) {
	if f := h.funcs[a.Number()]; f != nil {
		f.portChanged()
	}
}

func (f *veswFunction) portChanged() {
	c := f.h.n.sub.Port(f.a.Number())
	if c == nil {
		return
	}
	p := c.FabricPort()
	f.netdevs.SetLIDs(uint32(p.LID), p.LMC)
	f.ports.SetLink(f.h.n.now(), p.State == ib.PortActive)
}

// AllocNetdev implements vnic.Function.
func (f *veswFunction) AllocNetdev(vport uint8) (vnic.Netdev, error) {
	dev, err := f.netdevs.Alloc(vport)
	if err != nil {
		return nil, err
	}
	s := f.slots[vport]
	if s == nil {
		s = newVESWSlot(f, vport)
		f.slots[vport] = s
	}
	s.begin()
	return &veswNetdev{Slot: dev, s: s}, nil
}

// FreeNetdev implements vnic.Function.
func (f *veswFunction) FreeNetdev(vport uint8) {
	f.netdevs.Free(vport)
	f.slots[vport].end()
}

// countersOf are the counters of a port, by a query of the lane.
func (f *veswFunction) countersOf(vport uint8) (c vnic.Counters, u vnic.Unknown, err error) {
	s := f.slots[vport]
	if s == nil || s.port == nil {
		return c, u, nil
	}
	err = f.h.n.lanes.First().Query(func() {
		c = s.port.counters()
		u = f.inlets.recv.Unknown()
	})
	return c, u, err
}

// counters are the agent's answers to an Ethernet Manager.
func (f *veswFunction) counters(vport uint8) (mad.VESWSummary, mad.VESWErrors) {
	p := f.ports.Port(vport)
	if p == nil {
		return mad.VESWSummary{}, mad.VESWErrors{}
	}
	c, u, _ := f.countersOf(vport) // while the lane is stuck, zeros
	i := p.Info()
	return c.Summary(vport, &i), c.Errors(vport, &i, &u)
}

// counters are those of both directions. The lane calls it.
func (p *veswPort) counters() vnic.Counters {
	c := p.to.recv.Counters(p.vport)
	if p.sender != nil {
		s := p.sender.Counters()
		c.Add(&s)
	}
	return c
}

// wanted returns the request for the port of a device in a VESW, nil where there is none.
func (h *veswHost) wanted(device string, vesw uint16) *api.VESWRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.requests, func(r *api.VESWRequest) bool { return r.Device == device && r.VESW == int(vesw) })
	if i < 0 {
		return nil
	}
	return h.requests[i]
}

const (
	// veswRetry is the time after which a segment that could not be opened is tried again. It doubles with each failure
	// in a row, veswRetryDoubled times at most.
	veswRetry        = 2 * time.Second
	veswRetryDoubled = 4
	// veswSettled is the time after which the end of a segment no longer counts as a failure in a row.
	veswSettled = time.Minute
)

// veswNetdev is the vnic.Netdev of a port: the Slot, and its effect on the interface.
type veswNetdev struct {
	*vnic.Slot
	s *veswSlot
}

var _ vnic.Netdev = (*veswNetdev)(nil)

// SetVESW implements vnic.Netdev.
func (d *veswNetdev) SetVESW(id uint16) error {
	err := d.Slot.SetVESW(id)
	if d.s.vesw = id; err != nil {
		d.s.vesw = 0
	}
	return err
}

// Configure implements vnic.Netdev.
func (d *veswNetdev) Configure(dev vnic.Device) {
	d.Slot.Configure(dev)
	d.s.device = dev
	d.s.apply()
	d.s.f.h.changes.Announce()
}

// veswSlot is a port number of a function, and the interface of the port that has it now. It belongs to the management
// goroutine.
type veswSlot struct {
	f      *veswFunction
	vport  uint8
	worker *loop.Worker
	// segment is the interface; its owner is the management goroutine.
	segment *supervisor.Supervisor[*veswSegment]

	port     *veswPort // the lane's; nil: there is no port
	vesw     uint16
	device   vnic.Device
	open     bool             // a segment was opened, or is being opened
	with     *api.VESWRequest // the request that it was opened for
	changing int              // configurations that the worker has not made yet
	state    vnic.SegmentEvent
	seg      vnic.Segment // nil while it is being opened
	name     string
	why      error     // the last attempt to open it failed
	tries    int       // attempts in a row that failed, or did not last
	since    mono.Time // when seg was opened
}

// veswSegment is an interface at work for a port.
type veswSegment struct {
	vnic.Segment
	name string
	port *veswPort
}

func newVESWSlot(f *veswFunction, vport uint8) *veswSlot {
	s := &veswSlot{f: f, vport: vport, worker: loop.NewWorker(&f.h.wg)}
	s.segment = supervisor.New(s.worker, func(g func()) { f.h.n.sub.Post(g) }, s.close)
	return s
}

// begin gives the number to a port.
func (s *veswSlot) begin() {
	s.port = &veswPort{to: s.f.inlets, function: s.f.a.Number(), vport: s.vport}
	s.vesw, s.device, s.why, s.tries = 0, vnic.Device{}, nil, 0
}

// end frees the number.
func (s *veswSlot) end() {
	port := s.port
	s.discard()
	s.port = nil
	s.worker.Post(func() { s.f.h.n.lanes.First().Do(func() { port.to.recv.Forget(port.vport) }) })
	s.f.h.changes.Announce()
}

// apply makes the interface what port and requests say.
func (s *veswSlot) apply() {
	with := s.with
	if s.vesw != 0 {
		with = s.f.h.wanted(s.f.a.Name, s.vesw)
	}
	switch {
	case s.open && with == s.with:
		s.configure()
	case s.vesw == 0: // the switch is not known yet
	default:
		s.discard()
		s.why, s.tries = nil, 0
		s.create(with)
	}
}

// configure passes the port's configuration to the segment.
func (s *veswSlot) configure() {
	dev := s.device
	s.changing++
	s.segment.Change(func(seg *veswSegment) { seg.Configure(dev) }, func() {
		s.changing--
		s.follow()
	})
}

// create opens a segment for a request.
func (s *veswSlot) create(with *api.VESWRequest) {
	dev, port, h := s.device, s.port, s.f.h
	if port.sender == nil {
		port.sender = s.f.ports.Port(s.vport).Sender()
	}
	wake := h.n.lanes.First().Wake
	s.segment.Open(func(t supervisor.Term) (*veswSegment, error) {
		notify := func(e vnic.SegmentEvent) {
			t.Post(func() {
				s.state = e
				s.follow()
			})
		}
		seg, name, err := h.open(s, with, dev, wake, notify)
		if err != nil {
			return nil, err
		}
		failed := func(err error) { t.Post(func() { s.removed(err) }) }
		e := h.n.lanes.First().Do(func() { err = h.lane.attach(port, seg, failed) })
		if err = errors.Join(e, err); err != nil {
			seg.Close()
			return nil, err
		}
		return &veswSegment{seg, name, port}, nil
	}, s.opened)
	s.open, s.with = true, with
	s.segment.Term().Post(s.absent) // not at once: the port may be calling
}

// absent sets the port down as long as there is no interface.
func (s *veswSlot) absent() {
	if p := s.f.ports.Port(s.vport); p != nil && s.seg == nil {
		p.SetAdmin(s.f.h.n.now(), false)
	}
}

// opened puts a new segment to work, or tries again later.
func (s *veswSlot) opened(seg *veswSegment, err error) {
	if err != nil {
		if s.why == nil || s.why.Error() != err.Error() {
			s.f.h.n.log.Warn("a VESW port has no interface", "device", s.f.a.Name, "vport", s.vport, "vesw", s.vesw, "err", err)
		}
		s.retry(err)
		return
	}
	s.seg, s.name, s.why, s.since = seg.Segment, seg.name, nil, s.f.h.n.now()
	s.f.h.n.log.Info("VESW port", "interface", seg.name, "device", s.f.a.Name, "vport", s.vport, "vesw", s.vesw)
	s.follow()
	s.f.h.changes.Announce()
}

// removed opens the interface again after it was removed from outside.
func (s *veswSlot) removed(err error) {
	s.f.h.n.log.Warn("the interface of a VESW port is gone", "interface", s.name, "err", err)
	if s.f.h.n.now().Sub(s.since) >= veswSettled {
		s.tries = 0
	}
	with := s.with
	s.discard()
	s.open, s.with = true, with
	s.retry(err)
}

// retry opens the segment again, later each time; the status shows err until it is there.
func (s *veswSlot) retry(err error) {
	s.why = err
	s.segment.Term().After(s.f.h.retry<<min(s.tries, veswRetryDoubled), func() {
		if s.port != nil {
			s.create(s.with)
		}
	})
	s.tries++
	s.absent()
	s.f.h.changes.Announce()
}

// discard closes the segment, or gives up opening it.
func (s *veswSlot) discard() {
	if s.open {
		s.open, s.changing, s.seg, s.name, s.with = false, 0, nil, "", nil
		s.segment.Discard()
	}
}

// close closes a segment. The worker calls it.
func (s *veswSlot) close(seg *veswSegment) {
	h := s.f.h
	h.n.lanes.First().Do(func() { h.lane.detach(seg.port) })
	if err := seg.Close(); err != nil {
		h.n.log.Warn("an interface was not closed", "device", s.f.a.Name, "vport", s.vport, "err", err)
	}
}

// follow passes the state of the interface, which its owner may have changed, to the port. While a configuration is on its
// way to the segment the state may be older, and is not passed.
func (s *veswSlot) follow() {
	if s.seg == nil || s.changing > 0 {
		return
	}
	e := s.state
	if now, ok := s.seg.(interface{ Event() vnic.SegmentEvent }); ok {
		e = now.Event()
	}
	p := s.f.ports.Port(s.vport)
	if p == nil || e.MTU == 0 {
		return
	}
	now := s.f.h.n.now()
	if e.MAC != ([6]byte{}) {
		if err := p.SetMAC(now, e.MAC); err != nil {
			s.f.h.n.log.Warn("MAC of a VESW port", "interface", s.name, "err", err)
		}
	}
	p.SetFilters(now, e.Unicast, e.Multicast)
	if e.MTU != p.Device().MTU {
		if err := p.SetMTU(now, e.MTU); err != nil {
			s.f.h.n.log.Warn("MTU of a VESW port", "interface", s.name, "err", err)
		}
	}
	p.SetAdmin(now, e.Up)
}
