// SPDX-License-Identifier: Apache-2.0

// Package procmem accesses the memory of a client process by address.
//
// What comes in: the descriptor of /proc/self/mem that the client passed, the process id from the
// kernel, and the client's mapped memory. What goes out: a mem.Space that serves mapped ranges by
// plain copies and all other addresses by system calls. Package vhost creates one per session that
// sends WEFT_PROC_MEM; the adapter uses it through mem.Region. It must never access a process other
// than the one that the descriptor is bound to, and never block the scheduler on a client's
// page fault: every call into the kernel is an ordinary one, during which the runtime can reuse the
// processor.
//
// docs/notes/process-memory.md describes the methods, their permissions and the races they are guarded
// against.
package procmem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/proto/mem"
)

// Mapped is the part of a client's memory that is mapped in this process. It
// allows concurrent use.
type Mapped interface {
	// View returns the n bytes at addr, or nil if they are not one mapping.
	View(addr, n uint64) []byte
}

// Config names the process.
type Config struct {
	// Mem is open for reading and writing on /proc/self/mem of the client. New takes ownership, also
	// on error.
	Mem *os.File
	// PID and UID are those of SO_PEERCRED, in this process's namespaces.
	PID int
	UID uint32
	// Mapped answers for directly mapped ranges; nil if there are none.
	Mapped Mapped
	// The 8 bytes at ProbeAddr hold ProbeValue (host byte order) as long as
	// the client's image lives. They prove which memory a call reaches.
	ProbeAddr, ProbeValue uint64
}

// smallMax bounds the transfers of one range that are made through the memory
// descriptor; there it is cheaper than a process_vm call.
const smallMax = 4096

// maxVec is the number of segments of one process_vm call. The kernel accepts 1024; at 256 the fixed
// cost is small beside the cost per segment, and the vectors fit on the stack, so that a Space has no
// shared state.
const maxVec = 256

// Space is the memory of one process. It is safe for concurrent use and
// allocates nothing per call. Close ends it.
type Space struct {
	mem    *os.File
	fd     int // of mem
	mapped Mapped
	probe  uint64
	pid    int // 0: process_vm calls are not used
	why    string

	start  time.Time
	probed atomic.Int64 // when alive last looked, since start; not before the first look

	protection atomic.Int32 // what was in the way of the last call that failed, if it may have been protection

	closed atomic.Bool
	users  atomic.Int32 // calls that use fd, and one for Close to give back
	ended  atomic.Uint64
}

var _ mem.Space = (*Space)(nil)

// New checks that c.Mem is the memory of a process with the probe word in it,
// and finds out which system calls reach that process. The errors are meant
// for the operator of the node.
func New(c Config) (*Space, error) {
	s := &Space{mem: c.Mem, fd: int(c.Mem.Fd()), mapped: c.Mapped, probe: c.ProbeAddr, start: time.Now()}
	s.probed.Store(int64(-probeEvery))
	s.users.Store(1)
	link, err := checkMem(c.Mem)
	if err == nil {
		err = s.probeMem(c.ProbeValue)
	}
	if err != nil {
		c.Mem.Close()
		return nil, fmt.Errorf("reach memory of process %d: %w", c.PID, err)
	}
	if err := s.probeVM(c, link); err != nil {
		s.why = err.Error()
	} else {
		s.pid = c.PID
	}
	return s, nil
}

// Close releases the descriptor. Calls in progress finish; later ones fail with mem.ErrFault.
func (s *Space) Close() error {
	if s.closed.Swap(true) {
		return os.ErrClosed
	}
	s.leave()
	return nil
}

// enter keeps the descriptor open until leave, and fails after Close. An
// os.File would do the same, but buffers given to its methods escape.
func (s *Space) enter() bool {
	for {
		n := s.users.Load()
		if n == 0 || s.closed.Load() {
			return false
		}
		if s.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Calls returns the number of finished calls into the process, and whether calls are in progress. A
// call that stays in progress waits for the handler of a page. Any goroutine may call it.
func (s *Space) Calls() (ended uint64, busy bool) {
	// In this order a call that ends in between is not taken for one that stays.
	busy = s.users.Load() > 1
	return s.ended.Load(), busy
}

func (s *Space) leave() {
	s.ended.Add(1)
	if s.users.Add(-1) == 0 {
		s.mem.Close()
	}
}

// Method names the system calls in use, and why not the faster ones, for
// status output.
func (s *Space) Method() string {
	if s.pid != 0 {
		return "process_vm"
	}
	return "mem (process_vm not used: " + s.why + ")"
}

// checkMem proves that f is the memory file of a process: a client may send any descriptor, and
// writing to some files of /proc acts with the rights of the writer. It returns the path of the file.
func checkMem(f *os.File) (string, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return "", err
	}
	if st.Type != unix.PROC_SUPER_MAGIC {
		return "", errors.New("descriptor is not a file of /proc")
	}
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return "", err
	}
	if !isMemPath(link) {
		return "", fmt.Errorf("descriptor is %q, not the memory of a process", link)
	}
	fl, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return "", err
	}
	if fl&unix.O_ACCMODE != unix.O_RDWR {
		return "", errors.New("descriptor is not open for reading and writing")
	}
	return link, nil
}

// isMemPath reports whether p ends in "/<number>/mem": the memory file of a
// process or thread wherever that /proc is mounted. No other file of /proc has
// such a name.
func isMemPath(p string) bool {
	const tail = "/mem"
	n := len(p) - len(tail)
	if n <= 0 || p[n:] != tail {
		return false
	}
	i := n
	for i > 0 && p[i-1] >= '0' && p[i-1] <= '9' {
		i--
	}
	return i < n && i > 0 && p[i-1] == '/'
}

func (s *Space) probeMem(value uint64) error {
	var b [8]byte
	if !s.read(s.probe, b[:]) {
		return errors.New("probe word is not readable")
	}
	if binary.NativeEndian.Uint64(b[:]) != value {
		return errors.New("probe word differs")
	}
	return nil
}

// probeVM determines whether process_vm calls may be used: they address a process by id and check
// permissions at each call, against the process that has the id at that time.
func (s *Space) probeVM(c Config, link string) error {
	if link != fmt.Sprintf("/proc/%d/mem", c.PID) {
		return fmt.Errorf("the descriptor is %s, the peer is process %d", link, c.PID)
	}
	if c.UID != 0 {
		// A client that keeps its socket through exec of a set-uid program
		// must not make a privileged node write into that program. Where the
		// node is not privileged the kernel refuses by itself.
		mayAny, err := tracesAny()
		if err != nil {
			return fmt.Errorf("read own capabilities: %w", err)
		}
		if mayAny {
			return errors.New("the node is more privileged than the process")
		}
	}
	var b [8]byte
	local := [1]unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	remote := [1]unix.RemoteIovec{{Base: uintptr(s.probe), Len: len(b)}}
	n, err := unix.ProcessVMReadv(c.PID, local[:], remote[:], 0)
	if err != nil {
		return err
	}
	if n != len(b) || binary.NativeEndian.Uint64(b[:]) != c.ProbeValue {
		return errors.New("probe word differs")
	}
	return nil
}

// tracesAny reports whether this process may trace processes of other users.
func tracesAny() (bool, error) {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return false, err
	}
	return d[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0, nil
}

// probeEvery is for how long a successful probe is believed. A probe is a
// system call of its own, a fifth of what copying 64 KiB costs; an exec takes
// longer than this, and its session ends with it.
const probeEvery = 50 * time.Microsecond

// alive fails once the program that passed the descriptor has ended, by exit or exec. Writes by
// process_vm calls are made only after it; results of reads are used only after it.
func (s *Space) alive() bool {
	now := time.Since(s.start)
	if now-time.Duration(s.probed.Load()) < probeEvery {
		return true
	}
	var b [1]byte
	if !s.read(s.probe, b[:]) {
		return false
	}
	s.probed.Store(int64(now))
	return true
}

// View returns the n bytes at addr if they are mapped here, otherwise nil.
func (s *Space) View(addr, n uint64) []byte {
	if s.mapped == nil {
		return nil
	}
	return s.mapped.View(addr, n)
}

// ReadV implements mem.Space. Where it fails, the contents of dst are
// undefined, and nothing of them may be used.
func (s *Space) ReadV(addr uint64, dst [][]byte) error {
	total := 0
	for _, d := range dst {
		total += len(d)
	}
	if total == 0 {
		return nil
	}
	if v := s.View(addr, uint64(total)); v != nil {
		for _, d := range dst {
			v = v[copy(d, v):]
		}
		return nil
	}
	if !s.enter() {
		return mem.ErrFault
	}
	defer s.leave()
	if total <= smallMax && len(dst) > 1 {
		return s.readSmall(addr, dst, total)
	}
	if s.pid != 0 && total > smallMax {
		return s.readVM(addr, dst)
	}
	for _, d := range dst {
		if !s.read(addr, d) {
			return s.fault(addr, false)
		}
		addr += uint64(len(d))
	}
	return nil
}

// read and write move one range through the memory descriptor, whole or not. They reach pages of any protection, if
// the kernel forces access for the descriptor of a process (see Protection).
func (s *Space) read(addr uint64, d []byte) bool {
	for len(d) > 0 {
		n, err := unix.Pread(s.fd, d, int64(addr))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return false
		}
		d, addr = d[n:], addr+uint64(n)
	}
	return true
}

func (s *Space) write(addr uint64, d []byte) bool {
	for len(d) > 0 {
		n, err := unix.Pwrite(s.fd, d, int64(addr))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return false
		}
		d, addr = d[n:], addr+uint64(n)
	}
	return true
}

// readSmall fetches total bytes at once and deals them out: a copy costs less
// than a segment of any system call.
func (s *Space) readSmall(addr uint64, dst [][]byte, total int) error {
	var b [smallMax]byte
	p := b[:total]
	if !s.read(addr, p) {
		return s.fault(addr, false)
	}
	for _, d := range dst {
		p = p[copy(d, p):]
	}
	return nil
}

// readVM fills dst from consecutive memory, up to maxVec slices per call.
func (s *Space) readVM(addr uint64, dst [][]byte) error {
	var local [maxVec]unix.Iovec
	var remote [1]unix.RemoteIovec
	skip := 0 // bytes of dst[0] already filled
	for len(dst) > 0 {
		n, want := 0, 0
		for i := 0; i < len(dst) && n < maxVec; i++ {
			d := dst[i]
			if i == 0 {
				d = d[skip:]
			}
			if len(d) != 0 {
				local[n].Base = &d[0]
				local[n].SetLen(len(d))
				n, want = n+1, want+len(d)
			}
		}
		if want == 0 {
			break
		}
		remote[0] = unix.RemoteIovec{Base: uintptr(addr), Len: want}
		got, err := unix.ProcessVMReadv(s.pid, local[:n], remote[:], 0)
		if err != nil || got <= 0 {
			// The pages are protected, or not there.
			for len(dst[0]) == skip {
				dst, skip = dst[1:], 0
			}
			if !s.read(addr, dst[0][skip:]) {
				return s.fault(addr, false)
			}
			got = len(dst[0]) - skip
		}
		// A short count is the kernel's limit, or protected pages, or a hole; the next call distinguishes them.
		addr += uint64(got)
		got += skip
		for len(dst) > 0 && got >= len(dst[0]) {
			got -= len(dst[0])
			dst = dst[1:]
		}
		skip = got
	}
	if !s.alive() {
		return mem.ErrFault
	}
	return nil
}

// WriteV implements mem.Space. The write that failed may have been executed in
// part.
func (s *Space) WriteV(w []mem.Write) (int, error) {
	for i := 0; i < len(w); {
		if v := s.View(w[i].Addr, uint64(len(w[i].Data))); v != nil {
			copy(v, w[i].Data)
			i++
			continue
		}
		// The consecutive writes that need a system call, in order.
		j := i + 1
		for j < len(w) && s.View(w[j].Addr, uint64(len(w[j].Data))) == nil {
			j++
		}
		if n, err := s.writeRun(w[i:j]); err != nil {
			return i + n, err
		}
		i = j
	}
	return len(w), nil
}

func (s *Space) writeRun(w []mem.Write) (int, error) {
	if !s.enter() {
		return 0, mem.ErrFault
	}
	defer s.leave()
	if s.pid != 0 && (len(w) > 1 || len(w[0].Data) > smallMax) {
		return s.writeVM(w)
	}
	for i := range w {
		if !s.write(w[i].Addr, w[i].Data) {
			return i, s.fault(w[i].Addr, true)
		}
	}
	return len(w), nil
}

// writeVM executes w, up to maxVec writes per call. Writes to consecutive
// addresses share a remote segment.
func (s *Space) writeVM(w []mem.Write) (int, error) {
	var local [maxVec]unix.Iovec
	var remote [maxVec]unix.RemoteIovec
	done, skip := 0, 0 // writes executed whole, bytes executed of the next
	for done < len(w) {
		n, r := 0, 0
		for i := done; i < len(w) && n < maxVec; i++ {
			a, d := w[i].Addr, w[i].Data
			if i == done {
				a, d = a+uint64(skip), d[skip:]
			}
			if len(d) == 0 {
				continue
			}
			local[n].Base = &d[0]
			local[n].SetLen(len(d))
			n++
			if r > 0 && uint64(remote[r-1].Base)+uint64(remote[r-1].Len) == a {
				remote[r-1].Len += len(d)
				continue
			}
			remote[r] = unix.RemoteIovec{Base: uintptr(a), Len: len(d)}
			r++
		}
		if n == 0 {
			break
		}
		if !s.alive() {
			return done, mem.ErrFault
		}
		got, err := unix.ProcessVMWritev(s.pid, local[:n], remote[:r], 0)
		// A short count is the kernel's limit, or protected pages, or a hole; the next call, which starts with
		// the write it ended in, distinguishes them.
		if err == nil && got > 0 {
			got += skip
			for done < len(w) && got >= len(w[done].Data) {
				got -= len(w[done].Data)
				done++
			}
			skip = got
			continue
		}
		for len(w[done].Data) == skip {
			done, skip = done+1, 0
		}
		if a := w[done].Addr + uint64(skip); !s.write(a, w[done].Data[skip:]) {
			return done, s.fault(a, true)
		}
		done, skip = done+1, 0
	}
	return len(w), nil
}

// What may have been in the way of a call that failed.
const (
	unprotected int32 = iota
	sharedPages
	unforced
)

// fault notes what may have been in the way of an access at addr, and returns mem.ErrFault.
func (s *Space) fault(addr uint64, write bool) error {
	var b [1]byte
	switch {
	case !forced():
		s.protection.Store(unforced)
	case write && s.read(addr, b[:]):
		s.protection.Store(sharedPages)
	}
	return mem.ErrFault
}

// Protection returns why a call may have failed at memory that the process has protected, for status output; nothing
// if none has.
func (s *Space) Protection() string {
	switch s.protection.Load() {
	case sharedPages:
		return "a request failed at shared memory that the process has made read-only since its registration"
	case unforced:
		return "a request failed at memory that the process has unmapped or protected since its registration, and " +
			"the kernel lets no access through protection (proc_mem.force_override)"
	}
	return ""
}

// forced reports whether the kernel lets the descriptor of a process reach pages whatever their protection. Linux 6.12
// and later can forbid it for all processes, so that this process stands for all.
var forced = sync.OnceValue(func() bool {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return true
	}
	defer unix.Munmap(page)
	f, err := os.Open("/proc/self/mem")
	if err != nil {
		return true
	}
	defer f.Close()
	var b [1]byte
	_, err = f.ReadAt(b[:], int64(address(page)))
	return err == nil
})

// words are locks that make the atomics on unmapped memory exclude each other. A lock covers one word
// of every page: two mappings of the same memory, in one process or in several, have equal offsets
// within their pages, so they use the same lock.
var words [4096 / 8]sync.Mutex

// CompareSwap implements mem.Space.
func (s *Space) CompareSwap(addr, compare, swap uint64) (uint64, error) {
	if addr&7 != 0 {
		return 0, mem.ErrFault
	}
	if v := s.View(addr, 8); v != nil {
		return compareSwap(v, compare, swap)
	}
	return s.modify(addr, func(old uint64) (uint64, bool) { return swap, old == compare })
}

// FetchAdd implements mem.Space.
func (s *Space) FetchAdd(addr, add uint64) (uint64, error) {
	if addr&7 != 0 {
		return 0, mem.ErrFault
	}
	if v := s.View(addr, 8); v != nil {
		return fetchAdd(v, add)
	}
	return s.modify(addr, func(old uint64) (uint64, bool) { return old + add, true })
}

// modify replaces the word at addr by the result of f, if f returns true, and returns the old value.
func (s *Space) modify(addr uint64, f func(old uint64) (uint64, bool)) (uint64, error) {
	if !s.enter() {
		return 0, mem.ErrFault
	}
	defer s.leave()
	mu := &words[addr%4096/8]
	mu.Lock()
	defer mu.Unlock()
	var b [8]byte
	if !s.read(addr, b[:]) {
		return 0, s.fault(addr, false)
	}
	old := binary.NativeEndian.Uint64(b[:])
	if v, ok := f(old); ok {
		binary.NativeEndian.PutUint64(b[:], v)
		if !s.write(addr, b[:]) {
			return 0, s.fault(addr, true)
		}
	}
	return old, nil
}
