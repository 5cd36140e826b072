// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
	"weft/internal/host/rundir"
	"weft/internal/host/shimlib"
)

func uninstallCommand(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "remove what weft left on this machine",
		Long: `Remove what weft left on this machine for this user.

It removes the default directory of nodes, with the node's identity, certificate
and store, and the libraries that weft run unpacked for programs. The program
weft itself remains. The node must not run.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.uninstall(cmd, yes) },
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (a *app) uninstall(cmd *cobra.Command, yes bool) error {
	const what = "cannot uninstall"
	dir, _, err := a.nodeDir()
	if err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	var e *api.Error
	_, err = api.Get(cmd.Context(), c, api.GetStatus)
	if err == nil || !errors.As(err, &e) || e.Code != api.CodeNoNode {
		return &api.Error{What: what, Why: "a node runs in " + dir, Fix: "weft down --dir " + dir}
	}
	var list []string
	if _, err := os.Lstat(filepath.Join(dir, rundir.LockFile)); err == nil {
		if dir != a.env.DefaultDir {
			return &api.Error{What: what, Why: dir + " may have files that are not of weft", Fix: "rm -r " + dir +
				", if it has none; weft uninstall, without --dir and WEFT_DIR"}
		}
		list = append(list, dir)
	}
	libraries, err := shimlib.Unpacked(shimlib.Places(os.Geteuid(), a.env.Getenv))
	if err != nil {
		return cannot(what, err)
	}
	list = append(list, libraries...)
	if len(list) == 0 {
		fmt.Fprintln(a.env.Out, "weft: there is nothing to remove")
		return nil
	}
	for _, path := range list {
		kind := "a library of programs"
		if path == dir {
			kind = "the node: identity, log, certificate and store"
		}
		fmt.Fprintf(a.env.Out, "%s  (%s)\n", printable(path), kind)
	}
	if !yes && !a.asks("remove them?") {
		return &api.Error{What: what, Why: "it removes these directories, and that is not confirmed",
			Fix: a.commandLine() + " --yes"}
	}
	for _, path := range list {
		remove := shimlib.Remove
		if path == dir {
			remove = os.RemoveAll
		}
		if err := remove(path); err != nil {
			return &api.Error{What: what, Why: err.Error(), Fix: "remove it as its owner"}
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	fmt.Fprintf(a.env.Out, "weft: removed; what remains is %s\n", printable(exe))
	return nil
}
