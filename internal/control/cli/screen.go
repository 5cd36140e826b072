// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"os"
	"strconv"
	"strings"

	"weft/internal/control/api"
	"weft/internal/host/terminal"
)

// screen is where output for people goes.
type screen struct {
	io.Writer
	width int  // columns; 0: it is no terminal, or --wide was given
	color bool // it understands escape sequences for colours
}

// Terminal describes what Env.Out or Env.Err is connected to.
type Terminal struct {
	Width int  // columns; 0: it is no terminal
	Color bool // use colours
}

// TerminalOf returns what f is connected to. NO_COLOR, if it is set and not empty, and TERM=dumb turn colours off
// (no-color.org).
func TerminalOf(f *os.File, getenv func(string) string) Terminal {
	t := Terminal{Width: terminal.Width(f), Color: getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"}
	if t.Width == 0 {
		return Terminal{}
	}
	if n, err := strconv.Atoi(getenv("COLUMNS")); err == nil && n > 0 {
		t.Width = n
	}
	return t
}

// style is an SGR parameter (ECMA-48, 8.3.117).
type style string

const (
	normal style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// style returns text in a style, if the screen has any.
func (w *screen) style(s style, text string) string {
	if !w.color || s == normal || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// stateColumns are the headings of columns that have states.
var stateColumns = map[string]bool{"STATE": true, "CARRIER": true, "GUEST": true, "KEPT": true}

// cell styles a cell of a table.
func (w *screen) cell(text, head string, isHead bool) string {
	switch {
	case isHead:
		return w.style(bold, text)
	case stateColumns[head]:
		return w.style(stateStyle(text), text)
	}
	return text
}

// stateStyle is the colour of a state: green for what works, red for what does not, yellow for what may soon.
func stateStyle(text string) style {
	word, _, _ := strings.Cut(text, ",")
	word, _, _ = strings.Cut(word, ":")
	switch strings.ToLower(word) {
	case "active", "up", "ready", "yes", "forwarding", "master", "reachable", "valid", "rts":
		return green
	case "down", "no", "failed", "unreachable", "absent", "error", "err":
		return red
	case "init", "armed", "starting", "degraded", "configuring", "joining", "waiting", "resolving", "disabled",
		"drop_all":
		return yellow
	}
	return normal
}

// nameStyle is the style of the name of a line of fields.
func (w *screen) nameStyle(name string) style {
	switch name {
	case "degraded", "problem", api.LevelFail:
		return red
	case "notice", "note", "fault", api.LevelWarn:
		return yellow
	case "health", api.LevelOK:
		return green
	}
	return bold
}

// out is where the command prints for people.
func (a *app) out() *screen {
	s := &screen{Writer: a.env.Out, width: a.env.OutTerminal.Width, color: a.env.OutTerminal.Color}
	if a.wide {
		s.width = 0
	}
	return s
}
