// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// wrapArgs makes every argument error of c and its children a usage error.
func wrapArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			var ce *codeError
			if err == nil || errors.As(err, &ce) {
				return err
			}
			return argsError(cmd, args)
		}
	}
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
}

// argsError is the error of a wrong number of arguments.
func argsError(cmd *cobra.Command, args []string) error {
	fix := cmd.CommandPath() + " --help"
	use := strings.TrimSuffix(cmd.UseLine(), " [flags]")
	switch {
	case len(args) == 0:
		return usage(fix, "an argument is missing: %s", use)
	case use == cmd.CommandPath() && cmd.Name() == "up" && isAddr(args[0]):
		return usage("weft up --peer "+args[0], "weft up takes no argument such as %q", args[0])
	case use == cmd.CommandPath():
		return usage(cmd.CommandPath(), "%s takes no argument such as %q", use, args[0])
	}
	return usage(fix, "%d is the wrong number of arguments: %s", len(args), use)
}

func isAddr(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// helpErrors makes "weft help NAME" fail for a name that no command has.
func helpErrors(root *cobra.Command) {
	help, _, err := root.Find([]string{"help"})
	if err != nil || help == root {
		return
	}
	show := help.Run
	help.Run, help.RunE = nil, func(cmd *cobra.Command, args []string) error {
		if found, rest, _ := root.Find(args); len(rest) > 0 {
			return unknownCommand(found, rest[0])
		}
		show(cmd, args)
		return nil
	}
}

// listing makes cmd, a command with subcommands, do what its subcommand list does where it has no argument.
func listing(cmd, list *cobra.Command) {
	cmd.Flags().AddFlagSet(list.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return list.RunE(cmd, args)
		}
		return unknownCommand(cmd, args[0])
	}
}

// group returns the RunE of a command that only has subcommands.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage(cmd.CommandPath()+" --help", "%s needs a subcommand", cmd.CommandPath())
	}
	return unknownCommand(cmd, args[0])
}

// flagError names the flag that was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	fix := cmd.CommandPath() + " --help"
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		name, best := unknown.GetSpecifiedName(), 3
		if name == "json" && cmd.Flags().Lookup("output") != nil {
			return usage(cmd.CommandPath()+" -o json", "%v", err)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if d := editDistance(name, f.Name); d < best || strings.HasPrefix(f.Name, name) {
				best, fix = min(d, best), cmd.CommandPath()+" --"+f.Name
			}
		})
	}
	var value *pflag.InvalidValueError
	if errors.As(err, &value) {
		f := value.GetFlag()
		want, ok := flagValues[f.Value.Type()]
		switch {
		case ok && errors.Is(err, strconv.ErrRange):
			return usage(fix, "--%s must be %s in its range, not %s", f.Name, want, value.GetValue())
		case ok:
			return usage(fix, "--%s must be %s, not %q", f.Name, want, value.GetValue())
		}
		return usage(fix, "--%s: %v", f.Name, value.Unwrap())
	}
	return usage(fix, "%v", err)
}

// flagValues describes the values of flags by their type.
var flagValues = map[string]string{"int": "a number", "int32": "a number", "int64": "a number", "uint": "a number",
	"uint8": "a number", "uint16": "a number", "uint32": "a number", "uint64": "a number", "float64": "a number",
	"intSlice": "a list of numbers", "bool": "true or false", "duration": "a duration such as 10s"}
