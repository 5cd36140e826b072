// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// CQ is a completion queue with its ring.
type CQ struct {
	Num uint32

	d    *Driver
	ring *ring
	buf  uint64 // one completion per descriptor
	arm  uint64 // GPA of the arm word, 0 where there is none
}

// QP is a queue pair with its rings.
type QP struct {
	Num  uint32 // as commands name it
	Wire ib.QPN // as packets and completions name it
	Type ib.QPType

	d          *Driver
	send, recv *ring
	sq, rq     uint64 // slots, one per descriptor
	slot       int    // bytes of a send slot
	rslot      int
	form       *abi.SendForm
}

// SRQ is a shared receive queue with its ring.
type SRQ struct {
	Num uint32

	d     *Driver
	ring  *ring
	rq    uint64
	rslot int
}

// MaxSGE is the length of the longest list that QPs of this driver take.
const MaxSGE = 16

// maxInline is how much inline data a slot holds.
const maxInline = 256

// CreatePD returns a protection domain.
func (d *Driver) CreatePD() (uint32, error) {
	r, err := call(d, abi.CmdCreatePD, nil, abi.CreatePDResultSize, abi.ParseCreatePDResult)
	return r.PDN, err
}

// DestroyPD destroys a protection domain.
func (d *Driver) DestroyPD(pd uint32) error {
	_, err := d.Control(abi.CmdDestroyPD, abi.DestroyPD{PDN: pd}.Append(nil), 0)
	return err
}

// Buffer returns n fresh bytes of announced memory and their address.
func (d *Driver) Buffer(n int) ([]byte, uint64) {
	gpa := d.Mem.Alloc(n, 4096)
	return d.Mem.At(gpa, n), gpa
}

// RegMR registers announced memory: by address, or in plain mode page by page.
func (d *Driver) RegMR(pd uint32, addr, n uint64, access ib.Access) (abi.MRResult, error) {
	if !d.Opt.Plain {
		return d.RegMRVA(abi.RegMRVA{PDN: pd, Access: access, VA: addr, Length: n, IOVA: addr})
	}
	first := addr &^ 4095
	count := (addr + n - first + 4095) / 4096
	b := abi.RegUserMR{PDN: pd, AccessFlags: access, VirtAddr: addr, Length: n, NPages: uint32(count)}.Append(nil)
	for i := range count {
		b = append(b, U64(first+4096*i)...)
	}
	return call(d, abi.CmdRegUserMR, b, abi.MRResultSize, abi.ParseMRResult)
}

// RegMRVA registers memory of the process.
func (d *Driver) RegMRVA(r abi.RegMRVA) (abi.MRResult, error) {
	return call(d, abi.CmdRegMRVA, r.Append(nil), abi.MRResultSize, abi.ParseMRResult)
}

// DeregMR ends a registration.
func (d *Driver) DeregMR(mrn uint32) error {
	_, err := d.Control(abi.CmdDeregMR, abi.DeregMR{MRN: mrn}.Append(nil), 0)
	return err
}

// CreateCQ returns a completion queue with its ring running and full of
// buffers, armed for nothing.
func (d *Driver) CreateCQ(t testing.TB, cqe int) (*CQ, error) {
	t.Helper()
	r, err := call(d, abi.CmdCreateCQ, abi.CreateCQ{CQE: uint32(cqe)}.Append(nil), abi.CreateCQResultSize,
		abi.ParseCreateCQResult)
	if err != nil {
		return nil, err
	}
	c := &CQ{Num: r.CQN, d: d}
	c.buf = d.Mem.Alloc(d.Opt.RingNum*abi.CQESize, 64)
	if c.ring, err = d.startRing(t, d.Rings().CQ(r.CQN), 1, true); err != nil {
		return nil, fmt.Errorf("completion ring: %w", err)
	}
	for range c.ring.Num {
		c.refill()
	}
	c.ring.Publish()
	if d.Caps&(1<<abi.CapArmDoorbell) != 0 {
		c.arm = d.Mem.Alloc(4, 4)
		_, err = d.Control(abi.CmdSetArmArea, abi.SetArmArea{CQN: c.Num, GPA: c.arm}.Append(nil), 0)
	}
	return c, err
}

// refill gives the device one more buffer; Publish makes it visible.
func (c *CQ) refill() {
	i := c.ring.Next()
	c.ring.Add(nil, []virtiotest.Buf{{GPA: c.buf + uint64(i)*abi.CQESize, Len: abi.CQESize}})
}

// Poll returns the completions that are there, at most n.
func (c *CQ) Poll(n int) ([]abi.CQE, error) {
	var list []abi.CQE
	for len(list) < n {
		head, size, ok := c.ring.Reap()
		if !ok {
			break
		}
		if size != abi.CQESize {
			return list, fmt.Errorf("completion of %d bytes", size)
		}
		e, err := abi.ParseCQE(c.d.Mem.At(c.buf+uint64(head)*abi.CQESize, abi.CQESize))
		if err != nil {
			return list, err
		}
		list = append(list, e)
		c.refill()
	}
	if len(list) > 0 {
		c.ring.Publish()
	}
	return list, nil
}

// Wait polls until n completions have arrived.
func (c *CQ) Wait(n int) ([]abi.CQE, error) {
	var list []abi.CQE
	for end := time.Now().Add(Limit); ; {
		more, err := c.Poll(n - len(list))
		if list = append(list, more...); err != nil || len(list) == n {
			return list, err
		}
		if time.Now().After(end) {
			return list, fmt.Errorf("%d completions of %d", len(list), n)
		}
		time.Sleep(20 * time.Microsecond) // the device is another goroutine, maybe on this processor
	}
}

// Arm enables a notification of the next completion.
func (c *CQ) Arm(solicited bool) error {
	want := uint32(abi.ArmNext)
	if solicited {
		want = abi.ArmSolicited
	}
	if c.arm != 0 {
		c.d.Mem.StoreWord(c.arm, want)
		return nil
	}
	_, err := c.d.Control(abi.CmdReqNotifyCQ, abi.ReqNotifyCQ{CQN: c.Num, Flags: want}.Append(nil), 0)
	return err
}

// Notified waits for a notification and clears it.
func (c *CQ) Notified(limit time.Duration) bool { return awaitFD(c.ring.call, limit) }

// Destroy destroys the queue and stops its ring.
func (c *CQ) Destroy() error {
	if _, err := c.d.Control(abi.CmdDestroyCQ, abi.DestroyCQ{CQN: c.Num}.Append(nil), 0); err != nil {
		return err
	}
	return c.d.detach(c.ring)
}

// QPOptions describe a queue pair.
type QPOptions struct {
	Type       ib.QPType
	PD         uint32
	Send, Recv *CQ
	SRQ        *SRQ
	SigAll     bool
	Cap        abi.QPCap // zero: as the rings allow
}

// CreateQP returns a queue pair with its rings running.
func (d *Driver) CreateQP(t testing.TB, o QPOptions) (*QP, error) {
	t.Helper()
	if o.Cap == (abi.QPCap{}) {
		o.Cap = abi.QPCap{MaxSendWR: uint32(d.Opt.RingNum), MaxRecvWR: uint32(d.Opt.RingNum), MaxSendSGE: MaxSGE,
			MaxRecvSGE: MaxSGE, MaxInlineData: maxInline}
	}
	m := abi.CreateQP{PDN: o.PD, QPType: o.Type, SendCQN: o.Send.Num, RecvCQN: o.Recv.Num, Cap: o.Cap}
	if o.SigAll {
		m.SQSigAll = 1
	}
	q := &QP{Type: o.Type, d: d, form: &abi.SendRFC}
	size := abi.CreateQPResultSize
	if d.Caps&(1<<abi.CapVerbs) != 0 {
		size = abi.CreateQPResultExSize
	}
	if d.Caps&(1<<abi.CapSGWQE) != 0 {
		m.QPFlags, q.form = abi.QPSGWQE, &abi.SendCompact
	}
	if o.SRQ != nil {
		m.SRQN1 = o.SRQ.Num + 1
	}
	b, err := d.Control(abi.CmdCreateQP, m.Append(nil), size)
	if err != nil {
		return nil, err
	}
	switch len(b) {
	case abi.CreateQPResultSize:
		r, err := abi.ParseCreateQPResult(b)
		if err != nil {
			return nil, err
		}
		q.Num, q.Wire = r.QPN, ib.QPN(r.QPN)
	default:
		r, err := abi.ParseCreateQPResultEx(b)
		if err != nil {
			return nil, err
		}
		q.Num, q.Wire = r.QPN, r.WireQPN
	}
	q.slot = q.form.Head + max(MaxSGE*abi.SGESize, maxInline)
	q.rslot = abi.RQSize + MaxSGE*abi.SGESize
	q.sq = d.Mem.Alloc(d.Opt.RingNum*q.slot, 64)
	if q.send, err = d.startRing(t, d.Rings().SQ(q.Num), 1, false); err != nil {
		return nil, fmt.Errorf("send ring: %w", err)
	}
	if o.SRQ == nil {
		q.rq = d.Mem.Alloc(d.Opt.RingNum*q.rslot, 64)
		if q.recv, err = d.startRing(t, d.Rings().RQ(q.Num), 1, false); err != nil {
			return nil, fmt.Errorf("receive ring: %w", err)
		}
	}
	return q, nil
}

// ModifyEx changes attributes by the extension, mask in verbs numbers.
func (q *QP) ModifyEx(a abi.QPAttrEx) error {
	a.QPN = q.Num
	_, err := q.d.Control(abi.CmdModifyQPEx, a.Append(nil), 0)
	return err
}

// Modify changes attributes as the RFC has it.
func (q *QP) Modify(a abi.ModifyQP) error {
	a.QPN = q.Num
	_, err := q.d.Control(abi.CmdModifyQP, a.Append(nil), 0)
	return err
}

// QueryEx returns all attributes.
func (q *QP) QueryEx() (abi.QPAttrEx, error) {
	return call(q.d, abi.CmdQueryQPEx, abi.QueryQPEx{QPN: q.Num}.Append(nil), abi.QPAttrExSize, abi.ParseQPAttrEx)
}

// Destroy destroys the queue pair and stops its rings.
func (q *QP) Destroy() error {
	if _, err := q.d.Control(abi.CmdDestroyQP, abi.DestroyQP{QPN: q.Num}.Append(nil), 0); err != nil {
		return err
	}
	err := q.d.detach(q.send)
	if q.recv != nil {
		err = errors.Join(err, q.d.detach(q.recv))
	}
	return err
}

// Peer is how to reach another queue pair.
type Peer struct {
	QPN  ib.QPN
	GID  ib.GID
	DMAC [6]byte
	PSN  ib.PSN
	// Index is the entry of the own table of GIDs to send from.
	Index uint8
}

// ConnectTo moves a queue pair from RESET to RTS: an RC or UC one to its peer, a UD one with qkey. psn
// is the PSN of its first packet.
func (q *QP) ConnectTo(p Peer, psn ib.PSN, mtu ib.MTU, qkey ib.QKey) error {
	a := abi.ModifyQP{PathMTU: mtu, MaxRdAtomic: 4, MaxDestRdAtomic: 4, MinRNRTimer: 1, Timeout: 14, RetryCnt: 7,
		RNRRetry: 7,
		QKey:     qkey, RQPSN: p.PSN, SQPSN: psn, DestQPNum: p.QPN,
		QPAccessFlags: ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead,
		AHAttr:        abi.AHAttr{DGID: p.GID, SGIDIndex: p.Index, HopLimit: 64, DMAC: p.DMAC}}
	if q.d.Caps&(1<<abi.CapAtomic) != 0 {
		a.QPAccessFlags |= ib.RemoteAtomic
	}
	masks := map[ib.QPType][3]abi.AttrMask{
		ib.RC:  {0x5, 0xaa31, 0x15c1},
		ib.UC:  {0x5, 0x8231, 0x1001},
		ib.UD:  {0x9, 0x1, 0x1001},
		ib.GSI: {0x9, 0x1, 0x1001},
	}[q.Type]
	for i, s := range []ib.QPState{ib.Init, ib.RTR, ib.RTS} {
		if err := q.to(s, masks[i], a); err != nil {
			return fmt.Errorf("to %s: %w", s, err)
		}
	}
	return nil
}

// To changes only the state.
func (q *QP) To(s ib.QPState) error { return q.to(s, abi.AttrState, abi.ModifyQP{}) }

func (q *QP) to(s ib.QPState, mask abi.AttrMask, a abi.ModifyQP) error {
	a.AttrMask, a.QPState = mask, s
	if q.d.Caps&(1<<abi.CapVerbs) == 0 {
		return q.Modify(a)
	}
	v, ok := mask.Verbs()
	if !ok {
		return fmt.Errorf("mask %#x", mask)
	}
	if s == ib.Init {
		v |= ib.AttrPKeyIndex | ib.AttrPort
	}
	return q.ModifyEx(abi.QPAttrEx{AttrMask: v, QPState: s, PathMTU: a.PathMTU, QKey: a.QKey, RQPSN: a.RQPSN,
		SQPSN:     a.SQPSN,
		DestQPNum: a.DestQPNum, Access: a.QPAccessFlags, MaxRdAtomic: a.MaxRdAtomic, MaxDestRdAtomic: a.MaxDestRdAtomic,
		MinRNRTimer: a.MinRNRTimer, Port: 1, Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry, IsGlobal: 1, AHAttr: a.AHAttr})
}

// PostSend posts one send request. s.Num is set from the list, or from inline,
// which is used where s.Flags has Inline.
func (q *QP) PostSend(s abi.Send, list []ib.SGE, inline []byte) error {
	reclaim(q.send)
	if q.send.Free() == 0 {
		return errors.New("send queue full")
	}
	slot := q.sq + uint64(q.send.Next())*uint64(q.slot)
	b := q.d.Mem.At(slot, q.slot)
	n := q.form.Head
	if s.Flags&ib.Inline != 0 {
		if len(inline) > len(b)-n {
			return errors.New("too much inline data for a slot")
		}
		s.Num = uint32(len(inline))
		s.Put(b, q.form)
		copy(b[q.form.Inline:], inline)
		n = max(n, q.form.Inline+len(inline))
	} else {
		s.Num = uint32(len(list))
		s.Put(b, q.form)
		abi.PutSGEs(b[n:], list)
		n += len(list) * abi.SGESize
	}
	q.d.post(q.send, slot, n)
	return nil
}

// PostRaw posts any bytes as a send element.
func (q *QP) PostRaw(b []byte) {
	reclaim(q.send)
	gpa := q.d.Mem.Alloc(len(b), 8)
	copy(q.d.Mem.At(gpa, len(b)), b)
	q.d.post(q.send, gpa, len(b))
}

// PostHostile posts a send element of any address.
func (q *QP) PostHostile(gpa uint64, n int) { q.d.post(q.send, gpa, n) }

// post gives one readable element to the device.
func (d *Driver) post(r *ring, gpa uint64, n int) {
	r.Add([]virtiotest.Buf{{GPA: gpa, Len: n}}, nil)
	r.Publish()
	d.ringBell(r)
}

// reclaim frees the slots the device has used.
func reclaim(r *ring) {
	for {
		if _, _, ok := r.Reap(); !ok {
			return
		}
	}
}

// Outstanding returns how many send and receive elements the device holds.
func (q *QP) Outstanding() (send, recv int) {
	reclaim(q.send)
	if q.recv != nil {
		reclaim(q.recv)
		recv = q.recv.Ring.Outstanding()
	}
	return q.send.Ring.Outstanding(), recv
}

// PostRecv posts one receive request.
func (q *QP) PostRecv(id uint64, list []ib.SGE) error {
	return q.d.postRecv(q.recv, q.rq, q.rslot, id, list)
}

func (d *Driver) postRecv(r *ring, slots uint64, size int, id uint64, list []ib.SGE) error {
	reclaim(r)
	if r.Free() == 0 {
		return errors.New("receive queue full")
	}
	slot := slots + uint64(r.Next())*uint64(size)
	b := d.Mem.At(slot, size)
	e := abi.Recv{WRID: id, Num: uint32(len(list))}
	e.Put(b)
	abi.PutSGEs(b[abi.RQSize:], list)
	d.post(r, slot, abi.RQSize+len(list)*abi.SGESize)
	return nil
}

// CreateSRQ returns a shared receive queue with its ring running.
func (d *Driver) CreateSRQ(t testing.TB, pd, maxWR, limit uint32) (*SRQ, error) {
	t.Helper()
	r, err := call(d, abi.CmdCreateSRQ, abi.CreateSRQ{PDN: pd, MaxWR: maxWR, MaxSGE: MaxSGE, Limit: limit}.Append(nil),
		abi.CreateSRQResultSize, abi.ParseCreateSRQResult)
	if err != nil {
		return nil, err
	}
	s := &SRQ{Num: r.SRQN, d: d, rslot: abi.RQSize + MaxSGE*abi.SGESize}
	s.rq = d.Mem.Alloc(d.Opt.RingNum*s.rslot, 64)
	s.ring, err = d.startRing(t, int(r.RingIndex), 1, false)
	return s, err
}

// PostRecv posts one receive request.
func (s *SRQ) PostRecv(id uint64, list []ib.SGE) error {
	return s.d.postRecv(s.ring, s.rq, s.rslot, id, list)
}

// Destroy destroys the queue and stops its ring.
func (s *SRQ) Destroy() error {
	if _, err := s.d.Control(abi.CmdDestroySRQ, abi.DestroySRQ{SRQN: s.Num}.Append(nil), 0); err != nil {
		return err
	}
	return s.d.detach(s.ring)
}

// CreateAH returns an address handle.
func (d *Driver) CreateAH(pd uint32, a abi.AHAttr) (uint32, error) {
	r, err := call(d, abi.CmdCreateAH, abi.CreateAH{PDN: pd, AHAttr: a}.Append(nil), abi.CreateAHResultSize,
		abi.ParseCreateAHResult)
	return r.AH, err
}

// GID returns an entry of the port's table, by the extension.
func (d *Driver) GID(index uint32) (abi.QueryGIDResult, error) {
	return call(d, abi.CmdQueryGID, abi.QueryGID{Index: index}.Append(nil), abi.QueryGIDResultSize,
		abi.ParseQueryGIDResult)
}

// EVQ is a completion queue used for asynchronous events.
type EVQ struct{ *CQ }

// CreateEVQ returns a queue that receives the device's events.
func (d *Driver) CreateEVQ(t testing.TB) (*EVQ, error) {
	t.Helper()
	c, err := d.CreateCQ(t, d.Opt.RingNum)
	if err != nil {
		return nil, err
	}
	_, err = d.Control(abi.CmdSetEVQ, abi.SetEVQ{CQN: c.Num}.Append(nil), 0)
	return &EVQ{c}, err
}

// SpoilRing makes every entry of the available ring a head that does not exist.
func (e *EVQ) SpoilRing() {
	for i := range e.ring.Num {
		e.ring.SetAvail(uint16(i), uint16(e.ring.Num))
	}
}

// Next waits for an event.
func (e *EVQ) Next() (abi.Event, error) {
	for {
		if head, n, ok := e.ring.Reap(); ok {
			if n != abi.EventSize {
				return abi.Event{}, fmt.Errorf("event of %d bytes", n)
			}
			v, err := abi.ParseEvent(append([]byte(nil), e.d.Mem.At(e.buf+uint64(head)*abi.CQESize, abi.EventSize)...))
			e.refill()
			e.ring.Publish()
			return v, err
		}
		if !e.Notified(Limit) {
			return abi.Event{}, errors.New("no event")
		}
	}
}
