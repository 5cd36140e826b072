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
	f.Add([]byte{0, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	f.Add(bytes.Repeat([]byte{1, 0, 0, 0, 16, 1, 0, 1, 9, 3, 0, 4}, 12))
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
		d := newDevice(p, alone{}, m, nil)
		p.dev = d
		mode := u8()
		features := uint64(1 << abi.FeatureVersion1)
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
