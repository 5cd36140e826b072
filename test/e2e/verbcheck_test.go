// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"weft/test/lab"
)

// How long a run may take on a machine that does much else. Within it verbcheck
// bounds every wait itself.
const verbcheckLimit = 10 * time.Minute

// verbcheck runs the program between the testbed's nodes, one row per check. A trunk that goes down, as where
// a node gets no processor for long, takes datagrams along that checks wait for: then all of it once more.
func verbcheck(t *testing.T, b *testbed, limit time.Duration, flags []string, args ...string) {
	t.Helper()
	for try := 0; ; try++ {
		since := b.downs()
		p, err := b.runPairOnce(limit, flags, lab.Bin("verbcheck"), args...)
		if downs := since(); err != nil && downs > 0 && try < 3 {
			t.Logf("trunks went down %d times meanwhile: once more: %v", downs, err)
			continue
		}
		if p.Client == nil {
			t.Fatal(err)
		}
		rows(t, p.Client.Output())
		if err != nil && !t.Failed() {
			t.Error(err)
		}
		return
	}
}

// rows makes a subtest of each line of verbcheck's.
func rows(t *testing.T, output string) {
	t.Helper()
	passed, failed, skipped := lab.Verdicts(output)
	for _, name := range passed {
		t.Run(name, func(*testing.T) {})
	}
	for name, why := range failed {
		t.Run(name, func(t *testing.T) { t.Error(why) })
	}
	for name, why := range skipped {
		t.Run(name, func(t *testing.T) { t.Errorf("skipped, though Weft should do it: %s", why) })
	}
	if len(passed) == 0 {
		t.Errorf("nothing passed:\n%s", lab.Tail(output, 40))
	}
}

func big(args ...string) []string {
	if lab.Soak {
		return append(args, "--big")
	}
	return args
}

func TestVerbcheckOneNode(t *testing.T) {
	t.Parallel()
	verbcheck(t, openTestbed(t, 9000, true, 0), verbcheckLimit, nil, big()...)
}

// Both ends in one process, of a user without rights.
func TestVerbcheckLocal(t *testing.T) {
	t.Parallel()
	b := openTestbed(t, 9000, true, lab.Nobody)
	out, err := lab.Run(b.Server.Program(lab.Bin("verbcheck"), "--local"), verbcheckLimit)
	rows(t, out)
	if err != nil && !t.Failed() {
		t.Errorf("%v\n%s", err, lab.Tail(out, 20))
	}
}

func TestVerbcheckArena(t *testing.T) {
	t.Parallel()
	verbcheck(t, openTestbed(t, 9000, true, 0), verbcheckLimit, []string{"--arena"})
}

// One node, but every message through the full packet path.
func TestVerbcheckWireLocal(t *testing.T) {
	t.Parallel()
	verbcheck(t, openTestbed(t, 1500, true, 0, "--wire-local"), verbcheckLimit, nil)
}

func TestVerbcheckTwoNodes(t *testing.T) {
	t.Parallel()
	verbcheck(t, openTestbed(t, 9000, false, 0), verbcheckLimit, nil, big()...)
}

func TestVerbcheckTwoNodesIPv6(t *testing.T) {
	t.Parallel()
	b := openTestbed(t, 1500, false, 0)
	b.V6 = true
	verbcheck(t, b, verbcheckLimit, nil)
}

// lossy are the rows of verbcheck that hold where faults drop, double, reorder and damage packets. What may be lost for
// good is left out: datagrams, and the refusal of a request, which is not repeated. So is what a READ returns that is
// executed again after its response was lost (docs/adr/0016-read-order.md).
func lossy(more ...string) []string {
	return append([]string{"-T", "14", "-x", "rc.read_then_*", "-t", "rc.*", "-t", "srq.*", "-t", "cq.*"}, more...)
}

// Reliable traffic over links that lose, double, reorder and damage packets.
func TestVerbcheckFaults(t *testing.T) {
	t.Parallel()
	for _, f := range [][]string{
		{"--drop", "1%", "--seed", "7"},
		{"--duplicate", "5%", "--reorder", "5%", "--corrupt", "1%", "--seed", "8"},
	} {
		t.Run(f[0], func(t *testing.T) {
			b := openTestbed(t, 9000, false, 0)
			for _, n := range []*lab.Node{b.Server, b.Client} {
				if _, err := n.Weft(append([]string{"fault", "add"}, f...)...); err != nil {
					t.Fatal(err)
				}
			}
			verbcheck(t, b, verbcheckLimit, nil, lossy("-t", "err.rnr.forever")...)
			s, err := b.Client.Status()
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Faults) != 1 || s.Faults[0].Packets == 0 || s.Faults[0].Dropped+s.Faults[0].Duplicated+
				s.Faults[0].Reordered == 0 {
				t.Errorf("status shows no fault at work: %+v", s.Faults)
			}
		})
	}
}
