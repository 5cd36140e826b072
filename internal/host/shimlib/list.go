// SPDX-License-Identifier: Apache-2.0

package shimlib

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"weft/internal/proto/problem"
)

// Library is a library of a build.
type Library struct {
	Name   string `json:"name"`
	Digest string `json:"digest"` // of its content, as in the path where it is unpacked
}

// List returns the libraries of a build, by name.
func List(libraries fs.FS) []Library {
	list := []Library{} // not null in JSON
	for _, name := range []string{Replacement, Preload} {
		if b, err := fs.ReadFile(libraries, name); err == nil {
			list = append(list, Library{name, entryName(b)})
		}
	}
	return list
}

// servesName is the file in which make writes what the libraries fit to.
const servesName = "serves"

// Serves returns the C libraries and the releases of rdma-core that the libraries of a build fit to, empty if the build
// has none.
func Serves(libraries fs.FS) string {
	b, err := fs.ReadFile(libraries, servesName)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Unpacked returns the entries of this user in places. The error is a *problem.Error without What: another user could
// have changed the place.
func Unpacked(places []string) (list []string, err error) {
	for _, place := range places {
		place, err := resolve(place)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		if st, err := os.Lstat(place); err != nil || !st.IsDir() || owner(st) != os.Geteuid() {
			continue // none, or of another user
		}
		if err := onlyOurs(place); err != nil {
			return nil, err
		}
		entries, err := os.ReadDir(place)
		if err != nil {
			return nil, problem.Of("", err)
		}
		for _, e := range entries {
			if e.IsDir() && entryPattern.MatchString(e.Name()) {
				list = append(list, filepath.Join(place, e.Name()))
			}
		}
	}
	return list, nil
}

// Remove removes an entry that Unpacked returned, and its place if nothing else is in it.
func Remove(entry string) error {
	dir, err := os.OpenRoot(filepath.Dir(entry))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := removeEntry(dir, filepath.Base(entry)); err != nil {
		return err
	}
	err = os.Remove(dir.Name())
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// removeEntry removes what Unpack writes to an entry, and the entry if nothing else is in it.
func removeEntry(dir *os.Root, entry string) error {
	files, err := fs.ReadDir(dir.FS(), entry)
	if err != nil {
		return err
	}
	for _, f := range files {
		switch n := f.Name(); {
		case n == Preload, n == Replacement, n == linkName, strings.HasPrefix(n, temporary):
			if err := dir.Remove(filepath.Join(entry, n)); err != nil {
				return err
			}
		}
	}
	err = dir.Remove(entry)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}
