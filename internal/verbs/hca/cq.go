// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"slices"
	"syscall"

	"weft/internal/proto/ib"
	"weft/internal/verbs/transport"
)

// CQE is one completion queue entry.
type CQE struct {
	transport.Completion
	WRID uint64
	QPN  ib.QPN // local, as on the wire
}

// CQRing is where a completion queue's entries go; package rdmadev implements it.
type CQRing interface {
	// Put writes an entry into the next free buffer of the client; false
	// where there is none. It may call CQ.Break.
	Put(c *CQE) bool
	// Publish makes the entries put since the last call visible and notifies
	// the client if it armed the queue; solicited: one of them
	// qualifies for a queue armed for solicited events only.
	Publish(solicited bool)
}

// CQ is a completion queue. Entries that find no buffer wait in a bounded
// backlog; when that is full the queue is in error, every queue pair that
// uses it too, and CQ_ERR is raised. No entry is dropped before.
type CQ struct {
	s         *Session
	handle    uint32
	depth     uint32
	ring      CQRing
	held      bool // the ring is being replaced: everything goes to the backlog
	backlog   []CQE
	charged   int64 // of the session's memory quota
	refs      int   // queue pairs, each end counted
	users     map[*QP]int
	solicited bool // of the entries put since the last publish
	dirty     bool
	failed    bool
	broken    bool // the client broke the ring
	reserved  bool // not for queue pairs
	// elastic lets the backlog grow to depth although a ring is there: the
	// rule of the RFC: its drivers return buffers without a kick.
	elastic bool
}

// CreateCQ makes a completion queue of at least cqe entries. Its ring comes
// with SetRing.
func (s *Session) CreateCQ(cqe uint32) (uint32, error) {
	if cqe == 0 || cqe > s.a.Limits().CQE {
		return 0, syscall.EINVAL
	}
	c := &CQ{s: s, depth: cqe, users: make(map[*QP]int), elastic: s.plain}
	h, err := s.cqs.add(c)
	c.handle = h
	return h, err
}

// CQ returns the completion queue with handle h.
func (s *Session) CQ(h uint32) (*CQ, error) { return s.cqs.get(h) }

// DestroyCQ is EBUSY while a queue pair uses it.
func (s *Session) DestroyCQ(h uint32) error {
	c, err := s.cqs.get(h)
	if err != nil {
		return err
	}
	if c.refs != 0 {
		return syscall.EBUSY
	}
	c.ring = nil
	s.charge(-c.charged)
	s.cqs.del(h)
	return nil
}

// Reserve sets an unused completion queue aside: its ring is used for something
// else, and no queue pair can have it. EBUSY while one does.
func (c *CQ) Reserve() error {
	if c.refs != 0 {
		return syscall.EBUSY
	}
	c.SetRing(nil)
	c.reserved = true
	return nil
}

// Resize changes the depth. Fewer entries than wait in the backlog is EINVAL.
func (c *CQ) Resize(cqe uint32) error {
	if cqe == 0 || cqe > c.s.a.Limits().CQE || uint32(len(c.backlog)) > cqe {
		return syscall.EINVAL
	}
	c.depth = cqe
	return nil
}

// SetRing starts (or, with nil, stops) delivery to the client.
func (c *CQ) SetRing(r CQRing) {
	c.ring, c.held = r, r == nil
	if r != nil && len(c.backlog) != 0 {
		c.touch()
	}
}

// Failed reports whether the queue overflowed, or its ring is broken.
func (c *CQ) Failed() bool { return c.failed }

// Break reports that the client broke the ring of the queue: the queue is in error, and its queue pairs will be in ERR
// when Lane.Run has run. Entries are lost from now on.
func (c *CQ) Break() {
	c.broken = true
	if !c.failed {
		c.failed = true
		c.s.lane.failed.cqs = append(c.s.lane.failed.cqs, c)
	}
}

// Depth returns the number of entries that the client requested.
func (c *CQ) Depth() uint32 { return c.depth }

// Backlog returns how many entries wait for a buffer.
func (c *CQ) Backlog() int { return len(c.backlog) }

func (c *CQ) touch() {
	if !c.dirty {
		c.dirty = true
		c.s.lane.dirtyCQs = append(c.s.lane.dirtyCQs, c)
	}
}

func (c *CQ) push(e *CQE) {
	if c.failed {
		c.s.lane.Stats.CQOverrun++
		return
	}
	c.touch()
	// What waits goes first; a ring that just came back has room for it.
	if c.ring != nil && (len(c.backlog) == 0 || !c.drain()) && c.put(e) || c.broken {
		return
	}
	limit := max(int(c.depth)-maxRing, 0)
	if c.elastic || c.held || c.ring == nil {
		limit = int(c.depth)
	}
	if len(c.backlog) >= limit || c.grow() != nil {
		c.failed = true
		c.s.lane.failed.cqs = append(c.s.lane.failed.cqs, c)
		c.s.lane.Stats.CQOverrun++
		return
	}
	c.backlog = append(c.backlog, *e)
}

// maxRing is how many buffers a ring has at most (virtio 1.2, 2.7): of a deeper
// queue the rest waits in the backlog.
const maxRing = 32768

// A backlog starts with minBacklog entries and doubles; cqeBytes is what the
// quota is charged for one.
const (
	minBacklog = 64
	cqeBytes   = 64
)

// grow makes room for one more entry of the backlog.
func (c *CQ) grow() error {
	n := cap(c.backlog)
	if len(c.backlog) < n {
		return nil
	}
	more := max(n, minBacklog)
	if err := c.s.charge(int64(more) * cqeBytes); err != nil {
		return err
	}
	c.charged += int64(more) * cqeBytes
	c.backlog = append(make([]CQE, 0, n+more), c.backlog...)
	return nil
}

// put writes an entry into a buffer of the client, where there is one.
func (c *CQ) put(e *CQE) bool {
	if !c.ring.Put(e) {
		return false
	}
	if e.Solicited || e.Status != ib.Success {
		c.solicited = true
	}
	return true
}

// drain moves the backlog into buffers that have become free and reports
// whether some remains.
func (c *CQ) drain() bool {
	if c.ring == nil {
		return false // SetRing resumes
	}
	n := 0
	for n < len(c.backlog) && c.put(&c.backlog[n]) {
		n++
	}
	if n == len(c.backlog) || c.broken {
		c.backlog = c.backlog[:0]
	} else if n > 0 {
		c.backlog = append(c.backlog[:0], c.backlog[n:]...)
	}
	return len(c.backlog) != 0
}

// drop drops the entries of a queue pair that wait for a buffer: its number may soon be another's.
func (c *CQ) drop(q *QP) {
	c.backlog = slices.DeleteFunc(c.backlog, func(e CQE) bool { return e.QPN == q.num })
}

func (c *CQ) use(q *QP) {
	c.refs++
	c.users[q]++
}

func (c *CQ) unuse(q *QP) {
	c.refs--
	if c.users[q]--; c.users[q] == 0 {
		delete(c.users, q)
	}
}
