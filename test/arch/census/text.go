// SPDX-License-Identifier: Apache-2.0

package census

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// odd are the pronouns of persons; machine are verbs of speech and will, in the third person.
var (
	odd     = alternatives("who whom whose whoever whomever nobody somebody anybody everybody whence whither")
	machine = alternatives("says tells asks hears wants")
	letter  = regexp.MustCompile(`[\pL\pN]`)
	comment = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'`)
)

func alternatives(words string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(` + strings.ReplaceAll(words, " ", "|") + `)\b`)
}

// The kinds of prose, in the order of the report.
const (
	readme   = iota
	docs     // Markdown but README.md of the root
	comments // of Go and C, tests included
	messages // string literals of more than two words in Go that is no test
)

// countText fills in the counts that need no types.
func (c *Census) countText(dir string, files []string) error {
	c.Prose = []Prose{readme: {Name: "README"}, docs: {Name: "docs"}, comments: {Name: "comments"},
		messages: {Name: "messages"}}
	kinds := map[string]*Kind{}
	packages := map[string]*Package{}
	for _, name := range files {
		kind := kindOf(name)
		if kind == "" {
			continue
		}
		src, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		generated := isGenerated(src)
		if kinds[kind] == nil {
			kinds[kind] = &Kind{Name: kind}
		}
		if !generated {
			c.countLines(kinds[kind], name, src)
		}
		switch {
		case name == "README.md":
			c.Prose[readme].count(name, 1, string(src))
		case kind == "markdown":
			c.Prose[docs].count(name, 1, string(src))
		case kind == "go":
			folder := path.Dir(name)
			if packages[folder] == nil {
				packages[folder] = &Package{Name: folder}
			}
			if err := c.countGo(packages[folder], name, src, generated); err != nil {
				return err
			}
		case kind == "c" && !generated:
			for _, at := range comment.FindAllIndex(src, -1) {
				if text := src[at[0]:at[1]]; text[0] == '/' {
					c.Prose[comments].count(name, 1+bytes.Count(src[:at[0]], []byte("\n")), string(text))
				}
			}
		}
	}
	for _, kind := range []string{"go", "c", "shell", "markdown"} {
		if kinds[kind] != nil {
			c.Kinds = append(c.Kinds, *kinds[kind])
		}
	}
	for _, p := range packages {
		c.Packages = append(c.Packages, *p)
	}
	slices.SortFunc(c.LongFiles, func(a, b File) int { return b.Lines - a.Lines })
	return nil
}

// kindOf returns the kind of a file by its name, "" for those that are not counted.
func kindOf(name string) string {
	switch {
	case strings.Contains(name, "testdata/"):
		return ""
	case strings.HasSuffix(name, ".go"):
		return "go"
	case strings.HasSuffix(name, ".c"), strings.HasSuffix(name, ".h"):
		return "c"
	case strings.HasSuffix(name, ".md"):
		return "markdown"
	case strings.HasSuffix(name, ".sh"), path.Ext(name) == "" && (strings.HasPrefix(name, "scripts/") ||
		strings.HasPrefix(name, "bench/")):
		return "shell"
	}
	return ""
}

var generatedMark = regexp.MustCompile(`(?mi)^(//|/\*|\.\\"|<!--) ?(Code )?generated .*DO NOT EDIT|^This page is generated from `)

func isGenerated(src []byte) bool { return generatedMark.Match(src[:min(len(src), 500)]) }

func (c *Census) countLines(k *Kind, name string, src []byte) {
	lines := strings.Split(strings.TrimSuffix(string(src), "\n"), "\n")
	k.Files++
	k.Lines += len(lines)
	if len(lines) > MaxFile {
		c.LongFiles = append(c.LongFiles, File{name, len(lines)})
	}
	for i, line := range lines {
		if k.Name == "markdown" && strings.HasPrefix(strings.TrimSpace(line), "|") {
			continue // a row of a table cannot be broken
		}
		columns := utf8.RuneCountInString(line)
		if columns > MaxLine {
			k.Long++
		}
		if columns > k.Longest {
			k.Longest, k.Where = columns, fmt.Sprintf("%s:%d", name, i+1)
		}
	}
}

func (c *Census) countGo(p *Package, name string, src []byte, generated bool) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.ParseComments)
	if err != nil {
		return err
	}
	code, comment, blank := lineKinds(src)
	test := strings.HasSuffix(name, "_test.go")
	switch {
	case generated:
		p.Generated += code
		return nil
	case test:
		p.Test += code
	default:
		p.Files++
		p.Code += code
		p.Comment += comment
		p.Blank += blank
	}
	for _, group := range file.Comments {
		for _, one := range group.List {
			c.Prose[comments].count(name, fset.Position(one.Pos()).Line, one.Text)
		}
	}
	if test || !strings.HasPrefix(name, "internal/") && !strings.HasPrefix(name, "cmd/") {
		return nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil && strings.Count(text, " ") > 1 {
				c.Prose[messages].count(name, fset.Position(lit.Pos()).Line, text)
			}
		}
		return true
	})
	return nil
}

// lineKinds returns the lines of src that hold code, a comment only, and nothing.
func lineKinds(src []byte) (code, comment, blank int) {
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	const isCode, isComment = 1, 2
	kinds := make([]byte, bytes.Count(src, []byte("\n"))+2)
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue
		}
		kind := byte(isCode)
		if tok == token.COMMENT {
			kind = isComment
		}
		first := file.Line(pos)
		for line := first; line <= first+strings.Count(lit, "\n"); line++ {
			kinds[line] |= kind
		}
	}
	for line := 1; line <= bytes.Count(src, []byte("\n")); line++ {
		switch {
		case kinds[line]&isCode != 0:
			code++
		case kinds[line] != 0:
			comment++
		default:
			blank++
		}
	}
	return code, comment, blank
}

// count adds the words of text, which begins in the given line of the file name.
func (p *Prose) count(name string, line int, text string) {
	for _, field := range strings.Fields(text) {
		if letter.MatchString(field) {
			p.Words++
		}
	}
	p.Machine += len(machine.FindAllString(text, -1))
	for _, at := range odd.FindAllStringIndex(text, -1) {
		p.Odd++
		p.Examples = append(p.Examples, fmt.Sprintf("%s:%d: %s", name, line+strings.Count(text[:at[0]], "\n"),
			text[at[0]:at[1]]))
	}
}
