// SPDX-License-Identifier: Apache-2.0

package virtio_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"weft/internal/device/virtio"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
)

func setup(t testing.TB, num int, event bool) (*virtiotest.Memory, *virtiotest.Ring, *virtio.Queue) {
	t.Helper()
	m := virtiotest.NewMemory(t, 1<<20)
	r := virtiotest.NewRing(m, num, event)
	q, err := virtio.New(m, r.Config())
	if err != nil {
		t.Fatal(err)
	}
	return m, r, q
}

func put(m *virtiotest.Memory, text string) virtiotest.Buf {
	gpa := m.Alloc(len(text), 1)
	copy(m.At(gpa, len(text)), text)
	return virtiotest.Buf{GPA: gpa, Len: len(text)}
}

func bufs(b ...virtiotest.Buf) []virtiotest.Buf { return b }

// TestOrder runs the ring around several times, in batches of every size.
func TestOrder(t *testing.T) {
	for _, event := range []bool{false, true} {
		m, r, q := setup(t, 8, event)
		sent, taken, reaped := 0, 0, 0
		slots := make([]uint64, 8)
		for i := range slots {
			slots[i] = m.Alloc(8, 8)
		}
		for round := 0; round < 100; round++ {
			n := round%8 + 1
			for range n {
				gpa := slots[sent%8]
				binary.LittleEndian.PutUint64(m.At(gpa, 8), uint64(sent))
				r.Add(bufs(virtiotest.Buf{GPA: gpa, Len: 8}), nil)
				sent++
			}
			if got, err := q.Avail(); got != 0 || err != nil {
				t.Fatalf("unpublished elements visible: %d, %v", got, err)
			}
			r.Publish()
			if got, err := q.Avail(); got != n || err != nil {
				t.Fatalf("avail %d, %v, want %d", got, err, n)
			}
			for {
				e, ok, err := q.Next(false)
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				if got := binary.LittleEndian.Uint64(e.Data); got != uint64(taken) || e.Gathered {
					t.Fatalf("element %d: got %d, gathered %v", taken, got, e.Gathered)
				}
				taken++
				q.PushUsed(e.Head, uint32(taken))
			}
			if _, _, ok := r.Reap(); ok {
				t.Fatal("used entries visible before Publish")
			}
			q.Publish()
			for {
				_, n, ok := r.Reap()
				if !ok {
					break
				}
				if reaped++; n != uint32(reaped) {
					t.Fatalf("used entry %d has length %d", reaped, n)
				}
			}
			if taken != sent || reaped != sent {
				t.Fatalf("sent %d, taken %d, reaped %d", sent, taken, reaped)
			}
		}
	}
}

func TestFraming(t *testing.T) {
	for _, tc := range []struct {
		name string
		add  func(m *virtiotest.Memory, r *virtiotest.Ring)
		read string
		room int
	}{
		{"one readable", func(m *virtiotest.Memory, r *virtiotest.Ring) { r.Add(bufs(put(m, "hello")), nil) },
			"hello", 0},
		{"split", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.Add(bufs(put(m, "he"), put(m, ""), put(m, "llo")), bufs(put(m, "."), put(m, "....")))
		}, "hello", 5},
		{"indirect", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.AddIndirect(bufs(put(m, "hel"), put(m, "lo")), bufs(put(m, "......")))
		}, "hello", 6},
		{"writable only", func(m *virtiotest.Memory, r *virtiotest.Ring) { r.Add(nil, bufs(put(m, "...."))) }, "", 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, r, q := setup(t, 8, false)
			tc.add(m, r)
			r.Publish()
			var c virtio.Chain
			ok, err := q.Pop(&c)
			if !ok || err != nil {
				t.Fatalf("pop %v %v", ok, err)
			}
			if c.ReadLen != len(tc.read) || c.WriteLen != tc.room {
				t.Errorf("%d readable and %d writable bytes", c.ReadLen, c.WriteLen)
			}
			for off := range len(tc.read) + 1 {
				got := make([]byte, len(tc.read)-off+1)
				if n := c.ReadAt(got, off); string(got[:n]) != tc.read[off:] {
					t.Errorf("from %d: %q", off, got[:n])
				}
			}
			data := []byte("ABCDEFGH")[:tc.room]
			for off := range tc.room {
				if n := c.WriteAt(data[off:], off); n != tc.room-off {
					t.Errorf("wrote %d at %d", n, off)
				}
			}
			if got := bytes.Join(c.Write, nil); !bytes.Equal(got, data) {
				t.Errorf("written %q, want %q", got, data)
			}
		})
	}
}

// TestElementInPieces: hot elements may come in any framing too.
func TestElementInPieces(t *testing.T) {
	m, r, q := setup(t, 8, false)
	r.Add(bufs(put(m, "ab"), put(m, "cd")), nil)
	w1, w2 := put(m, "...."), put(m, "....")
	r.AddIndirect(nil, bufs(w1, w2))
	r.Publish()
	e, ok, err := q.Peek(false)
	if !ok || err != nil || !e.Gathered || string(e.Data) != "abcd" {
		t.Fatalf("%q %v %v", e.Data, ok, err)
	}
	if e2, _, _ := q.Next(false); e2.Head != e.Head || string(e2.Data) != "abcd" {
		t.Fatalf("peek and next differ: %v", e2)
	}
	q.PushUsed(e.Head, 0)
	e, ok, err = q.Next(true)
	if !ok || err != nil || len(e.Data) != 8 {
		t.Fatalf("%d bytes, %v %v", len(e.Data), ok, err)
	}
	copy(e.Data, "12345678")
	q.PushElem(e, 6)
	q.Publish()
	if got := string(m.At(w1.GPA, 4)) + string(m.At(w2.GPA, 4)); got != "123456.." {
		t.Errorf("scattered %q", got)
	}
	r.Reap()
	if _, n, ok := r.Reap(); !ok || n != 6 {
		t.Errorf("used length %d, %v", n, ok)
	}
}

func TestRewind(t *testing.T) {
	m, r, q := setup(t, 4, false)
	for _, s := range []string{"a", "b", "c"} {
		r.Add(bufs(put(m, s)), nil)
	}
	r.Publish()
	for range 3 {
		q.Next(false)
	}
	q.Rewind(2)
	if q.Outstanding() != 1 {
		t.Errorf("%d outstanding", q.Outstanding())
	}
	if e, ok, _ := q.Next(false); !ok || string(e.Data) != "b" {
		t.Errorf("after rewind %q", e.Data)
	}
}

// TestState stops a ring with elements taken and resumes it elsewhere.
func TestState(t *testing.T) {
	m, r, q := setup(t, 4, false)
	for _, s := range []string{"a", "b", "c"} {
		r.Add(bufs(put(m, s)), nil)
	}
	r.Publish()
	e, _, _ := q.Next(false)
	q.Next(false)
	q.PushUsed(e.Head, 0)
	q.Publish()
	if q.State() != 1 || q.Popped() != 2 {
		t.Fatalf("state %d, taken %d", q.State(), q.Popped())
	}
	c := r.Config()
	c.Base, c.Resume = 2, true // the used index wins
	p, err := virtio.New(m, c)
	if err != nil {
		t.Fatal(err)
	}
	if e, ok, _ := p.Next(false); !ok || string(e.Data) != "b" {
		t.Errorf("resumed at %q", e.Data)
	}
	p.Reset()
	r.Reset()
	r.Add(bufs(put(m, "x")), nil)
	r.Publish()
	if e, ok, _ := p.Next(false); !ok || string(e.Data) != "x" {
		t.Errorf("after reset %q %v", e.Data, ok)
	}
}

// TestSucceed: a ring takes the place of another one. What was taken there,
// used out of order or not at all, is used at once; the rest waits.
func TestSucceed(t *testing.T) {
	const base = 0xfffd // indices wrap on the way
	for _, tc := range []struct {
		name       string
		num        int // entries of the new ring
		begin, end int // of what is in it
		want       string
	}{
		{"the same", 4, 1, 4, "cd"},
		{"larger", 16, 1, 4, "cd"},
		{"only what waits", 2, 2, 4, "cd"},
		{"with some that was taken", 2, 2, 4, "cd"},
		{"all of it", 8, 0, 4, "cd"},
		{"less than waits", 2, 3, 4, ""},
		{"nothing", 2, 4, 4, ""},
		{"more than there was", 8, 1, 5, ""},
		{"another end", 8, 1, 3, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := virtiotest.NewMemory(t, 1<<20)
			fill := func(num, from, to int) (*virtiotest.Ring, *virtio.Queue) {
				r := virtiotest.NewRing(m, num, false)
				r.Begin(base + uint16(from))
				for i := from; i < to; i++ {
					r.Add(bufs(put(m, string(rune('a'+i)))), nil)
				}
				r.Publish()
				c := r.Config()
				c.Resume = true
				q, err := virtio.New(m, c)
				if err != nil {
					t.Fatal(err)
				}
				return r, q
			}
			_, old := fill(4, 0, 4)
			old.Next(false)
			second, _, _ := old.Next(false)
			old.PushUsed(second.Head, 0) // not published
			r, q := fill(tc.num, tc.begin, tc.end)
			ok, err := q.Succeed(old)
			if err != nil || ok != (tc.want != "") {
				t.Fatalf("%v %v", ok, err)
			}
			if !ok {
				if e, ok, err := old.Next(false); !ok || err != nil || string(e.Data) != "c" {
					t.Errorf("refused, yet the ring goes on with %q, %v", e.Data, err)
				}
				return
			}
			q.Publish()
			for i := tc.begin; i < 2; i++ {
				if _, _, ok := r.Reap(); !ok {
					t.Errorf("element %d was taken and is not used", i)
				}
			}
			if _, _, ok := r.Reap(); ok || q.Outstanding() != 0 {
				t.Error("used what waits")
			}
			got := ""
			for {
				e, ok, err := q.Next(false)
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				got += string(e.Data)
				q.PushUsed(e.Head, 0)
			}
			if got != tc.want {
				t.Errorf("took %q, want %q", got, tc.want)
			}
			q.Publish()
			for range got {
				if _, _, ok := r.Reap(); !ok {
					t.Error("not used")
				}
			}
		})
	}

	// Faults of either ring are seen.
	m := virtiotest.NewMemory(t, 1<<20)
	rings := func() (a, b *virtiotest.Ring, p, q *virtio.Queue) {
		a, b = virtiotest.NewRing(m, 4, false), virtiotest.NewRing(m, 4, false)
		a.Add(bufs(put(m, "a")), nil)
		a.Publish()
		b.Add(bufs(put(m, "a")), nil)
		b.Publish()
		p, _ = virtio.New(m, a.Config())
		q, _ = virtio.New(m, b.Config())
		return a, b, p, q
	}
	a, _, p, q := rings()
	a.PublishIndex(9)
	if ok, err := q.Succeed(p); ok || !errors.Is(err, virtio.FaultIndexJump) || p.Err() == nil || q.Err() != nil {
		t.Errorf("old index: %v %v", ok, err)
	}
	_, b, p, q := rings()
	b.PublishIndex(9)
	if ok, err := q.Succeed(p); ok || !errors.Is(err, virtio.FaultIndexJump) || q.Err() == nil || p.Err() != nil {
		t.Errorf("new index: %v %v", ok, err)
	}
	_, b, p, q = rings()
	p.Next(false)
	b.SetAvail(0, 4)
	if ok, err := q.Succeed(p); ok || !errors.Is(err, virtio.FaultHead) {
		t.Errorf("new head: %v %v", ok, err)
	}
}

func TestNotification(t *testing.T) {
	use := func(m *virtiotest.Memory, r *virtiotest.Ring, q *virtio.Queue, n int) bool {
		for range n {
			r.Add(bufs(put(m, "x")), nil)
		}
		r.Publish()
		for range n {
			e, _, _ := q.Next(false)
			q.PushUsed(e.Head, 0)
		}
		notify := q.Publish()
		for range n {
			r.Reap()
		}
		return notify
	}
	t.Run("flags", func(t *testing.T) {
		m, r, q := setup(t, 4, false)
		if !use(m, r, q, 1) {
			t.Error("not notified")
		}
		r.NoInterrupt(true)
		if use(m, r, q, 1) {
			t.Error("notified in spite of the flag")
		}
		if q.Publish() {
			t.Error("notified of nothing")
		}
	})
	t.Run("event index", func(t *testing.T) {
		m, r, q := setup(t, 4, true)
		r.SetUsedEvent(100)
		if !use(m, r, q, 1) {
			t.Error("the first publication must notify")
		}
		if use(m, r, q, 1) {
			t.Error("notified before the event index")
		}
		r.SetUsedEvent(3)
		if use(m, r, q, 1) || !use(m, r, q, 1) {
			t.Error("must notify when index 3 is used, not before")
		}
		r.SetUsedEvent(6)
		if !use(m, r, q, 4) {
			t.Error("a batch that passes the event index must notify")
		}
	})
}

func TestKick(t *testing.T) {
	m, r, q := setup(t, 4, false)
	q.DisableKick()
	if r.WantsKick() {
		t.Error("kick wanted")
	}
	if pending, _ := q.EnableKick(); pending || !r.WantsKick() {
		t.Error("kick not wanted, or pending in an empty ring")
	}
	q.DisableKick()
	r.Add(bufs(put(m, "x")), nil)
	r.Publish()
	if pending, _ := q.EnableKick(); !pending {
		t.Error("the element that came before was missed")
	}
	m, r, q = setup(t, 4, true)
	for range 3 {
		r.Add(bufs(put(m, "x")), nil)
	}
	r.Publish()
	for range 3 {
		q.Next(false)
	}
	if pending, _ := q.EnableKick(); pending || r.AvailEvent() != 3 {
		t.Errorf("avail_event %d", r.AvailEvent())
	}
}

func TestSetupRefusals(t *testing.T) {
	m := virtiotest.NewMemory(t, 1<<20)
	r := virtiotest.NewRing(m, 4, true)
	for _, tc := range []struct {
		name string
		edit func(c *virtio.Config)
		want virtio.Fault
	}{
		{"no entries", func(c *virtio.Config) { c.Num = 0 }, virtio.FaultSize},
		{"odd", func(c *virtio.Config) { c.Num = 3 }, virtio.FaultSize},
		{"too many", func(c *virtio.Config) { c.Num = 65536 }, virtio.FaultSize},
		{"2^31", func(c *virtio.Config) { c.Num = 1 << 31 }, virtio.FaultSize},
		{"desc align", func(c *virtio.Config) { c.Desc += 8 }, virtio.FaultAlign},
		{"avail align", func(c *virtio.Config) { c.Driver++ }, virtio.FaultAlign},
		{"used align", func(c *virtio.Config) { c.Device += 2 }, virtio.FaultAlign},
		{"desc outside", func(c *virtio.Config) { c.Desc = m.Base + uint64(len(m.Bytes)) - 48 },
			virtio.FaultRingMemory},
		{"avail outside", func(c *virtio.Config) { c.Driver = m.Base + uint64(len(m.Bytes)) - 12 },
			virtio.FaultRingMemory},
		{"used outside", func(c *virtio.Config) { c.Device = m.Base + uint64(len(m.Bytes)) - 36 },
			virtio.FaultRingMemory},
		{"wrap", func(c *virtio.Config) { c.Device = ^uint64(0) - 7 }, virtio.FaultRingMemory},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := r.Config()
			tc.edit(&c)
			if _, err := virtio.New(m, c); err != tc.want {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

// TestAvailAlignment: the available ring is only 2-byte aligned by the
// standard, so its index may be in either half of a word.
func TestAvailAlignment(t *testing.T) {
	for _, shift := range []uint64{0, 2} {
		m := virtiotest.NewMemory(t, 1<<16)
		desc, avail, used := m.Alloc(64, 16), m.Alloc(64, 4)+shift, m.Alloc(64, 4)
		q, err := virtio.New(m, virtio.Config{Num: 4, Desc: desc, Driver: avail, Device: used, EventIdx: true})
		if err != nil {
			t.Fatal(err)
		}
		b := m.At(avail, 14)
		binary.LittleEndian.PutUint16(b[2:], 1)
		binary.LittleEndian.PutUint16(b[4:], 2)
		if n, err := q.Avail(); n != 1 || err != nil {
			t.Errorf("shift %d: %d %v", shift, n, err)
		}
		if e, ok, err := q.Next(false); !ok || err != nil || e.Head != 2 {
			t.Errorf("shift %d: %v %v %v", shift, e, ok, err)
		}
	}
}

func TestBrokenRings(t *testing.T) {
	far := ^uint64(0) - 100
	for _, tc := range []struct {
		name string
		edit func(m *virtiotest.Memory, r *virtiotest.Ring)
		want virtio.Fault
	}{
		{"index jump", func(m *virtiotest.Memory, r *virtiotest.Ring) { r.PublishIndex(5) }, virtio.FaultIndexJump},
		{"index back", func(m *virtiotest.Memory, r *virtiotest.Ring) { r.PublishIndex(0xffff) },
			virtio.FaultIndexJump},
		{"head", func(m *virtiotest.Memory, r *virtiotest.Ring) { r.SetAvail(0, 4); r.PublishIndex(1) },
			virtio.FaultHead},
		{"next", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.SetDesc(0, m.Base, 1, abi.DescFlagNext, 4)
			r.PublishIndex(1)
		}, virtio.FaultNext},
		{"loop", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.SetDesc(0, m.Base, 1, abi.DescFlagNext, 0)
			r.PublishIndex(1)
		}, virtio.FaultLoop},
		{"loop of nothing", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.SetDesc(0, m.Base, 0, abi.DescFlagNext, 1)
			r.SetDesc(1, m.Base, 0, abi.DescFlagNext, 0)
			r.PublishIndex(1)
		}, virtio.FaultLoop},
		{"readable after writable", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.SetDesc(0, m.Base, 1, abi.DescFlagNext|abi.DescFlagWrite, 1)
			r.SetDesc(1, m.Base, 1, 0, 0)
			r.PublishIndex(1)
		}, virtio.FaultDirection},
		{"outside", func(m *virtiotest.Memory, r *virtiotest.Ring) { r.SetDesc(0, 1, 1, 0, 0); r.PublishIndex(1) },
			virtio.FaultAddress},
		{"over the end", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.SetDesc(0, m.Base+uint64(len(m.Bytes))-1, 2, 0, 0)
			r.PublishIndex(1)
		}, virtio.FaultAddress},
		{"wrapping", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.SetDesc(0, far, 200, 0,
				0)
			r.PublishIndex(1)
		}, virtio.FaultAddress},
		{"empty table", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.SetDesc(0, m.Base, 0, abi.DescFlagIndirect, 0)
			r.PublishIndex(1)
		}, virtio.FaultIndirect},
		{"odd table", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.SetDesc(0, m.Base, 17, abi.DescFlagIndirect, 0)
			r.PublishIndex(1)
		}, virtio.FaultIndirect},
		{"huge table", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.SetDesc(0, m.Base, 1025*16, abi.DescFlagIndirect, 0)
			r.PublishIndex(1)
		}, virtio.FaultIndirect},
		{"table and next", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.SetDesc(0, m.Base, 16, abi.DescFlagIndirect|abi.DescFlagNext, 1)
			r.PublishIndex(1)
		}, virtio.FaultIndirect},
		{"nested table", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.SetDesc(0, r.Desc+16, 16, abi.DescFlagIndirect, 0)
			r.SetDesc(1, r.Desc+16, 16, abi.DescFlagIndirect, 0)
			r.PublishIndex(1)
		}, virtio.FaultIndirect},
		{"table outside", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.SetDesc(0, 16, 16, abi.DescFlagIndirect, 0)
			r.PublishIndex(1)
		}, virtio.FaultAddress},
		{"next beyond table", func(m *virtiotest.Memory, r *virtiotest.Ring) {
			r.SetDesc(0, r.Desc+16, 16, abi.DescFlagIndirect, 0)
			r.SetDesc(1, m.Base, 1, abi.DescFlagNext, 1)
			r.PublishIndex(1)
		}, virtio.FaultNext},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, hot := range []bool{false, true} {
				m, r, q := setup(t, 4, false)
				tc.edit(m, r)
				var err error
				var ok bool
				if hot {
					_, ok, err = q.Next(false)
				} else {
					ok, err = q.Pop(new(virtio.Chain))
				}
				if ok || !errors.Is(err, tc.want) {
					t.Errorf("hot %v: %v, %v, want %v", hot, ok, err, tc.want)
				}
				if _, err := q.Avail(); err != tc.want || q.Err() != tc.want {
					t.Errorf("fault not kept: %v", err)
				}
			}
		})
	}
}

func TestDirection(t *testing.T) {
	m, r, q := setup(t, 4, false)
	r.Add(bufs(put(m, "x")), nil)
	r.Publish()
	if _, ok, err := q.Next(true); ok || err != virtio.FaultDirection {
		t.Errorf("readable element on a writable ring: %v %v", ok, err)
	}
	m, r, q = setup(t, 4, false)
	r.Add(nil, bufs(put(m, "x"), put(m, "y")))
	r.Publish()
	if _, ok, err := q.Next(false); ok || err != virtio.FaultDirection {
		t.Errorf("writable element on a readable ring: %v %v", ok, err)
	}
}

func TestHotCallsDoNotAllocate(t *testing.T) {
	for _, event := range []bool{false, true} {
		m, r, q := setup(t, 8, event)
		for i := range 8 {
			r.SetDesc(i, m.Alloc(64, 64), 64, 0, 0)
			r.SetAvail(uint16(i), uint16(i))
		}
		idx := uint16(0)
		if n := testing.AllocsPerRun(1000, func() {
			idx += 4
			r.PublishIndex(idx)
			for range 4 {
				e, ok, err := q.Next(false)
				if !ok || err != nil {
					t.Fatal(ok, err)
				}
				q.PushUsed(e.Head, 0)
			}
			q.Publish()
			if _, err := q.EnableKick(); err != nil {
				t.Fatal(err)
			}
			q.DisableKick()
		}); n != 0 {
			t.Errorf("event %v: %v allocations", event, n)
		}
		if idx == 0 {
			t.Error("nothing ran")
		}
	}
}

func BenchmarkNextPushPublish(b *testing.B) {
	m, r, q := setup(b, 256, false)
	for i := range 256 {
		r.SetDesc(i, m.Alloc(64, 64), 64, 0, 0)
		r.SetAvail(uint16(i), uint16(i))
	}
	b.ReportAllocs()
	idx := uint16(0)
	for b.Loop() {
		idx += 32
		r.PublishIndex(idx)
		for range 32 {
			e, _, err := q.Next(false)
			if err != nil {
				b.Fatal(err)
			}
			q.PushUsed(e.Head, 0)
		}
		q.Publish()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/32, "ns/element")
}

func BenchmarkPop(b *testing.B) {
	m, r, q := setup(b, 256, false)
	for i := range 256 {
		r.SetDesc(i, m.Alloc(64, 64), 64, 0, 0)
		r.SetAvail(uint16(i), uint16(i))
	}
	b.ReportAllocs()
	var c virtio.Chain
	idx := uint16(0)
	for b.Loop() {
		idx++
		r.PublishIndex(idx)
		if ok, err := q.Pop(&c); !ok {
			b.Fatal(err)
		}
		q.PushUsed(c.Head, 0)
		q.Publish()
	}
}
