// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/control/api"
	"weft/test/lab"
)

// TestApply: an ordinary user configures the fabric of one node by a file. A change that takes contact away is refused
// without --yes, and the history has each change with its author.
func TestApply(t *testing.T) {
	t.Parallel()
	n := openTestbed(t, 9000, true, lab.Nobody).Server
	weft := func(args ...string) string {
		t.Helper()
		out, err := n.Weft(args...)
		if err != nil {
			t.Fatalf("weft %v: %v\n%s", args, err, out)
		}
		return out
	}
	fails := func(want string, args ...string) {
		t.Helper()
		if out, err := n.Weft(args...); err == nil || !strings.Contains(out, want) {
			t.Errorf("weft %v: %v\n%s\nwant %s", args, err, out, want)
		}
	}
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(filepath.Dir(n.Dir), name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	weft("dev", "add", "vf1")
	weft("wait", "--for=active", "--timeout", "20s")
	if err := lab.Until("the manager has both ports", fabricLimit, func() (bool, error) {
		var v api.Subnet
		if err := n.Query(&v, "fabric", "nodes"); err != nil {
			return false, nil // it is being elected
		}
		return len(v.Nodes) == 3, nil
	}, n.Proc); err != nil {
		t.Fatal(err)
	}

	red := file("red.yaml", `partitions:
  - name: red
    pkey: 0x8001
    members:
      - weft_ib0
      - vf1=limited
vesws:
  - name: lab
    ports:
      - port: weft_ib0
groups:
  - mgid: ff12:401b:ffff::77
    members: [weft_ib0]
`)
	fails("+ partition red (0x8001): members", "diff", "-f", red)
	fails("1 pair of ports would lose contact", "diff", "-f", red)
	fails("that is not confirmed. fix: weft apply -f "+red, "apply", "-f", red)
	if out := weft("pkey", "list"); !strings.Contains(out, "no partitions") {
		t.Errorf("what was refused is there:\n%s", out)
	}
	if out := weft("apply", "-f", red, "--dry-run"); !strings.Contains(out, "+ vesw lab") {
		t.Error(out)
	}
	if out := weft("apply", "-f", red, "--yes"); !strings.Contains(out, "applied 3 changes") {
		t.Error(out)
	}
	if out := weft("diff", "-f", red); !strings.Contains(out, "nothing differs") {
		t.Error(out)
	}

	exported := weft("export")
	all := file("all.yaml", exported)
	weft("diff", "-f", all)
	none := file("none.yaml", "partitions: []\nvesws: []\ngroups: []\n")
	fails("in partition red", "apply", "-f", none)
	weft("apply", "-f", none, "--yes")
	weft("apply", "-f", all, "--yes")
	if diff := cmp.Diff(exported, weft("export")); diff != "" {
		t.Error(diff)
	}

	fails(`line 2: the file: "vesw" is not known here`, "apply", "-f", file("a.yaml", "partitions: []\nvesw: []\n"))
	fails(`line 2: "weft_ib7" is no GUID`, "apply", "-f", file("b.yaml",
		"partitions:\n  - pkey: 0x8001\n    members: [weft_ib7]\n"))
	fails("line 3: the P_Key 8001 may be decimal or hexadecimal", "apply", "-f", file("c.yaml",
		"vesws: []\npartitions:\n  - pkey: 8001\n"))
	if diff := cmp.Diff(exported, weft("export")); diff != "" {
		t.Errorf("wrong files changed it:\n%s", diff)
	}

	fails("that is not confirmed", "pkey", "delete", "red")
	weft("pkey", "delete", "red", "--yes")
	weft("mcast", "join", "ff12:401b:ffff::78")
	weft("mcast", "leave", "ff12:401b:ffff::78") // takes nothing from any port
	var list []api.HistoryEntry
	if err := n.Query(&list, "history"); err != nil {
		t.Fatal(err)
	}
	var ops []string
	for i, h := range list {
		ops = append(ops, h.Op)
		if h.UID != lab.Nobody || h.Number != uint64(i+1) || h.At.IsZero() || h.Text == "" {
			t.Errorf("%+v", h)
		}
	}
	if diff := cmp.Diff([]string{"apply", "apply", "apply", "pkey delete", "mcast join", "mcast leave"},
		ops); diff != "" {
		t.Error(diff)
	}
	if out := weft("history", "--since", "1h"); strings.Count(out, "\n") != len(list)+1 {
		t.Error(out)
	}
}
