// SPDX-License-Identifier: Apache-2.0

package ipif

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	mrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft/internal/node/lane"
	"weft/internal/node/loop"
	"weft/internal/node/session"
	"weft/internal/node/supervisor"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/ipoib"
	"weft/internal/service/ipoib/connected"
	"weft/internal/verbs/hca"
)

// iface is an IP link at work: an ipoib.Link (the engine) on a lane, its session, and the network device that
// stands for it. What may wait happens on its worker, in order.
type iface struct {
	h       *Host
	request *request
	cfg     ipoib.LinkConfig
	adapter *hca.Adapter
	worker  *loop.Worker
	device  *supervisor.Supervisor[*backend] // its owner is the lane

	// Set by start, before the engine is; lane under the host's mu.
	lane   *lane.Lane
	access *access

	// The lane's.
	engine *ipoib.Link   // nil before it starts and after its end
	feed   *feed         // nil while there is no device
	back   ipoib.Backend // nil while there is no device
	state  *ipoib.BackendEvent
	opened bool // the device is set up

	ending bool // the worker's: it is to be removed

	failure error // under the host's mu: the reason for having no session or no device

	addrs atomic.Pointer[[]netip.Prefix] // of the device; nil while there is none
}

// backend is a network device with the goroutine that reads it, if there is one.
type backend struct {
	ipoib.Backend
	end  chan struct{} // closed for the reader
	read sync.WaitGroup
}

var _ lane.Poller = (*iface)(nil)

const (
	// interrupts bounds the batches of completions of a turn: with those of sends, more than a turn brings.
	interrupts = 16
	// sessionName is shown in place of a program's name.
	sessionName = "ipoib"
	// sessionRetry is the time after which a link without a session tries again.
	sessionRetry = time.Second
)

// start opens the session and starts the engine. The worker calls it.
func (l *iface) start() {
	if l.ending {
		return
	}
	h := l.h
	qps, mtu := uint32(session.InternalQPs), feedMTU
	if l.cfg.Params.Mode == ipoib.Connected {
		// A connection that ends may go a little later than another one comes.
		qps, mtu = connSessions+2*uint32(l.cfg.Params.MaxConns), connected.MTU
	}
	a := &access{h: h, adapter: l.adapter, mtu: mtu}
	a.iface = l
	// Events of the port may arrive on the lane before OpenInternal returns.
	s, err := h.cfg.Sessions.OpenInternal(l.adapter, sessionName, qps, a.failed)
	if err != nil {
		err = errors.New("no session: " + err.Error())
		if h.setFailure(l, err) {
			h.event(l.cfg.Name, ipoib.EventLog.String(), err.Error())
		}
		time.AfterFunc(sessionRetry, func() { l.worker.Post(l.start) })
		return
	}
	h.setFailure(l, nil)
	a.Internal = s
	h.mu.Lock()
	l.lane, l.access = s.Lane(), a
	h.mu.Unlock()
	a.sa = h.cfg.Subnet.OpenUser(l.adapter.Number(), l.answered, l.noticed)
	var seed [16]byte
	rand.Read(seed[:])
	rnd := mrand.New(mrand.NewPCG(binary.NativeEndian.Uint64(seed[:]), binary.NativeEndian.Uint64(seed[8:])))
	l.lane.Do(func() {
		l.engine = ipoib.New(l.cfg, rnd, l.access.parts(), ipoib.Device{Interface: l, Packets: l, Events: l})
		l.lane.AddPoller(l)
		l.engine.Start(l.lane.Now(), portOf(l.adapter))
	})
}

// onLane has the lane call f with the engine, if there is one then. It is called after start.
func (l *iface) onLane(f func(now mono.Time, engine *ipoib.Link)) {
	l.lane.Post(func() {
		if l.engine != nil {
			f(l.lane.Now(), l.engine)
		}
	})
}

// onOwner is onLane for the supervisor of the device.
func (l *iface) onOwner(f func()) { l.onLane(func(mono.Time, *ipoib.Link) { f() }) }

// setPort passes a change of the port to the engine. The worker calls it.
func (l *iface) setPort(p ipoib.Port, events []ib.Event) {
	if l.lane != nil {
		l.onLane(func(now mono.Time, engine *ipoib.Link) { engine.SetPort(now, p, events...) })
	}
}

// answered and noticed are called on the management goroutine.
func (l *iface) answered(_ mono.Time, id uint32, m *mad.SA) {
	status, record := m.Status, m.Data
	l.onLane(func(now mono.Time, engine *ipoib.Link) { engine.SAResponse(now, id, status, record[:]) })
}

func (l *iface) noticed(_ mono.Time, n *mad.Notice) {
	if trap := n.TrapNumber; n.Generic && trap >= mad.TrapGIDInService && trap < mad.TrapGIDInService+4 {
		gid := n.GID()
		l.onLane(func(now mono.Time, engine *ipoib.Link) { engine.Notice(now, trap, gid) })
	}
}

// stop ends the link. The worker calls it.
func (l *iface) stop() {
	switch {
	case l.ending:
	case l.lane == nil:
		l.h.removed(l)
	default:
		l.onLane(func(now mono.Time, engine *ipoib.Link) { engine.Stop(now) })
	}
	l.ending = true
}

// Begin implements lane.Poller: packets of the IP stack go to the engine before queue pairs run.
func (l *iface) Begin(now mono.Time) bool {
	l.access.commitSlots() // a fault may have unwound the lane before Finish
	return l.feed != nil && l.feed.send(now, l.engine)
}

// Finish implements lane.Poller: completions go to the engine after queue pairs ran.
func (l *iface) Finish(now mono.Time) bool {
	defer l.access.commitSlots()
	busy := l.access.Complete(now)
	for range interrupts {
		if l.engine == nil || !l.access.intr {
			break
		}
		busy = true
		l.access.intr = l.engine.Interrupt(now)
	}
	if l.engine != nil && l.access.reportFailed(now, l.engine) {
		busy = true
	}
	if l.engine != nil && l.access.broken {
		l.access.broken, busy = false, true
		l.engine.QPError(now)
	}
	if l.engine != nil && l.engine.Deadline().Due(now) {
		l.engine.Tick(now)
		busy = true
	}
	return busy
}

// Sleep implements lane.Poller.
func (l *iface) Sleep() bool {
	a := l.access
	return !a.Completed() && !a.intr && !a.broken && len(a.fatal) == 0 && (l.feed == nil || !l.feed.ready())
}

// Deadline implements lane.Poller.
func (l *iface) Deadline() mono.Time {
	if l.engine == nil {
		return 0
	}
	return l.engine.Deadline()
}

// Register implements ipoib.Interface: the worker makes the device.
func (l *iface) Register(d ipoib.DeviceInfo) {
	l.device.Open(func(t supervisor.Term) (*backend, error) {
		notify := func(e ipoib.BackendEvent) { t.Post(func() { l.deviceChanged(&e) }) }
		b, err := l.h.Open(l.request.describeDevice(d, notify))
		if err != nil {
			return nil, err
		}
		return &backend{Backend: b, end: make(chan struct{})}, nil
	}, l.registered)
}

// registered puts a device to work, or reports to the engine why there is none. The lane calls it.
func (l *iface) registered(b *backend, err error) {
	now := l.lane.Now()
	if err == nil {
		err = l.attach(b)
	}
	l.h.setFailure(l, err)
	if err != nil {
		l.device.Discard()
		l.engine.Registered(now, err)
		return
	}
	l.engine.Registered(now, nil)
	l.applyState(now)
}

// attach has the lane, or a goroutine of its own where the lane cannot poll it, read a device.
func (l *iface) attach(b *backend) error {
	feed := l.access.feed
	feed.reset(l.lane.Wake)
	failed := func(err error) {
		if !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrClosed) {
			l.h.cfg.Subnet.Post(func() { l.h.deviceRemoved(l, err) })
		}
	}
	if from, direct := b.Backend.(polled); direct {
		if err := from.Control(func(fd int) error { return l.lane.WatchInput(fd, &feed.readable) }); err != nil {
			return err
		}
		feed.from, feed.failed = from, func(err error) { l.unwatch(); failed(err) }
	} else {
		b.read.Go(func() {
			if err := feed.read(b, b.end); err != nil {
				failed(err)
			}
		})
	}
	l.back, l.feed = b.Backend, feed
	return nil
}

// deviceChanged follows a change that was made to the device from outside. The lane calls it.
func (l *iface) deviceChanged(e *ipoib.BackendEvent) {
	if l.state = e; l.back != nil {
		l.applyState(l.lane.Now())
	}
}

// applyState passes the latest state of the device, which is registered, to the engine.
func (l *iface) applyState(now mono.Time) {
	e := l.state
	if e == nil {
		return
	}
	l.state = nil
	l.engine.SetAddrs(now, e.Addrs, e.OnLink)
	addrs := slices.Clone(e.Addrs)
	l.addrs.Store(&addrs)
	l.engine.MTUChanged(now, e.MTU)
	switch {
	case e.Up && !l.opened:
		l.engine.Open(now)
	case !e.Up && l.opened:
		l.engine.Close(now)
	}
	l.opened = e.Up
}

// Unregister implements ipoib.Interface.
func (l *iface) Unregister() { l.discardDevice() }

// discardDevice ends the use of the device and has the worker close it.
func (l *iface) discardDevice() {
	l.unwatch()
	l.back, l.feed, l.state = nil, nil, nil
	l.addrs.Store(nil)
	l.device.Discard()
}

// unwatch has the lane poll the device no longer: its descriptor is about to be closed.
func (l *iface) unwatch() {
	if l.feed == nil || l.feed.from == nil {
		return
	}
	l.feed.from.Control(func(fd int) error { l.lane.UnwatchInput(fd); return nil })
	l.feed.from = nil
}

// closeDevice closes a device. The worker calls it.
func (l *iface) closeDevice(b *backend) {
	close(b.end)
	if err := b.Close(); err != nil {
		l.h.cfg.Log.Warn("an IP interface was not closed", "link", l.cfg.Name, "err", err)
	}
	b.read.Wait()
}

// SetCarrier implements ipoib.Interface.
func (l *iface) SetCarrier(on bool, _ string) {
	l.changeDevice("carrier", func(b ipoib.Backend) error { return b.SetCarrier(on) })
}

// SetMTU implements ipoib.Interface.
func (l *iface) SetMTU(mtu int) {
	l.changeDevice("MTU", func(b ipoib.Backend) error { return b.SetMTU(mtu) })
}

// changeDevice has the worker change the device.
func (l *iface) changeDevice(what string, change func(ipoib.Backend) error) {
	l.device.Change(func(b *backend) {
		if err := change(b.Backend); err != nil {
			l.h.event(l.cfg.Name, ipoib.EventLog.String(), what+" of the device: "+err.Error())
		}
	}, nil)
}

// Deliver implements ipoib.PacketReceiver.
func (l *iface) Deliver(packets [][]byte) (dropped int) {
	if l.back == nil || l.back.WriteBatch(packets, 0) != nil {
		return len(packets)
	}
	return 0
}

// Wake implements ipoib.PacketReceiver.
func (l *iface) Wake() {
	if l.feed != nil {
		l.feed.held = false
	}
}

// Event implements ipoib.Events.
func (l *iface) Event(_ mono.Time, e ipoib.Event) {
	text := e.Text
	if e.Addr.IsValid() {
		text = e.Addr.String() + " " + text
	}
	l.h.event(l.cfg.Name, e.Kind.String(), text)
}

// Closed implements ipoib.Interface.
func (l *iface) Closed(err error) {
	if err != nil {
		l.h.event(l.cfg.Name, ipoib.EventLog.String(), err.Error())
	}
	l.discardDevice()
	l.engine = nil
	l.worker.Post(func() {
		l.access.sa.Close()
		l.lane.Do(func() { l.lane.RemovePoller(l) })
		l.access.Close()
		l.h.removed(l)
	})
}
