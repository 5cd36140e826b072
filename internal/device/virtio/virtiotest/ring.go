// SPDX-License-Identifier: Apache-2.0

package virtiotest

import (
	"encoding/binary"
	"slices"

	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
)

// Ring is the driver's side of a split ring. One goroutine uses it.
type Ring struct {
	Num               int
	Desc, Avail, Used uint64 // GPAs
	EventIdx          bool

	mem       *Memory
	availIdx  uint16
	announced uint16 // availIdx at the last Offer
	flags     uint16
	usedIdx   uint16
	free      []uint16
	chain     map[uint16][]uint16 // descriptors of each head that is out
}

// Buf is one descriptor's buffer.
type Buf struct {
	GPA uint64
	Len int
}

// NewRing allocates a ring.
func NewRing(m *Memory, num int, eventIdx bool) *Ring {
	r := &Ring{
		Num: num, EventIdx: eventIdx, mem: m,
		Desc: m.Alloc(abi.VringDescSize*num, 16), Avail: m.Alloc(6+2*num, 4), Used: m.Alloc(6+8*num, 4),
		chain: map[uint16][]uint16{},
	}
	for i := num - 1; i >= 0; i-- {
		r.free = append(r.free, uint16(i))
	}
	return r
}

// Begin sets the index of a new ring, as a ring has that resumes there.
func (r *Ring) Begin(idx uint16) {
	r.availIdx, r.announced, r.usedIdx = idx, idx, idx
	r.Publish()
	word(r.mem.At(r.Used, 4), 0).Store(uint32(idx) << 16)
}

// Config returns the configuration for the device.
func (r *Ring) Config() virtio.Config {
	return virtio.Config{Num: uint32(r.Num), Desc: r.Desc, Driver: r.Avail, Device: r.Used, EventIdx: r.EventIdx}
}

// SetDesc writes a raw descriptor; hostile tests use it directly.
func (r *Ring) SetDesc(i int, addr uint64, length uint32, flags, next uint16) {
	putDesc(r.mem.At(r.Desc+uint64(i)*abi.VringDescSize, abi.VringDescSize), addr, length, flags, next)
}

func putDesc(d []byte, addr uint64, length uint32, flags, next uint16) {
	binary.LittleEndian.PutUint64(d[abi.VringDescAddr:], addr)
	binary.LittleEndian.PutUint32(d[abi.VringDescLen:], length)
	binary.LittleEndian.PutUint16(d[abi.VringDescFlags:], flags)
	binary.LittleEndian.PutUint16(d[abi.VringDescNext:], next)
}

// SetAvail writes the entry of the available ring at index i.
func (r *Ring) SetAvail(i uint16, head uint16) {
	binary.LittleEndian.PutUint16(r.mem.At(r.Avail+abi.VringAvailRing+2*uint64(int(i)%r.Num), 2), head)
}

// Next returns the head that Add or AddIndirect will use next; there must be a
// free descriptor.
func (r *Ring) Next() uint16 { return r.free[len(r.free)-1] }

// Free returns how many descriptors are free.
func (r *Ring) Free() int { return len(r.free) }

// Add makes one element of the buffers, chained, and returns its head. The
// device sees it after Publish. It panics without enough free descriptors.
func (r *Ring) Add(read, write []Buf) uint16 {
	all := append(append([]Buf{}, read...), write...)
	heads := append([]uint16{}, r.free[len(r.free)-len(all):]...)
	slices.Reverse(heads)
	r.free = r.free[:len(r.free)-len(all)]
	for i, b := range all {
		flags, next := flagsOf(i, len(read), len(all)), uint16(0)
		if i+1 < len(all) {
			next = heads[i+1]
		}
		r.SetDesc(int(heads[i]), b.GPA, uint32(b.Len), flags, next)
	}
	return r.out(heads)
}

// AddIndirect is Add with all buffers in an indirect table.
func (r *Ring) AddIndirect(read, write []Buf) uint16 {
	all := append(append([]Buf{}, read...), write...)
	size := len(all) * abi.VringDescSize
	gpa := r.mem.Alloc(size, 16)
	t := r.mem.At(gpa, size)
	for i, b := range all {
		putDesc(t[i*abi.VringDescSize:], b.GPA, uint32(b.Len), flagsOf(i, len(read), len(all)), uint16(i+1))
	}
	head := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	r.SetDesc(int(head), gpa, uint32(size), abi.DescFlagIndirect, 0)
	return r.out([]uint16{head})
}

func flagsOf(i, read, all int) (f uint16) {
	if i+1 < all {
		f |= abi.DescFlagNext
	}
	if i >= read {
		f |= abi.DescFlagWrite
	}
	return f
}

func (r *Ring) out(descs []uint16) uint16 {
	r.chain[descs[0]] = descs
	r.SetAvail(r.availIdx, descs[0])
	r.availIdx++
	return descs[0]
}

// Publish makes everything added visible.
func (r *Ring) Publish() { r.PublishIndex(r.availIdx) }

// PublishIndex stores any index; hostile tests use it directly.
func (r *Ring) PublishIndex(idx uint16) {
	word(r.mem.At(r.Avail, 4), 0).Store(uint32(r.flags) | uint32(idx)<<16)
}

// NoInterrupt sets the flag that suppresses notifications.
func (r *Ring) NoInterrupt(on bool) {
	r.flags = 0
	if on {
		r.flags = 1
	}
	w := word(r.mem.At(r.Avail, 4), 0)
	w.Store(w.Load()&^0xffff | uint32(r.flags))
}

// SetUsedEvent enables a notification once the used index passes v.
func (r *Ring) SetUsedEvent(v uint16) {
	binary.LittleEndian.PutUint16(r.mem.At(r.Avail+abi.VringAvailRing+2*uint64(r.Num), 2), v)
}

// Fence orders what the driver stored before what it loads afterwards.
func (r *Ring) Fence() {
	w := word(r.mem.At(r.Avail, 4), 0)
	w.Store(w.Load())
}

// AvailEvent returns the index for which the device enabled a kick.
func (r *Ring) AvailEvent() uint16 {
	return binary.LittleEndian.Uint16(r.mem.At(r.Used+abi.VringUsedRing+abi.VringUsedElemSize*uint64(r.Num), 2))
}

// NeedsKick reports whether the device must be kicked for what was published since the last call, as virtio has it
// (2.7.10 and 2.7.13).
func (r *Ring) NeedsKick() bool {
	old := r.announced
	r.announced = r.availIdx
	if !r.EventIdx {
		return r.WantsKick()
	}
	at := r.Used + abi.VringUsedRing + abi.VringUsedElemSize*uint64(r.Num)
	event := uint16(word(r.mem.At(at&^3, 4), 0).Load() >> (8 * (at & 3)))
	return r.availIdx-event-1 < r.availIdx-old
}

// WantsKick reports whether the device enabled kicks by used.flags.
func (r *Ring) WantsKick() bool {
	return word(r.mem.At(r.Used, 4), 0).Load()&abi.UsedNoNotify == 0
}

// Reap returns the next used entry; ok is false where there is none. The
// descriptors of the element are free again.
func (r *Ring) Reap() (head uint16, n uint32, ok bool) {
	if uint16(word(r.mem.At(r.Used, 4), 0).Load()>>16) == r.usedIdx {
		return 0, 0, false
	}
	e := r.mem.At(r.Used+abi.VringUsedRing+abi.VringUsedElemSize*uint64(int(r.usedIdx)%r.Num), abi.VringUsedElemSize)
	r.usedIdx++
	id := binary.LittleEndian.Uint32(e[abi.VringUsedElemID:])
	if descs, out := r.chain[uint16(id)]; out && id < uint32(r.Num) {
		for i := len(descs) - 1; i >= 0; i-- {
			r.free = append(r.free, descs[i])
		}
		delete(r.chain, uint16(id))
	} else {
		panic("virtiotest: device used an element it was not given")
	}
	return uint16(id), binary.LittleEndian.Uint32(e[abi.VringUsedElemLen:]), true
}

// UsedIdx returns the device's index.
func (r *Ring) UsedIdx() uint16 { return uint16(word(r.mem.At(r.Used, 4), 0).Load() >> 16) }

// Outstanding returns how many elements the device holds.
func (r *Ring) Outstanding() int { return len(r.chain) }

// Reset zeroes both indices, as a driver does after a successful destroy.
func (r *Ring) Reset() {
	*r = Ring{Num: r.Num, Desc: r.Desc, Avail: r.Avail, Used: r.Used, EventIdx: r.EventIdx, mem: r.mem,
		chain: map[uint16][]uint16{}}
	for i := r.Num - 1; i >= 0; i-- {
		r.free = append(r.free, uint16(i))
	}
	word(r.mem.At(r.Avail, 4), 0).Store(0)
	word(r.mem.At(r.Used, 4), 0).Store(0)
}
