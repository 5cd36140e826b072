// SPDX-License-Identifier: Apache-2.0

// Package ethdev is the Ethernet half of the virtio-net device: between the receive and transmit rings
// of a guest and a segment of a virtual Ethernet switch.
//
// What comes in: messages of a vhost-user session (package vhost), which call a Device from the
// session's goroutine; frames of a guest, copied once out of its rings into private memory, with the
// offloads it claims, which are not validated here (ether.Offload.Check); frames of the segment. What
// goes out: frames in the other direction, copied once into the guest's buffers. Package node makes a
// Port per guest and gives it to the vport as its vnic.Segment; each front-end that connects gets a
// Device of it.
//
// Everything except the calls of vhost.Device runs on one lane. Nothing is allocated per frame. The
// package must never read guest memory twice for one decision, block for a guest, or let a broken ring
// cost more than the ring.
package ethdev

import (
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"weft/internal/device/vhost"
	"weft/internal/proto/abi"
	"weft/internal/proto/ether"
	"weft/internal/service/vnic"
)

// Lane is what the node's goroutine that owns a Port offers it.
type Lane interface {
	// Do runs f on the lane and waits for it; it fails if the lane has ended.
	Do(f func()) error
	// Watch makes the lane take a turn whenever k becomes readable, which it clears. Watch and Unwatch
	// are called on the lane.
	Watch(k *vhost.Kick) error
	Unwatch(k *vhost.Kick)
	// Quiesce returns when every lane has finished what it was doing. It must
	// not be called on a lane.
	Quiesce()
}

// Config describes a port to make.
type Config struct {
	Lane Lane
	Log  *slog.Logger
	// Pairs is how many queue pairs a guest may have, 1 to MaxPairs; 0 is
	// DefaultPairs.
	Pairs int
	// MAC is the address in the device configuration. QEMU's guests have their own.
	MAC [6]byte
	// Forget is how long the addresses of a guest stay at the port after its front-end disconnected; 0
	// is ForgetAfter. A front-end that reconnects in time keeps them.
	Forget time.Duration
	// Event, if set, is called when the guest's requirements on the vport change. Calls come from the
	// lane or a session's goroutine, one at a time, and must not call back.
	Event func(vnic.SegmentEvent)
}

// Queue pairs. A message of vhost-user names rings up to 255.
const (
	DefaultPairs = 8
	MaxPairs     = 127
)

// ForgetAfter is longer than a front-end, or a node, takes to reconnect.
const ForgetAfter = 5 * time.Second

// readBytes is the memory for frames of one TryReadBatch: at least one of the
// longest fits, and all of it fits a processor's cache.
const readBytes = 256 << 10

// Port is the segment of one guest. It outlives the guest's sessions: a front-end that reconnects
// finds it unchanged.
type Port struct {
	cfg   Config
	shown atomic.Pointer[abi.Config] // the configuration space
	limit atomic.Int64               // upper bound of the MTU, 0: unknown
	busy  chan struct{}              // held by the device that there is

	// The lane's.
	Stats  Stats
	dev    *Device // nil: no front-end
	front  int     // counts them
	arena  []byte
	closed bool
	armed  bool
	rarp   [6]byte // address to announce; zero: none
	hear   hearing
	told   vnic.SegmentEvent
}

var (
	_ vnic.Segment        = (*Port)(nil)
	_ vnic.SegmentControl = (*Port)(nil)
)

// New makes a port.
func New(c Config) (*Port, error) {
	if c.Pairs == 0 {
		c.Pairs = DefaultPairs
	}
	if c.Pairs < 1 || c.Pairs > MaxPairs {
		return nil, fmt.Errorf("a port of %d queue pairs: 1 to %d are possible", c.Pairs, MaxPairs)
	}
	if c.Forget == 0 {
		c.Forget = ForgetAfter
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	p := &Port{cfg: c, busy: make(chan struct{}, 1), arena: make([]byte, readBytes)}
	p.hear.own = c.MAC
	p.show(1500, false)
	return p, nil
}

// show makes the configuration space. It notifies the front-end of a change.
func (p *Port) show(mtu int, carrier bool) {
	c := &abi.Config{MAC: p.hear.own, MTU: uint16(min(mtu, 65535)), MaxVirtqueuePairs: uint16(p.cfg.Pairs),
		Speed: 0xffffffff, Duplex: 0xff}
	if carrier {
		c.Status = statusLinkUp
	}
	old := p.shown.Swap(c)
	if p.dev != nil && *old != *c {
		p.dev.s.ConfigChanged()
	}
}

// setMAC makes mac the guest's own address, which the configuration space then shows.
func (p *Port) setMAC(mac [6]byte) {
	c := *p.shown.Load()
	p.hear.own, c.MAC = mac, mac
	p.shown.Store(&c)
	p.notify()
}

// statusLinkUp is VIRTIO_NET_S_LINK_UP.
const statusLinkUp = 1

// Configure implements vnic.SegmentControl. The guest's own configuration decides its MTU, so the vport's is
// requested as large as possible.
func (p *Port) Configure(d vnic.Device) {
	if d.MAC != ([6]byte{}) && p.hear.own == ([6]byte{}) {
		p.hear.own = d.MAC
	}
	p.limit.Store(int64(d.MaxMTU))
	p.show(max(d.MTU, d.MaxMTU), d.Carrier)
	p.told.MTU = d.MaxMTU
	p.notify()
}

// notify passes the guest's requirements to the owner.
func (p *Port) notify() {
	p.told.Up, p.told.MAC = true, p.hear.own
	p.told.Unicast, p.told.Multicast = p.hear.lists()
	if p.cfg.Event != nil {
		p.cfg.Event(p.told)
	}
}

// Takes implements vnic.Segment.
func (p *Port) Takes() ether.Features {
	if p.dev == nil {
		return 0
	}
	return p.dev.takes
}

// FD implements vnic.Segment: the lane wakes up by the kicks it watches.
func (p *Port) FD() int { return -1 }

// Arm implements vnic.Segment.
func (p *Port) Arm() (waiting bool) {
	if p.rarp != ([6]byte{}) {
		return true
	}
	if p.dev == nil {
		return false
	}
	p.armed = true
	return p.dev.arm()
}

// Close implements vnic.SegmentControl. The owner closes the socket first.
func (p *Port) Close() error {
	p.closed = true
	return nil
}

// TryReadBatch implements vnic.Segment.
func (p *Port) TryReadBatch(frames [][]byte, off []ether.Offload) (n int, err error) {
	if p.closed {
		return 0, os.ErrClosed
	}
	room := p.arena
	if p.rarp != ([6]byte{}) && len(frames) > 0 {
		frames[0], off[0] = announcement(room, p.rarp), ether.Offload{}
		room = room[len(frames[0]):]
		p.rarp = [6]byte{}
		p.Stats.Announced++
		n++
	}
	if d := p.dev; d != nil {
		if p.armed {
			p.armed = false
			d.disarm()
		}
		n += d.read(frames[n:], off[n:], room)
	}
	return n, nil
}

// WriteBatch implements vnic.Segment.
func (p *Port) WriteBatch(frames [][]byte, off []ether.Offload) (dropped int) {
	if p.dev == nil {
		p.Stats.RxNoGuest += uint64(len(frames))
		return len(frames)
	}
	return p.dev.write(frames, off)
}

// takeover bounds how long a reconnecting front-end waits for the end of the previous session.
const takeover = 2 * time.Second

// Attach makes the device of a session; it is what vhost.Config.New is to
// call. A port has one front-end at a time.
func (p *Port) Attach(s *vhost.Session) (*Device, error) { return p.attach(s, nil) }

func (p *Port) attach(s *vhost.Session, half RoCE) (*Device, error) {
	select {
	case p.busy <- struct{}{}:
	case <-time.After(takeover):
		return nil, fmt.Errorf("the port is in use by another front-end")
	}
	d := newDevice(p, s, s.Mem(), half)
	if err := p.cfg.Lane.Do(func() {
		p.dev = d
		p.front++
		if p.hear.n == maxHeard {
			p.hear.n, p.hear.last = 0, [6]byte{}
		}
	}); err != nil {
		<-p.busy
		return nil, err
	}
	return d, nil
}

// left schedules the removal of a guest's addresses unless a front-end reconnects; on the lane.
// Another guest, perhaps at another port, may have the addresses then.
func (p *Port) left() {
	front := p.front
	time.AfterFunc(p.cfg.Forget, func() {
		_ = p.cfg.Lane.Do(func() { // an ended lane has nothing to notify
			if p.front == front && !p.closed && p.hear.forget() {
				p.notify()
			}
		})
	})
}

// Device returns the device of the session that there is, nil where there is
// none. On the lane.
func (p *Port) Device() *Device { return p.dev }

// announcement writes a reverse ARP request, by which switches learn where a
// station is (RFC 903).
func announcement(b []byte, mac [6]byte) []byte {
	b = b[:ether.MinFrame:ether.MinFrame]
	clear(b)
	for i := range 6 {
		b[i] = 0xff
	}
	copy(b[6:], mac[:])
	copy(b[12:], []byte{0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3})
	copy(b[22:], mac[:])
	copy(b[32:], mac[:])
	return b
}
