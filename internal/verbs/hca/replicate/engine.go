// SPDX-License-Identifier: Apache-2.0

// Package replicate is the multicast part of the adapter's receive pipeline:
// one multicast packet comes in, one copy per queue pair of every function in
// the group goes on, and unicast packets do not wait meanwhile.
//
// The stages and their names are those of US patent 8,937,949. What comes in
// is a packet that passed the packet receiver; its payload goes to the payload
// store, its headers to the packet-header details, and its (MLID, MGID) to the
// multicast-information FIFO. The inspection engine takes them from there,
// finds functions by MLID and their queue pairs by MGID, and writes one
// request per copy into the replication-request FIFO, which injects
// descriptors into the receive pipelines of the lanes. What goes out are those
// descriptors: each is handled from there on as a unicast packet's is, by
// itself.
//
// An Engine belongs to one lane; payloads are released by any. The package
// never copies a payload twice, never waits, and allocates nothing per packet
// once its store has grown.
package replicate

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// Dest is where one copy goes: a queue pair of a function, and the lane that
// owns it.
type Dest struct {
	Function uint16
	Lane     uint8
	QPN      ib.QPN
	MLID     ib.LID // as it was attached; 0 on Ethernet ports
}

// GroupKey names a group within one function.
type GroupKey struct {
	Function uint16
	MGID     ib.GID
}

// Groups are the members of groups. It is immutable once shared.
type Groups struct {
	// Functions are those with ports that the MLID leads to, in ascending order.
	Functions map[ib.LID][]uint16
	// Attached are the queue pairs attached to a group.
	Attached map[GroupKey][]Dest
}

// Pipeline is the receive pipeline of the lanes, from the receive queue on.
type Pipeline interface {
	// Inject enqueues a descriptor for the lane of d.Dest, which must call d.Release; false where that lane's receive
	// queue has no room now. The lane may not see it before the end of the Run that calls.
	Inject(d Descriptor) bool
}

// Descriptor is one copy under way: what is replicated for each copy, and its destination.
type Descriptor struct {
	*Packet
	Dest Dest
	// First marks the first copy for its function: where the port counts the
	// packet.
	First bool
	// Last marks the last copy of a packet, for which the payload reference
	// count was not raised; a Dummy is no copy, it only gives the initial count
	// back.
	Last, Dummy bool
}

// Config bounds an engine.
type Config struct {
	// Payloads bounds the payload store, in packets.
	Payloads int
	// Threshold bounds the multicast packets in inspection: one more is
	// dropped and counted. Maximum never drops; then the store bounds them.
	Threshold int
	// Requests is the length of the replication-request FIFO: its credits.
	Requests int
	// Dummy gives the initial count back by a dummy copy instead of by marking
	// the last one.
	Dummy bool
}

// Maximum is the Threshold that drops nothing.
const Maximum = 0

// DefaultConfig takes at most 8 MiB.
var DefaultConfig = Config{Payloads: 2048, Threshold: 1024, Requests: 4096}

// Counters count what each stage did.
type Counters struct {
	Received       uint64 // packets that came in
	DropThreshold  uint64 // too many in inspection
	DropPayload    uint64 // the payload store is full
	DropFault      uint64 // the payload could not be read
	DropSize       uint64 // larger than a packet can be
	Inspected      uint64 // packets with members looked up
	NoMembers      uint64 // of those, without any
	Requested      uint64 // copies requested
	CreditWaits    uint64 // times the inspection engine had to wait for a credit
	Injected       uint64 // copies that went on
	InjectionWaits uint64 // times a lane's receive queue was full
	Last, Dummies  uint64 // initial counts given back, by form
	Popped         uint64 // packet-header details popped
	HighPayloads   uint64 // most payloads in the store at a time
	HighInspection uint64 // most packets in inspection at a time
}

// info is an entry of the multicast-information FIFO.
type info struct {
	mlid ib.LID
	mgid ib.GID
	from uint16 // the function it was sent by, on this node; NoFunction where it came from elsewhere
	fn   uint16 // the function of the Ethernet port it came to, where mlid is 0
	p    *Packet
}

// NoFunction is the source of a packet that came from elsewhere.
const NoFunction = 0xffff

// request is an entry of the replication-request FIFO.
type request struct {
	dest  Dest
	p     *Packet
	first bool // of the function
	last  bool // of the packet
	none  bool // no copy: the packet had no member
}

// member is a queue pair that gets copies, as the inspection engine finds it.
type member struct {
	dest  Dest
	first bool // of its function
	none  bool // there is none
}

// maxBurst bounds the packets of one group that are inspected together.
const maxBurst = 32

// Engine replicates the multicast packets of one adapter. It is not safe for
// concurrent use.
type Engine struct {
	Counters Counters
	cfg      Config
	pipe     Pipeline
	store    store
	infos    fifo[info]    // the multicast-information FIFO
	details  fifo[*Packet] // packet-header details, in order of arrival
	requests fifo[request] // the replication-request FIFO
	// The packets in inspection: the first n of the information FIFO, of one
	// group and source. cur is the member with copies being requested,
	// at the next packet it gets one of; after is the one behind it.
	groups     *Groups
	n, at      int
	cur, after member
	funcs      []uint16
	fn         int     // index into funcs
	dests      []Dest  // of funcs[fn]
	next       int     // index into dests
	first      bool    // the next member is the first of its function
	coming     *Packet // taken from the store, its payload not read yet
	one        [1]uint16
	dst        [1][]byte
}

// New returns an engine that injects into pipe.
func New(cfg Config, pipe Pipeline) *Engine {
	n := cfg.Payloads
	if cfg.Threshold != Maximum {
		n = min(n, cfg.Threshold)
	}
	return &Engine{cfg: cfg, pipe: pipe, store: store{limit: cfg.Payloads}, infos: newFIFO[info](n),
		details: newFIFO[*Packet](cfg.Payloads), requests: newFIFO[request](cfg.Requests)}
}

// Receive is the packet receiver's part: r, a burst of one packet to a
// multicast MLID or GID, is split into header details and payload, which is
// copied before it returns. from is the function of this node that sent it, or
// NoFunction. On a mem.SourceFault nothing was taken.
func (e *Engine) Receive(r *pkt.Burst, from uint16, b *mem.Batch) mem.Result {
	e.Counters.Received++
	switch {
	case e.cfg.Threshold != Maximum && e.infos.len() >= e.cfg.Threshold:
		e.Counters.DropThreshold++
		return mem.OK
	case r.Data.Len > MaxPayload || r.Count != 1:
		e.Counters.DropSize++
		return mem.OK
	}
	p := e.store.get()
	if p == nil {
		e.Counters.DropPayload++
		return mem.OK
	}
	e.dst[0] = p.buf[wire.GRHLen : wire.GRHLen+r.Data.Len]
	e.coming = p
	if r.Data.Len > 0 && b.Gather(e.dst[:], &r.Data, 0) != mem.OK {
		e.Recover()
		return mem.SourceFault
	}
	e.coming = nil
	p.fill(r)
	*e.details.push() = p
	i := info{mlid: r.Path.DLID, mgid: r.Path.DGID, from: from, p: p}
	if i.mlid == 0 {
		i.fn = r.Path.Function
	}
	*e.infos.push() = i
	e.Counters.HighPayloads = max(e.Counters.HighPayloads, uint64(e.store.used()))
	e.Counters.HighInspection = max(e.Counters.HighInspection, uint64(e.infos.len()))
	return mem.OK
}

// Recover puts the engine in order after a memory fault unwound the lane while
// Receive read a payload: that packet is lost, and nothing else.
func (e *Engine) Recover() {
	if e.coming != nil {
		e.coming.Release()
		e.coming = nil
		e.Counters.DropFault++
	}
}

// Close drops what has not been injected. Descriptors that were keep their
// payloads until they are released.
func (e *Engine) Close() {
	e.Recover()
	for e.details.len() > 0 {
		// Its last copy was not injected: the initial count is still there.
		(*e.details.front()).Release()
		e.details.pop()
	}
	for e.infos.len() > 0 {
		e.infos.pop()
	}
	for e.requests.len() > 0 {
		e.requests.pop()
	}
	e.n, e.groups, e.dests = 0, nil, nil
}

// Pending reports whether Run has anything to do.
func (e *Engine) Pending() bool { return e.infos.len() > 0 || e.requests.len() > 0 }

// Run inspects packets and injects at most budget copies, and reports whether work remains. g is the current
// membership; a packet that is in inspection keeps the membership it began with.
func (e *Engine) Run(g *Groups, budget int) (more bool) {
	// Packets without members are looked at too.
	for look := 2*budget + 2; budget > 0; {
		n := e.inject(budget)
		budget -= n
		m := e.inspect(g, look)
		if look -= m; n == 0 && m == 0 {
			break
		}
	}
	return e.Pending()
}

// inspect is the inspection engine: it turns packets of the information FIFO
// into requests while there are credits, at most so many, and returns how many.
//
// Packets of one group that wait behind each other are inspected together, and
// member after member gets a copy of each: several in a row for one member cost less
// than by turns, and each gets them in order.
func (e *Engine) inspect(g *Groups, most int) (n int) {
	for ; n < most; n++ {
		if e.requests.room() == 0 {
			e.Counters.CreditWaits++
			return n
		}
		if e.n == 0 {
			if e.infos.len() == 0 {
				return n
			}
			e.begin(g)
		}
		last := e.after.none
		*e.requests.push() = request{dest: e.cur.dest, p: e.infos.peek(e.at).p, first: e.cur.first, last: last,
			none: e.cur.none}
		if e.cur.none {
			e.Counters.NoMembers++
		} else {
			e.Counters.Requested++
		}
		if last {
			e.Counters.Inspected++
			e.infos.pop()
			e.n--
		} else if e.at++; e.at == e.n {
			e.at, e.cur, e.after = 0, e.after, e.member()
		}
	}
	return n
}

// begin starts with the packets at the head of the information FIFO.
func (e *Engine) begin(g *Groups) {
	i := e.infos.front()
	for e.n, e.at = 1, 0; e.n < min(maxBurst, e.infos.len()); e.n++ {
		if o := e.infos.peek(e.n); o.mlid != i.mlid || o.mgid != i.mgid || o.from != i.from || o.fn != i.fn {
			break
		}
	}
	e.groups, e.fn, e.dests, e.next, e.first = g, 0, nil, 0, true
	if i.mlid == 0 {
		// A group of an Ethernet port has no LID: its function is known.
		e.one[0] = i.fn
		e.funcs = e.one[:]
	} else {
		e.funcs = g.Functions[i.mlid]
	}
	// What a function sends comes back to its own queue pairs, in the group's
	// port set or not (IBA volume 1, 10.5.2.1): it is looked at first.
	if i.from != NoFunction {
		e.dests = g.Attached[GroupKey{i.from, i.mgid}]
	}
	e.cur = e.member()
	e.after = e.member()
}

// member returns the next member of the group in inspection.
func (e *Engine) member() member {
	i := e.infos.front()
	for {
		for e.next < len(e.dests) {
			d := e.dests[e.next]
			e.next++
			if d.MLID == i.mlid {
				m := member{dest: d, first: e.first}
				e.first = false
				return m
			}
		}
		for e.fn < len(e.funcs) && e.funcs[e.fn] == i.from {
			e.fn++
		}
		if e.fn == len(e.funcs) {
			return member{none: true}
		}
		e.dests, e.next, e.first = e.groups.Attached[GroupKey{e.funcs[e.fn], i.mgid}], 0, true
		e.fn++
	}
}

// inject serves up to budget requests: it sends copies up the pipeline. It
// returns how many it served.
func (e *Engine) inject(budget int) (n int) {
	for ; n < budget && e.requests.len() > 0; n++ {
		q := e.requests.front()
		if !q.none {
			last := q.last && !e.cfg.Dummy
			if !last {
				q.p.refs.Add(1)
			}
			if !e.pipe.Inject(Descriptor{Packet: q.p, Dest: q.dest, First: q.first, Last: last}) {
				if !last {
					q.p.refs.Add(-1) // not the last: the initial count holds the payload
				}
				e.Counters.InjectionWaits++
				return n
			}
			e.Counters.Injected++
		}
		p, last, none := q.p, q.last, q.none
		e.requests.pop()
		if !last {
			continue
		}
		if e.cfg.Dummy || none {
			// The dummy goes no further than this: nothing of it is written.
			d := Descriptor{Packet: p, Dummy: true}
			d.Release()
			e.Counters.Dummies++
		} else {
			e.Counters.Last++
		}
		e.details.pop()
		e.Counters.Popped++
	}
	return n
}

// Payloads returns how many payloads the store holds; zero when every copy has
// been read out.
func (e *Engine) Payloads() int { return e.store.used() }
