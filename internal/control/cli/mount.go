// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
	"weft/internal/host/rundir"
	"weft/internal/host/sysclass"
)

// stageCommand is the process that makes the namespaces of a program for weft run --mount.
func stageCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "mount-stage TREE",
		Short:  "make the namespaces of weft run --mount",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if sysclass.Stage(os.Stdin, os.Stdout, args[0]) != nil {
				return &codeError{ExitFailed, nil} // printed
			}
			return nil
		},
	}
}

// become replaces this process by a program on the node in dir. With mount the program has the node's devices in its
// /sys/class.
func become(what, exe, dir string, mount bool, path string, args, env []string) error {
	if !mount {
		return cannotExec(what, syscall.Exec(path, args, env))
	}
	tree, err := filepath.Abs(filepath.Join(dir, rundir.TreeDir))
	if err != nil {
		return cannotExec(what, err)
	}
	owner, err := uidOf(dir)
	if err != nil {
		return cannotExec(what, err)
	}
	err = sysclass.Exec(&sysclass.Program{Path: path, Args: args, Env: env, Tree: tree, NodeUID: owner,
		Stage: []string{exe, "mount-stage", tree}})
	if errors.Is(err, sysclass.ErrNodeUser) {
		return &codeError{ExitCannotExec, &api.Error{What: what + " with --mount",
			Why: fmt.Sprintf("the node in %s runs as uid %d, which the program could not verify in its user namespace",
				dir, owner), Fix: "run it as root, or run a node of your own"}}
	}
	if sysclass.Refused(err) {
		why, fix := sysclass.Refusal(err)
		return &codeError{ExitCannotExec, &api.Error{What: what + " with --mount", Why: why, Fix: fix}}
	}
	return cannotExec(what, err)
}

// uidOf returns the owner of the directory of a node, which is the user of the node.
func uidOf(dir string) (int, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("find the owner of %s: %w", dir, err)
	}
	return int(st.Uid), nil
}

// cannotExec is the error of a program that this process could not become.
func cannotExec(what string, err error) error {
	return &codeError{ExitCannotExec, &api.Error{What: what, Why: err.Error(),
		Fix: "run it without weft to see whether it works at all"}}
}
