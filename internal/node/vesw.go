// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"slices"
	"sync"
	"time"

	"weft/internal/control/api"
	"weft/internal/node/loop"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/vnic"
	"weft/internal/service/vnic/vema"
	"weft/internal/verbs/hca"
)

// veswHost is the ports of virtual Ethernet switches of a node (docs/notes/vesw.md): those of
// each function, as an Ethernet Manager makes them, and what this node's people want
// them to be for.
type veswHost struct {
	n    *Node
	lane *veswLane // lane 0's
	wg   sync.WaitGroup
	// retry is when a segment that could not be made is tried again.
	retry time.Duration
	// open makes the segment of a port; it is called by the port's work.
	open func(s *veswSlot, r *api.VESWRequest, d vnic.Device, wake func(), news func(vnic.SegmentEvent)) (vnic.Segment, string, error)

	funcs map[uint16]*veswFunction // by number; the management goroutine's

	mu       sync.Mutex // guards what follows
	requests []*api.VESWRequest
	more     chan struct{} // closed when a port changes
}

// veswFunction is the ports of a function: its vnic.Function. It is the management
// goroutine's.
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
	h := &veswHost{n: n, retry: veswRetry, funcs: map[uint16]*veswFunction{}, more: make(chan struct{})}
	h.open = h.openSegment
	return h
}

// veswOPAPort is the number of every function's port.
const veswOPAPort = 1

// plugged gives a function's port its ports of virtual Ethernet switches, of which there are
// none yet, and an agent that makes them. The management goroutine calls it.
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

// unplugged takes all of that away, and returns who is busy with it.
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
		busy = append(busy, f.slots[vport].work)
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

// portChanged tells what has become of a function's port; the management
// goroutine calls it.
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
		s = &veswSlot{f: f, vport: vport}
		s.work = loop.NewWorker(&f.h.wg)
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

// lookedAt are the counters of a port.
func (f *veswFunction) lookedAt(vport uint8) (c vnic.Counters, u vnic.Unknown, err error) {
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

// counters is what the agent answers an Ethernet Manager with.
func (f *veswFunction) counters(vport uint8) (mad.VESWSummary, mad.VESWErrors) {
	p := f.ports.Port(vport)
	if p == nil {
		return mad.VESWSummary{}, mad.VESWErrors{}
	}
	c, u, _ := f.lookedAt(vport) // while the lane is stuck, zeros
	i := p.Info()
	return c.Summary(vport, &i), c.Errors(vport, &i, &u)
}

// counters are those of both directions; the lane calls it.
func (p *veswPort) counters() vnic.Counters {
	c := p.to.recv.Counters(p.vport)
	if p.sender != nil {
		s := p.sender.Counters()
		c.Add(&s)
	}
	return c
}

// changed wakes who waits for a port to change.
func (h *veswHost) changed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.more)
	h.more = make(chan struct{})
}

// wanted returns what was asked for the port of a device in a VESW, nil where nobody asked for anything.
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
	// veswRetry is when a segment that could not be made is tried again. It doubles with every time in a row, so often
	// at most.
	veswRetry        = 2 * time.Second
	veswRetryDoubled = 4
	// veswSettled is how long a segment must have been there for its end to be the first in a row.
	veswSettled = time.Minute
)

// veswNetdev is the vnic.Netdev of a port: the Slot, and what it does for the
// interface.
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
	d.s.settle()
	d.s.f.h.changed()
}

// veswSlot is a port number of a function, and the interface of the port that has it
// now. It is the management goroutine's, but for what work does, which may wait.
type veswSlot struct {
	f     *veswFunction
	vport uint8
	work  *loop.Worker

	port   *veswPort // the lane's; nil: there is no port
	vesw   uint16
	device vnic.Device
	made   uint64           // counts segments asked for: names the present one
	asked  bool             // one was
	with   *api.VESWRequest // what for
	told   int              // configurations on their way to it
	news   vnic.SegmentEvent
	seg    vnic.Segment // nil while it is being made
	name   string
	why    error     // it could not be made, the last time
	tries  int       // in a row that it could not, or did not last
	since  mono.Time // when seg was made

	current vnic.Segment // work's: the one made last
}

// begin has the number taken by a port.
func (s *veswSlot) begin() {
	s.port = &veswPort{to: s.f.inlets, function: s.f.a.Number(), vport: s.vport}
	s.vesw, s.device, s.why, s.tries = 0, vnic.Device{}, nil, 0
}

// end gives it back.
func (s *veswSlot) end() {
	port := s.port
	s.discard()
	s.port = nil
	s.work.Post(func() { s.f.h.n.lanes.First().Do(func() { port.to.recv.Forget(port.vport) }) })
	s.f.h.changed()
}

// settle makes the interface what it is to be.
func (s *veswSlot) settle() {
	with := s.with
	if s.vesw != 0 {
		with = s.f.h.wanted(s.f.a.Name, s.vesw)
	}
	switch {
	case s.asked && with == s.with:
		s.configure()
	case s.vesw == 0: // nobody knows what for
	default:
		s.discard()
		s.why, s.tries = nil, 0
		s.create(with)
	}
}

// configure tells the segment what to be.
func (s *veswSlot) configure() {
	dev, made := s.device, s.made
	s.told++
	s.work.Post(func() {
		if s.current != nil {
			s.current.Configure(dev)
		}
		s.f.h.n.sub.Post(func() {
			if s.made == made {
				s.told--
				s.follow()
			}
		})
	})
}

// create asks for a segment.
func (s *veswSlot) create(with *api.VESWRequest) {
	s.made++
	s.asked, s.with = true, with
	made, dev, port, h := s.made, s.device, s.port, s.f.h
	if port.sender == nil {
		port.sender = s.f.ports.Port(s.vport).Sender()
	}
	news := func(e vnic.SegmentEvent) {
		h.n.sub.Post(func() {
			if s.made == made {
				s.news = e
				s.follow()
			}
		})
	}
	lost := func(err error) {
		h.n.sub.Post(func() {
			if s.made == made {
				s.lost(err)
			}
		})
	}
	h.n.sub.Post(func() { s.absent(made) }) // not at once: the port may be calling
	wake := h.n.lanes.First().Wake
	s.work.Post(func() {
		seg, name, err := h.open(s, with, dev, wake, news)
		if err == nil {
			e := h.n.lanes.First().Do(func() { err = h.lane.attach(port, seg, lost) })
			if err = errors.Join(e, err); err != nil {
				seg.Close()
			} else {
				s.current = seg
			}
		}
		h.n.sub.Post(func() {
			if s.made == made {
				s.opened(seg, name, err)
			}
		})
	})
}

// absent sets the port down as long as there is no interface.
func (s *veswSlot) absent(made uint64) {
	if p := s.f.ports.Port(s.vport); p != nil && s.made == made && s.seg == nil {
		p.SetAdmin(s.f.h.n.now(), false)
	}
}

// opened takes what became of create.
func (s *veswSlot) opened(seg vnic.Segment, name string, err error) {
	if err != nil {
		if s.why == nil || s.why.Error() != err.Error() {
			s.f.h.n.log.Warn("a VESW port has no interface", "device", s.f.a.Name, "vport", s.vport, "vesw", s.vesw, "err", err)
		}
		s.again(err)
		return
	}
	s.seg, s.name, s.why, s.since = seg, name, nil, s.f.h.n.now()
	s.f.h.n.log.Info("VESW port", "interface", name, "device", s.f.a.Name, "vport", s.vport, "vesw", s.vesw)
	s.follow()
	s.f.h.changed()
}

// lost begins anew after somebody removed the interface.
func (s *veswSlot) lost(err error) {
	s.f.h.n.log.Warn("the interface of a VESW port is gone", "interface", s.name, "err", err)
	if s.f.h.n.now().Sub(s.since) >= veswSettled {
		s.tries = 0
	}
	with := s.with
	s.discard()
	s.asked, s.with = true, with
	s.again(err)
}

// again has the segment tried again, later each time; why is in the status until it is there.
func (s *veswSlot) again(err error) {
	s.why = err
	made := s.made
	time.AfterFunc(s.f.h.retry<<min(s.tries, veswRetryDoubled), func() {
		s.f.h.n.sub.Post(func() {
			if s.made == made && s.port != nil {
				s.create(s.with)
			}
		})
	})
	s.tries++
	s.absent(made)
	s.f.h.changed()
}

// discard ends the segment, or the making of it.
func (s *veswSlot) discard() {
	if !s.asked {
		return
	}
	port, h := s.port, s.f.h
	s.made++
	s.asked, s.told, s.seg, s.name, s.with = false, 0, nil, "", nil
	s.work.Post(func() {
		if s.current == nil {
			return
		}
		h.n.lanes.First().Do(func() { h.lane.detach(port) })
		if err := s.current.Close(); err != nil {
			h.n.log.Warn("an interface was not closed", "device", s.f.a.Name, "vport", s.vport, "err", err)
		}
		s.current = nil
	})
}

// follow tells the port what the owner of the interface made of it. While the segment is still
// to be told something, that says nothing: it may be from before.
func (s *veswSlot) follow() {
	if s.seg == nil || s.told > 0 {
		return
	}
	e := s.news
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
