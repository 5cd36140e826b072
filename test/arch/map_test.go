// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMapNamesEveryPackage keeps the map of ARCHITECTURE.md complete: it names each package by its whole path.
// TestDocsNameRealPlaces finds places that are gone.
func TestMapNamesEveryPackage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages(t) {
		rel := p.rel()
		if !strings.HasPrefix(rel, "internal/") && !strings.HasPrefix(rel, "cmd/") {
			continue
		}
		if !strings.Contains(string(text), "`"+rel+"`") {
			t.Errorf("ARCHITECTURE.md does not name %s: add a line to its map", rel)
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
