// SPDX-License-Identifier: Apache-2.0

package virtiotest

import (
	"encoding/binary"

	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
)

// Vring is the driver's side of a ring of either format.
type Vring struct {
	Config   virtio.Config // for the device
	Elements Elements
	Calls    Calls
}

// Elements are what a driver gives to a ring and gets back.
type Elements interface {
	// Free returns how many descriptors are free: all of the ring's when the device holds no element.
	Free() int
	// Add makes one element of the buffers and returns its head or identifier;
	// AddIndirect puts all of them in an indirect table.
	Add(read, write []Buf) uint16
	AddIndirect(read, write []Buf) uint16
	// Offer makes everything added visible and reports whether the device needs a kick for it.
	Offer() (kick bool)
	// Reap returns the next used element.
	Reap() (head uint16, n uint32, ok bool)
}

// Calls is the notification of a driver by the device.
type Calls interface {
	// Listen enables a notification of the next used element; Deaf disables notifications.
	Listen()
	Deaf()
}

// NewVring allocates a ring of either format.
func NewVring(m *Memory, num int, packed, eventIdx bool) Vring {
	if packed {
		r := NewPacked(m, num, eventIdx)
		return Vring{r.Config(), r, r}
	}
	r := NewRing(m, num, eventIdx)
	return Vring{r.Config(), r, r}
}

// Packed is the driver's side of a packed ring. One goroutine uses it.
type Packed struct {
	Num                  int
	Desc, Driver, Device uint64 // GPAs
	EventIdx             bool

	mem       *Memory
	next      int // to make available
	wrap      bool
	used      int // to reap
	usedWrap  bool
	free      int
	ids       []uint16
	chain     map[uint16]int // descriptors of each element that is out
	heads     []head         // of elements added and not offered
	offered   int            // descriptors made available in all
	announced int            // number of them at the last check of the event structure
}

// head is a first descriptor's word that waits for Offer.
type head struct {
	index int
	word  uint32
}

// NewPacked allocates a packed ring, of any size.
func NewPacked(m *Memory, num int, eventIdx bool) *Packed {
	r := &Packed{Num: num, EventIdx: eventIdx, mem: m, wrap: true, usedWrap: true, free: num, chain: map[uint16]int{},
		Desc: m.Alloc(abi.VringDescSize*num, 16), Driver: m.Alloc(4, 4), Device: m.Alloc(4, 4)}
	for i := num - 1; i >= 0; i-- {
		r.ids = append(r.ids, uint16(i))
	}
	return r
}

// Config implements Elements.
func (r *Packed) Config() virtio.Config {
	return virtio.Config{Num: uint32(r.Num), Desc: r.Desc, Driver: r.Driver, Device: r.Device, EventIdx: r.EventIdx,
		Packed: true,
		Base:   uint32(virtio.Start)}
}

// Free implements Elements.
func (r *Packed) Free() int { return r.free }

const packedAvail, packedUsed = 1 << 7, 1 << 15

// SetDesc writes a raw descriptor; hostile tests use it directly.
func (r *Packed) SetDesc(i int, addr uint64, length uint32, id, flags uint16) {
	d := r.mem.At(r.Desc+uint64(i)*abi.VringDescSize, abi.VringDescSize)
	binary.LittleEndian.PutUint64(d, addr)
	binary.LittleEndian.PutUint32(d[8:], length)
	word(d, 12).Store(uint32(id) | uint32(flags)<<16)
}

// Available are the flags of a descriptor that Add would make available next.
func (r *Packed) Available() uint16 {
	if r.wrap {
		return packedAvail
	}
	return packedUsed
}

// Add implements Elements.
func (r *Packed) Add(read, write []Buf) uint16 {
	all := append(append([]Buf{}, read...), write...)
	if len(all) > r.free {
		panic("virtiotest: ring full")
	}
	id := r.id(len(all))
	for i, b := range all {
		r.put(b, id, flagsOf(i, len(read), len(all)), i == 0)
	}
	return id
}

// AddIndirect implements Elements.
func (r *Packed) AddIndirect(read, write []Buf) uint16 {
	all := append(append([]Buf{}, read...), write...)
	size := len(all) * abi.VringDescSize
	gpa := r.mem.Alloc(size, 16)
	t := r.mem.At(gpa, size)
	for i, b := range all {
		d := t[i*abi.VringDescSize:]
		binary.LittleEndian.PutUint64(d, b.GPA)
		binary.LittleEndian.PutUint32(d[8:], uint32(b.Len))
		binary.LittleEndian.PutUint16(d[14:], flagsOf(i, len(read), len(all))&abi.DescFlagWrite)
	}
	id := r.id(1)
	r.put(Buf{gpa, size}, id, abi.DescFlagIndirect, true)
	return id
}

func (r *Packed) id(descs int) uint16 {
	id := r.ids[len(r.ids)-1]
	r.ids = r.ids[:len(r.ids)-1]
	r.chain[id] = descs
	return id
}

func (r *Packed) put(b Buf, id, flags uint16, first bool) {
	i, flags := r.next, flags|r.Available()
	if first {
		r.heads = append(r.heads, head{i, uint32(id) | uint32(flags)<<16})
		d := r.mem.At(r.Desc+uint64(i)*abi.VringDescSize, abi.VringDescSize)
		binary.LittleEndian.PutUint64(d, b.GPA)
		binary.LittleEndian.PutUint32(d[8:], uint32(b.Len))
	} else {
		r.SetDesc(i, b.GPA, uint32(b.Len), id, flags)
	}
	r.free--
	r.offered++
	if r.next++; r.next == r.Num {
		r.next, r.wrap = 0, !r.wrap
	}
}

// Offer implements Elements.
func (r *Packed) Offer() (kick bool) {
	for _, h := range r.heads {
		word(r.mem.At(r.Desc+uint64(h.index)*abi.VringDescSize, abi.VringDescSize), 12).Store(h.word)
	}
	r.heads = r.heads[:0]
	added := r.offered - r.announced
	r.announced = r.offered
	e := word(r.mem.At(r.Device, 4), 0).Load()
	switch e >> 16 & 3 {
	case 1:
		return false
	case 2:
		// The position must be among those just passed, counted from the end.
		event := int(e & 0x7fff)
		if e>>15&1 != 0 != r.wrap {
			event -= r.Num
		}
		return r.next-event-1 < added && r.next-event-1 >= 0
	}
	return true
}

// Reap implements Elements.
func (r *Packed) Reap() (id uint16, n uint32, ok bool) {
	d := r.mem.At(r.Desc+uint64(r.used)*abi.VringDescSize, abi.VringDescSize)
	w := word(d, 12).Load()
	flags := w >> 16
	if flags&packedAvail != 0 != r.usedWrap || flags&packedUsed != 0 != r.usedWrap {
		return 0, 0, false
	}
	id = uint16(w)
	descs, out := r.chain[id]
	if !out {
		panic("virtiotest: device used an element it was not given")
	}
	if flags&abi.DescFlagWrite != 0 {
		n = binary.LittleEndian.Uint32(d[8:])
	}
	delete(r.chain, id)
	r.ids = append(r.ids, id)
	r.free += descs
	if r.used += descs; r.used >= r.Num {
		r.used, r.usedWrap = r.used-r.Num, !r.usedWrap
	}
	return id, n, true
}

// Listen implements Calls.
func (r *Packed) Listen() {
	w := uint32(0)
	if r.EventIdx {
		w = uint32(r.used) | 2<<16
		if r.usedWrap {
			w |= 1 << 15
		}
	}
	word(r.mem.At(r.Driver, 4), 0).Store(w)
}

// Deaf implements Calls.
func (r *Packed) Deaf() { word(r.mem.At(r.Driver, 4), 0).Store(1 << 16) }

// Outstanding returns how many elements the device holds.
func (r *Packed) Outstanding() int { return len(r.chain) }

// Position is where the device is that has used everything.
func (r *Packed) Position() virtio.Position {
	p := virtio.Position(r.used)
	if r.usedWrap {
		p |= virtio.Start
	}
	return p
}

// Offer implements Elements.
func (r *Ring) Offer() (kick bool) {
	old := r.announced
	r.announced = r.availIdx
	r.Publish()
	if r.EventIdx {
		return r.availIdx-r.AvailEvent()-1 < r.availIdx-old
	}
	return r.WantsKick()
}

// Listen implements Calls.
func (r *Ring) Listen() {
	if r.EventIdx {
		r.SetUsedEvent(r.usedIdx)
		r.Fence()
		return
	}
	r.NoInterrupt(false)
}

// Deaf implements Calls.
func (r *Ring) Deaf() {
	if !r.EventIdx {
		r.NoInterrupt(true)
	}
}
