// SPDX-License-Identifier: Apache-2.0

package userland

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// openWired makes a host with installed packages, a network card and the file weft.
func openWired(t *testing.T, suite string, packages ...string) *host {
	t.Helper()
	lab.NeedNetNS(t)
	u := unpack(t, suite, installed, append(packages, base...)...)
	u.need(t, base...)
	h := u.start(t)
	h.wire(t)
	if err := h.install(); err != nil {
		t.Fatal(err)
	}
	return h
}

// wire gives a host a network card, before its node starts: some programs do not use the loopback interface. The card
// is one end of a cable; the other end has no address.
func (h *host) wire(t *testing.T) {
	t.Helper()
	const script = `ip link add eth0 type veth peer name eth1
echo 1 >/proc/sys/net/ipv6/conf/eth1/disable_ipv6
ip addr add "$1/24" dev eth0
ip link set eth1 up
ip link set eth0 up`
	h.inNetwork(t, script)
}

// inNetwork runs a script of the shell as root in the network namespace of the host. Its first argument is the address
// of a wired host.
func (h *host) inNetwork(t *testing.T, script string) {
	t.Helper()
	enter := lab.Cmd{Args: []string{"nsenter", "--target=" + strconv.Itoa(h.pid), "--net", "sh", "-ec", script, "sh",
		wired}}
	if out, err := lab.Run(enter, limit); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// gid is the index of the GID of an address of the host, which runs a node for that.
func (h *host) gid(t *testing.T, address string) string {
	t.Helper()
	out, err := lab.Run(h.program(weft, "dev"), limit)
	m := regexp.MustCompile(`(?m)^weft0 +1 +(\d+) +` + regexp.QuoteMeta(address) + ` `).FindStringSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("no GID of %s: %v\n%s", address, err, out)
	}
	return m[1]
}

// put writes a file into the home of the host's user.
func (h *host) put(t *testing.T, name string, b []byte) {
	t.Helper()
	to := filepath.Join("/proc", strconv.Itoa(h.pid), "root", h.dir, home, name)
	if err := os.WriteFile(to, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// mpiPackages are what OpenMPI and a program of it need.
var mpiPackages = []string{"openmpi-bin", "libopenmpi-dev", "gcc", "libc6-dev"}

// ucxResult is the last line of ucx_perftest: iterations, times and rates.
var ucxResult = regexp.MustCompile(`(?m)^(Final:)?\s*\d+(\s+[0-9.]+){7}\s*$`)

// TestMiddleware: UCX, libfabric and OpenMPI of each release.
func TestMiddleware(t *testing.T) {
	lab.OnlySoak(t)
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) {
			t.Parallel()
			h := openWired(t, suite, append(mpiPackages, "ucx-utils", "libfabric-bin")...)
			u := h.userland
			gid := h.gid(t, wired)
			t.Run("UCX", func(t *testing.T) {
				u.need(t, "ucx-utils")
				h.needVerbsOfUCX(t)
				alone := h.withoutMPI(t)
				for _, tls := range []string{"rc_v", "ud_v"} {
					for _, test := range []string{"tag_bw", "tag_lat", "ucp_put_lat", "ucp_get", "stream_bw"} {
						t.Run(tls+" "+test, func(t *testing.T) {
							h.ucx(t, test, alone, "UCX_TLS=self,"+tls, "UCX_NET_DEVICES=weft0:1",
								"UCX_IB_GID_INDEX="+gid)
						})
					}
				}
				t.Run("OpenMPI", func(t *testing.T) {
					u.need(t, mpiPackages...)
					h.mpi(t, "--mca pml ucx --mca osc ucx -x UCX_TLS=self,rc_v -x UCX_NET_DEVICES=weft0:1 "+
						"-x UCX_IB_GID_INDEX="+gid)
				})
			})
			for _, provider := range []string{"-p verbs -e msg", "-p verbs;ofi_rxm -e rdm"} {
				t.Run("libfabric "+provider, func(t *testing.T) {
					u.need(t, "libfabric-bin")
					port := strconv.Itoa(lab.Port())
					args := append([]string{"fi_pingpong", "-c", "-I", "100"}, strings.Fields(provider)...)
					p, _ := strconv.Atoi(port)
					server := append(slices.Clone(args), "-B", port)
					out, err := pair(p, h.program(server...), h.program(append(args, "-P", port, wired)...))
					if err != nil || !regexp.MustCompile(`(?m)^4k\s+100\s+=100\s`).MatchString(out) {
						t.Errorf("%v\n%s", err, out)
					}
				})
			}
			t.Run("OpenMPI over libfabric", func(t *testing.T) {
				u.need(t, mpiPackages...)
				h.mpi(t, "--mca pml cm --mca mtl ofi --mca btl self --mca mtl_ofi_provider_include 'verbs;ofi_rxm'")
			})
		})
	}
}

// needVerbsOfUCX fails a row if UCX of the release is built without verbs.
func (h *host) needVerbsOfUCX(t *testing.T) {
	t.Helper()
	if l, _ := filepath.Glob(filepath.Join(h.dir, "usr/lib/*/ucx/libuct_ib.so*")); len(l) == 0 {
		t.Fatalf("%s has no UCX with verbs: its libucx0 has no libuct_ib", h.suite)
	}
}

// withoutMPI returns the flags with which ucx_perftest does not look for other processes of MPI. Only a version that is
// built with MPI has them.
func (h *host) withoutMPI(t *testing.T) []string {
	t.Helper()
	out, _ := lab.Run(h.command(nil, "ucx_perftest", "-h"), limit)
	if strings.Contains(out, "-P <0|1>") {
		return []string{"-P", "0"}
	}
	return nil
}

// ucx runs a test of ucx_perftest with more flags and an environment.
func (h *host) ucx(t *testing.T, test string, flags []string, env ...string) {
	t.Helper()
	port := lab.Port()
	args := []string{weft, "run", "--", "ucx_perftest", "-f", "-p", strconv.Itoa(port), "-t", test, "-n", "300",
		"-s", "65536"}
	args = append(args, flags...)
	out, err := pair(port, h.command(env, args...), h.command(env, append(args, wired)...))
	if err != nil || !ucxResult.MatchString(out) || strings.Contains(out, "ERROR") {
		t.Errorf("no result, or not only that: %v\n%s", err, out)
	}
}

// mpi compiles the program of test/e2e/mpi with the compiler of the release, and runs it as two ranks with flags of
// mpirun.
func (h *host) mpi(t *testing.T, flags string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(lab.Root(), "test/e2e/mpi/*.c"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %q", err, files)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	h.put(t, "ring.c", b)
	script := fmt.Sprintf(`cd %s
mpicc.openmpi -O2 -o ring ring.c
exec %s run -- mpirun.openmpi --oversubscribe --bind-to none -np 2 %s ./ring`, home, weft, flags)
	out, err := lab.Run(h.command(nil, "sh", "-ec", script), 2*time.Minute)
	if err != nil || !strings.Contains(out, "ring: ok: 2 ranks") {
		t.Errorf("%v\n%s", err, lab.Tail(out, 40))
	}
}
