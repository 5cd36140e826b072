// SPDX-License-Identifier: Apache-2.0

// Package e2e runs unmodified programs of Debian, and verbcheck, on real
// nodes: what a user would do, in network namespaces of its own.
//
// In: the built weft and its preload library, root. Out: one row per
// behaviour. Called by `make e2e`. It must never depend on the host's network
// or on another node.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weft/test/lab"
)

var soak = flag.Bool("soak", os.Getenv("WEFT_SOAK") == "1", "run the full matrices, which take long")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	cleanup, err := lab.Setup()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer cleanup()
	code := m.Run()
	for _, b := range beds {
		if err := b.close(); err != nil {
			fmt.Fprintln(os.Stderr, "e2e: at the end:", err)
			code = 1
		}
	}
	return code
}

var netns = sync.OnceValue(lab.MayMakeNetNS)

// needRoot skips a test that needs namespaces where they cannot be made; with
// REQUIRE_E2E=1 that is a failure.
func needRoot(t *testing.T) {
	t.Helper()
	if err := netns(); err != nil {
		if os.Getenv("REQUIRE_E2E") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// bed is where a server and a client run: nodes, namespaces, users.
type bed struct {
	server, client *lab.Node
	mtu            int // of the ports, in bytes
	spaces         []*lab.NetNS
	v6             bool
}

var beds []*bed // all that are open

func (b *bed) close() error {
	var first error
	note := func(err error) {
		if err != nil && first == nil {
			first = err
		}
	}
	nodes := []*lab.Node{b.server, b.client}
	if b.server == b.client {
		nodes = nodes[:1]
	}
	for _, n := range nodes {
		if n != nil {
			note(n.Close())
		}
	}
	for _, s := range b.spaces {
		note(s.Close())
	}
	return first
}

// open makes a bed and closes it with the test, when every node must still be
// in order.
func open(t *testing.T, mtu int, oneNode bool, uid int, flags ...string) *bed {
	t.Helper()
	needRoot(t)
	a, c, err := lab.Joined(mtu)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{mtu: portMTU(mtu), spaces: []*lab.NetNS{a, c}}
	beds = append(beds, b)
	t.Cleanup(func() {
		for i := range beds {
			if beds[i] == b {
				beds = append(beds[:i], beds[i+1:]...)
				break
			}
		}
		b.check(t)
		if err := b.close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, n := range []*lab.Node{b.server, b.client} {
				if n != nil {
					t.Logf("node in %s printed:\n%s", n.Dir, tail(n.Proc.Output(), 60))
				}
			}
		}
	})
	if b.server, err = lab.StartNode(a, uid, flags...); err != nil {
		t.Fatal(err)
	}
	b.client = b.server
	if !oneNode {
		if b.client, err = lab.StartNode(c, uid, flags...); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// check wants all nodes alive and without objects of programs that have ended.
func (b *bed) check(t *testing.T) {
	t.Helper()
	for _, n := range []*lab.Node{b.server, b.client} {
		if n == nil {
			continue
		}
		end := time.Now().Add(5 * time.Second)
		for {
			k, err := n.Objects()
			if err != nil {
				t.Errorf("node in %s: %v", n.Dir, err)
			} else if k != 0 && time.Now().Before(end) {
				time.Sleep(20 * time.Millisecond) // a program's end reaches its node a moment later
				continue
			} else if k != 0 {
				out, _ := n.Weft("res")
				t.Errorf("node in %s still has %d objects:\n%s", n.Dir, k, out)
			}
			break
		}
	}
}

func portMTU(mtu int) int {
	for _, m := range []int{4096, 2048, 1024, 512} {
		if mtu >= m+80 {
			return m
		}
	}
	return 256
}

var lastPort atomic.Int32

// port returns a TCP port for the next pair of programs; every test has
// namespaces of its own, so only tests share the numbers.
func port() int { return 20000 + int(lastPort.Add(1))%20000 }

// gidFlag is how a program is told the index of its GID.
func gidFlag(program string) string {
	if strings.HasPrefix(program, "ib_") {
		return "-x"
	}
	return "-g"
}

// begun is a pair of programs on their way.
type begun struct {
	server, client *lab.Proc
}

func (p begun) kill() {
	for _, x := range []*lab.Proc{p.client, p.server} {
		if x != nil {
			x.Kill()
		}
	}
}

func (p begun) outputs() string {
	s := "-- server --\n" + tail(p.server.Output(), 12)
	if p.client != nil {
		s += "\n-- client --\n" + tail(p.client.Output(), 12)
	}
	return s
}

// start starts a program as server and, once it listens, as client. flags are
// those of weft run.
func (b *bed) start(flags []string, program string, args ...string) (begun, error) {
	var p begun
	host, gids, err := b.addresses()
	if err != nil {
		return p, err
	}
	tcp := port()
	argv := func(i int, more ...string) []string {
		v := append(append([]string{}, flags...), "--", program, "-d", "weft0", gidFlag(program), fmt.Sprint(gids[i]), "-p", fmt.Sprint(tcp))
		return append(append(v, args...), more...)
	}
	if p.server, err = lab.Start(b.server.Program(argv(0)...)); err != nil {
		return p, err
	}
	if err := p.server.Listening(tcp, 20*time.Second); err != nil {
		return p, err
	}
	p.client, err = lab.Start(b.client.Program(argv(1, host)...))
	return p, err
}

// working waits until both programs are connected.
func (b *bed) working(p begun) error {
	if err := b.server.Working(p.server, 20*time.Second); err != nil {
		return err
	}
	return b.client.Working(p.client, 20*time.Second)
}

// addresses returns where a client connects to, and the GID indexes of server
// and client.
func (b *bed) addresses() (host string, gids [2]int, err error) {
	for i, n := range []*lab.Node{b.server, b.client} {
		a := n.NetNS.V4
		if b.v6 {
			a = n.NetNS.V6
		}
		if gids[i], err = n.GID(a); err != nil {
			return "", gids, err
		}
	}
	return b.server.NetNS.V4, gids, nil
}

// pair runs a program as server and as client and wants both to succeed. It
// returns what the client printed.
func (b *bed) pair(t *testing.T, limit time.Duration, program string, args ...string) string {
	t.Helper()
	return b.pairWith(t, limit, nil, program, args...)
}

func (b *bed) pairWith(t *testing.T, limit time.Duration, flags []string, program string, args ...string) string {
	t.Helper()
	p, err := b.start(flags, program, args...)
	defer func() {
		if p.server != nil {
			p.kill()
		}
	}()
	if err != nil {
		if p.server != nil {
			t.Fatalf("%v\n%s", err, p.outputs())
		}
		t.Fatal(err)
	}
	errC := p.client.Wait(limit)
	errS := p.server.Wait(5 * time.Second)
	if errC != nil || errS != nil {
		t.Fatalf("client: %v, server: %v\n%s", errC, errS, p.outputs())
	}
	return p.client.Output()
}

// tail returns the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(lines) > n {
		lines = append([]string{"…"}, lines[len(lines)-n:]...)
	}
	return strings.Join(lines, "\n")
}
