// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/test/lab"
)

// floodEnv has this binary connect to every socket below the directory that it names, and keep the connections.
const floodEnv = "WEFT_E2E_LOCAL_FLOOD"

// floodStranger is the user of the flood: the node does not serve it.
const floodStranger = 65534

// serveFlood is that program: "DIRECTORY SECONDS". It prints how many connections it made.
func serveFlood(what string) int {
	f := strings.Fields(what)
	seconds, err := strconv.Atoi(f[1])
	var sockets []string
	if err == nil {
		err = filepath.WalkDir(f[0], func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type()&fs.ModeSocket != 0 {
				sockets = append(sockets, path)
			}
			return nil // the store of the node is not for this user
		})
	}
	if err != nil || len(sockets) == 0 {
		fmt.Fprintln(os.Stderr, "no flood:", err, sockets)
		return 1
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	share := (int(files.Cur) - 100) / len(sockets)
	var made int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, path := range sockets {
		wg.Go(func() {
			n := floodSocket(path, share, end)
			mu.Lock()
			defer mu.Unlock()
			made += n
		})
	}
	wg.Wait()
	fmt.Println("connections:", made, "to", len(sockets), "sockets")
	return 0
}

// floodSocket connects to a socket until end, and keeps so many connections; the oldest ones end first.
func floodSocket(path string, keep int, end time.Time) (made int) {
	kind := unix.SOCK_STREAM
	if name := filepath.Base(path); name == "umad.sock" || name == "rdmacm.sock" {
		kind = unix.SOCK_SEQPACKET
	}
	open := make([]int, keep)
	defer func() {
		for _, fd := range open {
			if fd > 0 {
				unix.Close(fd)
			}
		}
	}()
	for time.Now().Before(end) {
		fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			unix.Close(fd)
			time.Sleep(time.Millisecond) // EAGAIN: the backlog is full
			continue
		}
		if old := &open[made%keep]; *old > 0 {
			unix.Close(*old)
		}
		open[made%keep] = fd
		made++
	}
	return made
}

// TestLocalFlood: a user that the node does not serve connects to every socket of the node, as often as it can, and
// keeps the connections. The node lives, and keeps few of them; meanwhile programs of a user that it serves open the
// device and exchange data, and commands are answered. The limit of open files of the node is small, so that the flood
// is quick to reach it.
func TestLocalFlood(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		lab.Lacks(t, errors.New("the flood needs root: its user is another one than that of the node"))
	}
	const files = 1500
	seconds := 8
	if lab.Soak {
		seconds = 120
	}
	host := openHost(t)
	top, err := os.MkdirTemp("", "weft-node-")
	if err == nil {
		err = os.Chmod(top, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	node := &lab.Node{Dir: filepath.Join(top, "node"), NetNS: host}
	node.Proc, err = lab.Start(lab.Cmd{NetNS: host.Name, Args: []string{"prlimit",
		fmt.Sprintf("--nofile=%d:%[1]d", files), lab.Bin("weft"), "up", "--dir", node.Dir, "--store", "memory",
		"--allow-uid", strconv.Itoa(lab.Nobody)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Errorf("%v; the node printed:\n%s", err, lab.Tail(node.Proc.Output(), 20))
		}
	})
	if _, err := node.Proc.Expect("weft: ready", time.Minute); err != nil {
		t.Fatal(err)
	}
	if out, err := node.Weft("vm", "add", "web"); err != nil {
		t.Fatal(err, out)
	}
	served := &lab.Node{Dir: node.Dir, NetNS: host, UID: lab.Nobody, Proc: node.Proc}
	idle, err := node.Descriptors()
	if err != nil {
		t.Fatal(err)
	}

	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	flood := filepath.Join(top, "flood") // the directory of the test binary may be private
	if err := os.Link(binary, flood); err != nil {
		b, err := os.ReadFile(binary)
		if err == nil {
			err = os.WriteFile(flood, b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	attack, err := lab.Start(lab.Cmd{NetNS: host.Name, UID: floodStranger, Args: []string{flood},
		Env: []string{fmt.Sprintf("%s=%s %d", floodEnv, node.Dir, seconds)}, Peers: []lab.Peer{node.Proc}})
	if err != nil {
		t.Fatal(err)
	}
	defer attack.Kill()
	bed := lab.Testbed{Server: served, Client: served}
	var slowest time.Duration
	rounds, most := 0, 0
	for over := false; !over; rounds++ {
		select {
		case <-attack.Done():
			over = true
		default:
		}
		for _, n := range []*lab.Node{node, served} {
			began := time.Now()
			if out, err := n.Weft("status"); err != nil {
				t.Fatalf("round %d: status as uid %d: %v\n%s", rounds, n.UID, err, out)
			}
			slowest = max(slowest, time.Since(began))
		}
		p, err := bed.Start(nil, "ibv_rc_pingpong", "-n", "200")
		if err == nil {
			client, server := p.Wait(time.Minute)
			err = errors.Join(client, server)
		}
		p.Kill()
		if err != nil {
			t.Fatalf("round %d: a program of a served user: %v%s", rounds, err, p.Outputs())
		}
		list, err := node.Descriptors()
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, len(list))
	}
	if err := attack.Wait(time.Minute); err != nil {
		t.Fatalf("%v: %s", err, attack.Output())
	}
	t.Logf("%s; %d rounds, the slowest status took %v; at most %d descriptors, %d when idle",
		strings.TrimSpace(attack.Output()), rounds, slowest, most, len(idle))
	// Those of the programs, and of a few strangers that get the reason of the refusal.
	if most > len(idle)+200 {
		t.Errorf("the node had %d descriptors, %d when idle", most, len(idle))
	}
	if slowest > 5*time.Second {
		t.Errorf("status took %v", slowest)
	}
	if err := syscall.Kill(node.Proc.PID(), 0); err != nil {
		t.Error("the node:", err)
	}
	// The card of a virtual machine is not for users of the devices.
	out, err := lab.Run(lab.Cmd{NetNS: host.Name, UID: lab.Nobody, Args: []string{flood},
		Env: []string{fmt.Sprintf("%s=%s 1", floodEnv, filepath.Join(node.Dir, "vm"))}}, time.Minute)
	if err != nil || !strings.Contains(out, "connections: 0 to 1 sockets") {
		t.Errorf("a user of devices at the socket of a card: %v\n%s", err, out)
	}
	out, err = lab.Run(lab.Cmd{NetNS: host.Name, UID: floodStranger, Args: []string{lab.Bin("weft"), "status", "--dir",
		node.Dir}}, time.Minute)
	if err == nil || !strings.Contains(out, fmt.Sprintf("does not serve uid %d", floodStranger)) {
		t.Errorf("status as uid %d: %v\n%s", floodStranger, err, out)
	}
	out, err = node.Weft("status")
	if err != nil || strings.Contains(out, "socket_") {
		t.Errorf("%v\n%s", err, out)
	}
}
