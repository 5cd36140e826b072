// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"math/bits"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// requester is the sending half. Its queue is a ring with free-running indices:
//
//	head ≤ ack ≤ tx ≤ fresh ≤ tail
//
// [head, ack) is done and waits for Commit, [ack, fresh) has its PSNs, tx is being transmitted, [fresh, tail) is not
// started. tx lags behind fresh where messages are sent again: going back is moving tx and txPSN back, and what follows
// is ordinary transmission.
type requester struct {
	*endpoint
	sq                         []SendWR
	mask                       uint32
	head, ack, tx, fresh, tail uint32
	una, txPSN, maxPSN         ib.PSN // oldest unacknowledged, next to send, after the highest sent

	window window
	gaps   gaps
	timers timers

	reads        uint32 // READ requests and atomics without their response
	readRequests uint32 // the READ requests among them
	readChunk    uint32 // packets that one READ request covers at most; 0: all
	stalled      bool   // Next cannot go on before a response, a timer or Modify
	retrying     bool   // it went back to una and saw no progress since
	placeFailed  bool   // a response's data did not reach its buffer
	owed         bool   // unreliable sends left, with payload that may still be in use: Commit
	draining     bool   // SQD: started messages are not all done
	lossy        bool   // QP.SetLossy
	paused       bool   // Pause
	// retries and rnrRetries are the retries left for the packet at una, 0 … 7.
	retries, rnrRetries uint8
	// failStatus and failReason are what the next request to be flushed completes with; Success for none.
	failStatus ib.Status
	failReason uint32
	failure    failurePoint
}

// failurePoint is where a requester was when its queue pair failed by itself, not by Modify.
type failurePoint struct {
	state      ib.QPState // RESET while it did not fail
	una, txPSN ib.PSN
}

// maxOutstanding bounds unacknowledged PSNs (IBA volume 1, 9.7.2): beyond it old and new cannot be told apart.
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
	ReasonPageList // the list of pages cannot be read
	ReasonMAD      // not a MAD that QP 1 may send
)

// dist returns how far p lies ahead of q, 0 … 2^24-1.
func dist(p, q ib.PSN) uint32 { return uint32(p-q) & ib.PSNMask }

// init allocates the send queue.
func (s *requester) init(e *endpoint) {
	n := uint32(1)
	if c := e.cfg.Cap.MaxSendWR; c > 1 {
		n = 1 << bits.Len32(c-1)
	}
	s.endpoint, s.sq, s.mask = e, make([]SendWR, n), n-1
	sges := int(e.cfg.Cap.MaxSendSGE)
	sge := make([]ib.SGE, int(n)*sges)
	segs := make([]mem.Seg, int(n)*sges)
	for i := range s.sq {
		s.sq[i].SGE = sge[i*sges : i*sges : (i+1)*sges]
		s.sq[i].segs = segs[i*sges : i*sges : (i+1)*sges]
	}
}

// reset is the state of a new queue pair; the queue must have been discarded.
func (s *requester) reset() {
	*s = requester{endpoint: s.endpoint, sq: s.sq, mask: s.mask, head: s.tail, ack: s.tail, tx: s.tail, fresh: s.tail,
		tail: s.tail, lossy: s.lossy}
}

// discard returns every request without a completion.
func (s *requester) discard() {
	s.comp = Completion{Discard: true}
	for s.head != s.tail {
		wr := &s.sq[s.head&s.mask]
		s.queues.SendDone(wr, false, &s.comp)
		s.head++
	}
}

// complete makes visible what is done.
func (s *requester) complete() {
	for s.head != s.ack {
		wr := &s.sq[s.head&s.mask]
		s.comp = Completion{Op: wr.Op.WCOp(), ByteLen: uint32(wr.length)}
		s.queues.SendDone(wr, s.cfg.SigAll || wr.Flags&ib.Signaled != 0, &s.comp)
		s.head++
	}
}

// flush completes everything that is left in an error state: the oldest with the reason of the failure.
func (s *requester) flush() {
	for s.head != s.tail {
		wr := &s.sq[s.head&s.mask]
		s.comp = Completion{Op: wr.Op.WCOp(), Status: ib.WRFlushErr}
		if s.failStatus != ib.Success {
			s.comp.Status, s.comp.VendorErr = s.failStatus, s.failReason
			s.failStatus = ib.Success
		}
		s.queues.SendDone(wr, true, &s.comp)
		s.head++
	}
	// Numbers go on where the queue was cut off: nothing is outstanding now.
	s.ack, s.tx, s.fresh = s.tail, s.tail, s.tail
	s.una, s.txPSN = s.maxPSN, s.maxPSN
	s.reads, s.readRequests = 0, 0
}

// fail completes the oldest unacknowledged request with status: RC goes to ERR, the other services to SQE.
func (s *requester) fail(status ib.Status, reason uint32) {
	s.failStatus, s.failReason = status, reason
	if s.cfg.Type == ib.RC {
		s.life.fail(false)
		return
	}
	if s.attr.State != ib.Err {
		s.attr.State = ib.SQE
		s.draining = false
	}
}

// slot returns the slot of the next request, or nil where the send queue is full.
func (s *requester) slot() *SendWR {
	if s.tail-s.head >= s.cfg.Cap.MaxSendWR {
		return nil
	}
	wr := &s.sq[s.tail&s.mask]
	*wr = SendWR{SGE: wr.SGE[:0], segs: wr.segs[:0], mad: wr.mad}
	return wr
}

// ready reports whether next may have something to send.
func (s *requester) ready() bool { return s.tx != s.tail && !s.stalled && !s.paused }

// localTurn bounds the local operations that one call of Next executes.
const localTurn = 64

// next produces the next burst of the send queue.
func (s *requester) next(now mono.Time, r *pkt.Burst) bool {
	var wr *SendWR
	for n := 0; ; n++ {
		if s.tx == s.tail || n == localTurn {
			return false
		}
		wr = &s.sq[s.tx&s.mask]
		if !wr.started && wr.status == ib.Success && !s.start(wr) {
			s.stalled = true
			return false
		}
		if !wr.Op.IsLocal() || wr.status != ib.Success {
			break
		}
		// It is done, and nothing was outstanding before it.
		s.tx++
		s.fresh, s.ack = s.tx, s.tx
		s.ctr.LocalOps++
		s.life.deliver()
	}
	if wr.status != ib.Success {
		// Everything earlier comes first, and may fail first.
		if s.ack != s.tx || s.owed {
			s.stalled = true
			return false
		}
		s.fail(wr.status, s.failReason)
		s.life.deliver()
		return false
	}
	switch {
	case s.datagram():
		s.emitDatagram(wr, r)
		return true
	case wr.Op == ib.WRRead:
		return s.emitRead(now, wr, r)
	case wr.Op.IsAtomic(), wr.Op == ib.WRAtomicWrite:
		return s.emitAtomic(now, wr, r)
	}
	return s.emitMessage(now, wr, r)
}

// start checks the request that is next and gives it its PSNs; false
// where it must wait. A request that fails its checks keeps the reason in
// status.
func (s *requester) start(wr *SendWR) bool {
	if s.attr.State != ib.RTS || s.reads != 0 && s.fenced(wr) {
		return false
	}
	if wr.Op.IsLocal() && (s.ack != s.tx || s.owed) {
		// What precedes it may need again what it changes: a request that is sent
		// again reads its memory again. LOCAL_INV has to wait anyway.
		return false
	}
	if wr.status, s.failReason = s.resolve(wr); wr.status != ib.Success {
		return true
	}
	if wr.Op.IsLocal() {
		if wr.status, s.failReason = s.regions.Local(wr); wr.status != ib.Success {
			s.ctr.BindErr++
		}
		return true
	}
	n := packets(wr.length, s.mtu)
	wr.firstPSN, wr.lastPSN = s.txPSN, s.txPSN.Add(n-1)
	wr.readPSN = wr.firstPSN
	wr.started = true
	s.fresh++
	return true
}

// fenced reports whether wr waits for the responses to all earlier READs and atomics: its program set the fence, or
// the path is local and wr follows a READ from memory that it could change. On a local path a READ response refers to
// memory until the requester's lane has copied it, so that the requester keeps the order (docs/adr/0016-read-order.md).
// Preconditions: reads is not 0.
func (s *requester) fenced(wr *SendWR) bool {
	return wr.Flags&ib.Fence != 0 || s.readRequests != 0 && wr.Op != ib.WRRead && s.attr.Path.Local
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
func (s *requester) resolve(wr *SendWR) (ib.Status, uint32) {
	switch {
	case wr.BadWQE:
		return ib.LocQPOpErr, ReasonBadWQE
	case !wr.Op.AllowedOn(s.cfg.Type):
		return ib.LocQPOpErr, ReasonOpcode
	case wr.Flags&^validFlags != 0:
		return ib.LocQPOpErr, ReasonFlags
	case s.datagram() && wr.Path == nil:
		return ib.LocQPOpErr, ReasonNoPath
	case wr.Op.NeedsResponse() && s.attr.MaxRdAtomic == 0:
		return ib.LocQPOpErr, ReasonNoDepth
	case wr.Op.IsLocal():
		wr.length = 0
		return ib.Success, ReasonNone
	}
	if wr.Flags&ib.Inline != 0 {
		switch {
		case wr.Op.Fetches():
			return ib.LocQPOpErr, ReasonFlags
		case uint64(len(wr.InlineData)) > uint64(s.cfg.Cap.MaxInline):
			return ib.LocQPOpErr, ReasonInlineLength
		}
		wr.length = uint64(len(wr.InlineData))
	} else if status, reason := s.resolveList(wr); status != ib.Success {
		return status, reason
	}
	switch {
	case wr.length > ib.MaxMessage, s.datagram() && wr.length > s.longestDatagram(wr):
		return ib.LocLenErr, ReasonLength
	case s.cfg.Type == ib.GSI:
		return s.resolveMAD(wr)
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

func (s *requester) resolveList(wr *SendWR) (ib.Status, uint32) {
	if len(wr.SGE) > int(s.cfg.Cap.MaxSendSGE) {
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
		region := s.regions.LocalRegion(g.LKey, g.Addr, uint64(g.Len), need)
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

// emitMessage produces the next burst of a SEND or WRITE.
func (s *requester) emitMessage(now mono.Time, wr *SendWR, r *pkt.Burst) bool {
	off := uint64(dist(s.txPSN, wr.firstPSN)) * uint64(s.mtu)
	n := wr.length - off
	limit := s.room()
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
	count := packets(n, s.mtu)
	s.header(r, messageOps[wr.Op][pos], s.txPSN, count)
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
	if s.cfg.Type == ib.UC {
		s.txPSN = s.txPSN.Add(count)
		s.maxPSN, s.una = s.txPSN, s.txPSN
		s.owed = true
		if pos&2 != 0 {
			s.tx++
			s.ack = s.tx
		}
		return true
	}
	// A burst is at most half a window, so that acknowledgements keep it moving.
	r.AckReq = pos&2 != 0 || s.window.mode != windowOff
	s.advance(now, wr, count)
	return true
}

// emitRead produces a READ request: for the whole message, for a chunk of it,
// or for what is missing of either.
func (s *requester) emitRead(now mono.Time, wr *SendWR, r *pkt.Burst) bool {
	at := dist(s.txPSN, wr.firstPSN)
	n := s.chunkEnd(wr, at) - at
	fresh := s.txPSN == s.maxPSN
	flight := dist(s.txPSN, s.una)
	if fresh && s.reads >= uint32(s.attr.MaxRdAtomic) || flight+n > maxOutstanding ||
		flight != 0 && s.window.mode != windowOff && (s.waiting() || uint64(flight+n)*uint64(s.mtu) > uint64(s.window.size)) {
		s.stalled = true
		return false
	}
	off := uint64(at) * uint64(s.mtu)
	s.header(r, ib.ReadRequest, s.txPSN, 1)
	r.VA, r.RKey, r.AckReq = wr.RemoteVA+off, wr.RKey, true
	r.DMALen = uint32(min(wr.length-off, uint64(n)*uint64(s.mtu)))
	r.Data = mem.Payload{}
	if fresh {
		s.reads++
		s.readRequests++
	} else if !s.chunkStart(at) {
		wr.readPSN = s.txPSN
	}
	s.advance(now, wr, n)
	return true
}

// chunkStart reports whether a READ request of its own starts at offset at.
func (s *requester) chunkStart(at uint32) bool {
	return at == 0 || s.readChunk != 0 && at%s.readChunk == 0
}

// chunkEnd returns the offset in packets of the end of the READ request that covers offset at. Boundaries depend on the
// request alone, so that a resumed READ never extends beyond the end of the original one.
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
func (s *requester) emitAtomic(now mono.Time, wr *SendWR, r *pkt.Burst) bool {
	fresh := s.txPSN == s.maxPSN
	if fresh && s.reads >= uint32(s.attr.MaxRdAtomic) || s.room() == 0 {
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
	s.header(r, op, s.txPSN, 1)
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
	s.advance(now, wr, 1)
	return true
}

// advance moves the transmit cursor over n PSNs of wr.
func (s *requester) advance(now mono.Time, wr *SendWR, n uint32) {
	end := s.txPSN.Add(n)
	if s.txPSN != s.maxPSN {
		s.ctr.Retransmits += uint64(min(n, dist(s.maxPSN, s.txPSN)))
	} else if s.window.mode != windowOff {
		s.timers.sample(now, s.txPSN)
	}
	if dist(end, s.una) > dist(s.maxPSN, s.una) {
		s.maxPSN = end
	}
	s.txPSN = end
	if end == wr.lastPSN.Add(1) {
		s.tx++
	}
	if s.timers.ackAt.IsZero() {
		s.startAck(now)
	}
	switch {
	case s.gaps.duplicate:
		s.gaps.duplicate = false
		s.rewind()
	case s.gaps.selective && !s.waiting() && end == s.una.Add(1):
		s.skip()
	}
}

// waiting reports whether nothing may follow the packet at una until an answer arrives, which shows where to go on.
func (s *requester) waiting() bool { return s.timers.probes != 0 || s.gaps.waiting() }

// room returns how many payload bytes the next burst may carry, whole packets; zero where the window is full.
func (s *requester) room() uint64 {
	mtu := uint64(s.mtu)
	burst := max(uint64(s.attr.Path.MaxRun)&^(mtu-1), mtu)
	if s.cfg.Type != ib.RC {
		return burst
	}
	flight := dist(s.txPSN, s.una)
	burst = min(burst, uint64(maxOutstanding-flight)*mtu)
	switch {
	case s.window.mode == windowOff:
		return burst
	case flight != 0 && s.waiting():
		return 0
	case s.gaps.duplicate, flight == 0 && (s.gaps.selective || s.timers.probes != 0):
		return mtu // alone
	}
	return min(burst, s.window.allows(uint64(flight)*mtu))
}

// openWindow sets the window and READ chunk of a fresh connection.
func (s *requester) openWindow() {
	s.readChunk, s.timers.rtt, s.window = 0, 0, window{}
	s.gaps.reset()
	if s.cfg.Type != ib.RC || s.attr.Path.Local && !s.lossy {
		return
	}
	s.window = newWindow(s.mtu, s.cfg.MinWindow, s.cfg.Window)
	if s.attr.Path.Local {
		return // so that setLossy need not divide a READ that is under way
	}
	s.readChunk = max(min(initialWindow, s.cfg.Window/4)/s.mtu, 1)
}

// sourceFault makes the request of burst r fail, which could not be read from its memory.
func (s *requester) sourceFault(r *pkt.Burst) {
	for i := s.head; i != s.fresh; i++ {
		wr := &s.sq[i&s.mask]
		if dist(r.PSN, wr.firstPSN) > dist(wr.lastPSN, wr.firstPSN) {
			continue
		}
		wr.status, s.failReason = ib.LocProtErr, ReasonSourceFault
		if s.cfg.Type != ib.RC {
			// Nothing later may complete as if it had been sent.
			s.ack, s.tx, s.fresh, s.una = i, i, i+1, r.PSN
			s.fail(ib.LocProtErr, ReasonSourceFault)
			return
		}
		if int32(i-s.ack) >= 0 && int32(i-s.tx) <= 0 {
			s.tx, s.txPSN, s.stalled = i, r.PSN, !s.timers.rnrAt.IsZero()
		}
		return
	}
}
