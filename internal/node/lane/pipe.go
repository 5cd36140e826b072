// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"sync/atomic"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca"
)

const (
	pipeSlots = 2048
	pipeSegs  = 4 // pieces of one burst's gather list; longer ones are copied
	pipeBytes = 4 << 20
)

// transfer is one burst on its way to a queue pair of another lane. Pieces of regions go by reference where the
// sender's request stays outstanding until the other lane has answered. The payload of an unreliable service, its
// requests complete at once, is copied, and so are bytes at hand, which the sending lane is about to reuse.
type transfer struct {
	run  pkt.Burst
	from *hca.QP // the owner of the memory with the payload; nil for bytes
	segs [pipeSegs]mem.Seg
	path ib.Path // of a burst from a link, which reuses its own
	held uint32  // bytes of the pipe's buffer
}

// pipe carries bursts from one lane to one other: a ring with a single writer and a single reader, so that neither
// takes a lock.
type pipe struct {
	slots [pipeSlots]transfer
	buf   []byte
	// The reader moves head, the writer tail; freed is the number of buffer bytes released so far, used those allocated
	// so far.
	head, tail atomic.Uint32
	freed      atomic.Uint64
	used       uint64
	gather     mem.Batch // of the writer, as dst is: both allocate once
	dst        [1][]byte
	handled    uint32 // of the reader: slots with a burst that it has handled but not released
}

func newPipe() *pipe { return &pipe{buf: make([]byte, pipeBytes)} }

// room reports whether bursts with n bytes at hand in all surely fit, whatever their number up to half the slots.
func (p *pipe) room(n int) bool {
	return p.tail.Load()-p.head.Load() <= pipeSlots/2 && p.used+2*uint64(n)-p.freed.Load() <= pipeBytes
}

// put copies a burst in; false where there is no room, or the payload cannot be read: then r.Fault is set.
func (p *pipe) put(r *pkt.Burst, from *hca.QP) bool {
	tail := p.tail.Load()
	if tail-p.head.Load() == pipeSlots {
		return false
	}
	t := &p.slots[tail%pipeSlots]
	t.run, t.from, t.held = *r, from, 0
	if !p.payload(t, &r.Data) {
		r.Fault = t.run.Fault
		return false
	}
	if from == nil && r.Path != nil {
		t.path = *r.Path
		t.run.Path = &t.path
	}
	p.tail.Store(tail + 1)
	return true
}

// payload fills in the payload of t from d: references where the pieces are regions and few enough, else a copy.
func (p *pipe) payload(t *transfer, d *mem.Payload) bool {
	if d.Len == 0 {
		t.run.Data = mem.Payload{}
		return true
	}
	refs := d.Segs != nil && len(d.Segs) <= pipeSegs && t.run.Opcode.Service() == ib.ServiceRC
	for i := range d.Segs {
		refs = refs && d.Segs[i].Region != nil
	}
	if refs {
		n := copy(t.segs[:], d.Segs)
		t.run.Data.Segs = t.segs[:n]
		return true
	}
	t.from = nil
	n := uint64(d.Len)
	at := p.used % pipeBytes
	skip := uint64(0)
	if at+n > pipeBytes {
		skip = pipeBytes - at // a payload stays in one piece
		at = 0
	}
	if n > pipeBytes || p.used+skip+n-p.freed.Load() > pipeBytes {
		return false
	}
	dst := p.buf[at : at+n : at+n]
	p.dst[0] = dst
	if p.gather.Gather(p.dst[:], d, 0) != mem.OK {
		t.run.Fault = true
		return false
	}
	p.used += skip + n
	t.held = uint32(skip + n)
	t.run.Data = mem.BytesPayload(dst)
	return true
}

// each passes every waiting burst to fn. They stay valid until release.
func (p *pipe) each(fn func(t *transfer)) bool {
	head, tail := p.head.Load(), p.tail.Load()
	for i := head + p.handled; i != tail; i++ {
		p.handled++
		fn(&p.slots[i%pipeSlots])
	}
	return p.handled != 0
}

// release frees what each passed to its function.
func (p *pipe) release() {
	head := p.head.Load()
	freed := p.freed.Load()
	for i := range p.handled {
		t := &p.slots[(head+i)%pipeSlots]
		freed += uint64(t.held)
		t.from, t.run = nil, pkt.Burst{}
	}
	p.freed.Store(freed)
	p.head.Store(head + p.handled)
	p.handled = 0
}
