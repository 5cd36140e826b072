// SPDX-License-Identifier: Apache-2.0

package ethdev

import (
	"bytes"
	"testing"

	"weft/internal/device/vhost"
	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
	"weft/internal/proto/ether"
)

// alone is a lane for a test without others.
type alone struct{}

func (alone) Do(f func()) error        { f(); return nil }
func (alone) Watch(*vhost.Kick) error  { return nil }
func (alone) Unwatch(*vhost.Kick)      {}
func (alone) Quiesce()                 {}
func (alone) NeedsReset()              {}
func (alone) ConfigChanged()           {}
func (alone) Fail(vhost.Reason, error) {}
func (alone) Logging() bool            { return false }
func (alone) Owns(uintptr) bool        { return false }

// guestMemory is memory at an address.
type guestMemory struct {
	alone
	b []byte
}

const memoryBase = 0x10000

func (m *guestMemory) Prefix(gpa, n uint64) []byte {
	off := gpa - memoryBase
	if gpa < memoryBase || off >= uint64(len(m.b)) {
		return nil
	}
	return m.b[off:][:min(n, uint64(len(m.b))-off)]
}

// FuzzGuest lets a guest write anything into its memory, rings included, between the
// turns of the device. A frame that is read is a frame, is whole at once and in memory that the guest
// cannot change; what is dropped is counted; a ring that broke stays so.
func FuzzGuest(f *testing.F) {
	f.Add([]byte{0, 0, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	f.Add(bytes.Repeat([]byte{33, 63, 0, 0, 16, 1, 0, 1, 9, 3, 0, 4}, 12))
	f.Add(bytes.Repeat([]byte{3, 2, 0, 0, 16, 1, 0, 1, 9, 3, 0, 4, 2, 5, 60}, 20))
	f.Fuzz(func(t *testing.T, in []byte) {
		u8 := func() byte {
			if len(in) == 0 {
				return 0
			}
			v := in[0]
			in = in[1:]
			return v
		}
		m := &guestMemory{b: make([]byte, 1<<17)}
		p, err := New(Config{Lane: alone{}, Pairs: 1})
		if err != nil {
			t.Fatal(err)
		}
		mode, more := u8(), u8()
		var half RoCE
		if more&1 != 0 {
			half = &otherHalf{t: t}
			mode &^= 2 // no packed rings
		}
		d := newDevice(p, alone{}, m, half)
		p.dev = d
		features := uint64(1 << abi.FeatureVersion1)
		for i, bit := range []int{abi.FeatureRoCE, abi.FeatureCtrlGuestOffloads, abi.FeatureMQ, abi.FeatureCtrlVLAN,
			abi.FeatureCtrlRXExtra, abi.FeatureGuestAnnounce} {
			if more>>i&1 != 0 {
				features |= 1 << bit
			}
		}
		for i, bit := range []int{abi.FeatureMrgRxbuf, abi.FeaturePacked, abi.FeatureEventIdx, abi.FeatureGuestCsum,
			abi.FeatureGuestTSO4, abi.FeatureCtrlVQ,
			abi.FeatureCtrlRX, abi.FeatureCtrlMACAddr} {
			if mode>>i&1 != 0 {
				features |= 1 << bit
			}
		}
		if err := d.SetFeatures(features); err != nil {
			t.Fatal(err)
		}
		const ringBytes = 0x400
		num := uint32(1) << (u8() % 5)
		rings := 2
		if d.hasControl() {
			rings = 3
		}
		for i := range rings {
			at := uint64(memoryBase + i*ringBytes)
			c := virtio.Config{Num: num, Desc: at, Driver: at + 0x200, Device: at + 0x300, EventIdx: mode>>2&1 != 0,
				Packed: mode>>1&1 != 0}
			if c.Packed {
				c.Base = uint32(virtio.Start)
			}
			if err := d.SetRing(i, vhost.Ring{Config: c, Kick: &vhost.Kick{}, Enabled: true}); err != nil {
				t.Fatal(err)
			}
		}
		frames, off := make([][]byte, 8), make([]ether.Offload, 8)
		out := make([]byte, 9000)
		for len(in) > 0 {
			switch op := u8(); op % 8 {
			case 0, 1: // a descriptor
				i := int(u8()) % rings
				at := m.b[i*ringBytes+16*int(uint32(u8())%num):]
				le.PutUint64(at, memoryBase+uint64(u8())<<9)
				le.PutUint32(at[8:], uint32(u8())<<(u8()%12))
				if mode>>1&1 != 0 {
					le.PutUint16(at[12:], uint16(uint32(u8())%num))
					v := u8()
					le.PutUint16(at[14:], uint16(v&7)|uint16(v>>6&1)<<7|uint16(v>>7)<<15)
				} else {
					le.PutUint16(at[12:], uint16(u8()%8))
					le.PutUint16(at[14:], uint16(u8()%32))
				}
			case 2: // the driver's area
				i := int(u8()) % rings
				m.b[i*ringBytes+0x200+int(u8()%80)] = u8()
			case 3: // anything
				m.b[int(u8())<<9+int(u8())] = u8()
			case 4: // one more element is available
				i := int(u8()) % rings
				at := m.b[i*ringBytes+0x202:]
				le.PutUint16(at, le.Uint16(at)+uint16(u8()%4))
			case 5, 6:
				n, err := p.TryReadBatch(frames, off)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range frames[:n] {
					if len(f) < ether.HeaderLen || len(f) > ether.MaxFrame {
						t.Fatalf("a frame of %d octets", len(f))
					}
					keep := bytes.Clone(f)
					m.b[0x4000] ^= 0xff
					if !bytes.Equal(keep, f) {
						t.Fatal("the guest can change a frame that was read")
					}
				}
				p.Arm()
			case 7:
				k := int(u8()%4) + 1
				before := p.Stats
				for j := range k {
					frames[j] = out[:14+int(u8())*35]
					off[j] = ether.Offload{}
				}
				dropped := p.WriteBatch(frames[:k], off[:k])
				if taken := p.Stats.RxFrames - before.RxFrames + p.Stats.RxFiltered - before.RxFiltered; int(taken)+
					dropped != k {
					t.Fatalf("%d taken and %d dropped of %d", taken, dropped, k)
				}
			}
			for _, v := range d.rings {
				if v == nil || v.halted {
					continue
				}
				q := v.q.(interface {
					Err() error
					Outstanding() int
				})
				if q.Err() != nil {
					t.Fatal("a broken ring is in use")
				}
				if v.have < 0 || v.have > int(v.Num) || q.Outstanding() != v.have {
					t.Fatalf("%d outstanding, %d kept", q.Outstanding(), v.have)
				}
			}
		}
	})
}

// otherHalf is a RoCE half that reads memory behind its commands; the last octet of each is the number of octets.
type otherHalf struct {
	t        *testing.T
	on       bool
	first    int
	executed int
}

func (*otherHalf) Limits() (qps, cqs uint32) { return 16, 8 }

func (h *otherHalf) Begin(first int, on bool) { h.first, h.on = first, on }

func (h *otherHalf) Execute(command []byte, room int, behind func(n int) []byte) []byte {
	h.executed++
	if !h.on || len(command) < 2 || len(command) > maxRoCECommand || command[0] != abi.ClassRoCE || room < 1 {
		h.t.Fatalf("a command of %d octets with room for %d, negotiated: %v", len(command), room, h.on)
	}
	n := int(command[len(command)-1]) << (command[1] % 20)
	if b := behind(n); b != nil && len(b) != n {
		h.t.Fatalf("%d octets behind the command, not %d", len(b), n)
	}
	return make([]byte, min(room, 1+int(command[1])))
}

// FuzzControl gives the control queue commands of every class in whatever pieces. Each is answered as a whole, as it
// is in one piece; what a driver sets stays within what it negotiated.
func FuzzControl(f *testing.F) {
	for class := range byte(8) {
		f.Add(^uint64(0), []byte{2, 0x11, 12, class, 0, 1, 0, 0, 0, 2, 7, 0, 0, 0, 1, 3, 0x21, 6, class, 1, 2, 9, 9, 9})
	}
	f.Add(uint64(1<<abi.FeatureRoCE), []byte{1, 0x55, 20, abi.ClassRoCE, 7, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 200})
	// A command beyond the budget of a turn, and one behind it.
	f.Add(^uint64(59), []byte{2, 0x11, 12, abi.ClassRoCE, 0x12, 1, 0, 0, 0, 2, 7, 0, 0, 0x13, abi.ClassRoCE, 1, 2, 9})
	f.Fuzz(func(t *testing.T, wanted uint64, in []byte) {
		const desc, avail, used, text, answer, end = 0, 0x800, 0xa00, 0x1000, 0x3000, 0x4000
		m := &guestMemory{b: make([]byte, end)}
		p, err := New(Config{Lane: alone{}, Pairs: 4, MAC: [6]byte{2, 1}})
		if err != nil {
			t.Fatal(err)
		}
		half := &otherHalf{t: t}
		d := newDevice(p, alone{}, m, half)
		p.dev = d
		features := wanted&d.Features() | 1<<abi.FeatureVersion1 | 1<<abi.FeatureCtrlVQ
		if err := d.SetFeatures(features &^ (1 << abi.FeatureEventIdx)); err != nil {
			t.Fatal(err)
		}
		if half.first != d.controlRing()+1 {
			t.Fatalf("the RoCE half begins at ring %d behind %d", half.first, d.controlRing())
		}
		c := virtio.Config{Num: 64, Desc: memoryBase + desc, Driver: memoryBase + avail, Device: memoryBase + used}
		if err := d.SetRing(d.controlRing(), vhost.Ring{Config: c, Kick: &vhost.Kick{}}); err != nil {
			t.Fatal(err)
		}
		ring := d.ctrl
		frames, off := make([][]byte, 1), make([]ether.Offload, 1)
		index := uint16(0)
		for len(in) >= 3 && index < 64 {
			cut, room, size := int(in[0])%16, int(in[1])%48, int(in[2])
			in = in[3:]
			n := copy(m.b[text:text+size], in)
			in = in[n:]
			for i := range 48 {
				m.b[answer+i] = 0xee
			}
			// Pieces of cut octets, the rest in one, then room in two.
			k := 0
			put := func(at, n int, flags uint16) {
				b := m.b[desc+16*k:]
				le.PutUint64(b, memoryBase+uint64(at))
				le.PutUint32(b[8:], uint32(n))
				le.PutUint16(b[12:], flags|abi.DescFlagNext)
				k++
				le.PutUint16(b[14:], uint16(k))
			}
			at := text
			for cut > 0 && k < 40 && at+cut < text+n {
				put(at, cut, 0)
				at += cut
			}
			put(at, text+n-at, 0)
			put(answer, room/3, abi.DescFlagWrite)
			put(answer+room/3, room-room/3, abi.DescFlagWrite)
			last := m.b[desc+16*(k-1)+12:]
			le.PutUint16(last, le.Uint16(last)&^abi.DescFlagNext)
			le.PutUint16(m.b[avail+4+2*int(index%64):], 0)
			index++
			le.PutUint16(m.b[avail+2:], index)
			before, executed := p.Stats, half.executed
			// Turns that pay for the command before are without one.
			for range 1 + (ctrlCost+maxRoCECommand+MaxPageList)/ctrlBudget {
				if _, err := p.TryReadBatch(frames, off); err != nil {
					t.Fatal(err)
				}
				if le.Uint16(m.b[used+2:]) == index {
					break
				}
			}
			wrote := int(le.Uint32(m.b[used+4+8*int((index-1)%64)+4:]))
			ack := m.b[answer]
			if ring.halted || le.Uint16(m.b[used+2:]) != index || p.Stats.Commands != before.Commands+1 {
				t.Fatalf("command %d is not used", index)
			}
			isRoCE := d.hasRoCE() && n >= 2 && m.b[text] == abi.ClassRoCE
			switch {
			case room == 0:
				if wrote != 0 || half.executed != executed || p.Stats.CommandErrors != before.CommandErrors+1 {
					t.Fatal("a command without room for an answer is executed")
				}
			case (half.executed != executed) != isRoCE:
				t.Fatalf("class %d: executed by the RoCE half: %v", m.b[text], !isRoCE)
			case isRoCE:
				if wrote != min(room, 1+int(m.b[text+1])) {
					t.Fatalf("%d octets of the answer", wrote)
				}
			case wrote != 1 || ack > abi.AckErr ||
				(ack == abi.AckErr) != (p.Stats.CommandErrors == before.CommandErrors+1):
				t.Fatalf("%d octets, ack %d", wrote, ack)
			}
			if wrote < 48 && m.b[answer+wrote] != 0xee {
				t.Fatal("more is written than counted")
			}
			if d.takes&^taken(features) != 0 || d.active < 0 || d.active > 4 || (d.active > 0) != d.has(abi.FeatureMQ) {
				t.Fatalf("takes %#x, %d pairs", d.takes, d.active)
			}
			if p.hear.own[0]&1 != 0 || p.hear.own != d.Config().MAC || len(d.filter.unicast) > maxTable ||
				len(d.filter.multicast) > maxTable || d.filter.on && !d.has(abi.FeatureCtrlRX) {
				t.Fatalf("filter %+v of %x", d.filter, p.hear.own)
			}
		}
	})
}
