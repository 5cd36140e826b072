// SPDX-License-Identifier: Apache-2.0

// Package ethdev is the Ethernet half of the virtio-net device: between the
// receive and transmit rings of a guest and a segment of a virtual Ethernet
// switch.
//
// What comes in: messages of a vhost-user session (package vhost), which call a
// Device from the session's goroutine; frames of a guest, copied once out of
// its rings into memory nobody else can change, with the offloads it claims,
// which are not judged here (ether.Offload.Check); frames of the segment. What
// goes out: the same the other way, copied once into the guest's buffers. Package
// node makes a Port per guest and gives it to the vport as its vnic.Segment;
// each front-end that connects gets a Device of it.
//
// Everything but the calls of vhost.Device runs on one lane. Nothing is
// allocated per frame. It must never believe the guest's memory twice, wait
// for a guest, or let a broken ring cost more than the ring.
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
	// Do runs f on the lane and waits for it; it fails when the lane has ended.
	Do(f func()) error
	// Watch lets the lane take a turn whenever k becomes readable, which it
	// clears. Watch and Unwatch are called on the lane.
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
	// MAC is told to front-ends that ask for it. QEMU's guests have their own.
	MAC [6]byte
	// Forget is how long the addresses of a guest stay the port's when its front-end has gone; 0 is
	// ForgetAfter. A front-end that comes again in time finds them.
	Forget time.Duration
	// Event, if set, hears what the guest wants of the vport. It is called on
	// the lane, or on a session's goroutine, one call at a time, and must not call back.
	Event func(vnic.SegmentEvent)
}

// Queue pairs. A message of vhost-user names rings up to 255.
const (
	DefaultPairs = 8
	MaxPairs     = 127
)

// ForgetAfter is longer than a front-end, or a node, takes to come again.
const ForgetAfter = 5 * time.Second

// readBytes is the memory for frames of one TryReadBatch: at least one of the
// longest fits, and all of it fits a processor's cache.
const readBytes = 256 << 10

// Port is the segment of one guest. It outlives the guest's sessions: a
// front-end that comes again finds it as it was.
type Port struct {
	cfg   Config
	shown atomic.Pointer[abi.Config] // the configuration space
	limit atomic.Int64               // the longest MTU there may be, 0: not known
	busy  chan struct{}              // held by the device that there is

	// The lane's.
	Stats  Stats
	dev    *Device // nil: no front-end
	front  int     // counts them
	arena  []byte
	closed bool
	armed  bool
	rarp   [6]byte // who is to be announced; zero: nobody
	hear   hearing
	told   vnic.SegmentEvent
}

var _ vnic.Segment = (*Port)(nil)

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

// show makes the configuration space.
func (p *Port) show(mtu int, carrier bool) {
	c := &abi.Config{MAC: p.hear.own, MTU: uint16(min(mtu, 65535)), MaxVirtqueuePairs: uint16(p.cfg.Pairs), Speed: 0xffffffff, Duplex: 0xff}
	if carrier {
		c.Status = statusLinkUp
	}
	p.shown.Store(c)
}

// statusLinkUp is VIRTIO_NET_S_LINK_UP.
const statusLinkUp = 1

// Configure implements vnic.Segment. The guest's own configuration decides on
// its MTU, so the vport's is asked to be as long as it can.
func (p *Port) Configure(d vnic.Device) {
	if d.MAC != ([6]byte{}) && p.hear.own == ([6]byte{}) {
		p.hear.own = d.MAC
	}
	p.limit.Store(int64(d.MaxMTU))
	p.show(max(d.MTU, d.MaxMTU), d.Carrier)
	p.told.MTU = d.MaxMTU
	p.tell()
}

// tell lets the owner know what the guest wants.
func (p *Port) tell() {
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

// Close implements vnic.Segment. The owner closes the door first.
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

// takeover is how long a front-end that comes again waits for the end of the
// session before.
const takeover = 2 * time.Second

// Attach makes the device of a session; it is what vhost.Config.New is to
// call. A port has one front-end at a time.
func (p *Port) Attach(s *vhost.Session) (*Device, error) {
	select {
	case p.busy <- struct{}{}:
	case <-time.After(takeover):
		return nil, fmt.Errorf("the port is in use by another front-end")
	}
	d := newDevice(p, s, s.Mem())
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

// left has the addresses of a guest forgotten, unless a front-end comes again; on the lane. It is another guest's
// then whose addresses they are, at another port perhaps.
func (p *Port) left() {
	front := p.front
	time.AfterFunc(p.cfg.Forget, func() {
		_ = p.cfg.Lane.Do(func() { // a lane that has ended tells nobody anything
			if p.front == front && !p.closed && p.hear.forget() {
				p.tell()
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
