// SPDX-License-Identifier: Apache-2.0

package userland

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// pyverbs is how many tests of rdma-core pass in each release at least. The others need what Weft does not have, and
// are skipped.
var pyverbs = map[string]int{"bullseye": 80, "bookworm": 107, "trixie": 112, "sid": 130}

// flaws are tests of a release that fail by chance, for a reason in the tests themselves. In rdma-core 33 both members
// send to the group that both are in, and take copies of their own messages for the other's.
var flaws = map[string][]string{"bullseye": {"test_rdmacm_async_multicast_traffic",
	"test_rdmacm_async_ex_multicast_traffic"}}

// ofVendor matches the modules with tests of one vendor's features.
var ofVendor = regexp.MustCompile(`mlx5|efa|cuda|mana|irdma|hns`)

// unpackTests puts the tests of rdma-core into the directory pv, as a package of Python. The tests of rdma-core 50 and
// later run rdma(8) for the network interface of a device. That program requests it of the kernel, which no library can
// replace; so a script is in its place.
const unpackTests = `mkdir -p pv/tests bin
for f in /usr/share/doc/rdma-core/tests/*.py*; do
	case $f in
	*.gz) zcat "$f" >pv/tests/"$(basename "$f" .gz)" ;;
	*) cp "$f" pv/tests/ ;;
	esac
done
cat >bin/rdma <<end
#!/bin/sh
echo '[{"ifname":"weft0","port":1,"state":"ACTIVE","physical_state":"LINK_UP","netdev":"eth0","netdev_index":2}]'
end
chmod +x bin/rdma
ls pv/tests`

// TestPyverbs runs rdma-core's own tests of each release. Each passes or is skipped, and nothing crashes.
func TestPyverbs(t *testing.T) {
	lab.OnlySoak(t)
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) {
			t.Parallel()
			h := openWired(t, suite, "python3", "python3-pyverbs", "iproute2")
			h.need(t, "python3", "python3-pyverbs", "iproute2")
			h.inNetwork(t, "ip addr flush dev lo") // rdma-core 33 takes any GID with an IPv4 address
			gid := h.gid(t, wired)
			names, err := lab.Run(h.command(nil, "sh", "-ec", "cd "+home+"\n"+unpackTests), limit)
			if err != nil {
				t.Fatalf("%v\n%s", err, names)
			}
			total := map[string]int{}
			for name := range strings.FieldsSeq(names) {
				module, is := strings.CutSuffix(name, ".py")
				if !is || !strings.HasPrefix(module, "test_") || ofVendor.MatchString(module) {
					continue
				}
				t.Run(module, func(t *testing.T) { h.pyverbs(t, module, gid, total) })
			}
			t.Logf("pyverbs of %s: %v", suite, total)
			if total["ok"] < pyverbs[suite] {
				t.Errorf("%d tests pass, at least %d should", total["ok"], pyverbs[suite])
			}
		})
	}
}

// pyverbs runs a module of tests and counts the verdicts in total.
func (h *host) pyverbs(t *testing.T, module, gid string, total map[string]int) {
	t.Helper()
	c := h.command([]string{"PYTHONFAULTHANDLER=1", "PATH=" + home + "/bin:" + path}, weft, "run",
		"--", "env", "-C", home+"/pv", "python3", "tests/run_tests.py", "--dev", "weft0")
	if h.suite != "bullseye" { // rdma-core 33 has no such flags
		c.Args = append(c.Args, "--port", "1", "--gid", gid)
	}
	c.Args = append(c.Args, "-v", "tests."+module)
	out, err := lab.Run(c, 5*time.Minute)
	results := lab.UnittestResults(out)
	n := map[string]int{}
	var bad []string
	for test, r := range results {
		if slices.Contains(flaws[h.suite], test[strings.LastIndex(test, ".")+1:]) {
			r.Verdict = "by chance"
		}
		n[r.Verdict]++
		total[r.Verdict]++
		if r.Verdict != "ok" && r.Verdict != "skipped" && r.Verdict != "by chance" {
			bad = append(bad, fmt.Sprintf("%s: %s", test, r.Verdict))
		}
	}
	// Tests of the connection manager start processes, of which only exit statuses above 0 count.
	if strings.Contains(out, "Fatal Python error") {
		bad = append(bad, "a process crashed")
	}
	if !strings.Contains(out, fmt.Sprintf("Ran %d test", len(results))) {
		bad = append(bad, fmt.Sprintf("%d results understood", len(results)))
	}
	if err != nil && n["by chance"] == 0 || len(bad) > 0 {
		t.Errorf("%v\n%s\n%s", err, strings.Join(bad, "\n"), lab.Tail(out, 80))
	}
	for _, v := range slices.Sorted(maps.Keys(n)) {
		t.Logf("%s: %d %s", module, n[v], v)
	}
}
