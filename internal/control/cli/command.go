// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

// client returns a client of the node that the caller means. It lives as long as the command.
func (a *app) client() (*api.Client, error) {
	if a.node == nil {
		dir, _, err := a.nodeDir()
		if err != nil {
			return nil, err
		}
		a.node = dial(dir)
	}
	return a.node, nil
}

// call has the node that the caller means do op.
func call[In, Out any](ctx context.Context, a *app, op api.Op[In, Out], in In) (out Out, err error) {
	c, err := a.client()
	if err != nil {
		return out, err
	}
	out, err = confirming(ctx, a, func(ctx context.Context) (Out, error) { return api.Call(ctx, c, op, in) })
	if err != nil {
		dir, named, _ := a.nodeDir()
		err = explain(err, dir, named)
	}
	return out, err
}

// get is call of an operation without input.
func get[Out any](ctx context.Context, a *app, op api.Op[api.None, Out]) (Out, error) {
	return call(ctx, a, op, api.None{})
}

// do is call of an operation without output.
func do[In any](ctx context.Context, a *app, op api.Op[In, api.None], in In) error {
	_, err := call(ctx, a, op, in)
	return err
}

// printer prints v as JSON, or calls people to print it for people.
type printer = func(v any, people func(w *screen)) error

// show makes cmd a command with -o; run prints something.
func (a *app) show(cmd *cobra.Command, run func(cmd *cobra.Command, args []string,
	print printer) error) *cobra.Command {
	var format string
	cmd.Flags().StringVarP(&format, "output", "o", "table", "table or json")
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"},
		cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if format != "table" && format != "json" {
			return usage(cmd.CommandPath()+" -o json", "-o must be table or json, not %q", format)
		}
		return run(cmd, args, func(v any, people func(w *screen)) error {
			if format == "json" {
				return printJSON(a.env.Out, v)
			}
			people(a.out())
			return nil
		})
	}
	return cmd
}

// view is a command that prints what op returns; input makes the input of the arguments, nil for None.
func view[In, Out any](a *app, cmd *cobra.Command, op api.Op[In, Out], input func(args []string) In,
	people func(w *screen, v Out)) *cobra.Command {
	if cmd.Args == nil {
		cmd.Args = cobra.NoArgs
	}
	return a.show(cmd, func(cmd *cobra.Command, args []string, print printer) error {
		var in In
		if input != nil {
			in = input(args)
		}
		v, err := call(cmd.Context(), a, op, in)
		if err != nil {
			return err
		}
		return print(v, func(w *screen) { people(w, v) })
	})
}

// list is a view of a list as a table. none is what it prints where the list is empty.
func list[In, T any](a *app, cmd *cobra.Command, op api.Op[In, []T], input func(args []string) In, none string,
	columns []column[T]) *cobra.Command {
	stateOrder[T](cmd)
	return view(a, cmd, op, input, func(w *screen, v []T) { writeTable(w, none, columns, v) })
}

// stateOrder adds the order of a list of T to the description of cmd.
func stateOrder[T any](cmd *cobra.Command) *cobra.Command {
	cmd.Long = describe(cmd) + "\n\nSorted by " + api.OrderText[T]() + "."
	return cmd
}

// find is a view of those elements of a list that match the argument. missing is the error where none does.
func find[T any](a *app, cmd *cobra.Command, op api.Op[api.None, []T], match func(v T, arg string) bool,
	missing func(arg string) error, people func(w *screen, v []T)) *cobra.Command {
	stateOrder[T](cmd)
	return a.show(cmd, func(cmd *cobra.Command, args []string, print printer) error {
		all, err := get(cmd.Context(), a, op)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			return print(all, func(w *screen) { people(w, all) })
		}
		var found []T
		for _, v := range all {
			if match(v, args[0]) {
				found = append(found, v)
			}
		}
		if len(found) == 0 {
			return missing(args[0])
		}
		return print(found, func(w *screen) { people(w, found) })
	})
}

// missing returns the error of find where what is looked for does not exist: "there is no device NAME".
func missing(what, noun, fix string) func(arg string) error {
	return func(arg string) error {
		return &api.Error{Code: api.CodeNotFound, What: what, Why: "there is no " + noun + " " + arg, Fix: fix}
	}
}

// removal is a command that deletes what its arguments name, one by one, and then prints how many. "delete" is the verb
// of all such commands; "del" and "rm" mean the same.
func removal[In any](a *app, use, short, noun string, op api.Op[In, api.None], input func(arg string) (In, error),
	complete completion) *cobra.Command {
	return &cobra.Command{
		Use: "delete " + use, Short: short, Aliases: deleteAliases, Args: cobra.MinimumNArgs(1), ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				in, err := input(arg)
				if err == nil {
					err = do(cmd.Context(), a, op, in)
				}
				if err != nil {
					return err
				}
			}
			fmt.Fprintf(a.env.Out, "deleted %s\n", plural(len(args), noun))
			return nil
		},
	}
}

var deleteAliases = []string{"del", "rm", "remove"}

// byName is the input of a removal by name.
func byName(arg string) (string, error) { return arg, nil }

// optional is the first argument, empty where there is none.
func optional(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// completion completes arguments.
type completion = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

// names completes the first argument with names of what a list has; without a node, with nothing.
func names[T any](a *app, op api.Op[api.None, []T], name func(v T) string) completion {
	return func(cmd *cobra.Command, args []string, _ string) (found []string, d cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, err := get(cmd.Context(), a, op)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, v := range all {
			if s := name(v); s != "" {
				found = append(found, s)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
