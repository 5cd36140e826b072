// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"weft/internal/proto/ib"
)

// farSpace is memory that only calls reach, as a process is: no views. Bytes
// at and above hole do not exist.
type farSpace struct {
	b      []byte
	hole   uint64
	writes int // calls
}

func (s *farSpace) View(addr, n uint64) []byte { return nil }

func (s *farSpace) ReadV(addr uint64, dst [][]byte) error {
	for _, d := range dst {
		if addr+uint64(len(d)) > s.hole {
			return ErrFault
		}
		addr += uint64(copy(d, s.b[addr:]))
	}
	return nil
}

func (s *farSpace) WriteV(w []Write) (int, error) {
	s.writes++
	for i := range w {
		if w[i].Addr+uint64(len(w[i].Data)) > s.hole {
			return i, ErrFault
		}
		copy(s.b[w[i].Addr:], w[i].Data)
	}
	return len(w), nil
}

func (s *farSpace) CompareSwap(addr, compare, swap uint64) (uint64, error) { return 0, ErrFault }
func (s *farSpace) FetchAdd(addr, add uint64) (uint64, error)              { return 0, ErrFault }

// nearSpace is mapped memory.
type nearSpace struct{ farSpace }

func (s *nearSpace) View(addr, n uint64) []byte {
	if addr+n > s.hole {
		return nil
	}
	return s.b[addr : addr+n : addr+n]
}

const spaceSize = 1 << 20

func pattern(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func far(b []byte) *farSpace { return &farSpace{b: b, hole: uint64(len(b))} }

func near(b []byte) *nearSpace { return &nearSpace{*far(b)} }

func region(s Space, start, base, n uint64) *Region {
	return &Region{Space: s, Start: start, Base: base, Len: n, Access: ib.LocalWrite | ib.RemoteWrite}
}

type owner struct{ failed int }

func (o *owner) PlacementFailed() { o.failed++ }

// TestPut copies a gather list of odd pieces between every pair of kinds of
// memory and compares all bytes, those around the destination too.
func TestPut(t *testing.T) {
	src := pattern(spaceSize, 1)
	kinds := map[string]func([]byte) Space{
		"mapped": func(b []byte) Space { return near(b) },
		"far":    func(b []byte) Space { return far(b) },
	}
	for sn, sk := range kinds {
		for dn, dk := range kinds {
			for _, n := range []int{0, 1, 7, 63, 4095, 4096, 4097, 9000, 70000, 300001} {
				s, back := sk(src), bytes.Repeat([]byte{0xa5}, spaceSize)
				d := dk(back)
				inline := pattern(13, 9)
				segs := []Seg{
					{Region: region(s, 0x1000, 100, 500), Addr: 0x1000 + 7, Len: 400},
					{Region: region(s, 0, 0, spaceSize), Addr: 77, Len: 0},
					{Bytes: inline, Len: uint64(len(inline))},
					{Region: region(s, 0, 0, spaceSize), Addr: 4321, Len: 400000},
				}
				whole := append(append(append([]byte(nil), src[107:507]...), inline...), src[4321:404321]...)
				off := uint64(5)
				p := ListPayload(segs, off, n)
				b, o := NewBatch(64<<10), new(owner)
				dst := region(d, 0xdead000, 333, 400000)
				if r := b.Put(o, dst, 0xdead000+11, &p, 0, n); r != OK {
					t.Fatalf("%s to %s, %d bytes: result %d", sn, dn, n, r)
				}
				b.Flush()
				want := bytes.Repeat([]byte{0xa5}, spaceSize)
				copy(want[344:], whole[off:off+uint64(n)])
				if !bytes.Equal(want, back) || o.failed != 0 {
					t.Errorf("%s to %s, %d bytes: wrong bytes (failures told: %d)", sn, dn, n, o.failed)
				}
			}
		}
	}
}

// TestPutBytesByPages writes through a region made of scattered pages.
func TestPutBytesByPages(t *testing.T) {
	back := make([]byte, spaceSize)
	r := &Region{Space: far(back), Start: 0x7000_0123, Len: 10000, PageShift: 12, FirstOff: 0x123,
		Pages: []uint64{0x8000, 0x3000, 0xf000}, Access: ib.LocalWrite}
	data := pattern(10000, 3)
	p := BytesPayload(data)
	b := NewBatch(4096)
	if got := b.Put(new(owner), r, r.Start, &p, 0, len(data)); got != OK {
		t.Fatal(got)
	}
	b.Flush()
	got := append(append(append([]byte(nil), back[0x8123:0x9000]...), back[0x3000:0x4000]...),
		back[0xf000:0xf000+10000-0x1000-0xedd]...)
	if !bytes.Equal(data, got) {
		t.Error("pages hold other bytes than were put")
	}
	out := make([]byte, len(data))
	if err := r.ReadV(r.Start, [][]byte{out[:1], out[1:5000], out[5000:]}); err != nil || !bytes.Equal(data, out) {
		t.Errorf("read back: %v", err)
	}
}

// TestFlushTellsOwners proves that one bad write costs only its owner.
func TestFlushTellsOwners(t *testing.T) {
	back := make([]byte, 4096)
	s := far(back)
	s.hole = 1000
	r := region(s, 0, 0, 4096)
	b := NewBatch(4096)
	var owners [5]owner
	for i := range owners {
		addr := uint64(i * 100)
		if i == 2 {
			addr = 2000
		}
		p := BytesPayload([]byte{1, 2, 3, byte(i)})
		if got := b.Put(&owners[i], r, addr, &p, 0, 4); got != OK {
			t.Fatal(got)
		}
	}
	if s.writes != 0 {
		t.Fatal("small writes were not held back")
	}
	b.Flush()
	for i := range owners {
		want := 0
		if i == 2 {
			want = 1
		}
		if owners[i].failed != want {
			t.Errorf("owner %d was told of %d failures, want %d", i, owners[i].failed, want)
		}
	}
	if s.writes != 2 || back[403] != 4 {
		t.Errorf("%d calls, last byte %d", s.writes, back[403])
	}
}

// TestFaults checks the reported side.
func TestFaults(t *testing.T) {
	good := make([]byte, 100000)
	bad := far(good)
	bad.hole = 10
	b := NewBatch(4096)
	p := ListPayload([]Seg{{Region: region(bad, 0, 0, 50000), Len: 50000}}, 0, 50000)
	if got := b.Put(new(owner), region(far(good), 0, 0, 100000), 0, &p, 0, 50000); got != SourceFault {
		t.Errorf("unreadable source: %d", got)
	}
	q := BytesPayload(make([]byte, 50000))
	if got := b.Put(new(owner), region(bad, 0, 0, 50000), 0, &q, 0, 50000); got != DestFault {
		t.Errorf("unwritable destination: %d", got)
	}
	r := region(far(good), 0, 0, 100000)
	r.Revoke()
	if got := b.Put(new(owner), r, 0, &q, 0, 10); got != DestFault {
		t.Errorf("revoked destination: %d", got)
	}
	if r.Allows(0, 1, 0) {
		t.Error("a revoked region allows access")
	}
}

// TestAllows walks the edges, the overflowing ones first.
func TestAllows(t *testing.T) {
	r := region(nil, 0xffff_ffff_ffff_f000, 0, 0x1000)
	for _, c := range []struct {
		addr, n uint64
		need    ib.Access
		want    bool
	}{
		{0xffff_ffff_ffff_f000, 0x1000, 0, true},
		{0xffff_ffff_ffff_f001, 0x1000, 0, false},
		{0xffff_ffff_ffff_ffff, 1, 0, true},
		{0xffff_ffff_ffff_ffff, 2, 0, false},
		{0xffff_ffff_ffff_f000, 1<<64 - 1, 0, false},
		{0, 1, 0, false},
		{0xffff_ffff_ffff_efff, 1, 0, false},
		{0xffff_ffff_ffff_f000, 0, 0, true},
		{0xffff_ffff_ffff_f000, 8, ib.LocalWrite, true},
		{0xffff_ffff_ffff_f000, 8, ib.LocalWrite | ib.RemoteAtomic, false},
	} {
		if got := r.Allows(c.addr, c.n, c.need); got != c.want {
			t.Errorf("Allows(%#x, %#x, %b) = %v", c.addr, c.n, c.need, got)
		}
	}
}

// TestGather fills slices of odd sizes from odd pieces.
func TestGather(t *testing.T) {
	src := pattern(spaceSize, 5)
	segs := []Seg{{Region: region(far(src), 0, 0, spaceSize), Addr: 10, Len: 1000},
		{Bytes: src[2000:2100], Len: 100}, {Region: region(near(src), 0, 0, spaceSize), Addr: 50, Len: 3000}}
	whole := append(append(append([]byte(nil), src[10:1010]...), src[2000:2100]...), src[50:3050]...)
	p := ListPayload(segs, 100, 3900)
	out := make([]byte, 3800)
	if r := NewBatch(1).Gather([][]byte{out[:1], out[1:905], out[905:1500], out[1500:]}, &p, 50); r != OK {
		t.Fatal(r)
	}
	if !bytes.Equal(whole[150:3950], out) {
		t.Error("gathered other bytes")
	}
	if r := NewBatch(1).Gather([][]byte{make([]byte, 4200)}, &p, 0); r != SourceFault {
		t.Error("gathering past the end of the list succeeded")
	}
}

func TestPutAllocatesNothing(t *testing.T) {
	b, o := NewBatch(64<<10), new(owner)
	r := region(far(make([]byte, spaceSize)), 0, 0, spaceSize)
	s := region(far(make([]byte, spaceSize)), 0, 0, spaceSize)
	p := BytesPayload(make([]byte, 64))
	q := ListPayload([]Seg{{Region: s, Len: 1024}}, 0, 1024)
	if n := testing.AllocsPerRun(100, func() {
		for i := range 50 {
			b.Put(o, r, uint64(i*64), &p, 0, 64)
			b.Put(o, r, uint64(i*2048), &q, 0, 1024)
		}
		b.Flush()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPutSmall(bb *testing.B) {
	b, o := NewBatch(64<<10), new(owner)
	r := region(far(make([]byte, spaceSize)), 0, 0, spaceSize)
	p := BytesPayload(make([]byte, 8))
	bb.ReportAllocs()
	for i := 0; bb.Loop(); i++ {
		b.Put(o, r, uint64(i&1023)*8, &p, 0, 8)
		if i&63 == 63 {
			b.Flush()
		}
	}
}

// viewedSpace is mapped memory that nothing reads or writes by calls.
type viewedSpace struct {
	nearSpace
	t testing.TB
}

func (s *viewedSpace) ReadV(addr uint64, dst [][]byte) error {
	s.t.Error("mapped memory was read by a call")
	return s.nearSpace.ReadV(addr, dst)
}

func (s *viewedSpace) WriteV(w []Write) (int, error) {
	s.t.Error("mapped memory was written by a call")
	return s.nearSpace.WriteV(w)
}

// TestPutBetweenPages: between two mapped regions of pages that lie anywhere there is one copy.
func TestPutBetweenPages(t *testing.T) {
	const page, pages = 4096, 16
	paged := func(b []byte, seed uint64) *Region {
		r := region(&viewedSpace{*near(b), t}, 100, 0, page*pages-100)
		r.PageShift, r.FirstOff = 12, 100
		for _, p := range rand.New(rand.NewPCG(seed, 2)).Perm(pages) {
			r.Pages = append(r.Pages, uint64(p*page))
		}
		r.Pages[3], r.Pages[4] = 20*page, 21*page // two that are consecutive
		return r
	}
	at := func(r *Region, b []byte, addr uint64) byte {
		off := addr - r.Start + r.FirstOff
		return b[r.Pages[off>>12]+off&(page-1)]
	}
	from, to := pattern(spaceSize, 5), make([]byte, spaceSize)
	src, dst := paged(from, 1), paged(to, 2)
	b := NewBatch(8192)
	for _, x := range []struct{ s, d, n uint64 }{{100, 100, 1}, {5000, 7000, 4096}, {100, 101, page * (pages - 1)},
		{12000, 16000, 9000}} {
		clear(to)
		p := ListPayload([]Seg{{Region: src, Addr: x.s, Len: x.n}}, 0, int(x.n))
		if r := b.Put(&owner{}, dst, x.d, &p, 0, int(x.n)); r != OK {
			t.Fatal(r)
		}
		for i := range x.n {
			if at(dst, to, x.d+i) != at(src, from, x.s+i) {
				t.Fatalf("%+v: byte %d", x, i)
			}
		}
		if n := bytes.Count(to, []byte{0}); n < spaceSize-int(x.n)-1 {
			t.Errorf("%+v: more than that was written", x)
		}
	}
}
