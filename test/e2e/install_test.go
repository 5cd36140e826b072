// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestInstall installs into an empty directory, runs a program by what is there, and finds nothing after uninstall.
func TestInstall(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mk := func(target string) {
		t.Helper()
		out, err := exec.Command("make", "-C", "../..", "--no-print-directory", target, "PREFIX=/usr",
			"DESTDIR="+root).CombinedOutput()
		if err != nil {
			t.Fatalf("make %s: %v\n%s", target, err, out)
		}
	}
	mk("install")
	for _, name := range []string{"bin/weft", "share/man/man1/weft.1",
		"share/man/man1/weft-up.1", "share/doc/weft/weft.yaml", "share/bash-completion/completions/weft",
		"share/zsh/site-functions/_weft", "share/fish/vendor_completions.d/weft.fish"} {
		if st, err := os.Stat(filepath.Join(root, "usr", name)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	weft := filepath.Join(root, "usr/bin/weft")
	if out, err := exec.Command(weft, "--version").CombinedOutput(); err != nil || !strings.HasPrefix(string(out),
		"weft ") {
		t.Errorf("%v: %s", err, out)
	}
	dir := t.TempDir()
	up := exec.Command(weft, "up", "--detach", "--dir", dir, "--fabric=false", "--roce-port=0")
	out, err := up.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var pid int
	if m := regexp.MustCompile(`, pid ([0-9]+),`).FindSubmatch(out); m != nil {
		pid, _ = strconv.Atoi(string(m[1]))
	}
	if pid <= 0 {
		t.Fatalf("no pid in %s", out)
	}
	t.Cleanup(func() {
		// A node that a failed test did not end: its program may be uninstalled.
		if args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(args), dir) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	run := exec.Command(weft, "run", "--dir", dir, "--", "ibv_devinfo")
	run.Env = append(os.Environ(), "WEFT_LIBRARY_DIR="+filepath.Join(t.TempDir(), "lib"))
	if out, err := run.CombinedOutput(); err != nil || !strings.Contains(string(out), "weft0") {
		t.Errorf("%v: want weft0 in %s", err, out)
	}
	// Before the program is uninstalled.
	if out, err := exec.Command(weft, "down", "--dir", dir).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	mk("uninstall")
	filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("make uninstall left %s", path)
		}
		return nil
	})
}
