// SPDX-License-Identifier: Apache-2.0

package rocefront

import (
	"errors"
	"fmt"
	"time"
)

// Completion is struct virtio_rdma_cq_req.
type Completion struct {
	ID                 uint64
	Status, Opcode     uint8
	Padding            uint16
	VendorErr, ByteLen uint32
	Imm                [4]byte // in network byte order
	QPN, SrcQP, Flags  uint32
	Reserved           [3]uint32
}

const completionSize = 48

// Flags of a completion.
const (
	WCGRH     = 1 << 0
	WCWithImm = 1 << 1
)

// Opcodes of completions, enum virtio_ib_wc_opcode.
const (
	WCSend = iota
	WCWrite
	WCRead
	WCRecv
	WCRecvWriteImm
)

// Statuses of completions, enum virtio_ib_wc_status.
const (
	Success = iota
	LocLenErr
	LocQPOpErr
	LocProtErr
	WRFlushErr
	BadRespErr
	LocAccessErr
	RemInvReqErr
	RemAccessErr
	RemOpErr
	RetryExcErr
	RNRRetryExcErr
	RemAbortErr
	FatalErr
	RespTimeoutErr
	GeneralErr
)

// CQ is a completion queue.
type CQ struct {
	dev    *Device
	Number uint32
	ring   *ring
	memory map[uint16]uint64 // elements that the device may write, by their head
}

// CreateCQ is CREATE_CQ. The queue is filled with size elements, a power of two.
func (d *Device) CreateCQ(size int) (*CQ, error) {
	n, err := roce[uint32](d, CmdCreateCQ, uint32(size))
	if err != nil {
		return nil, err
	}
	c := &CQ{dev: d, Number: n, memory: map[uint16]uint64{}}
	if n >= d.Config.MaxRDMACQs {
		return nil, fmt.Errorf("CREATE_CQ returns index %d, and the device has %d completion queues", n,
			d.Config.MaxRDMACQs)
	}
	if c.ring, err = d.startRing(d.completeQueue(n), size); err != nil {
		return nil, err
	}
	base := d.Memory.ringMemory(completionSize * size)
	for i := range size {
		if err := c.fill(base + uint64(completionSize*i)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *CQ) fill(at uint64) error {
	b := c.dev.Memory.Bytes(at, completionSize)
	for i := range b {
		b[i] = poison
	}
	head, err := c.ring.post(segment{at, completionSize, true})
	if err == nil {
		c.memory[head] = at
	}
	return err
}

// Destroy is DESTROY_CQ; the driver then resets the queue.
func (c *CQ) Destroy() error {
	if _, err := roce[none](c.dev, CmdDestroyCQ, c.Number); err != nil {
		return err
	}
	_, err := c.ring.stop()
	return err
}

// RequestNotify is REQ_NOTIFY_CQ.
func (c *CQ) RequestNotify(flags uint32) error {
	_, err := roce[none](c.dev, CmdReqNotifyCQ, words{c.Number, flags})
	return err
}

// SpoilRing makes the available ring of the queue nonsense: an index far ahead, or a head beyond the table.
func (c *CQ) SpoilRing(ahead bool) error { return c.ring.spoil(ahead) }

// Notified waits for the interrupt of the queue, and takes the interrupt.
func (c *CQ) Notified(limit time.Duration) bool { return eventIn(c.ring.call, limit) }

// Poll takes the next completion, and refills the queue.
func (c *CQ) Poll(limit time.Duration) (v Completion, err error) {
	head, written, err := c.ring.wait(limit)
	if err != nil {
		return v, fmt.Errorf("completion queue %d: %w", c.Number, err)
	}
	at := c.memory[head]
	if written != completionSize {
		return v, fmt.Errorf("completion queue %d: the device wrote %d octets, not %d", c.Number, written,
			completionSize)
	}
	if err := decode(c.dev.Memory.Bytes(at, completionSize), &v); err != nil {
		return v, err
	}
	delete(c.memory, head)
	return v, c.fill(at)
}

// Quiet returns an error if a completion comes within a time.
func (c *CQ) Quiet(limit time.Duration) error {
	v, err := c.Poll(limit)
	if errors.Is(err, ErrTimeout) {
		return nil
	}
	return errors.Join(err, fmt.Errorf("completion queue %d: a completion that nothing explains: %+v", c.Number, v))
}

// QP is a queue pair.
type QP struct {
	dev    *Device
	Number uint32 // as CREATE_QP returned it
	Type   uint8
	sq, rq *workQueue
}

// workQueue is a send or receive virtqueue.
type workQueue struct {
	*ring
	elements map[uint16]uint64 // memory of elements that are out, by their head
	idle     []uint64
}

// elementRoom bounds a request's structure and list, in octets.
const elementRoom = 1024

func (d *Device) startWorkQueue(index, size int) (*workQueue, error) {
	r, err := d.startRing(index, size)
	if err != nil {
		return nil, err
	}
	w := &workQueue{ring: r, elements: map[uint16]uint64{}}
	for range size {
		w.idle = append(w.idle, d.Memory.ringMemory(elementRoom))
	}
	return w, nil
}

// put posts an element as one descriptor, as the RFC demands.
func (w *workQueue) put(element []byte) error {
	for len(w.idle) == 0 || len(w.free) == 0 {
		head, _, ok, err := w.reap()
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("ring %d: %w", w.index, errFull)
		}
		w.idle = append(w.idle, w.elements[head])
		delete(w.elements, head)
	}
	at := w.idle[len(w.idle)-1]
	copy(w.dev.Memory.Bytes(at, len(element)), element)
	head, err := w.post(segment{at, len(element), false})
	if err != nil {
		return err
	}
	w.idle = w.idle[:len(w.idle)-1]
	w.elements[head] = at
	return nil
}

// taken waits until the device has returned all elements.
func (w *workQueue) taken(limit time.Duration) error {
	for len(w.elements) > 0 {
		head, _, err := w.wait(limit)
		if err != nil {
			return err
		}
		w.idle = append(w.idle, w.elements[head])
		delete(w.elements, head)
	}
	return nil
}

// queueSize is the size of the send and receive virtqueues.
const queueSize = 64

// DefaultCap are the capabilities of a queue pair that the driver's rings have room for.
var DefaultCap = QPCap{MaxSendWR: queueSize, MaxRecvWR: queueSize, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 512}

// QP returns a queue pair by its number, which may be of no queue pair. It has no queues.
func (d *Device) QP(number uint32) *QP { return &QP{dev: d, Number: number} }

// CreateQP is CREATE_QP. Zero capabilities are DefaultCap.
func (d *Device) CreateQP(init QPInit) (*QP, error) {
	if init.Cap == (QPCap{}) {
		init.Cap = DefaultCap
	}
	n, err := roce[uint32](d, CmdCreateQP, init)
	if err != nil {
		return nil, err
	}
	if n >= d.Config.MaxRDMAQPs {
		return nil, fmt.Errorf("CREATE_QP returns index %d, and the device has %d queue pairs", n, d.Config.MaxRDMAQPs)
	}
	q := &QP{dev: d, Number: n, Type: init.Type}
	if q.sq, err = d.startWorkQueue(d.transmitQueue(n), queueSize); err == nil {
		q.rq, err = d.startWorkQueue(d.receiveQueue(n), queueSize)
	}
	return q, err
}

// Destroy is DESTROY_QP; the driver then resets the queues.
func (q *QP) Destroy() error {
	if _, err := roce[none](q.dev, CmdDestroyQP, q.Number); err != nil {
		return err
	}
	_, err := q.sq.stop()
	_, err2 := q.rq.stop()
	return errors.Join(err, err2)
}

// Modify is MODIFY_QP. The attributes' QPN is the queue pair's.
func (q *QP) Modify(a QPAttr) error {
	a.QPN = q.Number
	_, err := roce[none](q.dev, CmdModifyQP, a)
	return err
}

// Query is QUERY_QP.
func (q *QP) Query(mask uint32) (QPState, error) {
	return roce[QPState](q.dev, CmdQueryQP, words{q.Number, mask})
}

// Connection is what a queue pair is connected with. Tests may change it before they use it.
type Connection struct {
	Peer    uint32 // the peer's number, as CREATE_QP returned it there
	Route   AHAttr
	PathMTU uint8
	// PSNs of the first packets: those that this side sends, and those that the peer sends.
	SQPSN, RQPSN          uint32
	Timeout, Retry, RNR   uint8
	MinRNRTimer, RdAtomic uint8
	Access, QKey          uint32
}

// Connect brings the queue pair from Reset to RTS.
func (q *QP) Connect(c Connection) error {
	if err := q.ToInit(c); err != nil {
		return fmt.Errorf("to INIT: %w", err)
	}
	if err := q.ToRTR(c); err != nil {
		return fmt.Errorf("to RTR: %w", err)
	}
	if err := q.ToRTS(c); err != nil {
		return fmt.Errorf("to RTS: %w", err)
	}
	return nil
}

// ToInit is the transition from Reset to Init.
func (q *QP) ToInit(c Connection) error {
	a := QPAttr{Mask: AttrState, State: Init}
	switch q.Type {
	case RC, UC:
		a.Mask, a.Access = a.Mask|AttrAccess, c.Access
	case UD, GSI:
		a.Mask, a.QKey = a.Mask|AttrQKey, c.QKey
	}
	return q.Modify(a)
}

// ToRTR is the transition from Init to RTR.
func (q *QP) ToRTR(c Connection) error {
	a := QPAttr{Mask: AttrState, State: RTR}
	if q.Type == RC || q.Type == UC {
		a.Mask |= AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN
		a.AH, a.PathMTU, a.DestQPN, a.RQPSN = c.Route, c.PathMTU, c.Peer, c.RQPSN
	}
	if q.Type == RC {
		a.Mask |= AttrMaxDestRdAtomic | AttrMinRNRTimer
		a.MaxDestRdAtomic, a.MinRNRTimer = c.RdAtomic, c.MinRNRTimer
	}
	return q.Modify(a)
}

// ToRTS is the transition from RTR to RTS.
func (q *QP) ToRTS(c Connection) error {
	a := QPAttr{Mask: AttrState | AttrSQPSN, State: RTS}
	a.SQPSN = c.SQPSN
	if q.Type == RC {
		a.Mask |= AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic
		a.Timeout, a.RetryCnt, a.RNRRetry, a.MaxRdAtomic = c.Timeout, c.Retry, c.RNR, c.RdAtomic
	}
	return q.Modify(a)
}

// SGE is struct virtio_rdma_sge.
type SGE struct {
	Addr         uint64
	Length, LKey uint32
}

// Opcodes of sends, enum virtio_ib_wr_opcode.
const (
	OpWrite = iota
	OpWriteImm
	OpSend
	OpSendImm
	OpRead
)

// Flags of sends.
const (
	Fence     = 1 << 0
	Signaled  = 1 << 1
	Solicited = 1 << 2
	Inline    = 1 << 3
)

// Send is struct virtio_rdma_sq_req. Only one of RDMA's and UD's fields is used.
type Send struct {
	ID            uint64
	Opcode, Flags uint8
	Imm           [4]byte // in network byte order

	RemoteAddr uint64
	RKey       uint32

	RemoteQPN, RemoteQKey uint32
	AH                    *AH

	InlineData []byte // with the flag Inline
	List       []SGE
}

const maxInline = 512

func (s *Send) encode(ud bool) []byte {
	b := le.AppendUint64(nil, s.ID)
	b = append(b, s.Opcode, s.Flags, 0, 0)
	b = append(b, s.Imm[:]...)
	var union [32]byte
	if ud {
		copy(union[:], encode(words{s.RemoteQPN, s.RemoteQKey}))
		if s.AH != nil {
			le.PutUint32(union[8:], s.AH.Handle)
		}
	} else {
		le.PutUint64(union[:], s.RemoteAddr)
		le.PutUint32(union[8:], s.RKey)
	}
	b = append(b, union[:]...)
	var inline [maxInline]byte
	copy(inline[:], s.InlineData)
	b = append(b, inline[:]...)
	if s.Flags&Inline != 0 {
		b = append(le.AppendUint16(b, uint16(len(s.InlineData))), 0, 0)
	} else {
		b = le.AppendUint32(b, uint32(len(s.List)))
	}
	b = append(b, make([]byte, 12)...)
	if s.Flags&Inline != 0 {
		return b
	}
	return append(b, encode(s.List)...)
}

// PostSend posts a request to the send queue.
func (q *QP) PostSend(s Send) error { return q.sq.put(s.encode(q.Type == UD || q.Type == GSI)) }

// PostRaw posts an element that is what a test makes it.
func (q *QP) PostRaw(element []byte) error { return q.sq.put(element) }

// SpoilSends and SpoilReceives make the available ring of a queue nonsense: an index far ahead, or a head beyond the
// table.
func (q *QP) SpoilSends(ahead bool) error { return q.sq.spoil(ahead) }

// SpoilReceives is described at SpoilSends.
func (q *QP) SpoilReceives(ahead bool) error { return q.rq.spoil(ahead) }

// PostRecv posts a request to the receive queue: struct virtio_rdma_rq_req.
func (q *QP) PostRecv(id uint64, list ...SGE) error {
	b := le.AppendUint64(nil, id)
	b = le.AppendUint32(b, uint32(len(list)))
	b = append(b, make([]byte, 12)...)
	return q.rq.put(append(b, encode(list)...))
}

// SendsTaken waits until the device has returned the elements of the send queue.
func (q *QP) SendsTaken(limit time.Duration) error { return q.sq.taken(limit) }
