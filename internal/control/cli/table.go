// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// table is text in columns. A heading that starts with ">" is right-aligned,
// as numbers are.
type table struct {
	heads []string
	rows  [][]string
}

// row adds a row, one value per heading.
func (t *table) row(cells ...any) {
	r := make([]string, len(cells))
	for i, c := range cells {
		if r[i] = printable(fmt.Sprint(c)); r[i] == "" {
			r[i] = "-"
		}
	}
	t.rows = append(t.rows, r)
}

// write prints the table, or nothing if it has no row.
func (t *table) write(w io.Writer) {
	if len(t.rows) == 0 {
		return
	}
	right := make([]bool, len(t.heads))
	heads := make([]string, len(t.heads))
	for i, h := range t.heads {
		heads[i], right[i] = strings.CutPrefix(h, ">")
	}
	width := make([]int, len(heads))
	all := append([][]string{heads}, t.rows...)
	for _, r := range all {
		for i, c := range r {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for _, r := range all {
		var line strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if right[i] {
				line.WriteString(pad + c + "  ")
			} else {
				line.WriteString(c + pad + "  ")
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	io.WriteString(w, b.String())
}

// printable replaces what would steer a terminal: names of foreign programs
// end up in tables.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// round shortens a duration to what a person reads.
func round(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}

// sizeText prints a size in the largest binary unit that divides it, or with one
// decimal.
func sizeText(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i, f := 0, float64(n)
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + " " + units[i]
}

// plural prints a count with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// output adds -o to cmd and returns a function that prints v as JSON, or
// calls people for a table.
func output(cmd *cobra.Command, w io.Writer) func(v any, people func()) error {
	var format string
	cmd.Flags().StringVarP(&format, "output", "o", "table", "table or json")
	check := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if format != "table" && format != "json" {
			return usage(cmd.CommandPath()+" -o json", "-o must be table or json, not %q", format)
		}
		return check(cmd, args)
	}
	return func(v any, people func()) error {
		if format == "table" {
			people()
			return nil
		}
		return printJSON(w, v)
	}
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
