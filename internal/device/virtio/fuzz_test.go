// SPDX-License-Identifier: Apache-2.0

package virtio_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
)

// world is guest memory in two pieces that are adjacent for the guest and
// apart in this process, with nothing around them.
type world struct{ a, b []byte }

const (
	worldBase = 0x10000
	worldHalf = 0x4000
)

func newWorld() *world { return &world{make([]byte, worldHalf), make([]byte, worldHalf)} }

func (w *world) Prefix(gpa, n uint64) []byte {
	switch off := gpa - worldBase; {
	case gpa < worldBase || off >= 2*worldHalf:
		return nil
	case off < worldHalf:
		return w.a[off:][:min(n, worldHalf-off)]
	default:
		return w.b[off-worldHalf:][:min(n, 2*worldHalf-off)]
	}
}

// at is the dumb way to one byte.
func (w *world) at(gpa uint64) (byte, bool) {
	b := w.Prefix(gpa, 1)
	if len(b) == 0 {
		return 0, false
	}
	return b[0], true
}

// model is the slow, obvious reading of one element: the text of virtio 1.x,
// byte by byte. ok is false where the ring is broken.
func (w *world) model(c virtio.Config, head uint16) (read []byte, room int, pieces int, ok bool) {
	table, size, inTable := c.Desc, c.Num, false
	if uint32(head) >= size {
		return nil, 0, 0, false
	}
	load := func(gpa uint64, n int) (v uint64, ok bool) {
		for i := range n {
			b, ok := w.at(gpa + uint64(i))
			if !ok {
				return 0, false
			}
			v |= uint64(b) << (8 * i)
		}
		return v, true
	}
	i, wrote := uint32(head), false
	for steps := uint32(1); ; steps++ {
		if steps > size {
			return nil, 0, 0, false
		}
		d := table + 16*uint64(i)
		addr, ok1 := load(d, 8)
		length, ok2 := load(d+8, 4)
		flags, ok3 := load(d+12, 2)
		next, ok4 := load(d+14, 2)
		if !ok1 || !ok2 || !ok3 || !ok4 {
			return nil, 0, 0, false
		}
		if flags&abi.DescFlagIndirect != 0 {
			if inTable || flags&abi.DescFlagNext != 0 || length == 0 || length%16 != 0 || length > 1024*16 {
				return nil, 0, 0, false
			}
			for k := range length {
				if _, ok := w.at(addr + k); !ok {
					return nil, 0, 0, false
				}
			}
			table, size, inTable, i, steps = addr, uint32(length/16), true, 0, 0
			continue
		}
		write := flags&abi.DescFlagWrite != 0
		if !write && wrote {
			return nil, 0, 0, false
		}
		for k := range length {
			b, ok := w.at(addr + k)
			if !ok {
				return nil, 0, 0, false
			}
			if write {
				room++
				wrote = true
			} else {
				read = append(read, b)
			}
		}
		pieces++
		if flags&abi.DescFlagNext == 0 {
			return read, room, pieces, true
		}
		if uint32(next) >= size {
			return nil, 0, 0, false
		}
		i = uint32(next)
	}
}

// script reads numbers from the fuzzer's bytes, zero when they are used up.
type script []byte

func (s *script) u8() uint8 {
	if len(*s) == 0 {
		return 0
	}
	v := (*s)[0]
	*s = (*s)[1:]
	return v
}

// gpa returns an address: anywhere, near an edge, or plainly inside.
func (s *script) gpa() uint64 {
	switch k := s.u8(); k % 8 {
	case 0:
		return worldBase + worldHalf - uint64(s.u8()%32)
	case 1:
		return worldBase + 2*worldHalf - uint64(s.u8()%32)
	case 2:
		return worldBase - uint64(s.u8()%4)
	case 3:
		return -uint64(s.u8())
	default:
		return worldBase + 0x1000 + uint64(k)*16
	}
}

func (s *script) length() uint32 {
	switch v := s.u8(); v % 8 {
	case 0:
		return 0
	case 1:
		return 16 * uint32(s.u8()%8)
	case 2:
		return uint32(s.u8()) << 24
	default:
		return uint32(v)
	}
}

// FuzzRing lets a hostile driver write anything into the ring and its tables
// between the device's calls, and compares each element with the model.
func FuzzRing(f *testing.F) {
	f.Add([]byte{3, 0, 0, 8, 0x41, 0, 0, 1, 0, 2, 1, 3, 0, 4, 5})
	f.Add([]byte{2, 1, 0, 0, 4, 9, 1, 1, 0, 1, 12, 7, 2, 0, 2, 1, 4, 4, 4, 5})
	f.Add([]byte{1, 0, 0, 1, 4, 1, 2, 4, 0, 2, 1, 4, 0, 0, 5, 6, 7})
	f.Add(bytes.Repeat([]byte{3, 0, 1, 9, 17, 33, 2, 4}, 20))
	f.Add([]byte{2, 0, 0, 0, 4, 9, 9, 0, 0, 1, 0, 0, 2, 3, 5, 10, 2, 1, 0, 1, 0, 2, 3})
	f.Fuzz(func(t *testing.T, in []byte) {
		s := script(in)
		w := newWorld()
		for i := range w.a {
			w.a[i], w.b[i] = byte(i), byte(i*7)
		}
		clear(w.a[:0x1000])
		num := uint32(1) << (s.u8() % 4)
		c := virtio.Config{Num: num, Desc: worldBase, Driver: worldBase + 0x400, Device: worldBase + 0x800,
			EventIdx: s.u8()&1 != 0}
		q, err := virtio.New(w, c)
		if err != nil {
			t.Fatal(err)
		}
		le := binary.LittleEndian
		avail, used := w.a[0x400:], w.a[0x800:]
		taken, done := uint16(0), uint16(0) // what the device took and used
		var heads []uint16                  // taken, not used, oldest first
		var chain virtio.Chain
		for len(s) > 0 {
			switch op := s.u8(); op % 11 {
			case 0: // descriptor
				d := w.a[16*(uint32(s.u8())%num):]
				le.PutUint64(d, s.gpa())
				le.PutUint32(d[8:], s.length())
				le.PutUint16(d[12:], uint16(s.u8()%8))
				le.PutUint16(d[14:], uint16(s.u8())%uint16(num+1))
			case 1: // entry
				le.PutUint16(avail[4+2*(uint32(s.u8())%num):], uint16(s.u8())%uint16(num+1))
			case 2: // index
				le.PutUint16(avail[2:], taken+uint16(s.u8())%uint16(num+2))
			case 3: // table in plain memory
				d := w.a[0x1000+16*uint32(s.u8()):]
				le.PutUint64(d, s.gpa())
				le.PutUint32(d[8:], s.length())
				le.PutUint16(d[12:], uint16(s.u8()%8))
				le.PutUint16(d[14:], uint16(s.u8()%9))
			case 4, 5, 6: // take
				n := uint32(le.Uint16(avail[2:]) - taken)
				head := le.Uint16(avail[4+2*(uint32(taken)%num):])
				read, room, _, ok := w.model(c, head)
				broken := q.Err() != nil
				got, err := false, error(nil)
				var gotRead []byte
				gotRoom := 0
				if op%11 == 4 {
					if got, err = q.Pop(&chain); got {
						gotRead = make([]byte, chain.ReadLen)
						chain.ReadAt(gotRead, 0)
						gotRoom = chain.WriteLen
						if chain.Head != head {
							t.Fatalf("head %d, want %d", chain.Head, head)
						}
					}
				} else {
					var e virtio.Elem
					writable := op%11 == 6
					if e, got, err = q.Next(writable); got {
						if writable {
							gotRoom = len(e.Data)
						} else {
							gotRead = e.Data
						}
						if e.Head != head {
							t.Fatalf("head %d, want %d", e.Head, head)
						}
					}
					// A hot element is all of one kind, and not huge.
					ok = ok && (writable && len(read) == 0 || !writable && room == 0)
				}
				// The driver may have moved the index of a ring back since the device read it; the
				// device uses the value it read.
				if got && (n == 0 || n > num) && !broken {
					n = 1
				}
				switch {
				case broken && (got || err == nil):
					t.Fatal("a broken ring gave an element")
				case got && (!ok || n == 0 || !bytes.Equal(gotRead, read) || gotRoom != room):
					t.Fatalf("got %d readable and %d writable bytes, model %v %d %d, %d available", len(gotRead),
						gotRoom, ok, len(read), room, n)
				case !got && err == nil && n > 0 && !broken && n+uint32(taken-done) <= num:
					t.Fatal("an available element was not given")
				case !got && err != nil && !broken && ok && n > 0 && n+uint32(taken-done) <= num && op%11 == 4:
					t.Fatalf("%v, but the model has no complaint", err)
				}
				if got {
					heads = append(heads, head)
					taken++
				}
			case 7: // use
				if len(heads) > 0 {
					i := int(s.u8()) % len(heads)
					slot := used[4+8*(uint32(done)%num):]
					q.PushUsed(heads[i], uint32(i))
					if le.Uint32(slot) != uint32(heads[i]) || le.Uint32(slot[4:]) != uint32(i) {
						t.Fatal("wrong used entry")
					}
					heads = append(heads[:i], heads[i+1:]...)
					done++
				}
			case 8: // publish
				q.Publish()
				if le.Uint16(used[2:]) != done || q.State() != uint32(done) {
					t.Fatalf("used index %d, state %d, want %d", le.Uint16(used[2:]), q.State(), done)
				}
			case 9:
				if s.u8()&1 != 0 {
					q.DisableKick()
				} else if _, err := q.EnableKick(); err != nil && q.Err() == nil {
					t.Fatal("fault not kept")
				}
			case 10: // another ring takes the place, or not
				size := uint32(1) << (s.u8() % 4)
				first, end := taken-uint16(s.u8()%4), le.Uint16(avail[2:])+uint16(s.u8()%4/3)
				clear(w.b[:0x1000])
				le.PutUint16(w.b[0x402:], end)
				le.PutUint16(w.b[0x802:], first)
				for i := range size {
					le.PutUint16(w.b[0x404+2*i:], uint16(s.u8())%uint16(size+1))
				}
				p, err := virtio.New(w, virtio.Config{Num: size, Desc: worldBase + worldHalf,
					Driver: worldBase + worldHalf + 0x400, Device: worldBase + worldHalf + 0x800, Resume: true})
				if err != nil {
					t.Fatal(err)
				}
				broken := q.Err() != nil
				wait, all := uint32(le.Uint16(avail[2:])-taken), uint32(end-first)
				ok, err := p.Succeed(q)
				want := !broken && wait+uint32(taken-done) <= num && all <= size && end == le.Uint16(avail[2:]) &&
					all >= wait
				for i := range taken - first {
					want = want && uint32(le.Uint16(w.b[0x404+2*(uint32(first+i)%size):])) < size
				}
				if ok != want || ok && (err != nil || p.Popped() != taken || p.State() != uint32(taken) ||
					p.Outstanding() != 0) {
					t.Fatalf("%v %v with taken %d and state %d, want %v with %d", ok, err, p.Popped(), p.State(),
						want, taken)
				}
			}
			if q.Outstanding() != len(heads) || q.Popped() != taken {
				t.Fatalf("%d outstanding, taken %d; want %d, %d", q.Outstanding(), q.Popped(), len(heads), taken)
			}
		}
	})
}

// FuzzDoorbell lets a hostile program write anything into its doorbell area:
// no ring beyond nbits is named, none twice.
func FuzzDoorbell(f *testing.F) {
	f.Add(uint32(64), []byte{1})
	f.Add(uint32(49152), bytes.Repeat([]byte{0xff}, 300))
	f.Fuzz(func(t *testing.T, nbits uint32, in []byte) {
		w := newWorld()
		nbits = nbits % 65536 &^ 63
		d, err := virtio.NewDoorbell(w, worldBase, nbits)
		if err != nil {
			if nbits != 0 {
				t.Fatal(err)
			}
			return
		}
		copy(w.a, in)
		summary := binary.LittleEndian.Uint64(w.a[64:])
		seen := map[uint32]bool{}
		for _, i := range d.Rings(nil) {
			if i >= nbits || seen[i] || summary == 0 {
				t.Fatalf("ring %d of %d", i, nbits)
			}
			seen[i] = true
		}
		if binary.LittleEndian.Uint64(w.a[64:]) != 0 {
			t.Fatal("summary not cleared")
		}
	})
}
