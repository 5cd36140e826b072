// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"math/bits"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// QP is one queue pair. It is not safe for concurrent use: its lane owns it. It joins the two halves, requester and
// responder, and owns what concerns both: states, flushing and the end.
type QP struct {
	endpoint
	req    requester
	rsp    responder
	orphan *orphan // nil until Orphan: its program is gone
}

var _ lifecycle = (*QP)(nil)

// defaultWindow is Config.Window where that is 0, in bytes.
const defaultWindow = 1 << 20

// Memory returns about how many bytes a queue pair with capacities c takes, for quotas.
func Memory(c *Cap) int64 {
	n := int64(1)
	if c.MaxSendWR > 1 {
		n = 1 << bits.Len32(c.MaxSendWR-1)
	}
	const wr, sge, rest = 256, 16 + 64, 32 << 10
	return n*(wr+int64(c.MaxSendSGE)*sge) + rest
}

// New returns a queue pair in state RESET. cfg is copied; its key table is shared and must not change: SetPort
// replaces it. Everything the queue pair ever needs is allocated here.
func New(cfg *Config, regions Regions, queues Queues) *QP {
	q := &QP{endpoint: endpoint{cfg: *cfg, regions: regions, queues: queues, svc: ib.ServiceOf(cfg.Type)}}
	q.life = q
	if q.cfg.Window == 0 {
		q.cfg.Window = defaultWindow
	}
	if !q.cfg.PortMTU.Valid() {
		q.cfg.PortMTU = ib.MTU1024
	}
	q.req.init(&q.endpoint)
	q.rsp.init(&q.endpoint)
	q.reset()
	return q
}

// SetPort replaces the port's MTU and table of partition keys. A path MTU that was agreed on stays; datagrams follow.
func (q *QP) SetPort(mtu ib.MTU, keys []ib.PKey) {
	q.cfg.PortMTU, q.cfg.PKeys = mtu, keys
	if q.datagram() {
		q.mtu = uint32(mtu.Bytes())
	}
}

// SetPath replaces the path of a connected queue pair by one that leads to the same place and differs in what the
// sending port's LID gives it. Bursts that are under way keep the old one.
// Preconditions: there is a path, and p.Local is as it was.
func (q *QP) SetPath(p *ib.Path) { q.attr.Path = p }

// SetLossy reports whether packets of a local path can get lost from now on: a stage that injects faults is in the way.
// An RC requester then recovers from loss as on a path to another node. After SetLossy(false) it does so until
// everything that was sent before is acknowledged. Paths to other nodes, and the other services, do not change.
func (q *QP) SetLossy(now mono.Time, on bool) {
	q.req.setLossy(now, on)
	if invariants {
		q.verify()
	}
}

// State returns the current state.
func (q *QP) State() ib.QPState { return q.attr.State }

// Type returns the service.
func (q *QP) Type() ib.QPType { return q.cfg.Type }

// QPN returns the number as it stands on the wire.
func (q *QP) QPN() ib.QPN { return q.cfg.QPN }

// Counters returns the live counters; they survive RESET.
func (q *QP) Counters() *Counters { return &q.ctr }

// PathOf returns the path of a connected queue pair, nil before RTR and for datagram service.
func (q *QP) PathOf() *ib.Path { return q.attr.Path }

// DestQPN returns the peer's queue pair of a connected queue pair.
func (q *QP) DestQPN() ib.QPN { return q.attr.DestQPN }

// Query stores the current attributes in a. The sequence numbers are those of the next packet to send and to receive.
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

// SendSlot returns the slot to fill for the next Post, or nil where the send queue is full. Every field but SGE's
// capacity is reset.
func (q *QP) SendSlot() *SendWR { return q.req.slot() }

// Post makes the slot that SendSlot returned last part of the queue. In ERR and SQE it is flushed by the next Next.
func (q *QP) Post(now mono.Time) { q.req.tail++ }

// RecvPosted reports that the receive queue got requests: in ERR the next Next flushes them.
func (q *QP) RecvPosted(now mono.Time) {
	if q.attr.State == ib.Err && !q.cfg.SRQ && q.orphan == nil {
		q.rsp.posted = true
	}
}

// Pause keeps Next from producing requests, until Pause(false) or RESET; answers go on.
func (q *QP) Pause(on bool) { q.req.paused = on }

// Pending reports whether Next has something to do now; it may err on the side of yes.
func (q *QP) Pending() bool {
	if q.rsp.answers.due {
		return true
	}
	switch q.attr.State {
	case ib.RTS, ib.SQD:
		return q.req.ready()
	case ib.SQE, ib.Err:
		return q.unflushed() || q.orphan != nil && q.orphan.pending()
	}
	return false
}

// unflushed reports whether there is something to flush in an error state.
func (q *QP) unflushed() bool {
	return !q.req.owed && (q.req.head != q.req.tail || q.rsp.posted)
}

// Deadline returns when Next must be called at the latest; the zero Time is never. Pending alone reports work that is
// ready now.
func (q *QP) Deadline() mono.Time {
	if q.orphan != nil {
		return q.orphan.at
	}
	return q.req.timers.deadline()
}

// Next stores the next burst to send in r and reports whether there was one. It also runs the timers that are due and
// flushes queues in the error states. Between Handle and Commit there is nothing to send, even to a queue pair that is
// its own peer.
func (q *QP) Next(now mono.Time, r *pkt.Burst) bool {
	if q.orphan != nil {
		return q.orphan.next(now, &q.endpoint, r)
	}
	more := q.next(now, r)
	if invariants {
		q.verify()
	}
	return more
}

func (q *QP) next(now mono.Time, r *pkt.Burst) bool {
	if q.uncommitted {
		return false
	}
	if q.req.timers.due(now) {
		q.req.runTimers(now)
	}
	if q.rsp.answers.due && q.rsp.nextAnswer(r) {
		q.countSent(r)
		return true
	}
	switch q.attr.State {
	case ib.RTS, ib.SQD:
		if q.req.ready() && q.req.next(now, r) {
			q.countSent(r)
			return true
		}
	case ib.SQE, ib.Err:
		if q.unflushed() {
			q.deliver()
		}
	}
	return false
}

// Acknowledge is Next for the answers alone that carry no payload: ACK, NAK and atomic acknowledge, up to the next
// READ response. The lane calls it before it makes completions visible, so that a program which has seen its last one
// may destroy the queue pair without leaving its peer waiting.
func (q *QP) Acknowledge(r *pkt.Burst) bool {
	if q.uncommitted || !q.rsp.answers.due || q.rsp.answers.nextIsRead() || !q.rsp.nextAnswer(r) {
		return false
	}
	q.countSent(r)
	if invariants {
		q.verify()
	}
	return true
}

func (q *QP) countSent(r *pkt.Burst) {
	q.ctr.SentPackets += uint64(r.Count)
	q.ctr.SentBytes += uint64(r.Data.Len)
}

// Handle receives one inbound burst for this queue pair. Payload goes to b; what follows from it is visible after the
// flush and Commit. r.Fault is set where the payload could not be read, and then the burst counts as lost.
func (q *QP) Handle(now mono.Time, r *pkt.Burst, b *mem.Batch) {
	q.handle(now, r, b)
	if invariants {
		q.verify()
	}
}

func (q *QP) handle(now mono.Time, r *pkt.Burst, b *mem.Batch) {
	i := r.Opcode.Info()
	if !i.Valid || r.Opcode.Service() != q.svc {
		q.ctr.DropOpcode++
		return
	}
	switch q.attr.State {
	case ib.RTR, ib.RTS, ib.SQD, ib.SQE:
	default:
		if q.orphan != nil {
			q.orphan.handle(&q.endpoint, r, i)
			return
		}
		q.ctr.DropState++
		return
	}
	q.uncommitted = true
	if r.Count == 0 || r.Count > maxOutstanding || !i.Payload && (r.Count != 1 || r.Data.Len != 0) {
		q.ctr.DropLength++
		return
	}
	if q.rsp.recvs.full() && !q.rsp.makeRoom(b) {
		q.ctr.DropState++
		return
	}
	if q.datagram() {
		q.rsp.handleDatagram(r, b)
		return
	}
	if !q.fromPeer(r.Path) {
		q.ctr.DropPath++
		return
	}
	if !q.pkey().Match(r.PKey) {
		q.ctr.DropPKey++
		return
	}
	q.ctr.RcvdPackets += uint64(r.Count)
	q.ctr.RcvdBytes += uint64(r.Data.Len)
	if i.Response {
		q.req.handleResponse(now, r, i, b)
		return
	}
	q.rsp.established()
	if q.cfg.Type == ib.UC {
		q.rsp.handleUnreliable(r, i, b)
		return
	}
	q.rsp.handleRequest(r, i, b)
}

// SourceFault reports that the payload of r, a burst that this queue pair produced, could not be read from its memory.
// The peer must treat the burst as lost. It is called before the Commit that follows the Next that produced r.
func (q *QP) SourceFault(now mono.Time, r *pkt.Burst) {
	if r.Opcode.Info().Response {
		q.rsp.refuse(ib.SynNAKRemOp, r.PSN)
		return
	}
	q.req.sourceFault(r)
}

// Commit makes visible what Handle staged: everything placed was flushed. It must follow Handle before anything but
// Handle is called, and follow the consumption of what Next produced.
func (q *QP) Commit(now mono.Time) {
	p, s := &q.rsp, &q.req
	q.uncommitted = false
	if q.orphan != nil {
		return
	}
	if p.placeFailed() {
		p.failPlacement()
	}
	if s.placeFailed {
		s.failPlacement()
	}
	if s.owed {
		s.owed, s.stalled = false, false
	}
	p.commit()
	if p.recvs.staged() || s.head != s.ack || q.attr.State >= ib.SQE {
		q.deliver()
	}
	if s.draining {
		q.checkDrained()
	}
	if invariants {
		q.verify()
	}
}

// reset is the state of a new queue pair; queues must have been discarded.
func (q *QP) reset() {
	q.req.reset()
	q.rsp.reset()
	q.attr, q.uncommitted = Attr{State: ib.Reset}, false
	q.mtu = uint32(q.cfg.PortMTU.Bytes())
	if q.cfg.Type == ib.GSI {
		q.attr.QKey = ib.GSIQKey
	}
}

// discard returns every work request without a completion.
func (q *QP) discard() {
	q.req.discard()
	q.rsp.recvs.discard()
}

// Destroy discards everything; the queue pair is in RESET afterwards and must not be used again.
func (q *QP) Destroy() {
	q.discard()
	q.reset()
}

func (q *QP) enterErr(sendNAK bool) {
	if q.attr.State == ib.Err {
		return
	}
	q.attr.State = ib.Err
	q.req.timers.stop()
	q.req.draining = false
	q.rsp.stop(sendNAK)
}

// fail also records where the requester was: the memory of a program that is killed goes before the node is notified
// of its end, and the peer must still be notified then (Orphan).
func (q *QP) fail(sendNAK bool) {
	if q.attr.State != ib.Err {
		q.req.failure = failurePoint{q.attr.State, q.req.una, q.req.txPSN}
	}
	q.enterErr(sendNAK)
}

// deliver completes sends first: a message that arrived together with the acknowledgement of ours may be its answer,
// but ours, posted before either was visible, is never caused by that message. Programs that wait for both with one
// completion channel depend on that order.
func (q *QP) deliver() {
	q.req.complete()
	q.rsp.recvs.deliver()
	if q.attr.State != ib.Err && q.attr.State != ib.SQE {
		return
	}
	q.req.flush()
	if q.attr.State == ib.Err {
		q.rsp.flush()
	}
}
