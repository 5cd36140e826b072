// SPDX-License-Identifier: Apache-2.0

package shimlib

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/proto/condtest"
	"weft/internal/proto/problem"
)

// libraries are two of a build, larger than the disk of TestFullDisk.
var libraries = fstest.MapFS{
	Preload:     {Data: bytes.Repeat([]byte("preload "), 32<<10)},
	Replacement: {Data: bytes.Repeat([]byte("replacement "), 32<<10)},
}

// newPlace returns a place that does not exist yet, in a directory that only this user can change.
func newPlace(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "lib")
}

// unpacked unpacks a library and checks the file.
func unpacked(t *testing.T, name string, places ...string) string {
	t.Helper()
	u := Unpacker{Libraries: libraries, Places: places}
	path, err := u.Unpack(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(b, libraries[name].Data) {
		t.Fatalf("%s: %d octets, %v", path, len(b), err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	return path
}

// refused unpacks where it must fail, checks the reason, and returns the fix.
func refused(t *testing.T, why string, places ...string) string {
	t.Helper()
	u := Unpacker{Libraries: libraries, Places: places}
	path, err := u.Unpack(Preload)
	if err == nil {
		t.Fatalf("unpacked as %s, want %q", path, why)
	}
	p := problem.Of("", err)
	if !strings.Contains(p.Why, why) || p.Fix == "" || strings.Contains(p.Error(), "\n") {
		t.Errorf("%q with the fix %q, want %q", p.Why, p.Fix, why)
	}
	return p.Fix
}

// follow does what a fix says.
func follow(t *testing.T, fix string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", fix).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", fix, err, out)
	}
}

func TestUnpack(t *testing.T) {
	place := newPlace(t)
	first := unpacked(t, Preload, place)
	if again := unpacked(t, Preload, place); again != first {
		t.Errorf("%s, then %s", first, again)
	}
	other := unpacked(t, Replacement, place)
	if filepath.Dir(other) == filepath.Dir(first) {
		t.Errorf("both in %s: a program that searches it for one finds the other", filepath.Dir(first))
	}
	link, err := os.Readlink(filepath.Join(filepath.Dir(other), "libibverbs.so"))
	if err != nil || link != Replacement {
		t.Errorf("the link is %q, %v", link, err)
	}
	u := Unpacker{Libraries: fstest.MapFS{}, Places: []string{place}}
	if _, err := u.Unpack(Preload); err == nil || problem.Of("", err).Fix != "make build, in the source tree of weft" {
		t.Errorf("a build without libraries: %v", err)
	}
}

// TestMended: what this user has in the place of the library is replaced.
func TestMended(t *testing.T) {
	place := newPlace(t)
	path := unpacked(t, Preload, place)
	elsewhere := filepath.Join(t.TempDir(), "other")
	for name, spoil := range map[string]func() error{
		"cut":       func() error { return os.Truncate(path, 1000) },
		"longer":    func() error { return os.Truncate(path, 1<<20) },
		"changed":   func() error { return os.WriteFile(path, bytes.ToUpper(libraries[Preload].Data), 0o644) },
		"removed":   func() error { return os.Remove(path) },
		"writable":  func() error { return os.Chmod(path, 0o666) },
		"in a link": func() error { return os.Rename(path, elsewhere) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if name == "in a link" {
			if err := os.Symlink(elsewhere, path); err != nil {
				t.Fatal(err)
			}
		}
		unpacked(t, Preload, place)
		if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
}

// TestRefused: a place where another user could put something else, or that the loader cannot use, is refused, and the
// fix is one.
func TestRefused(t *testing.T) {
	place := newPlace(t)
	path := unpacked(t, Preload, place)
	for _, dir := range []string{place, filepath.Dir(path)} {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		follow(t, refused(t, "other users may write to "+dir, place))
		unpacked(t, Preload, place)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	follow(t, refused(t, "is a directory", place))
	unpacked(t, Preload, place)

	link := newPlace(t)
	if err := os.Symlink(place, link); err != nil {
		t.Fatal(err)
	}
	refused(t, "is a symbolic link", link)
	file := newPlace(t)
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	refused(t, "is not a directory", file)
	refused(t, "is not an absolute path", "lib")
	refused(t, "no such file or directory", filepath.Join(newPlace(t), "missing"))
	for _, name := range []string{"a b", "a:b", "a;b", "$LIB"} {
		refused(t, "the loader cannot name a library", filepath.Join(filepath.Dir(place), name))
	}
	// The next place is used instead; without one, each reason is named.
	unpacked(t, Preload, "lib", link, place)
	why := refused(t, "lib is not an absolute path; "+link+" is a symbolic link", "lib", link)
	if !strings.HasPrefix(why, DirEnv+"=") {
		t.Errorf("the fix is %q", why)
	}
}

// TestForeign: what belongs to another user is not used, also not by root.
func TestForeign(t *testing.T) {
	condtest.NeedRoot(t, "to give files to another user")
	const other = 12345
	place := newPlace(t)
	path := unpacked(t, Preload, place)
	if err := os.Chown(path, other, -1); err != nil {
		t.Fatal(err)
	}
	follow(t, refused(t, fmt.Sprintf("%s belongs to uid %d", path, other), place))
	unpacked(t, Preload, place)
	if err := os.Chown(filepath.Dir(path), other, -1); err != nil {
		t.Fatal(err)
	}
	follow(t, refused(t, "is not a directory of uid 0", place))
	unpacked(t, Preload, place)
	if err := os.Chown(filepath.Dir(place), other, -1); err != nil {
		t.Fatal(err)
	}
	refused(t, "belongs to uid "+strconv.Itoa(other), place)
}

// mounted mounts a file system in memory for a test, and returns a place in it.
func mounted(t *testing.T, flags uintptr, options string) string {
	t.Helper()
	condtest.NeedRoot(t, "to mount a file system")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, "mode=755,"+options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "lib")
}

// TestNoExec: the loader maps no library from a file system that is mounted noexec.
func TestNoExec(t *testing.T) {
	place := mounted(t, unix.MS_NOEXEC, "size=4m")
	refused(t, "is on a file system that is mounted noexec", place)
	unpacked(t, Preload, place, newPlace(t))
}

// TestFullDisk: nothing is left of a library that does not fit.
func TestFullDisk(t *testing.T) {
	place := mounted(t, 0, "size=64k")
	refused(t, "no space left on device", place)
	var files []string
	err := filepath.WalkDir(place, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) > 0 {
		t.Errorf("%v are left, %v", files, err)
	}
	unpacked(t, Preload, place, newPlace(t))
}

// TestReadOnly: a file system without write access keeps what was unpacked before.
func TestReadOnly(t *testing.T) {
	place := mounted(t, unix.MS_RDONLY, "")
	refused(t, "read-only file system", place)
}

// TestTogether: any number of programs start at the same time.
func TestTogether(t *testing.T) {
	place := newPlace(t)
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			u := Unpacker{Libraries: libraries, Places: []string{place}}
			path, err := u.Unpack(Preload)
			if err != nil {
				t.Error(err)
				return
			}
			if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, libraries[Preload].Data) {
				t.Errorf("%d octets, %v", len(b), err)
			}
		})
	}
	all.Wait()
}

// TestUnused: an entry of another version goes when it was not used for a day and no process names it.
func TestUnused(t *testing.T) {
	place := newPlace(t)
	current := filepath.Dir(unpacked(t, Preload, place))
	now := time.Now()
	entry := func(digit string, age time.Duration) string {
		path := filepath.Join(place, strings.Repeat(digit, 32))
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	recent, old, named := entry("1", time.Hour), entry("2", 2*keepEntry), entry("3", 2*keepEntry)
	foreign := filepath.Join(place, "something")
	left, unfinished := filepath.Join(current, temporary+"A"), filepath.Join(current, temporary+"B")
	for path, age := range map[string]time.Duration{foreign: 2 * keepEntry, left: 2 * keepTemporary, unfinished: 0} {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	proc := t.TempDir()
	process := filepath.Join(proc, "4711")
	if err := os.Mkdir(process, 0o755); err != nil {
		t.Fatal(err)
	}
	env := []byte("A=b\x00LD_PRELOAD=" + filepath.Join(named, Preload) + "\x00")
	if err := os.WriteFile(filepath.Join(process, "environ"), env, 0o644); err != nil {
		t.Fatal(err)
	}
	dir, err := os.OpenRoot(place)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	removeUnused(dir, filepath.Base(current), now, proc)
	for path, want := range map[string]bool{current: true, recent: true, named: true, foreign: true, unfinished: true,
		old: false, left: false} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s: %v, want that it is there: %v", path, err, want)
		}
	}
}

// TestRemove: what was unpacked goes, also by a place behind a link, and nothing else does.
func TestRemove(t *testing.T) {
	place := newPlace(t)
	entry := filepath.Dir(unpacked(t, Replacement, place))
	link := filepath.Join(filepath.Dir(newPlace(t)), "link")
	if err := os.Symlink(filepath.Dir(place), link); err != nil {
		t.Fatal(err)
	}
	list, err := Unpacked([]string{filepath.Join(link, filepath.Base(place)), filepath.Join(link, "missing", "lib")})
	if err != nil || len(list) != 1 || list[0] != entry {
		t.Fatalf("%q, %v, want %s", list, err, entry)
	}
	foreign := filepath.Join(place, strings.Repeat("0", 32), "mine")
	if err := os.MkdirAll(filepath.Dir(foreign), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(foreign, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, e := range []string{entry, filepath.Dir(foreign)} {
		if err := Remove(e); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(entry); err == nil {
		t.Errorf("%s is still there", entry)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
	if _, err := Unpacked([]string{"lib"}); err == nil || !strings.Contains(err.Error(), "not an absolute path") {
		t.Errorf("a relative place: %v", err)
	}
}

// TestUmask: other users can load the library, whatever the umask: a program may change its user.
func TestUmask(t *testing.T) {
	place := newPlace(t)
	old := unix.Umask(0o077)
	path := unpacked(t, Preload, place)
	unix.Umask(old)
	for _, dir := range []string{place, filepath.Dir(path)} {
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", dir, st.Mode(), err)
		}
	}
}
