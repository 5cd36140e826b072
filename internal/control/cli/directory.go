// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"path/filepath"
	"strings"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/host/rundir"
)

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
