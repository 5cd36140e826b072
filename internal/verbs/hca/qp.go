// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"fmt"
	"syscall"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/transport"
)

// SendRing is where a queue pair's send requests come from.
type SendRing interface {
	// Fetch copies the next request into wr; false where there is none. It may call QP.Break.
	Fetch(wr *transport.SendWR) bool
	// Done returns the ring element that cookie names; Publish makes all
	// that were given back visible.
	Done(cookie uint32)
	Publish()
}

// RecvRing is where receive requests come from, of a queue pair or of an SRQ.
type RecvRing interface {
	Fetch(wr *transport.RecvWR) bool
	Done(cookie uint32)
	Publish()
	// Len returns how many requests wait.
	Len() int
}

// QPConfig describes a queue pair to create.
type QPConfig struct {
	Type   ib.QPType
	PD     uint32
	SendCQ uint32
	RecvCQ uint32
	SRQ    uint32 // handle + 1; 0: none
	Cap    transport.Cap
	SigAll bool
	// BlockSelf keeps copies of multicast packets that the queue pair sent
	// itself from it (verbs: BLOCK_SELF_MCAST_LB); only for UD.
	BlockSelf bool
}

// QP is a queue pair, or with no transport an SRQ: both live in a slot. It is
// the Regions and Queues of its transport.
type QP struct {
	s    *Session
	slot uint32
	num  ib.QPN
	pd   *pd
	t    *transport.QP
	kept QPCounters // what the tally of the lane has of its counters
	ahv  AHAttr     // the address vector as it was stated
	// groups are the multicast groups the queue pair is attached to.
	groups []group
	cfg    QPConfig

	sendCQ, recvCQ *CQ
	srq            *QP
	send           SendRing
	recv           RecvRing
	limit          uint32 // SRQ: limit event when fewer requests wait; 0 disarmed
	users          int    // SRQ: queue pairs
	free           []*transport.RecvWR

	lastLocal, lastRemote *mr
	windows               int // bound for this queue pair alone

	verdict switchVerdict
	class   *class // of the send scheduler
	pace    pace

	active, handled, dirty, dead bool
	orphaned                     bool // its program died: Session.Orphan
	broken                       bool // the client broke a ring of it: Break
	more                         bool // the send ring may hold requests not fetched yet
	timer                        mono.Time
	heapIdx                      int
}

var (
	_ transport.Regions = (*QP)(nil)
	_ transport.Queues  = (*QP)(nil)
)

// CreateQP makes a queue pair in state RESET and returns its slot and its
// number on the wire.
func (s *Session) CreateQP(c *QPConfig) (*QP, error) {
	l := s.a.Limits()
	p, err := s.pds.get(c.PD)
	if err != nil {
		return nil, err
	}
	scq, err := s.cqs.get(c.SendCQ)
	if err != nil {
		return nil, err
	}
	rcq, err := s.cqs.get(c.RecvCQ)
	if err != nil {
		return nil, err
	}
	if scq.reserved || rcq.reserved {
		return nil, syscall.EINVAL
	}
	switch c.Type {
	case ib.RC, ib.UC, ib.UD:
	case ib.GSI:
		if !s.a.GuestGSI || s.num != ownerNumber {
			return nil, syscall.EOPNOTSUPP // QP 1 is the node's
		}
		if c.SRQ != 0 {
			return nil, syscall.EINVAL
		}
	default:
		return nil, syscall.EOPNOTSUPP
	}
	if c.BlockSelf && c.Type != ib.UD {
		return nil, syscall.EINVAL
	}
	if c.Cap.MaxSendWR > l.QPWR || c.Cap.MaxRecvWR > l.QPWR || c.Cap.MaxSendSGE > l.SGE || c.Cap.MaxRecvSGE > l.SGE ||
		c.Cap.MaxInline > l.Inline {
		return nil, syscall.EINVAL
	}
	q := &QP{s: s, pd: p, sendCQ: scq, recvCQ: rcq, cfg: *c, heapIdx: -1}
	if c.SRQ != 0 {
		if q.srq, err = s.SRQ(c.SRQ - 1); err != nil {
			return nil, err
		}
	}
	if err := s.charge(transport.Memory(&c.Cap)); err != nil {
		return nil, err
	}
	slot := uint32(ib.QPNGSI)
	if c.Type == ib.GSI {
		err = s.qps.put(slot, q)
	} else {
		slot, err = s.qps.add(q)
	}
	if err != nil {
		s.charge(-transport.Memory(&c.Cap))
		return nil, err
	}
	q.slot, q.num = slot, s.wireQPN(slot)
	port := s.a.Port()
	q.t = transport.New(&transport.Config{Type: c.Type, QPN: q.num, Cap: c.Cap, SigAll: c.SigAll, SRQ: q.srq != nil,
		PortMTU: port.MTU, PKeys: port.PKeys, MaxRdAtomic: l.RdAtomic, Window: l.Window, MinWindow: l.MinWindow, Buffers: s.lane.buffers}, q, q)
	q.t.SetLossy(0, s.lane.Within.Lossy())
	q.classify(nil)
	s.slots[slot] = q
	p.refs++
	scq.use(q)
	rcq.use(q)
	if q.srq != nil {
		q.srq.users++
	}
	return q, nil
}

// QP returns the queue pair in slot h.
func (s *Session) QP(h uint32) (*QP, error) {
	q, err := s.qps.get(h)
	if err == nil && q.t == nil {
		err = syscall.ENOENT
	}
	return q, err
}

// DestroyQP discards what is outstanding, without completions, but for acknowledgements of what completed; completions
// that wait for a buffer, too. It is EBUSY while the queue pair is in a multicast group.
func (s *Session) DestroyQP(now mono.Time, h uint32) error {
	q, err := s.QP(h)
	if err != nil {
		return err
	}
	if len(q.groups) > 0 {
		return syscall.EBUSY
	}
	s.lane.sendLastAnswers(now, q)
	s.dropQP(q)
	q.sendCQ.drop(q)
	q.recvCQ.drop(q)
	s.freeWindows(q)
	s.charge(-transport.Memory(&q.cfg.Cap))
	q.pd.refs--
	q.sendCQ.unuse(q)
	q.recvCQ.unuse(q)
	if q.srq != nil {
		q.srq.users--
	}
	s.qps.del(h)
	return nil
}

// dropQP ends all work of a queue pair or SRQ.
func (s *Session) dropQP(q *QP) {
	s.slots[q.slot] = nil
	if len(q.groups) > 0 {
		q.leaveGroups(q.groups)
		q.groups = nil
	}
	if q.t != nil {
		s.lane.quiesce()
		q.t.Destroy()
		if q.send != nil {
			q.send.Publish()
		}
		if q.srq != nil {
			q.srq.touch()
		}
	}
	s.lane.counted.keepCounters(q)
	q.dead = true
	s.lane.timers.remove(q)
	q.send, q.recv = nil, nil
}

// SourceFault reports to the queue pair that another lane could not read the
// payload of its run r.
func (q *QP) SourceFault(now mono.Time, r *pkt.Burst) {
	if !q.dead {
		q.t.SourceFault(now, r)
		q.schedule()
	}
}

// Slot returns the handle, Num the number on the wire.
func (q *QP) Slot() uint32 { return q.slot }

// Num returns the queue pair number on the wire.
func (q *QP) Num() ib.QPN { return q.num }

// Transport returns the state machine, for queries.
func (q *QP) Transport() *transport.QP { return q.t }

// Config returns what the queue pair was created with.
func (q *QP) Config() *QPConfig { return &q.cfg }

// AH returns the address vector as it was stated.
func (q *QP) AH() *AHAttr { return &q.ahv }

// SetSendRing starts (nil: stops) fetching send requests.
func (q *QP) SetSendRing(r SendRing) {
	q.send, q.more = r, r != nil
	if r != nil && q.t != nil {
		q.schedule()
	}
}

// SetRecvRing starts (nil: stops) fetching receive requests.
func (q *QP) SetRecvRing(r RecvRing) { q.recv = r }

// ModifyRate changes the rate limit, in kbit/s, of a queue pair in RTS; 0 ends
// it.
func (q *QP) ModifyRate(kbps uint32) error {
	if q.t.State() != ib.RTS {
		return syscall.EINVAL
	}
	q.pace.limit = kbps
	q.setPace(q.t.PathOf())
	q.schedule()
	return nil
}

// Break reports that the client broke a ring of the queue pair, or of the shared receive queue. When Lane.Run has run,
// the queue pair, or each that uses the shared receive queue, is in ERR, which it can leave for RESET only.
func (q *QP) Break() {
	q.broken = true
	q.s.lane.failed.qps = append(q.s.lane.failed.qps, q)
}

// inError reports whether a queue that the queue pair needs is in error.
func (q *QP) inError() bool {
	return q.broken || q.srq != nil && q.srq.broken || q.sendCQ.failed || q.recvCQ.failed
}

// Modify changes attributes (verbs rules); av is used with AttrAV.
func (q *QP) Modify(now mono.Time, a *transport.Attr, av *AHAttr, mask ib.AttrMask) error {
	if mask&ib.AttrState != 0 && a.State != ib.Reset && a.State != ib.Err && q.inError() {
		return fmt.Errorf("%w: a queue of the queue pair is in error, so that it can be in RESET and ERR only",
			syscall.EINVAL)
	}
	if mask&ib.AttrAV != 0 {
		p, err := q.s.path(av)
		if err != nil {
			return err
		}
		dest := a.DestQPN
		if mask&ib.AttrDestQPN == 0 {
			var cur transport.Attr
			q.t.Query(&cur)
			dest = cur.DestQPN
		}
		setSrcPort(p, q.num, dest)
		a.Path = p
		// Programs set the port's active MTU, which the interface of the path may not carry (docs/notes/roce-mtu.md).
		if limit := p.MTU; limit.Valid() && a.PathMTU <= q.s.port.MTU {
			a.PathMTU = min(a.PathMTU, limit)
		}
	}
	if mask&ib.AttrState != 0 && (a.State == ib.Err || a.State == ib.Reset) {
		q.s.lane.sendLastAnswers(now, q)
	}
	if err := q.t.Modify(now, a, mask); err != nil {
		if errors.As(err, new(syscall.Errno)) {
			return err
		}
		return fmt.Errorf("%w: %w", syscall.EINVAL, err)
	}
	if mask&ib.AttrAV != 0 {
		q.ahv = *av
		q.classify(a.Path)
		q.setPace(a.Path)
	}
	if q.t.State() == ib.Reset {
		q.pace = pace{}
		q.classify(nil)
		q.discardRing()
	}
	q.more = q.send != nil
	q.touch()
	q.schedule()
	return nil
}

// discardRing consumes what waits in the rings of a queue pair that was reset,
// but no more than a ring holds: the client may go on posting.
func (q *QP) discardRing() {
	if q.send != nil {
		for range transport.MaxFlush {
			wr := q.t.SendSlot()
			if wr == nil || !q.send.Fetch(wr) {
				break
			}
			q.send.Done(wr.Cookie)
		}
	}
	if q.recv != nil {
		wr := q.recvWR()
		for range transport.MaxFlush {
			if !q.recv.Fetch(wr) {
				break
			}
			q.recv.Done(wr.Cookie)
		}
		q.free = append(q.free, wr)
	}
}

// SendPosted reports that the send ring has new requests.
func (q *QP) SendPosted() {
	q.more = true
	q.schedule()
}

// RecvPosted reports that the receive ring has new requests. They wait there for
// a message; only where they are to be flushed there is something to do.
func (q *QP) RecvPosted(now mono.Time) {
	if q.t != nil {
		q.t.RecvPosted(now)
		if q.t.Pending() {
			q.schedule()
		}
	}
}

// fetchMost bounds the requests fetched per turn: what one costs is up to the
// client, which may spread it over many descriptors.
const fetchMost = 512

// fetch moves requests from the send ring into the queue pair and reports
// whether it stopped before the ring or the queue did.
func (q *QP) fetch(now mono.Time) (more bool) {
	if !q.more || q.send == nil {
		return false
	}
	switch q.t.State() {
	case ib.Reset, ib.Init, ib.RTR:
		return false // requests stay in the ring; Modify resumes
	}
	for range fetchMost {
		wr := q.t.SendSlot()
		if wr == nil {
			return false // SendDone resumes: q.more stays set
		}
		if !q.send.Fetch(wr) {
			q.more = false
			return false
		}
		q.t.Post(now)
	}
	return true
}

// Path returns the path of an address handle of the queue pair's domain, or
// nil.
func (q *QP) Path(h uint32) *ib.Path {
	v, err := q.s.ahs.get(h)
	if err != nil || v.pd != q.pd {
		return nil
	}
	return v.path
}

// LocalRegion implements transport.Regions. A window has no local key.
func (q *QP) LocalRegion(lkey ib.Key, addr, n uint64, need ib.Access) *mem.Region {
	m := q.keyed(&q.lastLocal, lkey)
	if m == nil || m.kind >= window1 || !m.region.Allows(addr, n, need) {
		return nil
	}
	return m.region
}

// RemoteRegion implements transport.Regions.
func (q *QP) RemoteRegion(rkey ib.Key, addr, n uint64, need ib.Access) *mem.Region {
	m := q.keyed(&q.lastRemote, rkey)
	if m == nil || m.qp != nil && m.qp != q || !m.region.Allows(addr, n, need) {
		return nil
	}
	return m.region
}

// keyed looks a key of the queue pair's domain up, the one of the last time
// without a table. Local and remote key of a region are one number; what it is
// good for the rights say.
func (q *QP) keyed(last **mr, key ib.Key) *mr {
	m := *last
	if m == nil || m.key != key {
		if m = q.s.keys[index(key)]; m == nil || m.key != key {
			return nil
		}
		*last = m
	}
	if m.pd != q.pd {
		return nil
	}
	return m
}

// recvWR returns an unused receive request.
func (q *QP) recvWR() *transport.RecvWR {
	if n := len(q.free); n > 0 {
		wr := q.free[n-1]
		q.free = q.free[:n-1]
		return wr
	}
	return &transport.RecvWR{SGE: make([]ib.SGE, 0, q.cfg.Cap.MaxRecvSGE)}
}

// TakeRecv implements transport.Queues.
func (q *QP) TakeRecv() *transport.RecvWR {
	src := q
	if q.srq != nil {
		src = q.srq
	}
	if src.recv == nil {
		return nil
	}
	wr := src.recvWR()
	if !src.recv.Fetch(wr) {
		src.free = append(src.free, wr)
		return nil
	}
	if src.limit != 0 && uint32(src.recv.Len()) < src.limit {
		src.limit = 0
		q.s.events.Event(ib.EventSRQLimit, src.slot)
	}
	return wr
}

// SendDone implements transport.Queues.
func (q *QP) SendDone(wr *transport.SendWR, signal bool, c *transport.Completion) {
	if q.send != nil {
		q.send.Done(wr.Cookie)
	}
	q.touch()
	if signal && !c.Discard {
		q.complete(q.sendCQ, wr.ID, c)
	}
}

// RecvDone implements transport.Queues.
func (q *QP) RecvDone(wr *transport.RecvWR, c *transport.Completion) {
	src := q
	if q.srq != nil {
		src = q.srq
	}
	if src.recv != nil {
		src.recv.Done(wr.Cookie)
	}
	src.touch()
	if !c.Discard {
		if c.PathBits != 0 {
			c.PathBits &= 1<<q.s.port.LMC - 1
		}
		q.complete(q.recvCQ, wr.ID, c)
	}
	src.free = append(src.free, wr)
}

// complete puts an entry into a completion queue, by way of the lane's one
// scratch entry: an entry on the stack would escape to the heap.
func (q *QP) complete(cq *CQ, id uint64, c *transport.Completion) {
	e := &q.s.lane.cqe
	e.Completion, e.WRID, e.QPN = *c, id, q.num
	cq.push(e)
}

// Event implements transport.Queues.
func (q *QP) Event(e ib.Event) { q.s.events.Event(e, uint32(q.num)) }

// touch makes the lane publish the rings at the end of its round.
func (q *QP) touch() {
	if !q.dirty {
		q.dirty = true
		q.s.lane.dirtyQPs = append(q.s.lane.dirtyQPs, q)
	}
}

func (q *QP) schedule() {
	if !q.active && !q.dead && q.t != nil {
		q.s.lane.sched.enlist(q)
		q.s.lane.ready = append(q.s.lane.ready, q)
	}
}

// SRQConfig describes a shared receive queue.
type SRQConfig struct{ PD, MaxWR, MaxSGE, Limit uint32 }

// CreateSRQ makes a shared receive queue; it takes the slot of a queue pair.
func (s *Session) CreateSRQ(c SRQConfig) (*QP, error) {
	p, err := s.pds.get(c.PD)
	if err != nil {
		return nil, err
	}
	l := s.a.Limits()
	if c.MaxWR == 0 || c.MaxWR > l.SRQWR || c.MaxSGE > l.SGE || c.Limit > c.MaxWR {
		return nil, syscall.EINVAL
	}
	if uint32(s.srqs) >= l.SRQ {
		return nil, syscall.ENOSPC
	}
	q := &QP{s: s, pd: p, limit: c.Limit, heapIdx: -1}
	q.cfg.Cap = transport.Cap{MaxRecvWR: c.MaxWR, MaxRecvSGE: c.MaxSGE}
	if q.slot, err = s.qps.add(q); err != nil {
		return nil, err
	}
	s.srqs++
	p.refs++
	return q, nil
}

// SRQ returns the shared receive queue with handle h.
func (s *Session) SRQ(h uint32) (*QP, error) {
	q, err := s.qps.get(h)
	if err == nil && q.t != nil {
		err = syscall.ENOENT
	}
	return q, err
}

// ModifySRQ sets the capacity, the limit or both; all or nothing. A capacity
// below what waits, or below the limit that is then armed, is EINVAL. The ring
// is the client's to change.
func (s *Session) ModifySRQ(h uint32, setMax, setLimit bool, maxWR, limit uint32) error {
	q, err := s.SRQ(h)
	if err != nil {
		return err
	}
	if !setLimit {
		limit = q.limit
	}
	if !setMax {
		maxWR = q.cfg.Cap.MaxRecvWR
	} else if maxWR == 0 || maxWR > s.a.Limits().SRQWR || maxWR < q.Outstanding() {
		return syscall.EINVAL
	}
	if limit > maxWR {
		return syscall.EINVAL
	}
	// The limit is looked at when a request is taken, as soft-RoCE does.
	q.cfg.Cap.MaxRecvWR, q.limit = maxWR, limit
	return nil
}

// Limit returns the armed limit, 0 where none is.
func (q *QP) Limit() uint32 { return q.limit }

// Outstanding returns how many receive requests wait.
func (q *QP) Outstanding() uint32 {
	if q.recv == nil {
		return 0
	}
	return uint32(q.recv.Len())
}

// DestroySRQ is EBUSY while a queue pair uses it.
func (s *Session) DestroySRQ(h uint32) error {
	q, err := s.SRQ(h)
	if err != nil {
		return err
	}
	if q.users != 0 {
		return syscall.EBUSY
	}
	s.dropQP(q)
	q.pd.refs--
	s.srqs--
	s.qps.del(h)
	return nil
}
