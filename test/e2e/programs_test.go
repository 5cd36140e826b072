// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// invocation is one invocation of a program of Debian.
type invocation struct {
	program string
	args    string
	basic   bool // part of the short list
}

// slow reports whether r is for a soak: the latency of every size. Its time goes
// into measuring the processor's clock again and again; every size is moved by
// the bandwidth of each.
func (r invocation) slow() bool {
	return strings.HasSuffix(r.program, "_lat") && strings.Contains(r.args, "-a")
}

func (r invocation) name() string {
	if r.args == "" {
		return r.program
	}
	return r.program + " " + r.args
}

// pingpongs check contents (-c) wherever they can. %[1]d is the port's MTU.
var pingpongs = []invocation{
	{"ibv_rc_pingpong", "-c", true},
	{"ibv_rc_pingpong", "-c -e", true},
	{"ibv_rc_pingpong", "-c -s 1", false},
	{"ibv_rc_pingpong", "-c -s 12345 -m %[1]d", true},
	{"ibv_rc_pingpong", "-c -s 1000003 -n 50 -r 20", false},
	{"ibv_rc_pingpong", "", false},
	{"ibv_rc_pingpong", "-t", false},
	{"ibv_rc_pingpong", "-N -c", false},
	{"ibv_uc_pingpong", "-c", true},
	{"ibv_uc_pingpong", "-c -e", false},
	{"ibv_uc_pingpong", "-c -s 7777", false},
	{"ibv_ud_pingpong", "-c -s 1000", true},
	{"ibv_ud_pingpong", "-c -e -s 1000", false},
	{"ibv_ud_pingpong", "-c -s 333", false},
	{"ibv_ud_pingpong", "-c -s %[1]d", true},
	{"ibv_srq_pingpong", "-c", true},
	{"ibv_srq_pingpong", "-c -e", false},
	{"ibv_srq_pingpong", "-c -s 6001 -q 4", false},
}

var perftests = []invocation{
	{"ib_send_bw", "-n 1000", true},
	{"ib_send_bw", "-a -n 20", false},
	{"ib_send_bw", "-c UC -n 1000", false},
	{"ib_send_bw", "-c UD -n 1000", true},
	{"ib_send_bw", "-q 8 -n 500", false},
	{"ib_send_bw", "-b -n 1000", false},
	{"ib_send_bw", "-e -n 1000", true},
	{"ib_send_bw", "-e -c UD -n 1000", false},
	{"ib_send_bw", "-I 64 -s 64 -n 1000", false},
	{"ib_send_bw", "-r 64 --use-srq -n 1000", false},
	{"ib_send_bw", "-s 1048576 -n 100", false},
	{"ib_send_bw", "-D 1", false},
	{"ib_write_bw", "-n 1000", true},
	{"ib_write_bw", "-a -n 20", false},
	{"ib_write_bw", "-c UC -n 1000", false},
	{"ib_write_bw", "-c UC -b -n 1000", false},
	{"ib_write_bw", "-q 8 -n 500", true},
	{"ib_write_bw", "-b -n 1000", false},
	{"ib_write_bw", "-I 64 -s 64 -n 1000", false},
	{"ib_read_bw", "-n 1000", true},
	{"ib_read_bw", "-a -n 20", false},
	{"ib_read_bw", "-q 8 -n 500", false},
	{"ib_read_bw", "-b -n 1000", false},
	{"ib_read_bw", "-e -n 1000", false},
	{"ib_read_bw", "-o 4 -n 1000", false},
	{"ib_atomic_bw", "-n 1000", true},
	{"ib_atomic_bw", "-A CMP_AND_SWAP -n 1000", false},
	{"ib_atomic_bw", "-q 8 -n 500", false},
	{"ib_atomic_bw", "-b -n 1000", false},
	{"ib_atomic_bw", "-e -n 1000", false},
	{"ib_send_lat", "-n 1000", true},
	{"ib_send_lat", "-a -n 5", false},
	{"ib_send_lat", "-c UC -n 1000", false},
	{"ib_send_lat", "-c UD -n 1000", false},
	{"ib_send_lat", "-e -n 1000", false},
	{"ib_send_lat", "-I 64 -s 64 -n 1000", false},
	{"ib_write_lat", "-n 1000", true},
	{"ib_write_lat", "-a -n 5", false},
	{"ib_write_lat", "-c UC -n 1000", false},
	{"ib_write_lat", "-I 64 -s 64 -n 1000", false},
	{"ib_read_lat", "-n 1000", true},
	{"ib_read_lat", "-a -n 5", false},
	{"ib_read_lat", "-e -n 1000", false},
	{"ib_atomic_lat", "-n 1000", true},
	{"ib_atomic_lat", "-A CMP_AND_SWAP -n 1000", false},
	{"ib_atomic_lat", "-e -n 1000", false},
}

// How much of the list is run; a soak runs all of it, and the slow ones.
const (
	basic = iota
	all
)

// runInvocations runs the list of programs, but for those in without.
func runInvocations(t *testing.T, b *testbed, how int, without ...invocation) {
	for _, r := range append(append([]invocation{}, pingpongs...), perftests...) {
		if slices.Contains(without, r) {
			continue
		}
		if !lab.Soak && (how == basic && !r.basic || r.slow()) {
			continue
		}
		t.Run(r.name(), func(t *testing.T) {
			args := r.args
			if strings.Contains(args, "%") {
				args = fmt.Sprintf(args, b.mtu)
			}
			out := b.pair(t, 90*time.Second, r.program, append(strings.Fields(args), extraArgs(r.program)...)...)
			if why := checkOutput(r.program, out); why != "" {
				t.Fatalf("%s\n%s", why, out)
			}
		})
	}
}

func extraArgs(program string) []string {
	if strings.HasPrefix(program, "ib_") {
		return []string{"-F"} // no warning about the CPU's clock
	}
	return nil
}

var iterations = regexp.MustCompile(`(?m)^(\d+) iters in [0-9.]+ seconds`)

// checkOutput returns what is wrong with a client's output, or nothing.
func checkOutput(program, out string) string {
	if strings.HasPrefix(program, "ibv_") {
		if !iterations.MatchString(out) {
			return "no result line"
		}
		if strings.Contains(out, "invalid data") {
			return "wrong contents"
		}
		return ""
	}
	// A row of a few bytes, or few iterations, may read 0.00 or worse; some row
	// must have a result.
	rows, results := 0, 0
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		if _, err := strconv.Atoi(f[0]); err != nil {
			continue
		}
		average, err := strconv.ParseFloat(f[3], 64)
		if err != nil {
			continue
		}
		rows++
		if average > 0 {
			results++
		}
	}
	if results == 0 {
		return fmt.Sprintf("%d rows, none with a result", rows)
	}
	return ""
}

// checkListings runs the programs that print devices.
func checkListings(t *testing.T, b *testbed) {
	expectOutput := func(t *testing.T, want []string, args ...string) {
		t.Helper()
		out, err := lab.Run(b.Server.Program(args...), 20*time.Second)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, w := range want {
			if !regexp.MustCompile(w).MatchString(out) {
				t.Errorf("no %q in:\n%s", w, out)
			}
		}
	}
	t.Run("ibv_devices", func(t *testing.T) {
		expectOutput(t, []string{`(?m)^\s*weft0\s+[0-9a-f]{16}`},
			"ibv_devices")
	})
	t.Run("ibv_devinfo -v", func(t *testing.T) {
		expectOutput(t, []string{`hca_id:\s*weft0`, `state:\s*PORT_ACTIVE \(4\)`, `link_layer:\s*Ethernet`,
			fmt.Sprintf(`active_mtu:\s*%d`, b.mtu),
			`GID\[ *\d+\]:\s*::ffff:` + regexp.QuoteMeta(b.Server.NetNS.V4) +
				`, RoCE v2`, `atomic_cap:\s*ATOMIC_HCA`, `transport:\s*InfiniBand`, `max_sge:\s*(1[6-9]|[2-9]\d|\d{3})`,
			`phys_state:\s*LINK_UP`}, "ibv_devinfo", "-v")
	})
	t.Run("ibstat", func(t *testing.T) {
		expectOutput(t, []string{`CA 'weft0'`, `State: Active`, `Physical state: LinkUp`, `Link layer: Ethernet`},
			"ibstat")
	})
}

// inSoak returns invocations to be left out unless this is a soak: messages of every size pass on
// either way without them, and each of these spends its time measuring the clock, too.
func inSoak(r ...invocation) []invocation {
	if lab.Soak {
		return nil
	}
	return r
}

func TestOneNode(t *testing.T) {
	t.Parallel()
	b := openTestbed(t, 9000, true, 0)
	checkListings(t, b)
	runInvocations(t, b, all, inSoak(invocation{"ib_write_bw", "-a -n 20", false}, invocation{"ib_read_bw",
		"-a -n 20", false})...)
}

// An ordinary user: no capability, no memory to lock, a node of its own.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	b := openTestbed(t, 9000, true, lab.Nobody)
	checkListings(t, b)
	runInvocations(t, b, basic)
}

// A node of root that lets a user in.
func TestOtherUser(t *testing.T) {
	t.Parallel()
	b := openTestbed(t, 9000, true, 0, "--allow-uid", strconv.Itoa(lab.Nobody))
	other := *b.Client
	other.UID = lab.Nobody
	b.Client = &other
	defer func() { b.Client = b.Server }()
	out := b.pair(t, 30*time.Second, "ibv_rc_pingpong", "-c")
	if why := checkOutput("ibv_rc_pingpong", out); why != "" {
		t.Errorf("%s\n%s", why, out)
	}
	// What its node does not let it do.
	out, err := lab.Run(other.Program(lab.Bin("verbcheck"), "--local", "--user", "-t", "err.ud.controlled"),
		verbcheckLimit)
	rows(t, out)
	if err != nil && !t.Failed() {
		t.Errorf("%v\n%s", err, lab.Tail(out, 20))
	}
}

// TestNodeOfThirdUser: a program gives its memory to no node of another ordinary user unless that user is trusted. The
// fix that it names works.
func TestNodeOfThirdUser(t *testing.T) {
	t.Parallel()
	const third = 4242
	b := openTestbed(t, 9000, true, lab.Nobody, "--allow-uid", strconv.Itoa(third))
	other := *b.Server
	other.UID = third
	out, err := lab.Run(other.Program("ibv_devinfo", "-d", "weft0"), 30*time.Second)
	want := fmt.Sprintf("fix: WEFT_TRUST_UID=%d weft run --dir %s -- PROGRAM", lab.Nobody, other.Dir)
	if err == nil || !strings.Contains(out, want) {
		t.Errorf("%v, want %q in\n%s", err, want, out)
	}
	trusting := other.Program("ibv_devinfo", "-d", "weft0")
	trusting.Env = append(trusting.Env, "WEFT_TRUST_UID="+strconv.Itoa(lab.Nobody))
	if out, err := lab.Run(trusting, 30*time.Second); err != nil || !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestWireLocal(t *testing.T) {
	t.Parallel()
	runInvocations(t, openTestbed(t, 9000, true, 0, "--wire-local"), basic)
}

func TestTwoNodes9000(t *testing.T) {
	t.Parallel()
	runInvocations(t, openTestbed(t, 9000, false, 0), all, inSoak(invocation{"ib_send_bw", "-a -n 20", false})...)
}

func TestTwoNodes1500(t *testing.T) {
	t.Parallel()
	runInvocations(t, openTestbed(t, 1500, false, 0), basic)
}

func TestTwoNodesUnprivileged(t *testing.T) {
	t.Parallel()
	if !lab.Soak {
		b := openTestbed(t, 9000, false, lab.Nobody)
		b.pair(t, 30*time.Second, "ibv_rc_pingpong", "-c")
		return
	}
	// A flood of an unreliable service loses packets in the receive buffer that a
	// user may have (208 KiB), and this program's server waits for every one.
	runInvocations(t, openTestbed(t, 9000, false, lab.Nobody), all, invocation{"ib_send_bw", "-c UC -n 1000", false})
}

// TestEventsAgain repeats what sleeps until an event comes: one that is lost is a
// program that waits for ever.
func TestEventsAgain(t *testing.T) {
	t.Parallel()
	times := 1
	if lab.Soak {
		times = 50
	}
	for _, oneNode := range []bool{true, false} {
		if !oneNode && !lab.Soak {
			continue
		}
		t.Run(map[bool]string{true: "one node", false: "two nodes"}[oneNode], func(t *testing.T) {
			b := openTestbed(t, 9000, oneNode, 0)
			for range times {
				b.pair(t, 60*time.Second, "ib_send_bw", "-n", "500", "-e", "-F")
				b.pair(t, 60*time.Second, "ib_send_bw", "-n", "500", "-e", "-c", "UD", "-F")
			}
		})
	}
}

// Large buffers in memory that the node maps.
func TestArena(t *testing.T) {
	t.Parallel()
	b := openTestbed(t, 9000, true, 0)
	for _, flag := range []string{"--arena", "--arena=only"} {
		for _, r := range []invocation{{"ib_write_bw", "-n 1000", true}, {"ib_send_bw", "-n 1000", true},
			{"ib_read_bw", "-n 1000", true}} {
			t.Run(flag+" "+r.name(), func(t *testing.T) {
				args := append(strings.Fields(r.args), "-F")
				if why := checkOutput(r.program, b.pairWith(t, 60*time.Second, []string{flag}, r.program,
					args...)); why != "" {
					t.Fatal(why)
				}
			})
		}
	}
}
