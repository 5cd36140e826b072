// SPDX-License-Identifier: Apache-2.0

package shimlib

import (
	"io/fs"
	"os"
	"strings"
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

// Unpacked returns the places that have libraries of this user. The error is a *problem.Error without What: another
// user could have changed the place.
func Unpacked(places []string) (list []string, err error) {
	for _, place := range places {
		if st, err := os.Lstat(place); err != nil || !st.IsDir() || owner(st) != os.Geteuid() {
			continue // none, or of another user
		}
		if err := onlyOurs(place); err != nil {
			return nil, err
		}
		list = append(list, place)
	}
	return list, nil
}
