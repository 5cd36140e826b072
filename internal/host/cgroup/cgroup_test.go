// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"testing"
	"testing/fstest"

	"weft/internal/host/cgroup"
)

// TestMemoryLimit: the least bound around the process counts, of either version of cgroups.
func TestMemoryLimit(t *testing.T) {
	for name, x := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroups": {nil, 0},
		"version 2": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "2000\n",
			"sys/fs/cgroup/a/memory.max": "max\n"}, 2000},
		"a group around it": {map[string]string{"proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "2000\n", "sys/fs/cgroup/a/memory.max": "1000\n"}, 1000},
		"no bound": {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 0},
		"a container": {map[string]string{"proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/memory.max": "3000\n"},
			3000},
		"version 1": {map[string]string{"proc/self/cgroup": "4:cpu,memory:/docker/x\n3:pids:/docker/x\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "4000\n"}, 4000},
		"version 1 without a bound": {map[string]string{"proc/self/cgroup": "4:memory:/\n0::/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
		"garbage": {map[string]string{"proc/self/cgroup": "x\n0::\n::\n4:memory\n",
			"sys/fs/cgroup/memory.max": "-1"}, 0},
	} {
		root := fstest.MapFS{}
		for file, text := range x.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := cgroup.MemoryLimit(root); got != x.want {
			t.Errorf("%s: %d, want %d", name, got, x.want)
		}
	}
}
