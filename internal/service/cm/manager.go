// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"container/list"
	"math/rand/v2"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Port holds the attributes of a port of the node that a Manager depends on.
type Port struct {
	Link   ib.LinkLayer
	CAGUID ib.GUID
	LID    ib.LID
	LMC    uint8
	MTU    ib.MTU
	GIDs   []ib.GID
	MTUs   []ib.MTU // the largest path MTU by each GID; beyond its end and where it is 0: MTU
	PKeys  []ib.PKey
}

// pathMTU is the largest path MTU by the GID with an index.
func (p *Port) pathMTU(gid int) ib.MTU {
	if gid < len(p.MTUs) && p.MTUs[gid].Valid() {
		return min(p.MTUs[gid], p.MTU)
	}
	return p.MTU
}

// Ports is the ports of the node.
type Ports interface {
	// Port returns the port of a function, as it is now; false where there is
	// none. The slices do not change.
	Port(function uint16) (Port, bool)
}

// Limits bound what a Manager holds.
type Limits struct {
	Conns     int // connections in any state, TIMEWAIT included
	Listeners int
	Lookups   int // of this node, and as many of others
	Out       int // datagrams that wait to be sent
}

// DefaultLimits are those of a Config that states none.
var DefaultLimits = Limits{Conns: 16384, Listeners: 4096, Lookups: 4096, Out: 4096}

// Config configures a Manager.
type Config struct {
	// Rand makes identifiers and packet sequence numbers, which strangers must not
	// guess.
	Rand   *rand.Rand
	Limits Limits // DefaultLimits where a field is 0
}

// Manager is the communication manager of a node. The package comment states its concurrency.
type Manager struct {
	// Stats may be read on the goroutine that calls the Manager.
	Stats Stats

	rand  *rand.Rand
	max   Limits
	ports Ports

	conns     map[uint32]*Conn   // by this side's identifier
	byRemote  map[remoteID]*Conn // by the peer's
	byQP      map[remoteQP]*Conn // by the peer's queue pair, not in TIMEWAIT
	waiting   list.List          // of *Conn in TIMEWAIT, oldest first
	lookups   map[uint32]*Lookup // by request identifier
	inquiries map[inquiryID]*Inquiry
	answered  list.List   // of *Inquiry, oldest first
	listeners []*Listener // in order of precedence
	asked     int         // connections, and inquiries below, that wait for a listener's user
	inquired  int
	timers    mono.Heap[timed]
	out       []outgoing
	head      int // of out
	events    []event
	lastTID   uint64
}

// remoteID identifies a connection as the peer does, remoteQP the peer's queue pair. Any host can
// state the peer's GUID: on an Ethernet port both contain the source address of the message, so that
// other hosts cannot end the peer's connections or block new ones. On other links gid is zero.
type (
	remoteID struct {
		guid ib.GUID
		gid  ib.GID
		id   uint32
	}
	remoteQP struct {
		guid ib.GUID
		gid  ib.GID
		qpn  ib.QPN
	}
)

type outgoing struct {
	function uint16
	d        mad.Datagram
}

// event is an event that was not delivered yet; it is dropped if the user has closed its object.
type event struct {
	h    Handler
	gone *bool
	e    Event
}

// New returns a Manager of the given ports.
func New(cfg Config, ports Ports) *Manager {
	l := cfg.Limits
	for _, v := range []struct {
		p   *int
		def int
	}{{&l.Conns, DefaultLimits.Conns}, {&l.Listeners, DefaultLimits.Listeners}, {&l.Lookups,
		DefaultLimits.Lookups}, {&l.Out, DefaultLimits.Out}} {
		if *v.p == 0 {
			*v.p = v.def
		}
	}
	return &Manager{rand: cfg.Rand, max: l, ports: ports, conns: map[uint32]*Conn{}, byRemote: map[remoteID]*Conn{},
		byQP:    map[remoteQP]*Conn{},
		lookups: map[uint32]*Lookup{}, inquiries: map[inquiryID]*Inquiry{}, lastTID: cfg.Rand.Uint64() >> 32}
}

// Next returns a datagram to send from a function's port, false if there is none. The caller calls it
// after every other call until it returns false, and at Deadline: it also runs timers and calls
// handlers.
func (m *Manager) Next(now mono.Time, d *mad.Datagram) (function uint16, ok bool) {
	for {
		t, ok := m.timers.PopDue(now)
		if !ok {
			break
		}
		t.expire(m, now)
	}
	m.deliver(now)
	if m.head == len(m.out) {
		m.out, m.head = m.out[:0], 0
		return 0, false
	}
	o := &m.out[m.head]
	m.head++
	*d = o.d
	return o.function, true
}

// Deadline is when Next has something to do if nothing else happens.
func (m *Manager) Deadline() mono.Time { return m.timers.Next() }

// Pending reports whether Next has something to do now, timers excluded.
func (m *Manager) Pending() bool { return len(m.events) > 0 || m.head < len(m.out) }

// deliver calls the handlers of pending events. Handlers may add events.
func (m *Manager) deliver(now mono.Time) {
	for len(m.events) > 0 {
		events := m.events
		m.events = nil
		for i := range events {
			if e := &events[i]; e.h != nil && !*e.gone {
				e.h(now, &e.e)
			}
		}
	}
}

// send queues a datagram.
func (m *Manager) send(function uint16, d *mad.Datagram) {
	if len(m.out)-m.head >= m.max.Out {
		m.Stats.LostOut++
		return
	}
	m.out = append(m.out, outgoing{function, *d})
	m.Stats.Sent++
}

// newID returns an identifier that nothing of the kind has.
func newID[T any](m *Manager, used map[uint32]T) uint32 {
	for {
		id := m.rand.Uint32()
		if _, ok := used[id]; id != 0 && !ok {
			return id
		}
	}
}

// newTID returns a transaction identifier. Its upper half is zero: where programs share
// queue pair 1, none of theirs is.
func (m *Manager) newTID() uint64 {
	m.lastTID = (m.lastTID + 1) & 0xffffffff
	return m.lastTID
}

// timer is the deadline of a connection, a lookup or an inquiry.
type timer = mono.Timer[timed]

// timed has a timer, and an action for when it is due.
type timed interface {
	timer() *timer
	expire(m *Manager, now mono.Time)
}

// start sets a timer, whether it is set or not.
func (m *Manager) start(t timed, due mono.Time) {
	v := t.timer()
	v.Value = t
	m.timers.Set(v, due)
}

// stop stops a timer, whether it is set or not.
func (m *Manager) stop(t timed) { m.timers.Stop(t.timer()) }

// Bounds of the times that a peer may set: 17 s for a response, 69 s after an MRA.
const (
	maxTimeoutCode = 22
	maxServiceCode = 24
)

// wait is the time that a code stands for, with a bound on the code.
func wait(code, most uint8) time.Duration { return 4096 * time.Nanosecond << min(code&31, most) }
