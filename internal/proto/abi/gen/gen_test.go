// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weft/internal/proto/condtest"
)

// TestGeneratedFilesAreCurrent compares the checked-in files with the schema.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	files, err := generate("..", "../../../../shim/weft_abi.h")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		got, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		} else if string(got) != want {
			t.Errorf("%s differs from the schema: run go generate ./internal/proto/abi", path)
		}
	}
}

// TestHeaderCompiles lets a C compiler evaluate the header's assertions.
func TestHeaderCompiles(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		condtest.Lacks(t, "no C compiler: %v", err)
	}
	src := filepath.Join(t.TempDir(), "t.c")
	if err := os.WriteFile(src, []byte("#include \"weft_abi.h\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(cc, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wpadded", "-fsyntax-only",
		"-I../../../../shim", src)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestSchemaFaultsAreFound(t *testing.T) {
	for _, tc := range []struct{ name, fields, want string }{
		{"hole", "0 a u8\n4 b u32", "offset 4, want 1"},
		{"misaligned", "0 a u16\n2 b u32", "aligned to 4"},
		{"size", "0 a u32", "fields end at 4"},
		{"type", "0 a u24", "unknown type"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parse([]layout{{"x", "X", 8, "", tc.fields}})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
