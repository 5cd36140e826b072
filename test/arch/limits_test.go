// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft/test/arch/census"
)

// TestLimits holds what make census counts below limits. A limit is what the tree has reached: it
// is lowered when the count falls, and never raised.
func TestLimits(t *testing.T) {
	dir := root(t)
	c, err := census.Take(dir)
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	check := func(name string, got, limit float64, fix string) {
		if got > limit {
			t.Errorf("%s: %.4g, the limit is %.4g: %s", name, got, limit, fix)
		}
	}
	check("words of README.md", float64(len(strings.Fields(string(readme)))), 900, "move details to docs/")
	check("methods of "+c.Types[0].Name, float64(c.Types[0].Methods), 60, "split the type by what its methods need")
	check("interfaces of many methods", float64(len(c.Interfaces)), 1,
		"declare where it is used the one to five methods that are called")
	check("files above 800 lines", float64(len(c.LongFiles)), 0, "split the file by subject")

	long := map[string]struct{ lines, columns float64 }{
		"go": {290, 160}, "c": {0, 120}, "shell": {3, 138}, "markdown": {0, 120},
	}
	for _, k := range c.Kinds {
		check(fmt.Sprintf("lines of %s above %d columns", k.Name, census.MaxLine), float64(k.Long),
			long[k.Name].lines, "break the lines of the change")
		check("columns of "+k.Where, float64(k.Longest), long[k.Name].columns, "break the line")
	}
	rates := map[string]struct{ odd, machine float64 }{
		"README": {0, 0}, "docs": {0.2, 0.1}, "comments": {0.1, 0.1}, "messages": {0.1, 0.1},
	}
	for _, p := range c.Prose {
		check("who, whose, nobody and the like in 1000 words of "+p.Name, p.Per1000(p.Odd), rates[p.Name].odd,
			"name the thing instead; go run ./test/arch/cmd/census -words lists them")
		check("says, tells, hears and the like in 1000 words of "+p.Name, p.Per1000(p.Machine), rates[p.Name].machine,
			"use the field's word: reports, sends, receives, requests")
	}
}
