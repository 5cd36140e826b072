// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
	"weft/internal/proto/mem"
)

// MemTable is the memory that a front-end announced, by guest physical address. Any lane may look up
// memory at any time; the session's goroutine changes the table. The result of a lookup stays mapped
// until the unmap function given to retire has run.
//
// Memory of a file that its owner can shrink may vanish under a reader (SIGBUS): lanes run with
// debug.SetPanicOnFault, and Owns identifies the session. Programs must seal theirs (mustSeal).
//
// Memory removed during a session is not unmapped at once: empty private pages replace it, so that
// references that remain (an arm word, inline data of a request in progress) meet neither a fault nor
// another mapping. The end of the session unmaps the pages.
type MemTable struct {
	snap     atomic.Pointer[snapshot]
	retire   func(unmap func())
	max      uint64
	mustSeal bool
	dirty    dirtyState // the session's goroutine's
	active   atomic.Pointer[dirtyLog]

	mu     sync.Mutex
	mapped []*region   // all that has an address range here, buried ones too
	logs   []*dirtyLog // and dirty logs
	bytes  uint64      // of their mappings
	closed bool
}

var (
	_ mem.Space     = (*MemTable)(nil)
	_ virtio.Memory = (*MemTable)(nil)
)

// snapshot is one immutable state of the table.
type snapshot struct {
	regions []*region     // by GPA
	spans   []span        // of regions, together for the search
	last    atomic.Uint32 // of many regions, the index of the one last found; only a hint
}

// fewRegions is how many are searched one by one: below it, sharing a hint
// costs more than it saves.
const fewRegions = 8

// region is one piece of announced memory.
type region struct {
	gpa, size, user, offset uint64
	dev, ino                uint64 // of the file
	sealed                  bool
	data                    []byte // the region
	mapping                 []byte // the mapping around it
}

// maxMemory bounds what one session may announce and what of it may be mapped
// here, maxMapped how many regions it may have had in all: each buried one
// keeps its address range.
const (
	maxMemory = 1 << 42
	maxMapped = 4 * abi.MaxMemRegions
	// Mappings are of whole pages, of 1 GiB at the most, around their regions.
	pageSlack = 1 << 31
)

func newMemTable(retire func(unmap func())) *MemTable {
	t := &MemTable{retire: retire, max: maxMemory}
	t.snap.Store(&snapshot{})
	return t
}

// find returns the region that holds gpa, or nil.
func (s *snapshot) find(gpa uint64) *region {
	if len(s.spans) <= fewRegions {
		for i := range s.spans {
			if gpa-s.spans[i].gpa < s.spans[i].size {
				return s.regions[i]
			}
		}
		return nil
	}
	if i := int(s.last.Load()); gpa-s.spans[i].gpa < s.spans[i].size {
		return s.regions[i]
	}
	lo, hi := 0, len(s.spans)
	for lo < hi {
		if m := int(uint(lo+hi) >> 1); s.spans[m].gpa <= gpa {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo == 0 || gpa-s.spans[lo-1].gpa >= s.spans[lo-1].size {
		return nil
	}
	s.last.Store(uint32(lo - 1))
	return s.regions[lo-1]
}

// Prefix implements virtio.Memory.
func (t *MemTable) Prefix(gpa, n uint64) []byte {
	r := t.snap.Load().find(gpa)
	if r == nil {
		return nil
	}
	off := gpa - r.gpa
	n = min(n, r.size-off)
	return r.data[off : off+n : off+n]
}

// View implements mem.Space.
func (t *MemTable) View(addr, n uint64) []byte {
	if b := t.Prefix(addr, n); uint64(len(b)) == n {
		return b
	}
	return nil
}

// ReadV implements mem.Space.
func (t *MemTable) ReadV(addr uint64, dst [][]byte) error {
	for _, d := range dst {
		for len(d) > 0 {
			b := t.Prefix(addr, uint64(len(d)))
			if len(b) == 0 {
				return mem.ErrFault
			}
			d, addr = d[copy(d, b):], addr+uint64(len(b))
		}
	}
	return nil
}

// WriteV implements mem.Space. A write to a range that is not mapped completely writes nothing.
func (t *MemTable) WriteV(w []mem.Write) (int, error) {
	for i := range w {
		if !t.write(w[i].Addr, w[i].Data) {
			return i, mem.ErrFault
		}
	}
	return len(w), nil
}

func (t *MemTable) write(addr uint64, p []byte) bool {
	if b := t.View(addr, uint64(len(p))); b != nil || len(p) == 0 {
		copy(b, p)
		return true
	}
	if !t.Contains(addr, uint64(len(p))) {
		return false
	}
	for len(p) > 0 {
		b := t.Prefix(addr, uint64(len(p)))
		if len(b) == 0 {
			return false
		}
		p, addr = p[copy(b, p):], addr+uint64(len(b))
	}
	return true
}

// Contains reports whether all of [addr, addr+n) is announced, in however many
// regions.
func (t *MemTable) Contains(addr, n uint64) bool {
	for n > 0 {
		b := t.Prefix(addr, n)
		if len(b) == 0 {
			return false
		}
		addr, n = addr+uint64(len(b)), n-uint64(len(b))
	}
	return true
}

// CompareSwap implements mem.Space.
func (t *MemTable) CompareSwap(addr, compare, swap uint64) (uint64, error) {
	w := atomicWord(t.View(addr, 8))
	if w == nil {
		return 0, mem.ErrFault
	}
	for {
		old := w.Load()
		if old != compare || w.CompareAndSwap(old, swap) {
			return old, nil
		}
	}
}

// FetchAdd implements mem.Space.
func (t *MemTable) FetchAdd(addr, add uint64) (uint64, error) {
	w := atomicWord(t.View(addr, 8))
	if w == nil {
		return 0, mem.ErrFault
	}
	return w.Add(add) - add, nil
}

// Sealed reports whether no announced file can shrink.
func (t *MemTable) Sealed() bool {
	for _, r := range t.snap.Load().regions {
		if !r.sealed {
			return false
		}
	}
	return true
}

// fromUser translates a front-end's own address range to guest physical; it
// must lie in one region.
func (t *MemTable) fromUser(addr, n uint64) (uint64, bool) {
	for _, r := range t.snap.Load().regions {
		if off := addr - r.user; off < r.size && n <= r.size-off {
			return r.gpa + off, true
		}
	}
	return 0, false
}

// check validates the numbers of a region that a front-end announces.
func check(m abi.VUMemReg) error {
	if m.Size == 0 || m.GPA+m.Size < m.GPA || m.UserAddr+m.Size < m.UserAddr || m.MmapOffset+m.Size < m.MmapOffset ||
		m.MmapOffset+m.Size > 1<<62 {
		return fatal(BadMemory, "region %#x+%#x user %#x offset %#x", m.GPA, m.Size, m.UserAddr, m.MmapOffset)
	}
	return nil
}

func overlap(a, an, b, bn uint64) bool { return a < b+bn && b < a+an }

// same reports whether r is exactly what m announces, apart from the file.
func (r *region) same(m abi.VUMemReg) bool {
	return r.gpa == m.GPA && r.size == m.Size && r.user == m.UserAddr && r.offset == m.MmapOffset
}

// mapRegion maps a region. The descriptor stays the caller's. Only files of memory have seals; access
// to a page of another file could block for a disk or for a program. The seals are read before the
// size: a file sealed against shrinking keeps that size.
func mapRegion(m abi.VUMemReg, fd int) (*region, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, &end{Reason: BadMemory, detail: "not a file of shared memory or of huge pages", cause: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &end{Reason: BadMemory, cause: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size < 0 || uint64(st.Size) < m.MmapOffset+m.Size {
		return nil, fatal(BadMemory, "file of %d bytes, mode %o, for region %#x+%#x at offset %#x", st.Size, st.Mode,
			m.GPA, m.Size, m.MmapOffset)
	}
	// Huge pages require offset and length in their own unit.
	unit := uint64(unix.Getpagesize())
	if b := uint64(st.Blksize); b > unit && b&(b-1) == 0 && b <= 1<<30 {
		unit = b
	}
	start := m.MmapOffset &^ (unit - 1)
	length := (m.MmapOffset + m.Size - start + unit - 1) &^ (unit - 1)
	b, err := unix.Mmap(fd, int64(start), int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, &end{Reason: BadMemory, detail: "mmap", cause: err}
	}
	skip := m.MmapOffset - start
	return &region{
		gpa: m.GPA, size: m.Size, user: m.UserAddr, offset: m.MmapOffset, dev: uint64(st.Dev), ino: st.Ino,
		sealed: seals&unix.F_SEAL_SHRINK != 0,
		data:   b[skip : skip+m.Size : skip+m.Size], mapping: b,
	}, nil
}

// mapRegion maps a region that the table may hold; drop or close undoes it.
func (t *MemTable) mapRegion(m abi.VUMemReg, fd int) (*region, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.mapped) >= maxMapped || m.Size > t.max {
		return nil, unix.ENOSPC
	}
	r, err := mapRegion(m, fd)
	if err != nil {
		return nil, err
	}
	n := uint64(len(r.mapping))
	if t.bytes+n > t.max+pageSlack || !room.take(n) {
		unix.Munmap(r.mapping)
		return nil, unix.ENOSPC
	}
	t.bytes += n
	if t.mustSeal && !r.sealed {
		t.unmap(r)
		return nil, fatal(BadMemory, "region %#x+%#x is of a file that can shrink", m.GPA, m.Size)
	}
	t.mapped = append(t.mapped, r)
	return r, nil
}

// unmap gives the address range of r back; the caller holds mu.
func (t *MemTable) unmap(r *region) {
	n := uint64(len(r.mapping))
	unix.Munmap(r.mapping)
	t.bytes -= n
	room.give(n)
}

// release undoes mapRegion of a region that no snapshot ever held.
func (t *MemTable) release(list []*region) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range list {
		t.mapped = slices.DeleteFunc(t.mapped, func(x *region) bool { return x == r })
		t.unmap(r)
	}
}

// bury replaces memory that went by empty pages, and retires it.
func (t *MemTable) bury(gone []*region) {
	if len(gone) == 0 {
		return
	}
	t.retire(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.closed {
			return
		}
		for _, r := range gone {
			overlay(r.mapping)
		}
	})
}

// sameFile reports whether fd is the file r maps.
func (r *region) sameFile(fd int) bool {
	var st unix.Stat_t
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil {
		return false
	}
	return unix.Fstat(fd, &st) == nil && uint64(st.Dev) == r.dev && st.Ino == r.ino
}

// add announces one more region. An exact repetition succeeds and changes
// nothing: front-ends announce memory once per queue pair.
func (t *MemTable) add(m abi.VUMemReg, fd int) error {
	if err := check(m); err != nil {
		return err
	}
	old := t.snap.Load().regions
	total := m.Size
	for _, r := range old {
		if r.same(m) && r.sameFile(fd) {
			return nil
		}
		if overlap(r.gpa, r.size, m.GPA, m.Size) || overlap(r.user, r.size, m.UserAddr, m.Size) {
			return fatal(BadMemory, "region %#x+%#x overlaps %#x+%#x", m.GPA, m.Size, r.gpa, r.size)
		}
		total += r.size
	}
	if len(old) >= abi.MaxMemRegions || total > t.max {
		return unix.ENOSPC
	}
	r, err := t.mapRegion(m, fd)
	if err != nil {
		return err
	}
	t.store(append(slices.Clone(old), r))
	return nil
}

func (t *MemTable) store(regions []*region) {
	slices.SortFunc(regions, func(a, b *region) int { return cmp.Compare(a.gpa, b.gpa) })
	spans := make([]span, len(regions))
	for i, r := range regions {
		spans[i] = span{r.gpa, r.size}
	}
	t.snap.Store(&snapshot{regions: regions, spans: spans})
}

// lookup returns the region that m names exactly, or nil.
func (t *MemTable) lookup(m abi.VUMemReg) *region {
	for _, r := range t.snap.Load().regions {
		if r.gpa == m.GPA && r.size == m.Size && r.user == m.UserAddr {
			return r
		}
	}
	return nil
}

// drop removes a region from the table.
func (t *MemTable) drop(gone *region) {
	t.store(slices.DeleteFunc(slices.Clone(t.snap.Load().regions), func(r *region) bool { return r == gone }))
	t.bury([]*region{gone})
}

// replace sets the table to list. Regions that stay keep their mapping; stop is called for each
// removed region before its removal.
func (t *MemTable) replace(list []abi.VUMemReg, fds []int, stop func(*region)) error {
	old := t.snap.Load().regions
	var fresh, next []*region
	undo := func(err error) error {
		t.release(fresh)
		return err
	}
	total := uint64(0)
	for i, m := range list {
		if err := check(m); err != nil {
			return undo(err)
		}
		if total += m.Size; total > t.max || m.Size > t.max {
			return undo(unix.ENOSPC)
		}
		for _, o := range next {
			if overlap(o.gpa, o.size, m.GPA, m.Size) || overlap(o.user, o.size, m.UserAddr, m.Size) {
				return undo(fatal(BadMemory, "regions %#x+%#x and %#x+%#x overlap", m.GPA, m.Size, o.gpa, o.size))
			}
		}
		k := slices.IndexFunc(old, func(r *region) bool { return r.same(m) && r.sameFile(fds[i]) })
		if k >= 0 {
			next = append(next, old[k])
			continue
		}
		r, err := t.mapRegion(m, fds[i])
		if err != nil {
			return undo(err)
		}
		fresh, next = append(fresh, r), append(next, r)
	}
	var gone []*region
	for _, r := range old {
		if !slices.Contains(next, r) {
			stop(r)
			gone = append(gone, r)
		}
	}
	t.store(next)
	t.bury(gone)
	return nil
}

// close forgets everything and unmaps it when nothing can use it any more.
func (t *MemTable) close() {
	t.store(nil)
	if l := t.closeLog(); l != nil {
		t.retire(func() { t.unmapLog(l) })
	}
	t.mu.Lock()
	none := len(t.mapped) == 0
	t.mu.Unlock()
	if none {
		return
	}
	t.retire(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.closed = true
		for _, r := range t.mapped {
			t.unmap(r)
		}
		t.mapped = nil
	})
}
