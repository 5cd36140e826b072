// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/test/lab"
)

// TestDemoBesideRoot runs the demo as an ordinary user while root's node runs in the same network namespace, in root's
// default directory. A program holds objects on root's node meanwhile. They must stay as they are and work afterwards.
func TestDemoBesideRoot(t *testing.T) {
	t.Parallel()
	ns := openHost(t)
	root := startInRun(t, ns)
	gid, err := root.GID(ns.V4)
	if err != nil {
		t.Fatal(err)
	}
	const port = 19875 // the demo's begin at 18516
	program := func(more ...string) lab.Cmd {
		return root.Program(append([]string{"ibv_rc_pingpong", "-c", "-d", "weft0", "-g", strconv.Itoa(gid), "-p",
			strconv.Itoa(port)}, more...)...)
	}
	server, err := lab.Start(program())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	if err := server.Listening(port, 20*time.Second); err != nil {
		t.Fatalf("%v\n%s", err, server.Output())
	}
	was, before := contents(t, root)

	demoAsUser(t, root)

	if n, after := contents(t, root); n != was || n == 0 || after != before {
		t.Errorf("root's node had %d objects before the demo and %d after it:\n%s\n%s", was, n, before, after)
	}
	if out, err := lab.RunBeside(server, program("127.0.0.1"), 30*time.Second); err != nil {
		t.Errorf("client on root's node: %v\n%s", err, out)
	}
	if err := server.Wait(30 * time.Second); err != nil {
		t.Errorf("server on root's node: %v\n%s", err, server.Output())
	}
}

// startInRun starts a node of root in /run/weft, in a mount namespace with an empty /run. The node ends with the test.
func startInRun(t *testing.T, ns *lab.NetNS) *lab.Node {
	t.Helper()
	// ip netns exec has made a mount namespace of its own; the mount is in no other.
	p, err := lab.Start(lab.Cmd{NetNS: ns.Name, Env: []string{"WEFT_DIR="}, Args: []string{"sh", "-c",
		`mount -t tmpfs -o mode=755 run /run && exec "$0" up`, lab.Bin("weft")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Signal(syscall.SIGTERM)
		if err := p.Wait(20 * time.Second); err != nil {
			t.Errorf("root's node: %v\n%s", err, p.Output())
		}
	})
	if line, err := p.Expect("weft: ready", 20*time.Second); err != nil || !strings.Contains(p.Output(), "/run/weft") {
		t.Fatalf("%q: %v\n%s", line, err, p.Output())
	}
	return &lab.Node{Dir: fmt.Sprintf("/proc/%d/root/run/weft", p.PID()), NetNS: ns, Proc: p}
}

// demoAsUser runs the demo as an ordinary user in the namespaces of a node, from a copy in the home of this user.
func demoAsUser(t *testing.T, beside *lab.Node) {
	t.Helper()
	home := userHome(t)
	scripts := filepath.Join(home, "scripts")
	if err := os.Mkdir(scripts, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"demo", "fabric.sh"} {
		b, err := os.ReadFile(filepath.Join(lab.Root(), "scripts", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(scripts, name), b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	id := strconv.Itoa(lab.Nobody)
	out, err := lab.Run(lab.Cmd{
		Env: []string{"HOME=" + home, "TMPDIR=" + home, "XDG_RUNTIME_DIR=", "WEFT_DIR=", "WEFT_BIN=" + lab.Bin("")},
		Args: []string{"nsenter", "--target", strconv.Itoa(beside.Proc.PID()), "--mount", "--net", "--", "setpriv",
			"--reuid=" + id, "--regid=" + id, "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs",
			"--", filepath.Join(scripts, "demo")},
		Peers: []lab.Peer{beside.Proc},
	}, 3*time.Minute)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"PORT_ACTIVE", "1000 iterations", "GB/s", "million/s", "Everything is stopped."} {
		if !strings.Contains(out, want) {
			t.Errorf("the demo did not print %q:\n%s", want, out)
		}
	}
	left, err := os.ReadDir(home)
	if err != nil || len(left) != 1 {
		t.Errorf("the demo left files in TMPDIR: %v, %v", left, err)
	}
}

// contents returns how many objects a node has, and what describes them.
func contents(t *testing.T, n *lab.Node) (objects int, described string) {
	t.Helper()
	objects, err := n.Objects()
	if err != nil {
		t.Fatal(err)
	}
	if described, err = n.Weft("res", "-o", "json"); err != nil {
		t.Fatal(err)
	}
	return objects, described
}
