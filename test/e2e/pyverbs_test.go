// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

// pyverbsModules are the modules of rdma-core's own tests that are for any
// adapter, with how many tests must pass at least: so many did with the first
// trial of what this library does.
var pyverbsModules = []struct {
	name  string
	least int
}{
	{"test_device", 11}, {"test_pd", 4}, {"test_mr", 3}, {"test_cq", 2}, {"test_cq_events", 2}, {"test_cqex",
		3}, {"test_qp", 16},
	{"test_qpex", 15}, {"test_addr", 3}, {"test_atomic", 5}, {"test_odp", 0}, {"test_fork",
		1}, {"test_relaxed_ordering", 2}, {"test_rdmacm", 5},
	{"test_shared_pd", 0}, {"test_parent_domain", 0}, {"test_flow", 0}, {"test_rss_traffic", 0}, {"test_tag_matching",
		0},
}

// pyverbsTests is where Debian's python3-pyverbs has them.
const pyverbsTests = "usr/share/doc/rdma-core/tests"

// TestPyverbs runs rdma-core's own tests on a device, with the system's Python.
// Each test passes, or is skipped and stands in pyverbs.txt with the reason; one
// that stands there and passes is an error too.
func TestPyverbs(t *testing.T) {
	t.Parallel()
	expected := expectedSkips(t)
	dir := t.TempDir()
	unpackPyverbs(t, dir)
	b := openTestbed(t, 9000, true, 0)
	gid := pyverbsGID(t, b.Server)
	if !hugePages(t, 8) {
		const test = "tests.test_parent_domain.ParentDomainTrafficTest.test_huge_page_traffic"
		t.Logf("this machine gives no huge pages: %s is left out", test)
		expected[test] = "no huge pages"
	}
	passed, skipped := 0, 0
	for _, m := range pyverbsModules {
		t.Run(m.name, func(t *testing.T) {
			c := b.Server.Program("/usr/bin/env", "-C", dir, "/usr/bin/python3", "tests/run_tests.py", "--dev",
				"weft0", "--port", "1",
				"--gid", strconv.Itoa(gid), "-v", "tests."+m.name)
			c.Env = []string{"PYTHONFAULTHANDLER=1"}
			out, err := lab.Run(c, 5*time.Minute)
			results := lab.UnittestResults(out)
			var bad []string
			n := map[string]int{}
			for test, r := range results {
				n[r.Verdict]++
				why, listed := expected[test]
				switch {
				case r.Verdict == "ok" && listed:
					bad = append(bad, fmt.Sprintf("%s passes: it must not stand in pyverbs.txt (%s)", test, why))
				case r.Verdict == "skipped" && !listed:
					bad = append(bad, fmt.Sprintf("%s is skipped: %s", test, r.Why))
				case r.Verdict != "ok" && r.Verdict != "skipped":
					bad = append(bad, fmt.Sprintf("%s: %s", test, r.Verdict))
				}
			}
			for test := range expected {
				if _, ran := results[test]; !ran && strings.HasPrefix(test, "tests."+m.name+".") {
					bad = append(bad, fmt.Sprintf("%s stands in pyverbs.txt, and there is no such test", test))
				}
			}
			// The connection manager's tests ask processes that they start for exit statuses above 0 alone.
			if strings.Contains(out, "Fatal Python error") {
				bad = append(bad, "a process crashed")
			}
			slices.Sort(bad)
			ran := regexp.MustCompile(`(?m)^Ran (\d+) tests? in`).FindStringSubmatch(out)
			if ran == nil || ran[1] != strconv.Itoa(len(results)) {
				bad = append(bad, fmt.Sprintf("%d results understood, %q", len(results), ran))
			}
			if n["ok"] < m.least {
				bad = append(bad, fmt.Sprintf("%d tests pass, at least %d should", n["ok"], m.least))
			}
			if err != nil || len(bad) > 0 {
				t.Errorf("%v\n%s\n%s", err, strings.Join(bad, "\n"), lab.Tail(out, 200))
			}
			t.Logf("%s: %d passed, %d skipped", m.name, n["ok"], n["skipped"])
			passed, skipped = passed+n["ok"], skipped+n["skipped"]
		})
	}
	t.Logf("pyverbs: %d passed, %d skipped", passed, skipped)
}

// expectedSkips reads pyverbs.txt: a reason in brackets, and below it the tests
// that are skipped for it.
func expectedSkips(t *testing.T) map[string]string {
	t.Helper()
	f, err := os.Open("pyverbs.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, reason := map[string]string{}, ""
	for s := bufio.NewScanner(f); s.Scan(); {
		switch line := strings.TrimSpace(s.Text()); {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			reason = strings.Trim(line, "[]")
		case reason == "" || list[line] != "":
			t.Fatalf("pyverbs.txt: %s has no reason, or two", line)
		default:
			list[line] = reason
		}
	}
	return list
}

// unpackPyverbs puts the tests into dir, as package tests.
func unpackPyverbs(t *testing.T, dir string) {
	t.Helper()
	from := "/" + pyverbsTests
	if _, err := os.Stat(from); err != nil {
		// Some systems install packages without their documentation.
		cmd := exec.Command("/bin/sh", "-c", "apt-get -q download python3-pyverbs && dpkg-deb -x python3-pyverbs_*.deb deb")
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			lab.Lacks(t, fmt.Errorf("no tests of rdma-core: %w: %s. fix: apt-get install python3-pyverbs", err, out))
		}
		from = filepath.Join(dir, "deb", pyverbsTests)
	}
	files, err := filepath.Glob(from + "/*.py*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", from, err)
	}
	to := filepath.Join(dir, "tests")
	if err := os.Mkdir(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if err := unpack(name, filepath.Join(to, strings.TrimSuffix(filepath.Base(name), ".gz"))); err != nil {
			t.Fatal(err)
		}
	}
}

func unpack(name, to string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return err
		}
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// pyverbsGID returns the index of the node's IPv4 GID.
func pyverbsGID(t *testing.T, n *lab.Node) int {
	t.Helper()
	var list []api.Device
	if err := n.Query(&list, "dev"); err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		for _, p := range d.Ports {
			for _, g := range p.GIDs {
				if d.Name == "weft0" && g.Address == n.NetNS.V4 {
					return g.Index
				}
			}
		}
	}
	t.Fatalf("no GID of %s: %+v", n.NetNS.V4, list)
	return 0
}

// hugePages sees to n huge pages for the time of the test and reports whether
// there are so many.
func hugePages(t *testing.T, n int) bool {
	const file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	have := func() int {
		b, _ := os.ReadFile(file)
		k, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return k
	}
	was := have()
	if was >= n {
		return true
	}
	if os.WriteFile(file, []byte(strconv.Itoa(n)), 0o644) != nil {
		return false
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, []byte(strconv.Itoa(was)), 0o644); err != nil {
			t.Error(err)
		}
	})
	return have() >= n
}
