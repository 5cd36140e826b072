// SPDX-License-Identifier: Apache-2.0

package virtio_test

import (
	"fmt"
	"testing"

	"weft/internal/device/virtio"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
)

func packedRing(t testing.TB, num int, event bool) (*virtiotest.Memory, *virtiotest.Packed, *virtio.Packed) {
	t.Helper()
	m := virtiotest.NewMemory(t, 1<<20)
	r := virtiotest.NewPacked(m, num, event)
	q, err := virtio.NewPacked(m, r.Config())
	if err != nil {
		t.Fatal(err)
	}
	return m, r, q
}

// TestPackedPlace: what is no packed ring is refused by name.
func TestPackedPlace(t *testing.T) {
	m := virtiotest.NewMemory(t, 1<<19)
	m.Alloc(16, 16) // so that the longest ring does not fit
	good := virtiotest.NewPacked(m, 7, false).Config()
	for name, tc := range map[string]struct {
		edit func(*virtio.Config)
		want error
	}{
		"good":              {func(*virtio.Config) {}, nil},
		"empty":             {func(c *virtio.Config) { c.Num = 0 }, virtio.FaultSize},
		"huge":              {func(c *virtio.Config) { c.Num = 32769 }, virtio.FaultSize},
		"misaligned":        {func(c *virtio.Config) { c.Desc += 8 }, virtio.FaultAlign},
		"events":            {func(c *virtio.Config) { c.Driver += 2 }, virtio.FaultAlign},
		"outside":           {func(c *virtio.Config) { c.Desc = 16 }, virtio.FaultRingMemory},
		"over the end":      {func(c *virtio.Config) { c.Num = 32768 }, virtio.FaultRingMemory},
		"events outside":    {func(c *virtio.Config) { c.Device = 16 }, virtio.FaultRingMemory},
		"begins beyond":     {func(c *virtio.Config) { c.Base = 7 }, virtio.FaultHead},
		"used index too":    {func(c *virtio.Config) { c.Base = 0x8007_8000 }, virtio.FaultHead},
		"as QEMU passes it": {func(c *virtio.Config) { c.Base = 0x8000_8000 }, nil},
		"as DPDK passes it": {func(c *virtio.Config) { c.Base = 0x8000 }, nil},
	} {
		c := good
		tc.edit(&c)
		if _, err := virtio.NewPacked(m, c); err != tc.want {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

// TestPackedNotify compares the decision to notify with the enabled event, position by position and
// batch by batch.
func TestPackedNotify(t *testing.T) {
	const num = 5
	for batch := 1; batch <= num; batch++ {
		for ahead := 0; ahead < 2*num; ahead++ {
			m, r, q := packedRing(t, num, true)
			buf := put(m, "x")
			var c virtio.Chain
			step := func(n int) bool {
				for range n {
					r.Add(bufs(buf), nil)
				}
				r.Offer()
				for range n {
					if ok, err := q.Pop(&c); !ok || err != nil {
						t.Fatal(ok, err)
					}
					q.PushUsed(c.Head, 0)
				}
				notify := q.Publish()
				for range n {
					r.Reap()
				}
				return notify
			}
			if !step(1) {
				t.Fatal("the first is always told of")
			}
			for done := 1; done < 3*num; done += batch {
				// The driver enables the event for an entry ahead of its position.
				event := done + ahead%num
				w := uint32(event%num) | 2<<16
				if event/num%2 == 0 {
					w |= 1 << 15
				}
				m.StoreWord(r.Driver, w)
				want := event < done+batch
				if got := step(batch); got != want {
					t.Fatalf("batch %d at %d, event %d: notify %v, want %v", batch, done, event, got, want)
				}
			}
		}
	}
	m, r, q := packedRing(t, 4, false)
	var c virtio.Chain
	for flags, want := range map[uint32]bool{0: true, 1: false, 2: true, 3: true} { // without EVENT_IDX 2 means nothing
		m.StoreWord(r.Driver, flags<<16)
		r.Add(bufs(put(m, "x")), nil)
		r.Offer()
		q.Pop(&c)
		q.PushUsed(c.Head, 0)
		if got := q.Publish(); got != want {
			t.Errorf("flags %d: notify %v", flags, got)
		}
		r.Reap()
	}
}

// TestPackedFaults: every way a hostile driver breaks a packed ring has a name.
func TestPackedFaults(t *testing.T) {
	const next, write, indirect = abi.DescFlagNext, abi.DescFlagWrite, abi.DescFlagIndirect
	type d struct {
		addr  uint64
		len   uint32
		id    uint16
		flags uint16
	}
	for name, tc := range map[string]struct {
		list []d // addresses below 1<<16 are offsets in memory
		want error
	}{
		"identifier beyond":      {[]d{{0, 1, 4, 0}}, virtio.FaultHead},
		"identifier out already": {[]d{{0, 1, 1, 0}, {0, 1, 1, 0}}, virtio.FaultHead},
		"chain without an end": {[]d{{0, 1, 0, next}, {0, 1, 0, next}, {0, 1, 0, next}, {0, 1, 0, next}},
			virtio.FaultLoop},
		"readable after writable": {[]d{{0, 1, 0, next | write}, {0, 1, 0, 0}}, virtio.FaultDirection},
		"nowhere":                 {[]d{{1 << 50, 1, 0, 0}}, virtio.FaultAddress},
		"around":                  {[]d{{^uint64(0), 2, 0, 0}}, virtio.FaultAddress},
		"table and next":          {[]d{{0, 16, 0, indirect | next}}, virtio.FaultIndirect},
		"empty table":             {[]d{{0, 0, 0, indirect}}, virtio.FaultIndirect},
		"misshapen table":         {[]d{{0, 24, 0, indirect}}, virtio.FaultIndirect},
		"huge table":              {[]d{{0, 1 << 20, 0, indirect}}, virtio.FaultIndirect},
		"table nowhere":           {[]d{{1 << 50, 16, 0, indirect}}, virtio.FaultAddress},
		"table in a table":        {[]d{{512, 16, 0, indirect}}, virtio.FaultIndirect},
	} {
		t.Run(name, func(t *testing.T) {
			m, r, q := packedRing(t, 4, false)
			base := m.Alloc(4096, 16)
			m.At(base, 4096)[512+14] = indirect // what a table at 512 begins with
			for i, e := range tc.list {
				if e.addr < 1<<16 {
					e.addr += base
				}
				r.SetDesc(i, e.addr, e.len, e.id, e.flags|1<<7)
			}
			var c virtio.Chain
			var err error
			for ok := true; ok && err == nil; {
				ok, err = q.Pop(&c)
			}
			if err != tc.want {
				t.Errorf("%v, want %v", err, tc.want)
			}
			if ok, again := q.Pop(&c); ok || again != tc.want || q.Err() != tc.want {
				t.Errorf("a broken ring goes on: %v %v", ok, again)
			}
		})
	}
}

// TestPackedResume: a ring continues at its position, whether its state was read or its device ended;
// a new one begins at the start.
func TestPackedResume(t *testing.T) {
	for _, num := range []int{4, 5} {
		for done := range 4 * num {
			for _, asked := range []bool{true, false} {
				t.Run(fmt.Sprintf("%d of %d, asked %v", done, num, asked), func(t *testing.T) {
					m, r, q := packedRing(t, num, true)
					q.DisableKick()
					var c virtio.Chain
					one := func(q *virtio.Packed) {
						t.Helper()
						r.Add(bufs(put(m, "x")), nil)
						r.Offer()
						if ok, err := q.Pop(&c); !ok || err != nil {
							t.Fatal(ok, err)
						}
						q.PushUsed(c.Head, 0)
						q.Publish()
						if _, _, ok := r.Reap(); !ok {
							t.Fatal("not used")
						}
					}
					for range done {
						one(q)
					}
					// Two more are offered, one of them is taken and never used.
					r.Add(bufs(put(m, "y")), nil)
					r.Add(bufs(put(m, "z")), nil)
					r.Offer()
					q.Pop(&c)
					cfg := r.Config()
					cfg.Resume = true
					if asked {
						cfg.Base = q.State()
					} else {
						cfg.Base = 0x8000_8000
					}
					q, err := virtio.NewPacked(m, cfg)
					if err != nil {
						t.Fatal(err)
					}
					for _, want := range []string{"y", "z"} {
						if ok, err := q.Pop(&c); !ok || err != nil || string(c.Read[0]) != want {
							t.Fatalf("%v %v, want %s", ok, err, want)
						}
						q.PushUsed(c.Head, 0)
					}
					q.Publish()
					r.Reap()
					r.Reap()
					one(q)
					if got, want := q.State(), uint32(r.Position())|uint32(r.Position())<<16; got != want {
						t.Errorf("state %#x, want %#x", got, want)
					}
				})
			}
		}
	}
}

// TestPackedResumeOfReusedMemory: a driver that begins anew in zeroed memory is
// not mistaken for the one before; one that left its event structure behind
// neither.
func TestPackedResumeOfReusedMemory(t *testing.T) {
	m := virtiotest.NewMemory(t, 1<<20)
	r := virtiotest.NewPacked(m, 4, true)
	m.StoreWord(r.Device, 3|1<<16) // a position, but nothing was ever used
	r.Add(bufs(put(m, "a")), nil)
	r.Offer()
	c := r.Config()
	c.Resume = true
	q, err := virtio.NewPacked(m, c)
	if err != nil {
		t.Fatal(err)
	}
	var chain virtio.Chain
	if ok, err := q.Pop(&chain); !ok || err != nil || string(chain.Read[0]) != "a" {
		t.Fatal(ok, err)
	}
}

// FuzzPacked lets a hostile driver write anything anywhere in a packed ring between
// the device's calls: what the device holds stays within the ring, what it gives lies in
// memory, and what it writes is the ring's.
func FuzzPacked(f *testing.F) {
	f.Add([]byte{3, 1, 0, 0, 8, 0x41, 0, 0x80, 4, 4, 7, 8, 4})
	f.Add([]byte{2, 0, 0, 0, 4, 9, 1, 0x81, 1, 12, 7, 0x80, 4, 7, 0, 8, 4, 9, 1})
	f.Add([]byte{1, 1, 3, 4, 9, 2, 0, 0, 8, 17, 0, 0x84, 4, 7, 8, 5, 9, 0, 4})
	f.Fuzz(func(t *testing.T, in []byte) {
		s := script(in)
		w := newWorld()
		num := uint32(s.u8()%6) + 1
		c := virtio.Config{Num: num, Desc: worldBase, Driver: worldBase + 0x400, Device: worldBase + 0x800,
			EventIdx: s.u8()&1 != 0, Packed: true, Base: 0x8000}
		q, err := virtio.NewPacked(w, c)
		if err != nil {
			t.Fatal(err)
		}
		var held []uint16
		var chain virtio.Chain
		guard := func() {
			t.Helper()
			for _, a := range []int{0x3ff, 0x404, 0x7ff, 0x804} {
				if w.a[a] != 0 {
					t.Fatalf("wrote outside of the ring, at %#x", a)
				}
			}
			for _, b := range w.a[16*num : 0x400] {
				if b != 0 {
					t.Fatal("wrote behind the descriptors")
				}
			}
		}
		for len(s) > 0 {
			switch op := s.u8(); op % 10 {
			case 0, 1: // a descriptor, with flags that may make it available
				d := w.a[16*(uint32(s.u8())%num):]
				putDesc(d, s.gpa(), s.length(), uint16(s.u8())%uint16(num+1), packedFlags(s.u8()))
			case 2: // the driver's events
				copy(w.a[0x400:0x404], []byte{s.u8(), s.u8(), s.u8(), s.u8()})
			case 3: // an entry of a table in plain memory
				d := w.a[0x1000+16*uint32(s.u8()):]
				putDesc(d, s.gpa(), s.length(), 0, uint16(s.u8()%8))
			case 4, 5, 6:
				broken := q.Err() != nil
				ok, err := q.Pop(&chain)
				switch {
				case broken && (ok || err == nil):
					t.Fatal("a broken ring gave an element")
				case ok && err != nil || (err != nil) != (q.Err() != nil):
					t.Fatal("error and element, or an error that is not kept")
				case ok:
					for _, h := range held {
						if h == chain.Head {
							t.Fatalf("element %d is out twice", h)
						}
					}
					if uint32(chain.Head) >= num || uint32(len(held)) >= num {
						t.Fatalf("element %d, %d held of %d", chain.Head, len(held), num)
					}
					held = append(held, chain.Head)
					n := 0
					for _, b := range chain.Read {
						n += len(b)
					}
					for _, b := range chain.Write {
						n += len(b)
					}
					if n != chain.ReadLen+chain.WriteLen {
						t.Fatalf("%d octets, told %d and %d", n, chain.ReadLen, chain.WriteLen)
					}
				}
			case 7:
				q.PushUsed(uint16(s.u8()), 1) // also of what is not out
				if len(held) > 0 {
					q.PushUsed(held[0], 1)
				}
				held = held[:0]
				for id := range uint16(num) { // the outstanding ones, by query
					before := q.Outstanding()
					q.PushUsed(id, 0)
					if q.Outstanding() != before && q.Outstanding() != before-1 {
						t.Fatal("outstanding does not add up")
					}
				}
				if q.Outstanding() != 0 {
					t.Fatalf("%d outstanding of none", q.Outstanding())
				}
			case 8:
				q.Publish()
			case 9:
				if s.u8()&1 != 0 {
					q.DisableKick()
				} else {
					q.EnableKick()
				}
			}
			if q.Outstanding() != len(held) {
				t.Fatalf("%d outstanding, %d held", q.Outstanding(), len(held))
			}
			st := q.State()
			if st&0x7fff >= num || st>>16 != st&0xffff {
				t.Fatalf("state %#x", st)
			}
			guard()
		}
		// For every content of the ring, a device that resumes it finds a valid position.
		c.Resume, c.Base = true, 0x8000_8000
		if r, err := virtio.NewPacked(w, c); err != nil || r.State()&0x7fff >= num {
			t.Fatalf("resumed: %v", err)
		}
	})
}

// packedFlags spreads four bits of flags over the places they have.
func packedFlags(v uint8) uint16 { return uint16(v&7) | uint16(v>>3&1)<<15 | uint16(v>>7)<<7 }

func putDesc(d []byte, addr uint64, length uint32, id, flags uint16) {
	for i := range 8 {
		d[i] = byte(addr >> (8 * i))
	}
	d[8], d[9], d[10], d[11] = byte(length), byte(length>>8), byte(length>>16), byte(length>>24)
	d[12], d[13], d[14], d[15] = byte(id), byte(id>>8), byte(flags), byte(flags>>8)
}
