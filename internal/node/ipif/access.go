// SPDX-License-Identifier: Apache-2.0

package ipif

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

// access is the access layer of a link: an internal session with one PD, one MR, one completion queue and one datagram
// queue pair, and a user of subnet administration. It belongs to the lane.
type access struct {
	*session.Internal
	h       *Host
	adapter *hca.Adapter
	sa      *subnet.User
	pd      uint32 // 0: none
	mr      *session.MR
	cq      *session.CQ
	qp      *session.QP
	recv    uint64 // address of the receive slots
	fed     uint64 // address of the feed's memory
	feed    *feed
	rx      *slotSpace // of mr
	wcs     [64]hca.CQE

	intr   bool // completions wait for the engine
	broken bool // the queue pair went to ERR by itself
	mtu    int  // of the longest packet

	connections
}

// parts returns the access layer by its parts, all of which a implements.
func (a *access) parts() ipoib.Access {
	return ipoib.Access{Objects: a, Service: a, Memory: a, Frames: a, Vectors: a, Groups: a, Queues: a, SA: a,
		Conns: connected.Ports{Shared: a, Handshake: a, QPs: a}}
}

// recvID marks the identifiers of receive requests.
const recvID = 1 << 63

// domain makes the protection domain for the first object in it; dropDomain destroys it after the last one.
func (a *access) domain() (err error) {
	if a.pd == 0 {
		a.pd, err = a.Session().CreatePD()
	}
	return err
}

func (a *access) dropDomain() {
	if a.pd != 0 && a.Session().DestroyPD(a.pd) == nil {
		a.pd = 0
	}
}

// CreateCQ implements ipoib.Objects.
func (a *access) CreateCQ(depth int) (err error) {
	a.cq, err = a.Internal.CreateCQ(uint32(depth), func(mono.Time) { a.intr = true })
	return err
}

// DestroyCQ implements ipoib.Objects.
func (a *access) DestroyCQ() {
	if a.cq != nil {
		a.must(a.cq.Destroy())
		a.cq, a.intr = nil, false
	}
}

// must logs an error of a call that cannot fail while the engine calls in order.
func (a *access) must(err error) {
	if err != nil {
		a.h.cfg.Log.Error("a bug: an object of an IP link was not released", "device", a.adapter.Name, "err", err)
	}
}

// CreateQP implements ipoib.Objects.
func (a *access) CreateQP(sq, rq int) (ib.QPN, error) {
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
func (a *access) DestroyQP() {
	if a.qp != nil {
		a.must(a.qp.Destroy(a.h.cfg.Now()))
		a.qp = nil
		a.dropDomain()
	}
}

// InitUD implements ipoib.DatagramService.
func (a *access) InitUD(pkeyIndex uint16, qkey ib.QKey) error {
	now := a.h.cfg.Now()
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
func (a *access) StopQP() {
	if a.qp != nil {
		a.must(a.qp.Change(a.h.cfg.Now(), transport.Attr{State: ib.Err}, ib.AttrState))
	}
}

// SetQKey implements ipoib.DatagramService.
func (a *access) SetQKey(qkey ib.QKey) error {
	return a.qp.Change(a.h.cfg.Now(), transport.Attr{QKey: qkey}, ib.AttrQKey)
}

// SetPKeyIndex implements ipoib.DatagramService: in SQD, where the index may change.
func (a *access) SetPKeyIndex(i uint16) error {
	now := a.h.cfg.Now()
	if err := a.qp.Change(now, transport.Attr{State: ib.SQD}, ib.AttrState); err != nil {
		return err
	}
	err := a.qp.Change(now, transport.Attr{State: ib.SQD, PKeyIndex: i}, ib.AttrState|ib.AttrPKeyIndex)
	return errors.Join(err, a.qp.Change(now, transport.Attr{State: ib.RTS}, ib.AttrState))
}

// Register implements ipoib.Memory.
func (a *access) Register(tx, txLen, rx, rxLen int) (txMem, rxMem []byte, err error) {
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
func (a *access) Deregister() {
	if a.mr != nil {
		a.must(a.mr.Deregister())
		a.mr, a.feed, a.rx = nil, nil, nil
		a.dropDomain()
	}
}

// Map implements connected.Mapper: frames of the IP stack are in registered memory.
func (a *access) Map(frame []byte) (ref uint64, ok bool) {
	at, ok := a.feed.lend(frame)
	return uint64(at), ok
}

// Unmap implements connected.Mapper. After sends that did not complete in time, an engine unmaps frames after their
// memory was released.
func (a *access) Unmap(ref uint64) {
	if a.feed != nil {
		a.feed.returned(int(ref))
	}
}

// CreateAH implements ipoib.AddressVectors.
func (a *access) CreateAH(v *ipoib.AH) (ipoib.Handle, error) {
	h, err := a.Session().CreateAH(a.pd, &hca.AHAttr{DLID: v.DLID, SL: v.SL, StaticRate: v.Rate,
		SrcPathBits: v.SrcPathBits, Global: v.Global, DGID: v.DGID, FlowLabel: v.FlowLabel, HopLimit: v.HopLimit,
		TrafficClass: v.TClass})
	return ipoib.Handle(h), err
}

// DestroyAH implements ipoib.AddressVectors.
func (a *access) DestroyAH(h ipoib.Handle) { a.must(a.Session().DestroyAH(a.pd, uint32(h))) }

// Attach implements ipoib.GroupAttachment.
func (a *access) Attach(mgid ib.GID, mlid ib.LID) error { return a.qp.AttachMulticast(mgid, mlid) }

// Detach implements ipoib.GroupAttachment.
func (a *access) Detach(mgid ib.GID, mlid ib.LID) {
	if err := a.qp.DetachMulticast(mgid, mlid); !errors.Is(err, syscall.EINVAL) {
		a.must(err)
	}
}

// PostSend implements ipoib.SendQueue.
func (a *access) PostSend(wrs []ipoib.SendWR) (n int) {
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
func (a *access) PostRecv(slots []ipoib.RecvWR) (n int) {
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
		a.qp.RecvPosted(a.h.cfg.Now())
	}
	return n
}

// Poll implements ipoib.CompletionQueue.
func (a *access) Poll(wcs []ipoib.WC) int {
	if a.cq == nil {
		return 0
	}
	n := a.cq.Poll(a.wcs[:min(len(a.wcs), len(wcs))])
	for i := range a.wcs[:n] {
		e := &a.wcs[i]
		wcs[i] = ipoib.WC{ID: e.WRID &^ recvID, QPN: e.QPN, Status: e.Status, Recv: e.WRID&recvID != 0,
			ByteLen: e.ByteLen,
			GRH:     e.Flags&ib.WCGRH != 0, SrcQPN: e.SrcQPN, SLID: e.SLID}
	}
	return n
}

// Arrived implements ipoib.RecvQueue.
func (a *access) Arrived(off uint32) []byte { return a.rx.pop(off) }

// commitSlots copies datagrams that slots refer to into them: the next receive of the network link overwrites them.
func (a *access) commitSlots() {
	if a.rx != nil {
		a.rx.commit()
	}
}

// SA implements ipoib.Administration.
func (a *access) SA(r *ipoib.SARequest) {
	m := mad.SA{SAHeader: mad.SAHeader{Header: mad.Header{Method: r.Method, AttributeID: r.Attr},
		ComponentMask: r.Mask}}
	copy(m.Data[:], r.Record)
	a.sa.Request(r.ID, &m)
}
