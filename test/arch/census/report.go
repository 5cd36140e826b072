// SPDX-License-Identifier: Apache-2.0

package census

import (
	"fmt"
	"io"
)

// rows is how many of the largest things a table of the report shows.
const rows = 15

// Report writes c as tables of at most 80 columns.
func (c *Census) Report(w io.Writer) {
	fmt.Fprintf(w, "TYPES (%d; largest method sets of *T, promoted methods included)\n", len(c.Types))
	fmt.Fprintf(w, "%-47s %8s %8s %6s %5s\n", "", "methods", "declared", "fields", "mutex")
	for i, t := range c.Types {
		if i < rows || t.Fields >= 40 || t.Mutexes > 2 {
			fmt.Fprintf(w, "%-47s %8d %8d %6d %5d\n", tail(t.Name, 47), t.Methods, t.Declared, t.Fields, t.Mutexes)
		}
	}
	fmt.Fprintf(w, "\nINTERFACES above %d methods (%d)\n", MaxInterface, len(c.Interfaces))
	for _, i := range c.Interfaces {
		fmt.Fprintf(w, "%-47s %8d\n", tail(i.Name, 47), i.Methods)
	}
	fmt.Fprintf(w, "\nPACKAGES (%d; arrows: file calls file; back: against the best order found;\n", len(c.Packages))
	fmt.Fprintf(w, "circle: between files that reach each other)\n")
	fmt.Fprintf(w, "%-31s %5s %6s %5s %6s %6s %4s %6s\n", "", "files", "code", "cmnt", "test", "arrows", "back",
		"circle")
	var sum Package
	for i, p := range c.Packages {
		if i < rows+5 {
			p.row(w)
		}
		sum.Files += p.Files
		sum.Code += p.Code
		sum.Comment += p.Comment
		sum.Blank += p.Blank
		sum.Test += p.Test
		sum.Generated += p.Generated
		sum.Arrows += p.Arrows
		sum.Back += p.Back
		sum.Circle += p.Circle
	}
	sum.Name = "all packages"
	sum.row(w)
	fmt.Fprintf(w, "blank %d, generated code %d\n", sum.Blank, sum.Generated)

	fmt.Fprintf(w, "\nLINES of files that are not generated\n")
	fmt.Fprintf(w, "%-9s %5s %7s %8s %7s\n", "", "files", "lines", fmt.Sprintf("over %d", MaxLine), "longest")
	for _, k := range c.Kinds {
		fmt.Fprintf(w, "%-9s %5d %7d %8d %7d %s\n", k.Name, k.Files, k.Lines, k.Long, k.Longest, tail(k.Where, 39))
	}
	fmt.Fprintf(w, "files above %d lines: %d\n", MaxFile, len(c.LongFiles))
	for _, f := range c.LongFiles {
		fmt.Fprintf(w, "  %-70s %5d\n", tail(f.Name, 70), f.Lines)
	}

	fmt.Fprintf(w, "\nPROSE (per 1000 words; odd: pronouns of persons; machine verbs: of speech\nand will)\n")
	fmt.Fprintf(w, "%-9s %7s %5s %7s %9s %7s\n", "", "words", "odd", "rate", "machine", "rate")
	for _, p := range c.Prose {
		fmt.Fprintf(w, "%-9s %7d %5d %7.2f %9d %7.2f\n", p.Name, p.Words, p.Odd, p.Per1000(p.Odd), p.Machine,
			p.Per1000(p.Machine))
	}
}

func (p Package) row(w io.Writer) {
	fmt.Fprintf(w, "%-31s %5d %6d %5d %6d %6d %4d %6d\n", tail(p.Name, 31), p.Files, p.Code, p.Comment, p.Test,
		p.Arrows, p.Back, p.Circle)
}

// tail returns the end of s if it is longer than n.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return ".." + s[len(s)-n+2:]
}
