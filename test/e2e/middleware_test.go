// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// both runs a server, which listens on a TCP port, and a client of it, and returns what went wrong: empty if both end
// well and the client prints what matches want.
func (b *testbed) both(port int, want string, server, client []string) (why string) {
	p, err := lab.StartPair(port, b.Server.Program(server...), b.Client.Program(client...))
	defer p.Kill()
	if err != nil {
		return fmt.Sprintf("%v%s", err, p.Outputs())
	}
	if c, s := p.Wait(90 * time.Second); c != nil || s != nil {
		return fmt.Sprintf("client: %v, server: %v%s", c, s, p.Outputs())
	}
	if out := p.Client.Output(); !regexp.MustCompile(want).MatchString(out) {
		return fmt.Sprintf("no %q%s", want, p.Outputs())
	}
	return ""
}

// libfabric runs fi_pingpong over a provider; -c checks contents. When the client has ended, ofi_rxm of libfabric 1.17
// may post a receive to the endpoint that it has just closed, and the server dies of a null pointer behind its last
// line (docs/notes/interop.md). Such a pair runs again.
func (b *testbed) libfabric(t *testing.T, args string) {
	done := regexp.MustCompile(`(?m)^1m\s+100\s+=100\s`)
	t.Run("fi_pingpong "+args, func(t *testing.T) {
		for tries := 0; ; tries++ {
			port := lab.Port()
			common := append([]string{"fi_pingpong", "-c", "-I", "100"}, strings.Fields(args)...)
			why := b.both(port, `(?m)^4k\s+100\s+=100\s`, append(common, "-B", strconv.Itoa(port)),
				append(common, "-P", strconv.Itoa(port), b.Server.NetNS.V4))
			if why == "" {
				return
			}
			if tries == 3 || !strings.Contains(args, "ofi_rxm") || !strings.Contains(why, "client: <nil>, server: ") ||
				!strings.Contains(why, "fi_pingpong(+0x") || len(done.FindAllString(why, -1)) != 2 {
				t.Fatal(why)
			}
			t.Logf("once more: %s", why)
		}
	})
}

// qperf connects by address, since its own way knows no GID. Its server prints the port before it listens: a client
// that is faster is refused, and tries again.
func (b *testbed) qperf(t *testing.T) {
	t.Run("qperf -cm1", func(t *testing.T) {
		tests := []string{"rc_lat", "rc_bw", "rc_rdma_write_bw", "rc_rdma_read_lat"}
		if !lab.Soak {
			tests = []string{"rc_lat", "rc_rdma_write_bw"}
		}
		for tries := 0; ; tries++ {
			port := lab.Port()
			lp := strconv.Itoa(port)
			client := append([]string{"qperf", "-lp", lp, "-t", "1", "-cm1", b.Server.NetNS.V4},
				append(tests, "quit")...)
			why := b.both(port, `(latency|bw)\s+=\s+[0-9.]+ `, []string{"qperf", "-lp", lp}, client)
			if why == "" {
				return
			}
			if tries == 3 || !strings.Contains(why, "Event rejected") {
				t.Fatal(why)
			}
			t.Logf("once more: %s", why)
		}
	})
}

// Middleware that finds its peers by the connection manager.
func TestMiddlewareOneNode(t *testing.T) {
	t.Parallel()
	needs(t, "fi_pingpong", "qperf")
	b := openTestbed(t, 9000, true, lab.Nobody)
	b.libfabric(t, "-p verbs -e msg")
	b.libfabric(t, "-p verbs;ofi_rxm -e rdm")
	b.libfabric(t, "-p verbs -e dgram -d weft0-dgram")
	if lab.Soak {
		b.libfabric(t, "-p verbs;ofi_rxd -e rdm -d weft0-dgram")
		b.ioDemo(t)
	}
	b.qperf(t)
}

func TestMiddlewareTwoNodes(t *testing.T) {
	t.Parallel()
	needs(t, "fi_pingpong", "qperf")
	b := openTestbed(t, 9000, false, 0)
	b.libfabric(t, "-p verbs -e dgram -d weft0-dgram")
	// The server names no address.
	b.libfabric(t, "-p verbs -e msg")
	if lab.Soak {
		b.libfabric(t, "-p verbs;ofi_rxm -e rdm")
		b.ioDemo(t)
	}
	b.qperf(t)
}

// io_demo connects by address, and checks what it gets.
func (b *testbed) ioDemo(t *testing.T) {
	t.Run("io_demo", func(t *testing.T) {
		cmd := func(n *lab.Node, args ...string) lab.Cmd {
			c := n.Program(append([]string{"io_demo", "-p", "1337"}, args...)...)
			c.Env = []string{"UCX_TLS=rc_v,self", "UCX_NET_DEVICES=weft0:1", "UCX_SOCKADDR_TLS_PRIORITY=rdmacm"}
			return c
		}
		server, err := lab.Start(cmd(b.Server))
		if err != nil {
			t.Fatal(err)
		}
		defer server.Kill()
		if _, err := server.Expect("created worker", 20*time.Second); err != nil {
			t.Fatal(err)
		}
		// A client tries again until the server listens.
		out, err := lab.RunBeside(server, cmd(b.Client, "-v", "-i", "200", b.Server.NetNS.V4), 60*time.Second)
		if err != nil || !strings.Contains(out, "Client exit with status 'OK'") {
			t.Errorf("%v\n%s\n-- server --\n%s", err, lab.Tail(out, 20), lab.Tail(server.Output(), 20))
		}
	})
}
