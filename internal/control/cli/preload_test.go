// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"weft/internal/proto/condtest"
)

// patched writes a copy of a program that change has altered, and returns its path.
func patched(t *testing.T, program string, change func(b []byte)) string {
	t.Helper()
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	change(b)
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestObstacles names each reason for which a program will not use the library.
func TestObstacles(t *testing.T) {
	const program, user = "/bin/sh", 1000
	as := func(m elf.Machine) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint16(b[18:], uint16(m)) }
	}
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	loader, err := loaderOf(f)
	if err != nil || loader == "" {
		t.Fatalf("%s is static: %v", program, err)
	}
	text := f.Section(".rodata")
	for _, x := range []struct {
		name, path, want string
		uid              int
	}{
		{"a dynamic program", program, "", user},
		{"a script", patched(t, "/dev/null", func([]byte) {}), "", user},
		{"no program", "/no/such/program", "", user},
		{"for arm64", patched(t, program, as(elf.EM_AARCH64)),
			"it is a program for arm64, and this weft is one for x86-64", user},
		{"of 32 bits", patched(t, program, func(b []byte) { b[4] = byte(elf.ELFCLASS64); as(elf.EM_386)(b) }),
			"it is a program for 32-bit x86, and this weft is one for x86-64", user},
		{"musl", patched(t, program, func(b []byte) {
			at := bytes.Index(b, []byte(loader))
			copy(b[at:at+len(loader)], "/lib/ld-musl-x86_64.so.1\x00\x00\x00\x00\x00\x00\x00\x00")
		}), "it is linked with musl", user},
		{"libibverbs linked in", patched(t, program, func(b []byte) { copy(b[text.Offset+64:], verbsMark) }),
			"libibverbs is linked into it statically", user},
	} {
		got := ""
		if o := findObstacle(x.path, x.uid, x.uid); o != nil {
			got = o.why
			if o.fix == "" {
				t.Errorf("%s: no fix", x.name)
			}
		}
		if !strings.HasPrefix(got, x.want) || (got == "") != (x.want == "") {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
	own := patched(t, program, func([]byte) {})
	uid, gid := os.Geteuid(), os.Getegid()
	for mode, user := range map[os.FileMode][2]int{os.ModeSetuid: {uid + 1, gid}, os.ModeSetgid: {uid, gid + 1}} {
		if err := os.Chmod(own, 0o755|mode); err != nil {
			t.Fatal(err)
		}
		if o := findObstacle(own, user[0], user[1]); o == nil || o.why != "it is set-uid or set-gid" {
			t.Errorf("%v: %v", mode, o)
		}
		if o := findObstacle(own, uid, gid); o != nil {
			t.Errorf("%v, of its own user: %v", mode, o)
		}
	}
}

// TestObstacleCapabilities: a program with capabilities of its own ignores the environment of its users.
func TestObstacleCapabilities(t *testing.T) {
	condtest.NeedRoot(t, "to give a program a capability")
	path := patched(t, "/bin/sh", func([]byte) {})
	capability := make([]byte, 20) // version 2 of struct vfs_cap_data: effective, and CAP_NET_RAW permitted
	binary.LittleEndian.PutUint32(capability, 0x02000001)
	binary.LittleEndian.PutUint32(capability[4:], 1<<13)
	if err := syscall.Setxattr(path, "security.capability", capability, 0); err != nil {
		t.Fatal(err)
	}
	if o := findObstacle(path, 1000, 1000); o == nil || !strings.Contains(o.why, "capabilities") {
		t.Errorf("a user: %v", o)
	}
	if o := findObstacle(path, 0, 0); o != nil {
		t.Errorf("root: %v", o)
	}
}

// TestFindsVerbs: libibverbs is found where the loader looks for it.
func TestFindsVerbs(t *testing.T) {
	ctx, empty := t.Context(), t.TempDir()
	if findsVerbs(ctx, empty, "/bin/sh", "") || findsVerbs(ctx, empty, "/no/such/program", "") {
		t.Error("found on a machine without it")
	}
	own := t.TempDir()
	if err := os.WriteFile(filepath.Join(own, verbsSoname), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if !findsVerbs(ctx, empty, "/bin/sh", "/no/such/directory:"+own) {
		t.Error("not found in LD_LIBRARY_PATH")
	}
	for name, content := range map[string]string{"lib64/" + verbsSoname: "",
		loaderCache: "glibc-ld.so.cache1.1\x00libibverbs.so.1\x00/opt/lib/libibverbs.so.1\x00"} {
		root := t.TempDir()
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if !findsVerbs(ctx, root, "/bin/sh", "") {
			t.Errorf("not found by %s", name)
		}
	}
}
