// SPDX-License-Identifier: Apache-2.0

package node

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
	"weft/internal/node/session"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/ipoib"
	"weft/internal/service/ipoib/connected"
	"weft/internal/verbs/hca"
)

// ipLink is an IP link at work: an ipoib.Link on a lane, its session, and the
// network device that stands for it. What may wait happens on a goroutine of its own, in
// the order in which it was asked for.
type ipLink struct {
	h    *ipoibHost
	q    *ipoibRequest
	cfg  ipoib.LinkConfig
	f    *function
	work ordered

	// Set by start, before the link is; lane under the host's mu.
	lane *lane.Lane
	al   *ipoibAL

	// The lane's.
	link   *ipoib.Link   // nil before it starts and after its end
	feed   *ipoibFeed    // nil while there is no device
	back   ipoib.Backend // nil while there is no device
	made   uint64        // devices asked for, and taken away: names the present one
	news   *ipoib.BackendEvent
	opened bool // the device is set up

	// work's.
	device ipoib.Backend // the one made last
	end    chan struct{} // closed for its reader
	read   sync.WaitGroup
	ending bool // it is to go

	why string // under the host's mu: why it has not started

	// addrs are the addresses of the device, while it has any, for whoever wants
	// to know.
	addrs atomic.Pointer[[]netip.Prefix]
}

var _ lane.Poller = (*ipLink)(nil)

// start opens the session and begins the life of the link. It is called by
// work.
func (l *ipLink) start() {
	if l.ending {
		return
	}
	n := l.h.n
	var al *ipoibAL
	qps, mtu := uint32(session.InternalQPs), feedMTU
	if l.cfg.Params.Mode == ipoib.Connected {
		// Those that end go a little later than others come.
		qps, mtu = ipConnSessions+2*uint32(l.cfg.Params.MaxConns), connected.MTU
	}
	r, err := n.sessions.OpenInternal(l.f.a, sessionName, qps, func(e ib.Event, object uint32) { al.failed(e, object) })
	if err != nil {
		l.h.failed(l, "no session: "+err.Error())
		time.AfterFunc(sessionRetry, func() { l.work.post(l.start) })
		return
	}
	l.h.failed(l, "")
	al = &ipoibAL{Internal: r, n: n, f: l.f, mtu: mtu}
	al.link = l
	l.h.mu.Lock()
	l.lane, l.al = r.Lane(), al
	l.h.mu.Unlock()
	al.gsi = n.sub.OpenUser(l.f.a.Number(), l.answered, l.noticed)
	var seed [16]byte
	rand.Read(seed[:])
	rnd := mrand.New(mrand.NewPCG(binary.NativeEndian.Uint64(seed[:]), binary.NativeEndian.Uint64(seed[8:])))
	l.lane.Do(func() {
		l.link = ipoib.New(l.cfg, rnd, l.al.access(), ipoib.Device{Interface: l, Packets: l, Events: l})
		l.lane.AddPoller(l)
		l.link.Start(l.lane.Now(), portOf(l.f.a))
	})
}

const (
	// interrupts bounds the batches of completions of a turn: with those of
	// sends, more than a turn brings (burstsOfTurn of package lane).
	interrupts = 16
	// sessionName is what people see in place of a program's name.
	sessionName = "ipoib"
	// sessionRetry is when a link that got no session tries again.
	sessionRetry = time.Second
)

// onLane has f run on the lane with the link, if there is one then. It is
// called after start.
func (l *ipLink) onLane(f func(now mono.Time, link *ipoib.Link)) {
	l.lane.Post(func() {
		if l.link != nil {
			f(l.lane.Now(), l.link)
		}
	})
}

// setPort tells the link what has become of its port; it is called by work.
func (l *ipLink) setPort(p ipoib.Port, events []ib.Event) {
	if l.lane != nil {
		l.onLane(func(now mono.Time, link *ipoib.Link) { link.SetPort(now, p, events...) })
	}
}

// answered and noticed are called on the management goroutine.
func (l *ipLink) answered(_ mono.Time, id uint32, m *mad.SA) {
	status, record := m.Status, m.Data
	l.onLane(func(now mono.Time, link *ipoib.Link) { link.SAResponse(now, id, status, record[:]) })
}

func (l *ipLink) noticed(_ mono.Time, n *mad.Notice) {
	if trap := n.TrapNumber; n.Generic && trap >= mad.TrapGIDInService && trap < mad.TrapGIDInService+4 {
		gid := n.GID()
		l.onLane(func(now mono.Time, link *ipoib.Link) { link.Notice(now, trap, gid) })
	}
}

// stop ends the link; it is called by work.
func (l *ipLink) stop() {
	switch {
	case l.ending:
	case l.lane == nil:
		l.h.gone(l)
	default:
		l.onLane(func(now mono.Time, link *ipoib.Link) { link.Stop(now) })
	}
	l.ending = true
}

// Begin implements lane.Poller: packets of the IP stack go to the link before queue
// pairs run.
func (l *ipLink) Begin(now mono.Time) bool {
	l.al.settle() // a fault may have unwound the lane before Finish
	return l.feed != nil && l.feed.send(now, l.link)
}

// Finish implements lane.Poller: completions go to the link after queue pairs ran.
func (l *ipLink) Finish(now mono.Time) bool {
	defer l.al.settle()
	busy := l.al.Complete(now)
	for range interrupts {
		if l.link == nil || !l.al.intr {
			break
		}
		busy = true
		l.al.intr = l.link.Interrupt(now)
	}
	if l.link != nil && l.al.lost(now, l.link) {
		busy = true
	}
	if l.link != nil && l.al.broken {
		l.al.broken, busy = false, true
		l.link.QPError(now)
	}
	if l.link != nil && l.link.Deadline().Due(now) {
		l.link.Tick(now)
		busy = true
	}
	return busy
}

// Sleep implements lane.Poller.
func (l *ipLink) Sleep() bool {
	return !l.al.Completed() && !l.al.intr && !l.al.broken && len(l.al.fatal) == 0 && (l.feed == nil || !l.feed.ready())
}

// Deadline implements lane.Poller.
func (l *ipLink) Deadline() mono.Time {
	if l.link == nil {
		return 0
	}
	return l.link.Deadline()
}

// rouse wakes the lane for packets that were read.
func (l *ipLink) rouse() { l.lane.Wake() }

// Register implements ipoib.Interface: the device is made elsewhere.
func (l *ipLink) Register(d ipoib.DeviceInfo) {
	l.made++
	made := l.made
	l.work.post(func() {
		b, err := l.h.open(l.q, d, func(e ipoib.BackendEvent) { l.follow(made, e) })
		if err != nil {
			l.onLane(func(now mono.Time, link *ipoib.Link) { link.Registered(now, err) })
			return
		}
		end := make(chan struct{})
		l.device, l.end = b, end
		lost := func(err error) {
			if !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrClosed) {
				l.h.n.sub.Post(func() { l.h.lost(l, err) })
			}
		}
		l.onLane(func(now mono.Time, link *ipoib.Link) {
			if l.made != made {
				return
			}
			feed := l.al.feed
			feed.reset(l.rouse)
			if from, direct := b.(polled); !direct {
				l.read.Go(func() {
					if err := feed.read(b, end); err != nil {
						lost(err)
					}
				})
			} else {
				if err := from.Control(func(fd int) error { return l.lane.WatchInput(fd, &feed.heard) }); err != nil {
					l.work.post(l.closeDevice)
					link.Registered(now, err)
					return
				}
				feed.from, feed.lost = from, func(err error) { l.unwatch(); lost(err) }
			}
			l.back, l.feed = b, feed
			link.Registered(now, nil)
			l.take(now, link)
		})
	})
}

// follow hears what somebody changed of a device, on a goroutine of that.
func (l *ipLink) follow(made uint64, e ipoib.BackendEvent) {
	l.onLane(func(now mono.Time, link *ipoib.Link) {
		if l.made != made {
			return
		}
		if l.news = &e; l.back != nil {
			l.take(now, link)
		}
	})
}

// take gives the link the news of its device, which it has registered.
func (l *ipLink) take(now mono.Time, link *ipoib.Link) {
	e := l.news
	if e == nil {
		return
	}
	l.news = nil
	link.SetAddrs(now, e.Addrs, e.OnLink)
	addrs := slices.Clone(e.Addrs)
	l.addrs.Store(&addrs)
	link.MTUChanged(now, e.MTU)
	switch {
	case e.Up && !l.opened:
		link.Open(now)
	case !e.Up && l.opened:
		link.Close(now)
	}
	l.opened = e.Up
}

// Unregister implements ipoib.Interface.
func (l *ipLink) Unregister() {
	l.made++
	l.unwatch()
	l.back, l.feed, l.news = nil, nil, nil
	l.addrs.Store(nil)
	l.work.post(l.closeDevice)
}

// unwatch lets the lane listen to the device no longer: its descriptor is about
// to be closed.
func (l *ipLink) unwatch() {
	if l.feed == nil || l.feed.from == nil {
		return
	}
	l.feed.from.Control(func(fd int) error { l.lane.UnwatchInput(fd); return nil })
	l.feed.from = nil
}

// closeDevice takes the device away; it is called by work.
func (l *ipLink) closeDevice() {
	if l.device == nil {
		return
	}
	close(l.end)
	if err := l.device.Close(); err != nil {
		l.h.n.log.Warn("an IP interface was not closed", "link", l.cfg.Name, "err", err)
	}
	l.read.Wait()
	l.device = nil
}

// SetCarrier implements ipoib.Interface.
func (l *ipLink) SetCarrier(on bool, _ string) {
	l.onDevice("carrier", func(b ipoib.Backend) error { return b.SetCarrier(on) })
}

// SetMTU implements ipoib.Interface.
func (l *ipLink) SetMTU(mtu int) {
	l.onDevice("MTU", func(b ipoib.Backend) error { return b.SetMTU(mtu) })
}

// onDevice has work change the device.
func (l *ipLink) onDevice(what string, f func(ipoib.Backend) error) {
	l.work.post(func() {
		if l.device == nil {
			return
		}
		if err := f(l.device); err != nil {
			l.h.event(l.cfg.Name, ipoib.EventLog.String(), what+" of the device: "+err.Error())
		}
	})
}

// Deliver implements ipoib.PacketReceiver.
func (l *ipLink) Deliver(packets [][]byte) (dropped int) {
	if l.back == nil || l.back.WriteBatch(packets, 0) != nil {
		return len(packets)
	}
	return 0
}

// Wake implements ipoib.PacketReceiver.
func (l *ipLink) Wake() {
	if l.feed != nil {
		l.feed.held = false
	}
}

// Event implements ipoib.Events.
func (l *ipLink) Event(_ mono.Time, e ipoib.Event) {
	text := e.Text
	if e.Addr.IsValid() {
		text = e.Addr.String() + " " + text
	}
	l.h.event(l.cfg.Name, e.Kind.String(), text)
}

// Closed implements ipoib.Interface.
func (l *ipLink) Closed(err error) {
	if err != nil {
		l.h.event(l.cfg.Name, ipoib.EventLog.String(), err.Error())
	}
	l.unwatch()
	l.link, l.back, l.feed = nil, nil, nil
	l.addrs.Store(nil)
	l.work.post(func() {
		l.closeDevice()
		l.al.gsi.Close()
		l.lane.Do(func() { l.lane.RemovePoller(l) })
		l.al.Close()
		l.h.gone(l)
	})
}

// portOf describes a function's port to a link.
func portOf(a *hca.Adapter) ipoib.Port {
	p := a.Port()
	v := ipoib.Port{State: p.State, LID: p.LID, LMC: p.LMC, SMLID: p.SMLID, MTU: p.MTU,
		Rate: ib.RateOf(p.Width, p.Speed, p.SpeedExt), PKeys: p.PKeys}
	if len(p.GIDs) > 0 {
		v.GID = p.GIDs[0].GID
	}
	return v
}
