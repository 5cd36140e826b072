// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"encoding/binary"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// responder is the receiving half.
type responder struct {
	ePSN    ib.PSN // expected
	msn     uint32
	safePSN ib.PSN // ePSN at the last Commit: what precedes it is in place
	safeMSN uint32
	open    bool // a message is in progress …
	write   bool // … and it is a WRITE, else a SEND
	commEst bool // COMM_EST was raised

	// The receive request at hand: of the SEND in progress, or taken for a
	// message that did not arrive whole and kept for the next one.
	recv    *RecvWR
	recvCap uint64      // bytes its list holds
	recvLen uint64      // bytes placed
	recvAt  recvCursor  // where the next byte goes
	region  *mem.Region // WRITE in progress: target …
	va      uint64      // … address of its first byte …
	length  uint64      // … whole length …
	done    uint64      // … bytes placed

	// Answers, in the order they must leave: pending records, the NAK, else
	// the ACK.
	work    bool     // one of them is due
	recs    []record // a ring of a power of two
	recMask uint32
	pending uint32 // records that wait for their answer
	recHead uint32
	recTail uint32
	nak     ib.Syndrome // zero for none
	nakPSN  ib.PSN
	ackOwed bool
	nakSent bool   // silent until ePSN arrives in order
	rnrSent bool   // it was an RNR NAK
	shelf   *shelf // what arrived behind a gap; nil while there is none
	copies  readCopies

	staged      []stagedRecv
	stageHead   uint32
	nstaged     uint32
	recvPosted  bool // in ERR: receive requests wait to be flushed
	placeFailed bool
	lastWQE     bool
}

// recvCursor is a position in a receive request's scatter list.
type recvCursor struct {
	i      int
	off    uint32
	region *mem.Region // of entry i, once it was looked up
}

// tail returns the opcode of what is left of a run of opcode o when its first
// packets are taken away.
func tail(o ib.Opcode) ib.Opcode { return o.Split(1, 2) }

// shape reports whether the payload length fits the opcode, the packet count
// and the path MTU (IBA volume 1, 9.7.4.1.6 and table 38).
func shape(r *pkt.Burst, i *ib.OpInfo, mtu uint32) bool {
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

// Handle takes one inbound run for this queue pair. Payload goes to b; what
// follows from it is visible after the flush and Commit. r.Fault is set where
// the payload could not be read, and then the run counts as lost.
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
		if q.bye != nil {
			q.handleFarewell(r, i)
			return
		}
		q.ctr.DropState++
		return
	}
	q.dirty = true
	if r.Count == 0 || r.Count > maxOutstanding || !i.Payload && (r.Count != 1 || r.Data.Len != 0) {
		q.ctr.DropLength++
		return
	}
	if q.rsp.nstaged >= stageDepth-2 && !q.makeRoom(b) {
		q.ctr.DropState++
		return
	}
	if q.datagram() {
		q.handleDatagram(r, b)
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
		q.handleResponse(now, r, i, b)
		return
	}
	q.established()
	if q.cfg.Type == ib.UC {
		q.handleUnreliable(r, i, b)
		return
	}
	q.handleRequest(r, i, b)
}

// fromPeer reports whether an inbound path is the way from the peer. Inbound,
// the source is the peer: a path stands as its sender sees it.
func (q *QP) fromPeer(p *ib.Path) bool {
	own := q.attr.Path
	if own.DLID != 0 || p.DLID != 0 {
		// Local identifiers must match, and a GRH be there and match where the
		// address vector has one (IBA volume 1, 9.6.1.5 and 9.6.1.2).
		if p.SLID != own.DLID || p.DLID != own.SLID {
			return false
		}
		if !own.Global {
			return true
		}
		if !p.Global {
			return false
		}
	}
	return p.SGID == own.DGID && p.DGID == own.SGID
}

// established raises COMM_EST for the first packet in RTR.
func (q *QP) established() {
	if q.attr.State == ib.RTR && !q.rsp.commEst {
		q.rsp.commEst = true
		q.env.Event(ib.EventCommEst)
	}
}

// handleRequest is the RC responder in the order of its checks (IBA volume 1,
// 9.7.4).
func (q *QP) handleRequest(r *pkt.Burst, i *ib.OpInfo, b *mem.Batch) {
	p := &q.rsp
	d := r.PSN.Diff(p.ePSN)
	if d > 0 {
		q.ctr.OutOfSequence++
		q.shelve(r, i, b)
		if !p.nakSent {
			p.nakSent = true
			p.nak, p.nakPSN, p.work = ib.SynNAKSeq, p.ePSN, true
			q.ctr.SeqNakSent++
		}
		return
	}
	if d < 0 && uint32(-d) >= r.Count {
		q.duplicate(r, i)
		return
	}
	q.inOrder(r, i, b)
	if p.shelf != nil {
		q.unshelve(b)
	}
}

// inOrder takes a run that holds the packet at ePSN.
func (q *QP) inOrder(r *pkt.Burst, i *ib.OpInfo, b *mem.Batch) {
	p := &q.rsp
	in := inbound{Burst: r, op: r.Opcode.Op(), info: i, count: r.Count}
	if d := r.PSN.Diff(p.ePSN); d < 0 {
		// The head of the run has been here before.
		in.count -= uint32(-d)
		in.skip = int(-d) * int(q.mtu)
		in.op = tail(r.Opcode).Op()
		in.info = in.op.Info()
	}
	p.nakSent, p.rnrSent, p.copies.deferred = false, false, false
	p.nak = 0
	// Only what is in progress may go on, and it must.
	if in.info.First == p.open || p.open && (p.write != in.info.Write || !in.info.Write && !in.info.Send) {
		q.refuse(ib.SynNAKInvReq, ib.RemInvReqErr, p.ePSN, ReasonSequence)
		return
	}
	if p.pending != 0 && in.op != ib.ReadRequest && p.dueReads() {
		if !q.copyReads(b) {
			p.deferRequest()
			return
		}
		if p.placeFailed {
			return // Commit refuses everything since the packet that failed
		}
	}
	switch {
	case in.info.Send:
		q.onSend(&in, b)
	case in.info.Write:
		q.onWrite(&in, b)
	case in.op == ib.ReadRequest:
		q.onReadRequest(r)
	case in.op == ib.AtomicWrite:
		q.onAtomicWrite(r, b)
	default:
		q.onAtomic(r, b)
	}
}

// inbound is a run of which the part that was received before is cut off.
type inbound struct {
	*pkt.Burst
	op    ib.Opcode
	info  *ib.OpInfo
	count uint32
	skip  int // payload bytes cut off
}

func (in *inbound) size() int { return in.Data.Len - in.skip }

// accept moves ePSN over n packets.
func (q *QP) accept(n uint32, last, ack bool) {
	p := &q.rsp
	p.ePSN = p.ePSN.Add(n)
	if last {
		p.msn = (p.msn + 1) & ib.PSNMask
	}
	if ack {
		p.ackOwed, p.work = true, true
	}
}

// refuse answers with a fatal NAK for psn and goes to ERR; the receive request
// at hand reports status, or an event does where there is none.
func (q *QP) refuse(syn ib.Syndrome, status ib.Status, psn ib.PSN, reason uint32) {
	if q.attr.State == ib.Err {
		return
	}
	event := q.refusal(syn, psn)
	p := &q.rsp
	if p.recv != nil && status != ib.Success {
		wr := p.recv
		p.recv = nil
		*q.stage(wr) = Completion{Op: ib.WCRecv, Status: status, VendorErr: reason}
		return
	}
	q.env.Event(event)
}

// refusal prepares a fatal NAK, goes to ERR and returns the event of its class.
func (q *QP) refusal(syn ib.Syndrome, psn ib.PSN) (event ib.Event) {
	switch syn {
	case ib.SynNAKInvReq:
		q.ctr.RemoteInvalidReq++
		event = ib.EventQPReqErr
	case ib.SynNAKRemAcc:
		q.ctr.RemoteAccessErr++
		event = ib.EventQPAccessErr
	default:
		q.ctr.RemoteOpErr++
		event = ib.EventQPFatal
	}
	p := &q.rsp
	p.nak, p.nakPSN, p.work, p.ackOwed = syn, psn, true, false
	p.open = false
	q.fall()
	q.enterErr(true)
	return event
}

// notReady answers that no receive request is there; the packet at ePSN is to
// come again.
func (q *QP) notReady() {
	p := &q.rsp
	p.nak, p.nakPSN, p.work = ib.SynRNR|ib.Syndrome(q.attr.MinRNRTimer), p.ePSN, true
	p.nakSent, p.rnrSent = true, true
	q.ctr.RNRNakSent++
}

// takeRecv makes sure that a receive request is at hand.
func (q *QP) takeRecv() bool {
	p := &q.rsp
	if p.recv == nil {
		if p.recv = q.env.TakeRecv(); p.recv == nil {
			return false
		}
	}
	return true
}

// openRecv starts a SEND into the receive request at hand.
func (q *QP) openRecv() {
	p := &q.rsp
	p.recvLen, p.recvCap, p.recvAt = 0, 0, recvCursor{}
	for i := range p.recv.SGE {
		p.recvCap += uint64(p.recv.SGE[i].Len)
	}
	p.recvCap = min(p.recvCap, ib.MaxMessage) // which ByteLen can tell
}

// scatter places n bytes of src at the receive cursor. bad says that the
// request's own list is at fault.
func (q *QP) scatter(b *mem.Batch, src *mem.Payload, from, n int) (res mem.Result, bad bool) {
	at := &q.rsp.recvAt
	for list := q.rsp.recv.SGE; n > 0; {
		g := &list[at.i]
		if at.off == g.Len {
			*at = recvCursor{i: at.i + 1}
			continue
		}
		if at.region == nil {
			at.region = q.env.LocalRegion(g.LKey, g.Addr, uint64(g.Len), ib.LocalWrite)
			if at.region == nil {
				return mem.DestFault, true
			}
		}
		c := min(n, int(g.Len-at.off))
		if res := b.Put((*responseOwner)(q), at.region, g.Addr+uint64(at.off), src, from, c); res != mem.OK {
			return res, res == mem.DestFault
		}
		at.off += uint32(c)
		from, n = from+c, n-c
	}
	return mem.OK, false
}

// skip moves the receive cursor over n bytes without writing them; bad says
// that the request's own list is at fault.
func (q *QP) skip(n int) (bad bool) {
	at := &q.rsp.recvAt
	for list := q.rsp.recv.SGE; n > 0; {
		g := &list[at.i]
		if at.off == g.Len {
			*at = recvCursor{i: at.i + 1}
			continue
		}
		if at.region == nil {
			if at.region = q.env.LocalRegion(g.LKey, g.Addr, uint64(g.Len), ib.LocalWrite); at.region == nil {
				return true
			}
		}
		c := min(n, int(g.Len-at.off))
		at.off += uint32(c)
		n -= c
	}
	return false
}

// responseOwner is the queue pair as the owner of received data.
type responseOwner QP

// PlacementFailed implements mem.Owner; Commit acts on it.
func (o *responseOwner) PlacementFailed() { o.rsp.placeFailed = true }

// onSend takes part of a SEND.
func (q *QP) onSend(in *inbound, b *mem.Batch) {
	p := &q.rsp
	if in.info.First {
		if !q.takeRecv() {
			q.notReady()
			return
		}
		if p.recv.BadWQE {
			q.refuse(ib.SynNAKRemOp, ib.LocQPOpErr, p.ePSN, ReasonBadWQE)
			return
		}
		q.openRecv()
	}
	if !shape(in.Burst, in.Opcode.Info(), q.mtu) {
		q.refuse(ib.SynNAKInvReq, ib.RemInvReqErr, p.ePSN, ReasonLength)
		return
	}
	n := in.size()
	if p.recvLen+uint64(n) > p.recvCap {
		q.refuse(ib.SynNAKInvReq, ib.LocLenErr, p.ePSN, ReasonLength)
		return
	}
	saved := p.recvAt
	switch res, _ := q.scatter(b, &in.Data, in.skip, n); res {
	case mem.SourceFault:
		p.recvAt, in.Fault = saved, true
		return
	case mem.DestFault:
		q.refuse(ib.SynNAKRemOp, ib.LocProtErr, p.ePSN, ReasonPlacement)
		return
	}
	if in.info.Ext&ib.ExtIETH != 0 {
		if !q.env.Invalidate(in.InvKey) {
			q.refuse(ib.SynNAKRemAcc, ib.LocAccessErr, p.ePSN, ReasonRemoteAccess)
			return
		}
		q.ctr.RemoteInvalidated++
	}
	p.recvLen += uint64(n)
	p.open, p.write = !in.info.Last, false
	q.accept(in.count, in.info.Last, in.AckReq)
	if in.info.Last {
		q.received(in, ib.WCRecv, p.recvLen)
	}
}

// received stages the completion of the receive request at hand and returns it.
func (q *QP) received(in *inbound, op ib.WCOp, n uint64) *Completion {
	p := &q.rsp
	c := q.stage(p.recv)
	*c = Completion{Op: op, ByteLen: uint32(n), Solicited: in.SE}
	switch {
	case in.info.Ext&ib.ExtImm != 0:
		c.Flags, c.Imm = ib.WCWithImm, in.Imm
	case in.info.Ext&ib.ExtIETH != 0:
		c.Flags, c.Imm = ib.WCWithInv, uint32(in.InvKey)
	}
	p.recv = nil
	return c
}

// onWrite takes part of an RDMA WRITE.
func (q *QP) onWrite(in *inbound, b *mem.Batch) {
	p := &q.rsp
	if q.attr.Access&ib.RemoteWrite == 0 {
		q.refuse(ib.SynNAKInvReq, ib.RemInvReqErr, p.ePSN, ReasonRemoteAccess)
		return
	}
	imm := in.info.Ext&ib.ExtImm != 0
	count, n, last := in.count, in.size(), in.info.Last
	waits := imm && !q.takeRecv()
	if waits && count == 1 {
		q.notReady()
		return
	}
	if !shape(in.Burst, in.Opcode.Info(), q.mtu) {
		q.refuse(ib.SynNAKInvReq, ib.RemInvReqErr, p.ePSN, ReasonLength)
		return
	}
	if imm && !waits && p.recv.BadWQE {
		q.refuse(ib.SynNAKRemOp, ib.LocQPOpErr, p.ePSN, ReasonBadWQE)
		return
	}
	if in.info.First {
		p.va, p.length, p.done, p.region = in.VA, uint64(in.DMALen), 0, nil
		if p.length > ib.MaxMessage {
			q.refuse(ib.SynNAKInvReq, ib.RemInvReqErr, p.ePSN, ReasonLength)
			return
		}
	}
	if p.done+uint64(n) > p.length || last != (p.done+uint64(n) == p.length) {
		q.refuse(ib.SynNAKInvReq, ib.RemInvReqErr, p.ePSN, ReasonLength)
		return
	}
	if in.info.First && p.length != 0 {
		if p.region = q.env.RemoteRegion(in.RKey, in.VA, p.length, ib.RemoteWrite); p.region == nil {
			q.refuse(ib.SynNAKRemAcc, ib.LocAccessErr, p.ePSN, ReasonRemoteAccess)
			return
		}
	}
	if waits {
		// Only the packet with the immediate needs the receive request.
		count, n, last = count-1, int(count-1)*int(q.mtu), false
	}
	if n != 0 {
		switch b.Put((*responseOwner)(q), p.region, p.va+p.done, &in.Data, in.skip, n) {
		case mem.SourceFault:
			in.Fault = true
			return
		case mem.DestFault:
			q.refuse(ib.SynNAKRemAcc, ib.LocAccessErr, p.ePSN, ReasonPlacement)
			return
		}
	}
	p.done += uint64(n)
	p.open, p.write = !last, true
	q.accept(count, last, in.AckReq && !waits)
	if waits {
		q.notReady()
	} else if imm {
		q.received(in, ib.WCRecvWithImm, p.length)
	}
}

// onReadRequest accepts a READ; Next sends the response.
func (q *QP) onReadRequest(r *pkt.Burst) {
	p := &q.rsp
	if q.attr.Access&ib.RemoteRead == 0 || q.attr.MaxDestRdAtomic == 0 || r.DMALen > ib.MaxMessage {
		q.refuse(ib.SynNAKInvReq, ib.RemInvReqErr, p.ePSN, ReasonRemoteAccess)
		return
	}
	var region *mem.Region
	if r.DMALen != 0 {
		if region = q.env.RemoteRegion(r.RKey, r.VA, uint64(r.DMALen), ib.RemoteRead); region == nil {
			q.refuse(ib.SynNAKRemAcc, ib.LocAccessErr, p.ePSN, ReasonRemoteAccess)
			return
		}
	}
	rec := q.allocRecord()
	if rec == nil {
		q.refuse(ib.SynNAKInvReq, ib.RemInvReqErr, p.ePSN, ReasonNoDepth)
		return
	}
	n := packets(uint64(r.DMALen), q.mtu)
	rec.first, rec.last = p.ePSN, p.ePSN.Add(n-1)
	rec.va, rec.length, rec.rkey, rec.end = r.VA, uint64(r.DMALen), r.RKey, uint64(r.DMALen)
	rec.seg[0] = mem.Seg{Region: region, Addr: r.VA, Len: rec.length}
	q.accept(n, true, false)
}

// onAtomic executes an atomic. What was handled before must be in place.
func (q *QP) onAtomic(r *pkt.Burst, b *mem.Batch) {
	p := &q.rsp
	if q.attr.Access&ib.RemoteAtomic == 0 || q.attr.MaxDestRdAtomic == 0 || r.VA&7 != 0 {
		q.refuse(ib.SynNAKInvReq, ib.RemInvReqErr, p.ePSN, ReasonRemoteAccess)
		return
	}
	region := q.env.RemoteRegion(r.RKey, r.VA, 8, ib.RemoteAtomic)
	if region == nil {
		q.refuse(ib.SynNAKRemAcc, ib.LocAccessErr, p.ePSN, ReasonRemoteAccess)
		return
	}
	b.Flush()
	if p.placeFailed {
		return // Commit refuses everything since the packet that failed
	}
	rec := q.allocRecord()
	if rec == nil {
		q.refuse(ib.SynNAKInvReq, ib.RemInvReqErr, p.ePSN, ReasonNoDepth)
		return
	}
	var err error
	if r.Opcode.Op() == ib.CmpSwap {
		rec.orig, err = region.CompareSwap(r.VA, r.Compare, r.SwapAdd)
	} else {
		rec.orig, err = region.FetchAdd(r.VA, r.SwapAdd)
	}
	if err != nil {
		p.settle(rec)
		p.recTail--
		q.refuse(ib.SynNAKRemOp, ib.Success, p.ePSN, ReasonPlacement)
		return
	}
	rec.atomic, rec.first, rec.last, rec.va, rec.rkey = true, p.ePSN, p.ePSN, r.VA, r.RKey
	q.accept(1, true, false)
}

// onAtomicWrite stores eight bytes at once (IBA volume 1 release 1.5, 9.4.10).
// What was handled before must be in place.
func (q *QP) onAtomicWrite(r *pkt.Burst, b *mem.Batch) {
	p := &q.rsp
	if q.attr.Access&ib.RemoteWrite == 0 || q.attr.MaxDestRdAtomic == 0 || r.VA&7 != 0 || r.Count != 1 || r.DMALen != 8 || r.Data.Len != 8 {
		q.refuse(ib.SynNAKInvReq, ib.RemInvReqErr, p.ePSN, ReasonRemoteAccess)
		return
	}
	region := q.env.RemoteRegion(r.RKey, r.VA, 8, ib.RemoteWrite)
	if region == nil {
		q.refuse(ib.SynNAKRemAcc, ib.LocAccessErr, p.ePSN, ReasonRemoteAccess)
		return
	}
	b.Flush()
	if p.placeFailed {
		return // Commit refuses everything since the packet that failed
	}
	word, res := b.Fetch(&r.Data, 8)
	if res != mem.OK {
		r.Fault = true
		return
	}
	rec := q.allocRecord()
	if rec == nil {
		q.refuse(ib.SynNAKInvReq, ib.RemInvReqErr, p.ePSN, ReasonNoDepth)
		return
	}
	if store(region, r.VA, binary.NativeEndian.Uint64(word)) != nil {
		p.settle(rec)
		p.recTail--
		q.refuse(ib.SynNAKRemOp, ib.Success, p.ePSN, ReasonPlacement)
		return
	}
	rec.stored, rec.first, rec.last, rec.va, rec.rkey = true, p.ePSN, p.ePSN, r.VA, r.RKey
	q.accept(1, true, false)
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
