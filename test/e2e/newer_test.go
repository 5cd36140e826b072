// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// sid is the userland of Debian's unstable release in a directory, where rdma-core is newer than the one that the
// libraries of Weft are built with.
type sid struct {
	dir  string
	node *lab.Node
}

// unpackSid unpacks the release with what the test needs, and removes it at the end of the test.
func unpackSid(t *testing.T, node *lab.Node) *sid {
	t.Helper()
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		lab.Lacks(t, errors.New("another release of Debian needs mmdebstrap"))
	}
	dir, err := os.MkdirTemp("/var/tmp", "weft-sid-") // not in memory, and where device files work
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	out, err := lab.Run(lab.Cmd{Args: []string{"mmdebstrap", "--quiet", "--variant=minbase",
		`--aptopt=Acquire::Check-Valid-Until "false"`, "--include=ibverbs-utils,libibverbs-dev,gcc,libc6-dev", "sid", dir}}, 10*time.Minute)
	if err != nil {
		t.Fatalf("%v\n%s", err, lab.Tail(out, 20))
	}
	if err := os.CopyFS(filepath.Join(dir, "src"), os.DirFS(filepath.Join(lab.Root(), "test/e2e/newer"))); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"bin-weft", "node"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &sid{dir: dir, node: node}
}

// program returns the command that runs args in the release with the node's directory at /node. Its mounts end with it.
func (s *sid) program(args ...string) lab.Cmd {
	script := `d=$1; shift; mount --bind "$1" $d/bin-weft; shift; mount --bind "$1" $d/node; shift
mount --rbind /dev $d/dev; mount -t proc proc $d/proc; exec chroot $d "$@"`
	argv := []string{"unshare", "--mount", "sh", "-ec", script, "sh", s.dir, filepath.Dir(lab.Bin("weft")), s.node.Dir}
	return lab.Cmd{NetNS: s.node.NetNS.Name, Args: append(argv, args...)}
}

// TestNewerRdmaCore: programs of a newer rdma-core work with either library, and the verbs that only it has answer.
func TestNewerRdmaCore(t *testing.T) {
	t.Parallel()
	lab.OnlySoak(t)
	b := openTestbed(t, 9000, true, 0)
	s := unpackSid(t, b.Server)
	gid, err := b.Server.GID(b.Server.NetNS.V4)
	if err != nil {
		t.Fatal(err)
	}
	compile := s.program("gcc", "-Wall", "-o", "/bin/newer", "/src/newer.c", "-libverbs")
	if out, err := lab.Run(compile, time.Minute); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, flag := range []string{"--replace=false", "--replace"} {
		run := func(args ...string) lab.Cmd {
			return s.program(append([]string{"/bin-weft/weft", "run", "--dir", "/node", flag, "--"}, args...)...)
		}
		for _, r := range []struct {
			want string
			args []string
		}{
			{"newer: ok", []string{"newer"}},
			{"PORT_ACTIVE", []string{"ibv_devinfo", "-v"}},
		} {
			t.Run(r.args[0]+" "+flag, func(t *testing.T) {
				if out, err := lab.Run(run(r.args...), time.Minute); err != nil || !strings.Contains(out, r.want) {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
		for _, program := range []string{"ibv_rc_pingpong", "ibv_ud_pingpong -s 1000", "ibv_srq_pingpong"} {
			t.Run(program+" "+flag, func(t *testing.T) {
				port := lab.Port()
				args := append(strings.Fields(program), "-c", "-d", "weft0", "-g", fmt.Sprint(gid), "-p",
					fmt.Sprint(port))
				p, err := lab.StartPair(port, run(args...), run(append(args, b.Server.NetNS.V4)...))
				defer p.Kill()
				if err == nil {
					client, server := p.Wait(time.Minute)
					err = errors.Join(client, server)
				}
				if err != nil {
					t.Errorf("%v%s", err, p.Outputs())
				}
			})
		}
	}
}
