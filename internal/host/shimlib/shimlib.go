// SPDX-License-Identifier: Apache-2.0

package shimlib

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"weft/internal/proto/problem"
)

// Names of the libraries. Preload is preloaded beside the libibverbs of the host, Replacement stands in its place.
const (
	Preload     = "libweft-verbs.so"
	Replacement = "libibverbs.so.1"
)

// linkName is the name by which programs open the replacement that were not linked with it. Its entry has it too.
const linkName = "libibverbs.so"

// DirEnv is the variable of the environment that names the only place.
const DirEnv = "WEFT_LIBRARY_DIR"

// elsewhere is the fix if a place cannot be used and cannot be mended by its user.
const elsewhere = DirEnv + "=DIR weft run -- PROGRAM, with another directory of yours"

//go:embed lib
var embedded embed.FS

// Embedded returns the libraries of this build. It is without them if the build was not made by make.
func Embedded() fs.FS {
	lib, err := fs.Sub(embedded, "lib")
	if err != nil {
		panic(err) // the name is constant and valid
	}
	return lib
}

// Unpacker unpacks libraries. Any number of processes may unpack at the same time.
type Unpacker struct {
	Libraries fs.FS
	Places    []string // absolute paths; the first that can be used is used
}

// Places returns where a user's libraries may be unpacked, the best place first. What a running program has loaded
// must stay until the program ends, so that its children can load it too.
func Places(uid int, getenv func(string) string) []string {
	if d := getenv(DirEnv); d != "" {
		return []string{d}
	}
	var list []string
	if uid == 0 {
		list = append(list, "/run/weft-lib", "/var/cache/weft-lib")
	} else if x := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(x) {
		list = append(list, filepath.Join(x, "weft-lib"))
	}
	name := "weft-lib-" + strconv.Itoa(uid)
	return append(list, filepath.Join("/tmp", name), filepath.Join("/var/tmp", name), filepath.Join("/dev/shm", name))
}

// Unpack returns the path of the library of a name, and unpacks it if it is not there. Entries of other versions that
// no program needs are removed. The error is a *problem.Error without What.
func (u *Unpacker) Unpack(name string) (string, error) {
	content, err := fs.ReadFile(u.Libraries, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", problem.New("", "this weft was built without "+name, "make build, in the source tree of weft")
	} else if err != nil {
		return "", problem.Of("", err)
	}
	var failed []*problem.Error
	for _, place := range u.Places {
		path, err := unpack(place, name, content)
		if err == nil {
			return path, nil
		}
		failed = append(failed, problem.Of("", err))
	}
	if len(failed) == 1 {
		return "", failed[0]
	}
	var whys []string
	for _, f := range failed {
		whys = append(whys, f.Why)
	}
	return "", problem.New("", "no place for "+name+": "+strings.Join(whys, "; "), elsewhere)
}

// entryName is the name of the entry of a library.
func entryName(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:len(sum)/2])
}

// unpack returns the path of a library in one place.
func unpack(place, name string, content []byte) (string, error) {
	dir, err := openPlace(place)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	entry := entryName(content)
	err = dir.Mkdir(entry, 0o755)
	if err == nil {
		err = dir.Chmod(entry, 0o755) // for programs that change their user, whatever the umask
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", cannotWrite(dir.Name(), err)
	}
	at := filepath.Join(dir.Name(), entry)
	if st, err := dir.Lstat(entry); err != nil {
		return "", cannotWrite(dir.Name(), err)
	} else if !st.IsDir() || owner(st) != os.Geteuid() {
		return "", problem.New("", at+" is not a directory of uid "+strconv.Itoa(os.Geteuid()), "rm -r "+at)
	} else if st.Mode()&0o022 != 0 {
		return "", problem.New("", "other users may write to "+at, "chmod go-w "+at)
	}
	sub, err := dir.OpenRoot(entry)
	if err != nil {
		return "", cannotWrite(at, err)
	}
	defer sub.Close()
	path := filepath.Join(at, name)
	if err := provide(sub, path, name, content); err != nil {
		return "", err
	}
	if name == Replacement {
		if err := provideLink(sub, at); err != nil {
			return "", err
		}
	}
	now := time.Now()
	if err := dir.Chtimes(entry, now, now); err != nil {
		return "", cannotWrite(at, err)
	}
	removeUnused(dir, entry, now, processes)
	return path, nil
}

// provide leaves a file with the content in an entry.
func provide(entry *os.Root, path, name string, content []byte) error {
	st, err := entry.Lstat(name)
	switch {
	case err == nil && owner(st) != os.Geteuid():
		return problem.New("", fmt.Sprintf("%s belongs to uid %d", path, owner(st)), "rm -f "+path)
	case err == nil && st.IsDir():
		return problem.New("", path+" is a directory", "rm -r "+path)
	case err == nil && st.Mode().IsRegular() && st.Mode()&0o022 == 0 && holds(entry, name, content):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return cannotWrite(path, err)
	}
	if err := write(entry, name, content); err != nil {
		return cannotWrite(filepath.Dir(path), err)
	}
	return nil
}

// holds reports whether a file has the content.
func holds(entry *os.Root, name string, content []byte) bool {
	f, err := entry.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(len(content))+1))
	return err == nil && bytes.Equal(b, content)
}

// temporary is how the names of unfinished files begin.
const temporary = ".new-"

func temporaryName() string { return temporary + rand.Text() }

// write writes a file under another name and renames it, so that no program loads a half.
func write(entry *os.Root, name string, content []byte) error {
	tmp := temporaryName()
	f, err := entry.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(0o644) // a program that changed its user loads it too
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = entry.Rename(tmp, name)
	}
	if err != nil {
		return errors.Join(err, entry.Remove(tmp))
	}
	return nil
}

// provideLink leaves the link to the replacement in an entry. The loader compares files, so a copy would be loaded as a
// second library.
func provideLink(entry *os.Root, at string) error {
	if to, err := entry.Readlink(linkName); err == nil && to == Replacement {
		return nil
	}
	tmp := temporaryName()
	err := entry.Symlink(Replacement, tmp)
	if err == nil {
		if err = entry.Rename(tmp, linkName); err != nil {
			err = errors.Join(err, entry.Remove(tmp))
		}
	}
	if err != nil {
		return cannotWrite(at, err)
	}
	return nil
}

// openPlace makes a place, if it is missing, and opens it. It refuses a place whose content another user could change,
// that the loader cannot name, or from which nothing can be executed.
func openPlace(place string) (*os.Root, error) {
	place, err := resolve(place)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(place, isSeparator) {
		return nil, problem.New("", fmt.Sprintf("the loader cannot name a library in %q, with a space, a colon, "+
			"a semicolon or a dollar sign", place), elsewhere)
	}
	err = os.Mkdir(place, 0o755)
	made := err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, cannotWrite(filepath.Dir(place), err)
	}
	if st, err := os.Lstat(place); err == nil && st.Mode()&fs.ModeSymlink != 0 {
		return nil, problem.New("", place+" is a symbolic link", elsewhere) // another user may have made it
	}
	if err := onlyOurs(place); err != nil {
		return nil, err
	}
	dir, err := os.OpenRoot(place)
	if err != nil {
		return nil, cannotWrite(place, err)
	}
	if err := executable(dir, made); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// resolve returns the absolute path of a place without links above it.
func resolve(place string) (string, error) {
	if !filepath.IsAbs(place) {
		return "", problem.New("", place+" is not an absolute path", elsewhere)
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(place))
	if err != nil {
		return "", cannotWrite(filepath.Dir(place), err)
	}
	return filepath.Join(parent, filepath.Base(place)), nil
}

// isSeparator reports whether the loader does not take r for part of a path, in LD_PRELOAD or LD_LIBRARY_PATH.
func isSeparator(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(":;$", r) }

// onlyOurs refuses a directory that another user can change or replace: the directory belongs to this user, and each
// directory above it belongs to this user or to the owner of the root directory. No one else may write to them, but
// that a sticky directory above protects what is in it. The owner of the root directory is not root in a user namespace
// without root.
func onlyOurs(dir string) error {
	top, err := os.Lstat("/")
	if err != nil {
		return err
	}
	for at := dir; ; at = filepath.Dir(at) {
		st, err := os.Lstat(at)
		if err != nil {
			return cannotWrite(at, err)
		}
		own := owner(st) == os.Geteuid()
		switch {
		case !st.IsDir():
			return problem.New("", at+" is not a directory", elsewhere)
		case !own && (at == dir || owner(st) != 0 && owner(st) != owner(top)):
			return problem.New("", fmt.Sprintf("%s belongs to uid %d", at, owner(st)), elsewhere)
		case st.Mode()&0o022 != 0 && (at == dir || st.Mode()&fs.ModeSticky == 0):
			fix := elsewhere
			if own {
				fix = "chmod go-w " + at
			}
			return problem.New("", "other users may write to "+at, fix)
		}
		if at == "/" {
			return nil
		}
	}
}

// executable refuses a place from whose mount nothing can be mapped for execution. A place that was just made is opened
// for programs that change their user, whatever the umask.
func executable(dir *os.Root, made bool) error {
	f, err := dir.Open(".")
	if err != nil {
		return cannotWrite(dir.Name(), err)
	}
	defer f.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return cannotWrite(dir.Name(), err)
	}
	if st.Flags&unix.MS_NOEXEC != 0 {
		return problem.New("", dir.Name()+" is on a file system that is mounted noexec", elsewhere)
	}
	if made {
		if err := f.Chmod(0o755); err != nil {
			return cannotWrite(dir.Name(), err)
		}
	}
	return nil
}

// cannotWrite is the problem of an error of the file system.
func cannotWrite(dir string, err error) error {
	e := problem.New("", "cannot write to "+dir+": "+reason(err), elsewhere)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		e.Fix = "df " + dir + ", and free 1 MiB there; or " + elsewhere
	}
	e.Err = err
	return e
}

// reason is what the system says, without the call and the paths.
func reason(err error) string {
	var no unix.Errno
	if errors.As(err, &no) {
		return no.Error()
	}
	return err.Error()
}

// owner is the user to whom a file belongs.
func owner(st fs.FileInfo) int { return int(st.Sys().(*syscall.Stat_t).Uid) }
