// SPDX-License-Identifier: Apache-2.0

package procmem

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The test binary plays the client: with roleEnv set it lays out its memory,
// hands over its memory descriptor on descriptor 3 and obeys commands.
const roleEnv = "WEFT_PROCMEM_TEST_ROLE"

const (
	probeValue = 0x5745465450524f42
	areaSize   = 1 << 20
)

// layout is the client's description of its memory.
type layout struct {
	Probe uint64 // the probe word
	Area  uint64 // areaSize bytes, byte i is pattern(i); behind it one page that is not mapped
	// Shared is one page of shared memory that is not writable any more.
	Shared uint64
}

func pattern(i int) byte { return byte(i*7 + i>>8) }

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "":
		os.Exit(m.Run())
	case "client":
		client()
	case "image":
		imageAfterExec()
	case "node":
		foreignNode()
	}
	os.Exit(0)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(3)
	}
}

func client() {
	page := unix.Getpagesize()
	probe, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(err)
	binary.NativeEndian.PutUint64(probe[8:], probeValue)
	area, err := unix.Mmap(-1, 0, areaSize+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(err)
	for i := range area[:areaSize] {
		area[i] = pattern(i)
	}
	lay := layout{Probe: address(probe) + 8, Area: address(area)}
	_, _, e := unix.Syscall(unix.SYS_MUNMAP, uintptr(lay.Area)+areaSize, uintptr(page), 0)
	if e != 0 {
		must(e)
	}
	shared, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	must(err)
	must(unix.Mprotect(shared, unix.PROT_READ))
	lay.Shared = address(shared)

	conn, err := net.FileConn(os.NewFile(3, "socket"))
	must(err)
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	must(err)
	hello, err := json.Marshal(lay)
	must(err)
	_, _, err = conn.(*net.UnixConn).WriteMsgUnix(append(hello, '\n'), unix.UnixRights(int(mem.Fd())), nil)
	must(err)

	in := bufio.NewScanner(conn)
	for in.Scan() {
		var off, n int
		switch cmd := in.Text(); {
		case cmd == "exec":
			must(os.Setenv(roleEnv, "image"))
			must(unix.Exec("/proc/self/exe", os.Args, os.Environ()))
		case cmd == "exit":
			os.Exit(0)
		case strings.HasPrefix(cmd, "protect"):
			var prot int
			_, err := fmt.Sscanf(cmd, "protect %d %d %d", &off, &n, &prot)
			must(err)
			must(unix.Mprotect(area[off:off+n], prot))
			_, err = fmt.Fprintln(conn, "done")
			must(err)
		default:
			_, err := fmt.Sscanf(cmd, "get %d %d", &off, &n)
			must(err)
			_, err = fmt.Fprintf(conn, "%x\n", area[off:off+n])
			must(err)
		}
	}
}

// imageAfterExec is what a client becomes by exec: same process id, same
// socket, other memory.
func imageAfterExec() {
	conn := os.NewFile(3, "socket")
	_, err := conn.WriteString("new image\n")
	must(err)
	_, err = io.Copy(io.Discard, conn)
	must(err)
}

// proc is a running client seen from the test.
type proc struct {
	layout
	cmd  *exec.Cmd
	conn *net.UnixConn
	in   *bufio.Reader
	mem  *os.File
	uid  uint32
}

// testBinary returns the test binary at a path that every user may execute.
func testBinary(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "procmem")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "client")
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// start runs a client as the given user; 0 is the user of the test.
func start(t testing.TB, uid uint32) *proc {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	path := "/proc/self/exe"
	if uid != 0 {
		path = testBinary(t)
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), roleEnv+"=client")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	p := &proc{cmd: cmd, uid: uint32(os.Getuid())}
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		p.uid = uid
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	c, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	p.conn = c.(*net.UnixConn)
	t.Cleanup(func() { p.conn.Close() })
	var buf [512]byte
	var oob [64]byte
	n, noob, _, _, err := p.conn.ReadMsgUnix(buf[:], oob[:])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(buf[:n], &p.layout); err != nil {
		t.Fatalf("hello %q: %v", buf[:n], err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:noob])
	if err != nil || len(msgs) != 1 {
		t.Fatalf("control messages %v, %v", msgs, err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("descriptors %v, %v", fds, err)
	}
	p.mem = os.NewFile(uintptr(fds[0]), "mem")
	t.Cleanup(func() { p.mem.Close() })
	p.in = bufio.NewReader(p.conn)
	return p
}

func (p *proc) config() Config {
	return Config{Mem: p.mem, PID: p.cmd.Process.Pid, UID: p.uid, ProbeAddr: p.Probe, ProbeValue: probeValue}
}

// space returns a Space of the client; with vm false it is kept from using
// process_vm calls by a wrong process id.
func (p *proc) space(t testing.TB, vm bool) *Space {
	t.Helper()
	c := p.config()
	if !vm {
		c.PID = os.Getpid()
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if got := s.Method() == "process_vm"; got != vm {
		t.Fatalf("method %q, want process_vm %v", s.Method(), vm)
	}
	return s
}

// protect changes the protection of pages of the client's area.
func (p *proc) protect(t testing.TB, off, n, prot int) {
	t.Helper()
	if _, err := fmt.Fprintf(p.conn, "protect %d %d %d\n", off, n, prot); err != nil {
		t.Fatal(err)
	}
	if line, err := p.in.ReadString('\n'); err != nil || line != "done\n" {
		t.Fatalf("protect: %q, %v", line, err)
	}
}

// get returns the bytes that the client reads in its own area.
func (p *proc) get(t testing.TB, off, n int) []byte {
	t.Helper()
	if _, err := fmt.Fprintf(p.conn, "get %d %d\n", off, n); err != nil {
		t.Fatal(err)
	}
	line, err := p.in.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var b []byte
	if _, err := fmt.Sscanf(strings.TrimSpace(line), "%x", &b); err != nil {
		t.Fatal(err)
	}
	return b
}
