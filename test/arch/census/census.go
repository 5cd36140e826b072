// SPDX-License-Identifier: Apache-2.0

// Package census counts what makes a tree of Go hard to live in: the size of types, calls between
// the files of a package that run against their order, long lines and long files, and words of
// prose that describe machines as if they were people.
//
// What comes in: a directory inside a git checkout of a Go module. What goes out: a Census, as a
// value, as a table of 80 columns or as JSON. The command test/arch/cmd/census and the tests of
// test/arch call it. It never changes a file, and it runs no program but go list and git ls-files.
package census

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Census is the counts of one revision of a tree.
type Census struct {
	Types      []Type      `json:"types"`      // by methods, the largest first
	Interfaces []Interface `json:"interfaces"` // with more than MaxInterface methods, the largest first
	Packages   []Package   `json:"packages"`   // by code, the largest first
	Kinds      []Kind      `json:"kinds"`      // of files
	Prose      []Prose     `json:"prose"`
	LongFiles  []File      `json:"long_files"` // above MaxFile lines, the longest first
}

// Limits above which the census lists a thing by name.
const (
	MaxInterface = 5   // methods
	MaxFile      = 800 // lines
	MaxLine      = 120 // columns
)

// Type is a named type of the module that is no interface.
type Type struct {
	Name     string `json:"name"`     // package folder and name, as internal/node.Node
	Methods  int    `json:"methods"`  // of *T, promoted methods of embedded types included
	Declared int    `json:"declared"` // of these, those declared on T itself
	Fields   int    `json:"fields"`   // of a struct: direct ones
	Mutexes  int    `json:"mutexes"`  // of a struct, in nested anonymous structs too
	Line     string `json:"line"`     // file:line of its declaration
}

// Interface is a named interface type of the module.
type Interface struct {
	Name    string `json:"name"`
	Methods int    `json:"methods"` // embedded interfaces included
}

// Package is a folder of Go files.
type Package struct {
	Name      string `json:"name"` // folder below the root of the module
	Files     int    `json:"files"`
	Code      int    `json:"code"` // lines of files that are neither tests nor generated
	Comment   int    `json:"comment"`
	Blank     int    `json:"blank"`
	Test      int    `json:"test"`      // lines of code in test files
	Generated int    `json:"generated"` // lines of code in generated files
	Arrows    int    `json:"arrows"`    // pairs of files of which the first calls the second
	Back      int    `json:"back"`      // arrows that run back up in the best order of files found
	Circle    int    `json:"circle"`    // arrows between files that call each other, directly or by way of others
}

// Kind is all files of one kind, by the ending of the name.
type Kind struct {
	Name    string `json:"name"`
	Files   int    `json:"files"`
	Lines   int    `json:"lines"`
	Long    int    `json:"long"`    // lines of more than MaxLine columns; in Markdown, rows of tables do not count
	Longest int    `json:"longest"` // columns
	Where   string `json:"where"`   // file:line of the longest line
}

// Prose is the words of one kind of text.
type Prose struct {
	Name     string   `json:"name"`
	Words    int      `json:"words"`
	Odd      int      `json:"odd"`      // pronouns of persons
	Machine  int      `json:"machine"`  // verbs of speech and will
	Examples []string `json:"examples"` // file:line of the first odd words
}

// Per1000 returns n per 1000 words.
func (p Prose) Per1000(n int) float64 {
	if p.Words == 0 {
		return 0
	}
	return 1000 * float64(n) / float64(p.Words)
}

// File is a file and its lines.
type File struct {
	Name  string `json:"name"`
	Lines int    `json:"lines"`
}

// Take counts the module that dir is in.
func Take(dir string) (*Census, error) {
	mod, err := output(dir, "go", "env", "GOMOD")
	if err != nil {
		return nil, err
	}
	dir = filepath.Dir(strings.TrimSpace(string(mod)))
	files, err := tracked(dir)
	if err != nil {
		return nil, err
	}
	c := &Census{}
	if err := c.countText(dir, files); err != nil {
		return nil, err
	}
	if err := c.countTypes(dir); err != nil {
		return nil, err
	}
	slices.SortFunc(c.Packages, func(a, b Package) int {
		return cmp.Or(b.Code-a.Code, strings.Compare(a.Name, b.Name))
	})
	return c, nil
}

// tracked returns the files that git has, or would add, and that exist; without links.
func tracked(dir string) ([]string, error) {
	out, err := output(dir, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	names := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool {
		info, err := os.Lstat(filepath.Join(dir, name))
		return err != nil || !info.Mode().IsRegular()
	}), nil
}

func output(dir, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, errs.String())
	}
	return out, nil
}

// JSON returns c as indented JSON.
func (c *Census) JSON() ([]byte, error) { return json.MarshalIndent(c, "", "  ") }

// Package returns the counts of the package in the folder name, or zeros.
func (c *Census) Package(name string) Package {
	for _, p := range c.Packages {
		if p.Name == name {
			return p
		}
	}
	return Package{Name: name}
}
