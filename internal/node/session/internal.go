// SPDX-License-Identifier: Apache-2.0

package session

import (
	"math/bits"
	"os"
	"slices"

	"weft/internal/control/api"
	"weft/internal/node/lane"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/transport"
)

// Internal is a session of the node itself, without a device socket: verbs over memory of the node, for users that live
// in it. Quotas, queues and completions are those of any session. It belongs to its lane.
type Internal struct {
	r       *Registry
	adapter *hca.Adapter
	lane    *lane.Lane
	serial  uint32
	name    string // for people, in place of the name of a program
	sess    *hca.Session
	event   func(e ib.Event, object uint32)
	due     []*CQ // with entries for which the handler was not called yet
	spare   []*CQ // the array of due before
}

var _ hca.EventSink = (*Internal)(nil)

// OpenInternal opens a session of an adapter for a user in the node, on the lane with the fewest sessions, with room
// for so many queue pairs, shared receive queues among them. event is called on the lane for asynchronous events. No
// lane may call it.
func (r *Registry) OpenInternal(a *hca.Adapter, name string, qps uint32, event func(e ib.Event,
	object uint32)) (*Internal, error) {
	r.mu.Lock()
	r.serial++
	i := &Internal{r: r, adapter: a, lane: r.quietest(), serial: r.serial, name: name, event: event}
	r.mu.Unlock()
	var err error
	if e := i.lane.Do(func() {
		// Rings are the node's own memory, so that no socket bounds their number.
		i.sess = i.lane.HCA.NewSession(a, i, internalCQs, qps, false)
		r.mu.Lock()
		defer r.mu.Unlock()
		if err = a.Attach(i.sess); err == nil {
			r.internal = append(r.internal, i)
		}
	}); e != nil {
		return nil, e
	}
	if err != nil {
		i.lane.Do(i.sess.Close)
		return nil, err
	}
	return i, nil
}

// What an internal session can number; queue pairs, unless the user gives another number.
const (
	internalCQs = 64
	InternalQPs = 64
)

// Lane is the lane that the session belongs to.
func (i *Internal) Lane() *lane.Lane { return i.lane }

// Adapter is the adapter of the session.
func (i *Internal) Adapter() *hca.Adapter { return i.adapter }

// Serial is the number of the session.
func (i *Internal) Serial() uint32 { return i.serial }

// Session is the session of the adapter, which belongs to the lane.
func (i *Internal) Session() *hca.Session { return i.sess }

// Memory implements View.
func (i *Internal) Memory() string { return "node" }

// Kind implements View.
func (i *Internal) Kind(mem.Space) string { return "node" }

// Close ends the session with all its objects. No lane may call it.
func (i *Internal) Close() {
	r := i.r
	i.lane.Do(func() {
		r.mu.Lock()
		i.adapter.Detach(i.sess)
		if at := slices.Index(r.internal, i); at >= 0 {
			r.internal = slices.Delete(slices.Clone(r.internal), at, at+1)
		}
		r.mu.Unlock()
		i.sess.Close()
	})
	r.lanes.Quiesce() // copies out of its memory have ended
}

// Event implements hca.EventSink.
func (r *Internal) Event(e ib.Event, object uint32) {
	if r.event != nil {
		r.event(e, object)
	}
}

// Owner describes the owner of the objects to people.
func (r *Internal) Owner() api.Owner {
	return api.Owner{Device: r.adapter.Name, Session: r.serial, PID: os.Getpid(), Comm: r.name, UID: os.Geteuid()}
}

// Completed reports whether Complete has something to do.
func (r *Internal) Completed() bool { return len(r.due) > 0 }

// Complete calls the handlers of completion queues that have new entries, and reports whether there was one. The user
// calls it every turn of the lane.
func (r *Internal) Complete(now mono.Time) bool {
	if len(r.due) == 0 {
		return false
	}
	due := r.due
	r.due, r.spare = r.spare[:0], due
	for _, c := range due {
		c.noted = false
		c.handler(now)
	}
	return true
}

// ring is a bounded queue of values. Its length is a power of two.
type ring[T any] struct {
	b          []T
	head, tail uint32
}

func newRing[T any](n uint32) ring[T] {
	return ring[T]{b: make([]T, 1<<bits.Len32(max(n, 1)-1))}
}

func (q *ring[T]) len() int   { return int(q.tail - q.head) }
func (q *ring[T]) full() bool { return q.len() == len(q.b) }

// push makes room for one value, which the caller fills in; nil where the ring is
// full.
func (q *ring[T]) push() *T {
	if q.full() {
		return nil
	}
	q.tail++
	return &q.b[(q.tail-1)&uint32(len(q.b)-1)]
}

// pop removes the oldest value, which stays valid until the next push; nil where there is none.
func (q *ring[T]) pop() *T {
	if q.head == q.tail {
		return nil
	}
	q.head++
	return &q.b[(q.head-1)&uint32(len(q.b)-1)]
}

// CQ is a completion queue that a handler on the lane empties.
type CQ struct {
	r       *Internal
	handle  uint32
	ring    ring[hca.CQE]
	handler func(now mono.Time)
	noted   bool // is in due
}

var _ hca.CQRing = (*CQ)(nil)

// CreateCQ makes a completion queue. handler is called once for entries that came since the last call, and not again
// for entries that it leaves there.
func (r *Internal) CreateCQ(cqe uint32, handler func(now mono.Time)) (*CQ, error) {
	h, err := r.sess.CreateCQ(cqe)
	if err != nil {
		return nil, err
	}
	q, err := r.sess.CQ(h)
	if err != nil {
		return nil, err
	}
	c := &CQ{r: r, handle: h, ring: newRing[hca.CQE](cqe), handler: handler}
	q.SetRing(c)
	return c, nil
}

func (c *CQ) Destroy() error {
	if err := c.r.sess.DestroyCQ(c.handle); err != nil {
		return err
	}
	for i, o := range c.r.due {
		if o == c {
			c.r.due = append(c.r.due[:i], c.r.due[i+1:]...)
			break
		}
	}
	return nil
}

// Put implements hca.CQRing.
func (c *CQ) Put(e *hca.CQE) bool {
	p := c.ring.push()
	if p == nil {
		return false
	}
	*p = *e
	return true
}

// Publish implements hca.CQRing.
func (c *CQ) Publish(bool) {
	if !c.noted && c.ring.len() > 0 {
		c.noted = true
		c.r.due = append(c.r.due, c)
	}
}

// Poll pops the oldest completions.
func (c *CQ) Poll(dst []hca.CQE) (n int) {
	for n < len(dst) {
		e := c.ring.pop()
		if e == nil {
			break
		}
		dst[n] = *e
		n++
	}
	return n
}

// MR is memory of the node that the adapter may use. Addresses from 0 name it.
type MR struct {
	Bytes  []byte // at address 0
	r      *Internal
	handle uint32
	LKey   ib.Key
}

// RegisterMR registers fresh memory of n bytes. space makes its Space.
func (r *Internal) RegisterMR(pd uint32, n int, space func(b []byte) mem.Space) (*MR, error) {
	b := make([]byte, n)
	m, err := r.sess.RegisterMR(pd, &mem.Region{Space: space(b), Len: uint64(n), Access: ib.LocalWrite})
	if err != nil {
		return nil, err
	}
	return &MR{Bytes: b, r: r, handle: m.Handle, LKey: m.LKey}, nil
}

func (m *MR) Deregister() error { return m.r.sess.DeregisterMR(m.handle) }

// SendRequest is a datagram, or a message of a connection, to send.
type SendRequest struct {
	ID       uint64
	Addr     uint64
	LKey     ib.Key
	Len      uint32 // bytes
	AH       uint32 // 0: of a connection
	Dest     ib.QPN
	QKey     ib.QKey
	Signaled bool
}

// RecvRequest is room for a datagram.
type RecvRequest struct {
	ID   uint64
	Addr uint64
	LKey ib.Key
	Len  uint32 // bytes
}

// QP is a queue pair with its two rings, or a shared receive queue.
type QP struct {
	*hca.QP
	r         *Internal
	send      ring[SendRequest]
	recv      ring[RecvRequest]
	sending   int // posted, and not completed
	receiving int
}

// CreateQP makes a UD queue pair in RESET.
func (r *Internal) CreateQP(pd uint32, sendCQ, recvCQ *CQ, sends, recvs uint32) (*QP, error) {
	return r.makeQP(&hca.QPConfig{Type: ib.UD, PD: pd, SendCQ: sendCQ.handle, RecvCQ: recvCQ.handle,
		Cap: transport.Cap{MaxSendWR: sends, MaxRecvWR: recvs, MaxSendSGE: 1, MaxRecvSGE: 1}})
}

// CreateRC makes an RC queue pair in RESET that receives from a shared receive queue.
func (r *Internal) CreateRC(pd uint32, cq *CQ, srq *QP, sends uint32) (*QP, error) {
	return r.makeQP(&hca.QPConfig{Type: ib.RC, PD: pd, SendCQ: cq.handle, RecvCQ: cq.handle, SRQ: srq.Slot() + 1,
		Cap: transport.Cap{MaxSendWR: sends, MaxSendSGE: 1}})
}

// CreateSRQ makes a shared receive queue; of a QP it has what receives.
func (r *Internal) CreateSRQ(pd uint32, recvs uint32) (*QP, error) {
	q, err := r.sess.CreateSRQ(hca.SRQConfig{PD: pd, MaxWR: recvs, MaxSGE: 1})
	if err != nil {
		return nil, err
	}
	p := &QP{QP: q, r: r, recv: newRing[RecvRequest](recvs)}
	q.SetRecvRing((*recvRing)(p))
	return p, nil
}

func (r *Internal) makeQP(c *hca.QPConfig) (*QP, error) {
	q, err := r.sess.CreateQP(c)
	if err != nil {
		return nil, err
	}
	sends, recvs := c.Cap.MaxSendWR, c.Cap.MaxRecvWR
	p := &QP{QP: q, r: r, send: newRing[SendRequest](sends), recv: newRing[RecvRequest](recvs)}
	q.SetSendRing((*sendRing)(p))
	if c.SRQ == 0 {
		q.SetRecvRing((*recvRing)(p))
	}
	return p, nil
}

func (q *QP) Destroy(now mono.Time) error { return q.r.sess.DestroyQP(now, q.Slot()) }

// SendSlot returns the next element of the send ring, which the caller fills in
// before it calls SendPosted; nil where the ring is full.
func (q *QP) SendSlot() *SendRequest {
	if q.sending >= int(q.Config().Cap.MaxSendWR) {
		return nil
	}
	p := q.send.push()
	if p != nil {
		q.sending++
	}
	return p
}

// RecvSlot is SendSlot for the receive ring, and RecvPosted.
func (q *QP) RecvSlot() *RecvRequest {
	if q.receiving >= int(q.Config().Cap.MaxRecvWR) {
		return nil
	}
	p := q.recv.push()
	if p != nil {
		q.receiving++
	}
	return p
}

// Outstanding returns the requests that are posted and not completed.
func (q *QP) Outstanding() (sends, recvs int) { return q.sending, q.receiving }

// Change modifies attributes of the queue pair that need no address; mask selects them, as for Modify.
func (q *QP) Change(now mono.Time, a transport.Attr, mask ib.AttrMask) error {
	return q.QP.Modify(now, &a, nil, mask)
}

// sendRing is the send ring as the adapter sees it.
type sendRing QP

var _ hca.SendRing = (*sendRing)(nil)

// Fetch implements hca.SendRing.
func (s *sendRing) Fetch(wr *transport.SendWR) bool {
	q := s.send.pop()
	if q == nil {
		return false
	}
	wr.ID, wr.Cookie, wr.Op, wr.Flags, wr.BadWQE, wr.Imm = q.ID, 0, ib.WRSend, 0, false, 0
	if q.Signaled {
		wr.Flags = ib.Signaled
	}
	wr.RemoteVA, wr.RKey = 0, 0
	if wr.Path = nil; q.AH != 0 {
		wr.Path = s.Path(q.AH)
	}
	wr.DestQPN, wr.QKey = q.Dest, q.QKey
	wr.SGE, wr.InlineData = append(wr.SGE[:0], ib.SGE{Addr: q.Addr, Len: q.Len, LKey: q.LKey}), nil
	return true
}

// Done implements hca.SendRing.
func (s *sendRing) Done(uint32) { s.sending-- }

// Publish implements hca.SendRing: the owner sees the ring itself.
func (s *sendRing) Publish() {}

// recvRing is the receive ring as the adapter sees it.
type recvRing QP

var _ hca.RecvRing = (*recvRing)(nil)

// Fetch implements hca.RecvRing.
func (s *recvRing) Fetch(wr *transport.RecvWR) bool {
	q := s.recv.pop()
	if q == nil {
		return false
	}
	wr.ID, wr.Cookie, wr.BadWQE = q.ID, 0, false
	wr.SGE = append(wr.SGE[:0], ib.SGE{Addr: q.Addr, Len: q.Len, LKey: q.LKey})
	return true
}

// Done implements hca.RecvRing.
func (s *recvRing) Done(uint32) { s.receiving-- }

// Publish implements hca.RecvRing.
func (s *recvRing) Publish() {}

// Len implements hca.RecvRing.
func (s *recvRing) Len() int { return s.recv.len() }
