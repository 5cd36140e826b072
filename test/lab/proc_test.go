// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestChildrenKeepTheOutput: a program that ended well did so, whichever process holds its output open, and all
// that it printed is there.
func TestChildrenKeepTheOutput(t *testing.T) {
	out, err := Run(Cmd{Args: []string{"/bin/sh", "-c", "sleep 300 & echo $!; seq 20000; echo end"}}, time.Minute)
	child, bad := strconv.Atoi(strings.SplitN(out, "\n", 2)[0])
	if bad != nil {
		t.Fatalf("%v, %v: %q", err, bad, out)
	}
	syscall.Kill(child, syscall.SIGKILL)
	if lines := strings.Count(out, "\n"); err != nil || lines != 20002 || !strings.HasSuffix(out, "\n20000\nend\n") {
		t.Errorf("%v: %d lines, %q", err, lines, Tail(out, 3))
	}
}

// TestDrain: what a program had written before a read is returned, and no more is waited for.
func TestDrain(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := w.WriteString(strings.Repeat("0123456789", 5000)); err != nil {
		t.Fatal(err)
	}
	r.SetReadDeadline(time.Now())
	var o output
	o.drain(r)
	if got := o.String(); got != strings.Repeat("0123456789", 5000) {
		t.Errorf("%d octets: %q", len(got), Tail(got, 1))
	}
	w.Close()
	o = output{}
	if o.drain(r); o.String() != "" {
		t.Errorf("at the end: %q", o.String())
	}
}
