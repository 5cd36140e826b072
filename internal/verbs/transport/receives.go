// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
)

// receives are the receive requests that a responder holds: the one at hand, and those with a completion that waits for
// Commit.
type receives struct {
	*endpoint
	// wr is the request at hand: of the SEND in progress, or taken for a message that did not arrive whole and kept
	// for the next one. nil where there is none; the next three fields count while a message fills it.
	wr       *RecvWR
	capacity uint64     // bytes its list holds
	placed   uint64     // bytes placed, at most capacity
	at       listCursor // where the next byte goes
	// ring holds the completions from first on, count of them: their data may still fail to arrive.
	ring         []stagedRecv
	first, count uint32
}

// stagedRecv is a receive completion with data that may still fail to arrive.
type stagedRecv struct {
	wr *RecvWR
	c  Completion
}

// listCursor is a position in a receive request's scatter list.
type listCursor struct {
	i      int
	off    uint32
	region *mem.Region // of entry i, once it was looked up
}

// stageDepth bounds the receive completions that wait for Commit; when it is reached Handle flushes and delivers by
// itself.
const stageDepth = 64

// MaxFlush bounds the receive requests that one flush takes: the entries of the largest ring. A client that posts as
// fast as they are flushed gets no more; it reports what it posts (RecvPosted), and the next flush takes that.
const MaxFlush = 1 << 15

// full reports whether the burst at hand might find no room for its completion and an error.
func (v *receives) full() bool { return v.count >= stageDepth-2 }

// staged reports whether completions wait.
func (v *receives) staged() bool { return v.count != 0 }

// take makes sure that a receive request is at hand.
func (v *receives) take() bool {
	if v.wr == nil {
		v.wr = v.queues.TakeRecv()
	}
	return v.wr != nil
}

// open starts a message into the request at hand.
func (v *receives) open() {
	v.placed, v.capacity, v.at = 0, 0, listCursor{}
	for i := range v.wr.SGE {
		v.capacity += uint64(v.wr.SGE[i].Len)
	}
	v.capacity = min(v.capacity, ib.MaxMessage) // which ByteLen can express
}

// entry moves the cursor to the entry that the next byte belongs to, and finds its memory; nil where the list is at
// fault.
func (v *receives) entry() *ib.SGE {
	for {
		g := &v.wr.SGE[v.at.i]
		if v.at.off == g.Len {
			v.at = listCursor{i: v.at.i + 1}
			continue
		}
		if v.at.region == nil {
			if v.at.region = v.regions.LocalRegion(g.LKey, g.Addr, uint64(g.Len), ib.LocalWrite); v.at.region == nil {
				return nil
			}
		}
		return g
	}
}

// scatter places n bytes of src, from offset from, at the cursor. bad reports that the request's own list is at fault.
func (v *receives) scatter(o mem.Owner, b *mem.Batch, src *mem.Payload, from, n int) (res mem.Result, bad bool) {
	for n > 0 {
		g := v.entry()
		if g == nil {
			return mem.DestFault, true
		}
		c := min(n, int(g.Len-v.at.off))
		if res := b.Put(o, v.at.region, g.Addr+uint64(v.at.off), src, from, c); res != mem.OK {
			return res, res == mem.DestFault
		}
		v.at.off += uint32(c)
		from, n = from+c, n-c
	}
	return mem.OK, false
}

// skip moves the cursor over n bytes without writing them; bad reports that the request's own list is at fault.
func (v *receives) skip(n int) (bad bool) {
	for n > 0 {
		g := v.entry()
		if g == nil {
			return true
		}
		c := min(n, int(g.Len-v.at.off))
		v.at.off += uint32(c)
		n -= c
	}
	return false
}

// stage appends a completion, which the caller fills in. Handle keeps room for the one of the burst at hand and for
// one error.
func (v *receives) stage(wr *RecvWR) *Completion {
	st := &v.ring[(v.first+v.count)%stageDepth]
	v.count++
	st.wr = wr
	return &st.c
}

// received stages the completion of the request at hand and returns it.
func (v *receives) received(in *inbound, op ib.WCOp, n uint64) *Completion {
	c := v.stage(v.wr)
	*c = Completion{Op: op, ByteLen: uint32(n), Solicited: in.SE}
	switch {
	case in.info.Ext&ib.ExtImm != 0:
		c.Flags, c.Imm = ib.WCWithImm, in.Imm
	case in.info.Ext&ib.ExtIETH != 0:
		c.Flags, c.Imm = ib.WCWithInv, uint32(in.InvKey)
	}
	v.wr = nil
	return c
}

// fail stages the request at hand with an error.
func (v *receives) fail(status ib.Status, reason uint32) {
	wr := v.wr
	v.wr = nil
	*v.stage(wr) = Completion{Op: ib.WCRecv, Status: status, VendorErr: reason}
}

// failStaged turns what is staged into errors, since a copy failed and which one is not known. If the data of a SEND
// failed (sent), the receive request of the oldest SEND reports it; all others are flushed. It returns whether one
// reports it.
func (v *receives) failStaged(sent bool) (reported bool) {
	for i := range v.count {
		st := &v.ring[(v.first+i)%stageDepth]
		status := ib.WRFlushErr
		if sent && !reported && st.c.Op == ib.WCRecv {
			status, reported = ib.LocProtErr, true
		}
		st.c = Completion{Op: ib.WCRecv, Status: status, VendorErr: ReasonPlacement}
	}
	return reported
}

// deliver makes what is staged visible.
func (v *receives) deliver() {
	for ; v.count > 0; v.count-- {
		st := &v.ring[v.first%stageDepth]
		v.first++
		wr := st.wr
		st.wr = nil
		v.queues.RecvDone(wr, &st.c)
	}
	v.first = 0 // the same few entries again: they are in the cache
}

// flush completes the request at hand and, of a queue of its own, every request as flushed.
func (v *receives) flush() {
	v.end(Completion{Op: ib.WCRecv, Status: ib.WRFlushErr})
}

// discard returns every request without a completion.
func (v *receives) discard() {
	for ; v.count > 0; v.count-- {
		st := &v.ring[v.first%stageDepth]
		v.first++
		v.comp = Completion{Discard: true}
		v.queues.RecvDone(st.wr, &v.comp)
		st.wr = nil
	}
	v.end(Completion{Discard: true})
}

// end completes what is not staged with c.
func (v *receives) end(c Completion) {
	if v.wr != nil {
		wr := v.wr
		v.wr = nil
		v.comp = c
		v.queues.RecvDone(wr, &v.comp)
	}
	if v.cfg.SRQ {
		return
	}
	for range MaxFlush {
		wr := v.queues.TakeRecv()
		if wr == nil {
			return
		}
		v.comp = c
		v.queues.RecvDone(wr, &v.comp)
	}
}
