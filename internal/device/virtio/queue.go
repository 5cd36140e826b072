// SPDX-License-Identifier: Apache-2.0

package virtio

import (
	"encoding/binary"
	"math/bits"

	"weft/internal/proto/abi"
)

// Config places a ring.
type Config struct {
	Num      uint32 // entries
	Desc     uint64 // descriptor table, or the descriptor ring of a packed one
	Driver   uint64 // available ring, or event structure, written by the driver
	Device   uint64 // used ring, or event structure, written by the device
	EventIdx bool   // VIRTIO_RING_F_EVENT_IDX was negotiated
	Packed   bool   // VIRTIO_F_RING_PACKED was negotiated: Open makes a Packed
	// Base is the position to start at, in vhost-user's form: of a split ring the index of the next
	// element to pop; of a packed ring its Position in the low half, and the position of the next
	// element to use in the high half, where zero means equal. Resume continues a ring that another
	// device used before. For a split ring the used index is then read from memory, once; where it
	// differs from Base it is used instead, because elements that were popped but not used must be
	// popped again. Without Resume the used index starts at Base. For a packed ring see Packed.
	Base   uint32
	Resume bool
	// Scratch is the memory in which Next and Peek gather elements of several pieces, and to which
	// indirect tables are copied; nil gives the queue its own.
	Scratch *Scratch
	// Log records what the device writes into guest memory through the ring; nil if it cannot be
	// requested. Elements from Next and Peek are not logged: a device that logs uses Pop.
	Log Log
	// MaxChain bounds descriptors and pieces of a chain that Pop takes; 0 is
	// the most there may be, which is enough for a list of pages.
	MaxChain int
}

// Scratch is memory in which elements are gathered, one at a time. The queues
// of one session share one, so that their number costs the node nothing.
type Scratch struct {
	chain Chain
	data  []byte
	table []byte
}

// Bounds for hostile drivers: maxIndirect entries of an indirect table; maxSegments descriptors, and
// as many pieces, of a chain that Pop returns, which may be a list of pages; maxPieces and maxElement
// bytes of an element that Next gathers, which no driver needs to cut more than twice. Empty
// descriptors count: they cost as much as others.
const (
	maxIndirect = 1024
	maxSegments = 4096
	maxPieces   = 64
	maxElement  = 4 << 10
)

// Queue is the device's side of one ring. All state that decides anything is
// private; shared memory gets copies.
type Queue struct {
	mem         Memory
	desc        []byte
	avail, used []byte
	mask        uint16
	num         uint32
	eventIdx    bool
	most        int
	noKick      uint16 // shadow of used.flags
	usedAt      uint64 // GPA of used
	log         Log

	lastAvail uint16 // next element to take
	availIdx  uint16 // the driver's index as last loaded
	usedIdx   uint16 // next used entry to write
	published uint16 // the used index the driver sees
	signalled bool   // a first publication has been announced
	fault     Fault

	scratch *Scratch
}

// New checks the addresses of a split ring and returns it. An error is a Fault.
func New(m Memory, c Config) (*Queue, error) {
	q := &Queue{mem: m, num: c.Num, mask: uint16(c.Num - 1), eventIdx: c.EventIdx, lastAvail: uint16(c.Base),
		scratch: c.Scratch,
		most:    c.most(), usedAt: c.Device, log: c.Log}
	if q.scratch == nil {
		q.scratch = &Scratch{}
	}
	if err := q.place(c); err != nil {
		return nil, err
	}
	if c.Resume {
		q.lastAvail = uint16(load32(q.used, abi.VringUsedFlags) >> 16)
	}
	q.availIdx, q.usedIdx, q.published = q.lastAvail, q.lastAvail, q.lastAvail
	q.storeUsed()
	return q, nil
}

// most is the bound of a chain.
func (c *Config) most() int {
	if c.MaxChain > 0 {
		return min(c.MaxChain, maxSegments)
	}
	return maxSegments
}

// table is one of the areas of a ring.
type table struct {
	view        *[]byte
	addr, size  uint64
	align, host uint64
}

// place finds an area, inside one region of memory.
func (t *table) place(m Memory) error {
	if t.addr%t.align != 0 {
		return FaultAlign
	}
	b := m.Prefix(t.addr, t.size)
	if uint64(len(b)) != t.size {
		return FaultRingMemory
	}
	if !aligned(b, uintptr(t.host)) {
		return FaultAlign
	}
	*t.view = b[:len(b):len(b)]
	return nil
}

// place finds the three tables, each inside one region of memory.
func (q *Queue) place(c Config) error {
	if c.Num == 0 || c.Num > abi.MaxRingNum || bits.OnesCount32(c.Num) != 1 {
		return FaultSize
	}
	event := uint64(0)
	if c.EventIdx {
		event = 2
	}
	n := uint64(c.Num)
	for _, t := range []table{
		{&q.desc, c.Desc, abi.VringDescSize * n, 16, 8},
		{&q.avail, c.Driver, abi.VringAvailRing + 2*n + event, 2, 2},
		{&q.used, c.Device, abi.VringUsedRing + abi.VringUsedElemSize*n + event, 4, 4},
	} {
		if err := t.place(q.mem); err != nil {
			return err
		}
	}
	return nil
}

// storeUsed publishes the shadow of used.flags and used.idx, which the device
// owns both.
func (q *Queue) storeUsed() {
	store32(q.used, abi.VringUsedFlags, uint32(q.noKick)|uint32(q.published)<<16)
	if q.log != nil {
		q.log.Dirty(q.usedAt, abi.VringUsedRing)
	}
}

// Err returns the Fault that broke the ring, nil while it works. A broken ring
// gives no more elements.
func (q *Queue) Err() error {
	if q.fault == FaultNone {
		return nil
	}
	return q.fault
}

func (q *Queue) fail(f Fault) error {
	q.fault = f
	return f
}

// Avail returns how many elements may be taken, having looked at the driver's
// index.
func (q *Queue) Avail() (int, error) {
	if q.fault != FaultNone {
		return 0, q.fault
	}
	q.availIdx = load16(q.avail, abi.VringAvailIdx)
	n := uint32(q.availIdx - q.lastAvail)
	// Invariant: what is out and what is available never exceed the ring.
	if n+uint32(q.lastAvail-q.usedIdx) > q.num {
		return 0, q.fail(FaultIndexJump)
	}
	return int(n), nil
}

// Elem is one element.
type Elem struct {
	Head uint16
	// Gathered reports that the element had several pieces and Data is scratch memory: private, and
	// valid until the next element is popped from any queue with the same Scratch. Otherwise Data is
	// shared memory of the driver: copy a value before any decision that depends on it.
	Gathered bool
	Data     []byte
}

// Next pops the next element, which must be readable as a whole, or writable as a whole if writable is
// set. ok is false if there is none. PushUsed returns the element to the driver. Next allocates only
// the first time that an element has several pieces.
func (q *Queue) Next(writable bool) (e Elem, ok bool, err error) {
	if e, ok, err = q.Peek(writable); ok {
		q.lastAvail++
	}
	return e, ok, err
}

// Peek is Next but leaves the element in the ring.
func (q *Queue) Peek(writable bool) (e Elem, ok bool, err error) {
	if q.lastAvail == q.availIdx || q.fault != FaultNone {
		if n, err := q.Avail(); n == 0 {
			return e, false, err
		}
	}
	head, err := q.head()
	if err != nil {
		return e, false, err
	}
	d := descriptor(q.desc, uint32(head))
	want := uint16(0)
	if writable {
		want = abi.DescFlagWrite
	}
	if d.flags&(abi.DescFlagNext|abi.DescFlagIndirect) == 0 {
		if d.flags&abi.DescFlagWrite != want {
			return e, false, q.fail(FaultDirection)
		}
		b := q.mem.Prefix(d.addr, uint64(d.len))
		if uint64(len(b)) == uint64(d.len) {
			return Elem{Head: head, Data: b}, true, nil
		}
	}
	data, err := q.collect(head, d, writable)
	return Elem{Head: head, Gathered: true, Data: data}, err == nil, err
}

// collect makes one piece of an element in several.
func (q *Queue) collect(head uint16, d desc, writable bool) ([]byte, error) {
	c := &q.scratch.chain
	if err := q.walk(head, d, c, maxPieces); err != nil {
		return nil, err
	}
	n := c.ReadLen
	if writable {
		n = c.WriteLen
	}
	if writable && len(c.Read) > 0 || !writable && len(c.Write) > 0 {
		return nil, q.fail(FaultDirection)
	}
	if n > maxElement {
		return nil, q.fail(FaultLength)
	}
	if n > len(q.scratch.data) {
		q.scratch.data = make([]byte, 1<<bits.Len(uint(n-1)))
	}
	data := q.scratch.data[:n:n]
	if writable {
		clear(data)
	} else {
		c.ReadAt(data, 0)
	}
	return data, nil
}

// head loads the head at lastAvail.
func (q *Queue) head() (uint16, error) {
	h := binary.LittleEndian.Uint16(q.avail[abi.VringAvailRing+2*uint32(q.lastAvail&q.mask):])
	if uint32(h) >= q.num {
		return 0, q.fail(FaultHead)
	}
	return h, nil
}

// Rewind gives back the newest n elements taken: they will be taken again.
// None of them may have been used.
func (q *Queue) Rewind(n int) { q.lastAvail -= uint16(n) }

// PushUsed writes a used entry; the driver sees it after Publish. n is the
// number of bytes written to the element.
func (q *Queue) PushUsed(head uint16, n uint32) {
	at := abi.VringUsedRing + abi.VringUsedElemSize*uint32(q.usedIdx&q.mask)
	e := q.used[at:][:abi.VringUsedElemSize]
	binary.LittleEndian.PutUint32(e[abi.VringUsedElemID:], uint32(head))
	binary.LittleEndian.PutUint32(e[abi.VringUsedElemLen:], n)
	q.usedIdx++
	if q.log != nil {
		q.log.Dirty(q.usedAt+uint64(at), abi.VringUsedElemSize)
	}
}

// PushElem is PushUsed of a writable element of which n bytes were written to
// Data. Where the element is Gathered, no other may have been taken with its
// Scratch since.
func (q *Queue) PushElem(e Elem, n int) {
	if e.Gathered {
		q.scratch.chain.WriteAt(e.Data[:n], 0)
	}
	q.PushUsed(e.Head, uint32(n))
}

// Staged returns how many used entries wait for Publish.
func (q *Queue) Staged() int { return int(q.usedIdx - q.published) }

// Publish makes all used entries visible to the driver, with one store, and reports whether the driver
// enabled a notification for them.
func (q *Queue) Publish() (notify bool) {
	old := q.published
	if q.usedIdx == old {
		return false
	}
	q.published = q.usedIdx
	q.storeUsed()
	if !q.eventIdx {
		return load16(q.avail, abi.VringAvailFlags)&abi.AvailNoInterrupt == 0
	}
	event := load16(q.avail, abi.VringAvailRing+2*q.num)
	if !q.signalled {
		q.signalled = true // no earlier index to compare with
		return true
	}
	return q.published-event-1 < q.published-old
}

// EnableKick enables a kick for the next element, and reports whether there are elements already: then
// no kick comes for them.
func (q *Queue) EnableKick() (pending bool, err error) {
	q.EnableKickAt(q.lastAvail)
	n, err := q.Avail()
	return n > 0, err
}

// Index returns the driver's index as it is now, unchecked: elements before it are available.
func (q *Queue) Index() uint16 { return load16(q.avail, abi.VringAvailIdx) }

// EnableKickAt enables a kick for the element with index seen and those behind it, and reports whether the driver has
// made one of them available already: then no kick comes for it. Elements before seen may be left in the ring.
func (q *Queue) EnableKickAt(seen uint16) (posted bool) {
	q.noKick = 0
	if q.eventIdx {
		at := abi.VringUsedRing + abi.VringUsedElemSize*q.num
		binary.LittleEndian.PutUint16(q.used[at:], seen)
		if q.log != nil {
			q.log.Dirty(q.usedAt+uint64(at), 2)
		}
	}
	q.storeUsed() // full barrier between the request and the look
	return q.Index() != seen
}

// DisableKick suppresses kicks. With EVENT_IDX the driver kicks once more at the last enabled index,
// and then not again.
func (q *Queue) DisableKick() {
	if q.noKick == 0 && !q.eventIdx {
		q.noKick = abi.UsedNoNotify
		q.storeUsed()
	}
}

// State returns the ring state for GET_VRING_BASE: the first element that is
// not used yet, so that a later device takes again what was only taken.
func (q *Queue) State() uint32 { return uint32(q.usedIdx) }

// Popped returns the index of the next element to pop, which is the state of a ring with elements that are
// used out of order.
func (q *Queue) Popped() uint16 { return q.lastAvail }

// Outstanding returns how many elements are taken and not used.
func (q *Queue) Outstanding() int { return int(q.lastAvail - q.usedIdx) }

// Continue makes q, which was created to resume a ring, continue where o stopped: elements that o
// popped and has not used stay popped. It returns false, and changes nothing, if q is another ring: at
// another address, of another size, or restarted.
func (q *Queue) Continue(o *Queue) bool {
	if q == o {
		return true
	}
	if q.num != o.num || &q.desc[0] != &o.desc[0] || &q.avail[0] != &o.avail[0] || &q.used[0] != &o.used[0] ||
		q.published != o.published ||
		uint32(load16(q.avail, abi.VringAvailIdx)-o.usedIdx) > q.num ||
		load16(q.avail, abi.VringAvailIdx)-o.usedIdx < o.lastAvail-o.usedIdx {
		return false
	}
	q.lastAvail, q.availIdx, q.usedIdx, q.signalled = o.lastAvail, o.lastAvail, o.usedIdx, o.signalled
	return true
}

// Succeed makes q, which was created to resume a ring, replace o. The driver has made the same
// elements available in q that are available in o, up to the same index. Elements that o popped
// already are marked used at once; the others stay available. It returns false, and pops nothing, if q
// does not have all available elements of o. A fault is that of the ring that has it.
func (q *Queue) Succeed(o *Queue) (bool, error) {
	wait, err := o.Avail()
	if err != nil {
		return false, err
	}
	all, err := q.Avail()
	if err != nil {
		return false, err
	}
	if q.availIdx != o.availIdx || all < wait {
		return false, nil
	}
	for range all - wait {
		head, err := q.head()
		if err != nil {
			return false, err
		}
		q.lastAvail++
		q.PushUsed(head, 0)
	}
	return true, nil
}

// Reset sets all indices to zero, as both sides do when the object behind the
// ring is destroyed (virtio RoCE RFC v2, DESTROY_QP and DESTROY_CQ). The ring is not broken any more.
func (q *Queue) Reset() {
	q.lastAvail, q.availIdx, q.usedIdx, q.published, q.signalled = 0, 0, 0, 0, false
	q.fault = FaultNone
	q.storeUsed()
}
