// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"sync/atomic"
	"syscall"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
)

// EventSink receives a session's asynchronous events. object is a queue pair
// number on the wire, a CQ or SRQ number, or a port.
type EventSink interface {
	Event(e ib.Event, object uint32)
}

// Session is one client's view of a function: all its objects. It belongs to
// one lane; no method is safe for concurrent use. Methods return syscall.Errno
// values, which travel to the client as they are.
type Session struct {
	a      *Adapter
	lane   *Lane
	num    uint16
	port   *Port // as the lane last saw it: what the packet path goes by
	up     bool  // it is active
	events EventSink
	// gids is the GID table of a session that has one of its own, filled by ADD_GID with addresses of the port; nil:
	// the session uses that of the port.
	gids []ib.GID
	// plain marks the session of a driver of the RFC: it returns completion buffers without a kick.
	plain bool
	// strict means that only the access rights of the RFC exist (SetStrict).
	strict bool

	pds    table[*pd]
	mrs    table[*mr]
	mws    table[*mr] // windows
	ahs    table[*ah]
	cqs    table[*CQ]
	qps    table[*QP] // queue pairs and SRQs share their slots
	slots  []*QP      // by slot, for the packet path
	srqs   int
	keys   map[uint32]*mr // by index
	keySrc keySource
	memory int64 // bytes charged
	pages  PageSpace
	closed bool
	// orphaned: nothing is left of the session but orphaned queue pairs. It counts no longer, and its number is
	// assigned to another session where no number is left.
	orphaned atomic.Bool
}

// NewSession returns a session of function a on lane l, which the caller
// attaches to a. maxQP and maxCQ bound its slots, for a device with fewer rings
// than the quota. plain means a driver of the RFC, with a GID table of its own
// unless it uses that of the port (UsePortGIDs).
func (l *Lane) NewSession(a *Adapter, events EventSink, maxCQ, maxQP uint32, plain bool) *Session {
	lim := a.Limits()
	maxQP, maxCQ = min(maxQP, lim.QP), min(maxCQ, lim.CQ)
	s := &Session{a: a, lane: l, events: events, plain: plain, strict: plain,
		pds: newTable[*pd](1, lim.PD), mrs: newTable[*mr](1, lim.MR), mws: newTable[*mr](1,
			lim.MW), ahs: newTable[*ah](1, lim.AH),
		cqs: newTable[*CQ](0, maxCQ), qps: newTable[*QP](2, maxQP-2), keys: make(map[uint32]*mr),
		slots: make([]*QP, maxQP)}
	if plain {
		s.gids = make([]ib.GID, EthernetGIDs)
	}
	s.follow()
	l.sessions = append(l.sessions, s)
	l.refresh()
	return s
}

// UsePortGIDs makes the session use the GID table of the port instead of one of its own.
func (s *Session) UsePortGIDs() { s.gids = nil }

// SetStrict limits registrations from now on to the access rights that the RFC defines; a region without rights for
// peers then has no R_Key.
func (s *Session) SetStrict(on bool) { s.strict = on }

// Number returns the session's number within its network identity.
func (s *Session) Number() uint16 { return s.num }

// Adapter returns the function the session uses.
func (s *Session) Adapter() *Adapter { return s.a }

// Lane returns the lane that owns the session.
func (s *Session) Lane() *Lane { return s.lane }

// wireQPN returns the number on the wire of the queue pair in slot n.
func (s *Session) wireQPN(slot uint32) ib.QPN {
	if slot == uint32(ib.QPNGSI) {
		return ib.QPNGSI
	}
	return ib.QPN(uint32(s.num)<<slotBits | slot)
}

// SessionOf returns the number of the session that qpn names on the wire.
func SessionOf(qpn ib.QPN) uint16 { return uint16(qpn & ib.QPNMask >> slotBits) }

// Close destroys every object. Afterwards nothing is written to the client's
// memory on this session's behalf, save by copies that other lanes are in the
// middle of.
func (s *Session) Close() {
	if s.closed {
		return
	}
	s.closed = true
	if s.a.sessions.Load()[ownerNumber] == s {
		s.a.ownerSlot.Store(s.qps.next)
	}
	for _, q := range s.qps.m {
		s.dropQP(q)
	}
	for _, m := range s.mrs.m {
		m.region.Revoke()
	}
	for _, w := range s.mws.m {
		w.region.Revoke()
	}
	s.lane.forget(s)
}

// charge takes n bytes of the session's memory quota; a negative n gives them
// back.
func (s *Session) charge(n int64) error {
	if n > 0 && s.memory+n > s.a.Limits().Memory {
		return syscall.ENOMEM
	}
	s.memory += n
	return nil
}

// CreatePD returns the handle of a new protection domain.
func (s *Session) CreatePD() (uint32, error) {
	p := &pd{}
	h, err := s.pds.add(p)
	p.handle = h
	return h, err
}

// DestroyPD is EBUSY while anything uses the domain.
func (s *Session) DestroyPD(h uint32) error {
	p, err := s.pds.get(h)
	if err != nil {
		return err
	}
	if p.refs != 0 {
		return syscall.EBUSY
	}
	s.pds.del(h)
	return nil
}

const accessMask = ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic | ib.MWBind | ib.ZeroBased

// MRResult is what a registration yields.
type MRResult struct {
	Handle     uint32
	LKey, RKey ib.Key
}

func (s *Session) checkAccess(a ib.Access) error {
	mask := accessMask
	if s.strict {
		mask = ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead // the rights that the RFC defines
	}
	if a&^mask != 0 || a&(ib.RemoteWrite|ib.RemoteAtomic) != 0 && a&ib.LocalWrite == 0 {
		return syscall.EINVAL
	}
	return nil
}

// checkRegion refuses a region that wraps around an end of its addresses, or
// that gives rights which do not go together.
func (s *Session) checkRegion(r *mem.Region) error {
	if r.Len != 0 && (r.Start+r.Len-1 < r.Start || r.Base+r.Len-1 < r.Base) {
		return syscall.EINVAL
	}
	return s.checkAccess(r.Access)
}

// RegisterMR makes r a memory region of domain pdn: r has Space, Start, Len,
// Base or Pages, and Access set; the keys are drawn here.
func (s *Session) RegisterMR(pdn uint32, r *mem.Region) (MRResult, error) {
	p, err := s.pds.get(pdn)
	if err != nil {
		return MRResult{}, err
	}
	if err := s.checkRegion(r); err != nil {
		return MRResult{}, err
	}
	if err := s.charge(pageBytes(r)); err != nil {
		return MRResult{}, err
	}
	m := &mr{region: r, pd: p}
	h, err := s.mrs.add(m)
	if err != nil {
		s.charge(-pageBytes(r))
		return MRResult{}, err
	}
	m.handle = h
	p.refs++
	s.key(m)
	return MRResult{h, r.LKey, r.RKey}, nil
}

// pageBytes is what the page list of a region takes.
func pageBytes(r *mem.Region) int64 { return 8 * int64(len(r.Pages)) }

// key draws the key of m: one number for both ends, and what a peer may do with
// it the rights say.
func (s *Session) key(m *mr) {
	m.key = s.newKey()
	s.keys[index(m.key)] = m
	s.name(m)
}

// name gives the region of m its key. A driver of the RFC gets no key for
// others where they have no rights; programs may give them some later.
func (s *Session) name(m *mr) {
	m.region.LKey, m.region.RKey = m.key, m.key
	if s.strict && m.region.Access&remoteRights == 0 {
		m.region.RKey = 0
	}
}

// DeregisterMR ends a region: its keys name nothing any more when it returns.
// It is EBUSY while windows are bound to it.
func (s *Session) DeregisterMR(h uint32) error {
	m, err := s.mrs.get(h)
	if err != nil {
		return err
	}
	if m.windows != 0 {
		return syscall.EBUSY
	}
	s.unkey(m)
	if m.kind == fastReg {
		s.charge(-listBytes(m.maxPages))
	} else {
		s.charge(-pageBytes(m.region))
	}
	m.pd.refs--
	s.mrs.del(h)
	return nil
}

func (s *Session) unkey(m *mr) {
	m.region.Revoke()
	delete(s.keys, index(m.key))
	s.lane.quiesce()
}

// Re-registration flags (verbs names).
const (
	ReregTranslation = 1
	ReregPD          = 2
	ReregAccess      = 4
)

// ReregisterMR replaces translation, domain or access of a region. build makes
// the new Region from the old one. The keys stay where the memory does, and
// change with it: a holder of the old ones was not given the new memory. On an error
// the old registration stands; it is EBUSY while windows are bound to it.
func (s *Session) ReregisterMR(h, flags, pdn uint32, build func(old *mem.Region) (*mem.Region, error)) (MRResult,
	error) {
	m, err := s.mrs.get(h)
	if err != nil {
		return MRResult{}, err
	}
	if flags == 0 || flags&^(ReregTranslation|ReregPD|ReregAccess) != 0 || m.kind != plain {
		return MRResult{}, syscall.EINVAL
	}
	if m.windows != 0 {
		return MRResult{}, syscall.EBUSY
	}
	p := m.pd
	if flags&ReregPD != 0 {
		if p, err = s.pds.get(pdn); err != nil {
			return MRResult{}, err
		}
	}
	r, err := build(m.region)
	if err == nil {
		err = s.checkRegion(r)
	}
	if err != nil {
		return MRResult{}, err
	}
	s.unkey(m)
	s.charge(pageBytes(r) - pageBytes(m.region)) // never more than before
	m.pd.refs--
	p.refs++
	m.pd, m.region = p, r
	if flags&ReregTranslation != 0 {
		s.key(m)
	} else {
		s.keys[index(m.key)] = m
		s.name(m)
	}
	return MRResult{h, r.LKey, r.RKey}, nil
}

// GID returns entry i of the session's GID table.
func (s *Session) GID(i uint32) (ib.GID, error) {
	var g ib.GID
	if s.gids != nil {
		if i < uint32(len(s.gids)) {
			g = s.gids[i]
		}
	} else if gids := s.a.Port().GIDs; i < uint32(len(gids)) {
		g = gids[i].GID
	}
	if g.IsZero() {
		return g, syscall.EINVAL
	}
	return g, nil
}

// AddGID fills entry i of the session's own table. Only addresses of the port can be used.
func (s *Session) AddGID(i uint32, g ib.GID) error {
	if s.gids == nil || i >= uint32(len(s.gids)) || s.a.Port().Lookup(g) < 0 {
		return syscall.EINVAL
	}
	s.gids[i] = g
	return nil
}

// DelGID empties entry i; an empty entry is no error. Queue pairs that took
// the GID keep it.
func (s *Session) DelGID(i uint32) error {
	if s.gids == nil || i >= uint32(len(s.gids)) {
		return syscall.EINVAL
	}
	s.gids[i] = ib.GID{}
	return nil
}

// PortChanged notifies the client that its port has changed.
func (s *Session) PortChanged(e ib.Event) {
	s.lane.refresh()
	s.events.Event(e, portNumber)
}

// portNumber is the number of the only port that a function has.
const portNumber = 1

// follow takes in the port as it is now: what the packet path goes by, and on
// an InfiniBand port what queue pairs and address handles took from it.
func (s *Session) follow() {
	s.port = s.a.Port()
	s.up = s.port.State == ib.PortActive
	if !s.port.native() {
		return
	}
	for _, q := range s.qps.m {
		if q.t == nil {
			continue
		}
		q.t.SetPort(s.port.MTU, s.port.PKeys)
		// A connected pair stays with the way it was given: a subnet manager that moves a LID
		// to another port breaks its connections.
		if p := q.t.PathOf(); p != nil && p.Native() {
			if slid := s.port.LID | ib.LID(q.ahv.SrcPathBits); slid != p.SLID {
				n := *p
				n.SLID = slid
				q.t.SetPath(&n)
			}
		}
	}
	for _, h := range s.ahs.m {
		// Where it fails the old path stays, and the lane refuses its packets.
		if p, err := s.path(&h.attr); err == nil {
			h.path = p
		}
	}
}
