// SPDX-License-Identifier: Apache-2.0

// Package simfab runs nodes, queue pairs and the links between them in one
// goroutine under a virtual clock, with seeded faults.
//
// What comes in: a seed, the faults of the links, work requests; what goes
// out: completions, and the same ones for the same seed. Tests call it. The
// queue pairs are those of package transport, and every packet passes the
// wire as bytes, ICRC included. The package never reads a clock and never
// starts a goroutine.
package simfab

import (
	"math/rand/v2"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/verbs/transport"
)

// Faults describe a link; the zero value is perfect and infinitely fast.
// Probabilities are in thousandths, per packet.
type Faults struct {
	Drop, Dup, Reorder, Corrupt int
	Delay                       time.Duration // one way
	Jitter                      time.Duration // of a reordered packet, at most
	Rate                        float64       // bytes per second; 0 is no limit
}

// Stats count what the links did.
type Stats struct {
	Packets, Dropped, Doubled, Reordered, Corrupted, RefusedICRC uint64
}

// Sim is one simulation.
type Sim struct {
	Now    mono.Time
	Faults Faults
	Stats  Stats

	rng   *rand.Rand
	nodes []*Node
	queue mono.Heap[*packet] // packets by arrival
	free  [][]byte
	used  [][]byte // in use until the batches are flushed
}

// New returns an empty simulation. Equal seeds and equal calls give equal
// runs.
func New(seed uint64, f Faults) *Sim {
	return &Sim{Now: mono.Time(time.Second), Faults: f, rng: rand.New(rand.NewPCG(seed, 0x5eed))}
}

// Node is one machine: memory, and queue pairs in it.
type Node struct {
	Mem    []byte
	sim    *Sim
	gid    ib.GID
	region *mem.Region
	batch  *mem.Batch
	qps    []*QP
	free   mono.Time // when the outgoing link has sent what it has
}

// Base is the address of the first byte of a node's memory, Key its L_Key and
// R_Key.
const (
	Base = 0x100000
	Key  = 0x4242
)

// firstQPN is the number of a node's first queue pair.
const firstQPN = 0x11

// AddNode adds a node with size bytes of memory.
func (s *Sim) AddNode(size int) *Node {
	n := &Node{Mem: make([]byte, size), sim: s, gid: ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: byte(len(s.nodes) + 1)},
		batch: mem.NewBatch(4096)}
	n.region = &mem.Region{Space: mem.NewSlice(Base, n.Mem), Start: Base, Base: Base, Len: uint64(size), LKey: Key,
		RKey:   Key,
		Access: ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic}
	s.nodes = append(s.nodes, n)
	return n
}

// QP is a queue pair of a node, with what came out of it.
type QP struct {
	*transport.QP
	node  *Node
	recvs []*transport.RecvWR
	// Sends and Recvs are the completions so far, in order.
	Sends, Recvs []Completion
	Events       []ib.Event
}

// Completion is a completion with the request it belongs to.
type Completion struct {
	ID uint64
	transport.Completion
}

// Options of a connection.
type Options struct {
	Type            ib.QPType
	MTU             ib.MTU
	MaxRun          uint32
	Timeout, Retry  uint8
	RdAtomic        uint8
	Window          uint32
	SendWR, RecvWR  uint32
	StartPSN        ib.PSN
	MinRNR          uint8
	Local           bool
	RNRRetry        uint8
	MinWindow       uint32
	SendSGE, RecvSG uint32
	NoBuffers       bool // what arrives behind a gap is discarded
}

// Connect makes a connected pair of queue pairs in RTS, one on each node.
func (s *Sim) Connect(a, b *Node, o Options) (x, y *QP, err error) {
	x, y = a.newQP(&o), b.newQP(&o)
	if err := x.up(y, &o, o.StartPSN, o.StartPSN.Add(0x800000)); err != nil {
		return nil, nil, err
	}
	if err := y.up(x, &o, o.StartPSN.Add(0x800000), o.StartPSN); err != nil {
		return nil, nil, err
	}
	return x, y, nil
}

func (n *Node) newQP(o *Options) *QP {
	q := &QP{node: n}
	var buffers *transport.Buffers
	if !o.NoBuffers {
		buffers = transport.NewBuffers(4)
	}
	q.QP = transport.New(&transport.Config{Type: o.Type, QPN: firstQPN + ib.QPN(len(n.qps)),
		Cap: transport.Cap{MaxSendWR: max(o.SendWR, 1), MaxRecvWR: max(o.RecvWR, 1), MaxSendSGE: max(o.SendSGE,
			1), MaxRecvSGE: max(o.RecvSG, 1)},
		PortMTU: ib.MTU4096, PKeys: []ib.PKey{ib.DefaultPKey}, MaxRdAtomic: o.RdAtomic, Window: o.Window, MinWindow: o.MinWindow, Buffers: buffers}, q, q)
	n.qps = append(n.qps, q)
	return q
}

func (q *QP) up(peer *QP, o *Options, sq, rq ib.PSN) error {
	path := &ib.Path{SGID: q.node.gid, DGID: peer.node.gid, MaxRun: max(o.MaxRun, 256), HopLimit: 64, Local: o.Local,
		SrcPort: wire.SrcPort(0, q.QPN(), peer.QPN())}
	a := transport.Attr{State: ib.Init, Port: 1, Access: ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic, Path: path,
		PathMTU: o.MTU,
		DestQPN: peer.QPN(), RQPSN: rq, SQPSN: sq, MaxRdAtomic: o.RdAtomic, MaxDestRdAtomic: o.RdAtomic, MinRNRTimer: o.MinRNR,
		Timeout: o.Timeout, RetryCnt: o.Retry, RNRRetry: o.RNRRetry}
	rtr := ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN
	rts := ib.AttrSQPSN
	if o.Type == ib.RC {
		rtr |= ib.AttrMaxDestRdAtomic | ib.AttrMinRNRTimer
		rts |= ib.AttrTimeout | ib.AttrRetryCnt | ib.AttrRNRRetry | ib.AttrMaxQPRdAtomic
	}
	for _, step := range []struct {
		to   ib.QPState
		mask ib.AttrMask
	}{{ib.Init, ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccessFlags}, {ib.RTR, rtr}, {ib.RTS, rts}} {
		a.State = step.to
		if err := q.Modify(q.node.sim.Now, &a, ib.AttrState|step.mask); err != nil {
			return err
		}
	}
	return nil
}

// LocalRegion implements transport.Regions.
func (q *QP) LocalRegion(key ib.Key, addr, n uint64, need ib.Access) *mem.Region {
	if key != Key || !q.node.region.Allows(addr, n, need) {
		return nil
	}
	return q.node.region
}

// RemoteRegion implements transport.Regions.
func (q *QP) RemoteRegion(key ib.Key, addr, n uint64, need ib.Access) *mem.Region {
	return q.LocalRegion(key, addr, n, need)
}

// Local implements transport.Regions: here keys never change.
func (q *QP) Local(*transport.SendWR) (ib.Status, uint32) {
	return ib.MWBindErr, transport.ReasonObject
}

// Invalidate implements transport.Regions.
func (q *QP) Invalidate(ib.Key) bool { return false }

// TakeRecv implements transport.Queues.
func (q *QP) TakeRecv() *transport.RecvWR {
	if len(q.recvs) == 0 {
		return nil
	}
	wr := q.recvs[0]
	q.recvs = q.recvs[1:]
	return wr
}

// SendDone implements transport.Queues.
func (q *QP) SendDone(wr *transport.SendWR, signal bool, c *transport.Completion) {
	if signal {
		q.Sends = append(q.Sends, Completion{wr.ID, *c})
	}
}

// RecvDone implements transport.Queues.
func (q *QP) RecvDone(wr *transport.RecvWR, c *transport.Completion) {
	q.Recvs = append(q.Recvs, Completion{wr.ID, *c})
}

// Event implements transport.Queues.
func (q *QP) Event(e ib.Event) { q.Events = append(q.Events, e) }

// PostRecv posts a receive request of one entry.
func (q *QP) PostRecv(id uint64, off, n int) {
	q.recvs = append(q.recvs, &transport.RecvWR{ID: id, SGE: []ib.SGE{{Addr: Base + uint64(off), Len: uint32(n),
		LKey: Key}}})
	q.RecvPosted(q.node.sim.Now)
}

// packet is a packet on its way.
type packet struct {
	arrival mono.Timer[*packet]
	to      *Node
	src     ib.GID
	id      uint16 // IPv4 identification
	b       []byte // BTH … ICRC
}

// Run lets time pass until done returns true or limit is over, and reports which. done is called before anything is
// sent, whenever something may have changed; it may post.
func (s *Sim) Run(limit time.Duration, done func() bool) bool {
	end := s.Now.Add(limit)
	for s.Now < end {
		if done() {
			return true
		}
		wake := mono.Min(s.send(), s.queue.Next())
		if wake == 0 {
			return done()
		}
		s.Now = max(s.Now, wake)
		s.receive()
	}
	return false
}

// egress bounds the bytes that wait at a link, as a transmit queue does.
const egress = 128 << 10

// send lets every queue pair send what it can, and returns when to look again.
func (s *Sim) send() (wake mono.Time) {
	var r pkt.Burst
	for _, n := range s.nodes {
		for _, q := range n.qps {
			full := false
			for {
				if full = n.free > s.Now && n.free.Sub(s.Now).Seconds()*s.Faults.Rate > egress; full {
					break
				}
				if !q.Next(s.Now, &r) {
					break
				}
				n.transmit(q, &r)
			}
			q.Commit(s.Now)
			if full {
				wake = mono.Min(wake, n.free) // until then timers cannot act either
			} else {
				wake = mono.Min(wake, q.Deadline())
			}
		}
	}
	return wake
}

// transmit cuts a run into packets and puts them on the wire.
func (n *Node) transmit(q *QP, r *pkt.Burst) {
	s := n.sim
	var to *Node
	for _, m := range s.nodes {
		if m.gid == r.Path.DGID {
			to = m
		}
	}
	seed := wire.NewSeed(n.gid, to.gid, r.Path.SrcPort, roceport)
	for k := range r.Count {
		off := int(k * r.MTU)
		size := r.Data.Len - off
		if k != r.Count-1 {
			size = int(r.MTU)
		}
		h := r.Headers.Packet(k, r.Count, size)
		b := s.buffer()
		hl := h.Put(b)
		total := hl + size + int(h.PadCnt)
		b = b[:total+wire.ICRCLen]
		if n.batch.Gather([][]byte{b[hl : hl+size]}, &r.Data, off) != mem.OK {
			q.SourceFault(s.Now, r)
			return
		}
		clear(b[hl+size : total])
		id := uint16(k)
		wire.PutICRC(b[total:], seed.Sum(id, b[:total]))
		n.put(packet{to: to, src: n.gid, id: id, b: b})
	}
}

const roceport = 4791

func (s *Sim) buffer() []byte {
	if n := len(s.free); n > 0 {
		b := s.free[n-1]
		s.free = s.free[:n-1]
		return b[:cap(b)]
	}
	return make([]byte, wire.MaxHeaderLen+4096+3+wire.ICRCLen)
}

// put applies the faults to one packet.
func (n *Node) put(p packet) {
	s, f := n.sim, &n.sim.Faults
	s.Stats.Packets++
	if n.free < s.Now {
		n.free = s.Now
	}
	if f.Rate > 0 {
		const ipUDPEthernet = 14 + 28 + 24
		n.free = n.free.Add(time.Duration(float64(len(p.b)+ipUDPEthernet) / f.Rate * 1e9))
	}
	hit := func(perMille int) bool { return perMille > 0 && s.rng.IntN(1000) < perMille }
	at := n.free.Add(f.Delay)
	copies := 1
	switch {
	case hit(f.Drop):
		s.Stats.Dropped++
		s.free = append(s.free, p.b)
		return
	case hit(f.Dup):
		s.Stats.Doubled++
		copies = 2
	}
	if hit(f.Corrupt) {
		s.Stats.Corrupted++
		p.b[s.rng.IntN(len(p.b))] ^= 1 << s.rng.IntN(8)
	}
	for i := range copies {
		c := &packet{to: p.to, src: p.src, id: p.id, b: p.b}
		c.arrival.Value = c
		if i > 0 {
			c.b = append(s.buffer()[:0], p.b...)
		}
		if f.Jitter > 0 && hit(f.Reorder) {
			s.Stats.Reordered++
			s.queue.Set(&c.arrival, at.Add(time.Duration(s.rng.Int64N(int64(f.Jitter)))))
			continue
		}
		s.queue.Set(&c.arrival, at)
	}
}

// receive delivers what arrives now.
func (s *Sim) receive() {
	for p, due := s.queue.PopDue(s.Now); due; p, due = s.queue.PopDue(s.Now) {
		p.to.receive(p)
		s.used = append(s.used, p.b)
	}
	for _, n := range s.nodes {
		n.batch.Flush()
		for _, q := range n.qps {
			q.Commit(s.Now)
		}
	}
	s.free = append(s.free, s.used...)
	s.used = s.used[:0]
}

func (n *Node) receive(p *packet) {
	s := n.sim
	var r pkt.Burst
	payload, why := r.Headers.Parse(p.b)
	if why != wire.OK || int(r.DestQPN)-firstQPN >= len(n.qps) || r.DestQPN < firstQPN {
		s.Stats.RefusedICRC++
		return
	}
	q := n.qps[r.DestQPN-firstQPN]
	seed := wire.NewSeed(p.src, n.gid, wire.SrcPort(0, q.QPN(), q.DestQPN()), roceport)
	if !seed.Verify(p.id, p.b) {
		s.Stats.RefusedICRC++
		return
	}
	r.Count, r.MTU, r.IPv4 = 1, uint32(len(payload)), true
	r.Path = &ib.Path{SGID: p.src, DGID: n.gid, HopLimit: 64}
	r.Data = mem.BytesPayload(payload)
	q.Handle(s.Now, &r, n.batch)
}
