// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// Out is the link of an engine. One value usually implements all of it. It must not call the engine from within, but
// for Undeliverable and TooBig.
type Out struct {
	Frames     Frames
	Resolution Resolution
	Membership Membership
}

// Frames sends frames. They start with a hard header and are valid during the call.
type Frames interface {
	// Xmit sends a frame to the destination in its hard header.
	Xmit(now mono.Time, frame []byte)
	// Deliver gives the IP stack a packet that the engine made, an ICMP error or a query, behind
	// wire.HardHeaderLen bytes.
	Deliver(now mono.Time, frame []byte)
}

// Resolution receives what the engine finds out about IP addresses.
type Resolution interface {
	// Learned reports that ip is at hw: the address is new, has changed, or was confirmed.
	Learned(now mono.Time, ip netip.Addr, hw wire.HWAddr)
	// Resolved or Unresolved ends a Resolve: one of them is called once, however often Resolve was called.
	Resolved(now mono.Time, ip netip.Addr, hw wire.HWAddr)
	Unresolved(now mono.Time, ip netip.Addr)
	// Conflict reports that another node at hw uses ip, an address of this interface; at most once in ten
	// seconds for each address.
	Conflict(now mono.Time, ip netip.Addr, hw wire.HWAddr)
}

// Membership follows the groups to receive. IP groups that share an InfiniBand group are one: Leave repeats the address
// that Join had.
type Membership interface {
	Join(now mono.Time, group netip.Addr)
	Leave(now mono.Time, group netip.Addr)
}

// Config holds the bounds of an engine. Zero values mean the defaults.
type Config struct {
	MaxNeighbours int // 16384; the least recently used one is removed
	// QueueFrames (64) and QueueBytes (128 KiB) bound the frames that wait for one neighbour, PoolFrames (1024)
	// those that wait for all.
	QueueFrames, QueueBytes, PoolFrames int
	MaxAddrs                            int // 256 of the interface
	MaxGroups                           int // 4096 to receive
	// Rand spreads the reachable time (RFC 4861, 6.3.2). It must be set.
	Rand *rand.Rand
}

// Validate returns all faults of c.
func (c *Config) Validate() error {
	var faults []error
	for _, v := range []struct {
		name string
		n    int
	}{{"MaxNeighbours", c.MaxNeighbours}, {"QueueFrames", c.QueueFrames}, {"QueueBytes", c.QueueBytes},
		{"PoolFrames", c.PoolFrames}, {"MaxAddrs", c.MaxAddrs}, {"MaxGroups", c.MaxGroups}} {
		if v.n < 0 || v.n > 1<<24 {
			faults = append(faults, fmt.Errorf("%s: %d is not in 0 … %d", v.name, v.n, 1<<24))
		}
	}
	if c.Rand == nil {
		faults = append(faults, errors.New("no source of randomness in Rand"))
	}
	return errors.Join(faults...)
}

// def sets a default.
func def(n *int, d int) {
	if *n == 0 {
		*n = d
	}
}

// LinkInfo describes the link to the engine.
type LinkInfo struct {
	HW    wire.HWAddr
	PKey  ib.PKey
	Scope uint8 // of the broadcast group
	MTU   int   // of IP packets, in bytes
}

// Kind is how a frame was addressed.
type Kind uint8

// Kinds of frames: to this interface alone, to the broadcast group, to another group.
const (
	Host Kind = iota
	Broadcast
	Multicast
)

// Times of RFC 4861, 10, of RFC 4862, 5.1 and of RFC 5227, 1.1; the others are of docs/notes/ipoib.md, section 4.
const (
	retransTime   = time.Second
	maxProbes     = 3 // multicast, and unicast
	reachableTime = 30 * time.Second
	delayTime     = 5 * time.Second
	staleTime     = 60 * time.Second
	announceCount = 3
	announceTime  = time.Second
	detectTime    = time.Second
	lockTime      = time.Second // between changes of a neighbour's address
	defendTime    = 10 * time.Second
	queryCount    = 2 // of the groups of the IP stack: its reports without carrier were lost
	queryTime     = time.Second
)

// tickMax bounds the timers of one Tick, for the sake of the lane. If more are due, so is Deadline.
const tickMax = 256

const headroom = wire.HardHeaderLen

// Engine is the resolver of one link. It has one owner and no lock.
type Engine struct {
	cfg   Config
	out   Out
	link  LinkInfo
	ready bool // SetLink was called
	up    bool

	table  table
	timers timers
	pool   pool
	groups groups

	addrs     map[netip.Addr]*address
	broadcast map[netip.Addr]struct{} // directed ones, of the prefixes on the link

	unreachable, tooBig bucket
	query               timer // of the groups of the IP stack
	queries             int   // that are left
	scratch             [headroom + maxScratch]byte
	reports             []wire.GroupReport
	c                   Counters
}

// maxScratch bounds the packets that the engine makes: a router solicitation of the IP stack grows by an option, others
// are shorter.
const maxScratch = 4096 + wire.SourceLinkRoom

// New returns an engine without link and addresses.
//
// Preconditions: cfg.Validate returns nil.
func New(cfg Config, out Out) *Engine {
	def(&cfg.MaxNeighbours, 16384)
	def(&cfg.QueueFrames, 64)
	def(&cfg.QueueBytes, 128<<10)
	def(&cfg.PoolFrames, 1024)
	def(&cfg.MaxAddrs, 256)
	def(&cfg.MaxGroups, 4096)
	e := &Engine{cfg: cfg, out: out, addrs: map[netip.Addr]*address{}, broadcast: map[netip.Addr]struct{}{}}
	e.table.init(cfg.MaxNeighbours)
	e.pool.max = cfg.PoolFrames
	e.groups.init()
	return e
}

// SetLink sets the attributes of the link, first when its broadcast group was joined. A changed hardware address is
// announced.
func (e *Engine) SetLink(now mono.Time, l LinkInfo) {
	moved := e.ready && l.HW != e.link.HW
	e.link, e.ready = l, true
	if !moved {
		return
	}
	for n := range e.table.all() {
		n.makeHeader(&e.link.HW)
	}
	if e.up {
		for _, a := range e.sorted() {
			e.announce(now, a)
		}
	}
}

// SetUp follows the carrier. Up checks and announces the addresses, and queries the groups of the IP stack. Down
// removes all neighbours but permanent ones, and drops the frames that wait.
//
// Preconditions: SetLink was called.
func (e *Engine) SetUp(now mono.Time, up bool) {
	if up == e.up {
		return
	}
	e.up = up
	if !up {
		e.Flush(now)
		for _, a := range e.addrs {
			e.timers.Set(&a.timer, 0)
		}
		e.timers.Set(&e.query, 0)
		return
	}
	if e.groups.byIP[allHosts] == nil || e.groups.byIP[allHosts].permanent == 0 {
		e.groups.permanent(e, now, allHosts, 1)
		e.groups.permanent(e, now, allNodes, 1)
	}
	for _, a := range e.sorted() {
		e.start(now, a)
	}
	e.queries = queryCount
	e.queryStack(now)
}

// Deadline returns when Tick is due.
func (e *Engine) Deadline() mono.Time { return e.timers.Next() }

// Tick does what is due.
func (e *Engine) Tick(now mono.Time) {
	for range tickMax {
		due, ok := e.timers.PopDue(now)
		switch {
		case !ok:
			return
		case due.entry != nil:
			e.expire(now, due.entry)
		case due.addr != nil:
			e.addrExpire(now, due.addr)
		default:
			e.queryStack(now)
		}
	}
}

// bucket limits a rate: burst at once, then one per interval.
type bucket struct {
	tokens int
	filled mono.Time
}

const (
	errorBurst    = 32
	errorInterval = 10 * time.Millisecond
)

// allow takes a token, if there is one.
func (b *bucket) allow(now mono.Time) bool {
	if n := now.Sub(b.filled) / errorInterval; b.filled.IsZero() || n >= errorBurst {
		b.tokens, b.filled = errorBurst, now
	} else if n > 0 {
		b.tokens = min(b.tokens+int(n), errorBurst)
		b.filled = b.filled.Add(n * errorInterval)
	}
	if b.tokens == 0 {
		return false
	}
	b.tokens--
	return true
}
