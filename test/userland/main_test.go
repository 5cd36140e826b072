// SPDX-License-Identifier: Apache-2.0

// Package userland runs verbs programs of several releases of Debian with nothing of Weft but the file weft.
//
// In: the built weft, the releases' packages, root. Out: one row for a program in a release. Called by `make e2e`. It
// must never use a library or a program of this machine for what a user of the release does, and never change a
// userland that the cache has.
package userland

import (
	"os"
	"testing"

	"weft/test/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, nil)) }
