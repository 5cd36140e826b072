// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// shelfBytes is the payload that a shelf holds, in packets of the path MTU, and
// shelfRuns in how many runs: the window of a peer like this one.
const (
	shelfBytes = defaultWindow
	shelfRuns  = 256
)

// shelf keeps what arrives behind a gap until the gap is filled, and then it is
// handled as if it had arrived in order. Nothing of it is judged before that, and no
// memory but the shelf's is touched: what programs see, and in which order, is what
// they would see if it had been sent again.
type shelf struct {
	n     int
	runs  [shelfRuns]shelved // by PSN, all beyond ePSN; they may overlap
	buf   []byte             // the packet with PSN p stands in slot p modulo their number
	parts [2][]byte
	segs  [2]mem.Seg
	run   pkt.Burst
}

// shelved is a run on a shelf.
type shelved struct {
	wire.Headers
	count uint32
	len   int
}

// Shelves are what the queue pairs of a lane share. One takes a shelf when a packet is
// missing and gives it back when none is, so few are in use at a time.
type Shelves struct {
	free []*shelf
	left int
}

// NewShelves returns n shelves of 1 MiB, which are allocated when one is first needed.
func NewShelves(n int) *Shelves { return &Shelves{free: make([]*shelf, 0, n), left: n} }

// take returns an empty shelf; nil where all are in use.
func (s *Shelves) take() *shelf {
	if n := len(s.free); n > 0 {
		f := s.free[n-1]
		s.free = s.free[:n-1]
		return f
	}
	if s.left == 0 {
		return nil
	}
	s.left--
	return &shelf{buf: make([]byte, shelfBytes)}
}

// shelve keeps a run that arrived behind a gap, where there is room. What it does not
// keep comes again.
func (q *QP) shelve(r *pkt.Burst, i *ib.OpInfo, b *mem.Batch) {
	p := &q.rsp
	if q.cfg.Shelves == nil || p.rnrSent || !shape(r, i, q.mtu) {
		return
	}
	if p.shelf == nil {
		if p.shelf = q.cfg.Shelves.take(); p.shelf == nil {
			q.ctr.ShelfRefused += uint64(r.Count)
			return
		}
	}
	if !q.put(p.shelf, r, b) {
		q.ctr.ShelfRefused += uint64(r.Count)
	}
}

// put copies a run to the shelf; false where there is no room, or it cannot be read.
func (q *QP) put(f *shelf, r *pkt.Burst, b *mem.Batch) bool {
	end := r.PSN.Add(r.Count)
	// Slots of what was in order are read until Commit.
	if dist(end, q.rsp.safePSN) > shelfBytes/q.mtu {
		return false
	}
	at := 0
	for ; at < f.n && f.runs[at].PSN.Diff(r.PSN) <= 0; at++ {
		if e := &f.runs[at]; end.Diff(e.PSN.Add(e.count)) <= 0 {
			q.ctr.DuplicateRequest++
			return true
		}
	}
	joins := at > 0 && f.runs[at-1].precedes(r, q.mtu)
	if !joins && f.n == shelfRuns {
		return false
	}
	f.parts[0], f.parts[1] = f.slots(r.PSN, r.Data.Len, q.mtu)
	if b.Gather(f.parts[:], &r.Data, 0) != mem.OK {
		return false
	}
	q.ctr.Shelved += uint64(r.Count)
	if joins {
		f.runs[at-1].join(r)
		return true
	}
	copy(f.runs[at+1:f.n+1], f.runs[at:f.n])
	f.runs[at] = shelved{Headers: r.Headers, count: r.Count, len: r.Data.Len}
	f.n++
	return true
}

// slots returns where n bytes of payload from the packet psn on stand.
func (f *shelf) slots(psn ib.PSN, n int, mtu uint32) (a, b []byte) {
	from := int(uint32(psn) % (shelfBytes / mtu) * mtu)
	first := min(n, shelfBytes-from)
	return f.buf[from : from+first], f.buf[:n-first]
}

// precedes reports whether r goes on where the run ends, in the same message.
func (e *shelved) precedes(r *pkt.Burst, mtu uint32) bool {
	_, ok := e.Opcode.Join(r.Opcode)
	return ok && r.PSN == e.PSN.Add(e.count) && uint32(e.len) == e.count*mtu && !e.SE
}

// join appends r. It asks for an acknowledgement if either did: there is one for both.
func (e *shelved) join(r *pkt.Burst) {
	e.Opcode, _ = e.Opcode.Join(r.Opcode)
	e.SE, e.AckReq, e.Imm, e.InvKey = r.SE, e.AckReq || r.AckReq, r.Imm, r.InvKey
	e.count, e.len = e.count+r.Count, e.len+r.Data.Len
}

// unshelve handles what stands on the shelf and is in order now. Where a gap is left
// it is refused when more arrives behind it: the peer, which went back to the first gap,
// may be sending what fills this one.
func (q *QP) unshelve(b *mem.Batch) {
	p, f, at := &q.rsp, q.rsp.shelf, 0
	for at < f.n && f.runs[at].PSN.Diff(p.ePSN) <= 0 {
		e := &f.runs[at]
		at++
		if e.PSN.Add(e.count).Diff(p.ePSN) <= 0 {
			continue
		}
		if p.nstaged >= stageDepth-2 && !q.makeRoom(b) {
			break
		}
		r := &f.run
		*r = pkt.Burst{Headers: e.Headers, Count: e.count, MTU: q.mtu, Path: q.attr.Path}
		first, rest := f.slots(r.PSN, e.len, q.mtu)
		f.segs = [2]mem.Seg{{Bytes: first, Len: uint64(len(first))}, {Bytes: rest, Len: uint64(len(rest))}}
		r.Data = mem.ListPayload(f.segs[:], 0, e.len)
		q.inOrder(r, r.Opcode.Info(), b)
		if p.rnrSent {
			p.forget() // it comes again
		}
	}
	f.n = copy(f.runs[:], f.runs[min(at, f.n):f.n])
}

// forget empties the shelf.
func (p *responder) forget() {
	if p.shelf != nil {
		p.shelf.n = 0
	}
}

// returnShelf gives back an empty shelf.
// Preconditions: everything placed was flushed, some of it perhaps from there.
func (q *QP) returnShelf() {
	p := &q.rsp
	if p.shelf != nil && p.shelf.n == 0 {
		q.cfg.Shelves.free = append(q.cfg.Shelves.free, p.shelf)
		p.shelf = nil
	}
}
