// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"encoding/binary"
	"math/bits"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
)

// responder is the receiving half.
type responder struct {
	*endpoint
	ePSN    ib.PSN // expected
	msn     uint32
	safePSN ib.PSN // ePSN at the last Commit: what precedes it is in place
	safeMSN uint32
	open    bool // a message is in progress …
	write   bool // … and it is a WRITE, else a SEND
	commEst bool // COMM_EST was raised

	recvs   receives
	target  writeTarget
	answers answers
	// nakSent: a NAK left for the packet at ePSN. No other leaves before that arrives. rnrSent: it was an RNR NAK.
	nakSent, rnrSent bool
	ooo              *buffer // the out-of-order buffer; nil while nothing is missing
	copies           readCopies

	posted  bool // in ERR: receive requests wait to be flushed
	lastWQE bool // LAST_WQE_REACHED was raised

	received placement // of the data of SENDs, into receive requests
	written  placement // of the data of WRITEs
}

// placement records whether a copy since the last Commit failed. It implements mem.Owner.
type placement struct{ failed bool }

// PlacementFailed implements mem.Owner; Commit acts on it.
func (f *placement) PlacementFailed() { f.failed = true }

// placeFailed reports whether any copy since the last Commit failed.
func (p *responder) placeFailed() bool { return p.received.failed || p.written.failed }

// writeTarget is where the WRITE in progress goes.
type writeTarget struct {
	region *mem.Region
	va     uint64 // address of its first byte
	length uint64 // of the whole message
	done   uint64 // bytes placed, at most length
}

// fault returns the NAK for a WRITE that could not be placed: the key is not valid any more, or it is valid and the
// memory behind it is gone.
func (t *writeTarget) fault() ib.Syndrome {
	if t.region.Revoked() {
		return ib.SynNAKRemAcc
	}
	return ib.SynNAKRemOp
}

// init allocates what the responder needs.
func (p *responder) init(e *endpoint) {
	p.endpoint = e
	p.recvs = receives{endpoint: e, ring: make([]stagedRecv, stageDepth)}
	if e.cfg.Type == ib.RC {
		p.answers.records = make([]record, 1<<bits.Len8(max(e.cfg.MaxRdAtomic, 1)-1))
		p.answers.mask = uint32(len(p.answers.records) - 1)
	}
}

// reset is the state of a new queue pair; receive requests must have been discarded.
func (p *responder) reset() {
	clear(p.answers.records)
	clear(p.recvs.ring)
	p.release()
	*p = responder{endpoint: p.endpoint, recvs: receives{endpoint: p.endpoint, ring: p.recvs.ring},
		answers: answers{records: p.answers.records, mask: p.answers.mask}}
}

// release returns the buffers to the lane, whatever they hold.
func (p *responder) release() {
	p.dropOutOfOrder()
	p.releaseOutOfOrder()
	p.answers.clear()
	p.releaseCopies()
}

// stop is the responder's part of entering ERR; answers that are due still leave if keepAnswers is set.
func (p *responder) stop(keepAnswers bool) {
	p.dropOutOfOrder()
	if !p.uncommitted {
		p.releaseOutOfOrder() // otherwise Commit does
	}
	if !keepAnswers {
		p.answers.clear()
	}
}

// commit records that everything handled is in place.
func (p *responder) commit() {
	p.safePSN, p.safeMSN = p.ePSN, p.msn
	p.releaseOutOfOrder()
	p.releaseCopies()
}

// flush completes every receive request in ERR.
func (p *responder) flush() {
	p.recvs.flush()
	p.posted, p.open = false, false
	if p.cfg.SRQ && !p.lastWQE {
		p.lastWQE = true
		p.queues.Event(ib.EventLastWQEReached)
	}
}

// makeRoom delivers what is staged, after a flush of its data. False reports that some of it failed and the
// queue pair is in ERR.
func (p *responder) makeRoom(b *mem.Batch) bool {
	b.Flush()
	if p.placeFailed() {
		p.failPlacement()
		return false
	}
	p.recvs.deliver()
	p.safePSN, p.safeMSN = p.ePSN, p.msn
	return true
}

// failPlacement takes back everything since the last Commit: a copy of it failed, and which one is not known. If the
// data of a SEND failed, the receive request of the oldest SEND reports it. If only data of WRITEs failed, an event
// does.
func (p *responder) failPlacement() {
	inReceive := p.received.failed
	p.received.failed, p.written.failed = false, false
	reported := p.recvs.failStaged(inReceive)
	if p.attr.State == ib.Err {
		if p.answers.nak != 0 {
			// A later packet was refused: the NAK must not acknowledge this one.
			p.answers.nak, p.answers.nakPSN = ib.SynNAKRemOp, p.safePSN
		}
		return
	}
	p.answers.cancelFrom(p.safePSN)
	p.ePSN, p.msn = p.safePSN, p.safeMSN
	inReceive = inReceive && p.recvs.wr != nil && (p.datagram() || p.open && !p.write)
	event := ib.EventQPFatal
	if p.cfg.Type == ib.RC {
		event = p.refusal(ib.SynNAKRemOp, p.safePSN)
	} else {
		p.open = false
		p.life.enterErr(false)
	}
	switch {
	case reported:
	case inReceive:
		p.recvs.fail(ib.LocProtErr, ReasonPlacement)
	default:
		p.queues.Event(event)
	}
}

// tail returns the opcode of the rest of a burst of opcode o without its first packets.
func tail(o ib.Opcode) ib.Opcode { return o.Split(1, 2) }

// validLength reports whether the payload length fits the opcode, the packet count
// and the path MTU (IBA volume 1, 9.7.4.1.6 and table 38).
func validLength(r *pkt.Burst, i *ib.OpInfo, mtu uint32) bool {
	n := r.Data.Len
	switch {
	case r.Count > 1 && r.MTU != mtu:
		return false
	case !i.Last:
		return uint64(n) == uint64(r.Count)*uint64(mtu)
	case i.First && r.Count == 1:
		return n >= 0 && n <= int(mtu)
	}
	return n > 0 && uint64(n) > uint64(r.Count-1)*uint64(mtu) && uint64(n) <= uint64(r.Count)*uint64(mtu)
}

// established raises COMM_EST for the first packet in RTR.
func (p *responder) established() {
	if p.attr.State == ib.RTR && !p.commEst {
		p.commEst = true
		p.queues.Event(ib.EventCommEst)
	}
}

// handleRequest is the RC responder in the order of its checks (IBA volume 1,
// 9.7.4).
func (p *responder) handleRequest(r *pkt.Burst, i *ib.OpInfo, b *mem.Batch) {
	d := r.PSN.Diff(p.ePSN)
	if d > 0 {
		p.ctr.OutOfSequence++
		p.keepOutOfOrder(r, i, b)
		if !p.nakSent {
			p.nakSent = true
			p.answers.oweNAK(ib.SynNAKSeq, p.ePSN)
			p.ctr.SeqNakSent++
		}
		return
	}
	if d < 0 && uint32(-d) >= r.Count {
		p.duplicate(r, i)
		return
	}
	p.handleInOrder(r, i, b)
	if p.ooo != nil {
		p.handleBuffered(b)
	}
}

// handleInOrder handles a burst that holds the packet at ePSN.
func (p *responder) handleInOrder(r *pkt.Burst, i *ib.OpInfo, b *mem.Batch) {
	in := inbound{Burst: r, op: r.Opcode.Op(), info: i, count: r.Count}
	if d := r.PSN.Diff(p.ePSN); d < 0 {
		// The first packets of the burst were received before.
		in.count -= uint32(-d)
		in.skip = int(-d) * int(p.mtu)
		in.op = tail(r.Opcode).Op()
		in.info = in.op.Info()
	}
	p.nakSent, p.rnrSent, p.copies.deferred = false, false, false
	p.answers.nak = 0
	// Only what is in progress may go on, and it must.
	if in.info.First == p.open || p.open && (p.write != in.info.Write || !in.info.Write && !in.info.Send) {
		if p.open && !p.write {
			p.refuseReceive(ib.SynNAKInvReq, ib.RemInvReqErr, ReasonSequence)
		} else {
			p.refuse(ib.SynNAKInvReq, p.ePSN)
		}
		return
	}
	if p.answers.pending != 0 && in.op != ib.ReadRequest && p.answers.readsDue() {
		if !p.copyReads(b) {
			p.deferRequest()
			return
		}
		if p.placeFailed() {
			return // Commit refuses everything since the packet that failed
		}
	}
	switch {
	case in.info.Send:
		p.onSend(&in, b)
	case in.info.Write:
		p.onWrite(&in, b)
	case in.op == ib.ReadRequest:
		p.onReadRequest(r)
	case in.op == ib.AtomicWrite:
		p.onAtomicWrite(r, b)
	default:
		p.onAtomic(r, b)
	}
}

// inbound is a burst without the packets that were received before.
type inbound struct {
	*pkt.Burst
	op    ib.Opcode
	info  *ib.OpInfo
	count uint32
	skip  int // payload bytes cut off
}

func (in *inbound) size() int { return in.Data.Len - in.skip }

// accept moves ePSN over n packets.
func (p *responder) accept(n uint32, last, ack bool) {
	p.ePSN = p.ePSN.Add(n)
	if last {
		p.msn = (p.msn + 1) & ib.PSNMask
	}
	if ack {
		p.answers.oweACK()
	}
}

// refuse answers with a fatal NAK for psn and goes to ERR, and an event reports it. Receive requests are flushed, also
// one that was taken for a WRITE with immediate: the fault is not theirs, and depends on no receive request.
func (p *responder) refuse(syn ib.Syndrome, psn ib.PSN) {
	if p.attr.State != ib.Err {
		p.queues.Event(p.refusal(syn, psn))
	}
}

// refuseReceive answers the packet at ePSN with a fatal NAK and goes to ERR. The receive request at hand reports
// status: the fault is in the SEND that fills it, or in the receive request itself.
func (p *responder) refuseReceive(syn ib.Syndrome, status ib.Status, reason uint32) {
	if p.attr.State != ib.Err {
		p.refusal(syn, p.ePSN)
		p.recvs.fail(status, reason)
	}
}

// refusal prepares a fatal NAK, goes to ERR and returns the event of its class.
func (p *responder) refusal(syn ib.Syndrome, psn ib.PSN) (event ib.Event) {
	switch syn {
	case ib.SynNAKInvReq:
		p.ctr.RemoteInvalidReq++
		event = ib.EventQPReqErr
	case ib.SynNAKRemAcc:
		p.ctr.RemoteAccessErr++
		event = ib.EventQPAccessErr
	default:
		p.ctr.RemoteOpErr++
		event = ib.EventQPFatal
	}
	p.answers.oweNAK(syn, psn)
	p.answers.ackOwed = false
	p.open = false
	p.life.fail(true)
	return event
}

// notReady answers that no receive request is there; the packet at ePSN is to
// come again.
func (p *responder) notReady() {
	p.answers.oweNAK(ib.SynRNR|ib.Syndrome(p.attr.MinRNRTimer), p.ePSN)
	p.nakSent, p.rnrSent = true, true
	p.ctr.RNRNakSent++
}

// onSend takes part of a SEND.
func (p *responder) onSend(in *inbound, b *mem.Batch) {
	if in.info.First {
		if !p.recvs.take() {
			p.notReady()
			return
		}
		if p.recvs.wr.BadWQE {
			p.refuseReceive(ib.SynNAKRemOp, ib.LocQPOpErr, ReasonBadWQE)
			return
		}
		p.recvs.open()
	}
	if !validLength(in.Burst, in.Opcode.Info(), p.mtu) {
		p.refuseReceive(ib.SynNAKInvReq, ib.RemInvReqErr, ReasonLength)
		return
	}
	n := in.size()
	if p.recvs.placed+uint64(n) > p.recvs.capacity {
		p.refuseReceive(ib.SynNAKInvReq, ib.LocLenErr, ReasonLength)
		return
	}
	saved := p.recvs.at
	switch res, _ := p.recvs.scatter(&p.received, b, &in.Data, in.skip, n); res {
	case mem.SourceFault:
		p.recvs.at, in.Fault = saved, true
		return
	case mem.DestFault:
		p.refuseReceive(ib.SynNAKRemOp, ib.LocProtErr, ReasonPlacement)
		return
	}
	if in.info.Ext&ib.ExtIETH != 0 {
		if !p.regions.Invalidate(in.InvKey) {
			p.refuseReceive(ib.SynNAKRemAcc, ib.LocAccessErr, ReasonRemoteAccess)
			return
		}
		p.ctr.RemoteInvalidated++
	}
	p.recvs.placed += uint64(n)
	p.open, p.write = !in.info.Last, false
	p.accept(in.count, in.info.Last, in.AckReq)
	if in.info.Last {
		p.recvs.received(in, ib.WCRecv, p.recvs.placed)
	}
}

// onWrite takes part of an RDMA WRITE.
func (p *responder) onWrite(in *inbound, b *mem.Batch) {
	if p.attr.Access&ib.RemoteWrite == 0 {
		p.refuse(ib.SynNAKInvReq, p.ePSN)
		return
	}
	imm := in.info.Ext&ib.ExtImm != 0
	count, n, last := in.count, in.size(), in.info.Last
	waits := imm && !p.recvs.take()
	if waits && count == 1 {
		p.notReady()
		return
	}
	if !validLength(in.Burst, in.Opcode.Info(), p.mtu) {
		p.refuse(ib.SynNAKInvReq, p.ePSN)
		return
	}
	if in.info.First {
		p.target = writeTarget{va: in.VA, length: uint64(in.DMALen)}
		if p.target.length > ib.MaxMessage {
			p.refuse(ib.SynNAKInvReq, p.ePSN)
			return
		}
	}
	if p.target.done+uint64(n) > p.target.length || last != (p.target.done+uint64(n) == p.target.length) {
		p.refuse(ib.SynNAKInvReq, p.ePSN)
		return
	}
	if in.info.First && p.target.length != 0 {
		if p.target.region = p.regions.RemoteRegion(in.RKey, in.VA, p.target.length,
			ib.RemoteWrite); p.target.region == nil {
			p.refuse(ib.SynNAKRemAcc, p.ePSN)
			return
		}
	}
	if imm && !waits && p.recvs.wr.BadWQE {
		p.refuseReceive(ib.SynNAKRemOp, ib.LocQPOpErr, ReasonBadWQE)
		return
	}
	if waits {
		// Only the packet with the immediate needs the receive request.
		count, n, last = count-1, int(count-1)*int(p.mtu), false
	}
	if n != 0 {
		switch b.Put(&p.written, p.target.region, p.target.va+p.target.done, &in.Data, in.skip, n) {
		case mem.SourceFault:
			in.Fault = true
			return
		case mem.DestFault:
			p.refuse(p.target.fault(), p.ePSN)
			return
		}
	}
	p.target.done += uint64(n)
	p.open, p.write = !last, true
	p.accept(count, last, in.AckReq && !waits)
	if waits {
		p.notReady()
	} else if imm {
		p.recvs.received(in, ib.WCRecvWithImm, p.target.length)
	}
}

// onReadRequest accepts a READ; Next sends the response.
func (p *responder) onReadRequest(r *pkt.Burst) {
	if p.attr.Access&ib.RemoteRead == 0 || p.attr.MaxDestRdAtomic == 0 || r.DMALen > ib.MaxMessage {
		p.refuse(ib.SynNAKInvReq, p.ePSN)
		return
	}
	var region *mem.Region
	if r.DMALen != 0 {
		if region = p.regions.RemoteRegion(r.RKey, r.VA, uint64(r.DMALen), ib.RemoteRead); region == nil {
			p.refuse(ib.SynNAKRemAcc, p.ePSN)
			return
		}
	}
	rec := p.answers.reserve(uint32(p.attr.MaxDestRdAtomic))
	if rec == nil {
		p.refuse(ib.SynNAKInvReq, p.ePSN)
		return
	}
	n := packets(uint64(r.DMALen), p.mtu)
	rec.first, rec.last = p.ePSN, p.ePSN.Add(n-1)
	rec.va, rec.length, rec.rkey, rec.end = r.VA, uint64(r.DMALen), r.RKey, uint64(r.DMALen)
	rec.seg[0] = mem.Seg{Region: region, Addr: r.VA, Len: rec.length}
	p.accept(n, true, false)
}

// onAtomic executes an atomic. What was handled before must be in place.
func (p *responder) onAtomic(r *pkt.Burst, b *mem.Batch) {
	if p.attr.Access&ib.RemoteAtomic == 0 || p.attr.MaxDestRdAtomic == 0 || r.VA&7 != 0 {
		p.refuse(ib.SynNAKInvReq, p.ePSN)
		return
	}
	region := p.regions.RemoteRegion(r.RKey, r.VA, 8, ib.RemoteAtomic)
	if region == nil {
		p.refuse(ib.SynNAKRemAcc, p.ePSN)
		return
	}
	b.Flush()
	if p.placeFailed() {
		return // Commit refuses everything since the packet that failed
	}
	rec := p.answers.reserve(uint32(p.attr.MaxDestRdAtomic))
	if rec == nil {
		p.refuse(ib.SynNAKInvReq, p.ePSN)
		return
	}
	var err error
	if r.Opcode.Op() == ib.CmpSwap {
		rec.orig, err = region.CompareSwap(r.VA, r.Compare, r.SwapAdd)
	} else {
		rec.orig, err = region.FetchAdd(r.VA, r.SwapAdd)
	}
	if err != nil {
		p.answers.cancel()
		p.refuse(ib.SynNAKRemOp, p.ePSN)
		return
	}
	rec.atomic, rec.first, rec.last, rec.va, rec.rkey = true, p.ePSN, p.ePSN, r.VA, r.RKey
	p.accept(1, true, false)
}

// onAtomicWrite stores eight bytes at once (IBA volume 1 release 1.5, 9.4.10).
// What was handled before must be in place.
func (p *responder) onAtomicWrite(r *pkt.Burst, b *mem.Batch) {
	if p.attr.Access&ib.RemoteWrite == 0 || p.attr.MaxDestRdAtomic == 0 || r.VA&7 != 0 || r.Count != 1 ||
		r.DMALen != 8 || r.Data.Len != 8 {
		p.refuse(ib.SynNAKInvReq, p.ePSN)
		return
	}
	region := p.regions.RemoteRegion(r.RKey, r.VA, 8, ib.RemoteWrite)
	if region == nil {
		p.refuse(ib.SynNAKRemAcc, p.ePSN)
		return
	}
	b.Flush()
	if p.placeFailed() {
		return // Commit refuses everything since the packet that failed
	}
	word, res := b.Fetch(&r.Data, 8)
	if res != mem.OK {
		r.Fault = true
		return
	}
	rec := p.answers.reserve(uint32(p.attr.MaxDestRdAtomic))
	if rec == nil {
		p.refuse(ib.SynNAKInvReq, p.ePSN)
		return
	}
	if store(region, r.VA, binary.NativeEndian.Uint64(word)) != nil {
		p.answers.cancel()
		p.refuse(ib.SynNAKRemOp, p.ePSN)
		return
	}
	rec.stored, rec.first, rec.last, rec.va, rec.rkey = true, p.ePSN, p.ePSN, r.VA, r.RKey
	p.accept(1, true, false)
}

// storeTries bounds how often a program that writes the same word itself can be
// in the way of a store.
const storeTries = 1000

// store replaces the word at addr at once, by what memory has of atomics.
func store(region *mem.Region, addr, v uint64) error {
	old, err := region.FetchAdd(addr, 0)
	for range storeTries {
		was := old
		if err != nil {
			return err
		}
		if old, err = region.CompareSwap(addr, was, v); err == nil && old == was {
			return nil
		}
	}
	return mem.ErrFault
}
