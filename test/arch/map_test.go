// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func architecture(t *testing.T) (dir, text string) {
	t.Helper()
	dir = root(t)
	b, err := os.ReadFile(filepath.Join(dir, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	return dir, string(b)
}

// TestMapNamesEveryPackage keeps the map of ARCHITECTURE.md complete, and
// without places that are gone.
func TestMapNamesEveryPackage(t *testing.T) {
	dir, text := architecture(t)
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`((?:internal|cmd|shim|docs|test|scripts)(?:/[^`]*)?)`").FindAllStringSubmatch(text, -1) {
		named[m[1]] = true
		if _, err := os.Stat(filepath.Join(dir, m[1])); err != nil {
			t.Errorf("ARCHITECTURE.md names %s: %v", m[1], err)
		}
	}
	for _, p := range packages(t) {
		rel := p.rel()
		if !strings.HasPrefix(rel, "internal/") && !strings.HasPrefix(rel, "cmd/") {
			continue
		}
		parent := filepath.Dir(rel)
		if !named[rel] && !named[parent] {
			t.Errorf("ARCHITECTURE.md does not name %s: add a line to its map", rel)
		}
	}
}

// TestToursNameRealFunctions looks for a definition of every `name()` in
// ARCHITECTURE.md; of `T.Name()` the last part is looked for.
func TestToursNameRealFunctions(t *testing.T) {
	dir, text := architecture(t)
	defined := map[string]bool{}
	goFunc := regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?(\w+)`)
	goMethod := regexp.MustCompile(`(?m)^\t(\w+)\([^)]*\)`) // of an interface
	cFunc := regexp.MustCompile(`(?m)^[a-z][\w \*]*?\b\*?(\w+)\(`)
	for _, name := range tracked(t) {
		src, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || strings.HasSuffix(name, "_test.go") {
			continue
		}
		var res []*regexp.Regexp
		switch filepath.Ext(name) {
		case ".go":
			res = []*regexp.Regexp{goFunc, goMethod}
		case ".c", ".h":
			res = []*regexp.Regexp{cFunc}
		}
		for _, re := range res {
			for _, m := range re.FindAllStringSubmatch(string(src), -1) {
				defined[m[1]] = true
			}
		}
	}
	calls := regexp.MustCompile("`(?:\\w+\\.)?(\\w+)\\(\\)`").FindAllStringSubmatch(text, -1)
	if len(calls) < 20 {
		t.Errorf("only %d functions named: the tours are gone", len(calls))
	}
	for _, m := range calls {
		if !defined[m[1]] {
			t.Errorf("ARCHITECTURE.md names %s, which no file defines", m[0])
		}
	}
}

// TestDocsNameRealTests looks for every `TestName` in README.md and in the documents of docs/.
func TestDocsNameRealTests(t *testing.T) {
	dir := root(t)
	var tests strings.Builder
	pages := []string{"README.md"}
	for _, name := range tracked(t) {
		if strings.HasSuffix(name, "_test.go") {
			src, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				continue // deleted, not yet committed
			}
			tests.Write(src)
		}
		if page, err := filepath.Match("docs/*.md", name); err == nil && page {
			pages = append(pages, name)
		}
	}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			continue // deleted, not yet committed
		}
		for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(tests.String(), "\nfunc "+m[1]+"(") {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
	}
}

// TestLinksLeadSomewhere looks for the file of every relative link in Markdown.
func TestLinksLeadSomewhere(t *testing.T) {
	dir := root(t)
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)
	for _, name := range tracked(t) {
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue // deleted, not yet committed
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(dir, filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s has a link to %s: %v", name, m[1], err)
			}
		}
	}
}

// TestEachDecisionIsInTheIndex compares the records of docs/adr with the table of its README.md, and their
// length with a page.
func TestEachDecisionIsInTheIndex(t *testing.T) {
	dir := root(t)
	index, err := os.ReadFile(filepath.Join(dir, "docs/adr/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range tracked(t) {
		record, ok := strings.CutPrefix(name, "docs/adr/")
		if !ok || record == "README.md" || record == "0000-template.md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue // deleted, not yet committed
		}
		if !strings.Contains(string(index), "]("+record+")") {
			t.Errorf("docs/adr/README.md does not name %s: add a line to its table", record)
		}
		if n := len(strings.Fields(string(text))); n > 650 {
			t.Errorf("%s has %d words: a record is a page, 650 at most; move measurements to docs/notes", name, n)
		}
	}
}
