// SPDX-License-Identifier: Apache-2.0

// Package metric describes every counter of a node: its kind, its unit and its meaning.
//
// What comes in: the tables of this package, one Group per kind of instance. What goes out: docs/counters.md, and
// the descriptions of weft stat --explain; whatever else shows a counter takes its text from here. The command line
// calls it. It has no values and never reaches a node: the structs that count are in the packages that raise them,
// and the node lists them by package counters. A test of package node compares both.
package metric

import (
	"fmt"
	"slices"
	"strings"
)

// Kind is how a value changes.
type Kind uint8

// Kinds.
const (
	Count Kind = iota // begins at 0 and only grows
	Now               // a present number
	Most              // the largest number so far
)

// String is the word of tables, empty for a Count.
func (k Kind) String() string {
	switch k {
	case Now:
		return "now"
	case Most:
		return "most"
	}
	return ""
}

// Metric describes one counter. Unit is a plural noun, which Meaning qualifies: "packets", "sent".
type Metric struct {
	Name    string
	Kind    Kind
	Unit    string
	Meaning string
}

// Group is counters of one scope. Groups of one scope and part follow each other; only the first has a Title.
type Group struct {
	Scope string // of package api
	Part  string // the instance, where a scope has different counters for each; else empty
	Title string // what the instances of the scope are
	Note  string // a sentence before the table, or empty
	// Metrics are in the order of the page.
	Metrics []Metric
}

// groups is every group, in the order of the page.
var groups = slices.Concat(nodeGroups, linkGroups, managementGroups, ipoibGroups, ethernetGroups)

// Groups returns all groups, in the order of docs/counters.md. The caller must not change them.
func Groups() []Group { return groups }

// Scopes returns the scopes, in the order of docs/counters.md.
func Scopes() (list []string) {
	for _, g := range groups {
		if !slices.Contains(list, g.Scope) {
			list = append(list, g.Scope)
		}
	}
	return list
}

type key struct{ scope, part, name string }

var byName = func() map[key]Metric {
	m := map[key]Metric{}
	for _, g := range groups {
		for _, v := range g.Metrics {
			k := key{g.Scope, g.Part, v.Name}
			if _, twice := m[k]; twice {
				panic(fmt.Sprintf("metric: two descriptions of %v", k))
			}
			m[k] = v
		}
	}
	return m
}()

// Lookup returns the description of a counter as the node lists it, false where there is none.
func Lookup(scope, instance, name string) (Metric, bool) {
	if v, ok := byName[key{scope, instance, name}]; ok {
		return v, true
	}
	v, ok := byName[key{scope, "", name}]
	return v, ok
}

// Markdown is docs/counters.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString("# Counters\n")
	for _, p := range introduction {
		b.WriteString("\n" + wrap(p) + "\n")
	}
	for _, g := range groups {
		switch {
		case g.Part != "":
			fmt.Fprintf(&b, "\nInstance `%s`: %s.\n", g.Part, g.Title)
		case g.Title != "":
			fmt.Fprintf(&b, "\n## %s: %s\n", g.Scope, g.Title)
		}
		if g.Note != "" {
			b.WriteString("\n" + wrap(g.Note) + "\n")
		}
		b.WriteString("\n| counter | unit | meaning |\n|---|---|---|\n")
		for _, v := range g.Metrics {
			unit := v.Unit
			if v.Kind != Count {
				unit += ", " + v.Kind.String()
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.Name, unit, v.Meaning)
		}
	}
	return b.String()
}

// introduction is the paragraphs above the tables.
var introduction = []string{
	"This page is generated from the tables of `internal/control/metric`; a test compares them with what a node lists.",
	"`weft stat` lists the counters that are not zero, `--all` all of them, `--explain` also the unit and the meaning " +
		"of each, `--scope NAME` one kind, `-o json` as JSON. Each line has a scope, an instance (a device, a link, a " +
		"peer ...), a name and a value. Counters begin at 0 when the node, or the instance, starts. They only grow, " +
		"except those marked \"now\" (a present number) and \"most\" (the largest number so far).",
	"A `drop_...` counter counts packets or messages that were dropped, by reason. `refused...` and `reject...` count " +
		"requests that got an error.",
}

// wrap breaks a paragraph into lines of at most 120 columns.
func wrap(s string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(s) {
		if column > 0 && column+1+len(word) > 120 {
			b.WriteByte('\n')
			column = 0
		}
		if column > 0 {
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}
