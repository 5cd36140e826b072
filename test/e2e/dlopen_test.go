// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// A program that loads libibverbs by itself, and Debian's in the library that
// stands in libibverbs' place.
func TestReplacement(t *testing.T) {
	program := lab.Bin("dlopen")
	if err := lab.BuildC(program, "test/e2e/dlopen/*.c", "-ldl"); err != nil {
		t.Fatal(err)
	}
	b := open(t, 9000, true, lab.Nobody)
	gid, err := b.Server.GID(b.Server.NetNS.V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, library := range []string{"libibverbs.so", "libibverbs.so.1"} {
		t.Run("dlopen "+library, func(t *testing.T) {
			out, err := lab.Run(b.Server.Program("--replace", "--", program, library, "weft0", fmt.Sprint(gid)), 30*time.Second)
			if err != nil || !strings.Contains(out, "dlopen: ok") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	// Programs linked with it, and with libraries that need its private symbols.
	for _, r := range []rung{{"ibv_rc_pingpong", "-c -e", true}, {"ib_write_bw", "-n 1000", true}} {
		t.Run(r.name(), func(t *testing.T) {
			out := b.pairWith(t, 60*time.Second, []string{"--replace"}, r.program, append(strings.Fields(r.args), extraArgs(r.program)...)...)
			if why := judge(r.program, out); why != "" {
				t.Errorf("%s\n%s", why, out)
			}
		})
	}
	t.Run("ucx_info -d", func(t *testing.T) {
		out, err := lab.Run(b.Server.Program("--replace", "--", "ucx_info", "-d"), 30*time.Second)
		if err != nil || !strings.Contains(out, "Transport: rc_verbs") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	if lab.Soak {
		verbcheck(t, b, verbcheckLimit, []string{"--replace"})
	}
}
