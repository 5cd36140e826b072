// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"iter"
	"net/netip"

	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// State is the state of a neighbour (RFC 4861, 7.3.2).
type State uint8

// States of neighbours.
const (
	// Incomplete: the hardware address is unknown; frames wait. Solicitations are sent until a reply makes it
	// Reachable or Stale, or maxProbes are sent and the neighbour is removed.
	Incomplete State = iota
	// Reachable: a reply confirmed the address lately. After about reachableTime it is Stale.
	Reachable
	// Stale: the address may be out of date. A packet makes it Delay; staleTime without one removes the neighbour.
	Stale
	// Delay: a packet was sent with the address, which may be confirmed within delayTime. Then it is Probe.
	Delay
	// Probe: unicast solicitations are sent. A reply makes it Reachable; maxProbes without one remove the neighbour.
	Probe
	// Permanent: set by AddStatic. Only Delete removes it.
	Permanent
)

var stateNames = [...]string{"INCOMPLETE", "REACHABLE", "STALE", "DELAY", "PROBE", "PERMANENT"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// entry is a neighbour.
type entry struct {
	ip        netip.Addr
	hw        wire.HWAddr
	state     State
	router    bool
	resolving bool // Resolved or Unresolved is to be called
	noSource  bool // no solicitation was sent: there was no source address
	probes    uint8
	updated   mono.Time // when hw was stored
	header    [headroom]byte
	queue     queue
	timer     timer

	next, prev *entry // in its list, most recently used first; a free one has next only
}

// makeHeader makes the hard header of packets to n.
func (n *entry) makeHeader(src *wire.HWAddr) {
	wire.PutHardHeader(n.header[:], &n.hw, src, wire.EtherIPv4)
}

// table has the neighbours by address. When it is full the least recently used one is removed, first among those to
// which no packet was sent: a node that invents neighbours does not displace those in use.
type table struct {
	byIP map[netip.Addr]*entry
	max  int
	last *entry   // of the last lookup: consecutive packets have the same next hop
	list [2]entry // heads: of neighbours without packets, and with
	free *entry
}

func (t *table) init(limit int) {
	t.byIP, t.max, t.last = map[netip.Addr]*entry{}, limit, &entry{}
	for i := range t.list {
		t.list[i].next, t.list[i].prev = &t.list[i], &t.list[i]
	}
}

func (t *table) find(ip netip.Addr) *entry {
	if t.last.ip == ip && ip.IsValid() {
		return t.last
	}
	n := t.byIP[ip]
	if n != nil {
		t.last = n
	}
	return n
}

// use notes that a packet is sent to n.
func (t *table) use(n *entry) {
	head := &t.list[1]
	if head.next != n {
		n.unlink()
		n.link(head)
	}
}

func (n *entry) unlink() { n.next.prev, n.prev.next = n.prev, n.next }

func (n *entry) link(head *entry) {
	n.next, n.prev = head.next, head
	head.next.prev, head.next = n, n
}

// victim returns the neighbour to remove for another one; nil where the table is not full.
func (t *table) victim() *entry {
	if len(t.byIP) < t.max {
		return nil
	}
	for i := range t.list {
		for n := t.list[i].prev; n != &t.list[i]; n = n.prev {
			if n.state != Permanent {
				return n
			}
		}
	}
	return nil // all are permanent, which AddStatic prevents
}

// chunk is how many entries are allocated at a time.
const chunk = 64

// add adds a neighbour. Precondition: the table has room.
func (t *table) add(ip netip.Addr) *entry {
	if t.free == nil {
		c := make([]entry, chunk)
		for i := range c {
			c[i].next, t.free = t.free, &c[i]
		}
	}
	n := t.free
	t.free = n.next
	*n = entry{ip: ip}
	n.timer.Value.entry = n
	t.byIP[ip] = n
	n.link(&t.list[0])
	return n
}

// remove removes n. Precondition: its queue is empty and its timer stopped.
func (t *table) remove(n *entry) {
	delete(t.byIP, n.ip)
	n.unlink()
	n.ip = netip.Addr{} // for t.last
	n.prev, n.next, t.free = nil, t.free, n
}

// all yields every neighbour, the most recently used first, those without packets last. The one just yielded may be
// removed.
func (t *table) all() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for i := len(t.list) - 1; i >= 0; i-- {
			for n := t.list[i].next; n != &t.list[i]; {
				next := n.next
				if !yield(n) {
					return
				}
				n = next
			}
		}
	}
}

// queue has the frames that wait for a neighbour, in order.
type queue struct {
	head, tail *buffer
	n, bytes   int
}

// buffer is a copy of a waiting frame, with headroom.
type buffer struct {
	next *buffer
	b    []byte
}

// pool has the buffers of all queues.
type pool struct {
	free *buffer
	used int
	max  int
}

// push copies a frame to the end of q. It reports false where q or the pool is full. While half of the pool is in use,
// a queue has room for four only, so that one address that does not exist leaves room for others.
func (p *pool) push(q *queue, frame []byte, frames, bytes int) bool {
	if q.n >= frames || q.bytes+len(frame) > bytes || p.used >= p.max || p.used >= p.max/2 && q.n >= 4 {
		return false
	}
	b := p.free
	if b == nil {
		b = &buffer{}
	} else {
		p.free = b.next
	}
	b.b, b.next = append(b.b[:0], frame...), nil
	if q.tail == nil {
		q.head = b
	} else {
		q.tail.next = b
	}
	q.tail = b
	q.n++
	q.bytes += len(frame)
	p.used++
	return true
}

// pop removes and returns the first frame of q; nil where q is empty. The caller releases it to the pool.
func (q *queue) pop() *buffer {
	b := q.head
	if b == nil {
		return nil
	}
	if q.head = b.next; q.head == nil {
		q.tail = nil
	}
	q.n--
	q.bytes -= len(b.b)
	return b
}

// release returns a buffer to the pool.
func (p *pool) release(b *buffer) {
	b.next, p.free = p.free, b
	p.used--
}
