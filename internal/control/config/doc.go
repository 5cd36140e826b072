// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"time"
)

// TypeText names the type of a setting for people.
func (s *Setting) TypeText() string {
	switch s.field(new(Config)).(type) {
	case *bool:
		return "true or false"
	case *int:
		if s.Unit != "" {
			return "number of " + s.Unit
		}
		return "number"
	case *time.Duration:
		return "duration, such as 50µs, 10s, 5m"
	case *[]int:
		return "list of numbers"
	case *[]string:
		return "list of texts"
	}
	return "text"
}

// DefaultText is the default as the file and the flags have it; empty where there is none.
func (s *Setting) DefaultText() string {
	c := Default()
	switch p := s.field(&c).(type) {
	case *string:
		return *p
	case *bool:
		return fmt.Sprint(*p)
	case *int:
		if s.Base == 16 {
			return fmt.Sprintf("%#x", *p)
		}
		return fmt.Sprint(*p)
	case *time.Duration:
		return p.String()
	}
	return ""
}

// isList reports whether the setting has several values.
func (s *Setting) isList() bool {
	switch s.field(new(Config)).(type) {
	case *[]int, *[]string:
		return true
	}
	return false
}

// Markdown is docs/configuration.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# Configuration

A node takes each setting from its flag of ` + "`weft up`" + `, else from its environment variable, else from the YAML file of
` + "`--config`" + ` (` + "`WEFT_CONFIG`" + `), else from its default. [weft.yaml](weft.yaml) is a sample file with every setting.

In an environment variable the values of a list have commas between them. An empty variable counts as unset. The file is
read strictly: an unknown key, a repeated key or a wrong type is an error that names the line.

This page is generated from ` + "`internal/control/config`" + `: ` + "`go test ./internal/control/config -run TestDocs -rewrite`" + `.
`)
	group := ""
	for i := range Settings {
		s := &Settings[i]
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&b, "\n## %s\n", group)
		}
		fmt.Fprintf(&b, "\n### %s\n\n", s.Name)
		b.WriteString(fill(capital(s.Help)+".", "", 120) + "\n")
		if s.Doc != "" {
			b.WriteString("\n" + fill(s.Doc, "", 120) + "\n")
		}
		fmt.Fprintf(&b, "\n- Flag `--%s`, variable `%s`\n- Type: %s\n", s.Name, EnvName(s.Name), s.TypeText())
		if d := s.DefaultText(); d != "" {
			fmt.Fprintf(&b, "- Default: `%s`\n", d)
		}
		if s.Example != "" {
			fmt.Fprintf(&b, "- Example: `%s`\n", s.Example)
		}
	}
	return b.String()
}

// Sample is docs/weft.yaml: a file with every setting. Those with a default have it; the others are comments.
func Sample() string {
	var b strings.Builder
	b.WriteString(`# A sample configuration: weft up --config weft.yaml
#
# Every setting is here with its default. Those without a default are comments with an example.
`)
	group := ""
	for i := range Settings {
		s := &Settings[i]
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&b, "\n# %s\n", group)
		}
		b.WriteString("\n" + fill(capital(s.Help)+".", "# ", 100) + "\n")
		if s.Doc != "" {
			b.WriteString(fill(s.Doc, "# ", 100) + "\n")
		}
		value, comment := s.DefaultText(), ""
		if value == "" {
			value, comment = s.Example, "# "
		}
		if s.isList() {
			value = "[" + value + "]"
		}
		fmt.Fprintf(&b, "%s%s: %s\n", comment, s.Name, value)
	}
	return b.String()
}

// capital begins a sentence with a capital letter, unless its first word is a value.
func capital(s string) string {
	word, _, _ := strings.Cut(s, " ")
	if strings.HasSuffix(word, ",") {
		return "One of " + s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// fill breaks text into lines of a width at most, each behind a prefix.
func fill(text, prefix string, width int) string {
	var lines []string
	line := ""
	for _, w := range strings.Fields(text) {
		if line != "" && len(prefix)+len(line)+1+len(w) > width {
			lines = append(lines, prefix+line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	return strings.Join(append(lines, prefix+line), "\n")
}
