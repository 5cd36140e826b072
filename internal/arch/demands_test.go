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

// kernelOnly are the demands on IP links that have no test of their own
// number: what only a kernel has.
var kernelOnly = []string{"H-22"}

// TestDemandsHaveTests reads the table of docs/notes/ipoib.md: each demand on IP links
// has tests that exist and bear its number, but for those that only a kernel can meet.
func TestDemandsHaveTests(t *testing.T) {
	dir := root(t)
	note, err := os.ReadFile(filepath.Join(dir, "docs/notes/ipoib.md"))
	if err != nil {
		t.Fatal(err)
	}
	// A test with the comment in front of it.
	whole := regexp.MustCompile(`(?ms)((?:^//[^\n]*\n)*)^func (Test\w+)\(t \*testing\.T\) \{\n.*?^\}\n`)
	tests := map[string][]string{} // package and name → text; several packages may have a name
	for _, name := range tracked(t) {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue // deleted, not yet committed
		}
		for _, m := range whole.FindAllStringSubmatch(string(src), -1) {
			key := filepath.Base(filepath.Dir(name)) + " " + m[2]
			tests[key] = append(tests[key], m[0])
			tests[m[2]] = append(tests[m[2]], m[0])
		}
	}
	named := regexp.MustCompile("`(Test\\w+)`(?: \\((\\w+)\\))?")
	rows := regexp.MustCompile(`(?m)^\| (H-\d\d) \| (.+?) \| (.*) \|$`).FindAllStringSubmatch(string(note), -1)
	if len(rows) != 70 {
		t.Fatalf("docs/notes/ipoib.md has %d demands, not 70", len(rows))
	}
	for i, row := range rows {
		no, cell := row[1], row[3]
		if want := fmt.Sprintf("H-%02d", i+1); no != want {
			t.Errorf("docs/notes/ipoib.md: %s stands where %s should", no, want)
		}
		exempt := strings.HasPrefix(cell, "kernel only: ")
		if exempt != slices.Contains(kernelOnly, no) {
			t.Errorf("docs/notes/ipoib.md: %s: kernel only is %v, which the list in this test does not say", no, exempt)
		}
		bears := exempt
		for _, m := range named.FindAllStringSubmatch(cell, -1) {
			key := m[1]
			if m[2] != "" {
				key = m[2] + " " + m[1]
			}
			if len(tests[key]) == 0 {
				t.Errorf("docs/notes/ipoib.md: %s names %s, which does not exist", no, key)
			}
			for _, text := range tests[key] {
				bears = bears || strings.Contains(text, no) || strings.Contains(m[1], strings.Replace(no, "-", "", 1))
			}
		}
		if !bears {
			t.Errorf("docs/notes/ipoib.md: %s (%s): no test of %q bears its number", no, row[2], cell)
		}
	}
}
