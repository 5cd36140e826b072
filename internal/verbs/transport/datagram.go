// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// emitDatagram produces the one packet of a UD request, which is done when the
// packet has left.
func (q *QP) emitDatagram(wr *SendWR, r *pkt.Burst) {
	s := &q.req
	op := ib.SendOnly
	if wr.Op == ib.WRSendImm {
		op = ib.SendOnlyImm
	}
	r.Headers = wire.Headers{Opcode: q.svc | op, MigReq: true, PKey: q.pkey(), DestQPN: wr.DestQPN, PSN: s.txPSN,
		SE: wr.Flags&ib.Solicited != 0, QKey: wr.QKey, SrcQPN: q.cfg.QPN}
	if wr.QKey&ib.QKeyControlled != 0 {
		r.QKey = q.attr.QKey
	}
	if op == ib.SendOnlyImm {
		r.Imm = wr.Imm
	}
	r.Count, r.MTU, r.Path = 1, q.mtu, wr.Path
	r.IPv4, r.Fault = false, false
	switch {
	case wr.length == 0:
		r.Data = mem.Payload{}
	case wr.Flags&ib.Inline != 0:
		r.Data = mem.BytesPayload(wr.InlineData)
	default:
		r.Data = mem.ListPayload(wr.segs, 0, int(wr.length))
	}
	s.txPSN = s.txPSN.Add(1)
	s.maxPSN, s.una = s.txPSN, s.txPSN
	s.tx++
	s.ack, s.owed = s.tx, true
}

// handleDatagram is the UD responder: whatever does not fit is dropped and
// counted, and costs no receive request.
func (q *QP) handleDatagram(r *pkt.Burst, b *mem.Batch) {
	p := &q.rsp
	key := q.keyAccepted(r.PKey)
	switch {
	case key < 0:
		q.ctr.DropPKey++
		return
	case r.QKey != q.attr.QKey && q.cfg.Type != ib.SMI:
		q.ctr.DropQKey++
		return
	case r.Data.Len > int(q.mtu) || r.Data.Len < 0 || r.Count != 1:
		q.ctr.DropLength++
		return
	}
	q.ctr.RcvdPackets++
	q.ctr.RcvdBytes += uint64(r.Data.Len)
	if !q.takeRecv() {
		q.ctr.DropNoRecv++
		return
	}
	in := inbound{Burst: r, op: r.Opcode.Op(), info: r.Opcode.Info(), count: 1}
	q.openRecv()
	n := wire.GRHLen + r.Data.Len
	switch {
	case p.recv.BadWQE:
		q.failUnreliable(ib.LocQPOpErr, ReasonBadWQE)
		return
	case uint64(n) > p.recvCap:
		q.ctr.DropLength++
		return
	}
	res, bad := q.placeDatagram(r, b)
	switch {
	case bad:
		q.failUnreliable(ib.LocProtErr, ReasonPlacement)
		return
	case res == mem.SourceFault:
		r.Fault = true
		return
	}
	c := q.received(&in, ib.WCRecv, uint64(n))
	c.SrcQPN, c.PKeyIndex = r.SrcQPN, uint16(key)
	if r.Path.Native() {
		c.SL, c.SLID, c.PathBits = r.Path.SL, r.Path.SLID, uint8(r.Path.DLID&maxPathBits)
		if r.Path.DLID.IsMulticast() {
			c.PathBits = 0
		}
		if r.Path.Global {
			c.Flags |= ib.WCGRH
		}
		return
	}
	c.Flags |= ib.WCGRH
	// RoCE has no service level. Programs find here what the 40 bytes hold,
	// numbered as Linux numbers network types (UCX drops what says otherwise).
	c.SL = slIPv6
	if isIPv4(r) {
		c.SL = slIPv4
	}
}

// maxPathBits is the path bits of the largest LMC.
const maxPathBits = 1<<7 - 1

func isIPv4(r *pkt.Burst) bool { return r.IPv4 || r.Path.DGID.IsIPv4() }

// placeDatagram fills the receive request at hand: 40 bytes for the GRH or what
// RoCE has in its place, which are left alone where a native packet came
// without one, then the payload. bad says that the request's own list is at
// fault.
func (q *QP) placeDatagram(r *pkt.Burst, b *mem.Batch) (res mem.Result, bad bool) {
	if r.Whole != nil {
		whole := mem.BytesPayload(r.Whole)
		return q.scatter(b, &whole, 0, len(r.Whole))
	}
	if r.Path.Native() && !r.Path.Global {
		bad = q.skip(wire.GRHLen)
	} else {
		area := b.Scratch(wire.GRHLen)
		r.PutArea(area)
		data := mem.BytesPayload(area)
		_, bad = q.scatter(b, &data, 0, wire.GRHLen)
	}
	if bad {
		return mem.OK, true
	}
	return q.scatter(b, &r.Data, 0, r.Data.Len)
}

// Service levels of datagram completions (docs/notes/abi.md, section 5).
const (
	slIPv6 = 1
	slIPv4 = 2
)

// keyAccepted is the partition check of datagrams: QP1 accepts any key of the
// port, QP0 every key (IBA volume 1, 10.9.3 and 10.9.4). It returns the index
// of the key that matched, -1 where none did.
func (q *QP) keyAccepted(k ib.PKey) int {
	switch q.cfg.Type {
	case ib.SMI:
		return 0
	case ib.GSI:
		return slices.IndexFunc(q.cfg.PKeys, k.Match)
	}
	if !q.pkey().Match(k) {
		return -1
	}
	return int(q.attr.PKeyIndex)
}

// failUnreliable completes the receive request at hand with status; the queue
// pair goes to ERR.
func (q *QP) failUnreliable(status ib.Status, reason uint32) {
	p := &q.rsp
	wr := p.recv
	p.recv, p.open = nil, false
	*q.stage(wr) = Completion{Op: ib.WCRecv, Status: status, VendorErr: reason}
	q.enterErr(false)
}

// handleUnreliable is the UC responder: a message that does not arrive whole
// and in order leaves no trace, and its receive request serves the next one
// (IBA volume 1, 9.8.2).
func (q *QP) handleUnreliable(r *pkt.Burst, i *ib.OpInfo, b *mem.Batch) {
	p := &q.rsp
	in := inbound{Burst: r, op: r.Opcode.Op(), info: i, count: r.Count}
	follows := r.PSN == p.ePSN && p.open && p.write == i.Write
	if !i.First && !follows {
		p.open = false
		q.ctr.OutOfSequence++
		return
	}
	if i.First {
		if r.PSN != p.ePSN {
			q.ctr.OutOfSequence++
		}
		p.open, p.ePSN = true, r.PSN
		p.write = i.Write
	}
	p.ePSN = p.ePSN.Add(r.Count)
	ok := shape(r, i, q.mtu)
	if !ok {
		q.ctr.DropLength++
	} else if i.Send {
		ok = q.unreliableSend(&in, b)
	} else {
		ok = q.unreliableWrite(&in, b)
	}
	if p.open = p.open && ok && !i.Last; ok && i.Last {
		p.msn = (p.msn + 1) & ib.PSNMask
	}
}

// unreliableSend reports false where the message is to be abandoned.
func (q *QP) unreliableSend(in *inbound, b *mem.Batch) bool {
	p := &q.rsp
	if in.info.First {
		if !q.takeRecv() {
			q.ctr.DropNoRecv++
			return false
		}
		q.openRecv()
		if p.recv.BadWQE {
			q.failUnreliable(ib.LocQPOpErr, ReasonBadWQE)
			return false
		}
	}
	n := in.size()
	if p.recvLen+uint64(n) > p.recvCap {
		q.ctr.DropLength++
		return false
	}
	res, bad := q.scatter(b, &in.Data, 0, n)
	if bad {
		q.failUnreliable(ib.LocProtErr, ReasonPlacement)
		return false
	}
	if res == mem.SourceFault {
		in.Fault = true
		return false
	}
	if p.recvLen += uint64(n); in.info.Last {
		q.received(in, ib.WCRecv, p.recvLen)
	}
	return true
}

// unreliableWrite reports false where the message is to be abandoned.
func (q *QP) unreliableWrite(in *inbound, b *mem.Batch) bool {
	p := &q.rsp
	n := in.size()
	if in.info.First {
		p.va, p.length, p.done, p.region = in.VA, uint64(in.DMALen), 0, nil
		if q.attr.Access&ib.RemoteWrite == 0 {
			q.ctr.RemoteAccessErr++
			return false
		}
		if p.length != 0 {
			if p.region = q.env.RemoteRegion(in.RKey, in.VA, p.length, ib.RemoteWrite); p.region == nil {
				q.ctr.RemoteAccessErr++
				return false
			}
		}
	}
	if p.done+uint64(n) > p.length || in.info.Last != (p.done+uint64(n) == p.length) {
		q.ctr.DropLength++
		return false
	}
	imm := in.info.Ext&ib.ExtImm != 0
	if imm && !q.takeRecv() {
		q.ctr.DropNoRecv++
		return false
	}
	if imm && p.recv.BadWQE {
		q.failUnreliable(ib.LocQPOpErr, ReasonBadWQE)
		return false
	}
	if n != 0 {
		switch b.Put((*responseOwner)(q), p.region, p.va+p.done, &in.Data, 0, n) {
		case mem.SourceFault:
			in.Fault = true
			return false
		case mem.DestFault:
			q.ctr.RemoteAccessErr++
			return false
		}
	}
	if p.done += uint64(n); imm {
		q.received(in, ib.WCRecvWithImm, p.length)
	}
	return true
}

// longestDatagram is the longest payload on a request's path: the port's MTU, or less where the interface that holds
// the source address carries less.
func (q *QP) longestDatagram(wr *SendWR) uint64 {
	if p := wr.Path; p != nil && p.MTU.Valid() {
		return uint64(min(q.mtu, uint32(p.MTU.Bytes())))
	}
	return uint64(q.mtu)
}
