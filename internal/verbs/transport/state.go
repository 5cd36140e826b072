// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"math/bits"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
)

// QP is one queue pair. It is not safe for concurrent use: its lane owns it.
type QP struct {
	cfg   Config
	env   Env
	svc   ib.Opcode // service bits of the opcodes it sends and accepts
	attr  Attr      // attr.State is the current state
	mtu   uint32    // bytes: path MTU of RC and UC, port MTU of datagrams
	req   requester
	rsp   responder
	dirty bool       // handled a run since the last Commit: nothing may leave
	comp  Completion // what callbacks are shown; a field, so that it never escapes
	ctr   Counters
	bye   *farewell // the program is gone: nil before Farewell
}

// Defaults of Config.
const (
	defaultWindow = 1 << 20
	initialWindow = 64 << 10
)

// minAckTimeout is the shortest local ACK timeout that is honoured: a peer in
// software is scheduled, and below this a busy processor looks like loss.
const minAckTimeout = time.Millisecond

// ackTolerance is how many times its nominal value the local ACK timeout is: as
// long as it may be (IBA volume 1, 9.7.6.1.3). Losses are found by probes; what is
// left for the timeout is a peer that is gone, or one that does not run or has
// no way for a moment, which the 0.5 s that most programs ask for would not cover.
const ackTolerance = 4

// Memory returns about how many bytes a queue pair with capacities c takes, for
// quotas.
func Memory(c *Cap) int64 {
	n := int64(1)
	if c.MaxSendWR > 1 {
		n = 1 << bits.Len32(c.MaxSendWR-1)
	}
	const wr, sge, rest = 256, 16 + 64, 32 << 10
	return n*(wr+int64(c.MaxSendSGE)*sge) + rest
}

// New returns a queue pair in state RESET. cfg is copied; its key table is
// shared and must not change: SetPort brings another one.
// Allocation of everything the queue pair ever needs happens here.
func New(cfg *Config, env Env) *QP {
	q := &QP{cfg: *cfg, env: env, svc: ib.ServiceOf(cfg.Type)}
	if q.cfg.Window == 0 {
		q.cfg.Window = defaultWindow
	}
	if !q.cfg.PortMTU.Valid() {
		q.cfg.PortMTU = ib.MTU1024
	}
	n := uint32(1)
	if c := cfg.Cap.MaxSendWR; c > 1 {
		n = 1 << bits.Len32(c-1)
	}
	sges := int(cfg.Cap.MaxSendSGE)
	q.req.sq = make([]SendWR, n)
	q.req.mask = n - 1
	sge := make([]ib.SGE, int(n)*sges)
	segs := make([]mem.Seg, int(n)*sges)
	for i := range q.req.sq {
		q.req.sq[i].SGE = sge[i*sges : i*sges : (i+1)*sges]
		q.req.sq[i].segs = segs[i*sges : i*sges : (i+1)*sges]
	}
	q.rsp.staged = make([]stagedRecv, stageDepth)
	if cfg.Type == ib.RC {
		q.rsp.recs = make([]record, 1<<bits.Len8(max(cfg.MaxRdAtomic, 1)-1))
		q.rsp.recMask = uint32(len(q.rsp.recs) - 1)
	}
	q.reset()
	return q
}

// SetPort tells the queue pair that its port has another MTU or another table
// of partition keys. A path MTU that was agreed on stays; datagrams follow.
func (q *QP) SetPort(mtu ib.MTU, keys []ib.PKey) {
	q.cfg.PortMTU, q.cfg.PKeys = mtu, keys
	if q.datagram() {
		q.mtu = uint32(mtu.Bytes())
	}
}

// SetPath replaces the path of a connected queue pair by one that leads to the
// same place and differs in what the sending port's LID gives it. Runs that are
// under way keep the old one.
// Preconditions: there is a path, and p.Local is as it was.
func (q *QP) SetPath(p *ib.Path) { q.attr.Path = p }

// State returns the current state.
func (q *QP) State() ib.QPState { return q.attr.State }

// Type returns the service.
func (q *QP) Type() ib.QPType { return q.cfg.Type }

// QPN returns the number as it stands on the wire.
func (q *QP) QPN() ib.QPN { return q.cfg.QPN }

// Counters returns the live counters; they survive RESET.
func (q *QP) Counters() *Counters { return &q.ctr }

// PathOf returns the path of a connected queue pair, nil before RTR and for
// datagram service.
func (q *QP) PathOf() *ib.Path { return q.attr.Path }

// DestQPN returns the peer's queue pair of a connected queue pair.
func (q *QP) DestQPN() ib.QPN { return q.attr.DestQPN }

// Query stores the current attributes in a. The sequence numbers are those of
// the next packet to send and to receive.
func (q *QP) Query(a *Attr) {
	*a = q.attr
	a.CurState, a.SQDraining = a.State, q.req.draining
	if a.State >= ib.RTR {
		a.RQPSN = q.rsp.ePSN
	}
	if a.State >= ib.RTS {
		a.SQPSN = q.req.maxPSN
	}
}

// datagram reports whether the service is UD or one of its special cases.
func (q *QP) datagram() bool { return q.svc == ib.ServiceUD }

func (q *QP) pkey() ib.PKey {
	if int(q.attr.PKeyIndex) < len(q.cfg.PKeys) {
		return q.cfg.PKeys[q.attr.PKeyIndex]
	}
	return 0
}

// reset is the state of a new queue pair; queues must have been discarded.
func (q *QP) reset() {
	s, p := &q.req, &q.rsp
	*s = requester{sq: s.sq, mask: s.mask, head: s.tail, ack: s.tail, tx: s.tail, fresh: s.tail, tail: s.tail}
	clear(p.recs)
	clear(p.staged)
	p.forget()
	q.returnShelf()
	q.returnCopies()
	*p = responder{recs: p.recs, recMask: p.recMask, staged: p.staged}
	q.attr, q.dirty = Attr{State: ib.Reset}, false
	q.mtu = uint32(q.cfg.PortMTU.Bytes())
	if q.cfg.Type == ib.GSI {
		q.attr.QKey = ib.GSIQKey
	}
}

// discard gives every work request back without a completion.
func (q *QP) discard() {
	q.comp = Completion{Discard: true}
	s := &q.req
	for s.head != s.tail {
		wr := &s.sq[s.head&s.mask]
		q.env.SendDone(wr, false, &q.comp)
		s.head++
	}
	p := &q.rsp
	for ; p.nstaged > 0; p.nstaged-- {
		st := &p.staged[p.stageHead%stageDepth]
		p.stageHead++
		q.recvDone(st.wr, &q.comp)
		st.wr = nil
	}
	if p.recv != nil {
		q.recvDone(p.recv, &q.comp)
		p.recv = nil
	}
	if q.cfg.SRQ {
		return
	}
	for range MaxFlush {
		wr := q.env.TakeRecv()
		if wr == nil {
			return
		}
		q.recvDone(wr, &q.comp)
	}
}

// MaxFlush bounds the receive requests that one flush takes: the entries of
// the largest ring. A client that posts as fast as they are flushed gets no
// more; it tells of what it posts (RecvPosted), and the next flush takes that.
const MaxFlush = 1 << 15

func (q *QP) recvDone(wr *RecvWR, c *Completion) { q.env.RecvDone(wr, c) }

// Destroy discards everything; the queue pair is in RESET afterwards and must
// not be used again.
func (q *QP) Destroy() {
	q.discard()
	q.reset()
}

// enterErr moves the queue pair to ERR. What is staged is delivered by the
// next deliver. Answers that are owed are dropped unless the responder itself
// refused something: its NAK, and what precedes it, is still sent.
func (q *QP) enterErr(sendNak bool) {
	if q.attr.State == ib.Err {
		return
	}
	q.attr.State = ib.Err
	q.req.ackAt, q.req.rnrAt, q.req.probeAt = 0, 0, 0
	q.req.draining = false
	q.rsp.forget()
	if !q.dirty {
		q.returnShelf() // otherwise Commit does
	}
	if !sendNak {
		q.rsp.silence()
	}
}

// fall notes where the requester was when the queue pair failed by itself: memory
// of a program that is killed goes before the node hears of its end.
func (q *QP) fall() {
	if s := &q.req; q.attr.State != ib.Err {
		s.fell, s.fellUna, s.fellPSN = q.attr.State, s.una, s.txPSN
	}
}

// failSend completes the oldest unacknowledged request with status: RC goes to
// ERR, the other services to SQE.
func (q *QP) failSend(status ib.Status, reason uint32) {
	q.req.failStatus, q.req.failReason = status, reason
	if q.cfg.Type == ib.RC {
		q.fall()
		q.enterErr(false)
		return
	}
	if q.attr.State != ib.Err {
		q.attr.State = ib.SQE
		q.req.draining = false
	}
}

// deliver makes staged completions visible and, in the error states, flushes.
// Sends come first: a message that arrived together with the acknowledgement
// of ours may be its answer, but ours, posted before either was visible, is
// never caused by that message. Programs that wait for both with one
// completion channel depend on that order.
// Preconditions: everything placed was flushed.
func (q *QP) deliver() {
	s := &q.req
	for s.head != s.ack {
		wr := &s.sq[s.head&s.mask]
		q.comp = Completion{Op: wr.Op.WCOp(), ByteLen: uint32(wr.length)}
		q.env.SendDone(wr, q.cfg.SigAll || wr.Flags&ib.Signaled != 0, &q.comp)
		s.head++
	}
	q.deliverRecv()
	if q.attr.State != ib.Err && q.attr.State != ib.SQE {
		return
	}
	for s.head != s.tail {
		wr := &s.sq[s.head&s.mask]
		q.comp = Completion{Op: wr.Op.WCOp(), Status: ib.WRFlushErr}
		if s.failStatus != ib.Success {
			q.comp.Status, q.comp.VendorErr = s.failStatus, s.failReason
			s.failStatus = ib.Success
		}
		q.env.SendDone(wr, true, &q.comp)
		s.head++
	}
	// Numbers go on where the queue was cut off: nothing is outstanding now.
	s.ack, s.tx, s.fresh = s.tail, s.tail, s.tail
	s.una, s.txPSN = s.maxPSN, s.maxPSN
	s.reads, s.readRequests = 0, 0
	if q.attr.State == ib.Err {
		q.flushRecv()
	}
}

// flushRecv completes every receive request of the queue pair in ERR.
func (q *QP) flushRecv() {
	p := &q.rsp
	q.comp = Completion{Op: ib.WCRecv, Status: ib.WRFlushErr}
	if p.recv != nil {
		wr := p.recv
		p.recv = nil
		q.recvDone(wr, &q.comp)
	}
	p.recvPosted, p.open = false, false
	if q.cfg.SRQ {
		if !p.lastWQE {
			p.lastWQE = true
			q.env.Event(ib.EventLastWQEReached)
		}
		return
	}
	for range MaxFlush {
		wr := q.env.TakeRecv()
		if wr == nil {
			return
		}
		q.comp = Completion{Op: ib.WCRecv, Status: ib.WRFlushErr}
		q.recvDone(wr, &q.comp)
	}
}
