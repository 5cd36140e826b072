// SPDX-License-Identifier: Apache-2.0

package virtio

import (
	"encoding/binary"

	"weft/internal/proto/abi"
)

// Fields of a packed ring (virtio 1.x, 2.8.13 and 2.8.14).
const (
	packedID    = 12 // of a descriptor, where a split one has its flags
	packedAvail = 1 << 7
	packedUsed  = 1 << 15

	eventEnable  = 0
	eventDisable = 1
	eventDesc    = 2 // at the position named
	eventFlags   = 3
	eventSize    = 4 // 0 position u16, 2 flags u16
)

// Position is a place in a packed ring: the index in the low 15 bits, the wrap
// counter above.
type Position uint16

// Start is where a packed ring begins.
const Start Position = 1 << 15

func position(idx uint16, wrap bool) Position {
	if wrap {
		return Position(idx) | 1<<15
	}
	return Position(idx)
}

func (p Position) index() uint16 { return uint16(p) & 0x7fff }
func (p Position) wrap() bool    { return p>>15 != 0 }

// Packed is the device's side of one packed ring. Heads are the buffer identifiers of the driver.
// Elements must be used in the order in which they were popped.
//
// Current vhost-user front-ends restart a packed ring at its beginning if the back-end disappeared
// before it was queried for its state. So the device stores its position in its event structure, which
// drivers read only together with flags that select it. NewPacked reads the position from there if it
// resumes at the start and the ring shows that it has been used. A driver that forges it breaks only
// its own ring.
type Packed struct {
	mem            Memory
	desc           []byte
	driver, device []byte
	descAt, devAt  uint64
	num            uint16
	eventIdx       bool
	most           int
	log            Log
	scratch        *Scratch

	next Position // to take
	used Position // to use
	told Position // used, as the driver sees it
	// Invariant: out descriptors are taken and not used, in chains elements;
	// descs of the element with each identifier, 0 where it is not out.
	out, chains uint32
	descs       []uint16
	// The first entry of a batch is written last, and makes the whole batch visible.
	staged    int
	firstAt   uint32
	firstWord uint32
	event     uint16 // flags of the device's event structure
	signalled bool
	fault     Fault
}

// NewPacked checks the addresses of a packed ring and returns it. An error is
// a Fault.
func NewPacked(m Memory, c Config) (*Packed, error) {
	q := &Packed{mem: m, num: uint16(c.Num), eventIdx: c.EventIdx, most: c.most(), log: c.Log, scratch: c.Scratch,
		descAt: c.Desc, devAt: c.Device}
	if err := q.place(c); err != nil {
		return nil, err
	}
	if q.scratch == nil {
		q.scratch = &Scratch{}
	}
	q.descs = make([]uint16, c.Num)
	at := Position(c.Base)
	if c.Base>>16 != 0 {
		at = Position(c.Base >> 16) // what was taken but not used is to be taken again
	}
	if c.Resume && at == Start {
		at = q.left()
	}
	if at.index() >= q.num {
		return nil, FaultHead
	}
	q.next, q.used, q.told = at, at, at
	q.storeEvent(at)
	return q, nil
}

// place finds the areas of the ring, each inside one region of memory.
func (q *Packed) place(c Config) error {
	if c.Num == 0 || c.Num > abi.MaxRingNum {
		return FaultSize
	}
	for _, t := range []table{
		{&q.desc, c.Desc, abi.VringDescSize * uint64(c.Num), 16, 8},
		{&q.driver, c.Driver, eventSize, 4, 4},
		{&q.device, c.Device, eventSize, 4, 4},
	} {
		if err := t.place(q.mem); err != nil {
			return err
		}
	}
	return nil
}

// left returns where a device left the ring.
func (q *Packed) left() Position {
	touched := false
	for i := range uint32(q.num) {
		if load32(q.desc, i*abi.VringDescSize+packedID)>>16&packedUsed != 0 {
			touched = true
			break
		}
	}
	at := Position(load32(q.device, 0))
	if !touched || at.index() >= q.num {
		return Start
	}
	// The device may have died after the entry and before the position.
	for range q.num {
		flags := load32(q.desc, uint32(at.index())*abi.VringDescSize+packedID) >> 16
		if flags&packedAvail != 0 != at.wrap() || flags&packedUsed != 0 != at.wrap() {
			break
		}
		at = q.after(at, 1)
	}
	return at
}

// after returns the position n further on; n is not beyond the size.
func (q *Packed) after(p Position, n uint32) Position {
	i, wrap := uint32(p.index())+n, p.wrap()
	if i >= uint32(q.num) {
		i, wrap = i-uint32(q.num), !wrap
	}
	return position(uint16(i), wrap)
}

// storeEvent writes the device's event structure; a full barrier.
func (q *Packed) storeEvent(at Position) {
	store32(q.device, 0, uint32(at)|uint32(q.event)<<16)
	if q.log != nil {
		q.log.Dirty(q.devAt, eventSize)
	}
}

// Err returns the Fault that broke the ring, nil while it works.
func (q *Packed) Err() error {
	if q.fault == FaultNone {
		return nil
	}
	return q.fault
}

func (q *Packed) fail(f Fault) error {
	q.fault = f
	return f
}

// load copies a descriptor and its identifier: the half with the flags first.
func (q *Packed) load(i uint16) (d desc, id uint16) {
	at := uint32(i) * abi.VringDescSize
	hi := load64(q.desc, at+8)
	return desc{addr: load64(q.desc, at), len: uint32(hi), flags: uint16(hi >> 48)}, uint16(hi >> 32)
}

// available reports whether flags are those of a descriptor that the driver
// made available on this lap.
func (q *Packed) available(flags uint16) bool {
	wrap := q.next.wrap()
	return flags&packedAvail != 0 == wrap && flags&packedUsed != 0 != wrap
}

// Pop implements Ring.
func (q *Packed) Pop(c *Chain) (ok bool, err error) {
	if q.fault != FaultNone {
		return false, q.fault
	}
	d, id := q.load(q.next.index())
	if !q.available(d.flags) {
		return false, nil
	}
	c.reset(0, q.mem, q.log)
	n, at := uint32(1), q.next
	for {
		f := FaultNone
		switch {
		case d.flags&abi.DescFlagIndirect == 0:
			f = c.add(q.mem, d, q.most)
		case d.flags&abi.DescFlagNext != 0:
			f = FaultIndirect
		default:
			f = q.table(c, d)
		}
		if f != FaultNone {
			return false, q.fail(f)
		}
		if d.flags&abi.DescFlagNext == 0 {
			break
		}
		if n == uint32(q.num) {
			return false, q.fail(FaultLoop)
		}
		if int(n) == q.most {
			return false, q.fail(FaultLength)
		}
		n, at = n+1, q.after(at, 1)
		d, id = q.load(at.index())
	}
	if q.out+n > uint32(q.num) {
		return false, q.fail(FaultIndexJump)
	}
	if id >= q.num || q.descs[id] != 0 {
		return false, q.fail(FaultHead)
	}
	c.Head = id
	q.descs[id] = uint16(n)
	q.out, q.chains = q.out+n, q.chains+1
	q.next = q.after(at, 1)
	return true, nil
}

// table collects the pieces of an indirect table. Its entries are consecutive; only their write flags
// are used.
func (q *Packed) table(c *Chain, d desc) Fault {
	t, f := q.scratch.indirect(q.mem, d)
	if f != FaultNone {
		return f
	}
	n := uint32(len(t) / abi.VringDescSize)
	if int(n) > q.most {
		return FaultLength
	}
	for i := range n {
		e := descriptor(t, i)
		e.flags = e.next // where a packed ring has them
		if e.flags&abi.DescFlagIndirect != 0 {
			return FaultIndirect
		}
		if f := c.add(q.mem, e, q.most); f != FaultNone {
			return f
		}
	}
	return FaultNone
}

// PushUsed implements Ring. An element that is not out is not given back
// twice.
func (q *Packed) PushUsed(id uint16, n uint32) {
	if id >= q.num || q.descs[id] == 0 {
		return
	}
	var flags uint32
	if q.used.wrap() {
		flags = packedAvail | packedUsed
	}
	if n > 0 {
		flags |= abi.DescFlagWrite
	}
	at := uint32(q.used.index()) * abi.VringDescSize
	binary.LittleEndian.PutUint32(q.desc[at+abi.VringDescLen:], n)
	word := uint32(id) | flags<<16
	if q.staged == 0 {
		q.firstAt, q.firstWord = at, word
	} else {
		q.storeEntry(at, word)
	}
	q.staged++
	count := uint32(q.descs[id])
	q.descs[id] = 0
	q.out, q.chains = q.out-count, q.chains-1
	q.used = q.after(q.used, count)
}

func (q *Packed) storeEntry(at, word uint32) {
	store32(q.desc, at+packedID, word)
	if q.log != nil {
		q.log.Dirty(q.descAt+uint64(at), abi.VringDescSize)
	}
}

// Publish implements Ring.
func (q *Packed) Publish() (notify bool) {
	if q.staged == 0 {
		return false
	}
	q.staged = 0
	q.storeEntry(q.firstAt, q.firstWord)
	old := q.told
	q.told = q.used
	if q.event == eventDisable {
		q.storeEvent(q.used)
	}
	first := !q.signalled // no earlier position to compare with
	q.signalled = true
	w := load32(q.driver, 0)
	switch flags := w >> 16 & eventFlags; {
	case flags == eventDisable:
		return false
	case flags != eventDesc || !q.eventIdx || first:
		return true
	}
	event, now, before := Position(w).index(), q.used.index(), old.index()
	if Position(w).wrap() != q.used.wrap() {
		event -= q.num
	}
	if now <= before {
		before -= q.num
	}
	return now-event-1 < now-before
}

// EnableKick implements Kicks.
func (q *Packed) EnableKick() (pending bool, err error) {
	if q.fault != FaultNone {
		return false, q.fault
	}
	q.event = eventEnable
	if q.eventIdx {
		q.event = eventDesc
	}
	q.storeEvent(q.next) // full barrier between the request and the look
	return q.available(uint16(load32(q.desc, uint32(q.next.index())*abi.VringDescSize+packedID) >> 16)), nil
}

// DisableKick implements Kicks.
func (q *Packed) DisableKick() {
	if q.event != eventDisable {
		q.event = eventDisable
		q.storeEvent(q.used)
	}
}

// State implements Ring: the position of the first element that is not used
// yet, in both halves.
func (q *Packed) State() uint32 { return uint32(q.used) | uint32(q.used)<<16 }

// Outstanding returns how many elements are taken and not used.
func (q *Packed) Outstanding() int { return int(q.chains) }
