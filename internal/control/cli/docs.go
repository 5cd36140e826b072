// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// docsCommand is the hidden command that writes documentation of the commands from their descriptions.
func docsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "docs markdown|man DIR",
		Short:  "write docs/commands.md to standard output, or man pages to a directory",
		Hidden: true,
		Args:   cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case args[0] == "markdown" && len(args) == 1:
				_, err := fmt.Fprint(a.env.Out, Markdown())
				return err
			case args[0] == "man" && len(args) == 2:
				for name, text := range ManPages() {
					if err := os.WriteFile(filepath.Join(args[1], name), []byte(text), 0o644); err != nil {
						return fmt.Errorf("cannot write the man page: %w", err)
					}
				}
				return nil
			}
			return argsError(cmd, args)
		},
	}
}

// documented returns the command tree as the documentation has it.
func documented() *cobra.Command {
	a := &app{env: Env{Getenv: func(string) string { return "" }}}
	root := a.root()
	return root
}

// children are the subcommands of a command that are documented.
func children(cmd *cobra.Command) (list []*cobra.Command) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" && c.Name() != "completion" {
			list = append(list, c)
		}
	}
	return list
}

// describe returns the long description of a command, or its short one as a sentence.
func describe(cmd *cobra.Command) string {
	if cmd.Long != "" {
		return cmd.Long
	}
	return strings.ToUpper(cmd.Short[:1]) + cmd.Short[1:] + "."
}

// ownFlags are the flags of a command, without --help and those of every command.
func ownFlags(cmd *cobra.Command) *pflag.FlagSet {
	f := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if flag.Name != "help" && (!cmd.HasParent() || cmd.InheritedFlags().Lookup(flag.Name) == nil) {
			f.AddFlag(flag)
		}
	})
	return f
}

// docsWidth is the width of flag tables in documents.
const docsWidth = 110

// Markdown is docs/commands.md: every command with its description, examples and flags.
func Markdown() string {
	var b strings.Builder
	b.WriteString("# Commands\n\nThis page is generated from the commands of `weft`: `weft docs markdown`. `weft COMMAND --help` prints the same, and\n" +
		"`make install` installs it as man pages.\n")
	var write func(cmd *cobra.Command, level int)
	write = func(cmd *cobra.Command, level int) {
		fmt.Fprintf(&b, "\n%s %s\n\n", strings.Repeat("#", level), cmd.CommandPath())
		fmt.Fprintf(&b, "    %s\n\n%s\n", strings.TrimSuffix(cmd.UseLine(), " [flags]"), escape(describe(cmd)))
		if cmd.HasExample() {
			fmt.Fprintf(&b, "\nExamples:\n\n%s\n", indent(cmd.Example, "  "))
		}
		if f := ownFlags(cmd); f.HasAvailableFlags() {
			fmt.Fprintf(&b, "\nFlags:\n\n%s\n", indent(strings.TrimRight(f.FlagUsagesWrapped(docsWidth), "\n"), "  "))
		}
		for _, c := range children(cmd) {
			write(c, min(level+1, 4))
		}
	}
	write(documented(), 2)
	return b.String()
}

// escape keeps Markdown from reading a text as HTML, and lines that are indented as they are.
func escape(text string) string {
	var out []string
	list := false
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "  ") {
			if !list {
				out = append(out, "")
			}
			list = true
			out = append(out, "  "+line)
			continue
		}
		list = false
		out = append(out, strings.NewReplacer("<", "\\<", "*", "\\*").Replace(line))
	}
	return strings.Join(out, "\n")
}

func indent(text, by string) string { return by + strings.ReplaceAll(text, "\n", "\n"+by) }

// ManPages are the man pages, by file name: weft.1, and one of each command below weft with its subcommands.
func ManPages() map[string]string {
	root := documented()
	pages := map[string]string{"weft.1": manPage(root, false)}
	for _, c := range children(root) {
		pages["weft-"+c.Name()+".1"] = manPage(c, true)
	}
	return pages
}

// manPage writes a page in the man macros (man(7)).
func manPage(cmd *cobra.Command, whole bool) string {
	var b strings.Builder
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %s 1 \"\" weft \"weft manual\"\n.SH NAME\n%s \\- %s\n", roff(strings.ToUpper(name)), roff(name), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.nf\n%s\n.fi\n.SH DESCRIPTION\n", roff(cmd.UseLine()))
	manText(&b, describe(cmd))
	if cmd.HasExample() {
		b.WriteString(".SH EXAMPLES\n")
		manText(&b, cmd.Example)
	}
	manFlags(&b, "OPTIONS", ownFlags(cmd))
	var sections func(cmd *cobra.Command)
	sections = func(cmd *cobra.Command) {
		for _, c := range children(cmd) {
			fmt.Fprintf(&b, ".SS \"%s\"\n", roff(strings.TrimSuffix(c.UseLine(), " [flags]")))
			manText(&b, describe(c))
			if c.HasExample() {
				b.WriteString(".PP\nExamples:\n")
				manText(&b, c.Example)
			}
			manFlags(&b, "", ownFlags(c))
			sections(c)
		}
	}
	if list := children(cmd); len(list) > 0 {
		b.WriteString(".SH COMMANDS\n")
		if whole {
			sections(cmd)
		} else {
			for _, c := range list {
				fmt.Fprintf(&b, ".TP\n\\fB%s\\fR(1)\n%s\n", roff("weft-"+c.Name()), roff(c.Short))
			}
		}
	}
	if whole {
		b.WriteString(".SH SEE ALSO\n\\fBweft\\fR(1)\n")
	}
	return b.String()
}

// manText writes a text: paragraphs are filled, indented lines stay as they are.
func manText(b *strings.Builder, text string) {
	asIs := false
	for _, line := range strings.Split(text, "\n") {
		indented := strings.HasPrefix(line, "  ")
		switch {
		case indented && !asIs:
			b.WriteString(".PP\n.nf\n")
		case !indented && asIs:
			b.WriteString(".fi\n")
		}
		asIs = indented
		if line == "" {
			b.WriteString(".PP\n")
			continue
		}
		b.WriteString(roff(line) + "\n")
	}
	if asIs {
		b.WriteString(".fi\n")
	}
}

// manFlags writes flags under a heading, if there is any flag.
func manFlags(b *strings.Builder, head string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	if head != "" {
		fmt.Fprintf(b, ".SH %s\n", head)
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, help := pflag.UnquoteUsage(f)
		name := "\\fB\\-\\-" + roff(f.Name) + "\\fR"
		if f.Shorthand != "" {
			name = "\\fB\\-" + f.Shorthand + "\\fR, " + name
		}
		if kind != "" {
			name += " \\fI" + roff(kind) + "\\fR"
		}
		if d := f.DefValue; d != "" && d != "[]" && d != "false" && d != "0" && d != "0s" {
			help += " (default " + d + ")"
		}
		fmt.Fprintf(b, ".TP\n%s\n%s\n", name, roff(help))
	})
}

// roff escapes what the formatter would read as a request or an escape sequence.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...", "µ", "u", `"`, `\(dq`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
