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
	"weft/internal/ib"
	"weft/internal/mem"
	"weft/internal/pkt"
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

// Groups says who is in which group. It is immutable once shared.
type Groups struct {
	// Functions are those whose ports the MLID leads to, in ascending order.
	Functions map[ib.LID][]uint16
	// Attached are the queue pairs attached to a group.
	Attached map[GroupKey][]Dest
}

// Pipeline is the receive pipeline of the lanes, from the receive queue on.
type Pipeline interface {
	// Inject takes a descriptor for the lane of d.Dest, which owes it
	// d.Release; false where that lane's receive queue has no room now.
	Inject(d Descriptor) bool
}

// Descriptor is one copy on its way: what is replicated for each, and for whom
// it is.
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
	Inspected      uint64 // packets whose members were found
	NoMembers      uint64 // of those, without any
	Requested      uint64 // copies asked for
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
	// The packet in inspection: whose turn it is.
	groups *Groups
	funcs  []uint16
	fn     int    // index into funcs
	dests  []Dest // of funcs[fn]
	next   int    // index into dests
	first  bool   // the next member is the first of its function
	busy   bool
	held   request // found, and waiting to hear whether another follows
	holds  bool
	coming *Packet // taken from the store, its payload not read yet
	one    [1]uint16
	dst    [1][]byte
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

// Receive is the packet receiver's part: r, a run of one packet to a
// multicast MLID or GID, is split into header details and payload, which is
// copied before it returns. from is the function of this node that sent it, or
// NoFunction. On a mem.SourceFault nothing was taken.
func (e *Engine) Receive(r *pkt.Run, from uint16, b *mem.Batch) mem.Result {
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
	e.dst[0] = p.buf[:r.Data.Len]
	e.coming = p
	if r.Data.Len > 0 && b.Gather(e.dst[:], &r.Data, 0) != mem.OK {
		e.Recover()
		return mem.SourceFault
	}
	e.coming = nil
	p.Headers, p.Path, p.IPv4, p.n = r.Headers, *r.Path, r.IPv4, r.Data.Len
	p.Class = Classify(p.Payload())
	e.details.push(p)
	e.infos.push(info{mlid: r.Path.DLID, mgid: r.Path.DGID, from: from, p: p})
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
	e.busy, e.holds, e.held, e.groups, e.dests = false, false, request{}, nil, nil
}

// Pending reports whether Run has anything to do.
func (e *Engine) Pending() bool { return e.infos.len() > 0 || e.requests.len() > 0 }

// Run lets inspection and injection go on, with at most budget requests
// served, and reports whether work remains. g is who is in which group now; a
// packet in inspection keeps what it began with.
func (e *Engine) Run(g *Groups, budget int) (more bool) {
	// A copy is held until the next is known: inspection must get ahead.
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
// into requests while there are credits, in at most so many steps, and returns
// how many it took.
func (e *Engine) inspect(g *Groups, most int) (n int) {
	for ; n < most; n++ {
		if e.requests.room() == 0 {
			e.Counters.CreditWaits++
			return n
		}
		if !e.busy {
			if e.infos.len() == 0 {
				return n
			}
			e.begin(g)
		}
		i := e.infos.front()
		d, ok := e.member(i)
		if ok {
			// Whether a copy is the last shows with the next: it is held so long.
			if e.holds {
				e.requests.push(e.held)
			}
			e.held, e.holds = request{dest: d, p: i.p, first: e.first}, true
			e.first = false
			e.Counters.Requested++
			continue
		}
		e.Counters.Inspected++
		if e.holds {
			e.held.last = true
		} else {
			e.Counters.NoMembers++
			e.held = request{p: i.p, last: true, none: true}
		}
		e.requests.push(e.held)
		e.busy, e.holds, e.held = false, false, request{}
		e.infos.pop()
	}
	return n
}

// begin starts with the packet at the head of the information FIFO.
func (e *Engine) begin(g *Groups) {
	i := e.infos.front()
	e.busy, e.groups, e.fn, e.dests, e.next, e.first = true, g, 0, nil, 0, true
	if i.mlid == 0 {
		// A group of an Ethernet port has no LID: its function is known.
		e.one[0] = i.p.Path.Function
		e.funcs = e.one[:]
	} else {
		e.funcs = g.Functions[i.mlid]
	}
	// What a function sends comes back to its own queue pairs, in the group's
	// port set or not (IBA volume 1, 10.5.2.1): it is looked at first.
	if i.from != NoFunction {
		e.dests = g.Attached[GroupKey{i.from, i.mgid}]
	}
}

// member returns the next member of the packet in inspection.
func (e *Engine) member(i *info) (Dest, bool) {
	for {
		for e.next < len(e.dests) {
			d := e.dests[e.next]
			e.next++
			if d.MLID == i.mlid {
				return d, true
			}
		}
		for e.fn < len(e.funcs) && e.funcs[e.fn] == i.from {
			e.fn++
		}
		if e.fn == len(e.funcs) {
			return Dest{}, false
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
