// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// column is a column of a table with values of T as rows.
type column[T any] struct {
	// head is the heading. One that starts with ">" is right-aligned, as numbers are.
	head string
	cell func(v T) any
	// wide orders columns that a narrow terminal does without: the one with the highest number goes first. A column
	// with 0 stays.
	wide int
}

// writeTable prints rows as a table, or none where there is no row.
func writeTable[T any](w *screen, none string, columns []column[T], rows []T) {
	if len(rows) == 0 {
		if none != "" {
			fmt.Fprintln(w, none)
		}
		return
	}
	t := table{}
	for _, c := range columns {
		t.heads, t.wide = append(t.heads, c.head), append(t.wide, c.wide)
	}
	for _, v := range rows {
		cells := make([]any, len(columns))
		for i, c := range columns {
			cells[i] = c.cell(v)
		}
		t.row(cells...)
	}
	t.write(w)
}

// table is text in columns.
type table struct {
	heads []string
	wide  []int // as of a column
	rows  [][]string
}

// row adds a row, one value per heading. A dash stands for an empty value.
func (t *table) row(cells ...any) {
	r := make([]string, len(cells))
	for i, c := range cells {
		if r[i] = printable(fmt.Sprint(c)); r[i] == "" {
			r[i] = "-"
		}
	}
	t.rows = append(t.rows, r)
}

// columnGap is the number of blanks between columns, minText the shortest text that is left of a cell that is cut.
const (
	columnGap = 2
	minText   = 12
)

// write prints the table. A table that is wider than the screen loses columns, and then the ends of its longest cells;
// a line below it names the columns that are left out, and those with cells that are cut.
func (t *table) write(w *screen) {
	right := make([]bool, len(t.heads))
	all := [][]string{make([]string, len(t.heads))}
	for i, h := range t.heads {
		all[0][i], right[i] = strings.CutPrefix(h, ">")
	}
	all = append(all, t.rows...)
	width := make([]int, len(t.heads))
	for _, r := range all {
		for i, c := range r {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	whole := slices.Clone(width)
	shown, left := t.fit(width, w.width)
	for n, r := range all {
		var line, plain strings.Builder
		for k, i := range shown {
			c := shorten(r[i], width[i])
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			styled := w.cell(c, all[0][i], n == 0)
			switch {
			case right[i]:
				styled, c = pad+styled, pad+c
			case k < len(shown)-1:
				styled, c = styled+pad, c+pad
			}
			if k > 0 {
				styled, c = strings.Repeat(" ", columnGap)+styled, strings.Repeat(" ", columnGap)+c
			}
			line.WriteString(styled)
			plain.WriteString(c)
		}
		text := line.String()
		if text == plain.String() {
			text = strings.TrimRight(text, " ")
		}
		fmt.Fprintln(w, text)
	}
	var cut []string
	for _, i := range shown {
		if width[i] < whole[i] {
			cut = append(cut, all[0][i]+" whole")
		}
	}
	if more := append(left, cut...); len(more) > 0 {
		for _, part := range wrap("… --wide shows "+strings.Join(more, ", "), w.width) {
			fmt.Fprintln(w, w.style(dim, part))
		}
	}
}

// fit returns the columns that the screen has room for, and the headings of the others. It narrows the widest columns
// of text where that is not enough. limit 0 is room for all.
func (t *table) fit(width []int, limit int) (shown []int, left []string) {
	total := func() (n int) {
		for _, i := range shown {
			n += width[i] + columnGap
		}
		return n - columnGap
	}
	for i := range width {
		shown = append(shown, i)
	}
	for limit > 0 && total() > limit {
		widest, go_ := 0, -1
		for k, i := range shown {
			if i < len(t.wide) && t.wide[i] > widest {
				widest, go_ = t.wide[i], k
			}
		}
		if go_ < 0 {
			break
		}
		left = append(left, strings.TrimPrefix(t.heads[shown[go_]], ">"))
		shown = slices.Delete(shown, go_, go_+1)
	}
	for limit > 0 && total() > limit {
		longest := -1
		for _, i := range shown {
			if width[i] > minText && (longest < 0 || width[i] > width[longest]) {
				longest = i
			}
		}
		if longest < 0 {
			break
		}
		width[longest]--
	}
	slices.Reverse(left)
	return shown, left
}

// shorten cuts s to a width.
func shorten(s string, width int) string {
	if width <= 0 || utf8.RuneCountInString(s) <= width {
		return s
	}
	r := []rune(s)
	return string(r[:width-1]) + "…"
}

// printable replaces what would steer a terminal: names of foreign programs end up in tables.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// fields prints lines of a name and what it is, the names in a column. Lines that are longer than the screen go on
// below their text.
type fields struct {
	w     *screen
	names int // width of the column
}

func (f fields) line(name, format string, args ...any) {
	text := printable(fmt.Sprintf(format, args...))
	for i, part := range wrap(text, f.w.width-f.names-1) {
		if i > 0 {
			name = ""
		}
		fmt.Fprintf(f.w, "%s %s\n", f.w.style(f.w.nameStyle(name), fmt.Sprintf("%-*s", f.names, name)), part)
	}
}

// wrap splits text at blanks into parts of a width at most; a word that is longer is a part of its own. A width below
// 20 leaves the text whole.
func wrap(text string, width int) (parts []string) {
	if width < 20 {
		return []string{text}
	}
	line := ""
	for _, word := range strings.Split(text, " ") {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			parts = append(parts, line)
			line = word
			continue
		}
		if line != "" || len(parts) > 0 {
			line += " "
		}
		line += word
		line = strings.TrimPrefix(line, " ")
	}
	return append(parts, line)
}

var _ io.Writer = (*screen)(nil)
