// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

var bin string // set by Setup

// Bin returns the path of weft, its preload library or verbcheck.
func Bin(name string) string { return filepath.Join(bin, name) }

// Setup builds weft and verbcheck into a directory that every user may read,
// since the source tree may be in a private one, and removes what an earlier,
// killed run left. The caller calls the function it returns at the end. With
// WEFT_BIN set, weft and its library are taken from that directory, unbuilt.
func Setup() (cleanup func(), err error) {
	if err := RemoveStale(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "weft-bin-")
	if err != nil {
		return nil, err
	}
	cleanup = func() { os.RemoveAll(dir) }
	from := os.Getenv("WEFT_BIN")
	if from == "" {
		from = filepath.Join(Root(), "bin")
		err = build()
	}
	for _, name := range []string{"weft", "libweft-verbs.so", "weft-verbs/libibverbs.so.1"} {
		if err == nil {
			err = copyProgram(dir, from, name)
		}
	}
	err = errors.Join(err, os.Symlink("libibverbs.so.1", filepath.Join(dir, "weft-verbs", "libibverbs.so")),
		os.Chmod(dir, 0o755), BuildVerbcheck(filepath.Join(dir, "verbcheck")))
	if err != nil {
		cleanup()
		return nil, err
	}
	bin = dir
	return cleanup, nil
}

// build runs `make build`.
func build() error {
	cmd := exec.Command("make", "-s", "build")
	cmd.Dir = Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make build: %w: %s", err, out)
	}
	return nil
}

func copyProgram(to, from, name string) error {
	b, err := os.ReadFile(filepath.Join(from, name))
	if err != nil {
		return err
	}
	to = filepath.Join(to, name)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

// BuildVerbcheck compiles test/e2e/verbcheck to out.
func BuildVerbcheck(out string) error {
	return BuildC(out, "test/e2e/verbcheck/*.c", "-libverbs")
}

// BuildC compiles the C sources of a pattern below the module's root to out.
func BuildC(out, pattern string, flags ...string) error {
	src, err := filepath.Glob(filepath.Join(Root(), pattern))
	if err != nil || len(src) == 0 {
		return fmt.Errorf("build %s: no source (%v)", pattern, err)
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	args := append([]string{"-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", out}, src...)
	if msg, err := exec.Command(cc, append(args, flags...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pattern, err, strings.TrimSpace(string(msg)))
	}
	return nil
}

// Verdicts returns verbcheck's lines: the names that passed, and for the
// others its output.
func Verdicts(output string) (passed []string, failed, skipped map[string]string) {
	failed, skipped = map[string]string{}, map[string]string{}
	for line := range strings.Lines(output) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, why, _ := strings.Cut(rest, ": ")
		switch word {
		case "ok":
			name, _, _ = strings.Cut(rest, " ")
			passed = append(passed, name)
		case "FAIL":
			failed[name] = why
		case "skip":
			skipped[name] = why
		}
	}
	return passed, failed, skipped
}
