// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// emitDatagram produces the one packet of a UD request, which is done when the
// packet has left.
func (s *requester) emitDatagram(wr *SendWR, r *pkt.Burst) {
	op := ib.SendOnly
	if wr.Op == ib.WRSendImm {
		op = ib.SendOnlyImm
	}
	r.Headers = wire.Headers{Opcode: s.svc | op, MigReq: true, PKey: s.pkey(), DestQPN: wr.DestQPN, PSN: s.txPSN,
		SE: wr.Flags&ib.Solicited != 0, QKey: wr.QKey, SrcQPN: s.cfg.QPN}
	if wr.QKey&ib.QKeyControlled != 0 {
		r.QKey = s.attr.QKey
	}
	if op == ib.SendOnlyImm {
		r.Imm = wr.Imm
	}
	r.Count, r.MTU, r.Path = 1, s.mtu, wr.Path
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

// madLen is the length of a MAD (IBA volume 1, 13.4.2); the rest is its common header, and the classes of subnet
// management, whose MADs only QP 0 sends.
const (
	madLen       = 256
	madVersion   = 1
	classSubn    = 0x01
	classSubnDR  = 0x81
	madVersionAt = 0
	madClassAt   = 1
)

// resolveMAD copies the MAD of a request of QP 1 and checks the copy, which is what is sent: its owner cannot change it
// after the check. Other requests than MADs that QP 1 may send (IBA volume 1, 13.5.1) are refused.
func (s *requester) resolveMAD(wr *SendWR) (ib.Status, uint32) {
	if wr.length != madLen {
		s.ctr.GSIRefused++
		return ib.LocQPOpErr, ReasonMAD
	}
	if wr.mad == nil {
		wr.mad = new([madLen]byte) // stays with the slot
	}
	b := wr.mad[:]
	if wr.Flags&ib.Inline != 0 {
		copy(b, wr.InlineData)
	} else {
		list := mem.ListPayload(wr.segs, 0, madLen)
		if mem.CopyOut(b, &list) != mem.OK {
			return ib.LocProtErr, ReasonSourceFault
		}
	}
	if c := b[madClassAt]; b[madVersionAt] != madVersion || c == classSubn || c == classSubnDR {
		s.ctr.GSIRefused++
		return ib.LocQPOpErr, ReasonMAD
	}
	wr.Flags, wr.InlineData = wr.Flags|ib.Inline, b
	return ib.Success, ReasonNone
}

// handleDatagram is the UD responder: whatever does not fit is dropped and
// counted, and costs no receive request.
func (p *responder) handleDatagram(r *pkt.Burst, b *mem.Batch) {
	key := p.acceptedPKey(r.PKey)
	switch {
	case key < 0:
		p.ctr.DropPKey++
		return
	case r.QKey != p.attr.QKey && p.cfg.Type != ib.SMI:
		p.ctr.DropQKey++
		return
	case r.Data.Len > int(p.mtu) || r.Data.Len < 0 || r.Count != 1:
		p.ctr.DropLength++
		return
	}
	p.ctr.RcvdPackets++
	p.ctr.RcvdBytes += uint64(r.Data.Len)
	if !p.recvs.take() {
		p.ctr.DropNoRecv++
		return
	}
	in := inbound{Burst: r, op: r.Opcode.Op(), info: r.Opcode.Info(), count: 1}
	p.recvs.open()
	n := wire.GRHLen + r.Data.Len
	switch {
	case p.recvs.wr.BadWQE:
		p.failUnreliable(ib.LocQPOpErr, ReasonBadWQE)
		return
	case uint64(n) > p.recvs.capacity:
		p.ctr.DropLength++
		return
	}
	res, bad := p.placeDatagram(r, b)
	switch {
	case bad:
		p.failUnreliable(ib.LocProtErr, ReasonPlacement)
		return
	case res == mem.SourceFault:
		r.Fault = true
		return
	}
	c := p.recvs.received(&in, ib.WCRecv, uint64(n))
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
	// RoCE has no service level. It holds the type of the 40 bytes, numbered as Linux numbers network types (UCX drops
	// completions with another number).
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
// without one, then the payload. bad reports that the request's own list is at
// fault.
func (p *responder) placeDatagram(r *pkt.Burst, b *mem.Batch) (res mem.Result, bad bool) {
	if r.Whole != nil {
		whole := mem.BytesPayload(r.Whole)
		return p.recvs.scatter(&p.received, b, &whole, 0, len(r.Whole))
	}
	if r.Path.Native() && !r.Path.Global {
		bad = p.recvs.skip(wire.GRHLen)
	} else {
		area := b.Scratch(wire.GRHLen)
		r.PutArea(area)
		data := mem.BytesPayload(area)
		_, bad = p.recvs.scatter(&p.received, b, &data, 0, wire.GRHLen)
	}
	if bad {
		return mem.OK, true
	}
	return p.recvs.scatter(&p.received, b, &r.Data, 0, r.Data.Len)
}

// Service levels of datagram completions (docs/notes/virtio-roce.md, section 13).
const (
	slIPv6 = 1
	slIPv4 = 2
)

// failUnreliable completes the receive request at hand with status; the queue pair goes to ERR.
func (p *responder) failUnreliable(status ib.Status, reason uint32) {
	p.open = false
	p.recvs.fail(status, reason)
	p.life.enterErr(false)
}

// failUnreliableWrite handles a WRITE if its data could not be placed. If the key is not valid any more, the message is
// dropped. Otherwise the memory is gone, and the queue pair goes to ERR, as it does if the copy fails at the flush.
func (p *responder) failUnreliableWrite() {
	if p.target.region.Revoked() {
		p.ctr.RemoteAccessErr++
		return
	}
	p.open = false
	p.life.enterErr(false)
	p.queues.Event(ib.EventQPFatal)
}

// handleUnreliable is the UC responder: a message that does not arrive whole
// and in order leaves no trace, and its receive request serves the next one
// (IBA volume 1, 9.8.2).
func (p *responder) handleUnreliable(r *pkt.Burst, i *ib.OpInfo, b *mem.Batch) {
	in := inbound{Burst: r, op: r.Opcode.Op(), info: i, count: r.Count}
	follows := r.PSN == p.ePSN && p.open && p.write == i.Write
	if !i.First && !follows {
		p.open = false
		p.ctr.OutOfSequence++
		return
	}
	if i.First {
		if r.PSN != p.ePSN {
			p.ctr.OutOfSequence++
		}
		p.open, p.ePSN = true, r.PSN
		p.write = i.Write
	}
	p.ePSN = p.ePSN.Add(r.Count)
	ok := validLength(r, i, p.mtu)
	if !ok {
		p.ctr.DropLength++
	} else if i.Send {
		ok = p.unreliableSend(&in, b)
	} else {
		ok = p.unreliableWrite(&in, b)
	}
	if p.open = p.open && ok && !i.Last; ok && i.Last {
		p.msn = (p.msn + 1) & ib.PSNMask
	}
}

// unreliableSend reports false where the message is to be abandoned.
func (p *responder) unreliableSend(in *inbound, b *mem.Batch) bool {
	if in.info.First {
		if !p.recvs.take() {
			p.ctr.DropNoRecv++
			return false
		}
		p.recvs.open()
		if p.recvs.wr.BadWQE {
			p.failUnreliable(ib.LocQPOpErr, ReasonBadWQE)
			return false
		}
	}
	n := in.size()
	if p.recvs.placed+uint64(n) > p.recvs.capacity {
		p.ctr.DropLength++
		return false
	}
	res, bad := p.recvs.scatter(&p.received, b, &in.Data, 0, n)
	if bad {
		p.failUnreliable(ib.LocProtErr, ReasonPlacement)
		return false
	}
	if res == mem.SourceFault {
		in.Fault = true
		return false
	}
	if p.recvs.placed += uint64(n); in.info.Last {
		p.recvs.received(in, ib.WCRecv, p.recvs.placed)
	}
	return true
}

// unreliableWrite reports false where the message is to be abandoned.
func (p *responder) unreliableWrite(in *inbound, b *mem.Batch) bool {
	n := in.size()
	if in.info.First {
		p.target = writeTarget{va: in.VA, length: uint64(in.DMALen)}
		if p.attr.Access&ib.RemoteWrite == 0 {
			p.ctr.RemoteAccessErr++
			return false
		}
		if p.target.length != 0 {
			if p.target.region = p.regions.RemoteRegion(in.RKey, in.VA, p.target.length,
				ib.RemoteWrite); p.target.region == nil {
				p.ctr.RemoteAccessErr++
				return false
			}
		}
	}
	if p.target.done+uint64(n) > p.target.length || in.info.Last != (p.target.done+uint64(n) == p.target.length) {
		p.ctr.DropLength++
		return false
	}
	imm := in.info.Ext&ib.ExtImm != 0
	if imm && !p.recvs.take() {
		p.ctr.DropNoRecv++
		return false
	}
	if imm && p.recvs.wr.BadWQE {
		p.failUnreliable(ib.LocQPOpErr, ReasonBadWQE)
		return false
	}
	if n != 0 {
		switch b.Put(&p.written, p.target.region, p.target.va+p.target.done, &in.Data, 0, n) {
		case mem.SourceFault:
			in.Fault = true
			return false
		case mem.DestFault:
			p.failUnreliableWrite()
			return false
		}
	}
	if p.target.done += uint64(n); imm {
		p.recvs.received(in, ib.WCRecvWithImm, p.target.length)
	}
	return true
}

// longestDatagram is the longest payload on a request's path: the port's MTU, or less where the interface that holds
// the source address carries less.
func (s *requester) longestDatagram(wr *SendWR) uint64 {
	if p := wr.Path; p != nil && p.MTU.Valid() {
		return uint64(min(s.mtu, uint32(p.MTU.Bytes())))
	}
	return uint64(s.mtu)
}
