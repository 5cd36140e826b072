// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"syscall"

	"weft/internal/node/session"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/service/ipoib"
	"weft/internal/service/ipoib/connected"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/transport"
)

// ipoibAL is the access layer of a link: a session of the node's own, with one
// PD, one MR, one completion queue and one datagram queue pair, and its function's
// queue pair 1. The lane's.
type ipoibAL struct {
	*session.Internal
	n    *Node
	f    *function
	gsi  *subnet.User
	pd   uint32 // 0: none
	mr   *session.MR
	cq   *session.CQ
	qp   *session.QP
	recv uint64 // where the receive slots begin
	fed  uint64 // where the feed's memory begins
	feed *ipoibFeed
	rx   *slotSpace // of mr
	wcs  [64]hca.CQE

	intr   bool // completions wait for the link
	broken bool // the queue pair went to ERR by itself
	mtu    int  // of packets at most

	ipoibConns
}

// access returns the access layer of a link, all of which a implements.
func (a *ipoibAL) access() ipoib.Access {
	return ipoib.Access{Objects: a, Service: a, Memory: a, Frames: a, Vectors: a, Groups: a, Queues: a, SA: a,
		Conns: connected.Ports{Shared: a, Handshake: a, QPs: a}}
}

// recvID marks the identifiers of receive requests.
const recvID = 1 << 63

// domain makes the protection domain with the first object in it, and drops it with
// the last.
func (a *ipoibAL) domain() (err error) {
	if a.pd == 0 {
		a.pd, err = a.Session().CreatePD()
	}
	return err
}

func (a *ipoibAL) dropDomain() {
	if a.pd != 0 && a.Session().DestroyPD(a.pd) == nil {
		a.pd = 0
	}
}

// CreateCQ implements ipoib.Objects.
func (a *ipoibAL) CreateCQ(depth int) (err error) {
	a.cq, err = a.Internal.CreateCQ(uint32(depth), func(mono.Time) { a.intr = true })
	return err
}

// DestroyCQ implements ipoib.Objects.
func (a *ipoibAL) DestroyCQ() {
	if a.cq != nil {
		a.must(a.cq.Destroy())
		a.cq, a.intr = nil, false
	}
}

// must notes an error of a call that cannot fail when the link calls in order.
func (a *ipoibAL) must(err error) {
	if err != nil {
		a.n.log.Error("a bug: an object of an IP link was not released", "device", a.f.a.Name, "err", err)
	}
}

// CreateQP implements ipoib.Objects.
func (a *ipoibAL) CreateQP(sq, rq int) (ib.QPN, error) {
	if err := a.domain(); err != nil {
		return 0, err
	}
	q, err := a.Internal.CreateQP(a.pd, a.cq, a.cq, uint32(sq), uint32(rq))
	if err != nil {
		a.dropDomain()
		return 0, err
	}
	a.qp = q
	return q.Num(), nil
}

// DestroyQP implements ipoib.Objects.
func (a *ipoibAL) DestroyQP() {
	if a.qp != nil {
		a.must(a.qp.Destroy(a.n.now()))
		a.qp = nil
		a.dropDomain()
	}
}

// InitUD implements ipoib.DatagramService.
func (a *ipoibAL) InitUD(pkeyIndex uint16, qkey ib.QKey) error {
	now := a.n.now()
	for _, s := range []struct {
		attr transport.Attr
		mask ib.AttrMask
	}{
		{transport.Attr{State: ib.Reset}, ib.AttrState},
		{transport.Attr{State: ib.Init, PKeyIndex: pkeyIndex, Port: 1, QKey: qkey},
			ib.AttrState | ib.AttrPKeyIndex | ib.AttrPort | ib.AttrQKey},
		{transport.Attr{State: ib.RTR}, ib.AttrState},
		{transport.Attr{State: ib.RTS}, ib.AttrState | ib.AttrSQPSN},
	} {
		if err := a.qp.Change(now, s.attr, s.mask); err != nil {
			return err
		}
	}
	return nil
}

// StopQP implements ipoib.DatagramService.
func (a *ipoibAL) StopQP() {
	if a.qp != nil {
		a.must(a.qp.Change(a.n.now(), transport.Attr{State: ib.Err}, ib.AttrState))
	}
}

// SetQKey implements ipoib.DatagramService.
func (a *ipoibAL) SetQKey(qkey ib.QKey) error {
	return a.qp.Change(a.n.now(), transport.Attr{QKey: qkey}, ib.AttrQKey)
}

// SetPKeyIndex implements ipoib.DatagramService: by way of SQD, where the index may change.
func (a *ipoibAL) SetPKeyIndex(i uint16) error {
	now := a.n.now()
	if err := a.qp.Change(now, transport.Attr{State: ib.SQD}, ib.AttrState); err != nil {
		return err
	}
	err := a.qp.Change(now, transport.Attr{State: ib.SQD, PKeyIndex: i}, ib.AttrState|ib.AttrPKeyIndex)
	return errors.Join(err, a.qp.Change(now, transport.Attr{State: ib.RTS}, ib.AttrState))
}

// Register implements ipoib.Memory.
func (a *ipoibAL) Register(tx, txLen, rx, rxLen int) (txMem, rxMem []byte, err error) {
	if err := a.domain(); err != nil {
		return nil, nil, err
	}
	sends, slots := tx*txLen, tx*txLen+rx*rxLen
	m, err := a.RegisterMR(a.pd, slots+feedMem(a.mtu), func(b []byte) mem.Space {
		a.rx = newSlotSpace(b, sends, rxLen, rx)
		return a.rx
	})
	if err != nil {
		a.dropDomain()
		return nil, nil, err
	}
	a.mr, a.recv, a.fed = m, uint64(sends), uint64(slots)
	a.feed = newFeed(m.Bytes[slots:], a.mtu)
	return m.Bytes[:sends:sends], m.Bytes[sends:slots:slots], nil
}

// Deregister implements ipoib.Memory.
func (a *ipoibAL) Deregister() {
	if a.mr != nil {
		a.must(a.mr.Deregister())
		a.mr, a.feed, a.rx = nil, nil, nil
		a.dropDomain()
	}
}

// Map implements connected.Mapper: frames of the IP stack come in memory that is registered.
func (a *ipoibAL) Map(frame []byte) (ref uint64, ok bool) {
	at, ok := a.feed.lend(frame)
	return uint64(at), ok
}

// Unmap implements connected.Mapper. A link whose sends did not complete in time takes their
// frames back when their memory is gone already.
func (a *ipoibAL) Unmap(ref uint64) {
	if a.feed != nil {
		a.feed.returned(int(ref))
	}
}

// CreateAH implements ipoib.AddressVectors.
func (a *ipoibAL) CreateAH(v *ipoib.AH) (ipoib.Handle, error) {
	h, err := a.Session().CreateAH(a.pd, &hca.AHAttr{DLID: v.DLID, SL: v.SL, StaticRate: v.Rate,
		SrcPathBits: v.SrcPathBits, Global: v.Global, DGID: v.DGID, FlowLabel: v.FlowLabel, HopLimit: v.HopLimit,
		TrafficClass: v.TClass})
	return ipoib.Handle(h), err
}

// DestroyAH implements ipoib.AddressVectors.
func (a *ipoibAL) DestroyAH(h ipoib.Handle) { a.must(a.Session().DestroyAH(a.pd, uint32(h))) }

// Attach implements ipoib.GroupAttachment.
func (a *ipoibAL) Attach(mgid ib.GID, mlid ib.LID) error { return a.qp.AttachMulticast(mgid, mlid) }

// Detach implements ipoib.GroupAttachment.
func (a *ipoibAL) Detach(mgid ib.GID, mlid ib.LID) {
	if err := a.qp.DetachMulticast(mgid, mlid); !errors.Is(err, syscall.EINVAL) {
		a.must(err)
	}
}

// PostSend implements ipoib.SendQueue.
func (a *ipoibAL) PostSend(wrs []ipoib.SendWR) (n int) {
	for n < len(wrs) {
		p := a.qp.SendSlot()
		if p == nil {
			break
		}
		w := &wrs[n]
		addr := uint64(w.Off)
		if w.Mapped {
			addr += a.fed + w.Ref
		}
		*p = session.SendRequest{ID: w.ID, Addr: addr, LKey: a.mr.LKey, Len: w.Len, AH: uint32(w.AH), Dest: w.QPN,
			QKey: w.QKey, Signaled: true}
		n++
	}
	if n > 0 {
		a.qp.SendPosted()
	}
	return n
}

// PostRecv implements ipoib.RecvQueue.
func (a *ipoibAL) PostRecv(slots []ipoib.RecvWR) (n int) {
	for n < len(slots) {
		p := a.qp.RecvSlot()
		if p == nil {
			break
		}
		s := &slots[n]
		*p = session.RecvRequest{ID: s.ID | recvID, Addr: a.recv + uint64(s.Off), LKey: a.mr.LKey, Len: s.Len}
		n++
	}
	if n > 0 {
		a.qp.RecvPosted(a.n.now())
	}
	return n
}

// Poll implements ipoib.CompletionQueue.
func (a *ipoibAL) Poll(wcs []ipoib.WC) int {
	if a.cq == nil {
		return 0
	}
	n := a.cq.Poll(a.wcs[:min(len(a.wcs), len(wcs))])
	for i := range a.wcs[:n] {
		e := &a.wcs[i]
		wcs[i] = ipoib.WC{ID: e.WRID &^ recvID, QPN: e.QPN, Status: e.Status, Recv: e.WRID&recvID != 0, ByteLen: e.ByteLen,
			GRH: e.Flags&ib.WCGRH != 0, SrcQPN: e.SrcQPN, SLID: e.SLID}
	}
	return n
}

// Arrived implements ipoib.RecvQueue.
func (a *ipoibAL) Arrived(off uint32) []byte { return a.rx.take(off) }

// settle ends what slots refer to: the link that it came by is about to be asked for more.
func (a *ipoibAL) settle() {
	if a.rx != nil {
		a.rx.settle()
	}
}

// SA implements ipoib.Administration.
func (a *ipoibAL) SA(r *ipoib.SARequest) {
	m := mad.SA{SAHeader: mad.SAHeader{Header: mad.Header{Method: r.Method, AttributeID: r.Attr}, ComponentMask: r.Mask}}
	copy(m.Data[:], r.Record)
	a.gsi.Request(r.ID, &m)
}
