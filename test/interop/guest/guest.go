// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"weft/test/lab"
)

// Config describes how to boot. The zero values of MAC, MemMB and Boot mean
// 52:54:00:00:00:02, 768 and 90 s.
type Config struct {
	Image Image
	NetNS string // network namespace of the TAP; empty: the caller's own
	Tap   string // TAP that is the guest's eth0; empty: no cable
	MAC   string // of eth0
	IP    string // address/length of eth0
	IP6   string // IPv6 address/length of eth0; empty: link-local only
	MTU   int    // of eth0; 0: leave 1500
	// Vhost is the socket of vhost-user that serves eth0 instead of a TAP. With Listen QEMU is its server, and
	// the guest boots only when a client connects. Queues is how many queue pairs eth0 has, 0: one; Device further
	// properties of it, as ",packed=on".
	Vhost  string
	Listen bool
	Queues int
	Device string
	// Card is, instead of all that, options of QEMU that give it a card and its memory, as weft vm show prints them.
	Card []string
	// Pluggable puts the card, the last of those options, behind a port of its own, so that it can be removed and added
	// again.
	Pluggable bool
	// Emulator is the command of QEMU with its first arguments; empty: the host's QEMU.
	Emulator []string
	CPUs     int  // 0: one
	Reboot   bool // a reboot is no end
	// Drivers are the drivers that the guest loads before eth0 gets its addresses; nil: rdma_rxe. A guest with rdma_rxe
	// has the device rxe0.
	Drivers []string
	// Incoming is the socket on which the guest waits for another that moves here; it answers only then.
	Incoming string
	MemMB    int               // memory
	Files    map[string]string // path in the guest -> file of the host
	Boot     time.Duration     // longest time until the guest answers
	Peers    []lab.Peer        // what the guest cannot boot without: at the end of one, the boot has failed
}

// cardPort is the name of the port of a card that can be removed.
const cardPort = "port-card"

// ErrDied is what Run wraps when the guest has ended: its kernel panicked, or QEMU is gone.
var ErrDied = errors.New("the guest has died")

// Guest is a running guest. Its methods must not be called concurrently, but for Done and Output.
type Guest struct {
	cmd     *exec.Cmd
	conn    net.Conn
	r       *bufio.Reader
	dir     string
	console string
	qmp     string
	exited  chan struct{} // closed when QEMU has ended
	closing atomic.Bool
	died    atomic.Bool
	unread  atomic.Bool // a script was given up: what it prints would be taken for what the next one prints
}

// Start boots a guest and returns when its network and its drivers are up.
// The guest ends with Close, or when ctx does.
func Start(ctx context.Context, c Config) (*Guest, error) {
	if c.MAC == "" {
		c.MAC = "52:54:00:00:00:02"
	}
	if c.MemMB == 0 {
		c.MemMB = 768
	}
	if c.Boot == 0 {
		c.Boot = 90 * time.Second
	}
	dir, err := os.MkdirTemp("", "weft-guest-")
	if err != nil {
		return nil, err
	}
	g := &Guest{dir: dir, console: filepath.Join(dir, "console"), exited: make(chan struct{})}
	if err := g.start(ctx, c); err != nil {
		err = fmt.Errorf("boot guest: %w%s", err, g.Console())
		g.Close()
		return nil, err
	}
	return g, nil
}

func (g *Guest) start(ctx context.Context, c Config) error {
	initrd := filepath.Join(g.dir, "initrd")
	root, err := os.ReadFile(c.Image.Initrd)
	if err != nil {
		return err
	}
	more, err := extra(c.Files)
	if err != nil {
		return err
	}
	if err := os.WriteFile(initrd, append(root, more...), 0o600); err != nil {
		return err
	}
	sock := filepath.Join(g.dir, "shell")
	ln, err := net.Listen("unix", sock)
	if err != nil {
		return err
	}
	defer ln.Close()

	// On a busy host the check of the timer, a count of interrupts within some milliseconds, fails, and the kernel
	// panics.
	// A fault of the kernel is a panic (oops=panic), and a panic an end: otherwise the guest goes on, half dead.
	// The rest saves what an emulated processor takes long for: guards against other users of the machine, of which
	// there are none, a fifth level of page tables, and memory zeroed before its use.
	cmdline := "console=ttyS0 quiet oops=panic panic=-1 random.trust_cpu=1 no_timer_check " +
		"mitigations=off nopti nokaslr no5lvl init_on_alloc=0"
	for _, kv := range [][2]string{{"ip", c.IP}, {"ip6", c.IP6}} {
		if kv[1] != "" {
			cmdline += " " + kv[0] + "=" + kv[1]
		}
	}
	if c.Drivers == nil {
		c.Drivers = []string{"rdma_rxe"}
	}
	cmdline += " drivers=" + strings.Join(c.Drivers, ",")
	if c.MTU != 0 {
		cmdline += " mtu=" + strconv.Itoa(c.MTU)
	}
	args := slices.Clone(c.Emulator)
	if args == nil {
		args = []string{"qemu-system-x86_64"}
	}
	args = append(args, "-accel", "tcg,thread=multi", "-cpu", "max", "-machine", "q35", "-smp",
		strconv.Itoa(max(1, c.CPUs)),
		"-display", "none", "-nodefaults", "-kernel", c.Image.Kernel, "-initrd", initrd, "-append", cmdline,
		"-serial", "file:"+g.console, "-chardev", "socket,id=shell,path="+sock, "-serial", "chardev:shell")
	if !c.Reboot {
		args = append(args, "-no-reboot")
	}
	netdev := "user,id=n0,restrict=on" // a card without a cable: rxe needs an interface
	if c.Tap != "" {
		netdev = "tap,id=n0,ifname=" + c.Tap + ",script=no,downscript=no"
	}
	if c.Vhost != "" {
		mode := ",reconnect=1"
		if c.Listen {
			mode = ",server=on,wait=off"
		}
		pairs := max(1, c.Queues)
		netdev = fmt.Sprintf("vhost-user,id=n0,chardev=net,queues=%d", pairs)
		// QEMU 7.2 without KVM fails with interrupts of queues (MSI-X) and vhost-user.
		c.Device += ",vectors=0"
		if pairs > 1 {
			c.Device += ",mq=on"
		}
		args = append(args, "-chardev", "socket,id=net,path="+c.Vhost+mode,
			"-object", fmt.Sprintf("memory-backend-memfd,id=mem,size=%dM,share=on",
				c.MemMB), "-numa", "node,memdev=mem")
	}
	if c.Incoming != "" {
		args = append(args, "-incoming", "unix:"+c.Incoming)
	}
	g.qmp = filepath.Join(g.dir, "qmp")
	if c.Card != nil {
		card := slices.Clone(c.Card)
		if c.Pluggable {
			card[len(card)-1] += ",bus=" + cardPort
			args = append(args, "-device", "pcie-root-port,chassis=1,id="+cardPort)
		}
		args = append(args, card...)
	} else {
		args = append(args, "-m", strconv.Itoa(c.MemMB), "-netdev", netdev, "-device",
			"virtio-net-pci,netdev=n0,mac="+c.MAC+c.Device)
	}
	args = append(args, "-qmp", "unix:"+g.qmp+",server=on,wait=off")
	if c.NetNS != "" {
		args = append([]string{"ip", "netns", "exec", c.NetNS}, args...)
	}
	g.cmd = exec.CommandContext(ctx, args[0], args[1:]...)
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr strings.Builder
	g.cmd.Stderr = &stderr
	if err := g.cmd.Start(); err != nil {
		g.cmd = nil
		return err
	}
	go func() {
		g.cmd.Wait()
		g.died.Store(!g.closing.Load())
		close(g.exited)
	}()
	go g.watch()

	deadline := time.Now().Add(c.Boot)
	ln.(*net.UnixListener).SetDeadline(time.Now().Add(20 * time.Second))
	release := onEnd(append([]lab.Peer{g}, c.Peers...), 0, func() { ln.Close() })
	g.conn, err = ln.Accept()
	release()
	if err != nil {
		return fmt.Errorf("qemu did not start: %w: %s", errors.Join(err, lab.Ended(c.Peers...)), stderr.String())
	}
	g.r = bufio.NewReader(g.conn)
	if c.Incoming != "" {
		return nil
	}
	if err := g.ready(time.Until(deadline), c.Peers); err != nil {
		return fmt.Errorf("%w: %s", err, stderr.String())
	}
	return nil
}

// onEnd calls f once when patience has passed since the first of the peers ended. After release it calls f no more.
func onEnd(peers []lab.Peer, patience time.Duration, f func()) (release func()) {
	released := make(chan struct{})
	var once sync.Once // of f, or of release
	for _, x := range peers {
		go func() {
			select {
			case <-x.Done():
			case <-released:
				return
			}
			select {
			case <-time.After(patience):
				once.Do(f)
			case <-released:
			}
		}()
	}
	return sync.OnceFunc(func() {
		close(released)
		once.Do(func() {})
	})
}

// watch ends a guest after a panic of its kernel: one that may reboot would otherwise answer as if nothing had been.
func (g *Guest) watch() {
	for {
		select {
		case <-g.exited:
			return
		case <-time.After(200 * time.Millisecond):
		}
		if b, _ := os.ReadFile(g.console); bytes.Contains(b, []byte("Kernel panic")) {
			time.Sleep(time.Second) // for what the kernel prints after it
			g.cmd.Process.Kill()
			return
		}
	}
}

// Done is closed when the guest has ended.
func (g *Guest) Done() <-chan struct{} { return g.exited }

// Output returns what the guest's console shows.
func (g *Guest) Output() string { return g.Console() }

// Died reports whether the guest has ended other than by Close.
func (g *Guest) Died() bool { return g.died.Load() }

// Usable reports whether the guest executes the next script: it has not ended, and the last script has.
func (g *Guest) Usable() bool {
	select {
	case <-g.exited:
		return false
	default:
		return !g.unread.Load()
	}
}

// why is what an error of the shell's connection means: that the guest has died, if it has.
func (g *Guest) why(err error) error {
	select {
	case <-g.exited:
		return fmt.Errorf("%w (%v)", ErrDied, err)
	case <-time.After(2 * time.Second): // the connection ends a moment before QEMU
		return err
	}
}

// ready waits until the guest's shell answers, at most for limit, and as long as the peers live.
func (g *Guest) ready(limit time.Duration, peers []lab.Peer) error {
	g.conn.SetReadDeadline(time.Now().Add(limit))
	defer onEnd(peers, 0, func() { g.conn.SetReadDeadline(time.Now()) })()
	for {
		line, err := g.r.ReadString('\n')
		if err != nil {
			return fmt.Errorf("no answer: %w", errors.Join(err, lab.Ended(peers...)))
		}
		if strings.HasPrefix(line, "GUEST-READY") {
			break
		}
	}
	if log := g.Console(); strings.Contains(log, "GUEST-FAIL") {
		return errors.New("init failed")
	}
	return nil
}

// Reboot starts the guest anew from within and returns when it answers again, or with an error when one of the peers,
// without which it does not boot, has ended. Files that Run made are gone.
func (g *Guest) Reboot(limit time.Duration, peers ...lab.Peer) error {
	script := "reboot -f\n"
	if _, err := fmt.Fprintf(g.conn, "%d\n%s", len(script), script); err != nil {
		return err
	}
	if err := g.ready(limit, peers); err != nil {
		return fmt.Errorf("reboot: %w%s", err, g.Console())
	}
	return nil
}

// Command executes a command of the machine's control protocol, such as
// {"execute": "query-migrate"}, and returns the answer.
func (g *Guest) Command(command string) (string, error) {
	c, err := net.DialTimeout("unix", g.qmp, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	r := bufio.NewReader(c)
	if _, err := r.ReadString('\n'); err != nil { // the greeting
		return "", err
	}
	answer := ""
	for _, s := range []string{`{"execute": "qmp_capabilities"}`, command} {
		if _, err := fmt.Fprintln(c, s); err != nil {
			return "", err
		}
		for {
			if answer, err = r.ReadString('\n'); err != nil {
				return "", err
			}
			if strings.HasPrefix(answer, `{"error"`) {
				return "", fmt.Errorf("%s: %s", s, answer)
			}
			if strings.HasPrefix(answer, `{"return"`) {
				break
			} // else an event
		}
	}
	return answer, nil
}

// Run executes script with the guest's shell and returns what it printed,
// standard error included. What the script leaves running in the background
// must have its output redirected. An error is a non-zero exit status, or that
// limit ran out or lab.PeerPatience has passed since the end of a peer, which the
// script needs: after those two the guest is of no use any more.
func (g *Guest) Run(script string, limit time.Duration, peers ...lab.Peer) (string, error) {
	g.conn.SetDeadline(time.Now().Add(limit))
	var abandoned atomic.Bool
	release := onEnd(peers, lab.PeerPatience, func() {
		abandoned.Store(true)
		g.conn.SetDeadline(time.Now())
	})
	defer func() {
		release()
		g.conn.SetDeadline(time.Time{})
	}()
	script = "exec 2>&1\n" + script + "\n"
	if _, err := fmt.Fprintf(g.conn, "%d\n%s", len(script), script); err != nil {
		return "", fmt.Errorf("guest: %w%s", g.why(err), g.Console())
	}
	var out strings.Builder
	for {
		line, err := g.r.ReadString('\n')
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				return out.String() + line, fmt.Errorf("guest: %w%s", g.why(err), g.Console())
			}
			g.unread.Store(true)
			if abandoned.Load() {
				return out.String() + line, fmt.Errorf("guest: %w: %w", lab.ErrPeerEnded, lab.Ended(peers...))
			}
			return out.String() + line, fmt.Errorf("guest did not finish within %v: %w%s", limit, err, g.Console())
		}
		if i := strings.Index(line, "GUEST-STEP "); i >= 0 {
			out.WriteString(line[:i])
			rc := strings.TrimSpace(line[i+len("GUEST-STEP "):])
			if rc != "0" {
				return out.String(), fmt.Errorf("guest: exit status %s", rc)
			}
			return out.String(), nil
		}
		out.WriteString(line)
	}
}

// Console returns what the guest's kernel and init have printed so far, on
// lines of its own.
func (g *Guest) Console() string {
	b, _ := os.ReadFile(g.console)
	if len(b) == 0 {
		return ""
	}
	return "\n-- console --\n" + string(b)
}

// oopsLines is how much of a kernel's report Oops returns: its cause, the registers and the first callers.
const oopsLines = 30

// Oops returns the first lines of what a kernel printed when it died, from its cause on, or nothing.
func Oops(console string) string {
	lines := strings.Split(console, "\n")
	for i, line := range lines {
		for _, sign := range []string{"BUG: ", "Oops: ", "general protection fault", "sysrq: Trigger a crash",
			"Kernel panic"} {
			if strings.Contains(line, sign) {
				return strings.Join(lines[i:min(len(lines), i+oopsLines)], "\n")
			}
		}
	}
	return ""
}

// Close ends the guest at once and removes its files.
func (g *Guest) Close() {
	g.closing.Store(true)
	if g.conn != nil {
		g.conn.Close()
	}
	if g.cmd != nil {
		g.cmd.Process.Kill()
		<-g.exited
	}
	os.RemoveAll(g.dir)
}
