// SPDX-License-Identifier: Apache-2.0

// Package lab sets up what end-to-end tests and benchmarks need: network
// namespaces, links, nodes and programs on them, all bounded in time.
//
// In: what to run, where and as which user. Out: running processes, what they
// printed, how they ended. Called by test/e2e, test/interop, test/userland and bench. It must
// never touch an interface, a process or a file that it did not make, and
// leaves none behind once everything is closed.
package lab

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Root returns the top directory of the module's source: the nearest directory with a go.mod at or above the working
// directory, which for a test is its package's. The compiler's file names do not lead there where -trimpath is set.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d
		}
		if d == filepath.Dir(d) {
			panic("lab: " + dir + " is outside of the source tree")
		}
	}
}

// Nobody is a user without capabilities and without a right to lock memory.
const Nobody = 1000

// Cmd is a program to run.
type Cmd struct {
	NetNS string   // network namespace; empty: the test's own
	UID   int      // user; 0: the test's own. Any other loses all capabilities and gets RLIMIT_MEMLOCK 0
	Env   []string // beside the test's own environment
	Args  []string
	Peers []Peer   // what the program cannot go on without; every wait for the program observes their ends
	Stdin *os.File // nil: /dev/null
}

func (c Cmd) String() string { return strings.Join(c.Args, " ") }

// argv returns the command line that becomes the program, by way of programs
// that only ever exec the next: so the process's number is the program's.
func (c Cmd) argv() []string {
	var v []string
	if c.NetNS != "" {
		v = append(v, "ip", "netns", "exec", c.NetNS)
	}
	if c.UID != 0 {
		id := strconv.Itoa(c.UID)
		v = append(v, "prlimit", "--memlock=0:0", "setpriv", "--reuid="+id, "--regid="+id, "--clear-groups",
			"--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--")
	}
	return append(v, c.Args...)
}

// Proc is a started program. Its methods may be called concurrently.
type Proc struct {
	cmd   *exec.Cmd
	name  string
	peers []Peer
	out   output
	done  chan struct{}
	err   error // valid once done is closed
}

// childrensPatience is how long children that keep a program's output open may go on writing once it has ended.
const childrensPatience = time.Second

// Start starts a program in a process group of its own.
func Start(c Cmd) (*Proc, error) {
	argv := c.argv()
	p := &Proc{cmd: exec.Command(argv[0], argv[1:]...), name: c.String(), peers: c.Peers, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), c.Env...)
	if c.Stdin != nil {
		p.cmd.Stdin = c.Stdin
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	err = p.cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		io.Copy(&p.out, r)
	}()
	go func() {
		defer close(p.done)
		defer r.Close()
		p.err = p.cmd.Wait()
		select {
		case <-copied:
		case <-time.After(childrensPatience):
			r.SetReadDeadline(time.Now())
			<-copied
			p.out.drain(r)
		}
	}()
	return p, nil
}

// drain takes what lies in a pipe now. Where this process got no processor for long, that is of the program itself.
func (o *output) drain(r *os.File) {
	r.SetReadDeadline(time.Time{})
	c, err := r.SyscallConn()
	if err != nil {
		return
	}
	c.Read(func(fd uintptr) bool {
		b := make([]byte, 64<<10)
		for taken := 0; taken < keep; {
			n, err := syscall.Read(int(fd), b)
			if n <= 0 && !errors.Is(err, syscall.EINTR) {
				break
			}
			if n > 0 {
				o.Write(b[:n])
				taken += n
			}
		}
		return true
	})
}

// PID returns the program's process number.
func (p *Proc) PID() int { return p.cmd.Process.Pid }

// Output returns what the program has printed so far.
func (p *Proc) Output() string { return p.out.String() }

// Done is closed when the program has ended.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Signal sends a signal to the program alone.
func (p *Proc) Signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		p.cmd.Process.Signal(s)
	}
}

// Kill ends the program and all its children at once and waits.
func (p *Proc) Kill() {
	select {
	case <-p.done:
		return
	default:
	}
	syscall.Kill(-p.PID(), syscall.SIGKILL)
	<-p.done
}

// ErrTimeout is what Wait wraps when a program did not end by itself.
var ErrTimeout = errors.New("did not end in time")

// Wait waits for the end of the program, at most limit, after which it is
// killed. The error states how it ended if not with exit status 0.
//
// A program that cannot go on without a peer is killed earlier: when PeerPatience has passed since the end of one of
// Cmd.Peers. The error then wraps ErrPeerEnded, and ErrTimeout, and has what the peer printed.
func (p *Proc) Wait(limit time.Duration) error { return p.wait(p.peers, limit) }

// WaitBeside is Wait for a program that cannot go on without another peer either.
func (p *Proc) WaitBeside(peer Peer, limit time.Duration) error {
	return p.wait(append([]Peer{peer}, p.peers...), limit)
}

func (p *Proc) wait(peers []Peer, limit time.Duration) error {
	returned := make(chan struct{})
	defer close(returned)
	peerEnded := make(chan Peer, len(peers))
	for _, x := range peers {
		go func() {
			select {
			case <-x.Done():
				peerEnded <- x
			case <-returned:
			}
		}()
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	end := time.Now().Add(limit)
	var cause error
	for {
		select {
		case <-p.done:
			if p.err != nil {
				return fmt.Errorf("%s: %w", p.name, p.err)
			}
			return nil
		case x := <-peerEnded:
			if cause == nil {
				left := min(PeerPatience, time.Until(end))
				cause = fmt.Errorf("%w (%v); the peer printed:\n%s", ErrPeerEnded, left, Tail(x.Output(), 30))
				t.Reset(left)
			}
		case <-t.C:
			p.Kill()
			if cause == nil {
				cause = fmt.Errorf("%w (%v)", ErrTimeout, limit)
			}
			return fmt.Errorf("%s: %w", p.name, cause)
		}
	}
}

// RunBeside is Run for a program that cannot go on without a peer, as WaitBeside has it.
func RunBeside(peer Peer, c Cmd, limit time.Duration) (string, error) {
	p, err := Start(c)
	if err != nil {
		return "", err
	}
	err = p.WaitBeside(peer, limit)
	return p.Output(), err
}

// ended returns the exit status, -1 where there is none: of what runs, or was killed.
func (p *Proc) ended() int {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

// Listening returns when the program, or what it became, listens on a TCP
// port, or with an error when it or a peer of it has ended or limit ran out.
func (p *Proc) Listening(port int, limit time.Duration) error {
	return Until(fmt.Sprintf("%s listens on port %d", p.name, port), limit, func() (bool, error) {
		return listens(p.PID(), port), nil
	}, append([]Peer{p}, p.peers...)...)
}

// listens reports whether anything listens on the port in the network
// namespace of the process.
func listens(pid, port int) bool {
	for _, table := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			continue
		}
		for line := range bytes.Lines(b) {
			f := strings.Fields(string(line))
			if len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				return true
			}
		}
	}
	return false
}

// Expect waits until the program has printed a line that contains text and
// returns the line. It returns an error when the program or a peer of it has ended or limit ran out.
func (p *Proc) Expect(text string, limit time.Duration) (line string, err error) {
	err = Until(fmt.Sprintf("%s prints %q", p.name, text), limit, func() (bool, error) {
		s := bufio.NewScanner(strings.NewReader(p.Output()))
		for s.Scan() {
			if line = s.Text(); strings.Contains(line, text) {
				return true, nil
			}
		}
		line = ""
		return false, nil
	}, append([]Peer{p}, p.peers...)...)
	return line, err
}

// Run runs a program to its end and returns what it printed.
func Run(c Cmd, limit time.Duration) (string, error) {
	p, err := Start(c)
	if err != nil {
		return "", err
	}
	err = p.Wait(limit)
	return p.Output(), err
}

// output keeps the first and the last part of what a program prints, so that
// a program gone mad cannot fill memory.
type output struct {
	mu   sync.Mutex
	head []byte
	tail []byte
	lost int
}

const keep = 1 << 20

var _ io.Writer = (*output)(nil)

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(b)
	if room := keep - len(o.head); room > 0 {
		k := min(room, len(b))
		o.head = append(o.head, b[:k]...)
		b = b[k:]
	}
	o.tail = append(o.tail, b...)
	if over := len(o.tail) - keep; over > 0 {
		o.lost += over
		o.tail = append(o.tail[:0], o.tail[over:]...)
	}
	return n, nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost > 0 {
		return fmt.Sprintf("%s\n[%d bytes left out]\n%s", o.head, o.lost, o.tail)
	}
	return string(o.head) + string(o.tail)
}
