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
	"io/fs"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
	"weft/internal/control/config"
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
	In                       io.Reader // nil: nothing can be read
	InTerminal               bool      // In is a terminal: questions are asked there
	Out, Err                 io.Writer
	OutTerminal, ErrTerminal Terminal // what Out and Err are connected to; see TerminalOf
	Getenv                   func(string) string
	DefaultDir               string // directory of a node that is not named, from rundir.Default
	Libraries                fs.FS  // what programs preload, from shimlib.Embedded
	Node                     Runner
	// Join makes a host a member of a fabric, Leave undoes it; the node in the directory does not run.
	Join  func(context.Context, JoinSpec) (Joined, error)
	Leave func(dir string) error
}

// Run executes one command line, args without the program's name, and
// returns the exit code.
func Run(ctx context.Context, args []string, env Env) int {
	a := &app{env: env, args: args}
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
	yes  bool        // the flag: a loss of contact is confirmed
	args []string    // of the command line
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
	root.AddCommand(upCommand(a), tokenCommand(a), joinCommand(a), leaveCommand(a), memberCommand(a),
		downCommand(a), waitCommand(a), runCommand(a), envCommand(a), statusCommand(a), devicesCommand(a),
		resourcesCommand(a), countersCommand(a), mcastCommand(a), faultCommand(a), captureCommand(a),
		fabricCommand(a), smCommand(a), trunksCommand(a), pkeyCommand(a), checkCommand(a), doctorCommand(a),
		storeCommand(a), ipoibCommand(a), vmCommand(a), veswCommand(a), exportCommand(a), diffCommand(a),
		applyCommand(a), historyCommand(a), versionCommand(a), uninstallCommand(a), docsCommand(a, documented),
		stageCommand())
	root.InitDefaultHelpCmd()
	helpErrors(root)
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		wrapArgs(c)
	}
	return root
}

// documented returns the command tree as the documentation has it.
func documented() *cobra.Command {
	a := &app{env: Env{Getenv: func(string) string { return "" }}}
	root := a.root()
	return root
}
