// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/proto/condtest"
)

func TestWidth(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if n := Width(w); n != 0 {
		t.Errorf("a pipe has %d columns", n)
	}
	p, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		condtest.Lacks(t, "needs pseudo terminals (/dev/ptmx): %v", err)
	}
	defer p.Close()
	if n := Width(p); n != 80 {
		t.Errorf("a terminal of unknown size has %d columns, want 80", n)
	}
	if err := unix.IoctlSetWinsize(int(p.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 100, Row: 30}); err != nil {
		t.Fatal(err)
	}
	if n := Width(p); n != 100 {
		t.Errorf("%d columns, want 100", n)
	}
}
