// SPDX-License-Identifier: Apache-2.0

// Package cli is the weft command: every subcommand, its flags, its tables
// and its errors.
//
// What comes in: arguments, environment and streams; what goes out: an exit
// code. Called by cmd/weft, and by tests with a fake node. It reaches a
// running node only through api.Client, and starts one only through the
// Runner it is given. It never prints a stack or a usage text for a failure:
// one line, "weft: what failed: why. fix: command".
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/host/rundir"
)

// Exit codes. "weft run" ends with its command's own code once it runs, and
// with ExitCannotExec or ExitNotFound as env(1) does when it cannot.
const (
	ExitOK         = 0
	ExitFailed     = 1
	ExitUsage      = 2 // wrong flags, arguments or configuration
	ExitNotReady   = 3 // no node runs there, it is not ready, or it does not answer
	ExitOwned      = 4 // another node owns the directory
	ExitCannotExec = 126
	ExitNotFound   = 127
)

// Runner runs a node until ctx is done, it fails, or it is told to end. It
// calls ready once, when programs can use the node.
type Runner func(ctx context.Context, c config.Config, ready func(), log *slog.Logger) error

// Env is what a command touches of the world.
type Env struct {
	Out, Err   io.Writer
	Getenv     func(string) string
	DefaultDir string // of the node nobody named, from rundir.Default
	Node       Runner
}

// codeError carries an exit code besides the message.
type codeError struct {
	code int
	err  error // nil: everything was said already
}

func (e *codeError) Error() string { return e.err.Error() }
func (e *codeError) Unwrap() error { return e.err }

// usage returns an error for what the caller typed.
func usage(fix, format string, args ...any) error {
	return &codeError{ExitUsage, &api.Error{Code: api.CodeInvalid, What: fmt.Sprintf(format, args...), Fix: fix}}
}

// Run executes one command line, args without the program's name, and
// returns the exit code.
func Run(ctx context.Context, args []string, env Env) int {
	a := &app{env: env}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	code := ExitFailed
	var ce *codeError
	var ae *api.Error
	switch {
	case errors.As(err, &ce):
		code, err = ce.code, ce.err
	case errors.As(err, &ae) && (ae.Code == api.CodeNoNode || ae.Code == api.CodeNotReady || ae.Code == api.CodeNoAnswer):
		code = ExitNotReady
	case errors.As(err, &ae) && ae.Code == api.CodeInvalid:
		code = ExitUsage
	}
	if err != nil {
		fmt.Fprintln(env.Err, "weft: "+printable(strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	return code
}

// app holds what the commands share.
type app struct {
	env Env
	dir string // the flag; empty when not given
}

const longHelp = `Weft runs unmodified RDMA verbs programs on ordinary Linux machines.

  weft run -- ibv_devinfo      run a program; starts a node when none runs
  weft up                      run a node in the foreground
  weft status                  one screen of truth

A node lives in a directory: --dir, else $WEFT_DIR, else /run/weft for root,
$XDG_RUNTIME_DIR/weft or /tmp/weft-<uid> for others.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 no node runs
there, or it is not ready or does not answer, 4 another node owns the
directory. "weft run" ends with the code of its command, 126 if that cannot be
executed, 127 if there is none of that name.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "weft",
		Short:         "a software RDMA fabric",
		Long:          longHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(cmd, args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&a.dir, "dir", "", "directory of the node")
	root.AddCommand(a.up(), a.down(), a.wait(), a.run(), a.status(), a.devices(), a.resources(), a.counters(), a.mcast(), a.fault(), a.capture(),
		a.fabric(), a.sm(), a.trunks(), a.pkey(), a.store(), a.ipoib(), a.vm(), a.vesw(), a.version())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		wrapArgs(c)
	}
	return root
}

// wrapArgs makes every argument error of c and its children a usage error.
func wrapArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			var ce *codeError
			if err == nil || errors.As(err, &ce) {
				return err
			}
			return usage(cmd.CommandPath()+" --help", "wrong arguments: %v", err)
		}
	}
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	fix := cmd.CommandPath() + " --help"
	if s := cmd.SuggestionsFor(name); len(s) > 0 {
		fix = cmd.CommandPath() + " " + s[0]
	}
	return usage(fix, "unknown command %q", name)
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
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if d := editDistance(name, f.Name); d < best || strings.HasPrefix(f.Name, name) {
				best, fix = min(d, best), cmd.CommandPath()+" --"+f.Name
			}
		})
	}
	return usage(fix, "%v", err)
}

// editDistance is the number of bytes inserted, deleted, changed or swapped
// with their neighbour between two flag names.
func editDistance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := d[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			d[i][j] = min(change, d[i-1][j]+1, d[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}

// nodeDir returns the node's directory and whether the caller named it.
func (a *app) nodeDir() (dir string, named bool, err error) {
	dir, named = a.dir, true
	if dir == "" {
		dir = a.env.Getenv(config.EnvName("dir"))
	}
	if dir == "" {
		dir, named = a.env.DefaultDir, false
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", named, err
	}
	if n := len(filepath.Join(abs, rundir.ControlSock)); n > maxSocketPath {
		return "", named, usage("choose a shorter --dir", "directory %s is too long: its sockets' paths have %d bytes, at most %d fit", abs, n, maxSocketPath)
	}
	return abs, named, nil
}

const maxSocketPath = 107 // of struct sockaddr_un, without the final zero

// dirFlag returns " --dir DIR" for a fix, or nothing for the default.
func dirFlag(dir string, named bool) string {
	if !named {
		return ""
	}
	return " --dir " + dir
}

// dial returns a client of the node.
func dial(dir string) *api.Client {
	return api.NewClient(filepath.Join(dir, rundir.ControlSock), nil)
}

// explain adds directory and fix to the error of a call on a node that is
// not there.
func explain(err error, dir string, named bool) error {
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeNoNode {
		return err
	}
	x := *e
	x.Why = "no node runs in " + dir
	x.Fix = "weft up" + dirFlag(dir, named)
	return &x
}

// query runs f with a client of the node the caller means.
func (a *app) query(ctx context.Context, f func(ctx context.Context, c *api.Client) error) error {
	dir, named, err := a.nodeDir()
	if err != nil {
		return err
	}
	c := dial(dir)
	defer c.Close()
	return explain(f(ctx, c), dir, named)
}
