// SPDX-License-Identifier: Apache-2.0

// Package terminal reads the size of a terminal.
//
// What comes in: an open file; what goes out: its width. Called by cli. It writes nothing and changes no mode.
package terminal

import (
	"os"

	"golang.org/x/sys/unix"
)

// Width returns the number of columns of the terminal that f is, 0 where f is no terminal. A terminal that does not
// report its size has 80.
func Width(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	switch {
	case err != nil:
		return 0
	case size.Col == 0:
		return 80
	}
	return int(size.Col)
}
