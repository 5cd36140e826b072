// SPDX-License-Identifier: Apache-2.0

package virtio_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"weft/internal/device/virtio"
	"weft/internal/device/virtio/virtiotest"
)

// format is one kind of ring.
type format struct {
	packed, event bool
	num           int
}

func (f format) String() string {
	return fmt.Sprintf("packed=%v,event=%v,num=%d", f.packed, f.event, f.num)
}

var formats = []format{{false, false, 8}, {false, true, 8}, {true, false, 8}, {true, true, 8}, {true, true, 7},
	{true, false, 1}, {false, true, 1}}

// device is the device's side of a ring, with what only tests read.
type device interface {
	virtio.Ring
	virtio.Kicks
	Outstanding() int
}

// driver is the driver's side of a ring.
type driver struct {
	virtiotest.Elements
	virtiotest.Calls
}

func open(t testing.TB, f format) (*virtiotest.Memory, driver, device) {
	t.Helper()
	m := virtiotest.NewMemory(t, 4<<20)
	r := virtiotest.NewVring(m, f.num, f.packed, f.event)
	q, _, err := virtio.Open(m, r.Config)
	if err != nil {
		t.Fatal(err)
	}
	return m, driver{r.Elements, r.Calls}, q.(device)
}

// TestElements gives elements of every shape to a device that answers each, in
// batches of every size, and compares what both sides see.
func TestElements(t *testing.T) {
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) {
			m, r, q := open(t, f)
			rnd := rand.New(rand.NewPCG(1, 2))
			area := m.Alloc(1<<16, 64)
			text := m.At(area, 1<<16)
			for i := range text {
				text[i] = byte(rnd.Uint32())
			}
			piece := func() virtiotest.Buf {
				return virtiotest.Buf{GPA: area + uint64(rnd.IntN(1<<15)), Len: rnd.IntN(300)}
			}
			type elem struct {
				id          uint16
				read        []byte
				write       []virtiotest.Buf
				room, wrote int
			}
			var out []elem
			var c virtio.Chain
			for round := range 400 {
				for n := rnd.IntN(f.num + 1); n > 0; n-- {
					var e elem
					var read []virtiotest.Buf
					for range rnd.IntN(3) {
						b := piece()
						read, e.read = append(read, b), append(e.read, m.At(b.GPA, b.Len)...)
					}
					for range rnd.IntN(3) {
						b := virtiotest.Buf{GPA: m.Base + 1<<20 + uint64(rnd.IntN(1<<18)), Len: rnd.IntN(300)}
						e.write, e.room = append(e.write, b), e.room+b.Len
					}
					total := len(read) + len(e.write)
					switch {
					case total == 0:
						continue
					case rnd.IntN(3) == 0 && r.Free() > 0 && round < 200: // tables are never freed
						e.id = r.AddIndirect(read, e.write)
					case r.Free() >= total:
						e.id = r.Add(read, e.write)
					default:
						continue
					}
					out = append(out, e)
				}
				if ok, err := q.Pop(&c); ok || err != nil {
					t.Fatalf("round %d: an element before it was offered: %v", round, err)
				}
				r.Offer()
				for i := range out {
					e := &out[i]
					if ok, err := q.Pop(&c); !ok || err != nil {
						t.Fatalf("round %d: element %d: %v %v", round, i, ok, err)
					}
					got := make([]byte, c.ReadLen)
					c.ReadAt(got, 0)
					if c.Head != e.id || !bytes.Equal(got, e.read) || c.WriteLen != e.room {
						t.Fatalf("round %d: element %d is %d with %d and %d octets, want %d with %d and %d", round, i,
							c.Head, len(got), c.WriteLen, e.id, len(e.read), e.room)
					}
					if e.room > 0 {
						e.wrote = rnd.IntN(e.room + 1)
					}
					answer := bytes.Repeat([]byte{byte(round)}, e.wrote)
					if n := c.WriteAt(answer, 0); n != e.wrote {
						t.Fatalf("wrote %d of %d", n, e.wrote)
					}
					q.PushUsed(c.Head, uint32(e.wrote))
					if q.Outstanding() != 0 {
						t.Fatalf("%d outstanding", q.Outstanding())
					}
				}
				if _, _, ok := r.Reap(); ok {
					t.Fatal("used before it was published")
				}
				q.Publish()
				for _, e := range out {
					id, n, ok := r.Reap()
					if !ok || id != e.id || int(n) != e.wrote {
						t.Fatalf("used %d with %d octets, %v; want %d with %d", id, n, ok, e.id, e.wrote)
					}
				}
				if _, _, ok := r.Reap(); ok || r.Free() != f.num {
					t.Fatal("used too much")
				}
				out = out[:0]
			}
		})
	}
}

// TestNeverStuck: a driver and a device that sleep whenever they may never
// wait for each other for ever.
func TestNeverStuck(t *testing.T) {
	const total = 20000
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) {
			m, r, q := open(t, f)
			slots := m.Alloc(8*total, 8)
			kick, call := make(chan struct{}, 1), make(chan struct{}, 1)
			poke := func(c chan struct{}) {
				select {
				case c <- struct{}{}:
				default:
				}
			}
			done := make(chan error, 1)
			go func() { // the device
				var c virtio.Chain
				publish := func() {
					if q.Publish() {
						poke(call)
					}
				}
				for n := uint64(0); n < total; {
					q.DisableKick()
					ok, err := q.Pop(&c)
					if err != nil {
						done <- err
						return
					}
					if ok {
						var b [8]byte
						c.ReadAt(b[:], 0)
						if got := binary.LittleEndian.Uint64(b[:]); got != n {
							done <- fmt.Errorf("element %d carries %d", n, got)
							return
						}
						n++
						q.PushUsed(c.Head, 0)
						if n%3 == 0 || n == total {
							publish()
						}
						continue
					}
					publish()
					if pending, err := q.EnableKick(); err != nil {
						done <- err
						return
					} else if !pending {
						<-kick
					}
				}
				done <- nil
			}()
			reaped := 0
			reap := func() (any bool) {
				for {
					if _, _, ok := r.Reap(); !ok {
						return any
					}
					reaped++
					any = true
				}
			}
			timeout := time.After(60 * time.Second)
			for sent := uint64(0); reaped < total; {
				posted := false
				for r.Free() > 0 && sent < total {
					gpa := slots + 8*sent
					binary.LittleEndian.PutUint64(m.At(gpa, 8), sent)
					r.Add(bufs(virtiotest.Buf{GPA: gpa, Len: 8}), nil)
					sent++
					posted = true
					if sent%2 == 0 {
						break
					}
				}
				if posted && r.Offer() {
					poke(kick)
				}
				r.Deaf()
				if reap() || posted {
					continue
				}
				r.Listen()
				if reap() {
					continue
				}
				select {
				case <-call:
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
					done <- nil
					reap()
					if reaped != total {
						t.Fatalf("%d of %d", reaped, total)
					}
				case <-timeout:
					t.Fatalf("stuck: %d sent, %d reaped", sent, reaped)
				}
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestRingsAllocateNothing in the steady state, tables included.
func TestRingsAllocateNothing(t *testing.T) {
	for _, f := range formats {
		m, r, q := open(t, f)
		b := bufs(put(m, "abc"), put(m, "def"))
		w := bufs(put(m, "...."))
		var c virtio.Chain
		// The driver's side allocates: its elements are made before.
		const rounds = 60
		n := 0
		step := func() {
			q.DisableKick()
			for {
				ok, err := q.Pop(&c)
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				c.WriteAt([]byte("xy"), 1)
				q.PushUsed(c.Head, 2)
				n++
			}
			q.Publish()
			q.EnableKick()
		}
		var allocs float64
		for range rounds {
			r.AddIndirect(b, w)
			r.Offer()
			// One run, after one to warm up that finds nothing.
			if a := testing.AllocsPerRun(1, step); n > 2 {
				allocs += a
			}
			r.Reap()
		}
		if allocs != 0 || n != rounds {
			t.Errorf("%v: %v allocations, %d elements", f, allocs, n)
		}
	}
}

// pages is a log that remembers.
type pages map[uint64]bool

func (p pages) Dirty(gpa, n uint64) {
	for a := gpa &^ 63; a < gpa+n; a += 64 {
		p[a] = true
	}
}

// TestLog: whatever the device changes in the guest's memory is in the log.
func TestLog(t *testing.T) {
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) {
			m := virtiotest.NewMemory(t, 1<<20)
			r := virtiotest.NewVring(m, f.num, f.packed, f.event)
			log := pages{}
			c := r.Config
			c.Log = log
			before := bytes.Clone(m.Bytes)
			q, kicks, err := virtio.Open(m, c)
			if err != nil {
				t.Fatal(err)
			}
			compare := func(what string) {
				t.Helper()
				for a := 0; a < len(before); a += 64 {
					if !bytes.Equal(before[a:a+64], m.Bytes[a:a+64]) && !log[m.Base+uint64(a)] {
						t.Fatalf("%s: %#x changed and is not in the log", what, a)
					}
				}
				clear(log)
				copy(before, m.Bytes)
			}
			compare("start")
			var chain virtio.Chain
			slots := m.Alloc(1<<12, 64)
			for round := range 3 * f.num {
				w := bufs(virtiotest.Buf{GPA: slots + uint64(100*(round%8)), Len: 70})
				if f.num > 1 {
					w = append(w, virtiotest.Buf{GPA: slots + 1<<11, Len: 500})
				}
				r.Elements.Add(nil, w)
				r.Elements.Offer()
				copy(before, m.Bytes)
				if ok, err := q.Pop(&chain); !ok || err != nil {
					t.Fatal(ok, err)
				}
				chain.WriteAt(bytes.Repeat([]byte{byte(round + 1)}, min(200, chain.WriteLen)), 0)
				compare("write")
				q.PushUsed(chain.Head, 200)
				q.Publish()
				compare("used")
				kicks.EnableKick()
				compare("enable")
				kicks.DisableKick()
				compare("disable")
				if _, _, ok := r.Elements.Reap(); !ok {
					t.Fatal("nothing used")
				}
			}
		})
	}
}
