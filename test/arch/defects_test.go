// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDefectsHaveTests reads the table of docs/notes/vesw.md: each defect that the reference
// driver of Ethernet over Omni-Path is known to have has tests that exist and bear its number, but for those that
// are about the kernel driver itself.
func TestDefectsHaveTests(t *testing.T) {
	dir := root(t)
	note, err := os.ReadFile(filepath.Join(dir, "docs/notes/vesw.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(note), "## 9. ")
	table, _, _ = strings.Cut(table, "\n## ")
	tests := testsByName(t, dir)
	var numbers []string
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+|15–17) \| (.+?) \| (.*) \|$`).FindAllStringSubmatch(table,
		-1) {
		no, cell := row[1], row[3]
		numbers = append(numbers, no)
		named := regexp.MustCompile("`(TestD(\\d\\d)_\\w+)` \\((\\w+)\\)").FindAllStringSubmatch(cell, -1)
		if exempt := strings.HasPrefix(cell, "exempt"); exempt != slices.Contains([]string{"15–17", "20"}, no) ||
			!exempt && len(named) == 0 {
			t.Errorf("docs/notes/vesw.md: defect %s (%s) has no test: %q", no, row[2], cell)
		}
		if n := strings.Count(cell, "`Test"); n != len(named) {
			t.Errorf("docs/notes/vesw.md: defect %s: %d of %d tests are written as `TestDnn_Name` (package)", no,
				len(named), n)
		}
		for _, m := range named {
			if fmt.Sprintf("%02s", no) != m[2] {
				t.Errorf("docs/notes/vesw.md: defect %s: %s bears another number", no, m[1])
			}
			if len(tests[m[3]+" "+m[1]]) == 0 {
				t.Errorf("docs/notes/vesw.md: defect %s names %s of %s, which does not exist", no, m[1], m[3])
			}
		}
	}
	want := "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15–17 18 19 20 21"
	if got := strings.Join(numbers, " "); got != want {
		t.Errorf("docs/notes/vesw.md has defects %s, not %s", got, want)
	}
}
