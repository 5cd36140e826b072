// SPDX-License-Identifier: Apache-2.0

package node

import (
	"math/bits"
	"os"

	"weft/internal/control/api"
	"weft/internal/node/lane"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/transport"
)

// resident is a session of a lane without a door: verbs over memory of the node
// itself, for users that live in it. Quotas, queues and completions are those of any
// session. It belongs to its lane.
type resident struct {
	n      *Node
	f      *function
	lane   *lane.Lane
	serial uint32
	name   string // for people, in place of the name of a program
	sess   *hca.Session
	event  func(e ib.Event, object uint32)
	due    []*residentCQ // have entries that nobody was told of
	spare  []*residentCQ // the array of due before
}

var _ hca.EventSink = (*resident)(nil)

// newResident opens a session of f for a user in the node, on the quietest lane, with room for so many queue pairs, shared receive
// queues among them. event hears of asynchronous events, on the lane. No lane may call it.
func (n *Node) newResident(f *function, name string, qps uint32, event func(e ib.Event, object uint32)) (*resident, error) {
	n.mu.Lock()
	n.serial++
	r := &resident{n: n, f: f, lane: n.quietest(), serial: n.serial, name: name, event: event}
	n.mu.Unlock()
	var err error
	if e := r.lane.Do(func() {
		// Rings are the node's own memory, so that no door bounds their number.
		r.sess = r.lane.HCA.NewSession(f.a, r, residentCQs, qps, false)
		n.mu.Lock()
		defer n.mu.Unlock()
		if err = f.a.Attach(r.sess); err == nil {
			n.residents = append(n.residents, r)
		}
	}); e != nil {
		return nil, e
	}
	if err != nil {
		r.lane.Do(r.sess.Close)
		return nil, err
	}
	return r, nil
}

// What a resident's session can number; queue pairs, unless it says otherwise.
const (
	residentCQs = 64
	residentQPs = 64
)

// close ends the session with all its objects. No lane may call it.
func (r *resident) close() {
	n := r.n
	r.lane.Do(func() {
		n.mu.Lock()
		r.f.a.Detach(r.sess)
		for i, o := range n.residents {
			if o == r {
				n.residents = append(n.residents[:i:i], n.residents[i+1:]...)
				break
			}
		}
		n.mu.Unlock()
		r.sess.Close()
	})
	n.lanes.Quiesce() // copies out of its memory have ended
}

// Event implements hca.EventSink.
func (r *resident) Event(e ib.Event, object uint32) {
	if r.event != nil {
		r.event(e, object)
	}
}

// owner says whose the objects are.
func (r *resident) owner() api.Owner {
	return api.Owner{Device: r.f.a.Name, Session: r.serial, PID: os.Getpid(), Comm: r.name, UID: os.Geteuid()}
}

// complete calls the handlers of completion queues that have new entries, and
// reports whether there was one. The owner calls it in its turn.
func (r *resident) complete(now mono.Time) bool {
	if len(r.due) == 0 {
		return false
	}
	due := r.due
	r.due, r.spare = r.spare[:0], due
	for _, c := range due {
		c.told = false
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

// pop takes the oldest value, which stays until the next push; nil where there is none.
func (q *ring[T]) pop() *T {
	if q.head == q.tail {
		return nil
	}
	q.head++
	return &q.b[(q.head-1)&uint32(len(q.b)-1)]
}

// residentCQ is a completion queue that a handler on the lane empties.
type residentCQ struct {
	r       *resident
	handle  uint32
	ring    ring[hca.CQE]
	handler func(now mono.Time)
	told    bool // is in due
}

var _ hca.CQRing = (*residentCQ)(nil)

// createCQ makes a completion queue. handler is called once for entries that came
// since the last call; what it leaves there it is not told of again.
func (r *resident) createCQ(cqe uint32, handler func(now mono.Time)) (*residentCQ, error) {
	h, err := r.sess.CreateCQ(cqe)
	if err != nil {
		return nil, err
	}
	q, err := r.sess.CQ(h)
	if err != nil {
		return nil, err
	}
	c := &residentCQ{r: r, handle: h, ring: newRing[hca.CQE](cqe), handler: handler}
	q.SetRing(c)
	return c, nil
}

func (c *residentCQ) destroy() error {
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
func (c *residentCQ) Put(e *hca.CQE) bool {
	p := c.ring.push()
	if p == nil {
		return false
	}
	*p = *e
	return true
}

// Publish implements hca.CQRing.
func (c *residentCQ) Publish(bool) {
	if !c.told && c.ring.len() > 0 {
		c.told = true
		c.r.due = append(c.r.due, c)
	}
}

// poll takes the oldest completions.
func (c *residentCQ) poll(dst []hca.CQE) (n int) {
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

// residentMR is memory of the node that the adapter may use.
type residentMR struct {
	r      *resident
	b      []byte // at address 0
	handle uint32
	lkey   ib.Key
}

// registerMR registers fresh memory of n bytes, which addresses from 0 name. space makes its Space.
func (r *resident) registerMR(pd uint32, n int, space func(b []byte) mem.Space) (*residentMR, error) {
	b := make([]byte, n)
	m, err := r.sess.RegisterMR(pd, &mem.Region{Space: space(b), Len: uint64(n), Access: ib.LocalWrite})
	if err != nil {
		return nil, err
	}
	return &residentMR{r: r, b: b, handle: m.Handle, lkey: m.LKey}, nil
}

func (m *residentMR) deregister() error { return m.r.sess.DeregisterMR(m.handle) }

// sendRequest is a datagram, or a message of a connection, to send.
type sendRequest struct {
	id       uint64
	addr     uint64
	lkey     ib.Key
	length   uint32
	ah       uint32
	dest     ib.QPN
	qkey     ib.QKey
	signaled bool
}

// recvRequest is room for a datagram.
type recvRequest struct {
	id     uint64
	addr   uint64
	lkey   ib.Key
	length uint32
}

// residentQP is a queue pair with its two rings, or a shared receive queue.
type residentQP struct {
	*hca.QP
	r         *resident
	send      ring[sendRequest]
	recv      ring[recvRequest]
	sending   int // posted, and not given back
	receiving int
}

// createQP makes a UD queue pair in RESET.
func (r *resident) createQP(pd uint32, sendCQ, recvCQ *residentCQ, sends, recvs uint32) (*residentQP, error) {
	return r.makeQP(&hca.QPConfig{Type: ib.UD, PD: pd, SendCQ: sendCQ.handle, RecvCQ: recvCQ.handle,
		Cap: transport.Cap{MaxSendWR: sends, MaxRecvWR: recvs, MaxSendSGE: 1, MaxRecvSGE: 1}})
}

// createRC makes an RC queue pair in RESET that receives from a shared receive queue.
func (r *resident) createRC(pd uint32, cq *residentCQ, srq *residentQP, sends uint32) (*residentQP, error) {
	return r.makeQP(&hca.QPConfig{Type: ib.RC, PD: pd, SendCQ: cq.handle, RecvCQ: cq.handle, SRQ: srq.Slot() + 1,
		Cap: transport.Cap{MaxSendWR: sends, MaxSendSGE: 1}})
}

// createSRQ makes a shared receive queue; of a residentQP it has what receives.
func (r *resident) createSRQ(pd uint32, recvs uint32) (*residentQP, error) {
	q, err := r.sess.CreateSRQ(hca.SRQConfig{PD: pd, MaxWR: recvs, MaxSGE: 1})
	if err != nil {
		return nil, err
	}
	p := &residentQP{QP: q, r: r, recv: newRing[recvRequest](recvs)}
	q.SetRecvRing((*residentRecvs)(p))
	return p, nil
}

func (r *resident) makeQP(c *hca.QPConfig) (*residentQP, error) {
	q, err := r.sess.CreateQP(c)
	if err != nil {
		return nil, err
	}
	sends, recvs := c.Cap.MaxSendWR, c.Cap.MaxRecvWR
	p := &residentQP{QP: q, r: r, send: newRing[sendRequest](sends), recv: newRing[recvRequest](recvs)}
	q.SetSendRing((*residentSends)(p))
	if c.SRQ == 0 {
		q.SetRecvRing((*residentRecvs)(p))
	}
	return p, nil
}

func (q *residentQP) destroy(now mono.Time) error { return q.r.sess.DestroyQP(now, q.Slot()) }

// sendSlot returns the next element of the send ring, which the caller fills in
// before it calls SendPosted; nil where the ring is full.
func (q *residentQP) sendSlot() *sendRequest {
	if q.sending >= int(q.Config().Cap.MaxSendWR) {
		return nil
	}
	p := q.send.push()
	if p != nil {
		q.sending++
	}
	return p
}

// recvSlot is sendSlot for the receive ring, and RecvPosted.
func (q *residentQP) recvSlot() *recvRequest {
	if q.receiving >= int(q.Config().Cap.MaxRecvWR) {
		return nil
	}
	p := q.recv.push()
	if p != nil {
		q.receiving++
	}
	return p
}

// modify changes the state as programs do.
func (q *residentQP) modify(now mono.Time, a transport.Attr, mask ib.AttrMask) error {
	return q.Modify(now, &a, nil, mask)
}

// residentSends is the send ring as the adapter sees it.
type residentSends residentQP

var _ hca.SendRing = (*residentSends)(nil)

// Fetch implements hca.SendRing.
func (s *residentSends) Fetch(wr *transport.SendWR) bool {
	q := s.send.pop()
	if q == nil {
		return false
	}
	wr.ID, wr.Cookie, wr.Op, wr.Flags, wr.BadWQE, wr.Imm = q.id, 0, ib.WRSend, 0, false, 0
	if q.signaled {
		wr.Flags = ib.Signaled
	}
	wr.RemoteVA, wr.RKey = 0, 0
	if wr.Path = nil; q.ah != 0 {
		wr.Path = s.Path(q.ah)
	}
	wr.DestQPN, wr.QKey = q.dest, q.qkey
	wr.SGE, wr.InlineData = append(wr.SGE[:0], ib.SGE{Addr: q.addr, Len: q.length, LKey: q.lkey}), nil
	return true
}

// Done implements hca.SendRing.
func (s *residentSends) Done(uint32) { s.sending-- }

// Publish implements hca.SendRing: the owner sees the ring itself.
func (s *residentSends) Publish() {}

// residentRecvs is the receive ring as the adapter sees it.
type residentRecvs residentQP

var _ hca.RecvRing = (*residentRecvs)(nil)

// Fetch implements hca.RecvRing.
func (s *residentRecvs) Fetch(wr *transport.RecvWR) bool {
	q := s.recv.pop()
	if q == nil {
		return false
	}
	wr.ID, wr.Cookie, wr.BadWQE = q.id, 0, false
	wr.SGE = append(wr.SGE[:0], ib.SGE{Addr: q.addr, Len: q.length, LKey: q.lkey})
	return true
}

// Done implements hca.RecvRing.
func (s *residentRecvs) Done(uint32) { s.receiving-- }

// Publish implements hca.RecvRing.
func (s *residentRecvs) Publish() {}

// Len implements hca.RecvRing.
func (s *residentRecvs) Len() int { return s.recv.len() }
