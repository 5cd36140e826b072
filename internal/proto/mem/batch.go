// SPDX-License-Identifier: Apache-2.0

package mem

// Owner is notified of a failed copy.
type Owner interface {
	// PlacementFailed reports that a Put of this owner was not executed
	// because the destination vanished. Later Puts of the batch were.
	PlacementFailed()
}

// maxPending bounds the writes a batch holds back: the number of segments one
// vectored system call takes.
const maxPending = 1024

// maxStage bounds the bytes of one small copy that is staged until Flush, and
// scratchSize those of all of them.
const (
	maxStage    = 4096
	scratchSize = 256 << 10
)

// Batch executes copies into regions. Copies between mapped memory happen at
// once; small writes into memory that only a system call reaches are held back
// and executed together by Flush, which costs a quarter of a call each.
//
// Contract: bytes handed to Put stay unchanged until Flush; nothing that
// depends on a copy (a completion, an acknowledgement, a READ of the same
// memory) may become visible before Flush has returned. A Batch belongs to one
// lane and is not safe for concurrent use.
type Batch struct {
	space   Space // of all pending writes
	writes  []Write
	owners  []Owner
	scratch []byte
	used    int
	bounce  []byte
	one     [1][]byte
}

// NewBatch returns an empty batch. bounce is the number of bytes that a copy
// between two processes moves per step.
func NewBatch(bounce int) *Batch {
	return &Batch{
		writes:  make([]Write, 0, maxPending),
		owners:  make([]Owner, 0, maxPending),
		scratch: make([]byte, scratchSize),
		bounce:  make([]byte, bounce),
	}
}

// Scratch returns n bytes (at most 4096) that stay valid and unchanged until
// the flush after next use: a place for headers that Put writes out.
func (b *Batch) Scratch(n int) []byte {
	if b.used+n > len(b.scratch) {
		b.Flush()
	}
	s := b.scratch[b.used : b.used+n : b.used+n]
	b.used += n
	return s
}

// Result is the side of a copy that failed.
type Result uint8

// Results of Put and Gather.
const (
	OK          Result = iota
	SourceFault        // the payload could not be read
	DestFault          // the destination could not be written
)

// Put copies n bytes of src, from offset off of the payload, to the I/O virtual address addr of dst.
// The destination range must have passed Allows. o is notified of a failure that occurs at Flush. No
// memory is retained except the payload's own bytes.
func (b *Batch) Put(o Owner, dst *Region, addr uint64, src *Payload, off, n int) Result {
	if n == 0 || src.Lasting && src.Segs == nil && dst.keep(addr, src.Bytes[off:off+n]) {
		return OK
	}
	if v := dst.View(addr, uint64(n)); v != nil {
		if src.Segs == nil {
			copy(v, src.Bytes[off:])
			return OK
		}
		b.one[0] = v
		return b.Gather(b.one[:], src, off)
	}
	if src.Segs == nil {
		return b.write(o, dst, addr, src.Bytes[off:off+n])
	}
	return b.putList(o, dst, addr, src, off, n)
}

func (b *Batch) putList(o Owner, dst *Region, addr uint64, src *Payload, off, n int) Result {
	skip := src.Off + uint64(off)
	for i := range src.Segs {
		s := &src.Segs[i]
		if skip >= s.Len {
			skip -= s.Len
			continue
		}
		c := min(n, int(s.Len-skip))
		if r := b.putSeg(o, dst, addr, s, skip, c); r != OK {
			return r
		}
		addr, n, skip = addr+uint64(c), n-c, 0
		if n == 0 {
			return OK
		}
	}
	return SourceFault
}

func (b *Batch) putSeg(o Owner, dst *Region, addr uint64, s *Seg, off uint64, n int) Result {
	if s.Region == nil {
		return b.write(o, dst, addr, s.Bytes[off:off+uint64(n)])
	}
	for n > 0 {
		buf := s.Region.chunk(s.Addr+off, uint64(n)) // of a list of pages: those that are consecutive
		switch {
		case buf != nil:
		case n <= maxStage:
			if buf = b.Scratch(n); !b.fetch(s, off, buf) {
				return SourceFault
			}
		default:
			b.Flush() // the bounce buffer is reused
			if buf = b.bounce[:min(n, len(b.bounce))]; !b.fetch(s, off, buf) {
				return SourceFault
			}
		}
		if r := b.write(o, dst, addr, buf); r != OK {
			return r
		}
		off, addr, n = off+uint64(len(buf)), addr+uint64(len(buf)), n-len(buf)
	}
	return OK
}

// fetch reads the bytes of a segment from an offset on by a call.
func (b *Batch) fetch(s *Seg, off uint64, to []byte) bool {
	b.one[0] = to
	return s.Region.ReadV(s.Addr+off, b.one[:]) == nil
}

// write queues or executes one write of bytes that stay valid until Flush.
func (b *Batch) write(o Owner, dst *Region, addr uint64, p []byte) Result {
	for len(p) > 0 {
		if dst.revoked.Load() {
			return DestFault
		}
		a, c := dst.translate(addr, uint64(len(p)))
		if v := dst.Space.View(a, c); v != nil {
			copy(v, p[:c])
		} else {
			if b.space != dst.Space || len(b.writes) == maxPending {
				b.flush(b.tell) // p may lie in scratch: that is not free yet
				b.space = dst.Space
			}
			b.writes = append(b.writes, Write{Addr: a, Data: p[:c]})
			b.owners = append(b.owners, o)
			if c > maxStage {
				// Large enough to pay for its call; and the source may be the
				// bounce buffer.
				if b.flushLast() != nil {
					return DestFault
				}
			}
		}
		addr, p = addr+c, p[c:]
	}
	return OK
}

// flushLast executes everything pending and returns the error of the newest write; its owner is not
// notified.
func (b *Batch) flushLast() error {
	last := len(b.writes) - 1
	var failed error
	b.flush(func(i int) {
		if i == last {
			failed = ErrFault
			return
		}
		b.owners[i].PlacementFailed()
	})
	return failed
}

// Flush executes every pending write and notifies the owners of those that failed. The scratch space
// is free again.
func (b *Batch) Flush() {
	b.used = 0
	if len(b.writes) != 0 {
		b.flush(b.tell)
	}
}

func (b *Batch) tell(i int) { b.owners[i].PlacementFailed() }

func (b *Batch) flush(fail func(i int)) {
	for i := 0; i < len(b.writes); {
		n, err := b.space.WriteV(b.writes[i:])
		i += n
		if err == nil {
			break
		}
		fail(i)
		i++ // one bad buffer costs only itself
	}
	clear(b.writes)
	clear(b.owners)
	b.writes, b.owners, b.space = b.writes[:0], b.owners[:0], nil
}

// CopyOut fills dst with the start of a payload.
func CopyOut(dst []byte, src *Payload) Result {
	var b Batch
	b.one[0] = dst
	return b.Gather(b.one[:], src, 0)
}

// Fetch returns a copy of the first n bytes of a payload (at most 4096), which is
// good for as long as Scratch's are.
func (b *Batch) Fetch(src *Payload, n int) ([]byte, Result) {
	s := b.Scratch(n)
	b.one[0] = s
	return s, b.Gather(b.one[:], src, 0)
}

// Gather fills the slices of dst, one after the other, from offset off of the
// payload. It is how a link collects payload into packets.
func (b *Batch) Gather(dst [][]byte, src *Payload, off int) Result {
	if src.Segs == nil {
		p := src.Bytes[off:]
		for _, d := range dst {
			p = p[copy(d, p):]
		}
		return OK
	}
	skip, i := src.Off+uint64(off), 0
	for i < len(src.Segs) && skip >= src.Segs[i].Len {
		skip -= src.Segs[i].Len
		i++
	}
	// The usual case: everything comes from one segment, in one call.
	total := 0
	for _, d := range dst {
		total += len(d)
	}
	if i < len(src.Segs) && src.Segs[i].Len-skip >= uint64(total) {
		return src.Segs[i].read(skip, dst, total)
	}
	for _, d := range dst {
		for len(d) > 0 {
			if i == len(src.Segs) {
				return SourceFault
			}
			s := &src.Segs[i]
			c := int(min(uint64(len(d)), s.Len-skip))
			b.one[0] = d[:c]
			if r := s.read(skip, b.one[:], c); r != OK {
				return r
			}
			d, skip = d[c:], skip+uint64(c)
			if skip == s.Len {
				i, skip = i+1, 0
			}
		}
	}
	return OK
}

// read fills dst, total bytes in all, from offset off of the segment.
func (s *Seg) read(off uint64, dst [][]byte, total int) Result {
	p := s.Bytes
	if s.Region != nil {
		if p = s.Region.View(s.Addr+off, uint64(total)); p == nil {
			if total == 0 {
				return OK
			}
			if s.Region.ReadV(s.Addr+off, dst) != nil {
				return SourceFault
			}
			return OK
		}
	} else {
		p = p[off:]
	}
	for _, d := range dst {
		p = p[copy(d, p):]
	}
	return OK
}
