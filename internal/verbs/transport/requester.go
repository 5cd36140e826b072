// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// requester is the sending half. Its queue is a ring with free-running
// indices:
//
//	head ≤ ack ≤ tx ≤ fresh ≤ tail
//
// [head, ack) is done and waits for Commit, [ack, fresh) has its PSNs, tx is
// being transmitted, [fresh, tail) is not started. tx lags behind fresh where
// messages are sent again: going back is moving tx and txPSN back, and what
// follows is ordinary transmission.
type requester struct {
	sq                         []SendWR
	mask                       uint32
	head, ack, tx, fresh, tail uint32
	una, txPSN, maxPSN         ib.PSN // oldest unacknowledged, next to send, after the highest sent
	reads                      uint32 // READ requests and atomics without their response
	readRequests               uint32 // the READ requests among them
	stalled                    bool   // Next cannot go on before a response, a timer or Modify
	retrying                   bool   // went back to una and saw no progress since
	twice                      bool   // the run at una is to leave twice
	mending                    bool   // of what precedes mendEnd only the packet at una is sent again
	keeps                      bool   // the peer keeps what arrives behind a gap, as far as is known …
	doubted                    bool   // … but what was behind the last one was missing as well
	askIn, askNext             uint8  // NAKs until that is found out again, and if it then does not
	mendEnd                    ib.PSN
	gap                        ib.PSN // the last one
	between                    int32  // packets from gap to gap, on average
	placeFailed                bool   // a response's data did not reach its buffer
	owed                       bool   // unreliable sends left whose payload may still be in use: Commit
	draining                   bool
	paused                     bool // Pause
	retries, rnrs              uint8
	probes                     uint8 // since the last progress
	ackAt, rnrAt               mono.Time
	probeAt                    mono.Time // when to look for the loss of what was sent last; zero: not now
	sampleAt                   mono.Time // when the packet before samplePSN left, once and for the first time
	samplePSN                  ib.PSN
	rtt                        time.Duration // smoothed round trip; 0 is unknown
	failStatus                 ib.Status
	failReason                 uint32
	cwnd, ssthresh             uint32 // bytes, on paths that can lose packets
	recover                    ib.PSN // the window is not cut again before this is acknowledged
	recovering                 bool
	readChunk                  uint32     // packets that one READ request asks for
	fell                       ib.QPState // from where it failed by itself, not by Modify; una and txPSN then
	fellUna, fellPSN           ib.PSN
}

// maxOutstanding bounds unacknowledged PSNs (IBA volume 1, 9.7.2): beyond it
// old and new cannot be told apart.
const maxOutstanding = 1 << 23

// Values of Completion.VendorErr: why a request failed.
const (
	ReasonNone uint32 = iota
	ReasonBadWQE
	ReasonOpcode
	ReasonFlags
	ReasonSGECount
	ReasonInlineLength
	ReasonLocalKey
	ReasonLength
	ReasonNoPath
	ReasonNoDepth
	ReasonSourceFault
	ReasonPlacement
	ReasonRemoteNak
	ReasonResponse
	ReasonTimeout
	ReasonRNR
	ReasonRemoteAccess
	ReasonSequence
	ReasonObject   // no such window or region, or one of another domain or kind
	ReasonBound    // it is bound, or registered, or is not
	ReasonRights   // rights that do not go together
	ReasonRange    // the window is not in its region, or pages and length disagree
	ReasonPageList // the list of pages is not to be had
)

// dist returns how far p lies ahead of q, 0 … 2^24-1.
func dist(p, q ib.PSN) uint32 { return uint32(p-q) & ib.PSNMask }

// SendSlot returns the slot to fill for the next Post, or nil where the send
// queue is full. Every field but SGE's capacity is reset.
func (q *QP) SendSlot() *SendWR {
	s := &q.req
	if s.tail-s.head >= q.cfg.Cap.MaxSendWR {
		return nil
	}
	wr := &s.sq[s.tail&s.mask]
	*wr = SendWR{SGE: wr.SGE[:0], segs: wr.segs[:0]}
	return wr
}

// Post makes the slot that SendSlot returned last part of the queue. In ERR
// and SQE it is flushed by the next Next.
func (q *QP) Post(now mono.Time) { q.req.tail++ }

// Pending reports whether Next has something to do now; it may err on the
// side of yes.
func (q *QP) Pending() bool {
	s := &q.req
	if q.rsp.work {
		return true
	}
	switch q.attr.State {
	case ib.RTS, ib.SQD:
		return s.tx != s.tail && !s.stalled && !s.paused
	case ib.SQE, ib.Err:
		return !s.owed && (s.head != s.tail || q.rsp.recvPosted) || q.bye != nil && q.bye.pending()
	}
	return false
}

// Pause keeps Next from producing requests, until it is told otherwise or the
// queue pair is reset; answers go on.
func (q *QP) Pause(on bool) { q.req.paused = on }

// Deadline returns when Next wants to be called at the latest; the zero Time
// is never. Work that is ready now is told by Pending alone.
func (q *QP) Deadline() mono.Time {
	if q.bye != nil {
		return q.bye.at
	}
	return mono.Min(mono.Min(q.req.ackAt, q.req.rnrAt), q.req.probeAt)
}

// Next stores the next run to send in r and reports whether there was one. It
// also runs the timers that are due and flushes queues in the error states.
// Between Handle and Commit there is nothing to send, even to a queue pair that
// is its own peer.
func (q *QP) Next(now mono.Time, r *pkt.Burst) bool {
	if q.bye != nil {
		return q.nextFarewell(now, r)
	}
	more := q.next(now, r)
	if invariants {
		q.verify()
	}
	return more
}

func (q *QP) next(now mono.Time, r *pkt.Burst) bool {
	s := &q.req
	if q.dirty {
		return false // an answer must not overtake the data it answers for
	}
	if s.ackAt.Due(now) || s.rnrAt.Due(now) || s.probeAt.Due(now) {
		q.runTimers(now)
	}
	if q.rsp.work && q.nextResponse(r) {
		q.sent(r)
		return true
	}
	switch q.attr.State {
	case ib.RTS, ib.SQD:
		if s.tx != s.tail && !s.stalled && !s.paused && q.nextRequest(now, r) {
			q.sent(r)
			return true
		}
	case ib.SQE, ib.Err:
		if !s.owed && (s.head != s.tail || q.rsp.recvPosted) {
			q.deliver()
		}
	}
	return false
}

func (q *QP) sent(r *pkt.Burst) {
	q.ctr.SentPackets += uint64(r.Count)
	q.ctr.SentBytes += uint64(r.Data.Len)
}

// localTurn bounds the local operations that one call of Next executes.
const localTurn = 64

// nextRequest produces the next run of the send queue.
func (q *QP) nextRequest(now mono.Time, r *pkt.Burst) bool {
	s := &q.req
	var wr *SendWR
	for n := 0; ; n++ {
		if s.tx == s.tail || n == localTurn {
			return false
		}
		wr = &s.sq[s.tx&s.mask]
		if !wr.started && wr.status == ib.Success && !q.start(wr) {
			s.stalled = true
			return false
		}
		if !wr.Op.IsLocal() || wr.status != ib.Success {
			break
		}
		// It is done, and nothing was outstanding before it.
		s.tx++
		s.fresh, s.ack = s.tx, s.tx
		q.ctr.LocalOps++
		q.deliver()
	}
	if wr.status != ib.Success {
		// Everything earlier comes first, and may fail first.
		if s.ack != s.tx || s.owed {
			s.stalled = true
			return false
		}
		q.failSend(wr.status, s.failReason)
		q.deliver()
		return false
	}
	switch {
	case q.datagram():
		q.emitDatagram(wr, r)
		return true
	case wr.Op == ib.WRRead:
		return q.emitRead(now, wr, r)
	case wr.Op.IsAtomic(), wr.Op == ib.WRAtomicWrite:
		return q.emitAtomic(now, wr, r)
	}
	return q.emitMessage(now, wr, r)
}

// start checks a request whose turn has come and gives it its PSNs; false
// where it must wait. A request that fails its checks keeps the reason in
// status.
func (q *QP) start(wr *SendWR) bool {
	s := &q.req
	if q.attr.State != ib.RTS || s.reads != 0 && q.fenced(wr) {
		return false
	}
	if wr.Op.IsLocal() && (s.ack != s.tx || s.owed) {
		// What precedes it may need again what it changes: a request that is sent
		// again reads its memory again. LOCAL_INV has to wait anyway.
		return false
	}
	if wr.status, s.failReason = q.resolve(wr); wr.status != ib.Success {
		return true
	}
	if wr.Op.IsLocal() {
		if wr.status, s.failReason = q.env.Local(wr); wr.status != ib.Success {
			q.ctr.BindErr++
		}
		return true
	}
	n := packets(wr.length, q.mtu)
	wr.firstPSN, wr.lastPSN = s.txPSN, s.txPSN.Add(n-1)
	wr.readPSN = wr.firstPSN
	wr.started = true
	s.fresh++
	return true
}

// fenced reports whether wr waits for the responses to all earlier READs and atomics: its program set the fence, or
// the path is local and wr follows a READ whose memory it could change. On a local path a READ response refers to
// memory until the requester's lane has copied it, so that the requester keeps the order (docs/adr/0016-read-order.md).
// Preconditions: reads is not 0.
func (q *QP) fenced(wr *SendWR) bool {
	return wr.Flags&ib.Fence != 0 || q.req.readRequests != 0 && wr.Op != ib.WRRead && q.attr.Path.Local
}

// packets returns how many packets carry n bytes, at least one.
func packets(n uint64, mtu uint32) uint32 {
	if n <= uint64(mtu) {
		return 1
	}
	return uint32((n + uint64(mtu) - 1) / uint64(mtu))
}

const validFlags = ib.Fence | ib.Signaled | ib.Solicited | ib.Inline

// resolve validates a request (IBA volume 1, 10.8.2 and 11.6.2) and finds the
// memory of its gather list.
func (q *QP) resolve(wr *SendWR) (ib.Status, uint32) {
	switch {
	case wr.BadWQE:
		return ib.LocQPOpErr, ReasonBadWQE
	case !wr.Op.AllowedOn(q.cfg.Type):
		return ib.LocQPOpErr, ReasonOpcode
	case wr.Flags&^validFlags != 0:
		return ib.LocQPOpErr, ReasonFlags
	case q.datagram() && wr.Path == nil:
		return ib.LocQPOpErr, ReasonNoPath
	case wr.Op.NeedsResponse() && q.attr.MaxRdAtomic == 0:
		return ib.LocQPOpErr, ReasonNoDepth
	case wr.Op.IsLocal():
		wr.length = 0
		return ib.Success, ReasonNone
	}
	if wr.Flags&ib.Inline != 0 {
		switch {
		case wr.Op.Fetches():
			return ib.LocQPOpErr, ReasonFlags
		case uint64(len(wr.InlineData)) > uint64(q.cfg.Cap.MaxInline):
			return ib.LocQPOpErr, ReasonInlineLength
		}
		wr.length = uint64(len(wr.InlineData))
	} else if status, reason := q.resolveList(wr); status != ib.Success {
		return status, reason
	}
	switch {
	case wr.length > ib.MaxMessage, q.datagram() && wr.length > q.longestDatagram(wr):
		return ib.LocLenErr, ReasonLength
	case wr.Op.IsAtomic():
		if wr.length < 8 {
			return ib.LocLenErr, ReasonLength
		}
		wr.length = 8
	case wr.Op == ib.WRAtomicWrite && wr.length != 8:
		return ib.LocLenErr, ReasonLength
	}
	return ib.Success, ReasonNone
}

func (q *QP) resolveList(wr *SendWR) (ib.Status, uint32) {
	if len(wr.SGE) > int(q.cfg.Cap.MaxSendSGE) {
		return ib.LocQPOpErr, ReasonSGECount
	}
	var need ib.Access
	if wr.Op.Fetches() {
		need = ib.LocalWrite
	}
	wr.length, wr.segs = 0, wr.segs[:0]
	for i := range wr.SGE {
		g := &wr.SGE[i]
		if g.Len == 0 {
			continue
		}
		region := q.env.LocalRegion(g.LKey, g.Addr, uint64(g.Len), need)
		if region == nil {
			return ib.LocProtErr, ReasonLocalKey
		}
		wr.segs = append(wr.segs, mem.Seg{Region: region, Addr: g.Addr, Len: uint64(g.Len)})
		wr.length += uint64(g.Len)
	}
	return ib.Success, ReasonNone
}

// messageOps are the opcodes of SEND and WRITE by position: bit 0 first, bit
// 1 last.
var messageOps = [...][4]ib.Opcode{
	ib.WRWrite:    {ib.WriteMiddle, ib.WriteFirst, ib.WriteLast, ib.WriteOnly},
	ib.WRWriteImm: {ib.WriteMiddle, ib.WriteFirst, ib.WriteLastImm, ib.WriteOnlyImm},
	ib.WRSend:     {ib.SendMiddle, ib.SendFirst, ib.SendLast, ib.SendOnly},
	ib.WRSendImm:  {ib.SendMiddle, ib.SendFirst, ib.SendLastImm, ib.SendOnlyImm},
	ib.WRSendInv:  {ib.SendMiddle, ib.SendFirst, ib.SendLastInv, ib.SendOnlyInv},
}

// header fills what every run of a connected queue pair has.
func (q *QP) header(r *pkt.Burst, op ib.Opcode, psn ib.PSN, count uint32) {
	r.Headers = wire.Headers{Opcode: q.svc | op, MigReq: true, PKey: q.pkey(), DestQPN: q.attr.DestQPN, PSN: psn}
	r.Count, r.MTU, r.Path = count, q.mtu, q.attr.Path
	r.IPv4, r.Fault = false, false
}

// emitMessage produces the next run of a SEND or WRITE.
func (q *QP) emitMessage(now mono.Time, wr *SendWR, r *pkt.Burst) bool {
	s := &q.req
	off := uint64(dist(s.txPSN, wr.firstPSN)) * uint64(q.mtu)
	n := wr.length - off
	limit := q.room()
	if limit == 0 {
		s.stalled = true
		return false
	}
	pos := 2
	if n > limit {
		n, pos = limit, 0
	}
	if off == 0 {
		pos |= 1
	}
	count := packets(n, q.mtu)
	q.header(r, messageOps[wr.Op][pos], s.txPSN, count)
	if pos&1 != 0 && !wr.Op.IsSend() {
		r.VA, r.RKey, r.DMALen = wr.RemoteVA, wr.RKey, uint32(wr.length)
	}
	if pos&2 != 0 {
		if wr.Op.HasImm() {
			r.Imm = wr.Imm
		} else if wr.Op == ib.WRSendInv {
			r.InvKey = wr.RKey
		}
		r.SE = wr.Flags&ib.Solicited != 0 && wr.Op != ib.WRWrite
	}
	r.Data = wr.payload(off, n)
	if q.cfg.Type == ib.UC {
		s.txPSN = s.txPSN.Add(count)
		s.maxPSN, s.una = s.txPSN, s.txPSN
		s.owed = true
		if pos&2 != 0 {
			s.tx++
			s.ack = s.tx
		}
		return true
	}
	// A run is at most half a window, so that acknowledgements keep it moving.
	r.AckReq = pos&2 != 0 || !q.attr.Path.Local
	q.advance(now, wr, count)
	return true
}

// emitRead produces a READ request: for the whole message, for a chunk of it,
// or for what is missing of either.
func (q *QP) emitRead(now mono.Time, wr *SendWR, r *pkt.Burst) bool {
	s := &q.req
	at := dist(s.txPSN, wr.firstPSN)
	n := s.chunkEnd(wr, at) - at
	fresh := s.txPSN == s.maxPSN
	flight := dist(s.txPSN, s.una)
	if fresh && s.reads >= uint32(q.attr.MaxRdAtomic) || flight+n > maxOutstanding ||
		flight != 0 && !q.attr.Path.Local && (s.waits() || uint64(flight+n)*uint64(q.mtu) > uint64(s.cwnd)) {
		s.stalled = true
		return false
	}
	off := uint64(at) * uint64(q.mtu)
	q.header(r, ib.ReadRequest, s.txPSN, 1)
	r.VA, r.RKey, r.AckReq = wr.RemoteVA+off, wr.RKey, true
	r.DMALen = uint32(min(wr.length-off, uint64(n)*uint64(q.mtu)))
	r.Data = mem.Payload{}
	if fresh {
		s.reads++
		s.readRequests++
	} else if !s.chunkStart(at) {
		wr.readPSN = s.txPSN
	}
	q.advance(now, wr, n)
	return true
}

// chunkStart reports whether a READ request of its own starts at offset at.
func (s *requester) chunkStart(at uint32) bool {
	return at == 0 || s.readChunk != 0 && at%s.readChunk == 0
}

// chunkEnd returns the offset in packets of the end of the READ request that
// covers offset at. Boundaries depend on the request alone, so that a resumed
// READ never reaches over the end of what one request asked for.
func (s *requester) chunkEnd(wr *SendWR, at uint32) uint32 {
	total := dist(wr.lastPSN, wr.firstPSN) + 1
	if s.readChunk == 0 {
		return total
	}
	return min(total, (at/s.readChunk+1)*s.readChunk)
}

// payload returns n bytes at offset off of what a request sends.
func (wr *SendWR) payload(off, n uint64) mem.Payload {
	switch {
	case n == 0:
		return mem.Payload{}
	case wr.Flags&ib.Inline != 0:
		return mem.BytesPayload(wr.InlineData[off : off+n])
	}
	return mem.ListPayload(wr.segs, off, int(n))
}

// emitAtomic produces an atomic request, or an ATOMIC WRITE.
func (q *QP) emitAtomic(now mono.Time, wr *SendWR, r *pkt.Burst) bool {
	s := &q.req
	fresh := s.txPSN == s.maxPSN
	if fresh && s.reads >= uint32(q.attr.MaxRdAtomic) || q.room() == 0 {
		s.stalled = true
		return false
	}
	op := ib.FetchAdd
	switch wr.Op {
	case ib.WRCmpSwap:
		op = ib.CmpSwap
	case ib.WRAtomicWrite:
		op = ib.AtomicWrite
	}
	q.header(r, op, s.txPSN, 1)
	r.VA, r.RKey, r.AckReq, r.Data = wr.RemoteVA, wr.RKey, true, mem.Payload{}
	switch wr.Op {
	case ib.WRAtomicWrite:
		r.DMALen, r.Data = 8, wr.payload(0, 8)
	case ib.WRCmpSwap:
		r.Compare, r.SwapAdd = wr.Compare, wr.SwapAdd
	default:
		r.SwapAdd = wr.SwapAdd
	}
	if fresh {
		s.reads++
	}
	q.advance(now, wr, 1)
	return true
}

// advance moves the transmit cursor over n PSNs of wr.
func (q *QP) advance(now mono.Time, wr *SendWR, n uint32) {
	s := &q.req
	end := s.txPSN.Add(n)
	if s.txPSN != s.maxPSN {
		q.ctr.Retransmits += uint64(min(n, dist(s.maxPSN, s.txPSN)))
	} else if s.sampleAt.IsZero() && !q.attr.Path.Local {
		s.sampleAt, s.samplePSN = now, s.txPSN.Add(1)
	}
	if dist(end, s.una) > dist(s.maxPSN, s.una) {
		s.maxPSN = end
	}
	s.txPSN = end
	if end == wr.lastPSN.Add(1) {
		s.tx++
	}
	if s.ackAt.IsZero() {
		q.armAck(now)
	}
	switch {
	case s.twice:
		s.twice = false
		s.rewind()
	case s.mending && !s.waits() && end == s.una.Add(1):
		s.skip()
	}
}

// waits reports whether nothing may follow the packet at una until something comes
// back, which says where to go on.
func (s *requester) waits() bool { return s.probes != 0 || s.mending && !s.keeps }

// room returns how many payload bytes the next run may carry, whole packets;
// zero where the window is full.
func (q *QP) room() uint64 {
	s, path, mtu := &q.req, q.attr.Path, uint64(q.mtu)
	run := max(uint64(path.MaxRun)&^(mtu-1), mtu)
	if q.cfg.Type != ib.RC {
		return run
	}
	flight := dist(s.txPSN, s.una)
	run = min(run, uint64(maxOutstanding-flight)*mtu)
	if path.Local {
		return run
	}
	if flight != 0 && s.waits() {
		return 0
	}
	if s.twice || flight == 0 && (s.mending || s.probes != 0) {
		return mtu // alone
	}
	inFlight := uint64(flight) * mtu
	if inFlight == 0 {
		return max(min(run, uint64(s.cwnd/2)&^(mtu-1)), mtu)
	}
	if inFlight >= uint64(s.cwnd) {
		return 0
	}
	return min(run, max(uint64(s.cwnd/2)&^(mtu-1), mtu), (uint64(s.cwnd)-inFlight)&^(mtu-1))
}

// openWindow sets the window and READ chunk of a fresh connection.
func (q *QP) openWindow() {
	s := &q.req
	s.readChunk, s.rtt, s.between = 0, 0, gapFar
	if q.cfg.Type != ib.RC || q.attr.Path.Local {
		return
	}
	s.cwnd = max(min(initialWindow, q.cfg.Window), q.mtu)
	s.ssthresh = q.cfg.Window
	s.readChunk = max(min(initialWindow, q.cfg.Window/4)/q.mtu, 1)
}

// SourceFault tells that the payload of r, a run that this queue pair
// produced, could not be read from its memory. The peer is to regard the run
// as lost. It is called before the Commit that follows the Next that produced
// r.
func (q *QP) SourceFault(now mono.Time, r *pkt.Burst) {
	if i := r.Opcode.Info(); i.Response {
		q.refuse(ib.SynNAKRemOp, ib.Success, r.PSN, ReasonSourceFault)
		return
	}
	s := &q.req
	for i := s.head; i != s.fresh; i++ {
		wr := &s.sq[i&s.mask]
		if dist(r.PSN, wr.firstPSN) > dist(wr.lastPSN, wr.firstPSN) {
			continue
		}
		wr.status, s.failReason = ib.LocProtErr, ReasonSourceFault
		if q.cfg.Type != ib.RC {
			// Nothing later may complete as if it had been sent.
			s.ack, s.tx, s.fresh, s.una = i, i, i+1, r.PSN
			q.failSend(ib.LocProtErr, ReasonSourceFault)
			return
		}
		if int32(i-s.ack) >= 0 && int32(i-s.tx) <= 0 {
			s.tx, s.txPSN, s.stalled = i, r.PSN, !s.rnrAt.IsZero()
		}
		return
	}
}
