// SPDX-License-Identifier: Apache-2.0

// Package cgroup reads how much memory this process may use from its control group (cgroups(7)), version 1 or 2.
//
// What comes in: the files below / as an fs.FS; what goes out: a number of octets. The node calls it at its start. It
// changes nothing.
package cgroup

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Hierarchies with the controller memory, below the root: version 2, and version 1 as systemd and Docker mount it.
const (
	unified = "sys/fs/cgroup"
	memory  = "sys/fs/cgroup/memory"
)

// unbounded: values from here on mean "no bound". Version 1 reports the largest number of whole pages for it.
const unbounded = 1 << 60

// MemoryLimit returns how many octets of memory this process may use: the lowest limit of its group and of the groups
// that contain it. It returns 0 if there is no limit, or if the limit cannot be read. In a container the path of the
// group may be a path of the host that the container does not have: then the root of the hierarchy has the limit.
func MemoryLimit(root fs.FS) int64 {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	least := int64(0)
	for line := range strings.Lines(string(text)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		if len(part) != 3 {
			continue
		}
		dir, file := unified, "memory.max"
		if part[1] != "" {
			if !has(part[1], "memory") {
				continue
			}
			dir, file = memory, "memory.limit_in_bytes"
		}
		for at := path.Clean("/" + part[2]); ; at = path.Dir(at) {
			if n := read(root, path.Join(dir, at, file)); n > 0 && (least == 0 || n < least) {
				least = n
			}
			if at == "/" {
				break
			}
		}
	}
	return least
}

// has reports whether a list with commas has a name.
func has(list, name string) bool {
	for x := range strings.SplitSeq(list, ",") {
		if x == name {
			return true
		}
	}
	return false
}

// read returns the limit in a file, 0 if there is no file or no limit.
func read(root fs.FS, name string) int64 {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is no number
	if err != nil || n <= 0 || n >= unbounded {
		return 0
	}
	return n
}
