// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// A program that loads libibverbs by itself, and Debian's in the library that
// stands in libibverbs' place.
func TestReplacement(t *testing.T) {
	t.Parallel()
	program := lab.Bin("dlopen")
	if err := lab.BuildC(program, "test/e2e/dlopen/*.c", "-ldl"); err != nil {
		t.Fatal(err)
	}
	b := openTestbed(t, 9000, true, lab.Nobody)
	gid, err := b.Server.GID(b.Server.NetNS.V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, library := range []string{"libibverbs.so", "libibverbs.so.1"} {
		t.Run("dlopen "+library, func(t *testing.T) {
			out, err := lab.Run(b.Server.Program("--replace", "--", program, library, "weft0", fmt.Sprint(gid)),
				30*time.Second)
			if err != nil || !strings.Contains(out, "dlopen: ok") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	// Programs linked with it, and with libraries that need its private symbols.
	for _, r := range []invocation{{"ibv_rc_pingpong", "-c -e", true}, {"ib_write_bw", "-n 1000", true}} {
		t.Run(r.name(), func(t *testing.T) {
			out := b.pairWith(t, 60*time.Second, []string{"--replace"}, r.program, append(strings.Fields(r.args),
				extraArgs(r.program)...)...)
			if why := checkOutput(r.program, out); why != "" {
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
	t.Run("instead of the preload library", func(t *testing.T) { replaced(t, b) })
	if lab.Soak {
		verbcheck(t, b, verbcheckLimit, []string{"--replace"})
	} else {
		verbcheck(t, b, verbcheckLimit, []string{"--replace"}, "-t", "event.arm*", "-t", "mw.type2", "-t", "cq.resize")
	}
}

// TestReplacementTwoNodes: all of verbcheck, by the library that stands in libibverbs' place.
func TestReplacementTwoNodes(t *testing.T) {
	t.Parallel()
	lab.OnlySoak(t)
	verbcheck(t, openTestbed(t, 9000, false, 0), verbcheckLimit, []string{"--replace"})
}

// replaced: a user with LD_LIBRARY_PATH at that library, and nothing else, has a node too: the one that
// WEFT_DIR names.
func replaced(t *testing.T, b *testbed) {
	alone := func(args ...string) lab.Cmd {
		return lab.Cmd{NetNS: b.Server.NetNS.Name, UID: b.Server.UID, Args: args,
			Env: []string{"LD_LIBRARY_PATH=" + filepath.Dir(lab.Bin("weft-verbs/libibverbs.so.1")),
				"WEFT_DIR=" + b.Server.Dir}, Peers: []lab.Peer{b.Server.Proc}}
	}
	if out, err := lab.Run(alone("ibv_devinfo", "-d", "weft0"), 30*time.Second); err != nil ||
		!strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("%v\n%s", err, out)
	}
	gid, err := b.Server.GID(b.Server.NetNS.V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct{ program, flag string }{{"ibv_rc_pingpong -c", "-g"}, {"ib_write_bw -F -n 1000", "-x"}} {
		if !lab.Soak && r.flag == "-x" {
			continue
		}
		port := lab.Port()
		args := append(strings.Fields(r.program), "-d", "weft0", r.flag, fmt.Sprint(gid), "-p", fmt.Sprint(port))
		p, err := lab.StartPair(port, alone(args...), alone(append(args, b.Server.NetNS.V4)...))
		if err == nil {
			client, server := p.Wait(30 * time.Second)
			err = errors.Join(client, server)
		}
		if err != nil {
			t.Errorf("%v%s", err, p.Outputs())
		}
		p.Kill()
	}
}
