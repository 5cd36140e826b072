// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageText is what --help prints below the description of a command. width is that of the terminal, 0 if it is none.
func usageText(cmd *cobra.Command, width int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasAvailableSubCommands() {
		if cmd.HasParent() {
			fmt.Fprintf(&b, "  %s COMMAND\n", cmd.CommandPath())
		}
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\nCommands:\n")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() || c.Name() == "help" {
				indent := cmd.NamePadding() + 3
				for i, line := range wrap(c.Short, width-indent) {
					name := c.Name()
					if i > 0 {
						name = ""
					}
					fmt.Fprintf(&b, "  %-*s %s\n", cmd.NamePadding(), name, line)
				}
			}
		}
	}
	for _, f := range []struct {
		head  string
		flags *pflag.FlagSet
	}{{"Flags", cmd.LocalFlags()}, {"Flags of every command", cmd.InheritedFlags()}} {
		if f.flags.HasAvailableFlags() {
			fmt.Fprintf(&b, "\n%s:\n%s", f.head, f.flags.FlagUsagesWrapped(width))
		}
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n%s COMMAND --help describes a command.\n", cmd.CommandPath())
	}
	return b.String()
}
