// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"weft/internal/control/api"
	"weft/internal/control/metric"
)

// TestDocs compares docs/commands.md and docs/counters.md with the descriptions that they are generated from.
func TestDocs(t *testing.T) {
	for path, want := range map[string]string{
		"../../../docs/commands.md": Markdown(documented()),
		"../../../docs/counters.md": metric.Markdown(),
	} {
		if *rewrite {
			if err := os.WriteFile(path, []byte(want), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s differs from its source. fix: go test ./internal/control/cli -run TestDocs -rewrite\n%s",
				path, diff)
		}
	}
}

// TestManPages formats every man page, where there is a formatter, and expects no warning.
func TestManPages(t *testing.T) {
	dir := t.TempDir()
	pages := ManPages(documented())
	for _, name := range []string{"weft.1", "weft-up.1", "weft-ipoib.1"} {
		if pages[name] == "" {
			t.Errorf("there is no %s", name)
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Logf("the pages are not formatted: %v", err)
		return
	}
	for name, text := range pages {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(groff, "-man", "-Tascii", "-ww", path).CombinedOutput()
		if err != nil || strings.Contains(string(out), "warning") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestHelpFits checks that the description, the examples' commands and the name of each command fit 80 columns, and
// that the help wraps its flags there.
func TestHelpFits(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, line := range strings.Split(c.Long, "\n") {
			if n := utf8.RuneCountInString(line); n > 80 {
				t.Errorf("%s: a line of %d columns: %s", c.CommandPath(), n, line)
			}
		}
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: the short description %q", c.CommandPath(), c.Short)
		}
		for _, line := range strings.Split(usageText(c, 80), "\n") {
			if n := utf8.RuneCountInString(line); n > 80 && !strings.Contains(c.Example, line) &&
				!strings.Contains(line, "weft ") {
				t.Errorf("%s --help: a line of %d columns: %s", c.CommandPath(), n, line)
			}
		}
		for _, sub := range children(c) {
			walk(sub)
		}
	}
	walk(documented())
}

// TestExplainedCounters checks that weft stat --explain has the description of a counter, and lists one of another
// version of the node, which has none, without it.
func TestExplainedCounters(t *testing.T) {
	got := explained([]api.Counter{
		{Scope: api.ScopeNode, Name: "sessions", Value: 2},
		{Scope: api.ScopeQP, Instance: "16385", Name: "of_another_version", Value: 1},
	})
	want := []explainedCounter{
		{Counter: api.Counter{Scope: api.ScopeNode, Name: "sessions", Value: 2}, Unit: "sessions", Kind: "now",
			Meaning: "connected programs"},
		{Counter: api.Counter{Scope: api.ScopeQP, Instance: "16385", Name: "of_another_version", Value: 1}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
