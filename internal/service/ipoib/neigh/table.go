// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"iter"
	"net/netip"

	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// State is that of a neighbour (RFC 4861, 7.3.2).
type State uint8

// States of neighbours. Incomplete has no hardware address yet; Permanent was set by hand.
const (
	Incomplete State = iota
	Reachable
	Stale
	Delay
	Probe
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
	ip      netip.Addr
	hw      wire.HWAddr
	state   State
	router  bool
	waited  bool // Resolve waits for it
	unasked bool // nothing was sent for want of an own address
	probes  uint8
	updated mono.Time // hw was stored
	header  [headroom]byte
	queue   queue
	timer   timer

	next, prev *entry // of its list, most recently used first; next alone in the list of free ones
}

// makeHeader prepares the hard header of packets to n.
func (n *entry) makeHeader(src *wire.HWAddr) {
	wire.PutHardHeader(n.header[:], &n.hw, src, wire.EtherIPv4)
}

// table are the neighbours by address. When it is full the least recently used
// one goes, among those that no packet was sent to if there is any: a stranger
// that makes up neighbours does not push out those in use.
type table struct {
	byIP map[netip.Addr]*entry
	max  int
	last *entry // of the last lookup: packets come in trains
	list [2]entry
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

// use marks n as used for a packet.
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

// victim is who goes when the table is full, or nil where it is not.
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
	return nil // all set by hand, which AddStatic bounds
}

// chunk is how many entries are allocated at a time.
const chunk = 64

// add puts a new neighbour into the table, which has room.
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

// remove takes n out; its queue is empty and its timer stopped.
func (t *table) remove(n *entry) {
	delete(t.byIP, n.ip)
	n.unlink()
	n.ip = netip.Addr{} // t.last finds it no more
	n.prev, n.next, t.free = nil, t.free, n
}

// all yields every neighbour, the most recently used first, passive ones last.
// The one just yielded may be removed.
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

// queue are frames that wait for a neighbour's address, in order.
type queue struct {
	head, tail *buffer
	n, bytes   int
}

// buffer is a copy of a waiting frame, with headroom.
type buffer struct {
	next *buffer
	b    []byte
}

// pool are the buffers of all queues.
type pool struct {
	free *buffer
	used int
	max  int
}

// put copies frame to the end of q. It reports false where q or the pool has no
// room; while half of the pool is in use, a queue may hold but four, so that one
// address nobody has does not keep others from being found.
func (p *pool) put(q *queue, frame []byte, frames, bytes int) bool {
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

// take removes the first of q and returns it, nil where q is empty. give hands
// it back to the pool.
func (q *queue) take() *buffer {
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

func (p *pool) give(b *buffer) {
	b.next, p.free = p.free, b
	p.used--
}
