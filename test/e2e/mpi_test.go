// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// buildRing compiles the MPI program and returns its path.
func buildRing(t *testing.T) string {
	t.Helper()
	needs(t, "mpirun", "mpicc")
	flags, err := lab.Run(lab.Cmd{Args: []string{"mpicc", "--showme:compile"}}, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	libs, err := lab.Run(lab.Cmd{Args: []string{"mpicc", "--showme:link"}}, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	out := lab.Bin("ring")
	if err := lab.BuildC(out, "test/e2e/mpi/*.c", strings.Fields(flags+" "+libs)...); err != nil {
		t.Fatal(err)
	}
	return out
}

// mpi is a way of OpenMPI to a device.
type mpi struct {
	name string
	args string
}

func overUCX(tls, device string) mpi {
	return mpi{"ucx " + tls + " " + device, "--mca pml ucx --mca osc ucx -x UCX_TLS=self," + tls +
		" -x UCX_NET_DEVICES=" + device + ":1"}
}

// mpirun returns the command that runs a program as ranks of the testbed's nodes by
// turns. It needs neither ssh nor a scheduler: daemons of other nodes are started
// by entering their namespace.
func (b *testbed) mpirun(t *testing.T, m mpi, ranks int, program ...string) lab.Cmd {
	t.Helper()
	dir, err := os.MkdirTemp("", "weft-mpi-") // short: sockets lie in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"mpirun", "--oversubscribe", "--bind-to", "none", "-np", fmt.Sprint(ranks), "--mca",
		"orte_tmpdir_base", dir}, strings.Fields(m.args)...)
	c := b.Server
	if c.UID == 0 {
		args = append(args, "--allow-run-as-root")
	}
	if b.Client == b.Server {
		cmd := c.Program(append(args, program...)...)
		cmd.Env = []string{"HOME=" + dir}
		return cmd
	}
	// Two hosts are told apart by their names, so each needs one.
	agent := filepath.Join(dir, "agent")
	script := "#!/bin/sh\nhost=$1; shift\ncase $host in\n"
	for i, n := range []*lab.Node{b.Server, b.Client} {
		script += fmt.Sprintf("%s) ns=%s name=weft%d dir=%s ;;\n", n.NetNS.V4, n.NetNS.Name, i, n.Dir)
	}
	script += "esac\nexec ip netns exec $ns unshare --uts sh -c 'hostname '$name'; exec \"$@\"' - " +
		lab.Bin("weft") + " run --dir $dir -- sh -c \"$*\"\n"
	if err := os.WriteFile(agent, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	args = append(args, "--map-by", "node", "--host", b.Server.NetNS.V4+":"+fmt.Sprint(ranks)+","+b.Client.NetNS.V4+
		":"+fmt.Sprint(ranks), "--mca", "plm_rsh_agent", agent)
	cmd := c.Program(append(args, program...)...)
	cmd.Peers = append(cmd.Peers, b.Client.Proc)
	cmd.Args = append([]string{"unshare", "--uts", "sh", "-c", `hostname weft0; exec "$@"`, "-"}, cmd.Args...)
	cmd.Env = []string{"HOME=" + dir}
	return cmd
}

// ring runs the MPI program and expects its report that every byte was right, and
// the bytes to have gone through the node.
func (b *testbed) ring(t *testing.T, program string, m mpi, ranks int) {
	t.Helper()
	before := b.runs(t)
	out, err := lab.Run(b.mpirun(t, m, ranks, program), 2*time.Minute)
	if want := fmt.Sprintf("ring: ok: %d ranks", ranks); err != nil || !strings.Contains(out, want) {
		t.Fatalf("no %q: %v\n%s", want, err, lab.Tail(out, 60))
	}
	if moved := b.runs(t) - before; moved < 1000 {
		t.Errorf("only %d runs of packets passed the node", moved)
	}
}

// OpenMPI of a user without rights, then between two nodes; every byte checked.
func TestMPI(t *testing.T) {
	t.Parallel()
	program := buildRing(t)
	for _, oneNode := range []bool{true, false} {
		t.Run(map[bool]string{true: "one node", false: "two nodes"}[oneNode], func(t *testing.T) {
			uid := 0 // to enter another namespace
			if oneNode {
				uid = lab.Nobody
			}
			b := openTestbed(t, 9000, oneNode, uid)
			for _, m := range []mpi{overUCX("rc_v", "weft0"), overUCX("ud_v", "weft0")} {
				t.Run(m.name, func(t *testing.T) { b.ring(t, program, m, 2) })
			}
			if lab.Soak {
				for _, m := range []mpi{overUCX("rc_v", "weft0"), overUCX("ud_v", "weft0")} {
					t.Run(m.name+" 6 ranks", func(t *testing.T) { b.ring(t, program, m, 6) })
				}
				m := mpi{"ofi verbs;ofi_rxm",
					"--mca pml cm --mca mtl ofi --mca osc pt2pt --mca btl self --mca mtl_ofi_provider_include verbs;ofi_rxm"}
				t.Run(m.name, func(t *testing.T) { b.ring(t, program, m, 2) })
			}
		})
	}
}

// By LID, through switches and a trunk.
func TestMPIFabric(t *testing.T) {
	t.Parallel()
	program := buildRing(t)
	m := &managed{testbed: openTestbed(t, 9000, false, 0, fabricFlags...)}
	m.awaitActive(t)
	ways := []mpi{overUCX("rc_v", "weft_ib0")}
	if lab.Soak {
		ways = append(ways, overUCX("ud_v", "weft_ib0"))
	}
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) { m.ring(t, program, w, 2) })
	}
}
