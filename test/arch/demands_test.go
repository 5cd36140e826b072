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

// TestDemandsHaveTests reads the tables of docs/notes/ipoib.md: each demand on IP links, and each
// situation they must stand, has tests that exist and bear its number, but for demands that only a
// kernel can meet.
func TestDemandsHaveTests(t *testing.T) {
	dir := root(t)
	note, err := os.ReadFile(filepath.Join(dir, "docs/notes/ipoib.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests := testsByName(t, dir)
	named := regexp.MustCompile("`(Test\\w+)`(?: \\((\\w+)\\))?")
	for letter, count := range map[string]int{"H": 70, "S": 15} {
		rows := regexp.MustCompile(`(?m)^\| (`+letter+
			`-\d\d) \| (.+?) \| (.*) \|$`).FindAllStringSubmatch(string(note), -1)
		if len(rows) != count {
			t.Fatalf("docs/notes/ipoib.md has %d rows of %s, not %d", len(rows), letter, count)
		}
		for i, row := range rows {
			no, cell := row[1], row[3]
			if want := fmt.Sprintf("%s-%02d", letter, i+1); no != want {
				t.Errorf("docs/notes/ipoib.md: %s stands where %s should", no, want)
			}
			exempt := strings.HasPrefix(cell, "kernel only: ")
			if exempt != slices.Contains(kernelOnly, no) {
				t.Errorf("docs/notes/ipoib.md: %s: kernel only is %v, which the list in this test does not say", no,
					exempt)
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
				bearsHere := false
				for _, text := range tests[key] {
					bearsHere = bearsHere || strings.Contains(text, no) ||
						strings.Contains(m[1], strings.Replace(no, "-", "", 1))
				}
				if letter == "S" && !bearsHere {
					t.Errorf("docs/notes/ipoib.md: %s names %s, which does not bear its number", no, key)
				}
				bears = bears || bearsHere
			}
			if !bears {
				t.Errorf("docs/notes/ipoib.md: %s (%s): no test of %q bears its number", no, row[2], cell)
			}
		}
	}
}

// testsByName returns the text of every test, with the comment in front of it, by its name and
// by package and name; several packages may have a name.
func testsByName(t *testing.T, dir string) map[string][]string {
	t.Helper()
	whole := regexp.MustCompile(`(?ms)((?:^//[^\n]*\n)*)^func (Test\w+)\(t \*testing\.T\) \{\n.*?^\}\n`)
	tests := map[string][]string{}
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
	return tests
}
