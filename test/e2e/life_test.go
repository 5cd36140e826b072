// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weft/test/lab"
)

// 64 pairs of programs at once on one node, all contents checked.
func TestManyPairs(t *testing.T) {
	t.Parallel()
	b := openTestbed(t, 9000, true, 0)
	const pairs = 64
	var running [pairs]lab.Pair
	defer func() {
		for _, p := range running {
			p.Kill()
		}
	}()
	for i := range running {
		var err error
		kind := []string{"ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"}[i%4]
		args := []string{"-c", "-e", "-n", "300"}
		if i%4 == 2 {
			args = append(args, "-s", "1000")
		}
		if running[i], err = b.Start(nil, kind, args...); err != nil {
			t.Fatalf("pair %d: %v", i, err)
		}
	}
	for i, p := range running {
		errC, errS := p.Wait(120 * time.Second)
		if why := checkOutput("ibv_", p.Client.Output()); errC != nil || errS != nil || why != "" {
			t.Errorf("pair %d: client: %v, server: %v %s\n%s", i, errC, errS, why, p.Outputs())
		}
	}
}

func TestManyQueuePairs(t *testing.T) {
	t.Parallel()
	for _, oneNode := range []bool{true, false} {
		t.Run(map[bool]string{true: "one node", false: "two nodes"}[oneNode], func(t *testing.T) {
			b := openTestbed(t, 9000, oneNode, 0)
			for _, r := range []invocation{{"ib_write_bw", "-q 200 -n 50 -s 4096", true},
				{"ib_send_bw", "-q 200 -n 20 -s 1024 -r 20", true}, {"ib_read_bw", "-q 200 -n 20 -s 4096", true}} {
				t.Run(r.name(), func(t *testing.T) {
					out := b.pair(t, 120*time.Second, r.program, append(strings.Fields(r.args), "-F")...)
					if why := checkOutput(r.program, out); why != "" {
						t.Fatalf("%s\n%s", why, out)
					}
				})
			}
		})
	}
}

// Programs die at random moments while others work: the others' data stays
// right, the dead ones' peers end, nothing of them remains.
func TestKills(t *testing.T) {
	t.Parallel()
	for _, oneNode := range []bool{true, false} {
		t.Run(map[bool]string{true: "one node", false: "two nodes"}[oneNode], func(t *testing.T) {
			rounds := 10
			if !lab.Soak {
				rounds = 1
			}
			// floods of datagrams from two processes at once may overrun a socket
			killSome(t, openTestbed(t, 9000, oneNode, 0), rounds)
		})
	}
}

// killSome kills one end of each victim once a round, in random order.
func killSome(t *testing.T, b *testbed, killRounds int) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)

	// A node opens some descriptors with its first program, for good.
	b.pair(t, 30*time.Second, "ibv_rc_pingpong", "-c")
	b.check(t)
	before, err := b.Server.Descriptors()
	if err != nil {
		t.Fatal(err)
	}

	// The others: one after the other, as long as there are kills.
	stop := make(chan struct{})
	var others sync.WaitGroup
	rounds := 0
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			out, err := b.runPairRetrying(t, 60*time.Second, nil, "ibv_rc_pingpong", "-c", "-e", "-n", "1000", "-s",
				"10001")
			if why := checkOutput("ibv_", out); err != nil || why != "" {
				t.Errorf("other programs, undisturbed: %v %s", err, why)
				return
			}
			rounds++
		}
	})

	// -u 12: the end that is left has an error after half a second.
	victims := []invocation{
		{"ib_write_bw", "-D 30 -s 65536 -u 12", true}, {"ib_send_bw", "-D 30 -s 4096 -u 12", true}, {"ib_read_bw",
			"-D 30 -s 65536 -u 12", true}, {"ib_atomic_bw", "-D 30 -u 12", true},
		{"ib_send_bw", "-n 10000000 -e -u 12", true}, {"ib_write_bw", "-D 30 -q 16 -s 1048576 -u 12",
			true}, {"ib_send_bw", "-D 30 -c UD", true}, {"ibv_rc_pingpong", "-n 10000000 -e", true},
		{"ibv_srq_pingpong", "-n 10000000 -e", true}, {"ib_write_lat", "-n 100000000 -t 100 -u 12", true},
	}
	const atOnce = 3
	type job struct {
		invocation invocation
		delay      time.Duration
		server     bool
	}
	jobs := make(chan job)
	var killers sync.WaitGroup
	for range atOnce {
		killers.Go(func() {
			for j := range jobs {
				killOne(t, b, j.invocation, j.delay, j.server)
			}
		})
	}
	for range killRounds {
		for _, i := range rng.Perm(len(victims)) {
			jobs <- job{victims[i], time.Duration(rng.IntN(250e6)), rng.IntN(2) == 0}
		}
	}
	close(jobs)
	killers.Wait()
	close(stop)
	others.Wait()
	if rounds == 0 {
		t.Error("the other programs never finished a round")
	}
	t.Logf("%d kills, %d rounds of other programs meanwhile", killRounds*len(victims), rounds)

	b.check(t)
	var after []string
	if err := lab.Until("the node has no more descriptors open than before", 5*time.Second, func() (ok bool, err error) {
		after, err = b.Server.Descriptors()
		return len(after) <= len(before), err
	}, b.Server.Proc); err != nil {
		t.Errorf("%v:\n%q\nbefore:\n%q", err, after, before)
	}
	b.pair(t, 30*time.Second, "ibv_rc_pingpong", "-c")
}

// killOne starts a pair, kills one side after a while and expects the other to
// end by itself.
func killOne(t *testing.T, b *testbed, r invocation, delay time.Duration, server bool) {
	p, err := b.Start(nil, r.program, append(strings.Fields(r.args), extraArgs(r.program)...)...)
	if err != nil {
		t.Errorf("%s: %v", r.name(), err)
		return
	}
	defer p.Kill()
	early := delay%5 == 0 // while they set up; the other may then wait for ever
	if !early {
		if err := b.Working(p); err != nil {
			t.Errorf("%v\n%s", err, p.Outputs())
			return
		}
	}
	time.Sleep(delay) // the random moment
	victim, other := p.Client, p.Server
	if server {
		victim, other = other, victim
	}
	select {
	case <-victim.Done():
		t.Errorf("%s ended before it was killed\n%s", r.name(), p.Outputs())
		return
	default:
	}
	victim.Kill()
	if early {
		return
	}
	// What the peer makes of it is TestKilled's. Here an end that may only wait is told
	// to end, and must then leave nothing either.
	if other == p.Server || !strings.HasSuffix(r.program, "_bw") || strings.Contains(r.args, "UD") {
		other.Signal(syscall.SIGTERM)
	}
	if err := other.Wait(30 * time.Second); errors.Is(err, lab.ErrTimeout) {
		t.Errorf("%s: the peer of a killed program: %v\n%s", r.name(), err, p.Outputs())
	}
}

// A node that is told to end does so while programs are at work, and they
// learn of it.
func TestNodeEnds(t *testing.T) {
	t.Parallel()
	b := openTestbed(t, 9000, true, 0)
	p, err := b.Start(nil, "ibv_rc_pingpong", "-n", "100000000", "-e")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if err := b.Working(p); err != nil {
		t.Fatal(err)
	}
	out := lab.Cmd{NetNS: b.Server.NetNS.Name, Args: []string{lab.Bin("weft"), "down", "--dir", b.Server.Dir}}
	if s, err := lab.Run(out, 20*time.Second); err != nil {
		t.Errorf("weft down: %v\n%s", err, s)
	}
	if err := b.Server.Proc.Wait(20 * time.Second); err != nil {
		t.Errorf("the node: %v", err)
	}
	for _, x := range []*lab.Proc{p.Client, p.Server} {
		if err := x.Wait(20 * time.Second); errors.Is(err, lab.ErrTimeout) || err == nil {
			t.Errorf("a program whose node ended: %v\n%s", err, x.Output())
		}
	}
	left, _ := filepath.Glob(filepath.Join(b.Server.Dir, "*.sock"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	// A new one in the same place works at once.
	again, err := lab.Start(lab.Cmd{NetNS: b.Server.NetNS.Name, Args: []string{lab.Bin("weft"), "up", "--dir",
		b.Server.Dir}})
	if err != nil {
		t.Fatal(err)
	}
	b.Server.Proc = again
	if _, err := again.Expect("weft: ready", 20*time.Second); err != nil {
		t.Fatal(err)
	}
	b.pair(t, 30*time.Second, "ibv_rc_pingpong", "-c")
}

// A node that is killed outright: its programs learn of it, and the next node
// takes the directory over.
func TestNodeKilled(t *testing.T) {
	t.Parallel()
	b := openTestbed(t, 9000, true, 0)
	p, err := b.Start(nil, "ibv_rc_pingpong", "-n", "100000000", "-e")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if err := b.Working(p); err != nil {
		t.Fatal(err)
	}
	b.Server.Proc.Kill()
	for _, x := range []*lab.Proc{p.Client, p.Server} {
		if err := x.Wait(20 * time.Second); errors.Is(err, lab.ErrTimeout) || err == nil {
			t.Errorf("a program whose node was killed: %v\n%s", err, x.Output())
		}
	}
	again, err := lab.Start(lab.Cmd{NetNS: b.Server.NetNS.Name, Args: []string{lab.Bin("weft"), "up", "--dir",
		b.Server.Dir}})
	if err != nil {
		t.Fatal(err)
	}
	b.Server.Proc = again
	if _, err := again.Expect("weft: ready", 20*time.Second); err != nil {
		t.Fatalf("%v\n%s", err, again.Output())
	}
	b.pair(t, 30*time.Second, "ibv_rc_pingpong", "-c")
}

// weft run starts a node of the user's own when there is none, and reports it.
func TestAutoStart(t *testing.T) {
	t.Parallel()
	ns := openHost(t)
	home := userHome(t)
	env := []string{"HOME=" + home, "XDG_RUNTIME_DIR=" + home, "WEFT_DIR="}
	cmd := func(args ...string) lab.Cmd {
		return lab.Cmd{NetNS: ns.Name, UID: lab.Nobody, Env: env, Args: append([]string{lab.Bin("weft")}, args...)}
	}
	defer func() {
		if out, err := lab.Run(cmd("down"), 20*time.Second); err != nil {
			t.Errorf("weft down: %v\n%s", err, out)
		}
	}()
	out, err := lab.Run(cmd("run", "--", "ibv_devices"), 30*time.Second)
	if err != nil || !strings.Contains(out, "weft0") || !strings.Contains(out, "weft: started a node in ") {
		t.Fatalf("first weft run: %v\n%s", err, out)
	}
	out, err = lab.Run(cmd("run", "--", "ibv_devices"), 30*time.Second)
	if err != nil || !strings.Contains(out, "weft0") || strings.Contains(out, "started a node") {
		t.Errorf("second weft run: %v\n%s", err, out)
	}
	if out, err = lab.Run(cmd("status"), 20*time.Second); err != nil {
		t.Errorf("weft status: %v\n%s", err, out)
	}
}

// userHome returns a new directory of an ordinary user. The test removes it at its end.
func userHome(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	for d := home; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(home, lab.Nobody, lab.Nobody); err != nil {
		t.Fatal(err)
	}
	return home
}

// Mistakes of a user: one line that names the fix.
func TestMistakes(t *testing.T) {
	t.Parallel()
	b := openTestbed(t, 1500, true, 0)
	empty := t.TempDir()
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"second node in one directory", []string{"up", "--dir", b.Server.Dir}, 4, "fix: "},
		{"second node in one namespace", []string{"up", "--dir", filepath.Join(empty, "second")}, 1, "fix: "},
		{"unknown flag", []string{"up", "--no-such-flag"}, 2, "fix: "},
		{"flag out of range", []string{"up", "--roce-port", "70000", "--dir", filepath.Join(empty, "x")}, 2, "fix: "},
		{"unknown command", []string{"upp"}, 2, "fix: "},
		{"no node", []string{"run", "--dir", filepath.Join(empty, "none"), "--", "ibv_devices"}, 3,
			"fix: weft up --dir "},
		{"status without a node", []string{"status", "--dir", filepath.Join(empty, "none")}, 3, "fix: "},
		{"no command", []string{"run", "--dir", b.Server.Dir, "--", "no-such-program"}, 127, "fix: "},
		{"fault out of range", []string{"fault", "add", "--drop", "101", "--dir", b.Server.Dir}, 2, "fix: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := lab.Run(lab.Cmd{NetNS: b.Server.NetNS.Name, Args: append([]string{lab.Bin("weft")},
				c.args...)}, 20*time.Second)
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("exit status %d", c.code)) {
				t.Errorf("%v, want exit status %d", err, c.code)
			}
			if !strings.Contains(out, c.want) || strings.Count(strings.TrimSpace(out), "\n") != 0 {
				t.Errorf("want one line with %q, got:\n%s", c.want, out)
			}
		})
	}
	// None of it disturbed the node.
	b.pair(t, 30*time.Second, "ibv_rc_pingpong", "-c")
}
