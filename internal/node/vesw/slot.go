// SPDX-License-Identifier: Apache-2.0

package vesw

import (
	"errors"
	"time"

	"weft/internal/control/api"
	"weft/internal/node/loop"
	"weft/internal/node/supervisor"
	"weft/internal/proto/mono"
	"weft/internal/service/vnic"
)

const (
	// retryAfter is the time after which a segment that could not be opened is tried again. It doubles with each
	// failure in a row, retryDoubled times at most.
	retryAfter   = 2 * time.Second
	retryDoubled = 4
	// settledAfter is the time after which the end of a segment no longer counts as a failure in a row.
	settledAfter = time.Minute
)

// netdev is the vnic.Netdev of a port: the Slot, and its effect on the interface.
type netdev struct {
	*vnic.Slot
	s *slot
}

var _ vnic.Netdev = (*netdev)(nil)

// SetVESW implements vnic.Netdev.
func (d *netdev) SetVESW(id uint16) error {
	err := d.Slot.SetVESW(id)
	if d.s.vesw = id; err != nil {
		d.s.vesw = 0
	}
	return err
}

// Configure implements vnic.Netdev.
func (d *netdev) Configure(dev vnic.Device) {
	d.Slot.Configure(dev)
	d.s.device = dev
	d.s.apply()
	d.s.f.h.changes.Announce()
}

// slot is a port number of a function, and the interface of the port that has it now. It belongs to the management
// goroutine.
type slot struct {
	f      *function
	vport  uint8
	worker *loop.Worker
	// segment is the interface; its owner is the management goroutine.
	segment *supervisor.Supervisor[*openedSegment]

	port     *lanePort // the lane's; nil: there is no port
	vesw     uint16
	device   vnic.Device
	open     bool             // a segment was opened, or is being opened
	with     *api.VESWRequest // the request that it was opened for
	changing int              // configurations that the worker has not made yet
	state    vnic.SegmentEvent
	seg      vnic.SegmentControl // nil while it is being opened
	name     string
	why      error     // the last attempt to open it failed
	tries    int       // attempts in a row that failed, or did not last
	since    mono.Time // when seg was opened
}

// openedSegment is an interface at work for a port.
type openedSegment struct {
	vnic.SegmentControl
	name string
	port *lanePort
}

func newSlot(f *function, vport uint8) *slot {
	s := &slot{f: f, vport: vport, worker: loop.NewWorker(&f.h.wg)}
	s.segment = supervisor.New(s.worker, func(g func()) { f.h.cfg.Subnet.Post(g) }, s.close)
	return s
}

// begin gives the number to a port.
func (s *slot) begin() {
	s.port = &lanePort{to: s.f.inlets, function: s.f.a.Number(), vport: s.vport}
	s.vesw, s.device, s.why, s.tries = 0, vnic.Device{}, nil, 0
}

// end frees the number.
func (s *slot) end() {
	port := s.port
	s.discard()
	s.port = nil
	s.worker.Post(func() { s.f.h.first.Do(func() { port.to.recv.Forget(port.vport) }) })
	s.f.h.changes.Announce()
}

// apply makes the interface what port and requests say.
func (s *slot) apply() {
	with := s.with
	if s.vesw != 0 {
		with = s.f.h.Requested(s.f.a.Name, s.vesw)
	}
	switch {
	case s.suspended():
		s.discard()
		s.segment.Term().Post(s.absent)
		s.f.h.changes.Announce()
	case s.open && with == s.with:
		s.configure()
	case s.vesw == 0: // the switch is not known yet
	default:
		s.discard()
		s.why, s.tries = nil, 0
		s.create(with)
	}
}

// suspended reports whether the port has no interface because the host is drained. Network cards of virtual machines
// and Ethernet ports of devices stay: only guests and programs use the host by them, and the drain ends these
// separately.
func (s *slot) suspended() bool { return s.f.h.suspended && s.hosted() }

// hosted reports whether the interface of the port is one of the host, or an IP stack in the node.
func (s *slot) hosted() bool {
	return !s.f.h.cards.Has(s.f.a.Name) && s.f.h.DevicePort(s.f.a.Name) == nil
}

// configure passes the port's configuration to the segment.
func (s *slot) configure() {
	dev := s.device
	s.changing++
	s.segment.Change(func(seg *openedSegment) { seg.Configure(dev) }, func() {
		s.changing--
		s.follow()
	})
}

// create opens a segment for a request.
func (s *slot) create(with *api.VESWRequest) {
	dev, port, h := s.device, s.port, s.f.h
	if port.sender == nil {
		port.sender = s.f.ports.Port(s.vport).Sender()
	}
	wake := h.first.Wake
	s.segment.Open(func(t supervisor.Term) (*openedSegment, error) {
		notify := func(e vnic.SegmentEvent) {
			t.Post(func() {
				s.state = e
				s.follow()
			})
		}
		seg, name, err := h.Open(Opening{with, dev, wake, notify, s})
		if err != nil {
			return nil, err
		}
		failed := func(err error) { t.Post(func() { s.removed(err) }) }
		e := h.first.Do(func() { err = h.data.attach(port, seg.Segment, failed) })
		if err = errors.Join(e, err); err != nil {
			seg.Control.Close()
			return nil, err
		}
		return &openedSegment{seg.Control, name, port}, nil
	}, s.opened)
	s.open, s.with = true, with
	s.segment.Term().Post(s.absent) // not at once: the port may be calling
}

// absent sets the port down as long as there is no interface.
func (s *slot) absent() {
	if p := s.f.ports.Port(s.vport); p != nil && s.seg == nil {
		p.SetAdmin(s.f.h.cfg.Now(), false)
	}
}

// opened puts a new segment to work, or tries again later.
func (s *slot) opened(seg *openedSegment, err error) {
	if err != nil {
		if s.why == nil || s.why.Error() != err.Error() {
			s.f.h.cfg.Log.Warn("a VESW port has no interface", "device", s.f.a.Name, "vport", s.vport, "vesw", s.vesw,
				"err", err)
		}
		s.retry(err)
		return
	}
	s.seg, s.name, s.why, s.since = seg.SegmentControl, seg.name, nil, s.f.h.cfg.Now()
	s.f.h.cfg.Log.Info("VESW port", "interface", seg.name, "device", s.f.a.Name, "vport", s.vport, "vesw", s.vesw)
	s.follow()
	s.f.h.changes.Announce()
}

// removed opens the interface again after it was removed from outside.
func (s *slot) removed(err error) {
	s.f.h.cfg.Log.Warn("the interface of a VESW port is gone", "interface", s.name, "err", err)
	if s.f.h.cfg.Now().Sub(s.since) >= settledAfter {
		s.tries = 0
	}
	with := s.with
	s.discard()
	s.open, s.with = true, with
	s.retry(err)
}

// retry opens the segment again, later each time; the status shows err until it is there.
func (s *slot) retry(err error) {
	s.why = err
	s.segment.Term().After(s.f.h.Retry<<min(s.tries, retryDoubled), func() {
		if s.port != nil {
			s.create(s.with)
		}
	})
	s.tries++
	s.absent()
	s.f.h.changes.Announce()
}

// discard closes the segment, or gives up opening it.
func (s *slot) discard() {
	if s.open {
		s.open, s.changing, s.seg, s.name, s.with = false, 0, nil, "", nil
		s.segment.Discard()
	}
}

// close closes a segment. The worker calls it.
func (s *slot) close(seg *openedSegment) {
	h := s.f.h
	h.first.Do(func() { h.data.detach(seg.port) })
	if err := seg.Close(); err != nil {
		h.cfg.Log.Warn("an interface was not closed", "device", s.f.a.Name, "vport", s.vport, "err", err)
	}
}

// follow passes the state of the interface, which its owner may have changed, to the port. While a configuration is on
// its way to the segment the state may be older, and is not passed.
func (s *slot) follow() {
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
	now := s.f.h.cfg.Now()
	if e.MAC != ([6]byte{}) {
		if err := p.SetMAC(now, e.MAC); err != nil {
			s.f.h.cfg.Log.Warn("MAC of a VESW port", "interface", s.name, "err", err)
		}
	}
	p.SetFilters(now, e.Unicast, e.Multicast)
	if e.MTU != p.Device().MTU {
		if err := p.SetMTU(now, e.MTU); err != nil {
			s.f.h.cfg.Log.Warn("MTU of a VESW port", "interface", s.name, "err", err)
		}
	}
	p.SetAdmin(now, e.Up)
}
