// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"encoding/binary"
	"syscall"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/verbs/transport"
)

// PageSpace returns the space in which all pages of a list lie, of 1 << shift
// bytes each, of which last are used in the last one; nil where there is none. It
// must not keep the list.
type PageSpace func(pages []uint64, shift uint8, last uint64) mem.Space

// SetPageSpace sets where pages of regions that are registered by request are
// looked for.
func (s *Session) SetPageSpace(f PageSpace) { s.pages = f }

// MaxFastRegPages is how many pages a region registered by request may have.
const MaxFastRegPages = 512

// Pages have 4 KiB at least, and 2 GiB at most.
const minPageShift, maxPageShift = 12, 31

// PageShift returns the size of pages, the smallest, of which exactly n hold
// length bytes at virtual address va, and the offset of the first byte in its page.
func PageShift(va, length uint64, n uint32) (shift uint8, first uint64, ok bool) {
	if length == 0 || va+length-1 < va {
		return 0, 0, false
	}
	for s := uint8(minPageShift); s <= maxPageShift; s++ {
		page := uint64(1) << s
		first := va & (page - 1)
		if (first+length-1)>>s+1 == uint64(n) && first+length > first {
			return s, first, true
		}
	}
	return 0, 0, false
}

// listBytes is what the page list of a region registered by request is charged.
func listBytes(pages uint32) int64 { return 8 * int64(pages) }

// unusable returns a region that allows nothing.
func unusable() *mem.Region {
	r := &mem.Region{}
	r.Revoke()
	return r
}

// revoke invalidates the key of m. Before the client is notified the lane calls quiesce
// before: at once, or by l.revoked with the publishing of completions.
func (s *Session) revoke(m *mr) {
	m.region.Revoke()
	s.lane.revoked = true
}

// AllocMR makes a region of up to maxPages pages with a key that is invalid until
// it is registered by a request.
func (s *Session) AllocMR(pdn, maxPages uint32) (MRResult, error) {
	p, err := s.pds.get(pdn)
	if err != nil {
		return MRResult{}, err
	}
	if maxPages == 0 || maxPages > MaxFastRegPages {
		return MRResult{}, syscall.EINVAL
	}
	if err := s.charge(listBytes(maxPages)); err != nil {
		return MRResult{}, err
	}
	m := &mr{region: unusable(), pd: p, kind: fastReg, maxPages: maxPages}
	if m.handle, err = s.mrs.add(m); err != nil {
		s.charge(-listBytes(maxPages))
		return MRResult{}, err
	}
	p.refs++
	s.key(m)
	return MRResult{m.handle, m.key, m.key}, nil
}

// AllocMW makes a window, bound to nothing: type 1, for the queue pairs of its
// domain, or 2, for the one that binds it (IBA volume 1, 10.6.7; of the second
// type the variant B).
func (s *Session) AllocMW(pdn, typ uint32) (h uint32, rkey ib.Key, err error) {
	p, err := s.pds.get(pdn)
	if err != nil {
		return 0, 0, err
	}
	w := &mr{region: unusable(), pd: p, kind: window1}
	switch typ {
	case 1:
	case 2:
		w.kind = window2
	default:
		return 0, 0, syscall.EINVAL
	}
	if w.handle, err = s.mws.add(w); err != nil {
		return 0, 0, err
	}
	p.refs++
	s.key(w)
	return w.handle, w.key, nil
}

// DeallocMW ends a window, bound or not.
func (s *Session) DeallocMW(h uint32) error {
	w, err := s.mws.get(h)
	if err != nil {
		return err
	}
	s.unbind(w)
	s.unkey(w)
	w.pd.refs--
	s.mws.del(h)
	return nil
}

// unbind takes a window off its region.
func (s *Session) unbind(w *mr) {
	s.revoke(w)
	if w.on != nil {
		w.on.windows--
		w.on = nil
	}
	if w.qp != nil {
		w.qp.windows--
		w.qp = nil
	}
}

// freeWindows unbinds the windows that only q, which is destroyed, could use.
func (s *Session) freeWindows(q *QP) {
	if q.windows == 0 {
		return
	}
	for _, w := range s.mws.m {
		if w.qp == q {
			s.unbind(w)
		}
	}
	s.lane.quiesce()
}

// Local implements transport.Regions.
func (q *QP) Local(wr *transport.SendWR) (ib.Status, uint32) {
	var reason uint32
	switch wr.Op {
	case ib.WRLocalInv:
		reason = q.invalidate(wr.RKey)
	case ib.WRBindMW:
		reason = q.bind(wr)
	default:
		reason = q.register(wr)
	}
	if reason != transport.ReasonNone {
		return ib.MWBindErr, reason
	}
	return ib.Success, reason
}

// Invalidate implements transport.Regions.
func (q *QP) Invalidate(rkey ib.Key) bool { return q.invalidate(rkey) == transport.ReasonNone }

// invalidate ends what key means: of a region registered by request, or of a
// window of type 2 that this queue pair has bound.
func (q *QP) invalidate(key ib.Key) (reason uint32) {
	m := q.s.keys[index(key)]
	switch {
	case m == nil, m.key != key, m.pd != q.pd, m.kind != fastReg && m.kind != window2:
		return transport.ReasonObject
	case m.region.Revoked(), m.windows != 0, m.kind == window2 && m.qp != q:
		return transport.ReasonBound
	case m.kind == window2:
		q.s.unbind(m)
	default:
		q.s.revoke(m)
	}
	return transport.ReasonNone
}

const remoteRights = ib.RemoteRead | ib.RemoteWrite | ib.RemoteAtomic

// bind executes BIND_MW (IBA volume 1, 10.6.7.2). The key's index selects the
// window; its last eight bits are new. A window of type 1 moves; bound to zero bytes
// it is unbound. One of type 2 has to be unbound.
func (q *QP) bind(wr *transport.SendWR) (reason uint32) {
	s := q.s
	w := s.keys[index(wr.RKey)]
	if w == nil || w.kind < window1 || w.pd != q.pd {
		return transport.ReasonObject
	}
	if w.kind == window2 && w.on != nil {
		return transport.ReasonBound
	}
	n := wr.Compare
	if n == 0 && w.kind == window1 {
		s.unbind(w)
		w.region, w.key = unusable(), wr.RKey
		return transport.ReasonNone
	}
	m := s.keys[index(ib.Key(wr.Object))]
	access := wr.Access &^ ib.LocalWrite // programs set it, as for a region; it has no meaning here
	switch {
	case m == nil, m.key != ib.Key(wr.Object), m.kind >= window1, m.pd != q.pd:
		return transport.ReasonObject
	case n == 0, !m.region.Allows(wr.RemoteVA, n, 0):
		return transport.ReasonRange
	case access&^(remoteRights|ib.ZeroBased) != 0, m.region.Access&ib.MWBind == 0, m.region.Access&ib.ZeroBased != 0,
		access&(ib.RemoteWrite|ib.RemoteAtomic) != 0 && m.region.Access&ib.LocalWrite == 0:
		return transport.ReasonRights
	}
	s.unbind(w)
	w.key = wr.RKey
	w.region = m.region.Window(wr.RemoteVA, n)
	w.region.Access = access
	if access&ib.ZeroBased != 0 {
		w.region.Start = 0
	}
	s.name(w)
	w.on = m
	m.windows++
	if w.kind == window2 {
		w.qp = q
		q.windows++
	}
	return transport.ReasonNone
}

// register executes REG_MR: a region that is free gets pages, rights and a key.
func (q *QP) register(wr *transport.SendWR) (reason uint32) {
	s := q.s
	m, err := s.mrs.get(wr.Object)
	if err != nil || m.kind != fastReg || m.pd != q.pd || index(m.key) != index(wr.RKey) {
		return transport.ReasonObject
	}
	if !m.region.Revoked() {
		return transport.ReasonBound
	}
	if s.checkAccess(wr.Access) != nil {
		return transport.ReasonRights
	}
	start := wr.RemoteVA
	shift, first, ok := PageShift(start, wr.Compare, wr.Pages)
	if !ok || wr.Pages > m.maxPages {
		return transport.ReasonRange
	}
	pages := q.pageList(wr)
	last := first + wr.Compare - uint64(wr.Pages-1)<<shift
	if pages == nil || s.pages == nil {
		return transport.ReasonPageList
	}
	for _, p := range pages {
		if p&(1<<shift-1) != 0 {
			return transport.ReasonPageList
		}
	}
	space := s.pages(pages, shift, last)
	if space == nil {
		return transport.ReasonPageList
	}
	if wr.Access&ib.ZeroBased != 0 {
		start = 0
	}
	m.region = &mem.Region{Space: space, Start: start, Len: wr.Compare, Access: wr.Access, Pages: pages,
		PageShift: shift, FirstOff: first}
	m.key = wr.RKey
	s.name(m)
	return transport.ReasonNone
}

// pageList returns the page list of REG_MR, which stands in the request or in
// memory of the client; nil where it is not to be had.
func (q *QP) pageList(wr *transport.SendWR) []uint64 {
	n := int(wr.Pages)
	list := wr.InlineData
	if wr.Flags&ib.Inline == 0 {
		if len(wr.SGE) != 1 || uint64(wr.SGE[0].Len) < 8*uint64(n) {
			return nil
		}
		r := q.LocalRegion(wr.SGE[0].LKey, wr.SGE[0].Addr, 8*uint64(n), 0)
		if r == nil {
			return nil
		}
		list = make([]byte, 8*n)
		q.s.lane.batch.Flush() // the list may have come by a READ
		if r.ReadV(wr.SGE[0].Addr, [][]byte{list}) != nil {
			return nil
		}
	}
	if len(list) < 8*n {
		return nil
	}
	pages := make([]uint64, n)
	for i := range pages {
		pages[i] = binary.LittleEndian.Uint64(list[8*i:])
	}
	return pages
}
