// SPDX-License-Identifier: Apache-2.0

// Command weft is a software RDMA fabric: it runs a node, runs unmodified
// verbs programs on it and shows what both do.
//
// It only joins package cli with package node and turns the exit code over to
// the system.
package main

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"weft/internal/cli"
	"weft/internal/config"
	"weft/internal/rundir"
)

func main() {
	os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Env{
		Out:        os.Stdout,
		Err:        os.Stderr,
		Getenv:     os.Getenv,
		DefaultDir: rundir.Default(os.Geteuid(), os.Getenv),
		Node:       run,
	}))
}

func run(context.Context, config.Config, func(), *slog.Logger) error {
	return errors.New("this build has no node")
}
