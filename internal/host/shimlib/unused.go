// SPDX-License-Identifier: Apache-2.0

package shimlib

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// keepEntry is how long an entry stays after its last use. A program that starts with it names it in its environment
// long before that time has passed.
const keepEntry = 24 * time.Hour

// keepTemporary is how long an unfinished file stays, which a process left that was killed.
const keepTemporary = time.Hour

// entryPattern matches the names of entries. Nothing else in a place is ever removed.
var entryPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

// processes is where the system shows all processes.
const processes = "/proc"

// removeUnused removes the entries of other versions that were not used for a day and that no process names in its
// environment, and unfinished files of the current entry. A failure leaves them to the next call.
func removeUnused(dir *os.Root, current string, now time.Time, proc string) {
	list, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return
	}
	var old []string
	for _, e := range list {
		if e.Name() != current && entryPattern.MatchString(e.Name()) && olderThan(e, now, keepEntry) {
			old = append(old, e.Name())
		}
	}
	if len(old) > 0 {
		used := environments(proc)
		for _, name := range old {
			if !used(filepath.Join(dir.Name(), name)) {
				_ = removeEntry(dir, name) // else the next call does
			}
		}
	}
	files, err := fs.ReadDir(dir.FS(), current)
	if err != nil {
		return
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), temporary) && olderThan(f, now, keepTemporary) {
			dir.Remove(filepath.Join(current, f.Name()))
		}
	}
}

// olderThan reports whether a file was last changed before that time.
func olderThan(e fs.DirEntry, now time.Time, age time.Duration) bool {
	st, err := e.Info()
	return err == nil && now.Sub(st.ModTime()) > age
}

// environments reads the environment of every process that this user may see, and returns a function that reports
// whether one of them has a text. If a process of this user cannot be read, it reports that for every text.
func environments(proc string) (contain func(string) bool) {
	list, err := os.ReadDir(proc)
	if err != nil {
		return func(string) bool { return true }
	}
	var all [][]byte
	unknown := false
	for _, p := range list {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		st, err := p.Info()
		if err != nil {
			continue // it has ended
		}
		env, err := os.ReadFile(filepath.Join(proc, p.Name(), "environ"))
		if err == nil {
			all = append(all, env)
		} else if _, gone := os.Stat(filepath.Join(proc, p.Name())); gone == nil && owner(st) == os.Geteuid() {
			unknown = true
		}
	}
	return func(text string) bool {
		for _, env := range all {
			if bytes.Contains(env, []byte(text)) {
				return true
			}
		}
		return unknown
	}
}
