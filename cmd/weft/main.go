// SPDX-License-Identifier: Apache-2.0

// Command weft is a software RDMA fabric: it runs a node, runs unmodified
// verbs programs on it and shows what both do.
//
// It only joins package cli with package node and turns the exit code over to
// the system.
package main

import (
	"context"
	"os"

	"weft/internal/control/cli"
	"weft/internal/host/rundir"
	"weft/internal/host/shimlib"
	"weft/internal/node"
)

func main() {
	os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Env{
		In:          os.Stdin,
		InTerminal:  cli.TerminalOf(os.Stdin, os.Getenv).Width > 0,
		Out:         os.Stdout,
		Err:         os.Stderr,
		OutTerminal: cli.TerminalOf(os.Stdout, os.Getenv),
		ErrTerminal: cli.TerminalOf(os.Stderr, os.Getenv),
		Getenv:      os.Getenv,
		DefaultDir:  rundir.Default(os.Geteuid(), os.Getenv),
		Libraries:   shimlib.Embedded(),
		Node:        node.Run,
		Join:        node.Join,
		Leave:       node.Leave,
	}))
}
