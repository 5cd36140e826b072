// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"regexp"
	"strings"
)

// PageCommand is a command of a page of the documentation, and the lines that the page shows after it.
type PageCommand struct {
	Line     int
	Host     string // what is before the prompt, as host1; empty: the machine itself
	Text     string
	Expected []string
}

var (
	// ellipsis is "..." and the space around it, where quoted for a regular expression.
	ellipsis = regexp.MustCompile(` ?\\.\\.\\. ?`)
	prompt   = regexp.MustCompile(`^(\w*)\$ (.+)$`)
)

// PageCommands returns the commands of all console blocks of a page. Another language may hold no
// command, so that none is left out by mistake.
func PageCommands(page string) ([]PageCommand, error) {
	var list []PageCommand
	language, inBlock := "", false
	for i, line := range strings.Split(page, "\n") {
		if info, ok := strings.CutPrefix(line, "```"); ok {
			inBlock, language = !inBlock, info
			continue
		}
		if !inBlock {
			continue
		}
		m := prompt.FindStringSubmatch(line)
		switch {
		case language != "console" && m != nil:
			return nil, fmt.Errorf("line %d: a command in a block of %q: only those of console blocks are tested",
				i+1, language)
		case language != "console":
		case m != nil:
			list = append(list, PageCommand{Line: i + 1, Host: m[1], Text: m[2]})
		case strings.TrimSpace(line) == "":
		case len(list) > 0 && strings.HasPrefix(line, "> "):
			list[len(list)-1].Text += "\n" + line[2:]
		case len(list) == 0:
			return nil, fmt.Errorf("line %d: output before the first command", i+1)
		default:
			list[len(list)-1].Expected = append(list[len(list)-1].Expected, line)
		}
	}
	return list, nil
}

// OfGuest reports whether the command is for a guest, as those after the prompt "guest1$ ".
func (c PageCommand) OfGuest() bool { return strings.HasPrefix(c.Host, "guest") }

// Compare returns an error if a line that the page shows is not in out, or not in that order.
func (c PageCommand) Compare(out string) error {
	lines := strings.Split(out, "\n")
	next := 0
	for _, want := range c.Expected {
		pattern := ellipsis.ReplaceAllLiteralString(regexp.QuoteMeta(strings.Join(strings.Fields(want), " ")), ".*")
		re, err := regexp.Compile(pattern)
		if err != nil {
			return err
		}
		for ; ; next++ {
			if next == len(lines) {
				return fmt.Errorf("the page shows %q, which is not in the output, or not behind the line shown "+
					"before it", want)
			}
			if re.MatchString(strings.Join(strings.Fields(lines[next]), " ")) {
				next++
				break
			}
		}
	}
	return nil
}
