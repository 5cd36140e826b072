// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/proto/abi"
	"weft/internal/proto/mem"
)

func memfd(t testing.TB, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("memtable", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

func table(t testing.TB) *MemTable {
	tab := newMemTable(func(unmap func()) { unmap() })
	t.Cleanup(tab.close)
	return tab
}

const page = 4096

// TestLookupAgainstModel compares every access with a flat map of bytes, for
// few regions and for many, some of them adjacent, one file behind all.
func TestLookupAgainstModel(t *testing.T) {
	for _, n := range []int{1, fewRegions, fewRegions + 1, 40} {
		rnd := rand.New(rand.NewPCG(1, uint64(n)))
		fd := memfd(t, int64(n*2*page), unix.F_SEAL_SHRINK)
		tab := table(t)
		model := map[uint64]byte{}
		gpa := uint64(1 << 32)
		order := rnd.Perm(n)
		for _, i := range order {
			m := abi.VUMemReg{GPA: gpa + uint64(i)*3*page, Size: 2 * page, UserAddr: 1<<40 + uint64(i)*2*page,
				MmapOffset: uint64(i * 2 * page)}
			if i%2 == 1 { // adjacent to its predecessor
				m.GPA -= page
			}
			if err := tab.add(m, fd); err != nil {
				t.Fatal(err)
			}
			for j := range m.Size {
				model[m.GPA+j] = 0
			}
		}
		at := func() uint64 { return gpa - page + rnd.Uint64N(uint64(n+1)*3*page) }
		for range 500 {
			a, size := at(), rnd.Uint64N(3*page)
			run := uint64(0)
			for ; run < size; run++ {
				if _, ok := model[a+run]; !ok {
					break
				}
			}
			p := tab.Prefix(a, size)
			if uint64(len(p)) > run || run > 0 && len(p) == 0 {
				t.Fatalf("%d regions: prefix of %#x+%d has %d bytes, %d are there", n, a, size, len(p), run)
			}
			if tab.Contains(a, size) != (run == size) {
				t.Fatalf("%d regions: contains %#x+%d is wrong", n, a, size)
			}
			data := make([]byte, size)
			for i := range data {
				data[i] = byte(rnd.Uint32())
			}
			if done, err := tab.WriteV([]mem.Write{{Addr: a, Data: data}}); (err == nil) != (run == size) ||
				err == nil && done != 1 {
				t.Fatalf("%d regions: write %#x+%d: %d, %v", n, a, size, done, err)
			}
			if run == size {
				for i, b := range data {
					model[a+uint64(i)] = b
				}
			}
			got := make([]byte, size)
			half := size / 2
			if err := tab.ReadV(a, [][]byte{got[:half], got[half:]}); (err == nil) != (run == size) {
				t.Fatalf("%d regions: read %#x+%d: %v", n, a, size, err)
			} else if err == nil && !bytes.Equal(got, data) {
				t.Fatalf("%d regions: read %#x+%d differs", n, a, size)
			}
		}
	}
}

func TestWriteStopsAtFault(t *testing.T) {
	tab := table(t)
	if err := tab.add(abi.VUMemReg{GPA: page, Size: page}, memfd(t, page, 0)); err != nil {
		t.Fatal(err)
	}
	w := []mem.Write{{Addr: page, Data: []byte("a")}, {Addr: 0, Data: []byte("b")}, {Addr: page + 1, Data: []byte("c")}}
	if n, err := tab.WriteV(w); n != 1 || err != mem.ErrFault {
		t.Errorf("%d, %v", n, err)
	}
	if got := tab.View(page, 2); !bytes.Equal(got, []byte{'a', 0}) {
		t.Errorf("memory %q", got)
	}
}

func TestAtomics(t *testing.T) {
	tab := table(t)
	if err := tab.add(abi.VUMemReg{GPA: 0, Size: page}, memfd(t, page, 0)); err != nil {
		t.Fatal(err)
	}
	b := tab.View(8, 8)
	binary.NativeEndian.PutUint64(b, 5)
	if old, err := tab.CompareSwap(8, 4, 9); old != 5 || err != nil || binary.NativeEndian.Uint64(b) != 5 {
		t.Errorf("failed compare: %d, %v", old, err)
	}
	if old, err := tab.CompareSwap(8, 5, 9); old != 5 || err != nil || binary.NativeEndian.Uint64(b) != 9 {
		t.Errorf("compare and swap: %d, %v", old, err)
	}
	if old, err := tab.FetchAdd(8, ^uint64(0)); old != 9 || err != nil || binary.NativeEndian.Uint64(b) != 8 {
		t.Errorf("fetch and add: %d, %v", old, err)
	}
	for _, a := range []uint64{1, 4, page - 4, page} {
		if _, err := tab.CompareSwap(a, 0, 0); err != mem.ErrFault {
			t.Errorf("compare and swap at %#x: %v", a, err)
		}
		if _, err := tab.FetchAdd(a, 0); err != mem.ErrFault {
			t.Errorf("fetch and add at %#x: %v", a, err)
		}
	}
}

func TestRegionRefusals(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	top := ^uint64(0)
	for _, tc := range []struct {
		name string
		m    abi.VUMemReg
		fd   int
		want error
	}{
		{"empty", abi.VUMemReg{GPA: 1 << 30}, -1, BadMemory},
		{"gpa wraps", abi.VUMemReg{GPA: top - page + 1, Size: page}, -1, BadMemory},
		{"user wraps", abi.VUMemReg{GPA: 1 << 30, Size: page, UserAddr: top - 1}, -1, BadMemory},
		{"offset wraps", abi.VUMemReg{GPA: 1 << 30, Size: page, MmapOffset: top - 1}, -1, BadMemory},
		{"offset is negative", abi.VUMemReg{GPA: 1 << 30, Size: page, MmapOffset: 1 << 63}, -1, BadMemory},
		{"beyond the file", abi.VUMemReg{GPA: 1 << 30, Size: 2 * page, MmapOffset: 3*page + 1}, -1, BadMemory},
		{"a pipe", abi.VUMemReg{GPA: 1 << 30, Size: page}, int(r.Fd()), BadMemory},
		{"no descriptor", abi.VUMemReg{GPA: 1 << 30, Size: page}, 1 << 20, BadMemory},
		{"overlaps in guest", abi.VUMemReg{GPA: page, Size: page, UserAddr: 1 << 30}, -1, BadMemory},
		{"overlaps in user", abi.VUMemReg{GPA: 1 << 30, Size: page, UserAddr: page}, -1, BadMemory},
		{"repetition of another file", abi.VUMemReg{GPA: 0, Size: 2 * page}, -1, BadMemory},
		{"too much", abi.VUMemReg{GPA: 1 << 43, Size: maxMemory, UserAddr: 1 << 50}, -1, unix.ENOSPC},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tab := table(t)
			if err := tab.add(abi.VUMemReg{GPA: 0, Size: 2 * page}, memfd(t, 2*page, 0)); err != nil {
				t.Fatal(err)
			}
			if tc.fd < 0 {
				tc.fd = memfd(t, 4*page, 0)
			}
			if err := tab.add(tc.m, tc.fd); !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
			if n := len(tab.snap.Load().regions); n != 1 {
				t.Errorf("%d regions", n)
			}
		})
	}
}

func TestRepetitionAndLimit(t *testing.T) {
	fd := memfd(t, page, unix.F_SEAL_SHRINK)
	tab := table(t)
	for i := range uint64(abi.MaxMemRegions) {
		m := abi.VUMemReg{GPA: i * page, Size: page, UserAddr: i * page}
		for range 2 {
			if err := tab.add(m, fd); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tab.add(abi.VUMemReg{GPA: 1 << 40, Size: page, UserAddr: 1 << 40}, fd); err != unix.ENOSPC {
		t.Errorf("one region too many: %v", err)
	}
	if !tab.Sealed() {
		t.Error("sealed file not seen")
	}
	if err := tab.replace([]abi.VUMemReg{{GPA: 0, Size: page}}, []int{memfd(t, page, 0)},
		func(*region) {}); err != nil {
		t.Fatal(err)
	}
	if tab.Sealed() {
		t.Error("unsealed file not seen")
	}
}

// TestOddOffset: neither size nor offset of a region need to be pages.
func TestOddOffset(t *testing.T) {
	fd := memfd(t, 3*page, 0)
	if _, err := unix.Pwrite(fd, []byte("here"), page+100); err != nil {
		t.Fatal(err)
	}
	tab := table(t)
	if err := tab.add(abi.VUMemReg{GPA: 7, Size: 300, UserAddr: 1 << 20, MmapOffset: page + 100}, fd); err != nil {
		t.Fatal(err)
	}
	if got := tab.View(7, 4); string(got) != "here" {
		t.Errorf("%q", got)
	}
	if tab.View(7, 301) != nil || tab.View(6, 1) != nil || len(tab.View(306, 1)) != 1 {
		t.Error("bounds are wrong")
	}
	for _, tc := range []struct {
		user, n, gpa uint64
		ok           bool
	}{{1 << 20, 300, 7, true}, {1<<20 + 299, 1, 306, true}, {1<<20 + 299, 2, 0, false}, {1<<20 - 1, 1, 0,
		false}, {1 << 20, 301, 0, false}} {
		if gpa, ok := tab.fromUser(tc.user, tc.n); gpa != tc.gpa || ok != tc.ok {
			t.Errorf("user %#x+%d: %#x %v", tc.user, tc.n, gpa, ok)
		}
	}
}

// TestRetire: what was looked up stays mapped until the lanes agreed.
func TestRetire(t *testing.T) {
	var unmaps []func()
	tab := newMemTable(func(f func()) { unmaps = append(unmaps, f) })
	keep, gone := memfd(t, page, 0), memfd(t, page, 0)
	a, b := abi.VUMemReg{GPA: 0, Size: page}, abi.VUMemReg{GPA: page, Size: page, UserAddr: page}
	for _, x := range []struct {
		m  abi.VUMemReg
		fd int
	}{{a, keep}, {b, gone}} {
		if err := tab.add(x.m, x.fd); err != nil {
			t.Fatal(err)
		}
	}
	stays, goes := tab.View(0, 8), tab.View(page, 8)
	var stopped []uint64
	c := abi.VUMemReg{GPA: 4 * page, Size: page, UserAddr: 4 * page}
	if err := tab.replace([]abi.VUMemReg{c, a}, []int{gone, keep},
		func(r *region) { stopped = append(stopped, r.gpa) }); err != nil {
		t.Fatal(err)
	}
	if len(stopped) != 1 || stopped[0] != page {
		t.Errorf("stopped %v", stopped)
	}
	if tab.View(page, 1) != nil || tab.View(4*page, 1) == nil {
		t.Error("table not replaced")
	}
	if again := tab.View(0, 8); &again[0] != &stays[0] {
		t.Error("a region that stays was mapped anew")
	}
	goes[0] = 1 // still mapped
	if len(unmaps) != 1 {
		t.Fatalf("%d unmaps", len(unmaps))
	}
	file := tab.View(4*page, 8) // the same file, announced elsewhere
	unmaps[0]()
	goes[1] = 2 // removed: remaining references are harmless
	if goes[0] != 0 || file[0] != 1 || file[1] != 0 {
		t.Errorf("buried memory reads % x, the file % x", goes, file)
	}
	at := addressOf(goes)
	if !tab.Owns(at) || !tab.Owns(addressOf(stays)) || tab.Owns(at+1<<40) {
		t.Error("ownership of addresses is wrong")
	}
	tab.close()
	stays[0] = 1
	if len(unmaps) != 2 || tab.View(0, 1) != nil || !tab.Owns(at) {
		t.Errorf("%d unmaps after close", len(unmaps))
	}
	unmaps[1]()
	if tab.Owns(at) {
		t.Error("still mapped")
	}
	tab.close()
	if len(unmaps) != 2 {
		t.Errorf("%d unmaps", len(unmaps))
	}
}

// TestBuryLimit: a front-end cannot use up the node's address space by
// announcing and removing.
func TestBuryLimit(t *testing.T) {
	tab := table(t)
	fd := memfd(t, page, 0)
	m := abi.VUMemReg{GPA: 0, Size: page}
	for range maxMapped {
		if err := tab.add(m, fd); err != nil {
			t.Fatal(err)
		}
		tab.drop(tab.lookup(m))
	}
	if err := tab.add(m, fd); err != unix.ENOSPC {
		t.Errorf("%v", err)
	}
	if err := tab.replace([]abi.VUMemReg{m}, []int{fd}, func(*region) {}); err != unix.ENOSPC {
		t.Errorf("%v", err)
	}
}

func TestProgramsMustSeal(t *testing.T) {
	tab := table(t)
	tab.mustSeal = true
	if err := tab.add(abi.VUMemReg{GPA: 0, Size: page}, memfd(t, page, unix.F_SEAL_GROW)); !errors.Is(err, BadMemory) {
		t.Errorf("%v", err)
	}
	if len(tab.mapped) != 0 || tab.View(0, 1) != nil {
		t.Error("mapped nevertheless")
	}
	if err := tab.add(abi.VUMemReg{GPA: 0, Size: page}, memfd(t, page, unix.F_SEAL_SHRINK)); err != nil {
		t.Error(err)
	}
}

// TestConcurrentLookups: lanes look up while the session changes the table.
func TestConcurrentLookups(t *testing.T) {
	var unmaps []func()
	tab := newMemTable(func(f func()) { unmaps = append(unmaps, f) })
	fd := memfd(t, 32*page, unix.F_SEAL_SHRINK)
	at := func(i uint64) abi.VUMemReg {
		return abi.VUMemReg{GPA: i * page, Size: page, UserAddr: i * page, MmapOffset: i * page}
	}
	stop := make(chan struct{})
	var lanes sync.WaitGroup
	for range 2 {
		lanes.Go(func() {
			for i := uint64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if b := tab.Prefix(i%32*page+page-1, 8); len(b) != 0 && len(b) != 1 {
					t.Errorf("%d bytes at the end of a page", len(b))
				}
				if _, err := tab.FetchAdd(i%32*page, 1); err != nil && err != mem.ErrFault {
					t.Error(err)
				}
			}
		})
	}
	for round := range uint64(30) {
		for i := range uint64(32) {
			if err := tab.add(at(i), fd); err != nil {
				t.Fatal(err)
			}
		}
		for i := range uint64(32) {
			tab.drop(tab.lookup(at((i*5 + round) % 32)))
		}
	}
	close(stop)
	lanes.Wait()
	if len(unmaps) != 30*32 {
		t.Errorf("%d unmaps", len(unmaps))
	}
	tab.close()
	for _, f := range unmaps {
		f()
	}
}

// TestReplaceIsAtomic: a table with one bad region changes nothing.
func TestReplaceIsAtomic(t *testing.T) {
	tab := table(t)
	fd := memfd(t, page, 0)
	if err := tab.add(abi.VUMemReg{GPA: 0, Size: page}, fd); err != nil {
		t.Fatal(err)
	}
	list := []abi.VUMemReg{{GPA: 8 * page, Size: page, UserAddr: 8 * page}, {GPA: 9 * page, Size: 2 * page,
		UserAddr: 9 * page}}
	err := tab.replace(list, []int{fd, fd}, func(*region) { t.Error("stopped a region") })
	if !errors.Is(err, BadMemory) || tab.View(0, 1) == nil || tab.View(8*page, 1) != nil {
		t.Errorf("%v", err)
	}
	list[1].Size = 1
	list[1].GPA = 8*page + 1
	if err := tab.replace(list, []int{fd, fd}, func(*region) {}); !errors.Is(err, BadMemory) {
		t.Errorf("overlap within the table: %v", err)
	}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	for _, n := range []uint64{2, 100} {
		tab := table(t)
		fd := memfd(t, page, 0)
		for i := range n {
			if err := tab.add(abi.VUMemReg{GPA: i * page, Size: page, UserAddr: i * page}, fd); err != nil {
				t.Fatal(err)
			}
		}
		var b [64]byte
		dst, w := [][]byte{b[:]}, []mem.Write{{Addr: 8, Data: b[:]}}
		i := uint64(0)
		if a := testing.AllocsPerRun(100, func() {
			i = (i + 7) % n
			if len(tab.Prefix(i*page, 64)) != 64 || tab.ReadV(i*page, dst) != nil {
				t.Fatal("not there")
			}
			if _, err := tab.WriteV(w); err != nil {
				t.Fatal(err)
			}
		}); a != 0 {
			t.Errorf("%v allocations", a)
		}
	}
}

func BenchmarkPrefix(b *testing.B) {
	for _, n := range []uint64{2, 100} {
		tab := table(b)
		fd := memfd(b, page, 0)
		for i := range n {
			if err := tab.add(abi.VUMemReg{GPA: i * page, Size: page, UserAddr: i * page}, fd); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(map[uint64]string{2: "few", 100: "many"}[n], func(b *testing.B) {
			i := uint64(0)
			for b.Loop() {
				i ^= 1
				if len(tab.Prefix(i*page, 64)) != 64 {
					b.Fatal("not there")
				}
			}
		})
	}
}

// TestBuriedMemoryIsBounded: announcing and taking away again does not use up
// the addresses of this process, and the end of a session gives all back.
func TestBuriedMemoryIsBounded(t *testing.T) {
	left, regions := room.bytes, room.regions
	tab := table(t)
	const size = 1 << 40
	fd := memfd(t, size, unix.F_SEAL_SHRINK) // empty: it costs addresses only
	m := abi.VUMemReg{GPA: 0, Size: size, UserAddr: 0}
	n := 0
	for ; n < 100; n++ {
		if err := tab.add(m, fd); err == unix.ENOSPC {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		tab.drop(tab.lookup(m))
	}
	if n != maxMemory/size {
		t.Errorf("%d times %d bytes", n, size)
	}
	if room.bytes != left-uint64(n)*size || room.regions != regions-n {
		t.Errorf("left are %d bytes and %d regions", room.bytes, room.regions)
	}
	tab.close()
	if room.bytes != left || room.regions != regions {
		t.Errorf("after the end %d bytes and %d regions are missing", left-room.bytes, regions-room.regions)
	}
}

// TestBudgetOfAll: the last mapping is refused to every user.
func TestBudgetOfAll(t *testing.T) {
	b := budget{bytes: 10, regions: 2}
	if b.take(11) || !b.take(6) || b.take(5) || !b.take(4) || b.take(0) {
		t.Error("more than there is")
	}
	if b.give(6); !b.take(6) {
		t.Error("what was given back is lost")
	}
}

// TestFileOfFileSystem: pages of a file system could block a lane.
func TestFileOfFileSystem(t *testing.T) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tab := table(t)
	if err := tab.add(abi.VUMemReg{GPA: 0, Size: page}, int(f.Fd())); !errors.Is(err, BadMemory) ||
		!errors.Is(err, unix.EINVAL) {
		t.Errorf("a program's file as memory: %v", err)
	}
}
