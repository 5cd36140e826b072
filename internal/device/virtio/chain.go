// SPDX-License-Identifier: Apache-2.0

package virtio

import (
	"math/bits"

	"weft/internal/proto/abi"
)

// desc is a private copy of one descriptor.
type desc struct {
	addr  uint64
	len   uint32
	flags uint16
	next  uint16
}

// descriptor copies entry i of a table; i is inside.
func descriptor(table []byte, i uint32) desc {
	lo := load64(table, i*abi.VringDescSize)
	hi := load64(table, i*abi.VringDescSize+8)
	return desc{addr: lo, len: uint32(hi), flags: uint16(hi >> 32), next: uint16(hi >> 48)}
}

// Chain is one element as pieces of shared memory, readable ones first. The
// slices are reused by the next Pop into the same Chain.
type Chain struct {
	Head              uint16
	Read, Write       [][]byte
	ReadLen, WriteLen int

	at  []uint64 // GPA of each piece of Write, for log
	log Log
	end uint64 // GPA behind the last readable byte, in mem
	mem Memory
}

func (c *Chain) reset(head uint16, m Memory, log Log) {
	c.Head, c.Read, c.Write, c.ReadLen, c.WriteLen, c.at = head, c.Read[:0], c.Write[:0], 0, 0, c.at[:0]
	c.mem, c.log, c.end = m, log, 0
}

// Pop takes the next element, however it is framed. ok is false where there is
// none.
func (q *Queue) Pop(c *Chain) (ok bool, err error) {
	if q.lastAvail == q.availIdx || q.fault != FaultNone {
		if n, err := q.Avail(); n == 0 {
			return false, err
		}
	}
	head, err := q.head()
	if err != nil {
		return false, err
	}
	if err := q.walk(head, descriptor(q.desc, uint32(head)), c, q.most); err != nil {
		return false, err
	}
	q.lastAvail++
	return true, nil
}

// walk collects the pieces of the element that begins with descriptor d. It reads each descriptor once.
// most bounds the descriptors and the pieces.
func (q *Queue) walk(head uint16, d desc, c *Chain, most int) error {
	c.reset(head, q.mem, q.log)
	table, size, indirect := q.desc, q.num, false
	for n, all := uint32(1), 1; ; n, all = n+1, all+1 {
		if d.flags&abi.DescFlagIndirect != 0 {
			// A chain may end in a table, a table holds no table and is the
			// end; its write flag means nothing (virtio 1.x, 2.7.5.3).
			if indirect || d.flags&abi.DescFlagNext != 0 {
				return q.fail(FaultIndirect)
			}
			t, f := q.scratch.indirect(q.mem, d)
			if f != FaultNone {
				return q.fail(f)
			}
			table, size, indirect, n = t, uint32(len(t)/abi.VringDescSize), true, 0
			d = descriptor(table, 0)
			continue
		}
		if f := c.add(q.mem, d, most); f != FaultNone {
			return q.fail(f)
		}
		if d.flags&abi.DescFlagNext == 0 {
			return nil
		}
		if uint32(d.next) >= size {
			return q.fail(FaultNext)
		}
		if n+1 > size {
			return q.fail(FaultLoop)
		}
		if all == most {
			return q.fail(FaultLength)
		}
		d = descriptor(table, uint32(d.next))
	}
}

// indirect returns a private copy of an indirect table, which may lie at any
// alignment and across regions. It is valid until the next.
func (s *Scratch) indirect(m Memory, d desc) ([]byte, Fault) {
	if d.len == 0 || d.len%abi.VringDescSize != 0 || d.len > maxIndirect*abi.VringDescSize {
		return nil, FaultIndirect
	}
	if uint64(cap(s.table)) < uint64(d.len) {
		s.table = make([]byte, 1<<bits.Len32(d.len-1))
	}
	t := s.table[:d.len]
	for done := uint64(0); done < uint64(d.len); {
		b := m.Prefix(d.addr+done, uint64(d.len)-done)
		if len(b) == 0 {
			return nil, FaultAddress
		}
		done += uint64(copy(t[done:], b))
	}
	return t, FaultNone
}

// add appends the pieces of one buffer.
func (c *Chain) add(m Memory, d desc, most int) Fault {
	list, total := &c.Read, &c.ReadLen
	write := d.flags&abi.DescFlagWrite != 0
	if write {
		list, total = &c.Write, &c.WriteLen
	} else if len(c.Write) > 0 {
		return FaultDirection // readable after writable
	}
	if d.addr+uint64(d.len) < d.addr {
		return FaultAddress
	}
	for addr, left := d.addr, uint64(d.len); left > 0; {
		b := m.Prefix(addr, left)
		if len(b) == 0 {
			return FaultAddress
		}
		if len(c.Read)+len(c.Write) == most || *total > 1<<32 {
			return FaultLength
		}
		*list = append(*list, b)
		if !write {
			c.end = addr + uint64(len(b))
		} else if c.log != nil {
			c.at = append(c.at, addr)
		}
		*total += len(b)
		addr, left = addr+uint64(len(b)), left-uint64(len(b))
	}
	return FaultNone
}

// ReadAt copies the readable bytes from offset off on into p and returns how
// many there were.
func (c *Chain) ReadAt(p []byte, off int) (n int) {
	for _, s := range c.Read {
		if off >= len(s) {
			off -= len(s)
			continue
		}
		n += copy(p[n:], s[off:])
		off = 0
		if n == len(p) {
			break
		}
	}
	return n
}

// ReadBehind fills p with the guest memory directly behind the last readable byte, which is no part of
// the element. It returns false if that memory and the last readable byte are not in one region.
func (c *Chain) ReadBehind(p []byte) bool {
	if c.ReadLen == 0 {
		return false
	}
	b := c.mem.Prefix(c.end-1, uint64(len(p))+1)
	return len(b) == len(p)+1 && copy(p, b[1:]) == len(p)
}

// WriteAt copies p to the writable bytes from offset off on and returns how
// many fit.
func (c *Chain) WriteAt(p []byte, off int) (n int) {
	for i, s := range c.Write {
		if off >= len(s) {
			off -= len(s)
			continue
		}
		k := copy(s[off:], p[n:])
		if c.log != nil {
			c.log.Dirty(c.at[i]+uint64(off), uint64(k))
		}
		n += k
		off = 0
		if n == len(p) {
			break
		}
	}
	return n
}
