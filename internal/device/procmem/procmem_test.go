// SPDX-License-Identifier: Apache-2.0

package procmem

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/proto/condtest"
	"weft/internal/proto/mem"
)

// both runs f with process_vm calls and with the memory descriptor alone.
func both(t *testing.T, f func(t *testing.T, p *proc, s *Space)) {
	for _, vm := range []bool{true, false} {
		t.Run(fmt.Sprintf("process_vm=%v", vm), func(t *testing.T) {
			p := start(t, 0)
			f(t, p, p.space(t, vm))
		})
	}
}

func fill(b []byte, seed byte) []byte {
	for i := range b {
		b[i] = byte(i)*3 + seed
	}
	return b
}

func want(off, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = pattern(off + i)
	}
	return b
}

func TestReadV(t *testing.T) {
	both(t, func(t *testing.T, p *proc, s *Space) {
		many := make([]int, 2*maxVec+3)
		for i := range many {
			many[i] = i % 5 // with empty slices among them
		}
		for _, lens := range [][]int{
			{}, {0}, {1}, {smallMax}, {smallMax + 1}, {64, 0, 4096, 1}, {0, 0, 8}, many, {areaSize - 3},
		} {
			var dst [][]byte
			total := 0
			for _, n := range lens {
				dst = append(dst, bytes.Repeat([]byte{0xa5}, n))
				total += n
			}
			if err := s.ReadV(p.Area+3, dst); err != nil {
				t.Errorf("ReadV of %d bytes in %d slices: %v", total, len(lens), err)
			}
			if got := bytes.Join(dst, nil); !bytes.Equal(got, want(3, total)) {
				t.Errorf("ReadV of %d bytes in %d slices: wrong bytes", total, len(lens))
			}
		}
	})
}

func TestReadFaults(t *testing.T) {
	both(t, func(t *testing.T, p *proc, s *Space) {
		end := p.Area + areaSize
		for _, tc := range []struct {
			addr uint64
			lens []int
		}{
			{end, []int{1}},
			{end - 8, []int{16}},
			{end - 8192, []int{4096, 4096, 1}},
			{end - 100000, []int{100001}},
			{0, []int{8}},
			{0, []int{8, 8}},
			{1 << 63, []int{8}},
			{1 << 63, []int{8, 8}},
			{^uint64(0) - 7, []int{8}},
			{^uint64(0) - 7, []int{4, 8}},
		} {
			var dst [][]byte
			for _, n := range tc.lens {
				dst = append(dst, make([]byte, n))
			}
			if err := s.ReadV(tc.addr, dst); err != mem.ErrFault {
				t.Errorf("ReadV(%#x, %v) = %v, want ErrFault", tc.addr, tc.lens, err)
			}
		}
		// A fault leaves the Space usable.
		if err := s.ReadV(p.Area, [][]byte{make([]byte, 64), make([]byte, 64)}); err != nil {
			t.Errorf("after faults: %v", err)
		}
	})
}

func TestWriteV(t *testing.T) {
	both(t, func(t *testing.T, p *proc, s *Space) {
		for _, tc := range []struct {
			name string
			offs []int
			lens []int
		}{
			{"none", nil, nil},
			{"empty", []int{5}, []int{0}},
			{"small", []int{5}, []int{64}},
			{"page", []int{5}, []int{smallMax}},
			{"large", []int{5}, []int{3*smallMax + 1}},
			{"adjacent", []int{100, 164, 164, 170}, []int{64, 0, 6, 9000}},
			{"apart", []int{8000, 100, 50000}, []int{64, 1, 5000}},
			{"overlapping, in order", []int{10, 12, 10}, []int{8, 8, 1}},
		} {
			t.Run(tc.name, func(t *testing.T) { checkWrites(t, p, s, tc.offs, tc.lens) })
		}
		var offs, lens []int
		for i := range 3*maxVec + 7 {
			offs, lens = append(offs, i*100+i%3), append(lens, i%90)
		}
		checkWrites(t, p, s, offs, lens)
	})
}

// checkWrites executes a batch of writes and compares all the client sees with
// plain copies.
func checkWrites(t *testing.T, p *proc, s *Space, offs, lens []int) {
	t.Helper()
	const size = 100000
	before := p.get(t, 0, size)
	var w []mem.Write
	for i := range offs {
		d := fill(make([]byte, lens[i]), byte(i))
		w = append(w, mem.Write{Addr: p.Area + uint64(offs[i]), Data: d})
		copy(before[offs[i]:], d)
	}
	if n, err := s.WriteV(w); n != len(w) || err != nil {
		t.Errorf("WriteV = %d, %v; want %d", n, err, len(w))
	}
	if !bytes.Equal(p.get(t, 0, size), before) {
		t.Error("memory differs from what plain copies give")
	}
}

func TestWriteFaults(t *testing.T) {
	both(t, func(t *testing.T, p *proc, s *Space) {
		end := p.Area + areaSize
		for _, tc := range []struct {
			name string
			bad  mem.Write
		}{
			{"not mapped", mem.Write{Addr: end + 64, Data: make([]byte, 8)}},
			{"null", mem.Write{Addr: 0, Data: make([]byte, 8)}},
			{"runs out of the mapping", mem.Write{Addr: end - 8, Data: make([]byte, 9)}},
			{"large, runs out of the mapping", mem.Write{Addr: end - 100000, Data: make([]byte, 100001)}},
			{"kernel's half", mem.Write{Addr: 1 << 63, Data: make([]byte, 8)}},
		} {
			for _, at := range []int{0, 1, 5, maxVec - 1, maxVec, maxVec + 9} {
				w := make([]mem.Write, maxVec+10)
				var model []byte
				for i := range w {
					w[i] = mem.Write{Addr: p.Area + uint64(i)*40, Data: fill(make([]byte, 40), byte(i+at))}
					if i < at {
						model = append(model, w[i].Data...)
					}
				}
				w[at] = tc.bad
				n, err := s.WriteV(w)
				if n != at || err != mem.ErrFault {
					t.Errorf("%s at %d: WriteV = %d, %v", tc.name, at, n, err)
				}
				if at > 0 && !bytes.Equal(p.get(t, 0, at*40), model) {
					t.Errorf("%s at %d: writes before it are missing", tc.name, at)
				}
				if n, err := s.WriteV(w[at+1:]); n != len(w)-at-1 || err != nil {
					t.Errorf("%s at %d: the rest = %d, %v", tc.name, at, n, err)
				}
			}
		}
		// Adjacent writes across the end of the mapping share a segment.
		n, err := s.WriteV([]mem.Write{
			{Addr: end - 16, Data: fill(make([]byte, 8), 1)}, {Addr: end - 8, Data: fill(make([]byte, 8), 2)},
			{Addr: end, Data: make([]byte, 8)}, {Addr: end + 8, Data: make([]byte, 8)},
		})
		if n != 2 || err != mem.ErrFault {
			t.Errorf("adjacent writes across the end = %d, %v; want 2, ErrFault", n, err)
		}
		if got := p.get(t, areaSize-16, 16); !bytes.Equal(got, append(fill(make([]byte, 8), 1),
			fill(make([]byte, 8), 2)...)) {
			t.Errorf("adjacent writes before the end: %x", got)
		}
	})
}

// TestProtected: memory that the client has protected stays reachable, by requests of every size: what protects a
// client are the access rights of a Region.
func TestProtected(t *testing.T) {
	both(t, func(t *testing.T, p *proc, s *Space) {
		// A batch in which the first, a middle and the last write meet protection, as a whole or in part.
		p.protect(t, 5*4096, 4*4096, unix.PROT_READ)
		p.protect(t, 20*4096, 4*4096, unix.PROT_NONE)
		for _, size := range []int{1, 64, smallMax, smallMax + 1, 3 * smallMax} {
			var offs, lens []int
			for _, page := range []int{6, 1, 21, 8, 19, 22, 23} {
				offs, lens = append(offs, page*4096+17), append(lens, size)
			}
			w := make([]mem.Write, len(offs))
			for i, off := range offs {
				w[i] = mem.Write{Addr: p.Area + uint64(off), Data: fill(make([]byte, lens[i]), byte(i+size))}
			}
			if n, err := s.WriteV(w); n != len(w) || err != nil {
				t.Fatalf("%d writes of %d bytes = %d, %v", len(w), size, n, err)
			}
			last := w[len(w)-1]
			got := [][]byte{make([]byte, size/3), nil, make([]byte, size-size/3)}
			if err := s.ReadV(last.Addr, got); err != nil || !bytes.Equal(bytes.Join(got, nil), last.Data) {
				t.Errorf("read of %d protected bytes: %v", size, err)
			}
		}
		if v, err := s.FetchAdd(p.Area+21*4096, 1); err != nil {
			t.Errorf("fetch and add: %v", err)
		} else if again, err := s.CompareSwap(p.Area+21*4096, v+1, v); err != nil || again != v+1 {
			t.Errorf("compare and swap: %d, %v", again, err)
		}
		if why := s.Protection(); why != "" {
			t.Errorf("nothing failed, but: %s", why)
		}
		p.protect(t, 20*4096, 4*4096, unix.PROT_READ)
		before := bytes.Repeat([]byte{9}, 8192)
		if n, err := s.WriteV([]mem.Write{{Addr: p.Area + 20*4096, Data: before}}); n != 1 || err != nil {
			t.Fatalf("write = %d, %v", n, err)
		}
		if !bytes.Equal(p.get(t, 20*4096, 8192), before) {
			t.Error("the client does not see what was written to its protected memory")
		}
	})
}

// TestProtection: what the kernel does not let through has its reason in the status.
func TestProtection(t *testing.T) {
	both(t, func(t *testing.T, p *proc, s *Space) {
		for _, size := range []int{8, 4096} {
			w := []mem.Write{{Addr: p.Shared, Data: make([]byte, size)}}
			if n, err := s.WriteV(w); n != 0 || err != mem.ErrFault {
				t.Errorf("write of %d bytes to shared memory that is read-only = %d, %v", size, n, err)
			}
		}
		if why := s.Protection(); !strings.Contains(why, "shared memory") {
			t.Errorf("reason %q", why)
		}
	})
	p := start(t, 0)
	s := p.space(t, true)
	if err := s.ReadV(p.Area+areaSize, [][]byte{make([]byte, 8)}); err != mem.ErrFault || s.Protection() != "" {
		t.Errorf("read of memory that is not there: %v, reason %q", err, s.Protection())
	}
	forces := forced
	defer func() { forced = forces }()
	if !forced() {
		t.Error("this kernel forces no access to protected memory: the tests before cannot hold")
	}
	forced = func() bool { return false }
	if err := s.ReadV(p.Area+areaSize, [][]byte{make([]byte, 8)}); err != mem.ErrFault ||
		!strings.Contains(s.Protection(), "proc_mem.force_override") {
		t.Errorf("where the kernel forces nothing: %v, reason %q", err, s.Protection())
	}
}

func TestAtomics(t *testing.T) {
	both(t, func(t *testing.T, p *proc, s *Space) {
		n, err := s.WriteV([]mem.Write{{Addr: p.Area, Data: make([]byte, 4112)}})
		if n != 1 || err != nil {
			t.Fatal(n, err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 200 {
					if _, err := s.FetchAdd(p.Area+8, 5); err != nil {
						t.Error(err)
					}
					if _, err := s.FetchAdd(p.Area+8+4096, 1); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if got := binary.NativeEndian.Uint64(p.get(t, 8, 8)); got != 4000 {
			t.Errorf("sum = %d, want 4000", got)
		}
		if got := binary.NativeEndian.Uint64(p.get(t, 4104, 8)); got != 800 {
			t.Errorf("sum in the next page = %d, want 800", got)
		}
		if old, err := s.CompareSwap(p.Area+8, 1, 2); old != 4000 || err != nil {
			t.Errorf("CompareSwap that differs = %d, %v", old, err)
		}
		if old, err := s.CompareSwap(p.Area+8, 4000, 1<<63+1); old != 4000 || err != nil {
			t.Errorf("CompareSwap that matches = %d, %v", old, err)
		}
		if got := binary.NativeEndian.Uint64(p.get(t, 8, 8)); got != 1<<63+1 {
			t.Errorf("after compare-and-swap: %#x", got)
		}
		for _, addr := range []uint64{p.Area + 4, p.Area + areaSize, 0} {
			if _, err := s.FetchAdd(addr, 1); err != mem.ErrFault {
				t.Errorf("FetchAdd(%#x) = %v", addr, err)
			}
			if _, err := s.CompareSwap(addr, 0, 0); err != mem.ErrFault {
				t.Errorf("CompareSwap(%#x) = %v", addr, err)
			}
		}
	})
}

// mappedRange maps the first bytes of the client's area to a slice here.
type mappedRange struct {
	addr uint64
	b    []byte
}

func (m mappedRange) View(addr, n uint64) []byte { return mem.NewSlice(m.addr, m.b).View(addr, n) }

func TestMapped(t *testing.T) {
	p := start(t, 0)
	c := p.config()
	here := bytes.Repeat([]byte{0xee}, 4096)
	c.Mapped = mappedRange{p.Area, here}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if v := s.View(p.Area+8, 16); len(v) != 16 || &v[0] != &here[8] {
		t.Error("View of a mapped range is not the mapping")
	}
	if s.View(p.Area+4096, 1) != nil || s.View(p.Area+4095, 2) != nil {
		t.Error("View beyond the mapping")
	}
	// Mapped, not mapped, mapped: in order, and each by its own way.
	n, err := s.WriteV([]mem.Write{
		{Addr: p.Area, Data: []byte{1}}, {Addr: p.Area + 5000, Data: []byte{2}}, {Addr: p.Area + 1, Data: []byte{3}},
		{Addr: p.Area + areaSize, Data: []byte{4}}, {Addr: p.Area + 2, Data: []byte{5}},
	})
	if n != 3 || err != mem.ErrFault {
		t.Errorf("WriteV = %d, %v; want 3, ErrFault", n, err)
	}
	if here[0] != 1 || here[1] != 3 || here[2] != 0xee || p.get(t, 5000, 1)[0] != 2 || p.get(t, 0, 1)[0] != pattern(0) {
		t.Error("writes went elsewhere")
	}
	a, b := make([]byte, 1), make([]byte, 2)
	if err := s.ReadV(p.Area, [][]byte{a, b}); err != nil || a[0] != 1 || b[0] != 3 || b[1] != 0xee {
		t.Errorf("ReadV of mapped memory: %x %x %v", a, b, err)
	}
	if old, err := s.FetchAdd(p.Area+16, 2); err != nil || old != 0xeeeeeeeeeeeeeeee {
		t.Errorf("FetchAdd = %#x, %v", old, err)
	}
	if old, err := s.CompareSwap(p.Area+16, 0xeeeeeeeeeeeeeef0, 7); err != nil || old != 0xeeeeeeeeeeeeeef0 ||
		binary.NativeEndian.Uint64(here[16:]) != 7 {
		t.Errorf("CompareSwap = %#x, %v", old, err)
	}
	// A mapping that is not aligned as the address is.
	c = start(t, 0).config()
	c.Mapped = mappedRange{p.Area, here[1:]}
	odd, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer odd.Close()
	if _, err := odd.FetchAdd(p.Area, 1); err != mem.ErrFault {
		t.Errorf("FetchAdd on a misaligned mapping = %v", err)
	}
	if _, err := odd.CompareSwap(p.Area, 1, 1); err != mem.ErrFault {
		t.Errorf("CompareSwap on a misaligned mapping = %v", err)
	}
}

// gone checks that nothing is reachable any more.
func gone(t *testing.T, p *proc, s *Space) {
	t.Helper()
	for _, lens := range [][]int{{8}, {8, 8}, {3 * smallMax}} {
		var dst [][]byte
		for _, n := range lens {
			dst = append(dst, make([]byte, n))
		}
		if err := s.ReadV(p.Area, dst); err != mem.ErrFault {
			t.Errorf("ReadV %v = %v, want ErrFault", lens, err)
		}
		// The text of any image of this binary is readable at this address.
		if err := s.ReadV(textAddress(), dst); err != mem.ErrFault {
			t.Errorf("ReadV %v of the program text = %v, want ErrFault", lens, err)
		}
	}
	w := mem.Write{Addr: p.Area, Data: make([]byte, 8)}
	for _, ws := range [][]mem.Write{{w}, {w, w}, {{Addr: p.Area, Data: make([]byte, 2*smallMax)}}} {
		if n, err := s.WriteV(ws); n != 0 || err != mem.ErrFault {
			t.Errorf("WriteV of %d = %d, %v, want ErrFault", len(ws), n, err)
		}
	}
	if _, err := s.FetchAdd(p.Area, 1); err != mem.ErrFault {
		t.Errorf("FetchAdd = %v", err)
	}
	if _, err := s.CompareSwap(p.Area, 0, 1); err != mem.ErrFault {
		t.Errorf("CompareSwap = %v", err)
	}
}

func TestExit(t *testing.T) {
	both(t, func(t *testing.T, p *proc, s *Space) {
		if _, err := p.conn.Write([]byte("exit\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := p.in.ReadByte(); err != io.EOF {
			t.Fatalf("end of the client: %v", err)
		}
		if err := p.cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		gone(t, p, s)
	})
}

func TestExec(t *testing.T) {
	both(t, func(t *testing.T, p *proc, s *Space) {
		if err := s.ReadV(textAddress(), [][]byte{make([]byte, 8), make([]byte, 8)}); err != nil {
			t.Fatalf("text of the client before exec: %v", err)
		}
		if _, err := p.conn.Write([]byte("exec\n")); err != nil {
			t.Fatal(err)
		}
		if line, err := p.in.ReadString('\n'); err != nil || line != "new image\n" {
			t.Fatalf("%q, %v", line, err)
		}
		gone(t, p, s)
	})
}

func TestClose(t *testing.T) {
	both(t, func(t *testing.T, p *proc, s *Space) {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		gone(t, p, s)
		if err := s.Close(); err != os.ErrClosed {
			t.Errorf("second Close = %v", err)
		}
		if err := p.mem.Close(); !errors.Is(err, os.ErrClosed) {
			t.Error("Close left the descriptor open")
		}
	})
}

// TestNewRefuses hands over descriptors that are not the memory of a process.
func TestNewRefuses(t *testing.T) {
	p := start(t, 0)
	for _, tc := range []struct {
		name, path string
		flags      int
		want       string
	}{
		{"device", "/dev/zero", os.O_RDWR, "not a file of /proc"},
		{"directory of /proc", "/proc/self", os.O_RDONLY, "not the memory of a process"},
		{"other file of /proc", "/proc/self/comm", os.O_RDWR, "not the memory of a process"},
		{"read only", fmt.Sprintf("/proc/%d/mem", p.cmd.Process.Pid), os.O_RDONLY, "not open for reading and writing"},
		{"other process", "/proc/self/mem", os.O_RDWR, "probe word"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, err := os.OpenFile(tc.path, tc.flags, 0)
			if err != nil {
				t.Fatal(err)
			}
			c := p.config()
			c.Mem = f
			if s, err := New(c); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("New = %v, %v; want error with %q", s, err, tc.want)
			}
			if err := f.Close(); !errors.Is(err, os.ErrClosed) {
				t.Error("New left the descriptor open")
			}
		})
	}
	c := p.config()
	c.ProbeValue++
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "probe word differs") {
		t.Errorf("New with a wrong probe value = %v", err)
	}
}

func TestIsMemPath(t *testing.T) {
	for p, want := range map[string]bool{
		"/proc/12/mem": true, "/proc/12/task/13/mem": true, "/7/mem": true, "/x/proc/1/mem": true,
		"": false, "/mem": false, "mem": false, "1/mem": false, "/proc/self/mem": false, "/proc/1/memo": false,
		"/proc/1/mem (deleted)": false, "/proc/a1/mem": false, "/proc//mem": false, "/proc/sys/vm/mem": false,
	} {
		if got := isMemPath(p); got != want {
			t.Errorf("isMemPath(%q) = %v, want %v", p, got, want)
		}
	}
}

// foreignNode is a node that runs as another user: it receives a client's descriptor as descriptor 3
// and prints the method it uses for the memory.
func foreignNode() {
	var c Config
	must(json.Unmarshal([]byte(os.Getenv("WEFT_PROCMEM_TEST_CONFIG")), &c))
	area := c.ProbeValue
	c.ProbeValue = probeValue
	c.Mem = os.NewFile(3, "mem")
	s, err := New(c)
	must(err)
	n, err := s.WriteV([]mem.Write{{Addr: area, Data: []byte("ab")}, {Addr: area + 6000, Data: []byte("cd")}})
	if n != 2 {
		must(err)
	}
	x, y := make([]byte, 2), make([]byte, 2)
	must(s.ReadV(area+6000, [][]byte{x, y[:0]}))
	must(s.ReadV(area, [][]byte{y[:1], y[1:]}))
	fmt.Printf("%s%s %s\n", y, x, s.Method())
}

// TestUsers proves the permission table of docs/notes/process-memory.md.
func TestUsers(t *testing.T) {
	condtest.NeedRoot(t, "to run processes as other users")
	const nobody, other = 65534, 65533
	for _, tc := range []struct {
		name         string
		node, client uint32
		want         string
	}{
		{"root reaches root", 0, 0, "process_vm"},
		{"root reaches a user", 0, nobody, "mem (process_vm not used: the node is more privileged than the process)"},
		{"a user reaches itself", nobody, nobody, "process_vm"},
		{"a user reaches another", other, nobody, "mem (process_vm not used: operation not permitted)"},
		{"a user reaches root", nobody, 0, "mem (process_vm not used: operation not permitted)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, tc.client)
			c := p.config()
			c.Mem, c.ProbeValue = nil, p.Area
			b, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(testBinary(t))
			cmd.Env = append(os.Environ(), roleEnv+"=node", "WEFT_PROCMEM_TEST_CONFIG="+string(b))
			cmd.ExtraFiles = []*os.File{p.mem}
			cmd.Stderr = os.Stderr
			if tc.node != 0 {
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tc.node, Gid: tc.node}}
			}
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			if got, want := string(out), "abcd "+tc.want+"\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if got := string(p.get(t, 0, 2)) + string(p.get(t, 6000, 2)); got != "abcd" {
				t.Errorf("the client sees %q", got)
			}
		})
	}
}

func TestAllocs(t *testing.T) {
	if raceEnabled {
		condtest.Foregoes(t, "the race detector's annotations of system calls allocate")
	}
	both(t, func(t *testing.T, p *proc, s *Space) {
		for _, tc := range cases(p) {
			if n := testing.AllocsPerRun(50, func() { tc.run(t, s) }); n != 0 {
				t.Errorf("%s: %v allocations", tc.name, n)
			}
		}
		if n := testing.AllocsPerRun(50, func() {
			if _, err := s.FetchAdd(p.Area, 1); err != nil {
				t.Error(err)
			}
			if _, err := s.CompareSwap(p.Area, 0, 0); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("atomics: %v allocations", n)
		}
	})
}

type benchCase struct {
	name  string
	bytes int
	run   func(t testing.TB, s *Space)
}

func cases(p *proc) []benchCase {
	var out []benchCase
	add := func(name string, size, count int) {
		dst, w := make([][]byte, count), make([]mem.Write, count)
		for i := range dst {
			dst[i] = make([]byte, size)
			w[i] = mem.Write{Addr: p.Area + uint64(i*(size+64)), Data: dst[i]}
		}
		out = append(out,
			benchCase{"ReadV/" + name, size * count, func(t testing.TB, s *Space) {
				if err := s.ReadV(p.Area, dst); err != nil {
					t.Error(err)
				}
			}},
			benchCase{"WriteV/" + name, size * count, func(t testing.TB, s *Space) {
				if n, err := s.WriteV(w); n != len(w) || err != nil {
					t.Error(n, err)
				}
			}})
	}
	add("64B", 64, 1)
	add("4KiB", 4<<10, 1)
	add("64KiB", 64<<10, 1)
	add("64x64B", 64, 64)
	return out
}

func Benchmark(b *testing.B) {
	for _, vm := range []bool{true, false} {
		p := start(b, 0)
		s := p.space(b, vm)
		for _, c := range cases(p) {
			b.Run(fmt.Sprintf("process_vm=%v/%s", vm, c.name), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(c.bytes))
				for b.Loop() {
					c.run(b, s)
				}
			})
		}
	}
	b.Run("alive", func(b *testing.B) {
		s := start(b, 0).space(b, true)
		for b.Loop() {
			if !s.alive() {
				b.Fatal("client gone")
			}
		}
	})
}

// The vectored calls rely on the kernel taking maxVec segments.
var _ [1024 - maxVec]struct{}
