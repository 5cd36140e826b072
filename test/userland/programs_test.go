// SPDX-License-Identifier: Apache-2.0

package userland

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// base is what a userland needs besides the programs of the rows, and programs has those as well.
var (
	base     = []string{"base-files", "ibverbs-providers", "util-linux"}
	programs = append([]string{"ibverbs-utils", "perftest", "rdmacm-utils"}, base...)
)

// row is a program that runs as server and as client.
type row struct {
	pkg  string
	args string // PORT is the TCP port, by which they find each other
	want string // matches what the client prints
}

// Each pingpong checks the contents. The address of the loopback interface is the GID of index 1.
var rows = []row{
	{"ibverbs-utils", "ibv_rc_pingpong -c -d weft0 -g 1 -p PORT", pingpongs},
	{"ibverbs-utils", "ibv_uc_pingpong -c -d weft0 -g 1 -p PORT", pingpongs},
	{"ibverbs-utils", "ibv_ud_pingpong -c -d weft0 -g 1 -p PORT -s 1000", pingpongs},
	{"ibverbs-utils", "ibv_srq_pingpong -c -d weft0 -g 1 -p PORT", pingpongs},
	{"ibverbs-utils", "ibv_rc_pingpong -c -d weft_ib0 -p PORT", pingpongs},
	{"perftest", "ib_write_bw -F -d weft0 -x 1 -p PORT -n 1000", measured},
	{"perftest", "ib_send_bw -F -d weft0 -x 1 -p PORT -n 1000", measured},
	{"perftest", "ib_read_bw -F -d weft0 -x 1 -p PORT -n 1000", measured},
	{"perftest", "ib_atomic_lat -F -d weft0 -x 1 -p PORT -n 1000", measured},
}

const (
	pingpongs = `(?m)^1000 iters in [0-9.]+ seconds`
	measured  = `(?m)^ *\d+ +1000 +[0-9.]+ +[0-9.]+`
)

// run runs the row in a host, with flags of weft run.
func (r row) run(h *host, flags ...string) error {
	port := lab.Port()
	args := strings.Fields(strings.ReplaceAll(r.args, "PORT", strconv.Itoa(port)))
	args = append(append(flags, "--"), args...)
	out, err := pair(port, h.program(args...), h.program(append(args, "127.0.0.1")...))
	if err == nil && (!regexp.MustCompile(r.want).MatchString(out) || strings.Contains(out, "invalid data")) {
		err = fmt.Errorf("no result, or wrong contents:\n%s", out)
	}
	return err
}

// first copies the file weft into a host and runs the first pingpong there. It returns how long both took.
func first(t testing.TB, h *host) time.Duration {
	t.Helper()
	begin := time.Now()
	err := h.install()
	if err == nil {
		err = rows[0].run(h)
	}
	if err != nil {
		t.Fatal(err)
	}
	return time.Since(begin)
}

// TestUserlands: with nothing but the file weft, verbs programs of each release work for a user without any capability,
// and no node has to be started before.
func TestUserlands(t *testing.T) {
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) {
			t.Parallel()
			lab.NeedNetNS(t)
			u := unpack(t, suite, extracted, programs...)
			u.need(t, append([]string{"ibverbs-utils"}, base...)...)
			h := u.start(t)
			t.Logf("%v from cp to the end of the first pingpong", first(t, h).Round(time.Millisecond))
			t.Run("ibv_devinfo", func(t *testing.T) {
				out, err := lab.Run(h.program("ibv_devinfo"), limit)
				if err != nil || strings.Count(out, "PORT_ACTIVE") != 2 {
					t.Errorf("%v\n%s", err, out)
				}
			})
			for _, r := range rows[1:] {
				t.Run(r.args, func(t *testing.T) {
					u.need(t, r.pkg)
					if err := r.run(h); err != nil {
						t.Error(err)
					}
				})
			}
			t.Run("--replace "+rows[0].args, func(t *testing.T) {
				if err := rows[0].run(h, "--replace"); err != nil {
					t.Error(err)
				}
			})
			t.Run("--replace, libraries of rdma-core", func(t *testing.T) { h.binds(t) })
			t.Run("rping", func(t *testing.T) {
				u.need(t, "rdmacm-utils")
				h.rping(t)
			})
			t.Run("no capability", func(t *testing.T) { h.unprivileged(t) })
		})
	}
}

// BenchmarkFirstPingpong measures the time from cp of the file weft to the end of the first pingpong, in a new host of
// each release.
func BenchmarkFirstPingpong(b *testing.B) {
	lab.NeedNetNS(b)
	for _, suite := range suites {
		b.Run(suite, func(b *testing.B) {
			u := unpack(b, suite, extracted, programs...)
			for b.Loop() {
				b.StopTimer()
				h := u.start(b)
				b.StartTimer()
				first(b, h)
				b.StopTimer()
				h.init.Kill()
				b.StartTimer()
			}
		})
	}
}

// rping tries again until the server listens, on a port of the connection manager, which no table of the kernel has.
func (h *host) rping(t *testing.T) {
	t.Helper()
	port := strconv.Itoa(lab.Port())
	args := []string{"rping", "-C", "10", "-V", "-a", "127.0.0.1", "-p", port}
	server, err := lab.Start(h.program(append(args, "-s")...))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	var out string
	if err := lab.Until("rping connects", limit, func() (bool, error) {
		out, err = lab.RunBeside(server, h.program(append(args, "-c", "-v")...), limit)
		return err == nil, nil
	}, server); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := server.Wait(limit); err != nil || strings.Count(out, "ping data: ") != 10 {
		t.Errorf("%v\n%s\n%s", err, out, server.Output())
	}
}

// unprivileged checks that the programs of the host have no capability and can get none.
func (h *host) unprivileged(t *testing.T) {
	t.Helper()
	out, err := lab.Run(h.program("setpriv", "--dump"), limit)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, line := range []string{"uid: 1000", "no_new_privs: 1", "Inheritable capabilities: [none]",
		"Capability bounding set: [none]"} {
		if !strings.Contains(out, line) {
			t.Errorf("no %q in:\n%s", line, out)
		}
	}
}
