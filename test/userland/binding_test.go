// SPDX-License-Identifier: Apache-2.0

package userland

import (
	"path/filepath"
	"strings"
	"testing"

	"weft/test/lab"
)

// binds checks that every library of rdma-core in the release finds all its symbols, with those of the private
// interface of the release, in the library that replaces libibverbs.
func (h *host) binds(t *testing.T) {
	t.Helper()
	var names []string
	for _, pattern := range []string{"librdmacm.so.1", "libmlx[45].so.1", "libefa.so.1", "libmana.so.1", "libhns.so.1",
		"libibverbs/*.so"} {
		list, err := filepath.Glob(filepath.Join(h.dir, "usr/lib/x86_64-linux-gnu", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list {
			names = append(names, strings.TrimPrefix(l, h.dir))
		}
	}
	if len(names) < 15 {
		t.Errorf("the release has %q alone", names)
	}
	out, err := lab.Run(h.command([]string{"LD_BIND_NOW=1"}, weft, "run", "--replace", "--",
		"/lib64/ld-linux-x86-64.so.2", "--preload", strings.Join(names, ":"), "/usr/bin/ibv_devinfo"), limit)
	if err != nil || strings.Contains(out, "ERROR") || strings.Count(out, "PORT_ACTIVE") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
}
