// SPDX-License-Identifier: Apache-2.0

// Package e2e runs unmodified programs of Debian, and verbcheck, on real
// nodes: what a user would do, in network namespaces of its own.
//
// In: the built weft and its preload library, root. Out: one row per
// behaviour. Called by `make e2e`. It must never depend on the host's network
// or on another node.
package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

func TestMain(m *testing.M) {
	if where := os.Getenv(storeEnv); where != "" {
		os.Exit(serveStore(where))
	}
	if what := os.Getenv(groupEnv); what != "" {
		os.Exit(serveGroup(what))
	}
	if what := os.Getenv(framesEnv); what != "" {
		os.Exit(serveFrames(what))
	}
	if what := os.Getenv(forgeEnv); what != "" {
		os.Exit(serveForge(what))
	}
	if what := os.Getenv(natEnv); what != "" {
		os.Exit(serveNAT(what))
	}
	if what := os.Getenv(initialsEnv); what != "" {
		os.Exit(serveInitials(what))
	}
	if what := os.Getenv(floodEnv); what != "" {
		os.Exit(serveFlood(what))
	}
	os.Exit(lab.Main(m, closeTestbeds))
}

// testbed is where a server and a client run: nodes, namespaces, users.
type testbed struct {
	lab.Testbed
	mtu    int // of the ports, in bytes
	spaces []*lab.NetNS
}

// testbeds are all testbeds that are open. Tests run in parallel.
var testbeds struct {
	mu   sync.Mutex
	open []*testbed
}

func closeTestbeds() error {
	testbeds.mu.Lock()
	defer testbeds.mu.Unlock()
	var err error
	for _, b := range testbeds.open {
		err = errors.Join(err, b.close())
	}
	return err
}

func (b *testbed) close() error {
	var err error
	for i, n := range []*lab.Node{b.Server, b.Client} {
		if n != nil && (i == 0 || n != b.Server) {
			err = errors.Join(err, n.Close())
		}
	}
	for _, s := range b.spaces {
		err = errors.Join(err, s.Close())
	}
	return err
}

// onSecond stands, in the flags of nodes, before those that only the second node gets.
const onSecond = "SECOND"

// peer stands, in the flags of a node, for the address of the other.
const peer = "PEER"

func flagsWith(flags []string, other *lab.NetNS) []string {
	out := slices.Clone(flags)
	for i := range out {
		out[i] = strings.ReplaceAll(out[i], peer, other.V4)
	}
	return out
}

// open makes a testbed and closes it with the test, when every node must still be
// in order.
func openTestbed(t *testing.T, mtu int, oneNode bool, uid int, flags ...string) *testbed {
	t.Helper()
	lab.NeedNetNS(t)
	a, c, err := lab.Joined(mtu)
	if err != nil {
		t.Fatal(err)
	}
	b := &testbed{mtu: portMTU(mtu), spaces: []*lab.NetNS{a, c}}
	testbeds.mu.Lock()
	testbeds.open = append(testbeds.open, b)
	testbeds.mu.Unlock()
	t.Cleanup(func() {
		testbeds.mu.Lock()
		testbeds.open = slices.DeleteFunc(testbeds.open, func(x *testbed) bool { return x == b })
		testbeds.mu.Unlock()
		b.check(t)
		if t.Failed() {
			for _, n := range []*lab.Node{b.Server, b.Client} {
				if n != nil {
					for _, c := range []string{"stat", "sm", "status"} {
						out, err := n.Weft(c)
						t.Logf("node in %s, weft %s (%v):\n%s", n.Dir, c, err, out)
					}
				}
			}
		}
		if err := b.close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, n := range []*lab.Node{b.Server, b.Client} {
				if n != nil {
					t.Logf("node in %s printed:\n%s", n.Dir, lab.Tail(n.Proc.Output(), 60))
				}
			}
		}
	})
	both, own := flags, flags
	if i := slices.Index(flags, onSecond); i >= 0 {
		both, own = flags[:i], slices.Concat(flags[:i], flags[i+1:])
	}
	if b.Server, err = lab.StartNode(a, uid, flagsWith(both, c)...); err != nil {
		t.Fatal(err)
	}
	b.Client = b.Server
	if !oneNode {
		if b.Client, err = lab.StartNode(c, uid, flagsWith(own, a)...); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// openHost makes the namespace of a host with a network and no node, and removes it with the test.
func openHost(t *testing.T) *lab.NetNS {
	t.Helper()
	lab.NeedNetNS(t)
	host, other, err := lab.Joined(9000)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(host.Close(), other.Close()); err != nil {
			t.Error(err)
		}
	})
	return host
}

// check expects all nodes alive and without objects of programs that have ended.
func (b *testbed) check(t *testing.T) {
	t.Helper()
	for _, n := range []*lab.Node{b.Server, b.Client} {
		if n == nil {
			continue
		}
		// A program's end reaches its node a moment later.
		if err := lab.Until("no objects are left", 5*time.Second, func() (bool, error) {
			k, err := n.Objects()
			return k == 0, err
		}, n.Proc); err != nil {
			out, _ := n.Weft("res")
			t.Errorf("node in %s: %v:\n%s", n.Dir, err, out)
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

// pair runs a program as server and as client and expects both to succeed. It
// returns what the client printed.
func (b *testbed) pair(t *testing.T, limit time.Duration, program string, args ...string) string {
	t.Helper()
	return b.pairWith(t, limit, nil, program, args...)
}

func (b *testbed) pairWith(t *testing.T, limit time.Duration, flags []string, program string, args ...string) string {
	t.Helper()
	out, err := b.runPairRetrying(t, limit, flags, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// runPairRetrying runs a pair, and again, three times at most, if it failed for what is not its doing:
//   - On a busy machine perftest can fail to measure the processor's clock, and
//     then prints zeros for a run that went well.
//   - A trunk goes down when a node gets no processor for long: what it carries
//     then is lost, which programs of the unreliable services wait for in vain.
//   - A pingpong's last acknowledgement was lost, where a counter shows lost packets: of a node or
//     the kernel. One that a node never sent is not among them.
//
// It may be called from any goroutine of the test.
func (b *testbed) runPairRetrying(t *testing.T, limit time.Duration, flags []string, program string,
	args ...string) (out string, err error) {
	const again = 3
	for try := 0; ; try++ {
		since, lost := b.downs(), b.losses()
		var p lab.Pair
		p, err = b.runPairOnce(limit, flags, program, args...)
		if err == nil {
			out = p.Client.Output()
			if try == again || !strings.HasPrefix(program, "ib_") || checkOutput(program, out) == "" {
				return out, nil
			}
			t.Logf("%s printed no result: once more", program)
			continue
		}
		downs := since()
		switch {
		case try == again:
			return "", err
		case downs > 0 && unreliable(program, args):
			t.Logf("trunks went down %d times meanwhile: once more: %v", downs, err)
		case p.LastAckLost() && downs+lost() > 0:
			t.Logf("the last acknowledgement was lost, trunks went down %d times meanwhile, %d packets were lost: once more: %v", downs, lost(), err)
		default:
			return "", err
		}
	}
}

// unreliable reports whether a pingpong waits for ever when a packet is lost.
func unreliable(program string, args []string) bool {
	return program == "ibv_uc_pingpong" || program == "ibv_ud_pingpong" || slices.Contains(args, "UD") ||
		slices.Contains(args, "UC")
}

// downs is downs of the nodes of b.
func (b *testbed) downs() func() uint64 { return downs(b.Server, b.Client) }

// downs returns a function that counts how often trunks of the nodes went down since now. Where a node does not answer,
// which excuses nothing, that is 0.
func downs(nodes ...*lab.Node) func() uint64 {
	was, failed := countDowns(nodes...)
	return func() uint64 {
		now, err := countDowns(nodes...)
		if failed != nil || err != nil || now < was {
			return 0
		}
		return now - was
	}
}

// countDowns is how often trunks of the nodes went down since these began.
func countDowns(nodes ...*lab.Node) (n uint64, err error) {
	for _, node := range nodes {
		var list []api.Trunk
		if err := node.Query(&list, "trunk"); err != nil {
			return 0, err
		}
		for _, t := range list {
			n += t.Downs
		}
	}
	return n, nil
}

// losses returns a function that counts how many packets between the nodes of b were lost since now: those that the
// kernel or a node had no room for, and those that faults of the nodes took. Where a node does not answer, or is
// another one now, that is 0.
func (b *testbed) losses() func() uint64 {
	count := func() uint64 { return dropped(b.Server) + dropped(b.Client) + taken(b.Server) + taken(b.Client) }
	was := count()
	return func() uint64 { return max(count(), was) - was }
}

// taken is how many packets faults of a node took, or found no room on its way to a link or another lane.
func taken(n *lab.Node) (sum uint64) {
	if s, err := n.Status(); err == nil {
		for _, f := range s.Faults {
			sum += f.Dropped + f.Corrupted
		}
	}
	if counters, err := n.Counters(); err == nil {
		for _, c := range counters {
			if c.Name == "drop_blocked" || c.Name == "drop_foreign_full" {
				sum += c.Value
			}
		}
	}
	return sum
}

// dropped is how many packets the kernel has dropped in the namespace of a node: at interfaces, and at sockets with a
// buffer that was full. It is 0 where the node has ended.
func dropped(n *lab.Node) (sum uint64) {
	add := func(f []string, at ...int) {
		for _, i := range at {
			if i >= 0 && i < len(f) {
				v, _ := strconv.ParseUint(f[i], 10, 64)
				sum += v
			}
		}
	}
	var names []string
	for _, table := range []string{"dev", "snmp", "snmp6"} {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", n.Proc.PID(), table))
		for line := range strings.Lines(string(b)) {
			switch f := strings.Fields(line); {
			case len(f) < 2:
			case table == "dev" && strings.Contains(line, ":"):
				add(strings.Fields(line[strings.Index(line, ":")+1:]), 3, 11) // received, sent
			case table == "snmp" && f[0] == "Udp:" && f[1] == "InDatagrams":
				names = f
			case table == "snmp" && f[0] == "Udp:":
				add(f, slices.Index(names, "RcvbufErrors"))
			case table == "snmp6" && f[0] == "Udp6RcvbufErrors":
				add(f, 1)
			}
		}
	}
	return sum
}

// runPairOnce runs a pair to its end, and returns what was wrong with their ends.
func (b *testbed) runPairOnce(limit time.Duration, flags []string, program string, args ...string) (lab.Pair, error) {
	p, err := b.Start(flags, program, args...)
	defer p.Kill()
	if err != nil {
		return p, fmt.Errorf("%w%s", err, p.Outputs())
	}
	if client, server := p.Wait(limit); client != nil || server != nil {
		return p, fmt.Errorf("client: %v, server: %v%s", client, server, p.Outputs())
	}
	return p, nil
}
