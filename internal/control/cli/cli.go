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
	"net/netip"
	"path/filepath"
	"strconv"
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

// Runner runs a node until ctx is done, it fails, or a request ends it. It calls ready once, when programs can use the
// node.
type Runner func(ctx context.Context, c config.Config, ready func(), log *slog.Logger) error

// Env is what a command touches of the world.
type Env struct {
	Out, Err                 io.Writer
	OutTerminal, ErrTerminal Terminal // what Out and Err are connected to; see TerminalOf
	Getenv                   func(string) string
	DefaultDir               string // directory of a node that is not named, from rundir.Default
	Node                     Runner
}

// codeError carries an exit code besides the message.
type codeError struct {
	code int
	err  error // nil: the message was printed already
}

func (e *codeError) Error() string { return e.err.Error() }
func (e *codeError) Unwrap() error { return e.err }

// usage returns an error for a wrong command line.
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
	defer a.close()
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
	case errors.As(err, &ae) && (ae.Code == api.CodeNoNode || ae.Code == api.CodeNotReady ||
		ae.Code == api.CodeNoAnswer):
		code = ExitNotReady
	case errors.As(err, &ae) && ae.Code == api.CodeInvalid:
		code = ExitUsage
	}
	if err != nil {
		line := printable(strings.ReplaceAll(err.Error(), "\n", "; "))
		e := screen{Writer: env.Err, color: env.ErrTerminal.Color}
		what, fix, ok := strings.Cut(line, ". fix: ")
		if ok {
			fix = ". fix: " + e.style(bold, fix)
		}
		fmt.Fprintln(env.Err, e.style(red, "weft:")+" "+what+fix)
		a.report(line)
	}
	return code
}

// app holds what the commands share.
type app struct {
	env  Env
	dir  string      // the flag; empty when not given
	wide bool        // the flag: tables are not fitted to the terminal
	node *api.Client // nil before the first call
}

func (a *app) close() {
	if a.node != nil {
		a.node.Close()
	}
}

const longHelp = `Weft runs unmodified RDMA verbs programs on ordinary Linux machines.

A node lives in a directory: --dir, else $WEFT_DIR, else /run/weft for root,
$XDG_RUNTIME_DIR/weft or /tmp/weft-<uid> for others.

Tables are fitted to the terminal: --wide shows all of them. Output that goes to
a file or a pipe is always whole. NO_COLOR=1 turns colours off.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 no node runs
there, or it is not ready or does not answer, 4 another node owns the
directory. "weft run" ends with the code of its command, 126 if that cannot be
executed, 127 if there is no command of that name.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "weft",
		Short: "a software RDMA fabric",
		Long:  longHelp,
		Example: `  weft run -- ibv_devinfo      run a program; starts a node where none runs
  weft up                      run a node in the foreground
  weft status                  state and health of the node on one screen`,
		Version:       ThisBuild().String(),
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
	root.InitDefaultVersionFlag()
	root.Flags().Lookup("version").Usage = "print the version of this program"
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		_, err := io.WriteString(cmd.OutOrStderr(), usageText(cmd, a.env.OutTerminal.Width))
		return err
	})
	root.PersistentFlags().StringVar(&a.dir, "dir", "", "directory of the node")
	root.PersistentFlags().BoolVar(&a.wide, "wide", false, "print tables whole, wider than the terminal")
	root.AddCommand(upCommand(a), downCommand(a), waitCommand(a), runCommand(a), statusCommand(a), devicesCommand(a),
		resourcesCommand(a), countersCommand(a), mcastCommand(a), faultCommand(a), captureCommand(a),
		fabricCommand(a), smCommand(a), trunksCommand(a), pkeyCommand(a), storeCommand(a), ipoibCommand(a), vmCommand(a), veswCommand(a), versionCommand(a), docsCommand(a))
	root.InitDefaultHelpCmd()
	helpErrors(root)
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
		return usage(use, "%s takes no argument such as %q", use, args[0])
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
		return "", named, usage("weft "+shorterDir(a.env.DefaultDir),
			"directory %s is too long: its sockets' paths have %d bytes, at most %d fit", abs, n, maxSocketPath)
	}
	return abs, named, nil
}

const maxSocketPath = 107 // of struct sockaddr_un, without the final zero

// shorterDir is the flag with a directory that is short enough.
func shorterDir(dir string) string {
	if len(filepath.Join(dir, "door", strings.Repeat("x", 63)+".sock")) > maxSocketPath {
		dir = "/tmp/weft"
	}
	return "--dir " + dir
}

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
