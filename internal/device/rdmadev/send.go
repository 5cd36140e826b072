// SPDX-License-Identifier: Apache-2.0

package rdmadev

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/transport"
)

// sendRing feeds a queue pair from its send virtqueue.
type sendRing struct {
	*ring
	qp       *hca.QP
	form     *abi.SendForm
	maxSGE   uint32
	maxInl   uint32
	datagram bool
}

// bindSend connects a new queue pair with the send ring of its slot, which may
// be set up already or later.
func (d *Device) bindSend(q *hca.QP, compact bool) {
	r := d.ring(d.sendRing(q.Slot()))
	c := q.Config()
	s := &sendRing{ring: r, qp: q, form: &abi.SendRFC, maxSGE: c.Cap.MaxSendSGE, maxInl: c.Cap.MaxInline,
		datagram: c.Type == ib.UD || c.Type == ib.GSI}
	if compact {
		s.form = &abi.SendCompact
	}
	r.queue, r.fails = fmt.Sprintf("send queue of queue pair %d", q.Slot()), q.Break
	r.posted = q.SendPosted
	r.started = func() { q.SetSendRing(s) }
	r.stopped = func() {} // nothing is fetched, as in state SQD; fetched requests continue
	if r.vq != nil {
		r.started()
	}
}

// Fetch implements hca.SendRing.
func (s *sendRing) Fetch(wr *transport.SendWR) bool {
	el, ok := s.next()
	if !ok {
		return false
	}
	s.parse(wr, el)
	if wr.BadWQE {
		s.d.Stats.MalformedSend++
	}
	return true
}

// parse makes a request of an element. Each byte of the element is read once, into private memory, and the
// copy is validated. Inline bytes stay in place: their content is not validated, their position and
// number are.
func (s *sendRing) parse(wr *transport.SendWR, el virtio.Elem) {
	elem := el.Data
	wr.Cookie = s.cookie(el.Head)
	b := s.d.scratch[:s.form.Head]
	if n := copy(b, elem); n < s.form.Head {
		s.malformed(wr, b[:n])
		return
	}
	var e abi.Send
	e.Parse(b, s.form)
	op, known := abi.SendOp(e.Opcode)
	wr.ID, wr.Op, wr.Flags = e.WRID, op, e.Flags
	wr.Imm = binary.BigEndian.Uint32(e.Imm[:])
	wr.BadWQE = !known || e.Flags&^abi.SendFlagsMask != 0 || needs[op]&^s.d.ext != 0
	wr.Path, wr.RKey, wr.RemoteVA = nil, 0, 0
	switch {
	case op == ib.WRSendInv, op == ib.WRLocalInv:
		wr.RKey = e.InvKey()
	case op == ib.WRBindMW, op == ib.WRRegMR:
		b := e.Bind()
		if op == ib.WRRegMR {
			b = e.Reg()
		}
		wr.RemoteVA, wr.Compare, wr.Object, wr.RKey, wr.Access, wr.Pages = b.Addr, b.Length, b.Object, b.Key, b.Access, b.Pages
	case s.datagram:
		wr.DestQPN, wr.QKey, wr.Path = e.RemoteQPN(), e.RemoteQKey(), s.qp.Path(e.AH())
	case op.IsAtomic():
		wr.RemoteVA, wr.RKey, wr.Compare, wr.SwapAdd = e.RemoteAddr(), e.AtomicRKey(), e.CompareAdd(), e.Swap()
		if op == ib.WRFetchAdd {
			wr.SwapAdd = e.CompareAdd()
		}
	default:
		wr.RemoteVA, wr.RKey = e.RemoteAddr(), e.RKey()
	}
	wr.SGE, wr.InlineData = wr.SGE[:0], nil
	if e.Flags&ib.Inline != 0 {
		end := uint64(s.form.Inline) + uint64(e.Num)
		if e.Num > s.maxInl || end > uint64(len(elem)) || s.form.MaxInl != 0 && e.Num > uint32(s.form.MaxInl) {
			wr.BadWQE = true
			return
		}
		wr.InlineData = elem[s.form.Inline:end:end]
		if el.Gathered {
			wr.InlineData = bytes.Clone(wr.InlineData) // the ring reuses it
		}
		return
	}
	if e.Num > s.maxSGE || len(elem) < s.form.Head+int(e.Num)*abi.SGESize {
		wr.BadWQE = true
		return
	}
	wr.SGE = s.d.sges(wr.SGE, elem[s.form.Head:], e.Num)
}

// needs are the extensions that operations take.
var needs = [...]uint64{ib.WRCmpSwap: extAtomic, ib.WRFetchAdd: extAtomic, ib.WRLocalInv: extMemMgt, ib.WRBindMW: extMW,
	ib.WRSendInv: extMemMgt, ib.WRRegMR: extMemMgt, ib.WRAtomicWrite: extAtomicWrite}

// malformed makes wr, an element that is too short, a request that can only fail. Its completion has the identifier of
// the driver if the element is long enough for that.
func (s *sendRing) malformed(wr *transport.SendWR, elem []byte) {
	wr.ID, wr.Op, wr.BadWQE, wr.Flags, wr.SGE, wr.InlineData = 0, ib.WRSend, true, 0, wr.SGE[:0], nil
	if len(elem) >= 8 {
		wr.ID = le64(elem)
	}
}

// sges copies n list entries out of shared memory and appends them to dst,
// which has room for them.
func (d *Device) sges(dst []ib.SGE, b []byte, n uint32) []ib.SGE {
	list := d.scratch[:n*abi.SGESize]
	copy(list, b)
	dst = dst[:n]
	abi.ParseSGEs(dst, list)
	return dst
}

// recvRing feeds a queue pair or an SRQ from its receive virtqueue.
type recvRing struct {
	*ring
	qp     *hca.QP
	maxSGE uint32
}

func (d *Device) bindRecv(q *hca.QP) {
	r := d.ring(d.recvRing(q.Slot()))
	s := &recvRing{ring: r, qp: q, maxSGE: q.Config().Cap.MaxRecvSGE}
	r.posted = func() { q.RecvPosted(d.now()) }
	r.started = func() { q.SetRecvRing(s); q.RecvPosted(d.now()) }
	r.stopped = func() {} // there is nothing to fetch: to a peer, no buffer
	r.needNone()
	r.queue, r.fails = fmt.Sprintf("receive queue of queue pair %d", q.Slot()), q.Break
	if r.shared = q.Transport() == nil; r.shared {
		r.queue = fmt.Sprintf("shared receive queue %d", q.Slot())
	}
	if r.vq != nil {
		r.started()
	}
}

// Fetch implements hca.RecvRing.
func (s *recvRing) Fetch(wr *transport.RecvWR) bool {
	el, ok := s.next()
	if !ok {
		if el, ok = s.awaitFlush(); !ok {
			return false
		}
	}
	s.parse(wr, el)
	if wr.BadWQE {
		s.d.Stats.MalformedReceive++
	}
	return true
}

// awaitFlush enables kicks of the empty ring while the queue pair is in ERR, and returns an element that came
// meanwhile: what is posted then is flushed at once. In other states elements are taken when a message arrives.
func (s *recvRing) awaitFlush() (e virtio.Elem, ok bool) {
	flushed := s.qp.Transport() != nil && s.qp.Transport().State() == ib.Err
	if s.kicks.still != flushed || s.vq == nil || s.broken != nil {
		return e, false // as it was
	}
	s.d.polled.remove(s.ring)
	s.kicks.still = !flushed
	s.await()
	return s.next()
}

// parse makes a request of a receive element.
func (s *recvRing) parse(wr *transport.RecvWR, el virtio.Elem) {
	elem := el.Data
	wr.Cookie, wr.ID, wr.BadWQE, wr.SGE = s.cookie(el.Head), 0, true, wr.SGE[:0]
	b := s.d.scratch[:abi.RQSize]
	if copy(b, elem) < abi.RQSize {
		return
	}
	var e abi.Recv
	e.Parse(b)
	wr.ID = e.WRID
	if e.Num > s.maxSGE || len(elem) < abi.RQSize+int(e.Num)*abi.SGESize {
		return
	}
	wr.BadWQE = false
	wr.SGE = s.d.sges(wr.SGE, elem[abi.RQSize:], e.Num)
}

// Len implements hca.RecvRing.
func (s *recvRing) Len() int { return s.waiting() }
