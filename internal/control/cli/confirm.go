// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

const yesHelp = `A change that takes contact away lists the ports that lose it, and waits for
a confirmation. Without a terminal it is refused; --yes confirms it.`

// confirmable gives a command the flag --yes.
func confirmable(a *app, cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&a.yes, "yes", false, "confirm that the change takes contact away")
	if cmd.Long == "" {
		cmd.Long = strings.ToUpper(cmd.Short[:1]) + cmd.Short[1:] + "."
	}
	cmd.Long += "\n\n" + yesHelp
	return cmd
}

// confirming calls a change. If it takes contact away and that is not confirmed, it prints the loss, and waits for an
// answer on a terminal; the second call confirms what was printed, and no more.
func confirming[Out any](ctx context.Context, a *app, change func(context.Context) (Out, error)) (Out, error) {
	if a.yes {
		ctx = api.Confirm(ctx, api.ConfirmAll)
	}
	for {
		out, err := change(ctx)
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.CodeContact || e.Lost == nil {
			return out, err
		}
		a.printLost(e.Lost)
		if !a.asks("go on?") {
			refused := *e
			refused.Why = "it takes contact away, and that is not confirmed"
			refused.Fix = a.commandLine() + " --yes"
			return out, &refused
		}
		ctx = api.Confirm(ctx, e.Lost.Digest)
	}
}

// printLost prints a loss of contact.
func (a *app) printLost(l *api.LostContact) {
	w := &screen{Writer: a.env.Err, width: a.env.ErrTerminal.Width, color: a.env.ErrTerminal.Color}
	head := "contact is lost:"
	if l.Pairs > 0 {
		head = plural(l.Pairs, "pair") + " of ports would lose contact:"
	}
	fmt.Fprintln(w, w.style(yellow, head))
	for _, line := range l.Lines {
		for i, part := range wrap(printable(line), w.width-4) {
			indent := "  "
			if i > 0 {
				indent = "    "
			}
			fmt.Fprintln(w, indent+part)
		}
	}
	if l.More > 0 {
		fmt.Fprintf(w, "  … and %d more\n", l.More)
	}
}

// asks prints a question, and reports whether the answer is yes. Without a terminal it is no.
func (a *app) asks(question string) bool {
	if !a.env.InTerminal || a.env.ErrTerminal.Width == 0 || a.env.In == nil {
		return false
	}
	fmt.Fprint(a.env.Err, question+" [y/N] ")
	line, _ := bufio.NewReader(a.env.In).ReadString('\n') // no answer is none
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true
	}
	return false
}

// commandLine is the command as it was typed, for a shell.
func (a *app) commandLine() string {
	words := []string{"weft"}
	for _, w := range a.args {
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\$`&|;<>()*?[]#~!{}") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}
