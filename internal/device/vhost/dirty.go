// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"golang.org/x/sys/unix"

	"weft/internal/device/virtio"
)

// logPage is the size of a page of the dirty log: one bit each.
const logPage = 1 << 12

// maxLog bounds a dirty log: a bit for each page of maxMemory.
const maxLog = maxMemory / logPage / 8

var _ virtio.Log = (*MemTable)(nil)

// dirtyLog is the memory, shared with the front-end, in which the device marks pages of the guest that
// it wrote. The front-end copies the guest's memory at the same time, clears bits and copies those
// pages again.
type dirtyLog struct {
	bits    []byte
	mapping []byte
}

// dirtyState is the log of a table; on reports whether writes are logged.
type dirtyState struct {
	log *dirtyLog
	on  bool
}

// Dirty implements virtio.Log: it marks the pages of n bytes at gpa, which have been
// written. Any lane may call it. Pages beyond the log, which the front-end
// sized, are not the node's concern.
func (t *MemTable) Dirty(gpa, n uint64) {
	l := t.active.Load()
	if l == nil || n == 0 {
		return
	}
	for page := gpa / logPage; page <= (gpa+n-1)/logPage; page++ {
		if page/8 >= uint64(len(l.bits)) {
			return
		}
		setBit(l.bits, page)
	}
}

// Logging reports whether the guest is being copied.
func (t *MemTable) Logging() bool { return t.active.Load() != nil }

// setLog maps a dirty log of size bytes. The descriptor stays the caller's.
func (t *MemTable) setLog(fd int, offset, size uint64) error {
	if size == 0 || size > maxLog || offset+size < offset || offset+size > 1<<62 {
		return fatal(BadMemory, "log of %#x bytes at offset %#x", size, offset)
	}
	// As for memory: no other kind of file has a content that is surely there.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil {
		return &end{Reason: BadMemory, detail: "the log is not a file of shared memory", cause: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &end{Reason: BadMemory, cause: err}
	}
	if st.Size < 0 || uint64(st.Size) < offset+size {
		return fatal(BadMemory, "log of %#x bytes at offset %#x in a file of %#x", size, offset, st.Size)
	}
	start := offset &^ (uint64(unix.Getpagesize()) - 1)
	n := offset + size - start
	if !room.take(n) {
		return unix.ENOSPC
	}
	b, err := unix.Mmap(fd, int64(start), int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		room.give(n)
		return &end{Reason: BadMemory, detail: "map the log", cause: err}
	}
	old := t.dirty.log
	t.dirty.log = &dirtyLog{bits: b[offset-start:], mapping: b}
	t.mu.Lock()
	t.logs = append(t.logs, t.dirty.log)
	t.mu.Unlock()
	t.applyLog()
	if old != nil {
		t.retire(func() { t.unmapLog(old) })
	}
	return nil
}

// logging turns the log on or off. When it returns, every write that is not logged has been made: a
// copy of the memory that begins now contains it.
func (t *MemTable) logging(on bool) {
	t.dirty.on = on
	t.applyLog()
	if on {
		t.retire(func() {})
	}
}

func (t *MemTable) applyLog() {
	var l *dirtyLog
	if t.dirty.on {
		l = t.dirty.log
	}
	t.active.Store(l)
}

func (t *MemTable) unmapLog(l *dirtyLog) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, x := range t.logs {
		if x == l {
			t.logs = append(t.logs[:i], t.logs[i+1:]...)
			unix.Munmap(l.mapping)
			room.give(uint64(len(l.mapping)))
			return
		}
	}
}

// closeLog forgets the log; it returns what is to be unmapped when no lane
// can use it any more.
func (t *MemTable) closeLog() *dirtyLog {
	l := t.dirty.log
	t.dirty = dirtyState{}
	t.active.Store(nil)
	return l
}
