// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// obstacle is why a program will not use a preloaded library, and what a person does about it.
type obstacle struct{ why, fix string }

const fixBuild = "run a dynamically linked build of it"

// findObstacle returns the obstacle in the program at path for a user of a group, nil if the loader preloads the
// library into it. It passes scripts: the loader preloads into the programs that they run.
func findObstacle(path string, uid, gid int) *obstacle {
	// The loader ignores the environment of programs that get other rights than their user has.
	const fix = "start it without weft, and in it weft run -- PROGRAM"
	if st, err := os.Stat(path); err == nil {
		o := st.Sys().(*syscall.Stat_t)
		if st.Mode()&fs.ModeSetuid != 0 && int(o.Uid) != uid || st.Mode()&fs.ModeSetgid != 0 && int(o.Gid) != gid {
			return &obstacle{"it is set-uid or set-gid", fix}
		}
	}
	if uid != 0 {
		if _, err := syscall.Getxattr(path, "security.capability", nil); err == nil {
			return &obstacle{"it has capabilities of its own (getcap)", fix}
		}
	}
	f, err := elf.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if f.Machine != thisMachine() || f.Class != elf.ELFCLASS64 {
		return &obstacle{fmt.Sprintf("it is a program for %s, and this weft is one for %s",
			machineName(f.Machine, f.Class), machineName(thisMachine(), elf.ELFCLASS64)),
			"run a build of it for this machine"}
	}
	loader, err := loaderOf(f)
	switch {
	case err != nil:
		return nil
	case loader == "":
		return &obstacle{"it is statically linked", fixBuild}
	case strings.Contains(filepath.Base(loader), "musl"):
		return &obstacle{"it is linked with musl, and the library of weft with glibc", "run a build of it for glibc"}
	}
	if hasOwnVerbs(f) {
		return &obstacle{"libibverbs is linked into it statically", "run a build of it with the shared libibverbs"}
	}
	return nil
}

// thisMachine is the machine of this program.
func thisMachine() elf.Machine {
	if runtime.GOARCH == "arm64" {
		return elf.EM_AARCH64
	}
	return elf.EM_X86_64
}

func machineName(m elf.Machine, c elf.Class) string {
	switch {
	case m == elf.EM_X86_64 && c == elf.ELFCLASS32:
		return "x32"
	case m == elf.EM_X86_64:
		return "x86-64"
	case m == elf.EM_AARCH64:
		return "arm64"
	case m == elf.EM_386:
		return "32-bit x86"
	}
	return strings.TrimPrefix(m.String(), "EM_")
}

// loaderOf returns the path of the loader that a program names, empty if the program is static.
func loaderOf(f *elf.File) (string, error) {
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
			return string(bytes.TrimRight(b, "\x00")), err
		}
	}
	return "", nil
}

// verbsMark is text of libibverbs, in all versions of it since rdma-core 13.
const verbsMark = "libibverbs: Warning: "

// hasOwnVerbs reports whether a program has libibverbs in itself: its calls do not go by the loader.
func hasOwnVerbs(f *elf.File) bool {
	needed, err := f.ImportedLibraries()
	if err != nil || slices.ContainsFunc(needed, func(s string) bool { return strings.Contains(s, "ibverbs") }) {
		return false
	}
	text := f.Section(".rodata")
	if name, err := f.DynString(elf.DT_SONAME); err != nil || len(name) > 0 || text == nil {
		return false
	}
	r := text.Open()
	chunk := make([]byte, 1<<20)
	kept := 0 // octets of the chunk before, by which a mark is found that lies across two
	for {
		n, err := io.ReadFull(r, chunk[kept:])
		if bytes.Contains(chunk[:kept+n], []byte(verbsMark)) {
			return true
		}
		if err != nil {
			return false
		}
		kept = copy(chunk, chunk[len(chunk)-len(verbsMark):])
	}
}

// verbsSoname is the name by which programs load libibverbs.
const verbsSoname = "libibverbs.so.1"

// libraryDirs are where loaders look for libraries that their cache does not have.
var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
	"/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"}

// listLimit bounds how long a loader may take to list the libraries of a program.
const listLimit = 5 * time.Second

// loaderCache lists the libraries that the loader knows.
const loaderCache = "/etc/ld.so.cache"

// findsVerbs reports whether the loader finds a libibverbs: one of the system, which is below root, one in libraryPath,
// or one that the program at path brings along, which the caller is about to run: its loader lists its libraries. If
// there is none, the library that replaces libibverbs serves programs that load one, and the others as the preload
// library does.
func findsVerbs(ctx context.Context, root, path, libraryPath string) bool {
	dirs := filepath.SplitList(libraryPath)
	for _, d := range libraryDirs {
		dirs = append(dirs, filepath.Join(root, d))
	}
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(d, verbsSoname)); err == nil {
			return true
		}
	}
	known, err := os.ReadFile(filepath.Join(root, loaderCache))
	if err == nil && bytes.Contains(known, []byte("/"+verbsSoname+"\x00")) {
		return true
	}
	f, err := elf.Open(path)
	if err != nil {
		return false // a script
	}
	defer f.Close()
	loader, err := loaderOf(f)
	if err != nil || !filepath.IsAbs(loader) {
		return false
	}
	ctx, stop := context.WithTimeout(ctx, listLimit)
	defer stop()
	cmd := exec.CommandContext(ctx, loader, "--list", path)
	cmd.Env = withoutEnv(os.Environ(), "LD_PRELOAD")
	cmd.WaitDelay = listLimit
	out, err := cmd.StdoutPipe()
	if err != nil || cmd.Start() != nil {
		return false
	}
	list, _ := io.ReadAll(io.LimitReader(out, 1<<20))
	stop()
	_ = cmd.Wait() // it fails also if it did not find all libraries
	return bytes.Contains(list, []byte(verbsSoname+" => /"))
}
